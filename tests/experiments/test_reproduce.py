"""Recipes: they can be read, their numbers can be found, and verdicts are right."""

import dataclasses
import functools
import json
import re

import pandas as pd
import pytest

from datasets import files as data_files
from datasets import sources
from experiments.config.experiment import ExperimentConfig
from experiments.folder import files
from experiments.folder.metrics import MetricTable
from experiments.recipes import evidence, recipes, reproduce, verdicts
from experiments.recipes import page as recipe_page
from experiments.recipes.recipes import Comparison, Recipe, Selector, Value
from experiments.running import interruption
from experiments.sweeps import spent
from experiments.sweeps import table as sweep_table

RECIPES = recipes.read_all()
PARTS = {'p': ()}
# The tables and figures that the papers' captions number.
NUMBERED = {
  'Aldaghri': {*(f'Figure {i}' for i in range(1, 5)), *(f'Table {i}' for i in range(1, 8))},
  'Bietti': {'Figure 1', 'Figure 2'},
  'Liu': {
    *(f'Figure {i}' for i in range(1, 8)), *(f'Figure A{i}' for i in range(1, 9)), 'Table A1',
  },
}  # fmt: skip


def test_every_table_and_figure_has_a_recipe_or_a_reason():
  papers = recipes.coverage(RECIPES)
  assert {paper.partition(',')[0] for paper in papers} == NUMBERED.keys()
  for paper, items in papers.items():
    numbered = {re.match(r'(Table|Figure) A?\d', item)[0] for item in items}
    assert numbered == NUMBERED[paper.partition(',')[0]]
    assert all(items.values()), items
  assert any('Figure 7' in line and 'silo_fig7' in line for line in recipes.coverage_lines(RECIPES))


