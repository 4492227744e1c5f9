"""Compiled arithmetic is TensorFlow's, to the last bit where a jump hangs on it."""

import collections
import functools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies
from hypothesis.extra import numpy as of_numpy
from tensorflow_federated.python.aggregators import modular_clipping

import runtime
from runtime.xla import exact_division
from tests.runtime import learning

Tree = collections.OrderedDict
VALUES = 16
DIVISORS = (3, 7, 15)
FLOATS = (np.float16, np.float32, np.float64, tf.bfloat16.as_numpy_dtype)
INTEGERS = (np.int8, np.int32, np.int64, np.uint8)
LARGEST = {np.dtype(np.int8): 127, np.dtype(np.uint8): 255, np.dtype(np.float16): 2000}


def _of_constant(x, c):
  """What jumps at multiples of a constant, which XLA could see through."""
  c = tf.constant(c, x.dtype)
  results = Tree(remainder=x % c)
  if x.dtype != tf.bfloat16:  # XLA floors its quotient before it is rounded to bfloat16.
    results['floored'] = x // c
  if x.dtype.is_floating:
    results['floor_of_quotient'] = tf.floor(x / c)
    # TFF's modular clipping to [-c / 3, 2 c / 3).
    low = tf.constant(-1.0, x.dtype) * c / tf.constant(3.0, x.dtype)
    results['clipped'] = x - tf.floor(x / c - low / c) * c
  else:
    results['truncated'] = tf.truncatediv(x, c)
    ratio = x / c  # float64, or float32 of small integers
    results['floor_of_quotient'] = tf.floor(ratio)
    results['periods'] = tf.cast(tf.floor(ratio - tf.cast(-5, ratio.dtype) / 15), tf.int32)
  return results


