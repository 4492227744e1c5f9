"""Slices as long as data say: of padded rows, those that there are (`x[:n]`)."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import data_lengths, graphs
from tests.runtime import learning

ROWS = 6
TYPE = tff.to_type(
  collections.OrderedDict(
    x=tff.TensorType(np.float32, [ROWS, 3]), y=tff.TensorType(np.int32, [ROWS]), n=np.int32
  )
)
BLOCKS = {'one by one': 1, 'by two': 2, 'all at once': 4}


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _clients(*numbers):
  rng = np.random.default_rng(1)
  return [
    collections.OrderedDict(
      x=rng.uniform(0.5, 2.0, (ROWS, 3)).astype(np.float32),
      y=rng.integers(0, 3, ROWS).astype(np.int32),
      n=np.int32(n),
    )
    for n in numbers
  ]


def _number(values):
  """A number that depends on every element's place."""
  flat = tf.reshape(tf.cast(values, tf.float32), [-1])
  return tf.reduce_sum(flat * tf.cast(tf.range(1, 1 + tf.size(flat)), tf.float32))


def _in_short(op):
  """Of each of an op's values a number, how many elements it has, and its sizes."""

  def numbers(x, y, n):
    found = []
    for value in tf.nest.flatten(op(x, y, n)):
      sizes = tf.cast(tf.reduce_sum(tf.shape(value) * 10), tf.float32)
      found += [_number(value), tf.cast(tf.size(value), tf.float32), sizes]
    return tf.stack(found)

  return numbers


def _gradient(op):
  def gradient(x, y, n):
    total = tf.add_n([_number(value**2) for value in tf.nest.flatten(op(x, y, n))])
    return tf.gradients(total, x)[0]

  return gradient


def _accuracy(x, y, n):
  is_right = tf.equal(tf.argmax(x[:n], -1, tf.int32), y[:n])
  return tf.reduce_mean(tf.cast(is_right, tf.float32))


def _squared_error(x, y, n):
  del y
  weights = tf.ones_like(x[:n, 0])
  return tf.keras.losses.MeanSquaredError()(x[:n, :1], x[:n, 1:2], sample_weight=weights)


def _cross_entropy(x, y, n):
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y[:n], x[:n])


def _trained(x, y, n):
  """Three steps on the rows that there are, and the weights' gradient after them."""
  weights = tf.ones([3, 3])
  for _ in range(3):
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(y[:n], x[:n] @ (weights * weights))
    )
    weights -= 0.1 * tf.gradients(loss, weights)[0]
  return weights


def _by_minibatches(x, y, n):
  """As loops have it that go through rows two by two."""
  del y

  def turn(i, total):
    rows = x[i * 2 : tf.minimum((i + 1) * 2, n)]
    pair = x[i * 2 : (i + 1) * 2]
    return i + 1, total * 0.5 + tf.reduce_sum(rows * 2.0, 0) + pair[-1] / tf.norm(pair[0] + i_of(i))

  def i_of(i):
    return tf.cast(i, tf.float32)

  return tf.while_loop(lambda i, _: i < 3, turn, (tf.constant(0), tf.zeros([3])))[1]


def _in_a_function(x, y, n):
  del y
  taken = tf.function(lambda rows, number: rows[:number] * 2.0, autograph=False)
  return taken(x, n)[::-1]


def _in_a_branch(x, y, n):
  del y
  return tf.cond(n > 3, lambda: tf.reverse(x[:n], [0]), lambda: 2 * x[:n])


