"""PPSGD's theory: against optimisation, brute force, and algorithm 1 to 3 in NumPy."""

import dataclasses
import math

import numpy as np
import pytest

from analysis import ppsgd_bounds

RNG = np.random.default_rng(0)


def _problem(num_users=8, dimension=3, radius=1.2, label_noise=0.3):
  """Additive least squares; |x| = radius, x uniform on the sphere, +-label_noise."""
  variances = np.full(num_users, (label_noise * radius) ** 2)
  return ppsgd_bounds.Problem(
    smoothness=2 * radius**2,
    shared_variances=variances,
    personal_variances=variances,
    shared_gradients=np.zeros(num_users),
    dimension=dimension,
  )


@pytest.mark.parametrize('alpha', [0.0, 0.01, 0.5, 20.0, math.inf])
def test_minimal_alpha_norm_is_minimal(alpha):
  optima = RNG.normal(size=(6, 4)) + 1.0
  norm, shared, personal = ppsgd_bounds.minimal_alpha_norm(optima, alpha)
  np.testing.assert_allclose(shared + personal, optima)

  def alpha_norm(w):
    weight = 0.0 if math.isinf(alpha) else 1 / alpha
    return math.sqrt(weight * np.sum(w**2) + np.sum((optima - w) ** 2))

  if alpha == 0.0:
    np.testing.assert_array_equal(shared, 0.0)
    assert norm == pytest.approx(np.linalg.norm(optima))
    return
  assert norm == pytest.approx(alpha_norm(shared))
  for _ in range(20):
    assert alpha_norm(shared + 0.1 * RNG.normal(size=4)) > norm


def test_norm_of_equal_users_is_lemma_4_6():
  v = RNG.normal(size=5)
  for alpha in (0.3, 2.0):
    norm, shared, _ = ppsgd_bounds.minimal_alpha_norm(np.tile(v, (7, 1)), alpha)
    np.testing.assert_allclose(shared, alpha * 7 / (alpha * 7 + 1) * v)
    assert norm == pytest.approx(math.sqrt(7 / (alpha * 7 + 1)) * np.linalg.norm(v))


def test_threshold_on_samples_is_where_the_variance_term_turns():
  common = dict(
    num_users=30, variance=2.0, dimension=10, gradient_bound=3.0, epsilon=1.5, delta=1e-4
  )
  threshold = ppsgd_bounds.threshold_on_samples(**common)
  alphas = np.array([0.0, 0.01, 0.1, 1.0, 10.0])
  above = ppsgd_bounds.variance_term(alphas, samples=threshold * 1.01, **common)
  below = ppsgd_bounds.variance_term(alphas, samples=threshold * 0.99, **common)
  assert np.all(np.diff(above) > 0)
  assert np.all(np.diff(below) < 0)
  without = ppsgd_bounds.variance_term(alphas, samples=100, **{**common, 'epsilon': math.inf})
  assert np.all(np.diff(without) < 0)


def test_the_theorems_agree_where_they_meet():
  """No sampling and minibatches of one: theorems 5.2 and B.4 are theorem 4.5."""
  problem, ones = _problem(), np.ones(8)
  common = dict(alpha=0.4, norm=2.0, rounds=50, noise=0.05)
  first = ppsgd_bounds.theorem_4_5(problem, **common)
  second = ppsgd_bounds.theorem_5_2(problem, rate=1.0, minibatches=ones, **common)
  third = ppsgd_bounds.theorem_b_4(problem, rate=1.0, minibatches=ones, **common)
  assert first.variance == pytest.approx(second.variance) == pytest.approx(third.variance)
  assert second.bias == pytest.approx(third.bias)
  # Their smoothness is cruder: alpha + alpha / N in the place of alpha.
  assert second.bias / first.bias == pytest.approx(1 + 1 / 8)
  assert first.total == first.bias + first.variance
  # By hand: equation 6.
  sigma = math.sqrt((0.4 + 1) * problem.shared_variances[0] / 8 + 0.4 * 3 * 0.05**2)
  assert first.variance == pytest.approx(3 * sigma * 2.0 / math.sqrt(50))
  assert first.step_size == pytest.approx(
    min(1 / (4 * problem.smoothness * 0.4), 2.0 / math.sqrt(50) / sigma)
  )


