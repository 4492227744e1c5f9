"""The driver: a `Runtime` whose clients live with the members of a crew.

Long because `HostsRuntime` is.
"""

import collections
import dataclasses
import functools
import itertools
import os
import pathlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, stored_states, trees
from runtime import records as records_lib
from runtime.hosts import context as hosts_context
from runtime.hosts import member, pieces, stragglers
from runtime.hosts import rows as rows_lib
from runtime.hosts import states as states_lib
from runtime.hosts.crew import Crew, Tell, warn
from runtime.xla import context as context_lib
from runtime.xla import program
from runtime.xla import runtime as xla_runtime
from runtime.xla import stages as stages_lib

_BYTES_AT_ONCE = 2**24  # of arrays on their way to a member, or back
_KEPT_PLANS = 64


class _Spread:
  """Arrays [K, ...] of clients, of which each member has, or can be given, its own."""

  def __init__(self, handle: int, tree: Any, num_clients: int):
    self.handle = handle
    self.tree = tree
    self.num_clients = num_clients
    self.at: set[int] = set()  # the members that have theirs
    self.load: Any = None  # gives a member its own; else they are sent
    self.changes = False  # states, which a member that is lost takes with it
    self.on_disk: states_lib.OnDisk | None = None  # unless they are there


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Share:
  """What a member does of a cohort.

  Attributes:
    handles: of each of the parameter's parts at CLIENTS, None for one without leaves. Of a round
      these are its states and its data.
    rows: of its clients that take part, in each of these.
    positions: theirs in the cohort.
    keeps: what must not be dropped before the round is over.
  """

  handles: tuple[int | None, ...]
  rows: tuple[np.ndarray, ...]
  positions: np.ndarray
  keeps: Sequence[_Spread]


@dataclasses.dataclass(kw_only=True)
class _Planned:
  """A plan, as it is run.

  Attributes:
    stands_for: what it was made of, kept so that its id is not given to another.
    number: by which the members know it.
    plan: the plan.
    server: its pieces, of which the server's work is done here.
    runs: how often it was run.
  """

  stands_for: Any
  number: int
  plan: pieces.Plan
  server: pieces.Pieces
  runs: int = 0


