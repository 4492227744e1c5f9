"""All of `tff.learning.algorithms` on both runtimes: `./fl python -m benchmarks.algorithms`.

Training and evaluating a softmax layer on 20 clients of 70 to 100 images, with every algorithm,
optimizer schedule and aggregator (but `ddp_secure_aggregator`, which TFF cannot build on a model
with the protobuf that it needs); a network with normalisation. `side_by_side` says what the table
has. Recurrent and convolution networks, and evaluation of personal models, are among the
`tutorials`.
"""

import collections
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import side_by_side
from benchmarks.side_by_side import Program

CLIENTS, ROWS, BATCH = 20, 100, 20
PIXELS, CLASSES = 784, 10

_LEARNING = tff.learning.algorithms
_SPEC = (tf.TensorSpec([None, PIXELS], tf.float32), tf.TensorSpec([None], tf.int32))


def _sgd(rate: float = 0.05, momentum: float = 0.0) -> Any:
  return tff.learning.optimizers.build_sgdm(rate, momentum)


@functools.cache
def _images() -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  data = []
  for client in range(CLIENTS):
    n = ROWS - 10 * (client % 4)
    x = rng.normal(size=(n, PIXELS)).astype(np.float32)
    labels = rng.integers(0, CLASSES, n).astype(np.int32)
    data.append(tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH))
  return data


def _loss() -> Any:
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _softmax() -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [layers.InputLayer(input_shape=(PIXELS,)), layers.Dense(CLASSES, kernel_initializer='zeros')]
  )


def _normalised() -> tf.keras.Model:
  layers = tf.keras.layers
  uniform = tf.keras.initializers.RandomUniform(seed=1)
  return tf.keras.Sequential(
    [
      layers.InputLayer(input_shape=(PIXELS,)),
      layers.Dense(64, kernel_initializer=uniform),
      layers.BatchNormalization(),
      layers.ReLU(),
      layers.GroupNormalization(8),
      layers.Dense(CLASSES, kernel_initializer=uniform),
    ]
  )


def _keras_model(network: Callable[[], tf.keras.Model] = _softmax) -> Any:
  return tff.learning.models.from_keras_model(
    network(),
    input_spec=_SPEC,
    loss=_loss(),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def _functional_model() -> Any:
  return tff.learning.models.functional_model_from_keras(
    _softmax,
    loss_fn=_loss(),
    input_spec=_SPEC,
    metrics_constructor=lambda: collections.OrderedDict(
      accuracy=tf.keras.metrics.SparseCategoricalAccuracy()
    ),
  )


def _fed_avg(**settings: Any) -> Any:
  return _LEARNING.build_weighted_fed_avg(_keras_model, _sgd(), _sgd(1.0), **settings)


def _decayed(round_: Any) -> Any:
  return tf.where(round_ < 1, 0.1, 0.01)


def _reconstruction(build: Callable[..., Any], **optimizers: Any) -> Any:
  def model():
    hidden, output = (
      tf.keras.layers.Dense(n, kernel_initializer=tf.keras.initializers.RandomUniform(seed=n))
      for n in (16, CLASSES)
    )
    inputs = tf.keras.layers.Input((PIXELS,))
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
      keras_model=tf.keras.Model(inputs, output(hidden(inputs))),
      global_layers=[hidden],
      local_layers=[output],
      input_spec=_SPEC,
    )

  split = tff.learning.models.ReconstructionModel.build_dataset_split_fn(split_dataset=True)
  return build(
    model,
    loss_fn=_loss,
    metrics_fn=lambda: [tf.keras.metrics.SparseCategoricalAccuracy()],
    reconstruction_optimizer_fn=_sgd(),
    dataset_split_fn=split,
    **optimizers,
  )


def _of_evaluation(process: Any) -> Program:
  """An evaluation of random weights; its state has a model, and it gives none to compare."""

  def start():
    rng, state = np.random.default_rng(1), process.initialize()
    weights = process.get_model_weights(state)
    drawn = [rng.normal(0, 0.05, w.shape).astype(np.float32) for w in weights.trainable]
    own = tff.learning.models.ModelWeights(drawn, weights.non_trainable)
    return process.set_model_weights(state, own)

  def step(state):
    output = process.next(state, _images())
    return output.state, output.metrics

  return Program(computation=process.next, start=start, step=step)


