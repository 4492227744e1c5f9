"""Tensor lists where several clients are worked on at once."""

import numpy as np
import pytest
import tensorflow as tf

from runtime.xla import lane_lists, vectorize

TURNS = 4
X = np.linspace(-1, 1, 3 * TURNS * 2).reshape([3, TURNS, 2]).astype(np.float32)
N = np.array([2, 0, 3], np.int32)
SHARED = tf.constant(np.linspace(2, 3, TURNS * 2).reshape([TURNS, 2]).astype(np.float32))


def _array(size=TURNS, shape=(2,)):
  return tf.TensorArray(tf.float32, size, element_shape=shape)


def _loop(body, start):
  """A loop of turns whose number is known, which a gradient asks for."""
  return tf.while_loop(
    lambda i, *_: i < TURNS,
    lambda i, *values: (i + 1, *body(i, *values)),
    (0, *start),
    maximum_iterations=TURNS,
  )[1:]


def _written(x):
  (array,) = _loop(lambda i, a: (a.write(i, x[i] * 2),), (_array(),))
  return array.stack()


def _recurrence(x):
  """A sum of what came before, each time of the list that is being written."""

  def body(i, array, total):
    total = total * 0.5 + x[i]
    return array.write(i, tf.sin(total)), total

  array, total = _loop(body, (_array(), tf.zeros([2])))
  return array.stack(), total


def _read(x):
  array = _array().unstack(x)
  return _loop(lambda i, total: (total * 2 + array.read(TURNS - 1 - i),), (tf.zeros([2]),))


def _read_by_all(x):
  """All lanes read one list."""
  array = _array().unstack(SHARED)
  return _loop(lambda i, total: (total * x[i] + array.read(i),), (tf.zeros([2]),))


def _shared_list_becomes_lanes_own(x):
  array = _array().unstack(SHARED)
  (array,) = _loop(lambda i, a: (a.write(i, a.read(i) + x[i]),), (array,))
  return array.stack()


def _written_by_all(x):
  """What no lane changes, beside what each does: a loop's counter of its own, for one."""

  def body(i, places, own):
    return places.write(i, tf.cast(i, tf.float32) * SHARED[i]), own.write(i, x[i])

  places, own = _loop(body, (_array(), _array()))
  return _loop(lambda i, t: (t + places.read(i) * own.read(i),), (tf.zeros([2]),))


def _nested(x):
  def outer(i, array):
    def inner(j, total, below):
      total = total + x[j] * tf.cast(i + 1, tf.float32)
      return total, below.write(j, total)

    total, below = _loop(inner, (tf.zeros([2]), _array()))
    return (array.write(i, total + below.read(1)),)

  (array,) = _loop(outer, (_array(),))
  return array.stack()


def _chosen(x):
  """Where all lanes take the same branch."""
  array = _array().unstack(x)

  def body(i, total, array):
    array = tf.cond(i < 2, lambda: array.write(i, x[i] * 10), lambda: array)
    return total + array.read(i), array

  total, array = _loop(body, (tf.zeros([2]), array))
  return total, array.stack()


def _gradients(x):
  """By what differs between lanes and by what does not, through a list that is written."""
  weights = tf.reshape(tf.linspace(-0.5, 0.5, 4), [2, 2])
  with tf.GradientTape() as tape:
    tape.watch([x, weights])

    def body(i, state, array):
      state = tf.tanh(state @ weights + x[i][tf.newaxis])
      return state, array.write(i, state[0] * SHARED[i])

    state, array = _loop(body, (tf.zeros([1, 2]), _array()))
    loss = tf.reduce_sum(array.stack() ** 2) + tf.reduce_sum(state)
  return tape.gradient(loss, [x, weights])


def _length(x):
  array = _array().unstack(x)
  return tf.cast(array.size(), tf.float32) * x[0]


ALIKE = [
  _written,
  _recurrence,
  _read,
  _read_by_all,
  _shared_list_becomes_lanes_own,
  _written_by_all,
  _nested,
  _chosen,
  _gradients,
  _length,
]


def _together(function, inputs):
  concrete = tf.function(function, autograph=False).get_concrete_function(
    *(tf.TensorSpec(i.shape[1:], i.dtype) for i in inputs)
  )

  @tf.function(jit_compile=True, autograph=False)
  def together(*values):
    return vectorize.vectorized(lambda lane: concrete(*lane), len(inputs[0]), list(values))

  return tf.nest.flatten(together(*map(tf.constant, inputs)))


def _assert_as_alone(function, *inputs):
  found = _together(function, inputs)
  # In a graph, where a list is read again and again as it was.
  graph = tf.function(function, autograph=False)
  alone = [tf.nest.flatten(graph(*map(tf.constant, lane))) for lane in zip(*inputs, strict=True)]
  for own, each in zip(found, zip(*alone, strict=True), strict=True):
    np.testing.assert_allclose(own, np.stack(each), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('function', ALIKE)
def test_lists_of_all_lanes(function):
  _assert_as_alone(function, X)


def test_elements_that_change_places_with_lanes_are_found_out(monkeypatch):
  monkeypatch.setattr(lane_lists, '_turned', lambda value: tf.reshape(value, [-1, 3, 2]))
  with pytest.raises((AssertionError, ValueError)):
    _assert_as_alone(_read, X)


def _places(x, n):
  return _array().write(n, x[0]).stack()


def _turns(x, n):
  """As many writes as a lane asks for."""
  _, array = tf.while_loop(
    lambda i, _: i < n, lambda i, a: (i + 1, a.write(i, x[i])), (0, _array())
  )
  return array.stack()


def _branches(x, n):
  array = _array().unstack(x)
  return tf.cond(n > 1, lambda: array.write(0, x[1]), lambda: array).stack()


@pytest.mark.parametrize(
  ('function', 'reason'),
  [(_places, 'places that differ'), (_turns, 'places that differ'), (_branches, 'some of several')],
)
def test_what_lanes_do_at_their_own_places_is_refused(function, reason):
  with pytest.raises(NotImplementedError, match=reason):
    _together(function, [X, N])
