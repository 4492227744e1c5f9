"""Calibration: reference points of the papers, speed, and what cannot be reached."""

import dataclasses
import os
import pathlib
import time

import numpy as np
import pytest
from dp_accounting import pld
from dp_accounting import rdp as dp_rdp

from privacy import accounting, calibration, sampling, selection, tuning
from privacy import plan as plan_lib

FIXED = plan_lib.FixedClipping(norm=1.0)


def _client(**kwargs):
  values = {
    'target_epsilon': 2.0,
    'delta': 1e-5,
    'rounds': 100,
    'cohorts': sampling.PoissonCohorts(1000, 0.02),
    'clipping': FIXED,
  }
  return calibration.calibrate_client_level(**{**values, **kwargs})


def _silos(num_examples, **kwargs):
  values = {
    'target_epsilon': 6.0,
    'delta': 1e-3,
    'rounds': 201,
    'num_examples': num_examples,
    'batch_size': 32,
    'steps_per_round': plan_lib.local_steps_per_round(num_examples, 32),
    'clipping_norm': 1.0,
  }
  return calibration.calibrate_example_level(**{**values, **kwargs})


def _school(seconds=15.0, **kwargs):
  """Sizes and plan of a federation like School, made in so many seconds of processor time."""
  sizes = np.random.default_rng(0).permutation(np.linspace(17, 200, 139).astype(int))
  calibration._silo_noise.cache_clear()
  start = time.process_time()
  plan = _silos(sizes, **kwargs)
  assert time.process_time() - start < seconds
  return sizes, plan


@pytest.mark.parametrize(
  ('rate', 'epsilon', 'z'), [(0.05, 3.6, 1.50), (0.03, 4.1, 1.00), (0.03, 0.6, 3.86)]
)
def test_budgets_of_the_feo2_paper(rate, epsilon, z):
  """500 rounds, delta 1e-4, Poisson cohorts."""
  cohorts = sampling.PoissonCohorts(2000, rate)
  plan = _client(
    target_epsilon=epsilon, delta=1e-4, rounds=500, cohorts=cohorts, accountant='renyi'
  )
  assert plan.noise_multiplier == pytest.approx(z, abs=0.005)


def test_silos_of_the_size_of_school():
  """q = 1 and q = 32 / 191 are the ends of School's range; 201 rounds, epsilon 6, delta 1e-3."""
  plan = _silos(np.array([17, 32, 191]), accountant='renyi')
  z = plan.noise_multiplier
  assert z[0] == z[1] == pytest.approx(9.28, rel=0.01)
  assert z[2] == pytest.approx(3.58, rel=0.01)
  doubled = _silos(np.array([32, 191]), steps_per_round=[2, 10], accountant='renyi')
  np.testing.assert_allclose(doubled.noise_multiplier, [13.124, 5.005], rtol=0.01)


def test_shuffled_batches_need_the_noise_of_full_batches():
  """Not the 3.58 of Poisson batches of 32 out of 191."""
  sizes = np.array([17, 32, 191])
  noise = _silos(sizes, batches='shuffled', accountant='renyi').noise_multiplier
  np.testing.assert_allclose(noise, 9.28, rtol=0.01)
  misused = plan_lib.ExampleLevelPrivacy(
    num_examples=[191], batch_size=32, steps_per_round=5, noise_multiplier=3.583, delta=1e-3,
    clipping_norm=1.0, batches='shuffled',
  )  # fmt: skip
  assert misused.epsilon(201) > 19


def test_noise_multipliers_of_school():
  """Minimum, median and maximum over School's 139 silos."""
  path = pathlib.Path(os.environ.get('PFL_DATA_DIR', 'data')) / 'school.mat'
  if not path.exists():
    pytest.skip('school.mat is not in the folder that PFL_DATA_DIR names')
  import scipy.io

  sizes = np.array([x.shape[0] for x in scipy.io.loadmat(path)['X'][0]])
  silos = sizes - np.ceil(0.2 * sizes).astype(int)
  z = _silos(silos, accountant='renyi').noise_multiplier
  np.testing.assert_allclose([z.min(), np.median(z), z.max()], [3.583, 5.092, 9.280], rtol=0.005)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize('accountant', ['renyi', 'pld'])
def test_139_silos_calibrate_quickly(accountant):
  sizes, plan = _school(accountant=accountant)
  epsilons = plan.epsilons(201)
  assert np.all(epsilons <= 6.0) and np.all(epsilons > 6.0 * 0.9999)
  for silo in (int(np.argmin(sizes)), int(np.argmax(sizes))):
    event = plan.event(201)[silo]
    if accountant == 'renyi':
      theirs = dp_rdp.RdpAccountant(accounting.RDP_ORDERS).compose(event).get_epsilon(1e-3)
      assert theirs == pytest.approx(epsilons[silo], rel=1e-9)
    else:
      theirs = pld.PLDAccountant(value_discretization_interval=1e-3).compose(event)
      assert theirs.get_epsilon(1e-3) == pytest.approx(epsilons[silo], rel=2e-3)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_139_silos_that_tune_calibrate_quickly():
  chosen = tuning.PrivateTuning.of_gamma(
    gamma=0.3, shape=0.0, score_noise_multiplier=2.0, held_out_score=True
  )
  _, plan = _school(seconds=30.0, tuning=chosen)
  for silo in (0, 138):
    loss = accounting.loss(plan.event(201)[silo], 1e-3)
    assert 5.999 < loss.epsilon <= 6.0 and loss.accountant == 'PLD'


