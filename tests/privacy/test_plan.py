"""Plans: what they refuse, what they hand out, what they add up to."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from privacy import accounting, calibration, sampling, selection, tuning
from privacy import plan as plan_lib
from privacy.events import Adjacency

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
    (lambda: _client(accountant='rdp'), 'accountant'),
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
  plan = _silos()
  parameters = plan.silo_parameters()
  np.testing.assert_allclose(parameters['sampling_rate'], [0.32, 0.8, 1.0])
  # float32(0.8) is more than the 0.8 that is accounted for.
  assert np.all(parameters['sampling_rate'].astype(np.float64) <= plan.sampling_rates)
  np.testing.assert_array_equal(parameters['batch_size'], [32, 32, 20])
  np.testing.assert_array_equal(parameters['steps_per_round'], [3, 1, 1])
  np.testing.assert_array_equal(parameters['noise_multiplier'], [2, 3, 4])
  assert [str(parameters[name].dtype) for name in parameters] == [
    'float32', 'float32', 'int32', 'float32',
  ]  # fmt: skip


@pytest.mark.parametrize(
  'private_selection', [None, selection.PrivateSelection(epsilon=0.2, rounds=3)]
)
@pytest.mark.parametrize('accountant', ['pld', 'renyi'])
@pytest.mark.parametrize('batches', ['poisson', 'shuffled'])
@pytest.mark.parametrize('rounds', [0, 1, 5])
def test_silo_epsilons_are_those_of_their_events(private_selection, rounds, batches, accountant):
  plan = _silos(selection=private_selection, batches=batches, accountant=accountant)
  for loss, event, delta in zip(plan.losses(rounds), plan.event(rounds), plan.delta, strict=True):
    expected = accounting.loss(event, float(delta), accountant=accountant)
    assert loss == expected and loss.delta == delta
    assert loss.accountant == {'pld': 'PLD', 'renyi': 'RDP'}[accountant]
  np.testing.assert_array_equal(plan.epsilons(rounds), [x.epsilon for x in plan.losses(rounds)])


def test_equal_silos_have_each_its_own_delta():
  """What they share is the mechanism, and not what is said of it."""
  plan = _silos(
    num_examples=[40, 40, 40], steps_per_round=1, noise_multiplier=2.0, delta=[1e-2, 1e-5, 1e-3]
  )
  epsilons = [accounting.loss(plan.event(5)[0], delta).epsilon for delta in (1e-2, 1e-5, 1e-3)]
  np.testing.assert_array_equal(plan.epsilons(5), epsilons)
  assert epsilons[0] < epsilons[2] < epsilons[1]
  assert [silo['delta'] for silo in plan.statement(5).silos] == [1e-2, 1e-5, 1e-3]


def test_no_loss_distribution_is_told_where_one_silo_has_none():
  """That of the others would be less than what holds for all."""
  plan = _silos(noise_multiplier=[2.0, 3.0, 0.02], delta=1e-3)
  by_pld = [accounting.pld_epsilon(event, 1e-3) for event in plan.event(1)]
  assert None not in by_pld[:2] and by_pld[2] is None
  statement = plan.statement(1)
  assert statement.pld_epsilon is None
  assert statement.epsilon == statement.rdp.epsilon == plan.epsilons(1).max() > 100


def test_the_headline_holds_for_all_silos_at_one_delta():
  """Epsilons at several deltas have no maximum: 3 at 1e-6 says nothing of a silo's 2.9 at 1e-2."""
  plan = _silos(noise_multiplier=[30.0, 4.0, 4.0], delta=[1e-6, 1e-2, 1e-2])
  loss = plan.loss(10)
  assert loss.delta == 1e-6 == plan.common_delta
  at_one_delta = [accounting.loss(event, 1e-6).epsilon for event in plan.event(10)]
  assert plan.epsilon(10) == loss.epsilon == max(at_one_delta)
  assert loss.epsilon > 1.5 * plan.epsilons(10).max()  # those are each silo's own
  statement = plan.statement(10)
  assert statement.loss == loss and statement.silos[1]['delta'] == 1e-2
  assert 'at the smallest of their deltas' in statement.protected


def test_pld_belongs_to_the_silo_with_the_largest_pld():
  """After calibration silos tie in Renyi epsilon; their PLD epsilons differ."""
  plan = _silos(num_examples=[191, 40, 20], steps_per_round=[5, 1, 1], delta=1e-3, batch_size=32)
  found = []
  for accountant in ('renyi', 'pld'):
    tied = calibration.calibrate_example_level(
      target_epsilon=0.5, delta=1e-3, rounds=20, num_examples=plan.num_examples, batch_size=32,
      steps_per_round=plan.steps_per_round, clipping_norm=1.0, accountant=accountant,
    )  # fmt: skip
    by_pld = [accounting.pld_epsilon(event, 1e-3) for event in tied.event(20)]
    by_rdp = [accounting.rdp_loss(event, 1e-3).epsilon for event in tied.event(20)]
    statement = tied.statement(20)
    assert statement.pld_epsilon == max(by_pld) and statement.rdp.epsilon == max(by_rdp)
    found.append((np.ptp(by_rdp), np.ptp(by_pld)))
  assert found[0][0] < 1e-4 < found[0][1] and found[1][1] < 1e-4 < found[1][0]


