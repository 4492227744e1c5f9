"""Figure 7: the noise that private tuning needs, and what it does to the errors."""

import dp_accounting
import numpy as np
import pytest

from analysis import private_tuning
from analysis.claims import silo
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


def test_the_drawn_panels_are_the_three_cases(panels):
  """The figure's tau are ours: (a) loses against FedAvg, (b) gains, (c) loses against local."""
  best = {name: panel.tuned[0].problem.optimal_error for name, panel in panels.items()}
  untuned = {name: panel.private.problem for name, panel in panels.items()}
  assert best['a'] > untuned['a'].fedavg_error and not any(panels['a'].worth_tuning)
  assert best['c'] > untuned['c'].local_error and not any(panels['c'].worth_tuning)
  assert untuned['b'].optimal_error < best['b'] < panels['b'].best_end_point


def test_tuning_loses_away_from_balance_over_a_range_of_settings():
  """K, n and epsilon over a grid; tau in units of that at which the end points are equal."""
  counted = {'fedavg': silo.tuning_against_fedavg(), 'local': silo.tuning_against_local()}
  for end, furthest, near in (('fedavg', 'tau 0.25 ', 0.9), ('local', 'tau 4.0 ', 1.1)):
    pairs = counted[end]
    assert len(pairs) == 36  # 18 settings at two tau; at balance no end point is the better one
    away = [pair for pair in pairs if furthest in pair.what]
    assert len(away) == 18 and all(pair.left > pair.right for pair in away)
    # Near the middle it depends: there are settings in which half of the pairs still gain.
    balance = [pair.left > pair.right for pair in silo._tuning_against_the_better_end(end, (near,))]
    assert any(balance) and not all(balance)


@pytest.mark.parametrize(('end', 'share'), [('fedavg', 1.0), ('fedavg', 2.0), ('local', 1.0)])
def test_settings_without_the_premise_are_not_counted(end, share):
  """Where the named end point is not the better one, losing against it is no case of the claim."""
  assert silo._tuning_against_the_better_end(end, (share,)) == []


def test_how_much_of_the_gain_is_eaten_depends_on_the_setting():
  left = [pair.left for pair in silo.tuning_eats_gain()]
  assert min(left) <= 0.5 and any(0.5 < x < 1 for x in left)


def test_what_cannot_be_reached_is_refused():
  for epsilon in (0.0, -1.0, np.inf):
    with pytest.raises(ValueError, match='epsilon'):
      private_tuning.noise_for_release(epsilon, DELTA)
  with pytest.raises(ValueError, match='not reached'):
    private_tuning.noise_for_release(1e-4, 1e-300)
