"""A search for wrong numbers: random small programs and values, beside TFF's own runtime."""

import collections

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies

import runtime
from runtime import trees

Tree = collections.OrderedDict
BRAIN = tf.bfloat16.as_numpy_dtype
INTEGERS = (np.int8, np.int32, np.int64, np.uint16)
FLOATS = (np.float16, np.float32, np.float64)
SHAPES = ((), (3,), (0,), (2, 0), (2, 2))
RTOL = {2: 2e-3, 4: 2e-6, 8: 1e-12}  # By the bytes of a float: the order of a sum is not the same.
CONTEXTS = {
  'one by one': dict(clients_per_block=1),
  'blocks': dict(clients_per_block=2),
  'interpreted': dict(compiled=False),
}
# One that fails is shrunk no further: each step would compile.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)


def _special(dtype):
  """Values at which arithmetic is odd."""
  kind = np.dtype(dtype).kind
  if kind == 'b':
    return [False, True]
  if kind == 'U':
    return ['', 'a', 'caf\u00e9']
  if kind in 'iu':
    return [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1, 2, 7, 100]
  return [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 2.5, 1e4, 3e-5]


def _leaf(draw, type_):
  shape = tuple(type_.shape)
  size = int(np.prod(shape, dtype=int))
  special = strategies.sampled_from(_special(type_.dtype))
  drawn = draw(strategies.lists(special, min_size=size, max_size=size))
  dtype = np.object_ if np.dtype(type_.dtype).kind == 'U' else type_.dtype
  array = np.array(drawn, dtype).reshape(shape)
  return array if shape else array[()]


def value(draw, type_):
  """A value of a type, with odd leaves."""
  return trees.container(type_, iter([_leaf(draw, t) for t in trees.leaf_types(type_)]))


def assert_same(expected, found, path='result'):
  """Equal in structure, in type and in value; floats almost."""
  assert type(found) is type(expected), path
  if isinstance(expected, dict):
    assert list(found) == list(expected), path
    for key in expected:
      assert_same(expected[key], found[key], f'{path}.{key}')
  elif isinstance(expected, (list, tuple)):
    assert len(found) == len(expected), path
    for index, (e, f) in enumerate(zip(expected, found, strict=True)):
      assert_same(e, f, f'{path}[{index}]')
  elif isinstance(expected, (np.ndarray, np.generic)):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
    if expected.dtype.kind == 'f' or expected.dtype == BRAIN:
      a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
      rtol = 2e-2 if expected.dtype == BRAIN else RTOL[expected.dtype.itemsize]
      np.testing.assert_allclose(a, b, rtol=rtol, err_msg=path)
    else:
      np.testing.assert_array_equal(found, expected, path)
  else:
    assert found == expected, path


@pytest.fixture(scope='module', name='contexts')
def _contexts():
  return {name: runtime.XlaContext(**options) for name, options in CONTEXTS.items()}


def compare(native, contexts, computation, *arguments, clients):
  """Runs a computation everywhere; TFF's own runtime cannot do it for nobody."""
  argument = tff.structure.Struct([(None, a) for a in arguments])
  everywhere = {'native': native.context, **contexts} if clients else contexts
  results = {name: context.invoke(computation, argument) for name, context in everywhere.items()}
  expected = results['native' if clients else 'interpreted']
  for name, found in results.items():
    assert_same(expected, found, name)


# Every aggregation of every dtype and of scalars, rows, and nothing, at odd values.


def _type_of(dtypes):
  return tff.to_type(
    Tree(
      (
        np.dtype(d).name,
        Tree((f'rank_{i}', tff.TensorType(d, s)) for i, s in enumerate(SHAPES[:4])),
      )
      for d in dtypes
    )
  )


NUMBERS, FRACTIONS = _type_of((*INTEGERS, *FLOATS)), _type_of(FLOATS)
BRAINS = _type_of([BRAIN])


