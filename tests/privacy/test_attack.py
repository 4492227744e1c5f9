"""Attack bounds: the Gaussian mechanism's closed forms, and no attacker beats them."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from privacy import attack
from privacy import plan as plan_lib
from privacy.events import DisjointDpEvent
from privacy.sampling import PoissonCohorts


def _bounds(event, accountant='pld', delta=1e-6):
  return attack.bounds([attack.privacy_curve(event, accountant=accountant)], delta)


@pytest.mark.parametrize('mu', [0.2, 1.0, 3.0])
def test_of_one_gaussian_mechanism(mu):
  """The most powerful test is a threshold: power Phi(Phi^-1(a) + mu) (Neyman and Pearson)."""
  found = _bounds(dp_accounting.GaussianDpEvent(1 / mu))
  for rate, value in ((1e-3, found.true_positives_at_1e_3), (1e-2, found.true_positives_at_1e_2)):
    exact = stats.norm.cdf(stats.norm.ppf(rate) + mu)
    assert exact * (1 - 1e-4) <= value < 1.005 * exact
  assert found.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-3)
  assert found.mu == pytest.approx(mu, rel=2e-3)


def test_no_threshold_attack_on_poisson_steps_does_better():
  """The likelihood ratio of five sampled steps, simulated in both worlds."""
  q, z, steps, runs = 0.3, 0.7, 5, 200_000
  rng = np.random.default_rng(0)
  without = z * rng.standard_normal((runs, steps))
  present = (rng.random((runs, steps)) < q) + z * rng.standard_normal((runs, steps))

  def score(x):
    return np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z))).sum(axis=1)

  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps
  )
  found = _bounds(event)
  threshold = np.quantile(score(without), 1 - 1e-2)
  power = np.mean(score(present) > threshold)
  assert 0.8 * found.true_positives_at_1e_2 < power < 1.02 * found.true_positives_at_1e_2
  by_rdp = _bounds(event, 'renyi')
  assert by_rdp.true_positives_at_1e_2 >= found.true_positives_at_1e_2
  assert by_rdp.advantage >= found.advantage and by_rdp.mu >= found.mu


@pytest.mark.parametrize('accountant', ['pld', 'renyi'])
def test_of_disjoint_parts_whoever_is_in_the_worst_counts(accountant):
  parts, epsilons = [dp_accounting.GaussianDpEvent(z) for z in (1.0, 3.0)], np.array([0.0, 1.0])
  worst = attack.privacy_curve(parts[0], accountant=accountant)(epsilons)
  for order in (parts, parts[::-1]):
    curve = attack.privacy_curve(DisjointDpEvent(order), accountant=accountant)
    np.testing.assert_array_equal(curve(epsilons), worst)


def test_the_worst_of_several_and_what_the_statement_says():
  weak, strong = (attack.privacy_curve(dp_accounting.GaussianDpEvent(z)) for z in (1.0, 3.0))
  assert attack.bounds([weak, strong], 1e-5) == attack.bounds([weak], 1e-5)
  plan = plan_lib.ClientLevelPrivacy(
    cohorts=PoissonCohorts(100, 0.1), noise_multiplier=1.0, delta=1e-4,
    clipping=plan_lib.FixedClipping(norm=1.0),
  )  # fmt: skip
  record = plan.statement(20).to_json()['attack']
  assert 1e-3 < record['true_positives_at_1e_3'] < record['true_positives_at_1e_2'] < 1
  assert 0 < record['advantage'] < 1 and 0 < record['mu'] < 2
  assert plan.statement(0).attack is None
  silent = plan_lib.ClientLevelPrivacy(
    cohorts=PoissonCohorts(100, 0.1), noise_multiplier=0.0, delta=1e-4,
    clipping=plan_lib.FixedClipping(norm=1.0),
  )  # fmt: skip
  assert silent.statement(3).attack is None and math.isinf(silent.epsilon(3))
