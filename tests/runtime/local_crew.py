"""Members of a run in the test's own process."""

import functools

from runtime import interface
from runtime.hosts import crew, member


class Given:
  """What a call gives, once it is asked for, to other calls too."""

  def __init__(self, function, arguments):
    self._call, self._arguments = function, arguments

  @functools.cached_property
  def value(self):
    return self._call([a.value if isinstance(a, Given) else a for a in self._arguments])


class LocalCrew(crew.Crew):
  """Members in this process; what they are sent and give is recorded."""

  def __init__(self, size, block=None):
    self.size = size
    self.members = [member.Member(device='cpu', clients_per_block=block) for _ in range(size)]
    self.lost: set[int] = set()
    self.calls = []

  def share(self, value):
    return value

  def call(self, index, method, *arguments):
    self.calls.append((index, method, arguments))
    return Given(lambda own: getattr(self.members[index], method)(*own), arguments)

  def call_for_two(self, index, method, *arguments):
    pair = self.call(index, method, *arguments)
    return tuple(Given(lambda own, i=i: own[0][i], [pair]) for i in range(2))

  def gather(self, calls):
    if self.lost & set(calls):
      raise interface.MemberLostError('gone')
    return {index: call.value for index, call in calls.items()}

  def replace_lost(self):
    lost, self.lost = sorted(self.lost), set()
    for index in lost:
      self.members[index] = member.Member(device='cpu', clients_per_block=None)
    return lost

  def close(self):
    self.members = []
