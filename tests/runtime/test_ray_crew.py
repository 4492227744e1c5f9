"""Members as Ray actors, with a Ray that does what a test says."""

import sys
import types

import pytest

from runtime import interface, memory
from runtime.hosts import cluster, ray_crew

GONE = (
  'RayActorError', 'WorkerCrashedError', 'NodeDiedError', 'OutOfMemoryError',
  'ActorUnschedulableError', 'ObjectLostError',
)  # fmt: skip
OTHERS = ('RayTaskError', 'GetTimeoutError', 'RuntimeEnvSetupError')


class RayError(Exception):
  def __init__(self, words='', cause=None):
    super().__init__(words)
    self.cause = cause


EXCEPTIONS = types.SimpleNamespace(
  RayError=RayError, **{name: type(name, (RayError,), {}) for name in (*GONE, *OTHERS)}
)


class Actor:
  """An actor, and what is called of it."""

  def __init__(self, error=None, *, starts=True):
    self.error, self.starts = error, starts
    self.ready = self.call = self

  def remote(self, *arguments):
    return self


class FakeRay:
  """A cluster; `then` are the actors that it starts, plain ones after those."""

  exceptions = EXCEPTIONS

  def __init__(self, *, cpus=2, free=(2,), then=()):
    self._cpus, self._free, self._then = cpus, list(free), list(then)
    self.killed = []

  def init(self, **options):
    pass

  def shutdown(self):
    pass

  def cluster_resources(self):
    return {'CPU': self._cpus}

  def available_resources(self):
    free = self._free.pop(0) if len(self._free) > 1 else self._free[0]
    return {'CPU': free} if free else {}  # as Ray has it

  def remote(self, *arguments, **options):
    """Both the decorator and the start of an actor."""
    if options:
      return lambda actor: self
    return self._then.pop(0) if self._then else Actor()

  def get(self, actor, timeout=None):
    if not actor.starts:
      assert timeout is not None, 'waits for ever'
      raise EXCEPTIONS.GetTimeoutError
    if actor.error is not None:
      raise actor.error
    return 1

  def wait(self, actors, *, num_returns, timeout):
    assert num_returns == len(actors)
    return [a for a in actors if a.starts], [a for a in actors if not a.starts]

  def kill(self, actor):
    self.killed.append(actor)


def crew_of(ray, size=2, said=None):
  return ray_crew.RayCrew(
    ray, size, device='cpu', clients_per_block=None, tell=(said if said is not None else []).append
  )


@pytest.mark.parametrize('is_argument', [False, True])
@pytest.mark.parametrize('name', GONE)
def test_an_actor_that_is_gone_is_replaced(name, is_argument):
  ray = FakeRay()
  crew = crew_of(ray)
  lost = crew._members[1]
  lost.error = getattr(EXCEPTIONS, name)('of two\nlines')
  if is_argument:
    lost.error = EXCEPTIONS.RayTaskError(cause=lost.error)
  with pytest.raises(interface.MemberLostError, match=r'worker 1 has ended \(of two lines\)'):
    crew.gather({i: crew.call(i, 'work') for i in range(2)})
  assert crew.replace_lost() == [1]
  assert ray.killed == [lost]
  assert crew.gather({i: crew.call(i, 'work') for i in range(2)}) == {0: 1, 1: 1}
  assert crew.replace_lost() == []


def test_what_ray_is_asked_for_is_there():
  exceptions = pytest.importorskip('ray', reason='needs the extra "cluster" (ray)').exceptions
  for name in GONE:
    assert issubclass(getattr(exceptions, name), exceptions.RayError)


def test_an_error_of_a_members_own_stays_what_it_is():
  crew = crew_of(FakeRay())
  crew._members[1].error = EXCEPTIONS.RayTaskError(cause=ValueError('no such file'))
  with pytest.raises(ValueError, match='no such file'):
    crew.gather({1: crew.call(1, 'load')})


def test_who_is_lost_while_he_starts_is_replaced_with_those_before():
  error = EXCEPTIONS.OutOfMemoryError('too much')
  crew = crew_of(FakeRay(then=[Actor(), Actor(), Actor(), Actor(), Actor(error)]), 3)
  for member in crew._members[:2]:
    member.error = EXCEPTIONS.RayActorError('gone')
  with pytest.raises(interface.MemberLostError, match='cohort worker 1 has ended'):
    crew.replace_lost()
  assert crew.replace_lost() == [0, 1]
  assert crew.replace_lost() == []


