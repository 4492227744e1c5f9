"""Trade-off functions: all that a mechanism lets an attacker do, instead of one (epsilon, delta).

f-DP (Dong, Roth and Su 2022, https://arxiv.org/abs/1905.02383): a test that finds the canary with
a false positive rate alpha has a power of at most 1 - f(alpha). Families of them are indexed by a
strength: the larger, the more can be told.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import dp_accounting
import numpy as np
from dp_accounting import pld
from scipy import optimize, special

_PLD_INTERVAL = 1e-3
_MOST_EPSILON = 60.0
_EPSILONS = np.concatenate([np.linspace(0, 8, 161), np.linspace(8.25, _MOST_EPSILON, 208)])


class TradeOff(Protocol):
  """What an attacker can do at most."""

  def power(self, false_positive_rate: float) -> float:
    """The largest true positive rate: 1 - f."""
    ...

  def least_error(self, power: float) -> float:
    """The smallest false positive rate at which a test may have that power."""
    ...

  def epsilon(self, delta: float) -> float:
    """Epsilon of the same mechanism."""
    ...


# From a strength above zero.
Family = Callable[[float], TradeOff]


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """mu-Gaussian DP: unsampled Gaussian mechanisms, mu = sqrt(rounds) / z (section 2.2)."""

  mu: float

  def power(self, false_positive_rate: float) -> float:
    return float(special.ndtr(special.ndtri(false_positive_rate) + self.mu))

  def least_error(self, power: float) -> float:
    return float(special.ndtr(special.ndtri(min(power, 1.0)) - self.mu))

  def epsilon(self, delta: float) -> float:
    """By delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def excess(epsilon):
      far = epsilon / self.mu
      tail = np.exp(epsilon + special.log_ndtr(-self.mu / 2 - far))
      return special.ndtr(self.mu / 2 - far) - tail - delta

    if excess(0.0) <= 0:
      return 0.0
    return float(optimize.brentq(excess, 0.0, self.mu**2 / 2 + 40 * self.mu))


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
  """The trade-off of a privacy profile: (epsilons[i], deltas[i])-DP for all i at once.

  Power is at most e^epsilon alpha + delta, and at most 1 - e^-epsilon (1 - delta - alpha)
  (Wasserman and Zhou 2010), for every epsilon.
  """

  epsilons: np.ndarray
  deltas: np.ndarray

  @classmethod
  def of_event(cls, event: dp_accounting.DpEvent) -> 'Profile':
    """By privacy loss distributions, under adding or removing one record."""
    accountant = pld.PLDAccountant(
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, _PLD_INTERVAL
    )
    accountant.compose(event)
    return cls.of_curve(accountant.get_delta)

  @classmethod
  def of_curve(cls, curve: Callable[[np.ndarray], np.ndarray]) -> 'Profile':
    """From delta(epsilon), such as `privacy.attack.privacy_curve` has it."""
    return cls(_EPSILONS, np.asarray(curve(_EPSILONS), np.float64))

  def power(self, false_positive_rate: float) -> float:
    first = np.exp(self.epsilons) * false_positive_rate + self.deltas
    second = 1 - np.exp(-self.epsilons) * (1 - self.deltas - false_positive_rate)
    return float(np.clip(min(first.min(), second.min()), 0.0, 1.0))

  def least_error(self, power: float) -> float:
    first = np.exp(-self.epsilons) * (power - self.deltas)
    second = 1 - self.deltas - np.exp(self.epsilons) * (1 - power)
    return float(np.clip(max(first.max(), second.max()), 0.0, 1.0))

  def epsilon(self, delta: float) -> float:
    enough = np.flatnonzero(self.deltas <= delta)
    if not len(enough):
      return float(self.epsilons[-1])  # or more: a lower bound
    if enough[0] == 0:
      return 0.0
    between = slice(enough[0] - 1, enough[0] + 1)
    logs = np.log(np.maximum(self.deltas[between], 1e-300))
    return float(np.interp(-np.log(delta), -logs, self.epsilons[between]))


def sampled_gaussians(rate: float, steps: int) -> Family:
  """Poisson sampled Gaussian mechanisms with noise multiplier 1 / strength."""
  if rate == 1:
    return lambda strength: Gaussian(strength * np.sqrt(steps))

  @functools.cache
  def of(strength: float) -> TradeOff:
    sampled = dp_accounting.PoissonSampledDpEvent(
      float(rate), dp_accounting.GaussianDpEvent(1 / float(strength))
    )
    try:
      return Profile.of_event(dp_accounting.SelfComposedDpEvent(sampled, int(steps)))
    except ValueError:
      # dp-accounting refuses its own rounding errors where there is next to no noise. That anything
      # may be told there refutes nothing.
      return Profile(_EPSILONS, np.ones_like(_EPSILONS))

  return of
