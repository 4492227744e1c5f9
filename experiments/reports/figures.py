"""The figures of a report, each with its data beside the drawing."""

import collections
import math
import re
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import pandas as pd
from matplotlib import figure

import drawing as house
import processes
from experiments.folder.metrics import EVERYONE
from experiments.reports import choosing, clients, groups, layout
from experiments.reports.data import ReportData, symbol, text
from experiments.reports.layout import Drawing
from experiments.sweeps import table as sweep_table
from privacy.rounding import rounded_up
from processes.declaration import EndPoint

_MOST_LINES = len(house.COLOURS)
_MOST_PANELS = 4
_MOST_NAMED = 6  # panels whose lines have their names beside them; more are small, with one legend
_SMALL_GAP = 0.3  # of an axis, between its ticks
_SMALL = {
  'xtick.labelsize': 7, 'ytick.labelsize': 7, 'axes.titlesize': 8, 'axes.labelsize': 8,
  'lines.linewidth': 1.2, 'lines.markersize': 2.5,
}  # fmt: skip
_AROUND = 0.9  # inches of a panel's title, ticks and label
_ENDS = {EndPoint.LOCAL: 'local training', EndPoint.GLOBAL: 'federated averaging'}

Draw = Callable[[ReportData], Drawing | None]


def draw_all(data: ReportData, further: Sequence[Draw] = ()) -> list[Drawing]:
  """All figures, and further ones, for which the runs have something to show."""
  if data.curves.empty:
    return []
  drawn = [draw(data) for draw in (*_FIGURES, *further)]
  return [d for d in drawn if d is not None]


def learning_curves(data: ReportData) -> Drawing | None:
  """The metric against rounds, a panel for each budget, a line for each setting."""
  frame = data.curves
  frame = frame[(frame['metric'] == data.main_metric) & (frame['group'] == EVERYONE)]
  if frame['round'].nunique() < 3:
    return None  # nothing between the start and the end
  curves = data.over_seeds(frame, 'setting', 'round').sort_values('round', kind='stable')
  names, words = choosing.shown_of(data, curves['setting'], _MOST_PANELS * _MOST_LINES)
  configs = dict(zip(data.labels, (run.config for run in data.runs), strict=True))
  parts = _parts_by_budget(configs, names)
  rows = [
    curves[curves['setting'] == name].assign(panel=title, method=configs[name].method)
    for title, part in parts
    for name in part
  ]
  return Drawing(
    name='learning_curves',
    title='Learning curves',
    caption=f'{data.bands}{words}',
    data=pd.concat(rows, ignore_index=True).assign(metric=data.metric),
    draw=draw_learning_curves,
  )


