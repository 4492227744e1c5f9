"""A sweep's programs spread over workers, which may die.

The parent hands out one program at a time and is told how far it is. The programs of a
worker that died are handed out again; runs that are finished stay as they are. Workers
are processes of this machine, or of a Ray cluster (`cluster`).
"""

import abc
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
from collections.abc import Callable, Sequence
from typing import Any

from experiments.running import interruption, startup
from experiments.sweeps import record
from experiments.sweeps.progress import SweepProgress
from runtime.hosts import cluster

ATTEMPTS = 3
_SECONDS_TO_STOP = 120.0  # of a worker that is at nothing
# Of a `Process` with TensorFlow and the methods, before it has any data, what they share apart:
# 332 MB were measured, and 485 MB while it ran on the smallest data set.
LEAST_BYTES = 320 * 2**20


class Worker(abc.ABC):
  """A worker, seen by its parent.

  Attributes:
    index: which worker it is.
    names: the runs that it is at.
    is_up: whether it has started.
    has_begun: whether a round of what it is at has been reported.
  """

  def __init__(self, index: int, messages: 'Messages'):
    """Starts the worker.

    Args:
      index: which worker it is.
      messages: where what it tells goes: that it is `up`, its `state` (see `program.Report`), what
        it has to `warn` of, that its runs are `finished` or that they `failed` and why, both with
        those that were `refused` by themselves, or that it `died`.
    """
    self.index = index
    self.names: list[str] = []
    self.is_up = self.has_begun = False
    self._attempt = 0
    self._messages = messages

  @property
  def busy(self) -> bool:
    return bool(self.names)

  def take(self, names: list[str], attempt: int) -> None:
    """Hands a program to the worker."""
    self.names, self._attempt, self.has_begun = names, attempt, False
    self._hand_out(names)

  def release(self) -> tuple[list[str], int]:
    """What the worker was at, and the how-manieth attempt that was."""
    names, self.names = self.names, []
    return names, self._attempt

  def tell(self, message: dict[str, Any]) -> None:
    """Tells the parent something."""
    self._messages.put((self, message))

  @abc.abstractmethod
  def _hand_out(self, names: list[str]) -> None:
    """Lets the worker begin."""

  @abc.abstractmethod
  def ending(self) -> str:
    """How the worker died, in words."""

  @abc.abstractmethod
  def ask_to_stop(self) -> None:
    """Asks the worker to keep what it has done and to end."""

  @abc.abstractmethod
  def wait(self) -> None:
    """Waits for the end of a worker that is at nothing; ends it if that takes too long."""

  def kill(self) -> None:
    """Ends it at once, whatever it is at; by default as `wait` does."""
    self.wait()


Messages = queue.Queue[tuple[Worker, dict[str, Any]]]
# (index, where messages go)
MakeWorker = Callable[[int, Messages], Worker]


def run(
  groups: Sequence[list[str]],
  workers: int,
  make_worker: MakeWorker,
  caught: interruption.Interruption,
  progress: SweepProgress,
) -> dict[str, str]:
  """Runs the programs of a sweep on workers.

  Args:
    groups: names of runs, one list for each program.
    workers: how many workers.
    make_worker: starts one.
    caught: to stop early.
    progress: told what happens.

  Returns:
    The failed runs with the reason.

  Raises:
    Interrupted: a signal came; the workers have kept what was done.
  """
  caught.defer()
  crew = _Crew(groups, workers, make_worker, progress)
  try:
    while crew.hand_out():
      if caught.signal_number is not None:
        raise interruption.Interrupted(caught.signal_number)
      crew.hear()
  finally:
    crew.stop()
  return crew.failures


