"""Results that are as many as data say, of which XLA by itself makes too few, without a word."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning, partial_ops


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _rows(number, seed=1, batch=4, **settings):
  rng = np.random.default_rng(seed)
  x = rng.uniform(2, 10, (number, 2)).astype(np.float32)
  y = rng.integers(1, 9, number).astype(np.int32)
  return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, **settings)


def _sums(x):
  """Two rows that are sums over a batch."""
  total = tf.reduce_sum(x, 0, keepdims=True)
  return tf.concat([total, 2 * total], 0)


def _count(x):
  return tf.shape(x)[0]


def _in_order(value):
  """Numbers of which no two count the same."""
  places = tf.range(1.0, 1.0 + tf.cast(tf.size(value), tf.float32))
  return value * tf.reshape(places, tf.shape(value))


def _gradient(function):
  return lambda x, y: tf.gradients(tf.reduce_sum(_in_order(function(x, y))), x)[0]


def _mask(x, y):
  return tf.boolean_mask(x, y > 4)


OPS = dict(
  mask=_mask,
  mask_of_sums=lambda x, y: tf.boolean_mask(_sums(x), _sums(x)[:, 0] > 30),
  mask_of_one_sum=lambda x, y: tf.boolean_mask(_sums(x)[:1], _sums(x)[:1, 0] > 22),
  mask_of_none=lambda x, y: tf.where(tf.boolean_mask(x[:1], [False]) > 0, 1.0, 0.25),
  places=lambda x, y: tf.where(x > 5),
  places_of_numbers=lambda x, y: tf.where(y % 3),
  range_from_a_size=lambda x, y: tf.range(_count(x), 10),
  range_down_to_a_size=lambda x, y: tf.range(9, _count(x), -1),
  range_from_a_fraction=lambda x, y: tf.range(0.5 + tf.cast(_count(x), tf.float32), 9.0),
  slice_to_a_size=lambda x, y: x[: 5 - _count(x)],
  slice_to_before_the_start=lambda x, y: x[: 2 - _count(x)],
  slice_from_a_size=lambda x, y: x[_count(x) // 2 :],
  slice_from_data=lambda x, y: x[tf.reduce_min(y) - 3 :],
  slice_to_data=lambda x, y: x[: tf.reduce_max(y) - 6],
  row_of_a_size=lambda x, y: x[_count(x) // 2],
  slices_beyond_the_end=lambda x, y: [x[2:], x[2:3], x[:-2], x[1:-2], tf.transpose(x)[:, 3:]],
  slice_of_rows=lambda x, y: tf.slice(x, [1, 0], [_count(x) - 1, 1]),
  slice_of_all_rows=lambda x, y: tf.slice(x, [1, 0], [-1, -1]),
  slice_of_data=lambda x, y: tf.slice(x, [_count(x) // 2, 0], [tf.reduce_min(y) % 2, 2]),
  slice_of_two=lambda x, y: tf.slice(tf.concat([x, x], 0), [_count(x), 0], [1, 2]),
)
GRADIENTS = dict(
  slices_beyond_the_end=lambda x, y: tf.concat([x[2:], x[2:3], x[:-2], x[1:-2]], 0) ** 2,
  slice_to_a_size=lambda x, y: x[: 5 - _count(x)] ** 2,
  slice_from_a_size=lambda x, y: x[_count(x) // 2 :] ** 2,
  slice_from_data=lambda x, y: x[tf.reduce_min(y) - 3 :] ** 2,
  slice_by_two=lambda x, y: tf.transpose(x)[:, ::-2] ** 2,
  last_row=lambda x, y: x[-1] ** 2,
  last_of_each=lambda x, y: tf.transpose(x)[:, -1] ** 2,
  row_of_a_size=lambda x, y: x[_count(x) // 2] ** 2,
  padded=lambda x, y: tf.pad(x, [[0, 6 - _count(x)], [0, 0]]) ** 2,
  joined=lambda x, y: tf.concat([x, 2 * x, tf.zeros([6 - _count(x), 2])], 0) ** 2,
  joined_columns=lambda x, y: tf.concat([tf.transpose(x), 2 * tf.transpose(x)], 1) ** 2,
  sorted=lambda x, y: tf.sort(x, 0),
  largest=lambda x, y: tf.math.top_k(x, 2).values,
  median=lambda x, y: tf.sort(x, 0)[_count(x) // 2 :],
  mask=lambda x, y: _mask(x, y) ** 2,
  mask_and_all=lambda x, y: tf.reduce_mean(tf.concat([_mask(x, y), x], 0) ** 2, 0),
  shares=lambda x, y: tf.nn.softmax(_mask(x, y), 0),
)
AFTER = dict(
  reversed=lambda v: tf.reverse(v, [0]),
  sliced=lambda v: v[::-1],
  sums=lambda v: tf.cumsum(v, 0, reverse=True),
  flat=lambda v: tf.reshape(tf.transpose(v), [-1]),
  last=lambda v: tf.concat([v, v], 0)[-1:],
  variance=lambda v: tf.math.reduce_variance(tf.concat([v, tf.ones_like(v[:1])], 0), 0),
  sorted=lambda v: tf.sort(v, 0, 'DESCENDING'),
  rolled=lambda v: tf.roll(v, 1, 0),
  shares=lambda v: tf.nn.softmax(v, 0),
  broadcast=lambda v: v + tf.zeros([1] * v.shape.rank),
  upper_half=lambda v: tf.sort(v, 0)[_count(v) // 2 :],
  again=lambda v: tf.boolean_mask(v, tf.reshape(v, [_count(v), -1])[:, 0] > 3.5),
  outer=lambda v: tf.reshape(v, [-1, 1]) * tf.reshape(v, [1, -1]),
)
SOURCES = dict(
  mask=_mask,
  unique=lambda x, y: tf.cast(tf.unique(y).y, tf.float32),
  part=lambda x, y: tf.dynamic_partition(x, y % 2, 2)[1],
)
REFUSED = dict(
  range=lambda x, y: tf.range(tf.reduce_max(y)),
  range_of_sums=lambda x, y: tf.range(0.0, tf.reduce_sum(x)),
  range_by_a_size=lambda x, y: tf.range(0, 10, _count(x)),
  range_down_by_two=lambda x, y: tf.range(9, _count(x), -2),
  sequence_mask=lambda x, y: tf.sequence_mask(y),
  segments=lambda x, y: tf.math.unsorted_segment_sum(x, y, tf.reduce_max(y) + 1),
  scattered=lambda x, y: tf.scatter_nd(y[:, None], x[:, 0], [tf.reduce_max(y) + 1]),
  largest=lambda x, y: tf.math.top_k(tf.range(9), tf.reduce_min(y)).values,
  drawn=lambda x, y: tf.random.stateless_uniform([tf.reduce_max(y)], [1, 2]),
  dense=lambda x, y: tf.sparse.to_dense(
    tf.sparse.SparseTensor([[0]], [1.0], tf.cast([tf.reduce_max(y)], tf.int64))
  ),
  in_a_branch=lambda x, y: tf.cond(
    y[0] > 0, lambda: tf.zeros([tf.reduce_max(y)]), lambda: tf.zeros([1])
  ),
)


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ops_on_partial_batches(native, block):
  gradients = {f'gradient of {name}': _gradient(op) for name, op in GRADIENTS.items()}
  data = [_rows(7), _rows(6, 2), _rows(5, 3)]
  explanation = partial_ops.compare(native, {**OPS, **gradients}, data, clients_per_block=block)
  assert explanation.is_compiled, explanation


def _after():
  sources = SOURCES.items()
  return {
    f'{a} of {b}': lambda x, y, op=op, of=of: op(of(x, y))
    for b, of in sources
    for a, op in AFTER.items()
  }


@pytest.mark.exhaustive(but=['1'])
@pytest.mark.slow
@pytest.mark.parametrize('batch', [1, 4])
def test_what_follows_on_full_batches(native, batch):
  """There no size varied before: `tf.reverse` of such values ended the process."""
  data = [_rows(8, seed, batch, drop_remainder=True) for seed in (1, 2)]
  explanation = partial_ops.compare(native, _after(), data)
  assert explanation.is_compiled, explanation


@pytest.mark.slow
def test_what_follows_without_a_data_set(native):
  ops = {**_after(), 'mask of sums': OPS['mask_of_sums']}

  def numbers(values):
    flat = tf.reshape(tf.cast(values, tf.float32), [-1])
    places = tf.cast(tf.range(1, 1 + tf.size(flat)), tf.float32)
    return tf.stack([tf.reduce_sum(flat * places), tf.cast(tf.size(flat), tf.float32)])

  type_ = tff.to_type([(np.float32, (4, 2)), (np.int32, (4,))])
  data = [tuple(part.numpy() for part in next(iter(_rows(4, seed)))) for seed in (1, 2)]
  expected, found, explanation = learning.both(
    native,
    lambda pair: {name: numbers(op(pair[0], pair[1])) for name, op in ops.items()},
    type_,
    data,
  )
  assert explanation.is_compiled, explanation
  for theirs, ours in zip(expected, found, strict=True):
    for name in ops:
      np.testing.assert_allclose(ours[name], theirs[name], 2e-4, 2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('name', REFUSED)
def test_sizes_that_depend_on_data_are_refused(native, name):
  explanation = partial_ops.compare(native, {name: REFUSED[name]}, [_rows(7), _rows(6, 2)])
  assert not explanation.is_compiled
  assert 'depend on data' in str(explanation) or 'drop_remainder' in str(explanation)
