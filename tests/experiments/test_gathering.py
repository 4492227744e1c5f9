"""Recipes in two steps come to the verdicts of their whole grids, and go on where they stopped."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.recipes import claims, evidence, gathering, measures, recipes, reproduce, verdicts
from experiments.running import interruption
from experiments.sweeps import table as sweep_table
from tests.experiments import made_tables

CIFAR = 'claims_silo_cifar10'
EVERY = [(claim, judge) for claim in verdicts.read() for judge in claim.judges]


def _with_open_interest(claim, name):
  """The claim with the budget that is of interest left to the tuning seeds."""
  judges = tuple(
    dataclasses.replace(
      judge,
      values={n: v for n, v in judge.values.items() if n != 'interest' or judge.recipe != name},
    )
    for judge in claim.judges
  )
  return dataclasses.replace(claim, judges=judges)


class Made:
  """A recipe in two steps, whose runs are rows of a table that was made for its whole grid."""

  def __init__(self, monkeypatch, tmp_path, name):
    monkeypatch.setattr(evidence, 'FOLDER', tmp_path)
    original = recipes.read(name)
    changed = [_with_open_interest(claim, name) for claim in verdicts.read()]
    monkeypatch.setattr(verdicts, 'read', lambda: changed)
    every = [(claim, judge) for claim in changed for judge in claim.judges]
    self.mine = [(claim, judge) for claim, judge in every if judge.recipe == name]
    (tuning,) = {verdicts.read_families()[judge.family]['tuning_seeds'] for _, judge in self.mine}
    self.recipe = dataclasses.replace(original, tuning_seeds=tuning)
    self.metrics = sorted(claims.read_of(name))
    rng = np.random.default_rng(0)
    self.whole = {p: made_tables.of_part(original, p, self.metrics, rng) for p in original.parts}
    self.ran = {part: set() for part in original.parts}
    self.stops_at = None
    read = recipes.read
    monkeypatch.setattr(recipes, 'read', lambda n: self.recipe if n == name else read(n))
    monkeypatch.setattr(reproduce, 'run', self.run)
    monkeypatch.setattr(reproduce, 'finished', lambda *_: self.finished())

  def finished(self):
    return {
      part: table[[key in self.ran[part] for key in _keys(table)]]
      for part, table in self.whole.items()
    }  # fmt: skip

  def run(self, recipe, *, only, **_):
    for part in recipe.parts:
      configs = recipe.grid(part).runs()
      for name in only[part]:
        if self.stops_at == self.num_ran:
          raise interruption.Interrupted(2)
        self.ran[part].add((sweep_table.setting_of(name), configs[name].seed))
    return self.finished()

  @property
  def num_ran(self):
    return sum(map(len, self.ran.values()))

  def gather(self, tmp_path):
    return gathering.gather(
      self.recipe, output=tmp_path, used=self.metrics, date='2026-01-02',
      reads=lambda tables: claims.settings_read(self.recipe, tables),
    )  # fmt: skip

  def judged(self, tables):
    runs = claims.RunsOfRecipes({self.recipe.name: tables})
    return [claims.judge_runs(claim, judge, runs) for claim, judge in self.mine]

  def judged_whole(self, monkeypatch):
    """As a recipe whose seeds all run the whole grid is judged."""
    with monkeypatch.context() as patch:
      whole = dataclasses.replace(self.recipe, tuning_seeds=0)
      patch.setattr(recipes, 'read', lambda _: whole)
      return self.judged(self.whole)


def _keys(table):
  return zip(table['setting'], table['seed'], strict=True)


@pytest.mark.slow
def test_the_verdicts_are_those_of_the_whole_grid(monkeypatch, tmp_path):
  made = Made(monkeypatch, tmp_path, CIFAR)
  kept = made.gather(tmp_path)
  assert kept.complete
  found = made.judged(kept.tables)
  assert found == made.judged_whole(monkeypatch)
  assert {finding.met for finding in found} == {True, False}
  whole = sum(len(table) for table in made.whole.values()) / len(made.metrics)
  tuning = whole * made.recipe.tuning_seeds / len(made.recipe.grid('ends').seeds)
  assert tuning < made.num_ran < tuning + 0.4 * whole


def test_a_setting_that_diverges_for_a_judging_seed_is_not_chosen(monkeypatch, tmp_path):
  """The next best one is run in its place, as the whole grid would have it.

  The whole grid's words do not count it among the settings that were tried, and say otherwise why
  a claim on that very setting cannot be judged.
  """
  made = Made(monkeypatch, tmp_path, CIFAR)
  table = made.whole['mr_mtl']
  first = table[table['seed'] == made.recipe.grid('mr_mtl').seeds[0]]
  best = set(first.loc[first.groupby('target_epsilon')['value'].idxmax(), 'setting'])
  diverged = table['setting'].isin(best) & (table['seed'] == made.recipe.grid('mr_mtl').seeds[-1])
  made.whole['mr_mtl'] = table.assign(value=np.where(diverged, np.nan, table['value']))
  found, whole = made.judged(made.gather(tmp_path).tables), made.judged_whole(monkeypatch)
  numbers = [
    [f.met if f.met is None else (f.met, f.text.partition('; settings tried')[0]) for f in findings]
    for findings in (found, whole)
  ]
  assert numbers[0] == numbers[1]


def test_what_was_stopped_goes_on_from_its_evidence(monkeypatch, tmp_path):
  """On another machine, too: nothing is run again, and nothing is judged before the end."""
  made = Made(monkeypatch, tmp_path, CIFAR)
  at_once = made.gather(tmp_path)
  rows, num_runs = at_once.tables, made.num_ran
  evidence._find(CIFAR).unlink()
  made.ran = {part: set() for part in made.ran}
  made.stops_at = num_runs // 2
  with pytest.raises(interruption.Interrupted):
    made.gather(tmp_path)
  with pytest.raises(evidence.Lacking, match='a part of its runs'):
    evidence.read(made.recipe)
  again = claims.judge_again([CIFAR])
  assert not again.judged and 'a part of its runs' in next(iter(again.lacking))
  before = made.num_ran
  made.ran, made.stops_at = {part: set() for part in made.ran}, None  # another machine's folder
  kept = made.gather(tmp_path)
  assert kept.complete and before == num_runs // 2 and made.num_ran == num_runs - before
  keys = ['setting', 'seed', 'group', 'metric']
  for part, table in rows.items():
    ours, theirs = (t.set_index(keys)['value'].sort_index() for t in (kept.tables[part], table))
    pd.testing.assert_series_equal(ours, theirs)


def test_what_only_tuning_seeds_compare_needs_no_judging_seeds():
  """A rival that loses on the tuning seeds is compared as it is there: it went no further."""
  numbers = {
    ('a', 0): 5.0,
    ('a', 1): 1.0,
    ('a', 2): 1.0,
    ('a', 3): 1.0,
    ('b', 0): 4.0,
    ('c', 0): 6.0,
  }
  rows = [
    {'setting': s, 'seed': seed, 'group': 'all', 'metric': 'test_accuracy', 'value': v, 'method': s}
    for (s, seed), v in numbers.items()
  ]
  terms = {n: {'part': 'one', 'where': {'method': n}, 'choose': True} for n in 'abc'}
  runs = measures.Runs(
    tables={'one': pd.DataFrame(rows)}, terms=terms, values={'metric': 'test_accuracy'},
    tuning_seeds=1, seeds=(0, 1, 2, 3),
  )  # fmt: skip
  assert list(runs.of({'better_of': ['a', 'b']})) == [100.0] * 3
  assert list(runs.of({'worse_of': ['a', 'c']})) == [100.0] * 3
  with pytest.raises(measures.Impossible, match='not run with the seeds that judge'):
    runs.of({'better_of': ['a', 'c']})
  plan = measures.Plan(**{f.name: getattr(runs, f.name) for f in dataclasses.fields(runs)})
  plan.of({'better_of': ['a', 'c']})
  assert plan.wanted == {('one', 'c')}


def test_recipes_in_two_steps_choose_as_their_claims_do():
  for claim, judge in EVERY:
    recipe = recipes.read(judge.recipe) if judge.recipe else None
    if recipe and recipe.tuning_seeds:
      assert verdicts.read_families()[judge.family]['tuning_seeds'] == recipe.tuning_seeds, claim.id
      assert len({recipe.grid(part).seeds for part in recipe.parts}) == 1, recipe.name
      assert not judge.with_, claim.id


def test_reproduce_leaves_two_steps_to_the_claims(capsys):
  assert reproduce.main(['reproduce', CIFAR]) == 2
  assert f'claims --run={CIFAR}' in ' '.join(capsys.readouterr().err.split())
