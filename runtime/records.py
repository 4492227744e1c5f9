"""Clients' records in files: who has which slot, and how a file goes back to what it was."""

import collections
import contextlib
import fcntl
import os
import pathlib
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

_BYTES_AT_ONCE = 2**26  # of records that are copied together
_SECONDS_TO_END = 60  # of a process that still has a file

Snapshot = Mapping[str, Mapping[str, np.ndarray]]  # by the file's name


class Records:
  """Equal records of consecutive clients in the slots of a file, and who has which.

  A write goes to slots that nothing else points to. So nothing has to be rolled back: a checkpoint
  is the list of slots (`snapshot`), and going back is to take up an earlier list. The last two
  lists that were given stay valid, as the last two checkpoints do; and until the next write, what
  the last one replaced (`undo`).
  """

  def __init__(
    self, folder: pathlib.Path, sizes: Sequence[int], num_clients: int, *, first: int = 0
  ):
    """Makes no file before something is written.

    Args:
      folder: of the file, which has a name that no other has.
      sizes: the bytes of each part of a record.
      num_clients: how many may have one.
      first: the first of them in the population, for a file with some of its clients.
    """
    self.path = folder / f'{first:010d}-{first + num_clients:010d}.{secrets.token_hex(4)}'
    self._first = first
    self._sizes = list(sizes)
    self._slots = np.zeros(num_clients, np.int64)  # of each client, from 1; 0 for none
    self._end = 0  # slots of the file
    self._free: list[int] = []
    self._unpinned: set[int] = set()  # slots that were taken since the last snapshot
    self._retired: list[int] = []  # slots that the last snapshot has, and no client any more
    self._retired_before: list[int] = []  # the same of the snapshot before
    self._replaced: tuple[np.ndarray, np.ndarray] | None = None  # clients of the last write, slots
    self._file: int | None = None

  def __del__(self):
    if self._file is not None:
      os.close(self._file)

  @property
  def size(self) -> int:
    """The bytes of a record."""
    return sum(self._sizes)

  def has(self, clients: np.ndarray) -> np.ndarray:
    """bool [n]: which of some clients (from 0) have a record."""
    return self._slots[clients] > 0

  def slots(self, clients: np.ndarray) -> np.ndarray:
    """int64 [n]: where they have it; 0 for none."""
    return self._slots[clients]

  def read(self, clients: np.ndarray, parts: Sequence[np.ndarray], places: np.ndarray) -> None:
    """Copies the records of clients who have one.

    Args:
      clients: int [n].
      parts: where to: of each part of a record uint8 [P, bytes].
      places: int [n], of each client in the parts.
    """
    _read(self.path, self._opened(), self.size, self._slots[clients], parts, places)

  def write(self, clients: np.ndarray, parts: Sequence[np.ndarray], places: np.ndarray) -> None:
    """Gives clients new records; arguments as for `read`.

    Raises:
      OSError: the disk is full, or cannot be written.
    """
    self._settle()
    slots = [self._new_slot() for _ in clients]
    try:
      for slot, place in zip(slots, places.tolist(), strict=True):
        where = (slot - 1) * self.size
        if os.pwritev(self._opened(), [part[place] for part in parts], where) != self.size:
          raise OSError('the disk is full')
    except OSError as error:
      raise OSError(f'cannot write {self.path}: {error.strerror or error}') from error
    self._replaced = (np.array(clients), self._slots[clients])
    self._slots[clients] = slots

  def undo(self) -> None:
    """Takes back the last write, unless a snapshot has been made of it."""
    if self._replaced is not None:
      clients, old = self._replaced
      new = self._slots[clients].tolist()
      self._unpinned.difference_update(new)
      self._free += new
      self._slots[clients] = old
      self._replaced = None

  def _settle(self) -> None:
    """The last write stands: nothing but a snapshot points to what it replaced."""
    if self._replaced is None:
      return
    for slot in self._replaced[1].tolist():
      if slot in self._unpinned:
        self._unpinned.remove(slot)
        self._free.append(slot)
      elif slot:
        self._retired.append(slot)
    self._replaced = None

  def _new_slot(self) -> int:
    if self._free:
      slot = self._free.pop()
    else:
      self._end += 1
      slot = self._end
    self._unpinned.add(slot)
    return slot

  def snapshot(self) -> collections.OrderedDict:
    """What `restore` needs, by the file's name: int arrays `clients` [n] of the population, their
    `slots` [n], from 1, `retired` slots, and `record_bytes`, the size of a slot.

    It counts as kept from now on, and what was given before the last one as dropped: keep it before
    the next record is written. Where none was written since the last one, it is that one again, and
    what was given before that one stays.
    """
    self._settle()
    if self._unpinned:
      os.fsync(self._opened())
      self._free += self._retired_before
      self._retired_before, self._retired, self._unpinned = self._retired, [], set()
    clients = np.flatnonzero(self._slots)
    own = collections.OrderedDict(
      clients=clients + self._first,
      slots=self._slots[clients],
      retired=np.array(self._retired_before, np.int64),
      record_bytes=np.int64(self.size),
    )
    return collections.OrderedDict([(self.path.name, own)])

  def restore(self, snapshot: Snapshot, slots: np.ndarray | None = None) -> None:
    """Goes back to a snapshot; later ones are void.

    Its file is taken over if it is that of the same clients; otherwise records are copied from its
    files, which stay as they are.

    Args:
      snapshot: of all clients of the population, by the names of files in the same folder.
      slots: int64 [K], where the clients have had their records since, in its file.

    Raises:
      ValueError: a file lacks some of its records, or they have another size.
    """
    for name, part in snapshot.items():
      if part['record_bytes'] != self.size:
        raise ValueError(
          f'{self.path.with_name(name)} has states of {part["record_bytes"]} bytes; these have '
          f'{self.size}.'
        )
    same = [name for name in snapshot if name.startswith(self.path.name.partition('.')[0] + '.')]
    if same:
      self._take_over(same[0], snapshot[same[0]], slots)
    else:
      self._copy(snapshot)

  def _take_over(self, name: str, part: Mapping[str, np.ndarray], slots: np.ndarray | None) -> None:
    self.path = self.path.with_name(name)
    self._slots[:] = 0
    self._slots[part['clients'] - self._first] = part['slots']
    pinned = np.concatenate([part['slots'], part['retired']])
    self._retired_before = [int(slot) for slot in part['retired']]
    self._retired, self._unpinned, self._replaced = [], set(), None
    if slots is not None:
      self._retired = np.setdiff1d(self._slots, [0, *slots]).tolist()
      self._unpinned = set(np.setdiff1d(slots, [0, *self._slots]).tolist())
      self._slots = slots.astype(np.int64)
    used = np.concatenate([pinned, self._slots]).astype(np.int64)
    self._end = _num_slots(self.path, self.size, used)
    is_free = np.ones(self._end + 1, bool)
    is_free[0] = False
    is_free[used] = False
    self._free = np.flatnonzero(is_free)[::-1].tolist()
    if self._file is None and self._end:
      self._file = _alone(self.path, os.open(self.path, os.O_RDWR))

  def _copy(self, snapshot: Snapshot) -> None:
    view = RecordFiles(self.path.parent, snapshot, self._first + len(self._slots))
    theirs = np.flatnonzero(view.has(np.arange(len(self._slots)) + self._first))
    each = max(1, _BYTES_AT_ONCE // self.size)
    for start in range(0, len(theirs), each):
      clients = theirs[start : start + each]
      places = np.arange(len(clients))
      parts = [np.empty([len(clients), size], np.uint8) for size in self._sizes]
      view.read(clients + self._first, parts, places)
      self.write(clients, parts, places)

  def _opened(self) -> int:
    if self._file is None:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
      self._file = _alone(self.path, os.open(self.path, flags, 0o600))
    return self._file


class RecordFiles:
  """The records of a snapshot, to be read: in one file or, of cohort workers, in several."""

  def __init__(self, folder: pathlib.Path, snapshot: Snapshot, num_clients: int):
    """Looks whether the files are long enough.

    Args:
      folder: of the files.
      snapshot: from `Records.snapshot`, of one or several.
      num_clients: K of the population; of those beyond it nothing is kept in mind.

    Raises:
      ValueError: a file lacks records.
    """
    self._slots = np.zeros(num_clients, np.int64)
    self._which = np.zeros(num_clients, np.int32)
    self._files: list[tuple[pathlib.Path, int]] = []
    for index, (name, part) in enumerate(snapshot.items()):
      size = int(part['record_bytes'])
      path = folder / name
      _num_slots(path, size, part['slots'])
      self._files.append((path, size))
      known = part['clients'] < num_clients
      self._slots[part['clients'][known]] = part['slots'][known]
      self._which[part['clients'][known]] = index

  def has(self, clients: np.ndarray) -> np.ndarray:
    """See `Records.has`."""
    return self._slots[clients] > 0

  def read(self, clients: np.ndarray, parts: Sequence[np.ndarray], places: np.ndarray) -> None:
    """See `Records.read`."""
    for index, (path, size) in enumerate(self._files):
      own = self._which[clients] == index
      if own.any():
        file = os.open(path, os.O_RDONLY)
        try:
          _read(path, file, size, self._slots[clients[own]], parts, places[own])
        finally:
          os.close(file)


def remove_others(folder: pathlib.Path, keep: Collection[str]) -> None:
  """Removes the files of a folder that snapshots do not name."""
  for path in folder.glob('[0-9]*'):
    if path.name not in keep:
      path.unlink(missing_ok=True)


def _alone(path: pathlib.Path, file: int) -> int:
  """Locks an open file for this process; another one, such as of a run just killed, may be ending.

  Raises:
    ValueError: another process goes on writing it.
  """
  for _ in range(_SECONDS_TO_END):
    with contextlib.suppress(BlockingIOError, PermissionError):
      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return file
    time.sleep(1.0)
  os.close(file)
  raise ValueError(f"{path} has clients' states of a run that still goes on in another process.")


def _read(path: Any, file: int, size: int, slots: np.ndarray, parts, places: np.ndarray) -> None:
  for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
    if os.preadv(file, [part[place] for part in parts], (slot - 1) * size) != size:
      raise OSError(f'{path} has been cut short: it lacks the record {slot}.')


def _num_slots(path: pathlib.Path, size: int, used: np.ndarray) -> int:
  """How many records a file has.

  Raises:
    ValueError: it lacks some of those that are used.
  """
  found = (path.stat().st_size if path.exists() else 0) // size
  if used.max(initial=0) > found:
    raise ValueError(
      f"{path} lacks clients' states: it has {found} records, and the checkpoint points to the "
      f'record {used.max()}.'
    )
  return found
