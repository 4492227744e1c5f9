"""The mean-estimation theory: identities, brute force, Monte Carlo, and the TFF processes."""

import math

import numpy as np
import pytest
import tensorflow as tf

import processes
import runtime
from analysis import mean_estimation
from analysis.claims import mean_process
from analysis.mean_estimation import HeterogeneousMeanEstimation, MeanEstimation
from privacy.plan import ExampleLevelPrivacy, NoPrivacy
from privacy.sampling import EveryClient
from processes.method import BuildSpec, ExamplesSpec, Tree
from runtime.noise_key import NoiseKey
from tff_models.model import Model

PROBLEM = MeanEstimation(
  num_silos=5, num_examples=10, sampling_variance=2.0, centre_variance=0.4, privacy_variance=15.0
)
MIXED = HeterogeneousMeanEstimation(
  num_examples=np.array([5, 10, 20, 40]),
  sampling_variance=np.array([1.0, 2.0, 2.0, 4.0]),
  centre_variance=0.3,
  privacy_variance=np.array([1.0, 9.0, 30.0, 100.0]),
)
LAMBDAS = np.array([0.0, 0.1, 0.5, 1.0, 3.0, 20.0, np.inf])


def test_the_end_points_are_local_training_and_fedavg():
  assert PROBLEM.error(0.0) == pytest.approx(PROBLEM.local_error)
  assert PROBLEM.error(np.inf) == pytest.approx(PROBLEM.fedavg_error)
  local = np.array([[1.0, 2.0, 6.0]])
  np.testing.assert_allclose(mean_estimation.estimate(local, 0.0), local)
  np.testing.assert_allclose(mean_estimation.estimate(local, np.inf), 3.0)


def test_the_estimate_minimises_the_objective():
  """Lemma 6.1, both of its forms, against a search."""
  local = np.array([0.3, -1.2, 2.0, 0.1, 0.7])
  mean, candidates = local.mean(), np.linspace(-3, 3, 200_001)
  found = mean_estimation.estimate(local, 0.8)
  for k in range(5):
    objective = 0.5 * (candidates - local[k]) ** 2 + 0.4 * (candidates - mean) ** 2
    assert candidates[np.argmin(objective)] == pytest.approx(found[k], abs=1e-4)
    alpha, others = PROBLEM.weight_of_own(0.8), np.delete(local, k).mean()
    assert alpha * local[k] + (1 - alpha) * others == pytest.approx(found[k])
    assert alpha == pytest.approx((5 + 0.8) / ((1 + 0.8) * 5))


def test_lambda_star_is_the_minimiser():
  """Theorem 6.3 and corollary 6.4."""
  grid = np.linspace(0.0, 20.0, 200_001)
  errors = PROBLEM.error(grid)
  assert grid[np.argmin(errors)] == pytest.approx(PROBLEM.optimal_lambda, abs=1e-3)
  assert errors.min() == pytest.approx(PROBLEM.optimal_error)
  assert PROBLEM.optimal_lambda == pytest.approx((2.0 + 15.0 / 10) / (10 * 0.4))  # equation 31
  _, variance = PROBLEM.posterior(0.0, 0.0)
  assert variance == pytest.approx(PROBLEM.optimal_error)


def test_the_optimal_estimate_is_the_posterior_mean():
  local = np.array([0.3, -1.2, 2.0, 0.1, 0.7])
  found = mean_estimation.estimate(local, PROBLEM.optimal_lambda)
  for k in range(5):
    mean, _ = PROBLEM.posterior(local[k], np.delete(local, k).mean())
    assert found[k] == pytest.approx(mean)


def test_the_posterior_is_that_of_the_joint_gaussian():
  """Lemma 6.2 by conditioning; theta has a prior so wide that it says nothing."""
  wide, silos = 1e6, PROBLEM.num_silos
  centres = PROBLEM.centre_variance * np.eye(silos) + wide
  observed = centres + PROBLEM.local_variance * np.eye(silos)
  gain = np.linalg.solve(observed, centres).T
  local = np.array([0.3, -1.2, 2.0, 0.1, 0.7])
  variance = np.diag(centres - gain @ centres)
  for k in range(silos):
    mean, sigma = PROBLEM.posterior(local[k], np.delete(local, k).mean())
    assert mean == pytest.approx((gain @ local)[k], abs=1e-4)
    assert sigma == pytest.approx(variance[k], abs=1e-4)


def test_gaps_are_differences_of_errors():
  """Propositions 6.5 and 6.6."""
  assert PROBLEM.gap_to_local == pytest.approx(PROBLEM.local_error - PROBLEM.optimal_error)
  assert PROBLEM.gap_to_fedavg == pytest.approx(PROBLEM.fedavg_error - PROBLEM.optimal_error)


def test_federating_mitigates_the_cost_of_privacy_up_to_the_number_of_silos():
  """Theorem 6.8."""
  public = MeanEstimation(num_silos=5, num_examples=10, sampling_variance=2.0, centre_variance=0.4)
  np.testing.assert_allclose(
    PROBLEM.privacy_cost(LAMBDAS), PROBLEM.error(LAMBDAS) - public.error(LAMBDAS), rtol=1e-12
  )
  assert PROBLEM.privacy_cost(np.inf) == pytest.approx(PROBLEM.privacy_cost(0.0) / 5)


