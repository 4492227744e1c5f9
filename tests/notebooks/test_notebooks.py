"""The notebooks, built and executed as Colab would: in a kernel that has no TFF.

The kernel is a newer Python than 3.11, where uv or pyenv has one, in an environment of its
own. Importing TensorFlow Federated is an error in it.
"""

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
from concurrent import futures

import pytest

from notebooks import build

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = [script.stem for script in build.scripts()]
TINY = {
  'first_run': 'ROUNDS = 3',
  'your_own_silos': 'ROUNDS = 3',
  'choosing_lambda_and_epsilon': "ROUNDS, LAMBDAS, EPSILONS, SEEDS = 2, '0,1', '2', '0'",
  'your_own_tff_process': 'ROUNDS, CLIENTS = 2, 3',
  'feo2_opting_out': "ROUNDS, RATIOS, SEEDS = 2, '0.1,1', '0'",
  'ppsgd_personalisation': "ROUNDS, ALPHAS, NOISES, USERS = 20, '0.1,1', '10', 10",
  'silos_privacy_and_personalisation': (
    "ROUNDS, EPSILONS, LAMBDAS, SEEDS = 2, '1,4', '0.1,1', '0'"
  ),
}
_NO_TFF = """
import sys

class NoTff:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in ('tensorflow_federated', 'tensorflow'):
      raise ImportError(f'{name} must not be imported by a notebook.')

sys.meta_path.insert(0, NoTff())
"""


def _first_cell(name):
  text = (build.FOLDER / f'{name}.py').read_text()
  return text.split('\n# %%\n')[1].split('\n# %%')[0]


@pytest.mark.parametrize('name', NAMES)
def test_the_first_cell_is_that_of_all(name):
  assert _first_cell(name) == _first_cell('first_run')
  assert 'environment.prepare()' in _first_cell(name)


