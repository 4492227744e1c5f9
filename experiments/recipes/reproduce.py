"""Makes the papers' tables and figures again.

  ./fl recipes [--data_dir=FOLDER]   what there is, and whether its data is here
  ./fl reproduce NAME [--flag=...]   runs, compares, draws, and gives a verdict

Any flag of an experiment takes the place of the recipe's; --output_dir, --workers=N, --cluster and
--page_dir (a folder which gets the result's page with its pictures, besides the results)
say where and how. The same command again continues.

Long because running, comparing and describing a recipe share its files.
"""

# Importing this module does not import TensorFlow.

import contextlib
import dataclasses
import json
import math
import pathlib
import shlex
import sys
import textwrap
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence

import matplotlib
import pandas as pd

import drawing
from experiments.config import launcher, sweep_flags, user_files
from experiments.config.experiment import settings
from experiments.folder import figures, files
from experiments.folder.metrics import EVERYONE
from experiments.recipes import evidence, outcome, recipes
from experiments.recipes import page as recipe_page
from experiments.recipes.recipes import Recipe, Selector
from experiments.running import interruption, printing, startup
from experiments.running.progress import Doing, say, show, show_mean, show_seconds
from experiments.sweeps import record
from experiments.sweeps import table as sweep_table
from settings import Group
from settings import show as show_value

_COLUMNS = (
  'what', 'expected', 'ours', 'deviation', 'seeds', 'difference', 'tolerance', 'met', 'setting',
)  # fmt: skip
RESULTS = pathlib.Path('results/recipes')
_TIME = 'time.json'
EXIT_OFF, EXIT_ERROR = 1, 2


def run(
  recipe: Recipe,
  *,
  output: pathlib.Path,
  extra: Sequence[str] = (),
  workers: int = 1,
  cluster: str = '',
  only: Mapping[str, Collection[str]] | None = None,
) -> dict[str, pd.DataFrame]:
  """Runs what is left of a recipe's sweeps.

  Args:
    recipe: which.
    output: its folder; a sweep for each part goes below it.
    extra: flags which take the place of the recipe's.
    workers: see `sweep.run`.
    cluster: likewise.
    only: names of the runs of each part that are wanted now; None for all.

  Returns:
    `finished`: all runs but those of which the recipe says that they cannot be had.

  Raises:
    ValueError: a flag, or runs that failed and were not expected to.
  """
  with startup.quiet():
    from experiments.sweeps import sweep

  for part in recipe.parts:
    recipe.grid(part, extra).runs()  # what is wrong is said before anything is run
  with _timed(output):
    for part in recipe.parts:
      asked = None if only is None else only[part]
      if asked is not None and not asked:
        continue
      folder = output / part
      say(f'{recipe.name}, part {part}')
      grid = recipe.grid(part, extra)
      try:
        sweep.run(
          grid, folder=folder, resume=(folder / 'sweep.json').exists(), workers=workers,
          cluster=cluster, select_on=sweep_flags.NOTHING, only=asked,
        )  # fmt: skip
      except sweep.RunsFailed as failed:
        configs = grid.runs()
        reasons = failed.failures.items()
        if not all(recipe.is_impossible(part, configs[name], why) for name, why in reasons):
          raise
  return finished(recipe, output)


def finished(recipe: Recipe, output: pathlib.Path) -> dict[str, pd.DataFrame]:
  """The tables of a recipe's finished runs by part, with the column `setting`.

  Args:
    recipe: which.
    output: its folder.
  """
  tables = {}
  for part in recipe.parts:
    paths = sorted((output / part / 'runs').glob('*/summary.json'))
    runs = [sweep_table.Run.read(path.parent) for path in paths]
    found, early = [sweep_table.build(runs)], recipe.early_rounds(part)
    if early:
      found.append(sweep_table.build(runs, after=early))
    tables[part] = pd.concat(found, ignore_index=True)
  return {part: _with_settings(table) for part, table in tables.items()}


def cannot_be_had(recipe: Recipe, output: pathlib.Path) -> list[str]:
  """What the parts of a recipe that was run have not, and why: a sentence for each reason."""
  return [
    f'{part}, {words}'
    for part in recipe.parts
    for words in record.in_words(record.read_failures(output / part))
  ]


