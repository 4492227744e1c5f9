"""The figures of how much to personalise, on made-up runs."""

import itertools
import json
import math

import numpy as np
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.folder.metrics import ROUND, MetricTable
from experiments.reports import data as report_data
from experiments.reports import personalization as report_personalization
from experiments.reports import report


def make_run(folder, *, alpha, noise, rate, curve, metric='excess_risk', **settings):
  """A run's folder with a curve of rounds 0, 10, 20."""
  config = ExperimentConfig(
    method='ppsgd', dataset='ppsgd_synthetic', privacy='client', delta=1e-3, rounds=20,
    personalization_alpha=alpha, noise_multiplier=noise, client_learning_rate=rate, **settings,
  )  # fmt: skip
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps({'config': config.to_json()}))
  table = MetricTable()
  for round_, value in zip((0, 10, 20), curve, strict=True):
    epsilon = 0.0 if alpha == 0 else (round_ / noise if noise else None)
    if epsilon is not None:
      table.add(round_, ROUND, 'epsilon', epsilon)
    table.add(round_, 'test', 'mse', 1.0)
    table.add(round_, 'test', metric, value)
  table.write(folder / 'metrics.parquet')
  privacy = {'unit': 'client', 'epsilon': epsilon, 'statement': 'None.'}
  (folder / 'privacy.json').write_text(json.dumps(privacy))
  summary = {'rounds': 20, 'privacy': privacy, 'metrics_by_group': {'all': table.latest()}}
  (folder / 'summary.json').write_text(json.dumps(summary))


@pytest.fixture
def folder(tmp_path):
  curves = {
    # alpha, noise, rate -> excess risk
    (0.0, 1.0, 0.1): (9, 5, 3.0),
    (0.0, 1.0, 0.2): (9, 4, math.nan),
    (1.0, 1.0, 0.1): (9, 4, 1.0),
    (1.0, 10.0, 0.1): (9, 4, 2.0),
    (math.inf, 1.0, 0.1): (9, 2, 1.5),
    (math.inf, 1.0, 0.2): (9, 1, 1.7),
    (math.inf, 10.0, 0.1): (9, 5, 8.0),
  }
  for i, ((alpha, noise, rate), curve) in enumerate(curves.items()):
    make_run(tmp_path / 'runs' / str(i), alpha=alpha, noise=noise, rate=rate, curve=curve)
  return tmp_path


def test_every_round_has_its_own_best_step_size(folder):
  drawing = report_personalization.curves(report_data.read([folder]))
  table = drawing.data.set_index(['alpha', 'noise', 'round'])['value']
  assert table[math.inf, 1.0, 10] == 1 and table[math.inf, 1.0, 20] == 1.5
  assert table[0.0, 1.0, 10] == 4 and table[0.0, 1.0, 20] == 3  # the other one diverged
  assert 'CHOSEN ON TEST DATA' in drawing.caption
  panels = drawing.drawing.axes
  assert [axes.get_title(loc='left') for axes in panels] == [
    'noise multiplier 1\nepsilon 20 at the end',
    'noise multiplier 10\nepsilon 2 at the end',
  ]
  # Local learning is in every panel.
  assert [len(axes.lines) for axes in panels] == [3, 3]


def test_no_figure_chooses_between_budgets(tmp_path):
  """Runs of two target epsilons have no noise multiplier that would tell them apart."""
  for i, (alpha, target, end) in enumerate(
    [(0.0, 1.0, 3.0), (1.0, 1.0, 2.0), (math.inf, 1.0, 4.0), (1.0, 8.0, 1.0), (math.inf, 8.0, 2.5)]
  ):
    make_run(
      tmp_path / str(i), alpha=alpha, noise=None, rate=0.1, curve=(9, 5, end),
      target_epsilon=target,
    )  # fmt: skip
  drawing = report_personalization.curves(report_data.read([tmp_path]))
  last = drawing.data[drawing.data['round'] == 20].set_index(['alpha', 'target'])['value']
  assert dict(last) == {
    (0.0, 1.0): 3.0, (1.0, 1.0): 2.0, (math.inf, 1.0): 4.0, (1.0, 8.0): 1.0, (math.inf, 8.0): 2.5
  }  # fmt: skip
  assert [len(axes.lines) for axes in drawing.drawing.axes] == [3, 3]


