"""Sums that XLA's loop on a CPU takes badly: of millions of numbers, and over short rows.

Of millions of numbers they are to be right to the last digits of float32, as TensorFlow's own.
XLA's loop on a CPU adds term by term to a few accumulators. Of 25 million squares they lose
3.6e-4: in the end a term is less than half of the sum's last digit. So a sum over more than
`LONGEST` numbers is one of sums over pieces. (XLA does it for every sum over more than 32 numbers,
in a way that takes up to seven times as long; `runtime` turns that off.)

A sum over a whole matrix goes row by row, and ends each row with a sum of its own: of rows of ten
numbers, as a linear model of ten classes has them, that takes several times as long as the sum of
as many numbers in one line, which it then is.
"""

import math
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

LONGEST = 2**18
_PIECE = 512
_SHORT_ROW = 64
_FEW = 512  # Terms of which no sum takes long.

OPS = ('L2Loss', 'Mean', 'Sum')


def taken(op: str, inputs: Sequence[tf.Tensor], *, keep_dims: bool) -> tf.Tensor | None:
  """What a sum (or mean, or half a sum of squares) is, taken well; None where XLA does so."""
  value = inputs[0]
  if not value.dtype.is_floating or not value.shape.is_fully_defined():
    return None
  if op == 'L2Loss':
    half = taken('Sum', [value * value, tf.range(value.shape.rank)], keep_dims=False)
    return None if half is None else half / 2
  axes = tf.get_static_value(inputs[1])
  if axes is None:
    return None
  axes = sorted({int(a) % value.shape.rank for a in axes.reshape(-1)})
  terms = math.prod(value.shape[a] for a in axes)
  has_short_rows = 1 < len(axes) == value.shape.rank and value.shape[-1] < _SHORT_ROW
  if terms <= (_FEW if has_short_rows else LONGEST):
    return None
  left = [(1 if a in axes else n) for a, n in enumerate(value.shape) if keep_dims or a not in axes]
  if len(axes) == value.shape.rank:
    value, axes = tf.reshape(value, [-1]), [0]
    if has_short_rows:
      value = _by_itself(value)  # Or it would be read in rows again.
  for axis in reversed(axes):
    value = _along(value, axis)
  value = tf.reshape(value, left)
  return value / terms if op == 'Mean' else value


def _along(value: tf.Tensor, axis: int) -> tf.Tensor:
  """The sum along an axis."""
  size, shape = value.shape[axis], value.shape.as_list()
  if size > _PIECE:
    whole = size // _PIECE * _PIECE
    pieces, rest = tf.split(value, [whole, size - whole], axis=axis)
    pieces = tf.reshape(pieces, [*shape[:axis], -1, _PIECE, *shape[axis + 1 :]])
    sums = tf.reduce_sum(pieces, axis=axis + 1), tf.reduce_sum(rest, axis=axis, keepdims=True)
    return _along(tf.concat(sums, axis=axis), axis)
  # Or XLA would make one sum of two.
  return tf.reduce_sum(_by_itself(value), axis=axis)


def _by_itself(value: tf.Tensor) -> tf.Tensor:
  """The value, which XLA joins with nothing that uses it."""
  (value,) = gen_xla_ops.xla_optimization_barrier([value])
  return value