@tff.federated_computation(
  tff.FederatedType(NUMBERS, tff.CLIENTS),
  tff.FederatedType(FRACTIONS, tff.CLIENTS),
  tff.FederatedType(BRAINS, tff.CLIENTS),
  tff.FederatedType(np.float32, tff.CLIENTS),
  tff.FederatedType(np.int32, tff.CLIENTS),
)
def aggregates(numbers, fractions, brains, weight, count):
  return Tree(
    sum=tff.federated_sum(numbers),
    smallest=tff.federated_min(numbers),
    largest=tff.federated_max(numbers),
    mean=tff.federated_mean(fractions),
    weighted=tff.federated_mean(fractions, weight),
    counted=tff.federated_mean(fractions, count),
    sum_of_brains=tff.federated_sum(brains),
  )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_aggregations_of_odd_values(native, contexts):
  @hypothesis.settings(max_examples=6, deadline=None, derandomize=True, phases=PHASES)
  @hypothesis.given(strategies.data(), strategies.integers(0, 4))
  def property_(data, clients):
    weights = strategies.sampled_from([0.0, 0.5, 1.0, 3.0, np.inf, np.nan])
    arguments = [
      [value(data.draw, NUMBERS) for _ in range(clients)],
      [value(data.draw, FRACTIONS) for _ in range(clients)],
      [value(data.draw, BRAINS) for _ in range(clients)],
      [np.float32(data.draw(weights)) for _ in range(clients)],
      [np.int32(data.draw(strategies.integers(0, 3))) for _ in range(clients)],
    ]
    compare(native, contexts, aggregates, *arguments, clients=clients)

  property_()


# Random structures, whose leaves go through random ops.

_OPS = {
  'b': [tf.logical_not, lambda x: tf.cast(x, tf.int32), tf.identity],
  'f': [
    lambda x: tf.clip_by_value(x, tf.constant(-1.0, x.dtype), tf.constant(2.0, x.dtype)),
    lambda x: tf.maximum(x, tf.constant(0.5, x.dtype)),
    tf.floor,
    tf.math.is_finite,
    tf.nn.relu6,
    tf.reduce_max,
    tf.reduce_sum,
    tf.round,
    tf.sign,
  ],
  'i': [
    lambda x: x // tf.constant(3, x.dtype),
    lambda x: x % tf.constant(7, x.dtype),
    lambda x: tf.cast(x, tf.float32),
    lambda x: x + x,
    tf.reduce_max,
    tf.reduce_sum,
    tf.zeros_like,
  ],
  'U': [lambda x: tf.strings.join([x, '\u00e9']), tf.strings.length],
}
_LEAVES = strategies.builds(
  tff.TensorType,
  strategies.sampled_from([*INTEGERS, *FLOATS, np.bool_, np.str_]),
  strategies.sampled_from(SHAPES),
)


def _structures(elements):
  some = strategies.lists(elements, max_size=3)
  return some.map(tuple) | some.map(
    lambda e: Tree((name, t) for name, t in zip('cab', e, strict=False))
  )


_TYPES = strategies.recursive(_LEAVES, _structures, max_leaves=5).map(tff.to_type)


def _ops(type_):
  kind = np.dtype(type_.dtype).kind
  return _OPS['i' if kind == 'u' else kind]


def program(type_, chosen):
  """A computation which changes clients' leaves, and adds up the numbers among them."""

  def change(x):
    leaves = trees.flatten(type_, x)
    return trees.container(type_, iter([op(x) for op, x in zip(chosen, leaves, strict=True)]))

  changed_type = tff.tensorflow.computation(change, type_)

  @tff.tensorflow.computation(changed_type.type_signature.result)
  def only_numbers(x):
    result = changed_type.type_signature.result
    leaves = zip(trees.flatten(result, x), trees.leaf_types(result), strict=True)
    return [leaf for leaf, t in leaves if np.dtype(t.dtype).kind in 'iuf']

  @tff.federated_computation(
    tff.FederatedType(type_, tff.SERVER), tff.FederatedType(type_, tff.CLIENTS)
  )
  def run(server, clients):
    changed = tff.federated_map(changed_type, clients)
    total = tff.federated_sum(tff.federated_map(only_numbers, changed))
    return Tree(
      server=server,
      changed_server=tff.federated_map(changed_type, server),
      broadcast=tff.federated_broadcast(server),
      zipped=tff.federated_zip((changed, clients)),
      total=total,
    )

  return run


