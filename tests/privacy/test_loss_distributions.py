"""Loss distributions against numerical integration, closed forms and dp-accounting."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import optimize, stats

from privacy import accounting, loss_distributions
from privacy.events import Adjacency, ExponentialMechanismDpEvent

GAUSSIAN = dp_accounting.GaussianDpEvent
ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def _poisson(q, z, steps=1):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(z)), steps
  )


def _fixed(n, m, z, steps=1):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.SampledWithoutReplacementDpEvent(n, m, GAUSSIAN(z)), steps
  )


def _delta(event, epsilon, adjacency=ZERO):
  parts = loss_distributions.parts_of(event, adjacency)
  return max(float(d.delta(epsilon)) for d in loss_distributions.composed(parts))


def _hockey_stick(p, q, epsilon):
  """By the trapezoid rule, of mixtures [(weight, mean, deviation), ...]."""
  x = np.linspace(-12, 14, 400_001)

  def density(mixture):
    return sum(w * stats.norm.pdf(x, m, s) for w, m, s in mixture)

  return np.trapz(np.maximum(density(p) - math.exp(epsilon) * density(q), 0.0), x)


@pytest.mark.parametrize('epsilon', [0.0, 0.1, 0.7])
def test_one_step_by_integration(epsilon):
  """The mixtures themselves: the unit is there with probability q, or not, or replaced."""
  q, z = 0.3, 0.8
  without = [(1.0, 0.0, z)]
  with_it = [(1 - q, 0.0, z), (q, 1.0, z)]
  replaced = [(1 - q, 0.0, z), (q, -1.0, z)]
  zero = max(_hockey_stick(with_it, without, epsilon), _hockey_stick(without, with_it, epsilon))
  assert _delta(_poisson(q, z), epsilon) == pytest.approx(zero, rel=1e-3)
  # Noise is relative to the sensitivity, which is two clips under replacement.
  two = _hockey_stick(with_it, replaced, epsilon)
  assert _delta(_poisson(q, z / 2), epsilon, REPLACE) == pytest.approx(two, rel=1e-3)
  # Of a fixed size: whoever takes the unit's place may be on the other side.
  opposite = [(1.0, -1.0, z)]
  mixed = [(1 - q, -1.0, z), (q, 1.0, z)]
  worst = max(_hockey_stick(mixed, opposite, epsilon), _hockey_stick(opposite, mixed, epsilon))
  assert _delta(_fixed(10, 3, z / 2), epsilon, REPLACE) == pytest.approx(worst, rel=1e-3)
  assert worst >= two > zero


def test_no_replacement_is_worse_than_the_opposite_one():
  """Other pairs of records of norm at most C, in one and two dimensions, for all epsilons."""
  q, z = 0.4, 1.1
  grid = np.linspace(-9, 9, 361)
  x, y = np.meshgrid(grid, grid)
  area = (grid[1] - grid[0]) ** 2

  def mixture(record):
    def normal(a, b):
      return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * z * z)) / (2 * math.pi * z * z)

    return (1 - q) * normal(0, 0) + q * normal(*record)

  records = [
    (math.cos(a) * r, math.sin(a) * r) for a in (0.0, 1.0, 2.0, 3.0) for r in (0.0, 0.6, 1)
  ]
  for epsilon in (-0.5, 0.0, 0.3, 0.8):
    worst = np.sum(np.maximum(mixture((1, 0)) - math.exp(epsilon) * mixture((-1, 0)), 0)) * area
    for record in records:
      other = np.sum(np.maximum(mixture((1, 0)) - math.exp(epsilon) * mixture(record), 0)) * area
      assert other <= worst + 1e-6


@pytest.mark.parametrize(
  ('q', 'z', 'steps', 'delta'),
  [(0.05, 1.5, 500, 1e-4), (0.364, 5.09, 402, 1e-3), (0.01, 0.6, 100, 1e-6), (0.2, 0.5, 3, 1e-5)],
)
def test_poisson_is_dp_accountings(q, z, steps, delta):
  theirs = pld.PLDAccountant(value_discretization_interval=1e-3).compose(_poisson(q, z, steps))
  ours = accounting.pld_epsilon(_poisson(q, z, steps), delta)
  assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-3)


@pytest.mark.parametrize('delta', [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(('z', 'steps'), [(10.0, 300), (1.0, 1), (0.3, 1), (500.0, 7)])
def test_gaussians_are_the_closed_form(z, steps, delta):
  """Balle and Wang 2018, theorem 8; never below it."""
  mu = math.sqrt(steps) / z

  def exact(epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
      -mu / 2 - epsilon / mu
    )

  epsilon = accounting.pld_epsilon(dp_accounting.SelfComposedDpEvent(GAUSSIAN(z), steps), delta)
  assert exact(epsilon) <= delta * (1 + 1e-5)
  assert epsilon < 1e-12 or exact(epsilon * 0.9995) > delta


def test_many_convolutions_are_the_closed_form():
  """The FFT's path: rate just below 1, where sampling changes next to nothing."""
  steps, z = 2000, 40.0
  exact = accounting.pld_epsilon(dp_accounting.SelfComposedDpEvent(GAUSSIAN(z), steps), 1e-8)
  ours = accounting.pld_epsilon(_poisson(1 - 1e-9, z, steps), 1e-8)
  assert exact <= ours * (1 + 1e-6) < exact * 1.001


