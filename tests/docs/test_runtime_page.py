"""The page about the runtime is a program that runs."""

import os
import subprocess
import sys

import pytest

from tests.docs import markdown

PAGE = markdown.DOCS / 'runtime.md'


@pytest.mark.slow
def test_the_code_runs_as_it_stands(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text('\n'.join(code for _, code in markdown.blocks(PAGE)))
  done = subprocess.run(
    [sys.executable, program],
    env={**os.environ, 'PYTHONPATH': str(markdown.ROOT)},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert 'examples in the last round' in done.stdout
