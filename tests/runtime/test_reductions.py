"""Reductions of data sets on the host: loops, with the numbers of TensorFlow's own op."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import reductions
from tests.runtime import learning


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _data(rows):
  numbers = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
  words = np.array([f'w{k % 3}' for k in range(rows)], np.str_)
  return tf.data.Dataset.from_tensor_slices({'number': numbers, 'word': words}).batch(2)


_TYPE = tff.SequenceType(tff.types.tensorflow_to_type(_data(1).element_spec))
_ROWS = (5, 0, 4, 1)


def _mean(rows):
  """Strings keep it on the host; a captured tensor, a quotient, and states of three kinds."""
  scale = tf.constant([1.0, 2.0, 3.0]) / 7.0

  def step(state, batch):
    total, count, letters = state
    total = total / 3.0 + tf.reduce_sum(batch['number'] * scale, 0)
    return total, count + tf.shape(batch['number'])[0], letters + batch['word'][0]

  return rows.reduce((tf.zeros([3]), 0, ''), step)


def _inside_of_a_step(rows):
  def step(total, batch):
    inner = tf.data.Dataset.from_tensor_slices(batch['number'])
    words = tf.strings.length(tf.strings.reduce_join(batch['word']))
    return (
      total + inner.reduce(np.float32(0), lambda a, b: a / 3.0 + b[0]) + tf.cast(words, 'float')
    )

  return rows.reduce(np.float32(0), step)


def _of_windows(rows):
  """Elements that are data sets themselves stay in TensorFlow's op."""

  def step(total, window):
    words = window['word'].reduce('', lambda a, b: a + tf.strings.reduce_join(b))
    return total + tf.strings.length(words)

  return rows.window(2).reduce(0, step)


def _growing(rows):
  start = tf.zeros([0], tf.string)
  found = rows.reduce(start, lambda a, b: tf.unique(tf.concat([a, b['word']], 0)).y)
  return tf.size(found), tf.strings.reduce_join(found)


@pytest.mark.parametrize('function', [_mean, _inside_of_a_step, _of_windows, _growing])
def test_the_numbers_are_tensorflows(native, function):
  expected, found, explanation = learning.both(native, function, _TYPE, list(map(_data, _ROWS)))
  assert not explanation.is_compiled
  tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_they_are_loops(native, monkeypatch):
  made, plain = [], reductions.as_loop
  monkeypatch.setattr(reductions, 'as_loop', lambda *a: made.append(plain(*a)) or made[-1])
  learning.both(native, _inside_of_a_step, _TYPE, [_data(3)])
  assert made == [True, True]
  made.clear()
  learning.both(native, _of_windows, _TYPE, [_data(3)])
  assert sorted(made) == [False, True]


def test_steps_that_are_optimised_have_other_last_bits(native, monkeypatch):
  monkeypatch.setattr(reductions, 'UNCHANGED', {})
  data = list(map(_data, range(3, 12)))
  expected, found, _ = learning.both(native, _mean, _TYPE, data)
  totals = [np.array([of_client[0] for of_client in results]) for results in (expected, found)]
  np.testing.assert_allclose(*totals, rtol=1e-5)
  assert np.any(totals[0] != totals[1])


def test_what_draws_from_a_seed_begins_anew_for_each_client(native):
  def drawn(rows):
    def step(total, batch):
      words = tf.cast(tf.strings.length(batch['word'][0]), tf.float32)
      return total * 2.0 + words * tf.random.uniform([], seed=7)

    return rows.reduce(np.float32(0), step)

  _, found, explanation = learning.both(native, drawn, _TYPE, [_data(4)] * 3)
  assert not explanation.is_compiled
  assert len({float(number) for number in found}) == 1
