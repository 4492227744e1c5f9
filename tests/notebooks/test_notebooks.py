"""The notebooks, built and executed as Colab would: in a kernel that has no TFF.

The kernel is a newer Python than 3.11, where uv or pyenv has one, in an environment of its
own. Importing TensorFlow Federated is an error in it.
"""

import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
import zipfile
from concurrent import futures

import pytest

from notebooks import build

nbformat = pytest.importorskip('nbformat', reason='needs the extra "notebooks" (nbformat)')

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


@pytest.mark.parametrize('name', NAMES)
def test_the_first_cell_is_that_of_all(name):
  cells = [c for c in build.convert(_script(name)).cells if c.cell_type == 'code']
  first = build.FIRST_CELL.read_text().replace("''", repr(build.repository()), 1)
  assert cells[0].source == first.strip()
  assert 'environment.prepare()' in first
  assert 'parameters' in cells[1].metadata.tags


def _script(name):
  return build.FOLDER / f'{name}.py'


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


@pytest.fixture(name='alone')
def _alone(tmp_path, monkeypatch):
  """A folder outside the project, where nothing of it can be imported; what `prepare` saw."""
  prepared = []
  fake = types.SimpleNamespace(prepare=lambda: prepared.append(sys.path[0]))
  monkeypatch.setitem(sys.modules, 'environment', fake)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  found = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda name: None if name == 'run_experiment' else found(name)
  )
  (tmp_path / 'alone').mkdir()
  monkeypatch.chdir(tmp_path / 'alone')
  return prepared


def _run_first_cell(address):
  exec(build.FIRST_CELL.read_text().replace("''", repr(address), 1), {})


def test_alone_with_the_placeholder_it_says_what_to_do(alone):
  assert '/OWNER/' not in build.repository() or build.repository().startswith('https://github.com/')
  with pytest.raises(AssertionError, match='Upload a wheel'):
    _run_first_cell('https://github.com/OWNER/project')
  assert not alone


def test_alone_it_clones_its_project(alone, tmp_path):
  origin = tmp_path / 'origin'
  (origin / 'notebooks').mkdir(parents=True)
  (origin / 'run_experiment.py').touch()
  (origin / 'notebooks' / 'mark').touch()
  git = ['git', '-C', str(origin), '-c', 'user.name=a', '-c', 'user.email=a@b']
  for arguments in (['init', '--quiet'], ['add', '.'], ['commit', '--quiet', '-m', 'a']):
    subprocess.run([*git, *arguments], check=True)
  for _ in range(2):  # the second time it is there
    _run_first_cell(str(origin))
    assert alone.pop() == str(pathlib.Path.cwd() / 'project' / 'notebooks')
  assert pathlib.Path('project/notebooks/mark').exists()


def test_alone_it_takes_a_wheel_beside_it(alone):
  with zipfile.ZipFile('private_federated_learning-0.1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('run_experiment.py', '')
    wheel.writestr('notebooks/environment.py', '')
  _run_first_cell('https://github.com/OWNER/project')
  assert alone == [str(pathlib.Path.cwd() / 'project' / 'notebooks')]
  assert pathlib.Path('project/notebooks/environment.py').exists()


def test_where_it_is_installed_nothing_is_brought(alone, monkeypatch, tmp_path):
  installed = types.SimpleNamespace(origin=str(tmp_path / 'site' / 'run_experiment.py'))
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: installed)
  _run_first_cell('https://github.com/OWNER/project')
  assert alone == [str(tmp_path / 'site' / 'notebooks')]
  assert not list(pathlib.Path.cwd().iterdir())


# ------------------------------------------------- the notebooks in the repository


# TensorFlow's own lines: a date, a level and a file of its source; absl's in C++ likewise.
_NOISE = r'(?m)^(\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |[IWEF]\d{4} [\d:.]+ |WARNING: All log messages)'


def _built(name):
  return nbformat.read(build.FOLDER / f'{name}.ipynb', as_version=4)


def faults(notebook, script) -> list[str]:
  """What a reader on GitHub would miss in a built notebook."""
  found = []
  if notebook.metadata.get('source_sha256') != build.digest(script):
    found.append('it is older than its source: `make notebooks`')
  code = [cell for cell in notebook.cells if cell.cell_type == 'code']
  if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
    found.append('it was not run from top to bottom')
  wanted = build.convert(script).cells
  if [cell.source for cell in notebook.cells] != [cell.source for cell in wanted]:
    found.append('its cells are not those of its source: `make notebooks`')
  for cell in code:
    if any(re.search(_NOISE, output.get('text', '')) for output in cell.outputs):
      found.append(f'lines of TensorFlow under {cell.source[:40]!r}')
    kinds = {output.output_type for output in cell.outputs}
    if 'error' in kinds:
      found.append(f'an error in {cell.source[:40]!r}')
    missing = sorted(_expected(cell.source) - {'stream'} - _shown(cell)) + sorted(
      _expected(cell.source) & {'stream'} - kinds
    )
    found += [f'no {what} of {cell.source[:40]!r}' for what in missing]
  return found


