"""What a report shows: the runs of some folders, as tables.

Works on runs which are still going on, with what they have written so far. Importing
this module does not import TensorFlow.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pandas as pd

import processes.registry
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder import metrics
from experiments.folder.metrics import ROUND
from experiments.sweeps import table as sweep_table
from experiments.sweeps.table import Run
from privacy.rounding import rounded_up

_DEPTH = 4  # folders below the one that is given


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportData:
  """Runs as tables. A *setting* is what runs that differ in their seed have in common.

  Attributes:
    runs: every run, finished or not.
    setting_names: the settings in which the runs differ, without the seed.
    labels: label of each run's setting, by the run's position.
    left_out: what is wrong with each folder that holds a run which cannot be read.
  """

  runs: tuple[Run, ...]
  setting_names: tuple[str, ...]
  labels: tuple[str, ...]
  left_out: tuple[str, ...] = ()

  @functools.cached_property
  def curves(self) -> pd.DataFrame:
    """Every group's value after every round: run, setting, seed, round, group, metric, value."""
    return self._rows(of_clients=False)

  @functools.cached_property
  def clients(self) -> pd.DataFrame:
    """Every client's last values: run, setting, seed, round, client, metric, value."""
    return self._rows(of_clients=True)

  def _rows(self, *, of_clients: bool) -> pd.DataFrame:
    who = 'client' if of_clients else 'group'
    frames = []
    for index, run in enumerate(self.runs):
      path = run.folder / 'metrics.parquet'
      if not path.exists():
        continue
      frame = metrics.read_frame(path, who)
      names = frame['split'] + '_' + frame['metric']
      frame = frame.assign(
        metric=names.where(frame['split'] != ROUND, frame['metric']),
        run=index,
        setting=self.labels[index],
        seed=run.config.seed,
      )
      frames.append(frame[['run', 'setting', 'seed', 'round', who, 'metric', 'value']])
    columns = ['run', 'setting', 'seed', 'round', who, 'metric', 'value']
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

  @functools.cached_property
  def last(self) -> pd.DataFrame:
    """The last value of each run, group and metric, with the settings of the run."""
    frame = self.curves.sort_values('round', kind='stable')
    frame = frame.groupby(['run', 'group', 'metric'], sort=False).tail(1)
    for name in self.columns:
      values = [_plain(getattr(run.config, name)) for run in self.runs]
      frame = frame.assign(**{name: frame['run'].map(dict(enumerate(values)))})
    spent = {i: self.epsilon(run) for i, run in enumerate(self.runs)}
    return frame.assign(epsilon=frame['run'].map(spent)).sort_values('run', kind='stable')

  @functools.cached_property
  def exact(self) -> frozenset[str]:
    """The settings whose values are told apart by all their digits only."""
    return in_full([run.config for run in self.runs], self.setting_names)

  @property
  def columns(self) -> list[str]:
    """The settings that tables have as columns."""
    names = {*self.setting_names, 'dataset', 'method', 'privacy'}
    return [name for name in settings() if name in names]

  @property
  def metric(self) -> str:
    """'accuracy' or 'mse', as most runs have it."""
    return max(self._metrics, key=lambda m: self._metrics[m])

  @property
  def other_metrics(self) -> list[str]:
    """What further runs have, on data of another kind."""
    return [m for m, count in self._metrics.items() if count and m != self.metric]

  @functools.cached_property
  def _metrics(self) -> dict[str, int]:
    present = self.curves['metric']
    return {m: int((present == f'test_{m}').sum()) for m in ('accuracy', 'mse')}

  @property
  def main_metric(self) -> str:
    """The metric that figures show: that of the models which clients use."""
    return f'test_{self.metric}'

  @property
  def bands(self) -> str:
    """What a figure's bands are, for its caption."""
    if len(set(self.labels)) == len(self.runs):
      return 'One seed for each setting.'
    return 'Mean over the seeds; the band is one standard deviation to either side.'

  @property
  def common_delta(self) -> float | None:
    """The delta of all private runs; None where they have several."""
    deltas = {self.delta(run) for run in self.runs} - {None}
    return deltas.pop() if len(deltas) == 1 else None

  @property
  def whose_epsilon(self) -> dict[str, str]:
    """The column of a figure's points that says so where epsilon is nobody's who is here."""
    hypothetical = any(run.config.hypothetical_deployment for run in self.runs)
    return {'epsilon_of': 'a hypothetical deployment'} if hypothetical else {}

  @staticmethod
  def delta(run: Run) -> float | None:
    """The delta that a run's epsilon belongs to; None without privacy."""
    if run.config.privacy == 'none':
      return None
    return (run.privacy or {}).get('delta', run.config.delta)

  @staticmethod
  def epsilon(run: Run) -> float:
    """Epsilon spent so far; infinite without privacy."""
    if run.config.privacy == 'none':
      return math.inf
    spent = (run.privacy or {}).get('epsilon')
    if spent is None:
      spent = run.config.target_epsilon
    return math.nan if spent is None else float(spent)

  def rounds_done(self, index: int) -> int:
    """The last round of which a run has written something."""
    return self._rounds_done.get(index, 0)

  @functools.cached_property
  def _rounds_done(self) -> dict[int, int]:
    last = self.curves.groupby('run')['round'].max()
    return dict(zip(last.index.tolist(), last.astype(int).tolist(), strict=True))

  def over_seeds(self, frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Mean, population deviation and number of the values with equal keys; NaN of diverged runs."""
    return sweep_table.spread(frame, keys).reset_index()


def read(folders: Iterable[pathlib.Path]) -> ReportData:
  """Reads all runs in and below some folders that can be read.

  Raises:
    ValueError: a folder that is not there, or that holds no run; or no run can be read.
  """
  runs: dict[pathlib.Path, Run] = {}
  left_out: list[str] = []
  for folder in folders:
    found = list(find_runs(folder))
    if not found:
      raise ValueError(f'{folder} holds no run: there is no config.json in it or below it.')
    for path in found:
      try:
        runs[path.resolve()] = _read(path)
      except ValueError as error:
        left_out.append(str(error))
  if not runs:
    raise ValueError(left_out[0])
  every = tuple(runs.values())
  configs = [run.config for run in every]
  names = tuple(n for n in sweep_table.varying(configs) if n != 'seed')
  return ReportData(
    runs=every,
    setting_names=names,
    labels=_by_files(labels(configs, names), every),
    left_out=tuple(left_out),
  )


def _by_files(labels: Sequence[str], runs: Sequence[Run]) -> tuple[str, ...]:
  """The labels, longer where runs of the same one read files that held something else."""
  held: dict[tuple[str, str], set[str]] = {}
  for name, run in zip(labels, runs, strict=True):
    for file, content in run.read_files.items():
      held.setdefault((name, file), set()).add(content)
  return tuple(
    ', '.join([name, *(c for file, c in run.read_files.items() if len(held[name, file]) > 1)])
    for name, run in zip(labels, runs, strict=True)
  )


def _read(folder: pathlib.Path) -> Run:
  run = Run.read(folder)
  if (table := folder / 'metrics.parquet').exists():
    metrics.check(table)
  return run


def find_runs(folder: pathlib.Path, depth: int = _DEPTH) -> Iterable[pathlib.Path]:
  """The run folders in a folder and below it, in the order of their names."""
  if (folder / 'config.json').exists():
    yield folder
  elif depth and folder.is_dir():
    for child in sorted(p for p in folder.iterdir() if p.is_dir()):
      yield from find_runs(child, depth - 1)


def labels(configs: Sequence[ExperimentConfig], names: Sequence[str]) -> tuple[str, ...]:
  """The settings of configurations in words, equal for those that differ in their seed only.

  A setting that some methods do not have, and that is the same where it is, is left out
  unless labels would be the same without it.
  """
  telling = [
    name for name in names
    if len({str(c.identity[name]) for c in configs if name in c.identity}) > 1
  ]  # fmt: skip
  exact = in_full(configs, names)
  short = [label(config, telling, exact) for config in configs]
  whose: dict[str, set[str]] = {}
  for text_, config in zip(short, configs, strict=True):
    identity = {n: v for n, v in config.identity.items() if n != 'seed'}
    whose.setdefault(text_, set()).add(json.dumps(identity, sort_keys=True))
  return tuple(
    text_ if len(whose[text_]) == 1 else label(config, names, exact)
    for text_, config in zip(short, configs, strict=True)
  )


def in_full(configs: Sequence[ExperimentConfig], names: Iterable[str]) -> frozenset[str]:
  """The settings of which two values would look the same if they were rounded."""
  values = {name: {getattr(config, name) for config in configs} for name in names}
  return frozenset(n for n, own in values.items() if len({text_of(n, v) for v in own}) < len(own))


def label(
  config: ExperimentConfig, names: Sequence[str], exact: Collection[str] = frozenset()
) -> str:
  """A setting in words: 'mr_mtl, lambda 0.1, epsilon 2'; those of `exact` with all digits."""
  words = [title_of(config.method)]
  for name in names:
    value = getattr(config, name)
    if name == 'method' or value is None or value == ():
      continue
    words.append(f'{symbol(name)} {value_of(config, name, exact)}')
  if config.privacy == 'none' and 'privacy' in names:
    words.append('not private')
  return ', '.join(w for w in words if not w.startswith('privacy '))


def title_of(method: str) -> str:
  """A method's name to read: 'MR-MTL'."""
  entry = processes.registry.METHODS.get(method)
  return method if entry is None else entry.title


def value_of(config: ExperimentConfig, name: str, exact: Collection[str] = frozenset()) -> str:
  """A setting of a configuration to read, with all digits if it is one of `exact`."""
  value = getattr(config, name)
  if name in exact and isinstance(value, float):
    return repr(value)
  return title_of(value) if name == 'method' else text_of(name, value)


def symbol(name: str) -> str:
  """A setting's name to read."""
  setting = settings().get(name)
  return setting.symbol if setting and setting.symbol else name.replace('_', ' ')


def text_of(name: str, value: Any) -> str:
  """A setting's value to read; an epsilon is not rounded down."""
  is_epsilon = name.endswith('epsilon') and isinstance(value, float) and not math.isnan(value)
  return rounded_up(value) if is_epsilon else text(value)


def text(value: Any) -> str:
  """A setting's value to read."""
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return ''
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if isinstance(value, float):
    return f'{value:.4g}'
  return ' '.join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(value: Any) -> Any:
  return ' '.join(value) if isinstance(value, tuple) else value
