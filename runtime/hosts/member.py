"""One host's clients: their data and states, and their part of every round."""

import dataclasses
import os
import pathlib
import socket
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from runtime import interface, stored_states, trees
from runtime.hosts import pieces
from runtime.hosts import rows as rows_lib
from runtime.hosts import states as states_lib
from runtime.xla import devices as devices_lib
from runtime.xla import runtime as xla_runtime
from runtime.xla import stages as stages_lib
from runtime.xla import state_variables

_BOOT = pathlib.Path('/proc/sys/kernel/random/boot_id')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """What the driver asks of a member: its clients' work of one stage.

  Attributes:
    round: counts the driver's calls; a new one begins with its first task.
    plan: which of the plans.
    stage: of the program; None if there is only a result to give.
    handles: of each of the parameter's parts at CLIENTS: what `place` was given, None for a
      part without leaves.
    rows: for each of these parts, the rows of the clients that take part.
    number: how often the plan was run before.
    piece: which of the members this is.
    is_last: whether to give the result as well: the new values at CLIENTS.
    updated: (parameter's part, result's part at CLIENTS): the states, which take the result's
      values; None if all of the result is to be sent.
  """

  round: int
  plan: int
  stage: int | None
  handles: tuple[int | None, ...]
  rows: tuple[np.ndarray, ...]
  number: int
  piece: int
  is_last: bool
  updated: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
  """What the clients' work of a stage reads of the server, the same for all members.

  Attributes:
    parts: the leaves of the parameter's parts at SERVER, by position.
    env: the server's values, by name.
  """

  parts: Mapping[int, Any]
  env: pieces.Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """What a member gives for a task.

  Attributes:
    totals: of the stage.
    results: with the last task, the leaves [n, ...] of the result's parts at CLIENTS; without
      those that went to the states.
    slots: where the records of the task's clients are now, if their states are on disk and
      have been written.
    seconds: the time that it took.
    compiled: programs compiled since the last answer.
  """

  totals: dict[str, Any]
  results: list[list[np.ndarray]]
  slots: np.ndarray | None
  seconds: float
  compiled: int