def _with_settings(table: pd.DataFrame) -> pd.DataFrame:
  return table.assign(setting=table['run'].map(sweep_table.setting_of))


def analyse(recipe: Recipe, drawings: pathlib.Path) -> dict[str, pd.DataFrame]:
  """Computes and draws a figure of a paper's theory.

  Args:
    recipe: one with an `analysis`.
    drawings: folder of figure.png, figure.svg and figure.csv.

  Returns:
    The table of its numbers, as `run` gives one; its cases are settings.
  """
  figure = recipe.analyse()
  files.make_folder(drawings)
  with matplotlib.rc_context(drawing.STYLE):
    figures.save(figure.draw(), drawings / 'figure')
  with files.writing_atomically(drawings / 'figure.csv') as temporary:
    figure.table().to_csv(temporary, index=False)
  rows = [
    {'setting': case, 'metric': name, 'value': value}
    for case, numbers in {'': figure.numbers, **figure.cases}.items()
    for name, value in numbers.items()
  ]
  return {'analysis': pd.DataFrame(rows).assign(group=EVERYONE)}


def compare(
  recipe: Recipe,
  tables: Mapping[str, pd.DataFrame],
  *,
  left_out: list[str] | None = None,
  extra: Sequence[str] = (),
) -> pd.DataFrame:
  """A verdict for each number.

  Args:
    recipe: which.
    tables: of its runs, or of its analysis.
    left_out: takes a sentence for each number that the runs have not, which has no row then.
    extra: flags which took the place of the recipe's, and are why.

  Returns:
    A row each, with the paper's number as `expected` (NaN for a comparison), our mean over
    the seeds and its deviation.

  Raises:
    ValueError: a number that the runs have not, without `left_out`.
  """
  rows = []
  for value in recipe.values:
    try:
      found = value.selector.find(tables)
    except ValueError as reason:
      _leave_out(left_out, value.what, reason, tables, extra, value.selector)
      continue
    difference = found.mean - value.expected
    rows.append(
      {
        'what': value.what,
        'expected': value.expected,
        'ours': found.mean,
        'deviation': found.std,
        'seeds': found.seeds,
        'difference': difference,
        'tolerance': value.tolerance,
        'met': abs(difference) <= value.tolerance,
        'setting': found.setting,
      }
    )
  for comparison in recipe.comparisons:
    try:
      better, worse = comparison.better.find(tables), comparison.worse.find(tables)
    except ValueError as reason:
      own = comparison.better, comparison.worse
      _leave_out(left_out, comparison.what, reason, tables, extra, *own)
      continue
    sign = 1.0 if sweep_table.is_better_high(comparison.better.metric) else -1.0
    gap = sign * (better.mean - worse.mean)
    rows.append(
      {
        'what': comparison.what,
        'expected': math.nan,
        'ours': gap,
        'deviation': math.nan,
        'seeds': better.seeds,
        'difference': gap,
        'tolerance': comparison.margin,
        'met': gap > comparison.margin,
        'setting': f'{better.setting or comparison.better.part} against '
        f'{worse.setting or comparison.worse.part}',
      }
    )
  return pd.DataFrame(rows, columns=list(_COLUMNS))


def _leave_out(
  left_out: list[str] | None,
  what: str,
  reason: ValueError,
  tables: Mapping[str, pd.DataFrame],
  extra: Sequence[str],
  *selectors: Selector,
) -> None:
  if left_out is None:
    raise reason
  lacking = (selector for selector in selectors if not _is_in(selector, tables))
  left_out.append(f'{what}: {_lacks(next(lacking), tables, extra)}')


def _is_in(selector: Selector, tables: Mapping[str, pd.DataFrame]) -> bool:
  try:
    selector.find(tables)
  except ValueError:
    return False
  return True


