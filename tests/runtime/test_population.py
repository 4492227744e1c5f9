"""Clients of TFF's simulation data, placed once: a cohort is an array of rows."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from tests.runtime import learning

ROWS = {'a': 9, 'b': 1, 'c': 4, 'd': 12}


def client_data():
  rng = np.random.default_rng(0)
  return tff.simulation.datasets.TestClientData(
    {
      name: (
        rng.normal(size=(n, learning.FEATURES)).astype(np.float32),
        rng.integers(0, learning.CLASSES, n).astype(np.int32),
      )
      for name, n in ROWS.items()
    }
  ).preprocess(lambda dataset: dataset.batch(4))


@pytest.fixture(name='population', scope='module')
def _population():
  return runtime.XlaContext().place(client_data())


def _sum_and_count(population):
  """Sums of the features and numbers of examples, for each client."""

  @tff.tensorflow.computation(population.type)
  def of_client(dataset):
    start = (tf.zeros([learning.FEATURES]), tf.constant(0))
    return dataset.reduce(
      start, lambda t, e: (t[0] + tf.reduce_sum(e[0], 0), t[1] + tf.shape(e[0])[0])
    )

  @tff.federated_computation(tff.FederatedType(population.type, tff.CLIENTS))
  def of_all(datasets):
    return tff.federated_map(of_client, datasets)

  return of_all


def test_any_rows_give_what_their_data_sets_give(population):
  computation, data = _sum_and_count(population), client_data()
  names = list(ROWS)
  with runtime.XlaContext() as context:
    for rows in ([0, 1, 2, 3], [3, 1], [2, 2, 0], []):
      expected = computation([data.create_tf_dataset_for_client(names[r]) for r in rows])
      found = computation(population[rows])
      assert [count for _, count in found] == [ROWS[names[r]] for r in rows]
      for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
    assert context.explain(computation).is_compiled


def test_cohorts_share_one_program(population):
  computation = _sum_and_count(population)
  with runtime.XlaContext(clients_per_block=2) as context:
    for rows in ([0, 1], [3, 2], [1]):
      computation(population[rows])
    assert context.statistics.compilations == 1


@pytest.mark.slow
def test_a_training_process_takes_a_cohort(native, population):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    learning.functional_model(), tff.learning.optimizers.build_sgdm(0.1)
  )
  rows = np.array([3, 0])
  with native.context:  # For any other context it is a sequence of data sets.
    expected = learning.rounds(process, list(population[rows]))
  with runtime.XlaContext():
    learning.assert_same(learning.rounds(process, population[rows]), expected)


def test_slices(population):
  assert population[1:].rows.tolist() == [1, 2, 3]
  assert population[[3, 2, 1]][1:].rows.tolist() == [2, 1]
  assert len(population) == len(population.client_ids) == 4
  some = runtime.XlaContext().place(client_data(), client_ids=['d', 'a'])
  assert some.client_ids == ['d', 'a'] and some.leaves[0].shape[0] == 2


def test_clients_of_a_file_as_tff_writes_them(tmp_path):
  """`SqlClientData`, the form that TFF's data sets come in: its op reads one client by name."""
  rng = np.random.default_rng(0)
  examples = {
    name: collections.OrderedDict(
      label=rng.integers(0, learning.CLASSES, n),
      x=rng.normal(size=(n, learning.FEATURES)).astype(np.float32),
    )
    for name, n in ROWS.items()
  }
  path = str(tmp_path / 'clients.sqlite')
  tff.simulation.datasets.save_to_sql_client_data(
    client_ids=list(ROWS),
    dataset_fn=lambda name: tf.data.Dataset.from_tensor_slices(examples[name]),
    database_filepath=path,
    split_names_by_client_id=dict.fromkeys(ROWS, 'train'),
  )
  spec = collections.OrderedDict(
    label=tf.TensorSpec([], tf.int64), x=tf.TensorSpec([learning.FEATURES], tf.float32)
  )
  stored = tff.simulation.datasets.load_and_parse_sql_client_data(path, spec, split_name='train')
  stored = stored.preprocess(lambda d: d.map(lambda e: (e['x'], e['label'])).batch(4))
  with runtime.XlaContext() as context:
    population = context.place(stored)
    found = _sum_and_count(population)(population[[3, 1, 0]])
  assert population.client_ids == sorted(ROWS)
  assert [count for _, count in found] == [ROWS[name] for name in 'dba']
  for name, (total, _) in zip('dba', found, strict=True):
    np.testing.assert_allclose(total, examples[name]['x'].sum(0), rtol=1e-5, atol=1e-5)


def test_data_sets_without_an_end_are_refused():
  endless = client_data().preprocess(lambda dataset: dataset.repeat())
  with pytest.raises(ValueError, match='without an end'):
    runtime.XlaContext().place(endless)


def test_nonsense_is_refused(population):
  with pytest.raises(ValueError, match='rows from 0 to 4: there are 4 clients'):
    population[[0, 4]]
  with pytest.raises(ValueError, match='one axis of integers'):
    population[0.5]
  with pytest.raises(ValueError, match='at least one client'):
    runtime.XlaContext().place(client_data(), client_ids=[])
  words = tff.simulation.datasets.TestClientData({'a': collections.OrderedDict(x=['to', 'be'])})
  with pytest.raises(runtime.UnsupportedComputationError, match='numbers'):
    runtime.XlaContext().place(words)
