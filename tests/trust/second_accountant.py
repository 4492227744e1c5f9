"""Accounting from first principles, sharing no code with `privacy`.

Renyi divergences are integrals of the two densities, by Gauss-Legendre quadrature; the
Gaussian's epsilon is its closed form. `mechanisms` lists every kind of epsilon that the
project prints, with the project's value beside others'.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
from dp_accounting import pld
from dp_accounting import rdp as dp_rdp
from scipy import optimize, special, stats

ORDERS = np.concatenate([np.arange(1.05, 12, 0.05), np.arange(12, 64, 0.5), np.arange(64, 300, 2)])


def log_normal(x, mean, scale):
  """log of the normal density."""
  return -((x - mean) ** 2) / (2 * scale**2) - math.log(scale * math.sqrt(2 * math.pi))


def divergence(log_p: Callable, log_q: Callable, orders, *, low: float, high: float, step: float):
  """Renyi divergences D_order(P || Q), by composite Gauss-Legendre quadrature.

  Args:
    log_p, log_q: log densities on the real line.
    orders: floats above 1.
    low, high: the interval; nothing that counts is outside.
    step: width of a panel of 8 nodes.
  """
  nodes, weights = np.polynomial.legendre.leggauss(8)
  edges = np.arange(low, high + step, step)
  middle, half = (edges[1:] + edges[:-1])[:, None] / 2, (edges[1:] - edges[:-1])[:, None] / 2
  x = (middle + half * nodes).ravel()
  log_weights = np.log((half * weights).ravel())
  p, q = log_p(x), log_q(x)
  return np.array(
    [special.logsumexp(log_weights + a * p + (1 - a) * q) / (a - 1) for a in np.atleast_1d(orders)]
  )


def subsampled_gaussian(q: float, z: float, orders=ORDERS) -> np.ndarray:
  """The larger of both directions of one step: Poisson sampling, add or remove one."""

  def without(x):
    return log_normal(x, 0.0, z)

  def mixture(x):
    out = math.log1p(-q) + without(x) if q < 1 else np.full_like(x, -np.inf)
    return np.logaddexp(out, math.log(q) + log_normal(x, 1.0, z))

  reach = dict(low=-15 * z - max(orders), high=max(orders) + 15 * z, step=min(z / 4, z * z / 2))
  return np.maximum(
    divergence(mixture, without, orders, **reach), divergence(without, mixture, orders, **reach)
  )


def exponential_mechanism(epsilon: float, orders) -> np.ndarray:
  """Largest Renyi divergence of a mechanism of bounded range epsilon.

  The privacy loss of an exponential mechanism lies in an interval [t - epsilon, t] (Dong
  et al. 2020); the worst mechanism has two outcomes with the losses at its ends.
  """
  orders = np.asarray(orders, np.float64)
  t = np.linspace(1e-9, epsilon - 1e-9, 4000)[:, None]
  # Q(top) so that both distributions sum to one: p = e^t q on top, e^(t - epsilon) q below.
  top = -np.expm1(t - epsilon) / (np.exp(t) - np.exp(t - epsilon))
  log_moments = np.logaddexp(np.log(top) + orders * t, np.log1p(-top) + orders * (t - epsilon))
  return np.max(log_moments / (orders - 1), axis=0)


def best_of_many(z: float, gamma: float, shape: float, orders) -> np.ndarray:
  """A pair of neighbours of 'the best of a random number of runs', exactly.

  One run gives N(0, z^2) or N(1, z^2), its own score. The best of K runs has the density
  p(x) f'(P(X <= x)), f the probability generating function of K.
  """

  def log_derivative(u):  # of f, truncated negative binomial (Papernot and Steinke, def. 1)
    rest = 1 - (1 - gamma) * u
    if shape == 0:
      return math.log((1 - gamma) / math.log(1 / gamma)) - np.log(rest)
    constant = shape * (1 - gamma) / (gamma**-shape - 1)
    return math.log(constant) - (shape + 1) * np.log(rest)

  def best(mean):
    return lambda x: log_normal(x, mean, z) + log_derivative(stats.norm.cdf(x, mean, z))

  reach = dict(low=-max(orders) - 15 * z, high=max(orders) + 15 * z, step=z / 16)
  return np.maximum(
    divergence(best(1.0), best(0.0), orders, **reach),
    divergence(best(0.0), best(1.0), orders, **reach),
  )


def epsilon_of_curve(curve, delta: float, orders=ORDERS) -> float:
  """Proposition 12 of Canonne, Kamath and Steinke 2020."""
  return min(
    r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
    for a, r in zip(orders, curve, strict=True)
  )


def gaussian_epsilon(mu: float, delta: float) -> float:
  """Exact epsilon of N(0, 1) against N(mu, 1) (Balle and Wang 2018, theorem 8)."""

  def delta_of(epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
      -mu / 2 - epsilon / mu
    )

  return optimize.brentq(lambda e: delta_of(e) - delta, 0.0, 500.0)


def known_participation(q: float, z: float, rounds: int, delta: float) -> float:
  """Of rounds that a unit is known to be in, each with probability q: a sum over their number."""
  number = np.arange(1, rounds + 1)
  mu, weights = np.sqrt(number) / z, stats.binom.pmf(number, rounds, q)

  def delta_of(epsilon):
    without_it = np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return weights @ (stats.norm.cdf(mu / 2 - epsilon / mu) - without_it)

  return optimize.brentq(lambda e: delta_of(e) - delta, 0.0, 500.0)


def dp_accounting_epsilon(event, delta: float, relation=None) -> float:
  """dp-accounting's own Renyi accountant."""
  relation = relation or dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  orders = [1.1, 1.25, 1.5, 1.75, 2, 2.5, *range(3, 33), *range(36, 64, 4), *range(64, 300, 16)]
  return dp_rdp.RdpAccountant(orders, relation).compose(event).get_epsilon(delta)


