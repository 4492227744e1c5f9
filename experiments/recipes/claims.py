"""Every claim of the three papers, and its verdict.

  ./fl claims                     the whole table, from stored verdicts
  ./fl claims --run=NAME,...      runs, judges and stores; a NAME is a claim's id, a recipe,
                                  'theory', 'theory_on_data' or 'counts'
  ./fl claims --judge             judges again what stored evidence allows, without running
                                  anything; --judge=NAME,... a claim, or all that rest on a recipe

`recipes/claims.json` holds the claims: what is compared, relation, margin and tolerances, which do
not change after a run, the measure that reads the numbers from a recipe's runs (`measures`), and
who judges it on which data. `recipes/verdicts.json` holds what came out, and `recipes/evidence/`
the numbers of the runs that were judged (`evidence`): a claim that rests on several recipes needs
only those to be run that have neither runs nor evidence. A claim is never removed; a mistake in
one is answered by a dated remark beside its verdict. `docs/claims.md` is what the first command
prints; `verdicts` reads and stores all of these, and prints them. Importing this module does not
import TensorFlow.

Long because running, judging and storing share what they read of recipes and evidence.
"""

import argparse
import collections
import dataclasses
import datetime
import functools
import importlib
import pathlib
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.config import launcher
from experiments.folder import files
from experiments.recipes import (
  evidence,
  gathering,
  measures,
  recipes,
  reproduce,
  rules,
  verdicts,
)
from experiments.recipes import page as recipe_page
from experiments.recipes.impossible import Impossible
from experiments.recipes.rules import Finding
from experiments.recipes.verdicts import Claim, Judge, Verdict
from experiments.running import interruption, printing, startup
from experiments.running.progress import Doing, say
from settings import did_you_mean

_ALL = 'all'


# ------------------------------------------------------------ judging


def judge_theory(
  claim: Claim,
  judge: Judge,
  pairs: Iterable[Any] | None = None,
  *,
  data_dir: str | None = None,
) -> Finding:
  """Compares the pairs of a check.

  Args:
    claim: whose relation and margin hold for pairs without their own.
    judge: names the check.
    pairs: instead of the check's; an `Aside` among them is said, and judges nothing.
    data_dir: where data files are looked for, by a check on data.
  """
  from analysis.claims.pairs import Aside

  if pairs is None:
    pairs = check_of(claim, judge)(*_loader(judge, data_dir))
  found = list(pairs)
  besides = [one.text for one in found if isinstance(one, Aside)]
  pairs = [one for one in found if not isinstance(one, Aside)]
  if not pairs:
    return Finding(met=None, text='nothing was compared')
  failed: list[Any] = []
  passed: list[Any] = []
  worst = 0.0
  for pair in pairs:
    relation = pair.relation or claim.relation
    margin = claim.margin if pair.margin is None else pair.margin
    margin = float(margin) if isinstance(margin, int | float) else 0.0
    gap = rules.difference(pair.left, pair.right, exact=True)
    good = rules.holds(relation, gap, margin, pair.right)
    (passed if good else failed).append(pair)
    if relation == 'equals' and pair.right and pair.margin is None:
      worst = max(worst, abs(pair.left / pair.right - 1))
  met = not failed if judge.needed == 'all' else bool(passed)
  text = f'{len(passed)} of {len(pairs)} comparisons hold'
  if judge.needed == 'any':
    text += ', one is enough'
    shown = passed[:1]
  else:
    shown = failed[:2]
  if worst:
    text += f'; largest relative difference {worst:.1g}'
  words = '; '.join(f'{p.what}: {p.left:.4g} beside {p.right:.4g}' for p in shown)
  text = f'{text}. {words}' if words else text
  return Finding(met=met, text='. '.join([text, *besides]))


def check_of(claim: Claim, judge: Judge) -> Callable[..., Iterable[Any]]:
  """The function that a judge of theory names."""
  where = f'{claim.paper}_on_data' if judge.dataset else claim.paper
  return getattr(importlib.import_module(f'analysis.claims.{where}'), judge.theory)


def _loader(judge: Judge, data_dir: str | None) -> tuple[Callable[..., Any], ...]:
  """What a check on data takes: a function that loads them."""
  if not judge.dataset:
    return ()
  import datasets

  return (functools.partial(datasets.load_dataset, judge.dataset, data_dir=data_dir),)


