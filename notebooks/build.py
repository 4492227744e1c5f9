"""Builds the notebooks from their scripts: `python notebooks/build.py [FOLDER]`.

The scripts are in jupytext's percent format. Needs the extra `notebooks`.
"""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def scripts() -> list[pathlib.Path]:
  """The scripts that are notebooks."""
  return [p for p in sorted(FOLDER.glob('*.py')) if p.read_text().startswith('# ---\n# jupyter:')]


def build(folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes every notebook into a folder; returns the files."""
  import jupytext

  folder.mkdir(parents=True, exist_ok=True)
  written = []
  for script in scripts():
    target = folder / f'{script.stem}.ipynb'
    jupytext.write(jupytext.read(script), target)
    written.append(target)
  return written


if __name__ == '__main__':
  for path in build(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
    print(path)
