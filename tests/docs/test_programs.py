"""Pages whose blocks of code are one program: it runs as it stands."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs import markdown


@pytest.mark.exhaustive(but=['runtime.md-examples in the last round'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'page, said',
  [('runtime.md', 'examples in the last round'), ('python_api.md', 'Guarantee: epsilon = ')],
)
def test_the_code_runs(tmp_path, page, said):
  program = tmp_path / 'program.py'
  blocks = [code for _, code in markdown.blocks(markdown.DOCS / page)]
  if page == 'python_api.md':  # what its comment says of a shape
    blocks.append('print(f\'NumPy [{len(weights["weights"])}, ...]\')')
  program.write_text('\n'.join(blocks))
  done = subprocess.run(
    [sys.executable, program],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(markdown.ROOT)},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert said in done.stdout
  for shape in re.findall(r'NumPy \[.*\]', (markdown.DOCS / page).read_text()):
    assert shape in done.stdout
