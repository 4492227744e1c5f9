"""Which sizes are known where some vary, and which are the same.

TensorFlow does not know that two sizes that vary are the same one, so that
`tf.reshape(x @ w, [tf.shape(x)[0], 1, -1])` would have two of which it knows nothing. Programs that
`tf.vectorized_map` writes are full of them. Here a value's size is followed through the ops that
keep it, as far as a value has one axis that varies.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import shape_numbers, varying

_CUTTING = 'XlaSetDynamicDimensionSize'
_INTEGERS = (tf.int32, tf.int64)
_MOST = 64
# Those of the known ops that may give another size to an axis that varies. All others have the axes
# of their inputs, or fewer. (A slice's are noted as cut.)
_CHANGING = frozenset(
  [
    'BatchToSpaceND',
    'BroadcastTo',
    'ConcatV2',
    'DenseBincount',
    'DepthToSpace',
    'GatherNd',
    'GatherV2',
    'Pad',
    'PadV2',
    'Reshape',
    'ScatterNd',
    'SpaceToBatchND',
    'SpaceToDepth',
    'StridedSliceGrad',
    'Tile',
    'Unpack',
    'UnsortedSegmentMax',
    'UnsortedSegmentMin',
    'UnsortedSegmentProd',
    'UnsortedSegmentSum',
    'Where',
  ]
)
# They keep rows, and may give another size to an axis behind them.
_OF_ROWS = (
  'AvgPool',
  'Conv',
  'Depthwise',
  'ExtractImagePatches',
  'IRFFT',
  'MaxPool',
  'RFFT',
  'Resize',
)
_KEEPING = (varying.KNOWN | varying.ROW_AXES.keys()) - _CHANGING


class Known:
  """What is known of the sizes in a program that is traced."""

  def __init__(self) -> None:
    self._numbers: dict[int, tuple[Any, shape_numbers.Sizes]] = {}
    self._rows: dict[int, tuple[Any, shape_numbers.Size]] = {}

  def note_shape(self, shape: tf.Tensor, value: tf.Tensor) -> None:
    """Notes that a vector is a value's shape."""
    if value.shape.rank is not None:
      varied = self.varied(value)
      sizes = [varied if size is None else size for size in value.shape.as_list()]
      self._numbers[id(shape)] = (shape, sizes)

  def note_numbers(
    self, vector: tf.Tensor, sizes: Sequence[int | shape_numbers.Size | None]
  ) -> None:
    """Notes what is known of a vector, or of a scalar."""
    self._numbers[id(vector)] = (vector, list(sizes))

  def is_noted(self, vector: Any) -> bool:
    """Whether something may be known of a vector that is no constant."""
    return id(vector) in self._numbers

  def single(self, number: tf.Tensor) -> shape_numbers.Size | None:
    """The size that a scalar is."""
    found = self.numbers(number) or [None]
    return found[0] if len(found) == 1 and isinstance(found[0], shape_numbers.Size) else None

  def numbers(self, tensor: Any) -> shape_numbers.Sizes:
    """The numbers of an integer vector or scalar; None if it is neither."""
    is_number = tf.is_tensor(tensor) and tensor.dtype in _INTEGERS
    if is_number and id(tensor) in self._numbers:
      return self._numbers[id(tensor)][1]
    if not is_number or tensor.shape.rank not in (0, 1) or not tensor.shape.is_fully_defined():
      return None
    if tensor.shape.num_elements() > _MOST:
      return None
    value = tf.get_static_value(tensor)
    if value is not None:
      return [int(number) for number in value.reshape([-1])]
    return [None] * tensor.shape.num_elements()

  def with_constants(
    self, node: Any, inputs: list[Any], outputs: list[Any], cut: Mapping[int, Any]
  ) -> list[Any]:
    """Notes what follows for an op's results.

    Args:
      node: the op.
      inputs: its own.
      outputs: its results.
      cut: what may have a size that is cut of a batch's, by id; of the results what the op cuts.

    Returns:
      The results; constants where all numbers of an integer vector or scalar are known.
    """
    are_integers = all(tf.is_tensor(o) and o.dtype in _INTEGERS for o in outputs)
    if node.op in shape_numbers.RULES and are_integers:
      outputs = self._noted(node, inputs, outputs)
    cuts = any(id(output) in cut for output in outputs)  # What only hands a cut on is noted later.
    size = None if cuts else self._of_results(node, inputs)
    if node.op in ('BroadcastTo', 'Tile') and (sizes := self._repeated(node.op, *inputs[:2])):
      outputs[0].set_shape([n if isinstance(n, int) else None for n in sizes])
      varied = [n for n in sizes if isinstance(n, shape_numbers.Size)]
      size = varied[0] if len(varied) == 1 and not cuts else None
    if size is not None:
      for output in outputs:
        self.note_rows(output, size)
    return outputs

  def _of_results(self, node, inputs) -> shape_numbers.Size | None:
    """The size of the axis that varies in an op's results, where its inputs have it."""
    varied = [i for i in inputs if varying.is_varying(i)]
    if node.op.startswith(_OF_ROWS) and any(_axis(i) != 0 for i in varied):
      return None
    if node.op in _KEEPING or (node.op == 'ConcatV2' and _leaves_rows(inputs[-1], varied)):
      found = {self.varied(i) for i in varied}
      return found.pop() if len(found) == 1 else None
    if node.op == 'Range' and [self.numbers(i) for i in inputs[::2]] == [[0], [1]]:
      return self.single(inputs[1])
    if node.op == 'GatherV2' and varying.is_varying(inputs[1]):
      is_other_lost = len(varied) == 1 or _is_along_rows(node, inputs)
      return self.varied(inputs[1]) if is_other_lost else None
    if node.op == 'ResourceGather' and varied:  # by indices, of a variable
      return self.varied(inputs[1])
    if node.op in ('Pad', 'PadV2', 'Tile') and len(varied) == 1:
      return self._resized(node.op, *inputs[:2])
    return None

  def _repeated(self, op, value, how) -> shape_numbers.Sizes:
    """All sizes of what is repeated as a shape says, such as the gradient of a sum."""
    found = self.numbers(how) or []
    numbers = [n for n in found if n is not None]
    if len(numbers) < len(found):
      return None
    if op == 'BroadcastTo':
      return [*numbers]
    sizes = value.shape.as_list() if value.shape.is_fully_defined() else [0]
    return None if 0 in sizes else [n * size for n, size in zip(numbers, sizes, strict=True)]

  def _resized(self, op, value, how) -> shape_numbers.Size | None:
    size, axis, known = self.varied(value), _axis(value), tf.get_static_value(how)
    if size is None or known is None:
      return None
    if op == 'Tile':
      return size * int(known[axis])
    return size if not known[axis].any() else None

  def _noted(self, node, inputs, outputs):
    of_numbers = shape_numbers.RULES[node.op](node, inputs, [self.numbers(i) for i in inputs]) or []
    results = list(outputs)
    for i, numbers in enumerate(of_numbers):
      output = outputs[i]
      if output.shape.rank not in (0, 1) or output.shape.num_elements() != len(numbers):
        continue
      if all(isinstance(number, int) for number in numbers):
        results[i] = tf.constant(numbers, output.dtype, output.shape)
      elif any(number is not None for number in numbers):
        self._numbers[id(output)] = (output, numbers)
    return results

  def reshaped(
    self, value: tf.Tensor, shape: tf.Tensor
  ) -> tuple[tf.Tensor, shape_numbers.Size | None]:
    """What is known of a reshape.

    Args:
      value: what is reshaped.
      shape: to which.

    Returns:
      The shape, with -1 for the size that varies where the one to be found (-1) follows from it;
      and the size of the axis that varies in the result, None if that is not known.
    """
    size, target = self.varied(value), self.numbers(shape)
    if size is None or target is None or None in target:
      return shape, None
    varied = [n for n in target if isinstance(n, shape_numbers.Size)]
    fixed = [n for n in target if isinstance(n, int) and n != -1]
    to_find = len(target) - len(varied) - len(fixed)
    if len(varied) == 1 and not to_find:
      return shape, varied[0]
    # As many elements for each of the rows that vary, before and after.
    before = size.times * math.prod(n for n in value.shape.as_list() if n is not None)
    after = math.prod([*fixed, *(n.times for n in varied)])
    if to_find != 1 or after == 0 or before % after or any(n.base != size.base for n in varied):
      return shape, None
    found = before // after
    if not varied:
      return shape, dataclasses.replace(size, times=found)
    if len(varied) > 1:
      return shape, None
    sizes = [n if n in fixed else found if n == -1 else -1 for n in target]
    return tf.constant(sizes, shape.dtype), varied[0]

  def finds_another(self, value: tf.Tensor, shape: tf.Tensor) -> bool:
    """Whether a size that a reshape is to find (-1) varies as another does, or depends on it."""
    target = self.numbers(shape) or []
    varies = any(not isinstance(n, int) for n in target)
    axes = value.shape.as_list().count(None) if value.shape.rank is not None else 2
    return -1 in target and varies and axes < 2

  def note_rows(self, value: Any, size: shape_numbers.Size) -> None:
    """Notes the size of the only axis of a value that varies, if there is one."""
    if varying.is_varying(value) and _axis(value) is not None:
      self._rows[id(value)] = (value, size)

  def varied(self, value: tf.Tensor) -> shape_numbers.Size | None:
    """The size of the only axis of a value that varies."""
    axis = _axis(value)
    if axis is None or id(value) in self._rows:
      return self._rows.get(id(value), (None, None))[1]
    source = value.op.inputs[0].op if value.op.type == 'PlaceholderWithDefault' else value.op
    if source.type != _CUTTING or tf.get_static_value(source.inputs[1]) != axis:
      return shape_numbers.Size(('axis', axis, id(value)), value, axis)
    whole, _, number = source.inputs
    bound = whole.shape[axis] if whole.shape.rank else None
    return shape_numbers.Size(('number', id(number)), value, axis, bound)


def _axis(value: tf.Tensor) -> int | None:
  """The only axis of a value that varies."""
  sizes = value.shape.as_list() if value.shape.rank else []
  return sizes.index(None) if sizes.count(None) == 1 else None


def _leaves_rows(axis: tf.Tensor, parts: Sequence[tf.Tensor]) -> bool:
  """Whether values are joined along another axis than that which varies."""
  known = tf.get_static_value(axis)
  return known is not None and all(
    _axis(part) is not None and _axis(part) != int(known) % part.shape.rank for part in parts
  )


def _is_along_rows(node: Any, inputs: list[Any]) -> bool:
  """Whether something is gathered along its only axis that varies."""
  axis = tf.get_static_value(inputs[2])
  varied = [a for a, size in enumerate(inputs[0].shape.as_list() or []) if size is None]
  return axis is not None and varied == [int(axis)] and not node.attr['batch_dims'].i