class _Crew:
  """The workers of a sweep, and what is still to be done; see `run`.

  Who dies before a first round may have a program to blame for it, or itself. A worker that does so
  `ATTEMPTS` times in a row, at programs at which no other one died, is given up, and they are none
  the worse for it; the last worker only if it did not even start.
  """

  def __init__(
    self, groups: Sequence[list[str]], size: int, make_worker: MakeWorker, progress: SweepProgress
  ):
    self.failures: dict[str, str] = {}
    self._make_worker, self._progress = make_worker, progress
    self._messages: Messages = queue.Queue()
    self._waiting = collections.deque(groups)
    self._usable = list(range(min(size, len(groups))))  # not given up
    self._living: dict[int, Worker] = {}
    self._is_stopping = False
    # A program is known by the first of its runs. Those that died at it, and of each worker what it
    # died at in a row before a first round: '' is its own start.
    self._died_at: dict[str, list[int]] = collections.defaultdict(list)
    self._in_a_row: dict[int, list[str]] = collections.defaultdict(list)

  def hand_out(self) -> bool:
    """Gives what waits to whoever is at nothing, or is new; whether anything is left to do."""
    for index in sorted(self._usable, key=lambda index: index not in self._living):
      if self._waiting and index not in self._living:
        self._living[index] = self._make_worker(index, self._messages)
      if self._waiting and not self._living[index].busy:
        names = self._waiting.popleft()
        self._living[index].take(names, len(self._died_at[names[0]]) + 1)
        self._progress.begins(index, names)
    return any(worker.busy for worker in self._living.values())

  def hear(self) -> None:
    """Waits a moment for what a worker has to tell."""
    try:
      worker, message = self._messages.get(timeout=0.5)
    except queue.Empty:
      return
    if worker is not self._living.get(worker.index):
      return
    if 'up' in message:
      worker.is_up = True
    elif 'state' in message:
      self._progress.reports(worker.index, *message['state'])
      worker.has_begun |= message['state'][1] > 0
    elif 'warn' in message:
      self._progress.warn(message['warn'])
    elif 'finished' in message or 'failed' in message:
      names, _ = worker.release()
      worker.has_begun = True
      self._progress.ends(worker.index, names)
      if 'failed' in message:
        self.failures.update(dict.fromkeys(names, str(message['failed'])))
      self.failures.update(message['refused'])
    else:
      self._take_back(worker)
    if worker.has_begun:
      self._in_a_row[worker.index].clear()

  def _take_back(self, worker: Worker) -> None:
    """Takes back what a dead worker was at."""
    del self._living[worker.index]
    names, attempt = worker.release()
    self._progress.loses(worker.index)
    worker.wait()
    if not names or self._is_stopping:
      return
    if worker.is_up:
      self._died_at[names[0]].append(worker.index)
    if not worker.has_begun:
      self._in_a_row[worker.index].append(names[0] if worker.is_up else '')
    died, how = f'worker {worker.index} died', worker.ending()
    if self._is_bad(worker.index):
      died = f'{died} {ATTEMPTS} times before its first round ({how})'
      self._usable.remove(worker.index)
      for who in self._died_at.values():
        who[:] = [other for other in who if other != worker.index]
      self._progress.say(f'{died} and is given up')
    elif worker.is_up and attempt >= ATTEMPTS:
      reason = f'its worker died {ATTEMPTS} times, at last worker {worker.index} ({how}).'
      self.failures.update(dict.fromkeys(names, reason))
      return
    else:
      self._progress.say(f'{died} ({how}); its runs are tried again')
    self._waiting.append(names)
    if not self._usable:
      reason = f'{died}, and no worker is left.'
      self.failures.update((name, reason) for names in self._waiting for name in names)
      self._waiting.clear()

  def _is_bad(self, index: int) -> bool:
    """Whether a worker rather than its programs is to blame for its deaths."""
    deaths = self._in_a_row[index]
    if len(self._usable) > 1:
      own = [name for name in deaths if {index}.issuperset(self._died_at[name])]
    else:
      own = [name for name in deaths[-ATTEMPTS:] if not name]
    return len(own) >= ATTEMPTS

  def stop(self) -> None:
    """Has every worker keep its state, however long that takes; a second signal ends them."""
    self._is_stopping = True
    workers = list(self._living.values())
    try:
      for worker in workers:
        worker.ask_to_stop()
      while busy := [worker.index for worker in workers if worker.busy]:
        self._progress.waits_for(busy)
        self.hear()
      for worker in workers:
        worker.wait()
    except BaseException:
      for worker in workers:
        worker.kill()
      self._progress.say('the workers were ended at once; what was kept last is there')
      raise


