"""Private selection of one of several candidates (IFCA's clusters).

The exponential mechanism as report-noisy-min with Gumbel noise: cross-silo
paper, appendix A ('Exponential Mechanism for Private Selection') and C.3.
"""

import dataclasses
import math

import dp_accounting
import tensorflow as tf

from privacy.events import ExponentialMechanismDpEvent
from runtime import random_streams


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSelection:
  """What a silo's selections cost.

  Formal guarantee: one selection is epsilon-DP, for neighbours that change each score by at most
  the sensitivity; its losses lie in an interval of width epsilon, or of epsilon / 2 where an
  example that is zeroed moves all scores in the same direction, as it does sums of losses and
  error rates over a public number of examples. The whole silo's data enter the score, so that
  sampling of batches does not amplify it. (The Renyi curve that stands for a selection is that
  of epsilon^2 / 8 zCDP, without the half.)

  Attributes:
    epsilon: of one selection, positive.
    rounds: number of rounds, from the first on, in which a selection is made.
    monotonic: whether zeroing an example moves all scores in the same direction.
  """

  epsilon: float
  rounds: int
  monotonic: bool = True

  def __post_init__(self):
    if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
      raise ValueError(f'epsilon of a private selection must be positive, got {self.epsilon}.')
    if self.rounds != int(self.rounds) or self.rounds < 0:
      raise ValueError(f'rounds with private selection must be 0 or more, got {self.rounds}.')

  def event(self, rounds: int) -> dp_accounting.DpEvent:
    """The event of the selections made in the first `rounds` rounds."""
    return dp_accounting.SelfComposedDpEvent(
      ExponentialMechanismDpEvent(float(self.epsilon), bool(self.monotonic)),
      int(min(rounds, self.rounds)),
    )


def report_noisy_min(key: tf.Tensor, scores: tf.Tensor, sensitivity, epsilon) -> tf.Tensor:
  """Index of the smallest score after subtracting Gumbel noise.

  Args:
    key: from `random_streams.key(noise_key, Stream.SELECTION, ...)`.
    scores: float32 [candidates], smaller is better.
    sensitivity: how much one example can move any one score; scalar.
    epsilon: of this selection; scalar. Infinite: the plain minimum.

  Returns:
    int32 scalar. P(i) is proportional to exp(-epsilon scores[i] / (2 sensitivity)).
  """
  scale = 2.0 * tf.cast(sensitivity, tf.float64) / tf.cast(epsilon, tf.float64)
  noised = tf.cast(scores, tf.float64) - scale * random_streams.gumbel(key, scores.shape)
  return tf.argmin(noised, axis=-1, output_type=tf.int32)
