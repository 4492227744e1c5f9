"""What a check of a claim gives, and what all checks share."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

CASES = 25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """Two numbers between which a claim's relation has to hold.

  Attributes:
    what: the case.
    left: one side.
    right: the other.
    relation: if it is not the claim's.
    margin: if it is not the claim's.
  """

  what: str
  left: float
  right: float
  relation: str | None = None
  margin: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aside:
  """What is said beside the comparisons, and judges nothing.

  Attributes:
    text: words with their numbers.
  """

  text: str


EXACT: dict[str, Any] = dict(relation='equals', margin=1e-6)
SAME: dict[str, Any] = dict(relation='equals', margin=0.0)


def generator() -> np.random.Generator:
  """The same draws for every check."""
  return np.random.default_rng(20)


def minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
  """(place, value) of the minimum of a function of one positive number, to 1e-9."""
  grid = np.logspace(math.log10(low), math.log10(high), 400)
  i = int(np.clip(np.argmin([function(float(x)) for x in grid]), 1, len(grid) - 2))

  # Where the curve is a parabola its derivative tells the place far more exactly.
  def slope(x: float) -> float:
    h = 1e-4 * x
    return (function(x + h) - function(x - h)) / (2 * h)

  place = optimize.brentq(slope, grid[i - 1], grid[i + 1], xtol=1e-14, rtol=1e-13)
  return float(place), float(function(float(place)))