def _lacks(selector: Selector, tables: Mapping[str, pd.DataFrame], extra: Sequence[str]) -> str:
  """What runs of changed flags have not, for those who know the flags and not the recipe."""
  frame, flags = tables[selector.part], ' '.join(extra)
  metric, _, early = selector.metric.partition('@')
  if early and selector.metric not in set(frame['metric']):
    last = frame['rounds_done'].max() if 'rounds_done' in frame else math.nan
    if last < int(early):
      rounds = [flag for flag in extra if flag.startswith('--rounds=')]
      why = f'they end after {last:g} ({" ".join(rounds) or flags})'
    else:
      why = f'they were not evaluated then ({flags})'
    return f'the runs of part {selector.part} have no {metric} after {early} rounds: {why}.'
  where = ', '.join(f'{name}={show_value(value)}' for name, value in selector.where.items())
  setting = f'one setting with {where}' if where else 'one setting'
  return f'part {selector.part} has not {setting} whose {selector.metric} it is ({flags}).'


def verdict_lines(verdict: pd.DataFrame) -> list[str]:
  """The verdicts to read, one a line."""
  lines = []
  width = max((len(what) for what in verdict['what']), default=0)
  for row in sweep_table.records(verdict):
    start = f'{"met    " if row["met"] else "NOT MET"}  {row["what"].ljust(width)}  '
    if math.isnan(row['expected']):
      lines.append(f'{start}by {show(row["ours"])} (> {show(row["tolerance"])})')
    else:
      lines.append(
        f'{start}{show_mean(row["ours"], row["deviation"], row["seeds"])}, expected '
        f'{show(row["expected"])} within {show(row["tolerance"])}'
      )
  return lines


def reproduce(
  recipe: Recipe,
  *,
  output: pathlib.Path | None = None,
  extra: Sequence[str] = (),
  neutral: Sequence[str] = (),
  workers: int = 1,
  cluster: str = '',
  page_dir: pathlib.Path | None = None,
) -> bool:
  """Runs a recipe, compares, draws, and prints the verdicts.

  With flags of the user's own the numbers are compared all the same, and said to be of
  other settings.

  Args:
    recipe: which.
    output: its folder; by default one under results/recipes.
    extra: flags which take the place of the recipe's.
    neutral: flags which do not change the numbers.
    workers: see `sweep.run`.
    cluster: likewise.
    page_dir: a further folder for the result's page.

  Returns:
    Whether every number of the recipe was compared and met.
  """
  if recipe.analysis and extra:
    raise ValueError(f'{extra[0]}: {recipe.name} is computed, not run; it takes no such flags.')
  if recipe.evidence_of and extra:
    raise ValueError(
      f'{extra[0]}: {recipe.name} reads the runs of {recipe.evidence_of}, which takes such flags.'
    )
  output = output or RESULTS / (recipe.name if not extra else f'{recipe.name}-changed')
  if recipe.evidence_of:
    tables = _stored(recipe)
    files.make_folder(output)
  elif recipe.analysis:
    with _timed(output), Doing(f'Computing {recipe.name}'), startup.quiet():
      tables = analyse(recipe, output / 'report')
  else:
    tables = run(recipe, output=output, extra=[*neutral, *extra], workers=workers, cluster=cluster)
  command = f'make reproduce RECIPE={recipe.name}'
  command += f" ARGS='{' '.join(extra)}'" if extra else ''
  return describe(recipe, tables, output=output, command=command, extra=extra, page_dir=page_dir)


def _stored(recipe: Recipe) -> Mapping[str, pd.DataFrame]:
  """The tables of the runs of another recipe that a recipe reads.

  Raises:
    ValueError: they are not stored, and what runs them.
  """
  try:
    kept = evidence.read(recipes.read(recipe.evidence_of))
  except evidence.Lacking as reason:
    again = f'{launcher.command()} claims --run={recipe.evidence_of}'
    raise ValueError(f'{reason}, which {recipe.name} reads; {again} makes it') from reason
  say(f'{recipe.name} reads the runs of {recipe.evidence_of} of {kept.date}')
  return kept.tables


