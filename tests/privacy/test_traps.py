"""Accounting traps seen in published programs: each has a test with its name."""

import inspect
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import rdp as dp_rdp

from privacy import accounting, calibration, queries, sampling, selection, tuning
from privacy import plan as plan_lib
from privacy.events import Adjacency, ExponentialMechanismDpEvent

GAUSSIAN = dp_accounting.GaussianDpEvent
FIXED = plan_lib.FixedClipping(norm=1.0)


def _client(cohorts, z, delta=1e-5, clipping=FIXED, **kwargs):
  return plan_lib.ClientLevelPrivacy(
    cohorts=cohorts, noise_multiplier=z, delta=delta, clipping=clipping, **kwargs
  )


def _silos(**kwargs):
  values = {
    'num_examples': [100, 40, 20],
    'batch_size': 32,
    'steps_per_round': [3, 1, 1],
    'noise_multiplier': [2.0, 3.0, 4.0],
    'delta': 1e-3,
    'clipping_norm': 1.0,
  }
  return plan_lib.ExampleLevelPrivacy(**{**values, **kwargs})


def test_trap_float32_noise_multipliers_silently_drop_mechanisms():
  def event(kind):
    both = dp_accounting.ComposedDpEvent([GAUSSIAN(kind(0.503)), GAUSSIAN(kind(1))])
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.01, both), 1000)

  # The trap is there, in dp-accounting ...
  dropped = dp_rdp.RdpAccountant().compose(event(np.float32)).get_epsilon(1e-5)
  assert dropped == pytest.approx(15.14, abs=0.01)
  # ... and not here: such an event is refused, and Python floats give the truth.
  assert accounting.rdp_loss(event(float), 1e-5).epsilon == pytest.approx(21.73, abs=0.01)
  for kind in (np.float32, int, np.float64, tf.constant):
    with pytest.raises(ValueError, match='noise_multiplier must be a Python float'):
      accounting.rdp_loss(event(kind), 1e-5)


@pytest.mark.parametrize('number', [np.float32(2.0), np.float64(2.0), np.int64(2), 2])
def test_trap_float32_plans_make_python_numbers(number):
  cohorts = sampling.PoissonCohorts(100, np.float32(0.25))
  accounting.check_event(_client(cohorts, number).event(np.int64(10)))
  accounting.check_event(_client(sampling.FixedSizeCohorts(100, np.int32(5)), number).event(10))
  for event in _silos(
    noise_multiplier=number, selection=selection.PrivateSelection(epsilon=number, rounds=10)
  ).event(10):
    accounting.check_event(event)
  accounting.check_event(tuning.PrivateTuning(mean=number, shape=number).event(GAUSSIAN(1.0)))


def test_trap_shuffled_batches_accounted_as_poisson():
  """The sampler that draws makes the event; fixed size costs its own price."""
  n, m, rounds, z = 1000, 10, 1000, 1.0
  fixed = _client(sampling.FixedSizeCohorts(n, m), z, accountant='renyi')
  poisson = _client(sampling.PoissonCohorts(n, m / n), z, accountant='renyi')
  assert _client(fixed.cohorts, z).epsilon(rounds) == pytest.approx(14.82, abs=0.01)
  assert _client(poisson.cohorts, z).epsilon(rounds) == pytest.approx(1.829, abs=0.001)
  assert fixed.epsilon(rounds) == pytest.approx(20.99, abs=0.01)
  assert poisson.epsilon(rounds) == pytest.approx(2.10, abs=0.01)
  naive = dp_accounting.SampledWithoutReplacementDpEvent(n, m, GAUSSIAN(z))
  curve = accounting.rdp_curve(naive, Adjacency.REPLACE_ONE) * rounds
  assert accounting.loss_of_curve(curve, 1e-5).epsilon == pytest.approx(3.58, abs=0.01)
  # Cohorts of the Poisson plan vary in size; those of the other do not.
  assert len({len(poisson.cohorts.sample(0, r)) for r in range(20)}) > 1
  assert {len(fixed.cohorts.sample(0, r)) for r in range(20)} == {m}


def test_trap_shuffled_batches_an_empty_round_still_adds_noise_and_counts():
  plan = _client(sampling.PoissonCohorts(10, 0.01), 1.0)
  query = plan.make_query()
  noised, state, _ = query.get_noised_result({'a': tf.zeros([4])}, query.initial_global_state())
  assert np.all(np.abs(noised['a']) > 0) and int(state['counter']) == 1
  assert plan.event(3).count == 3


@pytest.mark.parametrize(
  ('plan', 'words'),
  [
    (_client(sampling.PoissonCohorts(100, 0.1), 1.0), 'zero-out'),
    (_client(sampling.EveryClient(100), 1.0), 'zero-out'),
    (_client(sampling.FixedSizeCohorts(100, 10), 1.0), 'replace-one'),
    (_silos(), 'zero-out'),
  ],
)
def test_trap_adjacency_not_said(plan, words):
  statement = plan.statement(5)
  assert words in statement.adjacency
  assert words in statement.text()
  assert statement.to_json()['unit'] in statement.to_json()['protected'].lower()