def test_noise_that_a_budget_calibrates_is_not_called_none(folder):
  frame = report_personalization.curves(report_data.read([folder])).data
  [axes] = report_personalization.draw_curves(
    frame[frame['noise'] == 1].assign(noise=0.0)
  ).axes  # fmt: skip
  assert axes.get_title() == 'epsilon 20 at the end'
  without = frame[frame['noise'] == 1].assign(noise=0.0, epsilon=math.inf)
  [axes] = report_personalization.draw_curves(without).axes
  assert axes.get_title() == 'noise multiplier 0'


def test_problems_have_panels_of_their_own_and_no_front(tmp_path):
  for i, (deviation, alpha) in enumerate(itertools.product((0, 1), (0.0, 1.0, math.inf))):
    make_run(
      tmp_path / 'runs' / str(i), alpha=alpha, noise=1.0, rate=0.1, curve=(9, 5, 3 + deviation),
      dataset_option=('num_clients=9', f'local_deviation={deviation}'),
    )  # fmt: skip
  data = report_data.read([tmp_path])
  drawn = report_personalization.curves(data)
  titles = [axes.get_title(loc='left') for axes in drawn.drawing.axes]
  assert titles == [
    f'local_deviation={deviation}\nnoise multiplier 1\nepsilon 20 at the end'
    for deviation in (0, 1)
  ]
  last = drawn.data[drawn.data['round'] == 20].groupby('problem')['value'].agg(set).to_dict()
  assert last == {'local_deviation=0': {3.0}, 'local_deviation=1': {4.0}}
  assert report_personalization.front(data) is None


def test_the_front_takes_the_best_of_what_costs_no_more(folder):
  drawing = report_personalization.front(report_data.read([folder]))
  lines = {line.get_label(): line for line in drawing.drawing.axes[0].lines}
  np.testing.assert_array_equal(lines['best personalised'].get_xydata(), [[20, 1], [2, 2]])
  np.testing.assert_array_equal(lines['global only'].get_xydata(), [[20, 1.5], [2, 8]])
  assert set(lines['local only'].get_ydata()) == {3.0}
  assert drawing.drawing.axes[0].xaxis_inverted()


@pytest.mark.slow
def test_figures_are_in_the_report_where_alpha_differs_only(folder, tmp_path):
  page = report.write([folder])
  names = {path.stem for path in page.parent.glob('*.png')}
  assert {'personalization', 'personalization_front'} <= names
  one = tmp_path / 'one'
  make_run(one / 'run', alpha=1.0, noise=1.0, rate=0.1, curve=(3, 2, 1))
  data = report_data.read([one])
  assert report_personalization.curves(data) is None
  assert report_personalization.front(data) is None


def test_high_accuracy_is_best(tmp_path):
  for i, (rate, last) in enumerate([(0.1, 0.5), (0.2, 0.7)]):
    for alpha in (1.0, math.inf):
      make_run(tmp_path / f'{alpha}{i}', alpha=alpha, noise=1.0, rate=rate,
               curve=(0.1, 0.2, last), metric='last_iterate_excess_risk')  # fmt: skip
  data = report_data.read([tmp_path])
  assert report_personalization._metric(data) == 'test_last_iterate_excess_risk'
  assert set(report_personalization.curves(data).data.query('round == 20')['value']) == {0.5}
  other = report_data.read([tmp_path])
  curves = data.curves.replace('test_last_iterate_excess_risk', 'test_accuracy')
  other.__dict__['curves'] = curves
  assert report_personalization._metric(other) == 'test_accuracy'
  assert set(report_personalization.curves(other).data.query('round == 20')['value']) == {0.7}


@pytest.mark.slow
def test_runs_without_noise_have_curves_and_no_front(tmp_path):
  for i, alpha in enumerate((0.3, math.inf)):
    make_run(tmp_path / str(i), alpha=alpha, noise=0.0, rate=0.1, curve=(9, 5, 3.0))
  report.write([tmp_path])
  assert (tmp_path / 'report' / 'personalization.png').exists()
  assert not (tmp_path / 'report' / 'personalization_front.png').exists()
