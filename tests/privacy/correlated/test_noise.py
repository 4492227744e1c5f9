"""The stream of correlated noise: that of the matrices, and really private."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats
from tensorflow_privacy.privacy.dp_query import tree_aggregation

from privacy import correlated
from privacy.correlated.cohorts import SeparatedCohorts
from privacy.correlated.noise import NoiseStream
from privacy.correlated.participation import MinimumSeparation
from runtime import random_streams

SEPARATED = MinimumSeparation(rounds=11, separation=4)
STRATEGIES = {
  'independent': correlated.Independent(rounds=11),
  'tree': correlated.Tree(rounds=11),
  'banded': correlated.fit_banded(SEPARATED),
  'buffered': correlated.fit_buffered_toeplitz(SEPARATED, 2),
}


def _run(strategy, normals, *, compiled=True, shape=(3,)):
  """The noise of all rounds [n, ...]; `normals(round, draw)` gives what is drawn."""
  stream = NoiseStream(strategy, SEPARATED)

  @tf.function(jit_compile=compiled, autograph=False)
  def next_round(buffers, round_):
    return stream.next(buffers, round_, lambda draw: normals(round_, draw))

  buffers, noise = stream.initial_buffers(shape), []
  for t in range(strategy.rounds):
    step, buffers = next_round(buffers, tf.constant(t))
    noise.append(step.numpy())
  return np.array(noise)


@pytest.mark.parametrize('compiled', [True, False])
@pytest.mark.parametrize('name', STRATEGIES)
def test_the_stream_is_the_decoder(name, compiled):
  strategy = STRATEGIES[name]
  n = strategy.rounds
  draws = strategy.levels if name == 'tree' else 1
  drawn = np.random.default_rng(0).normal(size=[n, draws, 3]).astype(np.float32)
  table = tf.constant(drawn)
  noise = _run(strategy, lambda t, draw: tf.gather(table, t)[draw], compiled=compiled)
  if name == 'tree':  # a node is drawn in the round that completes it
    values = np.array([drawn[((i + 1) << level) - 1, level] for level, i in strategy._nodes])
  else:
    values = drawn[:, 0]
  expected = strategy.sensitivity(SEPARATED) * strategy.decoder() @ values
  np.testing.assert_allclose(noise, expected, atol=3e-5)


@pytest.mark.slow
def test_the_tree_is_that_of_tf_privacy():
  # Both trees of noise that is one everywhere: the weights of all nodes are the same.
  strategy = STRATEGIES['tree']
  ours = _run(strategy, lambda t, draw: tf.ones([1]), shape=(1,))[:, 0]
  theirs = tree_aggregation.EfficientTreeAggregator(value_generator=lambda: tf.constant(1.0))
  state, sums = theirs.init_state(), []
  for _ in range(strategy.rounds):
    value, state = theirs.get_cumsum_and_update(state)
    sums.append(value.numpy())
  np.testing.assert_allclose(np.cumsum(ours) / strategy.sensitivity(SEPARATED), sums, rtol=1e-5)


@pytest.mark.slow
def test_the_tree_is_that_of_tff_s_aggregator():
  """The noise of `tff.aggregators`' DP-FTRL over the rounds has the covariance of the decoder."""
  size = 4000
  factory = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=1.0, clients_per_round=1.0, l2_norm_clip=1.0,
    record_specs=tf.TensorSpec([size]), noise_seed=5, use_efficient=True,
  )  # fmt: skip
  process = factory.create(tff.TensorType(np.float32, [size]))
  state, rounds = process.initialize(), []
  for _ in range(STRATEGIES['tree'].rounds):
    output = process.next(state, [np.zeros(size, np.float32)])
    state = output.state
    rounds.append(output.result)
  decoder = STRATEGIES['tree'].decoder()
  expected = decoder @ decoder.T
  spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
  found = np.array(rounds) @ np.array(rounds).T / size
  assert np.all(np.abs(found - expected) <= 5 / np.sqrt(size) * spread)


def _whitened(strategy, scale=1.0, dimension=4000):
  """C applied to the stream's noise: independent normals of deviation sens(C), if all is well."""

  def normals(t, draw):
    key = random_streams.key(7, random_streams.Stream.DP_NOISE, t, draw)
    return scale * random_streams.normal(key, [dimension])

  noise = _run(strategy, normals, shape=(dimension,))
  return strategy.encoder() @ noise / strategy.sensitivity(SEPARATED)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['banded', 'buffered', 'independent'])
def test_behind_the_noise_is_a_gaussian_mechanism(name):
  white = _whitened(STRATEGIES[name])
  assert stats.kstest(white.ravel()[::3], 'norm').pvalue > 1e-3
  covariance = np.cov(white)
  np.testing.assert_allclose(covariance, np.eye(len(white)), atol=5 / np.sqrt(4000))
  # Negative control: two thirds of the noise is told from it.
  weak = _whitened(STRATEGIES[name], scale=2 / 3)
  assert stats.kstest(weak.ravel()[::3], 'norm').pvalue < 1e-9


@pytest.mark.parametrize('name', STRATEGIES)
def test_the_best_attack_finds_no_more_than_a_gaussian_mechanism(name):
  """A client in every round that it may: the most powerful test of all that is released."""
  strategy = STRATEGIES[name]
  present = np.zeros(strategy.rounds)
  present[:: SEPARATED.separation] = 1.0
  decoder = strategy.decoder() * strategy.sensitivity(SEPARATED)
  covariance = decoder @ decoder.T
  signal_to_noise = np.sqrt(present @ np.linalg.solve(covariance, present))
  assert signal_to_noise <= 1 + 1e-9  # mu of a Gaussian mechanism with noise multiplier one
  if name != 'tree':
    assert signal_to_noise > 0.99
  # A broken twin with the sensitivity of one participation is found out.
  once = (
    strategy.sensitivity(MinimumSeparation(rounds=11, separation=11)) if (name != 'banded') else 1.0
  )
  assert signal_to_noise * strategy.sensitivity(SEPARATED) / once > 1.2


def test_separated_cohorts():
  cohorts = SeparatedCohorts(23, 5)
  rounds = [cohorts.sample(3, t) for t in range(20)]
  assert {len(cohort) for cohort in rounds} == {4, 5}
  for client in range(23):
    taken = [t for t, cohort in enumerate(rounds) if client in cohort]
    assert np.all(np.diff(taken) == 5) and len(taken) == 4
  assert cohorts.expected_size == pytest.approx(23 / 5)
  assert any(np.any(cohorts.sample(4, t)[:4] != rounds[t][:4]) for t in range(5))
  with pytest.raises(ValueError, match='at most the 23 clients, got 24'):
    SeparatedCohorts(23, 24)
