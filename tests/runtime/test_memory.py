"""What a round frees stays with the process."""

import os
import subprocess
import sys

import pytest

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
