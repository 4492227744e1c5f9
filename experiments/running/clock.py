"""How long a round takes, and when to look at the device."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

# Between two looks at the device the loop only hands out work.
_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_ROUNDS_BETWEEN_LOOKS = 256


class Clock:
  """Seconds a round, without compiling, evaluating and writing."""

  def __init__(self, machine):
    """Begins to count.

    Args:
      machine: the runtime, which knows what compiling has cost.
    """
    self._machine = machine
    # What others compiled before on the same machine is not ours.
    self._earlier_compile_seconds = -machine.compile_seconds
    self._steady = [0.0, 0]  # seconds, rounds
    self._all = [0.0, 0]
    self.restart()

  def round_is_over(self, num_pending: int) -> bool:
    """Whether it is time to look at the device: seldom, so that it never waits for us."""
    return (
      self._all[1] == 0  # the first round, which compiles, is looked at by itself
      or num_pending >= _MOST_ROUNDS_BETWEEN_LOOKS
      or time.monotonic() - self._since > _SECONDS_BETWEEN_LOOKS
    )

  def looked(self, num_rounds: int) -> None:
    """Counts the rounds that have certainly ended by now."""
    seconds = time.monotonic() - self._since
    compiled = self._machine.compile_seconds - self._compile_seconds_at_look
    self._all[0] += max(seconds - compiled, 0.0)
    self._all[1] += num_rounds
    if self._machine.compilations == self._compilations:
      self._steady[0] += seconds
      self._steady[1] += num_rounds
    self.restart()

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """What is done inside does not count: neither its time nor what it compiles."""
    start, machine = time.monotonic(), self._machine
    compilations, compile_seconds = machine.compilations, machine.compile_seconds
    try:
      yield
    finally:
      self._since += time.monotonic() - start
      self._compilations += machine.compilations - compilations
      self._compile_seconds_at_look += machine.compile_seconds - compile_seconds

  def restart(self) -> None:
    """What was before does not count."""
    self._since = time.monotonic()
    self._compilations = self._machine.compilations
    self._compile_seconds_at_look = self._machine.compile_seconds

  @property
  def seconds_per_round(self) -> float:
    """Of rounds in which nothing was compiled, where there were any."""
    seconds, rounds = self._steady if self._steady[1] else self._all
    return seconds / max(rounds, 1)

  @property
  def compile_seconds(self) -> float:
    """Seconds of compiling, of interrupted parts of the run too."""
    return self._earlier_compile_seconds + self._machine.compile_seconds

  def to_json(self) -> dict[str, Any]:
    """What `restore` needs."""
    return {'steady': self._steady, 'all': self._all, 'compile_seconds': self.compile_seconds}

  def restore(self, facts: dict[str, Any]) -> None:
    """Counts on from what `to_json` gave in an earlier program."""
    self._steady, self._all = list(facts['steady']), list(facts['all'])
    self._earlier_compile_seconds += facts['compile_seconds']