def judge_counts(claim: Claim, judge: Judge, data_dir: str | None) -> Finding:
  """Compares the sizes of a data set with Table A1."""
  import datasets

  data = datasets.load_dataset(judge.counts, seed=0, data_dir=data_dir)
  everyone = np.arange(data.num_clients)
  train, test = data.train.load(everyone), data.test.load(everyone)
  sizes = train.num_examples
  shape = tuple(train.x.shape[2:])
  least, most = int(sizes.min()), int(sizes.max())
  if judge.counts == 'school':
    every = sizes + test.num_examples
    ours = {
      'students': int(every.sum()), 'silos': data.num_clients, 'features': shape[0],
      'students per school': [int(every.min()), int(every.max())],
    }  # fmt: skip
    numbers = claim.right['numbers']
    met = all(ours[name] == numbers[name] for name in ours)
    return Finding(met=met, text=f'{ours}; training rows {least} to {most}, not judged')
  silos, printed, low, high = claim.right['numbers'][
    {'rotated_masked_mnist': 'Rotated & Masked MNIST', 'cifar10_jpeg': 'Heterogeneous CIFAR-10'}[
      judge.counts
    ]
  ]
  # CIFAR-10's range is of a random split.
  near = 0.05 if judge.counts == 'cifar10_jpeg' else 0.0
  same = 'x'.join(map(str, shape if len(shape) > 2 else (*shape, 1))) == printed
  met = data.num_clients == silos and same
  met = met and abs(least - low) <= near * low and abs(most - high) <= near * high
  return Finding(met=met, text=f'{data.num_clients} silos of {printed}, {least} to {most} examples')


