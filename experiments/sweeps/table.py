"""One tidy table from many runs, and the best setting of each method and budget.

Importing this module does not import TensorFlow.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import datasets.registry
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder import files
from experiments.folder.metrics import EVERYONE, MetricTable, is_better_high
from experiments.sweeps import grid as sweep_grid
from settings import Group

ALWAYS_SHOWN = ('dataset', 'method', 'privacy', 'seed')
_ROWS_OWN = 'metric'  # the column says what a row measures, and not what is measured beside it
_MAIN_METRICS = ('accuracy', 'mse')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run's folder, finished or not.

  Attributes:
    folder: where it is.
    config: its configuration.
    summary: content of summary.json; None while it goes on.
    privacy: content of privacy.json; None before its first checkpoint.
    read_files: what the files held that it read, by what they are: 'my_model.py:build@1a2b3c4d'.
  """

  folder: pathlib.Path
  config: ExperimentConfig
  summary: dict[str, Any] | None
  privacy: dict[str, Any] | None
  read_files: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    return self.folder.name

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Run':
    """Reads a run's folder.

    Raises:
      ValueError: it holds no run.
    """
    record = _read_json(folder / 'config.json')
    if record is None:
      raise ValueError(f'{folder} holds no run: it has no config.json.')
    if not isinstance(record, dict) or not isinstance(record.get('config'), dict):
      raise ValueError(f'{folder / "config.json"} has no configuration of a run.')
    try:
      config = ExperimentConfig.from_json(record['config'])
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(f'{folder} holds a run that cannot be read: {error}') from error
    try:
      read_files = _read_files(record, config)
    except (AttributeError, TypeError) as error:
      raise ValueError(f'{folder / "config.json"} is not of a run: {error}') from error
    return cls(
      folder=folder, config=config, summary=_read_record(folder / 'summary.json'),
      privacy=_read_record(folder / 'privacy.json'), read_files=read_files,
    )  # fmt: skip


def _read_files(record: Mapping[str, Any], config: ExperimentConfig) -> dict[str, str]:
  modules = {n: v for n, v in record.get('contents', {}).items() if '.py@' in v}
  # Others are always the same, or drawn by the seed.
  known = record.get('data_checksums', {}) if datasets.registry.is_table(config.dataset) else {}
  data = {name: f'{name}@{checksum[:12]}' for name, checksum in known.items()}
  return {**record.get('file_contents', {}), **modules, **data}


# Of what kind some of the entries of a run's records are, where they are there.
_KINDS = {'epsilon': float | int | None, 'delta': float | int | None, 'statement': str}


def _read_record(path: pathlib.Path) -> dict[str, Any] | None:
  record = _read_json(path)
  if record is None and not path.exists():
    return None
  if not isinstance(record, dict):
    raise ValueError(f'{path} is not of a run.')
  for name, kind in _KINDS.items():
    if name in record and not isinstance(record[name], kind):
      raise ValueError(f'{path} is not of a run: {name} is {record[name]!r}.')
  return record


def _read_json(path: pathlib.Path) -> Any:
  try:
    return json.loads(path.read_text())
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def varying(configs: Iterable[ExperimentConfig]) -> list[str]:
  """Names of the settings in which some configurations differ, in the order of the help."""
  identities = [config.identity for config in configs]
  return [
    name for name in settings()
    if any(_differ(identities[0].get(name), other.get(name)) for other in identities[1:])
  ]  # fmt: skip


def _differ(a: Any, b: Any) -> bool:
  # As stored: 1, 1.0 and true are three values, NaN is one. Most runs share the same object.
  return a is not b and json.dumps(a) != json.dumps(b)


def columns(configs: Sequence[ExperimentConfig]) -> list[str]:
  """The settings that a table of these runs shows."""
  names = {*varying(configs), *ALWAYS_SHOWN} - {_ROWS_OWN}
  return [n for n in settings() if n in names]


def build(runs: Sequence[Run], *, after: Collection[int] | None = None) -> pd.DataFrame:
  """The last metrics of all finished runs: one row per run, group and metric.

  The columns are the run's name, the settings in which the runs differ, epsilon (of a hypothetical
  deployment in a column of its own) after the last round, how many rounds were run, group, metric
  and value. Repeated flags are joined by spaces.

  Args:
    runs: the runs.
    after: the metrics after each of so many rounds instead, named 'test_mse@30'.
  """
  shown = columns([run.config for run in runs])
  rows = []
  for run in runs:
    if run.summary is None:
      continue
    facts = {name: cell(getattr(run.config, name)) for name in shown}
    privacy = run.summary['privacy']
    by_group = run.summary['metrics_by_group'] if after is None else _metrics_after(run, after)
    for group, metrics in by_group.items():
      for metric, value in metrics.items():
        rows.append(
          {
            'run': run.name,
            **facts,
            _epsilon_of(run.config): privacy.get('epsilon'),
            'rounds_done': run.summary['rounds'],
            'group': group,
            'metric': metric,
            'value': float('nan') if value is None else value,
          }
        )
  spent = dict.fromkeys(['epsilon', *(_epsilon_of(run.config) for run in runs)])
  names = ['run', *shown, *spent, 'rounds_done', 'group', 'metric', 'value']
  return pd.DataFrame(rows, columns=list(dict.fromkeys(names)))


def _epsilon_of(config: ExperimentConfig) -> str:
  return 'deployment_epsilon' if config.hypothetical_deployment else 'epsilon'


