"""A run: one experiment from its first round to its results."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import runtime
from experiments.config import launcher
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints, figures, noise_keys, results
from experiments.folder.metrics import MetricTable
from experiments.folder.store import Store
from experiments.running import console, interruption, startup
from experiments.running import progress as progress_lib
from experiments.running.build import Experiment, build_process
from experiments.running.keeping import Keeper
from experiments.running.loading import for_workers, load_dataset
from experiments.running.loop import Loop, summary_of
from experiments.running.parts import Callback
from experiments.running.population import Population
from experiments.running.progress import Doing
from processes.method import without_noise_key
from runtime.hosts.cluster import import_ray
from runtime.noise_key import NoiseKey

_COMPILING = 'Compiling the rounds and the evaluations (once)'
_SECONDS_BETWEEN_WRITES = 20.0  # of metrics.parquet, between checkpoints

# The contents of privacy.json and of summary.json -> what is written of them.
Complete = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """A finished run.

  Attributes:
    config: what was run.
    metrics: the long table.
    summary: content of summary.json.
    privacy: content of privacy.json.
    server_state: the server's last state without the noise key, NumPy arrays.
    client_states: all clients' last states [K, ...] without secrets, NumPy arrays; of a run with
      `client_states='disk'` the `runtime.StoredStates`, whose `to_numpy(rows)` reads them.
    report: the closing words: metrics by group and the privacy statement.
  """

  config: ExperimentConfig
  metrics: MetricTable
  summary: dict[str, Any]
  privacy: dict[str, Any]
  server_state: Any
  client_states: Any
  report: str


def run(
  experiment: Experiment | ExperimentConfig,
  *,
  folder: results.RunFolder | None = None,
  show_progress: bool = True,
  callbacks: Sequence[Callback] = (),
  stop_when_diverged: bool = True,
  cluster: str = '',
  complete: Complete = lambda privacy, summary: (privacy, summary),
) -> RunResult:
  """Runs an experiment, or continues it.

  Args:
    experiment: what to run; a configuration is built first.
    folder: where the results go, opened already. By default the folder is opened at
      `config.output_dir`; with an empty `output_dir` nothing is written.
    show_progress: whether to report progress on standard error.
    callbacks: told of every round, every evaluation, and the end.
    stop_when_diverged: whether to end where a loss is not finite; in a private run, where the
      models are not.
    cluster: the Ray cluster that `cohort_workers` are on; by default one of this machine.
    complete: says of the results what the run alone does not know, such as of which sweep it is.

  Raises:
    Diverged: it ended so; a `ValueError` with what to try.
    Interrupted: SIGINT or SIGTERM came; what was done is in the folder.
    ValueError: something does not fit together; one line.
    OSError: the folder cannot be written, or the device failed; one line.
    TypeError: it is no experiment, or one of `callbacks` is none.
  """
  if not isinstance(experiment, Experiment | ExperimentConfig):
    what = type(experiment).__name__
    raise TypeError(f'the experiment is a {what}; give an ExperimentConfig, or an Experiment.')
  for callback in callbacks:
    if not isinstance(callback, Callback):
      raise TypeError(f'a callback is a {type(callback).__name__}; derive it from Callback.')
  with contextlib.ExitStack() as stack:
    caught = stack.enter_context(interruption.Interruption())
    config = experiment if isinstance(experiment, ExperimentConfig) else experiment.config
    if config.cohort_workers:  # said before anything is loaded or written
      import_ray(cluster, config.cohort_workers)
    if folder is None and config.output_dir:
      folder = results.RunFolder(config)
      stack.callback(folder.close)
    stack.enter_context(_how_to_continue(folder, given=isinstance(experiment, Experiment)))
    given = None if isinstance(experiment, ExperimentConfig) else experiment.noise_key
    noise_key = noise_keys.acquire(config, None if folder is None else folder.path, given=given)
    prepare_runtime(config)
    if isinstance(experiment, ExperimentConfig):
      with Doing(f'Loading {config.dataset}', shown=show_progress):
        dataset = load_dataset(config)
        dataset, train_parts = for_workers(config, dataset)
      with Doing(_building(config), shown=show_progress):
        experiment = build_process(config, dataset, noise_key=noise_key)
      experiment = dataclasses.replace(experiment, train_parts=train_parts)
    else:
      _check_built_with(experiment, noise_key)
      experiment = dataclasses.replace(experiment, noise_key=noise_key)
    if show_progress and experiment.warning:
      progress_lib.say(experiment.warning)
    machine = stack.enter_context(create_runtime(config, cluster=cluster))
    store = None if folder is None else _store(folder)
    population = Population([experiment], with_client_states(machine, config, store))
    stack.callback(population.close)
    keeper = _keeper(experiment, folder, store)
    stack.callback(keeper.close)
    loop = Loop(population, keeper, caught)
    with contextlib.ExitStack() as display:
      compiling = display.enter_context(Doing(_COMPILING, shown=show_progress))
      loop.start()
      loop.advance(
        _shown(loop, display, compiling) if show_progress else lambda loop: None,
        callbacks=[callbacks],
        stop_when_diverged=stop_when_diverged,
      )
    result = _finish(loop, population, folder, complete)
    for callback in callbacks:
      callback.at_end(result)
    return result


def prepare_runtime(config: ExperimentConfig) -> None:
  """Sets how many threads TensorFlow makes, before it has computed anything."""
  if config.runtime == 'xla' and not config.cohort_workers:
    runtime.prepare(config.device)


def create_runtime(config: ExperimentConfig, *, cluster: str = '') -> 'runtime.Runtime':
  """The runtime that the configuration asks for; `cluster` as for `run`."""
  device = config.device if config.runtime == 'xla' else 'cpu'
  if config.cohort_workers:  # not in silence: one may have to wait for them
    machine = runtime.create_hosts(
      config.cohort_workers, cluster=cluster, clients_per_block=config.clients_per_block,
      device=device, fan_in=config.cohort_fan_in or 0, tell=progress_lib.say,
    )  # fmt: skip
  else:
    with startup.quiet():
      machine = runtime.create(
        config.runtime, clients_per_block=config.clients_per_block, devices=device
      )
  with startup.quiet():
    # XLA's first program of a process comes with a notice; let it be this one.
    tf.function(lambda: tf.constant(0), jit_compile=True)()
  return machine


def with_client_states(
  machine: 'runtime.Runtime', config: ExperimentConfig, store: Store | None
) -> 'runtime.Runtime':
  """The runtime with the clients' states where the configuration has them; see `runtime`."""
  if config.client_states != 'disk':
    return machine
  path = None if store is None else store.client_states
  return runtime.with_states_on_disk(machine, path, fixed=checkpoints.UNCHANGING)


