"""The workloads: processes of this project, and TFF's own for comparison, on random data.

Only sizes matter for speed, so the data are random numbers of the real data's shapes.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import processes
import tff_models
from privacy import plan, sampling
from processes.method import BuildSpec, ExamplesSpec

SCHOOLS, SCHOOL_ROWS, SCHOOL_FEATURES = 139, 175, 28
IMAGES_PER_CLIENT = 100
TEXTS_PER_CLIENT, TEXT_LENGTH, CHARACTERS = 100, 20, 90
INPUTS = {
  'images': (tf.TensorSpec([None, 28, 28, 1], tf.float32), tf.TensorSpec([None], tf.int32)),
  'texts': (tf.TensorSpec([None, TEXT_LENGTH], tf.int32),) * 2,
}


def images(num_clients: int) -> collections.OrderedDict:
  """MNIST's shapes: 100 byte images for each client."""
  rng = np.random.default_rng(0)
  shape = (num_clients, IMAGES_PER_CLIENT)
  return collections.OrderedDict(
    x=rng.integers(0, 256, (*shape, 28, 28, 1), np.uint8),
    y=rng.integers(0, 10, shape, np.int32),
    num_examples=np.full(num_clients, IMAGES_PER_CLIENT, np.int32),
    client_id=np.arange(num_clients, dtype=np.int32),
  )


def schools() -> collections.OrderedDict:
  """The School data's shapes: 139 silos of up to 175 rows."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(SCHOOLS, SCHOOL_ROWS, SCHOOL_FEATURES)).astype(np.float32)
  return collections.OrderedDict(
    x=x,
    y=x[..., 0] + rng.normal(size=x.shape[:2]).astype(np.float32),
    num_examples=rng.integers(15, SCHOOL_ROWS + 1, SCHOOLS).astype(np.int32),
    client_id=np.arange(SCHOOLS, dtype=np.int32),
  )


def image_model(name: str) -> Any:
  """A model of this project for the images."""
  options: dict[str, Any] = {'hidden_units': (1024, 1024)} if name == 'mlp' else {}
  return tff_models.build_model(
    name,
    example_shape=(28, 28, 1),
    num_outputs=10,
    task_kind='classification',
    x_scale=1.0 / 255.0,
    **options,
  )


def image_fedavg(model_name: str, num_clients: int, noise_multiplier: float = 1.0) -> Any:
  """DP-FedAvg with adaptive clipping: one local epoch in batches of 20."""
  shape = (IMAGES_PER_CLIENT, 28, 28, 1)
  return processes.build(
    'fedavg',
    BuildSpec(
      model=image_model(model_name),
      examples=ExamplesSpec(x_shape=shape, x_dtype=np.uint8, y_shape=shape[:1], y_dtype=np.int32),
      plan=plan.ClientLevelPrivacy(
        cohorts=sampling.EveryClient(num_clients),
        noise_multiplier=noise_multiplier,
        delta=1e-5,
        clipping=plan.AdaptiveClipping(quantile_noise_multiplier=max(1.0, num_clients / 20)),
      ),
      batch_size=20,
    ),
  )


def school_mr_mtl(num_examples: np.ndarray) -> tuple[Any, Any]:
  """MR-MTL with DP-SGD, one epoch of batches of 32: the method and the silos' parameters."""
  steps = np.ceil(num_examples / 32).astype(np.int32)
  privacy = plan.ExampleLevelPrivacy(
    num_examples=num_examples,
    batch_size=32,
    steps_per_round=steps,
    noise_multiplier=np.ones(SCHOOLS),
    delta=np.full(SCHOOLS, 1e-3),
    clipping_norm=1.0,
  )
  method = processes.build(
    'mr_mtl',
    BuildSpec(
      model=tff_models.build_model(
        'linear_regression',
        example_shape=(SCHOOL_FEATURES,),
        num_outputs=1,
        task_kind='regression',
      ),
      examples=ExamplesSpec(
        x_shape=(SCHOOL_ROWS, SCHOOL_FEATURES),
        x_dtype=np.float32,
        y_shape=(SCHOOL_ROWS,),
        y_dtype=np.float32,
      ),
      plan=privacy,
      batch_size=32,
      hyperparameters={'client_learning_rate': 0.01},
    ),
  )
  return method, privacy.silo_parameters()


def tff_learning(
  layers: Callable[[], list],
  num_clients: int,
  noise_multiplier: float = 1.0,
  kind: str = 'images',
) -> Any:
  """TFF's own DP-FedAvg with adaptive clipping, for Keras layers on `tf.data` clients.

  Args:
    layers: makes the layers.
    num_clients: in a round.
    noise_multiplier: of the sum of clipped updates.
    kind: `images` or `texts`.
  """

  def model_fn():
    return tff.learning.models.from_keras_model(
      keras_model(layers, kind),
      input_spec=INPUTS[kind],
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

  aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
    noise_multiplier=noise_multiplier, clients_per_round=num_clients
  )
  return tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn,
    tff.learning.optimizers.build_sgdm(learning_rate=0.1),
    model_aggregator=aggregator,
  )


def keras_model(layers: Callable[[], list], kind: str = 'images') -> tf.keras.Model:
  """A Keras model of the images or texts."""
  x, _ = INPUTS[kind]
  return tf.keras.Sequential([tf.keras.layers.Input(x.shape[1:], dtype=x.dtype), *layers()])


def softmax_layers() -> list:
  """W1's model for Keras."""
  return [tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]


def cnn_layers() -> list:
  """W2's model for Keras: 3x3 convolutions of 32 and 64 channels, 2x2 pooling after each."""
  layers = tf.keras.layers
  return [
    layers.Conv2D(32, 3, activation='relu'),
    layers.MaxPooling2D(),
    layers.Conv2D(64, 3, activation='relu'),
    layers.MaxPooling2D(),
    layers.Flatten(),
    layers.Dense(10),
  ]


def lstm_layers() -> list:
  """The text workload's model for Keras: the next of 90 characters, at every place."""
  layers = tf.keras.layers
  return [
    layers.Embedding(CHARACTERS, 16),
    layers.LSTM(64, return_sequences=True),
    layers.Dense(CHARACTERS),
  ]


def tff_datasets(num_clients: int, kind: str = 'images') -> list[tf.data.Dataset]:
  """The images or texts as TFF's users have them: a `tf.data` pipeline for each client."""
  if kind == 'texts':
    shape = (num_clients, TEXTS_PER_CLIENT, TEXT_LENGTH + 1)
    texts = np.random.default_rng(0).integers(0, CHARACTERS, shape).astype(np.int32)
    return [
      tf.data.Dataset.from_tensor_slices((text[:, :-1], text[:, 1:])).batch(20) for text in texts
    ]
  data = images(num_clients)
  return [
    tf.data.Dataset.from_tensor_slices((x.astype(np.float32) / 255.0, y)).batch(20)
    for x, y in zip(data['x'], data['y'], strict=True)
  ]
