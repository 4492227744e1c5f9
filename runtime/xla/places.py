"""Places among others of NaN, which XLA takes for the smallest or the largest number.

And of a class that is none (a label of -1 for padding), which XLA takes for one of prediction 0.
"""

from collections.abc import Sequence

import tensorflow as tf

OPS = ('Bucketize', 'InTopKV2')


def taken(inputs: Sequence[tf.Tensor], boundaries: Sequence[float] = ()) -> tf.Tensor:
  """What TensorFlow gives.

  Args:
    inputs: numbers of any shape of which the bucket is asked; or predictions [rows, classes],
      targets [rows] and k, of which it is asked whether the target is among the k largest: no, in
      a row that is not finite, and for a target that is no class.
    boundaries: of the buckets.
  """
  if len(inputs) == 1:
    (numbers,) = inputs
    found = tf.raw_ops.Bucketize(input=numbers, boundaries=list(boundaries))
    if not numbers.dtype.is_floating:
      return found
    last = tf.zeros_like(found) + len(boundaries)
    return tf.raw_ops.Select(condition=tf.math.is_nan(numbers), x=last, y=found)
  predictions, targets, k = inputs
  found = tf.raw_ops.InTopKV2(predictions=predictions, targets=targets, k=k)
  classes = tf.cast(tf.shape(predictions)[1], targets.dtype)
  is_class = (targets >= tf.zeros_like(targets)) & (targets < classes)
  return found & is_class & tf.reduce_all(tf.math.is_finite(predictions), axis=1)
