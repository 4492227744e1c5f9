import numpy as np
import pytest

import datasets
from datasets import files, school


@pytest.fixture
def silos():
  """Three schools in the ranges of the real ones."""
  generator = np.random.default_rng(0)
  xs, ys = [], []
  for n in (20, 35, 50):
    x = generator.integers(0, 2, (n, 28)).astype(np.uint8)
    x[:, 3:5] = generator.integers(0, 100, (n, 2))
    x[:, 27] = 1
    xs.append(x)
    ys.append(generator.integers(1, 71, n).astype(np.uint8))
  return xs, ys


@pytest.fixture
def school_dir(tmp_path, monkeypatch, write_mat, silos):
  write_mat('school.mat', *silos)
  monkeypatch.setattr(school, 'FILE', files.DataFile(name='school.mat'))
  return tmp_path


def test_standardised_per_silo(school_dir):
  dataset = datasets.load_dataset('school', seed=100, data_dir=school_dir)
  np.testing.assert_array_equal(dataset.train.num_examples, [16, 28, 40])
  np.testing.assert_array_equal(dataset.test.num_examples, [4, 7, 10])
  x = dataset.train.x[1, :28]
  np.testing.assert_allclose(x[:, :27].std(axis=0), 1, rtol=1e-5)
  np.testing.assert_array_equal(x[:, 27], 0)
  _, y = dataset.train.pooled()
  assert y.min() >= 0 and y.max() <= 1
  assert 'outside the guarantee' in dataset.preprocessing[0]


def test_fixed_scaling_and_none(school_dir):
  fixed = datasets.load_dataset('school', seed=100, data_dir=school_dir, preprocessing='fixed')
  raw = datasets.load_dataset('school', seed=100, data_dir=school_dir, preprocessing='none')
  assert raw.train.x.dtype == np.uint8
  np.testing.assert_allclose(fixed.train.x[..., 3], raw.train.x[..., 3] / 100.0, rtol=1e-6)
  np.testing.assert_array_equal(fixed.train.x[..., :3], raw.train.x[..., :3])
  assert fixed.train.x.max() <= 1 and not fixed.train.x[..., 27].any()
  for dataset in (fixed, raw):
    assert 'no privacy' in dataset.preprocessing[0]


def test_test_rows_are_not_trained_on(school_dir, silos):
  dataset = datasets.load_dataset(
    'school', seed=1, data_dir=school_dir, preprocessing='none', test_fraction=0.5
  )
  for k, x in enumerate(silos[0]):
    together = np.concatenate(
      [split.x[k, : split.num_examples[k]] for split in (dataset.train, dataset.test)]
    )
    np.testing.assert_array_equal(together[np.lexsort(together.T)], x[np.lexsort(x.T)])


def test_reference_points_of_the_real_file(need_file):
  """Without privacy, on the split of seed 100: known values of simple predictors."""
  dataset = datasets.load_dataset('school', seed=100, data_dir=need_file('school.mat'))
  count = dataset.train.num_examples
  assert dataset.num_clients == 139
  assert (count.sum(), dataset.test.num_examples.sum()) == (12238, 3124)
  assert (count.min(), np.median(count), count.max(), np.sum(count < 32)) == (17, 82, 200, 14)
  x, y = dataset.train.pooled()
  test_x, test_y = dataset.test.pooled()
  x, test_x = (np.c_[a, np.ones(len(a))].astype(np.float64) for a in (x, test_x))
  w = np.linalg.solve(x.T @ x + np.eye(29), x.T @ y)
  assert np.mean((test_x @ w - test_y) ** 2) == pytest.approx(0.02603, abs=5e-6)
  assert np.mean((y.mean() - test_y) ** 2) == pytest.approx(0.03551, abs=5e-6)
  silo_mean = dataset.train.y.sum(axis=1) / count
  errors = (dataset.test.y - silo_mean[:, None])[dataset.test.mask]
  assert np.mean(errors**2) == pytest.approx(0.03274, abs=5e-6)
