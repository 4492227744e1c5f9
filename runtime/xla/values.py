"""Client values as stacked tensors which behave as lists of per-client structures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from runtime import trees


class StackedClients(Sequence):
  """A value at CLIENTS: leaves [P, ...], of which the first rows are the clients'.

  It is a sequence of per-client structures, as TFF's own runtime returns, but
  passing it back to a computation moves no data.
  """

  def __init__(self, type_: Any, leaves: Sequence[tf.Tensor], count: int):
    """Wraps stacked leaves.

    Args:
      type_: the type of one client's value.
      leaves: tensors [P, ...] with P >= count.
      count: the number of clients.
    """
    self.type = type_
    self.leaves = list(leaves)
    self._count = count

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(self._count))]
    if not -self._count <= index < self._count:
      raise IndexError(f'client {index} of {self._count}')
    return trees.container(self.type, iter([leaf[index % self._count] for leaf in self.leaves]))

  def __repr__(self) -> str:
    return f'<{self._count} clients of type {self.type}>'

  def stacked(self) -> Any:
    """All clients' values in one structure of NumPy leaves [K, ...]."""
    return trees.container(
      self.type, iter([np.asarray(leaf)[: self._count] for leaf in self.leaves])
    )
