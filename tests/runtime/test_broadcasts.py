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
  first_backwards=lambda x: x[0::-1] * x,
  to_a_shape=lambda x: tf.broadcast_to(x[-1:], [tf.shape(x)[0], 2]) * x,
  largest_to_a_shape=lambda x: tf.broadcast_to(_largest(x), [tf.shape(x)[0], 2]) * x,
  largest_to_its_shape=lambda x: tf.broadcast_to(_largest(x), tf.shape(x)) * x,
  to_three=lambda x: tf.broadcast_to(x[-1:], [3, tf.shape(x)[0], 2])[0],
  no_nan=lambda x: tf.math.divide_no_nan(x, tf.boolean_mask(x, x[:, 0] >= tf.reduce_max(x[:, 0]))),
  of_split_columns=lambda x: tf.split(x, 2, axis=1)[0] * x[-1:],
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


_SECOND = dict(
  last=lambda x: x**2 * x[-1:],
  largest=lambda x: x**2 * _largest(x),
  cubes=lambda x: (x - _largest(x)) ** 3,
)


def _with_second_gradients(function):
  def op(x, y):
    (gradient,) = tf.gradients(tf.reduce_sum(function(x)), x)
    (second,) = tf.gradients(tf.reduce_sum(tf.sin(gradient)), x)
    return second * tf.cast(1 + y, x.dtype)[:, None]

  return op


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


@pytest.mark.exhaustive(but=['one by one'])
@pytest.mark.slow
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_a_row_beside_a_batch(native, settings):
  ops = {name: _with_gradients(function) for name, function in _OF_ROWS.items()}
  data = [_rows(7), _rows(6), _rows(11), _rows(4)]
  ops |= {f'second {name}': _with_second_gradients(function) for name, function in _SECOND.items()}
  explanation = partial_ops.compare(native, ops, data, **settings)
  assert explanation.is_compiled, explanation


# Of rows [n, 2] and [m, 2], of which one may be a single one.
_OF_PAIRS = dict(
  where=lambda a, b: tf.where(b > 0, a, b),
  no_nan=lambda a, b: tf.math.divide_no_nan(a, b),
  product=lambda a, b: a * b,
  difference=lambda a, b: (a - b) ** 2,
)


def _of_pairs(numbers):
  rows = np.arange(1, 9, dtype=np.float32).reshape(4, 2)

  numbers = tf.data.Dataset.from_tensor_slices(numbers)
  return numbers.map(
    lambda pair: (tf.constant(rows)[: pair[0]], tf.constant(rows)[: pair[1]] - 4.5)
  )


def _of_every_pair(pairs):
  def total(sums, pair):
    values = [function(*pair) for function in _OF_PAIRS.values()]
    slopes = [tf.gradients(tf.reduce_sum(value**2), list(pair)) for value in values]
    parts = [*values, *(x * slope for of in slopes for x, slope in zip(pair, of, strict=True))]
    return sums + tf.stack([tf.reduce_sum(part) for part in parts])

  return pairs.reduce(tf.zeros([3 * len(_OF_PAIRS)]), total)


@pytest.mark.slow
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_elements_of_several_sizes(native, settings):
  rows = tff.TensorType(np.float32, [None, 2])
  data = [_of_pairs(n) for n in ([(1, 4), (2, 2)], [(4, 1), (1, 1), (1, 2)], [(3, 3)])]
  type_ = tff.SequenceType((rows, rows))
  expected, found, explanation = learning.both(native, _of_every_pair, type_, data, **settings)
  assert explanation.is_compiled, explanation
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_products_of_matrices_that_are_broadcast_are_interpreted(native):
  def products(s):
    def add(total, batch):
      x = batch[0]
      of_each = tf.matmul(x[:, None, :], x[-1:, :, None])
      return total + tf.reduce_sum(of_each) + tf.reduce_sum(tf.einsum('...d,...d->...', x, x[-1:]))

    return s.reduce(0.0, add)

  type_ = tff.SequenceType(tff.types.tensorflow_to_type(_rows(1).element_spec))
  expected, found, explanation = learning.both(native, products, type_, [_rows(7), _rows(6)])
  assert not explanation.is_compiled
  np.testing.assert_allclose(found, expected, rtol=1e-5)


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


@pytest.mark.parametrize(
  'product',
  [
    lambda x, w: x @ w,
    lambda x, w: tf.einsum('abc,cd->abd', x, w),
    lambda x, w: tf.einsum('abc->acb', x),
    lambda x, w: tf.tensordot(x, w, 1),
    lambda x, w: tf.reduce_sum(tf.reshape(x, [tf.shape(x)[0], 3, -1]), [0, 2]),
    lambda x, w: tf.reduce_sum(tf.reshape(x, [3, tf.shape(x)[0], tf.shape(x)[1]]), [1, 2]),
    lambda x, w: tf.reshape(x, [tf.shape(x)[0], -1, 1, 3]),
  ],
  ids=['matmul', 'einsum', 'transposed', 'tensordot', 'moved behind', 'moved before', 'in order'],
)
def test_batches_that_vary_in_rows_and_lengths(native, product):
  """Padded texts: XLA's own products and reshapes take their lengths for others."""
  table = np.random.default_rng(9).normal(size=(6, 3)).astype(np.float32)
  weights = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)

  def texts(*shapes):
    rows = [[(i + j) % 5 + 1 for j in range(length)] for n, length in shapes for i in range(n)]
    batches = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows, tf.int64))
    return batches.batch(max(n for n, _ in shapes)).map(lambda row: row.to_tensor())

  def of_client(data):
    def add(total, x):
      found = product(tf.gather(table, x), weights)
      return total + tf.stack([tf.reduce_sum(found), tf.cast(tf.size(found), tf.float32)])

    return data.reduce(tf.zeros([2]), add)

  type_ = tff.SequenceType(tff.TensorType(np.int64, [None, None]))
  data = [texts((2, 2), (1, 3)), texts((4, 2), (3, 3))]
  expected, found, _ = learning.both(native, of_client, type_, data)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