def draw_learning_curves(curves: pd.DataFrame) -> figure.Figure:
  """Draws learning curves.

  Args:
    curves: panel, setting, method, round, mean, std, seeds, metric.
  """
  metric = layout.metric_of(curves)
  parts = [
    own[own['setting'].isin(own['setting'].unique()[start : start + _MOST_LINES])]
    for _, own in curves.groupby('panel', sort=False)
    for start in range(0, own['setting'].nunique(), _MOST_LINES)
  ]
  labels = [_short(list(own['setting'].unique()), own['panel'].iloc[0]) for own in parts]
  drawing, panels = _side_by_side(len(parts), room=max(map(house.height_of_ends, labels)))
  for axes, here, short in zip(panels, parts, labels, strict=True):
    lines = [own for _, own in here.groupby('setting', sort=False)]
    styles = layout.styles_of([own['method'].iloc[0] for own in lines])
    for own, label, style in zip(lines, short, styles, strict=True):
      layout.curve(
        axes, own, 'round', style, label, of=len(lines), markevery=max(1, len(own) // 8)
      )  # fmt: skip
    axes.set_xlabel('communication rounds')
    house.mark_rounds(axes, here['round'])
    axes.set_ylabel(layout.WORDS[metric])
    start = layout.fit(axes, here)
    axes.set_title(', '.join(filter(None, (here['panel'].iloc[0], start))), loc='left')
    layout.scale_errors(axes, metric)
    house.label_ends(axes)
  return drawing


def _short(names: Sequence[str], title: str) -> list[str]:
  """The names of a panel's settings in narrow lines, without what its title says."""
  said = f', {title}' if title else ''
  return [textwrap.fill(name.replace(said, ''), layout.NARROW) for name in names]


def _parts_by_budget(configs, names: Sequence[str]) -> list[tuple[str, list[str]]]:
  """(title, settings) of each budget."""
  asked: dict[str, list[str]] = {}
  for name in names:
    config = configs[name]
    words = 'not private' if config.privacy == 'none' else ''
    if config.target_epsilon is not None:
      words = f'epsilon {rounded_up(config.target_epsilon)}'
      words += ' of a hypothetical deployment' * bool(config.hypothetical_deployment)
    asked.setdefault(words, []).append(name)
  return list(asked.items())


def privacy_utility(data: ReportData) -> Drawing | None:
  """The metric against epsilon, a line for each method, its best setting at each point."""
  last = choosing.pooled(data)
  last = last[last['epsilon'].notna()]
  private = last[last['epsilon'] < math.inf]
  # Budgets that were asked for are equal; what was spent differs in the last digits.
  asked = private.get('target_epsilon', private['epsilon']).fillna(private['epsilon'])
  private = private.assign(budget=asked.map(lambda epsilon: float(rounded_up(epsilon))))
  if private.loc[private['budget'] > 0, 'budget'].nunique() < 2:
    return None
  chosen, caption = choosing.best_settings(data, private, ['problem', 'method', 'budget'])
  public = last[last['epsilon'] == math.inf]
  free = choosing.best_settings(data, public, ['problem', 'method'])[0] if len(public) else public
  points = pd.concat([chosen, free.assign(budget=math.inf)]) if len(free) else chosen
  return Drawing(
    name='privacy_utility',
    title='Privacy and utility',
    caption=f'{data.bands} {caption}'.strip(),
    data=points.assign(metric=data.metric, delta=data.common_delta, **data.whose_epsilon),
    draw=draw_fronts,
  )


def draw_fronts(points: pd.DataFrame) -> figure.Figure:
  """Draws fronts: a panel for each problem, and one more for what is crowded.

  Args:
    points: problem, method, budget (infinite without privacy, which stands at the right end; 0
      where nothing is released, a line across), mean, std, seeds, metric, and the delta that all
      epsilons belong to (missing where they differ).
  """
  metric, delta = layout.metric_of(points), points['delta'].iloc[0]
  chosen = points[points['budget'].between(0.0, math.inf, inclusive='neither')]
  panels_of: list[tuple[str, str, pd.DataFrame, pd.DataFrame]] = []
  for problem in dict.fromkeys(chosen['problem']):
    every = points[points['problem'] == problem]
    own, across = every[every['budget'] > 0], every[every['budget'] == 0]
    panels_of.append((problem, metric, own, across))
    large = _crowded(own[own['budget'] < math.inf])
    if len(large):
      words = f'the same, epsilon {text(large["budget"].min())} and more'
      panels_of.append((f'{problem}: {words}' if problem else words, '', large, across[:0]))
  drawing, panels = _side_by_side(len(panels_of))
  for axes, (title, scaled, own, across) in zip(panels, panels_of, strict=True):
    budgets = sorted(own['budget'].unique())
    shown = [b for b in budgets if b < math.inf]
    step = max(2.0, (shown[-1] / shown[0]) ** 0.2)
    beyond = shown[-1] * step
    layout.lines_of_methods(axes, own.replace({'budget': {math.inf: beyond}}), 'budget')
    for row in sweep_table.records(across):
      layout.line_across(axes, row['mean'], str(row['method']), ', epsilon 0')
    axes.set_title(title, loc='left')
    axes.set_xscale('log')
    if math.inf in budgets:  # set off, since it has no place on a log scale
      axes.set_xlim(right=beyond * step**0.2)
      axes.axvspan(beyond / step**0.5, axes.get_xlim()[1], color=house.GREY, alpha=0.1, linewidth=0)
    places = {min(budget, beyond): f'{budget:g}' for budget in budgets}
    places = {place: words.replace('inf', '∞') for place, words in places.items()}
    layout.ticks_apart(axes, list(places), places.__getitem__)
    at = f' at delta {delta:g}' if pd.notna(delta) else ''
    words = '∞: without privacy' if math.inf in budgets else 'less is more private'
    axes.set_xlabel(f'{layout.epsilon_of(points)}{at} (log scale; {words})')
    axes.set_ylabel(layout.WORDS[metric])
    layout.scale_errors(axes, scaled)
    house.label_ends(axes)
  return drawing


def _crowded(points: pd.DataFrame) -> pd.DataFrame:
  """The points of the larger half of the budgets if they are hard to tell apart; else none."""
  budgets = sorted(points['budget'].unique())
  large = points[points['budget'].isin(budgets[len(budgets) // 2 :])]
  several = len(budgets) > 2 and points['method'].nunique() > 1
  return large if several and layout.is_crowded(large, points) else points[:0]


def against_lambda(data: ReportData) -> Drawing | None:
  """The metric against the strength of personalisation, local and FedAvg as end lines."""
  last = choosing.pooled(data)
  files = choosing.lambda_files(data, last)
  names = [
    n for n in data.setting_names if 'lambda' in n and n not in files and last[n].nunique() > 1
  ]
  if not names:
    return None
  name = names[0]
  if (last[names].notna().sum(axis=1) <= 1).all():  # each method has its own, on one axis
    last = last.assign(**{name: last[names].bfill(axis=1).iloc[:, 0]})
  budgets = [choosing.budget_in_words(data.runs[run].config) for run in last['run']]
  words_of = zip(
    last['problem'], budgets, choosing.own_lambdas(last, files), choosing.variants(data, last),
    strict=True,
  )  # fmt: skip
  last = last.assign(asked=[', '.join(filter(None, words)) for words in words_of])
  chosen, caption = choosing.best_settings(
    data, last[last[name].notna()], ['method', 'asked', name]
  )
  # A curve has two strengths at least.
  chosen = chosen[chosen.groupby(['asked', 'method'])[name].transform('nunique') > 1]
  if chosen.empty:
    return None
  end_points = {m.name: m.end_point for m in processes.METHODS.values() if m.end_point}
  ends = last[last['method'].isin(end_points)]
  end_values = choosing.best_settings(data, ends, ['method', 'asked'])[0] if len(ends) else ends
  missing = [w for end, w in _ENDS.items() if end not in map(end_points.get, end_values['method'])]
  words = f' Not run: {" and ".join(missing)}.' if missing else ''
  points = pd.concat([chosen, end_values]) if len(end_values) else chosen
  points = points.rename(columns={'asked': 'panel', name: 'strength'})
  return Drawing(
    name='lambda',
    title=f'Between local training and federated averaging: {symbol(name)}',
    caption=(
      'lambda = 0 is local training, a large lambda goes towards one common model. The lines '
      'across are the two ends. A line that leaves its panel is far from all others.'
      f'{words} {data.bands} {caption}'.rstrip()
    ),
    data=points[points['panel'].isin(chosen['asked'])].assign(along=name, metric=data.metric),
    draw=draw_against_lambda,
  )


def draw_against_lambda(points: pd.DataFrame) -> figure.Figure:
  """Draws curves over the strength of personalisation, and its ends as lines across.

  Args:
    points: panel, method, strength (missing for an end), mean, std, seeds, metric, and the
      strength's setting `along`.
  """
  metric, along = layout.metric_of(points), symbol(points['along'].iloc[0])
  titles = sorted(set(points['panel']), key=_by_numbers)
  parts = [points[points['panel'] == title] for title in titles]
  if len(titles) > _MOST_NAMED:
    with matplotlib.rc_context(_SMALL):
      return _draw_small(titles, parts, along)
  drawing, panels = _side_by_side(len(titles))
  for axes, title, here in zip(panels, titles, parts, strict=True):
    axes.set_xlabel(f'{along} (log scale)')
    axes.set_ylabel(layout.WORDS[metric])
    _draw_strengths(axes, title, here)
    house.label_ends(axes)
  return drawing


def _draw_strengths(axes, title: str, here: pd.DataFrame, *, gap: float = layout.TICK_GAP) -> None:
  """Draws one panel of `draw_against_lambda`."""
  own, across = here[here['strength'].notna()], here[here['strength'].isna()]
  layout.lines_of_methods(axes, own, 'strength')
  for row in sweep_table.records(across):
    layout.line_across(axes, row['mean'], str(row['method']))
  if _local() not in set(across['method']):
    # Without any pull a personal model is a local one.
    for value in own.loc[own['strength'] == 0, 'mean'][:1]:
      layout.line_across(axes, value, _local(), ' (lambda 0)')
  layout.scale_strengths(axes, own['strength'], gap=gap)
  axes.set_title(title, loc='left')
  layout.leave_out_far(axes, own, across['mean'])
  layout.scale_errors(axes, layout.metric_of(here))


def _draw_small(titles: Sequence[str], parts: Sequence[pd.DataFrame], along: str) -> figure.Figure:
  """Small panels with one legend; in a row those whose titles differ in their last words."""
  alike = collections.Counter(title.rpartition(', ')[0] for title in titles)
  columns = next(iter(alike.values())) if len({*alike.values()}) == 1 < len(alike) else 4
  drawing, panels = layout.panels(
    len(titles), columns=columns, each=(2.3, 2.0), share_x=False, share_y=False
  )
  for axes, title, here in zip(panels, titles, parts, strict=True):
    _draw_strengths(axes, title, here, gap=_SMALL_GAP)
  logs = ', some on a log scale' if any(axes.get_yscale() == 'log' for axes in panels) else ''
  drawing.supxlabel(f'{along} (log scale); each panel has a y axis of its own{logs}', fontsize=10)
  drawing.supylabel(layout.WORDS[layout.metric_of(parts[0])], fontsize=10)
  named = {line.get_label(): line for axes in panels for line in axes.get_lines()}
  drawing.legend(
    list(named.values()), list(named), loc='outside upper left', ncols=len(named), fontsize=9
  )
  return drawing


_FIGURES: tuple[Draw, ...] = (
  privacy_utility, against_lambda, groups.groups_along, learning_curves, groups.groups,
  clients.distributions, clients.gains,
)  # fmt: skip


def _by_numbers(text: str) -> list[str | float]:
  """For sorting: 'epsilon 2' comes before 'epsilon 16'."""
  pieces = re.split(r'(\d+(?:\.\d+)?)', text)
  return [float(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


def _local() -> str:
  """The method which is that end of personalisation where nothing is shared."""
  methods = processes.registry.METHODS.items()
  return next(name for name, method in methods if method.end_point is EndPoint.LOCAL)


def _side_by_side(count: int, *, room: float = 0.0) -> tuple[figure.Figure, list]:
  """Panels with scales of their own, `room` inches high inside; one by itself is larger."""
  columns = 1 if count == 1 else 2
  width, height = (7.4, 4.4) if count == 1 else (5.4, 3.6)
  each = (width, max(height, room + _AROUND))
  return layout.panels(count, columns=columns, each=each, share_x=False, share_y=False)
