"""A report's figures of the clients' groups, such as private and opted-out ones."""

import textwrap

import pandas as pd
from matplotlib import figure, ticker

import drawing as house
from experiments.config.experiment import settings
from experiments.folder.metrics import EVERYONE
from experiments.reports import choosing, layout
from experiments.reports.data import ReportData, symbol, text, text_of
from experiments.reports.layout import Drawing

_MOST_GROUPS = 36
_MOST_ALONG = 6
_SOLID, _DASHED = '-', (0, (5, 2))


def _models(metric: str) -> dict[str, str]:
  """The groups' means over clients -> of which model."""
  return {f'test_global_{metric}_mean': 'global model', f'test_{metric}_mean': 'own model'}


def groups(data: ReportData) -> Drawing | None:
  """The clients' groups beside each other: a row for each setting."""
  last = data.last[data.last['group'] != EVERYONE]
  wanted = _models(data.metric)
  medians = {name.replace('_mean', '_median'): name for name in wanted}
  last = last[last['metric'].isin([*wanted, *medians])]
  if last['group'].nunique() < 2:
    return None
  frame = data.over_seeds(last, 'setting', 'group', 'metric')
  names, words = choosing.shown_of(data, frame['setting'], _MOST_GROUPS)
  return Drawing(
    name='groups',
    title='Groups of clients',
    caption='Mean over the clients of a group; the bar is one standard deviation over the seeds. '
    f'Hollow: the median over the clients.{words}',
    data=pd.concat([frame[frame['setting'] == name] for name in names], ignore_index=True),
    draw=draw_groups,
  )


def draw_groups(frame: pd.DataFrame) -> figure.Figure:
  """Draws the groups' points: a row for each setting, a panel for each model.

  Args:
    frame: setting, group, metric (of `_models`, or its median), mean, std, seeds.
  """
  wanted = _models(layout.metric_of(frame))
  names = list(dict.fromkeys(frame['setting']))
  medians = {name.replace('_mean', '_median'): name for name in wanted}
  metrics = [m for m in wanted if m in set(frame['metric'])]
  drawing = figure.Figure(
    figsize=(3.6 * len(metrics) + 2.2, 1.7 + layout.height_of(names)), layout='constrained'
  )
  panels = drawing.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
  for axes, metric in zip(panels, metrics, strict=True):
    for index, (group, own) in enumerate(frame[frame['metric'] == metric].groupby('group')):
      style = house.line(index)
      axes.errorbar(
        own['mean'], [names.index(n) for n in own['setting']], xerr=own['std'], markersize=6,
        color=style.colour, marker=style.marker, linestyle='none',
        label=str(group).replace('_', ' '),
      )  # fmt: skip
      half = frame[(frame['metric'].map(medians) == metric) & (frame['group'] == group)]
      axes.plot(
        half['mean'], [names.index(n) for n in half['setting']], linestyle='none', markersize=6,
        marker=style.marker, color=style.colour, markerfacecolor='none',
      )  # fmt: skip
    axes.set_yticks(range(len(names)), layout.wrapped(names), fontsize=8)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.set_xlabel(f'{layout.WORDS[layout.metric_of(frame)]},\n{wanted[metric]}')
  panels[0].set_ylabel('setting')
  panels[0].invert_yaxis()
  handles, labels = panels[0].get_legend_handles_labels()
  drawing.legend(handles, labels, loc='outside upper right', ncols=len(labels), fontsize=8)
  return drawing


def groups_along(data: ReportData) -> Drawing | None:
  """The clients' groups along the continuous setting with most values, a panel for the others.

  So a table over r and lambda becomes curves over r, with private and opted-out clients apart.
  """
  last = data.last[data.last['group'] != EVERYONE]
  wanted = _models(data.metric)
  last = last[last['metric'].isin(wanted)]
  known = settings()
  counts = {
    name: last[name].nunique()
    for name in data.setting_names
    if name in known and known[name].continuous and 'learning_rate' not in name
  }
  if last['group'].nunique() < 2 or max(counts.values(), default=0) < 3:
    return None
  along = max(counts, key=lambda name: counts[name])
  last = last[last[along].notna()]  # of the methods that have it
  files = choosing.lambda_files(data, last)
  others = [
    name
    for name in data.setting_names
    if name != along and name not in files and last[name].nunique() > 1
  ]
  words = [
    ', '.join(
      [f'{symbol(n)} {text_of(n, v)}' for n, v in zip(others, row, strict=True)] + [own] * bool(own)
    )
    for row, own in zip(last[others].to_numpy(), choosing.own_lambdas(last, files), strict=True)
  ]
  frame = data.over_seeds(last.assign(panel=words), 'panel', 'group', 'metric', along)
  several = frame['metric'].nunique() > 1
  models = '; dashed the global model, solid their own' if several else ''
  return Drawing(
    name='groups_along',
    title=f'Groups of clients along {symbol(along)}',
    caption=f'Mean over the clients of a group{models}. {data.bands}'.rstrip(),
    data=frame.rename(columns={along: 'strength'}).assign(along=along),
    draw=draw_groups_along,
  )


def draw_groups_along(frame: pd.DataFrame) -> figure.Figure:
  """Draws the groups' curves: a colour for each group, a panel for each of the other settings.

  Args:
    frame: panel, group, metric (of `_models`), strength, mean, std, seeds, and the strength's
      setting `along`.
  """
  metric, along = layout.metric_of(frame), symbol(frame['along'].iloc[0])
  present = set(frame['metric'])
  wanted = {name: model for name, model in _models(metric).items() if name in present}
  parts = [
    part
    for title, own in list(frame.groupby('panel', sort=False))[:_MOST_ALONG]
    for part in ((str(title), own), *_without_collapse(str(title), own, along))
  ]
  every = sorted(frame['group'].unique())
  drawing, panels = layout.panels(
    len(parts), columns=2, each=(5.2, 3.4), share_x=False, share_y=False
  )
  for axes, (title, here) in zip(panels, parts, strict=True):
    for index, (name, model) in enumerate(wanted.items()):
      for place, group in enumerate(every):
        own = here[(here['group'] == group) & (here['metric'] == name)].sort_values('strength')
        style = house.line(place)
        style = house.Line(
          colour=style.colour, marker=house.MARKERS[place + len(every) * index],
          dash=_SOLID if model == 'own model' else _DASHED,
        )  # fmt: skip
        label = str(group).replace('_', ' ')
        if len(wanted) > 1:  # without personalisation there is one model, nobody's own
          label += f',\n{model}'
        layout.curve(axes, own, 'strength', style, label, of=len(every) * len(wanted))
    layout.scale_strengths(axes, here['strength'])
    axes.set_title(textwrap.fill(title, 56), loc='left')
    axes.set_xlabel(f'{along} (log scale)')
    axes.set_ylabel(layout.WORDS[metric])
    layout.scale_errors(axes, metric)
    house.label_ends(axes)
  return drawing


def _without_collapse(
  title: str, points: pd.DataFrame, along: str
) -> list[tuple[str, pd.DataFrame]]:
  """A further panel without the least strength, where what happens there flattens all else."""
  least, *others = sorted(points['strength'].unique())
  rest = points[points['strength'] > least]
  if len(others) < 2 or not layout.is_crowded(rest, points):
    return []
  words = f'the same, {along} {text(min(others))} and more'
  return [(f'{title}: {words}' if title else words, rest)]
