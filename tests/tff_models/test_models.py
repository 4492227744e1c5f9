"""Models: against TensorFlow's own layers, NumPy, and each other."""

import numpy as np
import pytest
import tensorflow as tf

from runtime import random_streams
from tff_models import MODELS, build_model, layers
from tff_models import model as model_lib

KEY = random_streams.key(0, random_streams.Stream.INIT)


def _build(name, task='classification', shape=(28, 28), outputs=10, **options):
  return build_model(name, example_shape=shape, num_outputs=outputs, task_kind=task, **options)


@pytest.mark.parametrize(
  ('size', 'stride', 'padding'),
  [(3, 1, 'VALID'), (5, 1, 'VALID'), (8, 2, 'SAME'), (4, 2, 'VALID'), (3, 1, 'SAME')],
)
def test_convolution_and_its_gradients_equal_tensorflows(size, stride, padding):
  rng = np.random.default_rng(0)
  x = tf.constant(rng.normal(size=(4, 14, 14, 3)), tf.float32)
  weights = tf.constant(rng.normal(size=(size * size * 3, 6)), tf.float32)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch([x, weights])
    ours = layers.conv2d(x, weights, size=size, stride=stride, padding=padding)
    kernel = tf.reshape(weights, [size, size, 3, 6])
    theirs = tf.nn.conv2d(x, kernel, stride, padding)
    ours_loss, theirs_loss = (tf.reduce_sum(tf.sin(r)) for r in (ours, theirs))
  np.testing.assert_allclose(ours, theirs, atol=1e-4)
  for variable in (x, weights):
    np.testing.assert_allclose(
      tape.gradient(ours_loss, variable), tape.gradient(theirs_loss, variable), atol=2e-3
    )
  side = layers.conv_output_size(14, filter_size=size, stride=stride, padding=padding)
  assert ours.shape[1] == side


@pytest.mark.parametrize(('size', 'stride'), [(2, 2), (3, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize('has_ties', [False, True])
def test_max_pool_equals_tensorflows(size, stride, has_ties):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 11, 9, 3))
  x = tf.constant(x.round() if has_ties else x, tf.float32)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    ours = layers.max_pool(x, size=size, stride=stride)
    theirs = tf.nn.max_pool2d(x, size, stride, 'VALID')
    weights = tf.constant(rng.normal(size=ours.shape), tf.float32)
    ours_loss, theirs_loss = (tf.reduce_sum(weights * r) for r in (ours, theirs))
  np.testing.assert_array_equal(ours, theirs)
  # A tie's whole gradient goes to one of the equal values, the same one.
  np.testing.assert_allclose(
    tape.gradient(ours_loss, x), tape.gradient(theirs_loss, x), rtol=1e-6, atol=1e-6
  )


def test_cnn_has_the_papers_shapes():
  params = _build('cnn3x3', shape=(32, 32, 3)).init(KEY)
  shapes = {name: tuple(value.shape) for name, value in params.items()}
  assert shapes == {
    'conv0_weights': (27, 32),
    'conv0_bias': (32,),
    'conv1_weights': (288, 64),
    'conv1_bias': (64,),
    'dense0_weights': (6 * 6 * 64, 10),
    'dense0_bias': (10,),
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn3x3', 'one_hidden_layer', 'softmax'])
def test_clients_own_weights_train_at_once(name):
  """Vectorised over clients with different weights, gradients equal one at a time."""
  model = _build(name)
  rng = np.random.default_rng(1)
  x = tf.constant(rng.uniform(size=(2, 3, 28, 28)), tf.float32)
  y = tf.constant(rng.integers(0, 10, (2, 3)), tf.int32)
  clients = [model.init(random_streams.fold_in(KEY, i)) for i in range(2)]
  stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *clients)

  def gradient(args):
    params, x, y = args
    flat = tf.nest.flatten(params)
    with tf.GradientTape() as tape:
      tape.watch(flat)
      loss = tf.reduce_mean(model.loss(model.predict(params, x), y))
    return tape.gradient(loss, flat)

  together = tf.vectorized_map(gradient, (stacked, x, y), fallback_to_while_loop=False)
  for i, params in enumerate(clients):
    for a, b in zip(together, gradient((params, x[i], y[i])), strict=True):
      np.testing.assert_allclose(a[i], b, atol=1e-5)


def test_bytes_are_scaled_by_the_model():
  x = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28)
  stored = _build('softmax', x_scale=1 / 255, x_offset=-0.5)
  plain = _build('softmax')
  params = {
    'weights': tf.random.stateless_normal([784, 10], [0, 1]),
    'bias': tf.zeros([10]),
  }
  np.testing.assert_allclose(
    stored.predict(params, x),
    plain.predict(params, (x / 255 - 0.5).astype(np.float32)),
    rtol=1e-4,
    atol=1e-4,
  )


