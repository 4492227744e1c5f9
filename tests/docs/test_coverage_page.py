"""The page of coverage says what was measured."""

import shutil

from tests.docs import coverage_page, markdown


def _file(reached, every):
  return {'summary': {'covered_lines': reached, 'num_statements': every}}


def test_the_share_of_each_package_and_of_all(tmp_path):
  (tmp_path / 'docs' / 'images').mkdir(parents=True)
  for name in ('README.md', 'docs/coverage.md'):
    shutil.copy(markdown.ROOT / name, tmp_path / name)
  report = {'files': {
    'privacy/plan.py': _file(99, 100), 'privacy/a/b.py': _file(50, 50),
    'runtime/trees.py': _file(1, 2), 'runtime/__init__.py': _file(0, 0),
  }}  # fmt: skip
  for _ in range(2):  # a second time it takes the place of the first
    assert coverage_page.write(report, 'make test', tmp_path) == '98 %'  # 98.7: never rounded up
  page = (tmp_path / 'docs' / 'coverage.md').read_text()
  assert '| `privacy/` | 150 | 99 % |\n| `runtime/` | 2 | 50 % |\n| all | 152 | 98 % |' in page
  assert page.count('By `make test`:') == 1 and 'Not measured' not in page
  readme = (tmp_path / 'README.md').read_text()
  assert readme.count('(docs/images/coverage.svg)') == 1 and 'reach: 98 %]' in readme
  assert '>98 %<' in (tmp_path / 'docs' / 'images' / 'coverage.svg').read_text()
