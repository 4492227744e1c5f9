"""Convolutions, pooling and their gradients, as the runtime writes them: TensorFlow's numbers."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

PICTURES, FILTERS = (2, 9, 8, 3), (3, 2, 3, 4)


def _spread(weights):
  """A filter with zeros between its rows: TensorFlow has no gradient of dilation on a CPU."""
  rows = [weights[:1], tf.zeros_like(weights[:1]), weights[1:2], tf.zeros_like(weights[:1])]
  return tf.concat([*rows, weights[2:]], axis=0)


def _dilated(x, w, compiled):
  if compiled:
    return tf.nn.conv2d(x, w, 1, 'VALID', dilations=[2, 1])
  return tf.nn.conv2d(x, _spread(w), 1, 'VALID')


EXPLICIT = [[0, 0], [3, 0], [0, 2], [0, 0]]


def _resized(x, method, *sizes):
  """Both layouts of places that Keras' layers and TensorFlow's first version have."""
  as_now = tf.image.resize(x, sizes, method)
  return as_now + tf.compat.v1.image.resize(x, sizes, method, align_corners=True)


CASES = {
  'valid': lambda x, w, _: tf.nn.conv2d(x, w, 1, 'VALID'),
  'strided, same': lambda x, w, _: tf.nn.conv2d(x, w, [2, 3], 'SAME'),
  'explicit': lambda x, w, _: tf.nn.conv2d(x, w, 2, EXPLICIT),
  'dilated': _dilated,
  'pooled': lambda x, w, _: tf.nn.max_pool2d(x, 2, 2, 'VALID') * tf.reduce_sum(w),
  'pooled, same': lambda x, w, _: tf.nn.max_pool2d(x, [2, 3], [2, 3], 'SAME') * tf.reduce_sum(w),
  'nearest': lambda x, w, _: _resized(x, 'nearest', 18, 12) * tf.reduce_sum(w),
  'bilinear': lambda x, w, _: _resized(x, 'bilinear', 14, 5) * tf.reduce_sum(w),
  'overlapping': lambda x, w, _: tf.nn.max_pool2d(x, 3, 2, 'VALID') * tf.reduce_sum(w),
}


def gradients(x, w, *, compiled):
  """Every case's output and gradients."""
  results = collections.OrderedDict()
  for name, function in CASES.items():
    with tf.GradientTape() as tape:
      tape.watch([x, w])
      y = function(x, w, compiled)
      loss = tf.reduce_sum(y * y) / 2
    results[name] = [y, *tape.gradient(loss, [x, w])]
  return results


@pytest.mark.parametrize('block', [1, pytest.param(2, marks=pytest.mark.slow)])
def test_outputs_and_gradients_are_tensorflows(block):
  types = tff.TensorType(np.float32, PICTURES), tff.TensorType(np.float32, FILTERS)

  @tff.tensorflow.computation(*types)
  def of_client(x, w):
    return gradients(x, w, compiled=True)

  @tff.federated_computation(tff.FederatedType(types, tff.CLIENTS))
  def of_clients(values):
    return tff.federated_map(of_client, values)

  rng = np.random.default_rng(0)
  clients = [
    # Few different values: pooling meets equal ones.
    (rng.integers(-2, 3, PICTURES).astype(np.float32), rng.normal(size=FILTERS).astype(np.float32))
    for _ in range(3)
  ]
  context = runtime.XlaContext(clients_per_block=block)
  found = context.invoke(of_clients, clients)
  found = context.invoke(of_clients, clients)
  how = context.lowering(of_clients)
  assert how.is_needed and how.reasons == [] and how.serial_reasons == []
  for (x, w), each in zip(clients, found, strict=True):
    expected = gradients(tf.constant(x), tf.constant(w), compiled=False)
    for name in CASES:
      for ours, theirs in zip(each[name], expected[name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=name)
