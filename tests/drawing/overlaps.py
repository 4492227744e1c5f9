"""Finds what a reader would stumble over in a figure: measured from the renderer's boxes."""

import itertools
import re

from matplotlib import text
from matplotlib.backends import backend_agg

_SLACK = 1.0  # pixels
# What an axis counts or names; all else has its unit, or that it has none, in brackets.
_WITHOUT_UNIT = ('communication rounds', 'clients', 'clients, sorted', 'setting')


def faults(figure) -> list[str]:
  """Texts that overlap or leave the canvas, lines that look alike, axes without label or unit."""
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  renderer = canvas.get_renderer()
  found = []
  boxes = []
  hidden = {label for axes in figure.axes for label in _hidden_labels(axes)}
  for artist in figure.findobj(text.Text):
    if artist.get_visible() and artist.get_text().strip():
      box = text.Text.get_window_extent(artist, renderer)
      if box.width and box.height and artist not in hidden:
        boxes.append((artist.get_text(), box))
  width, height = canvas.get_width_height()
  for words, box in boxes:
    if min(box.x0, box.y0) < -_SLACK or box.x1 > width + _SLACK or box.y1 > height + _SLACK:
      found.append(f'{words!r} leaves the canvas')
  for (one, box), (other, second) in itertools.combinations(boxes, 2):
    across = min(box.x1, second.x1) - max(box.x0, second.x0)
    along = min(box.y1, second.y1) - max(box.y0, second.y0)
    if across > _SLACK and along > _SLACK:
      found.append(f'{one!r} overlaps {other!r}')
  for axes in figure.axes:
    styles: dict[tuple, str] = {}
    for line in axes.get_lines():
      name = str(line.get_label())
      if name.startswith('_'):
        continue
      style = (line.get_color(), line.get_marker(), str(line.get_linestyle()), line._dash_pattern)
      if str(style) in styles:
        found.append(f'{name!r} looks like {styles[str(style)]!r}')
      styles[str(style)] = name
    for which, axis in (('x', axes.xaxis), ('y', axes.yaxis)):
      shared = axes.get_shared_x_axes() if which == 'x' else axes.get_shared_y_axes()
      group = [a for a in figure.axes if a is axes or shared.joined(a, axes)]
      labels = [a.get_xlabel() if which == 'x' else a.get_ylabel() for a in group]
      labels.append(figure.get_supxlabel() if which == 'x' else figure.get_supylabel())
      if (
        not any(labels)
        and axis.get_ticklabels()
        and any(tick.get_text() for tick in axis.get_ticklabels())
      ):
        found.append(f'the {which} axis of {axes.get_title(loc="left")!r} has no label')
      found += [f'{label!r} has no unit' for label in set(labels) if label and not _has_unit(label)]
  return found


def _has_unit(label):
  return label in _WITHOUT_UNIT or re.search(r'\(.+\)', label)


def _hidden_labels(axes):
  """Labels of ticks beyond an axis' limits: objects which are not drawn."""
  for axis in (axes.xaxis, axes.yaxis):
    low, high = sorted(axis.get_view_interval())
    for tick in (*axis.majorTicks, *axis.minorTicks):
      if not low <= tick.get_loc() <= high:
        yield from (tick.label1, tick.label2)
