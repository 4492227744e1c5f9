"""Gradients of loops: how often they turn is found out, or they are left to the interpreter."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning


def _range(x):
  for _ in tf.range(3):
    x = tf.sin(x) * 1.1
  return x


def _downwards(x):
  for i in tf.range(7, 0, -2):
    x = tf.sin(x) * tf.cast(i, tf.float32)
  return x


def _broken_off(x):
  for _ in tf.range(5):
    x = tf.sin(x) * 1.5
    if tf.reduce_sum(x) > 3.0:
      break
  return x


def _rows(x):
  total = tf.zeros([2])
  for row in x:
    total = tf.tanh(total + row)
  return total


def _counted(asked, first, by):
  def loop(x):
    return tf.while_loop(lambda i, _: asked(i), lambda i, x: (by(i), tf.sin(x) * 1.1), (first, x))[
      1
    ]

  return loop


def _with_a_condition(x):
  for _ in tf.range(3):
    if tf.reduce_sum(x) > 1.0:
      x = tf.exp(-x)
    else:
      x = tf.sin(x) + 1.0
  return x


def _of_the_data(x):
  for _ in tf.range(tf.cast(tf.reduce_sum(x), tf.int32)):
    x = tf.sin(x)
  return x


LOOPS = dict(
  range=_range,
  downwards=_downwards,
  broken_off=_broken_off,
  rows=_rows,
  up_to=_counted(lambda i: i <= 3, 0, lambda i: i + 2),
  down_to=_counted(lambda i: i >= 0, 4, lambda i: i - 1),
  never=_counted(lambda i: i < 0, 4, lambda i: i + 1),
)
LEFT = dict(
  # Three turns: a counter of type float is no whole number.
  floats=(_counted(lambda i: i < 2.5, 0.0, lambda i: i + 1.0), 'number of turns is not known'),
  growing=(_counted(lambda i: i < 50, 1, lambda i: i + i), 'number of turns is not known'),
  of_the_data=(_of_the_data, 'number of turns is not known'),
  with_a_condition=(_with_a_condition, 'a condition in a loop'),
)


def _gradient(loop, settings):
  """Of the sum of what a loop makes of [3, 2]: compiled, eagerly, and the explanation."""

  def function(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      total = tf.reduce_sum(tf.function(loop)(x))
    return tape.gradient(total, x)

  x = np.array([[0.3, 0.4], [0.5, 1.0], [-0.2, 0.1]], np.float32)
  mapped = learning.at_clients(function, tff.TensorType(np.float32, x.shape))
  context = runtime.XlaContext(**settings)
  with tff.framework.get_context_stack().install(context):
    _, _, found = mapped([2 * x, -x, x])
  return found, function(tf.constant(x)), context.explain(mapped)


_SEVERAL = pytest.param(2, marks=[pytest.mark.exhaustive, pytest.mark.slow])


@pytest.mark.parametrize('block', [1, _SEVERAL])
@pytest.mark.parametrize('name', LOOPS)
def test_gradients_of_loops_that_count(name, block):
  found, expected, explanation = _gradient(LOOPS[name], dict(clients_per_block=block))
  assert explanation.is_compiled, explanation
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', LEFT)
def test_gradients_of_other_loops_are_left_to_the_interpreter(name):
  loop, reason = LEFT[name]
  found, expected, explanation = _gradient(loop, {})
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert reason in str(explanation)
