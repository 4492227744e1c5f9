"""Gradients at 0 and NaN, which XLA takes to the other side than TensorFlow.

A layer that starts with zeros has all its outputs there: SELU's slope at 0 is 1.05 in
TensorFlow's kernel and 1.76 in XLA's. A root's is infinite there, and counts for nothing where
nothing comes from above, as of a distance to itself that is masked: XLA has 0 times infinity.
"""

from collections.abc import Sequence

import tensorflow as tf

_SCALE = 1.0507009873554804934193349852946
_SCALE_TIMES_ALPHA = 1.7580993408473768599402175208123

_OF_POWERS = {
  'InvGrad': lambda y: -y * y,
  'ReciprocalGrad': lambda y: -y * y,
  'RsqrtGrad': lambda y: tf.constant(-0.5, y.dtype) * y * y * y,
  'SqrtGrad': lambda y: tf.constant(0.5, y.dtype) / y,
}
OPS = ('EluGrad', 'SeluGrad', *_OF_POWERS)


def taken(op: str, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
  """What a gradient is in TensorFlow, from its op's inputs of one shape.

  They are what comes from above and the function's outputs, in the op's order.
  """
  if op in _OF_POWERS:
    outputs, slopes = inputs
    outputs = tf.math.conj(outputs) if outputs.dtype.is_complex else outputs
    # Not `tf.where`, in which XLA loses a size that varies.
    return tf.raw_ops.Select(
      condition=tf.equal(slopes, tf.constant(0, slopes.dtype)), x=slopes,
      y=slopes * _OF_POWERS[op](outputs),
    )  # fmt: skip
  slopes, outputs = inputs
  scale, offset = (1.0, 1.0) if op == 'EluGrad' else (_SCALE, _SCALE_TIMES_ALPHA)
  below = slopes * (outputs + tf.constant(offset, slopes.dtype))
  above = slopes * tf.constant(scale, slopes.dtype)
  return tf.raw_ops.Select(condition=outputs < 0, x=below, y=above)
