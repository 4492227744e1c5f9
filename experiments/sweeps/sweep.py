"""Sweeps: a grid of settings and seeds in as few compiled programs as can be.

  sweep.json       the grid, the runs, the best settings, and which runs failed
  runs/<name>/     every run, an ordinary run folder
  table.parquet    the last metrics of all runs, one row per run, group and metric
  table.csv        the same
  checkpoints/     the state of what is not finished
  spent.json       what all runs would spend together (of a sweep from the command line)
  logs/            what the workers had to say

A sweep that was stopped or killed continues with --resume; finished runs stay as they
are, and failed ones are tried again. Importing this module does not import TensorFlow.
"""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import shutil
import textwrap
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from experiments.config import in_words, launcher, sweep_flags
from experiments.config.experiment import ExperimentConfig
from experiments.folder import files, noise_keys, results, store
from experiments.running import interruption, startup
from experiments.running.parts import CallbacksOf, Metric, Parts, no_callbacks
from experiments.running.progress import Doing, show, show_mean
from experiments.sweeps import checks, record
from experiments.sweeps import cluster as sweep_cluster
from experiments.sweeps import table as sweep_table
from experiments.sweeps import workers as sweep_workers
from experiments.sweeps.grid import Grid, programs
from experiments.sweeps.progress import SweepProgress
from settings import show as show_value

if TYPE_CHECKING:
  import datasets

_MOST_LINES = 24  # of settings in the closing words
_MOST_NAMES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepResult:
  """A finished sweep.

  Attributes:
    folder: where it is.
    table: the tidy table, a pandas DataFrame.
    selection: the best setting of each method and budget; see `sweep_table.select`.
    report: the closing words.
  """

  folder: pathlib.Path
  table: Any
  selection: list[dict[str, Any]]
  report: str


