"""Several runs at once: settings which differ in tensors only, in one compiled program."""

import contextlib
import dataclasses
import functools
import gc
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import noise_keys, results, store
from experiments.folder.metrics import MetricTable
from experiments.running import interruption, keeping, runner
from experiments.running.build import Experiment
from experiments.running.loop import Loop, summary_of
from experiments.running.parts import Parts
from experiments.running.population import Population
from experiments.running.spending import Spending
from experiments.sweeps import record, sharing
from privacy.plan import NoPrivacy, PrivacyPlan
from privacy.rounding import rounded_up

_NO_PARTS = Parts()
_SECONDS_BETWEEN_CHECKPOINTS = 60.0
_CANNOT = 'Warning: cannot be run: '

# (how many of the program's runs have ended, rounds done, of how many, of how many runs at once)
Report = Callable[[int, int, int, int], None]
# (rounds done, of how many, of how many runs at once)
_ReportBatch = Callable[[int, int, int], None]


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What a run's privacy statement says of the sweep it belongs to.

  Attributes:
    settings: how many settings are compared on the same data.
    runs: how many runs there are, those of other seeds too.
  """

  settings: int
  runs: int


@dataclasses.dataclass(frozen=True)
class _Batch:
  """Runs side by side: by name, with each one's folder and lines in the ledger."""

  runs: dict[str, Experiment] = dataclasses.field(default_factory=dict)
  folders: list[results.RunFolder] = dataclasses.field(default_factory=list)
  reserved: list[Spending] = dataclasses.field(default_factory=list)


def run_all(
  configs: Mapping[str, ExperimentConfig],
  *,
  num_settings: int,
  num_runs: int | None = None,
  checkpoint_folder: pathlib.Path,
  caught: interruption.Interruption,
  report: Report,
  refuse: sharing.Refuse,
  warn: Callable[[str], None] = lambda message: None,
  parts: Parts = _NO_PARTS,
  workers: int = 1,
) -> None:
  """Runs configurations of one `sweep_grid.program_key`, each into its own folder.

  What is finished is not repeated, and what cannot be had is left out; the others are what they
  are without it.

  Args:
    configs: by name; `output_dir` is the run's folder.
    num_settings: how many settings the sweep compares, for the privacy statements.
    num_runs: how many runs it has, those of other seeds too; None for one of each setting.
    checkpoint_folder: where the state of unfinished batches is kept.
    caught: to stop between two rounds.
    report: told how far it is.
    refuse: told of each run that cannot be had by itself, most often for its privacy budget.
    warn: told, before any round, of those, and of budgets that let nothing be learnt.
    parts: what takes the place of what the configurations name.
    workers: processes that share the machine's memory.

  Raises:
    Interrupted: a signal came; what was done is kept.
    ValueError, OSError, MemoryError: one line.
  """
  first = next(iter(configs.values()))
  sweep = Sweep(settings=num_settings, runs=num_settings if num_runs is None else num_runs)
  runner.prepare_runtime(first)
  refused: dict[str, str] = {}

  def refuse_one(name: str, error: ValueError) -> None:
    refused[name] = str(error)
    refuse(name, error)

  experiments = sharing.build_all(configs, parts, refuse_one)
  for message in record.in_words(refused):
    warn(f'{_CANNOT}{message}')
  if not experiments:
    return
  for message in dict.fromkeys(e.warning for e in experiments.values() if e.warning):
    warn(message)
  if (
    first.runtime != 'xla'
    or any(config.epsilon_budget is not None for config in configs.values())
    or any(e.is_loaded_by_cohort or e.method.releases for e in experiments.values())
  ):
    for name, experiment in _unfinished(experiments).items():
      ended = len(configs) - len(_unfinished(experiments))
      try:
        _run_alone(name, experiment, sweep, functools.partial(report, ended), parts)
      except ValueError as error:
        refuse(name, error)
    return
  with runner.create_runtime(first) as machine:
    left = _unfinished(experiments)
    begun = store.kept_together(checkpoint_folder, left)
    others = {n: e for n, e in experiments.items() if not any(n in names for names in begun)}
    for names in begun + sharing.batches(others, workers=workers):
      left = _unfinished({name: experiments[name] for name in names})
      if left:
        ended = len(configs) - len(_unfinished(experiments))
        tell = functools.partial(report, ended)
        with contextlib.ExitStack() as stack:
          batch = _opened(stack, machine, left, refuse, warn)
          if batch.runs:
            _run_together(machine, batch, sweep, checkpoint_folder, caught, tell, parts)
        gc.collect()  # The next one's states need the room of this one's.


