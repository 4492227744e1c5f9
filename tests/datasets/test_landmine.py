import dataclasses

import numpy as np

import datasets
from datasets import files, landmine


def test_fields(tmp_path, monkeypatch):
  generator = np.random.default_rng(0)
  y = generator.integers(0, 2, 40)
  np.savez(tmp_path / 'l.npz', x=generator.normal(size=(40, 9)), y=y, client=np.arange(40) % 4)
  small = dataclasses.replace(landmine.load, file=files.DataFile(name='l.npz'))
  monkeypatch.setattr(landmine, 'load', small)
  dataset = datasets.load_dataset('landmine', seed=0, data_dir=tmp_path)
  assert dataset.client_ids == ('field_1', 'field_2', 'field_3', 'field_4')
  labels = np.concatenate([dataset.train.pooled()[1], dataset.test.pooled()[1]])
  assert np.sum(labels == 1) == y.sum() and np.sum(labels == -1) == 40 - y.sum()


def test_real_fields(need_file):
  dataset = datasets.load_dataset('landmine', seed=0, data_dir=need_file('landmine_29.npz'))
  assert dataset.num_clients == 29
  labels = np.concatenate([dataset.train.pooled()[1], dataset.test.pooled()[1]])
  assert len(labels) == 14820
  assert abs(np.mean(labels == 1) - 0.061) < 0.001