@pytest.mark.parametrize('recipe', RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_belongs_to_a_table_or_figure(recipe):
  known = recipes.read_papers()[recipe.paper].keys()
  # A panel belongs to its figure; what a claim is about may stand in a section, too.
  items = {re.sub(r' \([a-z]\)$', '', item) for item in recipe.items - known}
  in_words = ('after', 'section', 'appendix', 'algorithm', 'lemma', 'theorem')
  assert items <= known or recipe.source.startswith('after')
  assert recipe.items or recipe.source.startswith(in_words)


@pytest.mark.parametrize('recipe', RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_says_what_it_is(recipe):
  assert recipe.paper and recipe.source and recipe.minutes
  # A recipe of claims has its numbers in recipes/claims.json, a study of our own has none.
  claimed = {judge.recipe for claim in verdicts.read() for judge in claim.judges}
  studies = {'feo2_denominator', 'silo_school_mocha'}
  others = {name for name in (recipe.name,) if name.startswith('claims_')} | studies
  assert recipe.values or recipe.comparisons or recipe.name in claimed | others


@pytest.mark.parametrize('recipe', [r for r in RECIPES if r.parts], ids=lambda r: r.name)
def test_every_private_part_says_that_it_is_a_rehearsal(recipe):
  """In so many words: results that anybody can make again protect nobody."""
  of_all = recipe.flagfile.read_text().split()
  for part in recipe.parts.values():
    flags = [*of_all, *part]
    privately = [f for f in flags if 'privacy=' in f and f != '--privacy=none']
    assert bool(privately) == ('--noise_key=rehearsal' in flags), flags


@pytest.mark.exhaustive(but=['feo2_fig1', 'feo2_fig2', 'silo_fig7'])
@pytest.mark.slow
@pytest.mark.parametrize('recipe', [r for r in RECIPES if r.analysis], ids=lambda r: r.name)
def test_figures_of_theory_are_met(recipe, tmp_path, capsys):
  met = reproduce.reproduce(recipe, output=tmp_path)
  failed = [line for line in capsys.readouterr().out.splitlines() if 'NOT MET' in line]
  assert met == (not failed)
  # Opting out does not pay with the noise that the paper describes.
  expected = 2 if recipe.name in ('feo2_fig2', 'feo2_fig3') else 0
  assert len(failed) == expected and all('noise as in section 4.1' in line for line in failed)
  page = (tmp_path / f'{recipe.name}.md').read_text()
  assert f'make reproduce RECIPE={recipe.name}' in page
  (picture,) = re.findall(r'!\[.*\]\((.*)\)', page)
  assert (tmp_path / picture).stat().st_size > 10_000
  assert len(pd.read_csv(tmp_path / 'report' / 'figure.csv')) > 100
  with pytest.raises(ValueError, match='--rounds=3'):
    reproduce.reproduce(recipe, output=tmp_path, extra=['--rounds=3'])


@pytest.mark.slow
@pytest.mark.parametrize('recipe', [r for r in RECIPES if r.parts], ids=lambda r: r.name)
def test_every_number_can_be_found(recipe):
  runs = {part: recipe.grid(part).runs() for part in recipe.parts}
  selectors = [v.selector for v in recipe.values]
  selectors += [s for c in recipe.comparisons for s in (c.better, c.worse)]

  @functools.cache  # thousands of runs, and many numbers that look for theirs among them
  def setting(part, name):
    identity = {n: v for n, v in runs[part][name].identity.items() if n != 'seed'}
    return json.dumps(identity, sort_keys=True)

  for selector in selectors:
    settings = set()
    where = {n: float(v) if v == 'inf' else v for n, v in selector.where.items()}
    for name, config in runs[selector.part].items():
      if all(sweep_table.cell(getattr(config, n)) == v for n, v in where.items()):
        settings.add(setting(selector.part, name))
    assert settings, selector
    assert selector.best or len(settings) == 1, selector
    if len(settings) > 1:  # somebody has to choose
      on_validation = all(config.validation_fraction for config in runs[selector.part].values())
      assert recipe.tuned_on_test or on_validation, selector


def test_the_listing_says_whether_the_data_is_here(tmp_path, monkeypatch):
  monkeypatch.delenv('PFL_DATA_DIR', raising=False)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  for file, words in (('school.mat', 'will be downloaded'), ('adni.npz', 'to be put by hand')):
    recipe = Recipe(name='a', title='A', parts=PARTS, dataset_files=(file,), minutes=3)
    assert f'{file}: {words}' in recipes.listing([recipe], str(tmp_path))
    (tmp_path / file).touch()
    assert f'{file}: here' in recipes.listing([recipe], str(tmp_path))


def test_what_serves_in_the_place_of_a_file_is_looked_for(tmp_path, monkeypatch):
  monkeypatch.delenv('PFL_DATA_DIR', raising=False)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  recipe = Recipe(name='a', title='A', parts=PARTS, dataset_files=('mnist_writer_ids.npz',))
  missing = [file.name for file in recipes.missing_data(recipe, str(tmp_path))]
  assert missing == ['qmnist-train-labels-idx2-int.gz', 'qmnist-test-labels-idx2-int.gz']
  (tmp_path / 'mnist_writer_ids.npz').touch()
  assert recipes.missing_data(recipe, str(tmp_path)) == []


def test_every_recipe_knows_where_its_files_come_from():
  for recipe in recipes.read_all():
    for name in recipe.dataset_files:
      file = sources.find(name)
      assert file.url or file.how or file.instead, name


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('silo_figa6_adni', 'needs data that no program can fetch. adni.npz: Access needs approval'),
    ('silo_fig3b_school', 'school.mat is not in'),
  ],
)
def test_missing_data_are_said_before_any_run(tmp_path, monkeypatch, capsys, name, words):
  """By hand or fetched, without a network: one line, and no sweep is begun."""

  def no_network(*arguments, **keywords):
    raise OSError('Name or service not known')

  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('PFL_DATA_DIR', raising=False)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(data_files.urllib.request, 'urlopen', no_network)
  monkeypatch.setattr(reproduce, 'reproduce', lambda *a, **k: pytest.fail('it was run'))
  assert reproduce.main(['reproduce', name]) == 2
  said = capsys.readouterr().err.strip().splitlines()
  assert said[-1].startswith('error: ') and words in said[-1] and '--data_dir' in said[-1]
  assert str(tmp_path / 'cache') in said[-1]
  assert not (tmp_path / 'results').exists()