def pld_epsilon(q: float, z: float, steps: int, delta: float) -> float:
  """dp-accounting's privacy loss distributions, pessimistic."""
  event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
  accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
  return accountant.compose(event, steps).get_epsilon(delta)


def prv_interval(q: float, z: float, steps: int, delta: float) -> tuple[float, float]:
  """Lower and upper bound by Microsoft's PRV accountant (Gopi et al. 2021)."""
  import prv_accountant
  from prv_accountant import privacy_random_variables as prvs

  prv = (
    prvs.PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=q)
    if q < 1
    else prvs.GaussianMechanism(noise_multiplier=z)
  )
  accountant = prv_accountant.PRVAccountant(
    prvs=[prv], max_self_compositions=[steps], eps_error=0.05, delta_error=delta / 1e4
  )
  low, _, high = accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])
  return low, high


@dataclasses.dataclass(frozen=True)
class Row:
  """One mechanism of the table.

  Attributes:
    mechanism: in words.
    event: the event, in short.
    delta: at which all of the epsilons are.
    pld: what the project prints by PLD; None where that does not apply.
    renyi: what it prints by Renyi DP.
    pld_others: name -> the same epsilon by other means; 'one pair', 'one choice' and 'best
      attack' are lower bounds, 'from above' is an upper one.
    renyi_others: name -> the same Renyi epsilon by other means (equal but for the orders).
  """

  mechanism: str
  event: str
  delta: float
  pld: float | None
  renyi: float
  pld_others: dict[str, float]
  renyi_others: dict[str, float]


def replaced_poisson(q: float, z: float, steps: int, delta: float) -> float:
  """Replacement under Poisson sampling: the pair's losses on a fine grid, summed by FFT.

  The record is +1 or -1, with noise z; losses are rounded up, so that this is an upper bound.
  """
  x = np.linspace(-1 - 12 * z, 1 + 12 * z, 2_000_001)

  def log_density(mean):
    return np.logaddexp(math.log1p(-q) + log_normal(x, 0, z), math.log(q) + log_normal(x, mean, z))

  loss = log_density(1.0) - log_density(-1.0)
  width = 2e-5 * max(1.0, float(loss.max()))
  weights = np.exp(log_density(1.0)) * (x[1] - x[0])
  index = np.ceil(loss / width).astype(int)
  size = 2**20
  masses = np.bincount(index % size, weights, size)
  sums = np.fft.irfft(np.fft.rfft(masses) ** steps, size)
  totals = np.fft.fftfreq(size, 1 / size) * width
  # Rounding up adds half a width to each loss on average: taken off the mean again.
  totals = totals - steps * (float(weights @ (index * width - loss)))

  def delta_of(epsilon):
    above = totals > epsilon
    return float(np.sum(sums[above] * -np.expm1(epsilon - totals[above])))

  return optimize.brentq(lambda e: delta_of(e) - delta, 0.0, float(totals.max()))