def _store(folder: results.RunFolder) -> Store:
  return Store(
    folder.path / 'checkpoints',
    fingerprint=folder.fingerprint,
    tables=[folder.path / 'metrics.parquet'],
  )


def _keeper(
  experiment: Experiment, folder: results.RunFolder | None, store: Store | None
) -> Keeper:
  if folder is None:
    return Keeper([experiment], [], None)
  return Keeper(
    [experiment], [folder], store, with_events=True,
    seconds_between_writes=_SECONDS_BETWEEN_WRITES,
  )  # fmt: skip


@contextlib.contextmanager
def _how_to_continue(folder: results.RunFolder | None, *, given: bool):
  """Adds to what stops a run how it is continued.

  Args:
    folder: the run's; None if nothing is written.
    given: whether the run has parts from Python, which no command line has.
  """
  where = '' if folder is None else str(folder.path)
  again = launcher.resume(where)
  if given:
    again = f'the same call with resume=True and output_dir={where!r}'
  try:
    yield
  except interruption.Interrupted as stopped:
    if folder is None:
      raise
    how = f'{stopped}; continue with {again}' if folder.begun else interruption.NOTHING_KEPT
    raise interruption.Interrupted(stopped.exit_code - 128, how) from None
  except runtime.DeviceError as error:
    if folder is None or not folder.begun:
      raise
    raise runtime.DeviceError(
      f'{error}; continue with {again}, and with --device=cpu if the device does not come back'
    ) from error


