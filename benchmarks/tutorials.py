"""Programs like some of TFF's tutorials, on both runtimes: `./fl python -m benchmarks.tutorials`.

Each is a small program of our own after one tutorial, on synthetic data; two are the networks of
the benchmark. `side_by_side` says what the table has.

Long because every tutorial has its program here.
"""

import collections
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import side_by_side, workloads
from benchmarks.side_by_side import Program

Tree = collections.OrderedDict
PIXELS, CLASSES, WORDS = 784, 10, 30
CLIENTS = 10


def _sgd(rate: float = 0.05) -> Any:
  return tff.learning.optimizers.build_sgdm(rate)


def _pictures(rows: int = 40, batch: int = 20) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  data = []
  for client in range(CLIENTS):
    n = rows - 3 * (client % 4)
    x = rng.normal(size=(n, PIXELS)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, rng.integers(0, CLASSES, n).astype(np.int32)))
    data.append(dataset.batch(batch))
  return data


def _keras(layers: Callable[[], list], spec: Any) -> Any:
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers()),
    input_spec=spec,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def _picture_model() -> Any:
  spec = (tf.TensorSpec([None, PIXELS], tf.float32), tf.TensorSpec([None], tf.int32))
  return _keras(
    lambda: [
      tf.keras.layers.InputLayer(input_shape=(PIXELS,)),
      tf.keras.layers.Dense(CLASSES, kernel_initializer='zeros'),
    ],
    spec,
  )


def image_classification() -> Program:
  """Federated averaging of a Keras model."""
  process = tff.learning.algorithms.build_weighted_fed_avg(_picture_model, _sgd(), _sgd(1.0))
  return side_by_side.of_process(process, _pictures())


def custom_algorithms_1() -> Program:
  """Sensors: the part of them above a threshold, and the mean of what each has read."""
  readings = tff.SequenceType(np.float32)

  @tff.tensorflow.computation(readings)
  def local_mean(values):
    total, count = values.reduce((0.0, 0.0), lambda t, v: (t[0] + v, t[1] + 1.0))
    return total / count

  @tff.tensorflow.computation(np.float32, np.float32)
  def is_above(mean, threshold):
    return tf.cast(mean > threshold, tf.float32)

  @tff.federated_computation(
    tff.FederatedType(readings, tff.CLIENTS), tff.FederatedType(np.float32, tff.SERVER)
  )
  def measure(values, threshold):
    means = tff.federated_map(local_mean, values)
    above = tff.federated_map(is_above, (means, tff.federated_broadcast(threshold)))
    return tff.federated_mean(means), tff.federated_mean(above)

  rng = np.random.default_rng(0)
  sensors = [rng.normal(20, 5, 5 + k).astype(np.float32).tolist() for k in range(CLIENTS)]
  return Program(
    computation=measure, start=lambda: None, step=lambda _: (None, measure(sensors, 20.0))
  )


_MODEL = tff.to_type(
  Tree(
    weights=tff.TensorType(np.float32, [PIXELS, CLASSES]),
    bias=tff.TensorType(np.float32, [CLASSES]),
  )
)


def _descended(model: Any, x: tf.Tensor, y: tf.Tensor, rate: Any) -> Tree:
  with tf.GradientTape() as tape:
    values = [model['weights'], model['bias']]
    tape.watch(values)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ values[0] + values[1])
    loss = tf.reduce_mean(losses)
  slopes = tape.gradient(loss, values)
  return Tree(weights=values[0] - rate * slopes[0], bias=values[1] - rate * slopes[1])


def _zero_model() -> Tree:
  return Tree(weights=np.zeros([PIXELS, CLASSES], np.float32), bias=np.zeros([CLASSES], np.float32))


def custom_algorithms_2() -> Program:
  """Federated averaging out of `sequence_reduce` and `federated_mean`."""
  batch = tff.to_type(
    (tff.TensorType(np.float32, [None, PIXELS]), tff.TensorType(np.int32, [None]))
  )
  batches = tff.SequenceType(batch)

  @tff.tensorflow.computation(_MODEL, batch)
  def descend(model, data):
    return _descended(model, data[0], data[1], 0.05)

  @tff.federated_computation(_MODEL, batches)
  def train(model, data):
    return tff.sequence_reduce(data, model, descend)

  @tff.federated_computation(
    tff.FederatedType(_MODEL, tff.SERVER), tff.FederatedType(batches, tff.CLIENTS)
  )
  def next_model(model, data):
    return tff.federated_mean(tff.federated_map(train, (tff.federated_broadcast(model), data)))

  clients = _pictures()
  return Program(
    computation=next_model, start=_zero_model, step=lambda model: (next_model(model, clients),) * 2
  )