def test_a_stopped_recipe_says_how_it_goes_on(monkeypatch, capsys):
  def stop(*arguments, **keywords):
    raise interruption.Interrupted(2)

  monkeypatch.setattr(reproduce, 'reproduce', stop)
  assert reproduce.main(['reproduce', 'silo_fig7', '--output_dir=a b']) == 130
  said = capsys.readouterr().err
  assert said == "stopped; continue with ./fl reproduce silo_fig7 '--output_dir=a b'\n"


def table(*rows) -> pd.DataFrame:
  frame = pd.DataFrame(rows, columns=['run', 'mtl_lambda', 'seed', 'metric', 'value'])
  return reproduce._with_settings(frame.assign(group='all'))


TABLE = table(
  ('mtl_lambda=1,seed=0', 1.0, 0, 'test_mse', 0.2),
  ('mtl_lambda=1,seed=1', 1.0, 1, 'test_mse', 0.4),
  ('mtl_lambda=2,seed=0', 2.0, 0, 'test_mse', 0.6),
)


def test_a_number_is_the_mean_over_seeds_of_one_setting():
  found = Selector(part='p', metric='test_mse', where={'mtl_lambda': 1.0}).find({'p': TABLE})
  assert found.mean == pytest.approx(0.3) and found.std == pytest.approx(0.1)
  assert found.seeds == 2 and found.setting == 'mtl_lambda=1'
  with pytest.raises(ValueError, match='2 settings'):
    Selector(part='p', metric='test_mse').find({'p': TABLE})
  best = Selector(part='p', metric='test_mse', best=True).find({'p': TABLE})
  assert best.setting == 'mtl_lambda=1'


def test_the_best_setting_is_chosen_on_validation_data_where_there_is_some():
  judged = table(
    ('mtl_lambda=1,seed=0', 1.0, 0, 'validation_mse', 0.9),
    ('mtl_lambda=1,seed=1', 1.0, 1, 'validation_mse', 0.9),
    ('mtl_lambda=2,seed=0', 2.0, 0, 'validation_mse', 0.1),
  )
  tables = {'p': pd.concat([TABLE, judged])}
  best = Selector(part='p', metric='test_mse', best=True).find(tables)
  assert best.setting == 'mtl_lambda=2' and best.mean == pytest.approx(0.6)


def test_a_number_may_be_of_an_early_round(tmp_path):
  for name, values in (('mtl_lambda=1,seed=0', (5.0, 1.0)), ('mtl_lambda=2,seed=0', (3.0, 2.0))):
    folder = tmp_path / name
    folder.mkdir()
    config = ExperimentConfig(method='mr_mtl', mtl_lambda=float(name[11]))
    (folder / 'config.json').write_text(json.dumps({'config': config.to_json()}))
    table = MetricTable()
    for round_, value in zip((10, 20), values, strict=True):
      table.add(round_, 'test', 'mse', value)
    table.write(folder / 'metrics.parquet')
    summary = {'rounds': 20, 'privacy': {}, 'metrics_by_group': {'all': table.latest()}}
    (folder / 'summary.json').write_text(json.dumps(summary))
  runs = [sweep_table.Run.read(path) for path in sorted(tmp_path.iterdir())]
  frame = pd.concat([sweep_table.build(runs), sweep_table.build(runs, after=[10])])
  tables = {'p': reproduce._with_settings(frame)}
  early = Selector(part='p', metric='test_mse@10', best=True)
  last = Selector(part='p', metric='test_mse', best=True)
  assert early.find(tables).setting == 'mtl_lambda=2' and early.find(tables).mean == 3
  assert last.find(tables).setting == 'mtl_lambda=1' and last.find(tables).mean == 1
  recipe = Recipe(name='a', title='A', parts={'p': ()},
                  comparisons=(Comparison(what='', better=early, worse=last),))  # fmt: skip
  assert recipe.early_rounds('p') == [10] and recipe.early_rounds('q') == []


def test_a_table_of_stored_runs_takes_no_flags_and_says_what_runs_them(
  tmp_path, monkeypatch, capsys
):
  """It needs no data, and a claim's recipe whose evidence is not there is named."""
  table = next(recipe for recipe in RECIPES if recipe.evidence_of)
  assert not recipes.missing_data(table, str(tmp_path))
  arguments = ['reproduce', table.name, f'--output_dir={tmp_path / "out"}']
  assert reproduce.main([*arguments, '--rounds=3']) == reproduce.EXIT_ERROR
  assert f'--rounds=3: {table.name} reads the runs of' in capsys.readouterr().err
  monkeypatch.setattr(evidence, 'FOLDER', tmp_path)
  assert reproduce.main(arguments) == reproduce.EXIT_ERROR
  assert f'claims --run={table.evidence_of} makes it' in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()


