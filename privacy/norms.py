"""Norms on which clips rest."""

from collections.abc import Iterable

import tensorflow as tf

_SMALLEST = 2.0**-126  # float32's smallest normal number


def sums_of_squares(values: tf.Tensor) -> tf.Tensor:
  """Each row's sum of squares, float64 [B].

  In float64, whatever sums them: a running sum in float32 loses what is small beside it, of
  millions of numbers that are chosen so 0.1 % of their norm (the runtimes' sums in pieces 1e-5),
  and a clip would let so much more pass; and squares of numbers below 1e-19 lose digits or vanish.
  Among float64 all of float32's squares have room.

  Args:
    values: [B, ...].
  """
  squares = tf.square(tf.cast(values, tf.float64))
  return tf.reduce_sum(squares, axis=list(range(1, values.shape.rank)))


def global_norm(leaves: Iterable[tf.Tensor]) -> tf.Tensor:
  """L2 norm of all leaves together, float32; NaN or infinite where one of them is."""
  squares = [sums_of_squares(x[tf.newaxis])[0] for x in leaves]
  return tf.cast(tf.sqrt(tf.add_n(squares)), tf.float32)


def clip_factors(clipping_norm: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
  """What records of some lengths are to be multiplied with, so that none is longer than the clip.

  Where float32 has no normal number for it, 0: one without all its digits may be half too large.

  Args:
    clipping_norm: the clip, float32, which may be infinite.
    lengths: norms of the records, float32 [...]; of what is not finite the factor means nothing.

  Returns:
    float32 [...] in [0, 1].
  """
  factors = clipping_norm / tf.maximum(lengths, _SMALLEST)
  return tf.minimum(1.0, tf.where(factors < _SMALLEST, 0.0, factors))
