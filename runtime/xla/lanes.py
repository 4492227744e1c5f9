"""The lanes of a vectorised graph, and what it does for one after the other."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

MARK = 'run_lane_by_lane'  # In the name of such a function.


@dataclasses.dataclass(frozen=True)
class _Making:
  """A graph of many lanes that is being made.

  Attributes:
    number: how many lanes it has.
    known: which outputs of a function differ between lanes, where some inputs do.
  """

  number: int
  known: dict[tuple, list[bool]] = dataclasses.field(default_factory=dict)


# Every thread has its own.
_making: contextvars.ContextVar[_Making | None] = contextvars.ContextVar('lanes', default=None)


@contextlib.contextmanager
def of(number: int) -> Iterator[None]:
  """While this thread makes a graph of so many lanes."""
  before = _making.set(_Making(number))
  try:
    yield
  finally:
    _making.reset(before)


def are_made() -> bool:
  """Whether this thread is making a graph of many lanes."""
  return _making.get() is not None


def number() -> int:
  """How many lanes the graph that is being made has."""
  return _current().number


def known() -> dict[tuple, list[bool]]:
  """Which outputs of a function differ between lanes; kept while the graph is made."""
  return _current().known


def _current() -> _Making:
  making = _making.get()
  assert making is not None  # Conversions alone ask.
  return making


def lane_by_lane(fn: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a function which `vectorize.vectorized` runs for one lane after the other.

  Args:
    fn: takes tensors in nested structures, and returns such.
    *arguments: its arguments.
  """

  @functools.partial(tf.function, autograph=False)
  def run_lane_by_lane(*values):
    return fn(*values)

  return run_lane_by_lane(*arguments)