# Right for no rows, too, and for more than there is room for.
ANY = dict(
  all=lambda x, y, n: x[:n],
  numbers=lambda x, y, n: tf.reduce_sum(tf.ones_like(y[:n])),
  several=lambda x, y, n: [x[:n] * 2, y[:n] + 1, tf.one_hot(y[:n], 3) * x[:n]],
  reversed=lambda x, y, n: tf.reverse(x[:n], [0]),
  trace=lambda x, y, n: tf.matmul(x[:n], x[:n], transpose_a=True),
  products=lambda x, y, n: x[:n] @ tf.transpose(x[:n]),
  sorted=lambda x, y, n: tf.sort(x[:n], axis=0, direction='DESCENDING'),
  stacked=lambda x, y, n: tf.stack([x[:n], 2 * x[:n]]),
  repeated=lambda x, y, n: tf.repeat(x[:n], 2, axis=0),
  joined=lambda x, y, n: tf.concat([x[:n], x, x[n:]], 0),
  sums=lambda x, y, n: tf.cumsum(x[:n], 0, reverse=True),
  mask=lambda x, y, n: tf.boolean_mask(x[:n], y[:n] > 0),
  flat=lambda x, y, n: tf.reshape(tf.transpose(x[:n]), [-1]),
  mapped=lambda x, y, n: tf.map_fn(lambda v: v * 2.0, x[:n]),
  mapped_pairs=lambda x, y, n: tf.map_fn(
    lambda pair: pair[0] * tf.cast(pair[1], tf.float32),
    (x[:n], y[:n]),
    fn_output_signature=tf.float32,
  ),
  vectorised=lambda x, y, n: tf.vectorized_map(lambda v: v * tf.reduce_sum(v), x[:n]),
  folded=lambda x, y, n: tf.foldl(lambda a, v: a * 0.5 + v, x[:n], tf.zeros([3])),
  sliced=lambda x, y, n: tf.slice(x, [0, 0], [tf.minimum(n, ROWS), 2]),
  sliced_from=lambda x, y, n: tf.slice(x, [tf.minimum(n, ROWS), 1], [-1, -1]),
  from_n=lambda x, y, n: x[n:],
  from_the_end=lambda x, y, n: [x[: n - ROWS], x[-n:], x[-n - 1 : -1]],
  around_n=lambda x, y, n: [x[n - 1 : n + 1], x[n : n + 1], x[n : 2 * n], x[n - 2 : n]],
  before_n=lambda x, y, n: [x[n : n - 1], x[n - 4 : n - 6][::-1]],
  by_two=lambda x, y, n: [x[:n:2], x[n::-1], x[n:1:-2]],
  columns=lambda x, y, n: [x[:, : n // 2], x[:, n // 4 :]],
  columns_of_rows=lambda x, y, n: x[:n, : n // 2] * 2.0,
  column_of_rows=lambda x, y, n: x[:n, tf.minimum(n, 2)],
  new_axes=lambda x, y, n: [x[tf.newaxis, :n], x[..., :n], x[:n, tf.newaxis, 1]],
  again=lambda x, y, n: x[:n][: n // 2][::-1],
  up_to_another=lambda x, y, n: x[: tf.shape(tf.boolean_mask(x, y > 0))[0]],
  cropped=lambda x, y, n: tf.image.crop_to_bounding_box(
    x[..., tf.newaxis], 0, 0, tf.clip_by_value(n, 1, ROWS), 2
  ),
  squares=lambda x, y, n: tf.gradients(tf.reduce_sum(x[:n] ** 2), x)[0],
  in_a_branch=_in_a_branch,
  in_a_function=_in_a_function,
  by_minibatches=_by_minibatches,
)
# Of one row at least.
SOME = dict(
  last=lambda x, y, n: x[:n][-1],
  last_of_slice=lambda x, y, n: tf.slice(x, [0, 0], [tf.minimum(n, ROWS), 3])[-1],
  mean=lambda x, y, n: [tf.reduce_mean(x[:n]), tf.reduce_mean(x[:n], 0), tf.math.reduce_std(x[:n])],
  squared_error=_squared_error,
  cross_entropy=_cross_entropy,
  accuracy=_accuracy,
  trained=_trained,
  scanned=lambda x, y, n: tf.scan(lambda a, v: a * 0.5 + v, x[:n]),
  mapped_last=lambda x, y, n: tf.map_fn(lambda v: v * 2.0, x[:n])[-1],
  reversed_last=lambda x, y, n: tf.reverse(x[:n], [0])[-1],
  stacked_last=lambda x, y, n: tf.stack([x[:n], x[:n]])[1, -1],
  repeated_last=lambda x, y, n: tf.repeat(x[:n], 2, axis=0)[-1],
  window_last=lambda x, y, n: x[n // 2 : n // 2 + 2][-1],
  with_draws=lambda x, y, n: x[:n][-1] + 0 * tf.random.uniform([3]),
  shares=lambda x, y, n: tf.nn.softmax(x[:n], 0),
  one_beside_many=lambda x, y, n: x[:n][:1] + x,
  one_or_all=lambda x, y, n: x[: 1 + 5 * (n // 6)] * x,
  normalised=lambda x, y, n: (
    (x[:n] - tf.reduce_mean(x[:n], 0)) / (1 + tf.math.reduce_std(x[:n], 0))
  ),
)
GRADIENTS = {
  name: {**ANY, **SOME}[name]
  for name in (
    'all',
    'reversed',
    'products',
    'joined',
    'sliced',
    'from_n',
    'around_n',
    'by_two',
    'columns',
    'column_of_rows',
    'again',
  )
}
# Interpreted: the op, or another that has such a length, is not known to be right.
OTHERS = dict(
  padded=lambda x, y, n: tf.pad(x[:n], [[1, 1], [0, 0]], 'SYMMETRIC'),
  trace=lambda x, y, n: tf.linalg.trace(x[:n] @ tf.transpose(x[:n])),
  cholesky=lambda x, y, n: tf.linalg.cholesky(
    x[:n] @ tf.transpose(x[:n]) + tf.eye(tf.minimum(n, ROWS))
  ),
  unique=lambda x, y, n: tf.unique(y[:n])[0],
  gradient_of_a_map=_gradient(lambda x, y, n: tf.map_fn(lambda v: v * 2.0, x[:n])),
  gradient_from_n=_gradient(lambda x, y, n: tf.slice(x, [n, 0], [-1, -1])),
  by_a_step_of_data=lambda x, y, n: x[::n],
  largest=lambda x, y, n: tf.math.top_k(x[:, 0], tf.minimum(n, ROWS)).values,
)
BOXES = [[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4], [3, 3, 4, 4.1], [5, 5, 6, 6], [8, 8, 9, 9]]
COUNTED = dict(
  boxes=lambda x, y, n: tf.image.non_max_suppression(BOXES, x[:, 0], 6, 0.1),
  last_box=lambda x, y, n: tf.gather(x, tf.image.non_max_suppression(BOXES, x[:, 0], 6, 0.1))[-1],
  fewer_boxes=lambda x, y, n: tf.image.non_max_suppression(BOXES, x[:, 0], 2, 0.1)[::-1],
  padded_boxes=lambda x, y, n: [
    *tf.raw_ops.NonMaxSuppressionV4(
      boxes=BOXES, scores=x[:, 0], max_output_size=5, iou_threshold=0.1, score_threshold=-1.0,
      pad_to_max_output_size=True,
    )
  ],
  different_rows=lambda x, y, n: tf.raw_ops.UniqueV2(x=y, axis=[0])[0][::-1],
)  # fmt: skip


def _compared(native, ops, numbers, **settings):
  """Compares ops with TensorFlow; the explanation."""
  ops = {name: _in_short(op) for name, op in ops.items()}
  expected, found, explanation = learning.both(
    native,
    lambda data: {name: op(*data.values()) for name, op in ops.items()},
    TYPE,
    _clients(*numbers),
    **settings,
  )
  for n, theirs, ours in zip(numbers, expected, found, strict=True):
    for name in ops:
      np.testing.assert_allclose(ours[name], theirs[name], 2e-4, 2e-5, err_msg=f'{name}, n = {n}')
  return explanation


@pytest.mark.exhaustive(but=['one by one', 'by two'])
@pytest.mark.parametrize('block', BLOCKS.values(), ids=BLOCKS)
def test_some_slices(native, block):
  ops = {name: SOME[name] for name in ('last', 'squared_error', 'accuracy', 'window_last')}
  explanation = _compared(native, ops, [1, 4, 6, 9], clients_per_block=block)
  assert explanation.is_compiled, explanation


_KINDS = dict(
  any=(ANY, 0),
  some=(SOME, 1),
  gradients=({name: _gradient(op) for name, op in GRADIENTS.items()}, 0),
  counted=(COUNTED, 1),
)


@pytest.mark.slow
@pytest.mark.exhaustive(but=[f'{kind}-one by one' for kind in _KINDS])
@pytest.mark.parametrize('block', BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize('kind', _KINDS)
def test_slices(native, kind, block):
  ops, least = _KINDS[kind]
  explanation = _compared(native, ops, [least, 4, 6, 9], clients_per_block=block)
  assert explanation.is_compiled, explanation


@pytest.mark.slow
@pytest.mark.parametrize('name', OTHERS)
def test_what_is_not_known_to_be_right_is_interpreted(native, name):
  """Padding such rows by their reflection ended the process."""
  explanation = _compared(native, {name: OTHERS[name]}, [1, 4, 6])
  assert [part.how for part in explanation.parts] == ['interpreted']
  assert all(part.reasons for part in explanation.parts)


def test_a_step_of_data_is_refused_by_name(native):
  explanation = _compared(native, {'rows': OTHERS['by_a_step_of_data']}, [1, 4, 6])
  assert 'the op StridedSlice of a length that depends on data' in str(explanation)
  assert 'a mask of all padded rows is compiled' in str(explanation)


@pytest.mark.parametrize('name', ['last', 'accuracy'])
def test_without_it_numbers_are_wrong(native, monkeypatch, name):
  """The control: XLA's own slices, as graphs have them."""
  monkeypatch.setattr(data_lengths, 'ops', lambda graph_def: set())
  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    _compared(native, {name: SOME[name]}, [4, 9])


@pytest.mark.slow
def test_a_round_and_a_sweep():
  """Values that stay on the device: `XlaRuntime.round`."""
  nothing, sums = tff.to_type(collections.OrderedDict()), tff.TensorType(np.float32, [3])
  work = tff.tensorflow.computation(lambda s, data: s + data['x'][: data['n']][-1], sums, TYPE)

  def next_round(state, states, data):
    mapped = tff.federated_map(work, (tff.federated_broadcast(state), data))
    return tff.federated_sum(mapped), states, tff.federated_value(1.0, tff.SERVER)

  computation = tff.federated_computation(
    next_round,
    tff.FederatedType(sums, tff.SERVER),
    tff.FederatedType(nothing, tff.CLIENTS),
    tff.FederatedType(TYPE, tff.CLIENTS),
  )
  numbers = [1, 4, 6, 9]
  clients = _clients(*numbers)
  last = [client['x'][min(n, ROWS) - 1] for client, n in zip(clients, numbers, strict=True)]
  population = {name: np.stack([client[name] for client in clients]) for name in clients[0]}
  for block in (1, 2):
    with runtime.create('xla', clients_per_block=block) as machine:
      data, states = machine.place(population), machine.place_states(None)
      found, _ = machine.round(computation, np.zeros(3, np.float32), states, data, np.arange(4))
      np.testing.assert_allclose(machine.to_numpy(found), np.sum(last, 0), rtol=1e-6)
      start, cohorts = np.zeros((2, 3), np.float32), [np.arange(4), np.arange(2)]
      found, _ = machine.round(computation, start, states, data, cohorts, settings=2)
      expected = [np.sum(last, 0), np.sum(last[:2], 0)]
      np.testing.assert_allclose(machine.to_numpy(found), expected, rtol=1e-6)


def test_a_round_refuses_what_is_not_known_to_be_right():
  nothing, number = tff.to_type(collections.OrderedDict()), tff.TensorType(np.float32)
  work = tff.tensorflow.computation(lambda data: OTHERS['trace'](*data.values()), TYPE)
  computation = tff.federated_computation(
    lambda state, states, data: (state, states, tff.federated_sum(tff.federated_map(work, data))),
    tff.FederatedType(number, tff.SERVER),
    tff.FederatedType(nothing, tff.CLIENTS),
    tff.FederatedType(TYPE, tff.CLIENTS),
  )
  population = {name: np.stack([client[name]] * 2) for client in _clients(4) for name in client}
  with runtime.create('xla') as machine:
    data, states = machine.place(population), machine.place_states(None)
    with pytest.raises(runtime.UnsupportedComputationError, match='MatrixDiagPart'):
      machine.round(computation, np.float32(0), states, data, np.arange(2))


# Slices whose length is known; the graphs that have them are imported as they are.
FIXED = dict(
  element=lambda x, y, n: x[n - 1],
  elements_behind=lambda x, y, n: x[2:, : 2 - 4 : -1],
  of_a_known_size=lambda x, y, n: tf.slice(x, [n - 1, 0], [1, 3]),
  up_to_a_size=lambda x, y, n: y[: tf.shape(tf.transpose(x))[0]],
  in_a_loop=lambda x, y, n: tf.while_loop(
    lambda i, _: i < n,
    lambda i, total: (i + 1, total + tf.slice(x, [i, 0], [1, 3])[0, 1:] + x[i, :2]),
    (0, tf.zeros([2])),
  )[1],
  gathered=lambda x, y, n: tf.gather(x, y),
  largest=lambda x, y, n: tf.math.top_k(x[:, 0], 2).values,
  gradient=_gradient(lambda x, y, n: [x[n], x[1:], tf.concat([x, x], 0)[2:7]]),
)


@pytest.mark.slow
def test_slices_of_known_length_stay_as_they_are(native, monkeypatch):
  run, imported = graphs.run, []
  monkeypatch.setattr(graphs, 'run', lambda *given: imported.append(given) or run(*given))
  explanation = _compared(native, FIXED, [1, 4, 5])
  assert explanation.is_compiled
  assert not imported
  _compared(native, {'last': SOME['last']}, [1])
  assert imported


def _of_elements(batches):
  """Of a data set of rows with their numbers: what is made of each batch's first."""

  def step(total, batch):
    rows = batch['x'][0, : batch['n'][0]]
    pairs = batch['x'][:, : batch['n'][0]]
    return total * 2 + rows[-1] + tf.reduce_sum(tf.reverse(pairs, [1])[:, 0], 0)

  return batches.reduce(tf.zeros([3]), step)


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, 2])
def test_slices_of_the_elements_of_a_data_set(native, block):
  numbers = [[3, 1, 6, 2, 9], [4, 4], [5]]
  data = []
  for of_client in numbers:
    clients = _clients(*of_client)
    columns = {name: np.stack([client[name] for client in clients]) for name in ('x', 'n')}
    data.append(tf.data.Dataset.from_tensor_slices(collections.OrderedDict(columns)).batch(2))
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  expected, found, explanation = learning.both(
    native, _of_elements, type_, data, clients_per_block=block
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert explanation.is_compiled, explanation