def _shown(cell) -> set[str]:
  return {kind for output in cell.outputs for kind in output.get('data', {})}


def _expected(source) -> set[str]:
  """What a cell has to show: a picture, a value, lines that were printed."""
  run = [node for node in ast.parse(source).body if not isinstance(node, ast.FunctionDef)]
  calls = {
    ast.unparse(node.func) for x in run for node in ast.walk(x) if isinstance(node, ast.Call)
  }
  expected = set()
  if calls & {'plt.show', 'display.Image'}:
    expected.add('image/png')
  if calls & {'print', 'environment.experiment', 'environment.prepare', 'environment.report'}:
    expected.add('stream')
  last = run[-1] if run else None
  if isinstance(last, ast.Expr):
    called = ast.unparse(last.value.func) if isinstance(last.value, ast.Call) else ''
    if called not in ('print', 'plt.show', 'environment.prepare'):
      expected.add('text/plain')
  return expected


@pytest.mark.parametrize('name', NAMES)
def test_it_is_whole_and_not_older_than_its_source(name):
  assert not faults(_built(name), _script(name))


def test_what_is_missing_is_found(tmp_path):
  name = 'first_run'
  script = tmp_path / f'{name}.py'
  script.write_text(_script(name).read_text().replace('ROUNDS = 50', 'ROUNDS = 51'))
  assert faults(_built(name), script) == [
    'it is older than its source: `make notebooks`',
    'its cells are not those of its source: `make notebooks`',
  ]
  noisy = _built(name)
  cell = next(cell for cell in noisy.cells if cell.get('outputs'))
  cell.outputs[0]['text'] = '2026-01-02 03:04:05.6: I tensorflow/core/a.cc:1] words\n'
  assert faults(noisy, _script(name)) == [f'lines of TensorFlow under {cell.source[:40]!r}']
  for i, cell in enumerate(_built(name).cells):
    if cell.get('outputs'):
      broken = _built(name)
      broken.cells[i].outputs = []
      assert faults(broken, _script(name)), cell.source
  unrun = build.convert(_script(name))
  assert 'it was not run from top to bottom' in faults(unrun, _script(name))


@pytest.mark.parametrize('name', NAMES)
def test_it_opens_as_a_page(name):
  nbconvert = pytest.importorskip('nbconvert', reason='needs the extra "notebooks" (nbconvert)')
  notebook = _built(name)
  nbformat.validate(notebook)
  page, _ = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(notebook)
  pictures = sum('image/png' in _shown(cell) for cell in notebook.cells if 'outputs' in cell)
  assert page.count('data:image/png;base64') >= pictures >= 1
  assert build.badge(name).rpartition('](')[2][:-1] in page


def test_they_are_small_and_say_nothing_of_this_machine():
  files = [build.FOLDER / f'{name}.ipynb' for name in NAMES]
  assert {path.stem for path in build.FOLDER.glob('*.ipynb')} == set(NAMES)
  assert sum(path.stat().st_size for path in files) < 1_500_000
  for path in files:
    assert not re.search(r'/(tmp|root|home|work)/|\.\./', path.read_text()), path


def test_paths_of_this_machine_are_left_out(tmp_path):
  up = os.path.relpath(ROOT, tmp_path)
  text = f'{up}/fl quickstart is a private first run, in {tmp_path}/results\n'
  assert build.of_nowhere(text, tmp_path) == './fl quickstart is a private first run, in results\n'


def test_readme_links_them_with_their_badges():
  text = (ROOT / 'README.md').read_text()
  for name in NAMES:
    assert f'](notebooks/{name}.ipynb) | {build.badge(name)} |' in text
  for page in [ROOT / 'README.md', *(ROOT / 'notebooks').glob('*.ipynb')]:
    assert set(re.findall(r'github(?:\.com)?/(\w+/[\w-]+)', page.read_text())) <= {
      build.repository().removeprefix('https://github.com/')
    }


def test_the_address_of_the_project_has_one_place():
  """`pyproject.toml`; `make notebooks` brings pages and notebooks to it, which this checks."""
  other = 'https://github.com/some-body/private-federated-learning'
  for name in build.PAGES:
    text = (ROOT / name).read_text()
    assert build.addressed(text) == text
    moved = build.addressed(text, other)
    assert 'some-body/' in moved and build.addressed(moved) == text
  script = _script('first_run')
  assert repr(other) in build.source(script, other)
  assert build.badge('first_run', other) in build.source(script, other)


def test_running_them_leaves_nothing_untracked():
  """Results lie beside a notebook that is run where it is; what it brings, too."""
  made = ('results/a-run/config.json', 'project/run_experiment.py', '.ipynb_checkpoints/a.ipynb')
  paths = [f'notebooks/{name}' for name in made]
  done = subprocess.run(
    ['git', 'check-ignore', *paths], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert done.stdout.split() == paths


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


@pytest.mark.exhaustive(but=['first_run', 'your_own_tff_process'])
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
