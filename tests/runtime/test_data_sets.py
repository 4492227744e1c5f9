"""What clients' data sets hold is what TFF takes: no names swapped, nothing lost or stale."""

import collections
import contextlib
import os
import sqlite3
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import sequences
from tests.runtime import test_values

pytestmark = pytest.mark.slow  # TFF's own runtime beside ours
Tree = collections.OrderedDict
Pair = collections.namedtuple('Pair', 'a b')
Swapped = collections.namedtuple('Swapped', 'b a')


def rows(n, dtype=np.float32, tree=Tree):
  return tree(y=np.arange(1, n + 1, dtype=np.float32), x=10 * np.arange(1, n + 1, dtype=dtype))


def flat(dtype=np.float32):
  return [tf.data.Dataset.from_tensor_slices(rows(n, dtype)).batch(2) for n in (3, 5)]


def nested():
  return [
    tf.data.Dataset.from_tensor_slices(Tree(z=rows(n), b=(rows(n)['y'], rows(n)))).batch(2)
    for n in (3, 5)
  ]


def listed(datasets):
  return [list(dataset.as_numpy_iterator()) for dataset in datasets]


def reduced(of_element):
  return lambda data: data.reduce(0.0, lambda total, e: total + of_element(e))


def x_of(e):
  return tf.reduce_sum(tf.cast(e['x'], tf.float32))


def weighted(e):
  return x_of(e['z']) + 3.0 * tf.reduce_sum(e['z']['y']) + 7.0 * x_of(e['b'][1])


@tf.function
def looped(data):
  total = 0.0
  for element in data:
    total += x_of(element)
  return total


def mapped(data):
  return reduced(lambda e: tf.reduce_sum(e['p']))(data.map(lambda e: Tree(q=e['y'], p=e['x'])))


def compiled(function, spec):
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(spec))
  return tff.tensorflow.computation(function, type_), type_


def of_clients(function, spec):
  compute, type_ = compiled(function, spec)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def result(data):
    return tff.federated_map(compute, data)

  return result


CASES = {
  'reduce': (reduced(x_of), flat()),
  'loop': (looped, flat()),
  'other dtypes': (reduced(x_of), flat(np.int32)),
  'other dtypes in a loop': (looped, flat(np.int64)),
  'lists': (reduced(x_of), listed(flat())),
  'nested': (reduced(weighted), nested()),
  'nested lists': (reduced(weighted), listed(nested())),
  'mapped': (mapped, flat()),
  'named tuples': (
    reduced(lambda e: tf.reduce_sum(e.a - 3.0 * e.b)),
    [d.map(lambda e: Pair(e['y'], e['x'])) for d in flat()],
  ),
}


@pytest.mark.parametrize('case', CASES)
def test_clients_elements_are_tffs(native, case):
  function, clients = CASES[case]
  spec = {'lists': flat, 'nested lists': nested}.get(case, lambda: clients)()[0].element_spec
  compute = of_clients(function, spec)
  with native.context:
    expected = compute(clients)
  with runtime.XlaContext() as context:
    assert test_values.same(expected, compute(clients))
  assert context.explain(compute).is_compiled


def test_a_server_and_a_computation_that_makes_its_data(native):
  compute, type_ = compiled(reduced(x_of), flat()[0].element_spec)

  @tff.tensorflow.computation
  def made():
    return tf.data.Dataset.from_tensor_slices(rows(4)).batch(2)

  @tff.federated_computation(tff.FederatedType(type_, tff.SERVER))
  def of_server(data):
    return tff.federated_map(compute, data), data

  @tff.federated_computation
  def of_made():
    return compute(made())

  with native.context:
    expected = (*of_server(flat()[1]), of_made(), made(), compute(flat()[1]))
  with runtime.XlaContext():
    found = (*of_server(flat()[1]), of_made(), made(), compute(flat()[1]))
  assert test_values.same(expected, found)


def test_a_placed_population(native):
  tensors = {name: rows(n) for name, n in (('a', 3), ('b', 5))}
  client_data = tff.simulation.datasets.TestClientData(tensors).preprocess(lambda d: d.batch(2))
  compute = of_clients(reduced(x_of), client_data.element_type_structure)
  with native.context:
    expected = compute([client_data.create_tf_dataset_for_client(c) for c in 'ab'])
  with runtime.XlaContext() as context:
    assert test_values.same(expected, compute(context.place(client_data)[[0, 1]]))


