"""Loops that read and set variables, and the tensor lists that carry values to their gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import executable

TURNS, WIDTH = 7, 5
ROWS = tff.SequenceType(tff.TensorType(np.float32, [WIDTH]))


def _loop(body, start):
  condition = lambda turn, _: turn < TURNS  # noqa: E731
  return tf.while_loop(condition, body, (tf.constant(0), start), maximum_iterations=TURNS)[1]


def _reads(weights):
  """A recurrent network, whose weights are the same in each turn."""
  return lambda turn, state: (turn + 1, tf.tanh(tf.linalg.matvec(weights.read_value(), state)))


def _sets(weights):
  """Other weights in each turn."""

  def body(turn, state):
    state = tf.tanh(tf.linalg.matvec(weights.read_value(), state))
    with tf.control_dependencies([state]):
      done = weights.assign(0.9 * weights)
    with tf.control_dependencies([done]):
      return turn + 1, tf.identity(state)

  return body


def _sets_sometimes(weights):
  """Other weights after every second turn."""

  def body(turn, state):
    state = tf.tanh(tf.linalg.matvec(weights.read_value(), state))
    with tf.control_dependencies([state]):
      done = tf.cond(
        tf.equal(turn % 2, 0), lambda: weights.assign(0.8 * weights), lambda: weights.read_value()
      )
    with tf.control_dependencies([done]):
      return turn + 1, tf.identity(state)

  return body


def _reads_in_a_branch(weights):
  """The same weights in each turn, read by one branch, whose gradient keeps an optional value."""

  def body(turn, state):
    read = lambda: tf.linalg.matvec(weights.read_value(), state)  # noqa: E731
    return turn + 1, tf.tanh(tf.cond(tf.equal(turn % 2, 0), read, lambda: 0.5 * state))

  return body


def _holds_a_loop(weights):
  """What is the same in all turns of a loop inside, and another in each turn of this one."""

  def body(turn, state):
    scale = tf.sin(state)
    start = tf.linalg.matvec(weights.read_value(), state)
    inner = lambda i, value: (i + 1, value * scale + 0.1)  # noqa: E731
    value = tf.while_loop(
      lambda i, _: i < 3, inner, (tf.constant(0), start), maximum_iterations=3
    )[1]  # fmt: skip
    return turn + 1, tf.tanh(value * scale + 2.0 * scale)

  return body


def _sets_around_a_loop(weights):
  """The same weights in all turns of a loop inside, and others in each turn of this one."""

  def body(turn, state):
    def inner(i, value):
      return i + 1, tf.tanh(tf.linalg.matvec(weights.read_value(), value))

    state = tf.while_loop(
      lambda i, _: i < 3, inner, (tf.constant(0), state), maximum_iterations=3
    )[1]  # fmt: skip
    with tf.control_dependencies([state]):
      done = weights.assign(0.9 * weights)
    with tf.control_dependencies([done]):
      return turn + 1, tf.linalg.matvec(weights.read_value(), state)

  return body


def _trained(make_body):
  @tff.tensorflow.computation(ROWS)
  def train(rows):
    weights = tf.Variable(np.eye(WIDTH, k=1, dtype=np.float32) + 0.3)
    slopes = tf.Variable(tf.zeros([WIDTH]))

    @tf.function
    def run():
      for row in rows:
        with tf.GradientTape() as tape:
          tape.watch(row)
          loss = tf.reduce_sum(_loop(make_body(weights), row) ** 2)
        by_row, by_weights = tape.gradient(
          loss, [row, weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        slopes.assign_add(by_row)
        weights.assign_sub(0.01 * by_weights)
      return slopes.read_value(), weights.read_value()

    return run()

  @tff.federated_computation(tff.FederatedType(ROWS, tff.CLIENTS))
  def train_all(rows):
    return tff.federated_map(train, rows)

  return train_all


def _clients():
  rows = np.random.default_rng(0).normal(size=(2, 3, WIDTH)).astype(np.float32)
  return [tf.data.Dataset.from_tensor_slices(of_client) for of_client in rows]


@pytest.mark.parametrize(
  ('make_body', 'is_compiled'),
  [
    (_reads, True),
    (_sets, True),
    (_sets_sometimes, True),
    (_reads_in_a_branch, False),
    (_holds_a_loop, True),
    (_sets_around_a_loop, True),
  ],
)
def test_the_same_as_interpreted(make_body, is_compiled):
  train = _trained(make_body)
  with runtime.XlaContext(compiled=False):
    expected = train(_clients())
  with runtime.XlaContext() as context:
    found = train(_clients())
  assert context.explain(train).is_compiled == is_compiled, str(context.explain(train))
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
  )


@pytest.mark.parametrize(('make_body', 'is_kept'), [(_reads, False), (_sets, True)])
def test_no_list_of_the_same_weights(monkeypatch, make_body, is_kept):
  """TensorFlow's gradient keeps the weights of each turn; of the same ones none are kept."""
  calls, plain = [], executable.Executable._on_one_device

  def watched(self, parts, clients):
    calls.append((self, (parts, *clients, self._fresh())))
    return plain(self, parts, clients)

  monkeypatch.setattr(executable.Executable, '_on_one_device', watched)
  with runtime.XlaContext():
    _trained(make_body)(_clients())
  run, arguments = calls[-1]
  text = run._functions['round'].experimental_get_compiler_ir(*arguments)(stage='optimized_hlo')
  assert (f'f32[{TURNS},{WIDTH},{WIDTH}]' in text) == is_kept
