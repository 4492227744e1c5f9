"""Sizes that are known, or the same, where a batch's varies: work on each example of a batch."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning

BATCH, FEATURES = 7, 4
ROWS = (20, 7, 1, 8, 0, 13)  # Of each client: last batches of 6, none, 1, 1, none and 6.
WEIGHTS = np.linspace(-1, 1, FEATURES * 3).reshape([FEATURES, 3]).astype(np.float32)
CONTEXTS = {'one by one': dict(clients_per_block=1), 'blocks': dict(clients_per_block=3)}


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _rows(x):
  return tf.shape(x)[0]


def _places(x):
  """A number for each element, so that no two may be exchanged."""
  return tf.reshape(tf.cast(tf.range(1, 1 + tf.size(x)), tf.float32), tf.shape(x))


def _clipped_by(norm, x, y):
  """The sum of one layer's clipped gradients, one for each example."""

  def gradient(example):
    row, label = example
    weights = tf.constant(WEIGHTS)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = row[tf.newaxis] @ weights
      loss = tf.nn.sparse_softmax_cross_entropy_with_logits(label[tf.newaxis], logits)
      loss = tf.reduce_sum(loss)
    found = tape.gradient(loss, weights)
    return found / tf.maximum(1.0, norm(found) / 0.3)

  return gradient, (x, y)


def _root_of_sum(gradient):
  return tf.sqrt(tf.reduce_sum(gradient**2))


def _global_norm(gradient):
  return tf.linalg.global_norm([gradient])


def _of_convolution(x, y):
  """A layer of filters: `tf.vectorized_map` has no gradient of it, and makes a loop."""
  filters = tf.constant(np.linspace(-1, 1, 8).reshape([2, 2, 1, 2]).astype(np.float32))

  def gradient(example):
    picture, label = example
    with tf.GradientTape() as tape:
      tape.watch(filters)
      made = tf.nn.conv2d(tf.reshape(picture, [1, 2, 2, 1]), filters, 1, 'SAME')
      loss = tf.reduce_sum(tf.nn.tanh(made)) * tf.cast(label, tf.float32)
    found = tape.gradient(loss, filters)
    return found / tf.maximum(1.0, _global_norm(found) / 0.3)

  return tf.reduce_sum(tf.vectorized_map(gradient, (x, y)), 0)


def _vectorized(norm, x, y):
  return tf.reduce_sum(tf.vectorized_map(*_clipped_by(norm, x, y)), 0)


def _mapped(norm, x, y):
  function, examples = _clipped_by(norm, x, y)
  return tf.reduce_sum(tf.map_fn(function, examples, fn_output_signature=tf.float32), 0)


def _mapped_again(x, y):
  twice = tf.map_fn(lambda row: tf.cumsum(row), x)
  back = tf.map_fn(lambda pair: pair[0] * tf.cast(pair[1], tf.float32), (twice, y), tf.float32)
  return tf.reduce_sum(back * _places(back), 0)


def _mapped_in_reverse(x, y):
  rows = tf.map_fn(lambda i: x[_rows(x) - 1 - i], tf.range(_rows(x)), tf.float32)
  return tf.reduce_sum(rows * _places(rows) * tf.cast(y, tf.float32)[:, tf.newaxis])


def _twice_as_many(x, y):
  """A list of two elements for each row, of which every other one is written."""
  del y
  count = 2 * _rows(x)
  written = tf.TensorArray(tf.float32, count, element_shape=[FEATURES])
  _, written = tf.while_loop(
    lambda i, _: i < _rows(x), lambda i, a: (i + 1, a.write(2 * i, x[i])), (0, written)
  )
  return tf.reduce_sum(written.stack() * _places(written.stack()))


def _split_shape(x, y):
  del y
  count, *rest = tf.split(tf.shape(x), 2)
  flat = tf.reshape(x, tf.concat([count, [2, -1]], 0))
  return tf.reduce_sum(flat * _places(flat), [0, 1]) + tf.cast(rest[0], tf.float32)


def _size_to_be_found(x, y):
  del y
  product = x @ WEIGHTS
  whole = tf.reshape(product, [_rows(x), 1, -1])
  joined = tf.reshape(whole, [tf.shape(whole)[0] * 1, tf.shape(whole)[2]])
  return tf.reduce_sum(joined * _places(joined), 0)


def _of_a_multiple(x, y):
  del y
  halves = tf.reshape(x, [2 * _rows(x), -1])
  again = tf.reshape(halves, [_rows(x), 2, -1])
  return tf.reduce_sum(again * _places(again), [0, 1]) + tf.reduce_sum(halves * _places(halves), 0)


