"""Small processes of `tff.learning`, and a comparison with TFF's own runtime."""

import collections

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import runtime

FEATURES, CLASSES = 6, 3
SPEC = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int32))
ROWS = (9, 4, 0, 11, 5, 8)  # Of each client: batches of 4 that are full, partial, and none.


def at_clients(function, *types):
  """The computation that runs a function of some types at each client."""
  local = tff.tensorflow.computation(function, *types)
  return tff.federated_computation(
    lambda v: tff.federated_map(local, v),
    tff.FederatedType(local.type_signature.parameter, tff.CLIENTS),
  )


def both(native, function, type_, data, **settings):
  """What a function of a client's data gives natively and compiled, and the explanation."""
  mapped = at_clients(function, type_)
  stack = tff.framework.get_context_stack()
  with stack.install(native.context):
    expected = mapped(data)
  context = runtime.XlaContext(**settings)
  with stack.install(context):
    found = mapped(data)
  return expected, found, context.explain(mapped)


def data_sets(rows=ROWS, batch=4):
  """A data set of labelled rows for each client."""
  rng = np.random.default_rng(0)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.normal(size=(n, FEATURES)).astype(np.float32),
        rng.integers(0, CLASSES, n).astype(np.int32),
      )
    ).batch(batch)
    for n in rows
  ]


def _layers():
  initializer = tf.keras.initializers.Constant(np.linspace(-1, 1, FEATURES * CLASSES))
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=(FEATURES,)),
      tf.keras.layers.Dense(CLASSES, kernel_initializer=initializer),
    ]
  )


def _loss():
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def keras_model(*metrics):
  """A softmax layer whose parameters are variables; its metrics are accuracy, if none is given."""
  return tff.learning.models.from_keras_model(
    _layers(),
    input_spec=SPEC,
    loss=_loss(),
    metrics=list(metrics) or [tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def functional_model():
  """The same as a pure function."""
  return tff.learning.models.functional_model_from_keras(
    _layers,
    loss_fn=_loss(),
    input_spec=SPEC,
    metrics_constructor=lambda: collections.OrderedDict(
      accuracy=tf.keras.metrics.SparseCategoricalAccuracy()
    ),
  )


def reconstruction(build=tff.learning.algorithms.build_fed_recon):
  """Federated reconstruction of two layers, of which each client keeps the second to itself.

  Args:
    build: of the training, or of its evaluation.
  """

  def model():
    hidden, output = (
      tf.keras.layers.Dense(n, kernel_initializer=tf.keras.initializers.RandomUniform(seed=n))
      for n in (4, CLASSES)
    )
    inputs = tf.keras.layers.Input((FEATURES,))
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
      keras_model=tf.keras.Model(inputs, output(hidden(inputs))),
      global_layers=[hidden],
      local_layers=[output],
      input_spec=SPEC,
    )

  sgd = tff.learning.optimizers.build_sgdm(0.1)
  is_training = build is tff.learning.algorithms.build_fed_recon
  return build(
    model,
    loss_fn=_loss,
    metrics_fn=lambda: [tf.keras.metrics.SparseCategoricalAccuracy()],
    **({'client_optimizer_fn': sgd} if is_training else {}),
    reconstruction_optimizer_fn=sgd,
    dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
      split_dataset=True
    ),
  )


def leaves(value):
  """The arrays of a state or of metrics, whatever classes hold them."""
  if attrs.has(type(value)):
    return [x for f in attrs.fields(type(value)) for x in leaves(getattr(value, f.name))]
  if isinstance(value, dict):
    return [x for v in value.values() for x in leaves(v)]
  if isinstance(value, (list, tuple)):
    return [x for v in value for x in leaves(v)]
  return [np.asarray(value)]


def rounds(process, clients, number=2):
  """The leaves of every round's state and metrics."""
  found, state = [], process.initialize()
  for _ in range(number):
    output = process.next(state, clients)
    state = output.state
    found.append((leaves(state), leaves(output.metrics)))
  return found


def assert_same(found, expected):
  """States and metrics agree to 1e-5."""
  for (states, metrics), (native_states, native_metrics) in zip(found, expected, strict=True):
    for ours, theirs in ((states, native_states), (metrics, native_metrics)):
      assert len(ours) == len(theirs)
      for a, b in zip(ours, theirs, strict=True):
        if b.dtype.kind in 'OSU':
          assert (a == b).all()
        else:
          np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def assert_compiled_as_native(native, process, clients, blocks=(None,)):
  """A process gives TFF's numbers, compiled, for each number of clients in a block."""
  with native.context:
    expected = rounds(process, clients)
  # Something is learned, or the comparison says nothing.
  assert any(not np.array_equal(a, b) for a, b in zip(expected[0][0], expected[1][0], strict=True))
  for block in blocks:
    context = runtime.XlaContext(clients_per_block=block)
    with context:
      assert_same(rounds(process, clients), expected)
    how = context.lowering(process.next)
    assert how.reasons == []
    assert how.serial_reasons == []


