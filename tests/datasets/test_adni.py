import numpy as np
import pytest

import datasets


def _write(folder, **changes):
  generator = np.random.default_rng(0)
  arrays = {
    'x': generator.integers(0, 256, (24, 32, 32)).astype(np.uint8),
    'y': generator.uniform(0.8, 2, 24),
    'silo': np.array(['GE', 'Philips', 'Siemens'])[np.arange(24) % 3],
  }
  np.savez(folder / 'adni.npz', **{**arrays, **changes})


def test_scanners(tmp_path):
  _write(tmp_path)
  dataset = datasets.load_dataset('adni', seed=0, data_dir=tmp_path)
  assert dataset.client_ids == ('scanner_GE', 'scanner_Philips', 'scanner_Siemens')
  assert dataset.task.kind == 'regression'
  assert dataset.task.label_deviation == pytest.approx(
    np.std(np.linspace(0.8, 2, 10_000)), rel=1e-3
  )
  np.testing.assert_array_equal(dataset.train.num_examples, [6, 6, 6])
  np.testing.assert_array_equal(dataset.test.num_examples, [2, 2, 2])
  images = {
    image.tobytes() for split in (dataset.train, dataset.test) for image in split.pooled()[0]
  }
  assert len(images) == 24


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'x': np.zeros((24, 32, 32))}, 'x is float64'),
    ({'y': np.zeros(3)}, 'one entry'),
    ({'silo': np.array([None] * 24)}, 'does not have the arrays'),
  ],
)
def test_wrong_file(tmp_path, changes, message):
  _write(tmp_path, **changes)
  with pytest.raises(ValueError, match=message):
    datasets.load_dataset('adni', seed=0, data_dir=tmp_path)


def test_a_file_that_was_cut_short(tmp_path):
  _write(tmp_path)
  content = (tmp_path / 'adni.npz').read_bytes()
  (tmp_path / 'adni.npz').write_bytes(content[: len(content) // 2])
  with pytest.raises(ValueError, match=r'adni\.npz does not have the arrays'):
    datasets.load_dataset('adni', seed=0, data_dir=tmp_path)


def test_missing_file_says_how():
  with pytest.raises(FileNotFoundError, match='Access needs approval'):
    datasets.load_dataset('adni', seed=0)