def private_choice(q, z, steps, gamma, shape, delta, *, shared: bool) -> dict[str, float]:
  """The best of K runs of DP-SGD, beside a shared run or not: from above and from below.

  From dp-accounting's loss distributions (the grid 1e-3) of one run. Above: its curve at epsilon
  is at most E[K] times the run's at epsilon - (1 + eta) log(e^a + (1 / gamma - 1) delta(a)), for
  every a. Below: the choice likes losses below a threshold best, and then the largest.
  """
  one = pld.privacy_loss_distribution.from_gaussian_mechanism(
    z, sampling_prob=q, value_discretization_interval=1e-3
  ).self_compose(steps)
  mean = 1 / gamma - 1
  mean *= 1 / -math.log(gamma) if shape == 0 else shape / (1 - gamma**shape)

  def none_among(u):  # the generating function at 1 - u
    rest = gamma + (1 - gamma) * u
    if shape == 0:
      return np.log(rest) / math.log(gamma)
    return (rest**-shape - 1) / (gamma**-shape - 1)

  def chosen(masses):  # the released run's, of masses from the least wanted to the best
    better = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    return np.diff(none_among(np.minimum(better, 1.0)))

  def masses_of(pmf):
    dense = pmf.to_dense_pmf()
    losses = (dense._lower_loss + np.arange(dense.size)) * 1e-3
    kept = (dense._probs > 0) & (losses > -30)
    return losses[kept], dense._probs[kept]

  def epsilon(curve, losses, masses):  # of the choice's curve beside the shared run
    def excess(value):
      if not shared:
        return float(curve(np.array([value]))[0]) - delta
      return float(masses @ curve(value - losses)) - delta

    return optimize.brentq(excess, 0.0, 50.0, xtol=1e-5)

  above, below = 0.0, 0.0
  for pmf in (one._pmf_remove, one._pmf_add):
    losses, masses = masses_of(pmf)
    other = masses * np.exp(-losses)
    # The most powerful test the other way round.
    factor = min(
      math.exp(a) + (1 / gamma - 1) * max(0.0, float(np.sum(other[losses < -a]))
                                          - math.exp(a) * float(np.sum(masses[losses < -a])))
      for a in np.linspace(0, 3, 61)
    )  # fmt: skip
    shift = (1 + shape) * math.log(factor)
    tails = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    scaled = np.append(np.cumsum(other[::-1])[::-1], 0.0)

    def by_theorem(values, shift=shift, losses=losses, tails=tails, scaled=scaled):
      at = np.searchsorted(losses, values - shift)
      return np.minimum(mean * np.maximum(tails[at] - np.exp(values - shift) * scaled[at], 0), 1)

    above = max(above, epsilon(by_theorem, losses, masses))
    for threshold in np.linspace(-2, 1, 13):
      wanted = np.argsort(np.where(losses < threshold, 1000.0, losses), kind='stable')
      best, best_other = chosen(masses[wanted]), chosen(other[wanted])
      counted = (best > 0) & (best_other > 0)
      best, best_other = best[counted], best_other[counted]
      ratio = np.log(best) - np.log(best_other)
      order = np.argsort(ratio)
      found = np.append(np.cumsum(best[order][::-1])[::-1], 0.0)
      found_other = np.append(np.cumsum(best_other[order][::-1])[::-1], 0.0)

      def by_choice(values, ratio=ratio[order], found=found, found_other=found_other):
        at = np.searchsorted(ratio, values)
        return found[at] - np.exp(values) * found_other[at]

      below = max(below, epsilon(by_choice, losses, masses))
  return {'a theorem, by hand: from above': above, 'one choice': below}


