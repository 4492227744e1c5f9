"""From privacy events to epsilon.

Two accountants. Privacy loss distributions (PLD, `privacy.loss_distributions`) are tight and give
the epsilon that is printed, wherever a mechanism has them. Renyi differential privacy (RDP) has
every event of this project, and rounds compose by addition; its epsilon is a few per cent larger.
It stands beside the other one, and is kept for results whose noise was calibrated by it. The Renyi
curves are vectorised versions of dp-accounting's (its scalar loops take 0.2 s a silo, 12 s for
sampling without replacement); the tests hold them against `dp_accounting.rdp` and against numerical
integration.

Long because every kind of event has its curve here, each with where it comes from.
"""

import dataclasses
import functools
import math
import warnings

import attr
import dp_accounting
import numpy as np
from dp_accounting import rdp as dp_rdp
from scipy import special

from privacy import balls_in_bins, loss_distributions, number_of_runs
from privacy.events import (
  Adjacency,
  BallsInBinsDpEvent,
  DisjointDpEvent,
  ExponentialMechanismDpEvent,
  FailingDpEvent,
  KnownParticipationDpEvent,
  ReplacedDpEvent,
)
from privacy.rounding import rounded_up

ACCOUNTANTS = ('pld', 'renyi')
_LEAST_NOISE_TO_INTEGRATE = 0.02
_LEAST_NOISE_FOR_DIFFERENCES = 0.05  # with less they take long, and change nothing that counts

# dp-accounting's default list jumps from 63 to 128 and 256, which costs up to
# several per cent of epsilon where the best order is in the gap.
RDP_ORDERS = (
  *(1 + x / 10 for x in range(1, 100)),
  *(float(x) for x in range(11, 257)),
  *(320.0, 384.0, 448.0, 512.0, 640.0, 768.0, 896.0, 1024.0),
)
_ORDERS = np.array(RDP_ORDERS)
_IS_WHOLE = np.floor(_ORDERS) == _ORDERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyLoss:
  """An (epsilon, delta) guarantee and how it was found.

  Attributes:
    epsilon: infinite where there is no guarantee.
    delta: the failure probability.
    order: the Renyi order that gives epsilon; None if no order does (nothing
      was released, there is no guarantee, or the accountant is another one).
    order_is_interior: False where the best order is the first or the last of
      the list: another list may give a smaller epsilon.
    accountant: 'PLD' or 'RDP'.
  """

  epsilon: float
  delta: float
  order: float | None = None
  order_is_interior: bool = True
  accountant: str = 'RDP'


def check_accountant(accountant: str):
  """Raises a `ValueError` unless it is the name of an accountant."""
  if accountant not in ACCOUNTANTS:
    raise ValueError(f'accountant must be {" or ".join(ACCOUNTANTS)}, got {accountant!r}.')


def loss(
  event: dp_accounting.DpEvent,
  delta: float,
  adjacency: Adjacency = Adjacency.ZERO_OUT,
  *,
  accountant: str = 'pld',
) -> PrivacyLoss:
  """The guarantee of an event.

  Args:
    event: the event; its noise multipliers are relative to the sensitivity under the adjacency.
    delta: in (0, 1).
    adjacency: the neighbouring relation.
    accountant: 'pld': by PLD where it applies, else by RDP; 'renyi': by RDP.

  Raises:
    ValueError: no accountant has the event under the adjacency, or it holds a foreign number (see
      `check_event`), or delta is outside (0, 1).
  """
  check_accountant(accountant)
  if accountant == 'pld':
    epsilon = pld_epsilon(event, delta, adjacency)
    if epsilon is not None:
      return PrivacyLoss(epsilon=epsilon, delta=float(delta), accountant='PLD')
  return _renyi_loss(event, delta, adjacency)


def loss_by_either(
  event: dp_accounting.DpEvent, delta: float, adjacency: Adjacency, *, accountant: str
) -> PrivacyLoss:
  """As `loss`, by PLD where Renyi has no such event: Poisson batches whose example is replaced.

  Raises:
    ValueError: no accountant has the event under the adjacency.
  """
  try:
    return loss(event, delta, adjacency, accountant=accountant)
  except ValueError:
    return loss(event, delta, adjacency, accountant='pld')


