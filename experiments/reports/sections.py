"""The sections of a report's page: what they say, of which runs."""

import dataclasses
import json
import math
import pathlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.config.experiment import settings
from experiments.folder.metrics import EVERYONE
from experiments.reports import choosing, html
from experiments.reports.data import ReportData, symbol, text, text_of, title_of, value_of
from experiments.reports.layout import Drawing
from experiments.running.progress import show, show_mean
from experiments.sweeps import table as sweep_table
from experiments.sweeps.table import Run
from privacy.rounding import rounded_up

_MOST_STATEMENTS = 12
_MOST_NAMES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overview:
  """One row a setting: what it is, how many seeds, the guarantee, and the last metrics.

  Attributes:
    heading: of the columns that differ.
    rows: texts.
    tags: of each row, for the page's filters.
    common: (name, value) of the columns that are the same in all rows.
  """

  heading: list[str]
  rows: list[list[str]]
  tags: list[html.Tags]
  common: list[tuple[str, str]]


def overview(data: ReportData) -> Overview:
  """The settings beside each other."""
  last = data.last[data.last['group'] == EVERYONE]
  metric = data.metric
  wanted = {
    data.main_metric: f'test {metric}',
    f'{data.main_metric}_median': 'median client',
    f'{data.main_metric}_mean': 'mean of clients',
    f'test_global_{metric}': f'test {metric}, global model',
    f'server_test_{metric}': f"server's test {metric}",
    f'validation_{metric}': f'validation {metric}',
    **{f'test_{other}': f'test {other}' for other in data.other_metrics},
  }
  scores = data.over_seeds(last[last['metric'].isin(wanted)], 'setting', 'metric')
  found = {(row['setting'], row['metric']): row for row in sweep_table.records(scores)}
  metrics = [m for m in wanted if m in {metric for _, metric in found}]
  columns = [name for name in data.columns if name != 'rounds']  # it is said how many were run
  heading = [*map(symbol, columns), 'rounds', 'seeds', 'epsilon spent', 'delta']
  heading += [wanted[m] for m in metrics]
  rows, tags = [], []
  for label in dict.fromkeys(data.labels):
    members = [i for i, own in enumerate(data.labels) if own == label]
    run = data.runs[members[0]]
    rounds = min(data.rounds_done(i) for i in members)
    row = [value_of(run.config, name, data.exact) for name in columns]
    row += [f'{rounds}' if rounds == run.config.rounds else f'{rounds} of {run.config.rounds}']
    row += [str(len(members))]
    whose = ' of a hypothetical deployment' * bool(run.config.hypothetical_deployment)
    # Of the seed whose guarantee is the weakest: one may have gone further than another.
    spent = [data.epsilon(data.runs[i]) for i in members]
    known = (epsilon for epsilon in spent if not math.isnan(epsilon))  # some may have none yet
    row += [rounded_up(max(known, default=math.nan)) + whose, text(data.delta(run))]
    row += [_score(found[label, m]) if (label, m) in found else '' for m in metrics]
    rows.append(row)
    tags.append(tags_of(run))
  told = _telling(rows, len(columns) + 1)
  return Overview(
    heading=[name for name, kept in zip(heading, told, strict=True) if kept],
    rows=[[cell for cell, kept in zip(row, told, strict=True) if kept] for row in rows],
    tags=tags,
    common=[
      (name, rows[0][i])
      for i, name in enumerate(heading)
      if not told[i] and rows[0][i] and len({row[i] for row in rows}) == 1
    ],
  )


def _telling(rows: list[list[str]], settings_of_them: int) -> list[bool]:
  """Which columns are shown: those that differ, settings only among those who have them."""
  columns = range(len(rows[0]))
  if len(rows) == 1:
    return [True for _ in columns]
  told = [len({row[i] for row in rows}) > 1 for i in columns]
  short = [
    told[i] and (i >= settings_of_them or len({row[i] for row in rows} - {''}) > 1) for i in columns
  ]
  shown = {tuple(row[i] for i in range(settings_of_them) if short[i]) for row in rows}
  return short if len(shown) == len(rows) else told  # no two settings may look the same


def tags_of(run: Run) -> html.Tags:
  """By what a reader filters."""
  return {
    'method': [title_of(run.config.method)],
    'budget': [choosing.budget_in_words(run.config)],
  }


def results(data: ReportData, table: Overview) -> str:
  """The overview with its filters."""
  choices: dict[str, list[str]] = {}
  for tags in table.tags:
    for name, values in tags.items():
      choices[name] = list(dict.fromkeys([*choices.get(name, []), *values]))
  several = any(seeds > 1 for seeds in Counter(data.labels).values())
  words = 'Mean ± one standard deviation over the seeds. ' if several else ''
  if table.common:
    words += 'All have ' + ', '.join(f'{name} {value}' for name, value in table.common) + '.'
  for other in data.other_metrics:
    words += f' Runs with {other} are in this table only: figures show the {data.metric}.'
  return html.section(
    'Results',
    html.filters(choices),
    html.table(table.heading, table.rows, table.tags),
    html.paragraph(words.strip(), soft=True),
  )


def verdict(verdict: pd.DataFrame | None, of: str = '') -> str:
  """A recipe's numbers beside the paper's, and what is to be said of the runs' settings."""
  if verdict is None:
    return ''
  heading = ['', 'what', 'expected', 'ours', 'difference', 'tolerance', 'seeds']
  rows = [
    [
      'met' if row['met'] else 'NOT MET',
      row['what'],
      text(row['expected']),
      '' if math.isnan(row['expected']) else show_mean(row['ours'], row['deviation'], row['seeds']),
      show(row['difference']),
      show(row['tolerance']),
      str(row['seeds']),
    ]
    for row in sweep_table.records(verdict)
  ]
  words = [html.paragraph(of)] if of else []
  return html.section('Beside the paper', *words, html.table(heading, rows))


