"""What XLA cannot take runs on the host, the rest stays compiled, and it is said which is which."""

import collections
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning, test_values

Tree = collections.OrderedDict
STATE = tff.to_type(Tree(log=np.str_, model=tff.TensorType(np.float32, (3,)), rounds=np.int32))
KEYS = ['a', 'b']


@tff.tensorflow.computation(STATE, np.float32)
def improve(state, change):
  """Numbers and a string: the two can be computed apart."""
  return Tree(
    log=tf.strings.join([state['log'], '+']),
    model=state['model'] + change,
    rounds=state['rounds'] + 1,
  )


@tff.tensorflow.computation(STATE, np.float32)
def score(state, x):
  return tf.reduce_sum(state['model']) * x


@tff.tensorflow.computation(np.float32)
def through_text(x):
  return tf.strings.to_number(tf.strings.as_string(x, precision=9))


@tff.tensorflow.computation(np.float32)
def through_table(x):
  values = [10.0, 20.0]
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(KEYS, values, tf.string, tf.float32), -1.0
  )
  return x * table.lookup(tf.where(x > 1.5, 'b', 'a'))


@tff.tensorflow.computation(np.float32)
def through_an_unknown_shape(x):
  rows = tf.range(tf.cast(x, tf.int32))
  return tf.cast(tf.size(tf.unique(rows % 2).y), tf.float32)


