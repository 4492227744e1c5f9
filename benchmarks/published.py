"""The field's published workloads, with the sizes of its benchmarks, on random data.

Sizes are those of pfl-research's benchmarks (Granqvist et al. 2024, arXiv 2404.06430). Pictures of
FLAIR are smaller, so that a round takes seconds on a CPU. Only sizes matter for speed: our
transformer has them, but normalises first, learns its positions, has an output matrix of its own
and drops nothing, where the published one normalises last, has sines for positions, takes the
tokens' vectors for its output and drops a tenth; its residual network has frozen batch instead of
group normalisation, and begins with weights trained elsewhere.
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import processes
import tff_models
from privacy import hypothetical, plan, sampling
from processes.method import BuildSpec, ExamplesSpec
from runtime import winograd


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """One benchmark of the field.

  Attributes:
    model: name of the model.
    task_kind: what is predicted.
    example_shape: of an example's features.
    label_shape: of an example's label.
    num_outputs: classes, labels, or words of the vocabulary.
    population: clients whose data are in memory.
    cohort: clients in a round.
    rows: examples of each client; a cohort's sizes may be given instead (`data`).
    batch_size: examples in a local step.
    local_epochs: passes of a client over its examples.
    options: discrete choices of FedAvg.
    hyperparameters: its continuous ones, where they are not the defaults.
    clipping_norm: of an update.
    noise_cohort: clients in a round of the hypothetical deployment, of a population of a million.
  """

  model: str
  task_kind: str
  example_shape: tuple[int, ...]
  label_shape: tuple[int, ...] = ()
  num_outputs: int
  population: int
  cohort: int
  rows: int
  batch_size: int
  local_epochs: int = 1
  options: Any = dataclasses.field(default_factory=dict)
  hyperparameters: Any = dataclasses.field(default_factory=dict)
  clipping_norm: float
  noise_cohort: int

  @property
  def tokens(self) -> bool:
    """Whether examples are sentences."""
    return self.task_kind == 'next_word'

  def network(self) -> Any:
    """The model."""
    return tff_models.build_model(
      self.model,
      example_shape=self.example_shape,
      num_outputs=self.num_outputs,
      task_kind=self.task_kind,
      x_scale=1.0 if self.tokens else 1.0 / 255.0,
    )

  def examples(self, rows: int) -> ExamplesSpec:
    """The form of a client's examples, padded to `rows`."""
    return ExamplesSpec(
      x_shape=(rows, *self.example_shape),
      x_dtype=np.int32 if self.tokens else np.uint8,
      y_shape=(rows, *self.label_shape),
      y_dtype=np.float32 if self.task_kind == 'multilabel' else np.int32,
    )

  def method(self, rows: int | None = None) -> Any:
    """DP-FedAvg with the noise of the hypothetical deployment, for clients of at most `rows`."""
    rows = rows or self.rows
    return processes.build(
      'fedavg',
      BuildSpec(
        model=self.network(),
        examples=self.examples(rows),
        plan=hypothetical.HypotheticalDeployment(
          cohorts=sampling.FixedSizeCohorts(self.population, self.cohort),
          deployed=sampling.PoissonCohorts(10**6, self.noise_cohort / 10**6),
          noise_multiplier=1.0,
          delta=1e-6,
          clipping=plan.FixedClipping(norm=self.clipping_norm),
        ),
        batch_size=self.batch_size,
        local_epochs=self.local_epochs,
        hyperparameters=self.hyperparameters,
        options=self.options,
      ),
    )

  def data(
    self, sizes: Sequence[int] | np.ndarray | None = None, rows: int | None = None
  ) -> collections.OrderedDict:
    """Random examples of all clients, padded to `rows`, of which each has `sizes`; default: all."""
    rows = rows or self.rows
    count = self.population if sizes is None else len(sizes)
    rng = np.random.default_rng(0)
    shape, label_shape = (count, rows, *self.example_shape), (count, rows, *self.label_shape)
    x: np.ndarray
    y: np.ndarray
    if self.tokens:  # no padding: all places of all sentences are words
      x = rng.integers(1, self.num_outputs, shape, np.int32)
      y = rng.integers(1, self.num_outputs, label_shape, np.int32)
    else:
      x = rng.integers(0, 256, shape, np.uint8)
      if self.task_kind == 'multilabel':
        y = rng.integers(0, 2, label_shape).astype(np.float32)
      else:
        y = rng.integers(0, self.num_outputs, label_shape, np.int32)
    return collections.OrderedDict(
      x=x,
      y=y,
      num_examples=np.full(count, rows, np.int32) if sizes is None else np.asarray(sizes, np.int32),
      client_id=np.arange(count, dtype=np.int32),
    )

  def flop(self, rows: int) -> float:
    """Floating-point operations of training on so many examples: three times the prediction's."""
    batch = self.batch_size
    x = tf.TensorSpec([batch, *self.example_shape], tf.int32 if self.tokens else tf.uint8)
    return 3.0 * self.local_epochs * rows * products(self.network(), x) / batch