def test_a_number_out_of_tolerance_is_off():
  one = Selector(part='p', metric='test_mse', where={'mtl_lambda': 1.0})
  two = Selector(part='p', metric='test_mse', where={'mtl_lambda': 2.0})
  recipe = Recipe(
    name='a', title='A', parts=PARTS,
    values=(Value(what='near', selector=one, expected=0.32, tolerance=0.03),
            Value(what='far', selector=one, expected=0.32, tolerance=0.01)),
    comparisons=(Comparison(what='order', better=one, worse=two),
                 Comparison(what='wrong order', better=two, worse=one),
                 Comparison(what='not by so much', better=one, worse=two, margin=0.5)),
  )  # fmt: skip
  verdict = reproduce.compare(recipe, {'p': TABLE})
  assert verdict['met'].tolist() == [True, False, True, False, False]
  lines = reproduce.verdict_lines(verdict)
  assert lines[0].startswith('met      near') and lines[1].startswith('NOT MET  far')


def test_flags_that_only_say_where_do_not_change_the_recipe():
  own = reproduce._Arguments.of(
    ['--data_dir=/d', '--device=cpu', '--rounds=3', '--workers=2', '--cluster=local']
  )
  assert own.neutral == ['--data_dir=/d', '--device=cpu'] and own.changing == ['--rounds=3']
  assert own.workers == 2 and own.cluster == 'local' and own.data_dir == '/d'
  with pytest.raises(ValueError, match='workers'):
    reproduce._Arguments.of(['--workers=0'])


def test_an_unknown_recipe_is_refused_with_the_nearest(capsys):
  assert reproduce.main(['reproduce', 'nothing']) == reproduce.EXIT_ERROR
  assert './fl recipes lists all ' in capsys.readouterr().err
  assert reproduce.main(['reproduce', 'silo_school_referense']) == reproduce.EXIT_ERROR
  assert 'did you mean silo_school_reference?' in capsys.readouterr().err


@pytest.mark.slow
def test_a_changed_recipe_without_one_of_the_numbers_compares_the_others(tmp_path, capsys):
  there = Selector(part='p', metric='test_mse', where={'mtl_lambda': 1.0})
  recipe = Recipe(
    name='a', title='A', paper='none', source='Table 0', analysis='any', values=(
      Value(what='there', selector=there, expected=0.32, tolerance=0.03),
      Value(what='early', selector=dataclasses.replace(there, metric='test_mse@210'),
            expected=0.32, tolerance=0.03),
    ),
  )  # fmt: skip
  with pytest.raises(ValueError, match=r'0 settings of part p match .* with test_mse@210'):
    reproduce.describe(recipe, {'p': TABLE}, output=tmp_path, command='c')
  assert not reproduce.describe(
    recipe, {'p': TABLE.assign(rounds_done=50)}, output=tmp_path, command='c', extra=['--rounds=50']
  )
  out = ' '.join(capsys.readouterr().out.split())
  assert '1 of 1 met, 1 not compared, with other settings than the recipe' in out
  assert "The words below are the recipe's; the runs have other settings" in out
  lacks = 'the runs of part p have no test_mse after 210 rounds: they end after 50 (--rounds=50).'
  assert f'Not compared: early: {lacks}' in out
  kept = json.loads((tmp_path / 'verdict.json').read_text())
  assert not kept['met'] and len(kept['cannot_be_had']) == 1
  page = (tmp_path / 'a.md').read_text()
  assert f'early: {lacks}' in page
  assert page.index("**The words below are the recipe's") < page.index('| there |')


