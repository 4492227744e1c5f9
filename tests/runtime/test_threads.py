"""Graphs of many lanes that several threads make at once, and `tf.vectorized_map` beside them."""

import concurrent.futures
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.ops.parallel_for import pfor as pfor_lib

import runtime
from runtime.xla import vectorize

_SECONDS = 60  # after which a test that waits in vain fails
ROWS = np.float32([[1, 2], [3, 4], [-5, 6]])


def padded(row):
  return tf.pad(row, [[1, 0]], constant_values=7.0)


def users_map():
  """What a program that knows nothing of the runtime may do meanwhile."""
  found = tf.vectorized_map(
    lambda x: tf.while_loop(lambda v: v < 5.0, lambda v: (v + x,), (x,))[0],
    tf.constant([1.0, 2.0, 3.0]),
  )
  np.testing.assert_array_equal(found, [5, 6, 6])
  # TensorFlow, too, can do it one after the other, and not where it is not to.
  number = np.array([b'a', b'bc'])
  with pytest.raises(ValueError, match='No pfor vectorization defined'):
    tf.vectorized_map(tf.strings.length, number, fallback_to_while_loop=False)


def together(fn, rows):
  """A function of a row, for all rows at once."""
  run = tf.function(
    lambda values: vectorize.vectorized(lambda lane: fn(lane[0]), len(rows), [values]),
    autograph=False,
  )
  return run(tf.constant(rows))


@pytest.fixture
def pauses(monkeypatch):
  """Has the conversions of a kind of op wait: (kind, what to do before)."""

  def pause(kind, wait):
    convert = vectorize._CONVERTERS[kind]

    def converted(pfor_input):
      wait()
      return convert(pfor_input)

    monkeypatch.setitem(vectorize._CONVERTERS, kind, converted)

  registry = pfor_lib._pfor_converter_registry
  yield pause
  pfor_lib._pfor_converter_registry = registry  # that no other test fails with these


def test_two_threads_convert_at_once_and_others_map(pauses):
  """The first to begin is the first to end: what it puts back would be the second's for good."""
  first_is_in, second_is_in = threading.Event(), threading.Event()

  def first_waits():
    first_is_in.set()
    assert second_is_in.wait(_SECONDS)

  def second_waits():
    second_is_in.set()
    np.testing.assert_allclose(first.result(_SECONDS), [2.5, 12.5])

  pauses('L2Loss', first_waits)
  pauses('PadV2', second_waits)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    try:
      first = pool.submit(together, tf.nn.l2_loss, ROWS[:2])
      assert first_is_in.wait(_SECONDS)
      users_map()
      np.testing.assert_array_equal(together(padded, ROWS), [[7, *row] for row in ROWS])
    finally:
      second_is_in.set()
  users_map()


def program(size):
  @tff.tensorflow.computation(np.float32)
  def work(x):
    def body(i, value):
      value = tf.cond(value > 3.0, lambda: value * 0.5, lambda: value + x)
      wider = tf.pad(value[tf.newaxis], [[1, size]], constant_values=2.0)
      return i + 1.0, tf.reduce_sum(wider) * 0.1

    return tf.while_loop(lambda i, _: i < x, body, (0.0, x))[1]

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(work, values))

  return total


@pytest.mark.slow
def test_contexts_of_two_threads_compile_blocks_at_once():
  clients = [1.0, 2.0, 5.0, 3.0]
  programs = [[program(size) for size in range(4)] for _ in range(2)]
  alone = runtime.XlaContext(devices='cpu', clients_per_block=1)
  expected = [alone.invoke(one, clients) for one in programs[0]]

  def compiled(own, block):
    context = runtime.XlaContext(devices='cpu', clients_per_block=block)
    found = [context.invoke(one, clients) for one in own]
    return found, [r for one in own for r in context.lowering(one).serial_reasons]

  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-5)
  try:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      for found, reasons in pool.map(compiled, programs, [2, 4]):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert not reasons
  finally:
    sys.setswitchinterval(interval)
  users_map()
