"""TFF's execution-context interface on top of compiled programs."""

import collections
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.context_stack import context_base, context_stack_impl
from tensorflow_federated.python.core.impl.types import computation_types, type_conversions

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla import eager, executable, program, stages, values

_CACHED_PROGRAMS = 64
_HAS_NAN = ' has NaN or infinite values.'
_NOT_FINITE = re.compile(r'[\w.]+: client \d+' + re.escape(_HAS_NAN))


class XlaContext(context_base.SyncContext):
  """Runs TFF computations as XLA programs on CPUs or GPUs.

  Use it as any TFF context:

      with runtime.XlaContext(devices='gpu'):
        state = process.initialize()
        output = process.next(state, client_data)

  or for the whole program with `tff.framework.set_default_context(context)`.
  Client values are ordinary Python lists with one structure of arrays for each
  client. Results at CLIENTS are sequences that stay on the device; give them back
  to the next call as they are. Computations with `tf.data` sequences, strings or
  unknown shapes run too, one client at a time and not compiled.
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
      compiled: False for the plain interpreter, one client at a time.

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
    self._installed: list[Any] = []

  def __enter__(self) -> 'XlaContext':
    installed = context_stack_impl.context_stack.install(self)
    installed.__enter__()
    self._installed.append(installed)
    return self

  def __exit__(self, *exception: Any) -> None:
    self._installed.pop().__exit__(*exception)

  def program(self, computation: Any) -> program.Program:
    """The compiled form of a computation, made once."""
    key = id(computation)
    if key not in self._programs:
      # The computation is kept, so that its id is not given to another one.
      self._programs[key] = (computation, program.build(computation))
      while len(self._programs) > _CACHED_PROGRAMS:
        old, _ = self._programs.popitem(last=False)
        self._executables = {k: v for k, v in self._executables.items() if k[0] != old}
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
    key = (id(computation), settings, updated)
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
    parts = _parameter_parts(prog.parameter_type, arg)
    count = _cardinality(parts)
    if self._compiled and prog.is_static:
      result = self._invoke_compiled(comp, prog, parts, count)

      def at_clients(type_, leaves):
        return values.StackedClients(type_, leaves, count)
    else:
      result = _invoke_eager(self._eager(comp), prog, parts, count)

      def at_clients(type_, clients):
        return [_unplaced(type_, value) for value in clients]

    return _result(prog.result_type, iter(result), at_clients)

  def _eager(self, comp) -> eager.EagerProgram:
    key = (id(comp), 'eager')
    if key not in self._executables:
      self._executables[key] = eager.EagerProgram(self.program(comp))
    return self._executables[key]

  def _invoke_compiled(self, comp, prog, parts, count):
    leaves, rows = [], []
    for type_, value in parts:
      if stages.is_client_part(type_):
        leaves.append(stack(type_.member, value))
        rows.append(np.arange(count))
      else:
        leaves.append(server_leaves(type_, value))
    cohort = executable.Cohort(rows=rows, settings=None, count=count, limit=None)
    return self.executable(comp)(leaves, cohort)


def _parameter_parts(type_: Any, value: Any, what: str = 'argument') -> list[tuple[Any, Any]]:
  """(type, value) of a parameter's placed parts and unplaced leaves."""
  if type_ is None:
    return []
  if not isinstance(type_, computation_types.StructType):
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
    raise ValueError(f'The arguments at CLIENTS are for different numbers of clients: {sizes}.')
  return sizes.pop() if sizes else 0


def server_leaves(type_: Any, value: Any, settings: int | None = None) -> list[tf.Tensor]:
  """The leaves of a SERVER (or unplaced, or all-equal) value as tensors.

  Raises:
    ValueError: structure, dtype or shape is not the type's.
  """
  leaves = trees.flatten(type_, value, 'server_state')
  names = trees.leaf_names(type_)
  result = []
  for leaf, leaf_type, name in zip(leaves, trees.leaf_types(type_), names, strict=True):
    if settings is not None:
      leaf_type = computation_types.TensorType(
        leaf_type.dtype.type, [settings, *trees.static_shape(leaf_type)]
      )
    result.append(trees.to_tensor(leaf, leaf_type, name))
  return result


def stack(type_: Any, clients: Any) -> list[Any]:
  """The leaves [P, ...] of a list of clients' values, padded to a bucket.

  Raises:
    ValueError: a client's structure, dtype or shape is not the type's, or it has NaN.
  """
  if isinstance(clients, values.StackedClients):
    if not type_.is_assignable_from(clients.type):
      raise ValueError(f'Clients of type {clients.type} are given where {type_} is expected.')
    return clients.leaves
  names, types = trees.leaf_names(type_), trees.leaf_types(type_)
  per_client = [trees.flatten(type_, value, f'client {i}') for i, value in enumerate(clients)]
  size = devices_lib.padded_size(len(clients))
  stacks = []
  for index, (name, leaf_type) in enumerate(zip(names, types, strict=True)):
    shape = tuple(trees.static_shape(leaf_type))
    result = np.zeros((size, *shape), leaf_type.dtype)
    for client, leaves in enumerate(per_client):
      leaf = leaves[index]
      result[client] = trees.to_tensor(leaf, leaf_type, f'client {client}: {name}').numpy()
    if result.dtype.kind == 'f':
      trees.check_finite(result[: len(clients)], name)
    stacks.append(tf.convert_to_tensor(result))
  return stacks


