"""The clients of runs on a runtime: their data, their states, and a round of them.

The clients of S runs of one process stand side by side on the client axis, S settings of
K clients, and the server's states are stacked. Each run keeps its own seed, noise key,
cohorts, batches, noise and data, and comes out as it does when it is run alone. A run alone is
the case S = 1, whose arrays go without the settings' axis.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import datasets
import runtime
from experiments.folder import checkpoints
from experiments.running import trees
from experiments.running.build import Experiment
from experiments.running.evaluation import Evaluator, client_data, examples_spec, placed

_READ_AT_ONCE = 256  # clients' states from disk


def _draw_of(run: Experiment) -> tuple[Any, Any]:
  """What tells the draws of runs' cohorts apart: sampler and root."""
  root = run.root
  return run.plan.cohorts, root if isinstance(root, int) else root.fingerprint


class Population:
  """All clients of some runs of one process, and their server.

  Attributes:
    runs: the runs.
    machine: the runtime that they are on.
    server: the server's state (of a sweep with a leading axis [S, ...]).
    clients: the clients' states, [K, ...] or [S * K, ...], as placed on the runtime.
    is_whole: whether these are the states after a whole round.

  Long because one run and several, with data in memory, by cohort and fresh ones, are fed here.
  """

  def __init__(self, runs: Sequence[Experiment], machine, *, stacked: bool = False):
    """Uploads the data, each data set once: runs with the same seed share theirs.

    Args:
      runs: experiments of one process and equal shapes.
      machine: the runtime.
      stacked: whether the settings have an axis of their own, as they must for several.
    """
    self.runs = list(runs)
    self.machine = machine
    self.server: Any = None
    self.clients: Any = None
    self.is_whole = True
    self._config = self.runs[0].config
    self._settings = len(self.runs) if stacked else None
    self._num_clients = runs[0].dataset.num_clients
    self._draws = [_draw_of(run) for run in runs]
    sets = {id(run.dataset.train): run.dataset.train for run in runs}
    first_row = {key: i * self._num_clients for i, key in enumerate(sets)}
    self._first_rows = [first_row[id(run.dataset.train)] for run in runs]
    self._train: list[Any] = list(sets.values())
    self._placed = None
    own = runs[0].train_parts
    if own is not None:
      self._placed = machine.place_loaded(own.load, own.form, own.num_examples)
    elif isinstance(self._train[0], datasets.ClientExamples):
      self._placed = self._place(self._train)
    self._evaluator = Evaluator(
      method=runs[0].method, datasets=[run.dataset for run in runs], runtime=machine,
      settings=self._settings, clients=self._config.eval_clients,
    )  # fmt: skip
    self._rounds: Iterator[Any] = iter(())
    self._ahead: list[Any] = []  # generators that load ahead, once there are some

  def _place(self, parts: Sequence[Any]) -> Any:
    return placed(self.machine, trees.side_by_side([client_data(part) for part in parts]))

  def initial_states(self) -> tuple[Any, Any]:
    """The server's state and the clients' states before the first round, not yet placed."""
    states = [run.initial_states() for run in self.runs]
    if self._settings is None:
      return states[0]
    return trees.stacked([s for s, _ in states]), trees.side_by_side([c for _, c in states])

  def with_noise_buffers(self, server: Any) -> Any:
    """A server's state from a checkpoint, with what correlated noise remembers of its rounds."""
    if self._settings is None:
      return self.runs[0].with_noise_buffers(server)
    parts = [trees.setting(server, i) for i in range(self._settings)]
    return trees.stacked(
      [run.with_noise_buffers(part) for run, part in zip(self.runs, parts, strict=True)]
    )

  def again(self, rounds_done: int) -> None:
    """Goes on after some rounds with the states that it has."""
    self._rounds = self._feed(range(rounds_done, self.runs[0].last_round))

  def begin(
    self,
    server: Any,
    clients: Any,
    rounds_done: int,
    kept: checkpoints.Checkpoint | None = None,
  ) -> None:
    """Takes up states after some rounds.

    Args:
      server: the server's state.
      clients: the clients' initial states.
      rounds_done: the rounds.
      kept: has the clients' states in the stead of the initial ones.
    """
    self.server = server
    self.clients = self.machine.place_states(clients) if kept is None else self._of(kept, clients)
    self.is_whole = True
    self.again(rounds_done)

  def _of(self, kept: checkpoints.Checkpoint, clients: Any) -> Any:
    """The clients' states of a checkpoint, placed, in the form of the initial ones.

    What rounds made of them is not judged: models that have diverged go on, as they do without a
    stop.
    """
    records = checkpoints.client_records(kept)
    asked, paths = self._config.client_states, checkpoints.flatten(clients)
    changing = any(checkpoints.CONSTANT.isdisjoint(path.split('/')) for path in paths)
    if changing and bool(records) != (asked == 'disk'):
      raise checkpoints.CheckpointError(
        f'--client_states={asked}: the run in --output_dir={self._config.output_dir} was begun '
        f'with --client_states={"disk" if records else "memory"}.'
      )
    if kept.shards is not None:
      return self.machine.fill_states(clients, kept.shards.restored)
    if not records:
      restored = checkpoints.restore(clients, kept.arrays, 'clients')
      return self.machine.place_states(restored, allow_nan=True)
    unchanging = {name: part for name, part in clients.items() if name in checkpoints.UNCHANGING}
    fixed = checkpoints.restore(unchanging, kept.arrays, 'clients')
    return self.machine.place_states({**clients, **fixed}, snapshot=records)

  def round(self, *, releases: bool = False) -> Any:
    """Runs the next round and returns its metrics, which may still be on their way.

    Args:
      releases: whether every client of the one run chooses what it releases after it.
    """
    cohort, data, rows = next(self._rounds)
    self.server, metrics = self.machine.round(
      self.runs[0].method.process.next, self.server, self.clients, data, cohort, data_rows=rows,
      settings=self._settings,
    )  # fmt: skip
    self.is_whole = not releases
    return {**metrics, **self._release()} if releases else metrics

  def _release(self) -> Any:
    """Lets every client of the one run choose what it releases, by its held-out examples.

    Returns:
      Metrics of the choices.
    """
    (run,) = self.runs
    validation = run.dataset.validation
    assert validation is not None  # the configuration has been checked
    everyone = np.arange(validation.num_clients)
    held_out = validation.load(everyone)
    self.server, metrics = self.machine.round(
      run.method.build_release(examples_spec(held_out)), self.server, self.clients,
      placed(self.machine, client_data(held_out)), everyone, data_rows=None, settings=None,
    )  # fmt: skip
    self.is_whole = True
    return metrics

  def evaluate(self) -> Callable[..., None]:
    """Evaluates the states; returns what records the metrics: see `Evaluator.record`."""
    found = self._evaluator.evaluate(self.server, self.clients)
    return functools.partial(self._evaluator.record, found=found)

  def arrays(self, *, with_clients: bool) -> dict[str, np.ndarray]:
    """The server's and the clients' states on the host, flat, for a checkpoint written now.

    Of clients' states on disk it has where they are; see `runtime.stored_states`.
    """
    states = {'server': self.machine.to_numpy(self.server)}
    if with_clients:
      states |= self.clients.snapshot()
    return checkpoints.flatten(states)

  def states_of(self, index: int) -> tuple[Any, Any]:
    """One run's states on the host: the server's, and its clients' [K, ...].

    Of a run alone with its clients' states on disk these stay there: the `StoredStates`.
    """
    server = self.machine.to_numpy(self.server)
    if self._settings is None:
      return server, self.clients.kept()
    own = slice(index * self._num_clients, (index + 1) * self._num_clients)
    if isinstance(self.clients, runtime.StoredStates):
      clients = self.clients.to_numpy(np.arange(own.start, own.stop))
    else:
      clients = trees.setting(self.clients.to_numpy(), own)
    return trees.setting(server, index), clients

  def released_is_finite(self) -> bool:
    """Whether all numbers are finite in what a private run releases of its first run's states.

    The server's; with example-level privacy the clients', too, but where they choose at the end
    what they release.
    """
    server, clients = self.states_of(0)
    run, released = self.runs[0], iter([server])
    if run.config.privacy == 'example' and not run.method.releases:
      released = itertools.chain(released, _in_blocks(clients))
    return all(
      np.all(np.isfinite(leaf))
      for state in released
      for name, leaf in checkpoints.flatten(state).items()
      if checkpoints.CONSTANT.isdisjoint(name.split('/'))
    )

  def close(self) -> None:
    """Ends the loading ahead."""
    for generator in self._ahead:
      generator.close()

  def _feed(self, left: range) -> Iterator[tuple[Any, Any, Any]]:
    """Yields (cohort, placed data, rows of the data), as `Runtime.round` takes them."""
    cohorts: Iterator[list[np.ndarray]] = map(self._cohorts, left)
    if self._placed is not None:
      of_workers = self.runs[0].train_parts
      if of_workers is not None and of_workers.by_cohort:
        cohorts = self._announced(cohorts)
      for own in cohorts:
        yield self._rows_of_states(own), self._placed, self._rows_of_data(own)
    elif isinstance(self._train[0], datasets.ClientSource):
      yield from self._load_ahead(self._train[0], cohorts)
    else:
      self._ahead = [stream.prefetch(left) for stream in self._train]
      for own, parts in zip(cohorts, zip(*self._ahead, strict=True), strict=True):
        yield self._rows_of_states(own), self._place(parts), self._rows_of_data(own)

  def _announced(self, cohorts: Iterator[list[np.ndarray]]) -> Iterator[list[np.ndarray]]:
    """The same cohorts; the workers load each one's data while the one before is at work."""
    last = next(cohorts, None)
    while last is not None:
      following = next(cohorts, None)
      if following is not None:
        self.machine.load_ahead(self._placed, following[0])
      yield last
      last = following

  def _cohorts(self, round_: int) -> list[np.ndarray]:
    """Each run's clients of a round; runs of one root and one plan share what they draw."""
    drawn: dict[Any, np.ndarray] = {}
    for key, run in zip(self._draws, self.runs, strict=True):
      if key not in drawn:
        drawn[key] = run.plan.cohorts.sample(run.root, round_)
    return [drawn[key] for key in self._draws]

  def _rows_of_states(self, cohorts: list[np.ndarray]) -> Any:
    if self._settings is None:
      return cohorts[0]
    return [c.astype(np.int32) + s * self._num_clients for s, c in enumerate(cohorts)]

  def _rows_of_data(self, cohorts: list[np.ndarray]) -> Any:
    if self._settings is None:
      return None
    rows: dict[tuple[int, int], np.ndarray] = {}  # of cohorts that are shared, and so are these
    for cohort, first in zip(cohorts, self._first_rows, strict=True):
      if (id(cohort), first) not in rows:
        rows[id(cohort), first] = cohort.astype(np.int32) + first
    return [rows[id(c), first] for c, first in zip(cohorts, self._first_rows, strict=True)]

  def _load_ahead(self, source: datasets.ClientSource, cohorts: Iterator[list[np.ndarray]]):
    cohorts, wanted = itertools.tee(cohorts)
    # An empty cohort takes part with nobody's data, but the data need their shapes.
    somebody = np.zeros([1], np.int32)
    self._ahead = [source.prefetch(c if len(c) else somebody for (c,) in wanted)]
    for (cohort,), examples in zip(cohorts, self._ahead[0], strict=True):
      ids = cohort if len(cohort) else somebody
      yield cohort, placed(self.machine, client_data(examples, ids)), np.arange(len(cohort))


def _in_blocks(clients: Any) -> Iterator[Any]:
  """The states, those on disk of some clients at a time."""
  if not isinstance(clients, runtime.StoredStates):
    yield clients
    return
  assert clients.num_clients is not None
  for start in range(0, clients.num_clients, _READ_AT_ONCE):
    yield clients.to_numpy(np.arange(start, min(start + _READ_AT_ONCE, clients.num_clients)))