def test_without_heterogeneity_fedavg_is_best_and_without_variance_nothing_is_lost():
  same = MeanEstimation(num_silos=3, num_examples=4, sampling_variance=1.0, centre_variance=0.0)
  assert math.isinf(same.optimal_lambda)
  assert same.optimal_error == pytest.approx(same.fedavg_error)
  exact = MeanEstimation(num_silos=3, num_examples=4, sampling_variance=0.0, centre_variance=0.0)
  assert exact.optimal_error == exact.gap_to_local == exact.gap_to_fedavg == 0.0


# -------------------------------------------------------- appendix E.5


def test_equal_silos_are_the_special_case():
  equal = HeterogeneousMeanEstimation(
    num_examples=np.full(5, 10), sampling_variance=2.0, centre_variance=0.4, privacy_variance=15.0
  )
  np.testing.assert_allclose(equal.local_variances, PROBLEM.local_variance)
  np.testing.assert_allclose(equal.optimal_lambdas, PROBLEM.optimal_lambda)
  for value in LAMBDAS:
    np.testing.assert_allclose(equal.errors(value), PROBLEM.error(value))


def test_every_silos_lambda_is_its_minimiser():
  """Theorem E.5 and lemma E.4."""
  grid = np.geomspace(1e-3, 1e3, 4001)
  errors = np.stack([MIXED.errors(value) for value in grid])
  best = grid[np.argmin(errors, axis=0)]
  np.testing.assert_allclose(MIXED.optimal_lambdas, best, rtol=5e-3)
  _, variances = MIXED.posterior(0.0, 0.0)
  np.testing.assert_allclose(MIXED.errors(MIXED.optimal_lambdas), variances, rtol=1e-9)


def test_a_silo_that_is_too_noisy_falls_back_to_fedavg():
  noisy = HeterogeneousMeanEstimation(
    num_examples=np.array([10, 10, 10]),
    sampling_variance=1.0,
    centre_variance=0.1,
    privacy_variance=np.array([0.0, 0.0, 200.0]),
  )
  assert np.isinf(noisy.optimal_lambdas[2]) and np.all(np.isfinite(noisy.optimal_lambdas[:2]))
  errors = [noisy.errors(value)[2] for value in (0.0, 1.0, 100.0, np.inf)]
  assert errors == sorted(errors, reverse=True)
  # The paper's condition for the fallback.
  local = noisy.local_variances
  assert local[2] > 3 * 0.1 + local[:2].sum() / 2


# ---------------------------------------------------------- Monte Carlo


@pytest.mark.parametrize('problem', [PROBLEM, MIXED], ids=['equal', 'mixed'])
def test_monte_carlo_agrees_and_notices_a_wrong_formula(problem):
  centres, local = problem.draw(np.random.default_rng(0), 100_000)
  for value in (0.0, 0.7, np.inf):
    found = np.mean((mean_estimation.estimate(local, value) - centres) ** 2, axis=0)
    expected = problem.error(value) if problem is PROBLEM else problem.errors(value)
    np.testing.assert_allclose(found, expected, rtol=0.03)
    with pytest.raises(AssertionError):
      np.testing.assert_allclose(found, 0.9 * expected, rtol=0.03)


def test_bad_problems_are_refused():
  good = dict(num_silos=5, num_examples=10, sampling_variance=1.0, centre_variance=1.0)
  for name, value in {
    'num_silos': 1,
    'num_examples': 0,
    'sampling_variance': -1.0,
    'centre_variance': np.inf,
    'privacy_variance': np.nan,
  }.items():
    with pytest.raises(ValueError, match=name):
      MeanEstimation(**{**good, name: value})
  with pytest.raises(ValueError, match='mtl_lambda'):
    PROBLEM.error(-1.0)


# ------------------------------------------- through the TFF processes

# Independent coordinates, each a repetition of the experiment.
COORDINATES = 8000
CLIP = 1e4  # no gradient is clipped


def _mean_model():
  """The example is y, the prediction the parameter: F_k(w) = mean_i |w - y_i|^2 / 2."""

  def loss(outputs, y):
    return 0.5 * tf.reduce_sum(tf.square(outputs - y), axis=-1)

  return Model(
    name='mean',
    init=lambda key: Tree(mean=tf.zeros([COORDINATES])),
    predict=lambda params, x: params['mean'] + 0.0 * x,
    loss=loss,
    metrics=lambda outputs, y: Tree(mse=2.0 * loss(outputs, y) / COORDINATES),
    metric_names=('mse',),
    convex=True,
    head=('mean',),
  )


