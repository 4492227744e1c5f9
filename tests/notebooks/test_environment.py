"""The notebooks' link to the environment of the command line."""

import ast
import os
import pathlib
import subprocess
import sys

import matplotlib
import pytest

import drawing
from notebooks import environment
from processes.registry import METHODS


@pytest.fixture(autouse=True)
def _this_python(monkeypatch):
  monkeypatch.setenv('PFL_PYTHON', sys.executable)
  with matplotlib.rc_context():
    yield


def add(a, b):
  return {'sum': a + b}


def settings_of_the_kernel():
  import os

  return [name for name in ('MPLBACKEND', 'VIRTUAL_ENV', 'PYTHONHOME') if name in os.environ]


def fail():
  raise ValueError('one clear line')


def test_call_sends_a_function_and_brings_its_value():
  assert environment.call(add, a=1, b=2.5) == {'sum': 3.5}


def test_what_is_the_kernels_own_is_not_handed_on(monkeypatch):
  monkeypatch.setenv('MPLBACKEND', 'module://matplotlib_inline.backend_inline')
  monkeypatch.setenv('VIRTUAL_ENV', '/nowhere')
  assert environment.call(settings_of_the_kernel) == []
  assert 'MPLBACKEND' in os.environ


def test_a_failure_says_why():
  with pytest.raises(RuntimeError, match='one clear line'):
    environment.call(fail)


def test_an_experiment_with_a_wrong_flag_says_which(capsys):
  with pytest.raises(RuntimeError, match='--rounds=0'):
    environment.experiment('--rounds=0')
  assert '--rounds=0' in capsys.readouterr().out


def test_prepare_makes_the_environment_only_where_there_is_none(monkeypatch, tmp_path, capsys):
  commands = []

  def run(command, **options):
    commands.append(command)
    return subprocess.CompletedProcess(command, 0, 'Python 3.11.0', '')

  monkeypatch.setattr(environment.subprocess, 'run', run)
  environment.prepare()
  assert not any('sync' in command for command in commands)
  monkeypatch.setenv('PFL_PYTHON', str(tmp_path / 'python'))
  environment.prepare()
  (sync,) = [command for command in commands if 'sync' in command]
  assert '--frozen' in sync
  assert 'Python 3.11' in capsys.readouterr().out


def test_methods_look_as_in_every_other_figure(monkeypatch):
  """The kernel does not import the project: its lines come in the order of the methods."""
  done = subprocess.CompletedProcess([], 0, 'Python 3.11.0', '')
  monkeypatch.setattr(environment.subprocess, 'run', lambda *_, **__: done)
  with matplotlib.rc_context():
    environment.prepare()
    cycle = matplotlib.rcParams['axes.prop_cycle'].by_key()
  script = pathlib.Path(environment.__file__).with_name('silos_privacy_and_personalisation.py')
  (names,) = [
    ast.literal_eval(node.value)
    for node in ast.walk(ast.parse(script.read_text()))
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'names'
  ]
  for place, (name, title) in enumerate(names.items()):
    assert name == list(METHODS)[place] and title == METHODS[name].title
    style = drawing.line(place)
    assert (cycle['color'][place], cycle['marker'][place]) == (style.colour, style.marker)


def test_prepare_gives_uvs_last_words(monkeypatch, tmp_path):
  monkeypatch.setenv('PFL_PYTHON', str(tmp_path / 'python'))
  failed = subprocess.CompletedProcess([], 1, '', 'no network')
  monkeypatch.setattr(environment.subprocess, 'run', lambda *_, **__: failed)
  with pytest.raises(RuntimeError, match='no network'):
    environment.prepare()
