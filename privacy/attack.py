"""What an epsilon means to a person: how well the best attacker can do.

Whoever sees all outputs and knows everything but whether one unit was there cannot guess better
than the privacy curve delta(epsilon) allows: for every epsilon, with the false positive rate a and
the true positive rate b,  b <= e^epsilon a + delta  and  1 - a <= e^epsilon (1 - b) + delta
(Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import dp_accounting
import numpy as np
from scipy import special

from privacy import accounting, loss_distributions
from privacy.events import Adjacency, DisjointDpEvent

PrivacyCurve = Callable[[np.ndarray], np.ndarray]

# Where the tangents of the trade-off curve are taken.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-4, 100.0, 2000)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackBounds:
  """Upper bounds for every attacker who tries to tell whether one unit was there.

  Attributes:
    advantage: true minus false positive rate, at the best threshold.
    true_positives_at_1e_3: true positive rate at a false positive rate of 1/1000.
    true_positives_at_1e_2: true positive rate at a false positive rate of 1/100.
    mu: an estimate, not a guarantee: the mechanism is about as hard to attack as one Gaussian
      mechanism with the noise multiplier 1/mu (mu-GDP, Dong, Roth and Su 2022), judged where
      delta(epsilon) is above the guarantee's delta (Gomez et al. 2025, arXiv 2503.10945, report
      the same number with its error). Infinite where no Gaussian mechanism is as weak.
  """

  advantage: float
  true_positives_at_1e_3: float
  true_positives_at_1e_2: float
  mu: float

  def to_json(self) -> dict[str, float | None]:
    """The numbers by name; an infinite mu is None."""
    values = dataclasses.asdict(self)
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def privacy_curve(
  event: dp_accounting.DpEvent,
  adjacency: Adjacency = Adjacency.ZERO_OUT,
  *,
  accountant: str = 'pld',
) -> PrivacyCurve:
  """delta as a function of epsilon >= 0, by the accountant that `accounting.loss` would take.

  Raises:
    ValueError: as `accounting.loss`.
  """
  accounting.check_accountant(accountant)
  accounting.check_event(event)
  if isinstance(event, DisjointDpEvent):  # a unit pays for one part
    parts_of_it = [privacy_curve(e, adjacency, accountant=accountant) for e in event.events]
    return lambda epsilons: np.max([curve(epsilons) for curve in parts_of_it], axis=0)
  if accountant == 'pld':
    parts = loss_distributions.parts_of(event, adjacency)
    distributions = None if parts is None else loss_distributions.composed(parts)
    if distributions is not None:
      return lambda epsilons: np.max([d.delta(epsilons) for d in distributions], axis=0)
  curve, failure = accounting.curve_and_failure(event, adjacency)
  return lambda epsilons: failure + (1 - failure) * accounting.delta_of_curve(curve, epsilons)


def bounds(curves: Sequence[PrivacyCurve], delta: float) -> AttackBounds:
  """What an attacker can do to the worst protected of several units.

  Args:
    curves: privacy curves, such as one of each silo.
    delta: of the guarantee; `mu` is judged above it.
  """
  deltas = np.max([curve(_EPSILONS) for curve in curves], axis=0)
  power = np.exp(_EPSILONS)

  def true_positives(rate: float) -> float:
    by_one = power * rate + deltas
    by_other = 1 - (1 - rate - deltas) / power
    return float(np.clip(np.min(np.minimum(by_one, by_other)), rate, 1.0))

  advantage = float(np.min((power - 1 + 2 * deltas) / (power + 1)))
  return AttackBounds(
    advantage=min(advantage, 1.0),
    true_positives_at_1e_3=true_positives(1e-3),
    true_positives_at_1e_2=true_positives(1e-2),
    mu=_mu(deltas, delta),
  )


def _mu(deltas: np.ndarray, delta: float) -> float:
  judged = deltas >= min(delta, float(deltas[0]))
  epsilons, deltas = _EPSILONS[judged], deltas[judged]
  low, high = np.zeros_like(deltas), np.full_like(deltas, 100.0)
  for _ in range(60):  # delta of N(mu, 1) against N(0, 1) grows with mu
    mu = (low + high) / 2
    tail = np.exp(np.minimum(epsilons + special.log_ndtr(-mu / 2 - epsilons / mu), 0.0))
    enough = special.ndtr(mu / 2 - epsilons / mu) - tail >= deltas
    low, high = np.where(enough, low, mu), np.where(enough, mu, high)
  largest = float(high.max(initial=0.0))
  return largest if largest < 99.0 else math.inf