def _unequal_problem():
  """Users who differ in everything, and gradients that do not vanish at the optimum."""
  return ppsgd_bounds.Problem(
    smoothness=3.0,
    shared_variances=np.array([1.0, 4.0, 0.5, 2.0, 3.0]),
    personal_variances=np.array([2.0, 0.5, 1.0, 5.0, 0.1]),
    shared_gradients=np.array([0.3, 1.0, 0.2, 0.7, 2.0]),
    dimension=4,
  )


# Few samples, and many: the smoothness has one of two largest terms.
@pytest.mark.parametrize('alpha', [0.02, 1.7])
def test_the_theorems_by_hand(alpha):
  """Equations 13 and 15, theorem B.4 and lemma B.3, of q = 0.4 and m = 1, 2, 1, 4, 2: M = 10."""
  problem, minibatches = _unequal_problem(), np.array([1, 2, 1, 4, 2])
  common = dict(alpha=alpha, norm=1.5, rounds=400, rate=0.4, minibatches=minibatches, noise=0.25)
  of_noise = alpha * 4 * 0.25**2
  # 5.2: weights m / M; means over q M = 4 samples. The largest m is 4.
  shared = (1 * 1.0 + 2 * 4.0 + 1 * 0.5 + 4 * 2.0 + 2 * 3.0) / 10
  personal = (1 * 2.0 + 2 * 0.5 + 1 * 1.0 + 4 * 5.0 + 2 * 0.1) / 10
  users = alpha * 0.6 * (1 * 0.3 + 4 * 1.0 + 1 * 0.2 + 16 * 0.7 + 4 * 2.0) / 10
  variance = (alpha * shared + personal + users) / 4 + of_noise
  _check(ppsgd_bounds.theorem_5_2(problem, **common), 3.0 * max(2 * alpha, 4 / 4), variance)
  # B.4: plain means over q N = 2 users.
  shared = (1.0 / 1 + 4.0 / 2 + 0.5 / 1 + 2.0 / 4 + 3.0 / 2) / 5
  personal = (2.0 / 1 + 0.5 / 2 + 1.0 / 1 + 5.0 / 4 + 0.1 / 2) / 5
  users = alpha * 0.6 * (0.3 + 1.0 + 0.2 + 0.7 + 2.0) / 5
  variance = (alpha * shared + personal + users) / 2 + of_noise
  _check(ppsgd_bounds.theorem_b_4(problem, **common), 3.0 * max(1.5 * alpha, 1 / 2), variance)


def _check(bound, smoothness, variance, norm=1.5, rounds=400):
  deviation = math.sqrt(variance)
  assert bound.bias == pytest.approx(4 * smoothness * norm**2 / rounds)
  assert bound.variance == pytest.approx(3 * deviation * norm / math.sqrt(rounds))
  steps = 1 / (4 * smoothness), norm / (math.sqrt(rounds) * deviation)
  assert bound.step_size == pytest.approx(min(steps))


@pytest.mark.parametrize('algorithm', [2, 3])
def test_variances_are_those_of_the_gradients(algorithm):
  """E ||g||^2 at the optimum (equation 31) by Monte Carlo: users, samples and noise are drawn."""
  n, d, q, alpha, noise, repeats = 5, 4, 0.4, 1.7, 0.25, 100_000
  rng = np.random.default_rng(algorithm)
  m = np.array([1, 2, 1, 4, 2])
  # One sample's gradients: (by w, by theta); at a minimiser those by w balance, by theta vanish.
  weights = m if algorithm == 2 else np.ones(n)
  means = rng.normal(size=(n, d))
  means -= np.average(means, axis=0, weights=weights)
  problem = dataclasses.replace(_unequal_problem(), shared_gradients=np.sum(means**2, axis=1))

  def drawn(variances):
    # Means over m samples, whose squares sum to `variances` each.
    return rng.normal(size=(repeats, n, d)) * np.sqrt(variances / m / d)[:, np.newaxis]

  coins = rng.random((repeats, n, 1)) < q
  share = (weights / (q * weights.sum()))[:, np.newaxis]
  by_w = (coins * share * (means + drawn(problem.shared_variances))).sum(axis=1)
  by_w += noise * rng.normal(size=(repeats, d))
  by_theta = coins * share * drawn(problem.personal_variances)
  second_moment = np.mean(alpha * np.sum(by_w**2, axis=1) + np.sum(by_theta**2, axis=(1, 2)))
  theorem = ppsgd_bounds.theorem_5_2 if algorithm == 2 else ppsgd_bounds.theorem_b_4
  bound = theorem(problem, alpha=alpha, norm=1.0, rounds=9, rate=q, minibatches=m, noise=noise)
  assert bound.variance**2 == pytest.approx(second_moment, rel=0.02)


