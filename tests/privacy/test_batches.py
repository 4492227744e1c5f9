"""What batches cost: against integration, enumeration, simulation, and broken twins."""

import dataclasses
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import special, stats

from privacy import accounting, attack, balls_in_bins, batches, loss_distributions, plan
from privacy.events import Adjacency, BallsInBinsDpEvent, FailingDpEvent

GAUSSIAN = dp_accounting.GaussianDpEvent


def _delta(event, epsilon, adjacency=Adjacency.ZERO_OUT):
  parts = loss_distributions.parts_of(event, adjacency)
  return [float(d.delta(epsilon)) for d in loss_distributions.composed(parts)]


def _bins(bins, z, epochs=1):
  return dp_accounting.SelfComposedDpEvent(BallsInBinsDpEvent(bins, GAUSSIAN(z)), epochs)


# ------------------------------------------------------------- balls in bins


@pytest.mark.parametrize('z', [0.9, 2.0])
@pytest.mark.parametrize('epsilon', [0.0, 0.3, 1.5])
def test_two_bins_by_integration(z, epsilon):
  """Both directions of (N(e_1) + N(e_2)) / 2 against N(0), by the trapezoid rule in the plane."""
  grid = np.linspace(-9 * z, 1 + 9 * z, 1601)
  area = (grid[1] - grid[0]) ** 2
  x, y = np.meshgrid(grid, grid)
  without = stats.norm.pdf(x, 0, z) * stats.norm.pdf(y, 0, z)
  ratio = (np.exp((2 * x - 1) / (2 * z * z)) + np.exp((2 * y - 1) / (2 * z * z))) / 2
  expected = [
    area * np.sum(without * np.maximum(ratio - math.exp(epsilon), 0)),
    area * np.sum(without * np.maximum(1 - math.exp(epsilon) * ratio, 0)),
  ]
  for found, exact in zip(_delta(_bins(2, z), epsilon), expected, strict=True):
    assert exact * (1 - 1e-4) <= found <= exact * (1 + 2e-3) + 1e-12


