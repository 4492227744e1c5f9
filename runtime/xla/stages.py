"""Executes a program's stages as TensorFlow ops of one graph, for XLA to compile.

Clients are visited in blocks, in a `while` loop whose number of turns is the
number of blocks that have a client. Index arrays are padded to a bucket, so a
cohort of another size is the same program; the padding is never visited, except
in the last block, where its lanes are kept out of every sum.

In a sweep, SERVER values have a leading settings axis [S, ...]; a client of a
setting is a *virtual client*, and reads the server values of its setting.

Long because `Stages` is.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from runtime import trees
from runtime.xla import aggregation, large_fills, local, program, vectorize
from runtime.xla.lowering import scope

_Kind = program.Kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clients:
  """Which clients take part: tensors padded to a bucket [P], P a multiple of the block.

  Attributes:
    rows: for every parameter part at CLIENTS, the rows [P] of its stack.
    settings: the setting [P] of each virtual client; None without a sweep.
    count: scalar int32, the number of clients; the rest is padding.
    bucket: P.
  """

  rows: Sequence[tf.Tensor]
  settings: tf.Tensor | None
  count: tf.Tensor
  bucket: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
  """Executes stages; all methods build graphs.

  Attributes:
    program: what to execute.
    block: the number of clients that are vectorised at once.
    settings: S, or None without a sweep.
    is_one_thread: whether the clients' work stays on one thread: where others have their own.

  Long because server, clients and the totals between them are one graph's three parts, which
  have to agree on where a setting's values lie.
  """

  program: program.Program
  block: int
  settings: int | None
  is_one_thread: bool = False

  def has_server_work(self, stage: int) -> bool:
    """Whether `server` adds a value."""
    select = self.program.select
    before = select(_Kind.AGGREGATE, stage - 1)
    folds = [n for n in select(_Kind.AGGREGATE, stage) if aggregation.reduction(n) is None]
    return bool(before or select(_Kind.SERVER, stage) or folds)

  def has_client_work(self, stage: int) -> bool:
    """Whether `clients` adds a value."""
    return bool(self.program.select(_Kind.AGGREGATE, stage) or self.program.kept(stage))

  def server(self, stage: int, parameter: Sequence[Any], env: Mapping[str, Any]) -> dict[str, Any]:
    """The SERVER values that a stage adds.

    Args:
      stage: the stage.
      parameter: the parameter's parts; those at CLIENTS are ignored.
      env: SERVER values and accumulated aggregates of the stages before.

    Returns:
      New values by name; `zero:NAME` is the start of a fold.
    """
    prog = self.program

    def one_setting(parts, values):
      with scope.inside('server', stage):
        return in_scope(parts, values)

    def in_scope(parts, values):
      values = dict(values)
      if prog.parameter_name is not None:
        values[prog.parameter_name] = assemble(prog.parameter_type, parts)
      new: dict[str, Any] = {}
      for node in prog.select(_Kind.AGGREGATE, stage - 1):
        new[node.name] = aggregation.report(node, values[f'total:{node.name}'], values | new)
      for node in prog.select(_Kind.SERVER, stage):
        new[node.name] = program.evaluate(node, values | new)
      for node in prog.select(_Kind.AGGREGATE, stage):
        if aggregation.reduction(node) is None:
          new[f'zero:{node.name}'] = local.evaluate(node.argument(1), values | new)
      return new

    if self.settings is None:
      return one_setting(parameter, env)
    server_parts = [
      () if is_client_part(t) else part
      for t, part in zip(program.placed_parts(prog.parameter_type), parameter, strict=True)
    ]
    return self._for_each_setting(one_setting, server_parts, dict(env), stage)

  def _for_each_setting(self, function, parts, env, stage):
    assert self.settings is not None
    types = {n.name: n.type for n in self.program.select(_Kind.AGGREGATE, stage - 1)}
    types |= {n.name: n.type for n in self.program.select(_Kind.SERVER, stage)}
    types |= {
      f'zero:{n.name}': aggregation.accumulator_type(n)
      for n in self.program.select(_Kind.AGGREGATE, stage)
      if aggregation.reduction(n) is None
    }
    if not types:
      return {}
    inputs = tf.nest.flatten((parts, env))
    index = tf.range(self.settings)

    def one(arguments):
      given, values = tf.nest.pack_sequence_as((parts, env), arguments[1:])
      with scope.inside('setting', arguments[0]):
        new = function(given, values)
      return tuple(leaf for name in types for leaf in tf.nest.flatten(new[name]))

    if self.block > 1:
      outputs = vectorize.vectorized(one, self.settings, [index, *inputs])
    else:
      outputs = tf.map_fn(
        one,
        (index, *inputs),
        fn_output_signature=tuple(
          tf.TensorSpec(trees.static_shape(leaf), leaf.dtype)
          for t in types.values()
          for leaf in _all_leaf_types(t)
        ),
      )
    outputs = iter(outputs)
    return {name: _nested(t, outputs) for name, t in types.items()}

  def clients(
    self,
    stage: int,
    parameter: Sequence[Any],
    env: Mapping[str, Any],
    kept: Mapping[str, Any],
    clients: Clients,
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """One pass over the clients.

    Args:
      stage: the stage.
      parameter: the parameter's parts; those at CLIENTS are stacks [K, ...].
      env: SERVER values.
      kept: values [P, ...] at CLIENTS, kept by the stages before.
      clients: who takes part.

    Returns:
      Accumulated aggregates (`total:NAME`), and the values kept [P, ...].
    """
    if not self.has_client_work(stage):
      return {}, {}
    nodes = self.program.visited(stage)
    aggregates = self.program.select(_Kind.AGGREGATE, stage)
    keep = self.program.kept(stage)

    def one_client(position, setting, lane):
      with scope.inside('client', stage, position, lanes=self.block):
        return in_scope(setting, lane)

    def in_scope(setting, lane):
      """The contributions and kept values of one client."""
      values = _Lookup(env, setting)
      values.update(tf.nest.pack_sequence_as((lane_parts, dict(kept)), lane)[1])
      if self.program.parameter_name is not None:
        parts = tf.nest.pack_sequence_as((lane_parts, dict(kept)), lane)[0]
        parts = [
          part if is_client_part(t) else values.of_setting(server)
          for t, part, server in zip(part_types, parts, parameter, strict=True)
        ]
        values[self.program.parameter_name] = assemble(self.program.parameter_type, parts)
      for node in nodes:
        values[node.name] = program.evaluate(node, values)
      return (
        tuple(tf.nest.flatten(aggregation.contribution(n, values)) for n in aggregates),
        tuple(tf.nest.flatten(values[n.name]) for n in keep),
      )

    part_types = (
      []
      if self.program.parameter_type is None
      else program.placed_parts(self.program.parameter_type)
    )
    lane_parts = [
      part if is_client_part(t) else () for t, part in zip(part_types, parameter, strict=True)
    ]
    bucket = clients.bucket
    totals = [self._start(n, env) for n in aggregates]
    buffers = [
      [
        large_fills.fill([bucket, *trees.static_shape(t)], tf.zeros([], t.dtype))
        for t in trees.leaf_types(n.type)
      ]
      for n in keep
    ]

    def body(block, totals, buffers):
      positions, setting, valid, lane = self._block(block, clients, lane_parts, part_types, kept)
      if self.block == 1:
        contributions, values = one_client(positions, setting, lane)
      else:
        extra = [positions] if setting is None else [positions, setting]

        def one_lane(arguments):
          one_setting = None if setting is None else arguments[1]
          return one_client(arguments[0], one_setting, arguments[len(extra) :])

        contributions, values = vectorize.vectorized(one_lane, self.block, [*extra, *lane])
      totals = [
        self._accumulate(n, total, c, block * self.block, setting, valid, env)
        for n, total, c in zip(aggregates, totals, contributions, strict=True)
      ]
      buffers = [
        [
          overwrite(buffer, value if self.block > 1 else value[None], block * self.block)
          for buffer, value in zip(of_node, of_values, strict=True)
        ]
        for of_node, of_values in zip(buffers, values, strict=True)
      ]
      return block + 1, totals, buffers

    blocks = (clients.count + self.block - 1) // self.block

    def visit():
      return tf.while_loop(
        lambda block, *_: block < blocks, body, (tf.constant(0), totals, buffers)
      )[1:]

    if self.is_one_thread:
      # XLA splits nothing inside a conditional over threads.
      totals, buffers = tf.cond(blocks > 0, visit, lambda: (totals, buffers))
    else:
      totals, buffers = visit()
    return (
      {
        f'total:{n.name}': _nested(aggregation.accumulator_type(n), iter(total))
        for n, total in zip(aggregates, totals, strict=True)
      },
      {n.name: _nested(n.type, iter(b)) for n, b in zip(keep, buffers, strict=True)},
    )

  def _block(self, block, clients, lane_parts, part_types, kept):
    """The positions, settings, mask and values of a block's clients."""
    start = block * self.block
    if self.block == 1:
      positions, valid = start, None
    else:
      positions = start + tf.range(self.block)
      valid = positions < clients.count
      # Padding lanes do the first client's work of this block over again.
      positions = tf.where(valid, positions, start)
    row_lists = iter(clients.rows)
    lane = []
    for type_, part in zip(part_types, lane_parts, strict=True):
      if is_client_part(type_):
        rows = tf.gather(next(row_lists), positions)
        lane += [tf.gather(leaf, rows) for leaf in tf.nest.flatten(part)]
    lane += [tf.gather(leaf, positions) for leaf in tf.nest.flatten(dict(kept))]
    setting = None if clients.settings is None else tf.gather(clients.settings, positions)
    return positions, setting, valid, lane

  def _start(self, node, env) -> list[tf.Tensor]:
    """The accumulator's leaves before the first client, [S, ...] in a sweep."""
    reduction = aggregation.reduction(node)
    if reduction is None:
      return tf.nest.flatten(env[f'zero:{node.name}'])
    prefix = [] if self.settings is None else [self.settings]
    leaves = []
    for leaf in trees.leaf_types(aggregation.accumulator_type(node)):
      dtype = tf.as_dtype(leaf.dtype)
      neutral = tf.constant(reduction.neutral(dtype), dtype)
      leaves.append(large_fills.fill([*prefix, *trees.static_shape(leaf)], neutral))
    return leaves

  def _accumulate(self, node, total, contribution, start, setting, valid, env) -> list[tf.Tensor]:
    reduction = aggregation.reduction(node)
    if reduction is None:
      return self._fold(node, total, contribution, start, setting, valid, env)
    result = []
    for accumulated, value in zip(total, contribution, strict=True):
      if valid is None:
        if setting is None:
          result.append(reduction.combine(accumulated, value))
        else:
          row = reduction.combine(tf.gather(accumulated, setting), value)
          result.append(overwrite(accumulated, row[None], setting))
        continue
      value = _masked(valid, value, tf.constant(reduction.neutral(value.dtype), value.dtype))
      if setting is None:
        value = reduction.over_lanes(value)
      else:
        value = reduction.over_settings(value, setting, self.settings)
      result.append(reduction.combine(accumulated, value))
    return result

  def _fold(self, node, total, contribution, start, setting, valid, env) -> list[tf.Tensor]:
    type_ = aggregation.accumulator_type(node)
    value_type = node.argument(0).type_signature

    def step(position, leaves, one_setting, one_contribution):
      with scope.inside('fold', node.stage, node.name, position):
        return in_scope(leaves, one_setting, one_contribution)

    def in_scope(leaves, one_setting, one_contribution):
      before = leaves if one_setting is None else [tf.gather(t, one_setting) for t in leaves]
      after = aggregation.fold(
        node,
        _nested(type_, iter(before)),
        _nested(value_type, iter(one_contribution)),
        _Lookup(env, one_setting),
      )
      after = tf.nest.flatten(after)
      if one_setting is None:
        return after
      return [overwrite(t, row[None], one_setting) for t, row in zip(leaves, after, strict=True)]

    if valid is None:
      return step(start, total, setting, contribution)

    def body(lane, leaves):
      one_setting = None if setting is None else tf.gather(setting, lane)
      of_lane = [tf.gather(c, lane) for c in contribution]
      return lane + 1, step(start + lane, leaves, one_setting, of_lane)

    lanes = tf.reduce_sum(tf.cast(valid, tf.int32))  # Valid lanes come first.
    return tf.while_loop(lambda lane, _: lane < lanes, body, (tf.constant(0), total))[1]

  def merge(self, totals: Sequence[dict[str, Any]], stage: int, env: Any) -> dict[str, Any]:
    """Joins the accumulated aggregates of several devices."""
    result = totals[0]
    for other in totals[1:]:
      result = {
        f'total:{n.name}': self._merge(n, result, other, env)
        for n in self.program.select(_Kind.AGGREGATE, stage)
      }
    return result

  def _merge(self, node, a, b, env):
    a, b = a[f'total:{node.name}'], b[f'total:{node.name}']
    if self.settings is None or aggregation.reduction(node) is not None:
      return aggregation.merge(node, a, b, env)
    type_ = aggregation.accumulator_type(node)

    def one_setting(pair):
      x, y = (_nested(type_, iter(leaves)) for leaves in pair)
      return tuple(tf.nest.flatten(aggregation.merge(node, x, y, env)))

    leaves = tf.map_fn(
      one_setting,
      (tuple(tf.nest.flatten(a)), tuple(tf.nest.flatten(b))),
      fn_output_signature=tuple(
        tf.TensorSpec(trees.static_shape(t), t.dtype) for t in trees.leaf_types(type_)
      ),
    )
    return _nested(type_, iter(leaves))

  def result(
    self,
    parameter: Sequence[Any],
    env: Mapping[str, Any],
    kept: Mapping[str, Any],
    clients: Clients,
  ) -> Any:
    """The computation's result: SERVER values, and CLIENTS values [P, ...]."""
    prog = self.program
    values = {**env, **kept}
    if prog.parameter_name is not None:
      row_lists = iter(clients.rows)
      parts = []
      for type_, part in zip(program.placed_parts(prog.parameter_type), parameter, strict=True):
        if is_client_part(type_):
          index = next(row_lists)
          part = tf.nest.map_structure(functools.partial(tf.gather, indices=index), part)
        parts.append(part)
      values[prog.parameter_name] = assemble(prog.parameter_type, parts)
    return local.evaluate(prog.result, values)


