"""Recurrent layers' loops and their gradients, as they are written anew."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import recurrence

ROWS, LENGTH, FEATURES, UNITS = 4, 6, 16, 64
TEXTS = tff.SequenceType(tff.TensorType(np.float32, [ROWS, LENGTH, FEATURES]))


def _plain(inputs, state, weights):
  """Elman's cell."""
  of_inputs, of_states = weights
  return tf.tanh(inputs @ of_inputs + state @ of_states)


def _gated(inputs, state, weights):
  """A cell of two gates."""
  of_inputs, of_states = weights
  gate, value = tf.split(inputs @ of_inputs + state @ of_states, 2, axis=1)
  return tf.sigmoid(gate) * tf.tanh(value)


def _turned(inputs, state, weights):
  """A cell whose weights are to be transposed."""
  of_inputs, of_states = weights
  return tf.tanh(
    inputs @ of_inputs + tf.matmul(tf.matmul(state, of_states, transpose_b=True), of_states)
  )


# Each with how many times the units its products have.
CELLS = {'plain': (_plain, 1), 'gated': (_gated, 2), 'turned': (_turned, 1)}


def _states(cell, turns, weights, batch):
  """The last state, after as many turns as the batch says."""
  steps = tf.TensorArray(tf.float32, LENGTH, element_shape=[ROWS, FEATURES])
  steps = steps.unstack(tf.transpose(batch, [1, 0, 2]))

  def body(turn, state):
    return turn + 1, cell(steps.read(turn), state, weights)

  return tf.while_loop(
    lambda turn, _: turn < turns(batch),
    body,
    (tf.constant(0), tf.zeros([ROWS, UNITS])),
    maximum_iterations=LENGTH,
  )[1]


def _all(batch):
  del batch
  return LENGTH


def _some(batch):
  return tf.cast(tf.reduce_sum(batch) > 0, tf.int32) * 2 + 2


def _none(batch):
  return tf.cast(tf.reduce_sum(batch) > 1e9, tf.int32)


