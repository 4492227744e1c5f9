"""Statistics of auditing: lower bounds on epsilon from what an attacker guesses.

A mechanism is (epsilon, delta)-DP only if nobody can tell two neighbouring worlds apart too
well. Whoever does tell them apart proves a lower bound on epsilon, with the confidence of the
test. An upper bound (the accountant's) and a lower one (an audit's) that cross show a bug.
"""

import dataclasses
import math

import numpy as np
from scipy import optimize, stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonLowerBound:
  """What an attack has shown.

  Attributes:
    epsilon: at least this, 0 if nothing was shown.
    delta: of the guarantee that is tested.
    confidence: probability with which such a test never claims too much.
    method: how it was found, in words.
  """

  epsilon: float
  delta: float
  confidence: float
  method: str


def many_runs(
  scores_without: np.ndarray,
  scores_with: np.ndarray,
  *,
  delta: float,
  confidence: float = 0.95,
) -> EpsilonLowerBound:
  """From many independent runs without and with the canary (Clopper-Pearson).

  An attacker who says 'with' above a threshold has the error rates a = P(with | without) and
  b = P(without | with). (epsilon, delta)-DP asks for  1 - b <= e^epsilon a + delta  and
  1 - a <= e^epsilon b + delta  (Kairouz, Oh and Viswanath 2015). The threshold is chosen on
  the first half of the runs; the rates are bounded on the second half, which does not know
  of the choice, each at half of the error probability (Clopper and Pearson 1934).

  Args:
    scores_without: float [n], of runs without the canary.
    scores_with: float [m], of runs with it; larger means 'with' is more likely.
    delta: in [0, 1).
    confidence: in (0, 1).

  Raises:
    ValueError: fewer than four runs of either kind, scores that are NaN, or a delta or
      confidence out of range.
  """
  without, with_ = np.asarray(scores_without, np.float64), np.asarray(scores_with, np.float64)
  if min(without.size, with_.size) < 4:
    raise ValueError(
      f'an audit needs at least 4 runs of each kind, got {without.size} and {with_.size}.'
    )
  if np.any(np.isnan(without)) or np.any(np.isnan(with_)):
    raise ValueError('the scores of an audit must not be NaN.')
  _check(delta, confidence)
  half = without.size // 2, with_.size // 2
  candidates = np.unique(np.quantile(np.concatenate([without, with_]), np.linspace(0, 1, 400)))
  # A higher confidence keeps the choice away from thresholds that a few runs made look good.
  careful = 1 - (1 - confidence) / 10
  tried = _bounds(candidates, without[: half[0]], with_[: half[1]], delta, careful)
  chosen = candidates[[int(np.argmax(tried))]]
  epsilon = float(_bounds(chosen, without[half[0] :], with_[half[1] :], delta, confidence)[0])
  return EpsilonLowerBound(
    epsilon=max(epsilon, 0.0),
    delta=float(delta),
    confidence=float(confidence),
    method=f'{without.size} runs without and {with_.size} with the canary, Clopper-Pearson',
  )


def _bounds(thresholds, without, with_, delta: float, confidence: float) -> np.ndarray:
  """The bound on epsilon that each threshold gives."""
  below = [
    np.searchsorted(np.sort(scores), thresholds, side='right') for scores in (without, with_)
  ]
  false_positive = _upper(without.size - below[0], without.size, confidence)
  false_negative = _upper(below[1], with_.size, confidence)

  def log_ratio(other, error):
    with np.errstate(divide='ignore', invalid='ignore'):
      return np.where(1 - delta > other, np.log((1 - delta - other) / error), -np.inf)

  return np.maximum(
    log_ratio(false_negative, false_positive), log_ratio(false_positive, false_negative)
  )


def _upper(counts: np.ndarray, trials: int, confidence: float) -> np.ndarray:
  """Clopper-Pearson upper bounds of rates; two of them hold together with the confidence."""
  failures = np.maximum(trials - counts, 1)
  bounds = stats.beta.ppf(1 - (1 - confidence) / 2, counts + 1, failures)
  return np.where(counts == trials, 1.0, bounds)


