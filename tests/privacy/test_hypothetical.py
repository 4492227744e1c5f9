"""The noise of a larger deployment: its scale, whose epsilon it is, and how it is asked for."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf

from experiments.audits import target
from experiments.config.experiment import ExperimentConfig
from experiments.config.in_words import describe
from experiments.running import build, plans, progress
from experiments.sweeps import table
from privacy import calibration, correlated, plan, sampling
from privacy.correlated.cohorts import SeparatedCohorts
from privacy.hypothetical import HypotheticalDeployment
from runtime.noise_key import NoiseKey

SIMULATED, DEPLOYED = sampling.PoissonCohorts(1000, 0.05), sampling.PoissonCohorts(10**6, 1e-3)
CLIP, NOISE, ROUNDS, DELTA = 0.4, 0.8, 100, 1e-6


def _plan(**changes):
  values = dict(
    cohorts=SIMULATED, deployed=DEPLOYED, noise_multiplier=NOISE, delta=DELTA,
    clipping=plan.FixedClipping(norm=CLIP),
  )  # fmt: skip
  return HypotheticalDeployment(**{**values, **changes})


def _deviation(of_plan, size=40_000):
  """The standard deviation of the mean update that a round releases, without any update."""
  query = of_plan.make_query(None, NoiseKey.rehearsal(7))
  noised, _, _ = query.get_noised_result([tf.zeros([size])], query.initial_global_state())
  return float(np.std(noised[0].numpy())) / of_plan.denominator


def test_the_mean_is_as_noisy_as_the_deployments():
  hypothetical = _plan()
  expected = NOISE * CLIP / 1000  # sigma S over the deployment's cohort
  assert _deviation(hypothetical) == pytest.approx(expected, rel=0.03)
  assert _deviation(hypothetical.of_deployment) == pytest.approx(expected, rel=0.03)
  # The same noise multiplier without the deployment is 20 times the noise: this test can tell.
  plain = plan.ClientLevelPrivacy(
    cohorts=SIMULATED, noise_multiplier=NOISE, delta=DELTA, clipping=plan.FixedClipping(norm=CLIP)
  )
  assert _deviation(plain) == pytest.approx(20 * expected, rel=0.03)
  assert hypothetical.hyperparameters == {
    'clipping_norm': CLIP, 'noise_multiplier': pytest.approx(NOISE * 50 / 1000)
  }  # fmt: skip


@pytest.mark.slow
def test_epsilon_is_the_deployments_and_the_statement_says_so():
  hypothetical = _plan()
  alone = plan.ClientLevelPrivacy(
    cohorts=DEPLOYED, noise_multiplier=NOISE, delta=DELTA, clipping=plan.FixedClipping(norm=CLIP)
  )
  assert hypothetical.epsilon(ROUNDS) == alone.epsilon(ROUNDS)
  own = hypothetical.simulated.loss(ROUNDS, accountant='renyi').epsilon
  assert own > 50 * alone.epsilon(ROUNDS)
  said = hypothetical.statement(ROUNDS)
  assert said.epsilon == alone.epsilon(ROUNDS)
  whose = 'of a hypothetical deployment with 1000 of 1000000 clients in a round, not of this simul'
  for words in (said.guarantee(), said.text().replace('\n' + 11 * ' ', ' ')):
    assert whose in words
  assert 'Each client, with all' not in said.protected
  first = said.outside[0]
  assert first.startswith('The clients of this simulation. At the same delta their epsilon is ')
  shown, relation = first.split('epsilon is ')[1].split(', and')[0].split()
  assert own <= float(shown) < 1.001 * own and relation == '(zero-out)'
  assert said.to_json()['condition'] == said.condition != ''
  assert said.parameters['noise_cohort_size'] == 1000
  assert said.parameters['simulated_noise_multiplier'] == pytest.approx(0.04)
  assert 'hypothetical' not in alone.statement(ROUNDS).text()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clipping': plan.AdaptiveClipping()}, 'fixed clipping norm'),
    ({'num_opted_out': 3}, 'nobody who opted out'),
    (
      {'deployed': sampling.PoissonCohorts(10**6, 4e-5)},
      '40 clients in a round, fewer than the 50',
    ),
    (
      {'cohorts': SeparatedCohorts(1000, 20), 'correlation': correlated.Independent(rounds=9)},
      'independent noise',
    ),
  ],
)
def test_what_a_deployment_cannot_be(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)


FLAGS = dict(
  dataset='digits', privacy='client', delta=1e-6, clipping_norm=CLIP, rounds=ROUNDS,
  clients_per_round=10,
)  # fmt: skip
ASKED = dict(hypothetical_deployment=True, noise_cohort_size=1000, noise_population=10**6)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ({'noise_cohort_size': 1000}, '--noise_cohort_size=1000 needs --hypothetical_deployment'),
    ({'noise_population': 9}, '--noise_population=9 needs --hypothetical_deployment'),
    ({'hypothetical_deployment': True}, 'needs --noise_cohort_size'),
    ({**ASKED, 'adaptive_clipping': True}, 'needs one --clipping_norm'),
    ({**ASKED, 'ledger': 'spent.json'}, '--ledger=spent.json records'),
    ({**ASKED, 'cohort_sampling': 'separated'}, '--cohort_sampling=separated'),
    ({**ASKED, 'noise_cohort_size': 0}, '--noise_cohort_size=0 must be at least 1'),
  ],
)
def test_flags_that_are_refused(flags, message):
  with pytest.raises(ValueError, match=message):
    ExperimentConfig(**{**FLAGS, **flags}, noise_multiplier=1.0)


def test_without_privacy_there_is_no_deployment():
  with pytest.raises(ValueError, match='belongs to --privacy=client'):
    ExperimentConfig(dataset='digits', **ASKED)


@pytest.mark.slow
def test_from_the_flags_to_the_plan():
  dataset = build.load_dataset(ExperimentConfig(dataset='digits'))
  config = ExperimentConfig(**FLAGS, **ASKED, target_epsilon=2.0)
  assert 'protecting nobody here' in describe(config)
  built = plans.build_plan(config, dataset)
  assert built.epsilon(ROUNDS) <= 2.0
  expected = calibration.calibrate_client_level(
    target_epsilon=2.0, delta=1e-6, rounds=ROUNDS, cohorts=DEPLOYED,
    clipping=plan.FixedClipping(norm=CLIP),
  ).noise_multiplier  # fmt: skip
  assert built.noise_multiplier == expected
  assert built.hyperparameters['noise_multiplier'] == pytest.approx(expected * 10 / 1000)
  assert math.isclose(built.cohorts.expected_size, 10)  # what is drawn is the simulation's
  for size in (9, 2000):
    flags = {**ASKED, 'noise_cohort_size': size, 'noise_population': 1500}
    refused = ExperimentConfig(**FLAGS, **flags, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=f'--noise_cohort_size={size} must be from 10'):
      plans.build_plan(refused, dataset)


def test_an_audit_is_refused():
  class Target:
    plan = _plan()

  with pytest.raises(ValueError, match='claims nothing of the clients who are here'):
    target.Mechanism(Target())


def test_a_deployment_as_large_as_the_simulation():
  """Sizes that are equal but for the rounding of a rate."""
  rounded = [(k, n) for n in range(2, 60) for k in range(1, n) if k / n * n > k]
  assert rounded
  k, n = rounded[0]
  simulated, deployed = sampling.PoissonCohorts(n, k / n), sampling.PoissonCohorts(n**2, k / n**2)
  assert _plan(cohorts=simulated, deployed=deployed).scale == pytest.approx(1.0)
  config = types.SimpleNamespace(noise_cohort_size=k, noise_population=n**2, noise_multiplier=1.0)
  common = dict(cohorts=simulated, delta=DELTA, clipping=plan.FixedClipping(norm=CLIP))
  assert plans._hypothetical(config, common).scale == pytest.approx(1.0)


def test_epsilon_has_another_name_among_metrics_and_in_tables():
  configs = [ExperimentConfig(**FLAGS, noise_multiplier=1.0, **asked) for asked in (ASKED, {})]
  runs = [
    types.SimpleNamespace(
      name=f'run {epsilon}',
      config=config,
      summary={
        'privacy': {'epsilon': epsilon}, 'metrics_by_group': {'all': {'test_mse': 1.0}},
        'rounds': 3,
      },
    )
    for epsilon, config in zip((2.0, 3.0), configs, strict=True)
  ]  # fmt: skip
  found = table.build(runs)
  assert found['deployment_epsilon'].dropna().tolist() == [2.0]
  assert found['epsilon'].dropna().tolist() == [3.0]
  names = [build.Experiment.epsilon_metric.fget(run) for run in runs]
  assert names == ['deployment_epsilon', 'epsilon']
  assert progress._words({names[0]: 2.00001, 'loss': 2.00001}, 0.0) == [
    'deployment epsilon 2.001', 'loss 2',
  ]  # fmt: skip
