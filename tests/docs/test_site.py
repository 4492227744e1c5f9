"""The documentation as a site: it builds, and its reference has every public name."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import zlib

import pytest

from tests.docs import commands

PACKAGES = (
  'analysis', 'datasets', 'drawing', 'experiments', 'privacy', 'processes', 'runtime', 'settings',
  'tff_models',
)  # fmt: skip
_TFFS = 'runtime.tff_internals'  # what it exports is TFF's


@pytest.fixture(name='site', scope='module')
def _site(tmp_path_factory):
  """The site that `make docs` built, where SITE says; else it is built as that does."""
  if 'SITE' in os.environ:
    return pathlib.Path(os.environ['SITE'])
  pytest.importorskip('mkdocstrings', reason='needs the development group (mkdocstrings)')
  folder = tmp_path_factory.mktemp('site')
  done = subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--quiet', '--strict', '--site-dir', str(folder)],
    cwd=commands.ROOT, env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'}, capture_output=True,
    text=True, timeout=600, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  return folder


def public_names(path: pathlib.Path) -> set[str]:
  """What a module offers: its `__all__`, and the functions and classes that it defines."""
  module = '.'.join(path.relative_to(commands.ROOT).with_suffix('').parts)
  if any(part.startswith('_') and part != '__init__' for part in module.split('.')):
    return set()
  names = set()
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith('_'):
      names.add(node.name)
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
      names |= set(ast.literal_eval(node.value)) if module != _TFFS else set()
  return {f'{module.removesuffix(".__init__")}.{name}' for name in names}


@pytest.mark.parametrize('package', PACKAGES)
def test_every_public_name_says_what_it_is(package):
  """The reference leaves out what has no docstring; said here before any site is built."""
  silent = [
    f'{path}: {node.name}'
    for path in (commands.ROOT / package).rglob('*.py')
    for names in [{name.rsplit('.', 1)[1] for name in public_names(path)}]
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
    and node.name in names
    and not ast.get_docstring(node)
  ]
  assert not silent


@pytest.mark.exhaustive  # `make docs-check` has them
@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
  inventory = (site / 'objects.inv').read_bytes().split(b'\n', 4)[4]
  listed = {line.split(' ')[0] for line in zlib.decompress(inventory).decode().splitlines()}
  wanted = {
    name
    for package in PACKAGES
    for path in (commands.ROOT / package).rglob('*.py')
    for name in public_names(path)
  }
  assert len(wanted) > 700
  assert not sorted(wanted - listed)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_pages_show_their_blocks_and_ask_nobody(site):
  for page in site.rglob('*.html'):
    text = page.read_text()
    assert '```' not in re.sub(r'<code>.*?</code>', '', text, flags=re.DOTALL), page
    assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="https?:', text)
  assert len(list((site / 'start').glob('*.html'))) == 5


def test_every_package_has_its_page():
  """And every package of the wheel is in the reference, but benchmarks and notebooks."""
  for package in PACKAGES:
    assert f'::: {package}' in (commands.ROOT / f'docs/api/{package}.md').read_text().splitlines()
  assert set(commands.PACKAGES) - set(PACKAGES) == {'benchmarks', 'notebooks', 'tests'}


def test_a_reader_is_led_from_the_first_page():
  start = {f'start/{page.name}' for page in (commands.ROOT / 'docs' / 'start').glob('*.md')}
  assert len(start) == 5
  for page, folder in (('README.md', 'docs/'), ('docs/README.md', ''), ('mkdocs.yml', '')):
    text = (commands.ROOT / page).read_text()
    assert all(f'{folder}{name}' in text for name in start), page


def test_every_page_is_in_the_menu():
  """Else `make docs` fails; pages of results are reached from `results.md`."""
  menu = set(re.findall(r'(\S+\.md)$', (commands.ROOT / 'mkdocs.yml').read_text(), re.MULTILINE))
  docs = commands.ROOT / 'docs'
  pages = {str(page.relative_to(docs)) for page in docs.rglob('*.md')}
  assert pages - menu == {page for page in pages if page.startswith('results/')}
