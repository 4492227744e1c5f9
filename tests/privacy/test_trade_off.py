"""Trade-off functions, and the audits against them: valid, tight, and above a broken claim."""

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, stats

from privacy import accounting, audit, trade_off
from privacy.trade_off import Gaussian, Profile
from tests.trust.second_accountant import gaussian_epsilon


def test_gaussian_is_what_two_normals_allow():
  """Simulated tests of N(0, 1) against N(mu, 1) lie on the curve."""
  one = Gaussian(1.3)
  thresholds = np.linspace(-3, 4, 15)
  for alpha, power in zip(stats.norm.sf(thresholds), stats.norm.sf(thresholds - 1.3), strict=True):
    assert one.power(alpha) == pytest.approx(power, rel=1e-9)
    assert one.least_error(power) == pytest.approx(alpha, rel=1e-6)
  for delta in (1e-2, 1e-5):
    assert one.epsilon(delta) == pytest.approx(gaussian_epsilon(1.3, delta), rel=1e-6)
  assert Gaussian(1e-3).epsilon(0.1) == 0.0


def test_a_profile_is_the_trade_off_of_its_mechanism():
  """Of an unsampled Gaussian: its closed form, from the unsafe side by next to nothing."""
  one, exact = Profile.of_event(dp_accounting.GaussianDpEvent(1.0)), Gaussian(1.0)
  for alpha in (1e-3, 0.05, 0.3, 0.7):
    assert exact.power(alpha) - 1e-9 <= one.power(alpha) <= exact.power(alpha) + 2e-3
    power = exact.power(alpha)
    assert one.least_error(power) <= alpha + 1e-9
    assert one.least_error(power) == pytest.approx(alpha, abs=2e-3)
  assert one.epsilon(1e-5) == pytest.approx(exact.epsilon(1e-5), abs=0.06)
  sampled = trade_off.sampled_gaussians(0.1, 20)(1.0)
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 20
  )
  assert sampled.epsilon(1e-3) == pytest.approx(accounting.pld_epsilon(event, 1e-3), abs=0.06)


# ------------------------------------------------------------------- one run


def _largest_tail(canaries, guesses, correct, one):
  """max P(right >= correct) over all distributions that the theorem allows."""
  i = np.arange(guesses + 1)
  rows, bounds = [], []
  for start in range(1, guesses + 1):  # T = {start, ...}, power by its two lines
    right = np.where(i >= start, i, 0) / canaries
    wrong = np.where(i >= start - 1, guesses - i, 0) / canaries
    for epsilon, delta in zip(one.epsilons, one.deltas, strict=True):
      rows.append(right - np.exp(epsilon) * wrong)
      bounds.append(delta)
      rows.append(right - np.exp(-epsilon) * wrong)
      bounds.append(1 - np.exp(-epsilon) * (1 - delta))
  found = optimize.linprog(
    -(i >= correct).astype(float), A_ub=np.array(rows), b_ub=bounds, A_eq=np.ones((1, guesses + 1)),
    b_eq=[1.0], bounds=(0, 1),
  )  # fmt: skip
  return -found.fun


@pytest.mark.parametrize('correct', [6, 8, 10])
@pytest.mark.parametrize('canaries', [10, 25])
def test_the_tail_is_the_largest_that_the_theorem_allows(canaries, correct):
  """Against a linear programme over the distributions of the number of right guesses."""
  gaussian = Gaussian(1.0)
  epsilons = np.linspace(0, 6, 25)
  deltas = np.array([max(gaussian.power(a) - np.exp(e) * a for a in np.geomspace(1e-9, 1, 4000))
                     for e in epsilons])  # fmt: skip
  one = Profile(epsilons, np.maximum(deltas, 0.0))
  largest = _largest_tail(canaries, 10, correct, one)
  tail = 1.0
  while audit._refutes(canaries, 10, correct, one, tail) and tail > 1e-6:
    tail *= 0.999
  assert tail >= largest - 1e-3  # never below: it would refute what is true
  assert tail <= largest * 1.25 + 1e-3


def _one_run(mu, canaries, seed):
  generator = np.random.default_rng(seed)
  included = generator.random(canaries) < 0.5
  return generator.normal(mu * included), included


def test_one_run_is_below_the_truth_and_within_two_and_a_half():
  """At epsilon 4 and delta 1e-3; and its older relative is further away."""
  mu = optimize.brentq(lambda m: Gaussian(m).epsilon(1e-3) - 4.0, 0.1, 5.0)
  bounds, older = [], []
  for seed in range(60):
    scores, included = _one_run(mu, 600, seed)
    found = audit.one_run_of_family(scores, included, family=Gaussian, delta=1e-3)
    bounds.append(found.epsilon)
    older.append(audit.one_run(scores, included, delta=1e-3, guesses=60).epsilon)
  print(np.median(bounds), np.max(bounds), np.median(older))
  assert np.mean(np.array(bounds) > 4.0) <= 0.05
  assert np.median(bounds) > 4.0 / 2.5
  assert np.median(bounds) > np.median(older)


def test_one_run_of_nothing_shows_nothing():
  bounds = [
    audit.one_run_of_family(*_one_run(0.0, 400, s), family=Gaussian, delta=1e-3).epsilon
    for s in range(60)
  ]
  assert np.mean(np.array(bounds) > 0.1) <= 0.1


def test_one_run_refutes_twice_the_noise():
  """The claim of a mechanism that adds half of it."""
  claimed = Gaussian(0.8).epsilon(1e-3)
  found = [
    audit.one_run_of_family(*_one_run(1.6, 2000, s), family=Gaussian, delta=1e-3).epsilon
    for s in range(10)
  ]
  assert np.mean(np.array(found) > claimed) > 0.8


# ------------------------------------------------------------------ many runs


def test_many_runs_are_below_the_truth_and_within_one_and_a_half():
  mu = optimize.brentq(lambda m: Gaussian(m).epsilon(1e-3) - 4.0, 0.1, 5.0)
  bounds = []
  for seed in range(60):
    generator = np.random.default_rng(seed)
    without, with_ = generator.normal(size=2000), generator.normal(mu, size=2000)
    bounds.append(audit.many_runs_of_family(without, with_, family=Gaussian, delta=1e-3).epsilon)
  print(np.median(bounds), np.max(bounds))
  assert np.mean(np.array(bounds) > 4.0) <= 0.05
  assert np.median(bounds) > 4.0 / 1.5


@pytest.mark.slow
@pytest.mark.exhaustive
def test_many_runs_of_a_sampled_mechanism():
  """Sampled at rate 0.5 in each of two rounds, against its own family; never above its epsilon."""
  rate, z, steps, delta = 0.5, 0.8, 2, 1e-3
  family = trade_off.sampled_gaussians(rate, steps)
  truth = family(1 / z).epsilon(delta)
  bounds = []
  for seed in range(8):
    generator = np.random.default_rng(seed)
    worlds = [
      generator.normal(0.0, z, (4000, steps)),
      generator.binomial(1, rate, (4000, steps)) + generator.normal(0.0, z, (4000, steps)),
    ]
    scores = [
      audit.log_likelihood_ratio(y, rate=rate, noise_multiplier=z).sum(1) for y in worlds
    ]  # fmt: skip
    bounds.append(audit.many_runs_of_family(*scores, family=family, delta=delta).epsilon)
  print(truth, bounds)
  assert max(bounds) <= truth
  assert np.median(bounds) > truth / 1.5