@pytest.mark.parametrize(('steps', 'mu'), [(300_000, 2.0), (400_000, 4.0), (500_000, 1.0)])
def test_the_rounding_of_many_steps_makes_epsilon_no_smaller(monkeypatch, steps, mu):
  """As good as always sampled: one Gaussian mechanism of noise 1 / mu."""
  event = _poisson(1 - 1e-12, math.sqrt(steps) / mu, steps)
  smallest = loss_distributions.smallest_delta(loss_distributions.parts_of(event, ZERO))

  def of_one(delta):
    def difference(epsilon):
      low = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
      return stats.norm.cdf(mu / 2 - epsilon / mu) - low - delta

    return optimize.brentq(difference, 0.01, 60)

  assert of_one(smallest) < accounting.pld_epsilon(event, smallest) < 1.005 * of_one(smallest)
  assert accounting.pld_epsilon(event, 1e-10) is None
  # With nothing for the rounding, and a smallest delta for any number of steps, it is too small.
  monkeypatch.setattr(loss_distributions, '_ROUNDING', 0.0)
  loss_distributions.composed.cache_clear()
  assert accounting.pld_epsilon(event, 1e-10) < of_one(1e-10)
  loss_distributions.composed.cache_clear()
  accounting._pld_epsilon.cache_clear()


def test_mixed_mechanisms_compose():
  """Gaussian, sampled and exponential together are more than each, less than the sum."""
  choices = dp_accounting.SelfComposedDpEvent(ExponentialMechanismDpEvent(0.3, False), 5)
  parts = [_poisson(0.1, 1.0, 20), GAUSSIAN(3.0), choices]
  each = [accounting.pld_epsilon(part, 1e-5) for part in parts]
  together = accounting.pld_epsilon(dp_accounting.ComposedDpEvent(parts), 1e-5)
  assert max(each) < together < sum(each)
  order = accounting.pld_epsilon(dp_accounting.ComposedDpEvent(parts[::-1]), 1e-5)
  assert together == order


@pytest.mark.parametrize('epsilon', [0.05, 0.5, 3.0])
def test_one_selection_by_brute_force(epsilon):
  """The largest divergence of two outcomes whose losses are at most epsilon apart."""
  top = np.linspace(1e-9, epsilon - 1e-9, 20001)
  p = -np.expm1(top - epsilon) / (np.exp(top) - np.exp(top - epsilon))
  for e in np.linspace(-0.9, 0.9, 7) * epsilon:
    brute = np.max(
      np.maximum(p * (np.exp(top) - np.exp(e)), 0)
      + np.maximum((1 - p) * (np.exp(top - epsilon) - np.exp(e)), 0)
    )
    curve = loss_distributions._exponential(epsilon).curves[0]
    assert float(curve(np.array(e))) == pytest.approx(brute, rel=1e-5)