@pytest.mark.parametrize('z', [0.5, 1.0, 4.0])
def test_trap_adaptive_clippings_second_query(z):
  """z once, or (z_delta, 2 sigma_b) composed: the same, and never a mix."""
  plan = _client(
    sampling.PoissonCohorts(2000, 0.05),
    z,
    clipping=plan_lib.AdaptiveClipping(quantile_noise_multiplier=2.5),
  )
  both = dp_accounting.ComposedDpEvent(
    [GAUSSIAN(float(plan.update_noise_multiplier)), GAUSSIAN(2 * 2.5)]
  )
  composed = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.05, both), 500)
  by_rdp = plan.loss(500, accountant='renyi').epsilon
  assert accounting.rdp_loss(composed, 1e-5).epsilon == pytest.approx(by_rdp, rel=1e-9)
  state = plan.make_query().initial_global_state()
  np.testing.assert_allclose(
    state['sum_state']['noise_multiplier'], plan.update_noise_multiplier, rtol=1e-6
  )
  count = state['quantile_estimator_state']['below_estimate_state']['numerator_state']
  assert float(count['noise_multiplier']) * float(count['l2_norm_clip']) == 2.5


def test_trap_adaptive_clippings_second_query_default_and_impossible():
  cohorts = sampling.PoissonCohorts(2000, 0.05)
  assert (
    _client(cohorts, 1.0, clipping=plan_lib.AdaptiveClipping()).quantile_noise_multiplier == 5.0
  )
  with pytest.raises(ValueError, match=r'quantile noise multiplier 0.5 .* half .* 0.5'):
    _client(cohorts, 1.0, clipping=plan_lib.AdaptiveClipping(quantile_noise_multiplier=0.5))


def test_trap_dp_aggregator_zeroing():
  """No query here estimates anything without noise: two noised sums, no more."""
  state = (
    _client(sampling.EveryClient(100), 1.0, clipping=plan_lib.AdaptiveClipping())
    .make_query()
    .initial_global_state()
  )
  assert list(state) == ['sum_state', 'quantile_estimator_state']
  assert float(state['sum_state']['noise_multiplier']) > 0
  below = state['quantile_estimator_state']['below_estimate_state']['numerator_state']
  assert float(below['noise_multiplier']) > 0
  assert 'dp_aggregator' not in inspect.getsource(queries)


def test_trap_data_dependent_weights():
  """The denominator depends on neither the cohort nor the clients' data."""
  plan = _client(sampling.PoissonCohorts(200, 0.1), 1.0)
  assert plan.denominator == 20.0
  assert {len(plan.cohorts.sample(0, r)) for r in range(10)} != {20}
  # Silos' divisors do depend on sizes, so their relation keeps the sizes public.
  np.testing.assert_array_equal(_silos().silo_parameters()['batch_size'], [32.0, 32.0, 20.0])
  assert 'sizes public' in _silos().adjacency
  assert any('sizes of the silos are public' in s for s in _silos().statement(1).outside)


def test_trap_fixed_denominators():
  """With opted-out clients the private sum is divided by the expected q N_p."""
  plan = _client(sampling.PoissonCohorts(2000, 0.05), 1.5, num_opted_out=200)
  assert plan.denominator == pytest.approx(90.0)
  assert plan.epsilon(500) == _client(plan.cohorts, 1.5).epsilon(500)
  statement = plan.statement(500)
  assert '1800 clients' in statement.protected and 'no guarantee' in statement.protected


def test_trap_rdp_orders():
  orders = accounting.RDP_ORDERS
  assert set(range(64, 257)) <= set(orders)
  assert list(orders) == sorted(orders)
  # An optimum in the gap of dp-accounting's default list: filling it pays.
  event = dp_accounting.SelfComposedDpEvent(GAUSSIAN(75.0), 10)
  loss = accounting.rdp_loss(event, 1e-5)
  assert 64 < loss.order < 128 and loss.order_is_interior
  assert loss.epsilon < dp_rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
  with pytest.warns(UserWarning, match='order'):
    assert not accounting.rdp_loss(GAUSSIAN(2000.0), 1e-15).order_is_interior


def test_trap_pld():
  """PLD where it applies, None (not a wrong number) where it does not."""
  poisson = _client(sampling.PoissonCohorts(1000, 0.01), 1.0)
  assert poisson.statement(1000).pld_epsilon == pytest.approx(1.83, abs=0.01)
  assert _client(sampling.FixedSizeCohorts(1000, 10), 9.0).statement(10).pld_epsilon is not None
  best_of = tuning.PrivateTuning(mean=5.0, shape=1.0)
  tuned = _client(poisson.cohorts, 1.0, tuning=best_of)
  assert tuned.statement(10).pld_epsilon > _client(poisson.cohorts, 1.0).statement(10).pld_epsilon
  assert _silos().statement(5).pld_epsilon is not None