def _metrics_after(run: Run, rounds: Collection[int]) -> dict[str, dict[str, float]]:
  table = MetricTable.read(run.folder / 'metrics.parquet', of_groups_after=rounds)
  result: dict[str, dict[str, float]] = {}
  for row in table.rows:
    assert row.group is not None
    result.setdefault(row.group, {})[f'{row.name}@{row.round}'] = row.value
  return result


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
  """The rows of a table as dictionaries."""
  return [{str(name): value for name, value in row.items()} for row in frame.to_dict('records')]


def write(frame: pd.DataFrame, folder: pathlib.Path) -> None:
  """Writes table.parquet and table.csv, each at once."""
  with files.writing_atomically(folder / 'table.parquet') as temporary:
    frame.to_parquet(temporary, index=False)
  with files.writing_atomically(folder / 'table.csv') as temporary:
    frame.to_csv(temporary, index=False)


def main_metrics(frame: pd.DataFrame) -> list[str]:
  """'accuracy' or 'mse', whichever the table has; both of data of several kinds."""
  present = set(frame['metric'])
  return [m for m in _MAIN_METRICS if f'test_{m}' in present]


def setting_of(run: str) -> str:
  """A setting's name: that of a run without its seed."""
  return re.sub(r',?seed=\d+$', '', run)


def over_seeds(frame: pd.DataFrame, metric: str, group: str = EVERYONE) -> pd.DataFrame:
  """A metric's mean, population deviation and number of seeds, for every setting."""
  chosen = frame[(frame['metric'] == metric) & (frame['group'] == group)]
  names = setting_columns(frame)
  return spread(chosen, names).reset_index()


def spread(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
  """The mean, population deviation and number of the values with equal keys, which are the index.

  Mean and deviation are NaN where a value is no finite number, as of a run that has diverged:
  without it the others would look better than their setting is.
  """
  values = frame['value'].astype(float)
  of_finite = frame.assign(value=values.where(np.isfinite(values)))
  groups = of_finite.groupby(list(keys), sort=False, dropna=False)['value']
  result = pd.DataFrame({'mean': groups.mean(), 'std': groups.std(ddof=0), 'seeds': groups.size()})
  is_whole = (groups.count() == groups.size()).to_numpy()
  return result.assign(mean=result['mean'].where(is_whole), std=result['std'].where(is_whole))


def diverged(frame: pd.DataFrame) -> list[str]:
  """The runs of which a metric of all clients is no finite number; epsilon may be infinite."""
  is_metric = (frame['group'] == EVERYONE) & ~frame['metric'].str.endswith('epsilon')
  is_lost = is_metric & ~np.isfinite(frame['value'].to_numpy(float))
  return list(frame['run'][is_lost].unique())


def setting_columns(frame: pd.DataFrame) -> list[str]:
  """The columns that say which setting a row belongs to, whatever its seed."""
  return [n for n in settings() if n in frame.columns and n not in ('seed', _ROWS_OWN)]


def select(frame: pd.DataFrame, *, on: str) -> list[dict[str, Any]]:
  """The best setting of each data set, method and budget.

  Args:
    frame: what `build` gave.
    on: 'validation', 'test' (whose values are then optimistic) or 'nothing'.

  Returns:
    One dictionary each: `for` (data, method and budget), `setting` (what was chosen),
    `selected_on`, `candidates`, and by split the mean and deviation over the seeds; on test data
    these are NaN where a run has diverged there alone. Empty if the runs have no such data.
  """
  if on == 'nothing':
    return []
  return [best for metric in main_metrics(frame) for best in _select(frame, metric, on)]


def _select(frame: pd.DataFrame, metric: str, on: str) -> Iterable[dict[str, Any]]:
  names = setting_columns(frame)
  scores, test = over_seeds(frame, f'{on}_{metric}'), over_seeds(frame, f'test_{metric}')
  # By its setting: some may have been scored only, or tested only.
  scores = scores.merge(test, on=names, how='left', suffixes=('', '_of_test'))
  keys = [n for n in names if _is_given(n)] or ['method']
  # What is the same wherever it applies was not chosen.
  chosen = [n for n in names if n not in keys and scores[n].nunique() > 1]
  for values, group in scores.groupby(keys, dropna=False, sort=False):
    complete = group[group['seeds'] == group['seeds'].max()].dropna(subset=['mean'])
    if complete.empty:
      continue
    order = complete['mean'].idxmax() if is_better_high(metric) else complete['mean'].idxmin()
    best = scores.loc[order]
    yield {
      'for': _present(dict(zip(keys, values, strict=True))),
      'setting': _present({n: best[n] for n in chosen}),
      'metric': metric,
      'selected_on': on,
      'candidates': len(group),
      'seeds': int(best['seeds']),
      on: {'mean': float(best['mean']), 'std': float(best['std'])},
      'test': {'mean': float(best['mean_of_test']), 'std': float(best['std_of_test'])},
    }


def _is_given(name: str) -> bool:
  """Whether a setting says what is asked for, rather than how it is done best."""
  group = settings()[name].group
  model = name in ('model', 'model_option')
  return name in ('method', 'privacy', *sweep_grid.BUDGETS) or (group is Group.DATA and not model)


def _present(values: dict[str, Any]) -> dict[str, Any]:
  return {
    n: v.item() if hasattr(v, 'item') else v for n, v in values.items() if not (v is None or v != v)
  }


def cell(value: Any) -> Any:
  """A setting's value as it stands in the table: repeated flags are joined by spaces."""
  return ' '.join(value) if isinstance(value, tuple) else value


def has(column: pd.Series, value: Any) -> pd.Series:
  """Which rows have a setting's value; of a repeated flag it is one of several."""
  if settings()[str(column.name)].kind is tuple:
    return column.map(lambda words: isinstance(words, str) and value in words.split(' '))
  return column == value
