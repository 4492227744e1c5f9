"""Broadcasting of values with a size of data's own, which may be 1.

The rows of one batch are as many in all that is made of them, and XLA and the gradients of
`shape_ops` rightly take such sizes for equal. What is cut of a batch (`x[-1:]`, rows that a mask
lets through) may have one row beside many, and TensorFlow then repeats it. XLA knows that in the
running program only, so it is written out here: a single row is gathered for each of the others,
and its gradient is a sum that is taken if it was one.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from runtime.xla import long_sums
from runtime.xla.lowering import datasets, interpreter, reshapes, sized_ops, slices, varying

_Interpreter = interpreter.Interpreter

_COUNTING = ('DynamicPartition', 'NonMaxSuppressionV3', 'Unique', 'UniqueV2', 'Where')
_SLICING = ('Slice', 'Split', 'SplitV', 'StridedSlice')
_BROADCAST = frozenset(
  [
    'Add',
    'AddV2',
    'Atan2',
    'Betainc',
    'BroadcastTo',
    'BitwiseAnd',
    'BitwiseOr',
    'BitwiseXor',
    'Complex',
    'Div',
    'DivNoNan',
    'Equal',
    'FloorDiv',
    'FloorMod',
    'Greater',
    'GreaterEqual',
    'Igamma',
    'IgammaGradA',
    'Igammac',
    'LeftShift',
    'Less',
    'LessEqual',
    'LogicalAnd',
    'LogicalOr',
    'Maximum',
    'Minimum',
    'Mod',
    'Mul',
    'MulNoNan',
    'NextAfter',
    'NotEqual',
    'Polygamma',
    'Pow',
    'RealDiv',
    'RightShift',
    'SelectV2',
    'SoftmaxCrossEntropyWithLogits',
    'SquaredDifference',
    'Sub',
    'TruncateDiv',
    'TruncateMod',
    'Xdivy',
    'Xlog1py',
    'Xlogy',
    'Zeta',
  ]
)


# Ops that XLA does not broadcast by sizes that it knows in the running program only.
_SELECTING = frozenset(sized_ops.SIZED) & _BROADCAST
_ROW_BY_ROW = {'SoftmaxCrossEntropyWithLogits', *varying.ROW_AXES} & _BROADCAST
_OF_MATRICES = frozenset(['BatchMatMulV2', 'Einsum'])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Axes(datasets.Held):
  """The axes over which the gradient of a value that may have been broadcast is summed.

  Attributes:
    summed: those of which that is known.
    sizes: of each other the value's own size, int32 scalar; it is summed over if that is 1.
  """

  summed: tuple[int, ...]
  sizes: Mapping[int, tf.Tensor]


def _of_like_sizes(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The inputs of an op that broadcasts, with single rows beside others of a known number repeated.

  Args:
    interp: knows which are cut.
    node: the op.
    inputs: its own.

  Raises:
    NotLowered: a value's sizes are lost.
  """
  if node.op in _OF_MATRICES and any(map(_varies_twice, inputs)):
    # XLA joins both axes and parts them again, by the largest batch's rows.
    raise varying.refusal(node.op)
  if not any(id(i) in interp.session.cut and varying.is_varying(i) for i in inputs):
    return inputs
  if node.op == 'BroadcastTo':
    value, shape = inputs
    sizes = interp.sizes(shape) or _partly(shape)
    if any(n is None and m is None for n, m in zip(value.shape[::-1], sizes[::-1], strict=False)):
      value = _filled(interp, node.op, value)
    return [_repeated(interp, node.op, value, sizes), shape]
  if any(i.shape.rank is None for i in inputs):
    raise varying.refusal(node.op)
  shapes = [i.shape.as_list() for i in inputs]
  if node.op in _OF_MATRICES:
    # Asking for an attribute that an op lacks would add it.
    is_einsum = node.op == 'Einsum'
    if b'...' in node.attr['equation'].s if is_einsum else any(len(s) > 2 for s in shapes):
      raise varying.refusal(node.op)
    return inputs
  for value in (i for i in inputs if id(i) in interp.session.cut and id(i) in interp.unsized):
    others = [s for i, s in zip(inputs, shapes, strict=True) if i is not value]
    if any(size != 1 for shape in others for size in shape):
      raise varying.refusal(node.op)  # Not even XLA knows whether it has a single row.
  rank = max(map(len, shapes))
  varied = [{a - len(s) for a, size in enumerate(s) if size is None} for s in shapes]
  if any(one & other for one, other in itertools.combinations(varied, 2)):
    if node.op in _SELECTING:
      inputs = [_filled(interp, node.op, i) if id(i) in interp.session.cut else i for i in inputs]
    elif node.op in _ROW_BY_ROW:
      raise varying.refusal(node.op)
  sizes = [
    max((s[axis] or 1 for s in shapes if len(s) >= -axis), default=1) for axis in range(-rank, 0)
  ]
  return [_repeated(interp, node.op, i, sizes) for i in inputs]


def _varies_twice(value: tf.Tensor) -> bool:
  rank = value.shape.rank
  return rank is None or sum(varying.varies(value, axis) for axis in range(rank)) > 1


def _repeated(
  interp: _Interpreter, op: str, value: tf.Tensor, sizes: Sequence[int | None]
) -> tf.Tensor:
  """A value with as many rows as `sizes` say, where it has one; aligned at the last axis."""
  for axis in range(value.shape.rank):
    size = sizes[axis - value.shape.rank]
    if not varying.varies(value, axis) or size is None or size <= 1:
      continue
    if id(value) in interp.unsized:
      raise varying.refusal(op)
    places = tf.clip_by_value(tf.range(size), 0, tf.maximum(tf.shape(value)[axis] - 1, 0))
    value = reshapes.gather(value, places, axis=axis)
  return value