def test_trap_private_selection_in_ifca():
  private = selection.PrivateSelection(epsilon=0.5, rounds=4)
  assert private.event(10) == dp_accounting.SelfComposedDpEvent(
    ExponentialMechanismDpEvent(0.5, True), 4
  )
  curve = accounting.rdp_curve(private.event(10))
  np.testing.assert_allclose(curve, 4 * 0.5**2 / 8 * np.array(accounting.RDP_ORDERS))
  assert private.event(3).count == 3  # only selections that were made
  # Composed with training and not amplified by the sampling of batches.
  with_selection, without = _silos(selection=private), _silos()
  for event, plain in zip(with_selection.event(10), without.event(10), strict=True):
    np.testing.assert_allclose(
      accounting.rdp_curve(event), accounting.rdp_curve(plain) + curve, rtol=1e-12
    )
  # Its privacy loss distribution is its own, not that of the Gaussian with its Renyi curve.
  gaussian = dp_accounting.SelfComposedDpEvent(GAUSSIAN(2.0 / 0.5), 4)
  assert accounting.pld_epsilon(private.event(10), 1e-6) < accounting.pld_epsilon(gaussian, 1e-6)
  assert with_selection.statement(10).pld_epsilon > without.statement(10).pld_epsilon


def test_trap_private_tuning():
  """A released best run costs more than the run, and less than all runs."""
  best_of = tuning.PrivateTuning(mean=10.0, shape=0.5)
  plain = _client(sampling.PoissonCohorts(1000, 0.01), 1.0)
  tuned = _client(plain.cohorts, 1.0, tuning=best_of)
  assert isinstance(tuned.event(100), dp_accounting.dp_event.RepeatAndSelectDpEvent)
  assert plain.epsilon(100) < tuned.epsilon(100) < 4 * plain.epsilon(100)
  # A silo's shared run is released as well, round by round, and a score is part of a run.
  scored = tuning.PrivateTuning(mean=10.0, shape=0.5, score_noise_multiplier=1.5)
  silos, untuned = _silos(tuning=scored), _silos()
  for event, run in zip(silos.event(7), untuned.event(7), strict=True):
    assert event == dp_accounting.ComposedDpEvent(
      [
        run,
        dp_accounting.dp_event.RepeatAndSelectDpEvent(
          event=dp_accounting.ComposedDpEvent([run, dp_accounting.GaussianDpEvent(1.5)]),
          mean=10.0,
          shape=0.5,
        ),
      ]
    )
  for epsilon, event, delta in zip(silos.epsilons(7), silos.event(7), silos.delta, strict=True):
    assert epsilon == accounting.pld_epsilon(event, float(delta))
  assert 'random number of runs' in tuned.statement(100).mechanism
  assert 'not accounted for' in plain.statement(100).text()


def test_trap_local_work_that_touches_data_more_often():
  once = plan_lib.local_steps_per_round([100, 40, 20], 32, local_epochs=1)
  ditto = plan_lib.local_steps_per_round([100, 40, 20], 32, local_epochs=1, passes=2)
  np.testing.assert_array_equal(once, [3, 1, 1])
  np.testing.assert_array_equal(ditto, [6, 2, 2])
  plan = _silos(steps_per_round=ditto)
  assert [event.count for event in plan.event(5)] == [30, 10, 10]
  np.testing.assert_allclose(plan.epsilons(5), _silos(steps_per_round=once).epsilons(10))
  # Silos' data are disjoint: the largest epsilon, never the sum.
  assert plan.epsilon(5) == plan.epsilons(5).max()


def test_trap_preprocessing():
  sentence = 'Features were standardised by the silo: not a private step.'
  for plan in (_silos(), _client(sampling.EveryClient(5), 1.0)):
    statement = plan.statement(1, preprocessing=(sentence,))
    assert sentence in statement.outside and sentence in statement.to_json()['outside']


def test_trap_metrics():
  for plan in (_silos(), _client(sampling.EveryClient(5), 1.0)):
    assert any('simulation-only' in sentence for sentence in plan.statement(1).outside)


@pytest.mark.parametrize('target', [0.05, 0.3, 1.0, 8.0, 50.0])
def test_trap_calibration_never_gives_less_privacy_than_asked(target):
  for cohorts in (
    sampling.PoissonCohorts(1000, 0.02),
    sampling.FixedSizeCohorts(1000, 20),
    sampling.EveryClient(1000),
  ):
    plan = calibration.calibrate_client_level(
      target_epsilon=target, delta=1e-5, rounds=100, cohorts=cohorts, clipping=FIXED
    )
    assert target * 0.999 < plan.epsilon(100) <= target
    # The mechanism computes in float32: its noise is exactly the accounted one.
    assert np.float32(plan.noise_multiplier) == plan.noise_multiplier


def test_trap_floating_point_gaussian_noise():
  for plan in (_silos(), _client(sampling.EveryClient(5), 1.0)):
    assert any('floating-point' in sentence for sentence in plan.statement(1).outside)


def test_epsilon_is_of_the_rounds_that_were_run():
  plan = _client(sampling.PoissonCohorts(1000, 0.02), 1.0)
  epsilons = [plan.epsilon(rounds) for rounds in (0, 1, 10, 100)]
  assert epsilons[0] == 0 and np.all(np.diff(epsilons) > 0) and math.isfinite(epsilons[-1])
