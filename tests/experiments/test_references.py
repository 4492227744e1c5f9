"""Plain references beside a run's result: what they are, and that the statement names them."""

import dataclasses

import numpy as np
import pytest

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.running import build, evaluation, references


def _regression(clients=4, rows=40, seed=0):
  """Each client has a line of its own, so that its own model is the best of all."""
  random = np.random.default_rng(seed)
  xs = [random.normal(size=(rows, 1)).astype(np.float32) for _ in range(clients)]
  ys = [(k * x[:, 0] + 5).astype(np.float32) for k, x in enumerate(xs)]
  half = rows // 2
  return datasets.FederatedDataset(
    name='lines',
    task=datasets.Task(kind='regression', num_outputs=1, example_shape=(1,)),
    train=datasets.ClientExamples.from_lists([x[:half] for x in xs], [y[:half] for y in ys]),
    test=datasets.ClientExamples.from_lists([x[half:] for x in xs], [y[half:] for y in ys]),
    client_ids=tuple(map(str, range(clients))),
    citation='made up',
  )


def test_they_are_what_they_are_called():
  data = _regression()
  found = references.of(data)
  _, y = data.train.pooled()
  _, test_y = data.test.pooled()
  np.testing.assert_allclose(found['constant'], np.mean((test_y - y.mean()) ** 2), rtol=1e-5)
  assert found['local_linear'] < 0.1 < found['linear'] < found['constant']
  assert references.of(data) is found  # fitted once
  elsewhere = dataclasses.replace(data, test=dataclasses.replace(data.test, y=data.test.y + 9.0))
  assert references.of(elsewhere)['local_linear'] > 9.0  # and once for each test set
  far = dataclasses.replace(data.test, y=data.test.y + 100.0)
  assert min(references._fitted(data.train, far, data.task).values()) > 90.0**2  # to no test label


def test_classes_that_a_client_has_only_one_of():
  data = datasets.load_dataset('digits', seed=0)
  found = references.of(data)
  assert found['local_linear'] == 1.0  # each client has one digit
  assert 0.9 < found['linear'] < 1.0
  assert found['constant'] == pytest.approx(0.11, abs=0.02)


def test_what_is_large_is_not_fitted(monkeypatch):
  assert not references.missing(_regression())
  monkeypatch.setattr(references, '_MOST_NUMBERS', 10)
  assert set(references.of(_regression())) == {'constant'}
  assert 'Linear models are not fitted' in references.missing(_regression())
  monkeypatch.undo()
  monkeypatch.setattr(references, '_MOST_CLIENTS', 3)
  assert set(references.of(_regression(seed=1))) == {'constant', 'linear'}


def test_data_that_are_loaded_by_cohort_have_the_same(monkeypatch):
  whole = _regression()
  train = whole.train
  source = datasets.ClientSource(
    num_examples=train.num_examples, max_examples=20, read=lambda k: (train.x[k], train.y[k])
  )
  lazy = dataclasses.replace(whole, train=source)
  assert references.of(lazy) == references.of(whole)
  monkeypatch.setattr(references, '_MOST_NUMBERS', 10)
  assert not references.of(lazy) and not references.outside(lazy)
  assert references.facts(lazy)['references_missing'] == (
    'No plain references: the data are loaded by cohort, and are more than 10 numbers.'
  )


def test_data_that_never_end_have_none():
  stream = datasets.load_dataset('ppsgd_synthetic', seed=0, num_clients=3)
  assert not references.of(stream) and not references.outside(stream)
  assert not references.missing(stream)


def test_the_sentence_takes_sides():
  words = references.sentence(0.6, {'constant': 1.0, 'linear': 0.5}, 'mse')
  assert words == (
    'mse 0.6 is better than a constant prediction (1); worse than one linear model of all examples '
    'without privacy (0.5).'
  )
  words = references.sentence(0.6, {'constant': 0.6, 'linear': 0.5}, 'accuracy')
  assert words.startswith('accuracy 0.6 is better than one linear model')
  assert words.endswith('as good as a constant prediction (0.6).')
  assert references.sentence(0.6, {}, 'mse') == ''


@pytest.mark.slow
def test_the_statement_says_that_they_are_outside():
  private = dict(privacy='example', noise_multiplier=1.0, delta=1e-3)
  for values, said in ((private, True), ({}, False)):
    config = ExperimentConfig(method='local', dataset='exam', rounds=1, **values)
    experiment = build.build_process(config)
    statement = experiment.privacy_report(1)['statement']
    assert ('plain references beside the result' in ' '.join(statement.split())) == said


def test_medians_stay_where_one_client_is_bad():
  data = _regression(clients=11)
  group = {'all': np.ones(11, bool)}
  task = evaluation.EvaluationTask(
    split='test', which='global', prefix='', examples=data.test, groups=group
  )
  errors = np.ones(11) * 20.0
  tables = []
  for worst in (20.0, 2e4):
    table = evaluation.MetricTable()
    task.record(
      table, 1, {'mse': np.append(errors[1:], worst), 'num_examples': np.full(11, 20.0)},
      each_client=False,
    )  # fmt: skip
    tables.append(table.latest())
  before, after = tables
  assert after['test_mse_mean'] > 50 * before['test_mse_mean']
  for name in ('p10', 'median', 'p90'):
    assert before[f'test_mse_{name}'] == after[f'test_mse_{name}'] == 1.0
  empty = evaluation.MetricTable()  # of clients without rows
  task.record(empty, 1, {'mse': np.zeros(11), 'num_examples': np.zeros(11)}, each_client=False)
  assert not empty.rows
