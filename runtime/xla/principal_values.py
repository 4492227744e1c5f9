"""Inverse hyperbolic cosines of complex numbers, of which XLA's have another sign left of 0."""

import tensorflow as tf

OPS = ('Acosh',)


def taken(numbers: tf.Tensor) -> tf.Tensor | None:
  """The principal values, as TensorFlow has them; None for real numbers.

  Source: Kahan, Branch cuts for complex elementary functions (1987), `arccosh`.
  """
  if not numbers.dtype.is_complex:
    return None
  one = tf.constant(1, numbers.dtype)
  above, below = tf.sqrt(numbers + one), tf.sqrt(numbers - one)
  real = tf.asinh(tf.math.real(tf.math.conj(below) * above))
  imaginary = 2 * tf.atan2(tf.math.imag(below), tf.math.real(above))
  return tf.complex(real, imaginary)
