"""The notebooks' link to the environment of the command line."""

import os
import subprocess
import sys

import matplotlib
import pytest

from notebooks import environment


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


def test_prepare_gives_uvs_last_words(monkeypatch, tmp_path):
  monkeypatch.setenv('PFL_PYTHON', str(tmp_path / 'python'))
  failed = subprocess.CompletedProcess([], 1, '', 'no network')
  monkeypatch.setattr(environment.subprocess, 'run', lambda *_, **__: failed)
  with pytest.raises(RuntimeError, match='no network'):
    environment.prepare()
