"""TFF's execution-context interface on top of compiled programs."""

import asyncio
import collections
import contextlib
import threading
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla import (
  eager,
  executable,
  explanation,
  lowered,
  mixed,
  obstacles,
  population,
  program,
  stages,
  subgraphs,
  values,
)
from runtime.xla.lowering import support

_CACHED_PROGRAMS = 64
_REPEATED = 3  # Calls after which an interpreted computation is worth a warning.


class XlaContext(tff.framework.SyncContext):
  """Runs TFF computations as XLA programs on CPUs or GPUs.

  Use it as any TFF context:

      with runtime.XlaContext(devices='gpu'):
        state = process.initialize()
        output = process.next(state, client_data)

  or for the whole program with `tff.framework.set_default_context(context)`.
  Client values are ordinary Python lists with one structure of arrays for each
  client. Results are what TFF's own runtime gives: NumPy arrays and scalars, bytes,
  `tf.data` data sets, and lists of these for values at CLIENTS. (What is to stay on
  the device does so through `XlaRuntime.place` and `round`.) `tf.data` clients,
  variables and random ops are compiled as well (see `lowering`). What XLA cannot take -
  strings, lookup tables, Python callbacks, unknown shapes - is cut out and runs on the
  host, client by client, with the rest compiled (see `partition`).

  Long because a context keeps what it has compiled, explains it and runs it.
  """

  def __init__(
    self, *, devices: str = 'cpu', clients_per_block: int | None = None, compiled: bool = True
  ):
    """Makes a context.

    Args:
      devices: `auto`, `cpu`, `gpu`, or a list such as `gpu:0,gpu:1` or `cpu,cpu`, over which
        clients are split.
      clients_per_block: how many clients are vectorised at once; the blocks follow
        each other, and bound the memory. By default one on a CPU, and on a GPU as
        many as fit (see `devices.clients_per_block`).
      compiled: False for the plain interpreter, client by client.

    Raises:
      ValueError: there is no such device, or the block is not positive.
    """
    if clients_per_block is not None and clients_per_block < 1:
      raise ValueError(f'clients_per_block={clients_per_block}: a positive number is expected.')
    self.devices = devices_lib.resolve(devices)
    self._clients_per_block = clients_per_block
    self._compiled = compiled
    self.statistics = interface.Statistics()
    self._programs: collections.OrderedDict[int, Any] = collections.OrderedDict()
    self._executables: dict[Any, Any] = {}
    self._lowered = lowered.LoweredPrograms(
      devices=self.devices, clients_per_block=clients_per_block, statistics=self.statistics
    )
    self._slow_calls: dict[int, int] = {}
    self._installed: list[Any] = []

  def __enter__(self) -> 'XlaContext':
    installed = tff.framework.get_context_stack().install(self)
    installed.__enter__()
    self._installed.append(installed)
    return self

  def __exit__(self, *exception: Any) -> None:
    self._installed.pop().__exit__(*exception)

  def place(
    self, client_data: Any, *, client_ids: Sequence[str] | None = None
  ) -> population.Population:
    """Reads the clients of a simulation's data and uploads them, once.

    A cohort is then `placed[rows]`, for a parameter at CLIENTS whose values are data sets.

    Args:
      client_data: a `tff.simulation.datasets.ClientData`, preprocessed to numbers.
      client_ids: which clients; by default all.

    Raises:
      ValueError: there are no clients, their data sets have no end, or elements of a component
        differ in rank.
      UnsupportedComputationError: elements are not numbers.
      MemoryError: they do not fit on the device.
    """
    return population.Population(client_data, device=self.devices[0], client_ids=client_ids)

  def program(self, computation: Any) -> program.Program:
    """The compiled form of a computation, made once."""
    key = id(computation)
    if key not in self._programs:
      # The computation is kept, so that its id is not given to another one.
      self._programs[key] = (computation, program.build(computation))
      while len(self._programs) > _CACHED_PROGRAMS:
        old, _ = self._programs.popitem(last=False)
        self._executables = {
          k: v for k, v in self._executables.items() if not lowered.belongs_to(k[0], old)
        }
        self._lowered.forget(old)
        self._slow_calls.pop(old, None)
    self._programs.move_to_end(key)
    return self._programs[key][1]

  def executable(
    self,
    computation: Any,
    *,
    settings: int | None = None,
    updated: tuple[int, int] | None = None,
  ) -> executable.Executable:
    """The executable of a computation, made once; see `executable.Executable`."""
    prog = self.program(computation)
    return self._executable(id(computation), prog, settings=settings, updated=updated)

  def _executable(self, computation: Hashable, prog, settings=None, updated=None):
    key = (computation, settings, updated)
    if key not in self._executables:
      self._executables[key] = executable.Executable(
        prog,
        devices=self.devices,
        clients_per_block=self._clients_per_block,
        statistics=self.statistics,
        settings=settings,
        updated=updated,
      )
    return self._executables[key]

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation; called by TFF."""
    prog = self.program(comp)
    parts = _parameter_parts(prog.parameter_type, trees.by_position(prog.parameter_type, arg))
    count = _cardinality(parts)
    key = id(comp)
    if self._compiled:
      result = self._compiled_whole(key, prog, parts, count)
      if result is not None:
        return _result(
          prog.result_type, iter(result), lambda type_, leaves: values.listed(type_, leaves, count)
        )
    mixed_program = self._mixed(key, prog) if self._compiled else None
    self._warn_if_repeated(key, comp)
    result = None
    if mixed_program is not None:
      result = mixed_program(key, parts, count)
      if result is None:
        self._refuse_cut(key, prog, mixed_program)
    if result is None:
      result = mixed.interpreted(self._interpreter(key, prog), prog, parts, count)
    return _result(
      prog.result_type,
      iter(result),
      lambda type_, clients: [values.python_value(type_, value) for value in clients],
    )

  def lowering(self, computation: Any) -> support.Lowering:
    """How a computation is run: what stands in the way of compiling it as a whole."""
    return self._lowering(id(computation), self.program(computation))

  def _lowering(self, key, prog) -> support.Lowering:
    if (key, 'lowering') not in self._executables:
      self._executables[key, 'lowering'] = support.examine(prog)
    return self._executables[key, 'lowering']

  def explain(self, computation: Any) -> explanation.Explanation:
    """Says of each part of a computation how it is run, why, and what to change.

    Args:
      computation: a TFF computation, such as `process.next`. Once it has run, more is known:
        some obstacles are met only while it is compiled.

    Returns:
      What `print` shows as a table; see `explanation.Explanation`.
    """
    prog, key = self.program(computation), id(computation)
    if not self._compiled:
      return explanation.interpreted(['this context was made with compiled=False'])
    how = self._lowering(key, prog)
    if not how.reasons:
      return explanation.compiled(prog, how.serial_reasons)
    made = self._mixed(key, prog)
    if made is None:
      return explanation.interpreted(how.reasons)
    met = [self._lowering(made.piece_key(key, i), p.program) for i, p in enumerate(made.cut.pieces)]
    return explanation.mixed(made.cut, [how.serial_reasons for how in met])

  def _warn_if_repeated(self, key, comp) -> None:
    """One line about a computation that runs again and again and has slow parts."""
    if not self._compiled or comp.type_signature.parameter is None:
      return
    self._slow_calls[key] = self._slow_calls.get(key, 0) + 1
    if self._slow_calls[key] == _REPEATED and (slow := self.explain(comp).slow_for_clients):
      warnings.warn(
        f'A computation is run again and again, and {slow[0].what} is {slow[0].how}:'
        f' {slow[0].reasons[0]}. XlaContext.explain(computation) says what to change.',
        RuntimeWarning,
        stacklevel=4,
      )

  def _interpreter(self, key, prog) -> eager.EagerProgram:
    if (key, 'interpreter') not in self._executables:
      self._executables[key, 'interpreter'] = eager.EagerProgram(prog)
    return self._executables[key, 'interpreter']

  def _mixed(self, key, prog) -> mixed.MixedProgram | None:
    """A program in pieces, None if they would all be on the host, or none."""
    refused = obstacles.refused(self._lowering(key, prog).reasons)
    kind = (key, 'mixed', frozenset(refused))
    if kind not in self._executables:
      made = None
      if prog.parameter_type is not None:
        # TFF checks the types of the calls that pieces are made of (a TypeError).
        with contextlib.suppress(subgraphs.NotCutError, TypeError):
          made = mixed.MixedProgram(prog, self._compiled_parts, refused)
          if not made.cut.is_worthwhile:
            made = None
      self._executables[kind] = made
    return self._executables[kind]

  def _refuse_cut(self, key, prog, refused: mixed.MixedProgram) -> None:
    """Has a program cut in another way from now on, or interpreted, for what a piece met."""
    for index, piece in enumerate(refused.cut.pieces):
      met = self._lowering(refused.piece_key(key, index), piece.program)
      self._lowering(key, prog).reasons += met.reasons
    for known in [k for k in self._executables if k[0] == key and 'mixed' in k]:
      self._executables[known] = None

  def _compiled_whole(self, key: Hashable, prog, parts, count) -> list[Any] | None:
    """The same for a computation as a whole, none of its pieces."""
    return self._compiled_parts(key, prog, parts, count)

  def _compiled_parts(self, key: Hashable, prog, parts, count) -> list[Any] | None:
    """A result's parts, or None if XLA refuses the program."""
    how = self._lowering(key, prog)
    if how.reasons:
      return None
    if how.is_needed:
      return self._lowered.invoke(key, prog, how, parts, count)
    leaves, rows = stacked_parts(parts, count)
    cohort = executable.Cohort(rows=rows, settings=None, count=count, limit=None)
    run = self._executable(key, prog)
    try:
      result = run(leaves, cohort)
    except lowered.NOT_TRACED as error:
      refused = isinstance(error, interface.UnsupportedComputationError)
      how.reasons.append(str(error) if refused else executable.reason_of(error))
      return None
    if run.serial_reason is not None and not how.serial_reasons:
      how.serial_reasons.append(run.serial_reason)
    return result


