"""What a claim compares, read from the tables of a recipe's runs.

A measure is data (`recipes/claims.json`): a rule of `rules`, and the quantities that it is
applied to. A *term* is such a quantity, an array over the seeds:

  "local"                                   a term that the claim's family of recipes names
  {"part": ..., "where": {...}, ...}        runs of one part of the recipe
  {"minus": [a, b]}                         a difference
  {"share": [a, b, c]}                      (a - b) / (c - b)
  {"better_of": [...]}, {"worse_of": [...]} the better one, chosen on the tuning seeds
  {"mean": [...]}                           the mean of several
  {"at": {...}, "of": a}                    a with other values
  {"by": "name", "terms": {...}}            the one that a value names

Terms are utilities: more is better; errors have their sign turned unless `raw`, which a term of
`part` and a better or worse one may be. Accuracies and their variances are in points; a margin in
points says nothing of the utility of an error, for which it is two errors. Of several settings that
match a term with `choose` the best is taken, by the tuning seeds, which no verdict uses; by
another metric than the term's where `choose` names one. '$name' stands for a value of the judge.

Long because every form of a measure has its function here.
"""

import dataclasses
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.folder.metrics import EVERYONE
from experiments.recipes import impossible, rules
from experiments.recipes.impossible import from_json
from experiments.recipes.rules import Finding
from experiments.sweeps import table as sweep_table

Term = Any  # str | Mapping[str, Any]: data, as JSON has it
_FIND = {'part', 'metric', 'where', 'group', 'choose', 'raw', 'after'}
_FORMS = {
  'minus': set(), 'share': set(), 'mean': set(), 'at': {'of'}, 'by': {'terms'},
  'better_of': {'raw'}, 'worse_of': {'raw'}, 'part': _FIND,
}  # fmt: skip
_ORDERS = {'>': operator.gt, '>=': operator.ge, '<': operator.lt, '<=': operator.le}