def test_losses_and_metrics_by_hand():
  regression = _build('linear_regression', 'regression', (2,), 1)
  outputs, y = tf.constant([1.0, 3.0]), tf.constant([0.0, 5.0])
  np.testing.assert_allclose(regression.loss(outputs, y), [0.5, 2.0])
  np.testing.assert_allclose(regression.metrics(outputs, y)['mse'], [1.0, 4.0])

  svm = _build('linear_svm', 'binary', (2,), 1)
  outputs, y = tf.constant([0.5, -2.0, 0.5]), tf.constant([1.0, -1.0, -1.0])
  np.testing.assert_allclose(svm.loss(outputs, y), [0.5, 0.0, 1.5])
  np.testing.assert_allclose(svm.metrics(outputs, y)['accuracy'], [1.0, 1.0, 0.0])
  np.testing.assert_allclose(svm.metrics(outputs, y)['loss'], svm.loss(outputs, y))

  logistic = _build('logistic_regression', 'binary', (2,), 1)
  np.testing.assert_allclose(
    logistic.loss(outputs, y), np.log1p(np.exp([-0.5, -2.0, 0.5])), rtol=1e-6
  )

  softmax = _build('softmax', shape=(2,), outputs=3)
  outputs, y = tf.constant([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]), tf.constant([2, 0])
  np.testing.assert_allclose(softmax.loss(outputs, y), [np.log(3), 2.4676e-4], rtol=1e-3)
  np.testing.assert_allclose(softmax.metrics(outputs, y)['accuracy'], [0.0, 1.0])

  one_vs_all = _build('one_versus_all', shape=(2,), outputs=2)
  outputs = tf.constant([[0.9, -0.1], [0.0, 0.0]])
  loss = one_vs_all.loss(outputs, tf.constant([0, 1]))
  np.testing.assert_allclose(loss, [0.0, (0.1**2 + 0.9**2) / 2], atol=1e-7)
  of_network = _build('ppsgd_cnn', shape=(28, 28), outputs=2).loss(outputs, tf.constant([0, 1]))
  np.testing.assert_allclose(of_network, [0.0, (0.1**2 + 0.9**2) / 2], atol=1e-7)
  three = model_lib.one_versus_all().loss(tf.zeros([1, 3]), tf.constant([0]))
  np.testing.assert_allclose(three, [(0.9**2 + 2 * 0.1**2) / 2], rtol=1e-6)
  three = model_lib.one_versus_all(mean=True).loss(tf.zeros([1, 3]), tf.constant([0]))
  np.testing.assert_allclose(three, [(0.9**2 + 2 * 0.1**2) / 3], rtol=1e-6)
  assert 'bias' not in one_vs_all.init(KEY)

  tags = tf.constant([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
  multilabel = _build('softmax', 'multilabel', (2,), 3)
  outputs = tf.constant([[0.0, 0.1, 2.0], [1.0, 0.0, 0.0]])
  np.testing.assert_allclose(multilabel.metrics(outputs, tags)['accuracy'], [1.0, 0.0])
  z = np.array([0.0, 0.1, 2.0])
  expected = np.mean(np.log1p(np.exp(z)) - np.array([1, 0, 1]) * z)
  np.testing.assert_allclose(multilabel.loss(outputs, tags)[0], expected, rtol=1e-5)


def test_convex_models_start_at_zero_and_networks_at_random():
  for name, entry in MODELS.items():
    task = entry.tasks[0]
    shape = (5,) if task == 'next_word' else (28, 28)
    model = _build(name, task, shape, outputs=1 if task == 'regression' else 10)
    start = [float(tf.reduce_max(tf.abs(t))) for t in model.init(KEY).values()]
    assert (max(start) == 0.0) == model.convex, name


def test_bfloat16_computes_close_to_float32_and_keeps_float32_parameters():
  x = tf.constant(np.random.default_rng(0).uniform(size=(4, 28, 28)), tf.float32)
  full, half = _build('cnn3x3'), _build('cnn3x3', compute_dtype='bfloat16')
  params = half.init(KEY)
  assert all(p.dtype == tf.float32 for p in params.values())
  a, b = full.predict(params, x), half.predict(params, x)
  assert b.dtype == tf.float32
  assert 0.0 < float(tf.reduce_max(tf.abs(a - b))) < 0.05 * float(tf.reduce_max(tf.abs(a)))


@pytest.mark.parametrize(
  ('name', 'kwargs', 'message'),
  [
    ('softmaxx', {}, '--model=softmaxx is unknown'),
    ('linear_svm', {}, '--model=linear_svm does not serve a classification task'),
    ('softmax', {'hidden_units': 3}, 'has no option hidden_units'),
    ('one_hidden_layer', {'hidden_units': 0}, 'hidden_units=0 must be at least 1'),
    ('cnn3x3', {'compute_dtype': 'int8'}, 'compute_dtype=int8 must be one of'),
    ('cnn5x5', {'shape': (8, 8)}, 'leave nothing of 8x8 pixels'),
  ],
)
def test_wrong_use_is_refused(name, kwargs, message):
  with pytest.raises(ValueError, match=message):
    _build(name, **kwargs)
