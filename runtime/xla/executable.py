"""A computation that is ready to run: bound to devices, traced and compiled on first use.

Long because `Executable` is.
"""

import contextlib
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla import local, program
from runtime.xla import stages as stages_lib
from runtime.xla.handed_on import HandedOn
from runtime.xla.lowering import datasets, scope, support

# What vectorising raises at an op that it does not foresee, and XLA's refusal.
_NOT_VECTORISED = (AssertionError, NotImplementedError, TypeError, ValueError)
_USABLE = 0.5  # Of the free memory: TensorFlow takes it in regions, each twice the last.


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

  Long because one device and several run the same padded cohort, and grow it alike.
  """

  def __init__(
    self,
    prog: program.Program,
    *,
    devices: Sequence[str],
    clients_per_block: int | None,
    statistics: interface.Statistics,
    settings: int | None = None,
    updated: tuple[int, int] | None = None,
    is_lowered: bool = False,
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
      is_lowered: whether graphs with data sets, variables and random ops are interpreted;
        each call then gets fresh random bits.
    """
    self._has_context = is_lowered  # that keeps reasons, and runs the program in another way
    # XLA would take what is as long as data say for longer, without a word.
    self._is_lowered = is_lowered or support.has_lengths_of_data(prog)
    self._calls = 0
    self._program = prog
    self._devices = devices
    self._clients_per_block = clients_per_block
    self._statistics = statistics
    self._settings = settings
    self._updated = updated
    self.serial_reason: str | None = None
    self._bucket = 0
    self._stages: Any = None
    self._functions: dict[Any, Any] = {}
    self._part_types = (
      [] if prog.parameter_type is None else program.placed_parts(prog.parameter_type)
    )

  @property
  def block(self) -> int:
    """The number of clients that were vectorised at once in the last call."""
    return 1 if self._stages is None else self._stages.block

  def __call__(self, parts: Sequence[Sequence[Any]], cohort: Cohort) -> list[list[tf.Tensor]]:
    """Runs the program.

    Args:
      parts: the parameter's parts; SERVER leaves [...] ([S, ...] in a sweep),
        CLIENTS leaves [K, ...].
      cohort: who takes part.

    A program that cannot be vectorised works on one client at a time, from its first call on;
    `serial_reason` says why. (One that is lowered raises the error: its context keeps the reason
    for all forms of its data.)

    Returns:
      The result's parts; CLIENTS leaves are [P, ...], the first `count` rows valid.
      The updated part, if any, is empty.

    Raises:
      UnsupportedComputationError: XLA has no kernel for an op.
      MemoryError: it does not fit on the device.
      DeviceError: the device failed.
    """
    try:
      with self._watched(cohort):
        return self._run(parts, cohort)
    except (*_NOT_VECTORISED, datasets.NotLowered) as error:
      if not self._has_context and self.block == 1 and isinstance(error, datasets.NotLowered):
        raise local.unsupported(str(error)) from error
      if self._has_context or self.block == 1:
        raise
      reason, block, asked = reason_of(error), self.block, self._clients_per_block
    self._clients_per_block, self._stages = 1, None
    try:
      result = self(parts, cohort)
    except Exception:  # It was not the block: a wrong argument slows no later call.
      self._clients_per_block, self._stages = asked, None
      raise
    self.serial_reason = reason
    warnings.warn(
      f'Clients are worked on one at a time, and not {block} at once: {reason}',
      RuntimeWarning,
      stacklevel=2,
    )
    return result

  @contextlib.contextmanager
  def _watched(self, cohort: Cohort) -> Iterator[None]:
    """Makes room for a cohort, counts what is compiled, and names what fails."""
    is_new, programs = self._fit_bucket(cohort), self._statistics.programs
    self._calls += 1
    limit = devices_lib.refused_if_too_large(self._devices[0])
    try:
      with self._statistics.watch(), limit if is_new else contextlib.nullcontext():
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
      too_large = self._too_large(str(error), cohort.count)
      self._stages = None  # The next call chooses anew.
      raise too_large from error
    except tf.errors.OpError as error:
      was_compiled = self._statistics.programs == programs  # XLA has nothing to refuse.
      if isinstance(error, devices_lib.FAILURES) and (was_compiled or 'CUDA_ERROR' in str(error)):
        with devices_lib.failures_named():
          raise
      raise _explained(str(error)) from error

  def _run(self, parts, cohort: Cohort):
    if len(self._devices) > 1:
      return self._on_several_devices(parts, cohort)
    with tf.device(self._devices[0]):
      return self._on_one_device(parts, self._padded(parts, cohort, self._bucket))

  def _fit_bucket(self, cohort: Cohort) -> bool:
    """Sets the bucket and the block, when the cohort is larger than all before."""
    if self._stages is not None and cohort.count <= self._bucket:
      return False
    size = devices_lib.padded_size(cohort.count, cohort.limit)
    share = -(-size // len(self._devices))
    block = self._clients_per_block or devices_lib.clients_per_block(
      self._devices[0], self._bytes_per_client(), size // len(self._devices)
    )
    block = min(block, share)
    unit = block * len(self._devices)
    self._bucket = -(-size // unit) * unit
    if self._stages is None or self._stages.block != block:
      self._functions.clear()
      self._stages = stages_lib.Stages(
        program=self._program,
        block=block,
        settings=self._settings,
        is_one_thread=len(set(self._devices)) < len(self._devices),
      )
    return True

  def _bytes_per_client(self) -> int:
    """A client's data and model; compact data are converted to float32."""
    leaves = [leaf for t in self._part_types for leaf in trees.leaf_types(t)]
    return 4 * sum(trees.static_shape(leaf).num_elements() for leaf in leaves)

  def _padded(self, parts, cohort: Cohort, bucket: int):
    """Index arrays of a bucket's length, as (rows, settings, count)."""
    padding = bucket - cohort.count
    at_clients = [
      p for p, t in zip(parts, self._part_types, strict=True) if stages_lib.is_client_part(t)
    ]
    rows = []
    for row_list, leaves in zip(cohort.rows, at_clients, strict=True):
      # XLA drops writes beyond the end: padding rows change no client's state.
      end = leaves[0].shape[0] if leaves else 0
      rows.append(tf.constant(np.pad(row_list, (0, padding), constant_values=end), tf.int32))
    settings = cohort.settings
    if settings is not None:
      settings = tf.constant(np.pad(settings, (0, padding)), tf.int32)
    return rows, settings, tf.constant(cohort.count, tf.int32)

  def _compiled(self, key: Any, function: Any) -> Any:
    """A function, compiled by XLA on first use and then kept."""
    if key not in self._functions:

      def counted(*arguments):
        self._statistics.programs += 1
        return function(*arguments)

      compiled = tf.function(_traced(counted), jit_compile=True, autograph=False)
      # TensorFlow would warn that many functions come from this one line.
      compiled._omit_frequent_tracing_warning = True  # pylint: disable=protected-access
      self._functions[key] = compiled
    return self._functions[key]

  def _on_one_device(self, parts, clients):
    return self._compiled('round', self._round)(parts, *clients, self._fresh())

  def _fresh(self) -> tuple[tf.Tensor, ...]:
    """The random bits and the time of one call, for a program that may use them."""
    return scope.Fresh.draw(self._calls - 1).tensors() if self._is_lowered else ()

  def _round(self, parts, rows, settings, count, fresh):
    """The whole computation as one graph."""
    with scope.entered(scope_of(fresh, clients=self._bucket)):
      return self._traced_round(parts, rows, settings, count)

  def _traced_round(self, parts, rows, settings, count):
    stages = self._stages
    variables = self._variables(parts)
    parameter = self._parameter(
      [_read(t, leaves) for t, leaves in zip(self._part_types, parts, strict=True)]
    )
    clients = stages_lib.Clients(rows=rows, settings=settings, count=count, bucket=self._bucket)
    env: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for stage in range(self._program.num_stages):
      env |= stages.server(stage, parameter, env)
      totals, values = stages.clients(stage, parameter, env, kept, clients)
      env |= totals
      kept |= values
    result = self._result(stages.result(parameter, env, kept, clients))
    if 'GPU' in self._devices[0]:  # A loop would start a kernel for each row.
      self._update(variables, rows, result, write=_scatter_rows)
    else:
      self._update(variables, rows, result, count, write=_write_rows)
    return result

  def _on_several_devices(self, parts, cohort: Cohort):
    """The same in pieces: clients' work is split, and the server's is on the first device.

    The first device holds the data and the states, and sends each other device its
    clients'. A device that is named several times works on several pieces at once: a
    CPU whose cores one program leaves idle.
    """
    share = self._bucket // len(self._devices)
    members = []
    for piece in np.array_split(np.arange(cohort.count), len(self._devices)):
      padding = (0, share - len(piece))
      settings = None if cohort.settings is None else cohort.settings[piece]
      members.append(
        (
          # Rows of the padding are read, and used for nothing.
          [tf.constant(np.pad(rows[piece], padding), tf.int32) for rows in cohort.rows],
          None if settings is None else tf.constant(np.pad(settings, padding), tf.int32),
          tf.constant(len(piece), tf.int32),
        )
      )
    if 'pieces' not in self._functions:
      # Not compiled as one: the pieces are, and TensorFlow runs them side by side.
      self._functions['pieces'] = tf.function(_traced(self._round_in_pieces), autograph=False)
    with tf.device(self._devices[0]):
      return self._functions['pieces'](parts, members, self._fresh())

  def _round_in_pieces(self, parts, members, fresh):
    stages, first = self._stages, self._devices[0]
    share = self._bucket // len(self._devices)
    variables = self._variables(parts)
    inputs = [
      self._members(parts, rows, moved=device != first)
      for device, (rows, _, _) in zip(self._devices, members, strict=True)
    ]

    env: dict[str, Any] = {}
    kept: list[dict[str, Any]] = [{} for _ in self._devices]
    totals: list[dict[str, Any]] = []
    for stage in range(self._program.num_stages):
      if stages.has_server_work(stage):
        with tf.device(first):
          run = self._server_piece(stage)
          env |= run(self._server_only(parts), env, totals, fresh)
      if not stages.has_client_work(stage):
        continue
      totals = []
      for index, device in enumerate(self._devices):
        values, rows = inputs[index]
        _, settings, count = members[index]
        with tf.device(device):
          total, new = self._client_piece(stage, share)(
            values, env, kept[index], rows, settings, count, tf.constant(index), fresh
          )
        totals.append(total)
        kept[index] = kept[index] | new
    with tf.device(first):
      counts = [count for _, _, count in members]
      rows = [
        self._join(of_part, counts) for of_part in zip(*(r for r, _, _ in members), strict=True)
      ]
      values, read = self._members(parts, rows, moved=False)
      who = stages_lib.Clients(
        rows=read, settings=None, count=tf.add_n(counts), bucket=self._bucket
      )
      joined = {
        name: tf.nest.map_structure(
          lambda *leaves: self._join(leaves, counts), *(k[name] for k in kept)
        )
        for name in kept[0]
      }
      result = self._result(stages.result(self._parameter(values), env, joined, who))
      if self._updated is not None:
        # Each piece's states are written as they come: joined, they would be copied twice more.
        for (rows, _, count), (values, read), own in zip(members, inputs, kept, strict=True):
          who = stages_lib.Clients(rows=read, settings=None, count=count, bucket=share)
          of_piece = self._result(stages.result(self._parameter(values), env, own, who))
          self._update(variables, rows, of_piece, count, write=_scatter_rows)
        result[self._updated[1]] = []
    return result

  def _server_piece(self, stage: int) -> Callable[..., Any]:
    """The server's work of a stage, after what the devices or hosts give for the one before."""

    def run(values, env, totals, fresh):
      with scope.entered(scope_of(fresh, clients=self._bucket)):
        if totals:
          env = {**env, **self._stages.merge(totals, stage - 1, env)}
        return self._stages.server(stage, self._parameter(values), env)

    handed_on = HandedOn(run)
    return functools.partial(
      handed_on.call, self._compiled(('server', stage), handed_on.new_results)
    )

  def _client_piece(self, stage: int, share: int) -> Callable[..., Any]:
    """The work of a stage for some of the clients, at most `share` of them."""

    def run(values, env, kept, rows, settings, count, piece, fresh):
      who = stages_lib.Clients(rows=rows, settings=settings, count=count, bucket=share)
      with scope.entered(scope_of(fresh, clients=share, piece=piece)):
        return self._stages.clients(stage, self._parameter(values), env, kept, who)

    return self._compiled(('clients', stage, share), run)

  def _server_only(self, parts):
    return [
      [] if stages_lib.is_client_part(t) else leaves
      for t, leaves in zip(self._part_types, parts, strict=True)
    ]

  def _members(self, parts, rows, *, moved: bool):
    """The parts as some rows are to read them: (values, rows in these).

    What another device reads, and variables (whose reading would copy the population),
    are cut down to the rows; other CLIENTS leaves stay whole.
    """
    row_lists = iter(rows)
    values, read = [], []
    for index, (type_, leaves) in enumerate(zip(self._part_types, parts, strict=True)):
      if stages_lib.is_client_part(type_):
        of_part = next(row_lists)
        if moved or (self._updated is not None and index == self._updated[0]):
          leaves = [tf.gather(leaf, of_part) for leaf in leaves]
          of_part = tf.range(of_part.shape[0])
        read.append(of_part)
      values.append(_read(type_, leaves))
    return values, read

  def _join(self, leaves, counts):
    """The devices' values after each other, without their padding, padded to the bucket."""
    joined = tf.concat([leaf[:n] for leaf, n in zip(leaves, counts, strict=True)], axis=0)
    padding = [[0, self._bucket - tf.add_n(counts)]] + [[0, 0]] * (joined.shape.rank - 1)
    return tf.ensure_shape(tf.pad(joined, padding), [self._bucket, *joined.shape[1:]])

  def _parameter(self, parts):
    # A part whose leaves are kept from a piece is (); one that has none keeps its structure.
    return [
      trees.nested(t, iter(leaves)) if leaves or not trees.leaf_types(t) else ()
      for t, leaves in zip(self._part_types, parts, strict=True)
    ]

  def _variables(self, parts) -> Sequence[tf.Variable]:
    return [] if self._updated is None else parts[self._updated[0]]

  def _result(self, value) -> list[list[tf.Tensor]]:
    return [tf.nest.flatten(part) for part in stages_lib.split(self._program.result_type, value)]

  def _update(self, variables, rows, result, count=None, *, write) -> None:
    """Writes the updated part's rows into the variables, and takes them out of the result."""
    if self._updated is None:
      return
    parameter_part, result_part = self._updated
    before = self._part_types[:parameter_part]
    index = rows[sum(stages_lib.is_client_part(t) for t in before)]
    for variable, new in zip(variables, result[result_part], strict=True):
      write(variable, index, tf.cast(new, variable.dtype), count)
    result[result_part] = []

  def _too_large(self, message: str, count: int) -> MemoryError:
    """What to say when memory does not suffice: how much it is, and what would fit.

    A program needs memory for the lanes of a block, and for what it keeps of every
    client. How much XLA asked for in vain is in its message.
    """
    device, block = self._devices[0], self._stages.block
    pieces = self._devices.count(device)  # They work side by side.
    stages = range(self._program.num_stages)
    kept = sum(trees.num_bytes(n.type) for stage in stages for n in self._program.kept(stage))
    of_all = kept * self._bucket
    found = re.search(r'allocate (\d+) ?bytes', message)
    if found:
      of_lane = max(1, pieces * int(found.group(1)) - of_all) / block
    else:
      of_lane = pieces * devices_lib.working_memory(self._bytes_per_client())
    free = devices_lib.free_memory(device)
    space = _USABLE * free
    lanes = int((space - of_all) // of_lane)
    clients = int((space - of_lane) // kept) if kept else 0
    if 1 <= lanes < block:
      advice = f'--clients_per_block={lanes} would'
    elif clients >= 1:
      advice = f'a cohort of {min(clients, count - 1)} with --clients_per_block=1 would'
    else:
      advice = 'not even one client would: take smaller batches, a smaller model or fewer examples'
    return MemoryError(
      f'{count} clients in blocks of {block} do not fit in the memory of'
      f' {", ".join(dict.fromkeys(self._devices))}: they need about'
      f' {devices_lib.gigabytes(of_lane * block + of_all)} and'
      f' {devices_lib.gigabytes(free)} are free; {advice}.'
    )


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function to be traced, whose graph does not keep the variables that it was traced with.

  TensorFlow's does until it is freed itself, with all that they hold: here the states of a
  whole population, while the compiled function goes on with those of another.
  """

  def run(*arguments):
    result = function(*arguments)
    graph = tf.compat.v1.get_default_graph()
    graph._resource_tensor_inputs.clear()  # pylint: disable=protected-access
    return result

  return run


def _read(type_: tff.Type, leaves: Sequence[Any]) -> list[tf.Tensor]:
  """Variables' values: a loop that read a variable itself would keep it (see `_traced`).

  Of what is held in another dtype (`state_variables`) it gives the type's.
  """
  types = trees.leaf_types(type_)
  return [
    tf.cast(tf.convert_to_tensor(leaf), t.dtype) for leaf, t in zip(leaves, types, strict=True)
  ]


def _write_rows(variable: tf.Variable, index: tf.Tensor, rows: tf.Tensor, count) -> None:
  """Overwrites `count` rows of a variable, none of them beyond its end, in place when compiled.

  XLA's scatter would write a row onto itself for every row of the padding, and each one number
  at a time. Rows of numbers are written, as its loop over the sizes of a row is slow where the
  last is small.
  """
  shape = variable.shape
  flat = [shape[0], shape[1:].num_elements()]
  values = tf.reshape(rows, [rows.shape[0], flat[1]])

  def write(i, table):
    return i + 1, stages_lib.overwrite(table, tf.gather(values, i)[tf.newaxis], index[i])

  _, table = tf.while_loop(
    lambda i, _: i < count, write, (tf.constant(0), tf.reshape(variable, flat))
  )
  variable.assign(tf.reshape(table, shape))


def _scatter_rows(variable: tf.Variable, index: tf.Tensor, rows: tf.Tensor, count=None) -> None:
  """The same by one op; compiled, of all rows: XLA drops the padding's, beyond the end."""
  if 0 not in variable.shape[1:]:  # TensorFlow refuses rows of nothing.
    variable.scatter_nd_update(index[:count, tf.newaxis], rows[:count])


def scope_of(
  fresh: Sequence[tf.Tensor], *, clients: int, piece: tf.Tensor | None = None
) -> scope.Scope | None:
  """What a round, or a piece of one, is traced in.

  Args:
    fresh: its random bits and time; () if the program uses none.
    clients: how many it has at most.
    piece: which piece it is; None for the round.
  """
  if not fresh:
    return None
  key, number, time = fresh
  new = scope.Fresh(key=key, number=number, time=time)
  if piece is None:
    return scope.Scope(fresh=new, clients=clients)
  return scope.of_piece(new, piece, clients)


def _explained(message: str) -> Exception:
  """The error for a computation that XLA refuses."""
  found = re.search(r'unsupported operations?[^:]*: *(\w+)', message) or re.search(
    r"No registered '(\w+)'", message
  )
  if found:
    return local.unsupported(f'the op {found.group(1)}')
  if found := re.search(r'with op (\w+) must be a compile-time constant', message):
    return local.unsupported(f'the op {found.group(1)} of sizes that depend on data')
  return interface.UnsupportedComputationError(
    'The xla runtime could not run this computation; --runtime=native may. XLA says: '
    + message.strip().splitlines()[0]
  )


def reason_of(error: Exception) -> str:
  """An error in a line."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  if not lines:
    return type(error).__name__
  # TensorFlow puts a traceback before what it says of a traced function.
  return lines[-1] if lines[0] == 'in user code:' else lines[0]
