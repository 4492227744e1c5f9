"""Assertions are no obstacle: XLA makes none, and what only they need is not computed."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import checks
from tests.runtime import learning


def _of_even_length(text, value):
  """A value that waits for an assertion on a string, which XLA cannot have."""
  is_even = tf.equal(tf.strings.length(text) % 2, 0)
  with tf.control_dependencies([tf.debugging.Assert(is_even, [text])]):
    return 2.0 * value


@pytest.mark.parametrize('wrapped', [lambda f: f, tf.function], ids=['graph', 'function'])
def test_what_only_an_assertion_needs_leaves_the_work_compiled(wrapped):
  local = tff.tensorflow.computation(wrapped(_of_even_length), np.str_, np.float32)

  @tff.federated_computation(
    tff.FederatedType(np.str_, tff.CLIENTS), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  def doubled(texts, values):
    return tff.federated_map(local, (texts, values))

  with runtime.XlaContext(devices='cpu') as context:
    assert list(doubled(['ab', 'abcd'], [1.0, 2.0])) == [2.0, 4.0]
  assert 'on the host' not in str(context.explain(doubled))


def _once(x):
  """An assignment for which the result waits by an assertion alone."""
  variable = tf.Variable(1.0)
  with tf.control_dependencies([variable.initializer]):
    assigned = variable.assign_add(x)
  with tf.control_dependencies([tf.debugging.assert_less(assigned, 1e9)]):
    return variable.read_value()


def _by_a_function(x):
  variable = tf.Variable(1.0)

  @tf.function
  def doubled(x):
    variable.assign_add(x)
    return 2.0 * x

  with tf.control_dependencies([variable.initializer]):
    y = doubled(x)
  text = tf.strings.as_string(y)
  with tf.control_dependencies([tf.debugging.Assert(y < 1e9, [variable, text])]):
    return variable.read_value()


def _in_a_loop(x):
  variable = tf.Variable(1.0)

  def turn(i, total):
    with tf.control_dependencies([tf.debugging.assert_less(variable.assign_add(x), 1e9)]):
      return i + 1, 2.0 * total + variable.read_value()

  with tf.control_dependencies([variable.initializer]):
    return tf.while_loop(lambda i, _: i < 3, turn, (0, 0.0))[1]


@pytest.mark.parametrize(
  'function, expected', [(_once, 3.0), (_by_a_function, 3.0), (_in_a_loop, 12.0 + 10.0 + 7.0)]
)
def test_what_an_assertion_waits_for_is_done(function, expected):
  """The graph of a program outside of any `tf.function` runs only what something waits for."""
  local = tff.tensorflow.computation(function, np.float32)
  work = tff.federated_computation(
    lambda v: tff.federated_map(local, v), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  with runtime.XlaContext(devices='cpu') as context:
    assert list(work([2.0, 2.0])) == [expected] * 2
  assert context.explain(work).is_compiled, context.explain(work)


def test_an_assertion_whose_result_is_used_stays():
  """A graph that gives the guard's own output back keeps it; its function's is taken away."""

  @tf.function
  def asserted(x):
    tf.debugging.assert_positive(x)
    return x + 1.0

  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [], 'x')
    asserted(x)
    guard = tf.debugging.Assert(x > 0.0, [x])
  given = graph.as_graph_def()
  before = given.SerializeToString(deterministic=True)
  for results, kept in (([guard.name], True), (['x'], False)):
    made = checks.without(given, results)
    (function,) = [f for f in made.library.function if '_asserted_' in f.signature.name]
    assert {n.op for n in function.node_def} == {'AddV2', 'Const', 'Identity', 'NoOp'}
    assert any(n.op == 'If' for n in made.node) == kept
    assert [n.name for n in made.node] == [n.name for n in given.node]
  assert given.SerializeToString(deterministic=True) == before


def test_a_graph_without_assertions_is_the_same():
  with tf.Graph().as_default() as graph:
    tf.cond(tf.constant(1.0) > 0.0, lambda: 1.0, lambda: 2.0)
  given = graph.as_graph_def()
  assert checks.without(given, []) is given


class _Masked(tf.keras.metrics.SparseCategoricalAccuracy):
  """Of the rows that are not of class 0."""

  def update_state(self, y_true, y_pred, sample_weight=None):
    weights = tf.cast(tf.not_equal(y_true, 0), tf.float32)
    return super().update_state(y_true, y_pred, sample_weight=weights)


@pytest.mark.slow
def test_a_metric_of_weighted_rows(native):
  """Keras compares the shapes of weights and values by an op of sets, for which XLA has none."""
  process = tff.learning.algorithms.build_weighted_fed_avg(
    lambda: learning.keras_model(_Masked('masked')), tff.learning.optimizers.build_sgdm(0.1)
  )
  learning.assert_compiled_as_native(native, process, learning.data_sets((1, 4, 7, 0)), (None, 4))
