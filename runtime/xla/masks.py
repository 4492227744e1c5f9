"""Masks as numbers: 0 times NaN or infinity is NaN in TensorFlow.

XLA takes a product with a converted truth value for a selection, where what is masked is 0 whatever
it was. Converted by way of whole numbers it stays a product.
"""

import tensorflow as tf

OPS = ('Cast',)


def taken(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
  """Truth values as floating-point numbers; None for any other cast."""
  if value.dtype != tf.bool or not (dtype.is_floating or dtype.is_complex):
    return None
  return tf.cast(tf.cast(value, tf.int32), dtype)
