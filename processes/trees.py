"""Arithmetic on trees of tensors (a model's parameters, gradients, updates)."""

import math

import tensorflow as tf

from privacy import norms
from runtime import random_streams


def add(a, b):
  """a + b."""
  return tf.nest.map_structure(tf.add, a, b)


def subtract(a, b):
  """a - b."""
  return tf.nest.map_structure(tf.subtract, a, b)


def scale(a, factor):
  """factor * a."""
  return tf.nest.map_structure(lambda t: t * factor, a)


def add_scaled(a, b, factor):
  """a + factor * b."""
  return tf.nest.map_structure(lambda s, t: s + factor * t, a, b)


def zeros_like(a):
  """Zeros of the same shapes."""
  return tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), a)


def where(condition, a, b):
  """a if the scalar condition holds, else b, leaf by leaf."""
  return tf.nest.map_structure(lambda s, t: tf.where(condition, s, t), a, b)


def global_norm(a):
  """L2 norm over all leaves together, float32 scalar."""
  return norms.global_norm(tf.nest.flatten(a))


def finite_or_zero(a):
  """a, or zeros if its norm is not finite.

  Clipping cannot bound what is NaN or infinite; such an update must not reach a sum
  whose sensitivity is claimed.
  """
  return where(tf.math.is_finite(global_norm(a)), a, zeros_like(a))


def num_elements(a) -> int:
  """Number of numbers in the tree."""
  return sum(math.prod(t.shape) for t in tf.nest.flatten(a))


def normal_like(key, a):
  """Independent standard normals, each leaf from a key of its own."""
  flat = tf.nest.flatten(a)
  draws = [
    random_streams.normal(random_streams.fold_in(key, i), t.shape) for i, t in enumerate(flat)
  ]
  return tf.nest.pack_sequence_as(a, draws)