def test_what_changed_runs_lack_is_said_in_words_of_their_flags():
  frame = TABLE.assign(rounds_done=50)
  for metric, where, extra, words in (
    (
      'test_mse@30',
      {},
      ['--eval_every=0'],
      'have no test_mse after 30 rounds: they were not evalu',
    ),
    ('test_mse@60', {}, ['--rounds=50', '--seeds=0'], r'they end after 50 \(--rounds=50\)'),
    ('test_mse', {'mtl_lambda': 3.0}, ['--a=b'], r'has not one setting with mtl_lambda=3.0 whose'),
    ('test_mse', {}, ['--a=b'], r'has not one setting whose test_mse it is \(--a=b\)'),
  ):
    lacking = Selector(part='p', metric=metric, where=where)
    there = Selector(part='p', metric='test_mse', best=True)
    recipe = Recipe(name='a', title='A', parts=PARTS,
                    comparisons=(Comparison(what='c', better=there, worse=lacking),))  # fmt: skip
    told = []
    assert reproduce.compare(recipe, {'p': frame}, left_out=told, extra=extra).empty
    assert re.match(f'c: .*{words}', told[0])


def test_what_is_damaged_or_in_the_way_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(reproduce, 'analyse', lambda *_: pytest.fail('it runs'))
  command = ['reproduce', 'silo_fig7', f'--output_dir={tmp_path}/out']
  (tmp_path / 'taken').touch()
  assert reproduce.main([*command, f'--page_dir={tmp_path}/taken/pages']) == reproduce.EXIT_ERROR
  assert f'cannot write {tmp_path}/taken/pages' in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()
  (tmp_path / 'out').mkdir()
  for damaged in ('', '[1]', '{}', '{"seconds": "x"}'):
    (tmp_path / 'out' / 'time.json').write_text(damaged)
    assert reproduce.main(command) == reproduce.EXIT_ERROR
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f'error: {tmp_path}/out/time.json is damaged: ')


