"""What a model is: pure functions on an explicit tree of parameters.

A model holds no state and draws no random number of its own, so the same
functions serve training with or without per-example gradients, the evaluation,
and every client at once under `tf.vectorized_map`. A model with dropout says how
many uniform numbers an example needs; the trainer draws them, for each example its
own, and hands them over as data. Without them, as in an evaluation, nothing is
dropped.
"""

import collections
import dataclasses
from collections.abc import Callable

import tensorflow as tf

Params = collections.OrderedDict

PADDING_TOKEN = 0


def _one_each(y: tf.Tensor) -> tf.Tensor:
  return tf.ones(tf.shape(y)[:1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A differentiable model with its loss and its metrics.

  Attributes:
    name: the registered name.
    init: key (int32 [2]) -> parameters, an OrderedDict of float32 tensors.
    predict: (parameters, x [B, ...]) -> raw outputs [B] or [B, num_outputs]. `x`
      may have a compact dtype; the model scales it itself. With `draws` also (parameters,
      x, uniform numbers [B, draws]) -> outputs in training; without the numbers nothing is
      dropped.
    loss: (outputs, y [B, ...]) -> per-example losses, float32 [B].
    metrics: (outputs, y) -> OrderedDict of name to per-example values [B], whose
      mean over the examples is the metric.
    metric_names: the names of `metrics`, the main one first.
    convex: whether the loss is convex in the parameters.
    head: the names of the last layer's parameters. The rest is a representation that
      clients can share while each has a last layer of its own (additive personalised
      models w + theta_i, PPSGD paper, section 6).
    draws: how many uniform numbers dropout needs for one example; 0 without dropout.
    weigh: y [B, ...] -> how much each example counts in a mean over examples, [B]: one
      each, or the number of its tokens.
    contents: what tells the numbers that it holds itself, as a Keras model its weights, from
      others; empty where all come from `init`'s key.
  """

  name: str
  init: Callable[[tf.Tensor], Params]
  predict: Callable[..., tf.Tensor]
  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  metrics: Callable[[tf.Tensor, tf.Tensor], Params]
  metric_names: tuple[str, ...]
  convex: bool
  head: tuple[str, ...]
  draws: int = 0
  weigh: Callable[[tf.Tensor], tf.Tensor] = _one_each
  contents: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """A task's per-example loss and metrics, shared by the models."""

  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  metrics: Callable[[tf.Tensor, tf.Tensor], Params]
  metric_names: tuple[str, ...]
  weigh: Callable[[tf.Tensor], tf.Tensor] = _one_each

  def model(
    self, *, name: str, init, predict, head: tuple[str, ...], convex: bool = False, draws: int = 0
  ) -> Model:
    """The model that has this objective; see `Model` for the arguments."""
    return Model(
      name=name,
      init=init,
      predict=predict,
      loss=self.loss,
      metrics=self.metrics,
      metric_names=self.metric_names,
      convex=convex,
      head=head,
      draws=draws,
      weigh=self.weigh,
    )


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

  PPSGD paper, section 6; the shift and the mean are those of its program, to whose scales the
  experiments' step sizes and clips belong. The prediction is the argmax. Multi-hot labels
  [B, tags] are accepted as well: then the accuracy is that of the top-1 tag.

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


def next_word() -> Objective:
  """The next token at every place of a sentence: logits [B, T, V], tokens y [B, T].

  Token 0 is padding and counts nowhere. An example's loss is the mean cross-entropy of its
  tokens (perplexity is the exponential of its mean), its accuracy the share of tokens that
  are the argmax; both weigh as many tokens as the example has, so that means over
  examples are means over tokens.
  """

  def weigh(y):
    return tf.reduce_sum(_real(y), axis=-1)

  def over_tokens(values, y):
    return tf.reduce_sum(_real(y) * values, axis=-1) / tf.maximum(weigh(y), 1.0)

  def loss(logits, y):
    one_hot = tf.one_hot(y, logits.shape[-1], dtype=tf.float32)
    return over_tokens(-tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), axis=-1), y)

  def metrics(logits, y):
    correct = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.cast(y, tf.int32))
    return Params(accuracy=over_tokens(tf.cast(correct, tf.float32), y))

  return Objective(loss=loss, metrics=metrics, metric_names=('accuracy',), weigh=weigh)


def _real(tokens):
  return tf.cast(tf.not_equal(tokens, PADDING_TOKEN), tf.float32)


OBJECTIVES = {
  'regression': squared_error,
  'binary': hinge,
  'classification': cross_entropy,
  'multilabel': multilabel,
  'next_word': next_word,
}


def _argmax_accuracy(logits, y):
  correct = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.cast(y, tf.int32))
  return Params(accuracy=tf.cast(correct, tf.float32))