def describe(
  recipe: Recipe,
  tables: Mapping[str, pd.DataFrame],
  *,
  output: pathlib.Path,
  command: str,
  extra: Sequence[str] = (),
  page_dir: pathlib.Path | None = None,
) -> bool:
  """Compares, draws and prints what came of a recipe; whether every number was compared and met.

  Args:
    recipe: which.
    tables: of its runs, or of its analysis.
    output: its folder.
    command: that made it.
    extra: flags which took the place of the recipe's.
    page_dir: a further folder for the result's page.
  """
  drawings = output / 'report'
  seconds = _seconds(output)
  missing = cannot_be_had(recipe, output)
  # Other rounds, say, than the recipe's need not have all numbers: that costs no finished runs.
  left_out: list[str] = []
  verdict = compare(recipe, tables, left_out=left_out if extra else None, extra=extra)
  with files.writing_atomically(output / 'verdict.csv') as temporary:
    verdict.to_csv(temporary, index=False)
  changed = f'With {" ".join(extra)}: these are not the settings of the recipe.' if extra else ''
  files.write_json(
    output / 'verdict.json',
    {
      'recipe': recipe.name,
      'paper': recipe.paper,
      'source': recipe.source,
      'command': command,
      'seconds': seconds,
      'met': bool(verdict['met'].all()) and not left_out,
      'cannot_be_had': [*missing, *left_out],
      'numbers': json.loads(verdict.to_json(orient='records')),
    },
  )
  runs: list[pathlib.Path] = []
  spent: list[str] = []
  if recipe.parts:
    from experiments.reports import data as report_data
    from experiments.reports import report
    from experiments.sweeps import spent as spent_by

    folders = [output / part for part in recipe.parts]
    runs = [path for folder in folders for path in report_data.find_runs(folder)]
    report.write(
      folders, drawings, title=f'{recipe.title} ({recipe.paper}, {recipe.source}). {changed}',
      verdict=verdict, verdict_of=outcome.OTHER_SETTINGS if extra else '',
      notes=[*recipe.all_notes, *(f'Cannot be had: {one}' for one in (*missing, *left_out))],
    )  # fmt: skip
    moved = [flag.partition('=')[2] for flag in extra if flag.startswith('--data_dir=')]
    spent = spent_by.together(runs, data_dir=moved[-1] if moved else None)
    files.write_json(output / 'spent.json', {'together': spent})
  for folder in filter(None, (page_dir, output)):
    page = recipe_page.write(
      folder, recipe, verdict, command=command, seconds=seconds, runs=runs,
      drawings=drawings, tables=tables, changed=changed, spent=spent,
      missing=[*missing, *left_out],
    )  # fmt: skip
  print(f'\n{recipe.title}\n{recipe.paper}, {recipe.source}. {changed}\n')
  if changed:
    print(textwrap.fill(outcome.OTHER_SETTINGS, 100))
  print('\n'.join(verdict_lines(verdict)))
  for sentence in missing:
    print(textwrap.fill(f'Cannot be had, as expected: {sentence}', 100))
  for sentence in left_out:
    print(textwrap.fill(f'Not compared: {sentence}', 100))
  print(*spent, sep='\n')
  for note in recipe.all_notes:
    print(textwrap.fill(note, 96, initial_indent='- ', subsequent_indent='  '))
  met = int(verdict['met'].sum())
  where = f'{page}, {drawings}' if drawings.exists() else page
  others = f', {len(left_out)} not compared' if left_out else ''
  settings_of = ', with other settings than the recipe' if changed else ''
  print(f'\n{met} of {len(verdict)} met{others}{settings_of}, {show_seconds(seconds)}. {where}')
  return met == len(verdict) and not left_out


@contextlib.contextmanager
def _timed(output: pathlib.Path) -> Iterator[None]:
  """Adds what it takes to the seconds of a recipe, over all the times that it is continued."""
  before, start = _seconds(output), time.monotonic()
  try:
    yield
  finally:
    if output.exists():  # else it came to nothing
      files.write_json(output / _TIME, {'seconds': before + time.monotonic() - start})


