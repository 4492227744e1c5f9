"""How a report's figures look: panels, lines, and what is kept of a figure.

Colours, markers and dashes are the house's (`drawing`): lines differ in all three, so that every
figure can be read without colour.
"""

import dataclasses
import functools
import math
import pathlib
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import figure, ticker

import drawing as house
import processes.registry
from experiments.folder import figures, files
from experiments.reports.data import title_of

WORDS = {name: f'test {house.metric_words(name)}' for name in ('accuracy', 'mse')}
LABEL_WIDTH = 38  # characters
NARROW = 24  # of a line's own label
TICK_GAP = 0.11  # of the axis, between two values' ticks
_LOG_FROM = 2.0  # errors that differ by this factor
_CROWDED = 0.3  # the share of all values' spread under which a part of them is drawn again
# Columns of figures' tables that hold words, be they empty.
_WORDS_IN = (
  'problem', 'method', 'setting', 'panel', 'group', 'metric', 'along', 'mechanism', 'comparison',
  'client',
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
  """One figure, and the table that it is drawn from.

  Attributes:
    name: of its files.
    title: what it shows.
    caption: how to read it, and how what it shows was chosen.
    data: all that is drawn; `draw` sees nothing else, so that a stored table can be drawn again.
    draw: makes the figure of such a table.
  """

  name: str
  title: str
  caption: str
  data: pd.DataFrame
  draw: Callable[[pd.DataFrame], figure.Figure]

  @functools.cached_property
  def drawing(self) -> figure.Figure:
    """The figure."""
    with matplotlib.rc_context(house.STYLE):
      return self.draw(self.data)

  def save(self, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes PNG, SVG, PDF and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(house.STYLE):
      written = figures.save(self.drawing, folder / self.name)
    return [*written, self.save_table(folder)]

  def save_table(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes CSV."""
    path = folder / f'{self.name}.csv'
    with files.writing_atomically(path) as temporary:
      self.data.to_csv(temporary, index=False)
    return path


def read_table(path: pathlib.Path) -> pd.DataFrame:
  """The table of a figure, as `Drawing.save` wrote it."""
  table = pd.read_csv(path, dtype=dict.fromkeys(_WORDS_IN, str), float_precision='round_trip')
  return table.fillna({name: '' for name in _WORDS_IN if name in table})


def metric_of(table: pd.DataFrame) -> str:
  """'accuracy' or 'mse', by a table's column `metric`."""
  return 'accuracy' if 'accuracy' in table['metric'].iloc[0] else 'mse'


def epsilon_of(table: pd.DataFrame) -> str:
  """'epsilon', and whose it is where that is not the clients who are here (`epsilon_of`)."""
  return f'epsilon of {table["epsilon_of"].iloc[0]}' if 'epsilon_of' in table else 'epsilon'


def panels(
  count: int,
  *,
  columns: int = 3,
  each: tuple[float, float] = (3.3, 3.4),
  margin: float = 0.0,
  share_x: bool = True,
  share_y: bool = True,
) -> tuple[figure.Figure, list]:
  """A figure of panels.

  Args:
    count: how many.
    columns: of them in a row, at most.
    each: inches of one, width and height.
    margin: further inches to the right of all.
    share_x: whether all have the same x axis, whose ticks each one shows.
    share_y: whether all have the same y axis.

  Returns:
    (figure, the panels row by row).
  """
  columns = min(columns, count)
  rows = -(-count // columns)
  drawing = figure.Figure(
    figsize=(each[0] * columns + margin, each[1] * rows), layout='constrained'
  )
  every = drawing.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y).ravel()
  for axes in every[count:]:
    axes.remove()
  for axes in every[:count]:
    axes.tick_params(labelbottom=True)
  return drawing, list(every[:count])


def lines_of_methods(axes, points: pd.DataFrame, x: str) -> None:
  """A line for each method, in its own style, with a band of one standard deviation."""
  methods = list(points.groupby('method', sort=False))
  for method, own in methods:
    curve(
      axes, own.sort_values(x), x, style_of(str(method)), title_of(str(method)), of=len(methods)
    )


def curve(
  axes, points: pd.DataFrame, x: str, style: house.Line, label: str, *, of: int = 1, **further
) -> None:
  """A line of means, with a band of one standard deviation where there are several seeds.

  Args:
    axes: where.
    points: with the columns `x`, mean, std and seeds.
    x: a column.
    style: of the line.
    label: of the line.
    of: how many lines there are: the bands of many are paler.
    **further: for matplotlib.
  """
  axes.plot(points[x], points['mean'], **style.keywords, label=label, **further)
  if len(points) and points['seeds'].max() > 1:
    low, high = points['mean'] - points['std'], points['mean'] + points['std']
    opacity = 0.18 if of < 4 else 0.08
    axes.fill_between(points[x], low, high, color=style.colour, alpha=opacity, linewidth=0)


def line_across(axes, value: float, method: str, words: str = '') -> None:
  """A method that does not depend on the x axis."""
  style = style_of(method)
  axes.axhline(
    value, color=style.colour, linestyle=style.dash, linewidth=1.3, label=title_of(method) + words
  )


def style_of(method: str) -> house.Line:
  """A method's line: the same in every figure."""
  names = list(processes.registry.METHODS)
  return house.line(names.index(method) if method in names else len(names))


def styles_of(methods: Sequence[str]) -> list[house.Line]:
  """The styles of lines of these methods: the method's own, in shades where it has several."""
  shades = {m: iter(house.shades(style_of(m), methods.count(m))) for m in set(methods)}
  return [next(shades[method]) for method in methods]


def scale_strengths(axes, values: pd.Series, *, gap: float = TICK_GAP) -> None:
  """A log scale that has a place for zero, with a tick for each value that fits."""
  positive, every = values[values > 0], sorted(set(values))
  least = float(positive.min()) if len(positive) else 1.0
  axes.set_xscale('symlog', linthresh=least)
  # A little room to either side, in decades; zero is one decade left of the least strength.
  axes.set_xlim(-0.2 * least if every[0] <= 0 else 0.8 * least, 1.25 * max(every[-1], least))
  ticks_apart(axes, every, gap=gap)


def ticks_apart(
  axes,
  every: Sequence[float],
  words: Callable[[float], str] = '{:.4g}'.format,
  *,
  gap: float = TICK_GAP,
) -> None:
  """Ticks of the x axis at the ends of these sorted values, and at those that keep apart.

  Args:
    axes: with its scale.
    every: the values.
    words: of a tick.
    gap: between ticks, a share of the axis.
  """
  across = axes.transScale.transform([(value, 1.0) for value in every])[:, 0]
  gap *= abs(across[-1] - across[0])
  kept = [len(every) - 1]
  for place in (0, *range(1, len(every) - 1)):
    if all(abs(across[place] - across[other]) >= gap for other in kept):
      kept.append(place)
  shown = [every[place] for place in sorted(kept)]
  axes.set_xticks(shown, [words(value) for value in shown])
  axes.xaxis.set_minor_locator(ticker.NullLocator())


def scale_errors(axes, metric: str) -> None:
  """A log scale for errors that differ by much: there, what happens near the best is seen."""
  values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
  values = values[np.isfinite(values)]
  if not axes.get_autoscaley_on():  # what is seen of them
    low, top = axes.get_ylim()
    values = values[(low <= values) & (values <= top)]
  if metric != 'mse' or not len(values) or values.min() <= 0:
    return
  if values.max() > _LOG_FROM * values.min():
    house.log_y(axes)


def leave_out_far(axes, curves: pd.DataFrame, ends: pd.Series) -> None:
  """Keeps a method that goes wrong from flattening all others: its line leaves the picture.

  Seen are the best of every method and the ends, and as much again beyond the worst of these, or
  what seeds do; and all of the method whose line is the flattest.

  Args:
    axes: where.
    curves: method, mean, std, metric.
    ends: means of the methods that are lines across.
  """
  is_error = metric_of(curves) == 'mse'
  bests = curves.groupby('method')['mean'].agg('min' if is_error else 'max')
  seen, stds = pd.concat([bests, ends]).dropna(), curves['std'].fillna(0.0)
  low, top = float(seen.min()), float(seen.max())
  flattest = 1.1 * min(_spread(means) for _, means in curves.groupby('method')['mean'])
  room = max(top - low, 2 * float(stds.median()), flattest)
  far = curves['mean'] > top + room if is_error else curves['mean'] < low - room
  if room == 0 or not far.any() or len(seen) == 1:  # a line by itself flattens no other
    return
  if is_error:
    axes.set_ylim(min(low, (curves['mean'] - stds)[~far].min()) - 0.05 * room, top + room)
  else:
    axes.set_ylim(low - room, max(top, (curves['mean'] + stds)[~far].max()) + 0.05 * room)


def is_crowded(part: pd.DataFrame, every: pd.DataFrame) -> bool:
  """Whether these means are hard to tell apart beside all, and could be told by themselves.

  They could not if they were all within what a seed does.
  """
  spread = _spread(part['mean'])
  return spread < _CROWDED * _spread(every['mean']) and part['std'].fillna(0.0).median() <= spread


def _spread(values: pd.Series) -> float:
  return float(values.max() - values.min())


def fit(axes, curves: pd.DataFrame) -> str:
  """Keeps one run that has diverged, and the untrained start, from flattening all others.

  Args:
    axes: where.
    curves: round, mean, std, metric.

  Returns:
    Words on the start if it is not shown, else ''.
  """
  top, low = curves['mean'].quantile(0.98), curves['mean'].min()
  if math.isfinite(top) and curves['mean'].max() > low + 5 * (top - low) > low:
    axes.set_ylim(top=top + 0.2 * (top - low))
  start = curves['round'] == curves['round'].min()
  rest = curves[~start]
  seen, every = rest['mean'], curves['mean']
  if metric_of(curves) == 'mse' and every.min() > 0:
    seen, every = np.log(seen), np.log(every)  # as `scale_errors` shows them
  if not 0 < _spread(seen) < _CROWDED * _spread(every):
    return ''
  low, top = (rest['mean'] - rest['std']).min(), (rest['mean'] + rest['std']).max()
  margin = 0.05 * (top - low)
  axes.set_ylim(max(low - margin, 0.0), top + margin)
  return (
    f'from {curves.loc[start, "mean"].mean():.2g} at round {curves["round"].min():g}, not shown'
  )


def wrapped(names: Sequence[str]) -> list[str]:
  """Names broken into lines."""
  return [textwrap.fill(name, LABEL_WIDTH) for name in names]


def height_of(names: Sequence[str]) -> float:
  """Inches for a row of each name."""
  lines = max(words.count('\n') + 1 for words in wrapped(names))
  return (0.25 + 0.15 * lines) * len(names)