@pytest.mark.parametrize('name', NAMES)
def test_the_kernel_needs_little(name):
  tree = ast.parse((build.FOLDER / f'{name}.py').read_text())
  imported = set()
  for node in tree.body:  # not inside functions, which are sent to the other environment
    if isinstance(node, ast.Import):
      imported |= {alias.name.partition('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      imported.add((node.module or '').partition('.')[0])
  assert imported <= {
    'IPython', 'environment', 'matplotlib', 'pandas', 'pathlib', 'subprocess', 'sys', 'tempfile',
  }  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_a_notebook_on_its_own_clones_its_project(name, tmp_path, monkeypatch):
  pytest.importorskip('jupytext', reason='needs the extra "notebooks" (jupytext)')
  origin = tmp_path / 'origin'
  (origin / 'notebooks').mkdir(parents=True)
  (origin / 'run_experiment.py').touch()
  (origin / 'notebooks' / 'mark').touch()
  git = ['git', '-C', str(origin), '-c', 'user.name=a', '-c', 'user.email=a@b']
  for arguments in (['init', '--quiet'], ['add', '.'], ['commit', '--quiet', '-m', 'a']):
    subprocess.run([*git, *arguments], check=True)
  prepared = []
  fake = types.SimpleNamespace(prepare=lambda: prepared.append(list(sys.path)))
  monkeypatch.setitem(sys.modules, 'environment', fake)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.chdir(tmp_path)
  with pytest.raises(AssertionError, match='set REPOSITORY'):
    exec(_first_cell(name), {})
  (built,) = [p for p in build.build(tmp_path / 'built', str(origin)) if p.stem == name]
  cells = [c for c in json.loads(built.read_text())['cells'] if c['cell_type'] == 'code']
  for _ in range(2):  # the second time it is there
    exec(''.join(cells[0]['source']), {})
    assert prepared.pop()[0] == str(tmp_path / 'project' / 'notebooks')
  assert (tmp_path / 'project' / 'notebooks' / 'mark').exists()


@pytest.fixture(name='notebooks', scope='session')
def _notebooks(tmp_path_factory):
  """The built notebooks by name."""
  return {path.stem: path for path in build.build(tmp_path_factory.mktemp('built'))}


@pytest.fixture(name='kernel_python', scope='session')
def _kernel_python(tmp_path_factory):
  """A newer Python than the command line's, with what a kernel needs."""
  folder = tmp_path_factory.mktemp('kernel') / 'venv'
  uv = shutil.which('uv') or str(ROOT / '.uv' / 'bin' / 'uv')
  pyenv = pathlib.Path(os.environ.get('PYENV_ROOT') or pathlib.Path.home() / '.pyenv')
  pythons = ['>=3.12', *map(str, sorted(pyenv.glob('versions/3.1[2-9].*/bin/python')))]
  make = [uv, 'venv', '--quiet', '--clear', '--no-python-downloads', str(folder), '--python']
  if not any(_succeeds([*make, python]) for python in pythons):
    pytest.skip("no Python newer than 3.11 is installed, which a kernel like Colab's needs")
  python = str(folder / 'bin' / 'python')
  packages = ['ipykernel', 'pandas', 'pyarrow', 'matplotlib']
  subprocess.run([uv, 'pip', 'install', '--quiet', '--python', python, *packages], check=True)
  return python


def _succeeds(command):
  try:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
  except FileNotFoundError:  # no uv
    return False


@pytest.fixture(name='workspace', scope='session')
def _workspace(kernel_python, tmp_path_factory):
  """A folder which looks like a checkout and takes the results; with the kernel 'colab'."""
  folder = tmp_path_factory.mktemp('checkout')
  for name in ('run_experiment.py', 'notebooks', 'recipes'):
    (folder / name).symlink_to(ROOT / name)
  (folder / 'blocker').mkdir()
  (folder / 'blocker' / 'sitecustomize.py').write_text(_NO_TFF)
  specification = folder / 'jupyter' / 'kernels' / 'colab'
  specification.mkdir(parents=True)
  (specification / 'kernel.json').write_text(
    json.dumps(
      {
        'argv': [kernel_python, '-m', 'ipykernel_launcher', '-f', '{connection_file}'],
        'display_name': 'colab',
        'language': 'python',
        'env': {
          'PYTHONPATH': str(folder / 'blocker'),
          'MPLBACKEND': 'module://matplotlib_inline.backend_inline',
        },
      }
    )
  )
  with pytest.MonkeyPatch.context() as environment:
    environment.setenv('JUPYTER_PATH', str(folder / 'jupyter'))
    environment.setenv('CUDA_VISIBLE_DEVICES', '')
    if not (ROOT / '.venv').exists():
      environment.setenv('PFL_PYTHON', sys.executable)
    yield folder


@pytest.fixture(name='executed', scope='session')
def _executed(request, notebooks, workspace):
  """The executed notebooks that were asked for, by name, as futures; two run at a time."""
  names = [
    item.callspec.params['name']
    for item in request.session.items
    if item.path == pathlib.Path(__file__) and item.originalname == 'test_runs'
  ]
  with futures.ThreadPoolExecutor(max_workers=2) as executor:
    yield {name: executor.submit(_execute, notebooks[name], workspace) for name in names}


def _execute(path, workspace):
  """The notebook with tiny settings, executed."""
  import nbclient
  import nbformat

  notebook = nbformat.read(path, as_version=4)
  (place,) = [
    i for i, cell in enumerate(notebook.cells) if 'parameters' in cell.metadata.get('tags', ())
  ]
  notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(TINY[path.stem]))
  notebook.cells.append(
    nbformat.v4.new_code_cell(
      "assert sys.version_info >= (3, 12) and 'tensorflow_federated' not in sys.modules"
    )
  )
  nbclient.NotebookClient(
    notebook, timeout=600, kernel_name='colab', resources={'metadata': {'path': str(workspace)}}
  ).execute()
  return notebook


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_runs(request, name):
  for package in ('jupytext', 'nbclient'):
    pytest.importorskip(package, reason=f'needs the extra "notebooks" ({package})')
  notebook = request.getfixturevalue('executed')[name].result()
  outputs = [output for cell in notebook.cells for output in cell.get('outputs', ())]
  assert any('image/png' in output.get('data', {}) for output in outputs)


def test_every_notebook_has_tiny_settings():
  assert set(TINY) == set(NAMES)
