"""Sums over a client's examples: the plain ones, and no piece of padding is computed."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from processes.examples import sums_of_examples


@pytest.mark.parametrize('capacity', [5, 16, 17, 600])
@pytest.mark.parametrize(('features', 'fewest'), [(3, 5462), (100, 164), (2000, 16)])
def test_the_sums_are_those_of_the_clients_own_rows(capacity, features, fewest):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(capacity, features)).astype(np.float32)
  y = np.arange(capacity, dtype=np.int32)

  def of_rows(x, y, is_example):
    values = tf.reduce_sum(x, axis=1) * tf.cast(y, tf.float32)
    return {
      'sum': tf.reduce_sum(tf.where(is_example, values, 0.0)),
      'rows': tf.reduce_sum(tf.cast(is_example, tf.float32)),
      'pieces': tf.constant(1.0),
    }

  @tf.function(jit_compile=True)
  def found(count):
    data = collections.OrderedDict(x=tf.constant(x), y=tf.constant(y), num_examples=count)
    return sums_of_examples(data, ['sum', 'rows', 'pieces'], of_rows)

  piece = max(fewest, -(-capacity // 32))
  for count in {0, 1, 16, 17, capacity // 2, capacity - 1, capacity}:
    if count > capacity:
      continue
    sums = found(tf.constant(count))
    plain = (x.astype(np.float64).sum(axis=1) * y)[:count].sum()
    np.testing.assert_allclose(sums['sum'], plain, rtol=1e-4, atol=1e-4 * capacity * features)
    assert sums['rows'] == count
    assert sums['pieces'] == (1 if capacity <= piece else -(-count // piece))


def test_no_padding_of_texts_is_computed():
  """A sentence has few numbers, and much to be computed of each."""
  data = {'x': tf.zeros([512, 20], tf.int32), 'y': tf.zeros([512, 20], tf.int32)}

  def of_rows(x, y, is_example):
    return {'rows': tf.reduce_sum(tf.cast(is_example, tf.float32)), 'computed': float(len(x))}

  for count in (1, 40, 512):
    sums = sums_of_examples({**data, 'num_examples': count}, ['rows', 'computed'], of_rows)
    assert sums['rows'] == count
    assert sums['computed'] < count + 16
