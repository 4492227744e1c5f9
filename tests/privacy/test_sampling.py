"""Samplers: reproducible, of the claimed rate, and Poisson where they say so."""

import dataclasses
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from privacy import accounting, sampling
from privacy.events import Adjacency
from tests.trust import second_accountant

POPULATION, RATE, ROUNDS = 400, 0.1, 2000


def _membership(sampler, rounds=ROUNDS, seed=3):
  """bool [rounds, population]."""
  result = np.zeros((rounds, sampler.population), bool)
  for r in range(rounds):
    result[r, sampler.sample(seed, r)] = True
  return result


def _shuffled_membership(rounds=ROUNDS):
  """What shuffling does: epochs cut into cohorts of a fixed size."""
  generator, size = np.random.default_rng(0), int(POPULATION * RATE)
  result = np.zeros((rounds, POPULATION), bool)
  for r in range(rounds):
    if r % (POPULATION // size) == 0:
      order = generator.permutation(POPULATION)
    place = r % (POPULATION // size) * size
    result[r, order[place : place + size]] = True
  return result


def _poisson_p_values(membership, rate):
  """p-values of: overall rate, cohort size variance, client count variance, lag-1 dependence."""
  rounds, population = membership.shape
  variance = rate * (1 - rate)
  p_rate = stats.binomtest(int(membership.sum()), membership.size, rate).pvalue

  def two_sided_chi2(counts, expected, expected_variance):
    value = np.sum((counts - expected) ** 2) / expected_variance
    tail = stats.chi2.cdf(value, counts.size)
    return 2 * min(tail, 1 - tail)

  p_sizes = two_sided_chi2(membership.sum(axis=1), population * rate, population * variance)
  p_clients = two_sided_chi2(membership.sum(axis=0), rounds * rate, rounds * variance)
  repeats = (membership[1:] & membership[:-1]).sum()
  expected = (rounds - 1) * population * rate**2
  p_lag = 2 * stats.norm.sf(abs(repeats - expected) / np.sqrt(expected))
  return {'rate': p_rate, 'sizes': p_sizes, 'clients': p_clients, 'lag': p_lag}


def test_poisson_sampler_is_poisson():
  membership = _membership(sampling.PoissonCohorts(POPULATION, RATE))
  for name, p_value in _poisson_p_values(membership, RATE).items():
    assert p_value > 1e-3, name


@pytest.mark.slow
def test_populations_that_are_not_listed_are_drawn_from_the_same_distribution(monkeypatch):
  monkeypatch.setattr(sampling, '_LISTED', 0)
  membership = _membership(sampling.PoissonCohorts(POPULATION, RATE))
  for name, p_value in _poisson_p_values(membership, RATE).items():
    assert p_value > 1e-3, name
  few = _membership(sampling.PoissonCohorts(4, 0.3), rounds=20_000)
  # Every set of clients as often as four independent coins have it.
  codes, sizes = few @ (1 << np.arange(4)), few.sum(axis=1)
  expected = [20_000 * 0.3 ** bin(c).count('1') * 0.7 ** (4 - bin(c).count('1')) for c in range(16)]
  assert stats.chisquare(np.bincount(codes, minlength=16), expected).pvalue > 1e-3
  # The sizes of a fixed sampler, and those of independent draws with repetition, are told apart.
  assert len(np.unique(sizes)) == 5


@pytest.mark.parametrize(
  'broken',
  [
    lambda generator, population, rate: round(population * rate),  # always the expected size
    lambda generator, population, rate: generator.poisson(population * rate),  # another variance
  ],
)
def test_cohorts_of_another_size_are_rejected(monkeypatch, broken):
  rate = 0.3  # a Poisson number has a variance that is 1 / 0.7 of the binomial's

  def sample(self, root, round_number):
    generator = sampling._generator(root, round_number)
    size = min(int(broken(generator, self.population, self.rate)), self.population)
    return sampling._distinct(generator, self.population, size)

  monkeypatch.setattr(sampling.PoissonCohorts, 'sample', sample)
  membership = _membership(sampling.PoissonCohorts(POPULATION, rate))
  assert _poisson_p_values(membership, rate)['sizes'] < 1e-6


def test_a_hundred_million_clients_are_not_listed():
  sampler = sampling.PoissonCohorts(10**8, 1e-5)
  tracemalloc.start()
  cohorts = [sampler.sample(3, r) for r in range(200)]
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 5e6  # of which the cohorts are 0.8 MB
  sizes = np.array([len(c) for c in cohorts])
  assert abs(sizes.mean() - 1000) < 5 * np.sqrt(1000 / 200)
  everyone = np.concatenate(cohorts)
  assert stats.kstest(everyone / 1e8, 'uniform').pvalue > 1e-3
  assert all(c.dtype == np.int32 and (np.diff(c) > 0).all() for c in cohorts)
  np.testing.assert_array_equal(cohorts[7], sampler.sample(3, 7))


def test_shuffling_is_rejected_by_the_same_test():
  p_values = _poisson_p_values(_shuffled_membership(), RATE)
  assert p_values['sizes'] < 1e-6  # every cohort has the same size
  assert p_values['clients'] < 1e-6  # every client appears equally often
  assert p_values['lag'] < 1e-6  # nobody appears twice in a row within an epoch


def test_wrong_rate_is_rejected():
  membership = _membership(sampling.PoissonCohorts(POPULATION, 1.1 * RATE))
  assert _poisson_p_values(membership, RATE)['rate'] < 1e-6


def test_poisson_clients_are_pairwise_independent():
  membership = _membership(sampling.PoissonCohorts(20, 0.3), rounds=5000).astype(float)
  correlation = np.corrcoef(membership.T)[np.triu_indices(20, 1)]
  assert np.abs(correlation).max() < 5 / np.sqrt(5000)


def test_fixed_size_is_uniform_without_replacement():
  sampler = sampling.FixedSizeCohorts(50, 5)
  membership = _membership(sampler, rounds=4000)
  assert np.all(membership.sum(axis=1) == 5)
  counts = membership.sum(axis=0)
  # Counts of a client are binomial; they sum to a constant, so one degree less.
  chi2 = np.sum((counts - 400) ** 2) / (4000 * 0.1 * 0.9) * 49 / 50
  assert 1e-3 < stats.chi2.cdf(chi2, 49) < 1 - 1e-3
  # Rounds are independent: a shuffled sampler would never repeat a client.
  repeats = (membership[1:] & membership[:-1]).sum()
  assert abs(repeats - 3999 * 0.5) < 5 * np.sqrt(3999 * 0.5)


@pytest.mark.parametrize(
  'sampler',
  [
    sampling.PoissonCohorts(30, 0.4),
    sampling.FixedSizeCohorts(30, 7),
    sampling.EveryClient(30),
  ],
)
def test_samples_are_sorted_int32_and_keyed_by_seed_and_round(sampler):
  assert isinstance(sampler, sampling.CohortSampler)
  cohorts = [sampler.sample(5, r) for r in range(4)]
  for r, cohort in enumerate(cohorts):
    assert cohort.dtype == np.int32
    assert np.all(np.diff(cohort) > 0)
    np.testing.assert_array_equal(cohort, sampler.sample(5, r))
  if sampler.rate < 1:
    assert any(not np.array_equal(cohorts[0], other) for other in cohorts[1:])
    assert any(not np.array_equal(cohorts[r], sampler.sample(6, r)) for r in range(4))
  assert sampler.expected_size == pytest.approx(30 * sampler.rate)


def test_golden_cohorts():
  """The cohorts are part of a run's identity: they must not change."""
  np.testing.assert_array_equal(sampling.PoissonCohorts(20, 0.2).sample(0, 0), [0, 12, 14, 15])
  many = sampling.PoissonCohorts(10**6, 4e-6)
  np.testing.assert_array_equal(many.sample(0, 0), [268196, 800342])
  np.testing.assert_array_equal(sampling.FixedSizeCohorts(20, 4).sample(0, 0), [2, 5, 15, 16])


def test_empty_cohorts_happen():
  sizes = [len(sampling.PoissonCohorts(3, 0.05).sample(0, r)) for r in range(50)]
  assert min(sizes) == 0


def test_events():
  gaussian = dp_accounting.GaussianDpEvent
  assert sampling.PoissonCohorts(100, 0.1).event(
    np.float32(2)
  ) == dp_accounting.PoissonSampledDpEvent(0.1, gaussian(2.0))
  assert sampling.FixedSizeCohorts(100, 10).event(
    2
  ) == dp_accounting.SampledWithoutReplacementDpEvent(100, 10, gaussian(1.0))
  assert sampling.EveryClient(100).event(2) == gaussian(2.0)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: sampling.PoissonCohorts(0, 0.1), 'number of clients'),
    (lambda: sampling.PoissonCohorts(10, 0.0), 'rate'),
    (lambda: sampling.PoissonCohorts(10, 1.5), 'rate'),
    (lambda: sampling.PoissonCohorts(10, float('nan')), 'rate'),
    (lambda: sampling.FixedSizeCohorts(10, 11), 'clients per round'),
    (lambda: sampling.FixedSizeCohorts(10, 0), 'clients per round'),
    (lambda: sampling.EveryClient(-1), 'number of clients'),
  ],
)
def test_refuses(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_a_cohort_of_a_fixed_size_hides_nobody_from_the_others_together():
  """They know who took part, and against them the amplified epsilon is too small.

  Of rounds in which a client is known to take part each is a Gaussian mechanism, so that delta is
  the mean over their number. Poisson cohorts tell the others nothing: theirs is the plan's.
  """
  rounds, noise, delta = 60, 2.5, 0.01
  cohorts = sampling.FixedSizeCohorts(20, 1)
  drawn = [cohorts.sample(3, t) for t in range(200)]
  others = np.array([np.sum(one != 0) for one in drawn])
  assert np.array_equal(others < cohorts.size, [0 in one for one in drawn])

  def epsilon(cohorts, accountant='pld'):
    event = dp_accounting.SelfComposedDpEvent(cohorts.event(noise), rounds)
    return accounting.loss(event, delta, Adjacency.REPLACE_ONE, accountant=accountant).epsilon

  known = second_accountant.known_participation(cohorts.rate, noise / 2, rounds, delta)
  assert known == pytest.approx(4.438, abs=0.001)
  assert epsilon(cohorts) == pytest.approx(0.795, abs=0.001)
  against_them = dataclasses.replace(cohorts, is_known=True)
  assert known <= epsilon(against_them) < 1.0005 * known
  assert known < epsilon(against_them, 'renyi') < 1.4 * known
  everyone = sampling.FixedSizeCohorts(20, 20)
  assert epsilon(everyone) == epsilon(dataclasses.replace(everyone, is_known=True))