def _gradient_of_joined(x, y):
  """Of values joined behind the rows, of which one is products of matrices."""
  del y
  with tf.GradientTape() as tape:
    tape.watch(x)
    pairs = tf.reshape(x, [-1, 2, 2])
    products = tf.reshape(pairs @ tf.transpose(pairs, [0, 2, 1]), [-1, 4])
    found = tf.concat([x, products, x[:, :1]], 1)
    total = tf.reduce_sum(found * _places(found) ** 2)
  return tf.reduce_sum(tape.gradient(total, x) * _places(x), 0)


def _gradient_of_map(x, y):
  del y
  weights = tf.constant(WEIGHTS)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    rows = tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(weights, row, transpose_a=True)), x)
    total = tf.reduce_sum(rows * _places(rows))
  return tf.reduce_sum(tape.gradient(total, weights), 1)


def _gradient_of_scan(x, y):
  """Of each row's part in all totals, through a loop that carries one."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    totals = tf.scan(lambda total, row: 0.5 * total + tf.sin(row), x, tf.zeros([FEATURES]))
    total = tf.reduce_sum(totals * _places(totals)) * tf.cast(tf.reduce_sum(y), tf.float32)
  return tf.reduce_sum(tape.gradient(total, x) * _places(x), 0)


COMPILED = dict(
  convolution=_of_convolution,
  gradient_of_joined=_gradient_of_joined,
  gradient_of_map=_gradient_of_map,
  gradient_of_scan=_gradient_of_scan,
  map_fn=functools.partial(_mapped, _root_of_sum),
  map_fn_in_reverse=_mapped_in_reverse,
  map_fn_of_map_fn=_mapped_again,
  multiple=_of_a_multiple,
  size_to_be_found=_size_to_be_found,
  split_shape=_split_shape,
  twice_as_many=_twice_as_many,
  vectorized_map=functools.partial(_vectorized, _root_of_sum),
  vectorized_map_global_norm=functools.partial(_vectorized, _global_norm),
)


def _reshaped_without(x, y):
  """A batch whose first row is cut off."""
  del y
  rest = x[1:]
  found = tf.reshape(rest @ WEIGHTS, [_rows(rest), 1, -1])
  return tf.reduce_sum(found * _places(found), [0, 1])


def _every_other(x, y):
  del y
  some = x[::2]
  found = tf.reshape(some @ WEIGHTS, [_rows(some), 1, -1])
  return tf.reduce_sum(found * _places(found), [0, 1])


def _by_another_number(x, y):
  """As many rows as another value has: what is to be found varies too."""
  other = tf.concat([y, y], 0)
  found = tf.reshape(x, [_rows(other), -1])
  return tf.reduce_sum(found * _places(found))


def _beside_a_single_row(x, y):
  del y
  last = x[-1:]
  both = last + x
  found = tf.reshape(both, [_rows(both), 1, -1])
  of_last = tf.reshape(last, [_rows(last), 2, -1])
  return tf.reduce_sum(found * _places(found)) + tf.reduce_sum(of_last * _places(of_last))


def _map_of_some(x, y):
  del y
  rows = tf.map_fn(lambda row: row * 2.0, tf.boolean_mask(x, x[:, 0] > 0))
  return tf.reduce_sum(rows * _places(rows))


def _map_of_more(x, y):
  del y
  rows = tf.map_fn(lambda row: row * 2.0, tf.concat([x, x[:1], x], 0))
  return tf.reduce_sum(rows * _places(rows))


def _gradient_of_map_of_some(x, y):
  """Of as many turns as a mask lets rows through."""
  del y
  with tf.GradientTape() as tape:
    tape.watch(x)
    rows = tf.map_fn(lambda row: row**2, tf.boolean_mask(x, x[:, 0] > 0))
    total = tf.reduce_sum(rows * _places(rows))
  return tf.reduce_sum(tape.gradient(total, x) * _places(x), 0)


def _convolved_along_rows(x, y):
  """An axis behind the first that varies, which a convolution's transpose makes longer."""
  del y
  longer = tf.raw_ops.Conv2DBackpropInput(
    input_sizes=tf.stack([1, 2 * _rows(x), 1, FEATURES]),
    filter=np.linspace(-1, 1, 3 * FEATURES).reshape([3, 1, FEATURES, 1]).astype(np.float32),
    out_backprop=x[tf.newaxis, :, tf.newaxis, :1],
    strides=[1, 2, 1, 1],
    padding='SAME',
  )
  rows = tf.map_fn(lambda row: row * 2.0, longer[0, :, 0])
  return tf.reduce_sum(rows * _places(rows))


def _products_of_rows(x, y):
  """As many numbers as rows times rows."""
  del y
  flat = tf.reshape(x @ tf.transpose(x), [-1])
  square = tf.reshape(flat, [_rows(x), -1])
  flat = tf.reshape(x[:, tf.newaxis] * x, [-1, FEATURES])
  of_all = tf.reshape(flat, [_rows(x), -1])
  return tf.reduce_sum(square * _places(square)) + tf.reduce_sum(of_all * _places(of_all))


