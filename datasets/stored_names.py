"""Names of more clients than one wants to list: in a file, read when they are asked for."""

import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

_NAMES_AT_ONCE = 1 << 16


class StoredNames(Sequence[str]):
  """Distinct names in a file, one after the other, with their ends in another.

  Equal are those of the same file; `tuple(names)` lists them.
  """

  def __init__(self, path: str | os.PathLike):
    """Opens what `write` has written.

    Raises:
      FileNotFoundError: there is no such file.
    """
    self._path = pathlib.Path(path).resolve()
    self._ends = np.load(_ends_of(self._path), mmap_mode='r')
    self._text = np.memmap(self._path, np.uint8, mode='r')

  @classmethod
  def write(cls, path: pathlib.Path, names: Sequence[str]) -> None:
    """Writes names.

    Raises:
      ValueError: some are the same.
    """
    if len(set(names)) < len(names):
      raise ValueError('client_ids are not unique.')
    ends = np.zeros(len(names), np.int64)
    with open(path, 'wb') as file:
      for index, name in enumerate(names):
        file.write(name.encode())
        ends[index] = file.tell()
    np.save(_ends_of(path), ends)

  def __len__(self) -> int:
    return len(self._ends)

  @overload
  def __getitem__(self, index: int) -> str: ...

  @overload
  def __getitem__(self, index: slice) -> tuple[str, ...]: ...

  def __getitem__(self, index: Any) -> Any:
    if isinstance(index, slice):
      chosen = range(len(self))[index]
      if chosen.step == 1:
        return self._part(chosen.start, chosen.stop)
      return tuple(self[k] for k in chosen)
    k = range(len(self))[index]
    return self._part(k, k + 1)[0]

  def _part(self, first: int, stop: int) -> tuple[str, ...]:
    if first >= stop:
      return ()
    ends = [int(self._ends[first - 1]) if first else 0, *self._ends[first:stop].tolist()]
    text = self._text[ends[0] : ends[-1]].tobytes()
    return tuple(text[a - ends[0] : b - ends[0]].decode() for a, b in itertools.pairwise(ends))

  def __iter__(self) -> Iterator[str]:
    for first in range(0, len(self), _NAMES_AT_ONCE):
      yield from self._part(first, min(first + _NAMES_AT_ONCE, len(self)))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, StoredNames) and self._path == other._path

  def __hash__(self) -> int:
    return hash(self._path)

  def __reduce__(self) -> tuple[Any, ...]:
    return StoredNames, (self._path,)

  def __repr__(self) -> str:
    return f'<{len(self):,} names in {self._path}>'


def _ends_of(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'{path.name}_ends.npy')
