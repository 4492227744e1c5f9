"""What is read cannot run code; what is shown cannot either; what is installed is pinned."""

import ast
import pathlib
import re
import tarfile
import tomllib

import pytest

from experiments.reports import html as report_html

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ('analysis', 'datasets', 'experiments', 'privacy', 'processes', 'runtime', 'tff_models')
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob('*.py'))]
# Reads the archive of CIFAR-10's own authors, which is pickles, after checking its SHA-256, and
# admits nothing but arrays and plain values.
PICKLE_READERS = {'datasets/cifar10.py'}
FORBIDDEN_CALLS = {'eval', 'exec', 'extractall', 'extract', 'system', 'mktemp', 'read_pickle'}


def _calls(path):
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Call):
      function = node.func
      yield (
        node,
        function.attr if isinstance(function, ast.Attribute) else getattr(function, 'id', ''),
      )


def test_the_sources_are_found():
  assert len(SOURCES) > 60


@pytest.mark.parametrize('path', SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_call_that_runs_what_it_reads(path):
  name = str(path.relative_to(ROOT))
  for call, function in _calls(path):
    where = f'{name}:{call.lineno}: {function}'
    assert function not in FORBIDDEN_CALLS, where
    keywords = {k.arg: k.value for k in call.keywords}
    for keyword, wrong in (('allow_pickle', True), ('shell', True)):
      value = keywords.get(keyword)
      assert not (isinstance(value, ast.Constant) and value.value is wrong), where
  imported = re.findall(
    r'^\s*(?:import|from) (pickle|marshal|shelve|dill|joblib|cloudpickle|yaml)\b',
    path.read_text(encoding='utf-8'), re.M,
  )  # fmt: skip
  assert not imported or name in PICKLE_READERS


def test_nothing_of_an_archive_is_unpacked_to_disk():
  """So no name in it can escape: members are read through `extractfile`."""
  for path in SOURCES:
    text = path.read_text(encoding='utf-8')
    if 'tarfile' in text or 'zipfile.ZipFile' in text:
      assert 'extractall' not in text and '.extract(' not in text, path


def test_cifar_pickles_are_read_only_after_their_checksum(tmp_path, monkeypatch):
  """An archive of another origin is refused before anything of it is loaded."""
  import datasets

  evil = tmp_path / 'cifar-10-python.tar.gz'
  payload = tmp_path / 'data_batch_1'
  payload.write_bytes(b"cos\nsystem\n(S'touch exploited'\ntR.")
  with tarfile.open(evil, 'w:gz') as archive:
    archive.add(payload, 'cifar-10-batches-py/data_batch_1')
    archive.add(payload, 'cifar-10-batches-py/test_batch')
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('PFL_DATA_DIR', raising=False)  # where a developer may have the real ones
  names = [n for n in datasets.registry.DATASETS if 'cifar' in n]
  assert names
  for name in names:
    with pytest.raises((ValueError, FileNotFoundError)):
      datasets.load_dataset(name, seed=0, data_dir=str(tmp_path))
  assert not (tmp_path / 'exploited').exists()


SCRIPT = '<script>alert(1)</script><img src=x onerror=alert(1)>"\'&'


@pytest.mark.parametrize(
  'show',
  [
    lambda text: report_html.page(title=text, parts=[]),
    lambda text: report_html.section(text),
    lambda text: report_html.paragraph(text),
    lambda text: report_html.paragraph(text, warning=True),
    lambda text: report_html.table([text], [[text]]),
  ],
)
def test_the_report_escapes_what_it_shows(show):
  shown = show(SCRIPT)
  assert SCRIPT not in shown and '<img' not in shown
  # The page has one script, its own.
  assert shown.count('<script') == show('').count('<script') <= 1
  assert '&lt;script&gt;' in shown


def test_the_report_fetches_nothing():
  page = report_html.page(title='x', parts=[])
  assert 'http:' not in page and 'https:' not in page
  # A browser refuses whatever is not in the page.
  assert "default-src 'none'" in page and 'connect-src' not in page


def test_what_is_installed_is_pinned_by_hash():
  lines = (ROOT / 'requirements.txt').read_text().splitlines()
  packages = [i for i, line in enumerate(lines) if re.match(r'[A-Za-z0-9._-]+==', line)]
  assert len(packages) > 40
  for i in packages:
    assert '--hash=sha256:' in lines[i + 1], lines[i]
  known = re.compile(r'[A-Za-z0-9._-]+==\S+.* \\$|    --hash=sha256:[0-9a-f]{64}( \\)?$|    # ')
  assert all(known.match(line) for line in lines if line.strip()), 'something is not pinned'
  wild = [line for line in lines if re.match(r'[A-Za-z0-9._-]+(?!==)[<>~]', line)]
  assert not wild


def test_what_is_locked_has_hashes():
  """Of the extras and the tools for development too."""
  packages = tomllib.loads((ROOT / 'uv.lock').read_text())['package']
  fetched = [p for p in packages if 'registry' in p['source']]
  assert len(fetched) == len(packages) - 1  # all but the project itself
  for package in fetched:
    files = [*package.get('wheels', []), *filter(None, [package.get('sdist')])]
    assert files and all(re.fullmatch(r'sha256:[0-9a-f]{64}', f['hash']) for f in files)


def test_nothing_listens_to_other_machines():
  """No server of ours names an address beyond this machine; TensorBoard is not started at all."""
  for path in SOURCES:
    text = path.read_text(encoding='utf-8')
    if path.name == 'native_worker.py':  # names the address that it takes out of TFF's worker
      text = text.replace('[::]:', '')
    assert '0.0.0.0' not in text and "host=''" not in text and '[::]' not in text, path
    assert 'tensorboard.program' not in text and "'tensorboard', '--" not in text, path
