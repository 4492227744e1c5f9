"""More clients' states than memory holds: a runtime around another, whose states are on disk.

Only the states of the clients that take part are read, brought to the runtime inside, and written
back after the round; a client that has never taken part has its initial state and no place on the
disk. A record (all of a client's changing leaves) is never written over while a checkpoint points
to it: whatever happens between two checkpoints, each has what it had when it was made.
"""

import collections
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runtime import interface, trees
from runtime.xla import devices as devices_lib

_BYTES_AT_ONCE = 2**26  # of states that are evaluated together


class Records:
  """Equal records in the slots of a file, and who has which.

  A round writes a client's record to a slot that no checkpoint points to. So nothing has to be
  rolled back: a checkpoint is the list of slots (`snapshot`), and going back is to take up an
  earlier list. The last two lists that were given stay valid, as the last two checkpoints do.
  """

  def __init__(self, path: pathlib.Path, sizes: Sequence[int], num_clients: int):
    """Makes no file before something is written.

    Args:
      path: of the file; one that is there is taken over by `restore`, else written anew.
      sizes: the bytes of each part of a record.
      num_clients: how many may have one.
    """
    self._path = path
    self._size = sum(sizes)
    self._slots = np.zeros(num_clients, np.int64)  # of each client, from 1; 0 for none
    self._end = 0  # slots of the file
    self._free: list[int] = []
    self._unpinned: set[int] = set()  # slots that were taken since the last snapshot
    self._retired: list[int] = []  # slots that the last snapshot has, and no client any more
    self._retired_before: list[int] = []  # the same of the snapshot before
    self._file: int | None = None

  def __del__(self):
    if self._file is not None:
      os.close(self._file)

  def has(self, clients: np.ndarray) -> np.ndarray:
    """bool [n]: which of some clients have a record."""
    return self._slots[clients] > 0

  def read(self, clients: np.ndarray, parts: Sequence[np.ndarray], places: np.ndarray) -> None:
    """Copies the records of clients who have one.

    Args:
      clients: int [n].
      parts: where to: of each part of a record uint8 [P, bytes].
      places: int [n], of each client in the parts.
    """
    for slot, place in zip(self._slots[clients].tolist(), places.tolist(), strict=True):
      found = os.preadv(self._opened(), [part[place] for part in parts], (slot - 1) * self._size)
      if found != self._size:
        raise OSError(f'{self._path} has been cut short: it lacks the record {slot}.')

  def write(self, clients: np.ndarray, parts: Sequence[np.ndarray], places: np.ndarray) -> None:
    """Gives clients new records; arguments as for `read`.

    Raises:
      OSError: the disk is full, or cannot be written.
    """
    slots = [self._slot(old) for old in self._slots[clients].tolist()]
    try:
      for slot, place in zip(slots, places.tolist(), strict=True):
        where = (slot - 1) * self._size
        if os.pwritev(self._opened(), [part[place] for part in parts], where) != self._size:
          raise OSError('the disk is full')
    except OSError as error:
      raise OSError(f'cannot write {self._path}: {error.strerror or error}') from error
    self._slots[clients] = slots

  def _slot(self, old: int) -> int:
    """The slot to be written in the place of an old one (0: of none)."""
    if old in self._unpinned:
      return old
    if old:
      self._retired.append(old)
    if self._free:
      slot = self._free.pop()
    else:
      self._end += 1
      slot = self._end
    self._unpinned.add(slot)
    return slot

  def snapshot(self) -> collections.OrderedDict:
    """What `restore` needs: int arrays `clients` [n], their `slots` [n], from 1, `retired` slots,
    and `record_bytes`, the size of a slot.

    It counts as kept from now on, and what was given before the last one as dropped: keep it before
    the next record is written. Where none was written since the last one, it is that one again, and
    what was given before that one stays.
    """
    if self._unpinned:
      os.fsync(self._opened())
      self._free += self._retired_before
      self._retired_before, self._retired, self._unpinned = self._retired, [], set()
    clients = np.flatnonzero(self._slots)
    return collections.OrderedDict(
      clients=clients,
      slots=self._slots[clients],
      retired=np.array(self._retired_before, np.int64),
      record_bytes=np.int64(self._size),
    )

  def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
    """Goes back to a snapshot; later ones are void.

    Raises:
      ValueError: the file lacks some of its records, or they have another size.
    """
    if snapshot['record_bytes'] != self._size:
      raise ValueError(
        f'{self._path} has states of {snapshot["record_bytes"]} bytes; these have {self._size}.'
      )
    used = np.concatenate([snapshot['slots'], snapshot['retired']]).astype(np.int64)
    size = self._path.stat().st_size if self._path.exists() else 0
    self._end = size // self._size
    if used.max(initial=0) > self._end:
      raise ValueError(
        f"{self._path} lacks clients' states: it has {self._end} records, and the checkpoint "
        f'points to the record {used.max()}.'
      )
    is_free = np.ones(self._end + 1, bool)
    is_free[0] = False
    is_free[used] = False
    self._free = np.flatnonzero(is_free)[::-1].tolist()
    self._slots[:] = 0
    self._slots[snapshot['clients']] = snapshot['slots']
    self._retired_before = [int(slot) for slot in snapshot['retired']]
    self._retired, self._unpinned = [], set()
    if self._file is None and self._end:
      self._file = os.open(self._path, os.O_RDWR)

  def _opened(self) -> int:
    if self._file is None:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    return self._file


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredStates(interface.ClientStates):
  """The states of all clients, from `StoringRuntime.place_states`.

  Attributes:
    tree: their initial states; leaves that no round changes are as they are.
    fixed: names of the leaves, or of the mappings of leaves, that no round changes.
    records: the changed states.
    keeps: what has to live as long.
  """

  fixed: frozenset[str]
  records: Records
  keeps: Any = None

  def to_numpy(self, rows: Any = None) -> Any:
    """A copy of some clients' states; of all by default, which may not fit into memory.

    Args:
      rows: int [n].

    Returns:
      Nested OrderedDict with NumPy leaves [n, ...].
    """
    assert self.num_clients is not None
    chosen = interface.as_rows(
      np.arange(self.num_clients) if rows is None else rows, self.num_clients, 'rows'
    )
    return self.read(chosen, np.arange(len(chosen)), len(chosen))

  def read(self, rows: np.ndarray, places: np.ndarray, size: int) -> Any:
    """States [size, ...] with those of clients `rows` [n] at `places` [n]; zero elsewhere."""

    def place(leaf):
      array = np.zeros([size, *leaf.shape[1:]], leaf.dtype)
      array[places] = leaf[rows]
      return array

    result = trees.map_leaves(place, self.tree)
    known = self.records.has(rows)
    if known.any():
      self.records.read(rows[known], self._bytes(result), places[known])
    return result

  def write(self, rows: np.ndarray, places: np.ndarray, tree: Any) -> None:
    """Takes the new states of clients `rows` [n], which are at `places` [n] of a tree."""
    self.records.write(rows, self._bytes(tree), places)

  def snapshot(self) -> collections.OrderedDict:
    """What a checkpoint holds of them; see `Records.snapshot`."""
    return collections.OrderedDict(
      clients=self.unchanging(), client_records=self.records.snapshot()
    )

  def unchanging(self) -> Any:
    """The leaves [K, ...] that no round changes, in nested OrderedDicts."""
    return collections.OrderedDict(
      (name, part) for name, part in self.tree.items() if name in self.fixed
    )

  def _bytes(self, tree: Any) -> list[np.ndarray]:
    return [
      np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)
      for leaf in _changing(tree, self.fixed)
    ]


