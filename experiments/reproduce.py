"""Recipes: the papers' tables and figures as commands.

  python -m experiments.reproduce --list            what there is, and whether its data is here
  python -m experiments.reproduce NAME [--flag=...] runs, compares, draws, and gives a verdict

A recipe is `recipes/NAME.flags`, what all its runs have in common, with
`recipes/NAME.expected.json`: where the numbers stand in the paper, the sweeps (`parts`)
that they come from, and each number with its tolerance. Importing this module does not
import TensorFlow.
"""

import dataclasses
import json
import math
import pathlib
import shlex
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from absl import flags, logging

from experiments import files, sweep_flags, sweep_table
from experiments import flags as experiment_flags
from experiments.config import settings
from experiments.metrics import EVERYONE
from experiments.progress import show, show_seconds
from experiments.settings import Group
from experiments.sweep_grid import Grid

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'recipes'
RESULTS = pathlib.Path('results/recipes')
EXIT_OFF, EXIT_ERROR = 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """One table or figure.

  Attributes:
    name: of its files.
    title: one line.
    paper: which paper.
    source: where in it.
    dataset_files: names of the data files that it needs; none if nothing is downloaded.
    minutes: estimated time on two cores.
    parts: flags of each sweep by its name, beside those of the flagfile.
    values: the numbers to be met.
    comparisons: what must be better than what.
    notes: what a reader has to know, such as how open hyper-parameters were chosen.
    tuned_on_test: whether the paper chose hyper-parameters on test data.
  """

  name: str
  title: str
  paper: str = ''
  source: str = ''
  dataset_files: tuple[str, ...] = ()
  minutes: float = 0.0
  parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  values: tuple['Value', ...] = ()
  comparisons: tuple['Comparison', ...] = ()
  notes: tuple[str, ...] = ()
  tuned_on_test: bool = False

  @property
  def flagfile(self) -> pathlib.Path:
    """What all its runs have in common."""
    return FOLDER / f'{self.name}.flags'

  def grid(self, part: str, extra: Sequence[str] = ()) -> Grid:
    """The sweep of one part.

    Raises:
      ValueError: a flag that is none.
    """
    values = flags.FlagValues()
    experiment_flags.define(values)
    sweep_flags.define(values)
    arguments = [self.name, f'--flagfile={self.flagfile}', *self.parts[part], *extra]
    try:
      rest = values(arguments)[1:]
    except flags.Error as error:
      raise ValueError(f'recipe {self.name}, part {part}: {error}') from error
    if rest:
      raise ValueError(f'recipe {self.name}: {rest[0]!r} is no flag.')
    given = {n: values[n].value for n in settings() if not values[n].using_default_value}
    return Grid.parse(given, values['sweep'].value, values['seeds'].value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selector:
  """A number of a recipe's runs: the mean over seeds of one metric of one setting.

  Attributes:
    part: the sweep.
    where: settings by name; those not named may have any value.
    metric: name in the table, such as 'server_test_accuracy'.
    group: of clients.
    best: if several settings match, take the best of them.
  """

  part: str
  metric: str
  where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  group: str = EVERYONE
  best: bool = False

  def find(self, tables: Mapping[str, pd.DataFrame]) -> 'Found':
    """Looks the number up.

    Raises:
      ValueError: no setting matches, or several.
    """
    frame = tables[self.part]
    frame = frame[(frame['metric'] == self.metric) & (frame['group'] == self.group)]
    for name, value in self.where.items():
      if name in frame:  # a setting that all runs share is no column
        # JSON has no infinity: it is written 'inf'.
        frame = frame[frame[name] == (float(value) if value == 'inf' else value)]
    scores = frame.groupby('setting', sort=False)['value'].agg(
      mean='mean', std=lambda v: v.std(ddof=0), seeds='size'
    )
    if len(scores) > 1 and self.best:
      high = sweep_table.is_better_high(self.metric)
      scores = scores.loc[[scores['mean'].idxmax() if high else scores['mean'].idxmin()]]
    if len(scores) != 1:
      raise ValueError(
        f'{len(scores)} settings of part {self.part} match {dict(self.where)} with {self.metric} '
        f'of {self.group}, not one.'
      )
    row = scores.iloc[0]
    return Found(
      setting=str(scores.index[0]), mean=float(row['mean']), std=float(row['std']),
      seeds=int(row['seeds']),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
  """A number of the runs: its mean and deviation over the seeds, and whose it is."""

  setting: str
  mean: float
  std: float
  seeds: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
  """A number of the paper.

  Attributes:
    what: in words.
    selector: the same number in our runs.
    expected: the paper's value, in our unit (fractions, not percent).
    tolerance: largest difference that is still met.
  """

  what: str
  selector: Selector
  expected: float
  tolerance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """A message of the paper: `better` is better than `worse` by at least `margin`."""

  what: str
  better: Selector
  worse: Selector
  margin: float = 0.0


def read(name: str) -> Recipe:
  """Reads a recipe.

  Raises:
    ValueError: there is none of that name, or it cannot be read.
  """
  path = FOLDER / f'{name}.expected.json'
  if not path.exists():
    known = ', '.join(recipe.name for recipe in read_all()) or 'none'
    raise ValueError(f'RECIPE={name} is no recipe; there are {known}.')
  try:
    raw = json.loads(path.read_text())
    return Recipe(
      name=name,
      parts={part: tuple(shlex.split(text)) for part, text in raw.pop('parts').items()},
      values=tuple(Value(selector=Selector(**v.pop('find')), **v) for v in raw.pop('values', ())),
      comparisons=tuple(
        Comparison(better=Selector(**c.pop('better')), worse=Selector(**c.pop('worse')), **c)
        for c in raw.pop('comparisons', ())
      ),
      dataset_files=tuple(raw.pop('dataset_files', ())),
      notes=tuple(raw.pop('notes', ())),
      **raw,
    )
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f'{path} is no recipe that can be read: {error}') from error


def read_all() -> list[Recipe]:
  """All recipes, by name."""
  return [
    read(p.name.removesuffix('.expected.json')) for p in sorted(FOLDER.glob('*.expected.json'))
  ]


def missing_data(recipe: Recipe, data_dir: str | None) -> list[str]:
  """Names of the data files that are not on this machine."""
  from datasets import files as data_files

  return [
    name for name in recipe.dataset_files
    if data_files.find(data_files.DataFile(name=name), data_dir) is None
  ]  # fmt: skip


def listing(recipes: Sequence[Recipe], data_dir: str | None = None) -> str:
  """What there is: one recipe a line, and whether its data is here."""
  rows = [('recipe', 'time', 'numbers', 'data', 'what')]
  for recipe in recipes:
    missing = missing_data(recipe, data_dir)
    data = ', '.join(recipe.dataset_files) or 'in the packages'
    rows.append(
      (
        recipe.name,
        show_seconds(60 * recipe.minutes),
        str(len(recipe.values) + len(recipe.comparisons)),
        f'{data} (not here)' if missing else data,
        recipe.title,
      )
    )
  widths = [max(len(row[i]) for row in rows) for i in range(4)]
  return '\n'.join(
    '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + '  ' + row[4]
    for row in rows
  )


def run(
  recipe: Recipe, *, output: pathlib.Path, extra: Sequence[str] = (), workers: int = 1
) -> dict[str, pd.DataFrame]:
  """Runs what is left of a recipe's sweeps.

  Args:
    recipe: which.
    output: its folder; a sweep for each part goes below it.
    extra: flags which take the place of the recipe's.
    workers: see `sweep.run`.

  Returns:
    The table of each part, with the column `setting`.
  """
  from experiments import sweep

  tables = {}
  for part in recipe.parts:
    folder = output / part
    logging.info('%s, part %s', recipe.name, part)
    result = sweep.run(
      recipe.grid(part, extra), folder=folder, resume=(folder / 'sweep.json').exists(),
      workers=workers, select_on=sweep_flags.NOTHING,
    )  # fmt: skip
    tables[part] = result.table
  return {part: _with_settings(table) for part, table in tables.items()}


def _with_settings(table: pd.DataFrame) -> pd.DataFrame:
  """Adds the setting's name: that of the run without its seed."""
  return table.assign(setting=table['run'].str.replace(r',?seed=\d+$', '', regex=True))


def compare(recipe: Recipe, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
  """A verdict for each number.

  Returns:
    The columns what, expected (paper), ours, deviation (over seeds), seeds, difference,
    tolerance, met, setting.
  """
  rows = []
  for value in recipe.values:
    found = value.selector.find(tables)
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
    better, worse = comparison.better.find(tables), comparison.worse.find(tables)
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
  return pd.DataFrame(rows)


def verdict_lines(verdict: pd.DataFrame) -> list[str]:
  """The verdicts to read, one a line."""
  lines = []
  width = max(len(what) for what in verdict['what'])
  for row in sweep_table.records(verdict):
    start = f'{"met" if row["met"] else "OFF"}  {row["what"].ljust(width)}  '
    if math.isnan(row['expected']):
      lines.append(f'{start}by {show(row["ours"])} (> {show(row["tolerance"])})')
    else:
      lines.append(
        f'{start}{show(row["ours"])} +- {show(row["deviation"])}, expected '
        f'{show(row["expected"])} +- {show(row["tolerance"])}'
      )
  return lines


def reproduce(
  recipe: Recipe,
  *,
  output: pathlib.Path | None = None,
  extra: Sequence[str] = (),
  workers: int = 1,
) -> bool:
  """Runs a recipe, compares, draws, and prints the verdicts.

  With flags of the user's own the numbers are compared all the same, and said to be of
  other settings.

  Returns:
    Whether every number was met.
  """
  from experiments import report

  output = output or RESULTS / (recipe.name if not extra else f'{recipe.name}-changed')
  start = time.monotonic()
  tables = run(recipe, output=output, extra=extra, workers=workers)
  seconds = time.monotonic() - start
  verdict = compare(recipe, tables)
  with files.writing_atomically(output / 'verdict.csv') as temporary:
    verdict.to_csv(temporary, index=False)
  changed = f' With {" ".join(extra)}: these are not the settings of the recipe.' if extra else ''
  files.write_json(
    output / 'verdict.json',
    {
      'recipe': recipe.name,
      'paper': recipe.paper,
      'source': recipe.source,
      'command': f'make reproduce RECIPE={recipe.name}',
      'extra_flags': list(extra),
      'seconds': seconds,
      'met': bool(verdict['met'].all()),
      'numbers': json.loads(verdict.to_json(orient='records')),
    },
  )
  page = report.write(
    [output / part for part in recipe.parts], output / 'report',
    title=f'{recipe.title} ({recipe.paper}, {recipe.source}).{changed}', verdict=verdict,
    notes=_notes(recipe),
  )  # fmt: skip
  print(f'\n{recipe.title}\n{recipe.paper}, {recipe.source}.{changed}\n')
  print('\n'.join(verdict_lines(verdict)))
  for note in _notes(recipe):
    print(textwrap.fill(note, 96, initial_indent='- ', subsequent_indent='  '))
  print(f'\n{int(verdict["met"].sum())} of {len(verdict)} met, {show_seconds(seconds)}. {page}')
  return bool(verdict['met'].all())


def _notes(recipe: Recipe) -> list[str]:
  notes = list(recipe.notes)
  if recipe.tuned_on_test:
    notes.append('The paper chose hyper-parameters on test data, and so does this recipe.')
  return notes


def main(argv: Sequence[str]) -> int:
  """The command line.

  Returns:
    0 if every number was met, 1 if not, 2 for an error, 130 or 143 after a signal.
  """
  from experiments import interruption

  arguments = list(argv[1:])
  if not arguments or arguments[0] in ('-h', '--help'):
    print(__doc__)
    return 0 if arguments else EXIT_ERROR
  try:
    if arguments[0] == '--list':
      data_dir = next((a.partition('=')[2] for a in arguments if a.startswith('--data_dir=')), None)
      print(listing(read_all(), data_dir))
      return 0
    recipe, own = read(arguments[0]), _Arguments.of(arguments[1:])
    missing = missing_data(recipe, own.data_dir)
    if missing:
      logging.warning('%s is not here and will be fetched if it can be', ', '.join(missing))
    logging.set_verbosity(logging.INFO)
    parts = {part: (*flags_, *own.neutral) for part, flags_ in recipe.parts.items()}
    met = reproduce(
      dataclasses.replace(recipe, parts=parts), output=own.output, extra=own.changing,
      workers=own.workers,
    )  # fmt: skip
    return 0 if met else EXIT_OFF
  except (ValueError, OSError, MemoryError) as error:
    print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
    return EXIT_ERROR
  except interruption.Interrupted as interrupted:
    print(f'{interrupted} (or the same command again)', file=sys.stderr)
    return interrupted.exit_code


@dataclasses.dataclass(kw_only=True)
class _Arguments:
  """What stands behind a recipe's name on the command line.

  Attributes:
    neutral: flags that say where things are or run; the numbers stay comparable.
    changing: flags which take the place of the recipe's.
    output: the recipe's folder.
    workers: see `sweep.run`.
    data_dir: where data files are looked for.
  """

  neutral: list[str] = dataclasses.field(default_factory=list)
  changing: list[str] = dataclasses.field(default_factory=list)
  output: pathlib.Path | None = None
  workers: int = 1
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
        own.output = pathlib.Path(value)
      elif name == 'workers':
        if not value.isdecimal() or int(value) < 1:
          raise ValueError(f'--workers={value} must be at least 1.')
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


if __name__ == '__main__':
  sys.exit(main(sys.argv))
