"""Random ops and shuffles of a TFF program, compiled: fresh, or TensorFlow's own numbers."""

import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

_DRAWS = 2000
_CLIENTS = 4


def _at_clients(draw):
  """Runs a computation without arguments at four clients, twice in each of two contexts."""

  @tff.tensorflow.computation(np.int32)
  def of_client(number):
    return draw() + 0 * tf.cast(number, tf.float32)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def all_clients(numbers):
    return tff.federated_map(of_client, numbers)

  found = []
  for _ in range(2):
    context = runtime.XlaContext()
    with context:
      found.append([np.stack(list(all_clients([0] * _CLIENTS))) for _ in range(2)])
    assert context.lowering(all_clients).is_possible
  return np.array(found)  # [contexts, calls, clients, draws]


@pytest.mark.slow
@pytest.mark.parametrize(
  'draw, mean, deviation',
  [
    (lambda: tf.random.normal([_DRAWS]), 0, 1),
    (lambda: tf.random.uniform([_DRAWS]), 0.5, 12**-0.5),
    (lambda: tf.random.truncated_normal([_DRAWS]), 0, 0.8796),
  ],
)
def test_draws_without_a_seed_are_fresh_everywhere(draw, mean, deviation):
  draws = _at_clients(draw).reshape(-1, _DRAWS)
  correlations = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
  assert np.abs(correlations).max() < 6 / _DRAWS**0.5
  tolerance = 6 * deviation / draws.size**0.5
  np.testing.assert_allclose(draws.mean(), mean, atol=tolerance)
  np.testing.assert_allclose(draws.std(), deviation, atol=2 * tolerance)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16])
@pytest.mark.parametrize('varies', [False, True])
def test_uniform_numbers_of_few_bits_are_below_one(dtype, varies):
  steps = 2 ** (10 if dtype == tf.float16 else 7)  # TensorFlow's numbers are whole ones over it.

  @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.int32, [None])))
  def summary(data):
    def add(before, rows):
      drawn = tf.random.uniform([tf.size(rows) if varies else 40 * _DRAWS], dtype=dtype)
      places = tf.cast(drawn, tf.float32) * steps
      largest = tf.maximum(before[0], tf.reduce_max(places))
      beside = before[1] + tf.reduce_sum(places - tf.floor(places))
      return largest, beside, before[2] + tf.reduce_mean(places)

    return data.reduce((0.0, 0.0, 0.0), add)

  context = runtime.XlaContext()
  with context:
    data = tf.data.Dataset.range(60 * _DRAWS, output_type=tf.int32).batch(40 * _DRAWS)
    largest, beside, means = summary(data)
  assert context.explain(summary).is_compiled
  assert largest == steps - 1
  assert beside == 0
  np.testing.assert_allclose(means / 2, (steps - 1) / 2, rtol=0.02)


@pytest.mark.slow
def test_draws_with_a_seed_repeat_when_the_program_is_started_again():
  draws = _at_clients(lambda: tf.random.normal([_DRAWS], seed=7))
  np.testing.assert_array_equal(draws[0], draws[1])
  different = draws[0].reshape(-1, _DRAWS)
  correlations = np.corrcoef(different)[np.triu_indices(len(different), 1)]
  assert np.abs(correlations).max() < 6 / _DRAWS**0.5


def test_every_turn_of_a_loop_draws_anew():
  @tff.tensorflow.computation(np.int32)
  def loop(turns):
    values = tf.TensorArray(tf.float32, 8)

    def body(i, v):
      return i + 1, v.write(i, tf.random.uniform([]))

    _, values = tf.while_loop(lambda i, _: i < turns, body, (0, values), maximum_iterations=8)
    return tf.ensure_shape(values.stack(), [8])

  with runtime.XlaContext():
    assert len(set(loop(8).tolist())) == 8