@functools.cache
def mechanisms() -> tuple[Row, ...]:
  """Every kind of epsilon that the project prints, at typical values."""
  from privacy import correlated, nothing_shared, plan, sampling, selection, tuning
  from privacy.correlated.cohorts import SeparatedCohorts
  from privacy.events import Adjacency

  rows = []

  def add(mechanism, event, plan_, rounds, pld_others, renyi_others):
    loss = plan_.loss(rounds)
    by_pld = loss.epsilon if loss.accountant == 'PLD' else None
    by_renyi = dataclasses.replace(plan_, accountant='renyi').loss(rounds)
    assert by_renyi.accountant == 'RDP'
    row = Row(mechanism, event, loss.delta, by_pld, by_renyi.epsilon, pld_others, renyi_others)
    rows.append(row)

  def subsampled(mechanism, plan_, rounds, q, z, steps, delta, event):
    add(
      mechanism, event, plan_, rounds,
      {'dp-accounting': pld_epsilon(q, z, steps, delta)},
      {'integration': epsilon_of_curve(steps * subsampled_gaussian(q, z), delta)},
    )  # fmt: skip

  def gaussian(mechanism, event, plan_, rounds, z, steps, delta):
    add(
      mechanism, event, plan_, rounds,
      {'closed form': gaussian_epsilon(math.sqrt(steps) / z, delta)},
      {'integration': epsilon_of_curve(steps * subsampled_gaussian(1.0, z), delta)},
    )  # fmt: skip

  def client(cohorts, z, delta, clipping=None, **more):
    clipping = clipping or plan.FixedClipping(norm=0.3)
    return plan.ClientLevelPrivacy(
      cohorts=cohorts, noise_multiplier=z, delta=delta, clipping=clipping, **more
    )

  def silo(n, batch, steps, z, delta, **more):
    return plan.ExampleLevelPrivacy(
      num_examples=[n], batch_size=batch, steps_per_round=steps, noise_multiplier=z, delta=delta,
      clipping_norm=1.0, **more,
    )  # fmt: skip

  for q, z in ((0.05, 1.5), (0.03, 1.0), (0.03, 3.86)):
    subsampled(
      'client level, Poisson cohorts (FeO2 paper)',
      client(sampling.PoissonCohorts(2000, q), z, 1e-4),
      500, q, z, 500, 1e-4, f'500 × Poisson({q}, Gaussian({z}))',
    )  # fmt: skip

  adaptive = client(sampling.PoissonCohorts(1000, 0.1), 1.2, 1e-5, plan.AdaptiveClipping())
  pair = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(float(adaptive.update_noise_multiplier)),
      dp_accounting.GaussianDpEvent(2 * float(adaptive.quantile_noise_multiplier)),
    ]
  )
  both = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.1, pair), 100)
  add(
    'client level, adaptive clipping: the update and the count',
    '100 × Poisson(0.1, Gaussian(1.2))',
    adaptive,
    100,
    {'dp-accounting': pld_epsilon(0.1, 1.2, 100, 1e-5)},
    {
      'dp-accounting, as two Gaussians': dp_accounting_epsilon(both, 1e-5),
      'integration': epsilon_of_curve(100 * subsampled_gaussian(0.1, 1.2), 1e-5),
    },
  )

  gaussian(
    'client level, every client (PPSGD, synthetic)', '300 × Gaussian(10)',
    client(sampling.EveryClient(1000), 10.0, 1e-4), 300, 10.0, 300, 1e-4,
  )  # fmt: skip

  poisson = client(sampling.PoissonCohorts(2000, 0.05), 1.5, 1e-4)
  by_pld = poisson.loss(500, Adjacency.REPLACE_ONE).epsilon
  rows.append(
    Row(
      'the first line, under replace-one',
      '500 × Poisson(0.05, Gaussian(0.75))',
      1e-4,
      by_pld,
      math.nan,
      {'integration': replaced_poisson(0.05, 1.5, 500, 1e-4)},
      {},
    )
  )

  fixed = client(sampling.FixedSizeCohorts(1000, 10), 1.0, 1e-5)
  replace = dp_accounting.NeighboringRelation.REPLACE_ONE
  add(
    'client level, cohorts of fixed size, replace-one',
    '100 × WithoutReplacement(1000, 10, Gaussian(0.5))',
    fixed,
    100,
    {'one pair': one_direction(0.01, 0.5, 100, 1e-5)},
    {'dp-accounting': dp_accounting_epsilon(fixed.event(100), 1e-5, replace)},
  )

  known = client(sampling.FixedSizeCohorts(1000, 10, is_known=True), 1.0, 1e-5)
  moments = np.log1p(0.01 * np.expm1(np.minimum(ORDERS * (ORDERS - 1) / (2 * 0.5**2), 700.0)))
  add(
    'the same, who takes part is known (PPSGD, SCAFFOLD)',
    '100 × Known(0.01, Gaussian(0.5))',
    known,
    100,
    {'a sum over the number of rounds': known_participation(0.01, 0.5, 100, 1e-5)},
    {'by hand': epsilon_of_curve(100 * moments / (ORDERS - 1), 1e-5)},
  )

  separated = SeparatedCohorts(2000, 20)
  whole = separated.participation(500)
  for name, strategy in {
    'tree aggregation': correlated.Tree(rounds=500),
    'BandMF, 20 bands': correlated.fit_banded(whole),
    'BLT, 3 buffers': correlated.fit_buffered_toeplitz(whole, 3),
  }.items():
    scale = strategy.sensitivity(whole) * strategy.decoder()
    add(
      f'client level, one round in 20, {name}', 'Gaussian(1.05) for 500 rounds',
      client(separated, 1.05, 1e-4, correlation=strategy), 500,
      {
        'closed form': gaussian_epsilon(1 / 1.05, 1e-4),
        'best attack': gaussian_epsilon(best_attack(scale, 20) / 1.05, 1e-4),
      },
      {'integration': epsilon_of_curve(subsampled_gaussian(1.0, 1.05), 1e-4)},
    )  # fmt: skip

  nobody = nothing_shared.NothingShared(
    cohorts=sampling.EveryClient(10), noise_multiplier=1.0, delta=1e-5,
    clipping=plan.FixedClipping(norm=1.0), silent_setting='personalization_alpha',
  )  # fmt: skip
  by_hand = {'by hand': 0.0}
  add('nothing shared (PPSGD with alpha = 0)', 'NoOp', nobody, 300, by_hand, by_hand)

  subsampled(
    "DP-SGD of a silo of 88 (School's median)", silo(88, 32, 2, 5.09, 1e-3),
    201, 32 / 88, 5.09, 402, 1e-3, '402 × Poisson(0.364, Gaussian(5.09))',
  )  # fmt: skip
  gaussian(
    'DP-SGD of a silo smaller than the batch', '201 × Poisson(1, Gaussian(9.28))',
    silo(24, 32, 1, 9.28, 1e-3), 201, 9.28, 201, 1e-3,
  )  # fmt: skip
  gaussian(
    'SGD of a silo with shuffled batches: each example once in an epoch', '201 × Gaussian(20)',
    silo(88, 32, 2, 20.0, 1e-3, batches='shuffled'), 201, 20.0, 201, 1e-3,
  )  # fmt: skip

  add(
    'DP-SGD of a silo of 88, each in one of two batches of an epoch (balls in bins)',
    '201 × BallsInBins(2, Gaussian(5.09))',
    silo(88, 32, 2, 5.09, 1e-3, batches='balls_in_bins'),
    201,
    {'integration in the plane': two_bins(5.09, 201, 1e-3)},
    {'exact, a lower bound': two_bins_by_renyi(5.09, 201, 1e-3)},
  )
  truncated = silo(200, 32, 6, 5.0, 1e-3, batches='truncated_poisson', batch_capacity=60)
  fails = -math.expm1(1200 * math.log1p(-stats.binom.sf(59, 199, 32 / 200)))
  left = (1e-3 - fails) / (1 - fails)
  add(
    'DP-SGD of a silo of 200, batches cut to 60 examples',
    '1200 × Failing(4.5e-07, Poisson(0.16, Gaussian(5)))',
    truncated,
    200,
    {'dp-accounting, at what is left of delta': pld_epsilon(0.16, 5.0, 1200, left)},
    {'integration': epsilon_of_curve(1200 * subsampled_gaussian(0.16, 5.0), left)},
  )

  private = selection.PrivateSelection(epsilon=0.5, rounds=20)
  training = 402 * subsampled_gaussian(32 / 88, 6.0)
  add(
    'IFCA: DP-SGD and 20 private selections',
    '402 × Poisson(0.364, Gaussian(6)) + 20 × Exponential(0.5)',
    silo(88, 32, 2, 6.0, 1e-3, selection=private),
    201,
    {'dp-accounting, one kind of selection': with_selections(32 / 88, 6.0, 402, 0.25, 20, 1e-3)},
    {'integration and zCDP': epsilon_of_curve(training + 20 * 0.5**2 / 8 * ORDERS, 1e-3)},
  )

  for shape in (0.0, 1.0):
    tuned = tuning.PrivateTuning(mean=10.0, shape=shape)
    run = client(sampling.PoissonCohorts(1000, 0.05), 2.0, 1e-5, tuning=tuned)
    curve = repeat_and_select(100 * subsampled_gaussian(0.05, 2.0), tuned.gamma, shape)
    add(
      f'the best of 10 runs on average (shape {shape:g})',
      f'RepeatAndSelect(100 × Poisson(0.05, Gaussian(2)), 10, {shape:g})',
      run,
      100,
      private_choice(0.05, 2.0, 100, tuned.gamma, shape, 1e-5, shared=False),
      {
        "Papernot and Steinke's theorem 2, by hand": epsilon_of_curve(curve, 1e-5),
        'dp-accounting': dp_accounting_epsilon(run.event(100), 1e-5),
      },
    )

  audited = tuning.PrivateTuning.of_gamma(gamma=0.5, shape=0.0)
  step = subsampled_gaussian(1.0, 1.486)
  add(
    'a silo that tunes privately, as it is audited: one step',
    'Gaussian(1.486) + RepeatAndSelect(that, 1.44, 0)',
    silo(1, 1, 1, 1.486, 1e-3, tuning=audited),
    1,
    private_choice(1.0, 1.486, 1, 0.5, 0.0, 1e-3, shared=True),
    {
      "Papernot and Steinke's theorem 2, by hand": epsilon_of_curve(
        step + repeat_and_select(step, 0.5, 0.0), 1e-3
      )
    },
  )

  scored = tuning.PrivateTuning(
    mean=10.0, shape=0.0, score_noise_multiplier=2.0, held_out_score=True
  )
  largest = lambda one, other: {name: max(one[name], other[name]) for name in one}  # noqa: E731
  training = 402 * subsampled_gaussian(32 / 88, 20.0)
  paths = (
    training + repeat_and_select(training, scored.gamma, 0.0),
    repeat_and_select(subsampled_gaussian(1.0, 2.0), scored.gamma, 0.0),
  )
  add(
    'a silo that tunes privately beside a shared run, with noised scores of held-out examples',
    'larger of 402 × Poisson(0.364, Gaussian(20)) + RepeatAndSelect(that, 10, 0) and '
    'RepeatAndSelect(Gaussian(2), 10, 0)',
    silo(88, 32, 2, 20.0, 1e-3, tuning=scored),
    201,
    largest(
      private_choice(32 / 88, 20.0, 402, scored.gamma, 0.0, 1e-3, shared=True),
      private_choice(1.0, 2.0, 1, scored.gamma, 0.0, 1e-3, shared=False),
    ),
    {
      "Papernot and Steinke's theorem 2, by hand": max(
        epsilon_of_curve(path, 1e-3) for path in paths
      )
    },
  )
  return tuple(rows)


