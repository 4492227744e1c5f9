"""Members as Ray actors: processes of this machine, or of a cluster's machines."""

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

from runtime import interface
from runtime.hosts import cluster
from runtime.hosts.crew import Crew

_SECONDS_TO_START = 300.0


def connect(address: str, size: int, *, device: str, clients_per_block: int | None) -> 'RayCrew':
  """Starts members on a cluster, which is left, or ended if it is our own, with them.

  Args:
    address: see `cluster.connected`; '' for a cluster of this machine.
    size: how many members.
    device: see `RayCrew`.
    clients_per_block: see `RayCrew`.

  Raises:
    ValueError: there is no such cluster, or it is too small.
  """
  with contextlib.ExitStack() as stack:
    connection = cluster.connected(address or cluster.LOCAL, workers=size, flag='cohort_workers')
    ray = stack.enter_context(connection)
    crew = RayCrew(ray, size, device=device, clients_per_block=clients_per_block)
    crew.at_end = stack.pop_all()
  return crew


class RayCrew(Crew):
  """Members in processes of their own, each for as long as the run goes on.

  Attributes:
    at_end: what is to be closed after the members.
  """

  def __init__(self, ray: Any, size: int, *, device: str, clients_per_block: int | None):
    """Starts the members.

    Args:
      ray: the module, connected to a cluster; see `cluster.connected`.
      size: how many.
      device: of each: `cpu`, `gpu` (the one that Ray gives it, its own or shared with as few
        others as can be), or `auto`: a GPU if the cluster has any.
      clients_per_block: as for `runtime.create`.

    Raises:
      ValueError: a GPU is asked for, and the cluster has none.
    """
    self.size = size
    self.at_end = contextlib.ExitStack()
    self._ray = ray
    self._arguments = {'device': device, 'clients_per_block': clients_per_block}
    gpus = gpus_of_each(device, size, ray.cluster_resources().get('GPU', 0))
    self._actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Actor)
    self._members = [self._start() for _ in range(size)]
    self.gather({i: m.ready.remote() for i, m in enumerate(self._members)})

  def _start(self) -> Any:
    return self._actor.remote(os.getcwd(), self._arguments)

  def share(self, value: Any) -> Any:
    return self._ray.put(value)

  def call(self, index: int, method: str, *arguments: Any) -> Any:
    return self._members[index].call.remote(method, *arguments)

  def call_for_two(self, index: int, method: str, *arguments: Any) -> tuple[Any, Any]:
    return self._members[index].call.options(num_returns=2).remote(method, *arguments)

  def gather(self, calls: Mapping[int, Any]) -> dict[int, Any]:
    errors = self._ray.exceptions
    ended = (errors.RayActorError, errors.WorkerCrashedError, errors.ObjectLostError)
    found = {}
    for index, reference in calls.items():
      try:
        found[index] = self._ray.get(reference)
      except (errors.RayTaskError, *ended) as error:
        cause = error.cause if isinstance(error, errors.RayTaskError) else error
        if not isinstance(cause, ended):
          raise cause from None
        # Or whoever was to give it an argument.
        raise interface.MemberLostError(
          f'cohort worker {index} has ended ({" ".join(str(cause).split())[:200]})'
        ) from error
    return found

  def replace_lost(self) -> list[int]:
    lost = []
    for index, old in enumerate(self._members):
      try:
        self._ray.get(old.ready.remote(), timeout=_SECONDS_TO_START)
      except self._ray.exceptions.RayError:
        self._ray.kill(old)
        self._members[index] = self._start()
        lost.append(index)
    self.gather({i: self._members[i].ready.remote() for i in lost})
    return lost

  def close(self) -> None:
    for actor in self._members:
      self._ray.kill(actor)
    self._members = []
    self.at_end.close()


def gpus_of_each(device: str, size: int, total: float) -> float:
  """The part of a GPU that each member is given; so many fit on each.

  Raises:
    ValueError: a GPU is asked for, and there is none.
  """
  if device == 'cpu' or (device == 'auto' and not total):
    return 0.0
  if not total:
    raise ValueError(f'--device={device}: the cluster has no GPU.')
  return 1.0 / math.ceil(size / total)


class _Actor:
  """A member in its process."""

  def __init__(self, home: str, arguments: Mapping[str, Any]):
    os.chdir(home)  # paths of data are relative to it
    from runtime.hosts import member  # TensorFlow, from here on

    self._member = member.Member(**arguments)

  def ready(self) -> int:
    """The process, which is up."""
    return os.getpid()

  def call(self, method: str, *arguments: Any) -> Any:
    """Calls a method of the member."""
    return getattr(self._member, method)(*arguments)
