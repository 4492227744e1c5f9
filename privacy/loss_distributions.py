"""Privacy loss distributions (PLD): the tight accountant.

For two neighbours a mechanism's outputs have the densities P and Q; its privacy loss is
log P(x)/Q(x) for x ~ P. A *dominating pair* is at least as far apart, in every hockey-stick
divergence, as any two neighbours; its loss distribution bounds the mechanism's, and under
(adaptive) composition the losses of the pairs add up (Zhu, Dong and Wang 2022, 'Optimal
accounting of differential privacy via characteristic function', theorem 10).

Each pair is given by its hockey-stick curve delta(epsilon), in closed form. The curve is put on a
grid from above (Doroshenko et al. 2022, 'Connect the dots', algorithm 1: between the grid's points
the curve is replaced by its chord, which lies above a convex function), so that epsilon is never
below the true one. Sums of losses are convolutions, by FFT. dp-accounting's `pld` does the same
with one fixed grid and for fewer mechanisms; here the grid follows the mechanism's own scale,
which keeps mechanisms of tiny losses tight and takes milliseconds. The tests hold these curves
against dp-accounting, numerical integration and a third accountant.

Long because every mechanism's pair is here, each with the theorem that it rests on.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import dp_accounting
import numpy as np
from scipy import fft, special

from privacy import balls_in_bins, number_of_runs
from privacy.events import (
  Adjacency,
  BallsInBinsDpEvent,
  ExponentialMechanismDpEvent,
  FailingDpEvent,
  KnownParticipationDpEvent,
  ReplacedDpEvent,
)

# Grid points in one standard deviation of a step's loss: epsilon is above the exact one by
# less than 0.05 %.
_POINTS_IN_A_DEVIATION = 20
_FEW_STEPS = 250
_MOST_POINTS = 2**18  # of a step's grid; four times as many of a composition's
# Mass that one composition may move to an infinite loss, and a step may move likewise. It is an
# upper bound of what truncation costs in delta.
_TAIL = 1e-14
_ROUNDING = 2.0**-54  # of a step's spectrum; half of it was seen
_STEP_DEVIATIONS = 9.5  # normal mass beyond: 1e-21
_SMALLEST_DELTA = 1e-10
_LARGEST_LOSS = 700.0
_LARGEST_MEAN_LOSS = 100.0

Curve = Callable[[np.ndarray], np.ndarray]
Parts: TypeAlias = tuple[tuple[tuple, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
  """A privacy loss distribution on a grid.

  Attributes:
    first: index of the first grid point; the losses are (first + i) * step.
    step: width of the grid.
    masses: float64 [n], probabilities.
    infinity: probability of an infinite loss.
  """

  first: int
  step: float
  masses: np.ndarray
  infinity: float

  @functools.cached_property
  def _tails(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positive losses l, P(loss >= l), and E[exp(-loss); loss >= l]."""
    start = max(0, 1 - self.first)
    losses, masses = self.losses[start:], self.masses[start:]
    above = np.cumsum(masses[::-1])[::-1]
    discounted = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    return losses, above, discounted

  @functools.cached_property
  def losses(self) -> np.ndarray:
    """The grid's points."""
    return (self.first + np.arange(len(self.masses))) * self.step

  def log_mgf(self, orders: np.ndarray) -> np.ndarray:
    """log E[exp(order * loss)]; minus infinity where it has no digits."""
    exponents = orders[:, None] * self.losses
    largest = exponents.max(axis=1)
    with np.errstate(divide='ignore'):
      scaled = np.exp(exponents - largest[:, None])
      return np.log(np.einsum('ol,l->o', scaled, self.masses)) + largest

  def delta(self, epsilon) -> np.ndarray:
    """The hockey-stick divergence at exp(epsilon), for epsilon >= 0."""
    losses, above, discounted = self._tails
    epsilon = np.asarray(epsilon, np.float64)
    index = np.searchsorted(losses, epsilon, side='left')
    above, discounted = np.append(above, 0.0)[index], np.append(discounted, 0.0)[index]
    with np.errstate(over='ignore', invalid='ignore'):
      finite = np.where(discounted > 0, above - np.exp(epsilon) * discounted, 0.0)
    return np.clip(self.infinity + np.maximum(finite, 0.0), 0.0, 1.0)

  def epsilon(self, delta: float) -> float:
    """The smallest epsilon >= 0 at which the divergence is at most delta."""
    losses, above, discounted = self._tails
    if self.infinity > delta:
      return math.inf
    if not len(losses) or self.delta(0.0) <= delta:
      return 0.0
    # Between losses[i - 1] and losses[i] delta is infinity + above[i] - e^epsilon discounted[i].
    index = int(np.searchsorted(-self.delta(losses), -delta))
    index = min(index, len(losses) - 1)
    return float(np.log((self.infinity + above[index] - delta) / discounted[index]))


