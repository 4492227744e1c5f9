"""Stored evidence: judged from it as from the runs, and only while it is of the same grid."""

import dataclasses
import gzip
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.recipes import claims, evidence, measures, recipes, reproduce, rules, verdicts
from tests.experiments import made_tables

CLAIMS = {claim.id: claim for claim in verdicts.read()}
NONIID, SKEWED = 'claims_feo2_noniid', 'claims_feo2_skewed'
BETTER, ON_BOTH = 'feo2-global-beats-dpfedavg-noniid', 'feo2-ratio-star-larger-when-skewed'
ACCURACY = 'server_test_accuracy'


@pytest.fixture(autouse=True)
def stores(monkeypatch, tmp_path):
  """Nothing of the repository is written, and few draws are enough."""
  monkeypatch.setattr(rules.bootstrap, '__kwdefaults__', {'draws': 20})
  monkeypatch.setattr(evidence, 'FOLDER', tmp_path / 'evidence')
  monkeypatch.setattr(verdicts, 'STORE', tmp_path / 'verdicts.json')
  monkeypatch.setattr(verdicts, 'PAGE', tmp_path / 'claims.md')
  return tmp_path


def _tables(name, *, seed=0):
  """FeO2 is better than DP-FedAvg, beside much that no claim reads."""
  recipe, rng = recipes.read(name), np.random.default_rng(seed)
  read = [*sorted(claims.read_of(name)), ('train_loss', 'all'), (f'{ACCURACY}@7', 'all')]
  tables = {part: made_tables.of_part(recipe, part, read, rng) for part in recipe.parts}
  for part, table in tables.items():
    level = 0.65 if part == 'feo2' else 0.4
    tables[part] = table.assign(value=level + 0.1 * (table['value'] - 0.5))
  return tables


def _store(name, tables=None, *, date='2026-01-02'):
  tables = _tables(name) if tables is None else tables
  recipe, commits = recipes.read(name), ['b' * 40, 'a' * 40]
  return evidence.write(recipe, tables, claims.read_of(name), date=date, commits=commits)


def _run_with(monkeypatch, tables):
  """Runs come out as these tables; returns the names of the recipes that are run."""
  ran = []

  def run(recipe, **_):
    ran.append(recipe.name)
    return tables[recipe.name]

  monkeypatch.setattr(reproduce, 'run', run)
  monkeypatch.setattr(recipes, 'get_data', lambda *_: None)
  return ran


@pytest.mark.slow
def test_judged_from_evidence_as_from_the_runs():
  tables = {name: _tables(name) for name in (NONIID, SKEWED)}
  kept = {name: _store(name, tables[name]).tables for name in tables}
  judges = [(c, j) for c in CLAIMS.values() for j in c.judges]
  mine = [(c, j) for c, j in judges if j.recipes and {*j.recipes} <= tables.keys()]
  assert len(mine) > 20 and any(len(judge.recipes) == 2 for _, judge in mine)
  from_evidence, from_runs = claims.RunsOfRecipes(kept), claims.RunsOfRecipes(tables)
  found = [claims.judge_runs(claim, judge, from_evidence) for claim, judge in mine]
  assert found == [claims.judge_runs(claim, judge, from_runs) for claim, judge in mine]
  assert {finding.met for finding in found} == {True, False}


def test_only_what_claims_read_is_kept_and_every_such_number():
  tables = _tables(NONIID)
  kept = _store(NONIID, tables)
  assert kept.holds == claims.read_of(NONIID)
  for part, table in tables.items():
    read = table[~table['metric'].isin(['train_loss', f'{ACCURACY}@7'])]
    keys = ['setting', 'seed', 'group', 'metric']
    ours, theirs = (t.set_index(keys).sort_index() for t in (kept.tables[part], read))
    assert ours.index.equals(theirs.index)
    np.testing.assert_allclose(ours['value'], theirs['value'], rtol=1e-8)
    swept = [name for name in theirs.columns if name != 'value']
    pd.testing.assert_frame_equal(ours[swept], theirs[swept])
    singles = theirs['value'].astype(np.float32)  # what a model computes: to the last bit
    assert list(singles) == [np.float32(f'{value:.9g}') for value in singles]


