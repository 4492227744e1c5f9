"""What a round frees stays with the process, and arrays are shared with the device."""

import os
import subprocess
import sys

import numpy as np
import pytest

import runtime
from runtime import memory
from runtime.xla import devices

_FAULTS = """
import concurrent.futures
import resource

import runtime

def faults():
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def faults_of_some(run, size):
  def write():
    b'x' * size  # freed at once

  run(write)
  before = faults()
  for _ in range(TOTAL // size):
    run(write)
  return faults() - before

threads = concurrent.futures.ThreadPoolExecutor(1)  # as those in which TensorFlow runs
print(
  runtime.memory.keep(),
  faults_of_some(lambda write: write(), 2**26),
  # A thread's heap has 64 MiB at most.
  faults_of_some(lambda write: threads.submit(write).result(), 2**25),
)
"""
_TOTAL = 10 * 2**26
_PAGES = _TOTAL // os.sysconf('SC_PAGE_SIZE')


def _run(**environment):
  clean = {n: v for n, v in os.environ.items() if not n.startswith(('MALLOC_', 'GLIBC_'))}
  done = subprocess.run(
    [sys.executable, '-c', _FAULTS.replace('TOTAL', str(_TOTAL))],
    env={**clean, **environment}, capture_output=True, text=True, check=True,
  )  # fmt: skip
  changed, *faults = done.stdout.split()
  return changed == 'True', [int(number) for number in faults]


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='mallopt is of the GNU C library')
def test_freed_arrays_are_used_again_and_the_users_own_settings_stand():
  changed, faults = _run()
  assert changed
  assert max(faults) < 0.05 * _PAGES
  for own in ({'MALLOC_TOP_PAD_': '131072'}, {'GLIBC_TUNABLES': 'glibc.malloc.top_pad=131072'}):
    changed, faults = _run(**own)
    assert not changed
    assert min(faults) > 0.5 * _PAGES


def _address(array):
  return array.ctypes.data


def _seen(tensor):
  """A tensor's own memory: `numpy()` would copy it."""
  return np.asarray(memoryview(tensor))


def test_a_room_is_used_again_once_nobody_holds_an_array_in_it():
  first = memory.room((3, 2**18), np.float32)
  assert first.shape == (3, 2**18) and first.dtype == np.float32 and memory.is_room(first)
  first[:] = 7
  held, address = first[1:, ::2], _address(first)
  del first
  other = memory.room((3, 2**18), np.float32)
  assert _address(other) != address  # a view of it lives on
  other[:] = 8
  assert (held == 7).all()
  del held
  assert _address(memory.room((3 * 2**18 - 5,), np.int32)) == address


def test_few_rooms_are_kept_and_no_small_ones():
  rooms = [memory.room((2**20 + 2**18 * i,), np.uint8) for i in range(8)]
  rooms += [memory.room((10,), np.uint8) for _ in range(8)]
  del rooms
  assert len(memory._Room._free) <= 3
  assert min(map(len, memory._Room._free)) >= 2**20


def test_a_room_that_there_is_not_is_a_memory_error():
  with pytest.raises(MemoryError, match='bytes'):
    memory.room((2**60,), np.uint8)


@pytest.mark.slow
def test_an_array_in_a_room_is_placed_without_a_copy():
  """A read-only one, too; any other is copied, and is the caller's to change."""
  room = memory.room((4, 6), np.float32)
  room[:] = np.arange(24).reshape(4, 6)
  readable = room.view()
  readable.flags.writeable = False
  own = np.empty(4 * 24 + 64, np.uint8)
  start = -_address(own) % 64  # it could be taken as it is
  own = own[start : start + 96].view(np.float32).reshape(4, 6)
  own[:] = room
  with runtime.create('xla', devices='cpu') as machine:
    placed = machine.place({'a': readable, 'b': own, 'c': own > 3})
    shared, copied, truth = (_seen(placed.tree[name]) for name in 'abc')
    assert _address(shared) == _address(room)
    assert _address(copied) != _address(own)
    np.testing.assert_array_equal(shared, own)
    np.testing.assert_array_equal(truth, own > 3)
    # A cohort of another size is padded, in a room of its own.
    larger = machine.place({'a': readable[:3], 'b': own[:3], 'c': own[:3] > 3}).tree
    np.testing.assert_array_equal(_seen(larger['b'])[:3], own[:3])
    assert not _seen(larger['b'])[3:].any()
    address = _address(room)
    del room, readable
    assert (shared == own).all() and _address(memory.room((4, 6), np.float32)) != address


def test_a_gpus_arrays_are_copies():
  room = memory.room((2, 2), np.float32)
  room[:] = 1
  assert _address(_seen(devices.shared(room, '/device:GPU:0'))) != _address(room)


@pytest.mark.parametrize('dtype', ['u1', 'i4', 'i8', 'f2', 'f4', 'f8', '>f4', '?'])
@pytest.mark.parametrize('shape', [(4, 8), (0, 8), (4, 0)])
def test_arrays_of_all_kinds_are_what_they_were(dtype, shape):
  room = memory.room(shape, dtype)
  room[...] = np.arange(room.size).reshape(shape) % 2
  tensor = devices.shared(room, '/device:CPU:0')
  assert tensor.dtype.as_numpy_dtype == np.dtype(dtype).newbyteorder('=')
  np.testing.assert_array_equal(tensor, room)