def own_algorithm() -> Program:
  """A client's update as one TensorFlow function over its data set, and a server with momentum."""
  state_type = tff.to_type(Tree(model=_MODEL, momentum=_MODEL))
  batches = tff.SequenceType(
    (tff.TensorType(np.float32, [None, PIXELS]), tff.TensorType(np.int32, [None]))
  )

  @tff.tensorflow.computation(state_type, batches)
  def client_update(state, data):
    start = state['model']
    end = data.reduce(start, lambda model, batch: _descended(model, batch[0], batch[1], 0.05))
    return Tree((name, end[name] - start[name]) for name in start)

  @tff.tensorflow.computation(state_type, _MODEL)
  def server_update(state, change):
    momentum = Tree((n, 0.9 * state['momentum'][n] + change[n]) for n in change)
    return Tree(model=Tree((n, state['model'][n] + momentum[n]) for n in change), momentum=momentum)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(batches, tff.CLIENTS)
  )
  def next_state(state, data):
    changes = tff.federated_map(client_update, (tff.federated_broadcast(state), data))
    return tff.federated_map(server_update, (state, tff.federated_mean(changes)))

  clients = _pictures()
  return Program(
    computation=next_state,
    start=lambda: Tree(model=_zero_model(), momentum=_zero_model()),
    step=lambda state: (next_state(state, clients),) * 2,
  )


def tuned_aggregators() -> Program:
  """Zeroing, adaptive clipping and quantisation of the updates, composed."""
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _picture_model,
    _sgd(),
    _sgd(1.0),
    model_aggregator=tff.learning.robust_aggregator(zeroing=True, clipping=True),
  )
  return side_by_side.of_process(process, _pictures())


class _ClippedSum(tff.aggregators.UnweightedAggregationFactory):
  """A sum of values whose numbers are clipped to [-bound, bound]; says how many were."""

  def __init__(self, bound: float):
    self._bound = bound

  def create(self, value_type):
    bound = self._bound

    @tff.tensorflow.computation(value_type)
    def clip(value):
      clipped = tf.clip_by_value(value, -bound, bound)
      return clipped, tf.reduce_sum(tf.cast(tf.not_equal(clipped, value), tf.int32))

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_round(state, values):
      clipped = tff.federated_map(clip, values)
      return tff.templates.MeasuredProcessOutput(
        state, tff.federated_sum(clipped[0]), tff.federated_sum(clipped[1])
      )

    return tff.templates.AggregationProcess(initialize, next_round)


def custom_aggregators() -> Program:
  """An aggregator of one's own."""
  process = _ClippedSum(0.5).create(tff.TensorType(np.float32, [1000]))
  rng = np.random.default_rng(0)
  values = [rng.normal(size=1000).astype(np.float32) for _ in range(CLIENTS)]

  def step(state):
    output = process.next(state, values)
    return output.state, (output.result, output.measurements)

  return Program(computation=process.next, start=process.initialize, step=step)


def select() -> Program:
  """Each client is sent the rows of a table that it has examples of, and trains these."""
  table = tff.TensorType(np.float32, [WORDS, CLASSES])
  keys = tff.TensorType(np.int32, [4])
  row = tff.SequenceType(tff.TensorType(np.float32, [CLASSES]))

  @tff.tensorflow.computation(table, np.int32)
  def pick(rows, key):
    return tf.gather(rows, key)

  @tff.tensorflow.computation(row, keys)
  def change(rows, chosen):
    stacked = rows.batch(4).reduce(tf.zeros([4, CLASSES]), lambda _, r: tf.reshape(r, [4, CLASSES]))
    return tf.tensor_scatter_nd_add(
      tf.zeros([WORDS, CLASSES]), chosen[:, tf.newaxis], 0.1 * (1.0 - stacked)
    )

  @tff.tensorflow.computation(table, table)
  def add(rows, changes):
    return rows + changes

  @tff.federated_computation(
    tff.FederatedType(table, tff.SERVER), tff.FederatedType(keys, tff.CLIENTS)
  )
  def next_table(rows, chosen):
    largest = tff.federated_value(WORDS, tff.SERVER)
    slices = tff.federated_select(chosen, largest, rows, pick)
    changes = tff.federated_sum(tff.federated_map(change, (slices, chosen)))
    return tff.federated_map(add, (rows, changes))

  rng = np.random.default_rng(0)
  clients = [rng.choice(WORDS, 4, replace=False).astype(np.int32) for _ in range(CLIENTS)]
  return Program(
    computation=next_table,
    start=lambda: np.zeros([WORDS, CLASSES], np.float32),
    step=lambda rows: (next_table(rows, clients),) * 2,
  )


