"""Gradients of activations at 0 and NaN, which XLA takes to the other side than TensorFlow.

A layer that starts with zeros has all its outputs there: SELU's slope at 0 is 1.05 in
TensorFlow's kernel and 1.76 in XLA's.
"""

from collections.abc import Sequence

import tensorflow as tf

_SCALE = 1.0507009873554804934193349852946
_SCALE_TIMES_ALPHA = 1.7580993408473768599402175208123

OPS = ('EluGrad', 'SeluGrad')


def taken(op: str, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
  """What a gradient is in TensorFlow, from (slopes, the activation's outputs) of one shape."""
  slopes, outputs = inputs
  scale, offset = (1.0, 1.0) if op == 'EluGrad' else (_SCALE, _SCALE_TIMES_ALPHA)
  below = slopes * (outputs + tf.constant(offset, slopes.dtype))
  above = slopes * tf.constant(scale, slopes.dtype)
  # Not `tf.where`, in which XLA loses a size that varies.
  return tf.raw_ops.Select(condition=outputs < 0, x=below, y=above)
