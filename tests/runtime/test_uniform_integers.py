"""Uniform integers: within their range however wide it is."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import random_ops


@pytest.mark.parametrize('is_compiled', [False, True])
@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_they_are_what_is_left_of_64_bits(dtype, is_compiled):
  info, raw = np.iinfo(dtype), [0, 1, 5, 2**31, 2**32 - 1, 2**63 + 12345, 2**64 - 1]
  run = tf.function(random_ops._within, jit_compile=is_compiled, autograph=False)
  lowest, highest = int(info.min), int(info.max)
  for low, high in [(0, 7), (-3, 1000), (-5, highest - 5), (-7, highest), (lowest, highest)]:
    found = run(tf.constant(raw, tf.uint64), *(tf.constant(x, dtype) for x in (low, high)))
    assert found.numpy().tolist() == [low + bits % (high - low) for bits in raw]


@pytest.mark.parametrize('block', [1, 4])
def test_a_range_that_its_type_does_not_hold_is_kept_to(block):
  low, high = -2_000_000_000, 2_000_000_000

  @tff.tensorflow.computation(np.int32)
  def draw(more):
    return tf.random.uniform([1000], low, high + more, tf.int32)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def of_clients(more):
    return tff.federated_map(draw, more)

  context = runtime.XlaContext(clients_per_block=block)
  found = np.array(context.invoke(of_clients, [0, 1, 2, 3]), np.int64)
  assert context.lowering(of_clients).is_possible
  assert found.min() >= low
  assert (found < high + np.arange(4)[:, np.newaxis]).all()
  # Six deviations of a mean of 4000 are 0.027 times the width.
  np.testing.assert_allclose(found.mean(), 0, atol=0.03 * (high - low))