def test_a_member_that_is_at_work_for_long_is_not_lost():
  looks = 0

  class AtWork(FakeRay):
    def wait(self, actors, **options):
      nonlocal looks
      looks += len(actors) == 3 and not busy.starts
      busy.starts |= looks > 1000  # seconds
      return super().wait(actors, **options)

  said, ray, busy = [], AtWork(), Actor()
  crew = crew_of(ray, 3, said)
  crew._members[0], lost = busy, crew._members[2]
  busy.starts, lost.error = False, EXCEPTIONS.RayActorError('gone')
  assert crew.replace_lost() == [2]
  assert ray.killed == [lost] and crew._members[0] is busy and looks > 1000
  assert said == ['waiting for cohort worker 0 to end what it was at, to see who is lost']


@pytest.mark.parametrize('name', ['GetTimeoutError', 'RuntimeEnvSetupError'])
def test_only_a_member_that_is_gone_is_lost(name):
  ray = FakeRay()
  crew = crew_of(ray)
  crew._members[1].error = getattr(EXCEPTIONS, name)('of Ray')
  with pytest.raises(RayError, match='of Ray'):
    crew.replace_lost()
  assert not ray.killed


def test_members_without_room_are_not_waited_for_for_ever():
  said = []
  with pytest.raises(interface.DeviceError) as caught:
    crew_of(FakeRay(free=[0], then=[Actor(), Actor(starts=False)]), said=said)
  assert str(caught.value) == (
    '--cohort_workers=2: cohort worker 1 did not start within 600 s; '
    'each takes a CPU of the cluster: 0 of its 2 CPUs are free'
  )
  (words,) = said
  assert words.startswith('waiting for cohort worker 1 to start; each takes a CPU')
  # Nor is whoever is to replace another one; it is no loss to be made good again.
  crew = crew_of(FakeRay(then=[Actor(), Actor(), Actor(starts=False)]))
  crew._members[0].error = EXCEPTIONS.NodeDiedError('gone')
  with pytest.raises(interface.DeviceError, match='cohort worker 0 did not start') as caught:
    crew.replace_lost()
  assert not isinstance(caught.value, interface.MemberLostError)


def test_a_signal_while_members_start_is_what_its_handler_raises():
  """And soon: Ray looks at what a handler raised when its wait is over, and says SystemError."""

  class Signalled(FakeRay):
    def wait(self, actors, *, num_returns, timeout):
      assert timeout <= 1
      raise SystemError('returned a result with an exception set') from KeyboardInterrupt()

  with pytest.raises(KeyboardInterrupt):
    crew_of(Signalled())


def connect(monkeypatch, ray, workers):
  """What was said, and whether there was room."""
  monkeypatch.setitem(sys.modules, 'ray', ray)
  monkeypatch.setattr(cluster, '_SECONDS_FOR_ROOM', 0.05)
  monkeypatch.setattr(cluster, '_SECONDS_BETWEEN_LOOKS', 0.02)
  said = []
  with cluster.connected('local', workers=workers, flag='workers', tell=said.append) as found:
    assert found is ray
  return said


def test_cpus_that_others_have_are_waited_for_for_a_while(monkeypatch):
  assert connect(monkeypatch, FakeRay(cpus=4, free=[4]), 4) == []
  said = connect(monkeypatch, FakeRay(cpus=4, free=[1, 1, 4]), 3)
  assert said == ['--workers=3: waiting for so many CPUs of the cluster; 1 of its 4 CPUs are free']
  with pytest.raises(ValueError) as caught:
    connect(monkeypatch, FakeRay(cpus=4, free=[0]), 3)
  assert str(caught.value) == (
    '--workers=3: each takes a CPU of the cluster, and after 0 s only 0 of its 4 CPUs are free.'
  )


def test_more_workers_than_memory_has_room_for_are_refused_before_they_start(monkeypatch):
  monkeypatch.setattr(memory, 'available_bytes', lambda: 2**30)
  assert connect(monkeypatch, FakeRay(cpus=4, free=[4]), 2) == []
  with pytest.raises(ValueError, match=r'--workers=5: .*0.24 GB .*has 1 GB left; at most 4 fit'):
    connect(monkeypatch, FakeRay(cpus=8, free=[8]), 5)
  monkeypatch.setattr(memory, 'available_bytes', lambda: None)
  assert connect(monkeypatch, FakeRay(cpus=8, free=[8]), 8) == []


def test_a_cluster_that_is_too_small_is_not_waited_for(monkeypatch):
  monkeypatch.setattr(cluster.time, 'sleep', lambda seconds: pytest.fail('it waits'))
  with pytest.raises(ValueError, match='--workers=3: the cluster has 2 CPUs, and each'):
    connect(monkeypatch, FakeRay(cpus=2, free=[0]), 3)