class Process(Worker):
  """A worker process of this machine.

  It is told what to run over its standard input, and tells how far it is as JSON lines
  on its standard output. The end of its input is the end of its work.
  """

  def __init__(self, folder: pathlib.Path, workers: int, index: int, messages: Messages):
    """Starts the process for the sweep in `folder`, one of so many workers."""
    super().__init__(index, messages)
    # Workers share the cores.
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    self._log = folder / 'logs' / f'worker_{index}.log'
    self._log.parent.mkdir(exist_ok=True)
    with open(self._log, 'ab') as log:
      self._process = subprocess.Popen(
        [sys.executable, '-m', 'experiments.sweeps.workers', str(folder.resolve()), str(workers)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        # Paths of a configuration are relative to the parent's folder, which is theirs too.
        env={'TF_NUM_INTRAOP_THREADS': str(threads), **os.environ,
             'PYTHONPATH': cluster.python_path()},
        # A Ctrl-C on the terminal reaches the parent, which ends its workers in order.
        start_new_session=True,
      )  # fmt: skip
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      with contextlib.suppress(ValueError):
        self.tell(json.loads(line))
    self.tell({'died': True})

  def _hand_out(self, names: list[str]) -> None:
    assert self._process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died: `_read` says so
      self._process.stdin.write(json.dumps(names) + '\n')
      self._process.stdin.flush()

  def ending(self) -> str:
    code = self._process.wait()
    how = signal.Signals(-code).name if code < 0 else f'exit code {code}'
    return f'{how}, see {self._log}'

  def ask_to_stop(self) -> None:
    assert self._process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.close()

  def wait(self) -> None:
    try:
      self._process.wait(timeout=_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
      self.kill()

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()


class Programs:
  """The programs of a sweep's folder, where they are run."""

  def __init__(self, folder: pathlib.Path, workers: int = 1):
    """Reads the sweep in `folder`, whose programs so many processes of this machine share."""
    self._folder, self._workers = folder, workers
    self._grid = record.read_grid(folder)
    self._configs = record.configs(self._grid, folder)
    with startup.loading():
      from experiments.sweeps import program as sweep_program  # TensorFlow, from here on
    self._program = sweep_program

  def run(
    self,
    names: Sequence[str],
    report: Callable[[int, int, int, int], None],
    warn: Callable[[str], None],
  ) -> dict[str, Any]:
    """Runs what is left of one program.

    Returns:
      The message to the parent.

    Raises:
      Interrupted: a signal came; what was done is kept.
    """
    refused: dict[str, str] = {}
    try:
      with interruption.Interruption() as caught:
        self._program.run_all(
          {name: self._configs[name] for name in names}, caught=caught, report=report, warn=warn,
          num_settings=record.num_settings(self._grid), num_runs=len(self._grid.runs()),
          checkpoint_folder=self._folder / 'checkpoints',
          refuse=lambda name, error: refused.update({name: str(error)}), workers=self._workers,
        )  # fmt: skip
    except (ValueError, OSError, MemoryError) as error:
      return {'failed': str(error), 'refused': refused}
    return {'finished': True, 'refused': refused}


def work(folder: pathlib.Path, workers: int) -> int:
  """A worker process's life, one of so many: runs what it is told until its standard input ends.

  Returns:
    The exit code.
  """
  # What libraries print must not get between the messages.
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)

  def tell(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is no more: `read` says so
      out.write(json.dumps(message) + '\n')
      out.flush()

  tasks: queue.Queue[list[str] | None] = queue.Queue()
  working, stopping = threading.Event(), threading.Event()

  def read() -> None:
    for line in sys.stdin:
      tasks.put(json.loads(line))
    stopping.set()
    tasks.put(None)
    if working.is_set():  # the parent wants an end, or is no more
      os.kill(os.getpid(), signal.SIGTERM)

  programs = Programs(folder, workers)
  tell({'up': True})
  threading.Thread(target=read, daemon=True).start()
  while (names := tasks.get()) is not None:
    working.set()
    if stopping.is_set():  # while it started; `read` may have looked at `working` before
      break
    try:
      tell(programs.run(names, lambda *state: tell({'state': state}), lambda w: tell({'warn': w})))
    except interruption.Interrupted as interrupted:
      return interrupted.exit_code
    working.clear()
  return 0


if __name__ == '__main__':
  sys.exit(work(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