@dataclasses.dataclass(frozen=True)
class _Pair:
  """A dominating pair.

  Attributes:
    curves: delta(epsilon) of each direction (one, or two: without the unit, and with it).
    low, high: bounds of the losses, but for a mass that does not count.
    mean, deviation: of the loss, roughly; the grid's width follows from them.
  """

  curves: tuple[Curve, ...]
  low: float
  high: float
  mean: float
  deviation: float


def parts_of(
  event: dp_accounting.DpEvent, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Parts | None:
  """The mechanisms that an event is made of, and how often: what `composed` takes.

  Args:
    event: of Gaussian, Poisson-sampled Gaussian, Gaussian on samples of a fixed size (replace-one
      only) or by balls in bins, exponential mechanisms, those that may fail, those that all
      know who takes part in, the best of a random number of runs, and their compositions. Noise
      multipliers are relative to the sensitivity under the adjacency.
    adjacency: the neighbouring relation.

  Returns:
    The parts; None where a mechanism has no known pair under the adjacency, or no noise.
  """
  parts = _parts(event, adjacency)
  return None if parts is None else tuple(sorted(parts.items()))


def _parts(event: dp_accounting.DpEvent, adjacency: Adjacency, count: int = 1):
  """{(name, parameters): how often}, or None."""
  parts: dict[tuple, int] = {}
  if count == 0 or isinstance(event, dp_accounting.NoOpDpEvent):
    return parts
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return _parts(event.event, adjacency, count * event.count)
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      more = _parts(part, adjacency, count)
      if more is None:
        return None
      for key, times in more.items():
        parts[key] = parts.get(key, 0) + times
    return parts
  if isinstance(event, ReplacedDpEvent):
    return _parts(event.event, Adjacency.REPLACE_ONE, count)
  if isinstance(event, FailingDpEvent):
    inside = _parts(event.event, adjacency)
    if inside is None or len(inside) != 1 or set(inside.values()) != {1}:
      return None
    return {('failing', event.probability, *inside): count}
  if isinstance(event, KnownParticipationDpEvent) and 0 < event.probability < 1:
    inside = _parts(event.event, adjacency)
    if inside is None or len(inside) != 1 or set(inside.values()) != {1}:
      return None
    return {('known', event.probability, *inside): count}
  if isinstance(event, KnownParticipationDpEvent):
    return _parts(event.event, adjacency, count) if event.probability else parts
  if isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
    run = parts_of(event.event, adjacency)
    if run is None or any(key[0] == 'failing' for key, _ in run):
      return None
    if not run or event.mean == 1:
      return {key: count * n for key, n in run}
    return {('best_of', run, event.mean, event.shape): count}
  if isinstance(event, ExponentialMechanismDpEvent):
    return {('exponential', event.range(adjacency)): count}
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return {('gaussian', event.noise_multiplier): count} if event.noise_multiplier > 0 else None
  inner = getattr(event, 'event', None)
  if not isinstance(inner, dp_accounting.GaussianDpEvent) or inner.noise_multiplier == 0:
    return None
  z = inner.noise_multiplier
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    q = event.sampling_probability
    name = 'poisson_replace' if adjacency is Adjacency.REPLACE_ONE else 'poisson'
  elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    if adjacency is not Adjacency.REPLACE_ONE:
      return None
    q, name = event.sample_size / event.source_dataset_size, 'without_replacement'
  elif isinstance(event, BallsInBinsDpEvent):
    if adjacency is Adjacency.REPLACE_ONE or not balls_in_bins.is_tractable(event.bins, z):
      return {('gaussian', z): count}  # without amplification
    return {('balls_in_bins', event.bins, z): count}
  else:
    return None
  if q == 0:
    return parts
  return {('gaussian', z) if q == 1 else (name, q, z): count}


def smallest_delta(parts: Parts) -> float:
  """Below it a composition has too few digits."""
  steps = sum(n for key, n in parts if key[0] != 'gaussian')
  return max(_SMALLEST_DELTA, 32 * steps * _ROUNDING)


@functools.lru_cache(maxsize=64)
def composed(parts: Parts) -> tuple[LossDistribution, ...] | None:
  """The loss distribution of the composition, one for each direction of the pairs.

  None where there is so little noise that exp(loss) has no digits left, or no grid is wide enough.
  """
  # Gaussian mechanisms are one Gaussian mechanism: 1/z^2 adds up.
  precision = sum(n / key[1] ** 2 for key, n in parts if key[0] == 'gaussian')
  counts = {key: n for key, n in parts if key[0] != 'gaussian'}
  if precision:
    counts[('gaussian', precision**-0.5)] = 1
  if not counts:
    return (LossDistribution(0, 1.0, np.ones(1), 0.0),)
  pairs: dict[tuple, _Pair] = {}
  for key in counts:
    pair = _pair(key)
    if pair is None:
      return None
    pairs[key] = pair
  if max(pair.high for pair in pairs.values()) > _LARGEST_LOSS:
    return None
  if sum(n * pairs[key].mean for key, n in counts.items()) > _LARGEST_MEAN_LOSS:
    return None
  times = sum(counts.values())
  variance = sum(n * pairs[key].deviation ** 2 for key, n in counts.items())
  # The errors of many steps add up to less than those of a few: these get a finer grid.
  step = math.sqrt(variance / max(times, _FEW_STEPS)) / _POINTS_IN_A_DEVIATION
  widest = max(pair.high - pair.low for pair in pairs.values())
  # A round number in base two, so that equal steps meet in the cache.
  step = 2.0 ** (math.floor(8 * math.log2(max(step, widest / _MOST_POINTS))) / 8)
  directions = max(len(pair.curves) for pair in pairs.values())
  found = [
    _convolved([(_on_grid(key, step, i), n) for key, n in counts.items()], step)
    for i in range(directions)
  ]
  whole = tuple(distribution for distribution in found if distribution is not None)
  return whole if len(whole) == len(found) else None


@functools.lru_cache(maxsize=512)
def _on_grid(key: tuple, step: float, direction: int) -> LossDistribution:
  """Connect the dots: the pair's curve, replaced by chords between the grid's points."""
  pair = _pair(key)
  assert pair is not None  # `composed` has asked
  first, last = math.floor(pair.low / step), math.ceil(pair.high / step)
  last = max(last, first + 2)
  curve = pair.curves[min(direction, len(pair.curves) - 1)]
  deltas = np.clip(curve(np.arange(first, last + 1) * step), 0.0, 1.0)
  deltas = np.minimum.accumulate(deltas)  # rounding must not make it rise
  changes = np.diff(deltas)
  masses = np.empty_like(deltas)
  masses[0] = 1 - deltas[0] + changes[0] / math.expm1(step)
  masses[1:-1] = (changes[1:] - changes[:-1] * math.exp(step)) / math.expm1(step)
  masses[-1] = changes[-1] / math.expm1(-step)
  return LossDistribution(first, step, np.maximum(masses, 0.0), float(deltas[-1]))


def _convolved(parts, step: float) -> LossDistribution | None:
  """The distribution of the sum of independent losses, each part as often as its number says."""
  times = sum(n for _, n in parts)
  if times == 1:
    return parts[0][0]
  low, high = _window(parts)
  if high - low > 4 * _MOST_POINTS:
    return None
  size = fft.next_fast_len(high - low + 1, real=True)
  spectrum, first = np.ones(size // 2 + 1, complex), 0
  for part, n in parts:
    masses = part.masses
    folded = np.zeros(-(-len(masses) // size) * size)
    folded[: len(masses)] = masses
    spectrum *= fft.rfft(folded.reshape(-1, size).sum(axis=0)) ** n
    first += n * part.first
  # What lies outside the window is wrapped into it; its mass is added at infinity, too, and that of
  # the spectrum's rounding, which a power multiplies.
  sums = np.roll(fft.irfft(spectrum, size), first - low)[: high - low + 1]
  log_finite = sum(n * math.log1p(-min(part.infinity, 1 - 1e-300)) for part, n in parts)
  return LossDistribution(
    low, step, np.maximum(sums, 0.0), -math.expm1(log_finite) + _TAIL + times * _ROUNDING
  )


def _window(parts) -> tuple[int, int]:
  """Grid indices outside of which the sum has less than the tail's mass (Chernoff's bound)."""
  step = parts[0][0].step
  low = sum(n * part.first for part, n in parts)
  high = sum(n * (part.first + len(part.masses) - 1) for part, n in parts)
  variance = sum(n * _mean_and_deviation(part.losses, part.masses)[1] ** 2 for part, n in parts)
  # The best order of a normal sum; rare events with large losses have theirs below.
  normal = math.log2(2 * math.log(2 / _TAIL) / max(variance, step**2)) / 2
  orders = 2.0 ** np.arange(math.floor(min(normal, 0.0)) - 4, math.ceil(normal) + 4)
  orders = np.concatenate([orders, -orders])
  log_mgf = np.sum([n * part.log_mgf(orders) for part, n in parts], axis=0)
  usable = np.isfinite(log_mgf)
  bounds = (log_mgf[usable] + math.log(2 / _TAIL)) / (orders[usable] * step)
  above = orders[usable] > 0
  high = min(high, math.ceil(min(bounds[above], default=high)))
  low = max(low, math.floor(max(bounds[~above], default=low)))
  return low, max(high, low + 1)


# --------------------------------------------------------------------- pairs


@functools.lru_cache(maxsize=512)
def _pair(key: tuple) -> _Pair | None:
  name, *parameters = key
  return _PAIRS[name](*parameters)


def _gaussian(z: float) -> _Pair:
  """N(1, z^2) and N(0, z^2): Balle and Wang 2018, theorem 8. The loss is N(1, 2) / (2 z^2)."""
  mu = 1 / z
  reach = _STEP_DEVIATIONS * mu

  def curve(epsilon):
    tail = np.exp(np.minimum(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu), 0.0))
    return special.ndtr(mu / 2 - epsilon / mu) - tail

  return _Pair((curve,), mu**2 / 2 - reach, mu**2 / 2 + reach, mu**2 / 2, mu)


def _poisson(q: float, z: float) -> _Pair:
  """(1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), and the other way round.

  Zhu, Dong and Wang 2022, theorem 11: Poisson sampling where the unit contributes nothing in one
  of the neighbours.
  """

  def where(ratio):  # the x at which exp((2 x - 1) / (2 z^2)) has this value
    with np.errstate(divide='ignore', invalid='ignore'):
      return np.where(ratio > 0, z * z * np.log(ratio) + 0.5, -np.inf)

  def with_it(epsilon):
    rest = np.expm1(epsilon) + q  # e^epsilon - (1 - q)
    x = where(rest / q)
    return q * special.ndtr((1 - x) / z) - rest * special.ndtr(-x / z)

  def without_it(epsilon):
    rest = np.expm1(-epsilon) + q
    x = where(rest / q)
    return np.exp(epsilon) * (rest * special.ndtr(x / z) - q * special.ndtr((x - 1) / z))

  reach = _STEP_DEVIATIONS * z
  high = float(log_mixture(q, (1 + 2 * reach) / (2 * z * z)))
  x = np.linspace(-reach, 1 + reach, 2001)
  losses = log_mixture(q, (2 * x - 1) / (2 * z * z))
  weights = (1 - q) * np.exp(-((x / z) ** 2) / 2) + q * np.exp(-(((x - 1) / z) ** 2) / 2)
  return _Pair((with_it, without_it), -high, high, *_mean_and_deviation(losses, weights))


def _poisson_replace(q: float, z: float) -> _Pair:
  """(1 - q) N(0, z^2) + q N(1/2, z^2) against (1 - q) N(0, z^2) + q N(-1/2, z^2).

  Poisson sampling where the unit's record u, of norm at most C, is replaced by another one, v; z
  is relative to 2 C. Given all other records the sums have the densities
  (1 - q) N(0) + q N(u) and (1 - q) N(0) + q N(v), and their divergence is the price of a spread
  option: E[(q e^X - e^epsilon q e^Y - k)_+], with k = (1 - q)(e^epsilon - 1) and e^X, e^Y the
  log-normal ratios of N(u) and N(v) to N(0), of mean one. The payoff is convex in each and has a
  negative mixed derivative, so that the price rises with both norms and falls with the
  correlation (Plackett's identity): it is largest at u = -v of norm C, for every epsilon. So
  this one pair dominates. Lebeda, Regehr, Kamath and Steinke 2024 ('Avoiding pitfalls for
  privacy accounting of subsampled mechanisms under composition') use it, too.
  """
  half = 1 / (2 * z)  # means in deviations
  log_c = math.log(q) - half**2 / 2

  def where(epsilon):  # the loss at s deviations is epsilon; odd in epsilon
    size = np.abs(epsilon)
    b = (1 - q) * np.expm1(size) / 2
    log_c2 = 2 * log_c + size
    root = np.sqrt(b**2 + np.exp(log_c2))
    return np.sign(epsilon) * (np.log(b + root) - log_c) / half

  def curve(epsilon):
    x = where(epsilon)
    gain = -np.expm1(epsilon)
    return (
      (1 - q) * gain * special.ndtr(-x)
      + q * special.ndtr(half - x)
      - np.exp(epsilon) * q * special.ndtr(-half - x)
    )

  def loss(x):
    return log_mixture(q, x * half - half**2 / 2) - log_mixture(q, -x * half - half**2 / 2)

  reach = _STEP_DEVIATIONS + half
  x = np.linspace(-reach, reach, 2001)
  weights = np.exp(-(x**2) / 2 + log_mixture(q, x * half - half**2 / 2))
  high = float(loss(np.float64(reach)))
  return _Pair((curve,), -high, high, *_mean_and_deviation(loss(x), weights))


def _without_replacement(q: float, z: float) -> _Pair:
  """Samples of a fixed size where one unit is replaced; z is relative to the sensitivity 2 C.

  Where the unit is not drawn another one is, whose record may be anything: so the pair is that of
  Poisson sampling at the distance 2 C, in either direction (Zhu, Dong and Wang 2022, theorem 11).
  Replacement is symmetric, and which direction is worse depends on epsilon: the larger of both
  curves at each epsilon is the curve of one symmetric dominating pair.
  """
  pair = _poisson(q, z)
  both = pair.curves
  return dataclasses.replace(
    pair, curves=(lambda epsilon: np.maximum(both[0](epsilon), both[1](epsilon)),)
  )


def _balls_in_bins(bins: int, z: float) -> _Pair:
  """(1/T) sum_t N(e_t, z^2 I) against N(0, z^2 I): see `balls_in_bins`."""
  with_it, without_it = balls_in_bins.ratios(bins, z)
  losses, weights = np.log(with_it.values), with_it.weights
  return _Pair(
    (with_it.above, without_it.below),
    min(with_it.low, -without_it.high),
    max(with_it.high, -without_it.low),
    *_mean_and_deviation(losses, weights),
  )


def _failing(probability: float, inside: tuple) -> _Pair | None:
  """A mechanism which with some probability, the same for both neighbours, tells all.

  By joint convexity: the curves are the weighted means of its own and of one.
  """
  pair = _pair(inside)
  if pair is None:
    return None

  def failing(curve: Curve) -> Curve:
    return lambda epsilon: probability + (1 - probability) * curve(epsilon)

  return dataclasses.replace(pair, curves=tuple(failing(curve) for curve in pair.curves))


def _known(probability: float, inside: tuple) -> _Pair | None:
  """A mechanism that is told of, and of which a unit is part with some probability."""
  pair = _pair(inside)
  if pair is None:
    return None

  def without_it(epsilon):
    return -np.expm1(np.minimum(epsilon, 0.0))

  def known(curve: Curve) -> Curve:
    return lambda epsilon: probability * curve(epsilon) + (1 - probability) * without_it(epsilon)

  mean = probability * pair.mean
  square = probability * (pair.deviation**2 + pair.mean**2)
  return _Pair(
    tuple(known(curve) for curve in pair.curves),
    min(pair.low, 0.0),
    max(pair.high, 0.0),
    mean,
    math.sqrt(square - mean**2),
  )


def _exponential(width: float) -> _Pair:
  """A mechanism whose losses lie in an interval of this width (Dong, Durfee and Rogers 2020).

  The worst of them for each epsilon has two outcomes, with the losses t and t - width at
  t = (epsilon + width) / 2; the supremum over t is the curve.
  """

  def curve(epsilon):
    inside = np.clip(epsilon, -width, width)
    value = np.expm1((inside - width) / 2) ** 2 / -math.expm1(-width)
    return np.where(epsilon < -width, -np.expm1(np.minimum(epsilon, 0.0)), value)

  return _Pair((curve,), -width, width, width * math.tanh(width / 4) / 2, width / 2)


def _best_of(run: Parts, mean: float, shape: float) -> _Pair | None:
  """The best of a random number of runs: the largest of the runs' losses, and a constant.

  One run has the densities p and q, and K runs are made, of which the best by any order of their
  outputs is released. With f the generating function of K and x(y) the probability under p of
  nothing better than y, the release has the density p(y) f'(x(y)), and q(y) f'(x'(y)) under q. Now

    f'(x) / f'(x') = ((gamma + (1 - gamma) u') / (gamma + (1 - gamma) u))^(1 + eta) <= e^shift,

  where u = 1 - x and u' = 1 - x' are the probabilities of what is better than y under p and q: at
  most power(u) is u' for the most powerful test of p against q. So the curve is at most
  E[f'(x) (1 - e^(epsilon - shift) q / p)_+] with x uniform, which is largest where x rises with
  p / q (Hardy and Littlewood): with the law f'(x) dx of the largest of K losses.

  Koskela, Redberg and Wang 2024 ('Privacy profiles for private selection',
  https://arxiv.org/abs/2402.06701) prove this with E[K] in the place of f'. None where a run has
  no loss distribution.
  """
  runs = composed(run)
  if runs is None:
    return None
  gamma = number_of_runs.gamma_of_mean(mean, shape)
  found = [
    _largest_of(one, other, gamma, shape) for one, other in zip(runs, runs[::-1], strict=True)
  ]
  losses, masses = found[0][0], found[0][1]
  return _Pair(
    tuple(curve for _, _, curve in found),
    min(float(losses[0]) for losses, _, _ in found),
    max(float(losses[-1]) for losses, _, _ in found),
    *_mean_and_deviation(losses, masses),
  )


def _largest_of(
  run: LossDistribution, other: LossDistribution, gamma: float, shape: float
) -> tuple[np.ndarray, np.ndarray, Curve]:
  """(losses, their probabilities, curve) of the best of K runs in one direction.

  Args:
    run: the losses of a run in this direction.
    other: those in the other one, which tell the most powerful test.
    gamma: of the number of runs.
    shape: eta.
  """
  # Its corners, but for those where power rises no faster than u: the ratio is largest before.
  _, power, error = other._tails
  gained = gamma + (1 - gamma) * (other.infinity + np.append(power, 0.0))
  shift = (1 + shape) * math.log(np.max(gained / (gamma + (1 - gamma) * np.append(error, 0.0))))

  above = run.infinity + np.append(np.cumsum(run.masses[::-1])[::-1], 0.0)
  above = number_of_runs.any_among(np.minimum(above, 1.0), gamma, shape)
  counted = np.flatnonzero((above[:-1] < 1 - _TAIL) & (above[:-1] > above[-1] + _TAIL))
  low, high = max(int(counted[0]) - 1, 0), int(counted[-1]) + 1
  losses = (run.first + np.arange(low, high)) * run.step + shift
  infinity = above[high]
  masses = -np.diff(above[low : high + 1])
  masses[0] += 1 - above[low]
  finite = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
  discounted = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)

  def curve(epsilon):
    index = np.searchsorted(losses, epsilon, side='left')
    return infinity + np.maximum(finite[index] - np.exp(epsilon) * discounted[index], 0.0)

  return losses, masses, curve


_PAIRS: Mapping[str, Callable[..., _Pair | None]] = {
  'gaussian': _gaussian,
  'poisson': _poisson,
  'poisson_replace': _poisson_replace,
  'without_replacement': _without_replacement,
  'balls_in_bins': _balls_in_bins,
  'best_of': _best_of,
  'failing': _failing,
  'known': _known,
  'exponential': _exponential,
}


def log_mixture(q: float, u):
  """log(1 - q + q e^u)."""
  u = np.asarray(u, np.float64)
  small = np.log1p(q * np.expm1(np.minimum(u, 30.0)))
  return np.where(u < 30, small, np.logaddexp(math.log1p(-q), math.log(q) + np.maximum(u, 30)))


def _mean_and_deviation(losses, weights) -> tuple[float, float]:
  mean = float(np.average(losses, weights=weights))
  return mean, math.sqrt(np.average((losses - mean) ** 2, weights=weights))