def _training(name, turns):
  """Steps with a cell's gradients by its weights and inputs, for each client."""
  cell, gates = CELLS[name]
  rng = np.random.default_rng(1)
  starts = [rng.normal(size=[n, gates * UNITS]).astype(np.float32) / 16 for n in (FEATURES, UNITS)]

  @tff.tensorflow.computation(TEXTS)
  def train(batches):
    weights = [tf.Variable(start) for start in starts]
    slopes = tf.Variable(tf.zeros([ROWS, LENGTH, FEATURES]))

    @tf.function
    def run():
      for batch in batches:
        with tf.GradientTape() as tape:
          tape.watch(batch)
          state = _states(cell, turns, [w.read_value() for w in weights], batch)
          loss = tf.reduce_sum(state**2) + 0.1 * tf.reduce_sum(batch)
        by_batch, *gradients = tape.gradient(
          loss, [batch, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        slopes.assign_add(by_batch)
        for weight, gradient in zip(weights, gradients, strict=True):
          weight.assign_sub(0.05 * gradient)
      return [slopes.read_value(), *(w.read_value() for w in weights)]

    return run()

  @tff.federated_computation(tff.FederatedType(TEXTS, tff.CLIENTS))
  def train_all(batches):
    return tff.federated_map(train, batches)

  return train_all


def _clients():
  rng = np.random.default_rng(0)
  return [
    [rng.normal(size=[ROWS, LENGTH, FEATURES]).astype(np.float32) for _ in range(number)]
    for number in (3, 0, 2)
  ]


def _leaves(results):
  return [np.asarray(leaf) for leaf in tf.nest.flatten([list(own) for own in results])]


@pytest.fixture(name='taken')
def fixture_taken(monkeypatch):
  """How often each is taken."""
  counts = {}

  def count(name, is_taken=lambda result: result is not None):
    function = getattr(recurrence, name)

    def counted(*args, **kwargs):
      result = function(*args, **kwargs)
      counts[name] = counts.get(name, 0) + bool(is_taken(result))
      return result

    monkeypatch.setattr(recurrence, name, counted)

  count('summed_products', bool)
  for name in ('with_element_added', 'by_transposed_weights', 'side_by_side'):
    count(name)
  return counts


@pytest.mark.exhaustive(but=['plain-some-1', 'gated-all-1', 'turned-all-3', 'gated-none-3'])
@pytest.mark.slow
@pytest.mark.parametrize('blocks', [1, 3])
@pytest.mark.parametrize('turns', [_all, _some, _none], ids=['all', 'some', 'none'])
@pytest.mark.parametrize('cell', CELLS)
def test_gradients_are_the_native_ones(native, taken, cell, turns, blocks):
  train, clients = _training(cell, turns), _clients()
  with native.context:
    expected = _leaves(train(clients))
  with runtime.XlaContext(clients_per_block=blocks) as context:
    found = _leaves(train(clients))
  how = context.lowering(train)
  assert how.is_possible, context.explain(train)
  for own, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(own, other, rtol=2e-5, atol=2e-5)
  # Several clients at once take as many turns as each other.
  assert bool(how.serial_reasons) == (blocks > 1 and turns is not _all)
  assert taken['with_element_added']
  if blocks > 1 and turns is _all:
    return  # Sums of products are made by loops there.
  assert taken['summed_products']
  assert taken['by_transposed_weights']
  assert bool(taken.get('side_by_side')) == (cell == 'gated')


@pytest.mark.slow
def test_a_twin_that_keeps_the_last_turn_alone_is_found_out(native, monkeypatch):
  train, clients = _training('plain', _some), _clients()
  with native.context:
    expected = _leaves(train(clients))

  def kept(self, carried, factors):
    if not carried:
      return []
    turn, *lists = carried
    changed = [
      tf.raw_ops.TensorListSetItem(input_handle=before, index=0 * turn, item=factor)
      for before, factor in zip(lists, factors, strict=True)
    ]
    return [turn + 1, *changed]

  monkeypatch.setattr(recurrence.Factors, 'kept', kept)
  with runtime.XlaContext(clients_per_block=1) as context:
    found = _leaves(train(clients))
  assert context.lowering(train).is_possible
  assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) > 1e-3


# Which sums are taken after the loop.


def _found(body, start=(FEATURES, UNITS), unchanged=None):
  """The positions of the sums that are found in a body of (sum, a, b)."""
  k, m = start
  specs = [tf.TensorSpec(s, tf.float32) for s in ([k, m], [ROWS, k], [ROWS, m])]
  graph = tf.function(body).get_concrete_function(*specs).graph
  names = [tensor.op.name for tensor in graph.inputs]
  starts = [tf.zeros(spec.shape) for spec in specs]
  results = [tensor.name for tensor in graph.outputs]
  passed = set() if unchanged is None else {names[unchanged]}
  nodes = graph.as_graph_def().node
  found = recurrence.summed_products(nodes, names, results, starts, passed)
  return [product.value for product in found]


def _product(a, b):
  return tf.matmul(a, b, transpose_a=True)


@pytest.mark.parametrize(
  'body, found',
  [
    (lambda s, a, b: (tf.add_n([s, _product(a, b)]), a, b), [0]),
    (lambda s, a, b: (tf.add_n([_product(a, b), tf.identity(s)]), a, b), [0]),
    # What a turn reads, or makes another thing of, has to be there.
    (lambda s, a, b: (tf.add_n([s, _product(a, b)]), a, a @ s), []),
    (lambda s, a, b: (tf.add_n([s, 2 * _product(a, b)]), a, b), []),
    (lambda s, a, b: (s - _product(a, b), a, b), []),
    (lambda s, a, b: (tf.add_n([0.9 * s, _product(a, b)]), a, b), []),
    (lambda s, a, b: (tf.add_n([s, s, _product(a, b)]), a, b), []),
    (lambda s, a, b: (tf.add_n([s, tf.matmul(tf.transpose(a), b)]), a, b), []),
    (lambda s, a, b: (a, s, b), []),
  ],
)
def test_what_a_loop_only_adds_up_is_found(body, found):
  assert _found(body) == found


def test_a_sum_that_is_another_value_too_is_not_found():
  def read_before(total, a, b):
    same = tf.identity(total)
    return tf.add_n([same, _product(a, b)]), a, a @ same

  def read_after(total, a, b):
    total = tf.identity(tf.add_n([total, _product(a, b)]))
    return total, a + tf.reduce_sum(total), b

  assert _found(read_before) == _found(read_after) == []


def test_small_weights_are_summed_in_the_loop():
  body = lambda s, a, b: (tf.add_n([s, _product(a, b)]), a, b)  # noqa: E731
  assert _found(body, (31, 33)) == []
  assert _found(body, (32, 32)) == [0]


def test_a_factor_that_no_turn_changes_is_not_kept_for_each():
  body = lambda s, a, b: (tf.add_n([s, _product(a, b)]), a, 2 * b)  # noqa: E731
  assert _found(body) == [0]
  assert _found(body, unchanged=1) == []

  def of_constant(total, a, b):
    constant = tf.constant(2.0, shape=[ROWS, FEATURES])
    return tf.add_n([total, _product(constant, b)]), a, 2 * b

  assert _found(of_constant) == []


def test_a_concatenation_of_parts_of_unknown_sizes_is_left():
  known = tf.zeros([2, 3])
  with tf.Graph().as_default():
    unknown = tf.compat.v1.placeholder(tf.float32, [None, 3])
  assert recurrence.side_by_side([known, unknown], 1) is None
  assert recurrence.side_by_side([known] * 9, 1) is None
