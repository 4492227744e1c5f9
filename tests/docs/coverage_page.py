"""Which lines the tests reach, as a page and a badge: `make test COVERAGE=1`, `make coverage`.

    python -m tests.docs.coverage_page 'make test'

Reads what pytest-cov left in `.coverage`; writes docs/coverage.md, docs/images/coverage.svg and
the badge's line in README.md.
"""

import collections
import json
import pathlib
import sys
import tempfile

import coverage

from tests.docs import markdown

_MARK, _END = '<!-- coverage -->', '<!-- end of coverage -->'
_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="156" height="20" role="img"
  aria-label="lines reached: {percent}"><rect width="112" height="20" fill="#555"/>
  <rect x="112" width="44" height="20" fill="#0072B2"/>
  <g fill="#fff" font-family="Verdana,sans-serif" font-size="11">
  <text x="8" y="14">lines reached</text><text x="120" y="14">{percent}</text></g></svg>
"""
_LINE = '[![Lines that the tests reach: {percent}](docs/images/coverage.svg)](docs/coverage.md)'


def by_package(report: dict) -> dict[str, tuple[int, int]]:
  """(lines that are reached, lines) of each package of coverage.py's JSON report."""
  counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
  for name, measured in report['files'].items():
    own = counts[pathlib.PurePath(name).parts[0]]
    own[0] += measured['summary']['covered_lines']
    own[1] += measured['summary']['num_statements']
  return {package: (reached, every) for package, (reached, every) in sorted(counts.items())}


def percent(reached: int, every: int) -> str:
  """A share in whole percent, never more than it is."""
  return f'{100 * reached // every} %'


def write(report: dict, tests: str, root: pathlib.Path = markdown.ROOT) -> str:
  """Writes page, badge and README's line; gives the share of all lines.

  Args:
    report: coverage.py's, as JSON.
    tests: the command that ran the tests.
    root: of the project.
  """
  counts = {name: own for name, own in by_package(report).items() if own[1]}
  reached, every = (sum(own[i] for own in counts.values()) for i in (0, 1))
  all_of_it = percent(reached, every)
  rows = [f'| `{name}/` | {own[1]:,} | {percent(*own)} |' for name, own in counts.items()]
  table = [
    f'By `{tests}`:', '', '| package | lines | reached |', '| --- | --- | --- |', *rows,
    f'| all | {every:,} | {all_of_it} |',
  ]  # fmt: skip
  _after_mark(root / 'docs' / 'coverage.md', '\n'.join(table))
  _after_mark(root / 'README.md', _LINE.format(percent=all_of_it))
  (root / 'docs' / 'images' / 'coverage.svg').write_text(_BADGE.format(percent=all_of_it))
  return all_of_it


def _after_mark(page: pathlib.Path, words: str) -> None:
  """Puts words between a page's marks."""
  head, mark, rest = page.read_text().partition(_MARK)
  _, end, tail = rest.partition(_END)
  assert mark and end, f'{page} lacks {_MARK} or {_END}'
  page.write_text(f'{head}{mark}\n{words}\n{end}{tail}')


def main() -> None:
  """What the last run of the tests left."""
  measured = coverage.Coverage()
  measured.load()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'report.json'
    measured.json_report(outfile=str(path))
    report = json.loads(path.read_text())
  print(f'The tests reach {write(report, sys.argv[1])} of the lines: docs/coverage.md')


if __name__ == '__main__':
  main()
