"""Ops that are written anew where a size varies: XLA loses it, or counts from the padded end."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from runtime.xla import exact_division
from runtime.xla.lowering import interpreter, reshapes, varying

_Interpreter = interpreter.Interpreter
_MOST_SIZES = 64


def constants(inputs: list[Any]) -> list[np.ndarray] | None:
  """The values of sizes or paddings; TensorFlow's own folding stops at a slice or a reshape."""
  if inputs[0].dtype not in (tf.int32, tf.int64) or not inputs[0].shape.is_fully_defined():
    return None
  if inputs[0].shape.num_elements() > _MOST_SIZES:
    return None
  known = [tf.get_static_value(i) for i in inputs]
  return None if any(k is None for k in known) else known


def _sized(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """An elementwise op, with broadcasting, whose result is given its inputs' sizes again."""
  (result,) = _quotient(interp, node, inputs)
  if not interp.session.bounds or result.shape.is_fully_defined():
    return [result]
  if result.shape.rank is None:
    raise varying.refusal(node.op)
  sources = inputs[_LIKE.get(node.op, slice(None))]
  if node.op != 'OnesLike':  # Its result is a constant to XLA, and has what size its input has.
    sources = [v for v in sources if id(v) not in interp.unsized]
  for axis in range(-result.shape.rank, 0):
    sizes = [
      tf.shape(v)[axis] for v in sources if v.shape.rank >= -axis and varying.varies(v, axis)
    ]
    if result.shape[axis] is None and sizes:
      result = interpreter.set_dynamic_size(
        result, axis + result.shape.rank, functools.reduce(_broadcast_size, sizes)
      )
  return [result]


def _quotient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A division, exact on every device; any other op as it is."""
  taken = exact_division.taken(node.op, inputs) if node.op in exact_division.OPS else None
  return interp.op(node, inputs) if taken is None else [taken]


def _broadcast_size(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """The size of what two are broadcast to; the smaller where one's is not known to XLA."""
  smaller = tf.minimum(one, other)
  return tf.where(tf.equal(one, 1), other, tf.where(tf.equal(other, 1), one, smaller))


def _every(value: tf.Tensor, axis: int, start: Any, step: int, count: tf.Tensor) -> tf.Tensor:
  """`count` of a value's elements along an axis, one after `step` others."""
  size = tf.shape(value)[axis]
  # XLA knows the most that a range of a size has, not of what is computed from a size.
  positions = tf.clip_by_value(start + step * tf.range(size), 0, tf.maximum(size - 1, 0))
  found = reshapes.gather(value, positions, axis=axis)
  return interpreter.set_dynamic_size(found, axis, count)


def _reverse(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  value, axes = inputs
  known = tf.get_static_value(axes)
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  if known is None or value.shape.rank is None:
    raise varying.refusal(node.op)
  fixed = []
  for axis in (int(a) % value.shape.rank for a in known):
    if varying.varies(value, axis):
      size = tf.shape(value)[axis]
      value = _every(value, axis, size - 1, -1, size)
    else:
      fixed.append(axis)
  return interp.op(node, [value, tf.constant(fixed, axes.dtype)]) if fixed else [value]


def _gather(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  value, places, *rest = inputs
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  axis = 0 if node.op == 'GatherNd' else tf.get_static_value(rest[0])
  depth = places.shape[-1] if node.op == 'GatherNd' else 1
  if None in (axis, depth, value.shape.rank):
    raise varying.refusal(node.op)
  start = int(axis) % value.shape.rank
  along = range(start, start + depth)
  if id(value) in interp.unsized:
    others = [axis for axis in range(value.shape.rank) if axis not in along]
    if varying.is_varying(places) and any(varying.varies(value, axis) for axis in others):
      raise varying.refusal(node.op)  # The sizes of some axes of the result are known, not of all.
    return interp.op(node, inputs)
  return [reshapes.gathered(value, along, lambda v: interp.op(node, [v, places, *rest])[0])]


def _places(node: Any, rank: int, count: int) -> Iterator[tuple[int, int]]:
  """(place in the specification, axis of the value) of a strided slice."""
  masks = {n: node.attr[n].i for n in ('ellipsis_mask', 'new_axis_mask')}
  used = sum(not (masks['ellipsis_mask'] | masks['new_axis_mask']) >> p & 1 for p in range(count))
  axis = 0
  for place in range(count):
    if masks['ellipsis_mask'] >> place & 1:
      axis += rank - used
    elif not masks['new_axis_mask'] >> place & 1:
      yield place, axis
      axis += 1


def slice_from_the_end(
  interp: _Interpreter, node: Any, inputs: list[Any]
) -> tuple[Any, list[tf.Tensor]] | None:
  """A strided slice along axes that vary without positions from the end and steps.

  Returns:
    The node and inputs of what is left to slice; None where nothing has to change.
  """
  value = inputs[0]
  if not interp.session.bounds or not varying.is_varying(value):
    return None
  begin, end, strides = (tf.get_static_value(i, partial=True) for i in inputs[1:])
  if value.shape.rank is None or strides is None or begin is None:
    raise varying.refusal(node.op)
  changed = type(node)()
  changed.CopyFrom(node)
  masks = {n: node.attr[n].i for n in ('begin_mask', 'end_mask', 'shrink_axis_mask')}
  rest = [tf.unstack(i) for i in inputs[1:]]
  for place, axis in _places(node, value.shape.rank, len(strides)):
    if not varying.varies(value, axis):
      continue
    is_first, is_last, is_one = (mask >> place & 1 for mask in masks.values())
    first, step = begin[place], strides[place]
    last = None if end is None else end[place]
    if first is None and not (is_first and not is_one):
      raise varying.refusal(node.op)
    size = tf.cast(tf.shape(value)[axis], tf.int32)
    if is_one:
      if first >= 0:
        continue
      taken = tf.reshape(tf.maximum(size + int(first), 0), [1])
      value = reshapes.gather(value, taken, axis=axis)
      rest[0][place], rest[1][place] = (tf.constant(p, inputs[1].dtype) for p in (0, 1))
      continue
    if step == 1 and (is_first or first >= 0):
      continue
    if step is None or (last is None and not is_last):
      raise varying.refusal(node.op)
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def place_of(position, low=low, high=high, size=size):
      position = int(position)
      return tf.clip_by_value(position if position >= 0 else size + position, low, high)

    start = (low if step > 0 else high) if is_first else place_of(first)
    stop = (high if step > 0 else low) if is_last else place_of(last)
    step = int(step)
    count = tf.maximum((stop - start + step - (1 if step > 0 else -1)) // step, 0)
    value = _every(value, axis, start, step, count)
    changed.attr['begin_mask'].i |= 1 << place
    changed.attr['end_mask'].i |= 1 << place
    for i, position in enumerate((0, 0, 1)):  # XLA looks at them in spite of the masks.
      rest[i][place] = tf.constant(position, inputs[1].dtype)
  return changed, [value, *map(tf.stack, rest)]


def _slice_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Of a slice along an axis that varies, only where its positions count from the start."""
  sizes = interp.sizes(inputs[0])
  if interp.session.bounds and (sizes is None or None in sizes):
    begin, _, strides = (tf.get_static_value(i) for i in inputs[1:4])
    if sizes is None or begin is None or strides is None:
      raise varying.refusal(node.op)
    for place, axis in _places(node, len(sizes), len(strides)):
      is_first = node.attr['begin_mask'].i >> place & 1
      if sizes[axis] is None and (strides[place] != 1 or (begin[place] < 0 and not is_first)):
        raise varying.refusal(node.op)
  return interp.op(node, inputs)


def _slice(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  value, begin, size = inputs
  constant = constants(inputs)
  if constant is not None:
    whole, start, size = constant
    stops = np.where(size < 0, whole.shape, start + size)
    return [tf.constant(whole[tuple(map(slice, start, stops))], value.dtype)]
  if interp.session.bounds and varying.is_varying(value):
    first, number = (tf.get_static_value(i, partial=True) for i in (begin, size))
    if value.shape.rank is None or first is None:
      raise varying.refusal(node.op)
    for axis in range(value.shape.rank):
      starts, ends = first[axis], None if number is None else number[axis]
      if varying.varies(value, axis) and starts != 0 and (starts is None or ends in (None, -1)):
        raise varying.refusal(node.op)
    if begin.dtype == tf.int64:
      return [tf.slice(value, tf.cast(begin, tf.int32), tf.cast(size, tf.int32))]
  return interp.op(node, inputs)


def _concat_offset(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Constants where the sizes along the axis are known: gradients slice there."""
  axis, shapes = _static_axis(inputs[0]), inputs[1:]
  sizes = [interp.sizes(shape) for shape in shapes]
  offsets, total = [], 0
  for known in sizes:
    size = None if known is None or axis is None else known[int(axis)]
    if known is None or axis is None or size is None:
      return interp.op(node, inputs)
    offset = [0] * len(known)
    offset[int(axis)] = total
    total += size
    offsets.append(tf.constant(offset, shapes[0].dtype))
  return offsets


def _static_axis(axis: tf.Tensor) -> Any:
  """An axis from the end is taken modulo the rank, by an op."""
  known = tf.get_static_value(axis)
  if known is None and axis.op.type == 'FloorMod':
    parts = [tf.get_static_value(part) for part in axis.op.inputs]
    known = None if None in parts else parts[0] % parts[1]
  return known


def _batch_norm(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """XLA's variance is corrected by the number of rows with the padding."""
  outputs = interp.op(node, inputs)
  x = inputs[0]
  if not interp.session.bounds or not varying.is_varying(x) or not node.attr['is_training'].b:
    return outputs
  factor = node.attr['exponential_avg_factor'].f if 'exponential_avg_factor' in node.attr else 1.0
  if factor != 1.0:
    raise varying.refusal(node.op)
  number = tf.cast(tf.size(x) // tf.size(outputs[1]), outputs[4].dtype)
  outputs[2] = outputs[4] * (number / tf.maximum(number - 1, 1))
  return outputs


def _batch_to_space(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """[b1 b2 B, H, W, ...] -> [B, H b1, W b2, ...], cut: XLA loses the number of rows B."""
  value, block, crops = inputs
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  blocks, cuts = tf.get_static_value(block), tf.get_static_value(crops)
  if blocks is None or cuts is None or None in (value.shape.rank, *value.shape[1:]):
    raise varying.refusal(node.op)
  axes = len(blocks)
  sizes = value.shape.as_list()[1 : 1 + axes]
  rest = value.shape.as_list()[1 + axes :]
  apart = tf.reshape(value, [*blocks, -1, *sizes, *rest])
  pairs = [axis for i in range(axes) for axis in (axes + 1 + i, i)]
  order = [axes, *pairs, *range(2 * axes + 1, apart.shape.rank)]
  whole = [size * int(times) for size, times in zip(sizes, blocks, strict=True)]
  joined = tf.reshape(tf.transpose(apart, order), [-1, *whole, *rest])
  kept = (slice(int(a), size - int(b)) for (a, b), size in zip(cuts, whole, strict=True))
  return [joined[(slice(None), *kept)]]


def _broadcast_to(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """XLA takes the result to vary along all axes where one of the sizes does."""
  value, shape = inputs
  if interp.session.bounds and tf.get_static_value(shape) is None:
    result = tf.broadcast_to(value, tf.cast(shape, tf.int32))
  else:
    (result,) = interp.op(node, inputs)
  if interp.session.bounds and varying.is_varying(result):
    for axis, size in enumerate(result.shape.as_list() if result.shape.rank else ()):
      result = result if size is None else reshapes.of_largest_size(result, axis)
  return [result]


def _at_any_rate(number: tf.Tensor) -> Any:
  """The value of a number, also if that is min(a, max(a, x)) for any x; None if not known."""
  known = tf.get_static_value(number)
  if known is None and number.op.type == 'Minimum':
    inner = (i for i in number.op.inputs if i.op.type == 'Maximum')
    return next((a for i in inner for a in _bounds(number) & _bounds(i)), None)
  return known


def _bounds(number: tf.Tensor) -> set[int]:
  """The known inputs of a minimum or a maximum."""
  return {int(i) for i in map(tf.get_static_value, number.op.inputs) if i is not None}


def _dense_bincount(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """How often every whole number below a limit is among values, [N] or in each row of [B, N]."""
  values, limit, weights = inputs
  if not interp.session.bounds or not varying.is_varying(values):
    return interp.op(node, inputs)
  known = _at_any_rate(limit)
  is_sized = id(values) not in interp.unsized
  if known is None or not is_sized or values.shape.rank not in (1, 2) or weights.shape.rank is None:
    raise varying.refusal(node.op)
  is_weighted = weights.shape.num_elements() != 0 and not node.attr['binary_output'].b
  found = tf.one_hot(values, int(known), dtype=weights.dtype)
  if is_weighted:
    found *= weights[..., tf.newaxis]
  axis = values.shape.rank - 1
  count = tf.reduce_max if node.attr['binary_output'].b else tf.reduce_sum
  return [count(found, axis)]


def _scatter_nd(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Into zeros of a size that varies, which XLA knows of other ops only."""
  indices, updates, shape = inputs
  if not interp.session.bounds or tf.get_static_value(shape) is not None:
    return interp.op(node, inputs)
  zeros = tf.zeros(tf.cast(shape, tf.int32), updates.dtype)
  return [tf.tensor_scatter_nd_add(zeros, indices, updates)]


def _space_to_batch(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """[B, H b1, W b2, ...] -> [b1 b2 B, H, W, ...], padded first."""
  value, block, paddings = inputs
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  blocks, pads = tf.get_static_value(block), tf.get_static_value(paddings)
  if blocks is None or pads is None or None in (value.shape.rank, *value.shape[1:]):
    raise varying.refusal(node.op)
  axes = len(blocks)
  rest = value.shape.as_list()[1 + axes :]
  value = tf.pad(value, [[0, 0], *pads, *[[0, 0]] * len(rest)])
  sizes = [
    size // int(times) for size, times in zip(value.shape[1 : 1 + axes], blocks, strict=True)
  ]
  pairs = [size for pair in zip(sizes, blocks, strict=True) for size in pair]
  apart = tf.reshape(value, [-1, *pairs, *rest])
  order = [*range(2, 2 + 2 * axes, 2), 0, *range(1, 1 + 2 * axes, 2)]
  apart = tf.transpose(apart, [*order, *range(1 + 2 * axes, apart.shape.rank)])
  return [reshapes.in_order(apart, [None, *sizes, *rest])]


def _tile(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """What varies is repeated by its places: XLA joins the copies as a reshape does."""
  value, multiples = inputs
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  times = tf.get_static_value(multiples)
  if times is None or value.shape.rank is None:
    raise varying.refusal(node.op)
  times = [int(count) for count in times]
  for axis in range(value.shape.rank):
    if varying.varies(value, axis) and times[axis] != 1:
      size, room = tf.shape(value)[axis], reshapes.of_largest_size(value, axis)
      places = tf.range(times[axis] * tf.shape(room)[axis]) % tf.maximum(size, 1)
      repeated = reshapes.gather(room, places, axis=axis)
      value = interpreter.set_dynamic_size(repeated, axis, times[axis] * size)
      times[axis] = 1
  return interp.op(node, [value, tf.constant(times, multiples.dtype)])


# Ops whose result has the sizes of some of their inputs, and is not broadcast.
_LIKE = {'MatrixBandPart': slice(1), 'OnesLike': slice(1), 'Select': slice(1, None)}
SIZED = (*_LIKE, 'DivNoNan', 'MulNoNan', 'SelectV2', 'Xdivy', 'Xlog1py', 'Xlogy')
HANDLERS: dict[str, interpreter.Handler] = {
  **dict.fromkeys(exact_division.OPS, _quotient),
  **dict.fromkeys(SIZED, _sized),
  'BatchToSpaceND': _batch_to_space,
  'BroadcastTo': _broadcast_to,
  'ConcatOffset': _concat_offset,
  'DenseBincount': _dense_bincount,
  'FusedBatchNorm': _batch_norm,
  'FusedBatchNormV2': _batch_norm,
  'FusedBatchNormV3': _batch_norm,
  'GatherNd': _gather,
  'GatherV2': _gather,
  'ReverseV2': _reverse,
  'ScatterNd': _scatter_nd,
  'Slice': _slice,
  'SpaceToBatchND': _space_to_batch,
  'StridedSliceGrad': _slice_gradient,
  'Tile': _tile,
}
