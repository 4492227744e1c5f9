"""The truncated negative binomial number of tuning runs."""

import numpy as np
import pytest
from scipy import stats

from privacy import tuning


@pytest.mark.parametrize('shape', [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_distribution_has_its_mean_and_sums_to_one(shape):
  plan = tuning.PrivateTuning(mean=10.0, shape=shape)
  runs = np.arange(1, 20_000)
  probability = np.exp(plan.log_probability(runs))
  assert probability.sum() == pytest.approx(1.0, rel=1e-6)
  assert (probability * runs).sum() == pytest.approx(10.0, rel=1e-4)


def test_distribution_by_the_papers_formula():
  plan = tuning.PrivateTuning(mean=4.0, shape=0.5)
  gamma, eta = plan.gamma, 0.5
  for runs in (1, 2, 5):
    product = np.prod([(j + eta) / (j + 1) for j in range(runs)])
    by_hand = (1 - gamma) ** runs / (gamma**-eta - 1) * product
    assert np.exp(plan.log_probability(runs)) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize('shape', [-0.5, 0.0, 1.0])
def test_draws_follow_the_distribution(shape):
  plan = tuning.PrivateTuning(mean=4.0, shape=shape)
  draws = np.array([plan.draw(seed, 3) for seed in range(2000)])
  probability = np.exp(plan.log_probability(np.arange(1, 9)))
  observed = [*(np.sum(draws == runs) for runs in range(1, 9)), np.sum(draws > 8)]
  expected = np.array([*probability, 1 - probability.sum()]) * len(draws)
  assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_draws_are_keyed():
  plan = tuning.PrivateTuning(mean=50.0, shape=1.0)
  assert plan.draw(1, 2) == plan.draw(1, 2)
  assert len({plan.draw(1, silo) for silo in range(20)}) > 5


@pytest.mark.parametrize(
  ('mean', 'shape', 'message'), [(0.5, 1.0, 'mean'), (2.0, -1.0, 'shape'), (np.inf, 1.0, 'mean')]
)
def test_refuses(mean, shape, message):
  with pytest.raises(ValueError, match=message):
    tuning.PrivateTuning(mean=mean, shape=shape)
