"""Examples of clients on disk: the rows of each together in a file, read by cohort."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from datasets import federated
from runtime import memory


class RowFile:
  """Rows of one shape and type in a file, read without mapping it into memory."""

  def __init__(self, path: pathlib.Path, shape: tuple[int, ...], dtype: Any):
    """Opens a file of rows [shape] of a type, one after the other."""
    self.shape, self.dtype = shape, np.dtype(dtype)
    self._path = path
    self._row_bytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
    self._file = os.open(path, os.O_RDONLY)

  def __reduce__(self) -> tuple[Any, ...]:
    return RowFile, (self._path, self.shape, self.dtype)  # a copy opens the file for itself

  def __del__(self):
    if hasattr(self, '_file'):
      os.close(self._file)

  def read(self, first: int, target: np.ndarray) -> None:
    """Fills contiguous `target` [n, ...] with the rows from `first` on."""
    content, where = target.data.cast('B'), first * self._row_bytes
    while len(content):
      found = os.preadv(self._file, [content], where)
      if not found:
        raise OSError(f'{self._path} has been cut short: row {first} or one after it is missing.')
      content, where = content[found:], where + found


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StoredClients(federated.ClientSource):
  """Clients whose examples are in files: block k of each file is client k's.

  A client's examples are some neighbouring rows of its block, whose end is followed by its
  beginning: so one block can be split into training and test rows, in different ways.

  Attributes:
    x: the features.
    y: the labels.
    blocks: int64 [K], each block's first row.
    sizes: int64 [K], its rows.
    starts: int64 [K], where in its block a client's examples begin.
  """

  read: Any = None
  x: RowFile
  y: RowFile
  blocks: np.ndarray
  sizes: np.ndarray
  starts: np.ndarray

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, 'read', self._read)

  def load(self, rows: np.ndarray) -> federated.ClientExamples:
    """The examples of some clients, [len(rows), max_examples, ...]."""
    rows = np.asarray(rows, np.int64)
    x, y = (
      memory.room((len(rows), self.max_examples, *file.shape), file.dtype)
      for file in (self.x, self.y)
    )
    for place in np.argsort(self.blocks[rows]).tolist():  # as they lie on the disk
      client = int(rows[place])
      self._fill(client, x[place], y[place])
      x[place, self.num_examples[client] :] = 0
      y[place, self.num_examples[client] :] = 0
    return federated.ClientExamples(x=x, y=y, num_examples=self.num_examples[rows])

  def select(self, rows: np.ndarray) -> 'StoredClients':
    """A population of some of the clients only."""
    names = ('num_examples', 'blocks', 'sizes', 'starts')
    return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})

  def _read(self, client: int) -> tuple[np.ndarray, np.ndarray]:
    count = int(self.num_examples[client])
    x = np.empty([count, *self.x.shape], self.x.dtype)
    y = np.empty([count, *self.y.shape], self.y.dtype)
    self._fill(client, x, y)
    return x, y

  def _fill(self, client: int, x: np.ndarray, y: np.ndarray) -> None:
    for first, place, count in self._pieces(client):
      self.x.read(first, x[place : place + count])
      self.y.read(first, y[place : place + count])

  def _pieces(self, client: int) -> Iterator[tuple[int, int, int]]:
    """(row of the files, place among the client's examples, how many)."""
    block, size = int(self.blocks[client]), int(self.sizes[client])
    count, start = int(self.num_examples[client]), int(self.starts[client]) % size
    until_end = min(count, size - start)
    yield block + start, 0, until_end
    if count > until_end:
      yield block, until_end, count - until_end
