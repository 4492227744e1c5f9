"""Keras models as pure functions: the same numbers, and a refusal of what has no such form."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import runtime
from processes import gradients
from runtime import random_streams
from tests.processes import small_federation as small
from tests.tff_models.test_against_keras import CASES, ROWS, computation, keras_loss
from tff_models import from_keras

KEY = random_streams.key(1, random_streams.Stream.INIT)
L = tf.keras.layers


def _twin(name):
  case = CASES[name]
  return case, case.keras(case.model().init(KEY))


def _gradients(case, twin, x, y):
  """Keras's gradients of the mean loss over some rows, one array for each weight."""
  with tf.GradientTape() as tape:
    loss = keras_loss(case, twin, x, y)
  return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, twin.trainable_weights)]


def _assert_close(ours, theirs):
  largest = max(np.abs(g).max() for g in theirs)
  for (name, mine), his in zip(ours.items(), theirs, strict=True):
    np.testing.assert_allclose(mine, his, atol=2e-5 * largest, rtol=1e-3, err_msg=name)


@pytest.mark.exhaustive(but=['mlp', 'dropout_cnn', 'transformer'])
@pytest.mark.slow
@pytest.mark.parametrize('name', ['mlp', 'dropout_cnn', 'resnet18', 'lstm', 'transformer'])
def test_outputs_and_per_example_gradients_are_keras_own(name):
  case, twin = _twin(name)
  x, y = case.examples()
  before = twin.get_weights()
  model = from_keras(twin, task_kind=case.task)
  params = model.init(KEY)
  np.testing.assert_allclose(model.predict(params, x), twin(x), atol=2e-5, rtol=1e-4)
  mean, _ = tf.function(gradients.mean_gradient)(
    model, params, tf.constant(x), tf.constant(y), model.weigh(y)
  )
  _assert_close(mean, _gradients(case, twin, x, y))
  one_more = tf.nest.map_structure(lambda p: p + 0.01, params)
  clipped, _ = tf.function(gradients.clipped_gradient_sum)(
    model, one_more, tf.constant(x), tf.constant(y), tf.ones([ROWS], tf.bool),
    clipping_norm=tf.constant(np.inf),
  )  # fmt: skip
  # The copy's own weights play no part; and the original keeps its weights.
  for old, new in zip(before, twin.get_weights(), strict=True):
    np.testing.assert_array_equal(old, new)
  twin.set_weights([w + 0.01 for w in before])
  each = [_gradients(case, twin, x[i : i + 1], y[i : i + 1]) for i in range(ROWS)]
  _assert_close(clipped, [np.sum(parts, axis=0) for parts in zip(*each, strict=True)])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_both_runtimes_compute_keras_numbers(native):
  inputs = L.Input((12, 12, 2))
  x = L.MaxPool2D()(L.Conv2D(4, 3, activation='relu')(inputs))
  x = L.Dropout(0.5)(L.GroupNormalization(2)(x))
  x = L.Add()([x, L.Conv2D(4, 3, padding='same')(x)])
  x = L.LayerNormalization()(L.Flatten()(L.AveragePooling2D()(x)))
  twin = tf.keras.Model(inputs, L.Dense(7, name='last')(x))
  model = from_keras(twin)
  assert model.draws == 5 * 5 * 4 and model.head == ('last_kernel', 'last_bias')
  case = CASES['dropout_cnn']
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, 12, 12, 2)).astype(np.float32)
  y = rng.integers(0, 7, ROWS).astype(np.int32)
  data = collections.OrderedDict(
    x=x[None], y=y[None], num_examples=np.array([ROWS], np.int32), client_id=np.zeros(1, np.int32)
  )
  params = model.init(KEY)
  server = collections.OrderedDict(
    model=collections.OrderedDict((n, p.numpy()) for n, p in params.items()),
    clip=np.float32(np.inf),
  )
  compute = computation(model, params, small.examples_spec(data))
  with runtime.create('xla') as xla:
    for machine in (xla, native):
      found = machine.evaluate(compute, server, None, machine.place(data))
      found = tf.nest.map_structure(lambda t: np.asarray(t)[0], found)
      np.testing.assert_allclose(found['outputs'], twin(x), atol=2e-5)
      expected = _gradients(case, twin, x, y)
      _assert_close(found['mean'], expected)
      _assert_close(found['clipped'], [ROWS * g for g in expected])


def _sequential(*layers, shape=(6,)):
  return tf.keras.Sequential([L.Input(shape), *layers])


def test_dropout_takes_the_trainers_numbers():
  model = from_keras(_sequential(L.Dropout(0.5), L.Dense(4), L.Dropout(0.25), L.Dense(1)),
                     task_kind='regression', x_scale=0.5)  # fmt: skip
  assert model.draws == 10
  params = model.init(KEY)
  x = np.ones((3, 6), np.float32)
  draws = random_streams.uniform(KEY, [3, 10])
  first, bias, last, last_bias = (params[name].numpy() for name in params)
  hidden = np.where(draws[:, :6] >= 0.5, 0.5 * x / 0.5, 0) @ first + bias
  hidden = np.where(draws[:, 6:] >= 0.25, hidden / 0.75, 0)
  expected = (hidden @ last + last_bias)[:, 0]
  np.testing.assert_allclose(model.predict(params, x, draws), expected, rtol=1e-4, atol=1e-6)
  undropped = ((0.5 * x @ first + bias) @ last + last_bias)[:, 0]
  np.testing.assert_allclose(model.predict(params, x), undropped, rtol=1e-4, atol=1e-6)


