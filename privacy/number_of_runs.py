"""The truncated negative binomial number of runs of which private tuning releases the best.

P(K = h) is proportional to (1 - gamma)^h / h! (eta)(eta + 1)...(eta + h - 1) for h >= 1; the shape
eta > -1 is 1 for the geometric and 0 for the logarithmic distribution (Papernot and Steinke 2022,
https://arxiv.org/abs/2110.03620, definition 1; cross-silo paper, appendix F).
"""

import functools
import math

import numpy as np
from scipy import optimize


def mean_of_gamma(gamma: float, shape: float) -> float:
  """Mean of the truncated negative binomial (cross-silo paper, appendix F)."""
  if gamma == 1:
    return 1.0
  if shape == 0:
    return (1 / gamma - 1) / -math.log(gamma)
  return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


@functools.cache
def gamma_of_mean(mean: float, shape: float) -> float:
  """The parameter gamma, in (0, 1], that gives a mean number of runs.

  Raises:
    ValueError: mean below 1 or shape not above -1.
  """
  if not mean >= 1 or not math.isfinite(mean):
    raise ValueError(f'mean number of tuning runs must be at least 1, got {mean}.')
  if not shape > -1 or not math.isfinite(shape):
    raise ValueError(f'shape of the number of tuning runs must be above -1, got {shape}.')
  if mean == 1:
    return 1.0
  log_gamma = optimize.brentq(
    lambda x: mean_of_gamma(math.exp(x), shape) - mean, -100.0, -1e-9, xtol=1e-14
  )
  return math.exp(log_gamma)


def any_among(probability: np.ndarray, gamma: float, shape: float) -> np.ndarray:
  """P(at least one of the runs falls into a set) from the probability u that one run does.

  1 - f(1 - u), where f is the number's generating function; float64 like `probability`.
  """
  if gamma == 1:
    return np.asarray(probability, np.float64)
  growth = np.log1p((1 - gamma) / gamma * np.asarray(probability, np.float64))
  if shape == 0:
    return growth / -math.log(gamma)
  return np.expm1(-shape * growth) / math.expm1(shape * math.log(gamma))
