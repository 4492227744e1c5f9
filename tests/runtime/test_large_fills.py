"""Large tensors of one number: equal, and never written out before XLA has them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import large_fills, replacements

SHAPE = [300, 200]


@pytest.mark.parametrize(
  'dtype', ['float32', 'float64', 'bfloat16', 'int32', 'int64', 'uint8', 'bool', 'complex64']
)
@pytest.mark.parametrize('shape', [SHAPE, [2, 3], [], [0, 5]])
def test_they_are_those_of_tensorflow(dtype, shape):
  value = tf.cast(tf.constant(1), dtype)
  ours = tf.function(lambda: large_fills.fill(shape, value), jit_compile=True)()
  expected = tf.fill(shape, value)
  assert ours.dtype == expected.dtype and ours.shape == expected.shape
  assert bool(tf.reduce_all(tf.equal(ours, expected)))


@pytest.mark.parametrize(('shape', 'is_fill'), [(SHAPE, False), ([2, 3], True)])
def test_what_tensorflow_would_fold_is_no_longer_there(shape, is_fill):
  """TensorFlow folds what its own kernels can compute; padding of XLA's is none of it."""

  @tf.function
  def replaced():
    result = tf.fill(shape, tf.constant(2.0))
    return replacements.replaced([result.op], [result])

  (output,) = replaced.get_concrete_function().outputs
  while output.op.type in ('Identity', 'EnsureShape'):
    output = output.op.inputs[0]
  assert output.op.type == ('Fill' if is_fill else 'XlaPad')


def test_others_are_left():
  assert large_fills.taken(tf.constant([2, 3]), tf.constant(0.0)) is None
  assert large_fills.taken(tf.constant(SHAPE), tf.constant('text')) is None
  of_any = tf.function(lambda dims, value: tf.constant(large_fills.taken(dims, value) is None))
  assert of_any(tf.constant(SHAPE), tf.constant(0.0))


@pytest.mark.parametrize('blocks', [1, 3])
def test_clients_fill_with_numbers_of_their_own(native, blocks):
  """One that is the same for all clients, and one that is not, also for several at once."""

  @tff.tensorflow.computation(np.float32)
  def of_client(x):
    return tf.reduce_sum(tf.zeros(SHAPE) + x), tf.reduce_sum(tf.fill(SHAPE, x))

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def program(values):
    return tff.federated_sum(tff.federated_map(of_client, values))

  values = [1.0, 2.0, 4.0, 8.0]
  with native.context:
    expected = list(program(values))
  with runtime.XlaContext(clients_per_block=blocks) as context:
    assert list(program(values)) == expected == [15.0 * 60000] * 2
  assert context.lowering(program).is_possible