def test_a_recipe_runs_and_gives_its_verdict(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(recipes, 'FOLDER', tmp_path)
  (tmp_path / 'tiny.flags').write_text(
    '--method=mr_mtl\n--dataset=exam\n--privacy=example\n--delta=1e-3\n--rounds=2\n'
  )
  where = {'mtl_lambda': 1.0, 'target_epsilon': 4.0}
  number = {'part': 'p', 'metric': 'test_mse', 'where': where}
  (tmp_path / 'tiny.expected.json').write_text(
    json.dumps(
      {
        'title': 'Tiny', 'paper': 'none', 'source': 'Table 0', 'minutes': 1,
        'parts': {'p': '--sweep=mtl_lambda=1,2 --sweep=target_epsilon=4,8'},
        'figures': ['lambda', 'privacy_utility'],
        'values': [{'what': 'impossible', 'find': number, 'expected': -1.0, 'tolerance': 0.1}],
      }
    )
  )  # fmt: skip
  output = tmp_path / 'out'
  command = ['reproduce', 'tiny', f'--output_dir={output}', f'--page_dir={tmp_path / "pages"}']
  assert reproduce.main(command) == reproduce.EXIT_OFF
  assert 'NOT MET  impossible' in capsys.readouterr().out
  assert json.loads((output / 'verdict.json').read_text())['met'] is False
  assert 'impossible' in (output / 'report' / 'report.html').read_text()
  page = (output / 'tiny.md').read_text()
  assert page == (tmp_path / 'pages' / 'tiny.md').read_text()
  assert '| impossible | -1 |' in page and '**not met**' in page and '0 of 1 numbers met.' in page
  assert "**The papers' claims** are judged in [claims.md](../claims.md)" in page
  assert 'none, Table 0' in page and 'make reproduce RECIPE=tiny' in page and '4 runs' in page
  assert '| privacy | epsilon 4, 8 at delta 0.001. Each single example of a silo' in page
  assert 'Adjacency: zero-out' in page and 'choosing between runs is not accounted for' in page
  [told] = json.loads((output / 'spent.json').read_text())['together']
  assert f'| privacy of all runs | {told} |' in page
  assert told.startswith('All that is released, were each noise key a secret of its own: epsilon')
  assert told.endswith('Unit: example. Adjacency: zero-out.')
  assert '| epsilon | mr_mtl |' in page and '\n| 8 | ' in page
  assert (tmp_path / 'pages' / 'images' / 'tiny_lambda.png').exists()
  before = json.loads((output / 'time.json').read_text())['seconds']
  assert reproduce.main(command) == reproduce.EXIT_OFF  # nothing is left to run
  assert before < json.loads((output / 'time.json').read_text())['seconds'] < 1.5 * before


IMPOSSIBLE = {
  'part': 'p', 'where': {'noise_multiplier': 5}, 'because': 'would spend the budget',
}  # fmt: skip


def _with_impossible_runs(folder, monkeypatch, **changes):
  """A recipe of two settings of one program, of which one cannot be had."""
  monkeypatch.setattr(recipes, 'FOLDER', folder)
  (folder / 'tiny.flags').write_text(
    '--method=dp_fedavg\n--dataset=digits\n--dataset_option=num_clients=10\n--delta=1e-2\n'
    '--rounds=2\n--clients_per_round=5\n--adaptive_clipping\n--quantile_noise_multiplier=1\n'
    '--noise_key=rehearsal\n'
  )
  (folder / 'tiny.expected.json').write_text(
    json.dumps(
      {
        'title': 'Tiny', 'paper': 'none', 'source': 'Table 0', 'minutes': 1,
        'parts': {'p': '--sweep=noise_multiplier=1,5 --seeds=0-1'}, **changes,
      }
    )
  )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_runs_that_cannot_be_had_are_said_beforehand_and_shown(tmp_path, monkeypatch, capsys):
  output = tmp_path / 'out'
  command = ['reproduce', 'tiny', f'--output_dir={output}']
  for declared in ([], [{**IMPOSSIBLE, 'because': 'another reason'}],
                   [{**IMPOSSIBLE, 'where': {'noise_multiplier': 5, 'seed': 0}}]):  # fmt: skip
    _with_impossible_runs(tmp_path, monkeypatch, impossible=declared)
    assert reproduce.main(command) == reproduce.EXIT_ERROR
    assert 'error: 2 of 4 runs failed. 2 runs with noise_multi' in capsys.readouterr().err
    assert not (output / 'tiny.md').exists()
  _with_impossible_runs(tmp_path, monkeypatch, impossible=[IMPOSSIBLE])
  assert reproduce.main(command) == 0
  said = capsys.readouterr().out
  words = 'p, 2 runs with noise_multiplier=5: quantile noise multiplier 1'
  assert f'Cannot be had, as expected: {words}' in said
  page = (output / 'tiny.md').read_text()
  assert f'| cannot be had | {words}' in page and '2 runs; ' in page
  [told] = json.loads((output / 'verdict.json').read_text())['cannot_be_had']
  assert told.startswith(words)
  assert 'Cannot be had: p, 2 runs' in (output / 'report' / 'report.html').read_text()
  table = pd.read_csv(output / 'p' / 'table.csv')
  assert set(table['run']) == {'noise_multiplier=1,seed=0', 'noise_multiplier=1,seed=1'}


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'part': 'q'}, "'q' is no part"),
    ({'where': {'noise': 5}}, r"cannot be impossible by \['noise'\]"),
    ({'where': {}}, 'cannot be impossible by nothing'),
    ({'because': ''}, 'need a reason'),
  ],
)
def test_what_is_impossible_is_named_exactly(tmp_path, monkeypatch, change, words):
  _with_impossible_runs(tmp_path, monkeypatch, impossible=[{**IMPOSSIBLE, **change}])
  with pytest.raises(ValueError, match=words):
    recipes.read('tiny')


def test_what_a_recipe_calls_impossible_is_among_its_runs():
  for recipe in RECIPES:
    for one in recipe.impossible:
      runs = recipe.grid(one.part).runs().values()
      assert any(one.covers(config, one.because) for config in runs), (recipe.name, one)


