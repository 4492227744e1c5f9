"""The XLA runtime: rounds over a population that stays on the device."""

import collections
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, memory, trees
from runtime.xla import context as context_lib
from runtime.xla import devices as devices_lib
from runtime.xla import executable, program, state_variables


class XlaRuntime(interface.Runtime):
  """Runs rounds as one compiled program each, on CPUs or GPUs."""

  name = 'xla'

  def __init__(self, *, devices: str = 'cpu', clients_per_block: int | None = None):
    """Makes a runtime; the arguments are `XlaContext`'s."""
    self.context = context_lib.XlaContext(devices=devices, clients_per_block=clients_per_block)
    self._clients_per_block = clients_per_block
    self._placed: dict[Any, int] = {}  # rows of the last data of a form

  def place(self, tree: Any, *, allow_nan: bool = False, work: Any = None) -> interface.ClientData:
    tree, arrays = trees.stacked_leaves(tree, what='data', allow_nan=allow_nan)
    if not arrays:
      raise ValueError('data has no arrays.')
    count, rows = len(arrays[0]), self._num_rows(arrays)
    work = interface.checked_work(work, count)

    def upload(array):
      if rows > count:
        padded = memory.room((rows, *array.shape[1:]), array.dtype)
        padded[:count], padded[count:] = array, 0
        array = padded
      return devices_lib.shared(array, self.context.devices[0])

    placed = self._upload(tree, upload, arrays, 'data')
    return interface.ClientData(tree=placed, num_clients=count, num_rows=rows, work=work)

  def _num_rows(self, arrays) -> int:
    """The rows to make room for.

    The first data of a form are taken as they are: usually they are the population's.
    Data of the same form that come later are taken as a cohort's, one of many of
    varying size: they are padded, so that they share programs.
    """
    form = tuple((a.shape[1:], a.dtype.str) for a in arrays)
    count, last = len(arrays[0]), self._placed.get(form)
    rows = count
    if last is not None and last != count:
      rows = last if count < last < 2 * count else devices_lib.padded_size(count)
    self._placed[form] = rows
    return rows

  def place_states(self, tree: Any, *, allow_nan: bool = False) -> interface.ClientStates:
    tree = {} if tree is None else tree
    tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    count = len(arrays[0]) if arrays else None
    device = self.context.devices[0]
    make = functools.partial(state_variables.create, device=device)
    placed = self._upload(tree, make, arrays, 'states') if arrays else tree
    return interface.ClientStates(tree=placed, num_clients=count, fetch=self.to_numpy)

  def _upload(self, tree, make, arrays, what):
    device = self.context.devices[0]
    size = sum(a.nbytes for a in arrays)
    free = min(devices_lib.free_memory(where) for where in (device, 'CPU'))  # by way of the host

    def visit(node):
      if isinstance(node, Mapping):
        return collections.OrderedDict((k, visit(v)) for k, v in node.items())
      return make(node)

    try:
      with devices_lib.refused_if_too_large(device, size), tf.device(device):
        return visit(tree)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
      raise MemoryError(
        f'The {what} of {len(arrays[0])} clients are {devices_lib.gigabytes(size)}, and'
        f' {devices_lib.gigabytes(free)} are free on {device}; {free * len(arrays[0]) // size}'
        ' clients would fit.'
      ) from error

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
    parameter, result = round_types(next_computation)
    states = client_states or self.place_states(None)
    rows = interface.cohort_rows(cohort, data_rows, data.num_clients, states.num_clients, settings)
    parts = self._parts(parameter, server_state, states, data, settings)
    if settings is None:
      server, metrics = self._round(next_computation, parts, states, data, rows, None)
    else:
      size = self._settings_at_once(parameter, rows)
      if size >= settings:  # the usual case: nothing is cut and joined
        server, metrics = self._round(next_computation, parts, states, data, rows, settings)
      else:
        outputs = [
          self._round(
            next_computation,
            [[leaf[start : start + size] for leaf in parts[0]], *parts[1:]],
            states,
            data,
            rows[start : start + size],
            len(rows[start : start + size]),
          )
          for start in range(0, settings, size)
        ]
        server, metrics = (
          [tf.concat(leaves, axis=0) for leaves in zip(*of_part, strict=True)]
          for of_part in zip(*outputs, strict=True)
        )
    return (
      trees.container(result[0], iter(server)),
      trees.container(result[2], iter(metrics)),
    )

  def _round(self, computation, parts, states, data, rows, settings):
    run = self.context.executable(computation, settings=settings, updated=(1, 1))
    cohort, _ = _cohort(rows, states, data, settings, self.context.devices)
    server, _, metrics = run(parts, cohort)
    return server, metrics

  def _settings_at_once(self, parameter, rows) -> int:
    """How many settings of a sweep fit into half of the free memory, in equal chunks.

    A setting takes its server state four times (old, new, aggregate, work) and its
    cohort's client states twice (old, new).
    """
    cohort = max(len(state_rows) for state_rows, _ in rows)
    each = 4 * trees.num_bytes(parameter[0]) + 2 * cohort * trees.num_bytes(parameter[1])
    fits = devices_lib.free_memory(self.context.devices[0]) // 2 // max(1, each)
    chunks = -(-len(rows) // max(1, fits))
    return -(-len(rows) // chunks)

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
    parameter = list(computation.type_signature.parameter)
    states = client_states or self.place_states(None)
    every = interface.evaluation_rows(
      rows, data_rows, data.num_clients, states.num_clients, settings
    )
    run = self.context.executable(computation, settings=settings)
    parts = self._parts(parameter, server_state, states, data, settings)
    cohort, order = _cohort(every, states, data, settings, self.context.devices)
    (values,) = run(parts, cohort)
    each = len(every[0][0])
    shape = [each] if settings is None else [settings, each]
    back = np.argsort(order)
    leaves = [np.asarray(v)[back].reshape(*shape, *v.shape[1:]) for v in values]
    return trees.container(computation.type_signature.result.member, iter(leaves))

  def _parts(self, parameter, server_state, states, data, settings):
    program_types = [program.placed_parts(t) for t in parameter]
    if any(len(types) != 1 for types in program_types):
      raise ValueError('Each parameter of a round must be placed as a whole.')
    return [
      context_lib.server_leaves(parameter[0], server_state, settings),
      stack_leaves(parameter[1], states.tree, 'client_states'),
      stack_leaves(parameter[2], data.tree, 'data'),
    ]

  def to_numpy(self, tree: Any) -> Any:
    with devices_lib.failures_named():
      return state_variables.to_numpy(tree)

  @property
  def description(self) -> str:
    names = dict.fromkeys(d.rsplit('/device:', 1)[-1] for d in self.context.devices)
    devices = ', '.join(names)
    block = self._clients_per_block or 'default'
    return f'XLA on {devices}, clients per block: {block}'


def round_types(computation: Any) -> tuple[list[tff.Type], list[tff.Type]]:
  """The types of a round's parameters and results.

  Raises:
    ValueError: the computation has not the form of a round.
  """
  signature = computation.type_signature
  for type_ in (signature.parameter, signature.result):
    if not isinstance(type_, tff.StructType) or len(type_) != 3:
      raise ValueError(
        'A round takes (server_state, client_state, data) and returns'
        f' (server_state, client_state, metrics); this computation is {signature}.'
      )
  return list(signature.parameter), list(signature.result)


def stack_leaves(type_: tff.Type, tree: Any, what: str) -> list[Any]:
  """The leaves [K, ...] of clients' values, checked.

  Raises:
    ValueError: structure, dtype or shape is not the type's.
  """
  leaves = trees.flatten(type_, tree, what)
  for leaf, leaf_type, name in zip(
    leaves, trees.leaf_types(type_), trees.leaf_names(type_), strict=True
  ):
    if not trees.static_shape(leaf_type).is_compatible_with(leaf.shape[1:]):
      raise ValueError(
        f'{what}.{name} has the shape {leaf.shape[1:]} for a client;'
        f' {trees.static_shape(leaf_type)} is expected.'
      )
    dtype = state_variables.dtype_of(leaf)
    if dtype != tf.as_dtype(leaf_type.dtype):
      raise ValueError(
        f'{what}.{name} has the dtype {dtype.name};'
        f' {tf.as_dtype(leaf_type.dtype).name} is expected.'
      )
  return leaves


def _cohort(rows, states, data, settings, devices) -> tuple[executable.Cohort, np.ndarray]:
  """Who takes part, in the order of their work; and that order, of the positions in `rows`."""
  shares = len(devices) if settings is None else 1  # a device gets whole settings
  orders, first = [], 0
  known: dict[int, np.ndarray] = {}  # settings with the same seed have the same cohort
  for _, own in rows:
    if id(own) not in known:
      known[id(own)] = interface.by_work(data.work, own, shares)
    orders.append(first + known[id(own)])
    first += len(own)
  order = np.concatenate(orders)
  ids = None
  if settings is not None:
    ids = np.concatenate([np.full(len(s), i, np.int32) for i, (s, _) in enumerate(rows)])
  cohort = executable.Cohort(
    rows=[np.concatenate(of_part)[order] for of_part in zip(*rows, strict=True)],
    settings=ids,
    count=len(order),
    limit=states.num_clients or data.num_rows * (settings or 1),
  )
  return cohort, order
