"""The pages on adding a method, a model and a data set, followed in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docs import markdown

_COPIED = (
  'datasets', 'drawing', 'experiments', 'privacy', 'processes', 'recipes', 'runtime', 'settings',
  'tff_models', 'tests',
)  # fmt: skip


@pytest.fixture(name='project')
def _project(tmp_path):
  """A copy of the project, to be added to."""
  ignored = shutil.ignore_patterns('__pycache__')
  for folder in _COPIED:
    shutil.copytree(markdown.ROOT / folder, tmp_path / folder, ignore=ignored)
  shutil.copy(markdown.ROOT / 'pyproject.toml', tmp_path)
  shutil.copy(markdown.ROOT / 'run_experiment.py', tmp_path)
  return tmp_path


def _python(project, *arguments):
  """Runs Python in the copy; returns what it printed."""
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=project,
    env={**os.environ, 'PYTHONPATH': str(project)},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def _follow(page, project):
  """Writes the page's files, makes its additions, and returns its programs."""
  programs = []
  for info, code in markdown.blocks(markdown.DOCS / page):
    addition = re.fullmatch(r'(\S+), (after|before) "(.*)"', info)
    if addition:
      _insert(project / addition[1], code, addition[2], addition[3])
    elif info:
      assert not (project / info).exists()
      (project / info).parent.mkdir(exist_ok=True)
      (project / info).write_text(code)
    else:
      programs.append(code)
  return programs


def _insert(path, code, where, marker):
  lines = path.read_text().splitlines(keepends=True)
  (number,) = [i for i, line in enumerate(lines) if marker in line]
  lines.insert(number + (where == 'after'), code)
  path.write_text(''.join(lines))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_adding_a_method(project):
  (program,) = _follow('adding_a_method.md', project)
  default = 'from experiments import ExperimentConfig; print(ExperimentConfig().method)'
  assert _python(project, '-c', default).strip() == 'fedavg'
  assert _python(project, '-c', program).count('After 2 rounds') == 2
  assert '--unseen_fraction [0.2]' in _python(project, 'run_experiment.py', '--help')
  _python(project, '-m', 'pytest', '-q', 'tests/processes/test_participation_gap.py')


@pytest.mark.exhaustive
@pytest.mark.slow
def test_adding_a_data_set(project):
  programs = _follow('adding_a_data_set.md', project)
  output = _python(project, '-c', '\n'.join(programs))
  assert output.count('After 2 rounds') == 3
  assert 'epsilon' in output
  assert 'diabetes' in _python(project, 'run_experiment.py', '--help')


@pytest.mark.exhaustive
@pytest.mark.slow
def test_adding_a_model(project):
  programs = _follow('adding_a_model.md', project)
  output = _python(project, '-c', '\n'.join(programs))
  assert output.count('After 2 rounds') == 3
  assert output.count('epsilon') >= 2
  assert 'wide_and_deep' in _python(project, 'run_experiment.py', '--help')
  _python(project, '-m', 'pytest', '-q', 'tests/tff_models/test_wide_and_deep.py')
  own = ('--dataset=digits', '--model=my_model.py:build', '--model_option=units=32', '--rounds=2')
  assert 'After 2 rounds' in _python(project, 'run_experiment.py', *own)