def test_a_model_of_two_inputs(native):
  layers = tf.keras.layers

  def examples(n):
    x = Tree(b=np.ones([n, 2], np.float32), a=2 * np.eye(n, 2, dtype=np.float32))
    return tf.data.Dataset.from_tensor_slices(Tree(x=x, y=np.ones([n, 1]))).batch(2)

  data = [examples(3), examples(5)]

  def model_fn():
    inputs = {name: layers.Input((2,), name=name) for name in 'ba'}
    both = layers.Concatenate()(
      [layers.Dense(i + 1, kernel_initializer='ones')(inputs[n]) for i, n in enumerate('ab')]
    )
    return tff.learning.models.from_keras_model(
      tf.keras.Model(inputs, layers.Dense(1, kernel_initializer='ones')(both)),
      input_spec=data[0].element_spec,
      loss=tf.keras.losses.MeanSquaredError(),
    )

  process = tff.learning.algorithms.build_weighted_fed_avg(
    model_fn, tff.learning.optimizers.build_sgdm(0.01)
  )

  def trained():
    return process.get_model_weights(process.next(process.initialize(), data).state).trainable

  with native.context:
    expected = trained()
  with runtime.XlaContext() as context:
    found = trained()
  assert context.explain(process.next).is_compiled
  for e, f in zip(expected, found, strict=True):
    np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('options', [{}, {'compiled': False}], ids=['compiled', 'interpreted'])
def test_intrinsics_of_sequences_take_elements_as_tff_does(native, options):
  row = tff.to_type(Tree(y=np.float32, x=np.float32))

  @tff.tensorflow.computation(np.float32, row)
  def add(total, e):
    return total + e['x'] * e['x'] - e['y']

  @tff.tensorflow.computation(row)
  def changed(e):
    return Tree(y=e['y'] + 1.0, x=2.0 * e['x'])

  @tff.federated_computation(tff.SequenceType(row))
  def of_one(data):
    mapped = tff.sequence_map(changed, data)
    zero = np.float32(0)
    return tff.sequence_reduce(data, zero, add), tff.sequence_reduce(mapped, zero, add)

  data = tf.data.Dataset.from_tensor_slices(rows(3))
  with native.context:
    expected = of_one(data)
  with runtime.XlaContext(**options):
    assert test_values.same(expected, of_one(data))


def test_named_tuples_in_another_order_are_refused(native):
  # A graph takes them in this order, which its type does not say.
  data = [d.map(lambda e: Swapped(e['y'], e['x'])) for d in flat()]
  compute = of_clients(reduced(lambda e: tf.reduce_sum(e.a)), data[0].element_spec)
  with native.context, pytest.raises(ValueError):
    compute(data)
  with runtime.XlaContext(), pytest.raises(ValueError, match='b, a are not in alphabetical order'):
    compute(data)


def _checked(message):
  def check(x):
    with tf.control_dependencies([tf.debugging.Assert(x[0] > 2.0, [message])]):
      return tf.identity(x)

  return check


@pytest.mark.parametrize(
  'change',
  [
    _checked('this client is empty'),
    _checked('more than one element'),
    lambda x: x + tf.cast(tf.argmax(tf.boolean_mask(x, x > 2.0)), tf.float32),
  ],
  ids=['empty', 'several', 'argmax'],
)
def test_an_error_of_a_clients_data_set_is_raised(native, change):
  data = tf.data.Dataset.from_tensor_slices(np.ones([3, 2], np.float32)).map(change)
  compute = of_clients(reduced(tf.reduce_sum), data.element_spec)
  with native.context, pytest.raises(Exception):  # noqa: B017  gRPC's
    compute([data])
  with runtime.XlaContext(), pytest.raises(tf.errors.InvalidArgumentError):
    compute([data])


def test_an_empty_data_set_has_no_elements(native):
  data = [d.filter(lambda e: tf.size(e['x']) > 5) for d in flat()]
  compute = of_clients(reduced(lambda e: x_of(e) + 1.0), data[0].element_spec)
  with native.context:
    expected = compute(data)
  with runtime.XlaContext():
    assert test_values.same(expected, compute(data))


