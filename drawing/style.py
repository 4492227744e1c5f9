"""The style sheet."""

import dataclasses
from typing import Any

COLOURS = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#7A4B12',
  '#6A3D9A', '#8A8A8A',
)  # fmt: skip
"""Okabe and Ito's, told apart with every kind of colour blindness, and more by lightness."""
BLUE = COLOURS[0]
"""The first of `COLOURS`."""
ORANGE = COLOURS[1]
"""The second of `COLOURS`."""
GREY = '#666666'
"""Of what is only there to compare with."""
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<', '>', '*')
"""One for each of `COLOURS`."""
DASHES: tuple[Any, ...] = (
  '-', (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2.6)),
  (0, (9, 3)),
)  # fmt: skip
MOST_STYLES = len(COLOURS) * len(DASHES)
"""How many lines `line` can tell apart."""

STYLE = {
  'font.size': 10,
  'axes.titlesize': 10,
  'axes.titlelocation': 'left',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#dddddd',
  'grid.linewidth': 0.6,
  'legend.frameon': False,
  'legend.fontsize': 8,
  'lines.linewidth': 1.6,
  'lines.markersize': 4,
  'errorbar.capsize': 2,
  'pdf.fonttype': 42,  # text stays text
  'svg.fonttype': 'none',
  'svg.hashsalt': 'private-federated-learning',  # the same run draws the same file
}
"""The style sheet of every figure, for `matplotlib.rc_context`."""

# With what it is measured in, where a name does not say it.
_METRICS = {
  'accuracy': 'accuracy (fraction)',
  'mse': 'mean squared error (target²)',
  'loss': 'loss (mean of examples)',
  'train_loss': 'training loss (mean of examples)',
  'excess_risk': 'excess risk (target²)',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """How one line is drawn.

  Attributes:
    colour: hexadecimal.
    marker: of matplotlib.
    dash: a matplotlib line style.
  """

  colour: str
  marker: str
  dash: Any

  @property
  def keywords(self) -> dict[str, Any]:
    """For `axes.plot` and `axes.errorbar`."""
    return {'color': self.colour, 'marker': self.marker, 'linestyle': self.dash}


def line(index: int) -> Line:
  """The style of line number `index`: `MOST_STYLES` differ, the first ten in colour and marker.

  Raises:
    ValueError: a negative number.
  """
  if index < 0:
    raise ValueError(f'a line has a number from 0, got {index}.')
  # Steps without a common divisor: a colour that comes again has another dash and marker, and the
  # lines that share it are not ten apart, as the first of two groups of lines would be.
  turn, place = divmod(index, len(COLOURS))
  return Line(
    colour=COLOURS[(place + 4 * turn) % len(COLOURS)],
    marker=MARKERS[(place + 3 * turn) % len(MARKERS)],
    dash=DASHES[(place + turn) % len(DASHES)],
  )


def shades(of: Line, count: int) -> list[Line]:
  """Styles of several lines of one kind: its colour from light to dark, each with its own marker.

  Args:
    of: the style of one such line, which it keeps if it is alone.
    count: how many there are.
  """
  if count == 1:
    return [of]
  first = MARKERS.index(of.marker)
  # A share of white in the light half, of black in the dark one.
  depths = [0.4 - 0.9 * place / (count - 1) for place in range(count)]
  return [
    Line(
      colour=_mixed(of.colour, depth),
      marker=MARKERS[(first + place) % len(MARKERS)],
      dash=DASHES[place % len(DASHES)],
    )
    for place, depth in enumerate(depths)
  ]


def _mixed(colour: str, depth: float) -> str:
  """A colour with a share of white, or (below 0) of black."""
  end, share = (255.0, depth) if depth > 0 else (0.0, -depth)
  parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
  mixed = [round(part + (end - part) * share) for part in parts]
  return '#' + ''.join(f'{part:02X}' for part in mixed)


def metric_words(name: str) -> str:
  """What a metric's axis says: its name and its unit."""
  return _METRICS.get(name, f'{name.replace("_", " ")} (mean of examples)')
