"""The lanes of a vectorised graph, and what it does for one after the other."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

MARK = 'run_lane_by_lane'  # In the name of such a function.
_numbers: list[int] = []


@contextlib.contextmanager
def of(number: int) -> Iterator[None]:
  """While a graph of so many lanes is made."""
  _numbers.append(number)
  try:
    yield
  finally:
    _numbers.pop()


def number() -> int:
  """How many lanes the graph that is being made has."""
  return _numbers[-1]


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