class HostsRuntime(interface.Runtime):
  """Runs rounds whose clients are spread over the members of a crew.

  Member m of N has the clients from m K / N to (m + 1) K / N, with their data and states,
  for good. The server's work is done here. Sums are taken in the order of the members: the
  same number of members gives the same bits.

  Long because whatever a `Runtime` does is here.
  """

  name = 'xla'

  def __init__(self, crew: Crew, *, fan_in: int = 0, tell: Tell = warn):
    """Makes a runtime.

    Args:
      crew: the members, which end with this runtime.
      fan_in: how many totals are added up at a time: by members, as a tree, until no more than
        these are left for the driver. 0 for none: the driver adds up all.
      tell: is told of members that hold the others up.

    Raises:
      ValueError: `fan_in` is 1 or negative.
    """
    if fan_in < 0 or fan_in == 1:
      raise ValueError(f'fan_in={fan_in}: 0, or at least 2 is expected.')
    self._fan_in = fan_in
    self.context = hosts_context.HostsContext(self)
    self._crew = crew
    self._tell = tell
    self._numbers = itertools.count()
    self._plans: collections.OrderedDict[Any, _Planned] = collections.OrderedDict()
    self._known: list[set[int]] = [set() for _ in range(crew.size)]  # plans, by member
    self._placed: weakref.WeakSet[_Spread] = weakref.WeakSet()
    self._dropped: collections.deque[int] = collections.deque()
    self._stragglers = stragglers.Stragglers(crew.size)
    self._storing: tuple[pathlib.Path | None, frozenset[str]] | None = None
    self._last_round = -1  # the number of the last call that was over
    self._lost: set[int] = set()  # members that are not yet what those were whom they replace
    self.bytes_sent = 0  # to one member; all get the same
    self.bytes_received = 0  # from all members together

  def place(self, tree: Any, *, allow_nan: bool = False, work: Any = None) -> interface.ClientData:
    tree, arrays = trees.stacked_leaves(tree, what='data', allow_nan=allow_nan)
    if not arrays:
      raise ValueError('data has no arrays.')
    count = len(arrays[0])
    return interface.ClientData(
      tree=self._spread(tree, count), num_clients=count, num_rows=count,
      work=interface.checked_work(work, count),
    )  # fmt: skip

  def place_loaded(self, load: Any, form: Any, work: Any) -> interface.ClientData:
    """Data that each member loads by itself.

    Args:
      load: (first, last client) -> nested mappings of their arrays [last - first, ...], or where
        these are too many a function from int rows [n] of them to such arrays [n, ...]. It is
        sent to the members.
      form: somebody's arrays [1, ...].
      work: [K], the clients' work beside one another's; see `place`.

    Raises:
      ValueError: a member cannot load its own.
    """
    count = len(work)
    spread = self._spread(trees.stacked_leaves(form, what='data', allow_nan=True)[0], count)
    spread.load = load
    self._load(spread, range(self._crew.size))
    return interface.ClientData(
      tree=spread, num_clients=count, num_rows=count, work=interface.checked_work(work, count)
    )

  def load_ahead(self, data: interface.ClientData, cohort: np.ndarray) -> None:
    """Tells the members whose data to load while the round before is at work; see `place_loaded`.

    Args:
      data: from `place_loaded`, of data that are loaded by cohort.
      cohort: int rows of the clients who take part in a coming round.
    """
    spread, calls = data.tree, {}
    for index, (first, positions) in enumerate(self._owners(cohort, cohort, data)):
      if index in spread.at:  # it may have been lost
        own = (cohort[positions] - first).astype(np.int32)
        calls[index] = self._crew.call(index, 'load_ahead', spread.handle, own)
    self._crew.gather(calls)

  def store_states(self, folder: str | os.PathLike | None, fixed: frozenset[str]) -> None:
    """Has the members keep the states that will be placed on disk.

    Args:
      folder: where, which every member must see; by default a temporary one of this machine.
      fixed: names on the first level of the states that no round changes.
    """
    self._storing = (None if folder is None else pathlib.Path(folder).resolve(), fixed)

  def place_states(
    self,
    tree: Any,
    *,
    allow_nan: bool = False,
    snapshot: records_lib.Snapshot | None = None,
  ) -> interface.ClientStates:
    """Makes the states of a population; `snapshot` as for `StoringRuntime.place_states`."""
    if self._storing is None or not stored_states.changes(tree or {}, self._storing[1]):
      return self._place_states(tree, None, allow_nan)
    tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    folder, keeps = stored_states.folder_or_temporary(self._storing[0])
    spread = self._spread(tree, len(arrays[0]))
    spread.on_disk = states_lib.OnDisk(folder, self._storing[1], keeps)
    for index in range(self._crew.size):
      with spread.on_disk.storing(snapshot) as storing:
        self._store(spread, index, storing)
    spread.changes = True
    return states_lib.HostStates(
      tree=spread,
      num_clients=spread.num_clients,
      fetch=trees.to_numpy,
      initial=tree,
      on_disk=spread.on_disk,
      take_snapshots=functools.partial(self._take_snapshots, spread),
    )

  def _store(self, spread: _Spread, index: int, storing: states_lib.Storing) -> None:
    """Has a member keep its clients' states on disk."""
    assert spread.on_disk is not None
    own = self._own(index, spread.num_clients)
    first, last = self._ends(spread.num_clients)[index]
    if first == last:  # somebody's, for their form; they are written nowhere
      storing = dataclasses.replace(storing, snapshot=None)
    self._send_rows(index, spread.handle, spread.tree, own)
    begun = self._ask(index, 'store_states', spread.handle, own.start, storing)
    if first < last and begun is not None:
      spread.on_disk.begun(index, self._ask(index, 'machine'), own, begun)

  def _take_snapshots(self, spread: _Spread) -> dict[int, Any]:
    ends = enumerate(self._ends(spread.num_clients))
    have = [index for index, (first, last) in ends if first < last]
    return self._crew.gather({i: self._crew.call(i, 'snapshot', spread.handle) for i in have})

  def fill_states(self, tree: Any, fill: Any) -> interface.ClientStates:
    return self._place_states(tree, fill, False)

  def _place_states(self, tree: Any, fill: Any, allow_nan: bool) -> interface.ClientStates:
    tree = {} if tree is None else tree
    tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    if not arrays:
      return interface.ClientStates(tree=tree, num_clients=None, fetch=lambda empty: empty)
    spread = self._spread(tree, len(arrays[0]))
    calls = {}
    for index in range(self._crew.size):
      own = self._own(index, spread.num_clients)
      self._send_rows(index, spread.handle, tree, own)
      calls[index] = self._crew.call(index, 'place_states', spread.handle, fill, own.start)
    self._crew.gather(calls)
    spread.changes = True
    # From here on the members know them better.
    spread.tree = trees.map_leaves(lambda leaf: leaf[:0], tree)
    return interface.ClientStates(
      tree=spread,
      num_clients=spread.num_clients,
      fetch=self._fetch_states,
      visit=functools.partial(self._visit_states, spread),
    )

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
    _refuse_sweep(settings)
    parameter, result = xla_runtime.round_types(next_computation)
    states = client_states or self.place_states(None)
    rows = interface.cohort_rows(cohort, data_rows, data.num_clients, states.num_clients, None)
    xla_runtime.stack_leaves(parameter[1], _form(states), 'client_states')
    xla_runtime.stack_leaves(parameter[2], _form(data), 'data')
    updated = None if states.num_clients is None else (0, 0)
    (server, metrics), _ = self._run_round(
      next_computation, parameter, server_state, states, data, rows[0], updated
    )
    return trees.container(result[0], iter(server)), trees.container(result[2], iter(metrics))

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
    _refuse_sweep(settings)
    parameter = list(computation.type_signature.parameter)
    states = client_states or self.place_states(None)
    chosen = interface.evaluation_rows(rows, data_rows, data.num_clients, states.num_clients, None)
    found: list[np.ndarray] = []
    ways = self._parts(states, len(chosen[0][0]))
    for part in ways:
      own = (chosen[0][0][part], chosen[0][1][part])
      _, (leaves,) = self._run_round(computation, parameter, server_state, states, data, own, None)
      if not found:
        found = [np.empty([len(chosen[0][0]), *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
      for whole, leaf in zip(found, leaves, strict=True):
        whole[part] = leaf
    return trees.container(computation.type_signature.result.member, iter(found))

  def _parts(self, states: interface.ClientStates, count: int) -> list[slice]:
    """Which clients are evaluated together: all, or of states on disk what memory is to hold."""
    if not isinstance(states, states_lib.HostStates):
      return [slice(None)]
    bytes_of_all = count * sum(leaf[:1].nbytes for leaf in trees.leaves_of(states.initial))
    number = -(-bytes_of_all // (stored_states.BYTES_AT_ONCE * self._crew.size))
    number = max(1, min(number, count))
    return [slice(start, None, number) for start in range(number)]  # everyone has work in each

  def to_numpy(self, tree: Any) -> Any:
    return trees.to_numpy(tree)

  @property
  def description(self) -> str:
    return f'XLA on {self._crew.size} cohort workers'

  def recover(self) -> interface.Recovery:
    replaced = self._crew.replace_lost()
    self._lost.update(replaced)  # with those of a recovery in which a further one was lost
    for index in replaced:
      self._known[index] = set()
      for spread in self._placed:
        spread.at.discard(index)
    states = [spread for spread in self._placed if spread.changes]
    lost = sorted(self._lost)
    keeps_states = all(s.on_disk is not None for s in states) and all(
      self._is_there(spread, index) for spread in states for index in lost
    )
    for spread in states:
      if keeps_states:
        self._go_back(spread, lost)
      else:
        spread.on_disk = None  # no later recovery gives them back either
    self._lost = set()
    return interface.Recovery(
      words=f'cohort worker {", ".join(map(str, lost))} was lost and has been replaced',
      keeps_states=keeps_states,
    )

  def _is_there(self, spread: _Spread, index: int) -> bool:
    """Whether the place of a lost member has the states on disk of its clients."""
    assert spread.on_disk is not None
    first, last = self._ends(spread.num_clients)[index]
    return first == last or spread.on_disk.is_there(index, self._ask(index, 'machine'))

  def _go_back(self, spread: _Spread, lost: Sequence[int]) -> None:
    """Gives states on disk the values that they had when the last call was over."""
    assert spread.on_disk is not None
    for index in range(self._crew.size):
      if index in lost:
        first, last = self._ends(spread.num_clients)[index]
        disk = spread.on_disk
        with disk.again(index) if first < last else disk.storing(None) as storing:
          self._store(spread, index, storing)
      else:
        self._ask(index, 'undo', spread.handle, self._last_round)

  def close(self) -> None:
    self.context.leave()
    self._crew.close()

  @property
  def num_workers(self) -> int:
    """How many workers there are."""
    return self._crew.size

  def lend(self, leaves: Sequence[np.ndarray], type_: Any) -> _Spread | None:
    """What stands for the clients' values of a program's parameter; see `call`.

    A member is sent its rows of them when it first needs these, and forgets them once this is
    no longer referred to.

    Args:
      leaves: arrays [K, ...].
      type_: of one client.
    """
    if not leaves:
      return None
    return self._spread(_mapping(type_, iter(leaves)), len(leaves[0]))

  def call(
    self,
    prog: program.Program,
    types: Sequence[Any] | None,
    parts: Sequence[Any],
    rows: Sequence[np.ndarray],
    *,
    is_serial: bool,
  ) -> list[list[Any]]:
    """Runs the program of a whole computation, whose clients' work the members do.

    Args:
      prog: the program.
      types: of the parameter's parts, which have arrays in the place of data sets; None for a
        program without data sets, variables and random ops.
      parts: of the parameter: leaves, at CLIENTS what `lend` gives.
      rows: for every part at CLIENTS, the clients' rows in it.
      is_serial: whether clients are worked on one at a time, whatever `clients_per_block` says.

    Returns:
      The leaves of the result's parts, at CLIENTS [n, ...].
    """
    self._drop_unused()
    key = (id(prog), None if types is None else tuple(types), is_serial)
    planned = self._plan(key, prog, lambda: pieces.Plan.of(prog, types, is_serial=is_serial))
    is_client = [stages_lib.is_client_part(t) for t in planned.plan.part_types]
    lent = [part for part, at_clients in zip(parts, is_client, strict=True) if at_clients]
    at_server = [
      [] if at_clients else part for part, at_clients in zip(parts, is_client, strict=True)
    ]
    server, joined, _ = self._run(planned, at_server, self._lent_shares(lent, rows), None)
    of_server, of_clients = iter(server), iter(joined)
    return [
      next(of_clients if stages_lib.is_client_part(t) else of_server)
      for t in planned.plan.result_types
    ]

  def _lent_shares(
    self, lent: Sequence[_Spread | None], rows: Sequence[np.ndarray]
  ) -> list[_Share]:
    """What each member does of a cohort whose values were lent."""
    # Those of a population are where they are; the others follow.
    sizes = [0 if spread is None else spread.num_clients for spread in lent]
    first_part = int(np.argmax(sizes))
    owner, owned = lent[first_part], rows[first_part]
    assert owner is not None
    sent = [
      spread if spread is None or _are_together(spread, own, owner, owned)
      else self._spread(None, spread.num_clients)
      for spread, own in zip(lent, rows, strict=True)
    ]  # fmt: skip
    shares = []
    for index, (first, last) in enumerate(self._ends(owner.num_clients)):
      positions = np.flatnonzero((owned >= first) & (owned < last))
      own = [
        np.zeros([len(positions)], np.int32) if data is None or as_sent is None
        else self._rows_at(index, data, as_sent, of_part[positions], first)
        for data, as_sent, of_part in zip(lent, sent, rows, strict=True)
      ]  # fmt: skip
      handles = tuple(None if spread is None else spread.handle for spread in sent)
      keeps = [spread for spread in sent if spread is not None]
      shares.append(_Share(handles=handles, rows=tuple(own), positions=positions, keeps=keeps))
    return shares

  # ---------------------------------------------------------------------- what is where

  def _spread(self, tree: Any, count: int) -> _Spread:
    spread = _Spread(next(self._numbers), tree, count)
    self._placed.add(spread)
    # Called whenever Python pleases: the members are told at the next call.
    weakref.finalize(spread, self._dropped.append, spread.handle)
    return spread

  def _ends(self, count: int) -> list[tuple[int, int]]:
    """(first, last) of each member's clients."""
    ends = rows_lib.bounds(count, self._crew.size).tolist()
    return list(itertools.pairwise(ends))

  def _owners(
    self,
    owned: np.ndarray,
    data_rows: np.ndarray,
    data: interface.ClientData,
    count: int | None = None,
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Each member's first client, and the positions of its own in a cohort, in order of work.

    Args:
      owned: the cohort's clients, by whose numbers they are a member's.
      data_rows: their rows of the data.
      data: the data.
      count: K of `owned`, if it is not that of the data.
    """
    for first, last in self._ends(data.num_clients if count is None else count):
      positions = np.flatnonzero((owned >= first) & (owned < last))
      yield first, positions[interface.by_work(data.work, data_rows[positions])]

  def _own(self, index: int, count: int) -> slice:
    return rows_lib.own(index, count, self._crew.size)

  def _send_data(self, spread: _Spread, index: int) -> None:
    """Gives a member the data of its clients, once."""
    if index not in spread.at and spread.load is not None:
      self._load(spread, [index])
    elif index not in spread.at:
      self._send_rows(index, spread.handle, spread.tree, self._own(index, spread.num_clients))
      self._ask(index, 'place', spread.handle)
      spread.at.add(index)

  def _load(self, spread: _Spread, members: Sequence[int]) -> None:
    """Has members load the data of their clients."""
    calls = {}
    for index in members:
      own = self._own(index, spread.num_clients)
      calls[index] = self._crew.call(index, 'load', spread.handle, spread.load, own.start, own.stop)
    self._crew.gather(calls)
    spread.at.update(calls)

  def _send_rows(self, index: int, handle: int, tree: Any, own: slice) -> None:
    """Sends a member some rows, a part at a time."""
    rows = own.stop - own.start
    size = (
      sum(leaf[:1].nbytes for leaf in trees.leaves_of(tree) if not rows_lib.is_repeated(leaf)) or 1
    )
    each = max(1, _BYTES_AT_ONCE // size)
    for start in range(own.start, own.start + max(1, rows), each):
      part = slice(start, min(start + each, own.stop))
      self._ask(index, 'receive', handle, rows_lib.cut(tree, part))

  def _ask(self, index: int, method: str, *arguments: Any) -> Any:
    return self._crew.gather({index: self._crew.call(index, method, *arguments)})[index]

  def _visit_states(self, spread: _Spread, function: Any) -> list[Any]:
    """What a function gives of each member's clients' states, where there are some."""
    calls = {
      index: self._crew.call(index, 'visit', spread.handle, function, first)
      for index, (first, last) in enumerate(self._ends(spread.num_clients))
      if first < last
    }
    return list(self._crew.gather(calls).values())

  def _fetch_states(self, spread: _Spread) -> Any:
    size = sum(
      leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in trees.leaves_of(spread.tree)
    )
    each = max(1, _BYTES_AT_ONCE // max(1, size))
    result = trees.map_leaves(
      lambda leaf: np.empty([spread.num_clients, *leaf.shape[1:]], leaf.dtype), spread.tree
    )
    for index, (first, last) in enumerate(self._ends(spread.num_clients)):
      for start in range(0, last - first, each):
        rows = slice(start, min(start + each, last - first))
        part = self._ask(index, 'states', spread.handle, rows)
        for whole, own in zip(trees.leaves_of(result), trees.leaves_of(part), strict=True):
          whole[first + rows.start : first + rows.stop] = own
    return result

  # ------------------------------------------------------------------------- a computation

  def _plan(self, key: Any, stands_for: Any, make: Callable[[], pieces.Plan]) -> _Planned:
    """A plan that all members know."""
    if key not in self._plans:
      plan = make()
      server = pieces.Pieces(
        plan, device=self.context.devices[0], clients_per_block=1,
        statistics=self.context.statistics,
      )  # fmt: skip
      self._plans[key] = _Planned(
        stands_for=stands_for, number=next(self._numbers), plan=plan, server=server
      )
      if len(self._plans) > _KEPT_PLANS:
        _, old = self._plans.popitem(last=False)
        for index, known in enumerate(self._known):
          if old.number in known:
            self._ask(index, 'unlearn', old.number)
            known.remove(old.number)
    self._plans.move_to_end(key)
    planned = self._plans[key]
    for index, known in enumerate(self._known):
      if planned.number not in known:
        self._ask(index, 'learn', planned.number, planned.plan.text)
        known.add(planned.number)
    return planned

  def _run_round(
    self, computation, parameter, server_state, states, data, rows, updated
  ) -> tuple[list[list[Any]], list[list[np.ndarray]]]:
    """Runs a computation of a round's parameters.

    Args:
      computation: what to run.
      parameter: the types of its three parameters.
      server_state: as in `round`.
      states: the clients' states.
      data: the clients' data.
      rows: (rows of the states, rows of the data) of those who take part.
      updated: see `member.Task`.

    Returns:
      The leaves of the result's parts at the server, and of those at the clients, in the order
      of the rows, which are not updated states.
    """
    self._drop_unused()
    planned = self._plan(
      id(computation), computation, lambda: pieces.Plan.of(self.context.program(computation))
    )
    shares = self._shares(states, data, *rows)
    parts: list[list[Any]] = [context_lib.server_leaves(parameter[0], server_state), [], []]
    server, joined, answers = self._run(planned, parts, shares, updated)
    for index, (share, answer) in enumerate(zip(shares, answers, strict=True)):
      if answer.slots is not None and len(share.rows[0]):
        states.on_disk.written(index, share.rows[0], answer.slots)
    return server, joined

  def _run(
    self, planned: _Planned, parts: Sequence[Any], shares: Sequence[_Share], updated: Any
  ) -> tuple[list[list[Any]], list[list[np.ndarray]], list[member.Answer]]:
    """Runs a plan.

    Args:
      planned: the plan.
      parts: the leaves of the parameter's parts; of those at CLIENTS none.
      shares: of each member.
      updated: see `member.Task`.

    Returns:
      The leaves of the result's parts at the server; of those at the clients, in the order of
      the cohort, which are not updated states; and the members' last answers.
    """
    plan, server = planned.plan, planned.server
    fresh = server.fresh(planned.runs)
    env: dict[str, Any] = {}
    totals: list[Any] = []
    call = next(self._numbers)
    answers: list[member.Answer] = []
    last = max(plan.client_stages, default=None)
    seconds, programs = np.zeros(len(shares)), self.context.statistics.programs
    for stage in [*range(plan.program.num_stages), *([] if plan.client_stages else [None])]:
      if stage is not None:
        env |= server.server(stage, parts, env, totals, fresh)
        totals = []
      if stage not in (*plan.client_stages, None):
        continue
      answers, totals = self._work(
        [
          member.Task(
            round=call, plan=planned.number, stage=stage, handles=share.handles, rows=share.rows,
            number=planned.runs, piece=index, is_last=stage == last, updated=updated,
          )
          for index, share in enumerate(shares)
        ],
        _sent(plan, stage, stage == last, parts, env),
      )  # fmt: skip
      seconds += [answer.seconds for answer in answers]
    if self.context.statistics.programs == programs:  # compiling takes as long as it takes
      self._watch_stragglers(seconds.tolist())
    # Nobody who is lost from here on takes anything of this call with him.
    self._last_round = call
    planned.runs += 1
    order = np.argsort(np.concatenate([share.positions for share in shares]))
    joined = [
      [np.concatenate(leaf)[order] for leaf in zip(*of_part, strict=True)]
      for of_part in zip(*(answer.results for answer in answers), strict=True)
    ]
    return server.at_server(parts, env), joined, answers

  def _shares(self, states, data, state_rows: np.ndarray, data_rows: np.ndarray) -> list[_Share]:
    """What each member does of a cohort."""
    of_states: _Spread | None = None if states.num_clients is None else states.tree
    of_data: _Spread = data.tree
    owned = data_rows if of_states is None else state_rows
    count = of_data.num_clients if of_states is None else of_states.num_clients
    # A client's data lie with its state if they are the population's; a cohort's are sent.
    together = of_data.num_clients == count and np.array_equal(owned, data_rows)
    sent = of_data if together else self._spread(None, of_data.num_clients)
    shares = []
    for index, (first, positions) in enumerate(self._owners(owned, data_rows, data, count)):
      local = (owned[positions] - first).astype(np.int32)
      own = self._rows_at(index, of_data, sent, data_rows[positions], first)
      handle = None if of_states is None else of_states.handle
      shares.append(
        _Share(
          handles=(handle, sent.handle), rows=(local, own), positions=positions, keeps=[sent]
        )
      )  # fmt: skip
    return shares

  def _rows_at(
    self, index: int, data: _Spread, sent: _Spread, rows: np.ndarray, first: int
  ) -> np.ndarray:
    """Gives a member some rows of the data, and says where they are there.

    Args:
      index: the member.
      data: the data.
      sent: what these rows are placed as; the data themselves where a member is given all its own.
      rows: of the data.
      first: the first row that is its own.
    """
    if sent is data:
      self._send_data(data, index)
      return (rows - first).astype(np.int32)
    chosen = rows if len(rows) else np.zeros([1], np.int32)  # somebody's, for their form
    self._send_rows(index, sent.handle, rows_lib.taken(data.tree, chosen), slice(0, len(chosen)))
    self._ask(index, 'place', sent.handle)
    return np.arange(len(rows), dtype=np.int32)

  def _work(
    self, tasks: Sequence[member.Task], sent: member.Sent
  ) -> tuple[list[member.Answer], list[pieces.Values]]:
    """The members' answers, and the totals, both in their order."""
    shared = self._crew.share(sent)
    if self._fan_in and len(tasks) > self._fan_in and tasks[0].stage is not None:
      answers, totals = self._work_in_a_tree(tasks, shared)
    else:
      calls = {m: self._crew.call(m, 'work', task, shared) for m, task in enumerate(tasks)}
      answers = list(self._crew.gather(calls).values())
      totals = [answer.totals for answer in answers]
    self.bytes_sent += _num_bytes((sent.parts, sent.env))
    self.bytes_received += _num_bytes((totals, [answer.results for answer in answers]))
    counts = self.context.statistics
    counts.programs += sum(answer.compiled for answer in answers)
    if any(answer.compiled for answer in answers):
      counts.seconds += max(answer.seconds for answer in answers)
    return answers, totals

  def _work_in_a_tree(
    self, tasks: Sequence[member.Task], shared: Any
  ) -> tuple[list[member.Answer], list[pieces.Values]]:
    """The same, but for totals that members have added up: `fan_in` neighbours' by the first."""
    pairs = {
      m: self._crew.call_for_two(m, 'work_for_totals', task, shared) for m, task in enumerate(tasks)
    }
    totals = {m: own for m, (own, _) in pairs.items()}
    members = list(pairs)
    while len(members) > self._fan_in:
      groups = [members[i : i + self._fan_in] for i in range(0, len(members), self._fan_in)]
      for first, *others in groups:
        if others:
          own = [totals.pop(m) for m in (first, *others)]
          totals[first] = self._crew.call(first, 'add_up', tasks[first], shared, *own)
      members = [first for first, *_ in groups]
    # Whoever is lost is found here, before what depends on him.
    answers = self._crew.gather({m: answer for m, (_, answer) in pairs.items()})
    summed = self._crew.gather({m: totals[m] for m in members})
    return list(answers.values()), list(summed.values())

  def _watch_stragglers(self, seconds: Sequence[float]) -> None:
    for index in self._stragglers.found(seconds):
      self._tell(f'Cohort worker {index} ({self._ask(index, "name")}) {stragglers.WORDS}')

  def _drop_unused(self) -> None:
    while self._dropped:
      handle = self._dropped.popleft()
      everyone = range(self._crew.size)
      self._crew.gather({i: self._crew.call(i, 'drop', handle) for i in everyone})


def _form(placed: interface.ClientData | interface.ClientStates) -> Any:
  """Arrays that have the dtypes and a client's shapes of what was placed."""
  return placed.tree.tree if isinstance(placed.tree, _Spread) else placed.tree


def _mapping(type_: Any, leaves: Iterator[Any]) -> Any:
  """Nested mappings of a type's form, which `trees.flatten` takes."""
  type_ = trees.member(type_)
  if not isinstance(type_, tff.StructType):
    return next(leaves)
  return collections.OrderedDict(
    (name or str(index), _mapping(element, leaves))
    for index, (name, element) in enumerate(trees.fields(type_))
  )


def _are_together(spread: _Spread, rows: np.ndarray, owner: _Spread, owned: np.ndarray) -> bool:
  return spread.num_clients == owner.num_clients and np.array_equal(rows, owned)


def _refuse_sweep(settings: int | None) -> None:
  if settings is not None:
    raise interface.UnsupportedComputationError(
      'Cohort workers share the clients of one run; a sweep is spread by --workers.'
    )


def _sent(plan: pieces.Plan, stage, is_last: bool, parts, env) -> member.Sent:
  """What the members need of the server for a stage, and for the result if it is the last."""
  needs = [plan.needs(s) for s in {stage, None} if s is not None or is_last]
  return member.Sent(
    parts={i: _arrays(parts[i]) for need in needs for i in need.parts},
    env={name: _arrays(env[name]) for need in needs for name in need.names},
  )


def _arrays(tree: Any) -> Any:
  return tf.nest.map_structure(trees.as_array, tree)


def _num_bytes(tree: Any) -> int:
  return sum(trees.as_array(leaf).nbytes for leaf in tf.nest.flatten(tree))
