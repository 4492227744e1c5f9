"""Plans: what they refuse, what they hand out, what they add up to."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from privacy import accounting, sampling, selection
from privacy import plan as plan_lib

COHORTS = sampling.PoissonCohorts(100, 0.1)


def _client(**kwargs):
  values = {
    'cohorts': COHORTS,
    'noise_multiplier': 1.0,
    'delta': 1e-5,
    'clipping': plan_lib.FixedClipping(norm=1.0),
  }
  return plan_lib.ClientLevelPrivacy(**{**values, **kwargs})


def _silos(**kwargs):
  values = {
    'num_examples': np.array([100, 40, 20]),
    'batch_size': 32,
    'steps_per_round': [3, 1, 1],
    'noise_multiplier': [2.0, 3.0, 4.0],
    'delta': [1e-3, 1e-3, 2e-3],
    'clipping_norm': 1.0,
  }
  return plan_lib.ExampleLevelPrivacy(**{**values, **kwargs})


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: plan_lib.FixedClipping(norm=0.0), 'clipping norm'),
    (lambda: plan_lib.AdaptiveClipping(initial_norm=math.inf), 'initial clipping norm'),
    (lambda: plan_lib.AdaptiveClipping(target_quantile=1.1), 'target quantile'),
    (lambda: plan_lib.AdaptiveClipping(learning_rate=-1), 'learning rate'),
    (lambda: plan_lib.AdaptiveClipping(quantile_noise_multiplier=0), 'quantile noise'),
    (lambda: _client(noise_multiplier=-1.0), 'noise multiplier'),
    (lambda: _client(noise_multiplier=math.nan), 'noise multiplier'),
    (lambda: _client(delta=0.0), 'delta'),
    (lambda: _client(clipping=plan_lib.FixedClipping(norm=math.inf)), 'must be finite'),
    (lambda: _client(num_opted_out=100), 'without privacy'),
    (lambda: _client(clipping=plan_lib.AdaptiveClipping(), noise_multiplier=2.0), 'too small'),
    (lambda: _client().epsilon(-1), 'number of rounds'),
    (lambda: _client().epsilon(1.5), 'number of rounds'),
    (lambda: _client().quantile_noise_multiplier, 'fixed clipping'),
    (lambda: _silos(num_examples=[10, 0, 3]), 'number of examples'),
    (lambda: _silos(batch_size=0), 'batch size'),
    (lambda: _silos(steps_per_round=[1, 2]), 'steps per round'),
    (lambda: _silos(steps_per_round=-1), 'steps per round'),
    (lambda: _silos(noise_multiplier=[1.0, math.nan, 1.0]), 'noise multiplier'),
    (lambda: _silos(delta=[0.1, 0.1, 1.0]), 'delta'),
    (lambda: _silos(clipping_norm=math.inf), 'must be finite'),
    (lambda: _silos(clipping_norm=-1.0), 'clipping norm'),
    (lambda: _silos(cohorts=sampling.EveryClient(4)), '4 silos'),
    (lambda: _silos(batches='sorted'), 'batches'),
    (lambda: _silos(batches='shuffled', steps_per_round=[4, 1, 1]), 'whole epochs'),
  ],
)
def test_refuses(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize('plan', [_client(), _silos(), plan_lib.NoPrivacy(cohorts=COHORTS)])
def test_plans_are_frozen(plan):
  with pytest.raises(dataclasses.FrozenInstanceError):
    plan.cohorts = COHORTS


def test_silo_arrays_are_read_only_and_broadcast():
  plan = _silos(noise_multiplier=2)
  np.testing.assert_array_equal(plan.noise_multiplier, [2.0, 2.0, 2.0])
  with pytest.raises(ValueError, match='read-only'):
    plan.noise_multiplier[0] = 0.0


def test_silo_parameters():
  parameters = _silos().silo_parameters()
  np.testing.assert_allclose(parameters['sampling_rate'], [0.32, 0.8, 1.0])
  np.testing.assert_array_equal(parameters['batch_size'], [32, 32, 20])
  np.testing.assert_array_equal(parameters['steps_per_round'], [3, 1, 1])
  np.testing.assert_array_equal(parameters['noise_multiplier'], [2, 3, 4])
  assert [str(parameters[name].dtype) for name in parameters] == [
    'float32', 'float32', 'int32', 'float32',
  ]  # fmt: skip


@pytest.mark.parametrize(
  'private_selection', [None, selection.PrivateSelection(epsilon=0.2, rounds=3)]
)
@pytest.mark.parametrize('batches', ['poisson', 'shuffled'])
@pytest.mark.parametrize('rounds', [0, 1, 5])
def test_silo_epsilons_are_those_of_their_events(private_selection, rounds, batches):
  plan = _silos(selection=private_selection, batches=batches)
  for epsilon, event, delta in zip(
    plan.epsilons(rounds), plan.event(rounds), plan.delta, strict=True
  ):
    assert epsilon == pytest.approx(accounting.rdp_loss(event, float(delta)).epsilon, rel=1e-12)
  assert plan.epsilon(rounds) == plan.loss(rounds).epsilon


def test_shuffled_batches_cost_a_gaussian_mechanism_an_epoch():
  """Whatever the silo's size: an example is in one batch of an epoch at most."""
  plan = _silos(batches='shuffled', noise_multiplier=5.0, delta=1e-3, steps_per_round=[6, 2, 2])
  alone = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5.0), 2 * 100)
  assert plan.event(100) == (alone, alone, alone)
  # 200 mechanisms with noise 5 are one with 5 / sqrt(200) (Balle and Wang 2018, theorem 8).
  z, epsilon = 5 / math.sqrt(200), plan.epsilon(100)
  delta = lambda e: (  # noqa: E731
    stats.norm.cdf(0.5 / z - e * z) - math.exp(e) * stats.norm.cdf(-0.5 / z - e * z)
  )
  assert delta(epsilon) <= 1e-3 < delta(0.85 * epsilon)
  poisson = _silos(noise_multiplier=5.0, delta=1e-3, steps_per_round=[6, 2, 2]).epsilons(100)
  assert poisson[0] < 0.6 * epsilon and poisson[2] == pytest.approx(epsilon)
  assert 'shuffled' in plan.statement(100).mechanism
  assert 'without amplification' in plan.statement(100).mechanism