class AsyncXlaContext(tff.framework.AsyncContext):
  """The same for `tff.program`, whose programs wait for several things at once.

  Use it with `tff.program.NativeFederatedContext(runtime.AsyncXlaContext(devices='gpu'))`.
  """

  def __init__(self, **options: Any):
    """Makes a context; the options are `XlaContext`'s."""
    self.context = XlaContext(**options)
    self._one_at_a_time = threading.Lock()

  async def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation beside the event loop; called by TFF."""
    if asyncio.iscoroutine(arg):
      arg = await arg

    def run():
      with self._one_at_a_time:
        return self.context.invoke(comp, arg)

    return await asyncio.to_thread(run)


def stacked_parts(parts: Any, count: int) -> tuple[list[list[Any]], list[np.ndarray]]:
  """The leaves of a parameter's parts, and the clients' rows in those at CLIENTS."""
  leaves, rows = [], []
  for type_, value in parts:
    if stages.is_client_part(type_):
      leaves.append(stack(type_.member, value))
      rows.append(np.arange(count))
    else:
      leaves.append(server_leaves(type_, value))
  return leaves, rows


def _parameter_parts(type_: Any, value: Any, what: str = 'argument') -> list[tuple[Any, Any]]:
  """(type, value) of a parameter's placed parts and unplaced leaves."""
  if type_ is None:
    return []
  if not isinstance(type_, tff.StructType):
    return [(type_, value)]
  if not program.has_placement(type_):
    return list(zip(trees.leaf_types(type_), trees.flatten(type_, value, what), strict=True))
  parts = []
  elements = trees.fields(type_)
  for index, (name, element) in enumerate(elements):
    step = trees.element(value, index, name, elements, what)
    parts += _parameter_parts(element, step, name or f'{what}[{index}]')
  return parts


