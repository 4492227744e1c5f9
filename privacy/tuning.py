"""Private choice of hyper-parameters: run a random number of times, release the best.

Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620), as used in the
cross-silo paper's appendix F. A fixed number of runs can cost as much as
releasing all of them; a random number costs a constant factor.
"""

import dataclasses
import math

import dp_accounting
import numpy as np
from scipy import special

from privacy import accounting, number_of_runs
from privacy.events import DisjointDpEvent
from runtime import noise_key, random_streams


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateTuning:
  """A truncated negative binomial number of runs of which the best is released.

  Attributes:
    mean: expected number of runs, above 1.
    shape: eta > -1; 1 is the geometric, 0 the logarithmic distribution. A
      smaller one costs less and is more often a single run.
    score_noise_multiplier: noise of the score by which a run is compared, a
      Gaussian mechanism on a sum, relative to the bound of what one example adds to it, or one
      client where a client is protected.
      None: the score costs nothing (it is computed from public data).
    held_out_score: whether the scores are computed on rows of their own, which no run was
      trained on. An example is then in one part or the other, and pays for that one only; a client
      may be in both, so that plans for clients refuse it.
  """

  mean: float
  shape: float
  score_noise_multiplier: float | None = None
  held_out_score: bool = False

  def __post_init__(self):
    number_of_runs.gamma_of_mean(self.mean, self.shape)  # refuses what is out of range
    if self.score_noise_multiplier is not None:
      accounting.check_noise_multiplier(self.score_noise_multiplier)

  @classmethod
  def of_gamma(
    cls,
    *,
    gamma: float,
    shape: float,
    score_noise_multiplier: float | None = None,
    held_out_score: bool = False,
  ) -> 'PrivateTuning':
    """The tuning with the distribution's parameters (eta, gamma)."""
    return cls(
      mean=number_of_runs.mean_of_gamma(gamma, shape),
      shape=shape,
      score_noise_multiplier=score_noise_multiplier,
      held_out_score=held_out_score,
    )

  @property
  def gamma(self) -> float:
    """The distribution's other parameter, in (0, 1]."""
    return number_of_runs.gamma_of_mean(self.mean, self.shape)

  def event(self, run: dp_accounting.DpEvent, *, shared: bool = False) -> dp_accounting.DpEvent:
    """The event of the release, from the event of one run without its score.

    dp-accounting's own accountant takes no negative shape.

    Args:
      run: the event of one run's training.
      shared: whether a further run is released as it goes on, beside those that are compared.
    """
    score = None
    if self.score_noise_multiplier is not None:
      score = dp_accounting.GaussianDpEvent(float(self.score_noise_multiplier))
    candidate = run
    if score is not None and not self.held_out_score:
      candidate = dp_accounting.ComposedDpEvent([run, score])
    released = self._best_of(candidate)
    if shared:
      released = dp_accounting.ComposedDpEvent([run, released])
    if score is None or not self.held_out_score:
      return released
    # To a row that was trained on, the score is computed from others' data and a noised model.
    return DisjointDpEvent([released, self.scores_event()])

  def scores_event(self) -> dp_accounting.DpEvent:
    """The event of the release to an example that only the noised scores are of."""
    return self._best_of(dp_accounting.GaussianDpEvent(float(self.score_noise_multiplier or 0.0)))

  def _best_of(self, candidate: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.dp_event.RepeatAndSelectDpEvent(
      event=candidate, mean=float(self.mean), shape=float(self.shape)
    )

  def probability_of_the_better(self, gap: float, clip: float) -> float:
    """How often the better one of two runs is chosen.

    Args:
      gap: by how much its score, a sum of clipped losses, is smaller.
      clip: the clip of the losses; each score has noise of `score_noise_multiplier` clips.
    """
    noise = (self.score_noise_multiplier or 0.0) * clip * math.sqrt(2)
    if noise == 0:
      return 1.0 if gap > 0 else 0.5
    return float(special.ndtr(gap / noise))

  def log_probability(self, runs: np.ndarray) -> np.ndarray:
    """log P(number of runs = h) for h >= 1 (appendix F, the formula before F.2)."""
    runs = np.asarray(runs, np.float64)
    gamma, eta = self.gamma, self.shape
    if eta == 0:
      return runs * np.log1p(-gamma) - np.log(runs) - np.log(-np.log(gamma))
    # prod_{l < h} (l + eta) / (l + 1) = Gamma(h + eta) / (Gamma(eta) h!), and
    # eta / (gamma^-eta - 1) is positive for either sign of eta.
    log_product = special.gammaln(runs + eta) - special.gammaln(1 + eta) - special.gammaln(1 + runs)
    return runs * np.log1p(-gamma) + log_product + np.log(eta / np.expm1(-eta * np.log(gamma)))

  def draw(self, root: int | noise_key.NoiseKey, *indices: int) -> int:
    """A number of runs, keyed by the root and the indices (such as the silo's)."""
    generator = random_streams.host_generator(root, random_streams.Stream.TUNING, *indices)
    level, total, runs = generator.random(), 0.0, 0
    while total <= level and runs < 10_000 * self.mean:  # rounding may keep the sum below 1
      runs += 1
      total += float(np.exp(self.log_probability(np.array(runs))))
    return runs