@pytest.mark.slow
def test_random_programs(native, contexts):
  @hypothesis.settings(max_examples=8, deadline=None, derandomize=True, phases=PHASES)
  @hypothesis.given(strategies.data(), _TYPES, strategies.integers(0, 3))
  def property_(data, type_, clients):
    ops = [data.draw(strategies.sampled_from(_ops(t))) for t in trees.leaf_types(type_)]
    values = [value(data.draw, type_) for _ in range(clients)]
    compare(native, contexts, program(type_, ops), value(data.draw, type_), values, clients=clients)

  property_()


# Values whose sizes differ from client to client, and batches whose sizes differ in one data set.

_ROWS = tff.to_type(
  Tree(x=tff.TensorType(np.float32, [None, 2]), y=tff.TensorType(np.int32, [None]))
)
_FINITE = (0.0, -0.0, 1.0, -1.5, 2.5, 1e4, 3e-5)


@tff.tensorflow.computation(_ROWS)
def of_rows(rows):
  count = tf.shape(rows['y'])[0]
  total = tf.reduce_sum(rows['x'], axis=0)
  return Tree(rows=Tree(x=2.0 * rows['x'], y=rows['y'] + 1), numbers=Tree(count=count, total=total))


@tff.tensorflow.computation(tff.SequenceType(_ROWS))
def of_batches(batches):
  start = Tree(
    batches=0, rows=0, total=tf.zeros([2]), means=tf.zeros([2]), largest=tf.int32.min, product=0.0
  )

  def step(before, batch):
    x, y = batch['x'], batch['y']
    return Tree(
      batches=before['batches'] + 1,
      rows=before['rows'] + tf.shape(y)[0],
      total=before['total'] + tf.reduce_sum(x, axis=0),
      means=before['means'] + tf.reduce_mean(x, axis=0),
      largest=tf.maximum(before['largest'], tf.reduce_max(y)),
      product=before['product'] + tf.reduce_sum(tf.matmul(x, x, transpose_b=True)),
    )

  return batches.reduce(start, step)


@tff.federated_computation(
  tff.FederatedType(_ROWS, tff.CLIENTS), tff.FederatedType(tff.SequenceType(_ROWS), tff.CLIENTS)
)
def ragged(rows, batches):
  changed = tff.federated_map(of_rows, rows)
  found = tff.federated_map(of_batches, batches)
  return Tree(
    rows=changed['rows'],
    count=tff.federated_sum(changed['numbers']),
    batches=found,
    total=tff.federated_sum(found),
    largest=tff.federated_max(found['largest']),
  )


def _rows(draw, most):
  count = draw(strategies.integers(0, most))
  size = dict(min_size=2 * count, max_size=2 * count)
  x = draw(strategies.lists(strategies.sampled_from(_FINITE), **size))
  return Tree(x=np.array(x, np.float32).reshape(count, 2), y=np.arange(count, dtype=np.int32))


def _batches(draw):
  """Batches of one size and then of another, the last of each perhaps smaller."""
  parts = [
    tf.data.Dataset.from_tensor_slices(_rows(draw, 5)).batch(draw(strategies.sampled_from([2, 3])))
    for _ in range(2)
  ]
  return parts[0].concatenate(parts[1])


@pytest.mark.slow
def test_ragged_values_and_batches(native, contexts):
  @hypothesis.settings(max_examples=5, deadline=None, derandomize=True, phases=PHASES)
  @hypothesis.given(strategies.data(), strategies.integers(0, 3))
  def property_(data, clients):
    rows = [_rows(data.draw, 3) for _ in range(clients)]
    batches = [_batches(data.draw) for _ in range(clients)]
    compare(native, contexts, ragged, rows, batches, clients=clients)

  property_()
