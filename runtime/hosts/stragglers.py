"""Members that hold the others up."""

import statistics
from collections.abc import Sequence

_TIMES = 2.0  # the median of the others
_CALLS = 20  # in a row, before a word is said
_SECONDS_TO_MATTER = 0.05
WORDS = (
  f"holds the others up: it has taken more than {_TIMES:g} times the others' median time, "
  f'{_CALLS} times in a row (rounds and evaluations).'
)


class Stragglers:
  """Who is slow again and again."""

  def __init__(self, size: int):
    self._slow_calls = [0] * size

  def found(self, seconds: Sequence[float]) -> list[int]:
    """The members to be named now, after one more call.

    Args:
      seconds: that each member took for all of it.
    """
    if len(seconds) < 2 or max(seconds) <= _SECONDS_TO_MATTER:
      return []
    for index, own in enumerate(seconds):
      # Without its own: the median of two would be their mean, which nobody takes twice of.
      others = statistics.median([*seconds[:index], *seconds[index + 1 :]])
      is_slow = own > _TIMES * others and own > _SECONDS_TO_MATTER
      self._slow_calls[index] = self._slow_calls[index] + 1 if is_slow else 0
    return [index for index, calls in enumerate(self._slow_calls) if calls == _CALLS]
