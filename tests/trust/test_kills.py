"""SIGKILL at random moments of real runs and sweeps: resumed, they are as if undisturbed.

`make test-kills` kills 60 times, as a nightly job would (`--kills=60`); the
ordinary number is small.
"""

import pathlib
import subprocess
import sys

import pytest

from tests.trust import kills

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.exhaustive(but=['dp_fedavg'])
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize('name', kills.COMMANDS)
def test_killed_at_random_and_resumed(tmp_path, name, request):
  times = -(-request.config.getoption('--kills') // len(kills.COMMANDS))
  with open(tmp_path / 'output', 'w+') as output:  # no pipe, which a worker could hold open
    status = subprocess.run(
      [sys.executable, '-m', 'tests.trust.kills', name, str(times), str(tmp_path)],
      cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
    ).returncode  # fmt: skip
    output.seek(0)
    said = output.read()
  print(said)
  assert status == 0, said[-3000:]
