"""Clients' states on disk, in a file of each member's, as the driver knows them."""

import collections
import contextlib
import dataclasses
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from runtime import interface, stored_states
from runtime import records as records_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storing:
  """Where a member keeps the states of its clients, and from where it goes on.

  Attributes:
    folder: of the files.
    seen: a file in it, by which a member knows that it sees the same folder.
    fixed: names on the first level of the states that no round changes.
    snapshot: the records of all clients; None to begin anew.
    slots: see `Records.restore`.
  """

  folder: str
  seen: str
  fixed: frozenset[str]
  snapshot: records_lib.Snapshot | None = None
  slots: np.ndarray | None = None

  def stored(self, tree: Any, first: int, who: str) -> stored_states.StoredStates:
    """A member's states.

    Args:
      tree: the initial states of its clients.
      first: the first of them.
      who: the member, for messages.

    Raises:
      ValueError: it does not see the folder, or a file lacks records.
    """
    folder = pathlib.Path(self.folder)
    if not (folder / self.seen).exists():
      raise ValueError(
        f"cohort worker ({who}) does not see {folder}, where the clients' states are to be: "
        '--client_states=disk needs an --output_dir that every worker sees.'
      )
    return stored_states.stored(
      tree, folder, fixed=self.fixed, first=first, snapshot=self.snapshot, slots=self.slots
    )


class OnDisk:
  """Who of the clients has which slot in which member's file, as of the last whole round.

  So a member that was lost can be replaced without going further back than that.
  """

  def __init__(self, folder: pathlib.Path, fixed: frozenset[str], keeps: Any):
    """Makes the folder.

    Args:
      folder: of the files.
      fixed: names on the first level of the states that no round changes.
      keeps: what has to live as long.
    """
    self.folder = folder
    self.fixed = fixed
    self.keeps = keeps
    self._machines: dict[int, str] = {}  # by member
    self._kept: dict[int, Any] = {}  # by member, the last snapshot
    self._slots: dict[int, np.ndarray] = {}  # of its clients, by member
    self._first: dict[int, int] = {}
    folder.mkdir(parents=True, exist_ok=True)

  @contextlib.contextmanager
  def storing(self, snapshot: records_lib.Snapshot | None) -> Iterator[Storing]:
    """What a member begins with, while it does."""
    seen = self.folder / f'.{secrets.token_hex(8)}'
    seen.touch()
    try:
      yield Storing(folder=str(self.folder), seen=seen.name, fixed=self.fixed, snapshot=snapshot)
    finally:
      seen.unlink(missing_ok=True)

  @contextlib.contextmanager
  def again(self, index: int) -> Iterator[Storing]:
    """The same for whoever goes on in the place of a member that was lost."""
    with self.storing(self._kept[index]) as storing:
      yield dataclasses.replace(storing, slots=self._slots[index])

  def is_there(self, index: int, machine: str) -> bool:
    """Whether a machine has what a member has written since the last snapshot.

    Another one may lack what was on its way to the disk.
    """
    return self._machines.get(index) == machine

  def begun(self, index: int, machine: str, rows: slice, snapshot: records_lib.Snapshot) -> None:
    """A member has its clients' states, as in a snapshot."""
    ((_, part),) = snapshot.items()
    self._machines[index], self._kept[index] = machine, snapshot
    self._first[index] = rows.start
    self._slots[index] = np.zeros(rows.stop - rows.start, np.int64)
    self._slots[index][part['clients'] - rows.start] = part['slots']

  def written(self, index: int, rows: np.ndarray, slots: np.ndarray) -> None:
    """In a round that is over, clients of a member got other slots."""
    self._slots[index][rows] = slots

  def kept(self, snapshots: Mapping[int, records_lib.Snapshot]) -> collections.OrderedDict:
    """All members' snapshots together, which are kept from now on."""
    self._kept |= snapshots
    return collections.OrderedDict(
      item for index in sorted(snapshots) for item in snapshots[index].items()
    )

  def now(self) -> collections.OrderedDict:
    """Where the records are now, as in a snapshot; it keeps nothing."""
    result = collections.OrderedDict()
    for index, slots in self._slots.items():
      ((name, part),) = self._kept[index].items()
      clients = np.flatnonzero(slots)
      result[name] = {**part, 'clients': clients + self._first[index], 'slots': slots[clients]}
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostStates(interface.ClientStates):
  """The states of all clients in the members' files.

  Attributes:
    initial: the initial states [K, ...].
    on_disk: who has which slot.
    take_snapshots: has each member make a snapshot.
  """

  initial: Any
  on_disk: OnDisk
  take_snapshots: Callable[[], Mapping[int, records_lib.Snapshot]]

  def kept(self) -> stored_states.StoredStates:
    """The states as they are now, read from the files until a further round changes them."""
    assert self.num_clients is not None
    records = records_lib.RecordFiles(self.on_disk.folder, self.on_disk.now(), self.num_clients)
    return stored_states.StoredStates(
      tree=self.initial, num_clients=self.num_clients, fetch=self.fetch, fixed=self.on_disk.fixed,
      records=records, keeps=self.on_disk.keeps,
    )  # fmt: skip

  def to_numpy(self, rows: Any = None) -> Any:
    """See `StoredStates.to_numpy`."""
    return self.kept().to_numpy(rows)

  def snapshot(self) -> collections.OrderedDict:
    """What a checkpoint holds of them; see `Records.snapshot`."""
    fixed = [name for name in self.initial if name in self.on_disk.fixed]
    return collections.OrderedDict(
      clients=collections.OrderedDict((name, self.initial[name]) for name in fixed),
      client_records=self.on_disk.kept(self.take_snapshots()),
    )
