"""A figure of a paper's theory: its curves, and the numbers that the paper reads off them."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import figure

import drawing

_MOST_IN_A_ROW = 3  # panels; more are set in two columns


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
  """Curves over one x axis.

  Attributes:
    title: above them.
    x_label: name of the x axis.
    curves: (x, y) by label, each [points].
    log_x: whether the x axis is logarithmic beyond its smallest positive value.
  """

  title: str = ''
  x_label: str
  curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
  log_x: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
  """Panels side by side, or in two columns.

  Attributes:
    panels: from left to right.
    y_label: name of the y axis, which they share.
    log_y: whether the y axis is logarithmic.
    numbers: what is read off the curves, by name.
    cases: the same for each of several cases, by its name and the number's.
  """

  panels: tuple[Panel, ...]
  y_label: str
  log_y: bool = False
  numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
  cases: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

  def draw(self) -> figure.Figure:
    """The drawing."""
    columns = len(self.panels) if len(self.panels) <= _MOST_IN_A_ROW else 2
    rows = -(-len(self.panels) // columns)
    size = (3.9 * columns + 1.4, 3.4 * rows)
    page = figure.Figure(figsize=size, layout='constrained')
    grid = page.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, panel in zip(grid.ravel(), self.panels, strict=True):
      for i, (label, (x, y)) in enumerate(panel.curves.items()):
        style = drawing.line(i)
        axes.plot(x, y, label=label, color=style.colour, linestyle=style.dash)
      if panel.log_x:
        positive = np.concatenate([x[x > 0] for x, _ in panel.curves.values()])
        axes.set_xscale('symlog', linthresh=float(positive.min()))
      axes.set_yscale('log' if self.log_y else 'linear')
      axes.set_title(panel.title, fontsize=10, loc='left')
      axes.set_xlabel(panel.x_label)
    for axes in grid[:, 0]:
      axes.set_ylabel(self.y_label)
    same = len({tuple(panel.curves) for panel in self.panels}) == 1
    for axes in grid[:, -1] if same else grid.ravel():
      drawing.label_ends(axes)
    return page

  def table(self) -> pd.DataFrame:
    """The curves' points: panel, curve, x, y."""
    parts = [
      pd.DataFrame({'panel': panel.title, 'curve': label, 'x': x, 'y': y})
      for panel in self.panels
      for label, (x, y) in panel.curves.items()
    ]
    return pd.concat(parts, ignore_index=True)
