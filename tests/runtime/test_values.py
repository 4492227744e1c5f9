"""What goes in and comes out is what TFF's own runtime takes and gives."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

Tree = collections.OrderedDict
CONTEXTS = {
  'compiled': dict(clients_per_block=1),
  'blocks': dict(clients_per_block=2),
  'interpreted': dict(compiled=False),
}


@pytest.fixture(params=CONTEXTS, name='options')
def _options(request):
  return CONTEXTS[request.param]


def same(expected, found):
  """Equal in value, in type and in dtype, NaN included."""
  if isinstance(expected, tf.data.Dataset):
    assert found.element_spec == expected.element_spec
    return same(list(expected.as_numpy_iterator()), list(found.as_numpy_iterator()))
  assert type(found) is type(expected), (expected, found)
  if isinstance(expected, dict):
    assert list(found) == list(expected)
    return all(same(expected[k], found[k]) for k in expected)
  if isinstance(expected, (list, tuple)):
    assert len(found) == len(expected)
    return all(same(e, f) for e, f in zip(expected, found, strict=True))
  if isinstance(expected, (np.ndarray, np.generic)):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
  else:
    assert found == expected
  return True


@tff.tensorflow.computation
def constants():
  return Tree(
    scalar=tf.constant(1.5),
    whole=tf.constant(3, tf.int64),
    truth=tf.constant(True),
    array=tf.constant([[1, 2]], tf.uint8),
    brain=tf.constant(0.1, tf.bfloat16),
    halves=tf.constant([0.1], tf.float16),
    nested=(tf.constant(2.0, tf.float64), [tf.constant([False])]),
    nothing=Tree(a=(), b=Tree()),
  )


@tff.tensorflow.computation
def texts():
  return Tree(one=tf.constant('caf\u00e9'), many=tf.constant([['a', 'bc']]), number=tf.constant(1))


@tff.tensorflow.computation
def numbers():
  return tf.data.Dataset.range(3)


@tff.tensorflow.computation
def rows():
  return tf.data.Dataset.from_tensor_slices(Tree(b=[1.0, 2.0], a=[[1], [2]]))


@pytest.mark.slow
@pytest.mark.parametrize('compute', [constants, texts, numbers, rows])
def test_results_are_those_of_tff(native, options, compute):
  with native.context:
    expected = compute()
  with runtime.XlaContext(**options):
    assert same(expected, compute())


STATE = tff.to_type(Tree(empty=Tree(a=(), b=()), number=np.float32))


@tff.federated_computation(
  tff.FederatedType(STATE, tff.SERVER), tff.FederatedType(STATE, tff.CLIENTS)
)
def pass_on(server, clients):
  return server, tff.federated_broadcast(server), clients


@pytest.mark.slow
def test_empty_structures_and_clients_values_come_back_as_they_were(native, options):
  state = Tree(empty=Tree(a=(), b=()), number=np.float32(2.0))
  with native.context:
    expected = pass_on(state, [state, state])
  with runtime.XlaContext(**options):
    found = pass_on(state, [state, state])
  assert same(expected, found)
  assert type(found[2]) is list


@pytest.mark.slow
@pytest.mark.parametrize(
  'factory', [tff.aggregators.MeanFactory(), tff.aggregators.UnweightedMeanFactory()]
)
def test_tffs_mean(native, options, factory):
  value_type = tff.to_type(Tree(a=np.float32, b=tff.TensorType(np.float32, (2,))))
  weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  process = factory.create(value_type, *([tff.to_type(np.float32)] if weighted else []))
  values = [Tree(a=float(k), b=np.full(2, k, np.float32)) for k in range(3)]
  arguments = [values, *([[1.0, 2.0, 3.0]] if weighted else [])]
  results = []
  for context in (native.context, runtime.XlaContext(**options)):
    with context:
      output = process.next(process.initialize(), *arguments)
      results.append(Tree(state=output.state, result=output.result, of=output.measurements))
  assert same(*results)


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def summary(values):
  return tff.federated_sum(values), tff.federated_mean(values), tff.federated_max(values)


@pytest.mark.slow
@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_the_computations_business(native, options, wrong):
  with native.context:
    expected = summary([1.0, wrong])
  with runtime.XlaContext(**options):
    assert same(expected, summary([1.0, wrong]))


ROW = tff.to_type(Tree(y=np.int32, x=tff.TensorType(np.float32, (2,))))


@tff.tensorflow.computation(ROW)
def as_pair(row):
  return tf.reduce_sum(row['x']), row['y']


@tff.tensorflow.computation((np.float32, np.int32), (np.float32, np.int32))
def add_pairs(a, b):
  return a[0] + b[0], a[1] + b[1]


@tff.tensorflow.computation
def no_pair():
  return 0.0, 0


@tff.federated_computation(tff.SequenceType(ROW))
def of_one_client(sequence):
  pairs = tff.sequence_map(as_pair, sequence)
  return tff.sequence_reduce(pairs, no_pair(), add_pairs), tff.sequence_sum(pairs)


@tff.federated_computation(tff.FederatedType(tff.SequenceType(ROW), tff.CLIENTS))
def of_clients(sequences):
  return tff.federated_sum(tff.federated_map(of_one_client, sequences))


@tff.federated_computation(tff.FederatedType(tff.SequenceType(ROW), tff.SERVER))
def of_server(sequence):
  return tff.federated_map(of_one_client, sequence)


def _rows(count):
  # Not in the order of the type, and of Python's own types.
  return [{'x': [1.0, k], 'y': k} for k in range(count)]


@pytest.mark.slow
def test_sequences_are_mapped_and_reduced(options):
  with runtime.XlaContext(**options) as context:
    assert of_clients([_rows(3), [], _rows(2)]) == ((9.0, 4), (9.0, 4))
    assert of_server(_rows(3)) == ((6.0, 3), (6.0, 3))
    ordered = [Tree(y=r['y'], x=np.float32(r['x'])) for r in _rows(3)]
    data = tf.data.Dataset.from_generator(
      lambda: iter(ordered),
      output_signature=Tree(y=tf.TensorSpec([], tf.int32), x=tf.TensorSpec([2], tf.float32)),
    )
    assert of_clients([data]) == ((6.0, 3), (6.0, 3))
    assert of_one_client(data) == ((6.0, 3), (6.0, 3))
  for computation in (of_clients, of_server, of_one_client):
    assert context.explain(computation).is_compiled == options.get('compiled', True)


def _variable_of(start):
  @tff.tensorflow.computation(np.float32)
  def compute(x):
    # Keras and TFF give such variables the same name in every computation.
    variable = tf.Variable(start, name='shared', shape=start.shape)
    with tf.control_dependencies([variable.assign_add(tf.fill(start.shape, x))]):
      return variable.read_value()

  return compute


def _table_of(value):
  @tff.tensorflow.computation(np.str_)
  def compute(key):
    keys = tf.lookup.KeyValueTensorInitializer(['a'], [value])
    return tf.lookup.StaticHashTable(keys, -1).lookup(key)

  return compute


def test_variables_and_tables_are_each_computations_own(options):
  small, large = _variable_of(np.float32([1.0])), _variable_of(np.float32([[2.0, 3.0]]))
  first, second = _table_of(1), _table_of(2)
  with runtime.XlaContext(**options):
    for _ in range(2):
      assert small(1.0).tolist() == [2.0]
      assert large(1.0).tolist() == [[3.0, 4.0]]
      assert (first('a'), second('a'), first('b')) == (1, 2, -1)


@tff.tensorflow.computation(tff.SequenceType(np.int64))
def first_ten(numbers):
  return numbers.take(10).reduce(np.int64(0), lambda total, n: total + n)


def test_a_data_set_may_have_no_end(options):
  context = runtime.XlaContext(**options)
  numbers = tf.data.Dataset.range(4)
  with context:
    assert first_ten(numbers.repeat()) == 13
    assert first_ten(numbers.take(3)) == 3
  if options.get('compiled', True):
    assert 'a data set without an end' in str(context.explain(first_ten))


@pytest.mark.slow
@pytest.mark.parametrize('wrong', [10.5, 'ten', [1.0], np.ones(2, np.float32)])
def test_a_value_of_another_type_is_a_type_error(native, options, wrong):
  @tff.tensorflow.computation(np.int32)
  def same_number(x):
    return x

  for context in (native.context, runtime.XlaContext(**options)):
    with context, pytest.raises(TypeError):
      same_number(wrong)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [np.str_, np.int32, np.bool_])
def test_an_empty_list_is_of_any_dtype(native, options, dtype):
  type_ = tff.TensorType(dtype, [None])

  @tff.tensorflow.computation(type_)
  def passed(x):
    return tf.identity(x), tf.size(x)

  @tff.federated_computation(tff.FederatedType(type_, tff.CLIENTS))
  def of_all(values):
    return tff.federated_map(passed, values)

  with native.context:
    expected = passed([]), of_all([[], ()])
  with runtime.XlaContext(**options):
    assert same(expected, (passed([]), of_all([[], ()])))


@pytest.mark.parametrize('dtype', [np.complex64, np.complex128])
@pytest.mark.parametrize('value', [1 + 2j, np.complex64(1j), np.complex128(1j), 1.5], ids=repr)
def test_complex_numbers_are_taken_as_by_tff(native, dtype, value):
  @tff.federated_computation(tff.FederatedType(dtype, tff.CLIENTS))
  def summed(values):
    return tff.federated_sum(values)

  try:
    with native.context:
      expected = summed([value, value])
  except TypeError:
    with runtime.XlaContext(), pytest.raises(TypeError):
      summed([value, value])
  else:
    with runtime.XlaContext():
      assert same(expected, summed([value, value]))


def test_a_tensor_of_one_bfloat16_is_a_value(native, options):
  kind = tf.bfloat16.as_numpy_dtype

  @tff.federated_computation(
    tff.FederatedType(kind, tff.SERVER), tff.FederatedType(kind, tff.CLIENTS)
  )
  def handed_on_and_summed(value, values):
    return value, tff.federated_sum(values)

  one = tf.constant(1.0, tf.bfloat16)
  with native.context:
    expected = handed_on_and_summed(one, [one, one])
  with runtime.XlaContext(**options):
    assert same(expected, handed_on_and_summed(one, [one, one]))


def test_a_state_of_one_bfloat16_comes_to_numpy():
  kind = tf.bfloat16.as_numpy_dtype

  @tff.federated_computation(
    tff.FederatedType(kind, tff.SERVER),
    tff.FederatedType(tff.to_type(()), tff.CLIENTS),
    tff.FederatedType(tff.to_type(Tree(x=kind)), tff.CLIENTS),
  )
  def summed(state, nothing, data):
    return tff.federated_sum(data), nothing, state

  with runtime.create('xla') as machine:
    data = machine.place(Tree(x=np.ones(2, kind)))
    states = machine.place_states(None)
    state, metrics = machine.round(summed, kind(3), states, data, [0, 1])
    assert machine.to_numpy(state)['x'] == 2 and machine.to_numpy(metrics) == 3


@pytest.mark.parametrize('container', [Tree, dict], ids=['OrderedDict', 'dict'])
def test_a_dict_counts_by_the_order_of_its_values(native, container, options):
  inner = Tree(y=np.float32, x=np.float32)
  type_ = tff.to_type(Tree(b=inner, a=np.float32))

  @tff.tensorflow.computation(type_)
  def weighted(value):
    return value['a'] + 10.0 * value['b']['x'] + 100.0 * value['b']['y']

  @tff.federated_computation(
    tff.FederatedType(type_, tff.SERVER), tff.FederatedType(inner, tff.CLIENTS)
  )
  def of_all(server, clients):
    return tff.federated_map(weighted, server), clients, tff.federated_sum(clients)

  turned = container(x=np.float32(1), y=np.float32(2))
  straight = container(y=np.float32(2), x=np.float32(1))
  whole = container(b=turned, a=np.float32(3))

  def results():
    return weighted(whole), of_all(whole, [turned, straight])

  with native.context:
    expected = results()
  with runtime.XlaContext(**options):
    assert same(expected, results())
