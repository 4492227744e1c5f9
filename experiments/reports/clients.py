"""A report's figures of the clients one by one: how they are spread, who gains and who loses."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib import figure

import drawing as house
from experiments.reports import choosing, layout
from experiments.reports.data import ReportData
from experiments.reports.layout import Drawing
from experiments.sweeps import table as sweep_table
from processes.declaration import EndPoint

_MOST_BOXES = 12
_MOST_GAINS = 6
_TITLE = 48  # characters of a line
_GAIN_WORDS = {False: 'decrease of the error (target²)', True: 'gain in accuracy (fraction)'}
_GAIN, _LOSS = house.BLUE, house.ORANGE


def distributions(data: ReportData) -> Drawing | None:
  """How the metric is spread over clients, a box for each setting."""
  frame = data.clients
  frame = frame[frame['metric'] == data.main_metric]
  if frame.empty:
    return None
  # A client's mean over the seeds: seeds move its split.
  own = frame.groupby(['setting', 'client'], sort=False)['value'].mean().reset_index()
  shown, words = choosing.shown_of(data, own['setting'], _MOST_BOXES)
  methods = dict(zip(data.labels, (run.config.method for run in data.runs), strict=True))
  rows = [own[own['setting'] == name].assign(method=methods[name]) for name in shown]
  return Drawing(
    name='clients',
    title='The clients one by one',
    caption=(
      'Boxes hold the middle half of the clients and the median, whiskers reach 1.5 boxes more, '
      "the diamond is the mean; a client's value is its mean over the seeds. How many clients lie "
      f'beyond the panel is said beside it.{words}'
    ),
    data=pd.concat(rows, ignore_index=True).assign(metric=data.metric),
    draw=draw_distributions,
  )


def draw_distributions(own: pd.DataFrame) -> figure.Figure:
  """Draws a box for each setting.

  Args:
    own: setting, method, client, value, metric.
  """
  shown = list(dict.fromkeys(own['setting']))
  methods = dict(zip(own['setting'], own['method'], strict=True))
  drawing = figure.Figure(figsize=(7.4, 1.3 + layout.height_of(shown)), layout='constrained')
  axes = drawing.subplots()
  values = [own.loc[own['setting'] == n, 'value'].dropna().to_numpy() for n in shown]
  boxes = axes.boxplot(
    values, vert=False, widths=0.62, patch_artist=True, showmeans=True,
    flierprops=dict(marker='.', markersize=3, markeredgecolor='#777777'),
    meanprops=dict(marker='D', markersize=4, markerfacecolor='white', markeredgecolor='black'),
    medianprops=dict(color='black', linewidth=1.2),
  )  # fmt: skip
  for box, name in zip(boxes['boxes'], shown, strict=True):
    colour = layout.style_of(methods[name]).colour
    box.set(facecolor=f'{colour}33', edgecolor=colour)
  # A client that is far worse off than all others would flatten them: it leaves the panel.
  low, high = house.fences(values)
  margin = 0.04 * (high - low)
  axes.set_xlim(low - margin, high + margin)
  for place, part in enumerate(values, start=1):
    axes.text(
      1.01, place, house.beyond(part, low - margin, high + margin), va='center', fontsize=8,
      transform=axes.get_yaxis_transform(), color=house.GREY,
    )  # fmt: skip
  axes.set_yticks(range(1, len(shown) + 1), layout.wrapped(shown), fontsize=8)
  axes.invert_yaxis()
  axes.set_xlabel(f'{layout.WORDS[layout.metric_of(own)]} of each client')
  axes.set_ylabel('setting')
  return drawing


def gains(data: ReportData) -> Drawing | None:
  """Who gains and who loses: each client's difference to a reference."""
  pairs, chosen = _differences(data)
  if not pairs:
    return None
  rows = [d.rename('gain').reset_index().assign(comparison=words) for words, d in pairs]
  return Drawing(
    name='gains',
    title='Who gains and who loses',
    caption='Every bar is a client, sorted: above zero (blue) it is better off, below (orange) '
    'worse. How many bars go beyond a panel is said above it; gains.csv has them all.'
    f'{chosen}',
    data=pd.concat(rows, ignore_index=True).assign(metric=data.metric),
    draw=draw_gains,
  )


def draw_gains(table: pd.DataFrame) -> figure.Figure:
  """Draws a bar for each client, a panel for each comparison.

  Args:
    table: comparison, client, gain (sorted), metric.
  """
  high = sweep_table.is_better_high(layout.metric_of(table))
  parts = list(table.groupby('comparison', sort=False))
  drawing, panels = layout.panels(
    len(parts), columns=2, each=(4.3, 2.7), share_x=False, share_y=False
  )
  for axes, (words, own) in zip(panels, parts, strict=True):
    numbers = own['gain'].to_numpy()
    better = numbers > 0
    axes.bar(range(len(numbers)), numbers, width=1.0, color=[_GAIN if b else _LOSS for b in better])
    axes.axhline(0, color='black', linewidth=0.8)
    low, top = house.fences([numbers])
    low, top = min(low, 0.0), max(top, 0.0)
    margin = 0.04 * (top - low)
    axes.set_ylim(low - margin, top + margin)
    beyond = house.beyond(numbers, low - margin, top + margin)
    counted = f'{better.sum()} of {len(numbers)} clients gain' + (f'; {beyond}' if beyond else '')
    lines = [*textwrap.wrap(str(words), _TITLE), *textwrap.wrap(counted, _TITLE)]
    axes.set_title('\n'.join(lines), fontsize=8, loc='left')
    axes.set_xticks([])
    axes.set_xlabel('clients, sorted', fontsize=8)
    axes.set_ylabel(_GAIN_WORDS[high], fontsize=8)
  return drawing


def _differences(data: ReportData) -> tuple[list[tuple[str, pd.Series]], str]:
  """Each comparison in words with the clients' gains, sorted; and how settings were chosen."""
  frame = data.clients
  frame = frame[frame['metric'].isin([data.main_metric, f'test_global_{data.metric}'])]
  sign = 1.0 if sweep_table.is_better_high(data.metric) else -1.0
  value = frame.groupby(['setting', 'metric', 'client'], sort=False)['value'].mean()
  configs = {label: run.config for label, run in zip(data.labels, data.runs, strict=True)}
  locals_ = {
    label for label, config in configs.items() if config.declaration.end_point is EndPoint.LOCAL
  }
  local, chosen_local = choosing.best_local(
    data, {label: choosing.asked_of(configs[label]) for label in locals_}
  )
  shown, chosen_how = choosing.shown_of(data, frame['setting'], _MOST_GAINS, without=locals_)
  pairs: list[tuple[str, pd.Series]] = []
  for name in shown:
    own, reference = value[name], local.get(choosing.asked_of(configs[name]), '')
    if reference and reference in value:
      difference = own[data.main_metric] - value[reference][data.main_metric]
      pairs.append((f'{name}: against local', sign * difference))
    elif not local and f'test_global_{data.metric}' in own:
      difference = own[data.main_metric] - own[f'test_global_{data.metric}']
      pairs.append((f'{name}: own model against the global one', sign * difference))
  pairs = [(words, difference.dropna().sort_values()) for words, difference in pairs]
  known = [(words, d) for words, d in pairs if len(d) and np.isfinite(d).any()]
  return known, f'{chosen_how}{chosen_local}'
