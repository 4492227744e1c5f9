"""Every intrinsic, on TFF's runtime, compiled (one by one and in blocks), and interpreted."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import example_process as example

POINT = tff.to_type(collections.OrderedDict(x=tff.TensorType(np.float32, (3,)), n=np.int32))
AT_CLIENTS = tff.FederatedType(POINT, tff.CLIENTS)


def clients(count):
  rng = np.random.default_rng(1)
  return [
    collections.OrderedDict(x=rng.normal(size=3).astype(np.float32), n=np.int32(k + 1))
    for k in range(count)
  ]


@tff.tensorflow.computation(POINT)
def get_x(p):
  return p['x']


@tff.tensorflow.computation(POINT)
def get_n(p):
  return p['n']


@tff.tensorflow.computation(POINT)
def as_weight(p):
  return tf.cast(p['n'], tf.float32)


@tff.tensorflow.computation
def seven():
  return tf.constant(7.0)


@tff.tensorflow.computation(np.float32)
def double(x):
  return 2.0 * x


@tff.tensorflow.computation(tff.TensorType(np.float32, (3,)), np.float32)
def shift(x, offset):
  return x - offset


@tff.tensorflow.computation
def zero():
  return collections.OrderedDict(sum=tf.zeros([3]), count=tf.constant(0))


@tff.tensorflow.computation(zero.type_signature.result, POINT)
def accumulate(total, p):
  return collections.OrderedDict(sum=total['sum'] * 0.5 + p['x'], count=total['count'] + p['n'])


@tff.tensorflow.computation(zero.type_signature.result, zero.type_signature.result)
def merge(a, b):
  return collections.OrderedDict(sum=a['sum'] + b['sum'], count=a['count'] + b['count'])


@tff.tensorflow.computation(zero.type_signature.result)
def report(total):
  return total['sum'], total['count']


@tff.federated_computation(AT_CLIENTS)
def everything(points):
  x, n = tff.federated_map(get_x, points), tff.federated_map(get_n, points)
  weight = tff.federated_map(as_weight, points)
  mean = tff.federated_mean(x, weight)
  at_server = tff.federated_map(double, tff.federated_eval(seven, tff.SERVER))
  # A second pass over the clients, which needs an aggregate of the first.
  centred = tff.federated_map(
    shift, (x, tff.federated_broadcast(tff.federated_map(double, tff.federated_sum(weight))))
  )
  return collections.OrderedDict(
    sum=tff.federated_sum(points),
    mean=tff.federated_mean(x),
    weighted=mean,
    smallest=tff.federated_min(points),
    largest=tff.federated_max(x),
    fold=tff.federated_aggregate(points, zero(), accumulate, merge, report),
    secure=tff.federated_secure_sum(n, 100),
    bitwidth=tff.federated_secure_sum_bitwidth(n, 8),
    modular=tff.backends.mapreduce.federated_secure_modular_sum(n, 5),
    value=tff.federated_value(3, tff.SERVER),
    at_server=at_server,
    evaluated=tff.federated_sum(tff.federated_eval(seven, tff.CLIENTS)),
    valued=tff.federated_sum(tff.federated_value(2.0, tff.CLIENTS)),
    zipped=tff.federated_zip((tff.federated_sum(n), at_server)),
    centred=tff.federated_sum(centred),
    kept=centred,
    same=tff.federated_broadcast(at_server),
  )


def as_numpy(result):
  result = collections.OrderedDict(result)
  result['kept'] = np.array([np.asarray(v) for v in result['kept']]).reshape(-1, 3)
  return tf.nest.map_structure(np.asarray, result)


@pytest.fixture(scope='module')
def expected(native):
  with native.context:
    return as_numpy(everything(clients(5)))


CONTEXTS = {
  'one_by_one': dict(clients_per_block=1),
  'blocks': dict(clients_per_block=2),
  'one_block': dict(clients_per_block=8),
  'interpreted': dict(compiled=False),
}


@pytest.mark.parametrize('name', CONTEXTS)
def test_every_intrinsic(expected, name):
  with runtime.XlaContext(**CONTEXTS[name]):
    example.assert_same(expected, as_numpy(everything(clients(5))))


@pytest.mark.slow
def test_nobody():
  results = []
  for options in CONTEXTS.values():
    with runtime.XlaContext(**options):
      results.append(as_numpy(everything([])))
  assert results[0]['sum']['n'] == 0
  assert np.isnan(results[0]['mean']).all()
  assert results[0]['smallest']['n'] == np.iinfo(np.int32).max
  assert results[0]['fold'][1] == 0
  assert results[0]['kept'].shape == (0, 3)
  for other in results[1:]:
    example.assert_same(results[0], other)


@tff.tensorflow.computation(np.float32)
def root(x):
  return tf.sqrt(x)


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def extremes_of_roots(values):
  roots = tff.federated_map(root, values)
  return tff.federated_min(roots), tff.federated_max(roots)


@pytest.mark.slow
@pytest.mark.parametrize('values', [[-1.0], [-1.0, 1.0, 4.0], [1.0, 4.0, -1.0, 9.0, 0.0]])
def test_extremes_are_nan_if_a_clients_value_is(native, values):
  with native.context:
    assert np.isnan(extremes_of_roots(values)).all()
  for options in [*CONTEXTS.values(), dict(devices='cpu,cpu')]:
    with runtime.XlaContext(**options):
      assert np.isnan(extremes_of_roots(values)).all()
      assert list(extremes_of_roots([4.0, 0.0, 1.0])) == [0.0, 2.0]


KEYS = tff.TensorType(np.int32, (2,))


@tff.tensorflow.computation(tff.TensorType(np.float32, (4,)), np.int32)
def pick(table, key):
  return tf.gather(table, key)


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def add_up(values):
  return values.reduce(0.0, lambda a, b: a + b)


@tff.federated_computation(
  tff.FederatedType(KEYS, tff.CLIENTS),
  tff.FederatedType(tff.TensorType(np.float32, (4,)), tff.SERVER),
)
def selected(keys, table):
  slices = tff.federated_select(keys, tff.federated_value(4, tff.SERVER), table, pick)
  return tff.federated_sum(tff.federated_map(add_up, slices))


@pytest.mark.slow
def test_select(native):
  keys = [np.array([0, 3], np.int32), np.array([1, 1], np.int32)]
  table = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
  with native.context:
    expected = selected(keys, table)
  for block in (1, 2):
    with runtime.XlaContext(clients_per_block=block) as context:
      assert selected(keys, table) == expected == 9.0
    assert context.explain(selected).is_compiled


@pytest.mark.slow
def test_an_aggregator_of_tff(native):
  factory = tff.aggregators.zeroing_factory(
    10.0, tff.aggregators.clipping_factory(1.5, tff.aggregators.SumFactory())
  )
  process = factory.create(tff.TensorType(np.float32, (3,)))

  @tff.federated_computation(AT_CLIENTS)
  def run(points):
    state = process.initialize()
    output = process.next(state, tff.federated_map(get_x, points))
    return output.result, output.measurements

  with native.context:
    expected = run(clients(5))
  for block in (1, 2):
    with runtime.XlaContext(clients_per_block=block):
      found = run(clients(5))
    example.assert_same(
      tf.nest.map_structure(np.asarray, expected), tf.nest.map_structure(np.asarray, found)
    )
