"""Matrix products that XLA takes badly on a CPU.

Products of a matrix with a vector it takes in loops of its own (or fuses them into loops over
single numbers), of which a sum over the matrix times the vector is two to six times as fast:
101 x 100 takes 1.6 in the place of 7.7 microseconds of a core, 100 x 784 13.6 in the place of 83.
Sums down long columns are left to it: there its loop is as good.

A b^T, of few rows and a large b, is the gradient by a layer's input. The library that XLA calls
brings all of b into another order at first, number by number. It is (b a^T)^T, and b stays as it
is: 64 x 512 times the transpose of 4608 x 512 takes 3.5 in the place of 16 milliseconds of a core,
10 x 128 times that of 12544 x 128 0.9 in the place of 1.6.

A^T b, of few columns, is the gradient by a layer's weights. What that library keeps in a core's
registers are pieces of a result's rows, which are short here. It is (b^T a)^T, whose rows are long:
of 100 images of 784 pixels and ten classes it takes 18 in the place of 45 microseconds of a core,
of two classes 8 in the place of 23.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

OPS = ('MatMul',)
_FEWEST_TERMS = 8
_SHORT_ROW = 64  # As long as this, a row is added to a sum of rows as fast by XLA's product.
_LARGE = 2**15  # Numbers of a matrix that is slow to bring into another order.
_NARROW = 16  # Columns that fill a register.
_FEWEST_ROWS = 64
_MANY_TERMS = 50


def taken(inputs: Sequence[tf.Tensor], *, transpose_a: bool, transpose_b: bool) -> tf.Tensor | None:
  """A product of two matrices in a form that is faster; None where XLA's own is.

  Args:
    inputs: [M, T] and [T, N], each the other way round if it is to be transposed.
    transpose_a: whether the first is.
    transpose_b: whether the second is.

  Returns:
    [M, N].
  """
  a, b = inputs
  if a.dtype != tf.float32 or not a.shape.rank == b.shape.rank == 2:
    return None
  terms, rows = a.shape if transpose_a else reversed(a.shape)
  columns = b.shape[0] if transpose_b else b.shape[1]
  if transpose_a and not transpose_b and _is_narrow(rows, columns, terms):
    return _turned_round(a, b, transpose_a=True)
  if None in (rows, columns, terms):
    return None
  if 1 in (rows, columns):
    return _as_sum(a, b, rows, columns, terms, transpose_a, transpose_b)
  if transpose_b and not transpose_a and 2 * rows <= columns and terms * columns >= _LARGE:
    return _turned_round(a, b, transpose_b=True)
  return None


def _is_narrow(rows: int | None, columns: int | None, terms: int | None) -> bool:
  """Whether a sum over `terms` is a matrix with rows that are short, and much less than it has."""
  if rows is None or columns is None or columns == 1 or rows < max(_FEWEST_ROWS, 4 * columns):
    return False
  # Of few terms, turning the result takes longer.
  return columns <= _NARROW or (columns <= 4 * _NARROW and (terms or 0) >= _MANY_TERMS)


def _as_sum(a, b, rows: int, columns: int, terms: int, transpose_a: bool, transpose_b: bool):
  if columns == 1:
    matrix, vector, terms_last = a, b, not transpose_a
  else:
    matrix, vector, terms_last = b, a, transpose_b
  if terms < _FEWEST_TERMS or not (terms_last or matrix.shape[1] < _SHORT_ROW):
    return None
  vector = tf.reshape(vector, [1, terms] if terms_last else [terms, 1])
  return tf.reshape(tf.reduce_sum(matrix * vector, axis=1 if terms_last else 0), [rows, columns])


def _turned_round(a, b, **transposed: bool):
  # Times a one that XLA does not see, or it would turn the product back. Behind a barrier it
  # would not either, but a branch of a condition that ends so has its numbers in the wrong places.
  (one,) = gen_xla_ops.xla_optimization_barrier([tf.constant(1.0)])
  return tf.transpose(tf.matmul(b, a, **transposed) * one)
