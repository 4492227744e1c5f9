"""The figures of one run: its metric and its epsilon against rounds, and its clients."""

import logging
import math
import pathlib
import textwrap
from collections.abc import Iterable, Mapping

import matplotlib
import numpy as np
from matplotlib import figure, ticker

import drawing as house
from experiments.folder import files
from experiments.folder.metrics import EVERYONE, MetricTable


def draw_run(
  table: MetricTable, folder: pathlib.Path, *, title: str, metric: str, delta: float | None
) -> list[pathlib.Path]:
  """Draws `metric` (and epsilon, for a private run) against rounds as PNG, SVG and PDF.

  Args:
    table: the run's metrics.
    folder: where `learning_curve.png`, `.svg` and `.pdf` go.
    title: the figure's title.
    metric: the main metric, 'accuracy' or 'mse'.
    delta: of the guarantee, for the label; None where silos have their own.

  Returns:
    The files written.
  """
  name = 'epsilon' if table.curve('epsilon')[0] else 'deployment_epsilon'
  rounds, epsilons = table.curve(name)
  private = [(r, e) for r, e in zip(rounds, epsilons, strict=True) if math.isfinite(e)]
  with matplotlib.rc_context(house.STYLE):
    drawing = figure.Figure(figsize=(6.4, 5.4 if private else 3.4), layout='constrained')
    panels = drawing.subplots(
      2 if private else 1, 1, sharex=True, squeeze=False,
      height_ratios=(2, 1) if private else (1,),
    )[:, 0]  # fmt: skip
    _draw_metric(panels[0], table, metric)
    panels[0].set_title(title, loc='left', fontsize=11)
    if private:
      # In steps: between two evaluations a straight line would be below the concave curve.
      panels[1].plot(*zip(*private, strict=True), color=house.BLUE, drawstyle='steps-pre')
      panels[1].set_ylim(bottom=0)
      panels[1].set_ylabel(
        name.replace('_', ' ') + (f' (delta {delta:g})' if delta else ' (own deltas)')
      )
    panels[-1].set_xlabel('communication rounds')
    house.mark_rounds(panels[-1], table.curve(f'test_{metric}')[0])
    folder.mkdir(exist_ok=True)
    return save(drawing, folder / 'learning_curve')


def draw_clients(
  table: MetricTable, folder: pathlib.Path, *, title: str, metric: str
) -> list[pathlib.Path]:
  """Draws how `metric` is spread over the clients, as PNG, SVG and PDF.

  Args:
    table: the run's metrics.
    folder: where `clients.png`, `.svg` and `.pdf` go.
    title: the figure's title.
    metric: the main metric, 'accuracy' or 'mse'.

  Returns:
    The files written; none where fewer than two clients have a value.
  """
  names = {f'test_{metric}': 'own model', f'test_global_{metric}': 'global model'}
  if f'test_global_{metric}' not in table.latest():
    names = {f'test_{metric}': 'clients'}
  parts = {label: table.of_clients(name) for name, label in names.items()}
  parts = {label: values for label, values in parts.items() if len(values) > 1}
  if not parts:
    return []
  low, high = house.fences(parts.values())
  bins = np.linspace(low, high, 25).tolist()
  with matplotlib.rc_context(house.STYLE):
    drawing = figure.Figure(figsize=(6.4, 3.4), layout='constrained')
    axes = drawing.subplots()
    hidden = []
    for index, (label, values) in enumerate(parts.items()):
      style, middle = house.line(index), float(np.median(values))
      axes.hist(
        values, bins, histtype='stepfilled', alpha=0.25, color=style.colour, linewidth=0,
      )  # fmt: skip
      axes.hist(
        values, bins, histtype='step', color=style.colour, linestyle=style.dash,
        label=f'{label}, median {middle:.3g}',
      )  # fmt: skip
      axes.axvline(middle, color=style.colour, linestyle=style.dash, linewidth=1)
      beyond = house.beyond(values, low, high)
      hidden += [f'{label}: {beyond}'] * bool(beyond)
    words = f'Not shown of {len(values)} clients: {"; ".join(hidden)}' if hidden else ''
    lines = [title, *textwrap.wrap(words, 76)]
    axes.set_title('\n'.join(lines), loc='left', fontsize=10)
    axes.set_xlabel(f'{house.metric_words(metric)} on the test examples of a client')
    axes.set_ylabel('clients')
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    # Below the axes: few clients are bars of the axes' full height, on which it could not be read.
    drawing.legend(loc='outside lower center', ncols=len(parts))
    folder.mkdir(exist_ok=True)
    return save(drawing, folder / 'clients')


def _draw_metric(axes, table: MetricTable, metric: str) -> None:
  for index, (name, label) in enumerate(_curves(table, metric).items()):
    group, _, key = name.partition('/')
    rounds, values = table.curve(key, group)
    axes.plot(
      rounds, values, label=label, **house.line(index).keywords,
      markevery=max(1, len(rounds) // 40),
    )  # fmt: skip
  axes.set_ylabel(house.metric_words(metric))
  house.label_ends(axes)


def _curves(table: MetricTable, metric: str) -> Mapping[str, str]:
  """'group/name' -> label of every curve of the main metric that the table has."""
  wanted = {
    f'test_{metric}': "clients' test examples",
    f'test_global_{metric}': "clients' test examples, global model",
    f'server_test_{metric}': "server's test set",
  }
  present = table.latest()
  curves = {f'{EVERYONE}/{name}': label for name, label in wanted.items() if name in present}
  for group in table.groups():
    if group != EVERYONE:
      curves[f'{group}/test_{metric}'] = f'test examples of {group.replace("_", " ")}'
  return curves


# What it subsets of a font for a PDF is of no interest in a run's log.
logging.getLogger('fontTools').setLevel(logging.WARNING)

# Without the day on which they were drawn: the same run draws the same files.
_FORMATS: dict[str, dict[str, None]] = {
  '.png': {}, '.svg': {'Date': None}, '.pdf': {'CreationDate': None},
}  # fmt: skip


def save(
  drawing: figure.Figure, stem: pathlib.Path, formats: Iterable[str] = tuple(_FORMATS)
) -> list[pathlib.Path]:
  """Writes a figure, by default as PNG, SVG and PDF, atomically."""
  written = []
  for suffix in formats:
    path = stem.with_suffix(suffix)
    with files.writing_atomically(path) as temporary:
      drawing.savefig(temporary, format=suffix[1:], dpi=150, metadata=_FORMATS[suffix])
    written.append(path)
  return written
