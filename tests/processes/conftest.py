"""The methods' tests run on TFF's own runtime, whose worker outlives Python: it is ended here."""

import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for `import federation`


@pytest.fixture(scope='session', autouse=True)
def end_workers():
  """Ends the workers that the tests of this folder have started."""
  yield
  for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      name, _, rest = stat.read_text().rpartition(')')
    except OSError:
      continue
    if int(rest.split()[1]) == os.getpid() and 'worker_binary' in name:
      os.kill(int(stat.parent.name), signal.SIGINT)