def _unfinished(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
  return {n: e for n, e in experiments.items() if not record.is_finished(e.config)}


def _run_alone(
  name: str, experiment: Experiment, sweep: Sweep, report: _ReportBatch, parts: Parts
) -> None:
  """A run by itself: TFF's own runtime, data loaded by cohort, a final release, a filter."""
  config = experiment.config
  # A budget that allows no round is refused before there is a folder.
  report(0, experiment.last_round, 1)
  folder = _open_folder(config)

  def complete(privacy, summary):
    told = with_sweep(privacy, sweep, experiment.plan, privacy['rounds'])
    return told, {**summary, 'name': name}

  try:
    runner.run(
      experiment, folder=folder, show_progress=False, stop_when_diverged=False,
      callbacks=parts.callbacks(config), complete=complete,
    )  # fmt: skip
  finally:
    folder.close()
  report(config.rounds, config.rounds, 1)


def _opened(
  stack: contextlib.ExitStack,
  machine: runtime.Runtime,
  experiments: Mapping[str, Experiment],
  refuse: sharing.Refuse,
  warn: Callable[[str], None],
) -> _Batch:
  """Opens the folders of runs, until the stack ends, and asks the ledger for each by itself."""
  batch = _Batch()
  refused: dict[str, str] = {}
  for name, experiment in experiments.items():
    folder = _open_folder(experiment.config)
    stack.callback(folder.close)
    # Into a new folder, or from that of a run which goes on.
    key = noise_keys.acquire(experiment.config, folder.path, given=experiment.noise_key)
    run = dataclasses.replace(experiment, noise_key=key)
    keeping.record(run, folder, machine.description)  # by it the ledger knows a run that goes on
    spending = Spending(run, folder)
    try:
      spending.reserve()
    except ValueError as error:
      folder.close()  # nothing of a new run stays in it
      refused[name] = str(error)
      refuse(name, error)
    else:
      batch.runs[name] = run
      batch.folders.append(folder)
      batch.reserved.append(spending)
  for message in record.in_words(refused):
    warn(f'{_CANNOT}{message}')
  return batch


def _run_together(
  machine: runtime.Runtime,
  batch: _Batch,
  sweep: Sweep,
  checkpoint_folder: pathlib.Path,
  caught: interruption.Interruption,
  report: _ReportBatch,
  parts: Parts,
) -> None:
  """Runs of one process, from their first round to their results."""
  runs = list(batch.runs.values())
  rounds = runs[0].config.rounds
  report(0, rounds, len(runs))
  place = store.place_of(checkpoint_folder, list(batch.runs))
  kept = store.Store(
    place,
    fingerprint=place.name,
    tables=[folder.path / 'metrics.parquet' for folder in batch.folders],
    names=list(batch.runs),
  )
  stateful = runner.with_client_states(machine, runs[0].config, kept)
  keeper = keeping.Keeper(
    runs, batch.folders, kept, reserved=batch.reserved,
    seconds_between_checkpoints=_SECONDS_BETWEEN_CHECKPOINTS, keeps_end=False,
  )  # fmt: skip
  with (
    contextlib.closing(keeper),
    contextlib.closing(Population(runs, stateful, stacked=True)) as population,
  ):
    loop = Loop(population, keeper, caught)
    loop.start()
    callbacks = [parts.callbacks(run.config) for run in runs]
    loop.advance(lambda loop: report(loop.rounds_done, rounds, len(runs)), callbacks=callbacks)
    # Accounting may take long, and the files are written as one: a kill in between costs those
    # that are not yet finished the rounds since the last checkpoint, as any kill does.
    found = [_results(loop, index, name, sweep) for index, name in enumerate(batch.runs)]
    for table, folder, contents in zip(loop.tables, batch.folders, found, strict=True):
      _write(folder, table, *contents)
    for index, contents in enumerate(found):
      if callbacks[index]:
        privacy, summary = contents
        result = runner.result_of(loop, population, index, summary, privacy)
        for callback in callbacks[index]:
          callback.at_end(result)
  kept.remove()


def _results(
  loop: Loop, index: int, name: str, sweep: Sweep
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The privacy and the summary of one of the finished runs."""
  plan = loop.runs[index].plan
  privacy = with_sweep(loop.privacy_report(index), sweep, plan, loop.rounds_done)
  summary = {**summary_of(loop, index, privacy), 'name': name, 'runs_at_once': len(loop.runs)}
  return privacy, summary


def _write(
  folder: results.RunFolder, table: MetricTable, privacy: dict[str, Any], summary: dict[str, Any]
) -> None:
  folder.write_json('privacy.json', privacy)
  table.write(folder.path / 'metrics.parquet')
  # Last, because it says that the run is finished.
  folder.write_json('summary.json', summary)
  folder.rest()
  noise_keys.forget(folder.path)


def with_sweep(
  privacy: Mapping[str, Any], sweep: Sweep, plan: PrivacyPlan, rounds: int
) -> dict[str, Any]:
  """A privacy report which says that it is of one of several runs on the same data."""
  if sweep.runs < 2 or isinstance(plan, NoPrivacy):
    return dict(privacy)
  loss = plan.loss_of_runs(rounds, sweep.runs)
  epsilon = loss.epsilon if math.isfinite(loss.epsilon) else None
  together = {'runs': sweep.runs, 'epsilon': epsilon, 'delta': loss.delta}
  whose = f' of {privacy["condition"]}' if privacy.get('condition') else ''
  sentence = (
    f'This is one of {sweep.runs} runs of a sweep on the same data, and the guarantee is that of '
    'this run alone. All of them together, if they cut the data alike and each has the guarantee '
    f'of this one: epsilon = {rounded_up(loss.epsilon)} at delta = {loss.delta:g}{whose} '
    f'({loss.accountant}).'
  )
  records: dict[str, Any] = {'sweep': {**together, 'text': sentence}}
  if sweep.settings > 1:
    tuning = (
      f'Tuning is not accounted for: this is one of {sweep.settings} settings. Releasing the best '
      'of them costs more.'
    )
    records['tuning'] = {'settings': sweep.settings, 'accounted': False, 'text': tuning}
    sentence = f'{sentence} {tuning}'
  if privacy.get('noise_key', {}).get('kind') == noise_keys.REHEARSAL:
    sentence += (
      ' In this rehearsal settings with the same seed share their noise: two of them released '
      'together cancel it.'
    )
  return {**privacy, **records, 'statement': f'{privacy["statement"]}\n{sentence}'}


def _open_folder(config: ExperimentConfig) -> results.RunFolder:
  again = (pathlib.Path(config.output_dir) / 'config.json').exists()
  return results.RunFolder(dataclasses.replace(config, resume=True) if again else config)
