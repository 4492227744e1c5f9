"""A sweep's programs spread over a Ray cluster: the extra `cluster`.

Each worker is a Ray actor which runs programs as a worker process does. The machines of
the cluster see the sweep's folder, the data and this code at the same paths as the one
that gives the command. A cluster of one's own ('local') listens on the loopback device
only, and ends with us.
"""

import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.running import interruption, progress
from experiments.sweeps import workers as sweep_workers
from runtime.hosts import cluster, ray_crew

_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_TO_SAY_SO = 60.0  # that a worker has not started yet


@contextlib.contextmanager
def connected(address: str, workers: int, folder: pathlib.Path) -> Iterator['Cluster']:
  """Connects to a cluster, or starts one, for as long as it is entered.

  Args:
    address: see `runtime.hosts.cluster.connected`.
    workers: how many workers it has to have room for.
    folder: the sweep's folder.

  Raises:
    ValueError: the extra is not installed, there is no cluster at the address, or it is too
      small or others have its CPUs.
  """
  with cluster.connected(address, workers=workers, flag='workers', tell=progress.say) as ray:
    gpus = ray_crew.gpus_of_each('auto', workers, ray.cluster_resources().get('GPU', 0))
    yield Cluster(ray, folder, workers=workers, gpus=gpus)


class Cluster:
  """Makes workers on a cluster; from `connected`."""

  def __init__(self, ray, folder: pathlib.Path, *, workers: int, gpus: float):
    self._ray = ray
    # Ray puts it on any machine: with that one's loss all workers would end, and never begin again
    self._board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Board).remote()
    options = dict(num_cpus=1, num_gpus=gpus, max_restarts=0)
    self._runner = ray.remote(**options)(_Runner)
    self._gpus = gpus
    # Each takes a CPU: no machine has more workers than that, which share its memory.
    cpus = max(int(node['Resources'].get('CPU', 0)) for node in ray.nodes() if node['Alive'])
    self._arguments = (str(folder.resolve()), os.getcwd(), self._board, min(workers, cpus))

  def make_worker(self, index: int, messages: sweep_workers.Messages) -> sweep_workers.Worker:
    """Starts a worker; see `sweep_workers.MakeWorker`."""
    runner = self._runner.remote(*self._arguments, index)
    return _Actor(self._ray, self._board, runner, self._gpus, index, messages)


class _Board:
  """What parent and workers tell each other while the workers are at work. A Ray actor."""

  def __init__(self):
    self._states: dict[int, tuple[int, ...]] = {}
    self._warnings: dict[int, list[str]] = {}
    self._stopping = False

  def write(self, index: int, state: tuple[int, ...]) -> None:
    """A worker says how far it is."""
    self._states[index] = state

  def warn(self, index: int, message: str) -> None:
    """A worker warns of something."""
    self._warnings.setdefault(index, []).append(message)

  def take(self, index: int) -> list[dict[str, Any]]:
    """What a worker has warned of, and how far it is, if that is new."""
    news: list[dict[str, Any]] = [{'warn': w} for w in self._warnings.pop(index, [])]
    state = self._states.pop(index, None)
    return news if state is None else [*news, {'state': state}]

  def stop(self) -> None:
    """Asks all workers to stop."""
    self._stopping = True

  def is_stopping(self) -> bool:
    """Whether the workers are to stop."""
    return self._stopping


class _Runner:
  """Runs programs on a machine of the cluster. A Ray actor, called in its main thread."""

  def __init__(self, folder: str, home: str, board, workers: int, index: int):
    os.chdir(home)  # paths of a configuration are relative to it
    self._programs = sweep_workers.Programs(pathlib.Path(folder), workers)
    self._board = board
    self._index = index

  def ready(self) -> bool:
    """That it has started."""
    return True

  def run(self, names: Sequence[str]) -> dict[str, Any]:
    """Runs a program; see `sweep_workers.Programs.run`."""
    done = threading.Event()
    watch = threading.Thread(target=self._watch, args=(done,), daemon=True)
    watch.start()
    try:
      return self._programs.run(names, self._report, self._warn)
    except interruption.Interrupted:
      return {'died': True}
    finally:
      done.set()
      watch.join()

  def _report(self, *state: int) -> None:
    self._board.write.remote(self._index, state)

  def _warn(self, message: str) -> None:
    self._board.warn.remote(self._index, message)

  def _watch(self, done: threading.Event) -> None:
    """Stops the run as a signal would, when the parent wants that or is no more."""
    import ray

    while not done.wait(_SECONDS_BETWEEN_LOOKS):
      try:
        stopping = ray.get(self._board.is_stopping.remote())
      except ray.exceptions.RayError:
        stopping = True
      if stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        # On a cluster of our own all threads are deaf to it (see `runtime.hosts.cluster`): it waits
        # until one hears it, together with a scheduler's to all processes.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return


class _Actor(sweep_workers.Worker):
  """A Ray actor, seen by the parent of all."""

  def __init__(self, ray, board, runner, gpus: float, index: int, messages: sweep_workers.Messages):
    super().__init__(index, messages)
    self._ray = ray
    self._board = board
    self._runner = runner
    self._gpus = gpus
    self._ready = runner.ready.remote()
    self._ending = 'it was stopped'
    self._is_stopping = False

  def _hand_out(self, names: list[str]) -> None:
    task = self._runner.run.remote(names)
    threading.Thread(target=self._watch, args=(task,), daemon=True).start()

  def _watch(self, task) -> None:
    try:
      if not self._ray.wait([self._ready], timeout=_SECONDS_TO_SAY_SO)[0]:
        # Others may have the GPUs, for which Ray waits without a word.
        room = ray_crew.room(self._ray, self._gpus)
        self.tell({'warn': f'waiting for worker {self.index} to start; {room}'})
      self._ray.get(self._ready)
      self.tell({'up': True})
      while not self._ray.wait([task], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
        if self._is_stopping:  # said again: a board that was lost with its machine begins anew
          self._board.stop.remote()
        for news in self._ray.get(self._board.take.remote(self.index)):
          self.tell(news)
      self.tell(self._ray.get(task))
    except Exception as error:  # Ray's own, or whatever a lost connection brings
      self._ending = ' '.join(str(error).split())
      self.tell({'died': True})

  def ending(self) -> str:
    return self._ending

  def ask_to_stop(self) -> None:
    self._is_stopping = True
    with contextlib.suppress(Exception):  # the connection may be lost
      self._board.stop.remote()
      if not self._ray.wait([self._ready], timeout=0)[0]:
        self.kill()  # it has nothing to keep, and may never start

  def wait(self) -> None:
    self.kill()

  def kill(self) -> None:
    with contextlib.suppress(Exception):
      self._ray.kill(self._runner)
