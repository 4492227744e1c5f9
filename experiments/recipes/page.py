"""A recipe's result as a page in Markdown: the paper's numbers beside those of the runs.

`outcome` prints what came out, with the verdicts that are stored; `print_verdicts_anew` does so
on pages that are there, without their runs. Importing this module does not import TensorFlow.
"""

import json
import math
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.folder import files
from experiments.folder.metrics import EVERYONE
from experiments.recipes import outcome, recipes, verdicts
from experiments.recipes.recipes import Recipe, over_seeds
from experiments.reports import layout
from experiments.running.progress import show, show_mean, show_seconds
from experiments.sweeps import table as sweep_table
from privacy.rounding import rounded_up

# What a page shows of a report where its recipe names no figure: the first that there is.
_DEFAULT_FIGURES = (
  'figure',
  'groups_along',
  'personalization',
  'lambda',
  'privacy_utility',
  'groups',
  'learning_curves',
)


def write(
  folder: pathlib.Path,
  recipe: Recipe,
  verdict: pd.DataFrame,
  *,
  command: str,
  seconds: float,
  runs: Sequence[pathlib.Path],
  drawings: pathlib.Path,
  changed: str = '',
  tables: Mapping[str, pd.DataFrame],
  spent: Sequence[str] = (),
  missing: Sequence[str] = (),
) -> pathlib.Path:
  """Writes NAME.md, and its pictures with their tables under images/.

  Args:
    folder: where.
    recipe: what was run.
    verdict: what `reproduce.compare` gave.
    command: that makes the numbers again.
    seconds: that it took.
    runs: folders of the runs.
    drawings: folder of the figures.
    tables: each part's table of metrics.
    changed: what is to be said if the settings are not the recipe's.
    spent: what all runs spend together, sentences (`spent.together`).
    missing: what cannot be had, sentences (`reproduce.cannot_be_had`).

  Returns:
    The page's path.
  """
  files.make_folder(folder / 'images')
  pictures = _of_the_runs(recipe, folder) if recipe.evidence_of else []
  figures = _figures(recipe, drawings)
  for name in figures:
    target = folder / 'images' / f'{recipe.name}_{name}'
    for suffix in ('.png', '.csv'):
      with files.writing_atomically(target.with_suffix(suffix)) as temporary:
        shutil.copyfile((drawings / name).with_suffix(suffix), temporary)
    pictures.append(_picture(recipe, target.name))
  of_others = _asked_for(recipes.read(recipe.evidence_of)) if recipe.evidence_of else []
  facts = [
    *_of_recipe(recipe, command),
    ('runs', f'those of [`{recipe.evidence_of}`]({recipe.evidence_of}.md), as they are stored')
    if recipe.evidence_of
    else ('time', show_seconds(seconds) + _machine(runs)),
    *(('cannot be had', sentence.replace('|', '/')) for sentence in missing),
    *(('privacy', guarantee) for guarantee in (*_guarantees(runs), *of_others)),
    *(('privacy of all runs', sentence) for sentence in spent),
  ]
  parts = [
    f'# {recipe.title}',
    f'**{changed}**' if changed else '',
    _facts(facts),
    outcome.show(recipe, *_tables(verdict), of_recipe=not changed),
    _measured(recipe.table, tables),
    *pictures,
    _curves(drawings / 'privacy_utility.csv') if 'privacy_utility' in figures else '',
    '\n'.join(f'- {note}' for note in recipe.all_notes),
  ]
  path = folder / f'{recipe.name}.md'
  files.write_atomically(path, ('\n\n'.join(filter(None, parts)) + '\n').encode())
  return path


def print_verdicts_anew(folder: pathlib.Path) -> None:
  """Prints on all pages of a folder what came out, by the verdicts that are stored now.

  A recipe whose runs were judged and that has no page gets one, without pictures.

  Raises:
    ValueError: a page without the marks between which that stands.
  """
  for path in sorted(folder.glob('*.md')):
    new = outcome.shown_anew(recipes.read(path.stem), path.read_text())
    files.write_atomically(path, new.encode())
  for name in verdicts.judged_recipes() if folder.exists() else ():
    path = folder / f'{name}.md'
    if not path.exists():
      write_without_runs(folder, recipes.read(name))


def _of_recipe(recipe: Recipe, command: str) -> list[tuple[str, str]]:
  data = ', '.join(f'`{name}`' for name in recipe.dataset_files) or recipe.data_at_hand
  return [
    ('paper', f'{recipe.paper}, {recipe.source}'), ('data', data), ('command', f'`{command}`')
  ]  # fmt: skip


def _facts(facts: Iterable[Sequence[str]]) -> str:
  return '\n'.join(['| | |', '| --- | --- |', *map(outcome.row, facts)])


def _of_the_runs(recipe: Recipe, folder: pathlib.Path) -> list[str]:
  """The picture on the page of the recipe whose runs are read, where it is in the same folder."""
  names = (f'{recipe.evidence_of}_{name}' for name in _DEFAULT_FIGURES)
  there = [name for name in names if (folder / 'images' / f'{name}.png').exists()]
  return [_picture(recipe, name) for name in there[:1]]


def _picture(recipe: Recipe, name: str) -> str:
  return f'![{recipe.title}](images/{name}.png)\n\n[The numbers of this figure](images/{name}.csv)'


def _figures(recipe: Recipe, drawings: pathlib.Path) -> list[str]:
  there = [n for n in recipe.figures or _DEFAULT_FIGURES if (drawings / f'{n}.png').exists()]
  return there if recipe.figures else there[:1]


