"""A computation that is ready to run: bound to devices, traced and compiled on first use."""

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla import local, program
from runtime.xla import stages as stages_lib


@dataclasses.dataclass
class Statistics:
  """What compiling has cost so far."""

  compilations: int = 0
  seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cohort:
  """Who takes part in one execution, on the host.

  Attributes:
    rows: for every parameter part at CLIENTS, the row of each client in its stack.
    settings: the setting of each (virtual) client, ascending; None without a sweep.
    count: the number of clients.
    limit: the most clients there can be; None if unknown.
  """

  rows: Sequence[np.ndarray]
  settings: np.ndarray | None
  count: int
  limit: int | None


class Executable:
  """Runs one program.

  A parameter or result is given as the list of its *parts*: its placed types and
  unplaced leaves, depth first, each part a flat list of tensors.
  """

  def __init__(
    self,
    prog: program.Program,
    *,
    devices: Sequence[str],
    clients_per_block: int | None,
    statistics: Statistics,
    settings: int | None = None,
    updated: tuple[int, int] | None = None,
  ):
    """Makes an executable.

    Args:
      prog: a program whose values are all static.
      devices: TensorFlow device names; clients are split over them.
      clients_per_block: clients vectorised at once; None for the default.
      statistics: where compilations are counted.
      settings: S of a sweep, or None.
      updated: (parameter part, result part): the parameter part is a list of
        variables, whose rows take the values of the result part.
    """
    self._program = prog
    self._devices = devices
    self._clients_per_block = clients_per_block
    self._statistics = statistics
    self._settings = settings
    self._updated = updated
    self._bucket = 0
    self._functions: dict[int, Any] = {}

  def __call__(self, parts: Sequence[Sequence[Any]], cohort: Cohort) -> list[list[tf.Tensor]]:
    """Runs the program.

    Args:
      parts: the parameter's parts; SERVER leaves [...] ([S, ...] in a sweep),
        CLIENTS leaves [K, ...].
      cohort: who takes part.

    Returns:
      The result's parts; CLIENTS leaves are [P, ...], the first `count` rows valid.
      The updated part, if any, is empty.

    Raises:
      UnsupportedComputationError: XLA has no kernel for an op.
      MemoryError: it does not fit on the device.
    """
    block = self._block(parts, cohort)
    if cohort.count > self._bucket or self._bucket % block:
      size = max(self._bucket, devices_lib.padded_size(cohort.count, cohort.limit))
      self._bucket = -(-size // block) * block
    padding = self._bucket - cohort.count
    rows = []
    for index, row_list in enumerate(cohort.rows):
      # XLA drops writes beyond the end: padding rows change no client's state.
      end = self._num_rows(parts, index)
      rows.append(np.pad(row_list, (0, padding), constant_values=end).astype(np.int32))
    settings = None
    if cohort.settings is not None:
      settings = np.pad(cohort.settings, (0, padding)).astype(np.int32)
    function = self._function(block)
    before = self._statistics.compilations
    start = time.perf_counter()
    try:
      result = function(list(parts), rows, settings, tf.constant(cohort.count, tf.int32))
    except (tf.errors.OpError, MemoryError) as error:
      raise self._explained(error, block, cohort.count) from error
    if self._statistics.compilations > before:
      self._statistics.seconds += time.perf_counter() - start
    return result

  def _num_rows(self, parts, clients_index: int) -> int:
    types = self._part_types()
    at_clients = [p for p, t in zip(parts, types) if stages_lib.is_client_part(t)]
    leaves = at_clients[clients_index]
    return leaves[0].shape[0] if leaves else 0

  def _part_types(self):
    if self._program.parameter_type is None:
      return []
    return program.placed_parts(self._program.parameter_type)

  def _block(self, parts, cohort: Cohort) -> int:
    if self._clients_per_block is not None:
      return self._clients_per_block
    size = 0
    for leaves, type_ in zip(parts, self._part_types()):
      for leaf, leaf_type in zip(leaves, trees.leaf_types(type_)):
        count = trees.static_shape(leaf_type).num_elements()
        size += 4 * count  # Compact data are converted to float32.
        del leaf
    clients = cohort.count if cohort.limit is None else cohort.limit
    if self._bucket:
      clients = min(clients, self._bucket)
    return devices_lib.clients_per_block(self._devices[0], size, max(1, clients))

  def _function(self, block: int):
    if block not in self._functions:
      stages = stages_lib.Stages(program=self._program, block=block, settings=self._settings)
      self._functions[block] = tf.function(
        lambda *arguments: self._trace(stages, *arguments), jit_compile=True, autograph=False
      )
      # TensorFlow would warn that many functions come from this one line.
      # pylint: disable-next=protected-access
      self._functions[block]._omit_frequent_tracing_warning = True
    function = self._functions[block]

    def on_device(*arguments):
      with tf.device(self._devices[0]):
        return function(*arguments)

    return on_device

  def _trace(self, stages: stages_lib.Stages, parts, rows, settings, count):
    self._statistics.compilations += 1
    variables = []
    if self._updated is not None:
      variables = parts[self._updated[0]]
      parts = list(parts)
      parts[self._updated[0]] = [v.read_value() for v in variables]
    types = self._part_types()
    parameter = [trees.nested(t, iter(leaves)) for t, leaves in zip(types, parts)]
    clients = stages_lib.Clients(
      rows=rows, settings=settings, count=count, bucket=self._bucket
    )
    env, kept = {}, {}
    for stage in range(self._program.num_stages):
      env |= stages.server(stage, parameter, env)
      totals, values = stages.clients(stage, parameter, env, kept, clients)
      env |= totals
      kept |= values
    value = stages.result(parameter, env, kept, clients)
    result = [
      tf.nest.flatten(part) for part in stages_lib.split(self._program.result_type, value)
    ]
    if self._updated is not None:
      at_clients = [i for i, t in enumerate(types) if stages_lib.is_client_part(t)]
      index = rows[at_clients.index(self._updated[0])][:, tf.newaxis]
      for variable, new in zip(variables, result[self._updated[1]]):
        variable.scatter_nd_update(index, new)
      result[self._updated[1]] = []
    return result

  def _explained(self, error, block: int, count: int) -> Exception:
    message = str(error)
    if isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError)):
      smaller = max(1, block // 2)
      advice = (
        f'--clients_per_block={smaller}' if block > 1 else f'a cohort of {max(1, count // 2)}'
      )
      return MemoryError(
        f'{count} clients in blocks of {block} do not fit in the memory of'
        f' {", ".join(self._devices)}; try {advice}.'
      )
    found = re.search(r'unsupported operations?[^:]*: *(\w+)', message) or re.search(
      r"No registered '(\w+)'", message
    )
    if found:
      return local.unsupported(f'the op {found.group(1)}')
    return interface.UnsupportedComputationError(
      'The xla runtime could not run this computation; --runtime=native may. XLA says: '
      + message.strip().splitlines()[0]
    )
