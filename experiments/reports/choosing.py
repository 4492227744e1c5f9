"""Which settings a report's figures show, and the words on how they were chosen."""

import math
from collections.abc import Set

import pandas as pd

from experiments.config.experiment import ExperimentConfig, default_of, settings
from experiments.folder.metrics import EVERYONE
from experiments.reports.data import ReportData, symbol, text, text_of
from experiments.sweeps import grid as sweep_grid
from experiments.sweeps import table as sweep_table
from privacy.rounding import rounded_up
from settings import Group

# Settings that say what is to be learnt from, and not how.
_OPTIONS = 'dataset_option'
_PROBLEM = ('dataset', _OPTIONS, 'test_fraction')


def pooled(data: ReportData) -> pd.DataFrame:
  """The last value of the main metric of all runs, over all clients.

  Runs of different `problem`s, a column in words, differ in their data: no figure chooses the
  better one of those.
  """
  last = data.last
  last = last[(last['metric'] == data.main_metric) & (last['group'] == EVERYONE)]
  return last.assign(problem=problems(data, last))


def problems(data: ReportData, rows: pd.DataFrame) -> list[str]:
  """What each row's run learns from, in words, as far as the runs differ in it."""
  names = [name for name in _PROBLEM if name in data.setting_names]
  words = {
    name: [f'{symbol(name)} {text_of(name, value)}' for value in rows[name]] for name in names
  }
  if _OPTIONS in words:  # Of several options those count in which the runs differ.
    options = [text(value).split() for value in rows[_OPTIONS]]
    same = set.intersection(*map(set, options)) if options else set()
    words[_OPTIONS] = [' '.join(o for o in own if o not in same) for own in options]
  said: list[list[str]] = [[] for _ in range(len(rows))]
  for column in words.values():
    for own, word in zip(said, column, strict=True):
      own += [word] if word else []
  return [', '.join(own) for own in said]


def best_settings(
  data: ReportData, frame: pd.DataFrame, keys: list[str]
) -> tuple[pd.DataFrame, str]:
  """For each combination of the keys the best setting, and the words on how it was chosen."""
  scores = data.over_seeds(frame, *keys, 'setting')
  candidates = scores.groupby(keys, dropna=False)['setting'].nunique().max()
  if candidates == 1:
    return scores, ''
  validation = f'validation_{data.metric}'
  judged = data.last[(data.last['metric'] == validation) & (data.last['group'] == EVERYONE)]
  has_validation = set(scores['setting']) <= set(judged['setting'])
  if has_validation:
    judge = data.over_seeds(judged, 'setting').set_index('setting')['mean']
    scores = scores.assign(judge=scores['setting'].map(judge))
    words = 'At each point the best setting on validation data.'
  else:
    scores = scores.assign(judge=scores['mean'])
    words = (
      'At each point the best of up to '
      f'{candidates} settings, CHOSEN ON TEST DATA: these values are optimistic.'
    )
  high = sweep_table.is_better_high(data.metric)
  scores = scores.dropna(subset=['judge'])
  grouped = scores.groupby(keys, dropna=False, sort=False)['judge']
  best = grouped.idxmax() if high else grouped.idxmin()
  return scores.loc[best].drop(columns='judge').reset_index(drop=True), words


def best_local(data: ReportData, asked: dict[str, tuple]) -> tuple[dict[tuple, str], str]:
  """The best setting of local training for what is asked, and words on how it was chosen.

  Args:
    data: the runs.
    asked: what is asked, by the label of the setting.
  """
  last = pooled(data)
  last = last[last['setting'].isin(asked.keys())]
  if last.empty:
    return {}, ''
  best, words = best_settings(data, last.assign(asked=last['setting'].map(asked)), ['asked'])
  words = words.replace('At each point', ' Of local training')
  return dict(zip(best['asked'], best['setting'], strict=True)), words


def asked_of(config) -> tuple:
  """What runs must have in common to be compared client by client."""
  names = (*_PROBLEM, 'privacy', *sweep_grid.BUDGETS)
  return tuple(getattr(config, name) for name in names)


def shown_of(
  data: ReportData, settings: pd.Series, most: int, *, without: Set[str] = frozenset()
) -> tuple[list[str], str]:
  """The settings that a figure has room for, and the words on how they were chosen."""
  present = set(settings) - without
  names = [name for name in dict.fromkeys(data.labels) if name in present]
  if len(names) <= most:
    return names, ''
  last = pooled(data)
  asked = ('problem', 'method', 'privacy', 'target_epsilon', 'noise_multiplier')
  keys = [name for name in asked if name in last]
  best, words = best_settings(data, last[last['setting'].isin(present)], keys)
  chosen = [name for name in names if name in set(best['setting'])]
  words = words.replace('At each point', 'Of each method and budget')
  if len(chosen) <= most:
    return chosen, f' {words}'
  few = f'{most} of {len(chosen)} are shown, those of the middle budgets first.'
  return _of_middle_budgets(chosen, last, most), f' {words} {few}'


def _of_middle_budgets(names: list[str], last: pd.DataFrame, most: int) -> list[str]:
  """The first `most` names from the budget in the middle outwards, in their own order."""
  epsilons = last.drop_duplicates('setting').set_index('setting')['epsilon']
  # Without noise there is no epsilon: the largest budget.
  of_name = epsilons.astype(float).fillna(math.inf).round(4)
  budgets = sorted({of_name[name] for name in names})
  middle = len(budgets) // 2
  rank = {name: abs(budgets.index(of_name[name]) - middle) for name in names}
  kept = set(sorted(names, key=lambda name: rank[name])[:most])
  return [name for name in names if name in kept]


def variants(data: ReportData, rows: pd.DataFrame) -> list[str]:
  """In which of several forms a method was run, in words: its settings that are no numbers."""
  names = [
    name for name in data.setting_names
    if (setting := settings()[name]).group is Group.METHOD and setting.kind in (str, bool)
    and not setting.is_path
  ]  # fmt: skip
  said: list[list[str]] = [[] for _ in range(len(rows))]
  for name in names:
    # A method's only form has no words, which would part it from the methods without the setting.
    is_several = rows.groupby('method')[name].transform('nunique') > 1
    for own, method, value, several in zip(
      said, rows['method'], rows[name], is_several, strict=True
    ):
      if several and value != default_of(name, method):
        own.append(f'{symbol(name)} {text_of(name, value)}')
  return [', '.join(own) for own in said]


def lambda_files(data: ReportData, rows: pd.DataFrame) -> list[str]:
  """The settings that are files of clients' own lambdas."""
  return [
    name
    for name in data.setting_names
    if 'lambda' in name and rows[name].map(lambda value: isinstance(value, str)).any()
  ]


def own_lambdas(rows: pd.DataFrame, files: list[str]) -> list[str]:
  """'own lambdas' for each row that has them, '' for the others."""
  return ['own lambdas' * given for given in (rows[files].fillna('') != '').any(axis=1)]


def budget_in_words(config: ExperimentConfig) -> str:
  """How much privacy was asked for."""
  if config.privacy == 'none':
    return 'not private'
  if config.target_epsilon is not None:
    return f'epsilon {rounded_up(config.target_epsilon)}'
  if config.noise_multiplier is not None:
    return f'noise multiplier {text(config.noise_multiplier)}'
  return 'budgets of their own'
