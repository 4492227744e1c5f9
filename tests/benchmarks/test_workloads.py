"""Both sides of a benchmark compute one function: same weights in, same outputs and update out."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from benchmarks import workloads
from runtime import random_streams
from runtime.noise_key import NoiseKey

_RATE = 0.1
_NEXT_TO_NO_NOISE = 1e-7  # TFF's adaptive clipping divides by it


def _batch():
  data = workloads.images(1)
  return data['x'][0, :20], data['y'][0, :20]


def _updated_by_keras(layers, params):
  """Outputs and parameters after a step of SGD, by the layers of TFF's side."""
  x, y = _batch()
  model = workloads.keras_model(layers)
  assert [v.shape.num_elements() for v in model.trainable_variables] == [
    p.shape.num_elements() for p in params.values()
  ]
  for variable, value in zip(model.trainable_variables, params.values(), strict=True):
    variable.assign(tf.reshape(value, variable.shape))
  with tf.GradientTape() as tape:
    outputs = model(x.astype(np.float32) / 255.0)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, outputs)
  gradients = tape.gradient(loss, model.trainable_variables)
  for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
    variable.assign_sub(_RATE * gradient)
  return outputs, [v.numpy().ravel() for v in model.trainable_variables]


def _updated_by_ours(name, params):
  x, y = _batch()
  model = workloads.image_model(name)
  values = list(params.values())
  with tf.GradientTape() as tape:
    tape.watch(values)
    outputs = model.predict(params, tf.constant(x))
    loss = tf.reduce_mean(model.loss(outputs, tf.constant(y)))
  gradients = tape.gradient(loss, values)
  return outputs, [(v - _RATE * g).numpy().ravel() for v, g in zip(values, gradients, strict=True)]


def _pooling_once():
  layers = tf.keras.layers
  return [
    layers.Conv2D(32, 3, activation='relu'), layers.Conv2D(64, 3, activation='relu'),
    layers.MaxPooling2D(), layers.Flatten(), layers.Dense(10),
  ]  # fmt: skip


@pytest.mark.parametrize(
  ('name', 'layers'), [('softmax', workloads.softmax_layers), ('cnn3x3', workloads.cnn_layers)]
)
def test_tff_and_ours_train_the_same_network(name, layers):
  params = workloads.image_model(name).init(random_streams.key(3, random_streams.Stream.INIT))
  theirs, updated_theirs = _updated_by_keras(layers, params)
  ours, updated_ours = _updated_by_ours(name, params)
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
  for mine, other, before in zip(updated_ours, updated_theirs, params.values(), strict=True):
    np.testing.assert_allclose(mine, other, atol=1e-5)
    assert np.abs(mine - before.numpy().ravel()).max() > 1e-4


def _model_of_ours(name, clients):
  method = workloads.image_fedavg(name, clients, noise_multiplier=_NEXT_TO_NO_NOISE)
  start = method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))
  with runtime.create('xla') as machine:
    data = machine.place(workloads.images(clients))
    state, _ = machine.round(method.process.next, start, None, data, np.arange(clients))
    return start['model'], machine.to_numpy(state)['model']


def _model_of_tff(layers, clients, start):
  process = workloads.tff_learning(layers, clients, noise_multiplier=_NEXT_TO_NO_NOISE)
  with runtime.NativeContext():
    state = process.initialize()
    weights = process.get_model_weights(state)
    own = [
      np.reshape(value, np.shape(like))
      for value, like in zip(start.values(), weights.trainable, strict=True)
    ]
    state = process.set_model_weights(
      state, tff.learning.models.ModelWeights(trainable=own, non_trainable=[])
    )
    state = process.next(state, workloads.tff_datasets(clients)).state
    return process.get_model_weights(state).trainable


@pytest.mark.slow
def test_a_round_of_tff_and_ours_gives_the_same_model(monkeypatch):
  monkeypatch.setattr(workloads, 'IMAGES_PER_CLIENT', 20)  # one batch, whose order is no matter
  start, ours = _model_of_ours('softmax', 3)
  theirs = _model_of_tff(workloads.softmax_layers, 3, start)
  for before, mine, other in zip(start.values(), ours.values(), theirs, strict=True):
    assert np.abs(mine - before).max() > 1e-4
    np.testing.assert_allclose(np.ravel(mine), np.ravel(other), atol=2e-6)


def test_another_network_is_found_out():
  params = workloads.image_model('cnn3x3').init(random_streams.key(3, random_streams.Stream.INIT))
  with pytest.raises(AssertionError):
    _updated_by_keras(_pooling_once, params)
