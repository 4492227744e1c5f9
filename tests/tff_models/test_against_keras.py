"""The ready models: outputs, gradients and clipped gradients are those of Keras, on both runtimes.

What is compared has gone through the trainer's functions, TFF and the runtime.
"""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from processes import gradients
from runtime import random_streams
from tests.processes import small_federation as small
from tests.tff_models import keras_twins
from tff_models import build_model

KEY = random_streams.key(0, random_streams.Stream.INIT)
ROWS = 5


@dataclasses.dataclass(frozen=True)
class Case:
  """A model at a small size, and the Keras model that has its weights."""

  name: str
  twin: collections.abc.Callable
  shape: tuple[int, ...]
  options: dict = dataclasses.field(default_factory=dict)
  twin_options: dict | None = None
  outputs: int = 7

  @property
  def task(self):
    return 'next_word' if self.name.startswith('next_word') else 'classification'

  def model(self):
    return build_model(
      self.name,
      example_shape=self.shape,
      num_outputs=self.outputs,
      task_kind=self.task,
      **self.options,
    )

  def keras(self, params):
    options = self.options if self.twin_options is None else self.twin_options
    return self.twin(params, self.shape, self.outputs, **options)

  def examples(self, rows=ROWS):
    rng = np.random.default_rng(0)
    if self.task == 'next_word':
      sentences = rng.integers(1, self.outputs, (rows, self.shape[0] + 1))
      # Sentences of all lengths, from one token to all.
      ends = 1 + np.arange(rows) % self.shape[0]
      real = np.arange(self.shape[0]) < ends[:, None]
      x, y = sentences[:, :-1] * real, sentences[:, 1:] * real
      return x.astype(np.int32), y.astype(np.int32)
    x = rng.normal(size=(rows, *self.shape)).astype(np.float32)
    return x, rng.integers(0, self.outputs, rows).astype(np.int32)


_SENTENCE = dict(embedding_size=4, lstm_units=6)
_TRANSFORMER = dict(depth=1, width=8, heads=2, feed_forward_units=12)
CASES = {
  'mlp': Case('mlp', keras_twins.mlp, (4, 3), {'hidden_units': (9, 8)}, {'hidden': (9, 8)}),
  'dropout_cnn': Case('dropout_cnn', keras_twins.dropout_cnn, (12, 10, 3)),
  'resnet18': Case('resnet18', keras_twins.resnet18, (8, 8, 3), {'width': 4, 'groups': 2}),
  'lstm': Case('next_word_lstm', keras_twins.lstm, (5,), _SENTENCE),
  'transformer': Case('next_word_transformer', keras_twins.transformer, (5,), _TRANSFORMER),
}


def keras_loss(case, twin, x, y):
  """Mean loss over the batch, by Keras's own functions."""
  losses = tf.keras.losses.sparse_categorical_crossentropy(y, twin(x), from_logits=True)
  if case.task == 'next_word':
    return tf.reduce_mean(tf.boolean_mask(losses, y > 0))
  return tf.reduce_mean(losses)


def keras_gradient(case, params, x, y):
  """Gradient of the mean loss by Keras, as one vector for each parameter of ours."""
  twin = case.keras(params)
  with tf.GradientTape() as tape:
    loss = keras_loss(case, twin, x, y)
  gradient = [tf.convert_to_tensor(g) for g in tape.gradient(loss, twin.trainable_weights)]
  # In Keras's shapes and order; the twin that holds the gradient gives ours.
  return float(loss), [g.numpy() for g in gradient]


def computation(model, params, spec):
  """Outputs, mean gradient and sum of clipped gradients of a client, as the trainer has them."""
  server_type = tff.to_type(
    collections.OrderedDict(
      model=collections.OrderedDict((n, (np.float32, tuple(p.shape))) for n, p in params.items()),
      clip=np.float32,
    )
  )

  @tff.tensorflow.computation(server_type, spec.tff_type)
  def of_client(server, data):
    params, x, y = server['model'], data['x'], data['y']
    mean, loss_sum = gradients.mean_gradient(model, params, x, y, model.weigh(y))
    return collections.OrderedDict(
      outputs=model.predict(params, x), loss_sum=loss_sum, mean=mean, clip=server['clip'],
      clipped=clipped_sum(model, params, x, y, server['clip']),
    )  # fmt: skip

  @tff.federated_computation(
    tff.FederatedType(server_type, tff.SERVER),
    tff.FederatedType(tff.to_type(collections.OrderedDict()), tff.CLIENTS),
    tff.FederatedType(spec.tff_type, tff.CLIENTS),
  )
  def of_clients(server, nothing, data):
    del nothing
    return tff.federated_map(of_client, (tff.federated_broadcast(server), data))

  return of_clients


def clipped_sum(model, params, x, y, clip):
  """The sum of all examples' clipped gradients."""
  everyone = tf.ones(x.shape[:1], tf.bool)
  return gradients.clipped_gradient_sum(model, params, x, y, everyone, clipping_norm=clip)[0]


def assert_is_keras_gradient(case, ours, theirs):
  """Compares a gradient of ours with one in Keras's order, through a twin that holds ours."""
  twin = case.keras({name: np.asarray(value) for name, value in ours.items()})
  largest = max(np.abs(g).max() for g in theirs)
  for mine, his in zip(twin.trainable_weights, theirs, strict=True):
    np.testing.assert_allclose(mine.numpy(), his, atol=2e-5 * largest, rtol=1e-3, err_msg=mine.name)