def _k_means() -> Program:
  rng = np.random.default_rng(0)
  clients = [
    tf.data.Dataset.from_tensor_slices(rng.normal(size=(ROWS, 20)).astype(np.float32))
    for _ in range(CLIENTS)
  ]
  process = _LEARNING.build_fed_kmeans(5, (20,), random_seed=(0, 1))
  return side_by_side.of_process(process, clients)


_TRAINING: dict[str, Callable[[], Any]] = {
  'fed_avg': _fed_avg,
  'fed_avg, functional model': lambda: _LEARNING.build_weighted_fed_avg(
    _functional_model(), _sgd(), _sgd(1.0)
  ),
  'fed_avg, unweighted': lambda: _LEARNING.build_unweighted_fed_avg(
    _keras_model, _sgd(), _sgd(1.0)
  ),
  'fed_avg, Adam': lambda: _LEARNING.build_weighted_fed_avg(
    _keras_model,
    tff.learning.optimizers.build_adam(0.01),
    tff.learning.optimizers.build_adam(0.01),
  ),
  'fed_avg, robust': lambda: _fed_avg(
    model_aggregator=tff.learning.robust_aggregator(zeroing=True, clipping=True)
  ),
  'fed_avg, secure': lambda: _fed_avg(
    model_aggregator=tff.learning.secure_aggregator(weighted=True)
  ),
  'fed_avg, compression': lambda: _fed_avg(model_aggregator=tff.learning.compression_aggregator()),
  # Without noise, which neither runtime draws as the other does.
  'fed_avg, dp': lambda: _LEARNING.build_unweighted_fed_avg(
    _keras_model, _sgd(), _sgd(1.0), model_aggregator=tff.learning.dp_aggregator(0.0, CLIENTS)
  ),
  'fed_avg, schedule': lambda: _LEARNING.build_weighted_fed_avg_with_optimizer_schedule(
    _keras_model, client_learning_rate_fn=_decayed, client_optimizer_fn=_sgd
  ),
  'fed_prox': lambda: _LEARNING.build_weighted_fed_prox(_keras_model, 0.1, _sgd()),
  'fed_prox, unweighted': lambda: _LEARNING.build_unweighted_fed_prox(_keras_model, 0.1, _sgd()),
  'fed_sgd': lambda: _LEARNING.build_fed_sgd(_keras_model, _sgd(0.1)),
  'mime_lite': lambda: _LEARNING.build_weighted_mime_lite(_keras_model, _sgd(0.05, 0.9)),
  'mime_lite, unweighted': lambda: _LEARNING.build_unweighted_mime_lite(
    _keras_model, _sgd(0.05, 0.9)
  ),
  'mime_lite, schedule': lambda: _LEARNING.build_mime_lite_with_optimizer_schedule(
    _keras_model, learning_rate_fn=_decayed, base_optimizer=_sgd(0.05, 0.9)
  ),
  'fed_recon': lambda: _reconstruction(
    _LEARNING.build_fed_recon, client_optimizer_fn=_sgd(), server_optimizer_fn=_sgd(1.0)
  ),
  'fed_avg, batch and group normalisation': lambda: _LEARNING.build_weighted_fed_avg(
    lambda: _keras_model(_normalised), _sgd(), _sgd(1.0)
  ),
}


def _of_training(make: Callable[[], Any]) -> Program:
  return side_by_side.of_process(make(), _images())


ALGORITHMS: dict[str, Callable[[], Program]] = {
  **{name: functools.partial(_of_training, make) for name, make in _TRAINING.items()},
  'fed_eval': lambda: _of_evaluation(_LEARNING.build_fed_eval(_keras_model)),
  'fed_recon_eval': lambda: _of_evaluation(_reconstruction(_LEARNING.build_fed_recon_eval)),
  'k-means': _k_means,
}


def main(names: Sequence[str] = ()) -> None:
  """Prints the table, for all algorithms or those that are named."""
  side_by_side.print_table('algorithm', {name: ALGORITHMS[name] for name in names or ALGORITHMS})


if __name__ == '__main__':
  main(sys.argv[1:])
