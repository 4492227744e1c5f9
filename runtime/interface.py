"""What every runtime offers: place data once, then run rounds on it.

Long because all that runtimes share is here, for whoever writes another one.
"""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


class UnsupportedComputationError(ValueError):
  """A runtime cannot run a computation; the message names what it lacks."""


@dataclasses.dataclass
class Statistics:
  """What compiling has cost so far.

  Attributes:
    compilations: computations compiled, each time that one was.
    programs: the programs that they became. One each on one device; on several the work of
      the server and of the clients are programs of their own, which XLA compiles for each
      device that they run on.
    seconds: the time of the calls that compiled, in which the first round runs too.
  """

  compilations: int = 0
  programs: int = 0
  seconds: float = 0.0

  @contextlib.contextmanager
  def watch(self) -> Iterator[None]:
    """Counts a call as a compilation if programs were compiled in it."""
    before, start = self.programs, time.perf_counter()
    yield
    if self.programs > before:
      self.compilations += 1
      self.seconds += time.perf_counter() - start


class DeviceError(OSError):
  """A device failed while it worked, such as a GPU that fell off the bus."""


class MemberLostError(DeviceError):
  """A worker process with clients has ended; `Runtime.recover` replaces it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
  """What `Runtime.recover` has done.

  Attributes:
    words: a sentence.
    keeps_states: whether all clients have the states that they had before the call that failed, so
      that it can be made again; else all states have to be placed anew.
  """

  words: str
  keeps_states: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientData:
  """Read-only arrays of all clients, from `Runtime.place`.

  Attributes:
    tree: a nested mapping with leaves [R, ...], wherever the runtime has them.
    num_clients: K.
    num_rows: R, of which the first K are clients and the others padding.
    work: [K], the clients' work beside one another's; None if nothing is known of it.
  """

  tree: Any
  num_clients: int
  num_rows: int
  work: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientStates:
  """The states of all clients, from `Runtime.place_states`; changed in place by `Runtime.round`.

  With no leaves at all it stands for stateless clients.

  Attributes:
    tree: a nested mapping with leaves [K, ...], wherever the runtime has them.
    num_clients: K; None without leaves.
    fetch: copies such a tree to the host.
    visit: where they are in other processes, calls a function there: `function(first, tree)` with
      the first client and a copy of the states of those who are there. It gives what they return,
      in the order of the clients. None where they are in this process.
  """

  tree: Any
  num_clients: int | None
  fetch: Callable[[Any], Any]
  visit: Callable[[Callable[[int, Any], Any]], list[Any]] | None = None

  def to_numpy(self) -> Any:
    """A copy on the host: nested OrderedDict with NumPy leaves [K, ...]."""
    return self.fetch(self.tree)

  def kept(self) -> Any:
    """What is left of them after the runtime: here a copy, of states on disk the files."""
    return self.to_numpy()

  def snapshot(self) -> Mapping[str, Any]:
    """What a checkpoint holds of them: trees by name, here all states as `clients`."""
    return {'clients': self.to_numpy()}


class Runtime(abc.ABC):
  """Runs TFF computations of the form of a federated round.

  A round's computation is `next(server_state@SERVER, client_state@CLIENTS,
  data@CLIENTS) -> (server_state@SERVER, client_state@CLIENTS, metrics@SERVER)`.

  A runtime is a context manager: inside `with`, it is also TFF's current
  execution context, so that `process.initialize()` and the like run on it.
  """

  name: str
  context: Any  # The TFF execution context of this runtime; has `statistics`.

  @abc.abstractmethod
  def place(self, tree: Any, *, allow_nan: bool = False, work: Any = None) -> ClientData:
    """Uploads the clients' data, once.

    Args:
      tree: nested mappings with arrays [K, ...]. They may be used as they are, without
        a copy: do not change them afterwards.
      allow_nan: whether a client may have NaN or infinite values.
      work: [K], how much work each client is beside the others, such as its number of examples.
        No number depends on it but by the order of sums: clients of like work are vectorised
        together, and devices get equal shares of it.

    Raises:
      ValueError: leading axes differ, a client has NaN or infinite values and may not, or `work`
        is not one number of at least 0 for each client.
    """

  @abc.abstractmethod
  def place_states(self, tree: Any, *, allow_nan: bool = False) -> ClientStates:
    """Makes the states of a population.

    Args:
      tree: nested mappings of [K, ...] arrays, or None.
      allow_nan: whether a client's state may have NaN or infinite values.

    Raises:
      ValueError: leading axes differ, or a state has NaN or infinite values and may not.
    """

  def fill_states(self, tree: Any, fill: Callable[[int, Any], Any]) -> ClientStates:
    """Makes the states of a population, which are found where they are to be.

    Args:
      tree: as for `place_states`.
      fill: gives what is in the place of some clients' part of it: (first client, their part) ->
        a part of the same form, whose values need not be finite. It is called in the process that
        has the clients, and must be picklable.

    Raises:
      ValueError: as `place_states`, or from `fill`.
    """
    return self.place_states(fill(0, tree), allow_nan=True)

  @abc.abstractmethod
  def round(
    self,
    next_computation: Any,
    server_state: Any,
    client_states: ClientStates | None,
    data: ClientData,
    cohort: Any,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> tuple[Any, Any]:
    """Runs one round.

    Args:
      next_computation: the process's `next`.
      server_state: as the computation's type says; a sweep's leaves have a leading
        axis [S, ...].
      client_states: the population's states, updated in place for the cohort.
      data: the clients' data.
      cohort: int array of the rows of `client_states` that take part, without
        repetition, possibly empty. In a sweep a list of S such arrays, whose rows
        are s * K + k.
      data_rows: rows of `data`, beside `cohort`. Default: the cohort's rows; in a
        sweep their remainder k.
      settings: S, the number of settings of a sweep; None for a single run.

    Returns:
      The server state and the metrics; leaves may stay on the device. A sweep's
      have a leading axis [S, ...].

    Raises:
      UnsupportedComputationError: this runtime cannot run the computation.
      ValueError: arguments do not fit the computation's type.
      MemoryError: the device's memory does not suffice.
    """

  @abc.abstractmethod
  def evaluate(
    self,
    computation: Any,
    server_state: Any,
    client_states: ClientStates | None,
    data: ClientData,
    rows: Any = None,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> Any:
    """Runs a computation of the same parameters whose result is at CLIENTS.

    Args:
      computation: (server_state@SERVER, client_state@CLIENTS, data@CLIENTS) ->
        values@CLIENTS.
      server_state: as in `round`.
      client_states: as in `round`; not changed.
      data: the clients' data.
      rows: the clients k to evaluate, the same for every setting; all by default.
      data_rows: rows of `data`, beside `rows`; in a sweep a list of S such arrays.
        Default: `rows`.
      settings: S for a sweep.

    Returns:
      Nested OrderedDict with NumPy leaves [len(rows), ...]; [S, len(rows), ...] for a sweep.
    """

  @abc.abstractmethod
  def to_numpy(self, tree: Any) -> Any:
    """The same tree with NumPy leaves."""

  @property
  def compilations(self) -> int:
    """How many times a computation was compiled so far."""
    return self.context.statistics.compilations

  @property
  def compiled_programs(self) -> int:
    """How many programs these compilations made; see `Statistics`."""
    return self.context.statistics.programs

  @property
  def compile_seconds(self) -> float:
    """Seconds spent on compiling so far; see `Statistics`."""
    return self.context.statistics.seconds

  @property
  @abc.abstractmethod
  def description(self) -> str:
    """One line: what runs where."""

  def recover(self) -> Recovery:
    """Replaces what is lost after a `MemberLostError`.

    Raises:
      MemberLostError: more was lost meanwhile; the next call goes on from there.
    """
    raise NotImplementedError(f'{self.name} has nothing that can be lost alone.')

  def close(self) -> None:  # noqa: B027 - there may be nothing to end
    """Ends what the runtime has started. It may be called twice."""

  def __enter__(self) -> 'Runtime':
    # pylint: disable-next=g-import-not-at-top
    import tensorflow_federated as tff

    self._installed = tff.framework.get_context_stack().install(self.context)
    self._installed.__enter__()
    return self

  def __exit__(self, *exception: Any) -> None:
    self._installed.__exit__(*exception)
    self.close()


def checked_work(work: Any, num_clients: int) -> np.ndarray | None:
  """The clients' work as `place` takes it.

  Raises:
    ValueError: not one number of at least 0 for each client.
  """
  if work is None:
    return None
  work = np.asarray(work)
  if work.shape != (num_clients,) or work.dtype.kind not in 'iuf' or not np.all(work >= 0):
    raise ValueError(
      f'work must be one number of at least 0 for each of the {num_clients} clients; '
      f'got {work.dtype} of shape {work.shape}.'
    )
  return work


def by_work(work: np.ndarray | None, rows: np.ndarray, shares: int = 1) -> np.ndarray:
  """The order in which clients are worked on: a permutation of the positions in `rows`.

  A block of clients takes as long as its largest, so that neighbours are to be alike; and
  the parts that `np.array_split` makes of the order are to be equal in work.

  Args:
    work: [K], of all clients, or None if nothing is known of it: they stay as they are.
    rows: int [n], the clients.
    shares: into how many parts they are split afterwards.
  """
  if work is None:
    return np.arange(len(rows))
  descending = np.argsort(-work[rows].astype(np.float64), kind='stable')
  # Dealt like cards, there and back, so that nobody always gets the larger one.
  turn, place = np.divmod(np.arange(len(rows)), shares)
  share = np.where(turn % 2 == 0, place, shares - 1 - place)
  parts = [descending[share == s] for s in range(shares)]
  return np.concatenate(sorted(parts, key=len, reverse=True))


def as_rows(rows: Any, limit: int | None, what: str) -> np.ndarray:
  """An int32 array of rows, checked.

  Raises:
    ValueError: not one-dimensional integers, repeated, or outside [0, limit).
  """
  array = np.asarray(rows)
  if array.size == 0:
    return np.zeros([0], np.int32)
  if array.ndim != 1 or array.dtype.kind not in 'iu':
    raise ValueError(f'{what} must be a one-dimensional array of integers, not {rows!r}.')
  if array.min() < 0 or (limit is not None and array.max() >= limit):
    raise ValueError(f'{what} has rows outside [0, {limit}): {array.min()} to {array.max()}.')
  return array.astype(np.int32)


def evaluation_rows(
  rows: Any,
  data_rows: Any,
  num_clients: int,
  num_states: int | None,
  settings: int | None,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """(state rows, data rows) of every setting; a single evaluation is one setting.

  Raises:
    ValueError: rows out of range, repeated, or of different lengths.
  """
  population = num_clients if num_states is None else num_states // (settings or 1)
  if rows is None:
    rows = np.arange(num_clients if data_rows is None else population)
  clients = as_rows(rows, population, 'rows')
  cohorts = [clients + s * population for s in range(settings or 1)]
  if data_rows is None:
    data_rows = clients if settings is None else [clients] * settings
  cohort = cohorts[0] if settings is None else cohorts
  return cohort_rows(cohort, data_rows, num_clients, num_states, settings)


def _ascends(rows: np.ndarray) -> bool:
  """Whether each row is larger than the one before, as those of a drawn cohort are."""
  return bool((rows[1:] > rows[:-1]).all())


def cohort_rows(
  cohort: Any,
  data_rows: Any,
  num_clients: int,
  num_states: int | None,
  settings: int | None,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """(state rows, data rows) of every setting; a single run is one setting.

  Raises:
    ValueError: rows out of range, repeated, or of different lengths.
  """
  cohorts: Sequence[Any] = [cohort] if settings is None else list(cohort)
  if settings is not None and len(cohorts) != settings:
    raise ValueError(f'cohort has {len(cohorts)} arrays for settings={settings}.')
  given = (
    [None] * len(cohorts)
    if data_rows is None
    else ([data_rows] if settings is None else list(data_rows))
  )
  if len(given) != len(cohorts):
    raise ValueError(f'data_rows has {len(given)} arrays for {len(cohorts)} cohorts.')
  result = []
  checked: dict[int, np.ndarray] = {}  # settings may share their data's rows
  for states, rows in zip(cohorts, given, strict=True):
    states = as_rows(states, num_states, 'cohort')
    if not _ascends(states) and len(np.unique(states)) != len(states):
      raise ValueError('cohort has a client twice.')
    if rows is None:
      rows = as_rows(states % num_clients if settings else states, num_clients, 'data_rows')
    else:  # `given` keeps them: their ids stand for them
      if id(rows) not in checked:
        checked[id(rows)] = as_rows(rows, num_clients, 'data_rows')
      rows = checked[id(rows)]
    if len(rows) != len(states):
      raise ValueError(f'data_rows has {len(rows)} rows for a cohort of {len(states)}.')
    result.append((states, rows))
  return result