def test_pld_needs_less_noise_for_the_same_guarantee():
  """School's silos at epsilon 6, FeO2's Table 4 at 3.6: 8 and 7 % less."""
  silos = [_silos(np.array([17, 88, 191]), accountant=a) for a in ('pld', 'renyi')]
  ratio = silos[0].noise_multiplier / silos[1].noise_multiplier
  assert np.all((ratio > 0.9) & (ratio < 0.94))
  cohorts = sampling.PoissonCohorts(2000, 0.05)
  clients = [
    _client(target_epsilon=3.6, delta=1e-4, rounds=500, cohorts=cohorts, accountant=a)
    for a in ('pld', 'renyi')
  ]
  assert clients[0].noise_multiplier < 0.94 * clients[1].noise_multiplier
  assert clients[0].loss(500).accountant == 'PLD' and clients[1].loss(500).accountant == 'RDP'


def test_a_budget_for_each_silo():
  targets = np.array([1.0, 2.0, 8.0])
  plan = _silos(np.array([100, 100, 100]), target_epsilon=targets, delta=[1e-3, 1e-4, 1e-5])
  assert np.all(plan.epsilons(201) <= targets)
  np.testing.assert_allclose(plan.epsilons(201), targets, rtol=1e-5)


def test_selection_takes_its_share_of_the_total():
  private = selection.PrivateSelection(epsilon=0.17, rounds=201)
  plan = _silos(np.array([32, 200]), selection=private)
  assert np.all(plan.epsilons(201) <= 6.0)
  np.testing.assert_allclose(plan.epsilons(201), 6.0, rtol=1e-5)
  without = _silos(np.array([32, 200]))
  assert np.all(plan.noise_multiplier > 1.04 * without.noise_multiplier)
  renyi = [
    _silos(np.array([32, 200]), selection=chosen, accountant='renyi').noise_multiplier
    for chosen in (private, None)
  ]
  assert np.all(renyi[0] > 1.3 * renyi[1])


def test_tuning_takes_its_share_of_the_total():
  best_of = tuning.PrivateTuning(mean=10.0, shape=0.0)
  plan = _client(tuning=best_of)
  assert plan.epsilon(100) == pytest.approx(2.0, rel=1e-5) and plan.epsilon(100) <= 2.0
  assert plan.noise_multiplier > 1.1 * _client().noise_multiplier
  for scored in (best_of, dataclasses.replace(best_of, score_noise_multiplier=2.0)):
    silos = _silos(np.array([32, 200]), tuning=scored)
    assert np.all(silos.epsilons(201) <= 6.0)
    np.testing.assert_allclose(silos.epsilons(201), 6.0, rtol=1e-5)


def test_a_generous_target_gives_the_smallest_noise_of_the_bracket():
  plan = _client(target_epsilon=1e6)
  assert plan.noise_multiplier == pytest.approx(calibration.MIN_NOISE_MULTIPLIER)


def test_the_rounds_within_a_budget_are_the_most_that_do_not_pass_it():
  for most in (1, 2, 7):
    for allowed in range(most + 3):
      for budget in (allowed, allowed + 0.5):
        assert calibration.rounds_within(budget, float, most) == min(allowed, most)


@pytest.mark.parametrize('target', [0.3, 1.9])
def test_a_root_that_falls_short_is_not_taken(monkeypatch, target):
  """The search ends within a tolerance, on either side of the target."""
  brentq = calibration.optimize.brentq
  monkeypatch.setattr(calibration.optimize, 'brentq', lambda *a, **k: brentq(*a, **k) - 1e-6)
  noise = calibration._smallest_noise(lambda z: 1 / z, target, 1e-5, 'pld')
  assert 1 / noise <= target < 1 / (noise * (1 - 1e-5))


@pytest.mark.parametrize('target', [0.0, -1.0, float('inf'), float('nan')])
def test_impossible_targets_are_refused(target):
  with pytest.raises(ValueError, match='target epsilon'):
    _client(target_epsilon=target)
  with pytest.raises(ValueError, match='target epsilon'):
    _silos(np.array([50, 60]), target_epsilon=[1.0, target])


def test_unreachable_targets_are_refused():
  with pytest.raises(ValueError, match='too small'):
    _client(target_epsilon=1e-9, delta=1e-12)
  with pytest.raises(ValueError, match='nothing is left for training'):
    _silos(np.array([50]), selection=selection.PrivateSelection(epsilon=1.0, rounds=201))
  with pytest.raises(ValueError, match='delta'):
    _client(delta=1.0)
  with pytest.raises(ValueError, match='number of rounds'):
    _client(rounds=0)
  with pytest.raises(ValueError, match='quantile noise multiplier'):
    _client(target_epsilon=0.1, clipping=plan_lib.AdaptiveClipping(quantile_noise_multiplier=0.5))


def test_delta_above_one_over_n_warns():
  with pytest.warns(UserWarning, match='larger than 1 / n'):
    plan = _client(delta=0.01)
  assert any('larger than 1 / n' in sentence for sentence in plan.statement(1).outside)
  with pytest.warns(UserWarning, match='2 of the'):
    _silos(np.array([50, 60, 200]), delta=0.018)