class RunsFailed(ValueError):
  """Some runs of a sweep failed, and the others are finished.

  Attributes:
    failures: by the run's name, why.
    result: the sweep without them.
  """

  def __init__(self, message: str, failures: Mapping[str, str], result: SweepResult):
    super().__init__(message)
    self.failures = dict(failures)
    self.result = result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A sweep as the command line asks for it.

  Attributes:
    grid: what to run.
    folder: the sweep's folder; empty for a new one.
    resume: whether it is to be continued.
    how: how to run it.
  """

  grid: Grid
  folder: str
  resume: bool
  how: record.How

  @property
  def in_words(self) -> str:
    """What is run, in a line; raises a `ValueError` where a setting is no experiment."""
    runs = list(self.grid.runs().values())
    axes = [
      f'{name}={",".join(map(show_value, values))}' for name, values in self.grid.axes.items()
    ]
    seeds = self.grid.seeds
    axes.append(f'seed={seeds[0]}' if len(seeds) == 1 else f'{len(seeds)} seeds')
    first = in_words.describe(runs[0])
    count = '1 run' if len(runs) == 1 else f'{len(runs)} runs'
    begins = 'Continuing a sweep' if self.resume and is_sweep(self.folder) else 'A sweep'
    return f'{begins} of {count}, {" x ".join(axes)}; the first is {first}'

  def check(self) -> None:
    """Raises a `ValueError` for what would be refused as soon as it is run; see `run`."""
    checks.check(self.grid.runs(), self.folder, self.resume, **self.how.to_json())

  def run(self) -> SweepResult:
    """Runs it; see `run`. The closing words say what all runs spend together."""
    result = run(self.grid, folder=self.folder, resume=self.resume, **self.how.to_json())
    return _with_spent(result, self.grid.base.get('data_dir'))


def from_flags(given: Mapping[str, Any], flag_values: flags.FlagValues) -> Plan:
  """The sweep that the flags describe, or the one in the folder that is to be continued.

  Args:
    given: the settings that were given.
    flag_values: with the flags of a sweep.
  """
  given = dict(given)
  folder = given.pop('output_dir', '')
  resume = given.pop('resume', False)
  sweeps, seeds = flag_values['sweep'].value, flag_values['seeds'].value
  how = record.How()
  if resume and is_sweep(folder):
    grid = record.continued(pathlib.Path(folder), given, sweeps, seeds)
    how = record.read_how(pathlib.Path(folder))
  else:
    if resume and results.recorded_settings(folder) is not None:
      raise ValueError(
        f'--{"sweep" if sweeps else "seeds"}={",".join(sweeps or seeds)} contradicts '
        f'--output_dir={folder}, which holds a run and no sweep.'
      )
    grid = Grid.parse(given, sweeps, seeds)
  own = {n: flag_values[n].value for n in how.to_json() if not flag_values[n].using_default_value}
  how = dataclasses.replace(how, **own)
  if own.get('select_on') == sweep_flags.VALIDATION and not any(
    config.validation_fraction for config in grid.runs().values()
  ):
    raise ValueError(
      f'--select_on={sweep_flags.VALIDATION} needs validation data: set --validation_fraction '
      'above 0. --select_on=test chooses on test data, and says so.'
    )
  return Plan(grid=grid, folder=folder, resume=resume, how=how)


def is_sweep(folder: str) -> bool:
  """Whether there is a sweep in a folder."""
  return bool(folder) and (pathlib.Path(folder) / 'sweep.json').exists()


def run(
  grid: Grid,
  *,
  folder: str | pathlib.Path = '',
  resume: bool = False,
  workers: int = 1,
  cluster: str = '',
  select_on: str = sweep_flags.VALIDATION,
  show_progress: bool = True,
  dataset: 'datasets.FederatedDataset | None' = None,
  model: Any = None,
  metrics: Mapping[str, Metric] | None = None,
  callbacks: CallbacksOf = no_callbacks,
  only: Collection[str] | None = None,
) -> SweepResult:
  """Runs a sweep, or what is left of it.

  Args:
    grid: what to run.
    folder: the sweep's folder; a new one under results/sweeps if empty.
    resume: continue the sweep in `folder`.
    workers: processes to spread the runs over; 1 without a cluster is this process.
    cluster: address of a Ray cluster whose machines do the work, 'local' for one of our own;
      empty for processes of this machine.
    select_on: 'validation', 'test' or 'nothing'.
    show_progress: whether to report on standard error.
    dataset, model, metrics: parts of your own for all runs, see `experiments.running.parts.Parts`;
      they live in this process. Workers and clusters take parts from files, by the settings
      `dataset`, `model` and `metric`.
    callbacks: gives the `Callback`s of a run, from its configuration; likewise in this process.
    only: names of the runs that are wanted now; None for all of the grid. The table is of all that
      are finished.

  Raises:
    Interrupted: a signal came; what was done is kept.
    ValueError: a setting that is no experiment, another sweep in the folder, or no such cluster.
    RunsFailed: a `ValueError`, too: runs that failed; the others are finished then.
    OSError: the folder cannot be written.
  """
  every = grid.runs()
  wanted = {name: config for name, config in every.items() if only is None or name in only}
  checks.check(
    wanted or every, folder, resume, workers=workers, cluster=cluster, select_on=select_on
  )
  first = next(iter(every.values()))
  parts = Parts(dataset=dataset, model=model, metrics=metrics or {}, callbacks=callbacks)
  if parts.given and (workers > 1 or cluster):
    raise ValueError(
      f'workers={workers}, cluster={cluster!r}: a data set, model, metric or callback given from '
      'Python lives in this process; use one worker, or give it as a file '
      '(model="my_model.py:build").'
    )
  given_folder = bool(folder)
  if not folder:
    folder = results.new_folder(first, pathlib.Path('results/sweeps'))
  path = pathlib.Path(folder)
  runs = record.configs(grid, path)
  asked = {name: runs[name] for name in wanted}
  how = record.How(workers=workers, cluster=cluster, select_on=select_on)
  if path.exists() and not path.is_dir():
    raise ValueError(f'--output_dir={path} is a file, not a folder.')
  made = not path.exists()
  files.make_folder(path)
  try:
    lock, taken, fresh, nothing = files.FolderLock(path), False, False, False
  except OSError as error:
    raise files.WriteError(path, error) from error
  try:
    fresh, taken = record.take(path, grid, resume, how), True
    files.remove_temporaries(path)
    try:
      failures = _run_what_is_left(path, grid, asked, workers, cluster, show_progress, parts)
    finally:
      nothing = record.leave(path, runs, fresh=fresh)
    # Of a program that failed as a whole some may be finished.
    left = {n: r for n, r in failures.items() if not record.is_finished(runs[n])}
    failures = left or failures
    if failures and nothing:
      words = record.in_words(failures)
      raise ValueError(
        f'All {len(asked)} runs failed: '
        + (next(iter(failures.values())) if len(words) == 1 else ' '.join(map(_ended, words)))
      )
    if all(map(record.is_finished, runs.values())):
      shutil.rmtree(path / 'checkpoints', ignore_errors=True)  # of runs killed as they ended
    for config in filter(record.is_finished, runs.values()):
      noise_keys.forget(pathlib.Path(config.output_dir))  # also if killed just before
    table = sweep_table.build([sweep_table.Run.read(path / 'runs' / n) for n, config in runs.items()
                               if record.is_finished(config)])  # fmt: skip
    sweep_table.write(table, path)
    selection = sweep_table.select(table, on=select_on)
    record.write(path, grid, selection, how, failures)
  except interruption.Interrupted as stopped:
    again = f'stopped; continue with {launcher.resume(path)}'
    raise interruption.Interrupted(
      stopped.exit_code - 128, interruption.NOTHING_KEPT if nothing else again
    ) from None
  finally:
    lock.release(remove=fresh and nothing if taken else lock.made)
    if fresh and nothing and (made or not given_folder):
      with contextlib.suppress(OSError):
        path.rmdir()
  report = _closing_words(table, selection, select_on)
  result = SweepResult(folder=path, table=table, selection=selection, report=report)
  if failures:
    done = sum(map(record.is_finished, asked.values()))
    raise RunsFailed(
      f'{len(asked) - done} of {len(asked)} runs failed. '
      f'{" ".join(map(_ended, record.in_words(failures)))} '
      f'The others are in {path}; {launcher.resume(path)} tries again.',
      failures,
      result,
    )
  return result


def _ended(sentence: str) -> str:
  return sentence if sentence.endswith('.') else f'{sentence}.'


def _run_what_is_left(
  path: pathlib.Path,
  grid: Grid,
  runs: Mapping[str, ExperimentConfig],
  workers: int,
  cluster: str,
  show_progress: bool,
  parts: Parts,
) -> dict[str, str]:
  """Runs everything unfinished; returns the failed runs with the reason."""
  left = {name: config for name, config in runs.items() if not record.is_finished(config)}
  groups = programs(left, workers, store.kept_together(path / 'checkpoints', left))
  if not groups:
    return {}
  with contextlib.ExitStack() as stack:
    stack.enter_context(interruption.Interruption())
    if cluster:
      crew = sweep_cluster.connected(cluster, min(workers, len(groups)), path)
      make_worker = stack.enter_context(crew).make_worker
    else:
      make_worker = functools.partial(sweep_workers.Process, path, min(workers, len(groups)))
    here = workers == 1 and not cluster
    if here:
      with Doing('Starting TensorFlow', shown=show_progress), startup.loading():
        importlib.import_module('experiments.sweeps.program')
    # After Ray, which sets handlers of its own.
    caught = stack.enter_context(interruption.Interruption())
    progress = SweepProgress(left, total=len(runs), groups=len(groups), shown=show_progress)
    stack.callback(progress.close)
    if here:
      return _run_here(path, grid, left, groups, caught, progress, parts)
    return sweep_workers.run(groups, workers, make_worker, caught, progress)


def _run_here(path, grid, runs, groups, caught, progress, parts) -> dict[str, str]:
  from experiments.sweeps import program as sweep_program

  failures: dict[str, str] = {}
  refused: dict[str, str] = {}  # by themselves: their reason is the better one
  for names in groups:
    progress.begins(0, names)
    try:
      sweep_program.run_all(
        {name: runs[name] for name in names},
        num_settings=record.num_settings(grid), num_runs=len(grid.runs()),
        checkpoint_folder=path / 'checkpoints', caught=caught,
        report=lambda *state: progress.reports(0, *state), warn=progress.warn, parts=parts,
        refuse=lambda name, error: refused.update({name: str(error)}),
      )  # fmt: skip
    except (ValueError, OSError, MemoryError) as error:
      failures.update(dict.fromkeys(names, str(error)))
    progress.ends(0, names)
  return {**failures, **refused}


def _with_spent(result: SweepResult, data_dir: str | None) -> SweepResult:
  with startup.loading():
    from experiments.sweeps import spent
  runs = sorted((result.folder / 'runs').iterdir())
  sentences = spent.together(runs, data_dir=data_dir)
  files.write_json(result.folder / 'spent.json', {'together': sentences})
  told = [textwrap.fill(sentence, 100) for sentence in sentences]
  return dataclasses.replace(result, report='\n'.join([result.report, *told]))


def _in_words_diverged(table) -> list[str]:
  lost = sweep_table.diverged(table)
  if not lost:
    return []
  more = f', and {len(lost) - _MOST_NAMES} more' if len(lost) > _MOST_NAMES else ''
  count = f'{len(lost)} of {table["run"].nunique()} runs'
  names = '; '.join(lost[:_MOST_NAMES]) + more
  return [f'Diverged, to a metric that is no finite number: {count} ({names}).']


def _closing_words(table, selection: list[dict[str, Any]], select_on: str) -> str:
  metrics = sweep_table.main_metrics(table)
  if not metrics:
    return f'{table["run"].nunique()} runs.'
  lines = [line for metric in metrics for line in _scores_in_words(table, metric)]
  lines += _in_words_diverged(table)
  if selection:
    where = {
      'validation': 'Best on validation data, which took no part in training',
      'test': 'Best on TEST data: these values are optimistic, because the test data chose them',
    }[select_on]
    lines.append(f'{where}:')
    for best in selection:
      setting = ', '.join(f'{n}={v}' for n, v in best['setting'].items()) or 'the only one'
      asked = ', '.join(f'{n}={v}' for n, v in best['for'].items())
      lines.append(
        f'  {asked}: {setting} (of {best["candidates"]}); test {best["metric"]} '
        f'{show_mean(best["test"]["mean"], best["test"]["std"], best["seeds"])}'
      )
  elif select_on == 'validation':
    lines.append(
      'No setting was chosen: the runs kept no validation data (--validation_fraction). '
      '--select_on=test chooses on test data, and says so.'
    )
  return '\n'.join(lines)


def _scores_in_words(table, metric: str) -> list[str]:
  scores = sweep_table.over_seeds(table, f'test_{metric}')
  several = scores['seeds'].max() > 1
  lines = [f'Test {metric}' + ', mean and deviation over the seeds' * several + ':', '']
  names = [n for n in sweep_table.setting_columns(table) if scores[n].nunique() > 1]
  for _, row in scores.head(_MOST_LINES).iterrows():
    setting = ', '.join(f'{n}={row[n]}' for n in names if row[n] == row[n] and row[n] is not None)
    deviation = f'{show(row["std"]):>9}  ' if several else ''
    lines.append(f'  {show(row["mean"]):>9}  {deviation}{setting}')
  if len(scores) > _MOST_LINES:
    lines.append(f'  ... and {len(scores) - _MOST_LINES} more in table.csv')
  return [*lines, '']