def _filled(interp: _Interpreter, op: str, value: tf.Tensor) -> tf.Tensor:
  """A value of its sizes whose padding repeats the last row, so that a single one is everywhere."""
  if id(value) in interp.unsized:
    raise varying.refusal(op)
  for axis in range(value.shape.rank):
    if varying.varies(value, axis):
      size, whole = tf.shape(value)[axis], reshapes.of_largest_size(value, axis)
      places = tf.minimum(tf.range(tf.shape(whole)[axis]), tf.maximum(size - 1, 0))
      value = interpreter.set_dynamic_size(reshapes.gather(whole, places, axis=axis), axis, size)
  return value


def _partly(shape: tf.Tensor) -> list[int | None]:
  """The sizes of a shape that are known."""
  return tensor_util.constant_value_as_shape(shape).as_list()


def axes(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The axes over which gradients of two broadcast values are summed.

  Of two sizes that vary, and are of one batch, the program says that they are equal; one beside a
  1 is not 1, or the sum over it changes nothing.
  """
  known = [interp.sizes(i) for i in inputs]
  ranks = [i.shape[0] if i.shape.rank == 1 else None for i in inputs]
  if None in ranks or (None in known and not interp.session.bounds):
    return interp.op(node, inputs)
  shapes = [_partly(i) if sizes is None else sizes for i, sizes in zip(inputs, known, strict=True)]
  rank = max(len(s) for s in shapes)
  padded: list[list[int | None]] = [[*([1] * (rank - len(s))), *s] for s in shapes]
  is_cut = None in known or any(id(i) in interp.session.cut for i in inputs)
  found: list[Any] = []
  for shape, own, ours, theirs in zip(inputs, shapes, padded, padded[::-1], strict=True):
    first = rank - len(own)
    summed = [a for a in range(rank) if ours[a] == 1 and (theirs[a] != 1 or first > 0)]
    unsure = [a for a in range(rank) if is_cut and ours[a] is None and theirs[a] != 1]
    if unsure:
      sizes = {a: tf.cast(shape[a - first], tf.int32) for a in unsure}
      found.append(Axes(summed=tuple(summed), sizes=sizes))
    else:
      found.append(tf.constant(summed, inputs[0].dtype, shape=[len(summed)]))
  return found


def gradient_sum(interp: _Interpreter, node: Any, value: tf.Tensor, along: Axes) -> list[Any]:
  """The sum of a gradient over the axes along which its value was broadcast."""
  if id(value) in interp.unsized or value.shape.rank is None:
    raise varying.refusal(node.op)
  for axis, size in along.sizes.items():
    total = tf.reduce_sum(value, axis, keepdims=True)
    whole = reshapes.of_largest_size(value, axis) if varying.varies(value, axis) else value
    # Of a single row only the first of these is read.
    found = tf.where(tf.equal(size, 1), total, whole)
    for other in range(value.shape.rank):
      if other == axis or varying.varies(value, other):
        own = size if other == axis else tf.shape(value)[other]
        found = interpreter.set_dynamic_size(found, other, own)
    value = found
  inputs = [value, tf.constant(along.summed, tf.int32, shape=[len(along.summed)])]
  taken = long_sums.taken(node.op, inputs, keep_dims=node.attr['keep_dims'].b)
  if taken is not None:
    return [taken]
  return [tf.reduce_sum(value, list(along.summed), keepdims=node.attr['keep_dims'].b)]


def _is_cutting(interp: _Interpreter, node: Any, inputs: list[Any]) -> bool:
  """Whether an op gives another size to an axis that varies, or one that varies."""
  if node.op in _COUNTING:
    return True
  if node.op in ('Slice', 'StridedSlice') and slices.is_as_data_say(interp, node, inputs):
    return True
  value = inputs[1] if node.op == 'Split' else inputs[0]
  if node.op not in _SLICING or not varying.is_varying(value):
    return False
  if value.shape.rank is None:
    return True
  if node.op == 'StridedSlice':
    return slices.is_cut(node, inputs)
  if node.op == 'Slice':
    whole = slices.whole_axes(interp, inputs)
    return any(varying.varies(value, a) and a not in whole for a in range(value.shape.rank))
  along = tf.get_static_value(inputs[0] if node.op == 'Split' else inputs[2])
  return along is None or varying.varies(value, int(along))


def around(handlers: Mapping[str, interpreter.Handler]) -> dict[str, interpreter.Handler]:
  """How ops are written anew: those that broadcast with inputs of like sizes, and cuts noted."""

  def broadcast(handler: interpreter.Handler | None) -> interpreter.Handler:
    def run(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
      inputs = _of_like_sizes(interp, node, inputs)
      return interp.op(node, inputs) if handler is None else handler(interp, node, inputs)

    return run

  def cutting(handler: interpreter.Handler | None) -> interpreter.Handler:
    def run(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
      outputs = interp.op(node, inputs) if handler is None else handler(interp, node, inputs)
      if interp.session.bounds and _is_cutting(interp, node, inputs):
        interp.session.cut.update({id(o): o for o in outputs})
      return outputs

    return run

  return {
    **handlers,
    **{op: broadcast(handlers.get(op)) for op in _BROADCAST | _OF_MATRICES},
    **{op: cutting(handlers.get(op)) for op in _COUNTING + _SLICING},
  }
