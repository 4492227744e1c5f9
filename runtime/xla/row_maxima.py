"""Largest numbers of rows, and the softmaxes that begin with them.

XLA's loop on a CPU goes through a row number by number, and asks of each whether it is NaN: of
10,000 words' scores the largest takes longer than their exponentials. Of a row's quarters, which
may overlap, the larger numbers are taken side by side instead, and so again of what is left: two
to five times as fast. XLA's softmaxes have such a loop inside, and are written out for its sake.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

_SHORT_ROW = 16  # XLA's own loop is as good.
_PARTS = 4

OPS = (
  'LogSoftmax',
  'Max',
  'Min',
  'Softmax',
  'SoftmaxCrossEntropyWithLogits',
  'SparseSoftmaxCrossEntropyWithLogits',
)
_DTYPES = (tf.float32, tf.float64)


def taken(op: str, inputs: Sequence[tf.Tensor], *, keep_dims: bool) -> list[tf.Tensor] | None:
  """What an op gives, with the largest of each row taken well; None where XLA does so.

  Args:
    op: one of `OPS`.
    inputs: its own; rows are along the last axis of the first.
    keep_dims: whether a maximum keeps the axis along which it is taken.
  """
  values = inputs[0]
  # A size that is not known may depend on data, and get lost in what is written here.
  if not all(i.shape.is_fully_defined() for i in inputs):
    return None
  if values.dtype not in _DTYPES or not values.shape.rank or values.shape[-1] < _SHORT_ROW:
    return None
  if op in ('Max', 'Min'):
    axes = tf.get_static_value(inputs[1])
    if axes is None or {int(a) % values.shape.rank for a in axes.reshape(-1)} != {
      values.shape.rank - 1
    }:
      return None
    extreme = _extreme(values, tf.maximum if op == 'Max' else tf.minimum)
    return [extreme if keep_dims else tf.squeeze(extreme, -1)]
  shifted = values - _extreme(values, tf.maximum)
  powers = tf.exp(shifted)
  total = tf.reduce_sum(powers, axis=-1, keepdims=True)
  if op == 'Softmax':
    return [powers / total]
  logarithms = shifted - tf.math.log(total)
  if op == 'LogSoftmax':
    return [logarithms]
  labels = inputs[1]
  if op == 'SparseSoftmaxCrossEntropyWithLogits':
    labels = _one_hot(labels, values.shape[-1], values.dtype)
  # 0 times an infinite logarithm is 0.
  terms = tf.where(tf.equal(labels, 0), tf.zeros_like(logarithms), -labels * logarithms)
  return [tf.reduce_sum(terms, axis=-1), powers / total - labels]


def _extreme(values: tf.Tensor, of_two: Callable[..., tf.Tensor]) -> tf.Tensor:
  """The largest or smallest of each row, [..., 1]."""
  while values.shape[-1] >= _SHORT_ROW:
    width = values.shape[-1]
    size = -(-width // _PARTS)
    begins = [min(part * size, width - size) for part in range(_PARTS)]
    values = functools.reduce(of_two, [values[..., begin : begin + size] for begin in begins])
  reduce = tf.reduce_max if of_two is tf.maximum else tf.reduce_min
  return reduce(values, axis=-1, keepdims=True)


def _one_hot(labels: tf.Tensor, depth: int, dtype: tf.DType) -> tf.Tensor:
  """1 at each label; a row of NaN for one that is none, as in XLA."""
  is_label = (labels >= 0) & (labels < depth)
  unless = tf.where(is_label, tf.zeros([], dtype), tf.constant(float('nan'), dtype))
  return tf.one_hot(labels, depth, dtype=dtype) + unless[..., tf.newaxis]
