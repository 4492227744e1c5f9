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
@pytest.mark.parametrize('kind, blocks', [('functional', (None, 4, 6)), ('keras', (None, 4, 6))])
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
  'compression': lambda: _ALGORITHMS.build_weighted_fed_avg(
    learning.keras_model, _SGD, model_aggregator=tff.learning.compression_aggregator()
  ),
  'unweighted': lambda: _ALGORITHMS.build_unweighted_fed_avg(learning.keras_model, _SGD),
  'optimizer schedule': lambda: _ALGORITHMS.build_weighted_fed_avg_with_optimizer_schedule(
    learning.keras_model,
    client_learning_rate_fn=lambda round_: tf.where(round_ < 1, 0.1, 0.01),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm,
  ),
  'mime, optimizer schedule': lambda: _ALGORITHMS.build_mime_lite_with_optimizer_schedule(
    learning.functional_model(),
    learning_rate_fn=lambda round_: tf.where(round_ < 1, 0.1, 0.01),
    base_optimizer=tff.learning.optimizers.build_sgdm(0.1, 0.9),
  ),
  'metrics': lambda: _ALGORITHMS.build_weighted_fed_avg(
    lambda: learning.keras_model(
      tf.keras.metrics.SparseTopKCategoricalAccuracy(2),
      tf.keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    ),
    _SGD,
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


@pytest.mark.exhaustive(but=['of a model'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'build',
  [
    lambda: _ALGORITHMS.build_fed_eval(learning.keras_model),
    lambda: learning.reconstruction(_ALGORITHMS.build_fed_recon_eval),
  ],
  ids=['of a model', 'of a reconstruction'],
)
def test_evaluation(native, build):
  process = build()
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
def test_dropout_has_the_distribution_of_native_runs(native):
  """Two rounds' draws differ; their mean and deviation are those of TFF's own runtime."""
  model, clients = learning.dropout(0.5)
  process = _ALGORITHMS.build_weighted_fed_avg(model, _SGD)
  kept, _ = learning.dropout(0.2)
  other = _ALGORITHMS.build_weighted_fed_avg(kept, _SGD)

  def drawn(context, process, number=40):
    with context:
      state = process.initialize()
      weights = (process.next(state, clients).state.global_model_weights for _ in range(number))
      return np.array(
        [np.concatenate([w.ravel() for w in learning.leaves(own)]) for own in weights]
      )

  context = runtime.XlaContext()
  theirs, ours = drawn(native.context, process), drawn(context, process)
  assert context.lowering(process.next).reasons == []
  assert (ours.std(axis=0) > 0).any()

  def spread(values):
    return float(np.sqrt(values.var(axis=0).sum()))

  error = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / len(ours)) + 1e-7
  assert np.sqrt(np.mean(((ours.mean(axis=0) - theirs.mean(axis=0)) / error) ** 2)) < 1.5
  assert 0.8 < spread(ours) / spread(theirs) < 1.25
  assert spread(drawn(context, other)) / spread(theirs) < 0.7  # another rate is found


@pytest.mark.exhaustive(but=['masked-None', 'gru-3', 'initial numbers-3'])
@pytest.mark.slow
@pytest.mark.parametrize('block', [None, 3])
@pytest.mark.parametrize('name', learning.NETWORKS)
def test_networks(native, name, block):
  model, clients = learning.NETWORKS[name]()
  process = _ALGORITHMS.build_weighted_fed_avg(model, _SGD)
  learning.assert_compiled_as_native(native, process, clients, (block,))
