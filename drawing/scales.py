"""Axes that show the message: ticks where something was measured, log scales that can be read."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import ticker

_MOST_TICKS = 7
_LEAST_GAP = 0.08  # of an axis, between ticks
_LEAST_TICKS = 3  # of a log scale, whose ticks in a decade are the first of these that give so many
_LOG_STEPS = ((1,), (1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))


def mark_rounds(axes: Any, rounds: Iterable[float]) -> None:
  """Ticks of the x axis at some of these rounds, the first and the last among them."""
  every = sorted(set(rounds))
  last = len(every) - 1
  if last < 1:
    places = range(last + 1)
  else:
    # Evenly spaced if the number allows it.
    even = (m for m in range(_MOST_TICKS, 2, -1) if last % (m - 1) == 0)
    count = next(even, min(len(every), _MOST_TICKS - 1))
    places = np.unique(np.linspace(0, last, count).round().astype(int))
  chosen = [every[place] for place in places]
  # Where rounds lie unevenly, numbers beside each other would read as one.
  apart = _LEAST_GAP * (every[-1] - every[0]) if every else 0.0
  ticks = chosen[:1]
  for tick in chosen[1:-1]:
    if tick - ticks[-1] >= apart and every[-1] - tick >= apart:
      ticks.append(tick)
  ticks += chosen[1:][-1:]
  axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  axes.xaxis.set_minor_locator(ticker.NullLocator())


def log_y(axes: Any) -> None:
  """A log scale of the y axis whose ticks have plain numbers, and whose label says so."""
  axes.set_yscale('log')
  if axes.get_ylabel():
    axes.set_ylabel(f'{axes.get_ylabel()}\nlog scale')
  low, high = axes.get_ylim()
  decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
  for steps in _LOG_STEPS:
    ticks = np.outer(steps, 10.0**decades)
    if np.count_nonzero((low <= ticks) & (ticks <= high)) >= _LEAST_TICKS:
      break
  axes.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
  axes.yaxis.set_minor_locator(ticker.NullLocator())


def fences(parts: Iterable[Any], *, boxes: float = 3.0) -> tuple[float, float]:
  """Where an axis may end so that the middle of all parts is seen.

  Args:
    parts: the values of each part; what is not finite lies beyond.
    boxes: how many interquartile ranges beyond the middle half are shown.

  Returns:
    (low, high): the extremes, unless they lie further out than that.
  """
  lows, highs = [], []
  for values in parts:
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    if not len(known):
      continue
    lower, upper = np.quantile(known, [0.25, 0.75])
    reach = boxes * (upper - lower)
    lows.append(max(known.min(), lower - reach))
    highs.append(min(known.max(), upper + reach))
  if not lows:
    return 0.0, 1.0
  low, high = float(min(lows)), float(max(highs))
  return (low, high) if high > low else (low - 0.5, high + 0.5)


def beyond(values: Any, low: float, high: float) -> str:
  """How many values an axis from `low` to `high` does not show, in words; empty if none."""
  every = np.asarray(values, float)
  below, above = every[every < low], every[~(every <= high)]
  words = []
  if len(below):
    words.append(f'{len(below)} below, down to {below.min():.3g}')
  if len(above):
    words.append(f'{len(above)} beyond, up to {above.max():.3g}')
  return '; '.join(words)
