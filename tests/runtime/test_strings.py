"""Clients' work on strings, which runs on the host: TFF's results, and nothing is made twice."""

import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import eager, graph_import

WORDS = tff.SequenceType(tff.TensorType(np.str_, [None]))


@tff.tensorflow.computation(WORDS)
def longest_and_letters(words):
  """The longest words joined, how many letters there are, and a sum that is rounded."""

  def step(total, batch):
    joined, letters, mean = total
    lengths = tf.strings.length(batch)
    joined = tf.strings.join([joined, tf.strings.reduce_join(tf.boolean_mask(batch, lengths > 4))])
    return joined, letters + tf.reduce_sum(lengths), mean / 3.0 + 0.1

  return words.reduce(('', 0, tf.constant(0.7)), step)


@tff.tensorflow.computation(WORDS)
def vocabulary(words):
  """A list of strings that grows from batch to batch."""
  found = words.reduce(tf.constant([], tf.string), lambda a, b: tf.unique(tf.concat([a, b], 0)).y)
  return tf.size(found), tf.reduce_sum(tf.strings.to_hash_bucket_fast(found, 1000))


@tff.tensorflow.computation(WORDS)
def through_a_table(words):
  keys = tf.lookup.KeyValueTensorInitializer(['w1', 'ww2'], [3, 4], tf.string, tf.int32)
  table = tf.lookup.StaticHashTable(keys, 1)
  return words.reduce(0, lambda total, batch: total + tf.reduce_sum(table.lookup(batch)))


@tff.federated_computation(tff.FederatedType(WORDS, tff.CLIENTS))
def counted(words):
  first = tff.federated_map(longest_and_letters, words)
  second = tff.federated_map(vocabulary, words)
  return (
    first,
    tff.federated_sum(first[1]),
    tff.federated_mean(first[2]),
    tff.federated_sum(second),
    tff.federated_max(second[0]),
  )


@tff.tensorflow.computation(WORDS)
def through_tables_that_change(words):
  """Counts of words, from tables that are empty when a client begins."""
  tables = (
    tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0),
    tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2),
    tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, [0, 0]),
  )
  word, number = tf.constant(['w']), tf.constant([1], tf.int64)
  counts = words.reduce(number, lambda count, batch: count + tf.size(batch, tf.int64))
  keys, values = (word, number, word), (counts, counts, tf.stack([counts, counts], 1))
  for _ in range(2):  # what is there, and that again
    found = [table.lookup(key) for table, key in zip(tables, keys, strict=True)]
    with tf.control_dependencies(found):
      done = [
        table.insert(key, old + value)
        for table, key, old, value in zip(tables, keys, found, values, strict=True)
      ]
    with tf.control_dependencies(done):
      word, number = tf.identity(word), tf.identity(number)
      keys = (word, number, word)
  return [table.lookup(key) for table, key in zip(tables, keys, strict=True)]


@tff.federated_computation(tff.FederatedType(WORDS, tff.CLIENTS))
def counted_in_tables(words):
  return tff.federated_map(through_tables_that_change, words)


@tff.federated_computation(tff.FederatedType(WORDS, tff.CLIENTS))
def looked_up(words):
  return tff.federated_map(through_a_table, words)


def clients(seed=0):
  rng = np.random.default_rng(seed)
  words = np.array([f'{"w" * (k % 5)}{k}' for k in range(20)])
  return [
    tf.data.Dataset.from_tensor_slices(rng.choice(words, 1 + 3 * k)).batch(2) for k in range(9)
  ]


@pytest.mark.cpu
@pytest.mark.parametrize('computation', [counted, looked_up, counted_in_tables])
def test_the_same_as_tffs(native, computation):
  data = clients()
  with tff.framework.get_context_stack().install(native.context):
    expected = computation(data)
  with runtime.XlaContext():
    for _ in range(2):
      found = computation(data)
      tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_clients_that_share_nothing_are_worked_on_side_by_side(monkeypatch):
  threads, plain = [], eager._in_threads
  monkeypatch.setattr(eager, '_in_threads', lambda *a: threads.append(0) or plain(*a))
  with runtime.XlaContext():
    counted(clients())
    assert threads
    threads.clear()
    looked_up(clients())
    counted_in_tables(clients())
    assert not threads


def test_one_thread_prepares_a_function():
  """TensorFlow prepares a function when it first runs, in each thread that runs it then."""
  begun, early, prepared = [], [], set()

  class Function:
    def get_concrete_function(self, env):
      return env % 2

    def __call__(self, env):
      early.append(env % 2 in begun and env % 2 not in prepared)
      begun.append(env % 2)
      time.sleep(0.02)
      return -env

  assert list(eager._in_threads(Function(), range(8), prepared)) == [-k for k in range(8)]
  assert len(early) == 8 and not any(early)


def test_nothing_is_built_in_the_second_round(monkeypatch):
  with runtime.XlaContext():
    counted(clients())
    counts = []
    run = graph_import.run
    monkeypatch.setattr(graph_import, 'run', lambda *a: counts.append(0) or run(*a))
    counted(clients(1))
  assert not counts


def test_clients_share_a_shuffle(monkeypatch):
  """Draws of one seed go to the clients in their order, so they are not run side by side."""
  shuffled = tf.data.Dataset.from_tensor_slices([str(k) for k in range(50)]).shuffle(50, seed=1)
  monkeypatch.setattr(eager, '_in_threads', lambda *_: pytest.fail('in threads'))
  with runtime.XlaContext():
    counted([shuffled.take(5).batch(2), shuffled.skip(45).batch(2)])


def test_an_aggregate_of_data_sets_is_a_data_set():
  sequence = tff.SequenceType(np.int64)

  @tff.tensorflow.computation
  def zero():
    return tf.data.Dataset.range(1)

  joined = tff.tensorflow.computation(lambda a, b: a.concatenate(b), sequence, sequence)
  as_it_is = tff.tensorflow.computation(lambda a: a, sequence)

  @tff.federated_computation(tff.FederatedType(sequence, tff.CLIENTS))
  def all_in_one(data):
    return tff.federated_aggregate(data, zero(), joined, joined, as_it_is)

  with runtime.XlaContext():
    found = all_in_one([tf.data.Dataset.range(2), tf.data.Dataset.range(3)])
  assert [int(k) for k in found] == [0, 0, 1, 0, 1, 2]