def _one_row_in_many(x, y):
  """A last row that is cut into as many pieces as there are rows."""
  del y
  last = tf.tile(x[-1:], [1, math.factorial(BATCH)])
  pieces = tf.reshape(last, [_rows(x), -1])
  return tf.reduce_sum(pieces * _places(pieces)) / math.factorial(BATCH) ** 2


def _one_more_than_rows(x, y):
  """A list that gets longer than the batch."""
  del y
  array = tf.TensorArray(tf.float32, _rows(x), dynamic_size=True, element_shape=[FEATURES])
  rows = array.unstack(x).write(_rows(x), x[0]).stack()
  return tf.reduce_sum(rows * _places(rows))


def _scanned(x, y):
  del y
  rows = tf.scan(lambda total, row: total + row, x, initializer=tf.zeros([FEATURES]))
  return tf.reduce_sum(rows * _places(rows))


def _folded(x, y):
  del y
  return tf.foldl(lambda total, row: total * 0.5 + row, x, initializer=tf.zeros([FEATURES]))


def _gradient_of_reshape(x, y):
  del y
  with tf.GradientTape() as tape:
    tape.watch(x)
    found = tf.reshape(x @ WEIGHTS, [_rows(x), 1, -1])
    total = tf.reduce_sum(found * _places(found) ** 2)
  return tf.reduce_sum(tape.gradient(total, x) * _places(x), 0)


def _gradient_of_more(x, y):
  """Of a batch that is joined with some of its rows."""
  del y
  with tf.GradientTape() as tape:
    tape.watch(x)
    found = tf.concat([x[1:], x, x[:1]], 0)
    total = tf.reduce_sum(found * _places(found) ** 2)
  return tf.reduce_sum(tape.gradient(total, x) * _places(x), 0)


def _as_written(x, y):
  """A list as long as the batch, of which the first row is not written."""
  del y
  array = tf.TensorArray(tf.float32, _rows(x), element_shape=[FEATURES])
  _, array = tf.while_loop(
    lambda i, _: i < _rows(x),
    lambda i, a: (i + 1, a.write(i, x[i])),
    (tf.minimum(_rows(x), 1), array),
  )
  return tf.reduce_sum(array.stack() * _places(x))


def _of_all(x, y):
  """Where a list has room for the largest batch: sizes of all are asked."""
  del y
  rows = tf.map_fn(lambda row: row, x)
  return tf.cast(tf.size(rows), tf.float32) + tf.reduce_mean(tf.pad(rows, [[0, 1], [0, 0]]))


OTHERS = dict(
  as_written=_as_written,
  beside_a_single_row=_beside_a_single_row,
  by_another_number=_by_another_number,
  convolved_along_rows=_convolved_along_rows,
  every_other=_every_other,
  folded=_folded,
  gradient_of_map_of_some=_gradient_of_map_of_some,
  gradient_of_more=_gradient_of_more,
  gradient_of_reshape=_gradient_of_reshape,
  map_of_more=_map_of_more,
  map_of_some=_map_of_some,
  of_all=_of_all,
  one_more_than_rows=_one_more_than_rows,
  one_row_in_many=_one_row_in_many,
  products_of_rows=_products_of_rows,
  reshaped_without=_reshaped_without,
  scanned=_scanned,
)


def _compared(native, work, settings):
  """What a function of batches gives natively and compiled, and the explanation."""
  rng = np.random.default_rng(0)
  data = [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.normal(size=[rows, FEATURES]).astype(np.float32),
        rng.integers(0, 3, rows).astype(np.int32),
      )
    ).batch(BATCH)
    for rows in ROWS
  ]
  type_ = tff.SequenceType(
    (tff.TensorType(np.float32, (None, FEATURES)), tff.TensorType(np.int32, (None,)))
  )

  def of_client(batches):
    def add(total, batch):
      found = work(*batch)
      return total * 2.0 + tf.reduce_sum(found * _places(found))

    return batches.reduce(0.0, add)

  return learning.both(native, of_client, type_, data, **settings)


@pytest.mark.slow
@pytest.mark.exhaustive(but=[f'{name}-one by one' for name in COMPILED])
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize('name', COMPILED)
def test_work_on_each_example_is_compiled(native, name, settings):
  expected, found, explanation = _compared(native, COMPILED[name], settings)
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-4)
  assert [part.how for part in explanation.parts] == ['compiled'], explanation


@pytest.mark.slow
@pytest.mark.exhaustive(but=[f'{name}-one by one' for name in OTHERS])
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize('name', OTHERS)
def test_sizes_that_are_others_are_not_taken_for_a_batchs(native, name, settings):
  expected, found, _ = _compared(native, OTHERS[name], settings)
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-4)
