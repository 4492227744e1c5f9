"""What the notebooks need: an environment for the command line, whatever Python the kernel has.

TensorFlow Federated runs on Python 3.11; a notebook's kernel (Colab's, for one) may be newer. So
the command line runs in an environment of its own, which uv makes, and the kernel reads the
result files. The kernel needs pandas, pyarrow and matplotlib, and never imports TFF.
"""

import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib
import pandas as pd
from matplotlib import ticker

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Told apart with every kind of colour blindness, and in print by their markers.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
# A notebook sets these for its own kernel; a program of another environment breaks on them.
_OF_THE_KERNEL = ('MPLBACKEND', 'PYTHONPATH', 'PYTHONHOME', 'VIRTUAL_ENV')
# What TensorFlow says once to everybody, whatever its level.
_NOTICE = re.compile(r'WARNING: All log messages before absl|I0000 [\d:.]+ +\d+ device_compiler')


def prepare() -> None:
  """Makes the environment if there is none yet, which takes minutes the first time.

  In a clone it is the one of `uv.lock`; beside a wheel that was unpacked, of `requirements.txt`.

  Raises:
    RuntimeError: it could not be made; the message has uv's last words.
  """
  if not python().exists():
    print('Making a Python 3.11 environment; this takes a few minutes, once.')
    for command in _making():
      done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
      )
      if done.returncode:
        raise RuntimeError(f'uv could not make the environment:\n{done.stderr[-2000:]}')
  matplotlib.rcParams.update(
    {
      'axes.prop_cycle': matplotlib.cycler(color=COLOURS, marker=list('os^DvPX')),
      'lines.markersize': 4,
      'axes.spines.top': False,
      'axes.spines.right': False,
      'axes.grid': True,
      'axes.axisbelow': True,
      'grid.color': '#dddddd',
      'legend.frameon': False,
      'figure.figsize': (6.4, 3.6),
      'figure.constrained_layout.use': True,
    }
  )
  print(f'kernel: Python {sys.version.split()[0]}; command line: {_version()}')


def python() -> pathlib.Path:
  """The Python of the command line.

  That of the project's environment, or the kernel's own where it has TensorFlow Federated; the
  variable PFL_PYTHON names another one.
  """
  if named := os.environ.get('PFL_PYTHON'):
    return pathlib.Path(named)
  made = ROOT / '.venv' / 'bin' / 'python'
  if not made.exists() and importlib.util.find_spec('tensorflow_federated'):
    return pathlib.Path(sys.executable)
  return made


def experiment(*flags: str) -> pathlib.Path:
  """Runs `run_experiment.py` with these flags; returns the folder of the results.

  What it prints is shown as it comes.

  Raises:
    RuntimeError: the run failed; what it printed says why.
  """
  lines = _show(str(ROOT / 'run_experiment.py'), *flags)
  folder = next(line for line in reversed(lines) if line.startswith('Results: '))
  return pathlib.Path.cwd() / folder.removeprefix('Results: ')


def call(function: Callable[..., Any], **arguments: Any) -> Any:
  """Runs a function of the notebook in the other environment.

  Its source is sent, so it imports what it needs itself.

  Args:
    function: a function defined in a cell.
    **arguments: its arguments, which JSON can hold.

  Returns:
    What it returned, by way of JSON.

  Raises:
    RuntimeError: it failed; what it printed says why.
  """
  with tempfile.TemporaryDirectory() as folder:
    program, result = pathlib.Path(folder, 'program.py'), pathlib.Path(folder, 'result.json')
    program.write_text(
      f'{textwrap.dedent(inspect.getsource(function))}\n\n'
      'import json, pathlib\n'
      f'value = {function.__name__}(**json.loads({json.dumps(arguments)!r}))\n'
      f'pathlib.Path({str(result)!r}).write_text(json.dumps(value))\n'
    )
    _show(str(program))
    return json.loads(result.read_text())


def report(*folders: pathlib.Path) -> pathlib.Path:
  """Makes a report on runs or sweeps; returns its folder, which has `report.html` and pictures.

  Raises:
    RuntimeError: it failed; what it printed says why.
  """
  _show('-m', 'experiments.reports', *map(str, folders))
  return folders[0] / 'report'


def metrics(folder: pathlib.Path) -> pd.DataFrame:
  """A run's metrics: round, split, client, group, metric, value."""
  return pd.read_parquet(folder / 'metrics.parquet')


def curve(folder: pathlib.Path, metric: str, *, split: str = 'test', group: str = 'all'):
  """A metric of a group against rounds: a pandas Series by round."""
  rows = metrics(folder)
  chosen = (rows['split'] == split) & (rows['metric'] == metric) & (rows['group'] == group)
  return rows[chosen].set_index('round')['value']


def table(folder: pathlib.Path, metric: str, *, group: str = 'all') -> pd.DataFrame:
  """A sweep's last values of one metric: a row per run, its settings beside `value`."""
  rows = pd.read_parquet(folder / 'table.parquet')
  for name, values in read_json(folder, 'sweep')['grid']['axes'].items():
    if name not in rows:  # the same in all runs
      rows[name] = values[0]
  return rows[(rows['metric'] == metric) & (rows['group'] == group)]


def read_json(folder: pathlib.Path, name: str) -> dict[str, Any]:
  """A result file: 'summary', 'privacy', 'config', or a sweep's 'sweep'."""
  return json.loads((folder / f'{name}.json').read_text())


def log_scale(axes: Any, which: str) -> None:
  """Gives an axis, 'x' or 'y', a log scale with ticks at 1, 2 and 5."""
  getattr(axes, f'set_{which}scale')('log')
  axis = getattr(axes, f'{which}axis')
  axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
  axis.set_minor_locator(ticker.NullLocator())


def _show(*arguments: str) -> list[str]:
  """Runs Python from the project's folder on; prints and returns its lines."""
  # The notebook's folder stays the working directory: results go there.
  process = subprocess.Popen(
    [str(python()), '-u', *arguments],
    # What TensorFlow says of its start is no result; its errors come as exceptions.
    env={'TF_CPP_MIN_LOG_LEVEL': '3', **_environment(), 'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  assert process.stdout is not None
  lines = []
  try:
    for line in process.stdout:
      if not _NOTICE.match(line):
        lines.append(line.rstrip('\n'))
        print(lines[-1])
  except KeyboardInterrupt:
    process.terminate()  # It keeps what it has, and says how to go on.
    print(process.communicate()[0])
    raise
  if process.wait():
    raise RuntimeError(lines[-1] if lines else f'it ended with code {process.returncode}.')
  return lines


def _environment() -> dict[str, str]:
  return {name: value for name, value in os.environ.items() if name not in _OF_THE_KERNEL}


def _making() -> list[list[str]]:
  """The commands that make the environment."""
  uv = _uv()
  if (ROOT / 'uv.lock').exists():
    extras = ['--extra', 'data'] + (['--extra', 'gpu'] if shutil.which('nvidia-smi') else [])
    return [[*uv, 'sync', '--frozen', '--no-dev', '--quiet', *extras]]
  locked = str(ROOT / 'notebooks' / 'requirements.txt')
  return [
    [*uv, 'venv', '--quiet', '--python', '3.11', str(python().parent.parent)],
    [*uv, 'pip', 'install', '--quiet', '--python', str(python()), '--no-deps', '-r', locked],
  ]


def _uv() -> list[str]:
  """The command uv, installed beside the kernel's packages if need be."""
  if shutil.which('uv'):
    return ['uv']
  subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', 'uv'], check=True)
  return [sys.executable, '-m', 'uv']


def _version() -> str:
  command = [str(python()), '--version']
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