def _run(algorithm, bound, optima, *, alpha, radius, tau, rounds, noise, m, rate, broken=''):
  """Algorithms 1, 2 and 3 in NumPy on additive least squares: mean excess risk of z_bar.

  `broken`: 'step' divides the step by the rounds, 'shared' trains w alone with so small a step,
  'sign' goes up the slope.
  """
  repeats, (n, d) = 60, optima.shape
  rng = np.random.default_rng(algorithm)
  weights = m / m.sum() if algorithm == 2 else np.full(n, 1 / n)
  eta, divisor = bound.step_size, rate * (m.sum() if algorithm == 2 else n)
  if broken == 'step':
    eta /= rounds
  if broken == 'sign':
    eta = -eta
  to_shared = divisor * (rounds if broken == 'shared' else 1)
  w, theta = np.zeros((repeats, d)), np.zeros((repeats, n, d))
  average = np.zeros((repeats, n, d))
  for _ in range(rounds):
    average += (w[:, None] + theta) / rounds
    x = rng.normal(size=(repeats, n, m.max(), d))
    x *= radius / np.linalg.norm(x, axis=-1, keepdims=True)
    label_noise = tau * rng.choice([-1, 1], size=x.shape[:3])
    error = np.einsum('rnkd,rnd->rnk', x, w[:, None] + theta - optima) - label_noise
    error *= np.arange(m.max()) < m[:, None]
    g = np.einsum('rnk,rnkd->rnd', error, x)
    g /= m[:, None] if algorithm == 3 else 1
    g *= rng.random((repeats, n, 1)) < rate
    theta -= (0.0 if broken == 'shared' else 1.0) * eta / divisor * g
    w -= alpha * eta * (g.sum(axis=1) / to_shared + noise * rng.normal(size=w.shape))
  excess = 0.5 * radius**2 / d * np.sum((average - optima) ** 2, axis=-1) @ weights
  return float(excess.mean())


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', [1, 2, 3])
@pytest.mark.parametrize('alpha', [0.05, 2.0])
def test_bounds_hold_for_the_algorithms_and_not_for_broken_ones(algorithm, alpha):
  """Enough rounds for the bound to be far below the start, which a broken method does not reach."""
  n, d, radius, tau, noise = 8, 3, 1.2, 0.05, 0.001
  rounds = 600 if alpha < 1 else 1500
  problem = _problem(n, d, radius, tau)
  optima = np.random.default_rng(3).normal(size=(n, d)) * 0.2 + np.array([1.0, -1.0, 0.5])
  rate = 1.0 if algorithm == 1 else 0.5
  m = np.ones(n, int) if algorithm == 1 else np.array([1, 3, 2, 1, 2, 3, 1, 1])
  norm, _, _ = ppsgd_bounds.minimal_alpha_norm(optima, alpha)
  common = dict(alpha=alpha, norm=norm, rounds=rounds, noise=noise)
  if algorithm == 1:
    bound = ppsgd_bounds.theorem_4_5(problem, **common)
  else:
    theorem = ppsgd_bounds.theorem_5_2 if algorithm == 2 else ppsgd_bounds.theorem_b_4
    bound = theorem(problem, rate=rate, minibatches=m, **common)
  weights = m / m.sum() if algorithm == 2 else np.full(n, 1 / n)
  start = float(0.5 * radius**2 / d * np.sum(optima**2, axis=-1) @ weights)
  assert bound.total < 0.35 * start
  values = dict(alpha=alpha, radius=radius, tau=tau, rounds=rounds, noise=noise, m=m, rate=rate)
  assert _run(algorithm, bound, optima, **values) < bound.total
  for broken in ('step', 'shared', 'sign'):
    assert _run(algorithm, bound, optima, broken=broken, **values) > bound.total, broken


