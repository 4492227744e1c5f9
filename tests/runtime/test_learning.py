"""`tff.learning` on `tf.data` clients: compiled, with the numbers of TFF's own runtime."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning

_SGD = tff.learning.optimizers.build_sgdm(0.1)
_ALGORITHMS = tff.learning.algorithms
_MODELS = {'functional': learning.functional_model, 'keras': learning.keras_model}


def _model(kind):
  # A functional model is given as it is, a Keras model as a function that makes it.
  return _MODELS[kind]() if kind == 'functional' else _MODELS[kind]


@pytest.mark.exhaustive(but=['functional-blocks0'])
@pytest.mark.slow
@pytest.mark.parametrize('kind, blocks', [('functional', (None, 6)), ('keras', (None, 4))])
def test_weighted_federated_averaging_in_blocks_of_one_some_and_all(native, kind, blocks):
  clients = learning.data_sets()
  assert len(clients) == 6
  process = _ALGORITHMS.build_weighted_fed_avg(_model(kind), _SGD)
  learning.assert_compiled_as_native(native, process, clients, blocks)


_PROCESSES = {
  'fed_prox, iterators': lambda: _ALGORITHMS.build_weighted_fed_prox(
    learning.functional_model(), 0.1, _SGD
  ),
  'fed_prox, Keras': lambda: _ALGORITHMS.build_unweighted_fed_prox(learning.keras_model, 0.1, _SGD),
  'fed_sgd': lambda: _ALGORITHMS.build_fed_sgd(learning.keras_model, _SGD),
  'mime': lambda: _ALGORITHMS.build_weighted_mime_lite(
    learning.functional_model(), tff.learning.optimizers.build_sgdm(0.1, 0.9)
  ),
  'robust': lambda: _ALGORITHMS.build_weighted_fed_avg(
    learning.functional_model(), _SGD, model_aggregator=tff.learning.robust_aggregator()
  ),
  'secure': lambda: _ALGORITHMS.build_weighted_fed_avg(
    learning.functional_model(),
    tff.learning.optimizers.build_adam(0.1),
    model_aggregator=tff.learning.secure_aggregator(weighted=True),
  ),
}


@pytest.mark.exhaustive(but=['fed_prox, Keras', 'mime'])
@pytest.mark.slow
@pytest.mark.parametrize('name', _PROCESSES)
def test_algorithms_and_aggregators(native, name):
  learning.assert_compiled_as_native(native, _PROCESSES[name](), learning.data_sets())


@pytest.mark.slow
def test_iterators_in_blocks(native):
  process = _PROCESSES['fed_prox, iterators']()
  learning.assert_compiled_as_native(native, process, learning.data_sets(), (4,))


@pytest.mark.slow
def test_reconstruction(native):
  """Local variables are fitted on one part of a client's data, global ones on the other."""
  process = learning.reconstruction()
  learning.assert_compiled_as_native(native, process, learning.data_sets(), (None, 4))


@pytest.mark.slow
def test_evaluation(native):
  process = _ALGORITHMS.build_fed_eval(learning.keras_model)
  clients = learning.data_sets()
  results = []
  for context in (native.context, runtime.XlaContext()):
    with context:
      output = process.next(process.initialize(), clients)
      results.append([(learning.leaves(output.state), learning.leaves(output.metrics))])
  learning.assert_same(*results)
  assert context.lowering(process.next).is_possible


@pytest.mark.slow
def test_k_means(native):
  rng = np.random.default_rng(0)
  clients = [
    tf.data.Dataset.from_tensor_slices(rng.normal(size=(n, 3)).astype(np.float32))
    for n in (5, 0, 9, 2)
  ]
  process = _ALGORITHMS.build_fed_kmeans(2, (3,), random_seed=(0, 1))
  learning.assert_compiled_as_native(native, process, clients, (None, 4))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('name', learning.NETWORKS)
def test_networks(native, name):
  model, clients = learning.NETWORKS[name]()
  process = _ALGORITHMS.build_weighted_fed_avg(model, _SGD)
  # A convolution in blocks is written in another way.
  blocks = (None, 4) if name == 'convolution' else (None,)
  learning.assert_compiled_as_native(native, process, clients, blocks)