def test_composed_selections_by_hand():
  """20 randomised responses with losses +-0.25: a pair that selections may be, a lower bound."""
  k, half = 20, 0.25
  right = 1 / (1 + math.exp(-half))
  counts = np.arange(k + 1)
  p = stats.binom.pmf(counts, k, right)
  losses = (2 * counts - k) * half
  selections = dp_accounting.SelfComposedDpEvent(ExponentialMechanismDpEvent(2 * half, False), k)
  for epsilon in (0.0, 0.5, 1.5):
    exact = float(np.sum(np.maximum(p * (1 - np.exp(epsilon - losses)), 0)))
    assert exact <= _delta(selections, epsilon) < 2 * exact
  # Zeroing an example moves all scores the same way: half the width.
  monotonic = dp_accounting.SelfComposedDpEvent(ExponentialMechanismDpEvent(4 * half, True), k)
  assert _delta(monotonic, 0.5) == _delta(selections, 0.5) < _delta(monotonic, 0.5, REPLACE)


@pytest.mark.parametrize(
  ('n', 'm', 'z', 'rounds', 'delta', 'expected', 'renyi'),
  [
    (1000, 100, 4.0, 100, 1e-3, 1.73, 3.98),
    (1000, 10, 1.0, 100, 1e-5, 6.64, 11.21),
    (2000, 100, 3.0, 500, 1e-4, 3.82, 8.03),
  ],
)
def test_fixed_size_cohorts_far_below_renyi_and_above_one_direction(
  n, m, z, rounds, delta, expected, renyi
):
  event = _fixed(n, m, z / 2, rounds)
  ours = accounting.pld_epsilon(event, delta, REPLACE)
  by_rdp = accounting.rdp_loss(event, delta, REPLACE).epsilon
  # All others at -C, the client at C or -C: a pair of data sets, and so a lower bound.
  parts = loss_distributions.parts_of(_poisson(m / n, z / 2, rounds))
  one_pair = loss_distributions.composed(parts)[0].epsilon(delta)
  assert one_pair <= ours < 1.2 * one_pair
  assert ours == pytest.approx(expected, abs=0.006)
  assert by_rdp == pytest.approx(renyi, abs=0.006)


@pytest.mark.parametrize('q', [1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize('steps', [10, 1000])
def test_rare_events_have_a_window(q, steps):
  """A unit that is hardly ever drawn: a normal's tails say nothing about its losses."""
  assert loss_distributions.composed(((('poisson', q, 1.0), steps),)) is not None
  theirs = pld.PLDAccountant(value_discretization_interval=1e-4).compose(_poisson(q, 1.0, steps))
  ours = accounting.pld_epsilon(_poisson(q, 1.0, steps), 1e-8)
  assert ours == pytest.approx(theirs.get_epsilon(1e-8), rel=1e-2, abs=1e-3)


def test_tiny_losses_keep_their_digits():
  """Order 2 of such a mechanism is q^2 / z^2: the normal limit has mu = q sqrt(T) / z."""
  q, z, steps = 1e-3, 30.0, 10_000
  mu = q * math.sqrt(steps) / z
  limit = accounting.pld_epsilon(GAUSSIAN(1 / mu), 1e-5)
  assert accounting.pld_epsilon(_poisson(q, z, steps), 1e-5) == pytest.approx(limit, rel=0.01)


def test_what_has_no_pair_is_none():
  for event in (GAUSSIAN(0.0), _poisson(0.1, 0.0), dp_accounting.NonPrivateDpEvent()):
    assert loss_distributions.parts_of(event) is None
  assert loss_distributions.parts_of(dp_accounting.NoOpDpEvent()) == ()
  assert accounting.pld_epsilon(dp_accounting.NoOpDpEvent(), 1e-5) == 0.0
  assert loss_distributions.parts_of(_fixed(10, 2, 1.0), ZERO) is None