@pytest.mark.parametrize('sizes', [[0, 0], [0, 2]], ids=str)
def test_an_element_of_no_rows_has_none(native, sizes):
  clients = [[rows(n), rows(0)] for n in sizes]
  spec = Tree((name, tf.TensorSpec([None], tf.float32)) for name in 'yx')
  compute = of_clients(
    reduced(lambda e: 10.0 * tf.cast(tf.size(e['x']), tf.float32) + tf.reduce_sum(e['y'] + 1.0)),
    spec,
  )
  with native.context:
    expected = compute(clients)
  with runtime.XlaContext():
    assert test_values.same(expected, compute(clients))


def _lines(path, numbers):
  path.write_text(''.join(f'{n}\n' for n in numbers))


def _records(path, numbers):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for n in numbers:
      writer.write(str(n).encode())


def _whole(path, numbers):
  path.write_text(str(sum(numbers)))


def _table(path, numbers):
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    connection.execute('CREATE TABLE IF NOT EXISTS rows (value TEXT)')
    connection.execute('DELETE FROM rows')
    connection.executemany('INSERT INTO rows VALUES (?)', [(str(n),) for n in numbers])


def _of_table(path):
  query = 'SELECT value FROM rows'
  return tf.data.experimental.SqlDataset('sqlite', str(path), query, (tf.string,)).map(lambda v: v)


FILES = {
  'lines': (_lines, lambda path: tf.data.TextLineDataset(str(path))),
  'records': (_records, lambda path: tf.data.TFRecordDataset([str(path)])),
  'records of': (
    _records,
    lambda path: tf.data.TFRecordDataset(tf.data.Dataset.from_tensors(str(path))),
  ),
  'fixed length': (_lines, lambda path: tf.data.FixedLengthRecordDataset(str(path), 2)),
  'table': (_table, _of_table),
  'read in a map': (
    _whole,
    lambda path: tf.data.Dataset.from_tensors(str(path)).map(tf.io.read_file),
  ),
}


@pytest.mark.parametrize('is_settled', [True, False], ids=['settled', 'just now'])
@pytest.mark.parametrize('case', FILES)
def test_files_are_read_anew_once_they_have_changed(native, tmp_path, case, is_settled):
  write, read = FILES[case]
  path = tmp_path / 'numbers'
  read_once = []

  def changed_to(numbers, age):
    write(path, numbers)
    if is_settled:
      os.utime(path, (time.time() - age,) * 2)

  def rounds():
    changed_to([1, 2], 100)
    data = read(path).map(lambda text: tf.strings.to_number(tf.strings.strip(text)))
    compute = of_clients(reduced(lambda e: e), data.element_spec)
    results = [compute([data]), compute([data])]
    read_once.append(sequences.files(data) is not None and sequences.is_fixed(data))
    changed_to([7, 8], 50)
    return [*results, compute([data])]

  with native.context:
    assert rounds() == [[3.0], [3.0], [15.0]]
  with runtime.XlaContext():
    assert rounds() == [[3.0], [3.0], [15.0]]
  assert read_once[-1] == (is_settled and case != 'read in a map')


def test_endless_data_sets_have_batches_and_shards():
  """Their number of elements is int32's largest, which no sum may pass: they would be empty."""

  def totals(data):
    def total(part):
      return part.reduce(tf.constant(0, tf.int64), lambda sum_, x: sum_ + tf.reduce_sum(x) * 3 + 1)

    endless, often = data.repeat(), data.repeat(10**12)
    parts = (
      tf.data.Dataset.range(1, 2**63 - 1, 3).take(3), tf.data.Dataset.range(-2, 2**63 - 1).take(3),
      endless.batch(3).take(4), endless.shard(3, 0).take(4), endless.skip(3).batch(2).take(3),
      often.take(5), data.shard(3, 2), data.repeat(3).batch(4),
    )  # fmt: skip
    return [total(part) for part in parts]

  sequence = tff.SequenceType(np.int64)
  work = tff.tensorflow.computation(totals, sequence)
  clients = tff.FederatedType(sequence, tff.CLIENTS)
  run = tff.federated_computation(lambda data: tff.federated_map(work, data), clients)
  data = [tf.data.Dataset.range(count) for count in (7, 1, 4)]
  with runtime.XlaContext(devices='cpu'):
    found = run(data)
  assert [list(map(int, one)) for one in found] == [
    [int(t) for t in totals(one)] for one in data
  ]  # fmt: skip