class StoringRuntime(interface.Runtime):
  """Another runtime with the clients' states on disk.

  It costs what the cohort costs: its states are read, and written after the round. Long
  populations are evaluated part by part.
  """

  def __init__(
    self,
    machine: interface.Runtime,
    path: str | os.PathLike | None = None,
    *,
    fixed: frozenset[str] = frozenset(),
  ):
    """Makes no file yet.

    Args:
      machine: where the rounds run; it is the caller's to end.
      path: the file of the states; by default a temporary one, which goes with them.
      fixed: names on the first level of the states that no round changes: kept in memory, on no
        disk.
    """
    self._machine = machine
    self._path = None if path is None else pathlib.Path(path)
    self._fixed = fixed
    self._room = 0
    self.name = machine.name
    self.context = machine.context

  def place(self, tree: Any, *, allow_nan: bool = False, work: Any = None) -> interface.ClientData:
    return self._machine.place(tree, allow_nan=allow_nan, work=work)

  def place_states(
    self,
    tree: Any,
    *,
    allow_nan: bool = False,
    snapshot: Mapping[str, np.ndarray] | None = None,
  ) -> interface.ClientStates:
    """Makes the states of a population.

    Args:
      tree: their initial states, nested mappings of [K, ...] arrays, which are kept as they are: a
        view of one state for all (`np.broadcast_to`) takes no memory.
      allow_nan: whether a state may have NaN or infinite values.
      snapshot: the records of `StoredStates.snapshot`, to go on from there.

    Raises:
      ValueError: leading axes differ, or the file lacks records of the snapshot.
    """
    tree = {} if tree is None else tree
    tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    changing = _changing(tree, self._fixed)
    if not changing:
      return self._machine.place_states(tree or None, allow_nan=allow_nan)
    path, keeps = self._path, None
    if path is None:
      keeps = tempfile.TemporaryDirectory(prefix='client_states-')
      path = pathlib.Path(keeps.name) / 'states'
    records = Records(path, [leaf[:1].nbytes for leaf in changing], len(arrays[0]))
    if snapshot is not None:
      records.restore(snapshot)
    return StoredStates(
      tree=tree, num_clients=len(arrays[0]), fetch=self._machine.to_numpy, fixed=self._fixed,
      records=records, keeps=keeps,
    )  # fmt: skip

  def round(
    self,
    next_computation: Any,
    server_state: Any,
    client_states: interface.ClientStates | None,
    data: interface.ClientData,
    cohort: Any,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> tuple[Any, Any]:
    if not isinstance(client_states, StoredStates):
      return self._machine.round(
        next_computation, server_state, client_states, data, cohort, data_rows=data_rows,
        settings=settings,
      )  # fmt: skip
    states = client_states
    rows = interface.cohort_rows(cohort, data_rows, data.num_clients, states.num_clients, settings)
    of_states = np.concatenate([own for own, _ in rows])
    places = np.arange(len(of_states))
    if len(places) > self._room:  # cohorts of varying size share a form, and so a program
      self._room = devices_lib.padded_size(len(places), states.num_clients)
    placed = self._placed(states, of_states, places, self._room)
    parts = np.split(places, np.cumsum([len(own) for own, _ in rows])[:-1])
    own_rows = [own for _, own in rows]
    result = self._machine.round(
      next_computation, server_state, placed, data, parts[0] if settings is None else parts,
      data_rows=own_rows[0] if settings is None else own_rows, settings=settings,
    )  # fmt: skip
    if len(places):
      states.write(of_states, places, placed.to_numpy())
    return result

  def evaluate(
    self,
    computation: Any,
    server_state: Any,
    client_states: interface.ClientStates | None,
    data: interface.ClientData,
    rows: Any = None,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> Any:
    if not isinstance(client_states, StoredStates):
      return self._machine.evaluate(
        computation, server_state, client_states, data, rows, data_rows=data_rows,
        settings=settings,
      )  # fmt: skip
    states = client_states
    every = interface.evaluation_rows(
      rows, data_rows, data.num_clients, states.num_clients, settings
    )
    results = []
    for part, size in self._parts(states, len(every[0][0]), len(every)):
      of_states = np.concatenate([own[part] for own, _ in every])
      own_rows = [own[part] for _, own in every]
      count = len(own_rows[0])
      places = np.concatenate([s * size + np.arange(count) for s in range(len(every))])
      placed = self._placed(states, of_states, places, len(every) * size)
      results.append(
        self._machine.evaluate(
          computation, server_state, placed, data, np.arange(count),
          data_rows=own_rows[0] if settings is None else own_rows, settings=settings,
        )
      )  # fmt: skip
    axis = 0 if settings is None else 1
    return _joined(results, axis)

  def to_numpy(self, tree: Any) -> Any:
    return self._machine.to_numpy(tree)

  @property
  def description(self) -> str:
    return f"{self._machine.description}, clients' states on disk"

  def recover(self) -> str:
    return self._machine.recover()

  def close(self) -> None:
    self._machine.close()

  def _placed(self, states: StoredStates, rows, places, size: int) -> interface.ClientStates:
    # What a round made of a state is not judged here, as it is not where states stay in memory.
    return self._machine.place_states(states.read(rows, places, max(1, size)), allow_nan=True)

  def _parts(self, states: StoredStates, count: int, settings: int) -> Iterator[tuple[slice, int]]:
    """Parts of the clients to be evaluated, and the room for each, of every setting."""
    each = sum(leaf[:1].nbytes for leaf in trees.leaves_of(states.tree)) * settings
    size = max(1, min(count, _BYTES_AT_ONCE // max(1, each)))
    for start in range(0, max(1, count), size):
      yield slice(start, start + size), size


def _changing(tree: Any, fixed: frozenset[str]) -> list[Any]:
  """The leaves of the names that are not fixed, depth first."""
  parts = [part for name, part in tree.items() if name not in fixed]
  return [leaf for part in parts for leaf in trees.leaves_of(part)]


def _joined(parts: Sequence[Any], axis: int) -> Any:
  if isinstance(parts[0], Mapping):
    return collections.OrderedDict(
      (name, _joined([part[name] for part in parts], axis)) for name in parts[0]
    )
  return np.concatenate([np.asarray(part) for part in parts], axis=axis)
