"""A report's figures of how much to personalise: runs which differ in a setting between two ends.

They have the form of the PPSGD paper's Figures 1 and 2. As there, at each point the other
settings (the step size) are the best ones by the metric that is shown.
"""

import math

import numpy as np
import pandas as pd
from matplotlib import figure

import drawing as house
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder.metrics import EVERYONE
from experiments.reports import choosing, layout
from experiments.reports.data import ReportData
from experiments.reports.layout import Drawing
from experiments.sweeps import table as sweep_table
from privacy.rounding import rounded_up

_MOST_PANELS = 6
_WORDS = {**layout.WORDS, 'excess_risk': house.metric_words('excess_risk')}
_BEST = '#6E6E6E'
_CHOSEN = (
  'At each point the step size that is best by the value shown, CHOSEN ON TEST DATA as in the '
  'paper: these values are optimistic. alpha 0 is local learning, whose epsilon is 0.'
)


def curves(data: ReportData) -> Drawing | None:
  """The metric against rounds, a panel for each problem and noise, a line for each alpha."""
  metric = _metric(data)
  frame = _best(data, metric)
  if frame is None or frame['round'].nunique() < 2:
    return None
  return Drawing(
    name='personalization', title='How much to personalise', caption=_CHOSEN,
    data=frame.assign(metric=metric, **data.whose_epsilon), draw=draw_curves,
  )  # fmt: skip


