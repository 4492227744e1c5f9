"""Recipes: the papers' tables and figures as files, and which of them have one.

A recipe is `recipes/NAME.flags`, what all its runs have in common, with
`recipes/NAME.expected.json`: where the numbers stand in the paper, the sweeps (`parts`)
that they come from, and each number with its tolerance. A figure of a paper's theory has
no runs: `analysis` names the function that computes it. `recipes/papers.json` lists every
table and figure of the papers. Importing this module does not import TensorFlow.
"""

import dataclasses
import importlib
import json
import pathlib
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from absl import flags

from datasets import files as data_files
from datasets import sources
from experiments.config import flags as experiment_flags
from experiments.config import launcher, sweep_flags
from experiments.config.experiment import ExperimentConfig, given_flags, settings
from experiments.folder.metrics import EVERYONE
from experiments.recipes.impossible import Impossible, from_json
from experiments.running.progress import show_seconds
from experiments.sweeps import table as sweep_table
from experiments.sweeps.grid import Grid
from settings import did_you_mean

_NUMBER = r'A?\d+(?: \([a-z]\))?'
_SOURCE = re.compile(rf'(Figure|Table)s? ((?:{_NUMBER}(?:, | and )?)+)')
FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'recipes'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """One table or figure.

  Attributes:
    name: of its files.
    title: one line.
    paper: which paper.
    source: the tables and figures in it.
    dataset_files: names of the data files that it needs; none if nothing is downloaded.
    minutes: estimated time on two cores.
    parts: flags of each sweep by its name, beside those of the flagfile.
    analysis: 'module:function' that gives an `analysis.figures.Figure`, in the place of
      parts.
    evidence_of: the recipe whose runs, as they are stored, it reads in the place of its own.
    values: the numbers to be met.
    comparisons: what must be better than what.
    impossible: runs that cannot be had, said beforehand; any other that fails fails the recipe.
    after: rounds before the last one after which numbers are wanted in any case.
    tuning_seeds: how many of the first seeds are run with every setting; the others, which judge
      claims, are run with the settings that a claim reads, chosen on the first. 0: all with all.
    figures: names of the report's figures which show what the paper's shows.
    table: metrics that the page lists for every setting of every part.
    notes: what a reader has to know, such as how open hyper-parameters were chosen.
    differs: in what the runs are not those that a claim asks for; said beside its verdict.
    tuned_on_test: whether hyper-parameters are chosen on test data, as the paper did.
  """

  name: str
  title: str
  paper: str = ''
  source: str = ''
  dataset_files: tuple[str, ...] = ()
  minutes: float = 0.0
  parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  analysis: str = ''
  evidence_of: str = ''
  values: tuple['Value', ...] = ()
  comparisons: tuple['Comparison', ...] = ()
  impossible: tuple[Impossible, ...] = ()
  after: tuple[int, ...] = ()
  tuning_seeds: int = 0
  figures: tuple[str, ...] = ()
  table: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()
  differs: str = ''
  tuned_on_test: bool = False

  def __post_init__(self):
    if sum(map(bool, (self.parts, self.analysis, self.evidence_of))) != 1:
      raise ValueError('it needs either parts, an analysis, or the evidence of another recipe.')
    for impossible in self.impossible:
      if impossible.part not in self.parts:
        raise ValueError(f'{impossible.part!r} is no part in which runs could be impossible.')

  @property
  def flagfile(self) -> pathlib.Path:
    """What all its runs have in common."""
    return FOLDER / f'{self.name}.flags'

  @property
  def items(self) -> set[str]:
    """The tables and figures of `source`, which may have 'Figures 1 (c) and 2'."""
    return {
      f'{kind} {number}'
      for kind, numbers in _SOURCE.findall(self.source)
      for number in re.findall(_NUMBER, numbers)
    }

  @property
  def data_at_hand(self) -> str:
    """What to say of the data where no file is needed."""
    return 'none' if self.analysis else 'in the packages'

  @property
  def all_notes(self) -> list[str]:
    """The notes, and what is to be said where test data chose."""
    notes = list(self.notes)
    if self.tuned_on_test:
      notes.append('The paper chose hyper-parameters on test data, and so does this recipe.')
    return notes

  def grid(self, part: str, extra: Sequence[str] = ()) -> Grid:
    """The sweep of one part.

    Raises:
      ValueError: a flag that is none.
    """
    values = flags.FlagValues()
    sweep_flags.define(values)
    arguments = [self.name, f'--flagfile={self.flagfile}', *self.parts[part], *extra]
    try:
      experiment_flags.define_own(arguments, values)
      experiment_flags.parse(arguments, values)
    except (flags.Error, ValueError) as error:
      raise ValueError(f'recipe {self.name}, part {part}: {error}') from error
    grid = Grid.parse(given_flags(values), values['sweep'].value, values['seeds'].value)
    for one in {one for names in grid.axes for one in names.split('+')}:
      if any(argument.startswith(f'--{one}=') for argument in extra) and not _repeated(one):
        raise ValueError(f'--{one}: recipe {self.name} compares values of it; it cannot be given.')
    return grid

  def is_impossible(self, part: str, config: ExperimentConfig, reason: str) -> bool:
    """Whether it was expected that a run of a part fails for such a reason."""
    return any(one.part == part and one.covers(config, reason) for one in self.impossible)

  def early_rounds(self, part: str) -> list[int]:
    """The rounds before the last one after which a number of a part is wanted."""
    selectors = [value.selector for value in self.values]
    selectors += [s for c in self.comparisons for s in (c.better, c.worse)]
    early = {s.metric.partition('@')[2] for s in selectors if s.part == part} - {''}
    return sorted({*map(int, early), *self.after})

  def analyse(self) -> Any:
    """Computes the `analysis.figures.Figure` of a recipe that has no runs."""
    module, _, function = self.analysis.partition(':')
    return getattr(importlib.import_module(module), function)()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selector:
  """A number of a recipe's runs: the mean over seeds of one metric of one setting.

  Attributes:
    part: the sweep, or 'analysis'.
    where: settings by name; those not named may have any value.
    metric: name in the table, such as 'server_test_accuracy'; with @30 behind it as it was
      after 30 rounds.
    group: of clients.
    best: if several settings match, take the best of them: on validation data if the
      runs kept some, else by the metric itself.
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
    frame = frame[frame['group'] == self.group]
    for name, value in self.where.items():
      if name in frame:  # a setting that all runs share is no column
        frame = frame[frame[name] == from_json(value)]
    scores = over_seeds(frame[frame['metric'] == self.metric])
    if len(scores) > 1 and self.best:
      validation = over_seeds(frame[frame['metric'] == self.metric.replace('test', 'validation')])
      judge = validation if len(validation) == len(scores) else scores
      high = sweep_table.is_better_high(self.metric)
      scores = scores.loc[[judge['mean'].idxmax() if high else judge['mean'].idxmin()]]
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


def over_seeds(frame: pd.DataFrame) -> pd.DataFrame:
  """mean, std and seeds by setting, of a table with the values of one metric and group."""
  return sweep_table.spread(frame, ['setting'])


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
  """A message of the paper: `better` is better than `worse` by more than `margin`."""

  what: str
  better: Selector
  worse: Selector
  margin: float = 0.0


def _repeated(name: str) -> bool:
  return settings()[name].kind is tuple


def read(name: str) -> Recipe:
  """Reads a recipe.

  Raises:
    ValueError: there is none of that name, or it cannot be read.
  """
  path = FOLDER / f'{name}.expected.json'
  if not path.exists():
    known = [p.name.removesuffix('.expected.json') for p in FOLDER.glob('*.expected.json')]
    raise ValueError(
      f'RECIPE={name} is no recipe{did_you_mean(name, known)} {launcher.command()} recipes lists '
      f'all {len(known)}.'
    )
  try:
    raw = json.loads(path.read_text())
    return Recipe(
      name=name,
      parts={p: tuple(shlex.split(text)) for p, text in raw.pop('parts', {}).items()},
      values=tuple(Value(selector=Selector(**v.pop('find')), **v) for v in raw.pop('values', ())),
      comparisons=tuple(
        Comparison(better=Selector(**c.pop('better')), worse=Selector(**c.pop('worse')), **c)
        for c in raw.pop('comparisons', ())
      ),
      dataset_files=tuple(raw.pop('dataset_files', ())),
      impossible=tuple(Impossible(**one) for one in raw.pop('impossible', ())),
      after=tuple(raw.pop('after', ())),
      figures=tuple(raw.pop('figures', ())),
      table=tuple(raw.pop('table', ())),
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


def read_papers() -> dict[str, dict[str, str]]:
  """Every table and figure of each paper, with what is to be said if it has no recipe."""
  return json.loads((FOLDER / 'papers.json').read_text())


def missing_data(recipe: Recipe, data_dir: str | None) -> list[data_files.DataFile]:
  """The data files that it needs and that are not on this machine."""
  missing = []
  for file in map(sources.find, () if recipe.evidence_of else recipe.dataset_files):
    if data_files.find(file, data_dir) is None:
      missing += [f for f in file.instead or (file,) if data_files.find(f, data_dir) is None]
  return missing


def get_data(recipe: Recipe, data_dir: str | None, say: Callable[[str], None]) -> None:
  """Fetches the data files that are not here, before anything is run.

  Args:
    recipe: whose files.
    data_dir: where they are looked for, and fetched to.
    say: told of each file that is fetched.

  Raises:
    FileNotFoundError: a file that has to be put there by hand, or that could not be fetched; says
      of all of them where to get them.
    ValueError: a file that came with wrong contents.
  """
  missing = missing_data(recipe, data_dir)
  by_hand = [file for file in missing if file.url is None]
  if by_hand:
    folder = data_files.folders(data_dir)[0]
    where = ' '.join(f'{file.name}: {file.how}' for file in by_hand)
    raise FileNotFoundError(
      f'{recipe.name} needs data that no program can fetch. {where} Put '
      f'{" and ".join(file.name for file in by_hand)} into {folder}, or name another folder with '
      '--data_dir. Nothing was run.'
    )
  for file in missing:
    say(f'Fetching {file.name} from {file.url} ...')
    data_files.get(file, data_dir, digest=False)


def _state_of_data(recipe: Recipe, data_dir: str | None) -> str:
  """Whether the data are here, will come by themselves, or have to be put."""
  missing = missing_data(recipe, data_dir)
  if recipe.evidence_of:
    return 'runs that are stored'
  if not recipe.dataset_files:
    return recipe.data_at_hand
  first, *more = recipe.dataset_files
  names = f'{first} and {len(more)} more' if more else first
  if not missing:
    return f'{names}: here'
  if any(file.url is None for file in missing):
    return f'{names}: to be put by hand'
  return f'{names}: will be downloaded'


def listing(recipes: Sequence[Recipe], data_dir: str | None = None) -> str:
  """What there is: one recipe a line, those of claims last, and whether its data is here."""
  rows = [('recipe', 'time', 'numbers', 'data', 'what')]
  for recipe in sorted(recipes, key=lambda recipe: recipe.name.startswith('claims_')):
    rows.append(
      (
        recipe.name,
        show_seconds(60 * recipe.minutes),
        str(len(recipe.values) + len(recipe.comparisons)),
        _state_of_data(recipe, data_dir),
        recipe.title,
      )
    )
  widths = [max(len(row[i]) for row in rows) for i in range(4)]
  return '\n'.join(
    '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + '  ' + row[4]
    for row in rows
  )


def coverage(recipes: Sequence[Recipe]) -> dict[str, dict[str, str]]:
  """By paper and by table or figure: the names of its recipes, or why it has none."""
  return {
    paper: {
      item: ', '.join(r.name for r in recipes if r.paper == paper and item in r.items) or reason
      for item, reason in items.items()
    }
    for paper, items in read_papers().items()
  }


def coverage_lines(recipes: Sequence[Recipe]) -> list[str]:
  """What `coverage` gives, to read."""
  lines = []
  for paper, items in coverage(recipes).items():
    lines += ['', paper, '']
    width = max(map(len, items))
    for item, words in items.items():
      start = f'  {item.ljust(width)}  '
      lines += textwrap.wrap(
        words, 100, initial_indent=start, subsequent_indent=' ' * len(start),
        break_long_words=False, break_on_hyphens=False,
      )  # fmt: skip
  return lines