def test_what_a_run_has_no_number_for_is_not_made_up():
  """One that did not finish, one without a number, one that diverged: none is a setting then."""
  tables = _tables(NONIID)
  accuracy = (tables['feo2']['metric'] == ACCURACY).to_numpy()
  names = list(dict.fromkeys(tables['feo2']['setting']))
  for setting, value in zip(names, (None, np.nan, np.inf), strict=False):
    here = accuracy & (tables['feo2'][['setting', 'seed']] == (setting, 3)).all(axis=1).to_numpy()
    assert here.sum() == 1
    if value is None:
      tables['feo2'], accuracy = tables['feo2'][~here], accuracy[~here]
    else:
      tables['feo2'] = tables['feo2'].assign(value=np.where(here, value, tables['feo2']['value']))
  kept = _store(NONIID, tables)
  grids = [
    measures.Runs(tables=found)._grid({'part': 'feo2', 'metric': ACCURACY})
    for found in (tables, kept.tables)
  ]
  assert not {*names[:3]} & {*grids[1].index}
  pd.testing.assert_frame_equal(*grids, check_column_type=False)


def test_a_single_setting_without_a_name_is_kept():
  recipe = recipes.read('claims_silo_school_program')
  rng = np.random.default_rng(0)
  tables = {p: made_tables.of_part(recipe, p, [('test_mse', 'all')], rng) for p in recipe.parts}
  kept = _store(recipe.name, tables)
  assert all({*table['setting']} == {''} for table in kept.tables.values())
  assert {part: len(table) for part, table in kept.tables.items()} == {
    part: len(recipe.grid(part).seeds) for part in recipe.parts
  }


def test_the_file_says_where_the_numbers_are_from_and_stays_as_it_is_with_the_same():
  _store(NONIID)
  path = evidence.FOLDER / f'{NONIID}.csv'
  first, columns, *rows = path.read_text().splitlines()
  head = json.loads(first.removeprefix('# '))
  assert head['date'] == '2026-01-02' and head['commits'] == ['a' * 40, 'b' * 40]
  seeds = ','.join(map(str, recipes.read(NONIID).grid('feo2').seeds))
  assert columns == f'part,setting,group,metric,{seeds}'
  assert len(rows) == sum(len(table) for table in _store(NONIID).tables.values()) / 5
  before = path.read_bytes()
  assert _store(NONIID, date='2026-05-06').date == '2026-01-02'
  assert path.read_bytes() == before
  assert _store(NONIID, _tables(NONIID, seed=1), date='2026-05-06').date == '2026-05-06'
  assert path.read_bytes() != before


def test_a_large_file_is_compressed_and_comes_out_the_same_each_time(monkeypatch):
  small = _store(NONIID)
  plain = (evidence.FOLDER / f'{NONIID}.csv').read_bytes()
  monkeypatch.setattr(evidence, '_LARGE', 1000)
  shutil.rmtree(evidence.FOLDER)
  large = _store(NONIID)
  (path,) = evidence.FOLDER.iterdir()
  assert path.name == f'{NONIID}.csv.gz' and gzip.decompress(path.read_bytes()) == plain
  assert path.read_bytes()[4:8] == bytes(4)  # no time of day
  for part, table in small.tables.items():
    pd.testing.assert_frame_equal(table, large.tables[part])


def test_one_form_takes_the_place_of_the_other(monkeypatch):
  _store(NONIID)
  monkeypatch.setattr(evidence, '_LARGE', 1000)
  _store(NONIID, _tables(NONIID, seed=1))
  assert [path.name for path in evidence.FOLDER.iterdir()] == [f'{NONIID}.csv.gz']


def test_the_newer_of_two_forms_counts(monkeypatch):
  """Both are there after a kill between writing the one and removing the other."""
  _store(NONIID)
  small = evidence.FOLDER / f'{NONIID}.csv'
  older = small.read_bytes()
  monkeypatch.setattr(evidence, '_LARGE', 1000)
  written = _store(NONIID, _tables(NONIID, seed=1))
  small.write_bytes(older)
  os.utime(small, (1, 1))
  for part, table in evidence.read(recipes.read(NONIID)).tables.items():
    pd.testing.assert_frame_equal(table, written.tables[part])
  _store(NONIID, _tables(NONIID, seed=2))
  assert [path.name for path in evidence.FOLDER.iterdir()] == [f'{NONIID}.csv.gz']


