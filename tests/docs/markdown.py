"""Reads the project's pages: their code blocks and the commands in them."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'

_PYTHON = re.compile(r'^```python([^\n]*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def pages() -> list[pathlib.Path]:
  """Every page of docs/ and the README."""
  return [*sorted(DOCS.rglob('*.md')), ROOT / 'README.md']


def blocks(page: pathlib.Path) -> list[tuple[str, str]]:
  """(what stands behind the language, code) of every block of Python, in order."""
  return [(info.strip(), code) for info, code in _PYTHON.findall(page.read_text())]


def commands(text: str) -> list[list[str]]:
  """The arguments of every `python run_experiment.py ...` of a text."""
  joined = re.sub(r'\\\n\s*', ' ', text)
  found = re.findall(r'^\s*python run_experiment\.py ([^\n`#]*)$', joined, re.MULTILINE)
  return [shlex.split(arguments) for arguments in found]