def _check_built_with(experiment: Experiment, noise_key: NoiseKey | None) -> None:
  """Refuses a method that was drawn from another noise key than that of the run."""
  config, other = experiment.config, experiment.noise_key_fingerprint
  if config.declaration.keyed_setup and noise_key is not None and other != noise_key.fingerprint:
    raise ValueError(
      f'--method={config.method} draws its setup from the noise key, and this experiment was built '
      f'with another than that of the run in --output_dir={config.output_dir}; build it again, '
      'with resume=True.'
    )


def _building(config: ExperimentConfig) -> str:
  return f'Building {config.method}' + (' and its noise' if config.privacy != 'none' else '')


def _shown(loop: Loop, display: contextlib.ExitStack, compiling: Doing) -> Callable[[Loop], None]:
  """The display of a run: begins when its first round is compiled, ends with `display`."""
  (experiment,) = loop.runs
  rounds, metric = experiment.last_round, experiment.main_metric
  start = loop.rounds_done
  progress: progress_lib.Progress | None = None
  names = {'train_loss': 'loss', f'test_{metric}': f'test {metric}'}

  def show(loop: Loop) -> None:
    nonlocal progress
    if loop.rounds_done == start:
      return
    if progress is None:
      compiling.end()
      progress = progress_lib.create(rounds, start)
      display.callback(progress.close)
      if loop.resumed:
        progress.say(f'Continuing after round {start} of {rounds}.')
    latest = loop.tables[0].latest()
    values = {label: latest[name] for name, label in names.items() if name in latest}
    if experiment.private:
      values[experiment.epsilon_metric] = experiment.epsilon(loop.rounds_done)
    progress.update(loop.rounds_done, values, loop.clock.seconds_per_round)

  return show


def _finish(
  loop: Loop, population: Population, folder: results.RunFolder | None, complete: Complete
) -> RunResult:
  """Writes the results of the finished run."""
  (experiment,), (table,) = loop.runs, loop.tables
  privacy = loop.privacy_report(0)
  # Before anything is written: with summary.json the run is finished, and stays as it is.
  privacy, summary = complete(privacy, summary_of(loop, 0, privacy))
  metric = experiment.main_metric
  loop.save()
  if folder is not None:
    folder.write_json('privacy.json', privacy)
    folder.write_json('summary.json', summary)
    folder.rest()
    noise_keys.forget(folder.path)
    figures.draw_run(
      table, folder.path / 'figures', title=experiment.title, metric=metric,
      delta=privacy['delta'],
    )  # fmt: skip
    figures.draw_clients(table, folder.path / 'figures', title=experiment.title, metric=metric)
  return result_of(loop, population, 0, summary, privacy)


def result_of(
  loop: Loop, population: Population, index: int, summary: dict[str, Any], privacy: dict[str, Any]
) -> RunResult:
  """The result of one of the loop's runs, which are finished."""
  experiment, table = loop.runs[index], loop.tables[index]
  server, clients = population.states_of(index)
  if isinstance(clients, runtime.StoredStates):
    clients = dataclasses.replace(clients, tree=without_noise_key(clients.tree))
  else:
    clients = without_noise_key(clients)
  return RunResult(
    config=experiment.config, metrics=table, summary=summary, privacy=privacy,
    server_state=without_noise_key(server), client_states=clients,
    report=console.final_report(
      table=table, metric=experiment.main_metric, statement=privacy['statement'], summary=summary
    ),
  )  # fmt: skip
