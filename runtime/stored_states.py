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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runtime import interface, temporary, trees
from runtime import records as records_lib
from runtime.xla import devices as devices_lib

BYTES_AT_ONCE = 2**26  # of states that are evaluated together


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
  records: records_lib.Records | records_lib.RecordFiles
  keeps: Any = None

  @property
  def written(self) -> records_lib.Records:
    """The records, where they are not only read."""
    assert isinstance(self.records, records_lib.Records)
    return self.records

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

  def kept(self) -> 'StoredStates':
    """These: they stay on disk."""
    return self

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
    self.written.write(rows, self._bytes(_in_order(tree, self.tree)), places)

  def snapshot(self) -> collections.OrderedDict:
    """What a checkpoint holds of them; see `Records.snapshot`."""
    return collections.OrderedDict(
      clients=self.unchanging(), client_records=self.written.snapshot()
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


def stored(
  tree: Any,
  folder: pathlib.Path,
  *,
  fixed: frozenset[str],
  first: int = 0,
  snapshot: records_lib.Snapshot | None = None,
  slots: np.ndarray | None = None,
  keeps: Any = None,
) -> StoredStates:
  """The states of some consecutive clients, with a file of their own for those that change.

  Args:
    tree: their initial states, nested mappings of [K, ...] arrays.
    folder: of the file.
    fixed: names on the first level of the states that no round changes.
    first: the first of the clients in the population.
    snapshot: the records of all clients, to go on from there.
    slots: see `Records.restore`.
    keeps: what has to live as long.

  Raises:
    ValueError: a file lacks records of the snapshot.
  """
  tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=True)
  count = len(arrays[0])
  sizes = [leaf[:1].nbytes for leaf in _changing(tree, fixed)]
  records = records_lib.Records(folder, sizes, count, first=first)
  if snapshot is not None:
    records.restore(snapshot, slots)
  return StoredStates(
    tree=tree, num_clients=count, fetch=trees.to_numpy, fixed=fixed, records=records, keeps=keeps
  )


def folder_or_temporary(folder: pathlib.Path | None) -> tuple[pathlib.Path, Any]:
  """A folder, or a new one that goes with what is returned beside it."""
  if folder is not None:
    return folder, None
  keeps = temporary.Folder('client_states-')
  return pathlib.Path(keeps.name), keeps


def changes(tree: Any, fixed: frozenset[str]) -> bool:
  """Whether a state has leaves that a round may change."""
  return bool(_changing(tree, fixed))


class StoringRuntime(interface.Runtime):
  """Another runtime of one process with the clients' states on disk.

  It costs what the cohort costs: its states are read, and written after the round. Long
  populations are evaluated part by part.
  """

  def __init__(
    self,
    machine: interface.Runtime,
    folder: str | os.PathLike | None = None,
    *,
    fixed: frozenset[str] = frozenset(),
  ):
    """Makes no file yet.

    Args:
      machine: where the rounds run; it is the caller's to end.
      folder: of the file of the states; by default a temporary one, which goes with them.
      fixed: names on the first level of the states that no round changes: kept in memory, on no
        disk.
    """
    self._machine = machine
    self._folder = None if folder is None else pathlib.Path(folder)
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
    snapshot: records_lib.Snapshot | None = None,
  ) -> interface.ClientStates:
    """Makes the states of a population.

    Args:
      tree: their initial states, nested mappings of [K, ...] arrays, which are kept as they are: a
        view of one state for all (`np.broadcast_to`) takes no memory.
      allow_nan: whether a state may have NaN or infinite values.
      snapshot: the records of `StoredStates.snapshot`, to go on from there.

    Raises:
      ValueError: leading axes differ, or a file lacks records of the snapshot.
    """
    tree = {} if tree is None else tree
    trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    if not changes(tree, self._fixed):
      return self._machine.place_states(tree or None, allow_nan=allow_nan)
    folder, keeps = folder_or_temporary(self._folder)
    return stored(tree, folder, fixed=self._fixed, snapshot=snapshot, keeps=keeps)

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

  def close(self) -> None:
    self._machine.close()

  def _placed(self, states: StoredStates, rows, places, size: int) -> interface.ClientStates:
    # What a round made of a state is not judged here, as it is not where states stay in memory.
    return self._machine.place_states(states.read(rows, places, max(1, size)), allow_nan=True)

  def _parts(self, states: StoredStates, count: int, settings: int) -> Iterator[tuple[slice, int]]:
    """Parts of the clients to be evaluated, and the room for each, of every setting."""
    each = sum(leaf[:1].nbytes for leaf in trees.leaves_of(states.tree)) * settings
    size = max(1, min(count, BYTES_AT_ONCE // max(1, each)))
    for start in range(0, max(1, count), size):
      yield slice(start, start + size), size


def _in_order(tree: Any, form: Any) -> Any:
  """A tree with its names in the order of a form's."""
  if not isinstance(form, Mapping):
    return tree
  return collections.OrderedDict((name, _in_order(tree[name], form[name])) for name in form)


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