def test_what_is_damaged_or_in_the_way_is_said_before_anything_runs(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(claims, 'judge_theory', lambda *_, **__: pytest.fail('it runs'))
  (tmp_path / 'taken').touch()
  assert claims.main(['claims', '--run=theory', f'--page_dir={tmp_path}/taken']) == 2
  assert f'cannot write {tmp_path}/taken' in capsys.readouterr().err
  for damaged in ('', '[1]', '{"a": {"b": {"c": 1}}}', '{"a": {"b": {"verdict": "fine"}}}'):
    verdicts.STORE.write_text(damaged)
    assert claims.main(['claims', '--run=theory']) == 2
    assert f'{verdicts.STORE} is damaged' in capsys.readouterr().err
    assert verdicts.STORE.read_text() == damaged


def _changed_recipes():
  recipe = recipes.read(NONIID)
  parts = dict(recipe.parts)
  for part, flag in (('feo2', '--rounds=7'), ('dp_fedavg', '--seeds=0-5')):
    yield dataclasses.replace(recipe, parts={**parts, part: (*parts[part], flag)})
  yield dataclasses.replace(recipe, after=(100,))
  yield dataclasses.replace(recipe, parts={part: parts[part] for part in ('feo2', 'dp_fedavg')})


@pytest.mark.parametrize('changed', _changed_recipes(), ids=('flag', 'seeds', 'after', 'part'))
def test_evidence_of_another_grid_does_not_count(monkeypatch, changed):
  _store(NONIID)
  assert claims.judge_again([BETTER]).judged == 1
  before = verdicts.STORE.read_text()
  read = recipes.read
  monkeypatch.setattr(recipes, 'read', lambda name: changed if name == NONIID else read(name))
  again = claims.judge_again([BETTER])
  assert again.judged == 0
  assert again.lacking == {f'the evidence of {NONIID} is of another grid': [BETTER]}
  assert verdicts.STORE.read_text() == before


def test_what_only_words_of_a_recipe_say_is_no_other_grid():
  recipe = recipes.read(NONIID)
  assert evidence.grid_digest(dataclasses.replace(recipe, title='', notes=('a', 'b'))) == (
    evidence.grid_digest(recipe)
  )


def test_a_file_that_a_flag_names_is_of_the_grid(monkeypatch, tmp_path):
  recipe = recipes.read('claims_silo_budgets_school')
  folder = tmp_path / 'recipes'
  folder.mkdir()
  names = [f'{recipe.name}.flags', 'school_budgets.csv', 'school_own_lambdas.csv']
  for name in names:
    shutil.copy(recipes.FOLDER / name, folder)
  monkeypatch.setattr(recipes, 'FOLDER', folder)
  before = evidence.grid_digest(recipe)
  assert evidence.grid_digest(recipe) == before
  with (folder / names[1]).open('a') as file:
    file.write('\n')
  assert evidence.grid_digest(recipe) != before


# ------------------------------------------------------------ judging again


def _break(name, part, metric, value):
  """Other numbers in the file of a recipe."""
  path = evidence.FOLDER / f'{name}.csv'
  first, rows = path.read_text().split('\n', 1)
  frame = pd.read_csv(io.StringIO(rows))
  here = (frame['part'] == part) & (frame['metric'] == metric)
  assert here.any()
  frame.loc[here, frame.columns[4:]] = value
  path.write_text(first + '\n' + frame.to_csv(index=False))


def test_a_broken_twin_has_another_verdict_and_keeps_its_remark():
  _store(NONIID)
  again = claims.judge_again([BETTER])
  stored = verdicts.read_verdicts()[BETTER]['noniid_mnist']
  assert stored.verdict == verdicts.MET and stored.date == '2026-01-02'
  assert (again.judged, len(again.changed), again.lacking) == (1, 1, {})
  remarked = dataclasses.replace(stored, date='2025-12-31', remark='2026: a remark')
  verdicts.write_verdicts({BETTER: {'noniid_mnist': remarked}})
  before = verdicts.STORE.read_text()
  assert claims.judge_again([BETTER]) == claims.Again(judged=1, changed=(), lacking={})
  assert verdicts.STORE.read_text() == before  # its date and its remark with it
  _break(NONIID, 'feo2', ACCURACY, 0.1)
  (words,) = claims.judge_again([BETTER]).changed
  assert words.startswith(f'{BETTER}: met to not met: ')
  broken = verdicts.read_verdicts()[BETTER]['noniid_mnist']
  assert broken.verdict == verdicts.NOT_MET and broken.remark == '2026: a remark'


def test_pages_say_what_was_judged_just_now(monkeypatch, tmp_path, capsys):
  """A page of runs is written with the verdicts on them; judging again prints all pages anew."""
  _run_with(monkeypatch, {NONIID: _tables(NONIID)})
  monkeypatch.setattr(reproduce, 'finished', lambda *_: _tables(NONIID))
  described = []
  monkeypatch.setattr(
    reproduce, 'describe', lambda *_, **how: described.append((verdicts.read_verdicts(), how))
  )
  claims.run([BETTER], output=tmp_path / 'out', page_dir=tmp_path / 'pages')
  [(stored, how)] = described
  assert stored[BETTER]['noniid_mnist'].verdict == verdicts.MET
  assert how['page_dir'] == tmp_path / 'pages'
  (tmp_path / 'results').mkdir()
  assert claims.main(['claims', f'--judge={NONIID}']) == 0
  page = (tmp_path / 'results' / f'{NONIID}.md').read_text()
  assert f'| `{BETTER}` | ' in page and '(../claims.md)' in page
  short = verdicts.in_short(verdicts.resting_on(NONIID), verdicts.read_verdicts())
  assert f'**{short.replace("**", "")}** of the papers' in page
  capsys.readouterr()


def test_a_page_of_runs_that_are_elsewhere_in_part_has_verdicts_alone(
  monkeypatch, tmp_path, capsys
):
  """As after a recipe was gone on with from its evidence on another machine."""
  _run_with(monkeypatch, {NONIID: _tables(NONIID)})
  here = {
    part: table[table['seed'] != table['seed'].max()] for part, table in _tables(NONIID).items()
  }
  monkeypatch.setattr(reproduce, 'finished', lambda *_: here)
  monkeypatch.setattr(reproduce, 'describe', None)
  claims.run([BETTER], output=tmp_path / 'out', page_dir=tmp_path / 'pages')
  page = (tmp_path / 'pages' / f'{NONIID}.md').read_text()
  assert '| runs | not kept here' in page and f'| `{BETTER}` | ' in page
  assert f'{NONIID}: not all of its runs are in' in capsys.readouterr().err


def test_what_lacks_evidence_is_told_and_stays(capsys):
  kept = verdicts.Verdict(verdict=verdicts.MET, text='1', seeds=3, date='2026-01-01')
  verdicts.write_verdicts({ON_BOTH: {'noniid_mnist': kept}})
  _store(NONIID)
  assert claims.main(['claims', f'--judge={NONIID}']) == 0
  said = capsys.readouterr().out
  assert f'Not judged, {SKEWED} has no evidence: {ON_BOTH}' in said
  assert verdicts.read_verdicts()[ON_BOTH]['noniid_mnist'] == kept
  assert verdicts.PAGE.read_text() == verdicts.page(verdicts.read(), verdicts.read_verdicts())
  assert claims.main(['claims', '--judge']) == 0
  everything = ' '.join(capsys.readouterr().out.split())
  judges = [(c, j) for c in CLAIMS.values() for j in c.judges]
  for claim, judge in judges:
    if judge.recipes and NONIID not in judge.recipes:
      assert f'{judge.recipe} has no evidence' in everything and claim.id in everything
  assert 'theory' not in everything


def test_evidence_without_what_a_measure_reads_now_is_lacking():
  """Such as that of a measure which was put right."""
  tables = _tables(NONIID)
  without = {p: t[t['metric'] != ACCURACY] for p, t in tables.items()}
  _store(NONIID, without)
  again = claims.judge_again([BETTER])
  assert again.lacking == {f'the evidence of {NONIID} has no {ACCURACY} of all': [BETTER]}


def test_judging_again_needs_no_tensorflow(tmp_path):
  _store(NONIID)
  program = (
    'import pathlib, sys\n'
    'from experiments.recipes import claims, evidence, verdicts\n'
    'folder = pathlib.Path(sys.argv[1])\n'
    "evidence.FOLDER, verdicts.STORE = folder / 'evidence', folder / 'verdicts.json'\n"
    f'assert claims.judge_again([{BETTER!r}]).judged == 1\n'
    "assert not {'tensorflow', 'tensorflow_federated'} & sys.modules.keys()\n"
  )
  subprocess.run([sys.executable, '-c', program, str(tmp_path)], check=True)


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('', 'is damaged'),
    ('# {"date": ""}\n', 'no date, commits and grid'),
    ('# []\n', 'is damaged'),
  ],
)
def test_a_damaged_file_is_named(capsys, text, said):
  _store(NONIID)
  path = evidence.FOLDER / f'{NONIID}.csv'
  path.write_text(text)
  assert claims.main(['claims', f'--judge={NONIID}']) == 2
  assert said in capsys.readouterr().err
  assert _store(NONIID).holds  # runs that are there take its place