def test_sizes_are_told_as_tensorflow_tells_them(native):
  """-1 for no end and -2 for not known; those go to TensorFlow itself."""

  def sizes(data):
    parts = (
      data, data.batch(3), data.take(2).repeat(3), data.repeat(), data.filter(lambda x: x > 2),
      data.filter(lambda x: x > 2).batch(2), data.concatenate(data.filter(lambda x: x > 2)),
      tf.data.Dataset.zip((data, data.filter(lambda x: x > 2))),
    )  # fmt: skip
    return [part.cardinality() for part in parts]

  run = of_clients(sizes, tf.TensorSpec([], tf.int64))
  data = [tf.data.Dataset.range(count) for count in (7, 1)]
  with native.context:
    expected = run(data)
  with runtime.XlaContext(devices='cpu'):
    found = run(data)
  assert [list(map(int, one)) for one in found] == [list(map(int, one)) for one in expected]
  assert [int(n) for n in expected[0]] == [7, 3, 6, -1, -2, -2, -2, -2]


# Each is 0 for a data set of the numbers below 40, but in one of e^40 runs.


def _order(data):
  return data.reduce(tf.constant(0, tf.int64), lambda total, x: total * 2 + x)


def _drawn(data):
  return data.map(lambda _: tf.random.uniform([]))


def _is_half(number):
  return number > 0.5


def _wrongly_kept(data):
  return data.reduce(np.int64(0), lambda n, u: n + tf.cast(u <= 0.5, tf.int64))


def _same_order_again(data, again):
  return tf.cast(tf.equal(_order(data), _order(again)), tf.int64)


def _same_order_in_a_loop(data):
  data = data.shuffle(40)

  def body(turn, same, last):
    order = _order(data)
    return turn + 1, same + tf.cast(tf.equal(order, last), tf.int64), order

  start = [0, tf.constant(0, tf.int64), tf.constant(-1, tf.int64)]
  return tf.while_loop(lambda turn, *_: turn < 4, body, start)[1]


def _moved_in_a_cache(numbers):
  """Whether the first number is another one in the second epoch."""
  epochs = numbers.take(1).cache().repeat(2)
  last = epochs.reduce(tf.constant(0.0), lambda total, x: x - total)
  return tf.cast(tf.not_equal(last, 0), tf.int64)


DRAWN = dict(
  filter_of_draws=lambda s: _wrongly_kept(_drawn(s).filter(_is_half)),
  epochs_of_a_filter_of_draws=lambda s: _wrongly_kept(_drawn(s).filter(_is_half).repeat(3)),
  filters_of_a_filter=lambda s: _wrongly_kept(_drawn(s).filter(_is_half).filter(lambda u: u < 0.9)),
  cache=lambda s: _moved_in_a_cache(_drawn(s)),
  cached_order=lambda s: _moved_in_a_cache(s.shuffle(40).map(lambda x: tf.cast(x, tf.float32))),
  two_readers=lambda s: (lambda a: _same_order_again(a, a))(s.shuffle(40)),
  a_reader_of_a_map=lambda s: (lambda a: _same_order_again(a.map(lambda x: x + 0), a))(
    s.shuffle(40)
  ),
  a_loop=_same_order_in_a_loop,
  a_drawn_predicate=lambda s: (lambda a: _same_order_again(a, a))(
    s.filter(lambda x: tf.random.uniform([]) < 0.5)
  ),
)


@pytest.mark.parametrize(
  ('block', 'step'), [(1, 1), (2, 4), pytest.param(2, 1, marks=pytest.mark.exhaustive)]
)
def test_draws_are_new_where_tensorflows_are_and_else_are_kept(native, block, step):
  """The same at the first element of each as in all, and never by chance."""
  names = list(DRAWN)[::step]
  run = of_clients(lambda data: [DRAWN[name](data) for name in names], tf.TensorSpec([], tf.int64))
  data = [tf.data.Dataset.range(40)] * 2
  with native.context:
    expected = run(data)
  context = runtime.XlaContext(devices='cpu', clients_per_block=block)
  with context:
    found = run(data)
  assert context.explain(run).is_compiled
  for of_client in (*expected, *found):
    assert {n: int(v) for n, v in zip(names, of_client, strict=True) if v} == {}