class Impossible(ValueError):
  """The runs do not allow a verdict."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
  """The runs of a recipe.

  Attributes:
    tables: by part, as `reproduce.run` gives them: run, seed, settings, group, metric, value.
    terms: the family's named terms.
    values: what '$name' stands for.
    tuning_seeds: how many of the first seeds choose settings; the others judge.
    tried: from how many settings each method's was chosen, written down while judging.
    cannot_be_had: the runs of which the recipe says beforehand that they cannot be had.
    seeds: all seeds of a recipe in two steps, of which those that judge were run with chosen
      settings only; none where all were run with all.

  Long because every form of a term is resolved here, down to the rows of a table.
  """

  tables: Mapping[str, pd.DataFrame]
  terms: Mapping[str, Term] = dataclasses.field(default_factory=dict)
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  tuning_seeds: int = 0
  tried: dict[str, int] = dataclasses.field(default_factory=dict)
  cannot_be_had: tuple[impossible.Impossible, ...] = ()
  seeds: tuple[int, ...] = ()
  _by_metric: dict[tuple[str, ...], tuple[pd.DataFrame, pd.DataFrame]] = dataclasses.field(
    default_factory=dict
  )
  _grids: dict[tuple[str, ...], pd.DataFrame] = dataclasses.field(default_factory=dict)

  def set(self, values: Mapping[str, Any]) -> 'Runs':
    """The same with more values."""
    return dataclasses.replace(self, values={**self.values, **values})

  def filled(self, thing: Any) -> Any:
    """A piece of a measure with its '$name's replaced.

    Raises:
      Impossible: a name without a value.
    """
    if isinstance(thing, str) and thing.startswith('$'):
      if thing[1:] not in self.values:
        raise Impossible(f'{thing} has no value')
      return self.values[thing[1:]]
    if isinstance(thing, Mapping):
      return {name: self.filled(value) for name, value in thing.items()}
    if isinstance(thing, list):
      return [self.filled(value) for value in thing]
    return thing

  # ------------------------------------------------------------ terms

  def of(self, term: Term, *, tuning: bool = False) -> np.ndarray:
    """A term's values, [judging seeds], or those of the tuning seeds.

    Raises:
      Impossible: no such runs, or several settings where nothing may choose.
    """
    term = self._named(term)
    form = next((form for form in _FORMS if form in term), 'part')
    unknown = set(term) - _FORMS[form] - {form}
    if unknown:
      raise Impossible(f'a term of {form} has no {", ".join(sorted(unknown))}')
    if 'minus' in term:
      left, right = (self.of(t, tuning=tuning) for t in term['minus'])
      return left - right
    if 'share' in term:
      part, low, high = (self.of(t, tuning=tuning) for t in term['share'])
      return (part - low) / (high - low)
    if 'mean' in term:
      return np.mean([self.of(t, tuning=tuning) for t in term['mean']], axis=0)
    if 'at' in term:
      return self.set(self.filled(term['at'])).of(term['of'], tuning=tuning)
    if 'by' in term:
      return self.of(term['terms'][str(self.filled('$' + term['by']))], tuning=tuning)
    for kind, pick in (('better_of', np.argmax), ('worse_of', np.argmin)):
      if kind in term:
        candidates = [self._named(t) for t in self.filled(term[kind])]
        if any(t.get('raw') for t in candidates):
          raise Impossible(f'a term of {kind} is raw as a whole: it chooses by utilities')
        means = [float(np.mean(self.of(t, tuning=True))) for t in candidates]
        self._note_choice(candidates)
        chosen = candidates[int(pick(means))]
        return self.of({**chosen, 'raw': True} if term.get('raw') else chosen, tuning=tuning)
    grid = self._grid(term)
    if term.get('choose') and len(grid) > 1:
      self._note(self._method(term), len(grid))
      grid = grid.loc[grid.index == self._best(term)]
    if len(grid) != 1:
      raise Impossible(f'{len(grid)} settings of part {term["part"]} match {term.get("where")}')
    judging, first = self._split(grid)
    if tuning:
      return first.to_numpy()[0]
    place, setting = self._place(term)[0], str(grid.index[0])
    self._reads(place, setting)
    if judging.isna().any(axis=None):
      raise Impossible(f'{setting} of part {place} was not run with the seeds that judge')
    return judging.to_numpy()[0]

  def _method(self, term: Mapping[str, Any]) -> str:
    """Whose settings a term of `part` has."""
    return self.filled(term.get('where', {}).get('method', term['part']))

  def _note(self, what: str, count: int) -> None:
    self.tried[what] = max(self.tried.get(what, 0), count)

  def _note_choice(self, candidates: Sequence[Mapping[str, Any]]) -> None:
    """Writes down from how many settings of one method the better of some terms was chosen."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for term in candidates:
      if 'part' in term:
        by_method.setdefault(self._method(term), []).append(term)
    for method, terms in by_method.items():
      wheres = [self._place(term)[1] for term in terms]
      values = {name: [where.get(name) for where in wheres] for name in wheres[0]}
      varied = {name: found for name, found in values.items() if len({*found}) > 1}
      if varied:
        words = '; '.join(f'{name} {", ".join(map(str, v))}' for name, v in varied.items())
        counts = [len(self._grid(term)) if term.get('choose') else 1 for term in terms]
        self._note(f'{method} ({words})', sum(counts))

  def _reads(self, part: str, setting: str) -> None:
    """Told of every setting whose judging seeds are read."""

  def _named(self, term: Term) -> Mapping[str, Any]:
    """A term, or the one that a name stands for."""
    if isinstance(term, str):
      if term not in self.terms:
        raise Impossible(f'there is no term {term!r}')
      term = self.terms[term]
    return term

  def in_points(self, term: Term) -> bool:
    """Whether a margin is in a term's unit: points of accuracy, or an error's own one."""
    term = self._named(term)
    metric = term.get('metric', self.values.get('metric', ''))
    return bool(term.get('raw')) or not metric or sweep_table.is_better_high(metric)

  def _best(self, term: Mapping[str, Any]) -> str:
    """Name of the setting of most utility on the tuning seeds, of those that all finished."""
    if not self.tuning_seeds:
      raise Impossible('there are no tuning seeds to choose by')
    # Raw errors are chosen by their utility, too.
    by = term if term['choose'] is True else {**term, 'metric': term['choose']}
    utilities = self._split(self._grid({**by, 'raw': False}))[1].mean(axis=1)
    return str(utilities.idxmax())

  def _place(self, term: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The part in which a term is found, and where in it."""
    where, part = self.filled(dict(term.get('where', {}))), term['part']
    if where.get('target_epsilon') == 'inf':  # without privacy
      return f'open_{part}', {n: v for n, v in where.items() if n != 'target_epsilon'}
    return part, where

  def _grid(self, term: Mapping[str, Any]) -> pd.DataFrame:
    """[settings, seeds] of the settings that match and ran with every seed.

    In two steps: with every tuning seed, and NaN where another is still to be run. Terms ask for
    the same ones again and again.
    """
    part, where = self._place(term)
    sign = 'raw' if term.get('raw') else 'utility'
    group, tuning = term.get('group', EVERYONE), str(self.tuning_seeds)
    key = (type(self).__name__, part, group, self._metric(term), json.dumps(where), sign, tuning)
    if key not in self._grids:
      self._grids[key] = self._complete(term)
    return self._grids[key]

  def _complete(self, term: Mapping[str, Any]) -> pd.DataFrame:
    """What `_grid` gives."""
    every = self._every(term)
    is_there = np.isfinite(every)
    if self.seeds:
      judging = every.columns[self.tuning_seeds :]
      is_there[judging] |= every[judging].isna()
    complete = every[is_there.all(axis=1)]
    if complete.empty:
      raise Impossible(self._why_none(term))
    return complete

  def _why_none(self, term: Mapping[str, Any]) -> str:
    """Why no run matches a term, in a sentence."""
    part, where = self._place(term)
    settings = ', '.join(f'{name} {value}' for name, value in where.items())
    what = f'part {part} with {settings}' if settings else f'part {part}'
    plain = {name: from_json(value) for name, value in where.items()}
    for one in self.cannot_be_had:
      if one.concerns(part, plain):
        return f'{what} cannot be run: {one.sentence or one.because}'
    return f'{what} has no runs with {self._metric(term)}'

  def _metric(self, term: Mapping[str, Any]) -> str:
    """The name in the table of what a term reads."""
    metric = self.filled(term.get('metric', '$metric'))
    after = self.filled(term.get('after'))
    return metric if after is None else f'{metric}@{after}'

  def _every(self, term: Mapping[str, Any]) -> pd.DataFrame:
    """[settings, seeds] of the settings that match: NaN where one has no number, or was not run.

    In evidence what ran and has no number, or none that is finite, is infinite.
    """
    part, where = self._place(term)
    metric = self.filled(term.get('metric', '$metric'))
    grid, settings = self._of_metric(part, term.get('group', EVERYONE), self._metric(term))
    for column, value in where.items():
      if column in settings:
        settings = settings[sweep_table.has(settings[column], from_json(value))]
    grid = grid.loc[settings.index]
    grid = grid.reindex(self.seeds, axis=1) if self.seeds else grid.dropna(axis=1, how='all')
    in_points = 100.0 if 'accuracy' in metric else 1.0
    sign = 1.0 if term.get('raw') or sweep_table.is_better_high(metric) else -1.0
    return sign * in_points * grid

  def _of_metric(self, part: str, group: str, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A part's numbers [settings, seeds], and the values of its settings [settings, names]."""
    key = (part, group, name)
    if key not in self._by_metric:
      frame = self.tables.get(part)
      if frame is None:
        raise Impossible(f'part {part} was not run')
      frame = frame[(frame['group'] == group) & (frame['metric'] == name)]
      grid = frame.pivot_table(index='setting', columns='seed', values='value', sort=False)
      grid = grid.reindex(sorted(grid.columns), axis=1)
      settings = frame.drop_duplicates('setting').set_index('setting').loc[grid.index]
      self._by_metric[key] = grid, settings
    return self._by_metric[key]

  def _split(self, grid: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(judging, tuning) seeds."""
    columns = list(grid.columns)
    if len(columns) - self.tuning_seeds < rules.FEWEST_SEEDS:
      raise Impossible(
        f'{len(columns)} seeds, {self.tuning_seeds} of them for tuning, leave fewer than '
        f'{rules.FEWEST_SEEDS}'
      )
    return grid[columns[self.tuning_seeds :]], grid[columns[: self.tuning_seeds]]

  def curve(self, term: Term, setting: str) -> tuple[list[float], np.ndarray]:
    """Utility over one setting, the others chosen on the tuning seeds.

    Returns:
      (values of the setting, increasing; utilities [values, judging seeds]).
    """
    term = dict(self._named(term))
    if 'at' in term:
      return self.set(self.filled(term['at'])).curve(term['of'], setting)
    if 'part' not in term:
      raise Impossible(f'{", ".join(term)}: a curve is of the runs of one part')
    frame = self.tables.get(term['part'])
    if frame is None:
      raise Impossible(f'part {term["part"]} was not run')
    if setting not in frame:
      raise Impossible(f'part {term["part"]} has no {setting} to vary')
    places, rows = [], []
    for value in sorted(float(v) for v in frame[setting].dropna().unique()):
      where = {**term.get('where', {}), setting: value}
      try:
        rows.append(self.of({**term, 'where': where}))
      except Impossible:
        continue  # does not train with every seed
      places.append(value)
    if len(places) < 2:
      raise Impossible(f'fewer than 2 values of {setting}')
    return places, np.array(rows)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Runs):
  """Runs of the tuning seeds, to see which others a verdict reads.

  Where a judging seed is still to be run, the mean of the tuning seeds stands in its place.

  Attributes:
    wanted: (part, setting) whose judging seeds are read, written down while judging.
  """

  wanted: set[tuple[str, str]] = dataclasses.field(default_factory=set)

  def _reads(self, part: str, setting: str) -> None:
    self.wanted.add((part, setting))

  def _every(self, term: Mapping[str, Any]) -> pd.DataFrame:
    grid = super()._every(term)
    expected = grid[list(self.seeds[: self.tuning_seeds])].mean(axis=1, skipna=False)
    for seed in self.seeds[self.tuning_seeds :]:
      grid[seed] = grid[seed].fillna(expected)
    return grid


def judge(
  measure: Mapping[str, Any],
  runs: Runs,
  *,
  relation: str,
  margin: Any,
  cells: Mapping[str, Mapping[str, float]] | None = None,
) -> Finding:
  """Applies a measure.

  Args:
    measure: {'rule': ..., ...}; 'beside', and that of the judge's values, list terms that are said
      beside it and judge nothing, {'what': words, 'of': term}.
    runs: of the recipe.
    relation: the claim's, unless the measure has its own.
    margin: likewise; one by data set is looked up by the value 'data_name', and is 0 where a
      stand-in is judged in sign only (`sign_only`).
    cells: a table's tolerances.

  Returns:
    The finding; not judged where the runs do not allow it.
  """
  said = (*measure.get('beside', ()), *runs.values.get('beside', ()))
  runs = runs.set({'beside': ()})  # those of its values are said once, whatever it is made of
  try:
    if 'needs' in measure:
      premise = judge(measure['needs'], runs, relation=relation, margin=margin)
      if not premise.met and not isinstance(runs, Plan):
        return Finding(met=None, text=f'{rules.NO_PREMISE}: {premise.text}')
    if 'nearest' in measure:
      runs = _nearest(measure['nearest'], runs)
    each = {name: runs.filled(value) for name, value in measure.get('each', {}).items()}
    findings = []
    for chosen in itertools.product(*each.values()):
      here = runs.set(dict(zip(each, chosen, strict=True)))
      apply = _RULES[measure['rule']]
      values = (measure, here, measure.get('relation', relation), _margin(measure, here, margin))
      found = apply(*values, cells) if measure['rule'] == 'table' else apply(*values)
      label = ', '.join(f'{n} {v}' for n, v in zip(each, chosen, strict=True))
      if label:
        found = dataclasses.replace(found, text=f'{label}: {found.text}')
      findings.append(found)
    found = rules.together(findings, needed=measure.get('needed', 'all'))
    besides = [f'; {beside["what"]}: {rules.difference(runs.of(beside["of"]))}' for beside in said]
    return dataclasses.replace(found, text=found.text + ''.join(besides))
  except (Impossible, ValueError) as error:
    return Finding(met=None, text=str(error))


def _nearest(what: Mapping[str, Any], runs: Runs) -> Runs:
  """Sets a value to where a term is nearest to 0 on the tuning seeds, unless it is given."""
  if what['name'] in runs.values:
    return runs
  places = runs.filled(what['over'])
  size = [abs(float(np.mean(runs.set({'epsilon': x}).of(what['of'], tuning=True)))) for x in places]
  return runs.set({what['name']: places[int(np.argmin(size))]})


def _margin(measure: Mapping[str, Any], runs: Runs, margin: Any) -> float | None:
  if runs.values.get('sign_only'):
    return 0.0
  return listed_margin(measure.get('margin', margin), runs.values)


def listed_margin(margin: Any, values: Mapping[str, Any]) -> float | None:
  """A claim's margin as the list has it, on the data set of a judge's values."""
  if isinstance(margin, Mapping):
    return margin[values['data_name']]
  return margin if isinstance(margin, int | float) else None


_WITHOUT_MARGIN = {'about': 'indifferent', 'within': 'indifferent', 'not below': '>='}


def _order(measure, runs: Runs, relation: str, margin) -> Finding:
  left = runs.of(measure['left'])
  right = measure['right']
  if isinstance(right, int | float):
    return rules.order(relation, left, float(right), margin)
  right = runs.filled(right) if isinstance(right, str) else right
  several = right if isinstance(right, list) else [right]
  if measure.get('one_sided'):
    relation = 'not below'
  if margin and not runs.in_points(measure['left']):
    margin = None
    relation = _WITHOUT_MARGIN.get(relation, relation)
  findings = []
  for term in several:
    found = rules.order(relation, left, runs.of(term), margin)
    name = f'{term}: ' if isinstance(term, str) and len(several) > 1 else ''
    findings.append(dataclasses.replace(found, text=name + found.text))
  return rules.together(findings)


# A table's column: the metric, and whose; '@' with a lambda stands behind those of own models.
_COLUMNS = {
  'acc_g': ('server_test_accuracy', None),
  'acc_g_p': ('test_global_accuracy_mean', 'p'),
  'acc_g_np': ('test_global_accuracy_mean', 'np'),
  'acc_g_p_var': ('test_global_accuracy_variance', 'p'),
  'acc_g_np_var': ('test_global_accuracy_variance', 'np'),
  'delta_g': ('test_global_accuracy_opted_out_minus_private', None),
  'acc_l_p': ('test_accuracy_mean', 'p'),
  'acc_l_np': ('test_accuracy_mean', 'np'),
  'acc_l_p_var': ('test_accuracy_variance', 'p'),
  'acc_l_np_var': ('test_accuracy_variance', 'np'),
  'delta_l': ('test_accuracy_opted_out_minus_private', None),
}  # fmt: skip
_ANY_LAMBDA = 0.005  # acts on own models only


def table_cells(measure: Mapping[str, Any], cells: Iterable[str]) -> dict[str, tuple[str, str]]:
  """The metric, and of which group, of each cell of a table."""
  found = {}
  for name in cells:
    metric, whose = _COLUMNS[name.partition('@')[0]]
    found[name] = metric, measure['groups'][whose] if whose else EVERYONE
  return found


def _table(measure, runs: Runs, relation: str, margin, cells) -> Finding:
  values = {}
  for name, (metric, group) in table_cells(measure, cells).items():
    ditto_lambda = name.partition('@')[2]
    where = {
      **measure.get('where', {}),
      measure['lambda']: float(ditto_lambda) if ditto_lambda else _ANY_LAMBDA,
    }
    values[name] = runs.of(
      {'part': measure['part'], 'metric': metric, 'where': where, 'group': group}
    )
  return rules.table(values, cells)


def _trend(measure, runs: Runs, relation: str, margin) -> Finding:
  ((name, places),) = measure['over'].items()
  values = [runs.set({name: place}).of(measure['of']) for place in runs.filled(places)]
  return rules.trend(values, rises=measure['direction'] == 'rises')


def _trend_in(measure, runs: Runs, relation: str, margin) -> Finding:
  """A trend over a setting: of the difference of two curves that share its values."""
  left, right = (runs.curve(term, measure['setting']) for term in measure['of'])
  places = [x for x in left[0] if x in right[0]]
  values = [left[1][left[0].index(x)] - right[1][right[0].index(x)] for x in places]
  if len(values) < 2:
    raise Impossible(f'fewer than 2 values of {measure["setting"]} in common')
  return rules.trend(values, rises=measure['direction'] == 'rises')


def _turns(measure, runs: Runs, relation: str, margin) -> Finding:
  places, utilities = runs.curve(measure['of'], measure['setting'])
  count = rules.turns(list(utilities))
  return Finding(
    met=rules.holds(relation, rules.difference(count, 1, exact=True), margin or 0.0),
    text=f'{count} changes of direction over {len(places)} values',
    seeds=utilities.shape[1],
  )


def _best_setting(measure, runs: Runs, relation: str, margin) -> Finding:
  """The best value of a setting in one case against another: by bootstrap over the seeds."""
  cases = [runs.set(values) for values in runs.filled(measure['cases'])]
  of = runs.filled(measure['of']) if isinstance(measure['of'], str) else measure['of']
  terms = of if isinstance(of, list) else [of] * len(cases)
  curves = [case.curve(term, measure['setting']) for case, term in zip(cases, terms, strict=True)]
  seeds = min(utilities.shape[1] for _, utilities in curves)
  smooth = measure.get('smooth', False)

  def optima(drawn: np.ndarray) -> list[float]:
    return [rules.best_of(x, u[:, drawn].mean(axis=1), smooth=smooth) for x, u in curves]

  def ordered(drawn: np.ndarray) -> bool:
    found = optima(drawn)
    ends = _ORDERS[relation](found[0], found[-1])
    if not measure.get('monotone'):
      return ends
    steps = itertools.pairwise(found)
    falls = all(a >= b if '>' in relation else a <= b for a, b in steps)
    return ends and falls

  found = optima(np.arange(seeds))
  share = rules.bootstrap(ordered, seeds)
  met = share >= rules.SHARE_OF_DRAWS
  if measure.get('rank'):
    order = np.corrcoef(np.argsort(np.argsort(found)), np.arange(len(found)))[0, 1]
    met = met and (order < 0 if '>' in relation else order > 0)
  words = ', '.join(f'{x:.3g}' for x in found)
  return Finding(
    met=met, text=f'best {measure["setting"]} {words}; {share:.0%} of draws', seeds=seeds
  )


def _crossing(measure, runs: Runs, relation: str, margin) -> Finding:
  """Where one term overtakes another over a variable, in each of several cases."""
  ((name, places),) = measure['over'].items()
  places = runs.filled(places)
  gaps = []
  for values in measure['cases']:
    case = runs.set(runs.filled(values))
    gaps.append(np.array([case.set({name: x}).of(measure['of']) for x in places]))
  numbers = [math.inf if x == 'inf' else float(x) for x in places]
  seeds = min(gap.shape[1] for gap in gaps)

  def where(drawn: np.ndarray) -> list[float]:
    return [rules.crossing(numbers, gap[:, drawn].mean(axis=1)) for gap in gaps]

  def ordered(drawn: np.ndarray) -> bool:
    found = where(drawn)
    return all(x > found[-1] if '>' in relation else x < found[-1] for x in found[:-1])

  share = rules.bootstrap(ordered, seeds)
  words = ', '.join(f'{x:.3g}' for x in where(np.arange(seeds)))
  return Finding(
    met=share >= rules.SHARE_OF_DRAWS, text=f'at {words}; {share:.0%} of draws', seeds=seeds
  )


def _between(measure, runs: Runs, relation: str, margin) -> Finding:
  """Where one term overtakes another for good: near a number in one of several cases.

  In the cases behind that one (more noise) it does not come later.
  """
  ((name, places),) = measure['over'].items()
  places = runs.filled(places)
  found, seeds = [], 0
  for values in measure['cases']:
    case = runs.set(values)
    gap = np.array([case.set({name: x}).of(measure['of']) for x in places])
    found.append(rules.crossing([float(x) for x in places], gap.mean(axis=1)))
    seeds = gap.shape[1]
  near = [
    i
    for i, x in enumerate(found)
    if abs(x - measure['number']) <= (margin or 0.0) and all(y <= x for y in found[i + 1 :])
  ]
  return Finding(met=bool(near), text='at ' + ', '.join(f'{x:.3g}' for x in found), seeds=seeds)


def _nearer(measure, runs: Runs, relation: str, margin) -> Finding:
  """At its last value a curve is nearer to a term than at its first."""
  places, utilities = runs.curve(measure['of'], measure['setting'])
  target = float(np.mean(runs.of(measure['to'])))
  first, last = (abs(float(np.mean(utilities[i])) - target) for i in (0, -1))
  return Finding(
    met=last < first,
    text=f'{rules.show(last)} from it at {places[-1]:g}, {rules.show(first)} at {places[0]:g}',
    seeds=utilities.shape[1],
  )


def _all(measure, runs: Runs, relation: str, margin) -> Finding:
  findings = [judge(m, runs, relation=relation, margin=margin) for m in measure['of']]
  return rules.together(findings, needed=measure.get('of_them', 'all'))


_RULES: dict[str, Callable[..., Finding]] = {
  'order': _order,
  'table': _table,
  'trend': _trend,
  'trend in': _trend_in,
  'turns': _turns,
  'best setting': _best_setting,
  'crossing': _crossing,
  'between': _between,
  'nearer': _nearer,
  'all': _all,
}
NAMES: Sequence[str] = tuple(_RULES)