def test_a_silo_without_noise_has_no_guarantee():
  plan = _silos(noise_multiplier=[2.0, 0.0, 2.0])
  assert np.isinf(plan.epsilons(1)[1]) and np.isfinite(plan.epsilons(1)[[0, 2]]).all()
  assert plan.epsilon(1) == math.inf
  np.testing.assert_array_equal(plan.epsilons(0), 0.0)


def test_local_steps_per_round():
  np.testing.assert_array_equal(
    plan_lib.local_steps_per_round([5, 32, 63, 64, 200], 32, local_epochs=2), [2, 2, 2, 4, 12]
  )


def test_no_privacy():
  plan = plan_lib.NoPrivacy(cohorts=COHORTS)
  assert plan.epsilon(0) == 0 and plan.epsilon(1) == math.inf
  assert plan.denominator == 10.0
  assert accounting.rdp_loss(plan.event(3), 1e-5).epsilon == math.inf


def test_full_rate_poisson_is_the_gaussian_mechanism():
  everyone = _client(cohorts=sampling.EveryClient(100)).epsilon(10)
  assert _client(cohorts=sampling.PoissonCohorts(100, 1.0)).epsilon(10) == everyone


def test_hyperparameters_of_the_plan():
  assert _client().hyperparameters == {'clipping_norm': 1.0, 'noise_multiplier': 1.0}
  adaptive = _client(
    cohorts=sampling.EveryClient(100), clipping=plan_lib.AdaptiveClipping(initial_norm=0.3)
  )
  assert adaptive.hyperparameters == {
    'clipping_norm': 0.3,
    'noise_multiplier': 1.0,
    'target_quantile': 0.5,
    'clipping_learning_rate': 0.2,
    'quantile_noise_multiplier': 5.0,
  }
