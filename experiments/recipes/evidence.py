"""What verdicts on claims rest on, kept beside them: the numbers of a recipe's runs.

`recipes/evidence/NAME.csv` (compressed, as .csv.gz, where it is large) has a line that says of
which day, which commits and which grid the runs are, and then a row for each part, setting, group
and metric with a column for each seed. What no claim on the recipe reads is left out. A setting's
values are those of the recipe's grid under its name; numbers of another grid are no evidence, nor
are those of a part of its runs (`complete` is false), which are kept to go on from. What ran and
has no finite number is 'inf': it diverged. What was not run is empty.
Importing this module does not import TensorFlow.
"""

import collections
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.folder import files
from experiments.folder.metrics import EVERYONE
from experiments.recipes import measures, recipes
from experiments.recipes.recipes import Recipe
from experiments.sweeps import table as sweep_table

FOLDER = recipes.FOLDER / 'evidence'
_KEYS = ['part', 'setting', 'group', 'metric']
_LARGE = 300_000  # bytes, from which a file is compressed
_DIGITS = '%.9g'  # tells any two numbers of single precision apart


class Lacking(ValueError):
  """There is no evidence of a recipe that counts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
  """The numbers of a recipe's runs.

  Attributes:
    tables: by part, as `reproduce.run` gives them, but for what no claim reads.
    date: on which the runs were judged first, ISO.
    commits: of the code that ran.
    complete: whether the runs are all that a verdict needs.
  """

  tables: Mapping[str, pd.DataFrame]
  date: str
  commits: tuple[str, ...]
  complete: bool = True

  @functools.cached_property
  def holds(self) -> set[tuple[str, str]]:
    """The metrics, and of which group."""
    return {
      pair
      for table in self.tables.values()
      for pair in zip(table['metric'], table['group'], strict=True)
    }


def commits_of(recipe: Recipe, output: pathlib.Path) -> set[str]:
  """The commits of the code that made the finished runs of a recipe, where it was a checkout.

  Args:
    recipe: which.
    output: the folder of its runs.
  """
  found = set()
  for part in recipe.parts:
    for summary in (output / part / 'runs').glob('*/summary.json'):
      found.add(json.loads((summary.parent / 'config.json').read_text()).get('git_commit'))
  return {commit for commit in found if commit}


def grid_digest(recipe: Recipe) -> str:
  """SHA-256 of what a recipe runs: flags, grids, seeds, early rounds, the files that flags name."""
  grids: dict[str, Any] = {}
  for part in recipe.parts:
    grid = recipe.grid(part)
    named = {
      name: hashlib.sha256(file.read_bytes()).hexdigest()
      for name, value in grid.base.items()
      if isinstance(value, str) and (file := recipes.FOLDER.parent / value).is_file()
    }
    grids[part] = {**grid.to_json(), 'files': named, 'after': recipe.early_rounds(part)}
  if recipe.tuning_seeds:
    grids['tuning_seeds'] = recipe.tuning_seeds
  return hashlib.sha256(json.dumps(grids, sort_keys=True).encode()).hexdigest()


def write(
  recipe: Recipe,
  tables: Mapping[str, pd.DataFrame],
  used: Iterable[tuple[str, str]],
  *,
  date: str,
  commits: Iterable[str],
  complete: bool = True,
) -> Evidence:
  """Stores what claims read of a recipe's runs.

  A file with the same numbers stays as it is.

  Args:
    recipe: whose.
    tables: by part, of `reproduce.run`.
    used: metrics and groups that are read.
    date: ISO.
    commits: of the code that ran.
    complete: whether the runs are all that a verdict needs.

  Returns:
    What `read` (or `begun`, of some of the runs) gives from now on.
  """
  every = pd.concat([table.assign(part=part) for part, table in tables.items()])
  pairs = pd.MultiIndex.from_frame(every[['metric', 'group']])
  kept = every[pairs.isin(list(used))]
  # In the order of the runs: of settings that are as good the first is taken.
  wide = kept.pivot_table(index=_KEYS, columns='seed', values='value', sort=False)
  wide = wide.reindex(sorted(wide.columns), axis=1)
  wide = _with_diverged(wide, every)
  numbers = wide.reset_index().to_csv(index=False, float_format=_DIGITS, lineterminator='\n')
  head: dict[str, Any] = {'date': date, 'commits': sorted(commits), 'grid': grid_digest(recipe)}
  if not complete:
    head['complete'] = False
  before = _find(recipe.name)
  if before is not None:
    with contextlib.suppress(ValueError):  # what is damaged is written anew
      stored, text = _split(before)
      same = stored['grid'] == head['grid'] and stored.get('complete', True) == complete
      if text == numbers and same:
        return _read(recipe, before)
  content = f'# {json.dumps(head)}\n{numbers}'.encode()
  path = FOLDER / f'{recipe.name}.csv'
  if len(content) > _LARGE:
    path, content = path.with_suffix('.csv.gz'), gzip.compress(content, mtime=0)
  FOLDER.mkdir(exist_ok=True)
  files.write_atomically(path, content)
  for other in _paths(recipe.name):
    if other != path:
      other.unlink(missing_ok=True)
  return _read(recipe, path)


def _with_diverged(wide: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
  """The numbers [part, setting, group and metric; seeds], infinite where a run has none."""
  runs = every[['part', 'setting', 'seed']].drop_duplicates().assign(ran=True)
  ran = runs.pivot_table(index=['part', 'setting'], columns='seed', values='ran', aggfunc='any')
  ran = ran.reindex(wide.columns, axis=1)
  own = ran.reindex(pd.MultiIndex.from_arrays([wide.index.get_level_values(n) for n in range(2)]))
  diverged = own.notna().to_numpy(bool) & ~np.isfinite(wide.to_numpy(float))
  return wide.mask(diverged, np.inf)


def check(recipe: Recipe) -> None:
  """Whether there is evidence of a recipe as it is now.

  Raises:
    Lacking: there is none, and why.
  """
  path = _find(recipe.name)
  if path is None:
    raise Lacking(f'{recipe.name} has no evidence')
  if _split(path)[0]['grid'] != grid_digest(recipe):
    raise Lacking(f'the evidence of {recipe.name} is of another grid')
  if not _split(path)[0].get('complete', True):
    raise Lacking(f'the evidence of {recipe.name} is of a part of its runs')


def begun(recipe: Recipe) -> Evidence | None:
  """The evidence of a recipe of which a part was run, as it is now; None if there is none such.

  Raises:
    ValueError: its file is damaged.
  """
  path = _find(recipe.name)
  if path is None:
    return None
  head, _ = _split(path)
  if head.get('complete', True) or head['grid'] != grid_digest(recipe):
    return None
  return _read(recipe, path)


def read(recipe: Recipe) -> Evidence:
  """The evidence of a recipe.

  Raises:
    Lacking: there is none that counts.
    ValueError: its file is damaged.
  """
  check(recipe)
  path = _find(recipe.name)
  assert path is not None
  return _read(recipe, path)


def _read(recipe: Recipe, path: pathlib.Path) -> Evidence:
  head, text = _split(path)
  try:
    frame = pd.read_csv(
      io.StringIO(text), dtype=dict.fromkeys(_KEYS, str), keep_default_na=False, na_values=[''],
      float_precision='round_trip',
    ).fillna({'setting': ''})  # fmt: skip
    long = frame.melt(_KEYS, var_name='seed', value_name='value').dropna(subset='value')
    long = long.assign(seed=long['seed'].astype(int), value=long['value'].astype(float))
    tables = {}
    for part in recipe.parts:
      found = long[long['part'] == part].drop(columns='part')
      tables[part] = found.merge(_settings(recipe, part), on='setting', validate='many_to_one')
      if len(tables[part]) != len(found):
        raise ValueError(f'part {part} has settings that the recipe has not.')
  except (KeyError, ValueError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  return Evidence(
    tables=tables, date=head['date'], commits=tuple(head['commits']),
    complete=head.get('complete', True),
  )  # fmt: skip


def _settings(recipe: Recipe, part: str) -> pd.DataFrame:
  """The settings of a part by their names, as the table of its runs shows them."""
  runs = recipe.grid(part).runs()
  configs = {sweep_table.setting_of(name): config for name, config in runs.items()}
  shown = [name for name in sweep_table.columns(list(configs.values())) if name != 'seed']
  return pd.DataFrame(
    [
      {'setting': name, **{one: sweep_table.cell(getattr(config, one)) for one in shown}}
      for name, config in configs.items()
    ]
  )


def _paths(name: str) -> list[pathlib.Path]:
  return [FOLDER / f'{name}.csv', FOLDER / f'{name}.csv.gz']


def _find(name: str) -> pathlib.Path | None:
  there = [path for path in _paths(name) if path.exists()]
  # Both are where the process was killed that wrote the one and had not removed the other.
  return max(there, key=lambda path: path.stat().st_mtime_ns, default=None)


def _split(path: pathlib.Path) -> tuple[dict[str, Any], str]:
  """The first line, and the numbers behind it."""
  try:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == '.gz' else content).decode()
    first, _, numbers = text.partition('\n')
    head = json.loads(first.removeprefix('# '))
    if not {'date', 'commits', 'grid'} <= head.keys():
      raise ValueError('its first line has no date, commits and grid.')
  except (ValueError, EOFError, gzip.BadGzipFile, AttributeError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  return head, numbers


# ------------------------------------------------------------ what a measure reads


def used_by(
  measure: Mapping[str, Any],
  *,
  terms: Mapping[str, Any],
  values: Mapping[str, Any],
  cells: Iterable[str] = (),
  prefix: str = '',
) -> set[tuple[str, str]]:
  """The metrics, and of which group, that a measure may read, whatever the numbers.

  Args:
    measure: of a claim.
    terms: named ones of its family.
    values: of its judge.
    cells: of a table.
    prefix: what is read of the recipe whose parts are named 'PREFIX.part'; '' for the one whose
      parts have no prefix.
  """
  bound = collections.defaultdict(list, {name: [value] for name, value in values.items()})

  def filled(thing: Any) -> list[Any]:
    """What a value, or what '$name' stands for, may be."""
    if isinstance(thing, str) and thing.startswith('$'):
      return filled(bound[thing[1:]])
    if isinstance(thing, list | tuple):
      return [one for inside in thing for one in filled(inside)]
    return [thing]

  for mapping in _mappings(measure):
    cases = filled(mapping.get('cases', []))
    for given in (mapping.get('each'), mapping.get('over'), mapping.get('at'), *cases):
      if isinstance(given, Mapping):
        for name, value in given.items():
          bound[name].append(value)
  found: set[tuple[str, str]] = set()

  def walk(thing: Any) -> None:
    if isinstance(thing, list | tuple):
      for one in thing:
        walk(one)
    elif isinstance(thing, str) and thing.startswith('$'):
      walk(filled(thing))
    elif isinstance(thing, str):
      walk(terms.get(thing))
    elif isinstance(thing, Mapping) and _prefix(thing.get('part')) not in (None, prefix):
      return
    elif isinstance(thing, Mapping) and thing.get('rule') == 'table':
      found.update(measures.table_cells(thing, cells).values())
    elif isinstance(thing, Mapping) and isinstance(thing.get('part'), str):
      chooses = thing.get('choose')
      by = filled(chooses) if isinstance(chooses, str) else []
      for metric in [*filled(thing.get('metric', '$metric')), *by]:
        for after in filled(thing.get('after')):
          name = metric if after is None else f'{metric}@{after}'
          found.add((name, thing.get('group', EVERYONE)))
    elif isinstance(thing, Mapping):
      for one in thing.values():
        walk(one)

  walk(measure)
  walk(values.get('beside', ()))
  return found


def _prefix(part: Any) -> str | None:
  """Of a term's part; None of what is no term."""
  return part.rpartition('.')[0] if isinstance(part, str) else None


def _mappings(thing: Any) -> Iterator[Mapping[str, Any]]:
  if isinstance(thing, Mapping):
    yield thing
    for value in thing.values():
      yield from _mappings(value)
  elif isinstance(thing, list | tuple):
    for value in thing:
      yield from _mappings(value)
