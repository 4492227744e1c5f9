"""Convolutions in Winograd's form are the convolutions, and so are their gradients."""

import numpy as np
import pytest
import tensorflow as tf

from runtime import winograd
from tff_models import layers


def _random(seed, *shape):
  return tf.constant(np.random.default_rng(seed).normal(size=shape))


def _plain(x, filters):
  return tf.nn.conv2d(x, filters, 1, 'VALID')


@pytest.mark.parametrize('height, width', [(3, 3), (4, 4), (5, 10), (6, 7), (13, 14)])
@pytest.mark.parametrize('batch', [1, 4])
def test_values_and_gradients_are_a_convolutions(height, width, batch):
  x, filters = _random(0, batch, height, width, 5), _random(1, 3, 3, 5, 7)
  found = {}
  ours = (winograd.convolution, winograd.convolution_of_one_example)
  for convolution in (_plain, *ours):
    with tf.GradientTape() as tape:
      tape.watch([x, filters])
      y = convolution(x, filters)
      loss = tf.reduce_sum(y**3)
    found[convolution] = y, *tape.gradient(loss, [x, filters])
  expected = found[_plain]
  by_filters = winograd.filter_gradient(x, 3.0 * expected[0] ** 2)
  np.testing.assert_allclose(by_filters, expected[2], rtol=1e-10, atol=1e-10)
  for convolution in ours:
    for a, b in zip(found[convolution], expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_gradients_of_each_example_by_the_filters_are_a_convolutions():
  x, filters = _random(0, 6, 9, 12, 5), _random(1, 3, 3, 5, 7)

  def gradients(convolution):
    def of_one(x_i):
      with tf.GradientTape() as tape:
        tape.watch([x_i, filters])
        loss = tf.reduce_sum(convolution(x_i[tf.newaxis], filters) ** 3)
      return tape.gradient(loss, [x_i, filters])

    return tf.vectorized_map(of_one, x, fallback_to_while_loop=False)

  for a, b in zip(gradients(winograd.convolution_of_one_example), gradients(_plain), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_float32_keeps_its_digits():
  x, filters = _random(0, 8, 30, 30, 32), _random(1, 3, 3, 32, 64)
  exact = _plain(x, filters).numpy()
  narrow = winograd.convolution(tf.cast(x, tf.float32), tf.cast(filters, tf.float32)).numpy()
  direct = _plain(tf.cast(x, tf.float32), tf.cast(filters, tf.float32)).numpy()
  error = np.abs(narrow - exact).max() / np.abs(exact).max()
  assert error < 1e-6
  assert error < 10 * np.abs(direct - exact).max() / np.abs(exact).max()


@pytest.mark.parametrize(
  'shape, outputs, size, stride, dtype, fewer',
  [
    ((10, 30, 30, 32), 64, 3, 1, tf.float32, True),
    ((1, 30, 30, 32), 64, 3, 1, tf.float32, True),  # one example alone
    ((10, 30, 30, 3), 64, 3, 1, tf.float32, False),  # adding would cost more
    ((10, 4, 4, 256), 64, 3, 1, tf.float32, False),  # few windows for so many channels
    ((10, 30, 30, 32), 64, 5, 1, tf.float32, False),
    ((10, 30, 30, 32), 64, 3, 2, tf.float32, False),
    ((10, 30, 30, 32), 64, 3, 1, tf.bfloat16, False),
  ],
)
def test_layers_take_it_where_it_saves_products(shape, outputs, size, stride, dtype, fewer):
  x = tf.cast(_random(0, *shape), tf.float32)
  weights = tf.cast(_random(1, size * size * shape[-1], outputs), tf.float32)

  def convolved(x, weights):
    return layers.conv2d(x, weights, size=size, stride=stride, dtype=dtype)

  graph = tf.function(convolved).get_concrete_function(x, weights).graph
  products = 0
  for op in graph.get_operations():
    if op.type in ('MatMul', 'BatchMatMulV2'):
      a, b = (t.shape for t in op.inputs)
      products += a.num_elements() * b[-1]
  direct = layers.conv_output_size(shape[1], filter_size=size, stride=stride) ** 2
  direct *= shape[0] * size**2 * shape[3] * outputs
  assert products < 0.55 * direct if fewer else products == direct
  filters = tf.reshape(weights, [size, size, shape[3], outputs])
  np.testing.assert_allclose(
    convolved(x, weights), tf.nn.conv2d(x, filters, stride, 'VALID'),
    atol=1e-3 if dtype == tf.float32 else 2.0,
  )  # fmt: skip