class _Silos:
  """Runs a method on examples y [K, n, COORDINATES]."""

  def __init__(self, name, examples, plan, **hyperparameters):
    silos, rows, _ = examples.shape
    spec = BuildSpec(
      model=_mean_model(),
      examples=ExamplesSpec(
        x_shape=(rows, 1), x_dtype=np.float32, y_shape=examples.shape[1:], y_dtype=np.float32
      ),
      plan=plan,
      batch_size=rows,
      hyperparameters=hyperparameters,
    )
    self._method = processes.build(name, spec)
    key = NoiseKey.rehearsal(3) if self._method.private else None
    self.server = self._method.initial_server_state(3, noise_key=key)
    attributes = plan.silo_parameters() if plan.unit == 'example' else {}
    states = self._method.initial_client_states(self.server, silos, attributes, noise_key=key)
    self._runtime = runtime.create('native')
    self._states = self._runtime.place_states(states)
    self._data = self._runtime.place(
      Tree(
        x=np.zeros([silos, rows, 1], np.float32),
        y=examples.astype(np.float32),
        num_examples=np.full([silos], rows, np.int32),
        client_id=np.arange(silos, dtype=np.int32),
      )
    )

  def run(self, rounds):
    with self._runtime:
      for _ in range(rounds):
        self.server, _ = self._runtime.round(
          self._method.process.next,
          self.server,
          self._states,
          self._data,
          np.arange(self._data.num_clients),
        )
      self.server = self._runtime.to_numpy(self.server)
    states = self._states.to_numpy()
    return states['model']['mean'] if 'model' in states else self.server['model']['mean']


@pytest.fixture(scope='module')
def released():
  """Centres and private local estimates: one step of DP gradient descent in every silo."""
  rng, shape = np.random.default_rng(1), (PROBLEM.num_silos, COORDINATES)
  centres = rng.normal(scale=math.sqrt(PROBLEM.centre_variance), size=shape)
  noise_shape = (PROBLEM.num_silos, PROBLEM.num_examples, COORDINATES)
  noise = rng.normal(scale=math.sqrt(PROBLEM.sampling_variance), size=noise_shape)
  examples = centres[:, np.newaxis] + noise
  plan = ExampleLevelPrivacy(
    num_examples=np.full(PROBLEM.num_silos, PROBLEM.num_examples),
    batch_size=PROBLEM.num_examples,  # every example in every batch
    steps_per_round=1,
    noise_multiplier=math.sqrt(PROBLEM.privacy_variance) / CLIP,
    delta=1e-3,
    clipping_norm=CLIP,
  )
  rates = dict(client_learning_rate=1.0, clipping_norm=CLIP)
  local = _Silos('local', examples, plan, **rates).run(1)
  fedavg = _Silos('fedavg', examples, plan, **rates).run(1)
  return centres, local, fedavg


def _error(estimates, centres):
  return np.mean((estimates - centres) ** 2)


def test_local_dp_sgd_and_private_fedavg_have_the_predicted_errors(released):
  centres, local, fedavg = released
  assert _error(local, centres) == pytest.approx(PROBLEM.local_error, rel=0.03)
  assert _error(fedavg, centres) == pytest.approx(PROBLEM.fedavg_error, rel=0.03)
  np.testing.assert_allclose(fedavg, local.mean(axis=0), atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('factor', [0.2, 1.0, 5.0])
def test_mr_mtl_reaches_the_minimiser_and_the_predicted_error(released, factor):
  centres, local, _ = released
  mtl_lambda = factor * PROBLEM.optimal_lambda
  plan = NoPrivacy(cohorts=EveryClient(PROBLEM.num_silos))
  # One step solves a silo's objective for the mean of the last round.
  rates = dict(client_learning_rate=1 / (1 + mtl_lambda), mtl_lambda=mtl_lambda)
  found = _Silos('mr_mtl', local[:, np.newaxis], plan, **rates).run(60)
  expected = mean_estimation.estimate(local.T, mtl_lambda).T
  np.testing.assert_allclose(found, expected, atol=1e-3)
  assert _error(found, centres) == pytest.approx(PROBLEM.error(mtl_lambda), rel=0.03)
  if factor != 1.0:
    assert _error(found, centres) > 1.02 * PROBLEM.optimal_error


@pytest.mark.slow
def test_one_round_from_the_mean_of_the_releases_has_the_predicted_errors():
  """Theorem 6.3's runs: 10,000 squared errors have a mean within 5 % of what is expected."""
  lambdas = PROBLEM.optimal_lambda * np.array([0.0, 1.0, 5.0])
  found = mean_process.errors(PROBLEM, lambdas)
  np.testing.assert_allclose(found, PROBLEM.error(lambdas), rtol=0.05)
  twice = mean_process.errors(PROBLEM, 2 * lambdas[1:])
  assert np.abs(twice / PROBLEM.error(lambdas[1:]) - 1).min() > 0.05


def test_silos_have_noise_of_their_own(released):
  """The privacy noise of two silos must be independent for federation to help."""
  _, local, _ = released
  correlation = np.corrcoef(local)[np.triu_indices(PROBLEM.num_silos, 1)]
  assert np.abs(correlation).max() < 5 / math.sqrt(COORDINATES)