def simulations() -> Program:
  """`run_training_process` with sampled clients: two rounds from the start, each time."""
  process = tff.learning.algorithms.build_weighted_fed_avg(_picture_model, _sgd(), _sgd(1.0))
  clients = _pictures()
  sample = tff.simulation.build_uniform_sampling_fn(range(CLIENTS), random_seed=1)

  def step(_):
    state = tff.simulation.run_training_process(
      process, lambda number: [clients[k] for k in sample(number, 5)], total_rounds=2
    )
    return None, process.get_model_weights(state)

  return Program(computation=process.next, start=lambda: None, step=step)


def _words(length: int = 20) -> list[tf.data.Dataset]:
  """Pieces of text, and the same a character later."""
  rng = np.random.default_rng(0)
  data = []
  for client in range(CLIENTS):
    text = rng.integers(0, WORDS, (24 - 3 * (client % 4), length + 1)).astype(np.int32)
    data.append(tf.data.Dataset.from_tensor_slices((text[:, :-1], text[:, 1:])).batch(8))
  return data


def text_generation() -> Program:
  """Federated averaging of a recurrent network that predicts the next character."""
  spec = tf.TensorSpec([None, 20], tf.int32)

  def layers():
    uniform = tf.keras.initializers.RandomUniform(seed=1)
    return [
      tf.keras.layers.InputLayer(input_shape=(20,), dtype=tf.int32),
      tf.keras.layers.Embedding(WORDS, 16, embeddings_initializer=uniform),
      tf.keras.layers.GRU(
        32, return_sequences=True, kernel_initializer=uniform, recurrent_initializer=uniform
      ),
      tf.keras.layers.Dense(WORDS, kernel_initializer=uniform),
    ]

  process = tff.learning.algorithms.build_weighted_fed_avg(
    lambda: _keras(layers, (spec, spec)), _sgd(0.5), _sgd(1.0)
  )
  return side_by_side.of_process(process, _words())


def personalisation() -> Program:
  """How well a global model does for each client, as it is and after an epoch of its own."""

  @tf.function
  def evaluate(model, data):
    correct, count = 0.0, 0.0
    for batch in data.batch(20):
      output = model.forward_pass(batch, training=False)
      guess = tf.argmax(output.predictions, axis=-1, output_type=tf.int32)
      correct += tf.reduce_sum(tf.cast(guess == batch[1], tf.float32))
      count += tf.cast(tf.shape(guess)[0], tf.float32)
    return Tree(accuracy=correct / count, count=count)

  def fine_tuned():
    optimizer = tf.keras.optimizers.legacy.SGD(0.05)

    @tf.function
    def personalise(model, train, test, context=None):
      del context
      for batch in train.batch(10):
        with tf.GradientTape() as tape:
          output = model.forward_pass(batch, training=True)
        variables = model.trainable_variables
        slopes = tape.gradient(output.loss, variables)
        optimizer.apply_gradients(zip(slopes, variables, strict=True))
      return evaluate(model, test)

    return personalise

  computation = tff.learning.algorithms.build_personalization_eval_computation(
    _picture_model, Tree(epoch=fine_tuned), evaluate, max_num_clients=CLIENTS
  )
  halves = [data.unbatch() for data in _pictures()]
  clients = [Tree(train_data=data.take(20), test_data=data.skip(20)) for data in halves]
  weights = tff.learning.models.ModelWeights(list(_zero_model().values()), [])

  def step(_):
    metrics = computation(weights, clients)
    # The sample of all clients comes in an order of its own.
    return None, tf.nest.map_structure(lambda leaf: np.sort(leaf), dict(metrics))

  return Program(computation=computation, start=lambda: None, step=step)


