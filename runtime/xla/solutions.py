"""Solutions of linear equations, of which XLA may not know the matrix.

Two of them in one program, one of a matrix that XLA computes beforehand, end the process with a
segmentation fault while it compiles.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

OPS = ('MatrixSolve',)


def taken(inputs: Sequence[tf.Tensor], *, adjoint: bool) -> tf.Tensor:
  """The solution for a matrix and right-hand sides."""
  matrix, right = inputs
  (matrix,) = gen_xla_ops.xla_optimization_barrier([matrix])
  return tf.raw_ops.MatrixSolve(matrix=matrix, rhs=right, adjoint=adjoint)
