"""The notebooks, built and executed as Colab would: in a kernel that has no TFF.

The kernel is another Python than 3.11 where one is installed and can be furnished; else the
same one. In both, importing TensorFlow Federated is an error.
"""

import ast
import json
import pathlib
import shutil
import subprocess
import sys
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


@pytest.fixture(name='notebooks', scope='session')
def _notebooks(tmp_path_factory):
  """The built notebooks by name."""
  return {path.stem: path for path in build.build(tmp_path_factory.mktemp('built'))}


@pytest.fixture(name='kernel_python', scope='session')
def _kernel_python(tmp_path_factory):
  """The kernel's Python: preferably not 3.11."""
  folder = tmp_path_factory.mktemp('kernel') / 'venv'
  uv = shutil.which('uv')
  if sys.version_info[:2] == (3, 11) and uv:
    make = [uv, 'venv', '--quiet', '--no-python-downloads', '--python', '>=3.12', str(folder)]
    furnish = [uv, 'pip', 'install', '--quiet', '--python', str(folder / 'bin' / 'python')]
    furnish += ['ipykernel', 'pandas', 'pyarrow', 'matplotlib']
    if all(subprocess.run(c, check=False, timeout=300).returncode == 0 for c in (make, furnish)):
      return str(folder / 'bin' / 'python')
  pytest.importorskip('ipykernel', reason='needs the extra "notebooks" (ipykernel)')
  return sys.executable


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
    nbformat.v4.new_code_cell("assert 'tensorflow_federated' not in sys.modules")
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