def reconstruction() -> Program:
  """Matrix factorisation: a client's own vector is never sent, but found anew in each round."""
  items, width = 50, 8

  def model():
    item = tf.keras.layers.Input([1], dtype=tf.int64)
    uniform = tf.keras.initializers.RandomUniform(seed=1)
    vectors = tf.keras.layers.Embedding(items, width, embeddings_initializer=uniform)
    own = tf.keras.layers.Embedding(1, width, embeddings_initializer=uniform)
    rating = tf.keras.layers.Dot(2)([vectors(item), own(tf.zeros_like(item))])
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
      keras_model=tf.keras.Model(item, tf.keras.layers.Flatten()(rating)),
      global_layers=[vectors],
      local_layers=[own],
      input_spec=(tf.TensorSpec([None, 1], tf.int64), tf.TensorSpec([None, 1], tf.float32)),
    )

  process = tff.learning.algorithms.build_fed_recon(
    model,
    loss_fn=tf.keras.losses.MeanSquaredError,
    metrics_fn=lambda: [tf.keras.metrics.MeanSquaredError()],
    client_optimizer_fn=_sgd(0.5),
    server_optimizer_fn=_sgd(1.0),
    reconstruction_optimizer_fn=_sgd(0.5),
    dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
      split_dataset=True
    ),
  )
  rng = np.random.default_rng(0)
  clients = [
    tf.data.Dataset.from_tensor_slices(
      (rng.integers(0, items, (30, 1)), rng.normal(size=(30, 1)).astype(np.float32))
    ).batch(5)
    for _ in range(CLIENTS)
  ]
  return side_by_side.of_process(process, clients)


def heavy_hitters() -> Program:
  """The words that clients have, and how often, from a sketch of sums."""
  computation = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
    capacity=100, string_max_bytes=12, max_words_per_user=6, seed=1
  )
  rng = np.random.default_rng(0)
  clients = [
    tf.data.Dataset.from_tensor_slices([f'word {w}' for w in rng.zipf(1.5, 8) % WORDS]).batch(1)
    for _ in range(CLIENTS)
  ]

  def step(_):
    found = computation(clients)
    order = np.argsort(found.heavy_hitters)
    counts = np.asarray(found.heavy_hitters_counts)[order]
    return None, (counts, found.clients, found.num_not_decoded)

  return Program(computation=computation, start=lambda: None, step=step)


def _network(layers: Callable[[], list], kind: str) -> Program:
  """Federated averaging of one of the benchmark's networks by a few of its clients."""
  x, _ = workloads.INPUTS[kind]
  process = tff.learning.algorithms.build_weighted_fed_avg(
    lambda: _keras(
      lambda: [tf.keras.layers.InputLayer(input_shape=x.shape[1:], dtype=x.dtype), *layers()],
      workloads.INPUTS[kind],
    ),
    _sgd(),
    _sgd(1.0),
  )
  program = side_by_side.of_process(process, workloads.tff_datasets(5, kind))
  # Random initial values, the same for both.
  return dataclasses.replace(program, start=functools.cache(program.start))


TUTORIALS: dict[str, Callable[[], Program]] = {
  'image classification': image_classification,
  'custom algorithms 1': custom_algorithms_1,
  'custom algorithms 2': custom_algorithms_2,
  'building your own algorithm': own_algorithm,
  'tuning aggregators': tuned_aggregators,
  'custom aggregators': custom_aggregators,
  'federated select': select,
  'simulations': simulations,
  'text generation': text_generation,
  'personalisation': personalisation,
  'reconstruction': reconstruction,
  'heavy hitters': heavy_hitters,
  'convolutions': lambda: _network(workloads.cnn_layers, 'images'),
  'LSTM': lambda: _network(workloads.lstm_layers, 'texts'),
}


def main(names: Sequence[str] = ()) -> None:
  """Prints the table, for all tutorials or those that are named."""
  side_by_side.print_table('tutorial', {name: TUTORIALS[name] for name in names or TUTORIALS})


if __name__ == '__main__':
  main(sys.argv[1:])