def draw_curves(frame: pd.DataFrame) -> figure.Figure:
  """Draws the curves over the rounds.

  Args:
    frame: alpha, noise, round, value, epsilon, metric; the problem and the target epsilon (0 for
      a noise multiplier, infinite without privacy) if there are several.
  """
  metric = frame['metric'].iloc[0]
  for name, only in (('problem', ''), ('target', 0.0)):
    own = frame[name].fillna(only) if name in frame else only
    frame = frame.assign(**{name: own})
  shared = frame[frame['alpha'] > 0]
  parts = sorted(set(zip(shared['problem'], shared['noise'], shared['target'], strict=True)))
  if len(parts) > _MOST_PANELS:
    places = np.linspace(0, len(parts) - 1, _MOST_PANELS).round().astype(int)
    parts = [parts[place] for place in places]
  columns = 2 if len(parts) == 4 else min(len(parts), 3)
  size, margin = ((6.4, 4.0), 0.0) if len(parts) == 1 else ((2.8, 3.0), 1.6)
  drawing, panels = layout.panels(
    len(parts), columns=columns, each=size, margin=margin, share_x=False
  )
  styles = _styles(frame['alpha'])
  handles = {}
  for axes, (problem, noise, target) in zip(panels, parts, strict=True):
    here = frame[frame['problem'] == problem]
    local, asked = here['alpha'] == 0, (here['noise'] == noise) & (here['target'] == target)
    if not (local & asked).any() and local.any():  # it is the same under any noise
      first = here[local].iloc[0]
      asked |= local & (here['noise'] == first['noise']) & (here['target'] == first['target'])
    here = here[asked]
    for alpha in sorted(here['alpha'].unique()):
      own, words = here[here['alpha'] == alpha], _alpha(alpha)
      (handles[words],) = axes.plot(
        own['round'], own['value'], **styles[alpha].keywords, label=words,
        markevery=max(1, len(own) // 6),
      )  # fmt: skip
    spent = here[here['alpha'] > 0].groupby('round')['epsilon'].max()
    has_end = len(spent) and math.isfinite(spent.iloc[-1])
    title = [problem] if problem else []
    if noise or not has_end:  # else it is calibrated to a budget
      title.append(f'noise multiplier {noise:g}')
    if has_end:
      title.append(f'{layout.epsilon_of(frame)} {rounded_up(spent.iloc[-1])} at the end')
    axes.set_title('\n'.join(title), fontsize=9)
    axes.set_xlabel('communication rounds')
    house.mark_rounds(axes, here['round'])
  for axes in panels[::columns]:
    axes.set_ylabel(_words(metric))
  for axes in panels:
    _scale(axes, metric, frame)
  if len(parts) == 1:
    house.label_ends(panels[0])
  else:
    drawing.legend(handles.values(), handles.keys(), loc='outside right upper', fontsize=8)
  return drawing


def _styles(alphas: pd.Series) -> dict[float, house.Line]:
  """The two ends look like the methods that they are, wherever they are drawn."""
  ends = {0.0: layout.style_of('local'), math.inf: layout.style_of('fedavg')}
  between = sorted(set(alphas) - set(ends))
  taken = {style.colour for style in ends.values()}
  free = [house.line(i) for i in range(house.MOST_STYLES)]
  free = [style for style in free if style.colour not in taken]
  return {**ends, **dict(zip(between, free, strict=False))}


def front(data: ReportData) -> Drawing | None:
  """The metric after the last round against epsilon: local, global, and the best of all."""
  metric = _metric(data)
  frame = _best(data, metric)
  if frame is None or frame['problem'].nunique() > 1:  # no front chooses the easier one
    return None
  rounds = frame['round']
  if _private(frame[rounds == rounds.max()])['epsilon'].nunique() < 2:
    return None
  return Drawing(
    name='personalization_front', title='Personalisation, privacy and utility', caption=_CHOSEN,
    data=frame[rounds.isin([rounds.min(), rounds.max()])].assign(
      metric=metric, **data.whose_epsilon
    ),
    draw=draw_front,
  )  # fmt: skip


def _private(frame: pd.DataFrame) -> pd.DataFrame:
  """What shares anything, and has an epsilon."""
  return frame[(frame['alpha'] > 0) & (frame['epsilon'] < math.inf)]


def draw_front(frame: pd.DataFrame) -> figure.Figure:
  """Draws the last round over epsilon.

  Args:
    frame: alpha, round (the first, by which the axis ends, and the last), value, epsilon, metric.
  """
  metric = frame['metric'].iloc[0]
  # Lines end at the right, where the smallest epsilon stands.
  last = frame[frame['round'] == frame['round'].max()]
  last = last.sort_values('epsilon', kind='stable', ascending=False)
  private = _private(last)
  local = last.loc[last['alpha'] == 0, 'value'].head(1)
  drawing = figure.Figure(figsize=(6.4, 4.0), layout='constrained')
  axes = drawing.subplots()
  high = sweep_table.is_better_high(metric)
  # What is open to somebody who may spend so much: also every model that costs less.
  epsilons = sorted(private['epsilon'].unique(), reverse=True)
  best = [
    (max if high else min)([*private.loc[private['epsilon'] <= e, 'value'], *local])
    for e in epsilons
  ]
  axes.plot(
    epsilons, best, color=_BEST, linewidth=9, alpha=0.3, solid_capstyle='round',
    label='best personalised', zorder=1,
  )  # fmt: skip
  styles = _styles(last['alpha'])
  for alpha in sorted(private['alpha'].unique()):
    own = private[private['alpha'] == alpha]
    words = 'global only' if math.isinf(alpha) else _alpha(alpha)
    axes.plot(own['epsilon'], own['value'], **styles[alpha].keywords, label=words)
  for value in local:
    style = layout.style_of('local')
    axes.axhline(
      value, color=style.colour, linewidth=1.6, linestyle=style.keywords['linestyle'],
      label='local only',
    )  # fmt: skip
  axes.set_xscale('log')
  layout.ticks_apart(axes, epsilons, rounded_up)
  axes.invert_xaxis()
  axes.set_xlabel(f'{layout.epsilon_of(frame)} (log scale; to the right more private)')
  axes.set_ylabel(_words(metric))
  _scale(axes, metric, frame)
  if not high:  # what is worse than the start is beyond; without it, no room is left for it
    axes.set_ylim(top=min(axes.get_ylim()[1], 1.5 * max([*private['value'], *local])))
  house.label_ends(axes)
  return drawing


FIGURES = (curves, front)


def _metric(data: ReportData) -> str:
  """The excess risk of the last iterate where it is known, else what all figures show."""
  present = set(data.curves['metric'])
  wanted = ('test_last_iterate_excess_risk', 'test_excess_risk')
  return next((name for name in wanted if name in present), data.main_metric)


def _best(data: ReportData, metric: str) -> pd.DataFrame | None:
  """The best value of each: problem, alpha, noise, target, round; with value and epsilon.

  The target epsilon is 0 for a noise multiplier and infinite without privacy.

  None if the runs do not differ in alpha.
  """
  configs = [run.config for run in data.runs]
  name = next((name for name in data.setting_names if settings()[name].ends), None)
  values = [] if name is None else [getattr(config, name) for config in configs]
  if len({*values} - {None}) < 2:
    return None
  shown = data.curves[data.curves['group'] == EVERYONE]
  scores = data.over_seeds(shown[shown['metric'] == metric], 'setting', 'round')
  spent = shown['metric'].isin(['epsilon', 'deployment_epsilon'])
  epsilons = shown[spent].groupby(['setting', 'round'])['value'].max()
  scores = scores.join(epsilons.rename('epsilon'), on=['setting', 'round'])
  of_setting = dict(zip(data.labels, configs, strict=True))
  alpha = dict(zip(data.labels, values, strict=True))
  scores['alpha'] = [alpha[name] for name in scores['setting']]
  scores['noise'] = [of_setting[name].noise_multiplier or 0.0 for name in scores['setting']]
  problem = dict(zip(data.last['setting'], choosing.problems(data, data.last), strict=True))
  scores['target'] = [_target(of_setting[name]) for name in scores['setting']]
  scores['problem'] = scores['setting'].map(problem)
  if len({config.delta for config in configs if config.privacy != 'none'}) > 1:
    deltas = [of_setting[name].delta for name in scores['setting']]
    scores['problem'] += [f', delta {delta:g}' if delta else '' for delta in deltas]
  # A step size that is too large diverges.
  scores = scores[np.isfinite(scores['mean']) & scores['alpha'].notna()]
  grouped = scores.groupby(['problem', 'alpha', 'noise', 'target', 'round'])['mean']
  chosen = grouped.idxmax() if sweep_table.is_better_high(metric) else grouped.idxmin()
  columns = ['problem', 'alpha', 'noise', 'target', 'round']
  columns += ['mean', 'std', 'seeds', 'epsilon', 'setting']
  return scores.loc[chosen, columns].rename(columns={'mean': 'value'}).reset_index(drop=True)


def _target(config: ExperimentConfig) -> float:
  return math.inf if config.privacy == 'none' else config.target_epsilon or 0.0


def _alpha(value: float) -> str:
  words = {0.0: ' (local)', math.inf: ' (global)'}
  return f'alpha {value:g}{words.get(value, "")}'


def _words(metric: str) -> str:
  return next(words for name, words in _WORDS.items() if metric.endswith(name))


def _scale(axes, metric: str, frame: pd.DataFrame) -> None:
  """Errors on a log scale, without what is worse than the start."""
  if not sweep_table.is_better_high(metric):
    start = frame.loc[frame['round'] == frame['round'].min(), 'value'].max()
    axes.set_ylim(frame['value'].min() / 1.5, 2 * start)
    house.log_y(axes)
