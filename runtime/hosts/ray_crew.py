"""Members as Ray actors: processes of this machine, or of a cluster's machines."""

import contextlib
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from runtime import interface
from runtime.hosts import cluster
from runtime.hosts.crew import Crew, Tell, warn

_SECONDS_TO_START = 600.0  # with TensorFlow, many of them on a few cores
_SECONDS_TO_SAY_SO = 30.0  # that members have not started yet, or are at work
_SECONDS_AT_ONCE = 1.0  # of waiting: Ray ends a wait before it lets a signal end anything


def connect(
  address: str, size: int, *, device: str, clients_per_block: int | None, tell: Tell = warn
) -> 'RayCrew':
  """Starts members on a cluster, which is left, or ended if it is our own, with them.

  Args:
    address: see `cluster.connected`; '' for a cluster of this machine.
    size: how many members.
    device: see `RayCrew`.
    clients_per_block: see `RayCrew`.
    tell: is told what is waited for.

  Raises:
    ValueError: there is no such cluster, it is too small or others have its CPUs.
    DeviceError: a member does not start.
  """
  cluster.import_ray(address, size)
  with contextlib.ExitStack() as stack:
    connection = cluster.connected(
      address or cluster.LOCAL, workers=size, flag='cohort_workers', tell=tell
    )
    ray = stack.enter_context(connection)
    crew = RayCrew(ray, size, device=device, clients_per_block=clients_per_block, tell=tell)
    crew.at_end = stack.pop_all()
  return crew


class RayCrew(Crew):
  """Members in processes of their own, each for as long as the run goes on.

  Attributes:
    at_end: what is to be closed after the members.
  """

  def __init__(
    self,
    ray: Any,
    size: int,
    *,
    device: str,
    clients_per_block: int | None,
    tell: Tell = warn,
  ):
    """Starts the members.

    Args:
      ray: the module, connected to a cluster; see `cluster.connected`.
      size: how many.
      device: of each: `cpu`, `gpu` (the one that Ray gives it, its own or shared with as few
        others as can be), or `auto`: a GPU if the cluster has any.
      clients_per_block: as for `runtime.create`.
      tell: is told what is waited for.

    Raises:
      ValueError: a GPU is asked for, and the cluster has none.
      DeviceError: a member does not start.
    """
    self.size = size
    self.at_end = contextlib.ExitStack()
    self._ray = ray
    self._tell = tell
    errors = ray.exceptions
    self._gone = (
      errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError,
      errors.OutOfMemoryError,  # ended by Ray, before the system would have
      errors.ActorUnschedulableError, errors.ObjectLostError,
    )  # fmt: skip
    self._arguments = {'device': device, 'clients_per_block': clients_per_block}
    self._gpus = gpus_of_each(device, size, ray.cluster_resources().get('GPU', 0))
    self._actor = ray.remote(num_cpus=1, num_gpus=self._gpus, max_restarts=0)(_Actor)
    self._members = [self._start() for _ in range(size)]
    self._fresh: set[int] = set()  # started in the place of others, and not yet returned
    self._await(range(size))

  def _start(self) -> Any:
    return self._actor.remote(os.getcwd(), self._arguments)

  def _await(self, members: Iterable[int]) -> None:
    """Waits until members have started; without room on the cluster Ray would wait for ever."""
    calls = {i: self._members[i].ready.remote() for i in members}
    late = self._late(calls, _SECONDS_TO_SAY_SO)
    if late:
      self._tell(f'waiting for {late} to start; {room(self._ray, self._gpus)}')
      late = self._late(calls, _SECONDS_TO_START - _SECONDS_TO_SAY_SO)
    if late:
      raise interface.DeviceError(
        f'--cohort_workers={self.size}: {late} did not start within {_SECONDS_TO_START:.0f} s; '
        f'{room(self._ray, self._gpus)}'
      )
    self.gather(calls)

  def _late(self, calls: Mapping[int, Any], seconds: float) -> str:
    """Who has not answered in so long; '' for nobody."""
    references = list(calls.values())
    if not references:
      return ''
    late = references
    for _ in range(math.ceil(seconds / _SECONDS_AT_ONCE)):
      try:
        _, late = self._ray.wait(references, num_returns=len(references), timeout=_SECONDS_AT_ONCE)
      except SystemError as error:  # its cause is what a signal's handler raised inside of Ray
        raise (error.__cause__ or error) from None
      if not late:
        break
    names = ', '.join(str(index) for index, call in calls.items() if call in late)
    return f'cohort worker {names}' if late else ''

  def share(self, value: Any) -> Any:
    return self._ray.put(value)

  def call(self, index: int, method: str, *arguments: Any) -> Any:
    return self._members[index].call.remote(method, *arguments)

  def call_for_two(self, index: int, method: str, *arguments: Any) -> tuple[Any, Any]:
    return self._members[index].call.options(num_returns=2).remote(method, *arguments)

  def gather(self, calls: Mapping[int, Any]) -> dict[int, Any]:
    task_error, found = self._ray.exceptions.RayTaskError, {}
    for index, reference in calls.items():
      try:
        found[index] = self._ray.get(reference)
      except (task_error, *self._gone) as error:
        cause = error.cause if isinstance(error, task_error) else error
        if not isinstance(cause, self._gone):
          raise cause from None
        # Or whoever was to give it an argument.
        raise interface.MemberLostError(
          f'cohort worker {index} has ended ({" ".join(str(cause).split())[:200]})'
        ) from error
    return found

  def replace_lost(self) -> list[int]:
    # A member that lives answers when it has done what was asked of it before, however long that
    # takes: of one that has ended Ray says so.
    calls = {index: member.ready.remote() for index, member in enumerate(self._members)}
    if late := self._late(calls, _SECONDS_TO_SAY_SO):
      self._tell(f'waiting for {late} to end what it was at, to see who is lost')
      while self._late(calls, _SECONDS_TO_SAY_SO):
        pass
    for index, call in calls.items():
      try:
        self.gather({index: call})
      except interface.MemberLostError:
        self._ray.kill(self._members[index])
        self._members[index] = self._start()
        self._fresh.add(index)
    self._await(sorted(self._fresh))
    lost, self._fresh = sorted(self._fresh), set()
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


def room(ray: Any, gpus: float) -> str:
  """What a member takes of the cluster, and what is free."""
  takes, free = 'a CPU', cluster.free_of(ray, 'CPU')
  if gpus:
    takes += f' and {gpus:.3g} GPU'
    free += f' and {cluster.free_of(ray, "GPU")}'
  return f'each takes {takes} of the cluster: {free}'


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
