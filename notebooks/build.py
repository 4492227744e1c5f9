"""Builds the notebooks with their outputs from the scripts beside this file: `make notebooks`.

The scripts are in jupytext's percent format. A notebook is its script with a badge that opens it
on Colab, the first cell of all notebooks (`first_cell.py`), and what its cells show. It keeps the
hash of its source, so that only those are run again that changed. The repository's address is the
one in `pyproject.toml`, and is written into notebooks and pages, without a run: while its owner is
OWNER, a placeholder, badges lead nowhere and the first cell asks for a wheel. Needs the extra
`notebooks`.
"""

import argparse
import base64
import hashlib
import io
import os
import pathlib
import re
import tempfile
import tomllib
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent
FIRST_CELL = FOLDER / 'first_cell.py'
PAGES = ('README.md', 'CITATION.cff')
_ADDRESS = "REPOSITORY = ''"
_NOWHERE = 'https://github.com/OWNER/name'  # of the hash, which an address does not change
_PARAMETERS = '# %% tags=["parameters"]'
_COLOURS = 128  # of a picture
_DPI = 72


def scripts() -> list[pathlib.Path]:
  """The scripts that are notebooks."""
  return [p for p in sorted(FOLDER.glob('*.py')) if p.read_text().startswith('# ---\n# jupyter:')]


def repository() -> str:
  """The address of the project's repository."""
  return tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['urls']['Repository']


def badge(name: str, address: str = '') -> str:
  """A link, in Markdown, which opens a notebook on Colab."""
  _, _, path = (address or repository()).partition('github.com/')
  site = 'https://colab.research.google.com'
  target = f'{site}/github/{path}/blob/main/notebooks/{name}.ipynb'
  return f'[![Open in Colab]({site}/assets/colab-badge.svg)]({target})'


def source(script: pathlib.Path, address: str = '') -> str:
  """The whole source of a notebook, in the percent format.

  Args:
    script: its own part.
    address: of the repository; by default the project's.
  """
  address = address or repository()
  first = FIRST_CELL.read_text().replace(_ADDRESS, f'REPOSITORY = {address!r}', 1)
  text = script.read_text()
  text = text.replace(
    '# %% [markdown]\n', f'# %% [markdown]\n# {badge(script.stem, address)}\n#\n', 1
  )
  return text.replace(_PARAMETERS, f'# %%\n{first}\n{_PARAMETERS}', 1)


def digest(script: pathlib.Path) -> str:
  """The hash of a notebook's source, which the built notebook keeps."""
  return hashlib.sha256(source(script, _NOWHERE).encode()).hexdigest()


def is_current(script: pathlib.Path) -> bool:
  """Whether the built notebook beside a script was made from what the script now says."""
  import nbformat

  built = script.with_suffix('.ipynb')
  if not built.exists():
    return False
  return nbformat.read(built, as_version=4).metadata.get('source_sha256') == digest(script)


def convert(script: pathlib.Path, address: str = '') -> Any:
  """The notebook of a script, without outputs.

  Args:
    script: which.
    address: of the repository; by default the project's.
  """
  import jupytext

  notebook = jupytext.reads(source(script, address), fmt='py:percent')
  notebook.metadata.pop('jupytext', None)
  notebook.metadata['source_sha256'] = digest(script)
  for i, cell in enumerate(notebook.cells):
    cell['id'] = f'cell-{i}'  # the same at every build
  return notebook


def execute(notebook: Any) -> None:
  """Runs a notebook, which then has its outputs, in a folder that is removed afterwards."""
  import nbclient

  with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / 'project').symlink_to(ROOT)
    nbclient.NotebookClient(
      notebook, timeout=3600, kernel_name='python3', record_timing=False, coalesce_streams=True,
      resources={'metadata': {'path': folder}},
    ).execute()  # fmt: skip
    notebook.metadata.pop('language_info', None)  # the kernel's; a notebook is alike at every build
    for cell in notebook.cells:
      for output in cell.get('outputs', ()):
        if 'text' in output:
          output['text'] = of_nowhere(output['text'], pathlib.Path(folder))
        picture = output.get('data', {}).get('image/png')
        if picture:
          output['data']['image/png'] = shrink(picture)


def of_nowhere(text: str, folder: pathlib.Path) -> str:
  """A cell's text without this machine's paths: of the working folder, and to the project."""
  return text.replace(f'{folder}/', '').replace(f'{os.path.relpath(ROOT, folder)}/', './')


def shrink(picture: str) -> str:
  """A PNG in base64 with fewer colours, and no wider than a page."""
  from PIL import Image

  image = Image.open(io.BytesIO(base64.b64decode(picture))).convert('RGB')
  image.thumbnail((900, 1400), Image.Resampling.LANCZOS)
  small = io.BytesIO()
  image.quantize(_COLOURS).save(small, 'PNG', optimize=True)
  return base64.b64encode(small.getvalue()).decode()


def build(folder: pathlib.Path, address: str = '') -> list[pathlib.Path]:
  """Writes every notebook, without outputs, into a folder; returns the files."""
  import nbformat

  folder.mkdir(parents=True, exist_ok=True)
  written = []
  for script in scripts():
    written.append(folder / f'{script.stem}.ipynb')
    nbformat.write(convert(script, address), written[-1])
  return written


def renewed(script: pathlib.Path) -> Any:
  """The notebook beside a script with the project's address, and its outputs as they are."""
  import nbformat

  notebook = convert(script)
  built = nbformat.read(script.with_suffix('.ipynb'), as_version=4)
  for cell, old in zip(notebook.cells, built.cells, strict=True):
    if cell.cell_type == 'code':
      cell.update(outputs=old.outputs, execution_count=old.execution_count)
  return notebook


def addressed(text: str, address: str = '') -> str:
  """A page with the repository's address in the place of the one that it has.

  Args:
    text: of the page.
    address: of the repository; by default the project's.
  """
  path = (address or repository()).removeprefix('https://github.com/')
  name = re.escape(path.partition('/')[2])
  return re.sub(rf'(github(?:\.com)?/)[\w.-]+/{name}\b', rf'\g<1>{path}', text)


def main() -> None:
  """Builds the notebooks that are older than their sources."""
  import nbformat

  parser = argparse.ArgumentParser(prog='make notebooks', description=__doc__.splitlines()[0])
  parser.add_argument('names', nargs='*', help='which; by default those whose sources changed')
  names = parser.parse_args().names
  known = {script.stem for script in scripts()}
  if unknown := sorted(set(names) - known):
    parser.error(f'{unknown[0]} is none of {", ".join(sorted(known))}')
  for script in scripts():
    if script.stem in names or (not names and not is_current(script)):
      print(f'notebooks/{script.stem}.ipynb ...', flush=True)
      notebook = convert(script)
      execute(notebook)
      nbformat.write(notebook, script.with_suffix('.ipynb'))
    elif is_current(script):
      nbformat.write(renewed(script), script.with_suffix('.ipynb'))
  for page in (ROOT / name for name in PAGES):
    page.write_text(addressed(page.read_text()))


if __name__ == '__main__':
  main()
