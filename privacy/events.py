"""What epsilon is about: neighbouring relations, and events that dp-accounting has not."""

import enum

import attr
import dp_accounting


class Adjacency(enum.Enum):
  """When two data sets are neighbours; epsilon means nothing without it.

  ZERO_OUT: they differ in one unit, which in one of them contributes nothing. The number of units
    is public, so that rates, divisors and noise may be computed from it.
  ADD_REMOVE_ONE: one of them has one unit more. The number of units is protected, too: nothing
    may be computed from it.
  REPLACE_ONE: they differ in all data of one unit. The number of units is public. A sum moves
    twice as far as by zero-out.
  """

  ZERO_OUT = 'zero-out'
  ADD_REMOVE_ONE = 'add/remove-one'
  REPLACE_ONE = 'replace-one'

  @property
  def sensitivity(self) -> float:
    """How far a sum of records moves, in clips."""
    return 2.0 if self is Adjacency.REPLACE_ONE else 1.0

  def words(self, data: str, unit: str, public: str) -> str:
    """The relation in words.

    Args:
      data: what is compared, such as 'federations'.
      unit: 'client' or 'example'.
      public: what is not protected, such as 'number of clients'.
    """
    if self is Adjacency.ADD_REMOVE_ONE:
      return f'{self.value}: two {data} of which one has one more {unit}'
    if self is Adjacency.REPLACE_ONE:
      return f'{self.value}, {public} public: two {data} that differ in all data of one {unit}'
    return (
      f'{self.value}, {public} public: two {data} that differ in one {unit}, which in one of them '
      'contributes nothing'
    )


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ExponentialMechanismDpEvent(dp_accounting.DpEvent):
  """One private selection by the exponential mechanism (report-noisy-min with Gumbel noise).

  Attributes:
    epsilon: of the selection: P(i) is proportional to exp(-epsilon score_i / (2 sensitivity)).
    monotonic: whether a unit that is zeroed moves all scores in the same direction.
  """

  epsilon: float
  monotonic: bool

  def range(self, adjacency: Adjacency) -> float:
    """Width of the interval in which the losses lie (Dong, Durfee and Rogers 2020).

    Scores that move by at most the sensitivity move apart by at most twice that, and by once
    that where all move in the same direction.
    """
    same_direction = self.monotonic and adjacency is Adjacency.ZERO_OUT
    return self.epsilon / 2 if same_direction else self.epsilon


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DisjointDpEvent(dp_accounting.DpEvent):
  """Mechanisms on disjoint parts of the data: a unit is in one of them, and pays for that one.

  Attributes:
    events: what happens to each part.
  """

  events: list[dp_accounting.DpEvent]


@attr.s(frozen=True, slots=True, auto_attribs=True)
class BallsInBinsDpEvent(dp_accounting.DpEvent):
  """One epoch in which each unit falls into one of several noised sums by itself, all alike.

  Attributes:
    bins: number of sums, T.
    event: the Gaussian mechanism of one sum, on all units.
  """

  bins: int
  event: dp_accounting.DpEvent


@attr.s(frozen=True, slots=True, auto_attribs=True)
class KnownParticipationDpEvent(dp_accounting.DpEvent):
  """A mechanism that a unit takes part in with some probability, and all are told whether it does.

  Attributes:
    probability: of taking part.
    event: the mechanism, for a unit that does.
  """

  probability: float
  event: dp_accounting.DpEvent


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ReplacedDpEvent(dp_accounting.DpEvent):
  """A mechanism for a unit whose record is replaced there, whatever relation the others are under.

  An example that is zeroed replaces its client's update by another one.

  Attributes:
    event: the mechanism; its noise multipliers are relative to the sensitivity under replace-one.
  """

  event: dp_accounting.DpEvent


@attr.s(frozen=True, slots=True, auto_attribs=True)
class FailingDpEvent(dp_accounting.DpEvent):
  """A mechanism that may fail, with the same probability for both neighbours, and then tell all.

  Attributes:
    probability: of failing.
    event: what it is otherwise.
  """

  probability: float
  event: dp_accounting.DpEvent