def test_frozen_layers_stay_as_they_are():
  frozen = L.BatchNormalization()
  twin = _sequential(L.Dense(4), frozen, L.Dense(3))
  frozen.set_weights([np.full(4, v, np.float32) for v in (2.0, 1.0, 0.5, 4.0)])
  frozen.trainable = False
  model = from_keras(twin)
  params = model.init(KEY)
  assert len(params) == 4
  x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
  np.testing.assert_allclose(model.predict(params, x), twin(x), atol=1e-5)


def test_models_inside_models_and_layers_used_twice():
  inner = _sequential(L.Dense(6, activation='tanh'), L.Dropout(0.5))
  inputs = L.Input((6,))
  twin = tf.keras.Model(inputs, L.Dense(2)(inner(inner(inputs))))
  model = from_keras(twin)
  assert model.draws == 12 and len(model.init(KEY)) == 4
  x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
  np.testing.assert_allclose(model.predict(model.init(KEY), x), twin(x), atol=1e-5)


class _InAList(L.Layer):
  def build(self, shape):
    self.parts = [self.add_weight('w', [int(shape[-1]), 3])]

  def call(self, x):
    return tf.matmul(x, self.parts[0])


class _Subclassed(tf.keras.Model):
  def call(self, x):
    return x


@pytest.mark.parametrize(
  ('twin', 'task', 'message'),
  [
    (lambda: _sequential(L.Dense(3), L.BatchNormalization()), 'classification',
     r'layer batch_normalization\S* \(BatchNormalization\) has state .* freeze the layer'),
    (lambda: tf.keras.Sequential([
        L.InputLayer(batch_input_shape=(2, 4, 2)), L.GRU(3, stateful=True), L.Dense(3)
     ]), 'classification',
     'keeps its state from batch to batch'),
    (lambda: _sequential(L.GRU(3, dropout=0.1), L.Dense(3), shape=(4, 2)), 'classification',
     'draws random numbers of its own'),
    (lambda: _sequential(L.GaussianNoise(0.1), L.Dense(3)), 'classification',
     r'\(GaussianNoise\) draws random numbers'),
    (lambda: _sequential(L.Dropout(0.1, noise_shape=(1, 6)), L.Dense(3)), 'classification',
     'without a noise_shape'),
    (lambda: _sequential(L.Dense(3, kernel_regularizer='l2')), 'classification',
     'losses of its own'),
    (lambda: _sequential(L.Dense(3, kernel_constraint='non_neg')), 'classification',
     'has a constraint'),
    (lambda: _sequential(L.Dense(3, activation='softmax')), 'classification', 'leave it out'),
    (lambda: _sequential(L.Dense(3), L.Softmax()), 'classification', 'leave it out'),
    (lambda: _sequential(L.Dense(3, activation=tf.nn.softmax)), 'classification', 'leave it out'),
    (lambda: _sequential(L.Dense(1, activation=tf.nn.sigmoid)), 'binary', 'leave it out'),
    (lambda: _sequential(_sequential(L.Dense(3, activation='softmax'))), 'classification',
     'leave it out'),
    (lambda: _sequential(L.TimeDistributed(L.Dense(3, activation='softmax')), shape=(4, 2)),
     'next_word', 'leave it out'),
    (lambda: tf.keras.Model(x := tf.keras.Input([6]), tf.nn.softmax(L.Dense(3)(x))),
     'classification', 'leave it out'),
    (lambda: _sequential(L.Dense(3)), 'regression', r'a regression task needs \[B, 1\]'),
    (lambda: _sequential(L.Dense(3)), 'ranking', "task_kind is 'ranking'; allowed"),
    (lambda: _sequential(_InAList()), 'classification', 'are not attributes of their layers'),
    (_Subclassed, 'classification', 'is a subclassed model'),
    (lambda: tf.keras.Sequential([L.Dense(3)]), 'classification', 'no input shape yet'),
    (lambda: _sequential(L.Flatten()), 'classification', 'no trainable weights'),
    (lambda: _sequential(L.Dense(3), shape=(None, 2)), 'next_word', 'must have a fixed shape'),
  ],
)  # fmt: skip
def test_what_has_no_such_form_is_refused(twin, task, message):
  with pytest.raises(ValueError, match=message):
    from_keras(twin(), task_kind=task)


def test_examples_of_another_shape_are_refused_in_one_line():
  model = from_keras(_sequential(L.Dense(3), shape=(6,)), task_kind='classification')
  message = r'it takes examples of shape \(6,\), and the data have \(2, 3\)\.$'
  with pytest.raises(ValueError, match=message):
    model.predict(model.init(0), tf.zeros([4, 2, 3]))
