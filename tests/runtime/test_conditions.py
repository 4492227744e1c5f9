"""Conditions: their gradients, the optionals that their branches leave, and branches' results."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import products
from tests.runtime import learning

CONTEXTS = [
  pytest.param({}, id='one by one'),
  pytest.param(dict(clients_per_block=2), marks=pytest.mark.slow, id='blocks'),
]
_WEIGHTS = np.array([[1.0, 2.0, -1.0], [3.0, -1.0, 0.5]], np.float32) / 3


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _gradients(function):
  """[10]: of a function of a batch [n, 2] and of weights [2, 3], by both; and the value."""

  def of_batch(x):
    weights = tf.constant(_WEIGHTS)
    with tf.GradientTape() as tape:
      tape.watch([x, weights])
      value = tf.reduce_sum(tf.square(function(x, weights)))
    by_x, by_weights = tape.gradient(value, [x, weights])
    return tf.concat(
      [tf.reduce_sum(by_x**2, 0), by_x[0, :1], tf.reshape(by_weights, [-1]), [value]], 0
    )

  return of_batch


def _scored(x):
  return tf.reduce_sum(x) > 0.0


def _nested(x, w):
  def inner():
    return tf.cond(x[0, 0] > 0.3, lambda: tf.exp(x @ w), lambda: x @ tf.sin(w))

  return tf.cond(_scored(x), inner, lambda: tf.tanh(2.0 * x) @ w)


def _assigned(x, w):
  """The branches leave values of other shapes and dtypes in the same places."""
  return tf.cond(
    _scored(x),
    lambda: tf.exp(x @ w) * tf.cast(tf.argmax(x @ w, 1), tf.float32)[:, None],
    lambda: tf.stack([tf.reduce_sum(tf.sin(x) @ w, 1)] * 3, 1),
  )


def _by_number(x, w):
  branches = [lambda: tf.exp(x @ w), lambda: tf.tanh(x @ w), lambda: 3.0 * (x @ w)]
  return tf.switch_case(tf.cast(tf.round(3 * x[0, 0]), tf.int32), branches)


def _twice(x, w):
  y = tf.cond(_scored(x), lambda: tf.exp(x @ w), lambda: x @ w)
  return tf.cond(_scored(-y), lambda: tf.sin(y) * y, lambda: tf.tanh(y))


def _turned(x, turns=3):
  return tf.while_loop(lambda i, _: i < turns, lambda i, h: (i + 1, tf.tanh(h) + 0.1), (0, x))[1]


def _scanned(x, w):
  rows = tf.reshape(tf.range(8.0), [4, 2]) / 8
  return tf.scan(lambda h, row: tf.tanh(h * w[:, 0] + row), rows) @ w * tf.reduce_sum(x)


def _loops_within(x, w):
  def inner():
    return tf.cond(x[0, 0] > 0.3, lambda: _turned(x) @ w, lambda: x @ tf.sin(w))

  return tf.cond(_scored(x), inner, lambda: _turned(2.0 * x, 2) @ w)


def _mapped(x, w):
  return tf.map_fn(lambda row: row * row + tf.reduce_sum(w), x) @ w


FUNCTIONS = dict(
  one_side=lambda x, w: tf.cond(_scored(x), lambda: tf.exp(x @ w), lambda: 2 * x @ w),
  both=lambda x, w: tf.cond(_scored(x), lambda: tf.tanh(tf.exp(x @ w)), lambda: tf.sin(x @ w)),
  products=lambda x, w: tf.cond(_scored(x), lambda: x @ w, lambda: (2 * x) @ w),
  nested=_nested,
  unlike=_assigned,
  by_number=_by_number,
  twice=_twice,
  loop=lambda x, w: tf.cond(_scored(x), lambda: _turned(x) @ w, lambda: x @ w),
  loops=_loops_within,
  scan=lambda x, w: tf.cond(_scored(x), lambda: _scanned(x, w), lambda: tf.ones([4, 2]) @ w),
  map=lambda x, w: tf.cond(_scored(x), lambda: _mapped(x, w), lambda: x @ w),
)


@pytest.mark.parametrize('settings', CONTEXTS)
def test_gradients_of_conditions_on_batches_of_any_size(native, settings):
  """Both branches are taken by some batch, full ones and smaller last ones."""
  rng = np.random.default_rng(0)
  sides = [(1, 1), (-1, 1, 1), (1, -1), (-1,)]
  data = [
    tf.data.Dataset.from_tensor_slices(
      np.concatenate([side * rng.random((rows, 2), np.float32) for side in of_client])
    ).batch(rows)
    for of_client, rows in zip(sides, (4, 4, 3, 4), strict=True)
  ]
  data[2] = data[2].unbatch().take(5).batch(4)
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))

  def all_of(batches):
    functions = [_gradients(f) for f in FUNCTIONS.values()]
    start = tf.zeros([len(functions), 10])
    return batches.reduce(start, lambda total, x: 2 * total + tf.stack([f(x) for f in functions]))

  expected, found, explanation = learning.both(native, all_of, type_, data, **settings)
  assert explanation.is_compiled, explanation
  for ours, theirs in zip(found, expected, strict=True):
    for name, our, their in zip(FUNCTIONS, ours, theirs, strict=True):
      np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-5, err_msg=name)


def _run(function, *arguments):
  """What a client's function gives, compiled and eagerly, and the explanation."""
  types = [tff.TensorType(np.asarray(a).dtype, np.shape(a)) for a in arguments]
  mapped = learning.at_clients(function, *types)
  context = runtime.XlaContext()
  with tff.framework.get_context_stack().install(context):
    (found,) = mapped([arguments if len(arguments) > 1 else arguments[0]])
  expected = tf.function(function)(*map(tf.constant, arguments))
  return found, expected, context.explain(mapped)


