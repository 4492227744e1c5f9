"""Every method has a page that says what has to be said."""

import re

import pytest

from processes import common_settings as common
from processes.registry import ALIASES, METHODS
from tests.docs import markdown

_SECTIONS = ('Equations', 'State', 'Privacy', 'Flags', 'Limits')


def _page(name):
  return (markdown.DOCS / 'methods' / f'{name}.md').read_text()


@pytest.mark.parametrize('name', METHODS)
def test_page_has_all_sections_and_flags(name):
  text = _page(name)
  assert text.startswith(f'# {name}: ')
  assert re.findall(r'^## (.*)$', text, re.MULTILINE) == list(_SECTIONS)
  flags = text.split('## Flags')[1].split('## Limits')[0]
  listed = re.findall(r'^\| `--(\w+)` \|', flags, re.MULTILINE)
  own = [s.name for s in METHODS[name].settings if s not in common.OPTIMIZATION]
  assert sorted(listed) == sorted(own)
  shares = len(own) < len(METHODS[name].settings)
  assert ('README.md#optimisers-and-schedules' in flags) == shares


@pytest.mark.parametrize('name', [n for n, m in METHODS.items() if m.setting('server_optimizer')])
def test_limits_do_not_deny_the_shared_flags(name):
  limits = _page(name).split('## Limits')[1].lower()
  assert not re.search(r'\bno (server|client) (momentum|optimi[sz]er)|\bstep is plain', limits)


def test_shared_flags_are_in_one_place():
  listed = re.findall(r'^\| (`--\w+`(?:, `--\w+`)*) \|', _page('README'), re.MULTILINE)
  found = re.findall(r'`--(\w+)`', ' '.join(listed))
  assert sorted(found) == sorted(setting.name for setting in common.OPTIMIZATION)
  with_them = [n for n, method in METHODS.items() if method.setting('server_optimizer')]
  (line,) = re.findall(r'methods that train a global model \((.*)\)', _page('README'))
  assert sorted(re.findall(r'`(\w+)`', line)) == sorted(with_them)


@pytest.mark.parametrize('name', METHODS)
def test_page_has_the_declared_defaults(name):
  flags = _page(name).split('## Flags')[1].split('## Limits')[0]
  for flag, number in re.findall(r'^\| `--(\w+)` \|.*?([\d.]+) by default', flags, re.MULTILINE):
    assert float(number) == METHODS[name].setting(flag).default, flag


@pytest.mark.parametrize('name', METHODS)
def test_page_speaks_of_the_units_of_privacy(name):
  privacy = _page(name).split('## Privacy')[1].split('## Flags')[0]
  for unit in METHODS[name].privacy_units:
    assert unit == 'none' or f'--privacy={unit}' in privacy


def test_index_lists_all_methods_with_their_units():
  index = _page('README')
  rows = re.findall(r'^\| \[(\w+)\]\((\w+)\.md\) \| .* \| (.*) \|$', index, re.MULTILINE)
  assert all(name == page for name, page, _ in rows)
  assert {name: tuple(units.split(', ')) for name, _, units in rows} == {
    name: entry.privacy_units for name, entry in METHODS.items()
  }
  for alias in ALIASES:
    assert f'`{alias}`' in index


def test_no_page_without_a_method():
  pages = {page.stem for page in (markdown.DOCS / 'methods').glob('*.md')}
  assert pages == {'README', *METHODS}
