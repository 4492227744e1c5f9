"""Names at the ends of the lines, where a legend would have to be looked up."""

from collections.abc import Iterable
from typing import Any

import numpy as np

_LINE = 1.25  # of the letters' size
_AT_THE_SIDE = 0.93  # of the axes' width


def label_ends(axes: Any, labels: dict[Any, str] | None = None, *, size: float = 8) -> None:
  """Writes each line's name behind its last point, in its colour, one above the other.

  The axes' scales must stand already; no line may be added later.

  Args:
    axes: of matplotlib.
    labels: names by line; by default the lines' own labels.
    size: of the letters, in points.
  """
  if labels is None:
    labels = {line: line.get_label() for line in axes.get_lines()}
  labels = {line: name for line, name in labels.items() if name and not name.startswith('_')}
  # What follows is measured in the limits, which matplotlib finds when they are asked for.
  axes.get_xlim(), axes.get_ylim()
  ends = {line: end for line in labels if (end := _end(axes, line)) is not None}
  if not ends:
    return
  rows = {line: labels[line].count('\n') + 1 for line in ends}
  box = axes.get_position()
  points = box.height * axes.figure.get_figheight() * 72
  heights = _spread(
    np.array([height for _, height in ends.values()]),
    np.array([_LINE * size * rows[line] / points for line in ends]),
  )
  for line, height in zip(ends, heights, strict=True):
    # A line that ends early has a leader across the axes, which must not look like more of it.
    crosses = ends[line][0] < _AT_THE_SIDE
    axes.annotate(
      labels[line], ends[line], xytext=(1.03, height), xycoords='axes fraction',
      textcoords='axes fraction', va='center', ha='left', fontsize=size, color=line.get_color(),
      annotation_clip=False,
      arrowprops=dict(
        arrowstyle='-', color=line.get_color(), linewidth=0.6, alpha=0.6, shrinkA=0,
        shrinkB=6 if crosses else 2, linestyle=(0, (1, 5)) if crosses else '-',
        relpos=(0, 0.5),  # from the name's left end: through no other name
      ),
    )  # fmt: skip


def height_of_ends(labels: Iterable[str], *, size: float = 8) -> float:
  """Inches that axes need for `label_ends` to have room for these names."""
  return sum(label.count('\n') + 1 for label in labels) * _LINE * size / 72


def _end(axes: Any, line: Any) -> tuple[float, float] | None:
  """Where a line ends, or leaves, as shares of the axes' width and height; None for no line."""
  points = np.stack([np.asarray(line.get_xdata()), np.asarray(line.get_ydata())], -1)
  points = points.astype(np.float64)[np.isfinite(points.astype(np.float64)).all(-1)]
  if not len(points):
    return None
  places = axes.transAxes.inverted().transform(line.get_transform().transform(points))
  inside = np.flatnonzero((places[:, 1] >= 0.0) & (places[:, 1] <= 1.0))
  end = places[-1]
  if len(inside) and inside[-1] < len(places) - 1:
    last, following = places[inside[-1]], places[inside[-1] + 1]
    border = 1.0 if following[1] > 1.0 else 0.0
    end = last + (following - last) * (border - last[1]) / (following[1] - last[1])
  across, up = np.clip(end, 0.0, 1.0)
  return float(across), float(up)


def _spread(heights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Moves heights apart, in their order, until each has its size; as little as that takes."""
  order = np.argsort(heights, kind='stable')
  offsets = np.concatenate([[0.0], np.cumsum((sizes[order][:-1] + sizes[order][1:]) / 2)])
  # Isotonic regression of what is left of the heights: pools of neighbours share their mean.
  pools: list[list[float]] = []
  for value in heights[order] - offsets:
    pools.append([value, 1.0])
    while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
      mean, count = pools.pop()
      pools[-1] = [
        (pools[-1][0] * pools[-1][1] + mean * count) / (pools[-1][1] + count), pools[-1][1] + count
      ]  # fmt: skip
  level = np.concatenate([np.full(int(count), mean) for mean, count in pools])
  # Inside the axes, as far as there is room: the title is above them.
  level = np.maximum(np.minimum(level, 1.0 - offsets[-1] - sizes[order[-1]] / 2), 0.0)
  result = np.empty_like(heights)
  result[order] = level + offsets
  return result