def test_many_bins_by_simulation():
  """And the test rejects one bin more, whose amplification the epoch does not have."""
  bins, z, epsilon, draws = 5, 1.1, 1.0, 2_000_000
  x = np.random.default_rng(0).normal(size=(draws // 5, bins)) * z
  x[:, 0] += 1.0
  log_ratio = special.logsumexp((2 * x - 1) / (2 * z * z), axis=1) - math.log(bins)
  terms = np.maximum(-np.expm1(epsilon - log_ratio), 0.0)
  mean, error = terms.mean(), terms.std() / math.sqrt(len(terms))
  assert abs(_delta(_bins(bins, z), epsilon)[0] - mean) < 4 * error
  assert mean - _delta(_bins(bins + 1, z), epsilon)[0] > 10 * error


def test_an_epoch_is_no_worse_than_the_gaussian_and_no_better_than_nothing():
  one = accounting.pld_epsilon(_bins(1, 2.0, 9), 1e-5)
  gaussian = dp_accounting.SelfComposedDpEvent(GAUSSIAN(2.0), 9)
  assert one == pytest.approx(accounting.pld_epsilon(gaussian, 1e-5), rel=1e-3)
  found = [accounting.pld_epsilon(_bins(t, 2.0, 9), 1e-5) for t in (1, 2, 4, 16)]
  assert np.all(np.diff(found) < 0) and found[-1] > 0.1
  # With too little noise for a grid nothing is amplified.
  assert not balls_in_bins.is_tractable(4, 0.3)
  assert accounting.pld_epsilon(_bins(4, 0.4), 1e-5) == accounting.pld_epsilon(GAUSSIAN(0.4), 1e-5)
  # No theorem covers replacement.
  replaced = accounting.pld_epsilon(_bins(4, 1.0), 1e-5, Adjacency.REPLACE_ONE)
  assert replaced == accounting.pld_epsilon(GAUSSIAN(1.0), 1e-5)


def test_renyi_moments_by_enumeration():
  bins, z, order = 3, 1.3, 5
  total = 0.0
  for places in itertools.product(range(bins), repeat=order):
    counts = np.bincount(places, minlength=bins)
    total += math.exp(np.sum(counts * (counts - 1)) / (2 * z * z))
  found = balls_in_bins.renyi_moments(bins, z, order)
  assert found[order] == pytest.approx(math.log(total / bins**order), rel=1e-12)
  np.testing.assert_allclose(found[:2], 0.0, atol=1e-12)


@pytest.mark.parametrize(('bins', 'z', 'epochs'), [(2, 5.0, 200), (6, 3.0, 100), (40, 1.5, 10)])
def test_renyi_bounds_the_loss_distribution(bins, z, epochs):
  event = _bins(bins, z, epochs)
  by_pld = accounting.pld_epsilon(event, 1e-5)
  by_renyi = accounting.rdp_loss(event, 1e-5).epsilon
  plain = accounting.rdp_loss(dp_accounting.SelfComposedDpEvent(GAUSSIAN(z), epochs), 1e-5).epsilon
  assert by_pld < by_renyi < plain


# ----------------------------------------------------------- truncated Poisson


def _density(x, weighted_means, z):
  return sum(w * stats.norm.pdf(x, m, z) for w, m in weighted_means)


def _truncated_sums(records, rate, capacity):
  """(probability, sum) of a truncated Poisson batch, by all coins and all orders."""
  n = len(records)
  for coins in itertools.product([0, 1], repeat=n):
    chosen = [i for i in range(n) if coins[i]]
    probability = math.prod(rate if c else 1 - rate for c in coins)
    kept = list(itertools.combinations(chosen, min(capacity, len(chosen))))
    for batch in kept:
      yield probability / len(kept), sum(records[i] for i in batch)


def _hockey_stick(with_it, without, z, epsilon):
  x = np.linspace(-12 * z - 2, 12 * z + 2, 8_001)
  difference = _density(x, with_it, z) - math.exp(epsilon) * _density(x, without, z)
  return np.trapz(np.maximum(difference, 0.0), x)


def test_no_truncated_batch_is_worse_than_accounted():
  """All others' records and both directions; without psi a pair of neighbours would be worse."""
  n, size, capacity, z = 4, 1, 1, 0.4
  silo = batches.SiloBatches(
    kind='truncated_poisson', num_examples=n, batch_size=size, steps=1, capacity=capacity
  )
  assert silo.truncation_probability == pytest.approx(1 - 0.75**3)
  # Of two examples one may be left out, of one none.
  for few, probability in ((2, 0.5), (1, 0.0)):
    assert dataclasses.replace(silo, num_examples=few).truncation_probability == probability
  event, plain = silo.event(z, 1), dp_accounting.PoissonSampledDpEvent(0.25, GAUSSIAN(z))
  exceeded = False
  for epsilon in (0.2, 2.0):
    for others in itertools.combinations_with_replacement([-1.0, 0.0, 1.0], n - 1):
      with_it = list(_truncated_sums([1.0, *others], 0.25, capacity))
      without = list(_truncated_sums([0.0, *others], 0.25, capacity))
      directions = (
        _hockey_stick(with_it, without, z, epsilon), _hockey_stick(without, with_it, z, epsilon)
      )  # fmt: skip
      for exact, bound, untruncated in zip(
        directions, _delta(event, epsilon), _delta(plain, epsilon), strict=True
      ):
        assert exact <= bound + 1e-6
        exceeded |= exact > untruncated + 1e-4
  assert exceeded


def test_the_probability_of_truncation_is_part_of_delta():
  step = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN(1.0))
  failing = dp_accounting.SelfComposedDpEvent(FailingDpEvent(1e-8, step), 100)
  plain = dp_accounting.SelfComposedDpEvent(step, 100)
  lost = -math.expm1(100 * math.log1p(-1e-8))
  for find in (accounting.pld_epsilon, lambda e, d: accounting.rdp_loss(e, d).epsilon):
    left = (1e-5 - lost) / (1 - lost)
    assert find(failing, 1e-5) == pytest.approx(find(plain, left), rel=1e-4)
    assert find(failing, 1e-5) > find(plain, 1e-5)
    assert math.isinf(find(failing, 0.9e-6))
  for accountant in accounting.ACCOUNTANTS:
    curve = attack.privacy_curve(failing, accountant=accountant)
    assert curve(np.array([50.0]))[0] >= lost * (1 - 1e-6)
  with pytest.raises(ValueError, match='may fail'):
    accounting.rdp_curve(failing)
  tuned = dp_accounting.dp_event.RepeatAndSelectDpEvent(failing, 3.0, 1.0)
  with pytest.raises(ValueError, match='no known guarantee'):
    accounting.loss(tuned, 1e-5)


# -------------------------------------------------------------- a silo's plan


def _silos(**values):
  return plan.ExampleLevelPrivacy(
    **{'num_examples': [200, 88, 17], 'batch_size': 32, 'steps_per_round': [6, 2, 1],
       'noise_multiplier': 5.0, 'delta': 1e-3, 'clipping_norm': 1.0, **values}
  )  # fmt: skip


def test_each_kind_of_batches_has_its_own_cost():
  found = {kind: _silos(batches=kind).epsilons(200) for kind in batches.BATCHES}
  assert np.all(found['balls_in_bins'][:2] < found['shuffled'][:2])
  np.testing.assert_allclose(found['truncated_poisson'], found['poisson'], rtol=1e-3)
  tighter = _silos(batches='truncated_poisson', batch_capacity=60)
  assert tighter.epsilons(200)[0] > 1.001 * found['poisson'][0]
  for kind, words in (
    ('truncated_poisson', 'beyond 78 examples'),
    ('balls_in_bins', 'balls-in-bins batches'),
    ('shuffled', 'without amplification'),
  ):
    statement = _silos(batches=kind).statement(200)
    assert words in statement.mechanism
    assert statement.rdp.epsilon >= statement.epsilon > 0
  # The smallest silo is in every batch, however it is drawn.
  smallest = [epsilons[2] for epsilons in found.values()]
  np.testing.assert_allclose(smallest, smallest[0])


def test_bins_are_as_large_as_their_divisor():
  silos = _silos(batches='balls_in_bins')
  np.testing.assert_allclose(silos.batch_sizes, [200 / 6, 44, 17])
  np.testing.assert_allclose(silos.batch_sizes * [6, 2, 1], silos.num_examples)
  np.testing.assert_allclose(silos.sampling_rates, [1 / 6, 1 / 2, 1])


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'batches': 'cyclic'}, 'batches must be one of'),
    ({'batches': 'balls_in_bins', 'steps_per_round': [6, 3, 1]}, 'whole epochs'),
    ({'batch_capacity': 64}, 'belongs to truncated_poisson'),
    ({'batches': 'truncated_poisson', 'batch_capacity': 16}, 'at least the batch size 32, got 16'),
  ],
)
def test_batches_that_cannot_be(values, message):
  with pytest.raises(ValueError, match=message):
    _silos(**values)
