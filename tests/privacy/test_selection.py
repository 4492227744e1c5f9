"""The exponential mechanism as report-noisy-min."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from privacy import selection
from runtime import random_streams

SCORES = np.array([0.3, 0.1, 0.5, 0.2], np.float32)


def _counts(scores, sensitivity, epsilon, draws=6000):
  @tf.function
  def select(seed):
    key = random_streams.key(seed, random_streams.Stream.SELECTION, 0)
    return selection.report_noisy_min(key, tf.constant(scores), sensitivity, epsilon)

  chosen = tf.vectorized_map(select, tf.range(draws)).numpy()
  assert chosen.dtype == np.int32
  return np.bincount(chosen, minlength=len(scores))


def _probabilities(scores, sensitivity, epsilon):
  weights = np.exp(-epsilon * scores.astype(np.float64) / (2 * sensitivity))
  return weights / weights.sum()


def test_probabilities_are_those_of_the_exponential_mechanism():
  counts = _counts(SCORES, 0.1, 1.0)
  expected = _probabilities(SCORES, 0.1, 1.0) * counts.sum()
  assert stats.chisquare(counts, expected).pvalue > 1e-3
  # Negative control: with 2/3 of the noise the test fails.
  wrong = _probabilities(SCORES, 0.1 * 2 / 3, 1.0) * counts.sum()
  assert stats.chisquare(counts, wrong).pvalue < 1e-6


def test_probabilities_obey_epsilon():
  """Scores that move by the sensitivity change no log-probability by more than epsilon."""
  moved = SCORES + 0.1 * np.array([1, -1, 1, -1])
  ratio = np.log(_probabilities(SCORES, 0.1, 1.0) / _probabilities(moved, 0.1, 1.0))
  assert np.abs(ratio).max() <= 1.0


def test_infinite_epsilon_is_the_plain_minimum():
  assert _counts(SCORES, 0.1, np.inf, draws=50)[1] == 50


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [({'epsilon': 0.0, 'rounds': 1}, 'epsilon'), ({'epsilon': 1.0, 'rounds': -1}, 'rounds')],
)
def test_refuses(kwargs, message):
  with pytest.raises(ValueError, match=message):
    selection.PrivateSelection(**kwargs)
