"""Data sets, iterators and optionals as Python objects, while a graph is built.

An element is a flat list of tensors. `Indexed` is a data set whose elements can be had by
number: what a client holds, and all that is made of it by taking, skipping, mapping,
batching, shuffling, repeating and filtering. `Stream` is one whose elements follow each
other: AutoGraph's loops make those.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Element: TypeAlias = list[tf.Tensor]


class NotLowered(Exception):
  """A graph has something that cannot be lowered; the message says what."""


class Held:
  """A value of a graph that is held as a Python object."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Indexed(Held):
  """A data set by index.

  Attributes:
    count: int32 scalar, the number of elements.
    bound: the most elements there can be; None for a data set without an end.
    get: index -> element. Beyond the end it gives any element.
    get_many: indices [m] -> tensors [m, ...]; None where an element's shape varies.
    full: index -> whether the element has its largest shape; None where all have.
    again: the data set as a new iteration sees it, for one that is shuffled or drawn anew.
    is_counted: whether TensorFlow knows how many elements there are before it goes through them.
  """

  count: tf.Tensor
  bound: int | None
  get: Callable[[tf.Tensor], Element]
  get_many: Callable[[tf.Tensor], Element] | None
  full: Callable[[tf.Tensor], tf.Tensor] | None = None
  again: 'Callable[[], Indexed] | None' = None
  is_counted: bool = True

  def reindexed(
    self,
    index: Callable[[tf.Tensor], tf.Tensor],
    *,
    count: tf.Tensor,
    bound: int | None,
    again: 'Callable[[], Indexed] | None' = None,
  ) -> 'Indexed':
    """A data set of some of these elements: element i is that at index(i)."""
    get_many, full = self.get_many, self.full
    return Indexed(
      count=count,
      bound=bound,
      get=lambda i: self.get(index(i)),
      get_many=None if get_many is None else lambda i: get_many(index(i)),
      full=None if full is None else lambda i: full(index(i)),
      again=again,
      is_counted=self.is_counted,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Step:
  """A step of a stream: what each element goes through.

  Attributes:
    kind: `map`, `scan` or `take_while`.
    function: element -> element; (state, element) -> (state, element); element -> bool.
    start: the state of a scan before the first element.
  """

  kind: str
  function: Callable[..., Any]
  start: Sequence[tf.Tensor] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stream(Held):
  """A data set by index whose elements go through steps, one after the other."""

  source: Indexed
  steps: tuple[Step, ...]


class Iterator(Held):
  """An iterator; its position is part of the interpreter's state.

  Attributes:
    data: what it iterates over.
    pulls: inside how many loops it was asked for an element, each time since it was emptied.
  """

  def __init__(self) -> None:
    self.data: Indexed | None = None
    self.pulls: list[int] = []


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Optional(Held):
  """Perhaps an element.

  Attributes:
    has_value: whether there is one.
    value: the element; None where there cannot be one.
  """

  has_value: tf.Tensor
  value: Callable[[], Element] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Choice(Held):
  """What the branches of a condition leave in one result, for its gradient unlike each other.

  Attributes:
    which: what the condition is told which branch to take.
    index: int32, the number of the branch that is taken.
    optionals: each branch's own.
  """

  which: tf.Tensor
  index: tf.Tensor
  optionals: Sequence[Optional]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Variable(Held):
  """A resource variable; its value is part of the interpreter's state."""

  name: str
  dtype: tf.DType
  shape: tf.TensorShape


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seed(Held):
  """A generator of seeds for data sets; the seeds are made elsewhere."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Unmade(Held):
  """Numbers that cannot be made here, such as a layer's initial ones, which nothing may ever read.

  Attributes:
    reason: why; for what needs them.
  """

  reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PendingList(Held):
  """An empty tensor list whose most elements are not said: a loop that fills it tells."""

  node: Any
  element_shape: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ListFacts:
  """What is known of a tensor list; None for what is not.

  Attributes:
    element: what is the same in every element: ('constant', its value), ('tensor', one that no turn
      of the loops around changes) or ('sizes', those of a shape tensor that are known).
    length: how many elements it has.
    filled: how many elements of its room it has, if that varies: the number, and its size.
    room: how many it has room for, if a loop fills it.
    element_shape: the shape of each, where TensorFlow knew it when one was put in: XLA lets none
      differ.
  """

  element: tuple[str, Any] | None = None
  length: int | None = None
  filled: tuple[tf.Tensor, Any] | None = None
  room: int | None = None
  element_shape: tf.TensorShape | None = None

  def known(self) -> dict[str, Any]:
    """What is known, by name."""
    return {name: fact for name, fact in vars(self).items() if fact is not None}
