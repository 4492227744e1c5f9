"""Archives of arrays: those of numpy, and nothing on the terminal where the disk is full."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

from runtime import archives

ARRAYS = {
  'a/b': np.arange(6, dtype=np.float32).reshape(2, 3).T,
  'none': np.zeros([0, 2]),
  'scalar': np.asarray(3),
  'text': np.array(['x', 'yz']),
}


def test_an_archive_is_the_one_that_numpy_writes():
  own, numpys = io.BytesIO(), io.BytesIO()
  archives.write(own, ARRAYS)
  np.savez(numpys, **ARRAYS)
  assert own.getvalue() == numpys.getvalue()


def test_python_objects_are_refused():
  with pytest.raises(ValueError, match='Object arrays'):
    archives.write(io.BytesIO(), {'a': np.array([{}])})


_WRITES = """
import resource
import sys
import numpy as np
from runtime import archives

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # bytes
try:
  with open(sys.argv[1], 'w+b') as file:
    {write}
except OSError as error:
  print('caught', error.strerror)
"""


@pytest.mark.parametrize('size', [100, 3000, 10**6])
def test_a_full_disk_is_an_error_and_no_traceback(tmp_path, size):
  done = _on_a_full_disk(tmp_path, f'archives.write(file, dict(a=np.zeros({size}), b=np.ones(2)))')
  assert (done.stdout, done.stderr) == ('caught File too large\n', '')


def test_the_traceback_of_numpys_own_would_be_found(tmp_path):
  done = _on_a_full_disk(tmp_path, 'np.savez(file, a=np.zeros(10**6))')
  assert done.stdout.startswith('caught') and 'ZipFile.__del__' in done.stderr


def _on_a_full_disk(folder, write):
  return subprocess.run(
    [sys.executable, '-c', _WRITES.format(write=write), folder / 'a.npz'],
    capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': os.getcwd()},
  )  # fmt: skip
