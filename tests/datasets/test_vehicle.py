import dataclasses

import numpy as np
import pytest

import datasets
from datasets import files, vehicle


def _rows(generator, n, d):
  return generator.normal(size=(n, d)), np.where(generator.random(n) < 0.5, -1, 1)


def test_full_set(tmp_path, write_mat):
  generator = np.random.default_rng(0)
  xs, ys = zip(*(_rows(generator, n, 100) for n in (20, 40)), strict=True)
  write_mat('vehicle.mat', list(xs), list(ys), column=True)
  dataset = datasets.load_dataset('vehicle', seed=0, data_dir=tmp_path)
  assert dataset.task.kind == 'binary'
  np.testing.assert_array_equal(dataset.train.num_examples, [15, 30])
  assert set(np.unique(dataset.test.pooled()[1])) == {-1.0, 1.0}
  thin = datasets.load_dataset('vehicle', seed=0, data_dir=tmp_path, density='0.2')
  np.testing.assert_array_equal(thin.train.num_examples, [3, 6])


def test_missing_file_says_where_it_is():
  with pytest.raises(FileNotFoundError, match='private-cross-silo-fl'):
    datasets.load_dataset('vehicle', seed=0)


def test_labels_must_be_signs(tmp_path, write_mat):
  write_mat('vehicle.mat', [np.ones((8, 100))], [np.arange(8) % 2])
  with pytest.raises(ValueError, match=r'label 0.0 is out of range; allowed: -1 or \+1'):
    datasets.load_dataset('vehicle', seed=0, data_dir=tmp_path)


def test_small_set(tmp_path, monkeypatch):
  generator = np.random.default_rng(0)
  x, y = _rows(generator, 30, 100)
  np.savez(tmp_path / 'v.npz', x=x.astype(np.float32), y=y, client=np.arange(30) % 3)
  small = dataclasses.replace(vehicle.load_small, file=files.DataFile(name='v.npz'))
  monkeypatch.setattr(vehicle, 'load_small', small)
  dataset = datasets.load_dataset('vehicle_small', seed=0, data_dir=tmp_path)
  np.testing.assert_array_equal(dataset.train.num_examples, [7, 7, 7])


def test_real_small_set(need_file):
  folder = need_file('vehicle_ditto_train_23.npz')
  dataset = datasets.load_dataset('vehicle_small', seed=0, data_dir=folder)
  assert dataset.num_clients == 23
  assert dataset.train.num_examples.sum() + dataset.test.num_examples.sum() == 1860
