"""Ops that are written anew where a size varies: XLA loses it, or counts from the padded end."""

import functools
from typing import Any

import tensorflow as tf

from runtime.xla import exact_division
from runtime.xla.lowering import interpreter, reshapes, slices, varying

_Interpreter = interpreter.Interpreter


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
      value = slices.every(value, axis, size - 1, -1, size)
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


def _concat_offset(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Where parts begin, constants where the sizes before are known: gradients slice there."""
  axis, shapes = _static_axis(inputs[0]), inputs[1:]
  offsets: list[tf.Tensor] = []
  total: Any = 0
  for shape in shapes:
    sizes = interp.sizes(shape)
    if axis is None or sizes is None:
      return interp.op(node, inputs)
    place = int(axis) % len(sizes)
    offset: list[Any] = [0] * len(sizes)
    offset[place] = total
    offsets.append(tf.cast(tf.stack(offset), shape.dtype))
    size = sizes[place]
    total = total + (shape[place] if size is None else size)
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


def _mirror_pad(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Reflections at axes that do not vary, or the gradient of them.

  XLA reverses and joins the other axes, too, with nothing at their ends. Where they vary that has
  given wrong numbers to other ops of the program, or ended the process.
  """
  value, paddings = inputs
  if not interp.session.bounds or not varying.is_varying(value) or id(value) in interp.unsized:
    return interp.op(node, inputs)
  return [reshapes.gathered(value, range(0), lambda room: interp.op(node, [room, paddings])[0])]


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
  'MirrorPad': _mirror_pad,
  'MirrorPadGrad': _mirror_pad,
  'ReverseV2': _reverse,
  'ScatterNd': _scatter_nd,
  'SpaceToBatchND': _space_to_batch,
  'Tile': _tile,
}
