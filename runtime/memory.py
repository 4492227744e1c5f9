"""Memory of a round is kept for the next one; what is loaded is not searched for garbage."""

import atexit
import ctypes
import functools
import gc
import os

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
