"""A report's figure of client-level noise: runs that differ in how the rounds' noise is made.

A line for each mechanism, at the setting that is best on validation data where there is some.
"""

import pandas as pd
from matplotlib import figure

import drawing as house
from experiments.config.experiment import ExperimentConfig
from experiments.folder.metrics import EVERYONE
from experiments.reports import choosing, layout
from experiments.reports.data import ReportData
from experiments.reports.layout import Drawing

_WORDS = {
  None: 'BandMF',
  'banded': 'BandMF',
  'buffered': 'BLT',
  'tree': 'tree aggregation',
  'independent': 'independent noise, not amplified',
}
_DRAWN = {
  'poisson': 'independent noise, secret Poisson cohorts',
  'fixed': 'independent noise, secret cohorts of fixed size',
}
_KNOWN = 'independent noise, cohorts of fixed size as if all knew them'


def mechanism_of(config: ExperimentConfig) -> str:
  """How the noise of the rounds is made, in words; '' without client-level privacy."""
  if config.privacy != 'client':
    return ''
  if config.cohort_sampling == 'fixed' and config.declaration.has_stateful_reports:
    return _KNOWN
  if config.cohort_sampling != 'separated':
    return _DRAWN[config.cohort_sampling]
  words = _WORDS[config.noise_correlation]
  if config.noise_bands:
    words += f', {config.noise_bands} bands'
  if config.noise_buffers:
    words += f', {config.noise_buffers} buffers'
  return words


def mechanisms(data: ReportData) -> Drawing | None:
  """The metric against rounds, a line for each mechanism; None if there is only one."""
  mechanism = dict(zip(data.labels, (mechanism_of(r.config) for r in data.runs), strict=True))
  if len({*mechanism.values()}) < 2 or '' in mechanism.values():
    return None
  last = choosing.pooled(data)
  names = last['setting'].map(mechanism)
  chosen, words = choosing.best_settings(data, last.assign(mechanism=names), ['mechanism'])
  frame = data.curves
  frame = frame[(frame['metric'] == data.main_metric) & (frame['group'] == EVERYONE)]
  frame = frame[frame['setting'].isin(chosen['setting']) & (frame['round'] > 0)]
  curves = data.over_seeds(frame, 'setting', 'round').sort_values('round', kind='stable')
  if curves.empty:
    return None
  curves.insert(0, 'mechanism', curves['setting'].map(mechanism))
  rows = [curves[curves['setting'] == name] for name in chosen['setting']]
  return Drawing(
    name='mechanisms',
    title='How the noise of the rounds is made',
    caption=f'{data.bands} {words.replace("At each point", "Of each mechanism")}'.strip(),
    data=pd.concat(rows, ignore_index=True).assign(metric=data.metric),
    draw=draw_mechanisms,
  )


def draw_mechanisms(curves: pd.DataFrame) -> figure.Figure:
  """Draws the curves over the rounds.

  Args:
    curves: mechanism, round, mean, std, seeds, metric.
  """
  metric = layout.metric_of(curves)
  drawing, (axes,) = layout.panels(1, columns=1, each=(7.4, 4.4))
  lines = curves.groupby('mechanism', sort=False)
  for index, (name, own) in enumerate(lines):
    layout.curve(axes, own, 'round', house.line(index), str(name), of=len(lines))
  axes.set_xlabel('communication rounds')
  house.mark_rounds(axes, curves['round'])
  axes.set_ylabel(layout.WORDS[metric])
  layout.scale_errors(axes, metric)
  house.label_ends(axes)
  return drawing


FIGURES = (mechanisms,)
