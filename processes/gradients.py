"""Gradients of a batch: of its mean loss, or clipped example by example for DP-SGD."""

import math

import tensorflow as tf

from privacy import norms
from processes import trees

_LEAST_SAVING = 4  # A matrix of fewer times the numbers of its factors is written down itself.


def mean_gradient(model, params, x, y, weights, draws=None):
  """Gradient of the weighted mean loss of a batch, and the weighted sum of its losses.

  `draws` are the uniform numbers of its dropout, [B, model.draws], or None for none.
  """
  flat = tf.nest.flatten(params)
  with tf.GradientTape() as tape:
    tape.watch(flat)
    losses = _losses(model, params, x, y, draws)
    loss_sum = tf.reduce_sum(tf.where(weights > 0.0, weights * losses, 0.0))
    mean_loss = loss_sum / tf.maximum(tf.reduce_sum(weights), 1.0)
  return tf.nest.pack_sequence_as(params, _gradients(tape, mean_loss, flat)), loss_sum


def clipped_gradient_sum(
  model, params, x, y, mask, *, clipping_norm, regularizer_gradient=None, draws=None
):
  """Sum over the chosen examples of their clipped gradients, and of their losses.

  Args:
    model: the model.
    params: parameters.
    x: [B, ...].
    y: [B, ...].
    mask: bool [B], which examples count.
    clipping_norm: float32, L2 bound over all parameters together.
    regularizer_gradient: params -> gradient, added to each example's before clipping.
    draws: uniform numbers of the examples' dropout, [B, model.draws], or None for none.

  Returns:
    (gradients like params, float32 loss). One example more or less moves the first by
    at most `clipping_norm` in L2.
  """
  extra = None if regularizer_gradient is None else regularizer_gradient(params)
  examples = (x, y) if draws is None else (x, y, draws)
  factors, losses = tf.vectorized_map(
    lambda example: _gradients_of_one(model, params, example, extra),
    examples,
    fallback_to_while_loop=False,
  )
  # Two parts are an outer product's factors.
  gradients = [(_OuterProducts if len(parts) == 2 else _Written)(*parts) for parts in factors]
  squares = tf.add_n([gradient.squares() for gradient in gradients])
  lengths = tf.cast(tf.sqrt(squares), tf.float32)
  usable = mask & tf.math.is_finite(lengths)
  scales = norms.clip_factors(clipping_norm, lengths)
  sums = [
    tf.reshape(gradient.scaled_sum(scales, usable), value.shape)
    for gradient, value in zip(gradients, tf.nest.flatten(params), strict=True)
  ]
  loss_sum = tf.reduce_sum(tf.where(mask, losses, 0.0))
  return tf.nest.pack_sequence_as(params, sums), loss_sum


def numbers_per_example(model, params, x, y, *, regularizer: bool) -> int:
  """How many numbers of each example's gradient `clipped_gradient_sum` holds.

  Args:
    model: the model.
    params: parameters.
    x: [B, ...].
    y: [B, ...].
    regularizer: whether a regulariser's gradient is added before clipping.
  """
  if regularizer:
    return trees.num_elements(params)
  of_params = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), params)
  example = [tf.TensorSpec(part.shape[1:], part.dtype) for part in (x, y)]
  if model.draws:
    example.append(tf.TensorSpec([model.draws], tf.float32))
  # A graph for its shapes only: nothing runs it.
  trace = tf.function(
    lambda params, *example: _gradients_of_one(model, params, example, None),
    autograph=False,  # as where they are taken
  )
  factors, _ = trace.get_concrete_function(of_params, *example).structured_outputs
  return sum(math.prod(part.shape) for part in tf.nest.flatten(factors))


def _losses(model, params, x, y, draws):
  # A model without dropout takes no third argument.
  outputs = model.predict(params, x) if draws is None else model.predict(params, x, draws)
  return model.loss(outputs, y)


def _gradients(tape, loss, flat) -> list[tf.Tensor]:
  # The gradient of a gather (an embedding's) comes as rows.
  return [tf.convert_to_tensor(g) for g in tape.gradient(loss, flat, unconnected_gradients='zero')]


def _gradients_of_one(model, params, example, extra):
  """([factors of a parameter's gradient], loss) of one example (x, y) or (x, y, draws)."""
  x, y, *draws = (part[tf.newaxis] for part in example)
  flat = tf.nest.flatten(params)
  with tf.GradientTape() as tape:
    tape.watch(flat)
    loss = _losses(model, params, x, y, draws[0] if draws else None)[0]
  gradients = _gradients(tape, loss, flat)
  if extra is None:
    return [_factors(gradient) for gradient in gradients], loss
  return [(g + e,) for g, e in zip(gradients, tf.nest.flatten(extra), strict=True)], loss


def _factors(gradient: tf.Tensor) -> tuple[tf.Tensor, ...]:
  """(a [M], b [N]) if a gradient is their outer product, and is more to hold; else itself."""
  op = gradient.op
  while op.type in ('Identity', 'Reshape'):
    op = op.inputs[0].op
  if op.type == 'MatMul' and op.get_attr('transpose_a') and not op.get_attr('transpose_b'):
    a, b = op.inputs
    is_outer = a.shape[0] == 1 and a.shape.is_fully_defined() and b.shape.is_fully_defined()
    if is_outer and a.shape[1] * b.shape[1] >= _LEAST_SAVING * (a.shape[1] + b.shape[1]):
      return a[0], b[0]
  return (gradient,)


class _Written:
  """Examples' gradients by one parameter, number by number."""

  def __init__(self, values: tf.Tensor):
    """Args: values: [B, ...]."""
    self._values = values

  def squares(self) -> tf.Tensor:
    """The squared norms, float64 [B]."""
    return norms.sums_of_squares(self._values)

  def scaled_sum(self, scales: tf.Tensor, usable: tf.Tensor) -> tf.Tensor:
    """The sum over usable examples ([B]) of scale ([B]) times gradient."""
    shape = [-1] + [1] * (self._values.shape.rank - 1)
    # where, not a product: a masked row may hold NaN.
    kept = tf.where(tf.reshape(usable, shape), self._values * tf.reshape(scales, shape), 0.0)
    return tf.reduce_sum(kept, axis=0)


class _OuterProducts:
  """Examples' gradients by a dense layer's weights, which need not be written down.

  They are outer products of the layer's input and of the loss's gradient by its output. Their
  norms are products of two norms, and their scaled sum is one matrix product (Goodfellow 2015,
  arXiv 1510.01799). Of sums of several outer products it would not be as safe: where they
  cancel, a norm from their factors is all rounding.
  """

  def __init__(self, inputs: tf.Tensor, outputs: tf.Tensor):
    """Args: inputs: [B, M]. outputs: [B, N]."""
    self._inputs, self._outputs = inputs, outputs

  def squares(self) -> tf.Tensor:
    """The squared norms, float64 [B]."""
    return norms.sums_of_squares(self._inputs) * norms.sums_of_squares(self._outputs)

  def scaled_sum(self, scales: tf.Tensor, usable: tf.Tensor) -> tf.Tensor:
    """As of `_Written`. The bound asks for float32 in full: TF32 would round 0.1 % above it."""
    chosen = usable[:, tf.newaxis]
    return tf.matmul(
      tf.where(chosen, self._inputs, 0.0),
      tf.where(chosen, self._outputs * scales[:, tf.newaxis], 0.0),
      transpose_a=True,
    )