def test_runs_without_any_number_are_no_evidence():
  tables = {part: table.iloc[:0] for part, table in _tables(NONIID).items()}
  assert _store(NONIID, tables).holds == set()
  again = claims.judge_again([BETTER])
  assert again.lacking == {f'the evidence of {NONIID} has no {ACCURACY} of all': [BETTER]}


def test_numbers_that_are_damaged_are_named(capsys):
  _store(NONIID)
  path = evidence.FOLDER / f'{NONIID}.csv'
  whole = path.read_text()
  for damaged in (
    whole.replace('ratio=0.01"', 'ratio=0.07"'),
    whole.replace('part,', 'piece,'),
    whole.replace('0.6', 'x'),
  ):
    assert damaged != whole
    path.write_text(damaged)
    assert claims.main(['claims', f'--judge={NONIID}']) == 2
    assert 'is damaged' in capsys.readouterr().err


# ------------------------------------------------------------ running


def test_a_claim_on_two_recipes_runs_only_the_one_without_evidence(monkeypatch, tmp_path, capsys):
  tables = {NONIID: _tables(NONIID), SKEWED: _tables(SKEWED, seed=1)}
  ran = _run_with(monkeypatch, tables)
  claims.run([ON_BOTH], output=tmp_path / 'out')
  assert ran == [NONIID, SKEWED]
  both = verdicts.read_verdicts()[ON_BOTH]['noniid_mnist']
  assert f'{NONIID} has no evidence: it is run' in capsys.readouterr().err
  ran.clear()
  (evidence.FOLDER / f'{NONIID}.csv').unlink()
  claims.run([ON_BOTH], output=tmp_path / 'out', today=both.date)
  assert ran == [NONIID]
  said = capsys.readouterr().err
  assert f'{SKEWED} is not run: judged from its evidence of {both.date}' in said
  assert verdicts.read_verdicts()[ON_BOTH]['noniid_mnist'] == both
  assert claims.judge_again([ON_BOTH]) == claims.Again(judged=1, changed=(), lacking={})