def _seconds(output: pathlib.Path) -> float:
  path = output / _TIME
  try:
    return float(json.loads(path.read_text())['seconds']) if path.exists() else 0.0
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def main(argv: Sequence[str]) -> int:
  """The command line.

  Returns:
    0 if every number was compared and met, 1 if not, 2 for an error, 130 or 143 after a signal.
  """
  arguments = list(argv[1:])
  if not arguments or {'-h', '--help'} & {*arguments}:
    printing.out(__doc__.partition('\nLong because')[0])
    return 0 if arguments else EXIT_ERROR
  try:
    with interruption.command(), interruption.Interruption():
      return _main(arguments)
  except (ValueError, OSError, MemoryError) as error:
    print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
    return EXIT_ERROR
  except Exception as error:  # Python's own code would say that numbers are not met
    where = user_files.place_of(error)
    if not where:  # a fault of ours
      traceback.print_exc()
    print(f'error: {type(error).__name__}: {" ".join(str(error).split())}{where}', file=sys.stderr)
    return EXIT_ERROR
  except interruption.Interrupted as interrupted:
    # Which part it was at is not the reader's business: the whole command goes on by itself.
    again = shlex.join(['reproduce', *arguments])
    print(f'stopped; continue with {launcher.command()} {again}', file=sys.stderr)
    return interrupted.exit_code


def _main(arguments: Sequence[str]) -> int:
  if arguments[0] == '--list':
    own = _Arguments.of(arguments[1:])
    if own.changing:
      raise ValueError(f'{own.changing[0]}: the list of recipes takes --data_dir=FOLDER only.')
    every = recipes.read_all()
    lines = [recipes.listing(every, own.data_dir), *recipes.coverage_lines(every)]
    printing.out('\n'.join(lines))
    return 0
  if arguments[0].startswith('-'):
    raise ValueError(f'{arguments[0]} stands where a recipe has to: NAME [--flag=...].')
  recipe, own = recipes.read(arguments[0]), _Arguments.of(arguments[1:])
  if recipe.tuning_seeds and not own.changing:
    raise ValueError(
      f'{recipe.name} is run in two steps, for claims: {launcher.command()} claims '
      f'--run={recipe.name} runs and judges it (--page_dir there writes its page).'
    )
  for part in recipe.parts:  # what is wrong is said before anything is fetched
    recipe.grid(part, own.changing).runs()
  if own.page_dir is not None:
    files.check_folder(own.page_dir)
  if not any(flag.startswith('--dataset=') for flag in own.changing):
    recipes.get_data(recipe, own.data_dir, say)
  met = reproduce(
    recipe, output=own.output, extra=own.changing, neutral=own.neutral, workers=own.workers,
    cluster=own.cluster, page_dir=own.page_dir,
  )  # fmt: skip
  return 0 if met else EXIT_OFF


@dataclasses.dataclass(kw_only=True)
class _Arguments:
  """What stands behind a recipe's name on the command line.

  Attributes:
    neutral: flags that say where things are or run; the numbers stay comparable.
    changing: flags which take the place of the recipe's.
    output: the recipe's folder.
    page_dir: a further folder for the result's page.
    workers: see `sweep.run`.
    cluster: likewise.
    data_dir: where data files are looked for.
  """

  neutral: list[str] = dataclasses.field(default_factory=list)
  changing: list[str] = dataclasses.field(default_factory=list)
  output: pathlib.Path | None = None
  page_dir: pathlib.Path | None = None
  workers: int = 1
  cluster: str = ''
  data_dir: str | None = None

  @classmethod
  def of(cls, arguments: Sequence[str]) -> '_Arguments':
    """Reads arguments of the form --name=value."""
    own = cls()
    for argument in arguments:
      name, _, value = argument.lstrip('-').partition('=')
      if not argument.startswith('--'):
        raise ValueError(f'{argument!r} is no flag; flags have the form --name=value.')
      if name == 'output_dir':
        own.output = pathlib.Path(value) if value else None
      elif name == 'page_dir':
        own.page_dir = pathlib.Path(value) if value else None
      elif name == 'cluster':
        own.cluster = value
      elif name == 'workers':
        if not value.isdecimal() or int(value) < 1:
          raise ValueError(f'--workers={value} must be a whole number, at least 1.')
        own.workers = int(value)
      elif name in settings() and _is_neutral(name):
        own.neutral.append(argument)
        own.data_dir = value if name == 'data_dir' else own.data_dir
      else:
        own.changing.append(argument)
    return own


def _is_neutral(name: str) -> bool:
  setting = settings()[name]
  return not setting.identity or setting.group is Group.RUNTIME