WORKLOADS = {
  'cifar10': Workload(
    model='dropout_cnn', task_kind='classification', example_shape=(32, 32, 3), num_outputs=10,
    population=1000, cohort=50, rows=50, batch_size=10, clipping_norm=0.4, noise_cohort=1000,
  ),
  # Sentences of 20 tokens, 64 of each user, who has at most so many.
  'stackoverflow': Workload(
    model='next_word_transformer', task_kind='next_word', example_shape=(20,), label_shape=(20,),
    num_outputs=10_000, population=400, cohort=400, rows=64, batch_size=16,
    options={'server_optimizer': 'fedadam'},
    hyperparameters={
      'client_learning_rate': 0.3, 'server_learning_rate': 0.1, 'server_adaptivity': 0.01
    },
    clipping_norm=1.0, noise_cohort=5000,
  ),
  # 64x64 pixels in place of 256x256, and 10 clients in place of 200.
  'flair': Workload(
    model='resnet18', task_kind='multilabel', example_shape=(64, 64, 3), label_shape=(17,),
    num_outputs=17, population=20, cohort=10, rows=16, batch_size=16, local_epochs=2,
    options={'server_optimizer': 'fedadam'},
    hyperparameters={
      'client_learning_rate': 0.01, 'server_learning_rate': 0.1, 'server_adaptivity': 0.01
    },
    clipping_norm=0.1, noise_cohort=5000,
  ),
}  # fmt: skip
"""The workloads by name."""


def heavy_tailed(num_clients: int, most: int) -> np.ndarray:
  """How many examples each client has: log-normal, cut at `most`, as Stack Overflow's users."""
  sizes = np.random.default_rng(1).lognormal(np.log(24), 1.2, num_clients)
  return np.minimum(np.ceil(sizes), most).astype(np.int32)


def products(network: Any, x: tf.TensorSpec) -> float:
  """Floating-point operations in the matrix products of a prediction (twice the multiplications).

  Convolutions are matrix products here, with all their multiplications, also where they are
  worked on with fewer of them; all else is neglected.
  """
  params = network.init(tf.constant([0, 0]))
  traced = tf.function(lambda x: network.predict(params, x), autograph=False)
  alone = tf.TensorSpec([1, *x.shape[1:]], x.dtype)
  with mock.patch.object(winograd, 'is_faster', return_value=False):
    graph = traced.get_concrete_function(alone).graph
  return x.shape[0] * sum(_products_of(op) for op in graph.get_operations())


def _products_of(op: Any) -> float:
  if op.type not in ('MatMul', 'BatchMatMulV2'):
    return 0.0
  left = op.inputs[0].shape
  transposed = op.get_attr('transpose_a' if op.type == 'MatMul' else 'adj_x')
  inner = left[-2] if transposed else left[-1]
  return 2.0 * inner * op.outputs[0].shape.num_elements()


def plain_product(size: int = 2048) -> Callable[[], float]:
  """A function that gives the operations of matrix products, after having computed them.

  One on each core, as clients are spread over them: TensorFlow may have one thread for a product.
  """
  rng = np.random.default_rng(0)
  a, b = (tf.constant(rng.normal(size=(size, size)).astype(np.float32)) for _ in range(2))
  cores = len(os.sched_getaffinity(0))
  threads = futures.ThreadPoolExecutor(cores)

  def multiply() -> float:
    list(threads.map(lambda _: tf.matmul(a, b).numpy(), range(cores)))
    return 2.0 * size**3 * cores

  return multiply