def status(data: ReportData) -> str:
  """How many runs there are, and how far they have come."""
  going_on = [i for i, run in enumerate(data.runs) if run.summary is None]
  words = f'{len(data.runs)} runs, {len(set(data.labels))} settings.'
  seeds = {(name, run.config.seed) for name, run in zip(data.labels, data.runs, strict=True)}
  if len(seeds) < len(data.runs):
    words += (
      f' {len(data.runs) - len(seeds)} of them repeat the setting and the seed of another, and are '
      'counted as further seeds.'
    )
  if going_on:
    words += (
      f' Not finished: {len(going_on)}, whose last values so far are shown '
      f'(the furthest is at round {max(map(data.rounds_done, going_on))}).'
    )
  return words


def selection(path: pathlib.Path) -> str:
  """The best settings that a sweep has chosen, and on which data."""
  try:
    return _selection(json.loads((path / 'sweep.json').read_text())['selection'])
  except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no sweep, or damaged
    return ''


def _selection(chosen: list[dict[str, Any]]) -> str:
  if not chosen:
    return html.section(
      'Best settings',
      html.paragraph(
        'No setting was chosen: that needs validation data (--validation_fraction), or the '
        'explicit wish to choose on test data (--select_on=test).'
      ),
    )
  on_test = chosen[0]['selected_on'] == 'test'
  words = (
    'Chosen on TEST data, as asked for: these values are optimistic, because the test data chose '
    'them.' if on_test else
    'Chosen on validation data, which took no part in training or in the test values.'
  )  # fmt: skip
  heading = ['asked for', 'chosen', 'of', 'seeds', chosen[0]['selected_on'], 'test']
  rows = [
    [
      _words(best['for']),
      _words(best['setting']),
      str(best['candidates']),
      str(best['seeds']),
      _score({**best[best['selected_on']], 'seeds': best['seeds']}),
      _score({**best['test'], 'seeds': best['seeds']}),
    ]
    for best in chosen
  ]
  return html.section(
    'Best settings',
    html.paragraph(words, warning=on_test),
    html.table(heading, rows),
    html.paragraph('Epsilon is that of one run: tuning is not accounted for.'),
  )


def _words(values: dict[str, Any]) -> str:
  return ', '.join(f'{symbol(name)} {text_of(name, value)}' for name, value in values.items())


def _score(score: Mapping[str, Any]) -> str:
  """A mean, with its deviation where there is more than one seed; sweep.json has null for NaN."""
  mean, std = (math.nan if score[name] is None else score[name] for name in ('mean', 'std'))
  return show_mean(mean, std, int(score['seeds']))


def figure(drawing: Drawing, folder: pathlib.Path) -> str:
  """A figure that was saved in the report's folder, with its caption."""
  svg = (folder / f'{drawing.name}.svg').read_bytes()
  return html.section(
    drawing.title, html.image(svg, drawing.title), html.paragraph(drawing.caption)
  )


def statements(data: ReportData) -> str:
  """The privacy statements side by side, equal ones once."""
  who: dict[str, list[int]] = {}
  for index, run in enumerate(data.runs):
    statement = (run.privacy or {}).get('statement')
    if statement is None:
      statement = (
        'This run has no privacy.' if run.config.privacy == 'none' else
        'The run is not finished: its statement comes with its last round.'
      )  # fmt: skip
    who.setdefault(statement, []).append(index)
  cards = []
  for statement, members in list(who.items())[:_MOST_STATEMENTS]:
    tags: dict[str, list[str]] = {}
    for index in members:
      for name, values in tags_of(data.runs[index]).items():
        tags[name] = list(dict.fromkeys([*tags.get(name, []), *values]))
    labels = list(dict.fromkeys(data.labels[index] for index in members))
    cards.append(html.card(_names(labels), statement, tags))
  rest = len(who) - len(cards)
  more = [html.paragraph(f"{rest} more are in the runs' privacy.json.")] if rest else []
  return html.section('Privacy statements', html.cards(cards), *more)


def _names(labels: list[str]) -> str:
  more = f'; and {len(labels) - _MOST_NAMES} more' if len(labels) > _MOST_NAMES else ''
  return '; '.join(labels[:_MOST_NAMES]) + more


def configurations(data: ReportData) -> str:
  """In what the settings differ, and what all have in common."""
  names = data.setting_names
  parts = []
  if names:
    rows = []
    for label in dict.fromkeys(data.labels):
      run = data.runs[data.labels.index(label)]
      rows.append([value_of(run.config, name, data.exact) for name in names])
    parts.append(html.table([f'--{n}' for n in names], rows))
  else:
    parts.append(html.paragraph('All runs have the same settings, but for their seeds.'))
  first = data.runs[0].config.identity
  common = [[f'--{n}', text(first[n])] for n in settings()
            if n in first and n not in names and n != 'seed']  # fmt: skip
  seeds = sorted({run.config.seed for run in data.runs})
  common.append(['seeds', ', '.join(map(str, seeds))])
  parts.append(html.details('What all have in common', html.table(
    ['flag', 'value'], common)))  # fmt: skip
  folders = [[label, str(run.folder)] for run, label in zip(data.runs, data.labels, strict=True)]
  parts.append(html.details('Folders', html.table(['setting', 'folder'], folders)))
  return html.section('Differences of configuration', *parts)
