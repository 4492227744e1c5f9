"""Reshapes of values whose sizes vary, where XLA's own give another order.

XLA joins an axis that varies with those before it by sorting all that is there before all of the
padding, and its sort for a GPU does not keep the order. And as it goes by the largest sizes, it
may take another axis for the one that varies: [n, 4] -> [2, 2, n] where n is at most 4. So the
places of such values are counted here.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import tensor_util

from runtime.xla.lowering import interpreter, varying

_Sizes = Sequence[int | None]


def in_order(value: tf.Tensor, target: _Sizes | None) -> tf.Tensor:
  """What is to be reshaped, in a form of which XLA's reshape keeps the order.

  Args:
    value: of any sizes.
    target: the sizes after it, None or -1 for those that are not known; None for no shape.

  Returns:
    The value where that is one; or as `target` has it, if one of its sizes is not known; or as
    [n, the sizes behind the value's last axis that varies].
  """
  sizes = value.shape.as_list() if value.shape.rank else []
  if target is not None:
    target = [None if size == -1 else size for size in target]
  if not _moves_what_varies(sizes, target):
    return value
  if target is None or target.count(None) != 1 or 0 in target:
    target = None
  behind = _known_behind(sizes, sizes if target is None else target)
  axes = len(sizes) - behind
  room = functools.reduce(of_largest_size, range(len(sizes)), value)
  whole, there = tf.unstack(tf.shape(room)[:axes]), tf.unstack(tf.shape(value)[:axes])
  places, number = functools.reduce(operator.mul, whole), functools.reduce(operator.mul, there)
  goal: list[int | None] = [None]
  wanted = tf.range(places)
  if target is not None:
    goal = list(target[: len(target) - behind])
    known = _product(goal)
    places, number = places // known, number // known
    of_places, of_number = (
      [size if own is None else own for own in goal] for size in (places, number)
    )
    wanted = _moved(tf.range(places * known), of_places, of_number)
  rows = tf.reshape(room, [-1, *sizes[axes:]])
  found = tf.gather(rows, tf.minimum(_moved(wanted, there, whole), tf.shape(rows)[0] - 1))
  found = tf.reshape(found, [-1 if size is None else size for size in (*goal, *sizes[axes:])])
  return interpreter.set_dynamic_size(found, goal.index(None), number)


def check_order(value: tf.Tensor, shape: tf.Tensor) -> None:
  """Refuses to move a known size past one of several axes that vary, which XLA does wrongly.

  Raises:
    NotLowered: so.
  """
  sizes, target = value.shape, tensor_util.constant_value_as_shape(shape)
  if sizes.rank is None or target.rank is None:
    return
  one, other = sizes.as_list(), target.as_list()
  if one.count(None) == other.count(None) > 1 and _known(one) != _known(other):
    raise varying.refusal('Reshape')


def of_largest_size(value: tf.Tensor, axis: int) -> tf.Tensor:
  """A value with all of its room along an axis; `tf.shape` gives the size of one that varies."""
  fixed = gen_xla_ops.xla_remove_dynamic_dimension_size(value, tf.constant(axis))
  fixed.set_shape(value.shape)
  return fixed


def gather(value: tf.Tensor, places: tf.Tensor, *, axis: int) -> tf.Tensor:
  """`tf.gather`; see `gathered`."""
  return gathered(value, range(axis, axis + 1), lambda whole: tf.gather(whole, places, axis=axis))


def gathered(value: tf.Tensor, along: range, gather: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
  """What is gathered of a value, where XLA takes another axis of it for one that varies.

  Args:
    value: of known rank, whose sizes may vary.
    along: the axes that are gathered along.
    gather: gives the result of the value with all of its room along the others; it has other axes
      in the place of those in `along`.
  """
  others = [a for a, size in enumerate(value.shape) if size is None and a not in along]
  found = gather(functools.reduce(of_largest_size, others, value))
  moved = found.shape.rank - value.shape.rank
  for axis in others:
    place = axis if axis < along.start else axis + moved
    found = interpreter.set_dynamic_size(found, place, tf.shape(value)[axis])
  return found


def _moved(numbers: tf.Tensor, sizes: Sequence[Any], others: Sequence[Any]) -> tf.Tensor:
  """The numbers, in an array of other sizes, of what has some in an array of `sizes`."""
  result, stride = tf.zeros_like(numbers), 1
  for size, other in zip(reversed(sizes), reversed(others), strict=True):
    size = tf.maximum(size, 1)
    result += numbers % size * stride
    numbers //= size
    stride *= other
  return result


def _moves_what_varies(sizes: _Sizes, target: _Sizes | None) -> bool:
  """Whether an axis that varies is joined with one before it, or cut, as far as is known."""
  before = _before_what_varies(sizes)
  if before is None:
    return False
  if target is None:
    return before > 1 or sizes.count(None) > 1
  if sizes.count(None) > 1:
    return target.count(None) < sizes.count(None)
  left = _before_what_varies(target)
  return before != (1 if left is None else left)


def _before_what_varies(sizes: _Sizes) -> int | None:
  """The product of the sizes before the first that is not known; None if all are."""
  return _product(sizes[: sizes.index(None)]) if None in sizes else None


def _known(sizes: _Sizes) -> list[int]:
  """The products of the known sizes before each axis that varies."""
  ends = [axis for axis, size in enumerate(sizes) if size is None]
  return [_product(sizes[: end + 1]) for end in ends]


def _product(sizes: _Sizes) -> int:
  """Of the sizes that are known."""
  return math.prod([size for size in sizes if size is not None])


def _known_behind(one: _Sizes, other: _Sizes) -> int:
  """How many known sizes two shapes end with alike."""
  pairs = zip(reversed(one), reversed(other), strict=False)
  return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1] is not None, pairs)))
