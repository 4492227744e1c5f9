"""What a compiled function only passes on is not written out again."""

import numpy as np
import pytest
import tensorflow as tf

from runtime.xla.handed_on import HandedOn


def _stage(state, factor):
  """A new value under two names, and two that are arguments."""
  total = factor * tf.add_n(state['model'])
  return {'state': tf.nest.map_structure(tf.identity, state), 'a': total, 'b': [total, factor]}


@pytest.mark.parametrize('compiled', [False, True])
def test_only_new_results_are_written_each_once(compiled):
  handed_on = HandedOn(_stage)
  written = tf.function(handed_on.new_results, jit_compile=compiled, autograph=False)
  for size in (2, 3):  # traced for each
    state = {'model': [tf.ones([size]), tf.range(float(size))], 'round': tf.constant(7)}
    factor = tf.constant(2.0)
    results = handed_on.call(written, state, factor)
    tf.nest.map_structure(np.testing.assert_array_equal, results, _stage(state, factor))
    assert results['state']['model'][0] is state['model'][0] and results['b'][1] is factor
    assert results['a'] is results['b'][0]
    assert len(written(state, factor)) == 1


def test_results_follow_how_each_trace_passes_them_on():
  """What is new for one form of the arguments may be handed on for another."""
  handed_on = HandedOn(lambda x: x if x.shape.rank == 0 else x + 1.0)
  written = tf.function(handed_on.new_results)
  for _ in range(2):
    assert handed_on.call(written, tf.constant(3.0)) == 3.0
    assert handed_on.call(written, tf.constant([3.0])) == 4.0


def test_an_identity_that_waits_for_something_stays():
  def counting(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  handed_on = HandedOn(counting)
  written = tf.function(handed_on.new_results, autograph=False)
  assert len(written(tf.constant(1.0))) == 1
  with pytest.raises(tf.errors.InvalidArgumentError):
    handed_on.call(written, tf.constant(-1.0))


def test_what_was_computed_before_is_a_result_like_any_other():
  constant = tf.constant([5.0, 6.0])
  handed_on = HandedOn(lambda x: [constant, x])
  written = tf.function(handed_on.new_results, autograph=False)
  found, x = handed_on.call(written, tf.constant(1.0))
  np.testing.assert_array_equal(found, [5.0, 6.0])
  assert x == 1.0
