"""The report: on finished and unfinished runs, escaped, with everything in one file."""

import json
import re
import types

import numpy as np
import pandas as pd
import pytest

from experiments.audits import target
from experiments.config import in_words
from experiments.config.experiment import ExperimentConfig
from experiments.folder.metrics import MetricTable
from experiments.reports import choosing, report, sections
from experiments.reports import clients as report_clients
from experiments.reports import data as report_data
from experiments.reports import figures as report_figures
from experiments.sweeps import table as sweep_table


def make_run(folder, *, rounds=4, finished=True, base=0.5, num_clients=5, metric='mse', **values):
  """A run's folder as a run leaves it, with made-up numbers."""
  config = ExperimentConfig(**{'dataset': 'exam', 'rounds': rounds, **values})
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps({'config': config.to_json()}))
  table = MetricTable()
  for round_ in range(0, rounds + 1 if finished else rounds // 2 + 1, 2):
    value = base + 1 / (1 + round_) ** (0.7 + base) + 0.01 * config.seed
    table.add(round_, 'test', metric, value)
    table.add(round_, 'test', f'{metric}_mean', value)
    if config.method != 'local':
      table.add(round_, 'test', f'global_{metric}', value + 0.1)
  if finished:
    clients = [f'<b>client {k}</b>' for k in range(num_clients)]
    numbers = base + np.linspace(0, 1, num_clients) * (1 + np.sin(np.arange(num_clients) / base))
    table.add_clients(rounds, 'test', {metric: (clients, numbers)})
    table.add_clients(rounds, 'test', {f'global_{metric}': (clients, numbers[::-1])})
    privacy = {'unit': config.privacy, 'epsilon': config.target_epsilon, 'statement':
               f'Protected <i>examples</i>.\nEpsilon {config.target_epsilon}.'}  # fmt: skip
    (folder / 'privacy.json').write_text(json.dumps(privacy))
    summary = {'rounds': rounds, 'privacy': privacy, 'metrics_by_group': {'all': table.latest()}}
    (folder / 'summary.json').write_text(json.dumps(summary))
  table.write(folder / 'metrics.parquet')


PRIVATE = dict(privacy='example', delta=1e-3)


@pytest.fixture
def sweep_folder(tmp_path):
  folder = tmp_path / 'sweep'
  for seed in (0, 1):
    for epsilon in (2.0, 4.0):
      common = dict(seed=seed, target_epsilon=epsilon, **PRIVATE)
      for value in (0.0, 0.1, 1.0):
        make_run(folder / 'runs' / f'mtl-{epsilon}-{value}-{seed}', method='mr_mtl',
                 mtl_lambda=value, base=0.4 + 0.1 * value / epsilon, **common)  # fmt: skip
      for method in ('local', 'fedavg'):
        make_run(folder / 'runs' / f'{method}-{epsilon}-{seed}', method=method, base=0.6, **common)
  return folder


@pytest.mark.slow
def test_a_page_holds_everything_and_needs_no_other_file(sweep_folder):
  page = report.write([sweep_folder])
  text = page.read_text()
  assert not re.search(r'(src|href)="(?!data:)', text)
  names = {'learning_curves', 'privacy_utility', 'lambda', 'clients', 'gains'}
  for suffix in ('png', 'svg', 'pdf', 'csv'):
    assert names <= {p.stem for p in page.parent.glob(f'*.{suffix}')}
  assert text.count('data:image/svg+xml') == len(names)
  assert '20 runs, 10 settings' in text
  assert (page.parent / 'overview.csv').read_text().count('\n') == 11


def test_the_table_has_no_column_that_tells_nothing(sweep_folder):
  data = report_data.read([sweep_folder])
  table = sections.overview(data)
  assert table.heading[:3] == ['method', 'epsilon', 'lambda']
  assert not any('server' in name or 'decay' in name for name in table.heading)
  assert 'mean of clients' in table.heading
  rows = [tuple(row[:3]) for row in table.rows]
  assert len(set(rows)) == len(rows)
  # Two settings that differ in whether they have one at all still look different.
  rows = [['a', '', '1'], ['a', '3', '1']]
  assert sections._telling(rows, 2) == [False, True, False]


def test_the_weakest_guarantee_of_the_seeds_is_told(tmp_path):
  for seed, spent in ((0, 1.0), (1, 3.0)):
    folder = tmp_path / str(seed)
    make_run(folder, seed=seed, target_epsilon=4.0, **PRIVATE)
    (folder / 'privacy.json').write_text(json.dumps({'epsilon': spent, 'statement': ''}))
  table = sections.overview(report_data.read([tmp_path]))
  assert [row[table.heading.index('epsilon spent')] for row in table.rows] == ['3']


def test_a_seed_that_has_written_nothing_yet_hides_no_epsilon(tmp_path):
  private = {**PRIVATE, 'noise_multiplier': 1.0}
  for seed in (0, 1, 2):
    make_run(tmp_path / str(seed), seed=seed, **private)
    (tmp_path / str(seed) / 'privacy.json').unlink(missing_ok=True)
  (tmp_path / '1' / 'privacy.json').write_text(json.dumps({'epsilon': 3.0, 'statement': ''}))
  table = sections.overview(report_data.read([tmp_path]))
  assert [row[table.heading.index('epsilon spent')] for row in table.rows] == ['3']


def test_settings_that_differ_in_a_late_digit_are_two(tmp_path):
  for rate in (0.012345, 0.012346):
    make_run(tmp_path / str(rate), client_learning_rate=rate)
  data = report_data.read([tmp_path])
  assert len(set(data.labels)) == 2
  table = sections.overview(data)
  assert [row[0] for row in table.rows] == ['0.012345', '0.012346']


def test_runs_of_files_that_held_something_else_are_not_pooled(tmp_path):
  """Whatever stands in the files now."""
  for name, content in (('a', 'x'), ('b', 'x'), ('c', 'y')):
    make_run(tmp_path / name, seed='abc'.index(name))
    record = json.loads((tmp_path / name / 'config.json').read_text())
    record['file_contents'] = {'model': f'my_model.py:build@{content}'}
    (tmp_path / name / 'config.json').write_text(json.dumps(record))
  data = report_data.read([tmp_path])
  assert [name.rpartition(', ')[2] for name in data.labels] == [
    'my_model.py:build@x', 'my_model.py:build@x', 'my_model.py:build@y'
  ]  # fmt: skip
  assert 'repeat the setting' not in sections.status(data)
  make_run(tmp_path / 'd', seed=2)
  make_run(tmp_path / 'e', seed=2)
  assert '1 of them repeat the setting and the seed' in sections.status(
    report_data.read([tmp_path])
  )


def test_data_of_another_kind_are_in_the_table_and_that_is_said(tmp_path):
  """Runs of one folder that have nothing in common: most scores are errors, one is an accuracy."""
  for rounds in (4, 6):
    make_run(tmp_path / str(rounds), rounds=rounds)
  make_run(tmp_path / 'digits', rounds=4, dataset='digits')
  path = tmp_path / 'digits' / 'metrics.parquet'
  table = MetricTable()
  table.add(4, 'test', 'accuracy', 0.875)
  table.write(path)
  data = report_data.read([tmp_path])
  table = sections.overview(data)
  assert data.metric == 'mse' and data.other_metrics == ['accuracy']
  assert [row[table.heading.index('test accuracy')] for row in table.rows].count('0.875') == 1
  assert table.heading.count('rounds') == 1
  assert 'server optimizer' not in table.heading  # the rounds tell the settings apart
  assert sorted(row[table.heading.index('rounds')] for row in table.rows) == ['4', '4', '6']
  assert 'Runs with accuracy are in this table only: figures show the mse.' in (
    sections.results(data, table)
  )


@pytest.mark.slow
def test_what_comes_from_data_is_escaped(sweep_folder):
  text = report.write([sweep_folder], title='<u>title</u>').read_text()
  assert '<i>examples' not in text and 'Protected &lt;i&gt;examples' in text
  assert '<u>' not in text and '<b>' not in text


def test_seeds_are_pooled_and_lambda_has_its_end_points(sweep_folder):
  data = report_data.read([sweep_folder])
  drawing = report_figures.against_lambda(data)
  assert set(drawing.data['strength'].dropna()) == {0.0, 0.1, 1.0}
  assert set(drawing.data['seeds']) == {2}
  lines = {line.get_label() for line in drawing.drawing.axes[0].get_lines()}
  assert {'Local', 'FedAvg', 'MR-MTL'} <= lines


def test_a_front_whose_points_were_chosen_on_test_data_says_so(sweep_folder):
  data = report_data.read([sweep_folder])
  drawing = report_figures.privacy_utility(data)
  assert 'CHOSEN ON TEST DATA' in drawing.caption
  own = drawing.data[drawing.data['method'] == 'mr_mtl']
  assert len(own) == 2 and list(own['budget']) == [2.0, 4.0]


def test_no_figure_chooses_the_easier_data(tmp_path):
  for fraction, base in ((0.5, 0.4), (0.8, 0.9)):
    for epsilon in (2.0, 4.0):
      for strength in (0.1, 1.0):
        make_run(tmp_path / f'{fraction}-{epsilon}-{strength}', method='mr_mtl', base=base,
                 mtl_lambda=strength, target_epsilon=epsilon, test_fraction=fraction,
                 **PRIVATE)  # fmt: skip
  data = report_data.read([tmp_path])
  curves = report_figures.privacy_utility(data)
  titles = [axes.get_title(loc='left') for axes in curves.drawing.axes]
  assert titles == ['test fraction 0.5', 'test fraction 0.8']
  assert (curves.data.groupby('problem')['mean'].min() > [0.4, 0.9]).all()
  assert len(report_figures.against_lambda(data).drawing.axes) == 4


def test_gains_are_against_local_training(sweep_folder):
  drawing = report_clients.gains(report_data.read([sweep_folder]))
  assert drawing.data['comparison'].str.contains('against local').all()
  # Errors of 0.4 and more of this client, and of 0.6 with local training: less is a gain.
  of_one = drawing.data.loc[drawing.data['client'] == '<b>client 0</b>', 'gain']
  assert of_one.min() > -1e-9 and of_one.max() == pytest.approx(0.2)


def test_more_accuracy_is_a_gain(tmp_path):
  for method, base in (('local', 0.6), ('fedavg', 0.5), ('mr_mtl', 0.7)):
    make_run(tmp_path / method, method=method, base=base, dataset='landmine', metric='accuracy')
  found = report_clients.gains(report_data.read([tmp_path])).data
  of_one = found[found['client'] == '<b>client 0</b>'].set_index('comparison')['gain']
  assert list(of_one[of_one.index.str.contains('FedAvg')]) == pytest.approx([-0.1])
  assert list(of_one[of_one.index.str.contains('MR-MTL')]) == pytest.approx([0.1])


def test_gains_are_against_the_best_local_training(sweep_folder):
  common = dict(seed=0, target_epsilon=2.0, client_learning_rate=9.0, **PRIVATE)
  make_run(sweep_folder / 'runs' / 'zz_local', method='local', base=50.0, **common)
  drawing = report_clients.gains(report_data.read([sweep_folder]))
  assert drawing.data['gain'].abs().max() < 2
  assert not drawing.data['comparison'].str.startswith('local').any()
  assert 'Of local training the best of up to 2 settings, CHOSEN ON TEST DATA' in drawing.caption


def test_a_run_in_progress_is_shown_so_far(tmp_path):
  make_run(tmp_path / 'going', finished=False, rounds=8)
  make_run(tmp_path / 'started', finished=False, rounds=8, seed=1)
  (tmp_path / 'started' / 'metrics.parquet').unlink()
  text = report.write([tmp_path]).read_text()
  assert 'Not finished: 2' in text and '0 of 8' in text
  assert (tmp_path / 'report' / 'learning_curves.svg').exists()


def test_runs_without_any_numbers_give_a_page(tmp_path):
  make_run(tmp_path / 'a', finished=False)
  (tmp_path / 'a' / 'metrics.parquet').unlink()
  assert 'Not finished: 1' in report.write([tmp_path / 'a']).read_text()


@pytest.mark.slow
def test_a_single_run_gives_a_page(tmp_path):
  make_run(tmp_path / 'a', target_epsilon=2.0, **PRIVATE)
  assert 'All runs have the same settings' in report.write([tmp_path / 'a']).read_text()


def test_folders_without_runs_are_refused(tmp_path, capsys):
  assert report.main(['report', str(tmp_path)]) == 2
  assert 'holds no run' in capsys.readouterr().err


@pytest.mark.slow
def test_equal_statements_are_shown_once(tmp_path):
  for seed in range(3):
    make_run(tmp_path / str(seed), seed=seed, target_epsilon=2.0, **PRIVATE)
  assert report.write([tmp_path]).read_text().count('Epsilon 2.0.') == 1


def test_the_table_of_a_sweep_has_a_row_for_each_number(sweep_folder):
  runs = [sweep_table.Run.read(p) for p in report_data.find_runs(sweep_folder)]
  frame = sweep_table.build(runs)
  sweep_table.write(frame, sweep_folder)
  again = pd.read_csv(sweep_folder / 'table.csv')
  assert list(again.columns) == list(pd.read_parquet(sweep_folder / 'table.parquet').columns)
  assert {'method', 'target_epsilon', 'mtl_lambda', 'seed', 'value'} <= set(again.columns)
  assert not again.duplicated(['run', 'group', 'metric']).any()


def test_no_epsilon_that_is_shown_is_below_the_true_one(tmp_path):
  """All by one function; else an audit claims less than the run that it attacks."""
  config = ExperimentConfig(privacy='client', target_epsilon=1.67221, delta=1e-3)
  bound = types.SimpleNamespace(epsilon=0.5, delta=1e-3, confidence=0.95, method='any')
  audited = target.Report(claimed=1.67221, bound=bound, rounds=3, strength=1.0)
  assert 'epsilon <= 1.673 at delta' in audited.text()
  assert in_words.describe(config).endswith('with epsilon 1.673 at delta 0.001')
  assert report_data.value_of(config, 'target_epsilon') == '1.673'
  assert report_data.value_of(config, 'delta') == '0.001'
  assert report_data.text_of('target_epsilon', None) == ''
  assert report_data.label(config, ['target_epsilon']) == 'FedAvg, epsilon 1.673'
  assert choosing.budget_in_words(config) == 'epsilon 1.673'
  for epsilon in (0.21254, 1.67221):
    make_run(tmp_path / f'{epsilon}', target_epsilon=epsilon, **PRIVATE)
  points = report_figures.privacy_utility(report_data.read([tmp_path])).data
  assert sorted(points['budget']) == [0.2126, 1.673]