@pytest.mark.slow
def test_evidence_does_not_stand_for_what_is_named_or_for_runs_that_are_here(monkeypatch, tmp_path):
  tables = {NONIID: _tables(NONIID), SKEWED: _tables(SKEWED)}
  for name in tables:
    _store(name)
  ran = _run_with(monkeypatch, tables)
  claims.run([ON_BOTH], output=tmp_path / 'out')
  assert not ran
  (tmp_path / 'out' / SKEWED).mkdir(parents=True)
  claims.run([ON_BOTH], output=tmp_path / 'out')
  assert ran == [SKEWED]
  ran.clear()
  claims.run([NONIID], output=tmp_path / 'elsewhere')
  claims.run([BETTER, ON_BOTH], output=tmp_path / 'elsewhere')
  assert ran == [NONIID, NONIID]


def test_the_commits_are_those_of_the_runs(tmp_path):
  recipe = recipes.read(NONIID)
  for part, run, commit in (('feo2', 'a', 'c1'), ('feo2', 'b', 'c2'), ('dp_fedavg', 'a', None)):
    folder = tmp_path / part / 'runs' / run
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps({'git_commit': commit}))
    (folder / 'summary.json').write_text('{}')
  begun = tmp_path / 'feo2' / 'runs' / 'c'
  begun.mkdir()
  (begun / 'config.json').write_text(json.dumps({'git_commit': 'of a run that was stopped'}))
  assert evidence.commits_of(recipe, tmp_path) == {'c1', 'c2'}


