import numpy as np
import pytest

import datasets
from datasets import femnist_sample, files


@pytest.fixture
def sample_dir(tmp_path, monkeypatch):
  generator = np.random.default_rng(0)
  name = femnist_sample.FILE.name
  np.savez(
    tmp_path / name,
    x=generator.integers(0, 256, (60, 28, 28)).astype(np.uint8),
    y=(np.arange(60) % 62).astype(np.uint8),
    writer=(np.arange(60) % 5).astype(np.int16),
  )
  monkeypatch.setattr(femnist_sample, 'FILE', files.DataFile(name=name))
  return tmp_path


def test_writers(sample_dir):
  dataset = datasets.load_dataset('femnist_sample', seed=0, data_dir=sample_dir)
  assert dataset.num_clients == 5
  assert dataset.train.num_examples.tolist() == [10] * 5
  labels = np.concatenate([dataset.train.y, dataset.test.y], axis=1)
  np.testing.assert_array_equal(np.sort(labels.ravel()), np.arange(60))
  np.testing.assert_array_equal(labels % 5, np.repeat(np.arange(5)[:, None], 12, axis=1))


def test_background_is_the_models_view(sample_dir):
  white, black = (
    datasets.load_dataset('femnist_sample', seed=0, data_dir=sample_dir, background=b)
    for b in ('white', 'black')
  )
  np.testing.assert_array_equal(white.train.x, black.train.x)
  assert 255 * white.x_scale + white.x_offset == pytest.approx(1)
  assert 255 * black.x_scale + black.x_offset == pytest.approx(0)


def test_missing_file_names_the_full_population():
  with pytest.raises(FileNotFoundError, match='data set femnist has all writers'):
    datasets.load_dataset('femnist_sample', seed=0)


def test_real_sample(need_file):
  dataset = datasets.load_dataset(
    'femnist_sample', seed=0, data_dir=need_file('femnist_pmtl_test_206writers.npz')
  )
  assert dataset.num_clients == 206
  assert dataset.train.num_examples.sum() + dataset.test.num_examples.sum() == 6237
