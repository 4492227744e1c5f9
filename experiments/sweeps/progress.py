"""What a user sees of a sweep: how many runs are done, and how far each program is."""

import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence

from experiments.config.experiment import ExperimentConfig
from experiments.running.progress import say, show_seconds

_LOG_SECONDS = 10.0  # between log lines, where there is no terminal
_SECONDS_TO_SAY_SO = 10.0  # which workers are waited for


class SweepProgress:
  """One live line on a terminal, plain log lines otherwise.

  The bar counts the rounds of all runs; the words beside it say which program each
  worker is at.
  """

  def __init__(
    self, left: Mapping[str, ExperimentConfig], *, total: int, groups: int, shown: bool = True
  ):
    """Starts the display.

    Args:
      left: the runs that are to be done.
      total: runs of the whole sweep.
      groups: programs that are to be run.
      shown: whether anything is displayed.
    """
    self._rounds = {name: config.rounds for name, config in left.items()}
    self._all_rounds = sum(self._rounds.values())
    self._total = total
    self._runs_done = total - len(left)
    self._groups = groups
    self._groups_done = 0
    self._rounds_done = 0  # of ended programs
    # worker -> runs of its program that have ended, rounds done, of, runs at once
    self._now: dict[int, tuple[int, int, int, int]] = {}
    self._last = time.monotonic()
    self._first: tuple[float, int] | None = None  # when the first rounds were done, how many
    self._shown = shown
    self._warnings: set[str] = set()
    self._say_who_at = 0.0  # is waited for; 0 while nobody is asked to stop
    self._bar = None
    if shown and sys.stderr.isatty():
      import tqdm

      self._bar = tqdm.tqdm(
        total=self._all_rounds, file=sys.stderr, leave=True, nrows=24,
        # Some terminals say that they have no columns, and tqdm then shows nothing.
        ncols=shutil.get_terminal_size((100, 24)).columns,
        bar_format='{percentage:3.0f}% |{bar:12}| {desc}',
      )  # fmt: skip

  def begins(self, worker: int, names: Sequence[str]) -> None:
    """A worker takes up a program."""
    self._now[worker] = (0, 0, self._rounds[names[0]], len(names))
    self._show(always=True)

  def reports(self, worker: int, ended: int, rounds_done: int, rounds: int, runs: int) -> None:
    """A worker's program has come so far with so many runs at once, after those that ended."""
    self._now[worker] = (ended, rounds_done, rounds, runs)
    self._show(always=False)

  def loses(self, worker: int) -> None:
    """A worker has died; what it was at is still to be done."""
    self._now.pop(worker, None)
    self._show(always=True)

  def waits_for(self, workers: Sequence[int]) -> None:
    """Workers that are asked to stop still end their round: says which, once, after a while."""
    self._say_who_at = self._say_who_at or time.monotonic() + _SECONDS_TO_SAY_SO
    if time.monotonic() > self._say_who_at:
      self._say_who_at = math.inf
      names = ', '.join(map(str, workers))
      self.say(
        f'waiting for worker {names} to end the round and to keep its state; '
        'a second signal ends them at once'
      )

  def ends(self, worker: int, names: Sequence[str]) -> None:
    """A worker's program has ended."""
    self._now.pop(worker, None)
    self._groups_done += 1
    self._runs_done += len(names)
    self._rounds_done += sum(self._rounds[name] for name in names)
    self._show(always=True)

  def say(self, message: str) -> None:
    """Shows a message of its own."""
    if self._bar is not None:
      self._bar.write(message, file=sys.stderr)
    elif self._shown:
      say(message)

  def warn(self, message: str) -> None:
    """Shows a warning, once, however many runs it is about."""
    if message not in self._warnings:
      self._warnings.add(message)
      self.say(message)

  def close(self) -> None:
    """Ends the display."""
    if self._bar is not None:
      self._bar.close()

  def line(self) -> str:
    """The state in words."""
    ended = sum(ended for ended, *_ in self._now.values())
    parts = [f'runs {self._runs_done + ended}/{self._total}']
    parts.append(f'programs {self._groups_done}/{self._groups}')
    for _, done, rounds, runs in self._now.values():
      which = f'{runs} {"run" if runs == 1 else "runs at once"}'
      parts.append(f'round {done}/{rounds} of {which}' if done else f'loading, compiling {which}')
    done, now = self._done(), time.monotonic()
    if done and self._first is None:  # compiling is over: it does not foretell the rest
      self._first = (now, done)
    if self._first and self._first[1] < done < self._all_rounds:
      since, before = self._first
      seconds = (now - since) * (self._all_rounds - done) / (done - before)
      parts.append(f'{show_seconds(seconds)} left')
    return ', '.join(parts)

  def _done(self) -> int:
    of_programs = (done * runs + rounds * ended for ended, done, rounds, runs in self._now.values())
    return self._rounds_done + sum(of_programs)

  def _show(self, *, always: bool) -> None:
    if self._bar is not None:
      self._bar.set_description_str(self.line(), refresh=False)
      self._bar.n = min(self._done(), self._all_rounds)
      self._bar.refresh()
    elif self._shown and (always or time.monotonic() - self._last > _LOG_SECONDS):
      self._last = time.monotonic()
      say(f'{time.strftime("%H:%M:%S")}  {self.line()}')