def _casts(x):
  targets = [tf.bool, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64]
  if x.dtype.is_integer:
    targets += [tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
  return Tree((f'to_{dtype.name}', tf.cast(x, dtype)) for dtype in targets)


def compute(x):
  """All of it; run eagerly, op by op, it is TensorFlow's own arithmetic.

  (In a graph, and so on TFF's runtime, TensorFlow's optimiser takes reciprocals itself.)
  """
  constants = Tree((f'by_{c}', _of_constant(x, c)) for c in DIVISORS)
  return Tree(constants=constants, casts=_casts(x))


def on_each_client(of_client):
  """The TensorFlow computation, mapped over clients."""
  takes = of_client.type_signature.parameter
  several = isinstance(takes, tff.StructType)
  of_clients = [tff.FederatedType(type_, tff.CLIENTS) for type_ in (takes if several else [takes])]
  return tff.federated_computation(
    lambda values: tff.federated_map(of_client, values), of_clients if several else of_clients[0]
  )


@functools.cache
def arithmetic(dtype):
  type_ = tff.TensorType(dtype, (VALUES,))
  return on_each_client(tff.tensorflow.computation(compute, type_))


def same(a, b, path=''):
  """Equal bits, but that any NaN is the other."""
  if isinstance(a, dict):
    return all(same(a[k], b[k], f'{path}.{k}') for k in a)
  if isinstance(a, (list, tuple)):
    return all(same(x, y, f'{path}[{i}]') for i, (x, y) in enumerate(zip(a, b, strict=True)))
  assert a.dtype == b.dtype, path
  if a.dtype == tf.bfloat16:  # Whose NaN NumPy does not know.
    a, b = a.astype(np.float32), b.astype(np.float32)
  np.testing.assert_array_equal(a, b, path)
  return True


def _values(dtype):
  largest = LARGEST.get(np.dtype(dtype), 10**6)
  if np.dtype(dtype).kind in 'iu':
    smallest = 0 if np.dtype(dtype).kind == 'u' else -largest
    elements = strategies.integers(smallest, largest)
  else:
    # Whole numbers and halves: multiples of the divisors are among them.
    elements = strategies.integers(-2 * largest, 2 * largest).map(lambda n: n / 2)
  arrays = of_numpy.arrays(np.float64, VALUES, elements=elements)
  return strategies.lists(arrays.map(lambda a: a.astype(dtype)), min_size=1, max_size=3)


def check(context, dtype, clients):
  found = context.invoke(arithmetic(dtype), clients)
  for x, each in zip(clients, found, strict=True):
    same(tf.nest.map_structure(lambda t: t.numpy(), compute(tf.constant(x))), each)


def multiples(dtype):
  """Every multiple of a divisor, where a quotient that is off by an ulp shows."""
  largest = LARGEST.get(np.dtype(dtype), 10**6)
  smallest = 0 if np.dtype(dtype).kind == 'u' else -largest
  values = [n * c for c in DIVISORS for n in range(-40, 40) if smallest <= n * c <= largest]
  return list(np.resize(values, (-(-len(values) // VALUES), VALUES)).astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
def test_division_floor_modulo_and_casts(dtype):
  context = runtime.XlaContext()
  check(context, dtype, multiples(dtype))

  @hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
  @hypothesis.given(_values(dtype))
  def property_(clients):
    check(context, dtype, clients)

  property_()


def test_in_blocks_of_clients():
  check(runtime.XlaContext(clients_per_block=4), np.float32, multiples(np.float32))


@pytest.mark.parametrize('dtype', [np.float32, tf.bfloat16.as_numpy_dtype], ids=['float32', 'bf16'])
@pytest.mark.parametrize('block', [None, 4])
def test_on_a_gpu_quotients_are_float64s_and_the_same(monkeypatch, block, dtype):
  """There XLA divides float32 inexactly; what is done about it changes no number of a CPU's."""
  monkeypatch.setattr(exact_division, '_divides_inexactly', lambda: True)
  monkeypatch.setattr(exact_division, 'keep', lambda graph_def: None)  # which has a part in it
  check(runtime.XlaContext(clients_per_block=block), dtype, multiples(dtype))


def test_a_float64_quotient_is_rounded_as_ieee_754_says():
  bits = np.random.default_rng(0).integers(-(2**31), 2**31, [2, 10**6], np.int32)
  numbers, divisors = bits.view(np.float32)
  with np.errstate(all='ignore'):
    expected = numbers / divisors
  smallest = np.finfo(np.float32).tiny  # XLA on a CPU takes smaller numbers as zero.
  kept = [(np.abs(v) >= smallest) | (v == 0) | np.isnan(v) for v in (numbers, divisors, expected)]
  found = _exact_quotients(numbers, divisors).numpy()
  np.testing.assert_array_equal(found[np.all(kept, axis=0)], expected[np.all(kept, axis=0)])


@tf.function(jit_compile=True)
def _exact_quotients(numbers, divisors):
  return exact_division.exact('RealDiv', [numbers, divisors])


@pytest.mark.cpu
def test_without_its_barrier_a_quotient_is_off(monkeypatch):
  """The negative control: what the barrier is for does happen without it."""
  monkeypatch.setattr(exact_division, 'keep', lambda graph_def: None)
  with pytest.raises(AssertionError):
    check(runtime.XlaContext(), np.float32, multiples(np.float32))


def _with_nan(x):
  """What NaN goes through, or is lost in where a minimum of NaN is a number."""
  low, high = tf.constant(-2.0, x.dtype), tf.constant(3.0, x.dtype)
  return Tree(
    clipped=tf.clip_by_value(x, low, high),
    minimum=tf.minimum(low, x),
    maximum=tf.maximum(x, high),
    smallest=tf.reduce_min(x),
    largest=tf.reduce_max(x),
    at_most_six=tf.nn.relu6(x),
    finite=tf.math.is_finite(x),
    # Its polynomial is of a clipped argument.
    error_function=tf.math.is_nan(tf.math.erf(x)),
  )


@pytest.mark.cpu
@pytest.mark.parametrize('dtype', FLOATS, ids=lambda d: np.dtype(d).name)
def test_nan_is_not_lost(dtype):
  type_ = tff.TensorType(dtype, (4,))
  of_clients = on_each_client(tff.tensorflow.computation(_with_nan, type_))
  clients = [
    np.array(v, dtype) for v in ([np.nan, 1, -9, 9], [np.inf, -np.inf, 0, 2], [np.nan] * 4)
  ]
  for block in (1, 2):
    found = runtime.XlaContext(clients_per_block=block).invoke(of_clients, clients)
    for x, each in zip(clients, found, strict=True):
      same(tf.nest.map_structure(lambda t: t.numpy(), _with_nan(tf.constant(x))), each)


@pytest.mark.parametrize('activation', [tf.nn.elu, tf.nn.selu], ids=lambda a: a.__name__)
def test_slopes_of_activations_at_zero_and_nan(activation):
  """As of a layer that starts with zeros: SELU's is 1.05 there, and XLA's own kernel has 1.76."""

  @tff.tensorflow.computation(tff.TensorType(np.float32, (6,)))
  def slopes(x):
    return tf.gradients(activation(x), x)[0]

  of_clients = on_each_client(slopes)
  x = np.array([0.0, -0.0, np.nan, -1.0, 2.0, -np.inf], np.float32)
  with tf.GradientTape() as tape:
    value = tf.constant(x)
    tape.watch(value)
    result = activation(value)
  expected = tape.gradient(result, value).numpy()
  for block in (1, 2):
    found = runtime.XlaContext(clients_per_block=block).invoke(of_clients, [x, x])
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-6)


@pytest.mark.parametrize(
  'function', [tf.sqrt, tf.math.rsqrt, tf.math.reciprocal], ids=lambda f: f.__name__
)
def test_an_infinite_slope_of_which_nothing_is_asked_is_nothing(function):
  """As of distances to themselves, which are masked; where something is asked it is infinite."""

  @tff.tensorflow.computation(tff.TensorType(np.float32, (2, 4)))
  def slopes(v):
    above, x = tf.unstack(v)
    return tf.gradients(function(x), x, grad_ys=above)[0]

  above, x = np.float32([0, 1, 0, -2]), np.float32([0, 0, 4, 4])
  found_by = {
    block: runtime.XlaContext(clients_per_block=block).invoke(
      on_each_client(slopes), [np.stack([above, x])] * 2
    )
    for block in (1, 2)
  }
  with tf.GradientTape() as tape:
    value = tf.constant(x)
    tape.watch(value)
    result = function(value)
  expected = tape.gradient(result, value, output_gradients=tf.constant(above)).numpy()
  assert expected[0] == expected[2] == 0 and not np.isfinite(expected[1])
  for found in found_by.values():
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-6)


def test_segments_of_a_client_stay_its_own():
  """Ids that are none of its own are left out, also where several clients are worked on at once."""

  @tff.tensorflow.computation(tff.TensorType(np.float32, (5,)))
  def segments(values):
    ids = tf.constant([0, 1, 2, -1, 3])
    return [
      op(values, ids, 2)
      for op in (tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max,
                 tf.math.unsorted_segment_min, tf.math.unsorted_segment_prod)
    ]  # fmt: skip

  clients = [np.arange(1, 6, dtype=np.float32) * k for k in (1, 10, 100)]
  expected = [[values[:2]] * 4 for values in clients]
  for block in (1, 3):
    found = runtime.XlaContext(clients_per_block=block).invoke(on_each_client(segments), clients)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('turned', ['transpose_a', 'transpose_b', 'adjoint_a', 'adjoint_b'])
def test_products_of_complex_matrices(turned):
  @tff.tensorflow.computation(tff.TensorType(np.float32, (2, 2, 2)))
  def product(v):
    x, y = tf.unstack(v)
    return tf.matmul(tf.complex(x, y), tf.complex(y, 2 * x), **{turned: True})

  clients = [np.arange(8, dtype=np.float32).reshape(2, 2, 2) * k for k in (1, 2)]
  numbers = [(x + 1j * y, y + 2j * x) for x, y in clients]
  turn = np.conj if 'adjoint' in turned else np.asarray
  of_b = turned.endswith('b')
  expected = [a @ turn(b).T if of_b else turn(a).T @ b for a, b in numbers]
  for block in (1, 2):
    found = runtime.XlaContext(clients_per_block=block).invoke(on_each_client(product), clients)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_array_that_is_read_where_each_client_says():
  @tff.tensorflow.computation(tff.TensorType(np.float32, (4,)))
  def read(values):
    array = tf.TensorArray(tf.float32, 4, element_shape=[]).unstack(values)
    return array.read(tf.cast(values[3], tf.int32))

  clients = [np.array([0, 1, 2, place], np.float32) for place in (2, 0)]
  for block in (1, 2):
    found = runtime.XlaContext(clients_per_block=block).invoke(on_each_client(read), clients)
    assert list(found) == [2.0, 0.0]


@pytest.mark.parametrize('draws', [False, True], ids=['as it is', 'lowered'])
def test_an_array_that_grows(draws):
  """XLA would drop what is written behind its end."""

  @tff.tensorflow.computation(tff.TensorType(np.float32, (3,)))
  def grow(values):
    array = tf.TensorArray(tf.float32, 3, dynamic_size=True, element_shape=[]).unstack(values)
    array = array.write(3, values[0] + (tf.random.uniform([]) if draws else 0.5))
    return tf.floor(tf.reduce_sum(array.stack()))

  of_clients = on_each_client(grow)
  for block in (1, 2):
    context = runtime.XlaContext(clients_per_block=block)
    with context:
      found = of_clients([np.array([1, 2, 3], np.float32)] * 2)
    assert list(found) == [7.0, 7.0]
    assert 'TensorListSetItem' in str(context.explain(of_clients))


def _places(x):
  buckets = tf.raw_ops.Bucketize(input=x, boundaries=[0.5, 1.0, 2.0])
  of_targets = [tf.math.in_top_k([1] * 4, x, k) for k in (1, 3)]
  of_no_class = [tf.math.in_top_k([4, 2, -5, -1], x, k) for k in (1, 2, 5)]
  return [*of_targets, *of_no_class, buckets]


def _of_complex(x):
  """To four digits: rounding errors are others."""
  number = tf.complex(tf.where(tf.math.is_finite(x), x, -0.3), tf.constant([2.0, -1e-3, 3.0, 1e-9]))
  values = [tf.acosh(z) for z in (number, -number)]
  return [tf.round(1e4 * part(z)) for z in values for part in (tf.math.real, tf.math.imag)]


def _masked(x):
  return [x * tf.cast(mask, x.dtype) for mask in (x > 0, x < 0, tf.math.is_finite(x))]


@pytest.mark.parametrize('draws', [False, True], ids=['as it is', 'lowered'])
@pytest.mark.parametrize('function', [_places, _masked, _of_complex])
def test_what_is_not_finite_among_others(function, draws):
  """Its place, and a mask of it: a number and not a selection, 0 times NaN or infinity is NaN.

  And the sides of complex numbers.
  """
  rows = np.array([[np.nan, 1, 2, 3], [0, 1, np.inf, 3], [0, 1, 2, 3], [3, 1, -2, 0]], np.float32)

  @tff.tensorflow.computation(tff.TensorType(np.float32, rows.shape))
  def of_client(x):
    return function(x), tf.random.uniform([]) if draws else 0.0

  of_clients = on_each_client(of_client)
  for block in (1, 2):
    context = runtime.XlaContext(clients_per_block=block)
    with context:
      found = of_clients([rows] * 2)
    assert context.explain(of_clients).is_compiled
    for of_one, _ in found:
      same([value.numpy() for value in function(tf.constant(rows))], list(of_one))


@pytest.mark.cpu
@pytest.mark.slow
@pytest.mark.parametrize('dtype', [np.int8, np.uint64])
@pytest.mark.parametrize('draws', [False, True], ids=['as it is', 'lowered'])
def test_shifts_by_any_number_of_bits(dtype, draws):
  """Also by more bits than there are, and by fewer than none."""
  bits = 8 * np.dtype(dtype).itemsize
  counts = np.array([0, 1, bits - 1, bits, bits + 1, 100, 127], dtype)
  if np.dtype(dtype).kind == 'i':
    counts[-2:] = [-1, -100]
  limits = np.iinfo(dtype)
  numbers = np.array([limits.min, limits.max, 1, 7, 100], dtype)[:, np.newaxis]

  def shifted(x, y):
    return tf.bitwise.left_shift(x, y), tf.bitwise.right_shift(x, y)

  @tff.tensorflow.computation(*(tff.TensorType(dtype, a.shape) for a in (numbers, counts)))
  def of_client(x, y):
    draw = tf.random.uniform([]) if draws else 0.0
    return *shifted(x, y), *shifted(x, counts), draw

  of_clients = on_each_client(of_client)
  expected = [a.numpy() for a in shifted(numbers, counts)] * 2
  for block in (1, 2):
    context = runtime.XlaContext(clients_per_block=block)
    with context:
      found = of_clients([numbers] * 2, [counts] * 2)
    assert context.explain(of_clients).is_compiled
    for of_one in found:
      same(expected, list(of_one)[:4])


@pytest.mark.parametrize('draws', [False, True], ids=['as it is', 'lowered'])
def test_two_solutions_one_of_a_matrix_that_xla_knows(draws):
  """XLA's compilation of these ended the process."""
  matrix = np.array([[4.0, 1.0], [2.0, 3.0]], np.float32)
  right = np.array([[1.0], [2.0]], np.float32)

  def solved(a, b):
    known = tf.eye(2) * 3.0 + tf.constant([[0.0, 1.0], [0.0, 0.0]])
    return tf.linalg.solve(a, b), tf.linalg.solve(known, b, adjoint=True)

  @tff.tensorflow.computation(*(tff.TensorType(np.float32, a.shape) for a in (matrix, right)))
  def of_client(a, b):
    return *solved(a, b), tf.random.uniform([]) if draws else 0.0

  of_clients = on_each_client(of_client)
  for block in (1, 2):
    context = runtime.XlaContext(clients_per_block=block)
    with context:
      found = of_clients([matrix] * 2, [right] * 2)
    assert context.explain(of_clients).is_compiled
    for of_one in found:
      for ours, theirs in zip(list(of_one)[:2], solved(matrix, right), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_the_largest_and_smallest_of_nobody():
  @tff.federated_computation(tff.FederatedType(np.uint64, tff.CLIENTS))
  def extremes(values):
    return tff.federated_min(values), tff.federated_max(values)

  for options in (dict(clients_per_block=1), dict(clients_per_block=2), dict(compiled=False)):
    context = runtime.XlaContext(**options)
    assert context.invoke(extremes, []) == (2**64 - 1, 0)
    assert context.invoke(extremes, [np.uint64(2**64 - 2), np.uint64(5)]) == (5, 2**64 - 2)


@pytest.mark.slow
def test_tffs_modular_clipping(native):
  process = modular_clipping.ModularClippingSumFactory(-5, 10).create(tff.TensorType(np.int32))
  for context in (native.context, runtime.XlaContext()):
    state = context.invoke(process.initialize, None)
    for values, result in (([10], -5), ([9], 9), ([-6], 9), ([-5], -5), ([8, 3], -4)):
      argument = tff.structure.Struct([(None, state), (None, values)])
      assert context.invoke(process.next, argument).result == result


@pytest.mark.parametrize(
  'vectors',
  [lambda m: tf.linalg.eigh(m + tf.transpose(m))[1], lambda m: tf.linalg.svd(m)[2]],
  ids=['eigh', 'svd'],
)
def test_vectors_of_decompositions_have_the_signs_of_tensorflow(native, vectors):
  """XLA's have others: a vector and its negative are as good."""
  matrices = np.random.default_rng(0).normal(size=(6, 4, 4)).astype(np.float32)
  type_ = tff.TensorType(np.float32, [4, 4])
  expected, found, explanation = learning.both(native, vectors, type_, list(matrices))
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert 'with vectors, which XLA gives other signs' in str(explanation)
  xlas = [tf.function(vectors, jit_compile=True)(tf.constant(m)).numpy() for m in matrices]
  assert np.abs(np.array(xlas) - expected).max() > 0.1