def _by_part(recipe: recipes.Recipe, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
  """A recipe's tables with the settings that a part has fixed."""
  found = {}
  for part, table in tables.items():
    fixed = recipe.grid(part).base
    simple = {n: v for n, v in fixed.items() if isinstance(v, str | int | float) and n not in table}
    found[part] = table.assign(**simple)
  return found


class RunsOfRecipes:
  """The runs that claims are judged on, gathered once for all claims on the same recipes."""

  def __init__(self, tables: Mapping[str, Mapping[str, pd.DataFrame]]):
    """Takes the tables, by recipe and part."""
    self._tables = tables
    self._gathered: dict[tuple[tuple[str, str], ...], measures.Runs] = {}

  def of(self, judge: Judge) -> measures.Runs:
    """The runs of a judge's recipes, with its family's terms and its values."""
    by_prefix = (('', judge.recipe), *judge.with_.items())
    if by_prefix not in self._gathered:
      self._gathered[by_prefix] = self._gather(by_prefix)
    family = verdicts.read_families()[judge.family]
    return dataclasses.replace(
      self._gathered[by_prefix], terms=family['terms'], values=judge.values,
      tuning_seeds=family['tuning_seeds'], tried={},
    )  # fmt: skip

  def _gather(self, by_prefix: Iterable[tuple[str, str]]) -> measures.Runs:
    found: dict[str, pd.DataFrame] = {}
    impossible: list[Impossible] = []
    seeds: tuple[int, ...] = ()
    for prefix, name in by_prefix:
      recipe, start = recipes.read(name), f'{prefix}.' if prefix else ''
      of_recipe = _by_part(recipe, self._tables[name])
      found.update({start + part: table for part, table in of_recipe.items()})
      impossible += [dataclasses.replace(i, part=start + i.part) for i in recipe.impossible]
      seeds = seeds if prefix else _seeds_in_steps(recipe)
    return measures.Runs(tables=found, seeds=seeds, cannot_be_had=tuple(impossible))


def judge_runs(claim: Claim, judge: Judge, every: RunsOfRecipes) -> Finding:
  """Applies a claim's measure to the runs of its recipes, which are among these."""
  assert claim.measure is not None
  runs = every.of(judge)
  found = measures.judge(
    claim.measure, runs, relation=claim.relation, margin=claim.margin, cells=claim.tolerance
  )
  if found.met is None or not runs.tried:
    return found
  tried = ', '.join(f'{method} {count}' for method, count in sorted(runs.tried.items()))
  return dataclasses.replace(found, text=f'{found.text}; settings tried: {tried}')


def _seeds_in_steps(recipe: recipes.Recipe) -> tuple[int, ...]:
  """All seeds of a recipe in two steps, which its parts share; none of another recipe."""
  return recipe.grid(next(iter(recipe.parts))).seeds if recipe.tuning_seeds else ()


def settings_read(
  recipe: recipes.Recipe, tables: Mapping[str, pd.DataFrame]
) -> set[tuple[str, str]]:
  """The (part, setting) that claims read with the seeds that judge, of a recipe in two steps.

  Args:
    recipe: which.
    tables: of its runs with the tuning seeds, and of what else was run, by part, from evidence.
  """
  families, merged = verdicts.read_families(), _by_part(recipe, tables)
  found: set[tuple[str, str]] = set()
  for claim in verdicts.read():
    for judge in claim.judges:
      if judge.recipe == recipe.name:
        assert claim.measure is not None
        plan = measures.Plan(
          tables=merged, terms=families[judge.family]['terms'], values=judge.values,
          tuning_seeds=recipe.tuning_seeds, wanted=found, seeds=_seeds_in_steps(recipe),
        )  # fmt: skip
        measures.judge(
          claim.measure, plan, relation=claim.relation, margin=claim.margin, cells=claim.tolerance
        )
  return found


def selected(
  claims: Sequence[Claim], names: Sequence[str], *, option: str = 'run'
) -> list[tuple[Claim, Judge]]:
  """The claims and judges that a list names: ids, recipes, 'theory', 'theory_on_data', 'counts'.

  A variant is chosen by its recipe's name alone.

  Args:
    claims: to choose from.
    names: the list.
    option: 'run': what rests on several recipes is chosen by its id, or by the names of all of
      them, for a recipe's name alone runs no other one. 'judge': by one of their names.

  Raises:
    ValueError: a name that is none of them.
  """
  chosen, unknown = [], set(names)
  for claim in claims:
    for judge in claim.judges:
      needed = {judge.name, *judge.with_.values()}
      unknown -= {claim.id} | needed
      named = needed & set(names) if option == 'judge' else needed <= set(names)
      if judge.name and (named or (claim.id in names and not judge.variant)):
        chosen.append((claim, judge))
  if unknown:
    judges = [judge for claim in claims for judge in claim.judges]
    known = {claim.id for claim in claims} | {judge.name for judge in judges} - {''}
    name = min(unknown)
    raise ValueError(
      f'--{option}={name} is no claim, and no recipe that judges one{did_you_mean(name, known)}'
    )
  return chosen


def _every(claims: Sequence[Claim]) -> list[tuple[Claim, Judge]]:
  return [(claim, judge) for claim in claims for judge in claim.judges]


def run(
  names: Sequence[str],
  *,
  data_dir: str | None = None,
  output: pathlib.Path = reproduce.RESULTS,
  workers: int = 1,
  today: str | None = None,
  page_dir: pathlib.Path | None = None,
) -> dict[str, dict[str, Verdict]]:
  """Runs what is missing for some claims, judges them, and stores the verdicts.

  Judged is what is stored as evidence of the runs, so that `judge_again` finds the same. Of the
  recipes of a claim on several, those whose runs are not in the output folder but have evidence
  are not run, unless they are named.

  Args:
    names: see `selected`.
    data_dir: where data files are looked for.
    output: folder of the recipes' results.
    workers: see `sweep.run`.
    today: the date to be stored, ISO.
    page_dir: a folder for a page of each recipe that is run.

  Returns:
    All stored verdicts.
  """
  every = selected(verdicts.read(), names)
  needed = dict.fromkeys(name for _, judge in every for name in judge.recipes)
  tables: dict[str, Mapping[str, pd.DataFrame]] = {}
  for name in _without_runs(every, names, output):
    kept = evidence.read(recipes.read(name))
    say(f'{name} is not run: judged from its evidence of {kept.date}')
    tables[name] = kept.tables
  to_run = [recipes.read(name) for name in needed if name not in tables]
  # What is damaged, cannot be written or is not here is said before anything runs.
  verdicts.read_verdicts()
  if page_dir is not None:
    files.check_folder(page_dir)
  for recipe in to_run:
    evidence.begun(recipe)
    recipes.get_data(recipe, data_dir, say)
  with startup.quiet():
    for _, judge in every:
      for load in _loader(judge, data_dir):
        load(seed=0)
  today = today or datetime.datetime.now(datetime.UTC).date().isoformat()
  found: dict[str, dict[str, Verdict]] = {}
  extra = [f'--data_dir={data_dir}'] if data_dir else []
  for recipe in to_run:
    kept = gathering.gather(
      recipe, output=output / recipe.name, extra=extra, workers=workers, date=today,
      used=read_of(recipe.name), reads=functools.partial(settings_read, recipe),
    )  # fmt: skip
    tables[recipe.name] = kept.tables
  runs = RunsOfRecipes(tables)
  for claim, judge in every:
    if judge.theory:
      with Doing(f'Computing {claim.id} on {judge.data}'), startup.quiet():
        finding = judge_theory(claim, judge, data_dir=data_dir)
    elif judge.counts:
      finding = judge_counts(claim, judge, data_dir)
    else:
      finding = judge_runs(claim, judge, runs)
    found.setdefault(claim.id, {})[judge.data] = _verdict(finding, today)
  stored = verdicts.store(found)
  if page_dir is not None:
    for recipe in to_run:  # a page shows the verdicts on its runs
      _write_page(page_dir, recipe, tables[recipe.name], output / recipe.name)
  return stored


def _write_page(
  page_dir: pathlib.Path,
  recipe: recipes.Recipe,
  judged: Mapping[str, pd.DataFrame],
  folder: pathlib.Path,
) -> None:
  finished = reproduce.finished(recipe, folder)
  if gathering.ran(judged) <= gathering.ran(finished):
    command = f'make claims RUN={recipe.name}'
    reproduce.describe(recipe, finished, output=folder, command=command, page_dir=page_dir)
  else:  # it was gone on with from the evidence of runs that are elsewhere
    say(f'{recipe.name}: not all of its runs are in {folder}, and its page has no pictures')
    recipe_page.write_without_runs(page_dir, recipe)


def _verdict(finding: Finding, date: str) -> Verdict:
  met = {None: verdicts.NOT_RUN, True: verdicts.MET, False: verdicts.NOT_MET}
  return Verdict(verdict=met[finding.met], text=finding.text, seeds=finding.seeds, date=date)


# ------------------------------------------------------------ evidence


def read_of(recipe: str) -> set[tuple[str, str]]:
  """The metrics, and of which group, that claims read of a recipe's runs."""
  families = verdicts.read_families()
  return {
    pair
    for claim in verdicts.read()
    for judge in claim.judges
    if recipe in judge.recipes
    for pair in _read_by(claim, judge, families, recipe)
  }


def _read_by(
  claim: Claim, judge: Judge, families: Mapping[str, Any], recipe: str
) -> set[tuple[str, str]]:
  assert claim.measure is not None
  prefixes = [
    prefix for prefix, name in {'': judge.recipe, **judge.with_}.items() if name == recipe
  ]
  read = [
    evidence.used_by(
      claim.measure, terms=families[judge.family]['terms'], values=judge.values,
      cells=claim.tolerance or (), prefix=prefix,
    )
    for prefix in prefixes
  ]  # fmt: skip
  return set().union(*read)


def _without_runs(
  every: Sequence[tuple[Claim, Judge]], names: Sequence[str], output: pathlib.Path
) -> list[str]:
  """The recipes of claims on several of them for whose runs evidence stands."""
  asked = {*names, *(judge.recipe for _, judge in every if len(judge.recipes) == 1)}
  found = []
  for name in dict.fromkeys(name for _, judge in every for name in judge.recipes):
    if name not in asked and not (output / name).exists():
      try:
        evidence.check(recipes.read(name))
      except evidence.Lacking as reason:
        say(f'{reason}: it is run')
      else:
        found.append(name)
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
  """What came of judging again.

  Attributes:
    judged: how many verdicts.
    changed: those that are not as they were stored, in words.
    lacking: by the reason why there is no evidence: which claims, on what data.
  """

  judged: int
  changed: tuple[str, ...]
  lacking: Mapping[str, Sequence[str]]

  def lines(self) -> list[str]:
    """To be read."""
    same = self.judged - len(self.changed)
    lines = [
      f'Judged again from evidence: {self.judged}; {same} as stored, {len(self.changed)} changed.',
      *(f'Changed: {words}' for words in self.changed),
    ]
    for reason, claims in self.lacking.items():
      words = f'Not judged, {reason}: {", ".join(claims)}'
      lines += textwrap.wrap(
        words, 100, subsequent_indent='  ', break_long_words=False, break_on_hyphens=False
      )
    return lines


def judge_again(names: Sequence[str] = ()) -> Again:
  """Judges from stored evidence alone, and stores the verdicts that are other ones now.

  A verdict on what has no evidence stays, and so does one that comes out as it is stored, with its
  date. Another one has the date of its evidence.

  Args:
    names: ids of claims, and recipes on which claims rest; all if there are none.

  Raises:
    ValueError: a name that is neither; evidence that is damaged.
  """
  claims, families, stored = verdicts.read(), verdicts.read_families(), verdicts.read_verdicts()
  every = selected(claims, names, option='judge') if names else _every(claims)
  every = [(claim, judge) for claim, judge in every if judge.recipe]
  resting = {name for claim, judge in every for name in (claim.id, *judge.recipes)}
  for name in names:
    if name not in resting:
      raise ValueError(
        f'--judge={name} rests on no runs, so that it needs no evidence; --run has it'
      )
  kept: dict[str, evidence.Evidence] = {}
  why_not: dict[str, str] = {}
  for name in dict.fromkeys(name for _, judge in every for name in judge.recipes):
    try:
      kept[name] = evidence.read(recipes.read(name))
    except evidence.Lacking as reason:
      why_not[name] = str(reason)
  runs = RunsOfRecipes({name: of_recipe.tables for name, of_recipe in kept.items()})
  found: dict[str, dict[str, Verdict]] = {}
  changed: list[str] = []
  lacking: dict[str, list[str]] = collections.defaultdict(list)
  judged = 0
  for claim, judge in every:
    is_alone = [j for j in claim.judges if not j.variant] == [judge]
    what = claim.id if is_alone else f'{claim.id} ({judge.data})'
    reasons = [why_not[name] for name in judge.recipes if name in why_not]
    for name in (name for name in judge.recipes if name in kept):
      for metric, group in sorted(_read_by(claim, judge, families, name) - kept[name].holds):
        reasons.append(f'the evidence of {name} has no {metric} of {group}')
    if reasons:
      lacking['; '.join(reasons)].append(what)
      continue
    judged += 1
    date = max(kept[name].date for name in judge.recipes)
    finding = judge_runs(claim, judge, runs)
    verdict, before = _verdict(finding, date), stored.get(claim.id, {}).get(judge.data)
    if (
      before is None
      or dataclasses.replace(verdict, date=before.date, remark=before.remark) != before
    ):
      found.setdefault(claim.id, {})[judge.data] = verdict
      was = before.verdict if before else 'no verdict'
      changed.append(f'{what}: {was} to {verdict.verdict}: {verdict.text}')
  if found:
    verdicts.store(found)
  return Again(judged=judged, changed=tuple(changed), lacking=lacking)


def write_pages() -> str:
  """Writes the page of all that is stored, and returns it; and the verdicts on pages of results."""
  with files.locked(verdicts.STORE):  # else it may take the place of a page with more verdicts
    text = verdicts.page(verdicts.read(), verdicts.read_verdicts())
    files.write_atomically(verdicts.PAGE, text.encode())
    recipe_page.print_verdicts_anew(verdicts.PAGE.parent / 'results')
  return text


def main(argv: Sequence[str]) -> int:
  """The command line; 0, 2 for an error, 130 or 143 after a signal."""
  parser = argparse.ArgumentParser(prog='./fl claims', description='Every claim and its verdict.')
  parser.add_argument(
    '--run', default=None, metavar='NAME,...',
    help="ids, recipes, 'theory', 'theory_on_data' (on data sets) or 'counts'",
  )  # fmt: skip
  parser.add_argument(
    '--judge', nargs='?', const=_ALL, default=None, metavar='NAME,...',
    help='judges again from recipes/evidence alone, runs nothing; ids or recipes, else all',
  )  # fmt: skip
  parser.add_argument('--data_dir', default=None, help='where data files are looked for')
  parser.add_argument('--output_dir', default=str(reproduce.RESULTS), help='results of the recipes')
  parser.add_argument('--workers', type=int, default=1, help='processes that share the runs')
  parser.add_argument('--page_dir', default=None, help='gets a page of each recipe that is run')
  own = parser.parse_args(argv[1:])
  try:
    with interruption.command(), interruption.Interruption():
      printing.out(_text(own).rstrip('\n'))
    return 0
  except (ValueError, OSError, MemoryError) as error:
    print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
    return 2
  except interruption.Interrupted as interrupted:
    command = shlex.join(['claims', *argv[1:]])
    print(f'stopped; continue with {launcher.command()} {command}', file=sys.stderr)
    return interrupted.exit_code


def _text(own: argparse.Namespace) -> str:
  """What a command prints, when it has run and judged what it asks for."""
  if own.workers < 1:
    raise ValueError(f'--workers={own.workers} must be at least 1.')
  if own.run == '':
    raise ValueError(
      "--run= names nothing; give ids of claims, recipes, 'theory', 'theory_on_data' or 'counts'."
    )
  if own.judge == '':
    raise ValueError('--judge= names nothing; give ids of claims or recipes, or --judge alone.')
  if own.run and own.judge:
    raise ValueError('--run and --judge: give one of them; what is run is judged.')
  if own.run:
    run(
      own.run.split(','), data_dir=own.data_dir, output=pathlib.Path(own.output_dir),
      workers=own.workers, page_dir=pathlib.Path(own.page_dir) if own.page_dir else None,
    )  # fmt: skip
    return write_pages()
  if own.judge:
    again = judge_again(() if own.judge == _ALL else own.judge.split(','))
    write_pages()
    return '\n'.join(again.lines())
  return verdicts.page(verdicts.read(), verdicts.read_verdicts())


if __name__ == '__main__':
  sys.exit(main(sys.argv))