def _cardinality(parts) -> int:
  sizes = set()
  for type_, value in parts:
    if stages.is_client_part(type_):
      if not isinstance(value, Sequence):
        raise ValueError(
          f'A value at CLIENTS must be a list with an element for each client, not a'
          f' {type(value).__name__}.'
        )
      sizes.add(len(value))
  if len(sizes) > 1:
    raise ValueError(
      'Conflicting cardinalities: the arguments at CLIENTS are for different numbers of clients,'
      f' {", ".join(map(str, sorted(sizes)))}.'
    )
  return sizes.pop() if sizes else 0


def server_leaves(type_: Any, value: Any, settings: int | None = None) -> list[tf.Tensor]:
  """The leaves of a SERVER (or unplaced, or all-equal) value as tensors.

  Raises:
    MismatchError: structure, dtype or shape is not the type's.
  """
  leaves = trees.flatten(type_, value, 'server_state')
  names = trees.leaf_names(type_)
  result = []
  for leaf, leaf_type, name in zip(leaves, trees.leaf_types(type_), names, strict=True):
    if settings is not None:
      leaf_type = tff.TensorType(leaf_type.dtype.type, [settings, *trees.static_shape(leaf_type)])
    result.append(trees.to_tensor(leaf, leaf_type, name))
  return result


def stack(type_: Any, clients: Any) -> list[Any]:
  """The leaves [P, ...] of a list of clients' values, padded to a bucket.

  Raises:
    MismatchError: a client's structure, dtype or shape is not the type's.
  """
  names, types = trees.leaf_names(type_), trees.leaf_types(type_)
  per_client = [trees.flatten(type_, value, f'client {i}') for i, value in enumerate(clients)]
  size = devices_lib.padded_size(len(clients))
  stacks = []
  for index, (name, leaf_type) in enumerate(zip(names, types, strict=True)):
    shape = tuple(trees.static_shape(leaf_type))
    result = np.zeros((size, *shape), leaf_type.dtype)
    for client, leaves in enumerate(per_client):
      result[client] = trees.to_array(leaves[index], leaf_type, f'client {client}: {name}')
    stacks.append(tf.convert_to_tensor(result))
  return stacks


def _result(type_, parts, at_clients) -> Any:
  """Python containers of a result's parts; `at_clients` makes those of CLIENTS parts."""
  if isinstance(type_, tff.StructType):
    elements = [(name, _result(t, parts, at_clients)) for name, t in trees.fields(type_)]
    # The elements are containers already; only this level is converted.
    return tff.types.type_to_py_container(tff.structure.Struct(elements), _shell(type_))
  value = next(parts)
  if stages.is_client_part(type_):
    return at_clients(type_.member, value)
  return values.python_value(trees.member(type_), value)


def _shell(type_):
  """The struct type with opaque elements."""
  opaque = [(n, tff.TensorType(np.int32)) for n, _ in trees.fields(type_)]
  if isinstance(type_, tff.StructWithPythonType):
    return tff.StructWithPythonType(opaque, type_.python_container)
  return tff.StructType(opaque)
