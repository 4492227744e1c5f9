"""Elements whose sizes vary: a smaller last batch, and what is made of a data set's part."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

CONTEXTS = {'one by one': dict(clients_per_block=1), 'blocks': dict(clients_per_block=2)}


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


def both(native, function, type_, data, **settings):
  """What a function of a client's data set gives natively and compiled, and the explanation."""
  local = tff.tensorflow.computation(function, type_)
  mapped = tff.federated_computation(
    lambda s: tff.federated_map(local, s), tff.FederatedType(type_, tff.CLIENTS)
  )
  stack = tff.framework.get_context_stack()
  with stack.install(native.context):
    expected = mapped(data)
  context = runtime.XlaContext(**settings)
  with stack.install(context):
    found = mapped(data)
  return expected, found, context.explain(mapped)


# Parts of a data set.


def _total(batches):
  """A number that depends on every element and on every batch's size."""

  def add(total, batch):
    places = tf.range(1, 1 + tf.size(batch, tf.int64))
    return total * 3 + tf.reduce_sum(batch * places)

  return batches.reduce(np.int64(0), add)


def _sum_of_products(pairs):
  return pairs.reduce(np.int64(0), lambda total, pair: total * 3 + tf.reduce_sum(pair[0] * pair[1]))


def _sum(numbers):
  return numbers.reduce(np.int64(0), lambda total, number: total * 2 + tf.reduce_sum(number))


def _is_even(number):
  return number % 2 == 0


PARTS = dict(
  skip=lambda s: _total(s.skip(3).batch(4)),
  skip_filter=lambda s: _sum(s.skip(3).filter(_is_even)),
  skip_take=lambda s: _total(s.skip(3).take(6).batch(4)),
  take_skip=lambda s: _total(s.take(9).skip(3).batch(4)),
  zip_skip=lambda s: _sum_of_products(tf.data.Dataset.zip((s, s.skip(1))).batch(4)),
  skip_shuffle=lambda s: (
    s.skip(3)
    .shuffle(9)
    .batch(4)
    .reduce(
      np.int64(0), lambda total, batch: total + tf.reduce_sum(batch) * tf.size(batch, tf.int64) ** 0
    )
  ),
  skip_more=lambda s: _total(s.skip(20).batch(4)),
  skip_all=lambda s: _total(s.skip(-1).batch(4)),
  skip_more_shuffle=lambda s: _sum(s.skip(50).shuffle(4)),
  take_none=lambda s: _total(s.take(0).batch(4)),
  take_none_shuffle=lambda s: _sum(s.take(0).filter(_is_even).shuffle(3)),
  take_all=lambda s: _total(s.take(-1).batch(5)),
  concatenate=lambda s: _total(s.skip(3).concatenate(s.skip(8)).repeat(2).batch(5)),
  shard_skip=lambda s: _total(s.shard(2, 1).skip(2).batch(3)),
  batch_skip=lambda s: _total(s.skip(2).batch(3).skip(1)),
)


@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_parts_of_a_data_set(native, settings):
  data = [tf.data.Dataset.range(n) for n in (12, 2, 7, 0)]
  type_ = tff.SequenceType(np.int64)
  expected, found, explanation = both(
    native, lambda s: {k: part(s) for k, part in PARTS.items()}, type_, data, **settings
  )
  assert explanation.is_compiled, explanation
  assert [dict(f) for f in found] == [dict(e) for e in expected]
