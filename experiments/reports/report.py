"""A report on runs and sweeps: `./fl report DIR...`.

Writes a folder with `report.html`, which holds everything and needs no other file, and
every figure as PNG, SVG and PDF with its data as CSV. Works on runs that still go on.
"""

import argparse
import csv
import io
import pathlib
import sys
from collections.abc import Sequence

import pandas as pd

from experiments.folder import files
from experiments.reports import figures as report_figures
from experiments.reports import html, mechanisms, personalization, sections
from experiments.reports.data import ReportData, read, title_of
from experiments.running import interruption


def write(
  folders: Sequence[str | pathlib.Path],
  output: str | pathlib.Path | None = None,
  *,
  title: str = '',
  verdict: pd.DataFrame | None = None,
  verdict_of: str = '',
  notes: Sequence[str] = (),
) -> pathlib.Path:
  """Writes a report on all runs in and below some folders.

  Args:
    folders: folders of runs or sweeps, or folders with such folders.
    output: the report's folder; `report` in the first folder by default.
    title: heading of the page.
    verdict: what `reproduce.compare` gave, for a recipe.
    verdict_of: what is to be said beside it of the runs' settings.
    notes: sentences that a reader has to know.

  Returns:
    The path of report.html.

  Raises:
    ValueError: a folder without runs.
    OSError: the report cannot be written.
  """
  paths = [pathlib.Path(folder) for folder in folders]
  data = read(paths)
  for why in data.left_out:
    print(f'Left out: {why}', file=sys.stderr)
  target = pathlib.Path(output) if output else paths[0] / 'report'
  try:
    target.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f'no report can be written to {target} ({error.strerror}).') from error
  drawings = report_figures.draw_all(data, (*mechanisms.FIGURES, *personalization.FIGURES))
  for drawing in drawings:
    drawing.save(target)
  overview = sections.overview(data)
  _write_csv(target / 'overview.csv', (overview.heading, overview.rows))
  page = html.page(
    title=title or _default_title(data),
    subtitle=sections.status(data),
    parts=[
      *(html.paragraph(note) for note in notes),
      *(html.paragraph(f'Left out: {why}', warning=True) for why in data.left_out),
      *(sections.figure(drawing, target) for drawing in drawings[:1]),
      sections.verdict(verdict, verdict_of),
      sections.results(data, overview),
      *(sections.selection(path) for path in paths),
      sections.statements(data),
      *(sections.figure(drawing, target) for drawing in drawings[1:]),
      sections.configurations(data),
    ],
  )
  files.write_atomically(target / 'report.html', page.encode())
  return target / 'report.html'


def _write_csv(path: pathlib.Path, table: tuple[list[str], list[list[str]]]) -> None:
  buffer = io.StringIO()
  csv.writer(buffer).writerows([table[0], *table[1]])
  files.write_atomically(path, buffer.getvalue().encode())


def _default_title(data: ReportData) -> str:
  names = list(dict.fromkeys(run.config.dataset for run in data.runs))
  methods = list(dict.fromkeys(title_of(run.config.method) for run in data.runs))
  return f'{", ".join(methods)} on {", ".join(names)}'


def main(argv: Sequence[str]) -> int:
  """Writes the report that the command line asks for.

  Returns:
    0, 2 for an error, 130 or 143 after a signal.
  """
  parser = argparse.ArgumentParser(prog='./fl report', description='A page on runs and sweeps.')
  parser.add_argument('folders', nargs='+', metavar='DIR', help='folder of a run or a sweep')
  parser.add_argument('--output', default='', help='the report; default: report/ in the first DIR')
  parser.add_argument('--title', default='', help='heading of the page')
  arguments = parser.parse_args(argv[1:])
  try:
    with interruption.command(), interruption.Interruption():
      print(write(arguments.folders, arguments.output or None, title=arguments.title))
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  except interruption.Interrupted as stopped:
    print('stopped; the same command writes the report', file=sys.stderr)
    return stopped.exit_code
  return 0
