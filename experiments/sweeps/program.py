"""Several runs at once: settings which differ in tensors only, in one compiled program."""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import noise_keys, results, store
from experiments.running import interruption, runner
from experiments.running.build import Experiment
from experiments.running.keeping import Keeper
from experiments.running.loop import Loop, summary_of
from experiments.running.parts import Parts
from experiments.running.population import Population
from experiments.sweeps import record, sharing
from privacy.plan import NoPrivacy, PrivacyPlan
from privacy.rounding import rounded_up

_NO_PARTS = Parts()
_SECONDS_BETWEEN_CHECKPOINTS = 60.0

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
    warn(f'Warning: cannot be run: {message}')
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
        _run_together(machine, left, sweep, checkpoint_folder, caught, tell, parts)
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
  try:
    result = runner.run(
      experiment, folder=folder, show_progress=False, stop_when_diverged=False,
      callbacks=parts.callbacks(config),
    )  # fmt: skip
    rounds = result.privacy['rounds']
    folder.write_json('privacy.json', with_sweep(result.privacy, sweep, experiment.plan, rounds))
    folder.write_json('summary.json', {**result.summary, 'name': name})
  finally:
    folder.close()
  report(config.rounds, config.rounds, 1)


def _run_together(
  machine: runtime.Runtime,
  experiments: Mapping[str, Experiment],
  sweep: Sweep,
  checkpoint_folder: pathlib.Path,
  caught: interruption.Interruption,
  report: _ReportBatch,
  parts: Parts,
) -> None:
  """Runs of one process, from their first round to their results."""
  report(0, next(iter(experiments.values())).config.rounds, len(experiments))
  runs: list[Experiment] = []
  folders: list[results.RunFolder] = []
  try:
    for experiment in experiments.values():
      folders.append(_open_folder(experiment.config))
      # Into a new folder, or from that of a run which goes on.
      key = noise_keys.acquire(experiment.config, folders[-1].path, given=experiment.noise_key)
      runs.append(dataclasses.replace(experiment, noise_key=key))
    fingerprint = _digest(experiments)
    kept = store.Store(
      checkpoint_folder / fingerprint,
      fingerprint=fingerprint,
      tables=[folder.path / 'metrics.parquet' for folder in folders],
      names=list(experiments),
    )
    stateful = runner.with_client_states(machine, runs[0].config, kept)
    keeper = Keeper(
      runs, folders, kept,
      seconds_between_checkpoints=_SECONDS_BETWEEN_CHECKPOINTS, keeps_end=False,
    )  # fmt: skip
    with (
      contextlib.closing(keeper),
      contextlib.closing(Population(runs, stateful, stacked=True)) as population,
    ):
      loop = Loop(population, keeper, caught)
      loop.start()
      callbacks = [parts.callbacks(run.config) for run in runs]
      loop.advance(
        lambda loop: report(loop.rounds_done, runs[0].config.rounds, len(runs)),
        callbacks=callbacks,
      )
      for index, (name, folder) in enumerate(zip(experiments, folders, strict=True)):
        privacy, summary = _finish(loop, index, name, folder, sweep)
        if callbacks[index]:
          result = runner.result_of(loop, population, index, summary, privacy)
          for callback in callbacks[index]:
            callback.at_end(result)
    kept.remove()
  finally:
    for folder in folders:
      folder.close()


def _finish(
  loop: Loop, index: int, name: str, folder: results.RunFolder, sweep: Sweep
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Writes the results of one of the finished runs; returns its privacy and its summary."""
  plan = loop.runs[index].plan
  privacy = with_sweep(loop.privacy_report(index), sweep, plan, loop.rounds_done)
  folder.write_json('privacy.json', privacy)
  loop.tables[index].write(folder.path / 'metrics.parquet')
  # Last, because it says that the run is finished.
  summary = {**summary_of(loop, index, privacy), 'name': name, 'runs_at_once': len(loop.runs)}
  folder.write_json('summary.json', summary)
  folder.rest()
  noise_keys.forget(folder.path)
  return privacy, summary


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


def _digest(names: Iterable[str]) -> str:
  return hashlib.sha256('\n'.join(names).encode()).hexdigest()[:16]
