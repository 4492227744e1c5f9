"""Renyi curves against dp-accounting, exact arithmetic and numerical integration."""

import decimal
import itertools
import math
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp as dp_rdp
from scipy import integrate, special

from privacy import accounting, number_of_runs
from privacy.events import Adjacency, DisjointDpEvent, FailingDpEvent

ZERO = Adjacency.ZERO_OUT
REPLACE = Adjacency.REPLACE_ONE
THEIRS = {
  ZERO: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
  REPLACE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}
ORDERS = np.array(accounting.RDP_ORDERS)


def _poisson(q, z, steps=1):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps
  )


def _fixed(n, m, z, steps=1):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.SampledWithoutReplacementDpEvent(n, m, dp_accounting.GaussianDpEvent(z)), steps
  )


def _at(order):
  return int(np.flatnonzero(np.isclose(ORDERS, order))[0])


@pytest.mark.parametrize(
  ('q', 'z'), [(0.05, 1.5), (0.3, 5.0), (1e-3, 0.6), (0.9, 0.3), (0.02, 0.1), (0.3, 200.0)]
)
def test_poisson_curve_is_dp_accountings(q, z):
  ours = accounting.rdp_curve(_poisson(q, z))
  theirs = dp_rdp.RdpAccountant(accounting.RDP_ORDERS).compose(_poisson(q, z)).rdp
  np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=2e-12)


@pytest.mark.parametrize(('q', 'z'), [(0.05, 1.5), (0.5, 0.8), (0.01, 4.0)])
@pytest.mark.parametrize('order', [1.5, 2.0, 3.7, 10.0])
def test_poisson_curve_by_numerical_integration(q, z, order):
  """The Renyi divergence from its definition, by adaptive quadrature."""

  def log_normal(x, mean):
    return -((x - mean) ** 2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))

  def divergence(log_p, log_q):
    def integrand(x):
      return math.exp(order * log_p(x) + (1 - order) * log_q(x))

    edges = np.linspace(-12 * z, order + 12 * z, 30)
    total = sum(
      integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0]
      for a, b in itertools.pairwise(edges)
    )
    return math.log(total) / (order - 1)

  def without(x):
    return log_normal(x, 0.0)

  def mixture(x):
    return float(np.logaddexp(math.log1p(-q) + without(x), math.log(q) + log_normal(x, 1.0)))

  ours = accounting.rdp_curve(_poisson(q, z))[_at(order)]
  assert ours == pytest.approx(divergence(mixture, without), rel=1e-6)
  # Removing is no worse than adding: the reported direction covers both.
  assert divergence(without, mixture) <= ours * (1 + 1e-9)


@pytest.mark.parametrize(('q', 'z'), [(1e-5, 30.0), (1e-3, 100.0), (0.02, 1e6)])
def test_poisson_curve_does_not_cancel_when_tiny(q, z):
  """Order 2 has a closed form, q^2 (exp(1 / z^2) - 1)."""
  curve = accounting.rdp_curve(_poisson(q, z))
  closed_form = math.log1p(q**2 * math.expm1(z**-2))
  assert curve[_at(2.0)] == pytest.approx(closed_form, rel=1e-9, abs=0)
  # For such mechanisms the curve is a line to first order; none vanishes by rounding.
  np.testing.assert_allclose(curve[:20], closed_form * ORDERS[:20] / 2, rtol=0.01)