def one_run(
  scores: np.ndarray,
  included: np.ndarray,
  *,
  delta: float,
  confidence: float = 0.95,
  guesses: int | None = None,
) -> EpsilonLowerBound:
  """From one run with many canaries, each in it by a fair coin (Steinke et al. 2023).

  The attacker says 'in' for the canaries with the highest scores, 'out' for as many with the
  lowest, and nothing for the others. "Privacy auditing with one (1) training run", NeurIPS
  2023, theorem 5.2 (the guesses of an (epsilon, delta)-DP mechanism are right no more often
  than coins of bias e^epsilon / (1 + e^epsilon), but for delta).

  Args:
    scores: float [m], larger means 'in' is more likely.
    included: bool [m], the coins.
    delta: in [0, 1); counts m times, so that it should be well below 1 / m.
    confidence: in (0, 1).
    guesses: how many canaries to guess on, an even number fixed beforehand; a tenth of all,
      by default.

  Raises:
    ValueError: arrays that do not belong together, or a number of guesses out of range.
  """
  scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
  if scores.shape != included.shape or scores.ndim != 1 or np.any(np.isnan(scores)):
    raise ValueError('an audit needs one score, not NaN, and one coin for each canary.')
  _check(delta, confidence)
  canaries = scores.size
  guesses = max(2, canaries // 10) if guesses is None else int(guesses)
  each = guesses // 2
  if not 1 <= each <= canaries // 2:
    raise ValueError(f'guesses must be from 2 to the {canaries} canaries, got {guesses}.')
  order = np.argsort(scores, kind='stable')
  correct = int(np.sum(~included[order[:each]]) + np.sum(included[order[-each:]]))

  def excess(epsilon: float) -> float:
    return _p_value(canaries, 2 * each, correct, epsilon, delta) - (1 - confidence)

  epsilon = 0.0
  if excess(0.0) < 0:
    epsilon = float(optimize.brentq(excess, 0.0, 50.0)) if excess(50.0) > 0 else 50.0
  return EpsilonLowerBound(
    epsilon=epsilon,
    delta=float(delta),
    confidence=float(confidence),
    method=f'one run with {canaries} canaries, {correct} of {2 * each} guesses right',
  )


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
  """P(at least so many guesses are right) is at most this, for every (epsilon, delta)-DP run."""
  bias = 1 / (1 + math.exp(-epsilon))
  beta = stats.binom.sf(correct - 1, guesses, bias)
  i = np.arange(1, correct + 1)
  # P(correct > coins >= correct - i) / i
  alpha = np.max(np.cumsum(stats.binom.pmf(correct - i, guesses, bias)) / i, initial=0.0)
  return float(min(1.0, beta + 2 * canaries * delta * alpha))


def log_likelihood_ratio(
  observation: np.ndarray, *, rate: float, noise_multiplier: float, steps: int = 1
) -> np.ndarray:
  """The best score for a canary under Poisson sampling, from what was seen of it.

  Args:
    observation: float, n + N(0, steps z^2), where n of `steps` samples held the canary.
    rate: sampling rate q.
    noise_multiplier: z > 0.
    steps: noised sums behind one observation.

  Returns:
    log of the density if n ~ Binomial(steps, q), over the density if n = 0.
  """
  y = np.asarray(observation, np.float64)[..., None]
  n = np.arange(steps + 1)
  log_weight = stats.binom.logpmf(n, steps, rate)
  exponent = (2 * n * y - n**2) / (2 * steps * noise_multiplier**2)
  terms = log_weight + exponent
  largest = terms.max(axis=-1, keepdims=True)
  return np.log(np.sum(np.exp(terms - largest), axis=-1)) + largest[..., 0]


def _check(delta: float, confidence: float):
  if not 0 <= delta < 1:
    raise ValueError(f'delta must be in [0, 1), got {delta}.')
  if not 0 < confidence < 1:
    raise ValueError(f'confidence must be in (0, 1), got {confidence}.')