def test_smoothness_of_gaussian_regression_is_that_of_its_gradients():
  """Lemma B.2's inequality by Monte Carlo; it is met with equality along a large variance."""
  variances = np.array([4.0, 0.5, 0.1])
  problem = ppsgd_bounds.gaussian_regression(variances, label_noise=0.3, num_users=2)
  x = RNG.normal(size=(400_000, 3)) * np.sqrt(variances)
  for delta in (np.array([1.0, 0.0, 0.0]), RNG.normal(size=3)):
    squared = 2 * np.mean(np.sum((x * (x @ delta)[:, None]) ** 2, axis=1))
    difference = 0.5 * np.sum(variances * delta**2)
    assert squared < 2 * problem.smoothness * difference * 1.02
  along = np.mean(np.sum((x * x[:, :1]) ** 2, axis=1))
  assert 2 * along == pytest.approx(2 * problem.smoothness * 0.5 * variances[0], rel=0.02)
  noise = 0.3 * RNG.normal(size=len(x))
  variance = np.mean(np.sum((x * noise[:, None]) ** 2, axis=1))
  assert problem.shared_variances[0] == pytest.approx(variance, rel=0.02)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('alpha', [0.02, 0.5])
def test_theorem_4_5_holds_for_a_run_on_the_synthetic_data(alpha):
  """The averaged iterate of a run with the theorem's step size: half its excess risk."""
  from experiments.config.experiment import ExperimentConfig
  from experiments.running import loading, runner

  users, rounds, minibatch, multiplier, clip = 20, 600, 10, 1e-4, 1e4
  config = ExperimentConfig(
    method='ppsgd', dataset='ppsgd_synthetic', model='linear_regression',
    model_option=('bias=false',), dataset_option=(f'num_clients={users}', 'dimension=6'),
    privacy='client', delta=1e-3, noise_multiplier=multiplier, clipping_norm=clip,
    batch_size=minibatch, iterate='average', rounds=rounds, eval_every=0, checkpoint_every=0,
  )  # fmt: skip
  extras = loading.load_dataset(config).extras
  problem = ppsgd_bounds.gaussian_regression(
    extras['feature_variances'], label_noise=0.01, num_users=users
  )
  # A minibatch of m divides the variances by m (section 4).
  problem = dataclasses.replace(
    problem,
    shared_variances=problem.shared_variances / minibatch,
    personal_variances=problem.personal_variances / minibatch,
  )
  norm, _, _ = ppsgd_bounds.minimal_alpha_norm(extras['theta_star'], alpha)
  bound = ppsgd_bounds.theorem_4_5(
    problem, alpha=alpha, norm=norm, rounds=rounds, noise=multiplier * clip / users
  )
  config = dataclasses.replace(
    config,
    client_learning_rate=bound.step_size * max(1 / users, alpha),
    personalization_alpha=alpha * users,
  )
  assert bound.total < _start_of(extras) / 2

  def excess(**changes):
    changed = dataclasses.replace(config, **changes)
    return runner.run(changed, show_progress=False).summary['metrics']['test_excess_risk'] / 2

  assert 0 < excess() < bound.total
  # A twin whose clip lets next to nothing of the shared gradients through.
  broken = dict(clipping_norm=1e-4, noise_multiplier=multiplier * clip / 1e-4)
  assert excess(**broken, personalization_alpha=math.inf) > bound.total


def _start_of(extras):
  """Excess risk of z = 0, halved."""
  return 0.5 * float(
    np.mean(np.sum(extras['feature_variances'] * extras['theta_star'] ** 2, axis=1))
  )


def test_noise_scale_by_hand():
  scale = ppsgd_bounds.noise_scale(clip=2.0, rounds=16, delta=math.exp(-4), epsilon=0.5, total=100)
  assert scale == pytest.approx(2.0 * math.sqrt(16 * 4) / 50)


def test_wrong_problems_are_refused():
  with pytest.raises(ValueError, match='smoothness=0 must be positive'):
    dataclasses.replace(_problem(), smoothness=0)
  with pytest.raises(ValueError, match='arrays of one length'):
    dataclasses.replace(_problem(), shared_gradients=np.zeros(3))