def _two_bins(z: float, points: int):
  """Loss log P/Q of (N(e_1) + N(e_2)) / 2 against N(0) on a grid of the plane, and log Q."""
  x = np.linspace(-9 * z, 1 + 9 * z, points)
  area = (x[1] - x[0]) ** 2
  log_q = log_normal(x, 0, z)[:, None] + log_normal(x, 0, z)[None, :] + math.log(area)
  one = (2 * x - 1) / (2 * z * z)
  return np.logaddexp(one[:, None], one[None, :]) - math.log(2), log_q


def two_bins(z: float, epochs: int, delta: float) -> float:
  """Epochs in which an example falls into one of two batches: losses in the plane, summed."""
  loss, log_q = _two_bins(z, 3001)
  found = []
  for losses, weights in ((loss, np.exp(log_q + loss)), (-loss, np.exp(log_q))):
    width = 2e-5 * max(1.0, float(np.abs(losses).max()))
    index = np.rint(losses / width).astype(int).ravel()
    size = 2**20
    masses = np.bincount(index % size, weights.ravel(), size)
    sums = np.fft.irfft(np.fft.rfft(masses) ** epochs, size)
    totals = np.fft.fftfreq(size, 1 / size) * width

    def delta_of(epsilon, sums=sums, totals=totals):
      above = totals > epsilon
      return float(np.sum(sums[above] * -np.expm1(epsilon - totals[above])))

    find = lambda e, delta_of=delta_of: delta_of(e) - delta  # noqa: E731
    found.append(optimize.brentq(find, 0.0, float(totals.max())))
  return max(found)


