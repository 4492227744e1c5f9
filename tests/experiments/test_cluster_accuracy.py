"""For how many clients a method has found the cluster that the data set knows."""

import dataclasses

import numpy as np
import pytest

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.folder.metrics import MetricTable
from experiments.running import build, evaluation, runner
from tests.processes import small_federation as small

TRUE = np.array([0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
  ('chosen', 'right'),
  [
    ([2, 2, 2, 0, 0, 1], 6),  # names do not count
    ([7, 7, 7, 3, 3, 5], 6),
    ([2, 2, 0, 0, 0, 1], 5),
    ([0, 0, 0, 0, 0, 0], 3),  # one cluster stands for one true one
    ([0, 1, 2, 3, 4, 5], 3),  # and a true one for one cluster
    ([0, 0, 1, 0, 0, 1], 3),  # not 4: not the majority of each, but one to one
    ([-1, -1, -1, -1, -1, -1], 0),
    ([-1, 2, 2, 0, 0, 1], 5),
  ],
)
def test_clusters_are_matched_one_to_one(chosen, right):
  assert evaluation.cluster_accuracy(np.array(chosen, np.float32), TRUE) == pytest.approx(right / 6)


def test_a_cluster_that_nobody_truly_has_counts_in_the_share():
  assert evaluation.cluster_accuracy(np.zeros(2), np.array([3, 3])) == 1.0


def test_it_is_recorded_where_the_clusters_are_known_only():
  task = evaluation.EvaluationTask(
    split='test', which='personal', prefix='', examples=None, clusters=TRUE,
    groups={'all': np.ones(6, bool)},
  )  # fmt: skip
  sums = {'loss': np.ones(6), 'num_examples': np.ones(6), 'cluster': [1, 1, 0, 0, 0, 2]}
  without = {name: value for name, value in sums.items() if name != 'cluster'}
  for own, given, share in (
    (task, sums, 5 / 6),
    (task, without, None),
    (dataclasses.replace(task, clusters=None), sums, None),
  ):
    table = MetricTable()
    own.record(table, 3, given, each_client=True)
    found = table.latest()
    assert found.get('cluster_accuracy') == (share and pytest.approx(share))
    assert not [name for name in found if 'cluster' in name and name != 'cluster_accuracy']


def _two_kinds(clients):
  """Even clients have the opposite labels of odd ones."""
  data = small.binary_data(clients=clients)
  examples = datasets.ClientExamples(x=data['x'], y=data['y'], num_examples=data['num_examples'])
  odd = np.arange(clients) % 2 == 1
  return datasets.FederatedDataset(
    name='two_kinds',
    task=datasets.Task(kind='binary', num_outputs=1, example_shape=data['x'].shape[2:]),
    train=examples,
    test=examples,
    client_ids=tuple(f'client {k}' for k in range(clients)),
    groups={'even': ~odd, 'odd': odd},
    clusters=('even', 'odd'),
    citation='none',
  )


@pytest.mark.slow
@pytest.mark.parametrize('method', ['ifca', 'ifca_mr_mtl', 'fedavg'])
def test_a_run_reports_it(method):
  values = {} if method == 'fedavg' else {'num_clusters': 2, 'selection_fraction': 1.0}
  config = ExperimentConfig(
    method=method, dataset='digits', model='linear_svm', rounds=8, eval_every=4, batch_size=10,
    client_learning_rate=0.1, **values,
  )  # fmt: skip
  dataset = _two_kinds(6)
  result = runner.run(build.build_process(config, dataset), show_progress=False)
  found = result.summary['metrics'].get('cluster_accuracy')
  if method == 'fedavg':
    assert found is None
    return
  chosen = result.client_states['cluster']
  kinds = dataset.true_clusters
  assert found == max(np.mean(chosen == kinds), np.mean(chosen != kinds)) == 1.0
  # Of those who are evaluated; they are not the first ones.
  some = dataclasses.replace(config, eval_clients=3)
  result = runner.run(build.build_process(some, dataset), show_progress=False)
  assert result.summary['metrics']['cluster_accuracy'] == 1.0


def test_clusters_that_do_not_cut_the_clients_are_refused():
  good = _two_kinds(4)
  np.testing.assert_array_equal(good.true_clusters, [0, 1, 0, 1])
  assert dataclasses.replace(good, clusters=()).true_clusters is None
  for clusters, groups, words in (
    (('even', 'third'), good.groups, "clusters has 'third', which is none of its groups: even"),
    (('even',), good.groups, "client 'client 1' is in 0 of the clusters"),
    (('even', 'all'), {**good.groups, 'all': np.ones(4, bool)}, "client 'client 0' is in 2 of"),
  ):
    with pytest.raises(ValueError, match=words):
      dataclasses.replace(good, clusters=clusters, groups=groups)


def test_pooled_clients_have_no_clusters():
  assert build.pool(_two_kinds(4)).clusters == ()
