"""Many lanes at once: Philox bits, and loops and branches that differ between lanes."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.ops import gen_stateless_random_ops_v2 as random_ops

import runtime
from runtime import random_streams
from runtime.xla import philox, vectorize


@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_philox_keys_are_tensorflows(dtype):
  seeds = np.array([[1, 2], [-5, 7], [123456789, -987654321], [0, 0]], dtype)
  if dtype == np.int64:
    seeds = np.concatenate([seeds, seeds * 2**30 + 1])
  for seed in seeds:
    expected = random_ops.stateless_random_get_key_counter(seed)
    for ours, theirs in zip(philox.of_seed(tf.constant(seed)), expected, strict=True):
      assert ours.numpy().tolist() == theirs.numpy().tolist()


@pytest.mark.parametrize('dtype', [tf.uint32, tf.int32, tf.uint64, tf.int64])
@pytest.mark.parametrize('size', [1, 11, 2051])
def test_philox_bits_are_tensorflows(dtype, size):
  keys = tf.constant([[1], [2**63 + 5], [77]], tf.uint64)
  counters = tf.constant([[2**64 - 2, 5], [0, 0], [3, 2**64 - 1]], tf.uint64)
  found = philox.bits(keys, counters, size, dtype)
  for i in range(3):
    expected = random_ops.stateless_random_uniform_full_int_v2(
      [size], keys[i], counters[i], 1, dtype=dtype
    )
    assert (expected.numpy() == found[i].numpy()).all()


@pytest.mark.cpu
@pytest.mark.parametrize(
  ('shape', 'algorithm', 'is_taken'),
  [([33, 32], 1, True), ([512], 1, False), ([None, 32], 1, False), ([33, 32], 2, False)],
)
def test_long_draws_are_taken(shape, algorithm, is_taken):
  key, counter = np.array([2**63 + 5], np.uint64), np.array([2**64 - 2, 5], np.uint64)
  with tf.Graph().as_default():
    sizes = [tf.compat.v1.placeholder(tf.int32, []) if n is None else n for n in shape]
    draw = random_ops.stateless_random_uniform_full_int_v2(
      sizes, key, counter, algorithm, dtype=tf.uint32
    )
    new = philox.taken(draw.op)
    assert (new is not None) == is_taken
    if is_taken:
      with tf.compat.v1.Session() as session:
        expected, found = session.run([draw, new])
      np.testing.assert_array_equal(found, expected)


@pytest.mark.cpu
@pytest.mark.parametrize('block', [1, 2])
def test_long_draws_of_a_program_are_tensorflows(monkeypatch, block):
  """Also of a function within, in a loop, and for every client of a block."""
  loops = []
  rounds = philox._rounds_in_a_loop
  monkeypatch.setattr(philox, '_rounds_in_a_loop', lambda *a: loops.append(a) or rounds(*a))

  @tff.tensorflow.computation(np.int32)
  def work(client):
    draw = tf.function(lambda i: random_streams.bits(tf.stack([client, i]), [40, 40]))
    return tf.while_loop(
      lambda i, _: i < 3, lambda i, total: (i + 1, total ^ draw(i)), (0, draw(client))
    )[1]

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def program(clients):
    return tff.federated_map(work, clients)

  found = runtime.XlaContext(clients_per_block=block).invoke(program, [5, -6, 7])
  for client, own in zip([5, -6, 7], found, strict=True):
    draws = [random_streams.bits(tf.constant([client, i]), [40, 40]) for i in (client, 0, 1, 2)]
    np.testing.assert_array_equal(own, functools.reduce(np.bitwise_xor, map(np.asarray, draws)))
  assert loops


def _compare(fn, *inputs):
  """A function of one lane, for all lanes under XLA, and for each alone."""
  inputs = [tf.constant(i.astype(np.int32 if i.dtype == np.int64 else i.dtype)) for i in inputs]
  lanes = inputs[0].shape[0]
  specs = [tf.TensorSpec(i.shape[1:], i.dtype) for i in inputs]
  # A function that comes from a GraphDef, as a client's work does.
  concrete = tf.function(fn, autograph=False).get_concrete_function(*specs)

  @tf.function(jit_compile=True, autograph=False)
  def together(*values):
    return vectorize.vectorized(lambda lane: concrete(*lane), lanes, list(values))

  expected = [fn(*(i[k] for i in inputs)) for k in range(lanes)]
  found = together(*inputs)
  for k in range(lanes):
    for a, b in zip(tf.nest.flatten(expected[k]), tf.nest.flatten(found), strict=True):
      np.testing.assert_allclose(a, b[k], rtol=1e-6)


def test_padding_with_a_value():
  _compare(lambda x: tf.pad(x, [[1, 0], [0, 2]], constant_values=-7), np.ones([3, 2, 2]))


def test_a_loop_of_different_lengths():
  def power(base, exponent):
    return tf.while_loop(
      lambda i, _: i < exponent, lambda i, x: (i + 1, x * base), (0, tf.ones([2]))
    )

  _compare(power, np.array([[1.0, 2.0], [3.0, 0.5], [2.0, 2.0]], np.float32), np.array([3, 0, 5]))


def test_a_loop_in_a_loop():
  def triangle(n, m):
    def outer(i, total):
      _, inner = tf.while_loop(
        lambda j, _: j < i + m, lambda j, x: (j + 1, x + tf.cast(j, tf.float32)), (0, 0.0)
      )
      return i + 1, total + inner

    return tf.while_loop(lambda i, _: i < n, outer, (0, 0.0))

  _compare(triangle, np.array([4, 0, 7, 1]), np.array([0, 2, 1, 9]))


def test_a_loop_of_one_length_carries_values_that_differ():
  def run(x):
    return tf.while_loop(lambda i, *_: i < 3, lambda i, a, b: (i + 1, b, a + x), (0, 0.0, 1.0))

  _compare(run, np.array([1.0, -2.0], np.float32))


def test_a_finished_lane_is_left_alone_though_its_body_would_be_nan():
  def run(n):
    def body(i, x):
      return i + 1, x / tf.cast(n - i, tf.float32)

    return tf.while_loop(lambda i, _: i < n, body, (0, 1.0))

  _compare(run, np.array([1, 4, 0]))


def test_branches():
  def run(x, which):
    first = tf.cond(x > 0.0, lambda: tf.sqrt(x), lambda: x * x)
    return first, tf.switch_case(which, [lambda: first, lambda: -x, lambda: tf.constant(5.0)])

  _compare(run, np.array([4.0, -3.0, 9.0], np.float32), np.array([0, 2, 1]))


def test_a_branch_that_is_the_same_for_all():
  def run(x):
    return tf.cond(tf.constant(2) > 1, lambda: x + 1.0, lambda: x)

  _compare(run, np.array([4.0, -3.0], np.float32))


def test_sorting_norms_and_bits():
  def run(x):
    order = tf.argsort(x, direction='DESCENDING')
    return order, tf.sort(x), tf.linalg.global_norm([x, x]), tf.bitcast(x, tf.int32)

  _compare(run, np.array([[4.0, -3.0, 5.0], [0.0, 7.0, 1.0]], np.float32))


def test_an_op_without_a_conversion_goes_lane_by_lane():
  def run(x):
    return tf.scatter_nd([[2], [0]], x, [4]), tf.linalg.svd(x[:, None] * x + tf.eye(2))[0]

  _compare(run, np.array([[4.0, -3.0], [0.5, 7.0], [1.0, 2.0]], np.float32))


def test_an_op_whose_result_has_no_known_shape_is_named():
  @tf.function(jit_compile=True, autograph=False)
  def run(values):
    return vectorize.vectorized(lambda lane: tf.where(lane[0] > 0.0), 2, [values])

  with pytest.raises(ValueError, match=r'the op Where .*--runtime=native'):
    run(tf.constant([[1.0, 2.0], [0.0, 3.0]]))


def test_an_index_outside_of_the_branches_is_the_last_ones():
  def run(x, which):
    return tf.switch_case(which, [lambda: x, lambda: -x, lambda: tf.constant(5.0)])

  _compare(run, np.array([4.0, -3.0, 9.0], np.float32), np.array([-1, 3, 1]))


@pytest.mark.slow
def test_a_loss_that_calls_a_function_by_its_name():
  @tff.tensorflow.computation(tff.TensorType(np.float32, [4, 1, 3]))
  def loss(logits):
    return tf.nn.ctc_loss(tf.constant([[1, 2]]), logits, [2], [4], blank_index=0)

  mapped = tff.federated_computation(
    lambda x: tff.federated_map(loss, x),
    tff.FederatedType(loss.type_signature.parameter, tff.CLIENTS),
  )
  x = np.random.default_rng(0).normal(size=(2, 4, 1, 3)).astype(np.float32)
  found = runtime.XlaContext(clients_per_block=2).invoke(mapped, list(x))
  for one, logits in zip(found, x, strict=True):
    expected = tf.nn.ctc_loss([[1, 2]], logits, [2], [4], blank_index=0)
    np.testing.assert_allclose(one, expected, rtol=1e-5)


def test_an_op_that_is_a_functions_name_is_a_call():
  @tf.function(autograph=False, input_signature=[tf.TensorSpec([2])])
  def squared(x):
    return x * x

  function = squared.get_concrete_function()

  @tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
  def run(x):
    graph = tf.compat.v1.get_default_graph()
    function.add_to_graph(graph)
    (called,) = graph.create_op(function.name.decode(), [x], [tf.float32], name='called').outputs
    return tf.ensure_shape(called, [2])

  mapped = tff.federated_computation(
    lambda x: tff.federated_map(run, x),
    tff.FederatedType(run.type_signature.parameter, tff.CLIENTS),
  )
  x = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
  for block in (2, 10**9):  # as many as there are
    context = runtime.XlaContext(clients_per_block=block)
    np.testing.assert_array_equal(context.invoke(mapped, list(x)), x * x)
    assert context.explain(mapped).is_compiled and not context.lowering(mapped).serial_reasons


@pytest.mark.slow
def test_clients_whose_work_cannot_be_vectorised_go_one_by_one():
  """A list that a loop reads has no form for several clients; nor has a value that grows."""

  def read(x):
    rows = tf.TensorArray(tf.float32, 3).unstack(x)
    return tf.while_loop(
      lambda i, _: tf.cast(i, tf.float32) < x[0], lambda i, t: (i + 1, t + rows.read(i)), (0, 1.0)
    )[1]

  type_ = tff.TensorType(np.float32, [3])
  mapped = tff.federated_computation(
    lambda server, nothing, x: tff.federated_map(tff.tensorflow.computation(read, type_), x),
    [tff.FederatedType(np.float32, tff.SERVER)]
    + [tff.FederatedType(t, tff.CLIENTS) for t in (tff.StructType([]), type_)],
  )
  x = np.array([[2.0, 5.0, 1.0], [0.0, 1.0, 1.0], [3.0, 7.0, 1.0]], np.float32)
  expected = [8.0, 1.0, 12.0]
  context = runtime.XlaContext(clients_per_block=2)
  with tff.framework.get_context_stack().install(context):
    assert mapped(0.0, [()] * 3, list(x)) == expected
  assert context.explain(mapped).is_compiled
  assert 'one at a time' in str(context.explain(mapped))
  named = tff.federated_computation(
    lambda server, nothing, x: (
      tff.federated_map(tff.tensorflow.computation(read, type_), x),
      tff.federated_map(
        tff.tensorflow.computation(lambda s: tf.strings.as_string(s), np.float32), server
      ),
    ),
    mapped.type_signature.parameter,
  )
  with tff.framework.get_context_stack().install(context):
    assert list(named(0.0, [()] * 3, list(x))[0]) == expected
  explained = context.explain(named)
  assert {p.how for p in explained.parts} == {'compiled', 'on the host'}
  assert [p.how for p in explained.parts if 'one at a time' in ''.join(p.reasons)] == ['compiled']
  with runtime.create('xla', clients_per_block=2) as machine:
    with pytest.warns(RuntimeWarning, match='one at a time, and not 2 at once'):
      found = machine.evaluate(mapped, 0.0, None, machine.place(x))
    assert list(found) == expected


def _one_of_two_sizes(x):
  return tf.reduce_sum(tf.cond(x[0] > 0.0, lambda: x[:1], lambda: x))


def _one_of_three_sizes(x):
  branches = [lambda: x[:1], lambda: 2.0 * x[1:2], lambda: x[1:]]
  return tf.reduce_sum(tf.switch_case(tf.cast(x[2], tf.int32), branches))


def _growing_from_none(x):
  return _turns(x, tf.zeros([0]), lambda v: tf.concat([v, x[:1]], 0))


def _all_made_one(x):
  return _turns(x, x, lambda v: tf.reduce_sum(v, keepdims=True) + 1.0)


def _turns(x, start, change):
  """The sum of a value whose size may change in each of x[2] turns."""
  _, value = tf.while_loop(
    lambda i, _: i < tf.cast(x[2], tf.int32),
    lambda i, v: (i + 1, change(v)),
    (0, start),
    shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
  )
  return tf.reduce_sum(value)


@pytest.mark.parametrize(
  'function', [_one_of_two_sizes, _one_of_three_sizes, _growing_from_none, _all_made_one]
)
def test_values_whose_size_differs_between_clients_are_not_brought_to_one(function):
  """A size of 1 would pass for that of another client: one number for three, or for none."""
  type_ = tff.TensorType(np.float32, [3])
  local = tff.tensorflow.computation(function, type_)
  mapped = tff.federated_computation(
    lambda x: tff.federated_map(local, x), tff.FederatedType(type_, tff.CLIENTS)
  )
  x = np.array([[2.0, 5.0, 1.0], [-1.0, 4.0, 0.0], [3.0, 7.0, 2.0]], np.float32)
  with tff.framework.get_context_stack().install(runtime.XlaContext(clients_per_block=3)):
    found = mapped(list(x))
  np.testing.assert_allclose(found, [function(tf.constant(one)) for one in x], rtol=1e-6)


@pytest.mark.parametrize(
  'function',
  [
    lambda x: tf.roll(x, 1, -1),
    lambda x: tf.roll(x, [1, 2], [-2, 1]),
    lambda x: tf.roll(x, tf.cast(x[0, 0] / 6.0, tf.int32), -1),
  ],
  ids=['one', 'two', 'by a value'],
)
def test_a_roll_along_axes_that_are_counted_from_the_last(function):
  """pfor takes them for the axis of the clients, one further from the last."""
  type_ = tff.TensorType(np.float32, [2, 3])
  local = tff.tensorflow.computation(function, type_)
  mapped = tff.federated_computation(
    lambda x: tff.federated_map(local, x), tff.FederatedType(type_, tff.CLIENTS)
  )
  x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
  context = runtime.XlaContext(clients_per_block=4)
  with tff.framework.get_context_stack().install(context):
    found = mapped(list(x))
  np.testing.assert_array_equal(found, [function(tf.constant(one)) for one in x])
  assert context.lowering(mapped).serial_reasons == []