@pytest.mark.parametrize('block', [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_stateless_numbers_are_tensorflows(block, dtype):
  """Of seeds below zero, and of 64 bits, too: XLA's own ops take lower words without signs."""

  def draws(seed):
    return (
      tf.random.experimental.stateless_fold_in(seed, tf.constant(3, dtype)),
      tf.random.stateless_uniform([3], seed, None, None, tf.int32),
      tf.raw_ops.StatelessRandomUniformFullInt(shape=[3], seed=seed, dtype=tf.int64),
      tf.raw_ops.StatelessRandomUniform(shape=[3], seed=seed),
      tf.random.stateless_uniform([5], seed),
      tf.random.stateless_normal([2, 3], seed),
      tf.random.stateless_uniform([6], seed, -3, 1000, tf.int32),
      tf.random.stateless_uniform([3], seed, 5, 2**40, tf.int64),
    )

  type_ = tff.TensorType(dtype, [2])

  @tff.tensorflow.computation(type_)
  def of_client(seed):
    return draws(seed)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def all_clients(seeds):
    return tff.federated_map(of_client, seeds)

  largest = 2**31 if dtype == np.int32 else 2**50
  pairs = [(0, 3), (5, -6), (-7, largest - 1), (largest // 3, -largest)]
  seeds = [np.array(pair, dtype) for pair in pairs]
  context = runtime.XlaContext(clients_per_block=block)
  with context:
    found = all_clients(seeds)
  assert context.lowering(all_clients).is_possible
  for seed, ours in zip(seeds, found, strict=True):
    for a, b in zip(ours, draws(seed), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_seeds_of_a_program_that_needs_no_interpretation():
  """It is imported as it is, but for what XLA takes badly."""
  type_ = tff.TensorType(np.int64, [2])
  fold = tff.tensorflow.computation(
    lambda seed: tf.random.experimental.stateless_fold_in(seed, tf.constant(3, tf.int64)), type_
  )
  seed = np.array([2**40 + 1, -5], np.int64)
  context = runtime.XlaContext()
  with context:
    found = fold(seed)
  how = context.lowering(fold)
  assert how.is_possible and not how.is_needed
  expected = tf.random.experimental.stateless_fold_in(seed, tf.constant(3, tf.int64))
  np.testing.assert_array_equal(found, expected)


def _set_in_a_loop(variable, x):
  for _ in tf.range(2):
    variable.assign(variable * x)
  return variable.read_value()


def _set_in_a_branch(variable, x):
  if x > 1.0:
    variable.assign([x, x, x])
  return variable.read_value()


@pytest.mark.parametrize(
  'use', [lambda variable, x: x * variable, _set_in_a_loop, _set_in_a_branch]
)
def test_variables_that_begin_with_such_numbers_have_tensorflows(use):
  def first():
    return tf.random.stateless_truncated_normal([3], [1, 2])

  @tff.tensorflow.computation(np.float32)
  def used(x):
    return tf.function(use)(tf.Variable(first()), x)

  every_client = tff.federated_computation(
    lambda x: tff.federated_map(used, x), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  context = runtime.XlaContext()
  with context:
    found = every_client([0.5, 2.0])
  assert 'XLA draws other numbers' in str(context.explain(every_client))
  expected = [tf.function(use)(tf.Variable(first()), x) for x in (0.5, 2.0)]
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, 4])
def test_stateless_numbers_that_are_not_made_of_bits_are_tensorflows(block):
  def draws(seed):
    return (
      tf.random.stateless_categorical(tf.math.log([[0.5, 0.2, 0.3]]), 8, seed),
      tf.random.stateless_truncated_normal([5], seed),
      tf.random.stateless_parameterized_truncated_normal([5], seed, 0.0, 1.0, -1.0, 0.5),
      tf.random.stateless_uniform([3], seed, dtype=tf.float64),
      tf.random.stateless_normal([3], seed, dtype=tf.bfloat16),
    )

  type_ = tff.TensorType(np.int32, [2])
  of_client = tff.tensorflow.computation(draws, type_)
  all_clients = tff.federated_computation(
    lambda seeds: tff.federated_map(of_client, seeds), tff.FederatedType(type_, tff.CLIENTS)
  )
  seeds = [np.array([k, 3 - k], np.int32) for k in range(_CLIENTS)]
  context = runtime.XlaContext(clients_per_block=block)
  with context:
    found = all_clients(seeds)
  assert 'XLA draws other numbers' in str(context.explain(all_clients))
  for seed, ours in zip(seeds, found, strict=True):
    for a, b in zip(ours, draws(seed), strict=True):
      np.testing.assert_array_equal(a, b)


def _order(prepare, rows=12):
  """In which order a client's elements 0, 1, ... are met, for two calls of two clients."""
  type_ = tff.SequenceType(np.int64)

  @tff.tensorflow.computation(type_)
  def of_client(data):
    def append(state, element):
      position, order = state
      return position + 1, tf.tensor_scatter_nd_update(order, [[position]], [element])

    return prepare(data).reduce((0, -tf.ones([3 * rows], tf.int64)), append)[1]

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def all_clients(data):
    return tff.federated_map(of_client, data)

  clients = [tf.data.Dataset.range(rows), tf.data.Dataset.range(rows - 3)]
  context = runtime.XlaContext()
  with context:
    found = [all_clients(clients) for _ in range(2)]
  assert context.lowering(all_clients).is_possible
  return found


@pytest.mark.slow
@pytest.mark.parametrize('buffer', [3, 50])
def test_a_shuffle_gives_every_element_once_in_another_order_each_time(buffer):
  first, second = _order(lambda data: data.shuffle(buffer))
  for order in (first[0], second[0]):
    assert sorted(order[:12]) == list(range(12))
    assert (order[12:] == -1).all()
    # An element is in the buffer at the earliest `buffer` places before its own.
    assert all(element <= place + buffer - 1 for place, element in enumerate(order[:12]))
  assert sorted(first[1][:9]) == list(range(9))
  assert first[0].tolist() != second[0].tolist()


@pytest.mark.slow
def test_each_epoch_shuffles_anew():
  order = _order(lambda data: data.shuffle(50).repeat(3))[0][0].reshape(3, 12)
  assert (np.sort(order) == np.arange(12)).all()
  assert len({tuple(epoch) for epoch in order}) == 3


def test_filters_shards_and_skips():
  def prepare(data):
    return data.filter(lambda x: tf.equal(x % 2, 0)).skip(1).concatenate(data.shard(4, 1)).take(7)

  (order, shorter), _ = _order(prepare)
  assert order[order >= 0].tolist() == [2, 4, 6, 8, 10, 1, 5]
  assert shorter[shorter >= 0].tolist() == [2, 4, 6, 8, 1, 5]


def test_a_data_set_that_shuffles_is_read_at_every_call():
  @tff.tensorflow.computation(tff.SequenceType(np.int64))
  def first(data):
    return data.reduce(tf.constant(0, tf.int64), lambda total, x: total * 13 + x)

  fixed = tf.data.Dataset.range(9)
  with runtime.XlaContext() as context:
    assert len({int(first(fixed)) for _ in range(3)}) == 1
    assert len({int(first(fixed.shuffle(9))) for _ in range(3)}) > 1
    shuffled = fixed.shuffle(9)
    assert len({int(first(shuffled)) for _ in range(3)}) > 1
  assert context.lowering(first).is_possible


@pytest.mark.parametrize(
  'options', [{}, {'clients_per_block': 4}, {'devices': 'cpu,cpu'}], ids=['one', 'block', 'devices']
)
def test_seeds_of_the_time_are_others_for_each_client_draw_and_stage(options):
  """TFF and TensorFlow Privacy make seeds of noise and samples of microseconds."""
  number = 40

  def seed(x):
    return tf.cast(tf.timestamp() * 1e6, tf.int64) + 0 * tf.cast(x, tf.int64)

  @tff.tensorflow.computation(np.int32)
  def two_seeds(x):
    return seed(x), seed(x)

  @tff.tensorflow.computation(np.int32, np.int32)
  def later_seed(x, total):
    return seed(x + total)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def seeds(x):
    total = tff.federated_broadcast(tff.federated_sum(x))
    return tff.federated_map(two_seeds, x), tff.federated_map(later_seed, (x, total))

  with runtime.XlaContext(**options) as context:
    rounds = [seeds([1] * number) for _ in range(2)]
  assert context.lowering(seeds).is_possible
  drawn = [
    [*pair, later] for early, late in rounds for pair, later in zip(early, late, strict=True)
  ]
  assert len({int(s) for client in drawn for s in client}) == 2 * number * 3
  now = time.time() * 1e6
  assert all(abs(int(s) - now) < 60e6 for client in drawn for s in client)


def test_binomial_numbers_of_a_generator_are_the_same_for_each_client():
  """TensorFlow's op writes over the constant from which the generator's state is made."""

  @tff.tensorflow.computation(np.int32)
  def of_client(number):
    generator = tf.random.Generator.from_seed(42, alg='philox')
    return generator.binomial([4], 10.0, 0.3) + 0 * number

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def all_clients(numbers):
    return tff.federated_map(of_client, numbers)

  expected = tf.random.Generator.from_seed(42, alg='philox').binomial([4], 10.0, 0.3)
  with runtime.XlaContext():
    for found in (of_client(0), of_client(0), *all_clients([0, 0, 0])):
      np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('block', [1, pytest.param(4, marks=pytest.mark.slow)])
def test_known_sizes_and_the_algorithm_that_tensorflow_chooses_are_compiled(block):
  """A shape that is cut of a known one is known, as in TensorFlow's random flips."""

  def draws(images):
    generator = tf.random.Generator.from_seed(tf.cast(images[0, 0, 0, 0], tf.int64), 'auto_select')
    return (
      tf.image.stateless_random_flip_left_right(images, [3, -1]),
      tf.random.stateless_normal(tf.shape(images)[2:0:-1], [5, 6]),
      generator.normal([3]),
    )

  type_ = tff.TensorType(np.float32, [6, 2, 3, 1])
  of_client = tff.tensorflow.computation(draws, type_)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def all_clients(images):
    return tff.federated_map(of_client, images)

  values = [np.arange(36, dtype=np.float32).reshape(6, 2, 3, 1) + k for k in range(3)]
  context = runtime.XlaContext(clients_per_block=block)
  with context:
    found = all_clients(values)
  assert context.lowering(all_clients).is_possible
  for images, ours in zip(values, found, strict=True):
    expected = draws(images)
    assert not np.array_equal(expected[0], images)  # some are flipped
    for a, b in zip(ours, expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
