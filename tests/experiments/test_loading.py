"""Workers load their clients' data by themselves, and only what the driver has found."""

import dataclasses
import pickle

import numpy as np
import pytest

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.running import loading, population, references, runner
from runtime.hosts import ray_crew
from tests.runtime import example_process as example
from tests.runtime.local_crew import LocalCrew

DIGITS = dict(
  method='ditto', dataset='digits', dataset_option=('num_clients=10',), privacy='client',
  delta=1e-2, noise_multiplier=1.0, rounds=2, eval_every=0, device='cpu', noise_key='rehearsal',
)  # fmt: skip


def for_workers(workers=3, **settings):
  config = ExperimentConfig(**{**DIGITS, **settings}, cohort_workers=workers)
  dataset = loading.load_dataset(config)
  return dataset, *loading.for_workers(config, dataset)


def test_parts_are_the_whole_and_the_driver_keeps_none_of_it(monkeypatch):
  whole, kept, parts = for_workers(validation_fraction=0.2)
  load = pickle.loads(pickle.dumps(parts.load))
  found = [load(*ends) for ends in ((0, 3), (3, 6), (6, 10))]
  for name in ('x', 'y', 'num_examples'):
    joined = np.concatenate([part[name] for part in found])
    np.testing.assert_array_equal(joined, getattr(whole.train, name))
  np.testing.assert_array_equal(np.concatenate([p['client_id'] for p in found]), np.arange(10))
  assert whole.train.x[5].tobytes() not in pickle.dumps(dataclasses.asdict(parts))
  assert isinstance(kept.train, datasets.ClientSource)
  again = kept.train.load(np.array([0, 7]))  # loaded anew, for a report
  np.testing.assert_array_equal(again.x, whole.train.x[[0, 7]])
  np.testing.assert_array_equal(kept.train.select(np.array([7])).load(np.array([0])).x, again.x[1:])
  np.testing.assert_array_equal(kept.train.num_examples, whole.train.num_examples)
  monkeypatch.setattr(references, '_MOST_NUMBERS', 0)  # as of data that are large
  expected, found = references.facts(whole), references.facts(kept)
  assert found == expected and found['references']
  assert whole.train.x[5].tobytes() not in pickle.dumps(dataclasses.asdict(kept.train.somebody))
  assert not any(
    isinstance(value, datasets.ClientExamples) and value.num_clients > 1
    for value in vars(kept.train).values()
  )


def test_other_data_are_refused():
  _, _, parts = for_workers()
  other = dataclasses.replace(parts.load, settings={**parts.load.settings, 'seed': 1})
  with pytest.raises(ValueError, match='--dataset=digits is not what it is where'):
    other(0, 3)


def test_data_loaded_by_cohort_are_read_by_rows(monkeypatch):
  plain = loading.load_dataset

  def by_cohort(config):
    dataset = plain(config)
    train = dataset.train
    read = lambda k: (train.x[k, : train.num_examples[k]], train.y[k, : train.num_examples[k]])  # noqa: E731
    source = datasets.ClientSource(
      num_examples=train.num_examples, max_examples=train.max_examples, read=read
    )
    return dataclasses.replace(dataset, train=source)

  monkeypatch.setattr(loading, 'load_dataset', by_cohort)
  whole, kept, parts = for_workers()
  assert parts.by_cohort and kept is whole
  found = parts.load(3, 6)(np.array([2, 0]))
  np.testing.assert_array_equal(found['client_id'], [5, 3])
  np.testing.assert_array_equal(found['x'], plain(ExperimentConfig(**DIGITS)).train.x[[5, 3]])


@pytest.mark.parametrize(
  'settings',
  [{'workers': 0}, {'method': 'pooled'}, {'method': 'fedavg', 'dataset': 'ppsgd_synthetic'}],
)
def test_what_is_not_spread_or_never_the_same_stays(settings):
  plain = dict(dataset_option=(), privacy='none', delta=None, noise_multiplier=None, noise_key=None)
  whole, kept, parts = for_workers(**{**plain, **settings})
  assert parts is None and kept is whole


@pytest.mark.slow
def test_a_run_whose_workers_load_by_themselves(monkeypatch):
  crews, placed = [], []

  def connect(address, size, **options):
    crews.append(LocalCrew(size))
    return crews[-1]

  plain_place = population.Population._place

  def place(self, parts):
    placed.append(parts)
    return plain_place(self, parts)

  monkeypatch.setattr(ray_crew, 'connect', connect)
  monkeypatch.setattr(population.Population, '_place', place)
  one = runner.run(ExperimentConfig(**DIGITS), show_progress=False)
  assert len(placed) == 1
  many = runner.run(ExperimentConfig(**DIGITS, cohort_workers=2), show_progress=False)
  assert len(placed) == 1  # no training data, by the driver
  assert [m for _, m, _ in crews[0].calls].count('load') == 2
  example.assert_same(one.server_state, many.server_state, rtol=1e-4)
  example.assert_same(one.client_states, many.client_states, rtol=1e-4)
  assert one.privacy == many.privacy
  assert one.summary['references'] == many.summary['references']
