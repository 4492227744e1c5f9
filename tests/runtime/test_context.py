"""TFF's own way of calling: `process.next` with lists of clients."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import example_process as example


def lists():
  data, states = example.data(), example.client_states()
  return tuple(
    [collections.OrderedDict((k, v[i]) for k, v in tree.items()) for i in range(example.CLIENTS)]
    for tree in (states, data)
  )


def three_rounds():
  states, data = lists()
  server = example.server_state()
  for _ in range(3):
    server, states, metrics = example.next_round(server, states, data)
  return server, list(states), metrics


@pytest.mark.slow
def test_next_on_lists_equals_native(native):
  with native.context:
    expected = three_rounds()
  with runtime.XlaContext():
    example.assert_same(expected, three_rounds())


def test_results_at_clients_are_lists_that_can_be_given_back():
  states, data = lists()
  with runtime.XlaContext() as context:
    server, states, _ = example.next_round(example.server_state(), states, data)
    assert type(states) is list and len(states) == example.CLIENTS
    assert list(states[0]) == ['personal', 'steps']
    assert [s['steps'] for s in states] == [0, 1, 2, 3, 0, 1, 2]
    states[3]['steps'] = np.int32(10)
    states = example.next_round(server, states, data)[1]
    assert [s['steps'] for s in states] == [0, 2, 4, 13, 0, 2, 4]
    assert context.statistics.compilations == 1


def test_python_containers_are_as_tff_has_them():
  @tff.tensorflow.computation
  def make():
    return collections.OrderedDict(a=(1, 2.0), b=[tf.zeros([2])])

  @tff.federated_computation
  def initialize():
    return tff.federated_value(make(), tff.SERVER)

  with runtime.XlaContext():
    result = initialize()
  assert isinstance(result, collections.OrderedDict)
  assert isinstance(result['a'], tuple)
  assert result['a'][0] == 1


def _learning_process(differentially_private):
  def model_fn():
    inputs = tf.keras.layers.Input((6,))
    outputs = tf.keras.layers.Dense(3, kernel_initializer='zeros')(inputs)
    return tff.learning.models.from_keras_model(
      tf.keras.Model(inputs, outputs),
      input_spec=(tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32)),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  if differentially_private:
    return tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn, optimizer, model_aggregator=tff.learning.dp_aggregator(0.0, 5.0)
    )
  return tff.learning.algorithms.build_weighted_fed_avg(model_fn, optimizer)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('differentially_private', [False, True])
def test_tff_learning_on_data_sets(native, differentially_private):
  rng = np.random.default_rng(0)
  datasets = [
    tf.data.Dataset.from_tensor_slices(
      (rng.normal(size=(5 + k, 6)).astype(np.float32), rng.integers(0, 3, 5 + k).astype(np.int32))
    ).batch(4)
    for k in range(3)
  ]
  results = []
  for context in (native.context, runtime.XlaContext()):
    with context:
      process = _learning_process(differentially_private)
      state = process.initialize()
      for _ in range(2):
        output = process.next(state, datasets)
        state = output.state
      weights = process.get_model_weights(state).trainable
      results.append((weights, output.metrics['client_work']))
  example.assert_same(*results)


def test_programs_of_known_shapes_without_variables_are_static():
  context = runtime.XlaContext()

  @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
  def doubled(x):
    return 2 * x

  @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
  def counted(x):
    variable = tf.Variable(1.0)
    return x + variable.assign_add(1.0)

  @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
  def of_any_length(x):
    return 2 * x

  assert context.program(doubled).is_static
  assert not context.program(counted).is_static
  assert not context.program(of_any_length).is_static
