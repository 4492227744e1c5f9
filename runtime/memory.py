"""Memory of a round is kept for the next one, and shared; what is loaded is no garbage."""

import atexit
import contextlib
import ctypes
import functools
import gc
import mmap
import os
import pathlib
from typing import Any, ClassVar

import numpy as np

_ALIGNED = 64  # bytes: where TensorFlow and XLA want an array to begin
_SMALLEST_KEPT, _MOST_KEPT = 2**20, 3  # bytes of a room, and how many that nobody holds
_KEPT = 2**30  # Bytes: of one array, and at the end of the heap.
# malloc.h of the GNU C library
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep() -> bool:
  """Has the C library keep freed arrays of up to 1 GiB, and up to 1 GiB of free heap.

  By default it gives arrays above 32 MiB back to the kernel when they are freed, and every round
  then waits for the kernel to clear the same pages again. Threads have a few heaps: in one of all
  they wait for each other at every product, which takes room for its factors' parts. A thread's
  heap has 64 MiB; larger arrays of threads go back to the kernel all the same. What the user's
  environment says of malloc stands.

  Returns:
    Whether anything was changed: not where another C library is used.
  """
  tunables = os.environ.get('GLIBC_TUNABLES', '')
  if 'glibc.malloc' in tunables or any(n.startswith('MALLOC_') for n in os.environ):
    return False
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt is None:
    return False
  options = {_M_MMAP_THRESHOLD: _KEPT, _M_TRIM_THRESHOLD: _KEPT, _M_ARENA_MAX: _heaps()}
  return all([mallopt(option, value) for option, value in options.items()])


def available_bytes() -> int | None:
  """What programs can still take of this machine's memory; None where Linux does not say it."""
  try:
    lines = pathlib.Path('/proc/meminfo').read_text().splitlines()
  except OSError:
    return None
  found = [line.split()[1] for line in lines if line.startswith('MemAvailable:')]
  return 1024 * int(found[0]) if found else None


def check_room(flag: str, workers: int, each: int) -> None:
  """Refuses more worker processes than this machine's memory has room for.

  While they start, a machine without memory answers nobody.

  Args:
    flag: with its value, for the message.
    workers: how many are to be started.
    each: bytes that each takes at least.

  Raises:
    ValueError: they do not fit.
  """
  free = available_bytes()
  if free is not None and workers * each > free:
    raise ValueError(
      f'{flag}: each worker takes at least {each / 2**30:.2g} GB of memory, and this machine has '
      f'{free / 2**30:.3g} GB left; at most {free // each} fit.'
    )


def room(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """An array that is not filled yet, which a runtime on this memory takes without a copy.

  Large ones have the memory of earlier ones of like size which nobody holds any more: of what the
  kernel gives anew it clears every page first.
  """
  dtype = np.dtype(dtype)
  size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
  return np.asarray(_Room(max(size, 1)))[:size].view(dtype).reshape(shape)


class _Room:
  """Memory that is kept for another one when the last array in it has gone."""

  _free: ClassVar[list[mmap.mmap]] = []

  def __init__(self, size: int):
    step = 1 << max(size.bit_length() - 3, 12)
    size = -(-size // step) * step  # arrays of like size have the same
    self._memory = self._earlier(size) or _from_kernel(size)
    buffer = np.frombuffer(self._memory, np.uint8)
    self.__array_interface__ = {
      'version': 3, 'typestr': '|u1', 'shape': (size,), 'data': (buffer.ctypes.data, False),
    }  # fmt: skip

  def _earlier(self, size: int) -> mmap.mmap | None:
    for memory in list(self._free):
      if len(memory) == size:
        with contextlib.suppress(ValueError):  # another thread has taken it
          self._free.remove(memory)
          return memory
    return None

  def __del__(self):
    memory = getattr(self, '_memory', None)  # there may have been none
    if memory is not None and len(memory) >= _SMALLEST_KEPT:
      self._free.append(memory)
      del self._free[:-_MOST_KEPT]


def _from_kernel(size: int) -> mmap.mmap:
  try:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  except OSError as error:
    raise MemoryError(f'{size} bytes: {error.strerror}') from error


def is_room(array: np.ndarray) -> bool:
  """Whether an array is in a room, and TensorFlow can take it as it lies there.

  Others could be taken where they happen to be aligned, and their owner would not know.
  """
  owner: Any = array
  while isinstance(owner, np.ndarray):
    owner = owner.base
  is_aligned = array.flags.c_contiguous and array.ctypes.data % _ALIGNED == 0
  return isinstance(owner, _Room) and is_aligned


def pass_over_what_is_loaded() -> None:
  """Has Python's searches for garbage pass over all that there is now: modules, which stay.

  TensorFlow's and TFF's are half a million objects, a quarter of a second a search, and tracing one
  program makes as many new ones as start a search.
  """
  gc.freeze()
  _thaw_at_exit()


@functools.cache
def _thaw_at_exit() -> None:
  # What is frozen would be finalised after the modules that it needs.
  atexit.register(gc.unfreeze)


def _heaps() -> int:
  return 2 + 2 * len(os.sched_getaffinity(0))
