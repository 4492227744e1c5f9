"""What a user sees while a run goes on: one live line, or plain log lines."""

import math
import os
import shutil
import sys
import threading
import time
from typing import Protocol

from privacy.rounding import rounded_up

_LOG_SECONDS = 10.0  # between log lines, where there is no terminal


class Progress(Protocol):
  """Is told how far a run is."""

  def update(self, rounds_done: int, values: dict[str, float], seconds_per_round: float) -> None:
    """Shows the state after `rounds_done` rounds; `values` by name, in order."""
    ...

  def say(self, message: str) -> None:
    """Shows a message of its own."""
    ...

  def close(self) -> None:
    """Ends the display."""
    ...


def say(message: str) -> None:
  """Shows a line on standard error."""
  print(message, file=sys.stderr, flush=True)


class Doing:
  """Says what is going on while nothing else can be seen: `with Doing('Loading exam'): ...`.

  On a terminal a line with the seconds so far, also while standard error is turned away
  (`startup.quiet`); elsewhere one line at the beginning.
  """

  def __init__(self, what: str, *, shown: bool = True):
    self._what = what
    self._shown = shown
    self._ended = threading.Event()
    self._thread: threading.Thread | None = None

  def __enter__(self) -> 'Doing':
    if self._shown and sys.stderr.isatty():
      self._since = time.monotonic()
      self._terminal = os.dup(sys.stderr.fileno())
      self._thread = threading.Thread(target=self._tick, daemon=True)
      self._thread.start()
    elif self._shown:
      say(f'{self._what} ...')
    return self

  def __exit__(self, *exception) -> None:
    self.end()

  def end(self) -> None:
    """Ends the line. May be called again."""
    self._ended.set()
    if self._thread is not None:
      self._thread.join()
      self._thread = None
      self._draw('\n')
      os.close(self._terminal)

  def _tick(self) -> None:
    self._draw()
    while not self._ended.wait(1.0):
      self._draw()

  def _draw(self, end: str = '') -> None:
    seconds = time.monotonic() - self._since
    line = f'\r{self._what} ... {show_seconds(seconds) if seconds >= 1 else ""}{end}'
    os.write(self._terminal, line.encode())


def create(rounds: int, start: int, stream=None) -> Progress:
  """A live line if `stream` (standard error) is a terminal, log lines otherwise."""
  stream = stream or sys.stderr
  return LiveLine(rounds, start, stream) if stream.isatty() else LogLines(rounds, start)


class _TimeLeft:
  """How long the rounds that are left take, evaluations and checkpoints included."""

  def __init__(self, rounds: int):
    self._rounds = rounds
    self._first: tuple[float, int] | None = None

  def words(self, rounds_done: int, seconds_per_round: float) -> list[str]:
    now = time.monotonic()
    self._first = self._first or (now, rounds_done)
    since, before = self._first
    if rounds_done > before:
      seconds_per_round = max(seconds_per_round, (now - since) / (rounds_done - before))
    left = self._rounds - rounds_done
    if not left or seconds_per_round <= 0:
      return []
    return [f'{left} left in {show_seconds(left * seconds_per_round)}']


class LiveLine:
  """One line that is drawn over again: done, left, metrics, speed, time left."""

  def __init__(self, rounds: int, start: int, stream):
    import tqdm

    # Some terminals say that they have no rows and columns, and tqdm then shows nothing.
    columns = shutil.get_terminal_size((100, 24)).columns
    # What a narrow terminal cuts off is at the end; the bar says least.
    bar = ' |{bar:12}|' if columns >= 110 else ''
    self._stream = stream
    self._left = _TimeLeft(rounds)
    self._bar = tqdm.tqdm(
      total=rounds,
      initial=start,
      file=stream,
      ncols=columns,
      nrows=24,
      bar_format='round {n_fmt}/{total_fmt}' + bar + '  {desc}',
    )

  def update(self, rounds_done: int, values: dict[str, float], seconds_per_round: float) -> None:
    left = self._left.words(rounds_done, seconds_per_round)
    words = '  '.join([*_words(values, seconds_per_round), *left][::-1])
    self._bar.set_description_str(words, refresh=False)
    self._bar.n = rounds_done
    self._bar.refresh()

  def say(self, message: str) -> None:
    self._bar.write(message, file=self._stream)

  def close(self) -> None:
    self._bar.close()


class LogLines:
  """A log line now and then, and after the last round."""

  def __init__(self, rounds: int, start: int):
    del start
    self._rounds = rounds
    self._left = _TimeLeft(rounds)
    self._next = 0.0

  def update(self, rounds_done: int, values: dict[str, float], seconds_per_round: float) -> None:
    now = time.monotonic()
    left = self._left.words(rounds_done, seconds_per_round)
    if now < self._next and rounds_done < self._rounds:
      return
    self._next = now + _LOG_SECONDS
    words = ', '.join([*_words(values, seconds_per_round), *left])
    say(f'{time.strftime("%H:%M:%S")}  round {rounds_done} of {self._rounds}: {words}')

  def say(self, message: str) -> None:
    say(message)

  def close(self) -> None:
    pass


def _words(values: dict[str, float], seconds_per_round: float) -> list[str]:
  words = [
    f'{name.replace("_", " ")} {(rounded_up if name.endswith("epsilon") else show)(value)}'
    for name, value in values.items()
  ]
  if seconds_per_round > 0:
    words.append(f'{show_seconds(seconds_per_round)}/round')
  return words


def show(value: float) -> str:
  """A number to read: 0.02431, 88.75, inf."""
  if math.isinf(value):
    return 'inf' if value > 0 else '-inf'
  return f'{value:.4g}'


def show_mean(mean: float, deviation: float, seeds: int) -> str:
  """A mean over seeds to read, with its deviation where there are several: 0.02431 ± 0.0002."""
  return f'{show(mean)} ± {deviation:.2g}' if seeds > 1 else show(mean)


def show_seconds(seconds: float) -> str:
  """A duration to read: 12 ms, 3.4 s, 5 min 20 s, 2 h 5 min, 3 h."""
  if seconds < 1:
    return f'{1000 * seconds:.3g} ms'
  if seconds < 60:
    return f'{seconds:.2g} s' if seconds < 10 else f'{seconds:.0f} s'
  minutes, rest = divmod(round(seconds), 60)
  if minutes < 60:
    return f'{minutes} min' + f' {rest} s' * bool(rest)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h' + f' {minutes} min' * bool(minutes)
