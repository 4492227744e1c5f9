"""What a model is: pure functions on an explicit tree of parameters.

A model holds no state and draws no random number of its own, so the same
functions serve training with or without per-example gradients, the evaluation,
and every client at once under `tf.vectorized_map`.
"""

import collections
import dataclasses
from collections.abc import Callable

import tensorflow as tf

Params = collections.OrderedDict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A differentiable model with its loss and its metrics.

  Attributes:
    name: the registered name.
    init: key (int32 [2]) -> parameters, an OrderedDict of float32 tensors.
    predict: (parameters, x [B, ...]) -> raw outputs [B] or [B, num_outputs]. `x`
      may have a compact dtype; the model scales it itself.
    loss: (outputs, y [B, ...]) -> per-example losses, float32 [B].
    metrics: (outputs, y) -> OrderedDict of name to per-example values [B], whose
      mean over the examples is the metric.
    metric_names: the names of `metrics`, the main one first.
    convex: whether the loss is convex in the parameters.
    head: the names of the last layer's parameters. The rest is a representation that
      clients can share while each has a last layer of its own (additive personalised
      models w + theta_i, PPSGD paper, section 6).
  """

  name: str
  init: Callable[[tf.Tensor], Params]
  predict: Callable[[Params, tf.Tensor], tf.Tensor]
  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  metrics: Callable[[tf.Tensor, tf.Tensor], Params]
  metric_names: tuple[str, ...]
  convex: bool
  head: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """A task's per-example loss and metrics, shared by the models."""

  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  metrics: Callable[[tf.Tensor, tf.Tensor], Params]
  metric_names: tuple[str, ...]


def squared_error() -> Objective:
  """Regression: loss (prediction - y)^2 / 2, metric 'mse' (prediction - y)^2."""

  def error(outputs, y):
    return tf.square(outputs - y)

  return Objective(
    loss=lambda outputs, y: 0.5 * error(outputs, y),
    metrics=lambda outputs, y: Params(mse=error(outputs, y)),
    metric_names=('mse',),
  )


def hinge() -> Objective:
  """Binary labels -1 and +1: hinge loss; see `_binary` for the metrics."""
  return _binary(lambda outputs, y: tf.nn.relu(1.0 - y * outputs))


def logistic() -> Objective:
  """Binary labels -1 and +1: logistic loss; see `_binary` for the metrics."""
  return _binary(lambda outputs, y: tf.math.softplus(-y * outputs))


def _binary(loss) -> Objective:
  """Metrics: accuracy of the sign (0 counts as +1), and the loss.

  The loss also tells models apart where one label is rare, and accuracy does not.
  """

  def metrics(outputs, y):
    correct = tf.equal(outputs >= 0.0, y > 0.0)
    return Params(accuracy=tf.cast(correct, tf.float32), loss=loss(outputs, y))

  return Objective(loss=loss, metrics=metrics, metric_names=('accuracy', 'loss'))


def cross_entropy() -> Objective:
  """Integer labels: softmax cross-entropy on logits [B, classes], accuracy of the argmax."""

  def loss(logits, y):
    # One-hot products instead of a sparse gather: they vectorise over clients
    # and examples without scatters in the gradient.
    one_hot = tf.one_hot(y, logits.shape[-1], dtype=tf.float32)
    return -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), axis=-1)

  return Objective(loss=loss, metrics=_argmax_accuracy, metric_names=('accuracy',))


def one_versus_all(*, label_shift: float = 0.1, mean: bool = False) -> Objective:
  """Squared loss of every output against one-hot labels minus a shift.

  PPSGD paper, section 6; the prediction is the argmax. Multi-hot labels [B, tags] are
  accepted as well: then the accuracy is that of the top-1 tag. The step sizes and clips of
  the paper's experiments are for these scales:

  Args:
    label_shift: taken from the labels.
    mean: the mean over the classes of (output - label)^2, as with the paper's network,
      instead of the sum of (output - label)^2 / 2, as with its linear models.
  """

  def loss(outputs, y):
    if y.shape.rank == 1:
      y = tf.one_hot(y, outputs.shape[-1], dtype=tf.float32)
    targets = tf.cast(y, tf.float32) - label_shift
    errors = tf.square(outputs - targets)
    return tf.reduce_mean(errors, axis=-1) if mean else 0.5 * tf.reduce_sum(errors, axis=-1)

  def metrics(outputs, y):
    if y.shape.rank == 1:
      return _argmax_accuracy(outputs, y)
    top = tf.one_hot(tf.argmax(outputs, axis=-1), outputs.shape[-1], dtype=tf.float32)
    return Params(accuracy=tf.reduce_sum(top * tf.cast(y, tf.float32), axis=-1))

  return Objective(loss=loss, metrics=metrics, metric_names=('accuracy',))


def multilabel() -> Objective:
  """Multi-hot labels [B, tags]: mean sigmoid cross-entropy, top-1 tag accuracy."""

  def loss(logits, y):
    targets = tf.cast(y, tf.float32)
    return tf.reduce_mean(tf.math.softplus(logits) - targets * logits, axis=-1)

  return Objective(loss=loss, metrics=one_versus_all().metrics, metric_names=('accuracy',))


def _argmax_accuracy(logits, y):
  correct = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.cast(y, tf.int32))
  return Params(accuracy=tf.cast(correct, tf.float32))