def _wang_bound(q, z, order):
  """Theorem 27 of Wang et al. with 400-digit arithmetic."""
  with decimal.localcontext() as context:
    context.prec = 400
    d = decimal.Decimal
    moments = [(d(j * (j - 1)) / (2 * d(z) ** 2)).exp() for j in range(order + 3)]
    differences, row = [], moments
    while row:
      differences.append(row[0])
      row = [b - a for a, b in itertools.pairwise(row)]
    total = d(1)
    for i in range(2, order + 1):
      even = abs(differences[2 * (i // 2)]) * abs(differences[2 * ((i + 1) // 2)])
      term = min(4 * even.sqrt(), 2 * moments[i])
      total += term * math.comb(order, i) * d(q) ** i
    return float(total.ln()) / (order - 1)


@pytest.mark.parametrize(
  ('m', 'z', 'order'), [(10, 0.5, 2), (10, 0.5, 17), (100, 5.0, 3), (100, 50.0, 64), (500, 2.0, 30)]
)
def test_without_replacement_curve_exact(m, z, order):
  ours = accounting.rdp_curve(_fixed(1000, m, z), REPLACE)[_at(order)]
  assert ours == pytest.approx(_wang_bound(m / 1000, z, order), rel=1e-10)


def test_without_replacement_with_next_to_no_noise_is_quick_and_takes_no_memory():
  """It took 5 GB at a noise multiplier of 0.05, and more the less there is."""
  accounting._gaussian_without_replacement.cache_clear()
  tracemalloc.start()
  curves = [accounting.rdp_curve(_fixed(1000, 100, z), REPLACE) for z in (0.1, 0.05, 0.04, 1e-3)]
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most < 100e6
  assert all(np.all(less > more) for more, less in itertools.pairwise(curves))
  # What is left out there hardly matters.
  assert curves[2][_at(8)] == pytest.approx(_wang_bound(0.1, 0.04, 8), rel=1e-3)


def test_without_replacement_curve_is_dp_accountings():
  orders = [1.1, 1.5, 2.0, 2.3, 5.5, 10.9, 17.0, 63.0, 320.0, 1024.0]
  event = _fixed(1000, 100, 5.0)
  theirs = dp_rdp.RdpAccountant(orders, THEIRS[REPLACE]).compose(event).rdp
  ours = accounting.rdp_curve(event, REPLACE)[[_at(order) for order in orders]]
  np.testing.assert_allclose(ours, theirs, rtol=1e-7)


@pytest.mark.parametrize(
  ('event', 'delta', 'relation'),
  [
    (_poisson(0.05, 1.5, 500), 1e-4, ZERO),
    (_poisson(1.0, 9.0, 201), 1e-3, ZERO),
    (_poisson(0.2, 0.5, 30), 1e-5, ZERO),
    (_poisson(0.2, 500.0, 10), 1e-2, ZERO),
    (dp_accounting.ComposedDpEvent([_poisson(0.1, 2.0, 9), dp_accounting.GaussianDpEvent(9.0)]),
     1e-6, ZERO),
    (dp_accounting.NoOpDpEvent(), 1e-6, ZERO),
    (dp_accounting.NonPrivateDpEvent(), 1e-6, ZERO),
    (dp_accounting.LaplaceDpEvent(3.0), 1e-2, ZERO),
  ],
)  # fmt: skip
def test_epsilon_is_dp_accountings(event, delta, relation):
  theirs = dp_rdp.RdpAccountant(accounting.RDP_ORDERS, THEIRS[relation]).compose(event)
  epsilon, order = theirs.get_epsilon_and_optimal_order(delta)
  loss = accounting.rdp_loss(event, delta, relation)
  assert loss.epsilon == pytest.approx(epsilon, rel=1e-9)
  if loss.order is not None:
    assert loss.order == order


@pytest.mark.parametrize(('mean', 'shape'), [(10.0, 0.0), (10.0, 0.5), (10.0, 1.0), (3.0, 4.0)])
def test_repeat_and_select_is_dp_accountings(mean, shape):
  event = dp_accounting.dp_event.RepeatAndSelectDpEvent(_poisson(0.05, 2.0, 100), mean, shape)
  theirs = dp_rdp.RdpAccountant(accounting.RDP_ORDERS).compose(event).rdp
  np.testing.assert_allclose(accounting.rdp_curve(event), theirs, rtol=1e-8)


def test_repeat_and_select_by_hand():
  """Theorem F.2 for a pure Gaussian, whose best second order has a closed form."""
  z, mean, shape = 2.0, 10.0, -0.5
  gamma = number_of_runs.gamma_of_mean(mean, shape)
  second = np.linspace(1.0, 200, 200_000)
  constant = (1 + shape) * np.min(
    (1 - 1 / second) * second / (2 * z**2) + math.log(1 / gamma) / second
  )
  event = dp_accounting.dp_event.RepeatAndSelectDpEvent(
    dp_accounting.GaussianDpEvent(z), mean, shape
  )
  by_hand = 30 / (2 * z**2) + constant + math.log(mean) / 29
  assert accounting.rdp_curve(event)[_at(30.0)] == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize('gamma', [0.9, 0.1, 1e-3])
@pytest.mark.parametrize('shape', [-0.5, 0.0, 0.7, 1.0, 3.0])
def test_gamma_inverts_the_mean(gamma, shape):
  mean = number_of_runs.mean_of_gamma(gamma, shape)
  assert number_of_runs.gamma_of_mean(mean, shape) == pytest.approx(gamma, rel=1e-8)


def test_pld_is_below_rdp_and_absent_where_unsupported():
  event = _poisson(0.05, 1.5, 100)
  pld = accounting.pld_epsilon(event, 1e-4)
  assert 0.5 * accounting.rdp_loss(event, 1e-4).epsilon < pld
  assert pld < accounting.rdp_loss(event, 1e-4).epsilon
  best = dp_accounting.dp_event.RepeatAndSelectDpEvent(event, 10.0, 1.0)
  assert pld < accounting.pld_epsilon(best, 1e-4) < accounting.rdp_loss(best, 1e-4).epsilon
  assert accounting.pld_epsilon(_fixed(100, 10, 1.0), 1e-4, ZERO) is None
  assert accounting.pld_epsilon(_poisson(0.5, 0.1, 100), 1e-4) is None  # epsilon in the thousands
  assert accounting.pld_epsilon(event, 1e-11) is None  # too few digits


@pytest.mark.parametrize('z', [0.5, 3.0, 1000.0])
def test_no_delta_of_a_curve_is_below_the_true_one(z):
  """That of the Gaussian mechanism (Balle and Wang 2018, theorem 8), by either of the bounds."""
  epsilons = np.array([0.0, 1e-4, 0.1, 1.0])
  mu = 1 / z
  exact = special.ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * special.ndtr(
    -mu / 2 - epsilons / mu
  )
  claimed = accounting.delta_of_curve(
    accounting.rdp_curve(dp_accounting.GaussianDpEvent(z)), epsilons
  )
  assert np.all(exact <= claimed) and claimed[0] < 3 * exact[0]


@pytest.mark.parametrize('accountant', accounting.ACCOUNTANTS)
def test_of_disjoint_parts_the_worst_counts(accountant):
  """In whatever order they stand; also one that has no loss distribution."""
  for worst in (dp_accounting.GaussianDpEvent(1.0), dp_accounting.GaussianDpEvent(0.02)):
    expected = accounting.loss(worst, 1e-5, accountant=accountant)
    for parts in ([worst, _poisson(0.1, 2.0)], [_poisson(0.1, 2.0), worst]):
      assert accounting.loss(DisjointDpEvent(parts), 1e-5, accountant=accountant) == expected


def test_of_disjoint_parts_that_may_fail_the_likeliest_failure_counts():
  often, rarely = (FailingDpEvent(p, dp_accounting.GaussianDpEvent(2.0)) for p in (1e-4, 1e-8))
  for parts in ([often, rarely], [rarely, often]):
    together = dp_accounting.ComposedDpEvent([DisjointDpEvent(parts), rarely])
    assert accounting.failure_probability(together) == pytest.approx(1e-4 + 1e-8)
    assert accounting.loss(together, 1e-5).epsilon == math.inf
    assert math.isfinite(accounting.loss(together, 1e-3).epsilon)


def test_wrong_relation_is_refused():
  with pytest.raises(ValueError, match='replace-one'):
    accounting.rdp_curve(_poisson(0.1, 1.0), REPLACE)
  with pytest.raises(ValueError, match='zero-out'):
    accounting.rdp_curve(_fixed(100, 10, 1.0), ZERO)


@pytest.mark.parametrize('delta', [0.0, 1.0, -1.0, float('nan')])
def test_bad_delta_is_refused(delta):
  with pytest.raises(ValueError, match='delta'):
    accounting.rdp_loss(_poisson(0.1, 1.0), delta)


def test_optimum_at_the_end_of_the_orders_is_flagged():
  with pytest.warns(UserWarning, match='order'):
    loss = accounting.rdp_loss(_poisson(1e-4, 100.0), 1e-12)
  assert not loss.order_is_interior and loss.order == 1024


def test_zero_rounds_cost_nothing_even_without_noise():
  assert accounting.rdp_loss(_poisson(0.1, 0.0, 0), 1e-5).epsilon == 0
  assert accounting.rdp_loss(_poisson(0.1, 0.0, 1), 1e-5).epsilon == math.inf


def test_next_to_no_noise_is_bounded_from_above(monkeypatch):
  """Without a rule that takes millions of points; the bound is never below what that gives."""
  event = dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(0.05))
  exact = accounting.rdp_curve(event)
  monkeypatch.setattr(accounting, '_LEAST_NOISE_TO_INTEGRATE', 1.0)
  accounting._poisson_sampled_gaussian.cache_clear()
  bound = accounting.rdp_curve(event)
  accounting._poisson_sampled_gaussian.cache_clear()
  assert np.all(bound >= exact * (1 - 1e-9))
  above_two = np.array(accounting.RDP_ORDERS) >= 2
  assert np.all(bound[above_two] <= 1.08 * exact[above_two])
  tiny = dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(1e-4))
  curve = accounting.rdp_curve(tiny)
  assert np.all(np.isfinite(curve)) and curve.min() > 1e7
