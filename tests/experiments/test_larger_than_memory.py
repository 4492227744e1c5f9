"""Data in Parquet files and clients' states on disk, through the settings, crashed and resumed."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.running import evaluation, runner
from experiments.running.parts import Callback


class Stop(Callback):
  """Ends a run as a crash would, after a round whose states are written and not kept."""

  def after_round(self, round_, metrics):
    if round_ == 5:
      raise KeyError('crash')


@pytest.fixture(name='folder')
def _folder(tmp_path):
  """40 clients whose label is the sign of the first number, or (the odd ones) of the second."""
  rng = np.random.default_rng(0)
  who, x = np.repeat(np.arange(40), 8), rng.normal(size=(320, 3)).astype(np.float32)
  chosen = x[np.arange(320), who % 2]
  table = pd.DataFrame({'who': who, 'a': x[:, 0], 'b': x[:, 1], 'c': x[:, 2], 'y': chosen > 0})
  (tmp_path / 'data').mkdir()
  for part, rows in enumerate(np.split(rng.permutation(320), 4)):
    table.iloc[rows].to_parquet(tmp_path / 'data' / f'{part}.parquet')
  return tmp_path / 'data'


def run(folder, tmp_path, name, *, callbacks=(), **settings):
  config = ExperimentConfig(
    dataset=f'parquet:{folder}', silo_column='who', target_column='y', method='ditto',
    dataset_option=('task=binary', f'cache={tmp_path / "cache"}'), clients_per_round=6, rounds=8,
    eval_every=4, checkpoint_every=2, eval_clients=10, client_learning_rate=0.05, batch_size=4,
    device='cpu', client_states='disk', output_dir=str(tmp_path / name), **settings,
  )  # fmt: skip
  return runner.run(config, show_progress=False, callbacks=callbacks)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_resumed_it_is_what_it_is_undisturbed(folder, tmp_path):
  result = run(folder, tmp_path, 'whole')
  with pytest.raises(KeyError):
    run(folder, tmp_path, 'broken', callbacks=[Stop()])
  run(folder, tmp_path, 'broken', resume=True)
  tables = [pd.read_parquet(tmp_path / n / 'metrics.parquet') for n in ('whole', 'broken')]
  pd.testing.assert_frame_equal(*tables, check_exact=True)
  clients = tables[0].client.dropna().unique()
  who = evaluation.sample_of(40, 10)
  names = sorted(str(k) for k in range(40))  # clients are in the order of their names
  assert sorted(clients) == sorted(names[k] for k in who)
  # The evaluated states are those of the evaluated clients.
  loss = result.metrics.latest()['test_loss']
  assert loss < tables[0].query('metric == "loss" and round == 0 and split == "test"').value.iloc[0]
  checksums = json.loads((tmp_path / 'whole' / 'config.json').read_text())['data_checksums']
  assert set(checksums) == {f'{part}.parquet' for part in range(4)}


def test_a_sample_of_a_population_is_spread_over_it_and_the_same_again():
  sample = evaluation.sample_of(10**6, 1000)
  assert len(np.unique(sample)) == 1000 and (np.diff(sample) > 0).all()
  np.testing.assert_array_equal(sample, evaluation.sample_of(10**6, 1000))
  assert abs(sample.mean() - 5e5) < 5e4
  np.testing.assert_array_equal(evaluation.sample_of(5, 9), np.arange(5))
