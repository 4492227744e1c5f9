"""The exponential mechanism as report-noisy-min."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from privacy import selection
from runtime import random_streams

SCORES = np.array([0.3, 0.1, 0.5, 0.2], np.float32)


def _counts(scores, sensitivity, epsilon, draws=6000):
  def select(seed):
    key = random_streams.key(seed, random_streams.Stream.SELECTION, 0)
    return selection.report_noisy_min(key, tf.constant(scores), sensitivity, epsilon)

  @tf.function(jit_compile=True)
  def select_all():
    return tf.vectorized_map(select, tf.range(draws))

  chosen = select_all().numpy()
  assert chosen.dtype == np.int32
  return np.bincount(chosen, minlength=len(scores))


def _probabilities(scores, sensitivity, epsilon):
  weights = np.exp(-epsilon * scores.astype(np.float64) / (2 * sensitivity))
  return weights / weights.sum()


@pytest.mark.slow
def test_probabilities_are_those_of_the_exponential_mechanism():
  counts = _counts(SCORES, 0.1, 1.0)
  expected = _probabilities(SCORES, 0.1, 1.0) * counts.sum()
  assert stats.chisquare(counts, expected).pvalue > 1e-3
  # Negative control: with 2/3 of the noise the test fails.
  wrong = _probabilities(SCORES, 0.1 * 2 / 3, 1.0) * counts.sum()
  assert stats.chisquare(counts, wrong).pvalue < 1e-6


def _shown_epsilon(sensitivity, epsilon, claimed_sensitivity, draws=60_000):
  """Lower bound, at 3.5 deviations, of the largest log ratio of the choices on two neighbours."""
  # The worst case: one score falls by the sensitivity while all others rise by it.
  moved = SCORES + claimed_sensitivity * np.array([1, -1, 1, 1], np.float32)
  before, after = (_counts(s, sensitivity, epsilon, draws) for s in (SCORES, moved))
  ratio = np.log(after / before)
  return float(np.max(np.abs(ratio) - 3.5 * np.sqrt(1 / before + 1 / after)))


@pytest.mark.slow
def test_choices_obey_epsilon():
  """Drawn from the mechanism: scores that move by the sensitivity show no more than epsilon."""
  assert 0.3 < _shown_epsilon(0.1, 1.0, 0.1) <= 1.0
  # Negative control: a sensitivity that is claimed too small by a factor 4.
  assert _shown_epsilon(0.1 / 4, 1.0, 0.1) > 1.0


def test_infinite_epsilon_is_the_plain_minimum():
  assert _counts(SCORES, 0.1, np.inf, draws=50)[1] == 50


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [({'epsilon': 0.0, 'rounds': 1}, 'epsilon'), ({'epsilon': 1.0, 'rounds': -1}, 'rounds')],
)
def test_refuses(kwargs, message):
  with pytest.raises(ValueError, match=message):
    selection.PrivateSelection(**kwargs)