def _invoke_eager(run: eager.EagerProgram, prog, parts, count) -> list[Any]:
  built = []
  for type_, value in parts:
    if stages.is_client_part(type_):
      built.append([_eager_value(type_.member, v, client) for client, v in enumerate(value)])
    else:
      built.append(_eager_value(type_, value))
  parameter = stages.assemble(prog.parameter_type, built) if built else None
  try:
    with tf.device('CPU:0'):
      result = run(parameter, count)
  except tf.errors.InvalidArgumentError as error:
    if found := _NOT_FINITE.search(error.message):
      raise ValueError(found.group()) from None
    raise
  return stages.split(prog.result_type, result)


def _eager_value(type_, value, client: int | None = None):
  """A value for the interpreter; that of a client must be finite."""
  leaves = []
  types, names = trees.leaf_types(type_), trees.leaf_names(type_)
  for leaf, leaf_type, name in zip(trees.flatten(type_, value), types, names, strict=True):
    if isinstance(leaf_type, computation_types.SequenceType):
      variant = tf.data.experimental.to_variant(_dataset(leaf_type, leaf))
      if client is not None:
        variant = _checked_sequence(leaf_type)(variant, client)
      leaves.append(variant)
    else:
      tensor = trees.to_tensor(leaf, leaf_type, name)
      if client is not None and tensor.dtype.is_floating:
        trees.check_finite(tensor.numpy()[np.newaxis], name, first=client)
      leaves.append(tensor)
  return trees.nested(type_, iter(leaves))


@functools.cache
def _checked_sequence(type_) -> Any:
  """(variant of a data set, client) -> the variant; reading what is not finite is an error.

  One traced function for all clients: to map each client's data set would trace each time.
  """
  names = trees.leaf_names(type_.element)

  @tf.function(autograph=False, reduce_retracing=True)
  def checked(variant, client):
    def check(*fields):
      element = fields if len(fields) > 1 else fields[0]
      asserted = []
      for name, leaf in zip(names, trees.flatten(type_.element, element), strict=True):
        if leaf.dtype.is_floating:
          message = tf.strings.format(name + ': client {}' + _HAS_NAN, client)
          finite = tf.reduce_all(tf.math.is_finite(leaf))
          asserted.append(tf.debugging.Assert(finite, [message]))
      with tf.control_dependencies(asserted):
        return tf.nest.map_structure(tf.identity, element)

    dataset = tf.data.experimental.from_variant(variant, _signature(type_))
    return tf.data.experimental.to_variant(dataset.map(check))

  return lambda variant, client: checked(variant, tf.constant(client))


def _dataset(type_, value) -> tf.data.Dataset:
  if isinstance(value, tf.data.Dataset):
    return value
  return tf.data.Dataset.from_generator(lambda: iter(value), output_signature=_signature(type_))


def _signature(type_: computation_types.SequenceType) -> Any:
  return type_conversions.structure_from_tensor_type_tree(
    lambda t: tf.TensorSpec(trees.static_shape(t), t.dtype), type_.element
  )


def _result(type_, parts, at_clients) -> Any:
  """Python containers of a result's parts; `at_clients` makes those of CLIENTS parts."""
  if isinstance(type_, computation_types.StructType):
    elements = [(name, _result(t, parts, at_clients)) for name, t in trees.fields(type_)]
    # The elements are containers already; only this level is converted.
    return type_conversions.type_to_py_container(structure.Struct(elements), _shell(type_))
  value = next(parts)
  if stages.is_client_part(type_):
    return at_clients(type_.member, value)
  return _unplaced(trees.member(type_), value)


def _unplaced(type_, value):
  leaves = []
  for leaf, leaf_type in zip(tf.nest.flatten(value), trees.leaf_types(type_), strict=True):
    if isinstance(leaf_type, computation_types.SequenceType):
      leaf = tf.data.experimental.from_variant(leaf, _signature(leaf_type))
    leaves.append(leaf)
  return trees.container(type_, iter(leaves))


def _shell(type_):
  """The struct type with opaque elements."""
  opaque = [(n, computation_types.TensorType(np.int32)) for n, _ in trees.fields(type_)]
  if isinstance(type_, computation_types.StructWithPythonType):
    return computation_types.StructWithPythonType(opaque, type_.python_container)
  return computation_types.StructType(opaque)