@pytest.mark.parametrize('number', [-1, 0, 1, 2, 5])
def test_optionals_of_a_program_itself(number):
  """Read under another condition than the one that made them."""

  def function(number, x):
    optional = tf.switch_case(
      number,
      [
        lambda: tf.experimental.Optional.from_value(x),
        lambda: tf.experimental.Optional.empty(tf.TensorSpec([2])),
        lambda: tf.experimental.Optional.from_value(3 * x),
      ],
    )
    return tf.cond(optional.has_value(), optional.get_value, lambda: tf.fill([2], -1.0))

  x = np.array([1.0, 2.0], np.float32)
  found, expected, explanation = _run(function, np.int32(number), x)
  np.testing.assert_array_equal(found, expected)
  assert explanation.is_compiled, explanation


def _until_ten(x):
  return tf.while_loop(lambda t: t < 10.0, lambda t: [t + t], [x])[0]


BRANCHES = dict(  # the factors of both branches
  # Where the number is negative the loop would turn for ever.
  loop=(_until_ten, lambda x: 1.0),
  draws=(
    lambda x: tf.random.stateless_uniform([], [1, 2]),
    lambda x: tf.random.stateless_uniform([], [3, 4]),
  ),
)


@pytest.mark.parametrize('name', BRANCHES)
def test_only_the_branch_that_is_taken_counts(name):
  one, other = BRANCHES[name]

  def function(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.cond(x > 0.0, lambda: tf.exp(x) * one(x), lambda: tf.sin(x) * other(x))
    return tape.gradient(y, x)

  for x in (-1.0, 3.0):
    found, expected, explanation = _run(function, np.float32(x))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert explanation.is_compiled, explanation


@pytest.mark.parametrize('rows', [3, 4, 20])
def test_a_product_that_is_a_branchs_result(rows):
  """A barrier after the product has its numbers in the wrong places there, from four rows on."""
  a, b = (tf.random.normal([rows, size], seed=size) for size in (96, 4))

  @tf.function(jit_compile=True)
  def product(a, b, number):
    branches = [
      lambda factor=factor: products.taken([factor * a, b], transpose_a=True, transpose_b=False)
      for factor in (1.0, 2.0, 3.0)
    ]
    return tf.switch_case(number, branches)

  for number in range(3):
    expected = (number + 1) * tf.matmul(a, b, transpose_a=True)
    np.testing.assert_allclose(product(a, b, tf.constant(number)), expected, rtol=1e-5, atol=1e-5)