@pytest.mark.exhaustive(but=['mlp'])
@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_same_weights_same_outputs_and_gradients(native, name):
  case = CASES[name]
  model, (x, y) = case.model(), case.examples()
  params = model.init(KEY)
  loss, expected = keras_gradient(case, params, x, y)
  # Each example's own gradient, clipped: half of them are longer than the clip.
  each = [keras_gradient(case, params, x[i : i + 1], y[i : i + 1])[1] for i in range(ROWS)]
  norms = np.array([np.sqrt(sum(np.sum(np.square(g)) for g in own)) for own in each])
  clip = np.float32(np.median(norms))
  factors = np.minimum(1.0, clip / norms)
  clipped = [
    sum(f * own[i] for f, own in zip(factors, each, strict=True)) for i in range(len(expected))
  ]
  outputs = case.keras(params)(x).numpy()
  tokens = (y > 0).sum() if case.task == 'next_word' else ROWS
  data = collections.OrderedDict(
    x=x[None], y=y[None], num_examples=np.array([ROWS], np.int32), client_id=np.zeros(1, np.int32)
  )
  server = collections.OrderedDict(
    model=collections.OrderedDict((n, p.numpy()) for n, p in params.items()), clip=clip
  )
  spec = small.examples_spec(data)
  compute = computation(model, params, spec)
  with runtime.create('xla') as xla:
    for machine in (xla, native):
      found = machine.evaluate(compute, server, None, machine.place(data))
      found = tf.nest.map_structure(lambda t: np.asarray(t)[0], found)
      np.testing.assert_allclose(found['outputs'], outputs, atol=2e-5, rtol=1e-4)
      np.testing.assert_allclose(found['loss_sum'] / tokens, loss, rtol=1e-4)
      assert_is_keras_gradient(case, found['mean'], expected)
      assert_is_keras_gradient(case, found['clipped'], clipped)


@pytest.mark.parametrize(
  ('name', 'shape', 'outputs', 'count'),
  [
    ('dropout_cnn', (32, 32, 3), 10, 1_626_442),
    ('resnet18', (32, 32, 3), 10, 11_173_962),
    ('resnet18', (64, 64, 3), 200, 11_279_112),
  ],
)
def test_number_of_parameters(name, shape, outputs, count):
  model = build_model(name, example_shape=shape, num_outputs=outputs, task_kind='classification')
  assert sum(p.shape.num_elements() for p in model.init(KEY).values()) == count


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('side', [32, 64])
def test_resnet18_at_its_real_size_equals_keras(side):
  case = Case('resnet18', keras_twins.resnet18, (side, side, 3), outputs=10)
  params = case.model().init(KEY)
  x, _ = case.examples(2)
  np.testing.assert_allclose(
    case.model().predict(params, x), case.keras(params)(x), rtol=2e-3, atol=2e-3
  )


def test_padding_counts_nowhere():
  """Neither in the loss nor in the metrics nor in the gradient, whatever stands there in x."""
  for name in ('lstm', 'transformer'):
    case = CASES[name]
    model, (x, y) = case.model(), case.examples()
    params = model.init(KEY)
    noise = np.where(y > 0, x, np.random.default_rng(1).integers(1, 7, x.shape)).astype(np.int32)
    assert (noise != x).any()

    def loss_of(x, y=y, model=model, params=params):
      return model.loss(model.predict(params, x), y)

    np.testing.assert_allclose(loss_of(x), loss_of(noise), rtol=1e-5)
    np.testing.assert_array_equal(model.weigh(y), (y > 0).sum(axis=1))
    nothing = np.zeros_like(y)
    assert np.all(loss_of(x, nothing) == 0) and np.all(model.weigh(nothing) == 0)
    # Future words are not seen: a change of the last one changes nothing before it.
    changed = x.copy()
    changed[:, -1] = 3
    np.testing.assert_allclose(
      model.predict(params, x)[:, :-1], model.predict(params, changed)[:, :-1], atol=1e-6
    )


def test_loss_and_accuracy_of_tokens_by_hand():
  model = CASES['lstm'].model()
  logits = np.zeros((2, 5, 7), np.float32)
  logits[0, 0, 3] = logits[0, 1, 3] = 2.0
  y = np.array([[3, 4, 0, 0, 0], [1, 1, 1, 1, 1]], np.int32)
  log_sum = np.log(np.exp(2.0) + 6)
  np.testing.assert_allclose(
    model.loss(logits, y), [((log_sum - 2) + log_sum) / 2, np.log(7)], rtol=1e-5
  )
  np.testing.assert_allclose(model.metrics(logits, y)['accuracy'], [0.5, 0.0])


@pytest.mark.parametrize(
  ('name', 'kwargs', 'message'),
  [
    ('mlp', {'hidden_units': (8, 0)}, r'hidden_units=\(8, 0\) must be at least 1'),
    ('mlp', {'hidden_units': 'wide'}, 'hidden_units=wide must be whole numbers'),
    ('mlp', {'dropout': 1.0}, 'dropout=1.0 must be below 1'),
    ('resnet18', {'width': 6, 'groups': 4}, 'groups=4 must divide width=6'),
    ('dropout_cnn', {'shape': (5, 9)}, 'leave nothing of 5x9 pixels'),
    ('next_word_lstm', {}, 'does not serve a classification task'),
    ('next_word_transformer', {'task': 'next_word', 'heads': 7}, 'heads=7 must divide width=96'),
  ],
)
def test_wrong_use_is_refused(name, kwargs, message):
  shape, task = kwargs.pop('shape', (16, 16)), kwargs.pop('task', 'classification')
  shape = (5,) if task == 'next_word' else shape
  with pytest.raises(ValueError, match=message):
    build_model(name, example_shape=shape, num_outputs=10, task_kind=task, **kwargs)