@pytest.mark.parametrize(
  'cohorts',
  [COHORTS, sampling.EveryClient(100), sampling.FixedSizeCohorts(100, 10)],
)
def test_epsilon_under_each_relation(cohorts):
  """Replacing a record moves a sum twice as far; add/remove-one would need a secret N."""
  plan = _client(cohorts=cohorts, noise_multiplier=4.0)
  assert 'number of clients public' in plan.adjacency
  half = cohorts.event(2.0).event if cohorts.rate < 1 else cohorts.event(2.0)
  if Adjacency.ZERO_OUT in plan.adjacencies:
    assert plan.adjacencies == (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    zero, replaced = plan.loss(10).epsilon, plan.loss(10, Adjacency.REPLACE_ONE).epsilon
    assert 1.7 * zero < replaced < 2.5 * zero
    assert plan.event(10, Adjacency.REPLACE_ONE).event == cohorts.event(2.0)
    assert half == dp_accounting.GaussianDpEvent(2.0)
    statement = plan.statement(10)
    assert statement.to_json()['epsilon_by_adjacency'] == {'replace-one': replaced}
    assert 'Under replace-one: epsilon' in statement.text()
  else:
    assert plan.adjacencies == (Adjacency.REPLACE_ONE,) and 'replace-one' in plan.adjacency
  with pytest.raises(ValueError, match=r'adjacency .* must be .*, got add/remove-one'):
    plan.loss(10, Adjacency.ADD_REMOVE_ONE)


def test_schools_silo_under_replacement():
  """The cross-silo paper's definition 2.1 is replacement: its 'epsilon 6' at rate 1 is 14.8."""
  plan = _silos(
    num_examples=[24], steps_per_round=1, noise_multiplier=9.28, delta=1e-3, accountant='renyi'
  )
  assert plan.epsilon(201) == pytest.approx(5.971, abs=1e-3)
  assert plan.loss(201, Adjacency.REPLACE_ONE).epsilon == pytest.approx(14.8, abs=0.05)
  with pytest.raises(ValueError, match='adjacency must be zero-out or replace-one'):
    plan.loss(201, Adjacency.ADD_REMOVE_ONE)


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


@pytest.mark.parametrize(('epsilon', 'of_five'), [(6.0, 17.3), (3.6, 9.1)])
def test_several_runs_that_are_released_compose(epsilon, of_five):
  """Five seeds of one setting: far more than one of them, by Renyi DP; less by PLD."""
  values = dict(
    target_epsilon=epsilon, delta=1e-3 if epsilon == 6.0 else 1e-4,
    rounds=201 if epsilon == 6.0 else 500,
    cohorts=sampling.EveryClient(100) if epsilon == 6.0 else sampling.PoissonCohorts(2000, 0.05),
    clipping=plan_lib.FixedClipping(norm=1.0), accountant='renyi',
  )  # fmt: skip
  plan = calibration.calibrate_client_level(**values)
  rounds = values['rounds']
  together = plan.loss_of_runs(rounds, 5)
  assert together.epsilon == pytest.approx(of_five, rel=0.03)
  assert plan.loss_of_runs(rounds, 1).epsilon == plan.epsilon(rounds)
  tight = dataclasses.replace(plan, accountant='pld')
  assert tight.loss_of_runs(rounds, 5).epsilon < together.epsilon
  silos = _silos()
  assert silos.loss_of_runs(4, 5).epsilon == pytest.approx(silos.loss(20).epsilon, rel=1e-3)


def test_a_client_pays_for_its_rows_of_both_parts():
  """A score on rows that no run was trained on keeps no client out of the training."""
  tuned = tuning.PrivateTuning(mean=3.0, shape=0.0, score_noise_multiplier=1.0)
  assert _client(tuning=tuned).epsilon(5) > _client().epsilon(5)
  with pytest.raises(ValueError, match='a client has rows in both parts'):
    _client(tuning=dataclasses.replace(tuned, held_out_score=True))


def test_both_relations_are_told_whoever_accounts():
  """Poisson batches have no Renyi curve where an example is replaced; PLD has."""
  values = dict(num_examples=np.array([200, 88]), steps_per_round=[6, 2], delta=1e-3)
  values |= dict(noise_multiplier=[2.0, 3.0])
  by_renyi, by_pld = (_silos(accountant=name, **values).statement(20) for name in ('renyi', 'pld'))
  assert by_renyi.loss.accountant == 'RDP'
  replaced = by_renyi.other_losses['replace-one']
  assert replaced.epsilon > by_renyi.epsilon
  assert replaced == by_pld.other_losses['replace-one']
  assert 'at the same delta (PLD).' in ' '.join(by_renyi.text().split())
  # A silo whose batches hold all its examples has the accountant that was asked for.
  mixed = _silos(accountant='renyi').statement(20)
  assert all(silo['epsilon_by_replace_one'] > silo['epsilon'] for silo in mixed.silos)
