"""SIGINT and SIGTERM: finish the round, keep what was done, and go."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

_SAYS_AFTER = 2.0  # seconds
NOTHING_KEPT = 'stopped before the first round; nothing was kept'


_ends_process = False


@contextlib.contextmanager
def command() -> Iterator[None]:
  """While a command has the process to itself, and not a notebook or a program of the user's."""
  global _ends_process
  _ends_process = True
  try:
    yield
  finally:
    _ends_process = False


class Interrupted(BaseException):
  """The process was asked to end. `exit_code` is 128 + the signal's number."""

  def __init__(self, signal_number: int, message: str = 'stopped'):
    super().__init__(message)
    self.exit_code = 128 + signal_number


class Interruption:
  """Catches SIGINT and SIGTERM while it is entered.

  Until `defer` is called a signal raises `Interrupted` at once: there is nothing to
  keep. After it, the first signal is only noted in `signal_number`, for the round loop
  to see between two rounds; a second one raises.

  Python's handlers wait while the main thread is inside of a program, however long its round
  takes. So another thread looks on, which says that a signal has come, and in a command ends the
  process at the next one, as a kill would.
  """

  def __init__(self):
    self.signal_number: int | None = None
    self._deferring = False
    self._previous = {}
    self._handled = 0  # signals that the main thread has heard
    self._is_over = threading.Event()
    self._pipe: tuple[int, int] | None = None
    self._previous_pipe = -1

  def defer(self) -> None:
    """From now on the first signal is noted, not raised."""
    self._deferring = True

  def _handle(self, number, frame):
    del frame
    self._handled += 1
    first = self.signal_number is None
    self.signal_number = number
    if not (first and self._deferring):
      raise Interrupted(number)

  def __enter__(self) -> 'Interruption':
    # Python allows handlers in the main thread only; elsewhere (a notebook's helper
    # thread, say) signals keep their meaning.
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT, signal.SIGTERM):
        self._previous[number] = signal.signal(number, self._handle)
      self._pipe = os.pipe()
      os.set_blocking(self._pipe[1], False)
      self._previous_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
      threading.Thread(target=self._look_on, args=self._pipe[:1], daemon=True).start()
    return self

  def __exit__(self, *exception) -> None:
    self._is_over.set()
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    if self._pipe is not None:
      signal.set_wakeup_fd(self._previous_pipe)
      os.close(self._pipe[1])  # which ends the thread

  def _look_on(self, pipe: int) -> None:
    """Reads the numbers of the signals that come, until the pipe's other end is closed."""
    said, came = False, 0
    while number := os.read(pipe, 1):
      if number[0] not in (signal.SIGINT, signal.SIGTERM):
        continue
      came, heard = came + 1, self._handled
      is_over = self._is_over.wait(_SAYS_AFTER)
      # Signals that come while the main thread is busy may be one to it.
      is_stuck = self._handled == heard < came
      if is_over or (said and not is_stuck):
        continue
      if said and _ends_process:
        print('stopped at once; what was kept last is there', file=sys.stderr, flush=True)
        os._exit(128 + number[0])
      said = True
      when = 'after this round' if self._deferring else 'as soon as what is begun is done'
      more = '; a second signal stops at once' if _ends_process else ''
      print(f'stopping {when}{more}', file=sys.stderr, flush=True)
    os.close(pipe)
