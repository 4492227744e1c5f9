"""Values cut of a batch, of one row beside many: TensorFlow repeats it, and sums its gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import broadcasts
from tests.runtime import learning, partial_ops

CONTEXTS = {'one by one': dict(clients_per_block=1), 'blocks': dict(clients_per_block=2)}


def _largest(x):
  """The row whose first number is largest, [1, 2]."""
  return tf.boolean_mask(x, tf.equal(x[:, 0], tf.reduce_max(x[:, 0])))


# Of rows [n, 2].
_OF_ROWS = dict(
  last=lambda x: (x - x[-1:]) ** 2,
  second=lambda x: (x - x[1:2]) ** 2,
  differences=lambda x: (x[1:] - x[:-1]) ** 2,
  largest=lambda x: x * _largest(x),
  all_of_a_mask=lambda x: (x * tf.boolean_mask(x, x[:, 0] > 0)) ** 2,
  selected=lambda x: tf.where(x > 0.5, x[-1:], x) ** 2,
  selects=lambda x: tf.where(x[-1:] > 0.5, x, x**2),
  compared=lambda x: tf.cast(x > x[-2:-1], x.dtype) * x**2,
  maximum=lambda x: tf.maximum(x, x[-1:]) ** 2,
  cross_entropy=lambda x: (
    tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(x), x) * x[-1:, 0]
  ),
  shape_of_a_slice=lambda x: tf.ones(tf.shape(x[-1:])) * x[-1:] * x,
  kept=lambda x: x * tf.reduce_sum(x[-1:], axis=1, keepdims=True),
)


def _with_gradients(function):
  def op(x, y):
    value = function(x)
    (gradient,) = tf.gradients(tf.reduce_sum(value * tf.cast(value > 0.01, x.dtype)), x)
    return [value, gradient * tf.cast(1 + y, x.dtype)[:, None]]

  return op


def _rows(number):
  x = (np.arange(1, 2 * number + 1).reshape(number, 2) / 10).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x, np.arange(number, dtype=np.int32) % 3)).batch(4)


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


@pytest.mark.slow
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_a_row_beside_a_batch(native, settings):
  ops = {name: _with_gradients(function) for name, function in _OF_ROWS.items()}
  data = [_rows(7), _rows(6), _rows(11), _rows(4)]
  explanation = partial_ops.compare(native, ops, data, **settings)
  assert explanation.is_compiled, explanation


# Of four numbers.
_OF_NUMBERS = dict(
  times=lambda x: tf.boolean_mask(x, tf.equal(x, 5)) * x,
  selected=lambda x: tf.where(x > 2, tf.boolean_mask(x, tf.equal(x, 5)), x),
  broadcast=lambda x: tf.broadcast_to(tf.boolean_mask(x, tf.equal(x, 5)), [4]) * x,
  all_of_them=lambda x: tf.boolean_mask(x, x > 0) * x,
)


def _numbers(x):
  values = [function(x) for function in _OF_NUMBERS.values()]
  return [(value, tf.gradients(tf.reduce_sum(value**2), x)[0]) for value in values]


@pytest.mark.parametrize('is_noted', [True, False], ids=['ours', 'control'])
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_an_element_of_a_mask_beside_a_fixed_size(native, settings, is_noted, monkeypatch):
  if not is_noted:
    monkeypatch.setattr(broadcasts, '_is_cutting', lambda *_: False)
  data = [np.array(values, np.float32) for values in ([1, 2, 5, 3], [5, 2, 1, 4])]
  type_ = tff.TensorType(np.float32, [4])
  expected, found, explanation = learning.both(native, _numbers, type_, data, **settings)
  assert explanation.is_compiled, explanation
  pairs = zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True)
  assert all(np.allclose(ours, theirs, rtol=1e-6) for theirs, ours in pairs) == is_noted
