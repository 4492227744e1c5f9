"""Builds the notebooks from their scripts: `python notebooks/build.py [FOLDER] [ADDRESS]`.

The scripts are in jupytext's percent format. With the address of a repository that has this
project the notebooks also work on their own, on Colab for one: their first cell clones it.
Needs the extra `notebooks`.
"""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
_ADDRESS = "REPOSITORY = ''"


def scripts() -> list[pathlib.Path]:
  """The scripts that are notebooks."""
  return [p for p in sorted(FOLDER.glob('*.py')) if p.read_text().startswith('# ---\n# jupyter:')]


def build(folder: pathlib.Path, repository: str = '') -> list[pathlib.Path]:
  """Writes every notebook into a folder; returns the files.

  Args:
    folder: where.
    repository: what `git clone` is given where a notebook is not inside the project.
  """
  import jupytext

  folder.mkdir(parents=True, exist_ok=True)
  written = []
  for script in scripts():
    target = folder / f'{script.stem}.ipynb'
    text = script.read_text().replace(_ADDRESS, f'REPOSITORY = {repository!r}', 1)
    jupytext.write(jupytext.reads(text, fmt='py:percent'), target)
    written.append(target)
  return written


if __name__ == '__main__':
  for path in build(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER, *sys.argv[2:3]):
    print(path)