def two_bins_by_renyi(z: float, epochs: int, delta: float) -> float:
  """The same by Renyi divergences at whole orders, which are integrals over the plane."""
  loss, log_q = _two_bins(z, 801)
  orders = np.arange(2.0, 65.0)
  with_it = [special.logsumexp(log_q + a * loss) / (a - 1) for a in orders]
  without = [special.logsumexp(log_q + (1 - a) * loss) / (a - 1) for a in orders]
  return epsilon_of_curve(epochs * np.maximum(with_it, without), delta, orders)


def one_direction(q: float, z: float, steps: int, delta: float) -> float:
  """Cohorts of fixed size: all others send -C, the attacked client C or -C: a pair of neighbours.

  The mixture against the single Gaussian, by dp-accounting's loss distributions.
  """
  single = pld.privacy_loss_distribution.from_gaussian_mechanism(
    z, sampling_prob=q, value_discretization_interval=1e-3
  )
  return single._pmf_remove.self_compose(steps).get_epsilon_for_delta(delta)


def best_attack(noise: np.ndarray, separation: int) -> float:
  """The deviations by which the best test tells a client of every so many rounds from nobody.

  Args:
    noise: [rounds, m]; the rounds' noise is this matrix times independent normals.
    separation: rounds from one of a client to its next.
  """
  present = (np.arange(len(noise))[:, None] - np.arange(separation)) % separation == 0
  told = np.linalg.solve(noise @ noise.T, present.astype(float))
  return math.sqrt(max(np.sum(present * told, axis=0)))


