"""The numbers in vectors that are made of shapes, and which ops keep them.

What a program makes of the shape [?, 28, 28], as `tf.concat([[n], tf.shape(x)[1:]], 0)`, is
[?, 28, 28] again. TensorFlow itself loses the known numbers at a split, a reshape or a slice.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Size:
  """A size that varies.

  Attributes:
    base: stands for a number that varies.
    of: a value that has that many elements along an axis.
    axis: the axis.
    bound: the most that the number can be; None if only XLA knows that.
    times: how many times that number the size is.
  """

  base: Hashable
  of: tf.Tensor = dataclasses.field(compare=False, repr=False)
  axis: int = dataclasses.field(compare=False, repr=False)
  bound: int | None = dataclasses.field(default=None, compare=False, repr=False)
  times: int = 1

  @property
  def most(self) -> int | None:
    """The most that the size can be, where TensorFlow knows that."""
    return None if self.bound is None else self.times * self.bound

  def __mul__(self, times: int) -> 'Size':
    return dataclasses.replace(self, times=self.times * times)


# The numbers of a vector, None for those of which nothing is known; None for anything else.
Sizes = list[int | Size | None] | None
_Rule = Callable[[Any, list[Any], list[Sizes]], list[Any] | None]


def constants(sizes: Sequence[Sizes]) -> list[list[int]] | None:
  """Vectors all of whose numbers are known; None if there is another."""
  found = [[n for n in numbers if isinstance(n, int)] for numbers in sizes if numbers is not None]
  is_whole = len(found) == len(sizes) and all(
    len(f) == len(numbers or []) for f, numbers in zip(found, sizes, strict=True)
  )
  return found if is_whole else None


def _joined(node, inputs, sizes):
  del node, inputs
  if any(numbers is None for numbers in sizes):
    return None
  return [[number for numbers in sizes for number in numbers]]


def _packed(node, inputs, sizes):
  return _joined(node, inputs, sizes) if all(i.shape.rank == 0 for i in inputs) else None


def _concatenated(node, inputs, sizes):
  return _joined(node, inputs, sizes[:-1])


def _offsets(node, inputs, sizes):
  """Where each of the values that are joined begins."""
  del node
  along = constants(sizes[:1])
  if along is None or any(numbers is None for numbers in sizes[1:]):
    return None
  ((axis,),) = along
  result: list[list[int | None]] = []
  begin: int | None = 0
  for numbers in sizes[1:]:
    offset: list[int | None] = [0] * len(numbers)
    offset[axis] = begin
    result.append(offset)
    size = numbers[axis]
    begin = None if begin is None or not isinstance(size, int) else begin + size
  return result


def _alike(node, inputs, sizes):
  """A vector of the same numbers."""
  del node, inputs
  return None if sizes[0] is None else [sizes[0]]


def _split(node, inputs, sizes):
  del inputs
  if sizes[1] is None:
    return None
  each = len(sizes[1]) // node.attr['num_split'].i
  return [sizes[1][start : start + each] for start in range(0, len(sizes[1]), each)]


def _split_by(node, inputs, sizes):
  del node, inputs
  lengths = constants(sizes[1:2])
  if sizes[0] is None or lengths is None or -1 in lengths[0]:
    return None
  ends = [sum(lengths[0][: i + 1]) for i in range(len(lengths[0]))]
  return [sizes[0][end - n : end] for end, n in zip(ends, lengths[0], strict=True)]


def _unpacked(node, inputs, sizes):
  del node, inputs
  return None if sizes[0] is None else [[number] for number in sizes[0]]


def _gathered(node, inputs, sizes):
  del node
  places = constants(sizes[1:2])
  if sizes[0] is None or inputs[0].shape.rank != 1 or places is None:
    return None
  if not all(0 <= place < len(sizes[0]) for place in places[0]):
    return None
  return [[sizes[0][place] for place in places[0]]]


def _sliced(node, inputs, sizes):
  del node, inputs
  where = constants(sizes[1:])
  if sizes[0] is None or where is None:
    return None
  ((start,), (count,)) = where
  return [sizes[0][start : None if count == -1 else start + count]]


def _strided(node, inputs, sizes):
  where = constants(sizes[1:])
  is_plain = not (node.attr['new_axis_mask'].i or node.attr['ellipsis_mask'].i)
  if sizes[0] is None or inputs[0].shape.rank != 1 or where is None or not is_plain:
    return None
  if any(len(numbers) != 1 for numbers in where):
    return None
  ((start,), (end,), (stride,)) = where
  if node.attr['shrink_axis_mask'].i:
    return [sizes[0][start : start + 1 or None]]
  begin = None if node.attr['begin_mask'].i else start
  return [sizes[0][begin : None if node.attr['end_mask'].i else end : stride]]


def _same(node, inputs, sizes):
  """The largest of several equal numbers."""
  del node, inputs
  numbers = sizes[0] or [None]
  return [[numbers[0]]] if all(number == numbers[0] for number in numbers) else None


def _times(node, inputs, sizes):
  """A size that varies, a known number of times."""
  del node
  if any(i.shape.rank != 0 for i in inputs):
    return None
  (one,), (other,) = sizes
  if isinstance(one, int):
    one, other = other, one
  if not isinstance(one, Size) or not isinstance(other, int) or other < 1:
    return None
  return [[one * other]]


# The numbers in an op's results, from (node, inputs, their numbers); None if nothing is known.
RULES: Mapping[str, _Rule] = dict(
  Cast=_alike,
  ConcatOffset=_offsets,
  ConcatV2=_concatenated,
  ExpandDims=_alike,
  GatherV2=_gathered,
  Max=_same,
  Mul=_times,
  Pack=_packed,
  Reshape=_alike,
  Slice=_sliced,
  Split=_split,
  SplitV=_split_by,
  Squeeze=_alike,
  StridedSlice=_strided,
  Unpack=_unpacked,
)