class Member:
  """Some of the clients, at one host.

  Its methods take and give NumPy arrays, so that it may live in another process.

  Long because all that a driver can ask of a host is here.
  """

  def __init__(self, *, device: str, clients_per_block: int | None):
    """Makes a member without clients.

    Args:
      device: `cpu`, `gpu`, or one of several such as `gpu:1`; or `auto`.
      clients_per_block: as for `runtime.create`.
    """
    if device == 'auto':
      device = 'gpu' if tf.config.list_physical_devices('GPU') else 'cpu'
    self._clients_per_block = clients_per_block
    if device == 'cpu':  # a core of a machine that others share
      devices_lib.leave_a_client_to_one_thread()
    self._machine = xla_runtime.XlaRuntime(devices=device, clients_per_block=clients_per_block)
    self._arriving: dict[int, list[Any]] = {}
    self._placed: dict[int, Any] = {}
    self._plans: dict[int, pieces.Pieces] = {}
    self._round: int | None = None
    self._written: dict[int, int] = {}  # by handle of states on disk, the round of the last write
    self._room: dict[int, int] = {}  # clients whose states are read at once
    self._turn: pieces.Turn | None = None
    self._compiled = 0  # programs that the driver knows of

  def name(self) -> str:
    """Where it runs: host and process."""
    return f'{socket.gethostname()}, process {os.getpid()}'

  def machine(self) -> str:
    """The machine, since it was started last."""
    return f'{socket.gethostname()} {_BOOT.read_text() if _BOOT.exists() else ""}'

  def learn(self, number: int, text: pieces.Text) -> None:
    """Takes a plan."""
    self._plans[number] = pieces.Pieces(
      pieces.Plan.read(text),
      device=self._machine.context.devices[0],
      clients_per_block=self._clients_per_block,
      statistics=self._machine.context.statistics,
    )

  def unlearn(self, number: int) -> None:
    """Forgets a plan."""
    self._plans.pop(number, None)

  def receive(self, handle: int, tree: Any) -> None:
    """Takes some rows of what `place` or `place_states` is to place, after those before."""
    self._arriving.setdefault(handle, []).append(tree)

  def place(self, handle: int) -> None:
    """Places the rows that came as read-only arrays [K, ...] of its clients."""
    self._placed[handle] = self._machine.place(self._arrived(handle), allow_nan=True)

  def load(self, handle: int, load: Any, first: int, last: int) -> None:
    """Places its clients' data as `load(first, last)` gives them: arrays, or round by round.

    Raises:
      ValueError: they cannot be had; it says where.
    """
    try:
      found = load(first, last)
    except (ValueError, OSError) as error:
      raise ValueError(
        f'cohort worker ({self.name()}) cannot load the data of its clients: {error}'
      ) from error
    if callable(found):
      self._placed[handle] = _ByCohort(found, self._machine)
    else:
      self._placed[handle] = self._machine.place(found, allow_nan=True)

  def load_ahead(self, handle: int, rows: np.ndarray) -> None:
    """Begins to load the data of a coming round's clients."""
    self._placed[handle].begin(rows)

  def place_states(self, handle: int, fill: Any, first: int) -> None:
    """Places the rows that came as its clients' states, or what `fill(first, rows)` gives."""
    tree = self._arrived(handle)
    # Of what came the driver has judged the values, as of data.
    filled = tree if fill is None else fill(first, tree)
    self._placed[handle] = self._machine.place_states(filled, allow_nan=True)

  def store_states(self, handle: int, first: int, storing: states_lib.Storing) -> Any:
    """Takes the rows that came as its clients' initial states, and keeps those on disk.

    Returns:
      A snapshot of the records; None if it goes on after one: what that keeps stays kept.
    """
    # If a recovery comes a second time: closing the file later would end the lock of the new one.
    self._placed.pop(handle, None)
    placed = storing.stored(self._arrived(handle), first, self.name())
    self._placed[handle] = placed
    return placed.written.snapshot() if storing.slots is None else None

  def snapshot(self, handle: int) -> Any:
    """A snapshot of states on disk; see `Records.snapshot`."""
    return self._placed[handle].written.snapshot()

  def undo(self, handle: int, last: int) -> None:
    """Takes back what a round after the `last` one has written of states on disk."""
    if self._written.get(handle, last) > last:
      self._placed[handle].written.undo()
      del self._written[handle]

  def visit(self, handle: int, function: Any, first: int) -> Any:
    """What `function(first, states)` gives of its clients' states."""
    return function(first, self.states(handle, slice(None)))

  def drop(self, handle: int) -> None:
    """Forgets arrays or states."""
    for known in (self._placed, self._written, self._room):
      known.pop(handle, None)
    self._arriving.pop(handle, None)

  def states(self, handle: int, rows: slice) -> Any:
    """A copy of some of its clients' states."""
    states: interface.ClientStates = self._placed[handle]
    return trees.to_numpy(
      trees.map_leaves(lambda leaf: state_variables.some(leaf, rows), states.tree)
    )

  def _arrived(self, handle: int) -> Any:
    parts = [
      trees.map_leaves(
        lambda leaf: leaf.rows() if isinstance(leaf, rows_lib.Repeated) else leaf, part
      )
      for part in self._arriving.pop(handle)
    ]
    if len(parts) == 1:
      return parts[0]
    return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)

  def work(self, task: Task, sent: Sent) -> Answer:
    """Does its clients' work of a stage; see `Task` and `Sent`."""
    start = time.perf_counter()
    plan = self._plans[task.plan]
    if task.round != self._round:
      leaves, read = self._leaves(task)
      self._turn = plan.begin(
        leaves, read, len(read[0]) if read else 0, number=task.number, piece=task.piece
      )
      self._round = task.round
    turn = self._turn
    assert turn is not None
    totals = {} if task.stage is None else plan.clients(task.stage, turn, sent.parts, sent.env)
    results, slots = [], None
    if task.is_last:
      results = plan.at_clients(turn, sent.parts, sent.env)
      if task.updated is not None:
        slots = self._update(task, results.pop(task.updated[1]))
      self._turn = self._round = None
    compiled, self._compiled = self._compiled, self._machine.compiled_programs
    return Answer(
      totals=tf.nest.map_structure(trees.as_array, totals),
      results=[[np.asarray(leaf) for leaf in leaves] for leaves in results],
      slots=slots,
      seconds=time.perf_counter() - start,
      compiled=self._compiled - compiled,
    )

  def work_for_totals(self, task: Task, sent: Sent) -> tuple[dict[str, Any], Answer]:
    """As `work`: the totals, and an answer without them."""
    answer = self.work(task, sent)
    return answer.totals, dataclasses.replace(answer, totals={})

  def add_up(self, task: Task, sent: Sent, *totals: Mapping[str, Any]) -> dict[str, Any]:
    """The totals that several members have for a task, in their order, in one."""
    assert task.stage is not None
    joined = self._plans[task.plan].add_up(
      task.stage, totals, sent.env, number=task.number, piece=task.piece
    )
    return tf.nest.map_structure(trees.as_array, joined)

  def _leaves(self, task: Task) -> tuple[list[list[Any]], list[np.ndarray]]:
    """The leaves of the parameter's parts (at CLIENTS what was placed, else none); rows in them."""
    handles, rows = iter(task.handles), list(task.rows)
    result: list[list[Any]] = []
    position = -1
    for type_ in self._plans[task.plan].part_types:
      leaves: list[Any] = []
      if stages_lib.is_client_part(type_):
        handle, position = next(handles), position + 1
        if handle is not None:
          placed = self._placed[handle]
          if isinstance(placed, _ByCohort):
            placed, rows[position] = placed.take(rows[position])
          elif isinstance(placed, stored_states.StoredStates):
            placed, rows[position] = self._read(handle, placed, rows[position])
          leaves = trees.flatten(type_, placed.tree, 'data')
      result.append(leaves)
    return result, rows

  def _read(
    self, handle: int, states: stored_states.StoredStates, rows: np.ndarray
  ) -> tuple[interface.ClientData, np.ndarray]:
    """Some clients' states from disk, and their rows therein."""
    assert states.num_clients is not None
    if len(rows) > self._room.get(handle, 0):  # cohorts of varying size share a form
      self._room[handle] = devices_lib.padded_size(len(rows), states.num_clients)
    places = np.arange(len(rows), dtype=np.int32)
    room = max(1, self._room.get(handle, 0))
    tree = states.read(rows, places, room)
    return interface.ClientData(tree=tree, num_clients=room, num_rows=room), places

  def _update(self, task: Task, new: list[Any]) -> np.ndarray | None:
    """Gives the states their new values; returns the slots of those on disk."""
    assert task.updated is not None
    position = task.updated[0]
    handle = task.handles[position]
    if handle is None:
      return None
    types = [t for t in self._plans[task.plan].part_types if stages_lib.is_client_part(t)]
    states: interface.ClientStates = self._placed[handle]
    rows = task.rows[position]
    if isinstance(states, stored_states.StoredStates):
      if len(rows):
        tree = trees.container(types[position], (np.asarray(leaf) for leaf in new))
        states.write(rows, np.arange(len(rows)), tree)
        self._written[handle] = task.round
      return states.written.slots(rows)
    variables = trees.flatten(types[position], states.tree, 'client_states')
    for variable, value in zip(variables, new, strict=True):
      state_variables.write(variable, rows, value)
    return None


class _ByCohort:
  """Data of clients that are loaded round by round, and ahead by a thread."""

  def __init__(self, load: Callable[[np.ndarray], Any], machine: interface.Runtime):
    self._load = load
    self._machine = machine
    self._executor = futures.ThreadPoolExecutor(max_workers=1)
    self._ahead: dict[bytes, futures.Future] = {}

  def begin(self, rows: np.ndarray) -> None:
    """Begins to load some clients' data, which `take` will ask for next or after next."""
    # Without anybody the data still need their form.
    wanted = rows if len(rows) else np.zeros([1], np.int32)
    self._ahead[rows.tobytes()] = self._executor.submit(self._load, wanted)

  def take(self, rows: np.ndarray) -> tuple[interface.ClientData, np.ndarray]:
    """Some clients' data, placed, and their rows therein."""
    if rows.tobytes() not in self._ahead:
      self.begin(rows)
    found = self._ahead.pop(rows.tobytes()).result()
    return self._machine.place(found, allow_nan=True), np.arange(len(rows), dtype=np.int32)
