"""Members that hold the others up."""

import statistics
from collections.abc import Sequence

_TIMES = 2.0  # the median of all members
_TASKS = 20  # in a row, before a word is said
_SECONDS_TO_MATTER = 0.05
WORDS = (
  f'holds the others up: it has taken more than {_TIMES:g} times the median for {_TASKS} rounds.'
)


class Stragglers:
  """Who is slow again and again."""

  def __init__(self, size: int):
    self._slow_tasks = [0] * size

  def found(self, seconds: Sequence[float]) -> list[int]:
    """The members to be named now, after one more task.

    Args:
      seconds: that each member took for it.
    """
    median = statistics.median(seconds)
    for index, own in enumerate(seconds):
      is_slow = len(seconds) > 1 and own > _TIMES * median and own > _SECONDS_TO_MATTER
      self._slow_tasks[index] = self._slow_tasks[index] + 1 if is_slow else 0
    return [index for index, tasks in enumerate(self._slow_tasks) if tasks == _TASKS]