def _network(layers, input_spec, label_spec, classes, draw):
  """(model function, clients) of a Keras network; `draw` makes (inputs, labels) of n rows."""

  def model():
    initializers = iter(range(100))

    def initializer():
      return tf.keras.initializers.RandomUniform(-0.5, 0.5, seed=next(initializers))

    network = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer(input_shape=input_spec.shape[1:], dtype=input_spec.dtype),
        *layers(initializer),
        tf.keras.layers.Dense(classes, kernel_initializer=initializer()),
      ]
    )
    return tff.learning.models.from_keras_model(
      network,
      input_spec=(input_spec, label_spec),
      loss=_loss(),
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

  rng = np.random.default_rng(0)
  clients = [tf.data.Dataset.from_tensor_slices(draw(rng, n)).batch(4) for n in (9, 0, 7)]
  return model, clients


def _lstm():
  words, length = 5, 6
  spec = tf.TensorSpec([None, length], tf.int32)

  def layers(initializer):
    return [
      tf.keras.layers.Embedding(words, 4, embeddings_initializer=initializer()),
      tf.keras.layers.LSTM(
        3,
        return_sequences=True,
        kernel_initializer=initializer(),
        recurrent_initializer=initializer(),
      ),
    ]

  def draw(rng, n):
    text = rng.integers(0, words, (n, length + 1)).astype(np.int32)
    return text[:, :-1], text[:, 1:]

  return _network(layers, spec, spec, words, draw)


def _text(recurrent, *, is_masked=False):
  """A network of texts; `recurrent` makes its layers, given their initializers."""
  words, length = 5, 6

  def layers(initializer):
    def initializers():
      return dict(kernel_initializer=initializer(), recurrent_initializer=initializer())

    embedding = tf.keras.layers.Embedding(
      words, 4, embeddings_initializer=initializer(), mask_zero=is_masked
    )
    return [embedding, *recurrent(initializers)]

  def draw(rng, n):
    text = rng.integers(0, words, (n, length)).astype(np.int32)
    return text, rng.integers(0, CLASSES, n).astype(np.int32)

  texts = tf.TensorSpec([None, length], tf.int32)
  return _network(layers, texts, tf.TensorSpec([None], tf.int32), CLASSES, draw)


def _gru():
  """A text's last state: its lists have as many elements as words, and one."""
  return _text(lambda new: [tf.keras.layers.GRU(3, **new()), tf.keras.layers.LayerNormalization()])


def _masked():
  """Both ways over texts with gaps, whose outputs are zero there, and then over what that gives."""

  def layers(new):
    both_ways = tf.keras.layers.SimpleRNN(3, return_sequences=True, **new())
    # It never drops a number, and has all that dropping takes.
    last = tf.keras.layers.GRU(3, dropout=1e-7, **new())
    return [tf.keras.layers.Bidirectional(both_ways), last]

  return _text(layers, is_masked=True)


def _convolution():
  def layers(initializer):
    return [
      tf.keras.layers.Conv2D(4, 3, activation='relu', kernel_initializer=initializer()),
      tf.keras.layers.MaxPool2D(2),
      tf.keras.layers.GroupNormalization(2),
      tf.keras.layers.Flatten(),
    ]

  def draw(rng, n):
    images = rng.normal(size=(n, 8, 8, 1)).astype(np.float32)
    return images, rng.integers(0, CLASSES, n).astype(np.int32)

  images = tf.TensorSpec([None, 8, 8, 1], tf.float32)
  return _network(layers, images, tf.TensorSpec([None], tf.int32), CLASSES, draw)


def _dense(*layers):
  """A network whose hidden layer is followed by others."""

  def made(initializer):
    return [
      tf.keras.layers.Dense(16, kernel_initializer=initializer()),
      *(make() for make in layers),
    ]

  def draw(rng, n):
    rows = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return rows, rng.integers(0, CLASSES, n).astype(np.int32)

  return _network(made, SPEC[0], SPEC[1], CLASSES, draw)


def dropout(rate):
  """(model function, clients) of a network that drops so many of its hidden numbers."""
  return _dense(tf.keras.layers.ReLU, lambda: tf.keras.layers.Dropout(rate))


def _batch_normalization():
  """Its moving averages are not trained, and change no round: TFF warns of it."""
  return _dense(tf.keras.layers.BatchNormalization, tf.keras.layers.ReLU)


def _initial_numbers():
  """Its weights begin with numbers that XLA draws otherwise, and that no client reads."""
  initializers = tf.keras.initializers
  return _dense(
    lambda: tf.keras.layers.Dense(8, 'relu', kernel_initializer=initializers.HeNormal(seed=8)),
    lambda: tf.keras.layers.Dense(
      8, dtype='float64', kernel_initializer=initializers.Orthogonal(seed=9)
    ),
  )


NETWORKS = {
  'lstm': _lstm,
  'gru': _gru,
  'masked': _masked,
  'convolution': _convolution,
  'batch normalization': _batch_normalization,
  'initial numbers': _initial_numbers,
}
