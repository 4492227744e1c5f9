"""The members of a run, seen by its driver."""

import abc
import warnings
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[str], None]


def warn(words: str) -> None:
  """Tells whoever runs a program what he should know of the members."""
  warnings.warn(words, RuntimeWarning, stacklevel=2)


class Crew(abc.ABC):
  """The members, wherever they are.

  Attributes:
    size: how many they are.
  """

  size: int

  @abc.abstractmethod
  def share(self, value: Any) -> Any:
    """What stands for a value that several members are to get as an argument."""

  @abc.abstractmethod
  def call(self, index: int, method: str, *arguments: Any) -> Any:
    """Calls a method of a member, which goes on beside others; returns what `gather` takes."""

  @abc.abstractmethod
  def call_for_two(self, index: int, method: str, *arguments: Any) -> tuple[Any, Any]:
    """The same of a method that gives a pair; returns what stands for each of the two.

    Either may be an argument of another call as well as taken by `gather`, so that what is large
    goes from member to member.
    """

  @abc.abstractmethod
  def gather(self, calls: Mapping[int, Any]) -> dict[int, Any]:
    """What the calls give, by member.

    Raises:
      MemberLostError: a member has ended.
    """

  @abc.abstractmethod
  def replace_lost(self) -> list[int]:
    """Starts a fresh member in the place of each that has ended; returns which.

    Raises:
      MemberLostError: one ended meanwhile; the next call returns those of this one, too.
      DeviceError: there is no room for it.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Ends all members. It may be called twice."""