def with_selections(
  q: float, z: float, steps: int, half: float, selections: int, delta: float
) -> float:
  """DP-SGD and selections that are randomised responses with the losses +-half / 2.

  Zeroing an example moves all scores of a selection in one direction, so that its losses lie in an
  interval of half its epsilon. This is one kind of such mechanisms: a lower bound.
  """
  interval = 1e-3
  training = pld.privacy_loss_distribution.from_gaussian_mechanism(
    z, sampling_prob=q, value_discretization_interval=interval
  ).self_compose(steps)
  choice = pld.privacy_loss_distribution.from_randomized_response(
    2 / (1 + math.exp(half / 2)), 2, value_discretization_interval=interval
  ).self_compose(selections)
  return training.compose(choice).get_epsilon_for_delta(delta)


def repeat_and_select(curve, gamma: float, shape: float, orders=ORDERS) -> np.ndarray:
  """Theorem 2 of Papernot and Steinke 2022, term by term."""
  inverse = 1 / gamma
  if shape == 0:
    mean = (inverse - 1) / math.log(inverse)
  else:
    mean = shape * (1 - gamma) / (gamma * (1 - gamma**shape))
  best = min((1 - 1 / a) * r + math.log(inverse) / a for a, r in zip(orders, curve, strict=True))
  return curve + (1 + shape) * best + math.log(mean) / (orders - 1)
