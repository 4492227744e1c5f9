"""Figure 7: the noise that private tuning needs, and what it does to the errors."""

import dp_accounting
import numpy as np
import pytest

from analysis import private_tuning
from privacy import accounting
from privacy.tuning import PrivateTuning

EPSILON, DELTA = 0.25, 1e-5


@pytest.fixture(scope='module')
def panels():
  return {
    name: private_tuning.tuning_cost(centre_deviation=deviation)
    for name, deviation in private_tuning.PANELS.items()
  }


def test_noise_without_tuning_is_the_gaussian_mechanisms():
  noise = private_tuning.noise_for_release(EPSILON, DELTA, clip=2.0)
  event = dp_accounting.GaussianDpEvent(noise / 2.0)
  accountant = dp_accounting.rdp.RdpAccountant(accounting.RDP_ORDERS)
  assert accountant.compose(event).get_epsilon(DELTA) == pytest.approx(EPSILON, rel=1e-6)


@pytest.mark.parametrize('eta', private_tuning.ETAS)
def test_noise_with_tuning_fulfils_theorem_f2(eta):
  """Equation 50 and lemma A.2 written out, over all pairs of orders."""
  tuning = PrivateTuning(mean=private_tuning.MEAN_RUNS, shape=eta)
  noise = private_tuning.noise_for_release(EPSILON, DELTA, tuning=tuning)
  orders = np.array(accounting.RDP_ORDERS)
  run = orders / (2 * noise**2)
  gamma = tuning.gamma
  constant = np.min((1 + eta) * (1 - 1 / orders) * run + (1 + eta) * np.log(1 / gamma) / orders)
  released = run + constant + np.log(10.0) / (orders - 1)
  epsilons = released + np.log(1 / (orders * DELTA)) / (orders - 1) + np.log1p(-1 / orders)
  assert epsilons.min() == pytest.approx(EPSILON, rel=1e-3)
  assert epsilons.min() >= EPSILON * (1 - 1e-9)  # the accountant may use a higher order's curve


def test_the_six_pairs_have_ten_runs_on_average():
  """gamma from eta: geometric with 1/10 at eta = 1; and the mean by summation."""
  gammas = [PrivateTuning(mean=10.0, shape=eta).gamma for eta in private_tuning.ETAS]
  assert gammas[3] == pytest.approx(0.1)
  assert gammas == sorted(gammas)
  for eta in (-0.5, 0.0, 1.0, 5.0):
    runs = np.arange(1, 100_000)
    probability = np.exp(PrivateTuning(mean=10.0, shape=eta).log_probability(runs))
    assert probability.sum() == pytest.approx(1.0, abs=1e-6)
    assert (runs * probability).sum() == pytest.approx(10.0, rel=1e-4)


def test_a_smaller_eta_costs_less(panels):
  for panel in panels.values():
    noises = [panel.private.privacy_noise, *(c.privacy_noise for c in panel.tuned)]
    assert noises == sorted(noises)


def test_the_simulation_follows_lemma_6_7(panels):
  for panel in panels.values():
    for curve in (panel.non_private, panel.private, *panel.tuned):
      np.testing.assert_allclose(curve.simulated, curve.errors, rtol=0.2)
      ratio = curve.simulated / curve.errors
      assert abs(ratio.mean() - 1) < 0.1


def test_the_three_cases_of_appendix_f2(panels):
  """(a) tuning loses against FedAvg, (b) it gains less, (c) it loses against local training."""
  best = {name: panel.tuned[0].problem.optimal_error for name, panel in panels.items()}
  untuned = {name: panel.private.problem for name, panel in panels.items()}
  assert best['a'] > untuned['a'].fedavg_error and not any(panels['a'].worth_tuning)
  assert best['c'] > untuned['c'].local_error and not any(panels['c'].worth_tuning)
  assert untuned['b'].optimal_error < best['b'] < panels['b'].best_end_point
  gained = panels['b'].best_end_point - best['b']
  assert gained < 0.5 * (panels['b'].best_end_point - untuned['b'].optimal_error)


def test_what_cannot_be_reached_is_refused():
  for epsilon in (0.0, -1.0, np.inf):
    with pytest.raises(ValueError, match='epsilon'):
      private_tuning.noise_for_release(epsilon, DELTA)
  with pytest.raises(ValueError, match='not reached'):
    private_tuning.noise_for_release(1e-4, 1e-300)
