"""Reads the project's pages: their code blocks and the commands in them."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'

_FENCED = re.compile(r'^```(\w*)(?: *(\S+))?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def pages() -> list[pathlib.Path]:
  """Every page of docs/ and the README."""
  return [*sorted(DOCS.rglob('*.md')), ROOT / 'README.md']


def blocks(page: pathlib.Path, language: str) -> list[tuple[str, str]]:
  """(file name or '', code) of every fenced block of a language, in order.

  A block that shows a whole file has the file's name behind its language:
  ```python processes/my_method.py
  """
  return [
    (f or '', code) for lang, f, code in _FENCED.findall(page.read_text()) if lang == language
  ]


def commands(text: str) -> list[list[str]]:
  """The arguments of every `python run_experiment.py ...` of a text."""
  joined = re.sub(r'\\\n\s*', ' ', text)
  found = re.findall(r'^\s*python run_experiment\.py ([^\n`#]*)$', joined, re.MULTILINE)
  return [shlex.split(arguments) for arguments in found]
