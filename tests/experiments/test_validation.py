"""Examples held out for choosing settings."""

import dataclasses

import numpy as np
import pytest

import datasets
from experiments.config import silo_budgets
from experiments.config.experiment import ExperimentConfig
from experiments.folder.metrics import MetricTable
from experiments.running import evaluation, loading, validation


def exam(**values):
  return loading.load_dataset(ExperimentConfig(dataset='exam', **values))


def rows_of(examples, client):
  count = examples.num_examples[client]
  return {(*x.tolist(), float(y)) for x, y in zip(
    examples.x[client][:count], examples.y[client][:count], strict=True)}  # fmt: skip


def test_held_out_rows_are_not_trained_on_and_nothing_is_lost():
  whole, split = exam(), exam(validation_fraction=0.25)
  assert whole.validation is None
  counts = split.train.num_examples + split.validation.num_examples
  np.testing.assert_array_equal(counts, whole.train.num_examples)
  for client in range(3):
    train, held = rows_of(split.train, client), rows_of(split.validation, client)
    assert train | held == rows_of(whole.train, client)
  np.testing.assert_array_equal(split.test.x, whole.test.x)
  np.testing.assert_allclose(
    split.validation.num_examples, 0.25 * whole.train.num_examples, atol=0.51
  )


def test_a_fraction_of_which_nobody_has_an_example_is_refused():
  with pytest.raises(ValueError, match=r'--validation_fraction=0.001 .*are none.*or more than'):
    exam(validation_fraction=0.001)


def test_clients_are_left_out_before_anything_is_held_out():
  whole = exam(min_examples=1)
  assert whole.num_clients == 65 and not whole.left_out
  own = exam()  # the data set's own default
  assert own.left_out == ('school_48', 'school_54') and own.num_clients == 63
  sizes = dict(zip(whole.client_ids, whole.train.num_examples, strict=True))
  assert all(sizes[name] < 10 for name in own.left_out)
  assert own.train.num_examples.min() >= 10
  split = exam(min_examples=17, validation_fraction=0.5)
  assert split.train.num_examples.min() < 17 and split.num_clients == 63
  # The whole data set with which a run is built goes through the same door again.
  config = ExperimentConfig(dataset='exam', min_examples=17, validation_fraction=0.5)
  assert loading.load_dataset(config, split) is split
  assert not loading.load_dataset(ExperimentConfig(dataset='exam'), whole).left_out


def test_budgets_of_clients_who_are_left_out_are_passed_over(tmp_path):
  dataset = exam()
  path = tmp_path / 'budgets.csv'
  rows = [f'{name},2' for name in (*dataset.client_ids, *dataset.left_out)]
  path.write_text('\n'.join(['silo,epsilon', *rows]))
  read = silo_budgets.read_epsilons
  epsilons, _ = read(path, dataset.client_ids, 1e-3, left_out=dataset.left_out)
  assert len(epsilons) == 63
  with pytest.raises(ValueError, match="silo 'school_48' is not in the data"):
    read(path, dataset.client_ids, 1e-3)


def test_the_seed_decides_and_the_statement_says_so():
  first, again = exam(validation_fraction=0.2), exam(validation_fraction=0.2)
  np.testing.assert_array_equal(first.validation.x, again.validation.x)
  assert 'held out' in first.preprocessing[-1]
  held = {tuple(validation._split(20, 0.5, *whose)[1]) for whose in ((0, 0), (1, 0), (0, 1))}
  assert len(held) == 3  # and each client has draws of its own


def test_a_client_keeps_an_example_to_train_on():
  kept, held = validation._split(1, 0.5, 0, 0)
  assert len(kept) == 1 and len(held) == 0


def test_a_source_is_split_as_arrays_are():
  examples = exam().train

  def read(client):
    count = examples.num_examples[client]
    return examples.x[client][:count], examples.y[client][:count]

  source = datasets.ClientSource(
    num_examples=examples.num_examples, max_examples=examples.max_examples, read=read
  )
  rows = [validation._split(int(n), 0.2, 0, k)[1] for k, n in enumerate(examples.num_examples)]
  arrays, lazy = validation._part(examples, rows), validation._part(source, rows)
  np.testing.assert_array_equal(lazy.load(np.arange(5)).x, arrays.x[:5])