def round_through(middle):
  """A round whose clients have a part that XLA cannot take, with compiled parts around it."""

  @tff.federated_computation(
    tff.FederatedType(STATE, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  def next_round(state, data):
    scores = tff.federated_map(score, (tff.federated_broadcast(state), data))
    changed = tff.federated_map(middle, scores)
    mean = tff.federated_mean(changed)
    return tff.federated_map(improve, (state, mean)), changed, data, tff.federated_max(data)

  return next_round


def state():
  return Tree(log=b'-', model=np.float32([0.1, 0.2, 0.3]), rounds=np.int32(0))


def two_rounds(context, next_round):
  with context:
    new = state()
    for _ in range(2):
      new, *others = next_round(new, [1.0, 2.0, 3.5])
  return new, others


def assert_same(a, b):
  tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a[1], b[1])
  assert a[0]['log'] == b[0]['log'] == b'-++'
  assert a[0]['rounds'] == b[0]['rounds'] == 2
  np.testing.assert_allclose(a[0]['model'], b[0]['model'], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('middle', [through_text, through_table])
def test_a_part_of_the_clients_work_is_cut_out(native, middle):
  next_round = round_through(middle)
  expected = two_rounds(native.context, next_round)
  for block in (1, 2):
    context = runtime.XlaContext(clients_per_block=block)
    assert_same(expected, two_rounds(context, next_round))
    assert context.statistics.compilations == 2
    explained = context.explain(next_round)
    how = [(part.how, part.place) for part in explained.parts]
    assert not explained.is_compiled
    assert how == [
      ('compiled', 'clients'),  # the scores
      ('compiled', 'aggregation'),  # the largest datum
      ('on the host', 'clients'),
      ('on the host', 'server'),  # the log
      ('compiled', 'aggregation'),  # the mean
      ('compiled', 'server'),  # the model
    ]
    assert all(part.reasons for part in explained.parts if part.how != 'compiled')
    assert 'because' in str(explained)


@pytest.mark.slow
def test_only_a_string_in_the_state_leaves_the_clients_compiled(native):
  @tff.federated_computation(
    tff.FederatedType(STATE, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  def next_round(state, data):
    scores = tff.federated_map(score, (tff.federated_broadcast(state), data))
    return tff.federated_map(improve, (state, tff.federated_mean(scores))), scores

  expected = two_rounds(native.context, next_round)
  context = runtime.XlaContext()
  with warnings.catch_warnings():
    warnings.simplefilter('error')  # It is fast: no warning.
    for _ in range(3):
      assert_same(expected, two_rounds(context, next_round))
  assert not context.explain(next_round).slow_for_clients
  assert [p.how for p in context.explain(next_round).parts if p.place == 'clients'] == ['compiled']


def test_a_piece_that_is_not_compiled_leaves_the_others_compiled(native):
  """The offsets take no argument: TensorFlow draws them, and the sums stay compiled."""

  @tff.tensorflow.computation(np.str_)
  def length(text):
    return tf.strings.length(text)

  @tff.tensorflow.computation
  def offset():
    return tf.random.stateless_uniform([3], [1, 2], 0, 100, tf.int32)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def lengths(texts):
    total = tff.federated_sum(tff.federated_map(length, texts))
    return total, tff.federated_eval(offset, tff.SERVER)

  texts = ['a', 'bcd', 'ef']
  with native.context:
    expected = lengths(texts)
  with runtime.XlaContext() as context:
    for _ in range(2):
      found = lengths(texts)
      assert found[0] == expected[0] == 6
      np.testing.assert_array_equal(found[1], expected[1])
    assert [(part.how, part.place) for part in context.explain(lengths).parts] == [
      ('on the host', 'clients'),
      ('on the host', 'server'),
      ('compiled', 'aggregation'),
    ]


def test_a_repeated_computation_that_is_interpreted_is_warned_of_once():
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(through_an_unknown_shape, values))

  with runtime.XlaContext() as context:
    assert total([1.0, 5.0]) == 3.0
    assert total([1.0]) == 1.0
    if not context.explain(total).is_compiled:
      with pytest.warns(RuntimeWarning, match=r'again and again.*explain'):
        total([1.0])
      with warnings.catch_warnings():
        warnings.simplefilter('error')
        total([1.0])


def test_two_results_of_one_random_draw_are_not_taken_apart():
  @tff.tensorflow.computation(np.float32)
  def draw(x):
    number = x + tf.random.uniform([])
    return Tree(number=number, text=tf.strings.as_string(number, precision=9))

  @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER))
  def of_server(x):
    return tff.federated_map(draw, x)

  with runtime.XlaContext():
    for _ in range(3):
      drawn = of_server(1.0)
      assert float(drawn['text']) == pytest.approx(drawn['number'], abs=1e-6)


def test_a_program_that_is_cut_anew_has_other_pieces():
  """The first cut's first piece ends with `draw`; the second's, with draws refused, before it."""

  @tff.tensorflow.computation(np.float32)
  def scale(x):
    return 10.0 * x

  @tff.tensorflow.computation(np.float32)
  def draw(x):
    return x + tf.random.stateless_uniform([], [1, 2])

  @tff.tensorflow.computation(np.float32)
  def to_text(x):
    return tf.strings.as_string(x, precision=9)

  @tff.tensorflow.computation(np.str_)
  def to_number(text):
    return tf.strings.to_number(text)

  @tff.tensorflow.computation(np.float32)
  def draw_some(x):
    return x + tf.reduce_sum(tf.random.stateless_uniform([tf.cast(x, tf.int32)], [3, 4]))

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def work(values):
    for step in (scale, draw, to_text, to_number, draw_some):
      values = tff.federated_map(step, values)
    return values

  with runtime.XlaContext(compiled=False):
    expected = work([1.0, 4.0])
  with runtime.XlaContext(devices='cpu') as context:
    for _ in range(2):
      np.testing.assert_allclose(work([1.0, 4.0]), expected, rtol=1e-5)
  parts = context.explain(work).parts
  assert [p.how for p in parts] == ['compiled', *['on the host'] * 4]
  assert any('of sizes that depend on data' in reason for reason in parts[-1].reasons)


@pytest.mark.slow
def test_a_dp_aggregators_event_stays_on_the_host():
  """Its state holds the event, whose class and module are strings."""
  process = tff.learning.dp_aggregator(0.0, 5.0).create(tff.TensorType(np.float32, (4,)))
  values = [np.full(4, k, np.float32) for k in range(5)]
  results = []
  for compiled in (True, False):
    with runtime.XlaContext(compiled=compiled) as context:
      new = process.initialize()
      for _ in range(2):
        output = process.next(new, values)
        new = output.state
      results.append(output)
      if compiled:
        parts = context.explain(process.next).parts
        assert {p.how for p in parts if p.place != 'server'} == {'compiled'}
        assert context.statistics.compilations >= 1
  np.testing.assert_allclose(results[0].result, results[1].result, rtol=1e-5)
  for found, expected in zip(*(tf.nest.flatten(r.state) for r in results), strict=True):
    if isinstance(expected, bytes):
      assert found == expected


@pytest.mark.slow
def test_a_model_with_drawn_initial_values_beside_sampled_metrics():
  """Keras draws values that are then overwritten; whose metrics are shown is drawn on the host."""

  def model():
    network = tf.keras.Sequential(
      [tf.keras.layers.InputLayer((learning.FEATURES,)), tf.keras.layers.Dense(learning.CLASSES)]
    )
    return tff.learning.models.from_keras_model(
      network,
      input_spec=learning.SPEC,
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    metrics_aggregator=tff.learning.metrics.finalize_then_sample,
  )
  state = process.initialize()
  data = learning.data_sets()
  results = []
  for compiled in (True, False):
    with runtime.XlaContext(compiled=compiled) as context:
      output = process.next(process.next(state, data).state, data)
      results.append(process.get_model_weights(output.state).trainable)
      if compiled:
        parts = context.explain(process.next).parts
        assert {p.how for p in parts if p.place == 'clients'} == {'compiled'}
        assert 'on the host' in {p.how for p in parts}
  for found, expected in zip(*results, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_random_numbers_of_one_seed_are_the_same_on_the_host():
  """A rotation by random signs at the clients and its inverse at the server: one on the host."""

  @tff.tensorflow.computation(np.float32, tff.TensorType(np.int32, (2,)))
  def turn(x, seed):
    sign = 2.0 * tf.cast(tf.random.stateless_uniform([], seed, 0, 2, tf.int32), tf.float32) - 1.0
    return tf.strings.to_number(tf.strings.as_string(x * sign, precision=9))

  @tff.tensorflow.computation(np.float32, tff.TensorType(np.int32, (2,)))
  def turn_back(x, seed):
    return x * (
      2.0 * tf.cast(tf.random.stateless_uniform([], seed, 0, 2, tf.int32), tf.float32) - 1.0
    )

  seed_type = tff.TensorType(np.int32, (2,))

  @tff.federated_computation(
    tff.FederatedType(seed_type, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  def there_and_back(seed, values):
    turned = tff.federated_map(turn, (values, tff.federated_broadcast(seed)))
    return tff.federated_map(turn_back, (tff.federated_sum(turned), seed))

  with runtime.XlaContext() as context:
    for k in range(6):
      assert there_and_back(np.array([k, -7], np.int32), [1.0, 2.0]) == 3.0
    how = [p.how for p in context.explain(there_and_back).parts]
    assert 'on the host' in how and 'compiled' in how


def test_an_accumulator_that_grows():
  """Its zero has the shape [0], where accumulators have shapes that are not known."""
  growing = tff.TensorType(np.float32, (None,))

  @tff.tensorflow.computation
  def nothing():
    return tf.zeros([0])

  @tff.tensorflow.computation(growing, np.float32)
  def append(values, new):
    return tf.concat([values, [new]], axis=0)

  @tff.tensorflow.computation(growing, growing)
  def join(a, b):
    return tf.concat([a, b], axis=0)

  @tff.tensorflow.computation(growing)
  def report(values):
    return values

  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2.0 * x

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def collect(values):
    doubled = tff.federated_map(double, values)
    return tff.federated_aggregate(doubled, nothing(), append, join, report)

  with runtime.XlaContext():
    assert collect([1.0, 2.0, 3.0]).tolist() == [2.0, 4.0, 6.0]


NAMED = tff.to_type(Tree(name=np.str_, w=np.float32))


@tff.tensorflow.computation(np.float32, np.float32)
def _halfway(w, x):
  return (w + x) / 2.0


@tff.federated_computation(
  tff.FederatedType(np.str_, tff.SERVER),
  tff.FederatedType(np.float32, tff.CLIENTS),
  tff.FederatedType(np.str_, tff.CLIENTS),
)
def _beside_a_sum(name, values, names):
  return name, tff.federated_sum(values), names


@tff.federated_computation(
  tff.FederatedType(NAMED, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
)
def _beside_training(state, values):
  trained = tff.federated_map(_halfway, (tff.federated_broadcast(state.w), values))
  w = tff.federated_mean(trained)
  return tff.federated_zip(Tree(name=state.name, w=w))


def test_a_string_that_is_only_passed_on_goes_past_what_is_compiled(native):
  values = [np.float32(1), np.float32(3)]
  state = Tree(name='a state', w=np.float32(4))

  def results():
    twice = _beside_training(_beside_training(state, values), values)
    return _beside_a_sum('x', values, ['p', 'q']), twice

  with native.context:
    expected = results()
  with runtime.XlaContext() as context:
    assert test_values.same(expected, results())
    for computation in (_beside_a_sum, _beside_training):
      explained = context.explain(computation)
      assert 'compiled' in str(explained) and 'interpreted' not in str(explained)