def _machine(runs: Sequence[pathlib.Path]) -> str:
  """How many runs there were, and on what; of the first run, which the others resemble."""
  if not runs:
    return ''
  record = json.loads((runs[0] / 'config.json').read_text())
  what = f': {len(runs)} run{"s" if len(runs) > 1 else ""}'
  return f'{what}; {record["runtime"]}' if 'runtime' in record else what


def _guarantees(runs: Sequence[pathlib.Path]) -> list[str]:
  """The runs' epsilons with delta, whom they protect, and adjacency: a line for each kind."""
  kinds: dict[tuple[float, str, str, bool], set[float]] = {}
  for run in runs:
    record = json.loads((run / 'privacy.json').read_text())
    if record['private']:
      kind = (record['delta'], record['protected'], record['adjacency'], 'tuning' in record)
      kinds.setdefault(kind, set()).add(record['epsilon'])
  return [
    f'epsilon {", ".join(dict.fromkeys(map(rounded_up, sorted(epsilons))))} at delta '
    f'{show(delta)}. '
    f'{protected} Adjacency: {adjacency}.'
    + (' Each epsilon is of one run alone: choosing between runs is not accounted for.' * tuned)
    for (delta, protected, adjacency, tuned), epsilons in kinds.items()
  ]


def _curves(path: pathlib.Path) -> str:
  """The points of a figure over epsilon as a table: a row for each budget."""
  points = layout.read_table(path)
  points = points[points['budget'] < math.inf]
  several = points['problem'].nunique() > 1
  line = points['problem'] + ': ' + points['method'] if several else points['method']
  table = points.assign(line=line).pivot(index='budget', columns='line', values='mean')
  table = table[line.unique()]
  return outcome.table(
    ('epsilon', *table.columns),
    (
      (show(budget), *map(show, row))
      for budget, row in zip(table.index, table.to_numpy(), strict=True)
    ),
  )


def _measured(metrics: Sequence[str], tables: Mapping[str, pd.DataFrame]) -> str:
  """Some metrics of every setting of every part: means over seeds with standard deviations."""
  rows = []
  for part, table in tables.items() if metrics else ():
    of_all = table[table['group'] == EVERYONE]
    found = {m: over_seeds(of_all[of_all['metric'] == m]) for m in metrics}
    for setting in of_all['setting'].unique():
      numbers = [f.loc[setting] if setting in f.index else None for f in found.values()]
      cells = [n is not None and show_mean(n['mean'], n['std'], int(n['seeds'])) for n in numbers]
      rows.append((part, setting or '', *(cell or '' for cell in cells)))
  return outcome.table(('part', 'setting', *(name.replace('_', ' ') for name in metrics)), rows)


def write_without_runs(folder: pathlib.Path, recipe: Recipe) -> None:
  """Writes NAME.md of a recipe that was judged and whose runs are not at hand: its verdicts."""
  facts = [
    *_of_recipe(recipe, f'make claims RUN={recipe.name}'),
    ('runs', 'not kept here: no pictures, and no time; the command makes them and this page again'),
    *(('privacy', asked) for asked in _asked_for(recipe)),
  ]
  parts = [
    f'# {recipe.title}',
    _facts(facts),
    outcome.show(recipe, (), ()),
    '\n'.join(f'- {note}' for note in recipe.all_notes),
  ]
  files.make_folder(folder)
  files.write_atomically(folder / f'{recipe.name}.md', ('\n\n'.join(parts) + '\n').encode())


def _asked_for(recipe: Recipe) -> list[str]:
  """What a recipe's private runs ask for: the runs' own statements are not at hand."""
  kinds: dict[tuple[str, float], list[str]] = {}
  for part in recipe.parts:
    for config in recipe.grid(part).runs().values():
      if config.privacy != 'none':
        if config.target_epsilon is not None:
          epsilon = rounded_up(config.target_epsilon)
        elif config.silo_epsilons:
          epsilon = f'of `{config.silo_epsilons}`'
        else:
          epsilon = f'of noise multiplier {show(config.noise_multiplier)} ({part})'
        kinds.setdefault((config.privacy, config.delta), []).append(epsilon)
  return [
    f'epsilon {", ".join(dict.fromkeys(epsilons))} at delta {show(delta)}, asked for by the flags. '
    f"Unit: {unit}. Adjacency: zero-out. Each run's own statement is not kept."
    for (unit, delta), epsilons in kinds.items()
  ]


def _tables(verdict: pd.DataFrame) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
  """The rows of the paper's numbers, and of the messages."""
  rows = sweep_table.records(verdict)
  values = [row for row in rows if not math.isnan(row['expected'])]
  messages = [row for row in rows if math.isnan(row['expected'])]
  return [_value(row) for row in values], [_message(row) for row in messages]


def _value(row: dict[str, Any]) -> tuple[str, ...]:
  seeds = row['seeds']
  ours = show_mean(row['ours'], row['deviation'], seeds) + f' ({seeds} seeds)' * (seeds > 1)
  return (
    row['what'], show(row['expected']), ours, show(row['difference']),
    show(row['tolerance']), _met(row),
  )  # fmt: skip


def _message(row: dict[str, Any]) -> tuple[str, ...]:
  return row['what'], show(row['ours']), show(row['tolerance']), _met(row)


def _met(row: dict[str, Any]) -> str:
  return 'met' if row['met'] else outcome.NOT_MET