def test_a_stream_keeps_nothing_for_validation():
  with pytest.raises(ValueError, match=r'--validation_fraction=0.2 .* fresh in every round'):
    loading.load_dataset(
      ExperimentConfig(dataset='ppsgd_synthetic', dataset_option=('num_clients=2',),
                       validation_fraction=0.2)
    )  # fmt: skip


def test_excess_risk_is_evaluated_beside_the_test_set():
  class Method:
    evaluations = ('personal', 'global', 'last_iterate')
    compared_groups = ()

  data = datasets.load_dataset('ppsgd_synthetic', seed=0, num_clients=2, dimension=6)
  tasks = evaluation.evaluation_tasks(Method, data, np.arange(data.num_clients))
  assert [(t.which, t.prefix) for t in tasks if t.metrics == {'mse': 'excess_risk'}] == [
    ('personal', ''),
    ('last_iterate', 'last_iterate_'),
  ]
  table = MetricTable()
  sums = {'mse': [8.0, 4.0], 'loss': [4.0, 2.0], 'num_examples': [4, 4]}
  tasks[-1].record(table, 3, sums, each_client=False)
  assert table.latest() == {
    'test_last_iterate_excess_risk': 1.5,
    'test_last_iterate_excess_risk_mean': 1.5,
    'test_last_iterate_excess_risk_std': 0.5,
    'test_last_iterate_excess_risk_variance': 0.25,
    'test_last_iterate_excess_risk_p10': pytest.approx(1.1),
    'test_last_iterate_excess_risk_median': 1.5,
    'test_last_iterate_excess_risk_p90': pytest.approx(1.9),
  }


def test_validation_is_evaluated_beside_the_test_set():
  class Method:
    evaluations = ('global', 'personal')
    compared_groups = ()

  data = exam(validation_fraction=0.2)
  tasks = evaluation.evaluation_tasks(Method, data, np.arange(data.num_clients))
  assert [(t.split, t.which, t.prefix) for t in tasks] == [
    ('test', 'personal', ''),
    ('test', 'global', 'global_'),
    ('validation', 'personal', ''),
    ('validation', 'global', 'global_'),
  ]
  for task in tasks:
    np.testing.assert_array_equal(task.examples.y, getattr(data, task.split).y)


def test_a_sample_of_clients_is_evaluated_with_what_is_its_own(monkeypatch):
  class Method:
    evaluations = ('global', 'personal')
    compared_groups = ()

    @staticmethod
    def build_evaluation(which, spec):
      return which

  class Machine:
    @staticmethod
    def place(tree, *, work):
      return tree

    @staticmethod
    def evaluate(which, server, states, data, rows, *, data_rows):
      assert (states is None) == (which == 'global')
      return {'states': rows, 'y': data['y'][data_rows]}

  who, odd = np.array([1, 4, 6, 9]), np.arange(63) % 2 == 1
  monkeypatch.setattr(evaluation, 'sample_of', lambda num_clients, size: who)
  data = dataclasses.replace(
    exam(validation_fraction=0.2), groups={'even': ~odd, 'odd': odd}, clusters=('even', 'odd')
  )
  first, *_ = tasks = evaluation.evaluation_tasks(Method, data, who)
  assert first.client_ids == tuple(data.client_ids[k] for k in who)
  np.testing.assert_array_equal(first.groups['odd'], [True, False, False, True])
  np.testing.assert_array_equal(first.clusters, [1, 0, 0, 1])
  evaluator = evaluation.Evaluator(method=Method, datasets=[data], runtime=Machine, clients=4)
  for task, [found] in zip(tasks, evaluator.evaluate({}, {}), strict=True):
    np.testing.assert_array_equal(found['y'], getattr(data, task.split).y[who])
    # A model that all share needs no state; a client's own is that of the same client.
    np.testing.assert_array_equal(found['states'], who if task.of_clients else np.arange(4))
