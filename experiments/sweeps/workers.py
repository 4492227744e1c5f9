"""A sweep's programs spread over workers, which may die.

The parent hands out one program at a time and is told how far it is. The programs of a
worker that died are handed out again; runs that are finished stay as they are. Workers
are processes of this machine, or of a Ray cluster (`sweep_cluster`).
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
SECONDS_TO_STOP = 120.0
# Of a `Process` with TensorFlow and the methods, before it has any data, what they share apart:
# 332 MB were measured, and 485 MB while it ran on the smallest data set.
LEAST_BYTES = 320 * 2**20


class Worker(abc.ABC):
  """A worker, seen by its parent.

  Attributes:
    index: which worker it is.
    names: the runs that it is at.
  """

  def __init__(self, index: int, messages: 'Messages'):
    """Starts the worker.

    Args:
      index: which worker it is.
      messages: where what it tells goes: its `state` (see `program.Report`), what it has to `warn`
        of, that its runs are `finished` or that they `failed` and why, both with those that were
        `refused` by themselves, or that it `died`.
    """
    self.index = index
    self.names: list[str] = []
    self._attempt = 0
    self._messages = messages

  @property
  def busy(self) -> bool:
    return bool(self.names)

  def take(self, names: list[str], attempt: int) -> None:
    """Hands a program to the worker."""
    self.names, self._attempt = names, attempt
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
    """Waits for its end, and ends it if that takes too long."""


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
  waiting = collections.deque((names, 1) for names in groups)
  failures: dict[str, str] = {}
  messages: Messages = queue.Queue()
  crew: dict[int, Worker] = {}
  try:
    for index in range(min(workers, len(groups))):
      crew[index] = make_worker(index, messages)
    while waiting or any(worker.busy for worker in crew.values()):
      for worker in crew.values():
        if waiting and not worker.busy:
          worker.take(*waiting.popleft())
          progress.begins(worker.index, worker.names)
      if caught.signal_number is not None:
        raise interruption.Interrupted(caught.signal_number)
      try:
        worker, message = messages.get(timeout=0.5)
      except queue.Empty:
        continue
      if 'state' in message:
        progress.reports(worker.index, *message['state'])
      elif 'warn' in message:
        progress.warn(message['warn'])
      elif 'finished' in message or 'failed' in message:
        names, _ = worker.release()
        progress.ends(worker.index, names)
        if 'failed' in message:
          failures.update(dict.fromkeys(names, str(message['failed'])))
        failures.update(message['refused'])
      elif worker is crew.get(worker.index):  # it died
        names, attempt = worker.release()
        if names and attempt < ATTEMPTS:
          progress.say(f'worker {worker.index} died ({worker.ending()}); its runs are tried again')
          waiting.append((names, attempt + 1))
        elif names:
          reason = f'worker {worker.index} died {ATTEMPTS} times ({worker.ending()}).'
          failures.update(dict.fromkeys(names, reason))
        crew[worker.index] = make_worker(worker.index, messages)
  finally:
    for worker in crew.values():
      worker.ask_to_stop()
    for worker in crew.values():
      worker.wait()
  return failures


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
    logs = folder / 'logs'
    logs.mkdir(exist_ok=True)
    self._log = logs / f'worker_{index}.log'
    with open(self._log, 'ab') as log:
      self._process = subprocess.Popen(
        [sys.executable, '-m', 'experiments.sweeps.workers', str(folder.resolve()), str(workers)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        # Paths of a configuration are relative to the parent's folder, which is theirs too.
        env={
          'TF_NUM_INTRAOP_THREADS': str(threads), **os.environ,
          'PYTHONPATH': cluster.python_path(),
        },
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
      self._process.wait(timeout=SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
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

  programs = Programs(folder, workers)
  threading.Thread(target=read, daemon=True).start()
  while (names := tasks.get()) is not None:
    working.set()
    try:
      tell(programs.run(names, lambda *state: tell({'state': state}), lambda w: tell({'warn': w})))
    except interruption.Interrupted as interrupted:
      return interrupted.exit_code
    working.clear()
  return 0


if __name__ == '__main__':
  sys.exit(work(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
