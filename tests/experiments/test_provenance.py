"""Which code made a run: edits that no commit has are told from others."""

import pathlib

import pytest

from experiments.folder import provenance


@pytest.fixture
def code(tmp_path, monkeypatch):
  """A copy of a project of two files."""
  for name, text in (('privacy/plan.py', 'z = 1'), ('docs/page.py', 'a')):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
  monkeypatch.setattr(provenance, '_ROOT', tmp_path)

  def read():
    provenance._source.cache_clear()
    return provenance.of_this_code()

  yield tmp_path, read
  provenance._source.cache_clear()


def test_what_computes_counts_and_nothing_else(code):
  root, read = code
  first = read()
  assert first['git_commit'] is None  # no checkout
  (root / 'docs/page.py').write_text('b')
  assert read() == first
  (root / 'privacy/plan.py').write_text('z = 2')
  second = read()
  (root / 'privacy/plan.py').write_text('z = 3')
  assert len({one['source'] for one in (first, second, read())}) == 3
  (root / 'privacy/plan.py').write_text('z = 1')
  assert read() == first
  pathlib.Path(root / 'privacy/plan.py').rename(root / 'privacy/other.py')
  assert read()['source'] != first['source']


def test_the_source_decides_where_it_is_known():
  now = {'versions': {'python': '3'}, 'source': 'a', 'git_commit': '1'}
  assert not provenance.is_other({}, now) and not provenance.is_other(now, now)
  assert not provenance.is_other({**now, 'git_commit': '2'}, now)
  assert provenance.is_other({**now, 'source': 'b'}, now)
  assert provenance.is_other({**now, 'versions': {'python': '2'}}, now)
  of_earlier_versions = {name: now[name] for name in ('versions', 'git_commit')}
  assert not provenance.is_other(of_earlier_versions, now)
  assert provenance.is_other({**of_earlier_versions, 'git_commit': '1+changes'}, now)
