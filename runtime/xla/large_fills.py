"""Large tensors of one number, which TensorFlow would write out before XLA sees them.

Its constant folding makes a constant of each one below 10 MB, such as the zeros where a sum of
gradients begins, and copies the graph that has it several times on the way to XLA.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

OPS = ('Fill',)
_LARGE = 2**14  # Numbers of a tensor.


def taken(dims: tf.Tensor, value: tf.Tensor) -> tf.Tensor | None:
  """A large tensor of one number as one that is nothing but padding; None for any other.

  Args:
    dims: its shape.
    value: the number; of one that is not known TensorFlow makes no constant.
  """
  shape = tf.get_static_value(dims)
  if shape is None or value.dtype == tf.string or tf.get_static_value(value) is None:
    return None
  if tf.TensorShape(shape).num_elements() < _LARGE:
    return None
  none = [0] * len(shape)
  # XLA has a broadcast for it at once.
  padded = gen_xla_ops.xla_pad(
    tf.zeros(none, value.dtype), value, padding_low=shape, padding_high=none, padding_interior=none
  )
  return tf.ensure_shape(padded, shape)


def fill(shape: Sequence[int], value: tf.Tensor) -> tf.Tensor:
  """`tf.fill`, in a program that XLA compiles."""
  large = taken(tf.constant(shape, tf.int32), value)
  return tf.fill(shape, value) if large is None else large
