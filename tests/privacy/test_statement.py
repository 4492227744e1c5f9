"""Statements say everything, and never less than the true epsilon."""

import json
import math

import pytest

from privacy import plan as plan_lib
from privacy import rounding, sampling, selection

COHORTS = sampling.PoissonCohorts(2000, 0.05)


def _client(z=1.5):
  return plan_lib.ClientLevelPrivacy(
    cohorts=COHORTS,
    noise_multiplier=z,
    delta=1e-4,
    clipping=plan_lib.AdaptiveClipping(initial_norm=0.1),
  )


def _silos():
  return plan_lib.ExampleLevelPrivacy(
    num_examples=[100, 40],
    batch_size=32,
    steps_per_round=[3, 1],
    noise_multiplier=[4.0, 5.0],
    delta=1e-3,
    clipping_norm=1.0,
    selection=selection.PrivateSelection(epsilon=0.1, rounds=5),
  )


def test_words_of_client_level_privacy():
  text = _client().statement(500, notes=('Personal models stay on the clients.',)).text()
  for words in (
    'Each client',
    'zero-out, number of clients public',
    'Under replace-one: epsilon = 6.19',
    'Gaussian mechanism',
    'noise multiplier 1.5',
    'probability 0.05 (Poisson sampling',
    'epsilon = 3.239 at delta = 0.0001 after 500 rounds',
    '(PLD; by RDP, order 5.1: 3.609)',
    'Whoever sees all outputs, and may accuse 1 in 1000 (1 in 100) of the clients',
    'Membership advantage at most',
    'Personal models stay on the clients.',
    'simulation-only',
    'floating-point',
  ):
    assert words in ' '.join(text.split()), words
  assert max(len(line) for line in text.splitlines()) <= 100


def test_json_of_example_level_privacy():
  plan = _silos()
  record = json.loads(json.dumps(plan.statement(20).to_json(), allow_nan=False))
  assert record['private'] and record['epsilon'] == plan.epsilon(20)
  assert [silo['num_examples'] for silo in record['silos']] == [100, 40]
  assert [silo['steps'] for silo in record['silos']] == [60, 20]
  assert [silo['sampling_rate'] for silo in record['silos']] == [0.32, 0.8]
  assert [silo['noise_multiplier'] for silo in record['silos']] == [4.0, 5.0]
  for silo, epsilon in zip(record['silos'], plan.epsilons(20), strict=True):
    assert silo['epsilon'] == epsilon > silo['epsilon_of_training_alone'] > 0
    # Five exponential mechanisms of epsilon 0.1.
    assert 0 < silo['epsilon_of_selection_alone'] < 0.5
  assert 'exponential mechanism with epsilon 0.1 in 5 rounds' in record['mechanism']


def test_a_large_delta_is_told():
  """1 / 100 for the weak, 100^-1.1 = 0.0063 by the paper's rule (appendix C.4)."""

  def words(delta):
    plan = plan_lib.ExampleLevelPrivacy(
      num_examples=[100, 20],
      batch_size=10,
      steps_per_round=1,
      noise_multiplier=1.0,
      delta=delta,
      clipping_norm=1.0,
    )
    return ' '.join(plan.statement(1).text().split())

  assert 'n^-1.1' not in words(0.006) and '1 / n' not in words(0.006)
  assert 'delta of 1 silos is not below n^-1.1' in words(0.008) and '1 / n' not in words(0.008)
  assert 'delta of 1 silos is larger than 1 / n' in words(0.02)


@pytest.mark.parametrize('plan', [plan_lib.NoPrivacy(cohorts=COHORTS), _client(z=0.0)])
def test_no_guarantee_is_said_plainly(plan):
  result = plan.statement(10)
  assert 'No differential privacy' in result.text()
  record = json.loads(json.dumps(result.to_json(), allow_nan=False))
  assert record['private'] is False and record['epsilon'] is None
  assert result.epsilon == math.inf


def test_zero_rounds_spend_nothing():
  result = _client().statement(0)
  assert result.epsilon == 0 and 'epsilon = 0 at' in result.guarantee()


@pytest.mark.parametrize('epsilon', [3.60801, 0.000123451, 5.99999999, 6.0, 123456.0, 0.99996])
def test_printed_epsilon_is_never_below_the_true_one(epsilon):
  printed = float(rounding.rounded_up(epsilon))
  assert epsilon * (1 - 1e-9) <= printed <= epsilon * 1.001