def check_event(event: dp_accounting.DpEvent):
  """Refuses an event that holds a number which is no Python float or int.

  dp-accounting tests `isinstance(sigma, float)` and silently drops mechanisms
  whose noise multiplier is a float32 or an int.

  Raises:
    ValueError: names the field and its type.
  """
  for field in attr.fields(type(event)):
    value = getattr(event, field.name)
    path = f'{type(event).__name__}.{field.name}'
    if isinstance(value, dp_accounting.DpEvent):
      check_event(value)
    elif isinstance(value, (list, tuple)):
      for part in value:
        if not isinstance(part, dp_accounting.DpEvent):
          raise ValueError(f'{path} must hold events, got {type(part).__name__}.')
        check_event(part)
    else:
      allowed = field.type if field.type in (int, bool) else float
      if type(value) is not allowed:
        raise ValueError(
          f'{path} must be a Python {allowed.__name__}, got {value!r} of type '
          f'{type(value).__module__}.{type(value).__name__}.'
        )


def rdp_curve(
  event: dp_accounting.DpEvent, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> np.ndarray:
  """Renyi divergences of an event at `RDP_ORDERS`, float64.

  Raises:
    ValueError: the event holds a foreign number (see `check_event`), is not defined under the
      adjacency, or may fail: then it has a curve up to a probability (`curve_and_failure`).
  """
  curve, failure = curve_and_failure(event, adjacency)
  if failure:
    raise ValueError(f'{event} may fail and has no Renyi curve.')
  return curve


def curve_and_failure(
  event: dp_accounting.DpEvent, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[np.ndarray, float]:
  """The Renyi curve of an event as long as nothing in it fails, and the probability that it does.

  Whether it fails is independent of the data, so that by joint convexity delta at any epsilon is
  at most the curve's, plus that probability of what it lacks to one: see `after_failure`.

  Raises:
    ValueError: as `rdp_curve`, but for an event that may fail.
  """
  check_event(event)
  return _curve(event, adjacency), failure_probability(event)


def failure_probability(event: dp_accounting.DpEvent) -> float:
  """The probability that a part of an event fails (`FailingDpEvent`).

  Raises:
    ValueError: it fails inside a private choice, for which no theorem is known.
  """
  return -math.expm1(-_failure_exponent(event))


def _failure_exponent(event: dp_accounting.DpEvent) -> float:
  """-log of the probability that nothing fails."""
  if isinstance(event, ReplacedDpEvent):
    return _failure_exponent(event.event)
  if isinstance(event, FailingDpEvent):
    own = -math.log1p(-event.probability) if event.probability < 1 else math.inf
    return own + _failure_exponent(event.event)
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return event.count * _failure_exponent(event.event) if event.count else 0.0
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return sum(map(_failure_exponent, event.events))
  if isinstance(event, DisjointDpEvent):
    return max(map(_failure_exponent, event.events))
  inner = getattr(event, 'event', None)
  if inner is not None and _failure_exponent(inner) > 0:
    raise ValueError(f'{type(event).__name__} of mechanisms that may fail has no known guarantee.')
  return 0.0


def after_failure(delta, failure: float):
  """What is left of delta beside a probability of failing; not above 0 where nothing is."""
  return (np.asarray(delta, np.float64) - failure) / max(1 - failure, 1e-300)


def _renyi_loss(event: dp_accounting.DpEvent, delta: float, adjacency: Adjacency) -> PrivacyLoss:
  check_delta(delta)
  if isinstance(event, DisjointDpEvent):  # each part at its own best order
    parts = [_renyi_loss(part, delta, adjacency) for part in event.events]
    return max(parts, key=lambda loss: loss.epsilon)
  curve, failure = curve_and_failure(event, adjacency)
  left = float(after_failure(delta, failure))
  if left <= 0:
    return PrivacyLoss(epsilon=math.inf, delta=float(delta))
  return dataclasses.replace(loss_of_curve(curve, left), delta=float(delta))


def _curve(event: dp_accounting.DpEvent, adjacency: Adjacency) -> np.ndarray:
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return np.zeros_like(_ORDERS)
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return np.full_like(_ORDERS, np.inf)
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return scale_curve(_curve(event.event, adjacency), event.count)
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return sum((_curve(part, adjacency) for part in event.events), np.zeros_like(_ORDERS))
  if isinstance(event, DisjointDpEvent):
    return np.max([_curve(part, adjacency) for part in event.events], axis=0)
  if isinstance(event, FailingDpEvent):
    return _curve(event.event, adjacency)
  if isinstance(event, ReplacedDpEvent):
    return _curve(_with_known_participants(event.event), Adjacency.REPLACE_ONE)
  if isinstance(event, KnownParticipationDpEvent):
    if event.probability == 1:
      return _curve(event.event, adjacency)
    moments = (_ORDERS - 1) * _curve(event.event, adjacency)
    return loss_distributions.log_mixture(event.probability, moments) / (_ORDERS - 1)
  if isinstance(event, BallsInBinsDpEvent) and isinstance(
    event.event, dp_accounting.GaussianDpEvent
  ):
    if adjacency is Adjacency.REPLACE_ONE:  # without amplification
      return _gaussian(event.event.noise_multiplier)
    return _balls_in_bins(event.bins, event.event.noise_multiplier)
  if isinstance(event, ExponentialMechanismDpEvent):
    # epsilon^2 / 8 zCDP (Rogers and Steinke 2021; cross-silo paper, appendix A).
    return _gaussian(2.0 / event.epsilon)
  if isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
    return repeat_and_select_curve(_curve(event.event, adjacency), event.mean, event.shape)
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return _gaussian(event.noise_multiplier)
  if (
    isinstance(event, dp_accounting.PoissonSampledDpEvent)
    and isinstance(event.event, dp_accounting.GaussianDpEvent)
    and adjacency is not Adjacency.REPLACE_ONE
  ):
    return _poisson_sampled_gaussian(event.sampling_probability, event.event.noise_multiplier)
  if (
    isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
    and isinstance(event.event, dp_accounting.GaussianDpEvent)
    and adjacency is Adjacency.REPLACE_ONE
  ):
    return _gaussian_without_replacement(
      event.sample_size / event.source_dataset_size, event.event.noise_multiplier
    )
  # Where the number of units is a constant, zero-out gives the outputs of add/remove-one.
  relation = (
    dp_accounting.NeighboringRelation.REPLACE_ONE
    if adjacency is Adjacency.REPLACE_ONE
    else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  )
  accountant = dp_rdp.RdpAccountant(RDP_ORDERS, relation)
  if not accountant.supports(event):
    raise ValueError(f'{event} has no Renyi curve under {adjacency.value}.')
  return accountant.compose(event).rdp


def _with_known_participants(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """An event in which all are told who takes part in Poisson samples, which is no less private.

  Of what is replaced in a Poisson sample no tighter Renyi curve is known.
  """
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    return KnownParticipationDpEvent(event.sampling_probability, event.event)
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return dp_accounting.ComposedDpEvent([_with_known_participants(e) for e in event.events])
  inner = getattr(event, 'event', None)
  return event if inner is None else attr.evolve(event, event=_with_known_participants(inner))


def scale_curve(curve: np.ndarray, count) -> np.ndarray:
  """The curve of `count` repetitions; none of them cost nothing."""
  count = np.asarray(count)
  return np.where(count == 0, 0.0, np.where(count == 0, 1, count) * curve)


def epsilon_of_curves(curves: np.ndarray, delta) -> tuple[np.ndarray, np.ndarray]:
  """Epsilon of each curve (Canonne, Kamath and Steinke 2020, proposition 12).

  Args:
    curves: float64 [..., orders], Renyi divergences at `RDP_ORDERS`.
    delta: float64 broadcastable to [...].

  Returns:
    (epsilons, indices of the best orders), both [...].
  """
  delta = np.asarray(delta, np.float64)[..., None]
  with np.errstate(invalid='ignore'):
    epsilons = curves + np.log1p(-1 / _ORDERS) - np.log(delta * _ORDERS) / (_ORDERS - 1)
  # Bretagnolle-Huber: delta <= sqrt(1 - exp(-KL)), and KL is below every order.
  epsilons = np.where(np.square(delta) + np.expm1(-curves) > 0, 0.0, epsilons)
  best = np.argmin(epsilons, axis=-1)
  smallest = np.take_along_axis(epsilons, best[..., None], axis=-1)[..., 0]
  return np.maximum(smallest, 0.0), best


def loss_of_curve(curve: np.ndarray, delta: float) -> PrivacyLoss:
  """The guarantee of one curve."""
  epsilons, indices = epsilon_of_curves(curve, delta)
  epsilon, best = float(epsilons), int(indices)
  certain = epsilon in (0.0, math.inf)
  return PrivacyLoss(
    epsilon=epsilon,
    delta=float(delta),
    order=None if certain else RDP_ORDERS[best],
    order_is_interior=certain or 0 < best < len(RDP_ORDERS) - 1,
  )


def delta_of_curve(curve: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
  """Delta of one curve at each epsilon: `epsilon_of_curves` solved for delta."""
  epsilons = np.asarray(epsilons, np.float64)[..., None]
  with np.errstate(divide='ignore', over='ignore'):
    log_deltas = (_ORDERS - 1) * (curve - epsilons + np.log1p(-1 / _ORDERS)) - np.log(_ORDERS)
    by_divergence = 0.5 * np.log(-np.expm1(-curve.min()))
  return np.exp(np.minimum(np.minimum(log_deltas.min(axis=-1), by_divergence), 0.0))


def rdp_loss(
  event: dp_accounting.DpEvent, delta: float, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> PrivacyLoss:
  """The guarantee of an event by Renyi DP.

  Warns if the best order is the first or the last of the list.

  Raises:
    ValueError: as `rdp_curve`, or delta is outside (0, 1).
  """
  loss = _renyi_loss(event, delta, adjacency)
  if not loss.order_is_interior:
    warnings.warn(
      f'The best Renyi order, {loss.order}, is at the end of the list; epsilon '
      f'{rounded_up(loss.epsilon)} holds but is not tight.',
      stacklevel=2,
    )
  return loss


def pld_epsilon(
  event: dp_accounting.DpEvent, delta: float, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> float | None:
  """Epsilon by privacy loss distributions; None where they do not apply.

  Args:
    event: see `loss`.
    delta: below `loss_distributions.smallest_delta` PLD has too few digits.
    adjacency: the neighbouring relation.
  """
  check_event(event)
  check_delta(delta)
  if isinstance(event, DisjointDpEvent):  # a unit pays for one part
    each = [pld_epsilon(part, delta, adjacency) for part in event.events]
    known = [epsilon for epsilon in each if epsilon is not None]
    return max(known, default=0.0) if len(known) == len(each) else None
  parts = loss_distributions.parts_of(event, adjacency)
  if parts is None or delta < loss_distributions.smallest_delta(parts):
    return None
  return _pld_epsilon(parts, float(delta))


@functools.lru_cache(maxsize=65536)
def _pld_epsilon(parts: loss_distributions.Parts, delta: float) -> float | None:
  distributions = loss_distributions.composed(parts)
  return None if distributions is None else max(d.epsilon(delta) for d in distributions)


def check_delta(delta):
  """Raises ValueError unless every delta is inside (0, 1)."""
  values = np.asarray(delta, np.float64)
  if not np.all((values > 0) & (values < 1)):
    raise ValueError(f'delta must be inside (0, 1), got {delta}.')


def check_rounds(rounds: int) -> int:
  """Returns a number of rounds, or raises a `ValueError`."""
  if rounds != int(rounds) or rounds < 0:
    raise ValueError(f'number of rounds must be a whole number from 0, got {rounds}.')
  return int(rounds)


def check_noise_multiplier(value: float):
  """Raises a `ValueError` unless the noise multiplier is finite and not negative."""
  if not (value >= 0 and math.isfinite(value)):
    raise ValueError(f'noise multiplier must be 0 or more and finite, got {value}.')


def check_clipping_norm(value: float):
  """Raises a `ValueError` unless the clipping norm is positive (it may be infinite)."""
  if not value > 0:
    raise ValueError(f'clipping norm must be positive, got {value}.')


# ---------------------------------------------------------------- mechanisms


@functools.lru_cache(maxsize=4096)
def _gaussian(noise_multiplier: float) -> np.ndarray:
  if noise_multiplier == 0:
    return _frozen(np.full_like(_ORDERS, np.inf))
  return _frozen(_ORDERS / (2 * noise_multiplier**2))


def _whole_order_tables():
  """Log binomial coefficients of the whole orders, in blocks of like size.

  The binomial sums start at index 2: the terms of A - 1 before it are zero.
  """
  whole = _ORDERS[_IS_WHOLE]
  blocks = []
  for low, high in ((0, 64), (64, 256), (256, 1024)):
    orders = whole[(whole > low) & (whole <= high)][:, None]
    index = np.arange(2.0, high + 1.0)[None, :]
    inside = index <= orders
    rest = np.where(inside, orders - index, 0.0)
    log_binomial = np.where(
      inside,
      special.gammaln(orders + 1) - special.gammaln(index + 1) - special.gammaln(rest + 1),
      -np.inf,
    )
    blocks.append((index, rest, log_binomial))
  return blocks


_WHOLE_ORDER_TABLES = _whole_order_tables()


@functools.lru_cache(maxsize=4096)
def _poisson_sampled_gaussian(q: float, noise_multiplier: float) -> np.ndarray:
  """Mironov, Talwar and Zhang 2019, section 3.3.

  log A = log E_{x ~ N(0, z^2)} [(1 - q + q exp((2 x - 1) / (2 z^2)))^order],
  by the binomial theorem for whole orders and for the others (all below 11) by
  the trapezoid rule, which converges exponentially for such integrands. Both
  sum A - 1 from positive terms, so that nothing cancels. With next to no noise, where the rule
  would take millions of points, those others are bounded from above.
  """
  if q == 0:
    return _frozen(np.zeros_like(_ORDERS))
  if q == 1 or noise_multiplier == 0:
    return _gaussian(noise_multiplier)
  variance = noise_multiplier**2
  log_a = np.empty_like(_ORDERS)

  whole = [
    _log_sum_exp(
      log_binomial
      + index * math.log(q)
      + rest * math.log1p(-q)
      + _log_expm1(index * (index - 1) / (2 * variance))
    )
    for index, rest, log_binomial in _WHOLE_ORDER_TABLES
  ]
  log_a[_IS_WHOLE] = np.logaddexp(0.0, np.concatenate(whole))
  if noise_multiplier < _LEAST_NOISE_TO_INTEGRATE:
    # log A is convex in the order, and zero at order one: its chords lie above.
    at = np.append(1.0, _ORDERS[_IS_WHOLE]), np.append(0.0, log_a[_IS_WHOLE])
    log_a[~_IS_WHOLE] = np.interp(_ORDERS[~_IS_WHOLE], *at)
    return _frozen(log_a / (_ORDERS - 1))

  # The integrand's nearest singularity is pi z^2 off the real line.
  step = min(noise_multiplier / 4, variance / 2)
  tail = 12 * noise_multiplier
  orders = _ORDERS[~_IS_WHOLE][:, None]
  x = np.arange(-tail, orders.max() + tail, step)
  log_weight = -(x**2) / (2 * variance) + math.log(
    step / (noise_multiplier * math.sqrt(2 * math.pi))
  )
  u = (2 * x - 1) / (2 * variance)
  log_ratio = np.where(
    u < 30, np.log1p(q * np.expm1(np.minimum(u, 30))), math.log(q) + np.maximum(u, 30)
  )
  log_a[~_IS_WHOLE] = np.logaddexp(0.0, _log_sum_exp(_log_excess(log_ratio, orders) + log_weight))
  return _frozen(log_a / (_ORDERS - 1))


def _log_excess(log_ratio: np.ndarray, order: np.ndarray) -> np.ndarray:
  """log(r^a - 1 - a (r - 1)) for r = exp(log_ratio), positive as r^a is convex.

  The ratio's mean is one, so that this has the mean A - 1: no cancellation, and
  no curve that vanishes by rounding and so claims an epsilon of zero.
  """
  v = np.expm1(np.clip(log_ratio, -1.0, 1.0))
  series = 1 + (order - 2) / 3 * v * (1 + (order - 3) / 4 * v * (1 + (order - 4) / 5 * v))
  with np.errstate(divide='ignore', invalid='ignore'):
    near_one = np.log(order * (order - 1) / 2 * np.square(v) * series)
    rest = (1 - order) * np.exp(-order * log_ratio) + order * np.exp((1 - order) * log_ratio)
    return np.where(np.abs(log_ratio) < 1e-3, near_one, order * log_ratio + np.log1p(-rest))


@functools.lru_cache(maxsize=1024)
def _balls_in_bins(bins: int, noise_multiplier: float) -> np.ndarray:
  """The larger of both directions (Feldman and Shenfeld 2025).

  With the unit against without it: the moments of `balls_in_bins.renyi_moments` at whole orders;
  between them log E[S^order] is convex, so that its chord lies above. Without it against with it:
  the mean of the W_t is at least their geometric mean, which gives (order + T - 1) / (2 T z^2).
  No epoch is worse than the Gaussian mechanism that all units enter.
  """
  plain = _gaussian(noise_multiplier)
  if bins == 1 or noise_multiplier == 0:
    return plain
  largest = 256
  log_moments = balls_in_bins.renyi_moments(bins, noise_multiplier, largest)
  few = np.minimum(_ORDERS, largest)
  chords = np.interp(few, np.arange(largest + 1), log_moments) / (few - 1)
  with_it = np.where(largest >= _ORDERS, chords, plain)
  without_it = (_ORDERS + bins - 1) / (2 * bins * noise_multiplier**2)
  return _frozen(np.minimum(np.maximum(with_it, without_it), plain))


@functools.lru_cache(maxsize=256)
def _gaussian_without_replacement(q: float, noise_multiplier: float) -> np.ndarray:
  """Wang, Balle and Kasiviswanathan 2019, theorem 27, for the Gaussian.

  Orders between whole numbers are interpolated in the cumulant generating
  function (their corollary 10), an upper bound because it is convex.
  """
  if q == 1 or noise_multiplier == 0:
    return _gaussian(noise_multiplier)
  variance = noise_multiplier**2
  largest = int(_ORDERS.max())
  exact = 256  # beyond it the forward differences are replaced by their bound
  i = np.arange(2, largest + 1)
  log_terms = math.log(2) + i * (i - 1.0) / (2 * variance)
  few = i[: exact - 1]
  if noise_multiplier >= _LEAST_NOISE_FOR_DIFFERENCES:
    even = _log_even_differences(variance, exact)
    mixed = math.log(4) + 0.5 * (even[few // 2 - 1] + even[(few + 1) // 2 - 1])
    log_terms[: exact - 1] = np.minimum(log_terms[: exact - 1], mixed)

  log_a = {1: 0.0}
  for order in sorted({int(whole(o)) for o in _ORDERS for whole in (math.floor, math.ceil)} - {1}):
    index = i[: order - 1]
    log_binomial = (
      special.gammaln(order + 1) - special.gammaln(index + 1) - special.gammaln(order - index + 1)
    )
    terms = log_binomial + index * math.log(q) + log_terms[: order - 1]
    log_a[order] = float(np.logaddexp(0.0, _log_sum_exp(terms)))
  fraction = _ORDERS - np.floor(_ORDERS)
  below = np.array([log_a[math.floor(o)] for o in _ORDERS])
  above = np.array([log_a[math.ceil(o)] for o in _ORDERS])
  return _frozen(((1 - fraction) * below + fraction * above) / (_ORDERS - 1))


def _log_even_differences(variance: float, largest: int) -> np.ndarray:
  """log of the forward differences of order 2, 4, ... of exp(x (x - 1) / (2 z^2)) at 0.

  They are the moments E[(exp(y) - 1)^k] of a likelihood ratio exp(y) with
  y ~ N(-1 / (2 z^2), 1 / z^2). Summed by the trapezoid rule nothing cancels, as
  it does in the differences themselves.
  """
  scale = math.sqrt(variance)
  step = min(scale / 8, variance / 4)
  x = np.arange(-12 * scale, largest + 12 * scale, step)
  log_weight = -(x**2) / (2 * variance) + math.log(step / (scale * math.sqrt(2 * math.pi)))
  y = (2 * x - 1) / (2 * variance)
  with np.errstate(divide='ignore'):  # log 0 at y = 0
    log_distance = np.maximum(y, 0.0) + np.log(-np.expm1(-np.abs(y)))
  # One by one: all together they would fill the memory where there is little noise.
  orders = range(2, largest + 1, 2)
  return np.array([float(_log_sum_exp(k * log_distance + log_weight)) for k in orders])


# ---------------------------------------------------------- repeat and select


def repeat_and_select_curve(curve: np.ndarray, mean: float, shape: float) -> np.ndarray:
  """The curve of a random number of runs of which only the best is released.

  The number of runs is truncated negative binomial (Papernot and Steinke 2022,
  theorem 2; the cross-silo paper's theorem F.2 and equation 50).

  Args:
    curve: the curve of one run, [orders].
    mean: expected number of runs, at least 1.
    shape: eta > -1 (0: logarithmic, 1: geometric).

  Returns:
    The curve [orders] of the released run.
  """
  gamma = number_of_runs.gamma_of_mean(mean, shape)
  constant = (1 + shape) * np.min((1 - 1 / _ORDERS) * curve - math.log(gamma) / _ORDERS)
  result = curve + math.log(mean) / (_ORDERS - 1) + constant
  # Renyi divergences grow with the order: a higher order bounds a lower one.
  return np.minimum.accumulate(result[::-1])[::-1]


def _log_sum_exp(terms: np.ndarray) -> np.ndarray:
  largest = np.max(terms, axis=-1, keepdims=True)
  return np.log(np.sum(np.exp(terms - largest), axis=-1)) + largest[..., 0]


def _log_expm1(x: np.ndarray) -> np.ndarray:
  """log(exp(x) - 1) for x > 0, without overflow."""
  return x + np.log(-np.expm1(-x))


def _frozen(curve: np.ndarray) -> np.ndarray:
  curve.setflags(write=False)
  return curve
