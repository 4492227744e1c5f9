"""Convolutions as patches times a matrix are TensorFlow's, and so are their gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

FORMS = {
  'valid': dict(strides=1, padding='VALID'),
  'same': dict(strides=1, padding='SAME'),
  'strides': dict(strides=[2, 3], padding='SAME'),
  'explicit': dict(strides=1, padding=[[0, 0], [1, 2], [0, 1], [0, 0]]),
}


@pytest.mark.parametrize('form', FORMS)
def test_values_and_gradients(form):
  rng = np.random.default_rng(0)
  x, w = (rng.normal(size=s).astype(np.float32) for s in ((5, 7, 8, 2), (3, 2, 2, 4)))

  def by_tensorflow(image, weights):
    with tf.GradientTape() as tape:
      tape.watch([image, weights])
      result = tf.nn.conv2d(image, weights, **FORMS[form])
      loss = tf.reduce_sum(tf.sin(result))
    return (result, *tape.gradient(loss, [image, weights]))

  types = tff.TensorType(np.float32, x.shape), tff.TensorType(np.float32, w.shape)

  @tff.tensorflow.computation(*types)
  def local(image, weights):
    tf.Variable(0.0)  # Graphs with variables are interpreted.
    return by_tensorflow(image, weights)

  @tff.federated_computation(*(tff.FederatedType(t, tff.CLIENTS) for t in types))
  def at_clients(images, weights):
    return tff.federated_map(local, (images, weights))

  expected = by_tensorflow(tf.constant(x), tf.constant(w))
  for block in (1, 2):
    with runtime.XlaContext(clients_per_block=block) as context:
      (found, other) = at_clients([x, -x], [w, w])
      assert context.explain(at_clients).is_compiled
    for a, b in zip(found, expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(other[0], -expected[0], rtol=1e-4, atol=1e-4)
