"""Sums of millions of numbers keep float32's digits, wherever they stand in a program."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import long_sums

Tree = collections.OrderedDict
SIZE = 2_000_003


def _of_vector(x):
  looped = tf.while_loop(
    lambda i, _: i < 1, lambda i, total: (i + 1, total + tf.reduce_sum(x * x)), (0, 0.0)
  )[1]
  return Tree(
    squares=tf.reduce_sum(x * x),
    kept=tf.reduce_sum(x * x, keepdims=True),
    half=tf.nn.l2_loss(x),
    norm=tf.linalg.global_norm([x, x[:7]]),
    mean=tf.reduce_mean(x * x),
    looped=looped,
  )


def _of_matrix(x):
  x = tf.reshape(x[: SIZE // 6 * 6], [-1, 2, 3])
  return Tree(
    columns=tf.reduce_sum(x * x, axis=0),
    kept=tf.reduce_mean(x * x, axis=0, keepdims=True),
    both=tf.reduce_sum(x * x, axis=[0, -1]),
    whole=tf.reduce_sum(x * x, axis=[0, 1, 2], keepdims=True),
    short=tf.reduce_sum(x[:5], axis=2),
  )


def _check(of_client, **options):
  type_ = tff.TensorType(np.float32, [SIZE])
  work = tff.tensorflow.computation(of_client, type_)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def program(values):
    return tff.federated_map(work, values)

  x = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
  (found,) = runtime.XlaContext(**options).invoke(program, [x])
  exact = of_client(tf.constant(x.astype(np.float64))) if of_client is _of_matrix else None
  if exact is None:
    square = np.sum(x.astype(np.float64) ** 2)
    norm = np.sqrt(square + np.sum(x[:7].astype(np.float64) ** 2))
    exact = Tree(
      squares=square, kept=[square], half=square / 2, norm=norm, mean=square / SIZE, looped=square
    )
  for name, value in exact.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    assert np.shape(found[name]) == np.shape(value), name


@pytest.mark.parametrize('of_client', [_of_vector, _of_matrix], ids=['vector', 'matrix'])
@pytest.mark.parametrize('block', [1, 2])
def test_long_sums_keep_their_digits(of_client, block):
  _check(of_client, clients_per_block=block)


@pytest.mark.cpu
def test_without_pieces_digits_are_lost(monkeypatch):
  """The negative control."""
  monkeypatch.setattr(long_sums, 'LONGEST', 2**40)
  with pytest.raises(AssertionError, match='squares'):
    _check(_of_vector)


def test_sums_over_short_rows_are_taken_in_one_line():
  """Of rows that are long, or few, XLA's own is as good."""

  @tf.function(jit_compile=True)
  def of_all(x):
    return long_sums.taken('Sum', [x, tf.constant([0, 1])], keep_dims=False)

  x = np.random.default_rng(0).normal(size=[784, 10]).astype(np.float32)
  np.testing.assert_allclose(of_all(tf.constant(x)), x.sum(dtype=np.float64), rtol=1e-5)
  for shape, axes in (([784, 100], [0, 1]), ([5, 10], [0, 1]), ([784, 10], [0])):
    assert long_sums.taken('Sum', [tf.zeros(shape), tf.constant(axes)], keep_dims=False) is None


def test_in_programs_that_are_interpreted():
  """With random ops a program is built anew, op by op."""

  def with_draw(x):
    return Tree(squares=tf.reduce_sum(x * x) + 0.0 * tf.random.uniform([], dtype=tf.float32))

  work = tff.tensorflow.computation(with_draw, tff.TensorType(np.float32, [SIZE]))
  x = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
  found = runtime.XlaContext().invoke(work, x)['squares']
  np.testing.assert_allclose(found, np.sum(x.astype(np.float64) ** 2), rtol=1e-6)