def test_what_all_runs_spend_is_told_by_relation(tmp_path):
  """Cohorts of a fixed size have no common epsilon with Poisson samples."""
  deployment = dict(hypothetical_deployment=True, noise_cohort_size=1000, noise_population=10**6)
  kinds = [{}, {}, *[{'cohort_sampling': 'fixed'}] * 2, deployment]
  folders = [tmp_path / str(number) for number in range(len(kinds))]
  for folder, kind in zip(folders, kinds, strict=True):
    config = ExperimentConfig(
      dataset='digits', privacy='client', delta=1e-3, noise_multiplier=4.0, clients_per_round=10,
      rounds=2, **kind,
    )  # fmt: skip
    folder.mkdir()
    files.write_json(folder / 'config.json', {'config': config.to_json()})
    condition = 'a hypothetical deployment' if kind == deployment else ''
    files.write_json(
      folder / 'privacy.json', {'private': True, 'rounds': 2, 'condition': condition}
    )
  zero_out, replace, nobody = spent.together(folders)
  for told, own, other in (
    (zero_out, 'zero-out', 'replace-one'), (replace, 'replace-one', 'zero-out'),
  ):  # fmt: skip
    assert told.startswith('What is released by 2 runs, ') and '2 runs together' in told
    assert f'Unit: client. Adjacency: {own}. That does not count 2 runs that protect' in told
    assert f'clients ({other}), on the same data' in told
  assert nobody == 'With the noise of a hypothetical deployment, for nobody here: 1.'


def test_data_of_their_own_that_spend_the_same_are_told_once(tmp_path):
  """Another seed draws other synthetic data: what one run spends is nothing to the other's."""
  folders = []
  for seed in (0, 0, 1, 1):
    config = ExperimentConfig(
      dataset='ppsgd_synthetic', dataset_option=('num_clients=20',), privacy='client', delta=1e-3,
      noise_multiplier=4.0, clients_per_round=10, rounds=2, seed=seed,
    )  # fmt: skip
    folders.append(tmp_path / str(len(folders)))
    folders[-1].mkdir()
    files.write_json(folders[-1] / 'config.json', {'config': config.to_json()})
    files.write_json(folders[-1] / 'privacy.json', {'private': True, 'rounds': 2})
  [one] = spent.together(folders[:2])
  assert spent.together(folders) == [f'For each of 2 sets of data by itself: {one}']


def test_a_page_lists_the_metrics_that_a_recipe_names():
  rows = [
    dict(setting=f'clip={clip}', group=group, metric=metric, value=value + seed)
    for clip in (1, 2)
    for metric, value in (('test_mse', 10.0 * clip), ('agreement', clip))
    for group in ('all', 'few')
    for seed in (0, 2)
    if (clip, metric) != (2, 'agreement')
  ]
  tables = {'a': pd.DataFrame(rows), 'b': pd.DataFrame(rows).assign(setting='')}
  lines = recipe_page._measured(('agreement', 'test_mse'), tables).splitlines()
  assert lines[0] == '| part | setting | agreement | test mse |'
  assert lines[2:4] == ['| a | clip=1 | 2 ± 1 | 11 ± 1 |', '| a | clip=2 |  | 21 ± 1 |']
  assert lines[4].startswith('| b |  | 2 ± 1 | 16')
  assert recipe_page._measured((), tables) == ''


def test_a_page_says_who_is_not_protected(tmp_path):
  record = {
    'private': True, 'unit': 'client', 'delta': 1e-4, 'adjacency': 'add/remove-one',
    'protected': 'The clients who opted out have no guarantee.',
  }  # fmt: skip
  more = ({'epsilon': 3.6}, {'epsilon': 0.0}, {'private': False, 'epsilon': None})
  for name, values in zip('abc', more, strict=True):
    (tmp_path / name).mkdir()
    files.write_json(tmp_path / name / 'privacy.json', {**record, **values})
  [line] = recipe_page._guarantees([tmp_path / name for name in 'abc'])
  assert line.startswith('epsilon 0, 3.6 at delta 0.0001. The clients who opted out have no')
  assert 'choosing between runs' not in line


def test_a_wrong_flag_is_said_before_data_are_fetched(monkeypatch, capsys):
  fetched = []
  monkeypatch.setattr(recipes, 'get_data', lambda *arguments: fetched.append(arguments))
  assert reproduce.main(['reproduce', 'silo_school_reference', '--rouds=3']) == 2
  assert '--rouds' in capsys.readouterr().err and not fetched


def test_help_is_for_its_user(capsys):
  assert reproduce.main(['reproduce', '--help']) == 0
  said = capsys.readouterr().out
  assert './fl reproduce NAME' in said and 'Long because' not in said
