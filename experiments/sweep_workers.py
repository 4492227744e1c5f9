"""A sweep's programs spread over processes, which may die.

The parent hands out one program at a time, over the worker's standard input, and reads
how far it is, as JSON lines, from its standard output. The programs of a worker that
died are handed out again; runs that are finished stay as they are.
"""

import collections
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from experiments import interruption
from experiments.sweep_progress import SweepProgress

ATTEMPTS = 3
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SECONDS_TO_STOP = 120.0


def run(
  folder: pathlib.Path,
  groups: Sequence[list[str]],
  workers: int,
  caught: interruption.Interruption,
  progress: SweepProgress,
) -> dict[str, str]:
  """Runs the programs of a sweep in worker processes.

  Args:
    folder: the sweep's folder.
    groups: names of runs, one list for each program.
    workers: how many processes.
    caught: to stop early.
    progress: told what happens.

  Returns:
    The failed runs with the reason.

  Raises:
    Interrupted: a signal came; the workers have kept what was done.
  """
  caught.defer()
  waiting = collections.deque((names, 1) for names in groups)
  failures: dict[str, str] = {}
  messages: queue.Queue[tuple[_Worker, dict[str, Any]]] = queue.Queue()
  crew: dict[int, _Worker] = {}
  try:
    for index in range(min(workers, len(groups))):
      crew[index] = _Worker(index, folder, messages)
    while waiting or any(worker.busy for worker in crew.values()):
      for worker in crew.values():
        if waiting and not worker.busy:
          worker.take(*waiting.popleft())
          progress.begins(worker.index, worker.names)
      if caught.signal_number is not None:
        raise interruption.Interrupted(
          caught.signal_number, f'stopped; continue with --resume --output_dir={folder}'
        )
      try:
        worker, message = messages.get(timeout=0.5)
      except queue.Empty:
        continue
      if 'state' in message:
        progress.reports(worker.index, *message['state'])
      elif 'finished' in message:
        progress.ends(worker.index, worker.release()[0])
      elif 'failed' in message:
        failures.update(dict.fromkeys(worker.release()[0], message['failed']))
      elif worker is crew.get(worker.index):  # it died
        names, attempt = worker.release()
        if names and attempt < ATTEMPTS:
          progress.say(f'worker {worker.index} died ({worker.ending()}); its runs are tried again')
          waiting.append((names, attempt + 1))
        elif names:
          reason = f'worker {worker.index} died {ATTEMPTS} times ({worker.ending()}).'
          failures.update(dict.fromkeys(names, reason))
        crew[worker.index] = _Worker(worker.index, folder, messages)
  finally:
    for worker in crew.values():
      worker.stop()
  return failures


class _Worker:
  """A worker process, seen by its parent."""

  def __init__(self, index: int, folder: pathlib.Path, messages: queue.Queue):
    self.index = index
    self.names: list[str] = []
    self._attempt = 0
    logs = folder / 'logs'
    logs.mkdir(exist_ok=True)
    self._log = logs / f'worker_{index}.log'
    with open(self._log, 'ab') as log:
      self._process = subprocess.Popen(
        [sys.executable, '-m', 'experiments.sweep_workers', str(folder.resolve())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        # Paths of a configuration are relative to the parent's folder, which is theirs too.
        env={**os.environ, 'PYTHONPATH': _python_path()},
        # A Ctrl-C on the terminal reaches the parent, which ends its workers in order.
        start_new_session=True,
      )  # fmt: skip
    threading.Thread(target=self._read, args=(messages,), daemon=True).start()

  def _read(self, messages: queue.Queue) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      with contextlib.suppress(ValueError):
        messages.put((self, json.loads(line)))
    messages.put((self, {'died': True}))

  @property
  def busy(self) -> bool:
    return bool(self.names)

  def take(self, names: list[str], attempt: int) -> None:
    """Hands a program to the worker."""
    self.names, self._attempt = names, attempt
    assert self._process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died: `_read` says so
      self._process.stdin.write(json.dumps(names) + '\n')
      self._process.stdin.flush()

  def release(self) -> tuple[list[str], int]:
    """What the worker was at, and the how-manieth attempt that was."""
    names, self.names = self.names, []
    return names, self._attempt

  def ending(self) -> str:
    """How the process ended, in words."""
    code = self._process.wait()
    how = signal.Signals(-code).name if code < 0 else f'exit code {code}'
    return f'{how}, see {self._log}'

  def stop(self) -> None:
    """Lets the worker keep what it has done, and waits for its end."""
    with contextlib.suppress(BrokenPipeError):
      assert self._process.stdin is not None
      self._process.stdin.close()
    try:
      self._process.wait(timeout=_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


def _python_path() -> str:
  return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])


def work(folder: pathlib.Path) -> int:
  """A worker's life: runs what it is told to until its standard input ends.

  Returns:
    The exit code.
  """
  # What libraries print must not get between the messages.
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)

  def tell(**message: Any) -> None:
    out.write(json.dumps(message) + '\n')
    out.flush()

  tasks: queue.Queue[list[str] | None] = queue.Queue()
  working = threading.Event()

  def read() -> None:
    for line in sys.stdin:
      tasks.put(json.loads(line))
    tasks.put(None)
    if working.is_set():  # the parent wants an end, or is no more
      os.kill(os.getpid(), signal.SIGTERM)

  from experiments import startup, sweep

  grid = sweep.read_grid(folder)
  with startup.quiet():
    from experiments import sweep_program  # TensorFlow, from here on
  runs = sweep.configs(grid, folder)
  threading.Thread(target=read, daemon=True).start()
  while (names := tasks.get()) is not None:
    working.set()
    try:
      with interruption.Interruption() as caught:
        sweep_program.run_all(
          {name: runs[name] for name in names}, num_settings=sweep.num_settings(grid),
          checkpoint_folder=folder / 'checkpoints', caught=caught,
          report=lambda *state: tell(state=state),
        )  # fmt: skip
    except interruption.Interrupted as interrupted:
      return interrupted.exit_code
    except (ValueError, OSError, MemoryError) as error:
      tell(failed=str(error))
    else:
      tell(finished=True)
    working.clear()
  return 0


if __name__ == '__main__':
  sys.exit(work(pathlib.Path(sys.argv[1])))
