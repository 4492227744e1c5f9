"""Sizes that a program computes from other sizes, which XLA wants as constants."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import folding
from tests.runtime import learning


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def _padded(rows):
  """The sum of a data set's rows, with zeros up to the next power of two."""
  total = rows.reduce(tf.zeros([5]), lambda total, row: total + row)
  exponent = tf.math.ceil(tf.math.log(tf.cast(tf.size(total), tf.float32)) / math.log(2.0))
  size = tf.cast(2.0**exponent, tf.int32)
  return tf.concat([total, tf.zeros([size - tf.size(total)])], 0)


_ROWS = [tf.data.Dataset.from_tensors(np.arange(5, dtype=np.float32)).repeat(n) for n in (2, 3)]
_TYPE = tff.SequenceType(tff.TensorType(np.float32, [5]))


def test_a_size_found_by_logarithms_is_compiled(native):
  expected, found, explanation = learning.both(native, _padded, _TYPE, _ROWS)
  np.testing.assert_array_equal(found, expected)
  assert np.shape(found) == (2, 8)
  assert explanation.is_compiled, explanation


def test_without_folding_it_is_not(native, monkeypatch):
  monkeypatch.setattr(folding, 'OPS', frozenset())
  expected, found, explanation = learning.both(native, _padded, _TYPE, _ROWS)
  np.testing.assert_array_equal(found, expected)
  assert not explanation.is_compiled


def test_a_quotient_that_is_folded_is_exact(native):
  def divided(rows):
    whole = tf.floor(tf.constant(10.0) / 15.0 + tf.constant(5.0) / 15.0)
    return rows.reduce(np.float32(0), lambda total, row: total + whole * row[1])

  expected, found, explanation = learning.both(native, divided, _TYPE, _ROWS)
  assert explanation.is_compiled
  assert list(found) == list(expected) == [2.0, 3.0]


def test_what_tensorflow_refuses_is_left_where_no_turn_comes_to_it(native):
  def divided(rows):
    seven, nothing = tf.constant(7), tf.constant(0)
    return rows.reduce(
      0, lambda n, row: tf.cond(row[0] > 9, lambda: seven // nothing, lambda: n + 1)
    )

  expected, found, _ = learning.both(native, divided, _TYPE, _ROWS)
  assert list(found) == list(expected) == [2, 3]


@pytest.mark.slow
def test_a_hadamard_rotation_is_compiled(native):
  value_type = tff.to_type([(np.float32, [3, 4]), (np.float32, [2])])
  process = tff.aggregators.HadamardTransformFactory(tff.aggregators.SumFactory()).create(
    tff.to_type(value_type)
  )
  clients = [[np.full([3, 4], k, np.float32), np.array([1, k], np.float32)] for k in range(3)]
  stack, results = tff.framework.get_context_stack(), []
  context = runtime.XlaContext()
  with stack.install(native.context):
    state = process.initialize()
  for one in (native.context, context):
    with stack.install(one):
      results.append(process.next(state, clients).result)
  for place, (expected, found) in enumerate(zip(*results, strict=True)):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, sum(client[place] for client in clients), atol=1e-5)
  assert context.explain(process.next).is_compiled
