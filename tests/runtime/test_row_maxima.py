"""The largest numbers of rows, and softmaxes, are TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import row_maxima

WIDTHS = (16, 17, 63, 64, 90, 1000)


def _rows(width, dtype=np.float32, count=5):
  return np.random.default_rng(width).normal(size=(count, width)).astype(dtype)


def _taken(op, *inputs, keep_dims=False):
  return row_maxima.taken(op, [tf.constant(i) for i in inputs], keep_dims=keep_dims)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('width', WIDTHS)
def test_largest_and_smallest_wherever_they_stand(width, dtype):
  """In each column once."""
  rows = _rows(width, dtype, count=width)
  np.fill_diagonal(rows, 100)
  (largest,) = _taken('Max', rows, np.int32(-1))
  np.testing.assert_array_equal(largest, np.full(width, 100, dtype))
  (smallest,) = _taken('Min', -rows, np.int32([1]), keep_dims=True)
  np.testing.assert_array_equal(smallest, np.full((width, 1), -100, dtype))


@pytest.mark.parametrize('place', [0, 3, 40, 88, 89])
def test_nan_and_infinite_numbers(place):
  rows = _rows(90)
  rows[0, place], rows[1, place], rows[2] = np.nan, np.inf, -np.inf
  (largest,) = _taken('Max', rows, np.int32(1))
  np.testing.assert_array_equal(largest, np.max(rows, axis=1))
  assert np.isnan(largest[0]) and largest[1] == np.inf and largest[2] == -np.inf


@pytest.mark.parametrize('op', ['Softmax', 'LogSoftmax'])
@pytest.mark.parametrize('width', WIDTHS)
def test_softmaxes(op, width):
  rows = 30 * _rows(width).reshape(5, 1, width)
  expected = getattr(tf.raw_ops, op)(logits=rows)
  (found,) = _taken(op, rows)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('width', WIDTHS)
def test_cross_entropies_and_their_gradients(width):
  rows, labels = 30 * _rows(width), np.int32([0, 1, width // 2, width - 2, width - 1])
  shares = np.asarray(tf.nn.softmax(_rows(width, count=6)[1:]))
  for op, label in (
    ('Sparse', labels),
    ('', shares),
    ('', np.eye(width, dtype=np.float32)[labels]),
  ):
    name = f'{op}SoftmaxCrossEntropyWithLogits'
    expected = getattr(tf.raw_ops, name)(features=rows, labels=label)
    found = _taken(name, rows, label)
    assert len(found) == len(expected) == 2
    for own, other in zip(found, expected, strict=True):
      np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)


def test_a_probability_of_zero_costs_nothing_for_a_label_that_is_none():
  rows = np.full((1, 20), -np.inf, np.float32)
  rows[0, 3] = 0
  loss, slopes = _taken('SparseSoftmaxCrossEntropyWithLogits', rows, np.int32([3]))
  assert loss[0] == 0 and not np.any(slopes)


def test_labels_out_of_range_give_nan():
  loss, slopes = _taken(
    'SparseSoftmaxCrossEntropyWithLogits', _rows(20), np.int32([0, 20, -1, 5, 6])
  )
  np.testing.assert_array_equal(np.isnan(loss), [False, True, True, False, False])
  np.testing.assert_array_equal(np.isnan(slopes).all(axis=1), np.isnan(loss))


def test_what_is_left_to_xla():
  assert _taken('Max', _rows(15), np.int32(-1)) is None  # A short row.
  assert _taken('Max', _rows(20), np.int32(0)) is None
  assert _taken('Max', _rows(20), np.int32([0, 1])) is None
  assert _taken('Max', _rows(20).astype(np.int32), np.int32(-1)) is None
  assert _taken('Softmax', _rows(20).astype(np.float16)) is None
  with tf.Graph().as_default():
    for shape in ([3, None], [None, 20]):
      unknown = tf.compat.v1.placeholder(tf.float32, shape)
      assert row_maxima.taken('Softmax', [unknown], keep_dims=False) is None


def _of_batch(x):
  """Something of every op, and gradients, by whatever writes them anew."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    labels = tf.argmax(tf.reverse(x, [1]), axis=1)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
    losses += tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(2 * x), x)
    losses += tf.nn.log_softmax(x)[:, 3] + tf.reduce_max(x, axis=1) - tf.reduce_min(x, axis=-1)
    total = tf.reduce_sum(losses)
  return losses, tape.gradient(total, x)


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_sequence, width', [(False, 90), (True, 90), (True, 10)], ids=['arrays', 'sequences', 'short']
)
def test_in_a_program(native, monkeypatch, is_sequence, width):
  taken = []
  original = row_maxima.taken

  def counted(op, inputs, *, keep_dims):
    result = original(op, inputs, keep_dims=keep_dims)
    taken.append(op if result else None)
    return result

  monkeypatch.setattr(row_maxima, 'taken', counted)
  type_ = tff.TensorType(np.float32, [4, width])

  if is_sequence:
    type_ = tff.SequenceType(type_)

    @tff.tensorflow.computation(type_)
    def work(batches):
      def add(totals, batch):
        losses, slopes = _of_batch(batch)
        return totals[0] + losses, totals[1] + slopes

      return batches.reduce((tf.zeros([4]), tf.zeros([4, width])), add)
  else:
    work = tff.tensorflow.computation(_of_batch, type_)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def program(values):
    return tff.federated_map(work, values)

  values = [30 * _rows(width, count=4), _rows(width, count=4)]
  if is_sequence:
    values = [[value, value[::-1]] for value in values]
  with native.context:
    expected = tf.nest.flatten([list(one) for one in program(values)])
  for blocks in (1, 2):
    with runtime.XlaContext(clients_per_block=blocks) as context:
      found = tf.nest.flatten([list(one) for one in program(values)])
    assert context.lowering(program).is_possible
    for own, other in zip(found, expected, strict=True):
      np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
  assert ({*row_maxima.OPS} <= {*taken}) == (width > 16)


@pytest.mark.slow
def test_rows_of_which_data_say_how_many_there_are(native):
  """Such a size may get lost: those rows are left to XLA's own softmaxes."""
  types = [tff.TensorType(np.float32, [20, 32]), tff.TensorType(np.float32, [20])]

  @tff.tensorflow.computation(types)
  def work(x, chosen):
    rows = tf.boolean_mask(x, chosen > 0)
    labels = tf.argmax(tf.reverse(rows, [1]), axis=1)
    with tf.GradientTape() as tape:
      tape.watch(x)
      rows = tf.boolean_mask(x, chosen > 0)
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, rows)
      losses += tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(rows), rows)
      loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, x), tf.reduce_sum(tf.reduce_max(rows, axis=1))

  @tff.federated_computation(tff.FederatedType(tff.StructType(types), tff.CLIENTS))
  def program(values):
    return tff.federated_map(work, values)

  rng = np.random.default_rng(0)
  values = [
    (rng.normal(size=(20, 32)).astype(np.float32), rng.normal(size=20).astype(np.float32))
    for _ in range(2)
  ]
  with native.context:
    expected = tf.nest.flatten([list(one) for one in program(values)])
  with runtime.XlaContext():
    found = tf.nest.flatten([list(one) for one in program(values)])
  for own, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
