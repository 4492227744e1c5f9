"""Keras models of several inputs, whose layers are merged and then joined: their gradients."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning

layers = tf.keras.layers
USERS, ITEMS, FEATURES = 7, 5, 4
ROWS = (9, 0, 6)  # Of each client: batches of 4 that are full, partial, and none.


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _two_towers():
  """A recommender: products of a user's embedding with features, beside both."""
  user, features = layers.Input((), dtype='int32'), layers.Input((FEATURES,))
  embedded = layers.Embedding(USERS, FEATURES)(user)
  product = layers.Dot(1)([embedded, features])
  joined = layers.Concatenate()([embedded, product, features])
  return {'user': user, 'features': features}, layers.Dense(2)(joined)


def _attention():
  """The example of Keras' `Attention`: of a user to some items, beside the user."""
  user, items = layers.Input((), dtype='int32'), layers.Input((3,), dtype='int32')
  query = layers.Embedding(USERS, FEATURES)(user)
  values = layers.Embedding(ITEMS, FEATURES)(items)
  attended = layers.Attention()([layers.Reshape((1, FEATURES))(query), values])
  pooled = layers.GlobalAveragePooling1D()(attended)
  return {'user': user, 'items': items}, layers.Dense(2)(layers.Concatenate()([query, pooled]))


def _clients():
  rng = np.random.default_rng(0)

  def rows(n):
    return collections.OrderedDict(
      user=rng.integers(0, USERS, n).astype(np.int32),
      items=rng.integers(0, ITEMS, (n, 3)).astype(np.int32),
      features=rng.normal(size=(n, FEATURES)).astype(np.float32),
    )

  return [tf.data.Dataset.from_tensor_slices(rows(n)).batch(4) for n in ROWS]


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, 2])
@pytest.mark.parametrize('model', [_two_towers, _attention])
def test_gradients_are_compiled(native, model, block):
  """They were interpreted: gradients of a concatenation, and of a mean, had no known sizes."""
  data = _clients()

  def gradients(batches):
    inputs, last = model()
    network = tf.keras.Model(inputs, last)
    weights = network.trainable_variables
    starts = [tf.reshape(tf.linspace(-1.0, 1.0, w.shape.num_elements()), w.shape) for w in weights]

    def add(totals, batch):
      with tf.GradientTape() as tape:
        output = network({name: batch[name] for name in inputs})
        loss = tf.reduce_mean(output**2)
      found = tape.gradient(loss, weights)
      return tuple(t + tf.convert_to_tensor(g) for t, g in zip(totals, found, strict=True))

    with tf.control_dependencies([w.assign(s) for w, s in zip(weights, starts, strict=True)]):
      return batches.reduce(tuple(tf.zeros(w.shape) for w in weights), add)

  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  expected, found, explanation = learning.both(
    native, gradients, type_, data, clients_per_block=block
  )
  assert explanation.is_compiled, explanation
  for ours, theirs in zip(learning.leaves(found), learning.leaves(expected), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)