# ------------------------------------------------------------ what is read


@pytest.mark.parametrize(
  ('measure', 'values', 'read'),
  [
    ({'left': 'named', 'right': 1.0}, {'metric': 'test_mse'}, {('test_mse', 'all')}),
    ({'left': 'named', 'right': 1.0}, {}, set()),
    ({'right': '$rivals'}, {'metric': 'm', 'rivals': ['own', 'named']},
     {('test_own', 'private'), ('m', 'all')}),
    ({'of': 'later', 'over': {'after': [3, 5]}}, {'metric': 'm'}, {('m@3', 'all'), ('m@5', 'all')}),
    ({'of': 'later', 'cases': '$cases'}, {'metric': 'm', 'cases': [{'after': 2}, {'epsilon': 1}]},
     {('m@2', 'all')}),
    ({'left': {'at': {'after': 4}, 'of': 'later'}}, {'metric': 'm'}, {('m@4', 'all')}),
    ({'needs': {'left': 'own'}, 'cases': [{'part': 300}]}, {}, {('test_own', 'private')}),
    ({'left': {'part': 'ends', 'metric': 'of', 'choose': 'by'}}, {},
     {('of', 'all'), ('by', 'all')}),
    ({'left': {'part': 'ends', 'metric': 'of', 'choose': '$metric'}}, {'metric': 'm'},
     {('of', 'all'), ('m', 'all')}),
    # A method's name here, no term's.
    ({'left': {'part': 'ends', 'where': {'method': 'own'}}}, {'metric': 'm'}, {('m', 'all')}),
    ({'rule': 'table', 'part': 'feo2', 'groups': {'p': 'private'}}, {},
     {(ACCURACY, 'all'), ('test_accuracy_mean', 'private')}),
  ],
)  # fmt: skip
def test_what_a_measure_reads(measure, values, read):
  terms = {
    'named': {'part': 'local', 'choose': True},
    'own': {'part': 'feo2', 'metric': 'test_own', 'group': 'private'},
    'later': {'part': 'local', 'after': '$after'},
  }
  cells = ('acc_g', 'acc_l_p@0.05')
  assert evidence.used_by(measure, terms=terms, values=values, cells=cells) == read


def test_each_recipe_of_a_claim_on_several_is_asked_for_its_own_metrics():
  measure = {'left': {'part': 'feo2', 'metric': 'm'}, 'right': {'part': 'more.feo2', 'metric': 'n'}}
  values = {'beside': [{'what': 'a control', 'of': {'part': 'control.ends', 'metric': 'k'}}]}
  for prefix, metric in {'': 'm', 'more': 'n', 'control': 'k'}.items():
    read = evidence.used_by(measure, terms={}, values=values, prefix=prefix)
    assert read == {(metric, 'all')}, prefix


@pytest.mark.slow
def test_stored_verdicts_are_what_their_evidence_says(monkeypatch, stores):
  monkeypatch.undo()  # as it is judged for users
  monkeypatch.setattr(evidence, 'FOLDER', recipes.FOLDER / 'evidence')
  monkeypatch.setattr(verdicts, 'STORE', stores / 'verdicts.json')
  shutil.copy(recipes.FOLDER / 'verdicts.json', verdicts.STORE)
  stored = {path.name.partition('.')[0] for path in evidence.FOLDER.glob('*.csv*')}
  names = {name for name in stored if not evidence.begun(recipes.read(name))}
  again = claims.judge_again()
  assert again.changed == ()
  assert not [why for why in again.lacking if names & {*why.split()} and 'of ' in why]
