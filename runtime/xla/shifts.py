"""Shifts by as many bits as a number has, or more, or by fewer than none, as TensorFlow makes them.

Its kernels take the nearest shift that there is: by 0, or by all bits but one. XLA shifts
everything out instead.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.framework import tensor_util

OPS = ('LeftShift', 'RightShift')


def taken(op: str, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
  """A shift of (integers, counts) which any count may have; None where XLA's own is the same."""
  numbers, counts = inputs
  most = 8 * numbers.dtype.size - 1
  known = tensor_util.constant_value(counts)
  if known is not None and ((known >= 0) & (known <= most)).all():
    return None
  counts = tf.maximum(tf.minimum(counts, tf.cast(most, counts.dtype)), tf.cast(0, counts.dtype))
  return getattr(tf.raw_ops, op)(x=numbers, y=counts)