class _Lookup(dict):
  """Values by name for one client; the server's are read at the client's setting."""

  def __init__(self, env: Mapping[str, Any], setting: tf.Tensor | None):
    super().__init__()
    self._env = env
    self._setting = setting

  def __missing__(self, name: str) -> Any:
    self[name] = self.of_setting(self._env[name])
    return self[name]

  def of_setting(self, value: Any) -> Any:
    """A SERVER value at this client's setting."""
    if self._setting is None:
      return value
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, self._setting), value)


def is_client_part(type_) -> bool:
  """Whether a part has one value for each client."""
  return trees.is_clients(type_) and not type_.all_equal


def assemble(type_, parts: Sequence[Any]) -> Any:
  """A value of a type from the values of its parts."""
  remaining = iter(parts)

  def build(t):
    if isinstance(t, tff.StructType):
      return tuple(build(element) for _, element in trees.fields(t))
    return next(remaining)

  return build(type_)


def split(type_, value: Any) -> list[Any]:
  """The values of a value's parts; the inverse of `assemble`."""
  if isinstance(type_, tff.StructType):
    return [p for (_, t), v in zip(trees.fields(type_), value, strict=True) for p in split(t, v)]
  return [value]


def _all_leaf_types(type_):
  return [leaf for part in program.placed_parts(type_) for leaf in trees.leaf_types(part)]


def _nested(type_, leaves) -> Any:
  if isinstance(type_, tff.StructType):
    return tuple(_nested(element, leaves) for _, element in trees.fields(type_))
  return trees.nested(type_, leaves)


def _masked(valid, value, neutral):
  return tf.where(tf.reshape(valid, [-1] + [1] * (value.shape.rank - 1)), value, neutral)


def overwrite(buffer: tf.Tensor, value: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
  """Overwrites rows of a buffer, in place when compiled."""
  begin = tf.stack([start] + [tf.constant(0)] * (buffer.shape.rank - 1))
  updated = gen_xla_ops.xla_dynamic_update_slice(buffer, value, begin)
  return tf.ensure_shape(updated, buffer.shape)
