"""Whose clients are whose, and how their rows are sent."""

import dataclasses
from typing import Any

import numpy as np

from runtime import trees


def bounds(count: int, size: int) -> np.ndarray:
  """[size + 1]: member m of `size` has the clients from the m-th to the (m + 1)-th of these."""
  return np.arange(size + 1) * count // size


def own(index: int, count: int, size: int) -> slice:
  """The rows that a member is given: its own, or where it has none some other's as a form."""
  first, last = (int(end) for end in bounds(count, size)[index : index + 2])
  first = min(first, count - 1)
  return slice(first, max(last, first + 1))


@dataclasses.dataclass(frozen=True)
class Repeated:
  """Rows that are all the same, as a leaf of what `Member.receive` takes.

  Attributes:
    row: [1, ...].
    count: how many they are.
  """

  row: np.ndarray
  count: int

  def rows(self) -> np.ndarray:
    """All of them [count, ...], a view."""
    return np.broadcast_to(self.row, (self.count, *self.row.shape[1:]))


def cut(tree: Any, rows: slice) -> Any:
  """Some rows of every leaf, as they are sent."""

  def of_leaf(leaf):
    part = leaf[rows]
    if is_repeated(part):
      return Repeated(np.ascontiguousarray(part[:1]), len(part))
    return np.ascontiguousarray(part)

  return trees.map_leaves(of_leaf, tree)


def taken(tree: Any, rows: np.ndarray) -> Any:
  """Some rows of every leaf, in their order."""
  return trees.map_leaves(lambda leaf: leaf[rows], tree)


def is_repeated(leaf: np.ndarray) -> bool:
  """Whether all rows are views of one, as of initial states."""
  return leaf.strides[0] == 0 and len(leaf) > 1
