"""Other simulators on the same machine, each in an environment of its own under `build/`."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import tff_models
from benchmarks import published
from processes import common_settings as common

_ROOT = pathlib.Path(__file__).parents[1]
_INSTALL_SECONDS = 1200
PFL = ('pfl==0.6.0', 'torch==2.13.0')


class NotInstalledError(RuntimeError):
  """A peer cannot be installed here: no internet, or no such package for this machine."""


def environment(name: str, packages: Sequence[str]) -> pathlib.Path:
  """The Python of `build/NAME`, an environment with these packages; made if there is none.

  Raises:
    NotInstalledError: it cannot be made.
  """
  folder = _ROOT / 'build' / name
  python, ready = folder / 'bin' / 'python', folder / '.ready'
  if ready.exists() and ready.read_text() == ' '.join(packages):
    return python
  uv = shutil.which('uv') or str(_ROOT / '.uv' / 'bin' / 'uv')
  commands: list[list[str]] = [
    [uv, 'venv', '--quiet', '--clear', '--python', '3.11', str(folder)],
    [uv, 'pip', 'install', '--quiet', '--python', str(python), *packages],
  ]
  for command in commands:
    try:
      subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
      said = (getattr(error, 'stderr', None) or str(error)).strip()
      raise NotInstalledError(
        f'{" and ".join(packages)} cannot be installed into {folder}: {said[-500:]}'
      ) from error
  ready.write_text(' '.join(packages))
  return python


class Peer:
  """A program of a peer that computes a round each time it is told to."""

  def __init__(self, python: pathlib.Path, program: str, workload: dict[str, Any]):
    """Starts it.

    Args:
      python: of the environment that has what the program imports.
      program: a file in this folder.
      workload: what it is told, as JSON.
    """
    self._process = subprocess.Popen(
      [str(python), str(pathlib.Path(__file__).parent / program), json.dumps(workload)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def __enter__(self) -> 'Peer':
    return self

  def __exit__(self, *unused: object) -> None:
    self._process.kill()
    self._process.communicate()

  def round(self) -> float:
    """The seconds of the round that it computes now.

    Raises:
      RuntimeError: it has ended; what it said is on the standard error.
    """
    assert self._process.stdin and self._process.stdout
    try:
      self._process.stdin.write('\n')
      self._process.stdin.flush()
    except BrokenPipeError:
      pass  # Then it answers nothing.
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError('the peer has ended before its round.')
    return float(line)


def pfl(workload: published.Workload) -> Peer:
  """pfl-research with a workload.

  Raises:
    NotInstalledError: pfl or PyTorch cannot be installed here.
  """
  return Peer(environment('pfl', PFL), 'peer_pfl.py', told(workload))


def told(workload: published.Workload) -> dict[str, Any]:
  """What a peer is told of a workload: its fields, with the defaults of what they leave open."""
  fields = dataclasses.asdict(workload)
  optimizer = workload.options.get('server_optimizer', common.SERVER_OPTIMIZER.default)
  rates = common.CLIENT_LEARNING_RATE, common.SERVER_LEARNING_RATE
  defaults = {rate.name: rate.default for rate in rates}
  return fields | {
    'model_options': tff_models.MODELS[workload.model].resolve({}),
    'server_optimizer': optimizer,
    'hyperparameters': {**defaults, **common.MOMENTS[optimizer], **workload.hyperparameters},
    'noise_multiplier': workload.cohort / workload.noise_cohort,
  }
