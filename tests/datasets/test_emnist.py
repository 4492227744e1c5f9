import contextlib
import sqlite3

import numpy as np
import pytest

import datasets


def _clients(sizes, seed, num_classes):
  generator = np.random.default_rng(seed)
  return {
    id_: {
      'label': generator.integers(0, num_classes, n).astype(np.int32),
      'pixels': (generator.integers(0, 256, (n, 28, 28)) / 255).astype(np.float32),
    }
    for id_, n in sizes.items()
  }


@pytest.fixture
def splits():
  return {
    'digits_only_train': _clients({'f1': 5, 'f2': 3, 'f3': 4, 'f4': 2}, 0, 10),
    'digits_only_test': _clients({'f1': 2, 'f2': 1, 'f3': 1, 'f4': 1}, 1, 10),
    'all_train': _clients({'f1': 6, 'f2': 4}, 2, 62),
    'all_test': _clients({'f1': 1, 'f2': 1}, 3, 62),
  }


@pytest.fixture
def emnist_dir(tmp_path, write_tff_sqlite, splits):
  write_tff_sqlite('emnist_all.sqlite', splits)
  return tmp_path


def test_digits(emnist_dir, splits):
  dataset = datasets.load_dataset('emnist_digits', seed=0, data_dir=emnist_dir)
  assert dataset.client_ids == ('f1', 'f2', 'f3', 'f4')
  np.testing.assert_array_equal(dataset.train.num_examples, [5, 3, 4, 2])
  original = splits['digits_only_train']['f3']
  seen = dataset.train.x[2, :4, ..., 0].astype(np.float32) * dataset.x_scale + dataset.x_offset
  np.testing.assert_allclose(seen, original['pixels'], atol=1e-6)
  np.testing.assert_array_equal(dataset.train.y[2, :4], original['label'])
  assert dataset.server_test[0].shape == (5, 28, 28, 1)


def test_femnist_by_cohort_is_femnist_in_memory(emnist_dir):
  whole, source = (
    datasets.load_dataset('femnist', seed=0, data_dir=emnist_dir, loading=loading)
    for loading in ('memory', 'cohort')
  )
  assert whole.task.num_outputs == 62
  assert isinstance(source.train, datasets.ClientSource)
  rows = np.array([1, 0])
  for expected, found in zip((whole.train.load(rows),), source.train.prefetch([rows]), strict=True):
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    np.testing.assert_array_equal(found.num_examples, expected.num_examples)


def test_clients_whose_rows_do_not_lie_together(emnist_dir, splits):
  path = emnist_dir / 'emnist_all.sqlite'
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(
      'INSERT INTO examples SELECT split_name, client_id, serialized_example_proto FROM examples'
      " WHERE client_id = 'f1' AND split_name = 'all_train' LIMIT 1"
    )
    connection.execute(
      "UPDATE client_metadata SET num_examples = 7 WHERE client_id = 'f1'"
      " AND split_name = 'all_train'"
    )
    connection.commit()
  for loading in ('memory', 'cohort'):
    train = datasets.load_dataset(
      'femnist', seed=0, data_dir=emnist_dir, loading=loading
    ).train.load(np.array([0]))
    labels = splits['all_train']['f1']['label']
    np.testing.assert_array_equal(train.y[0], [*labels, labels[0]])


def test_picking_clients(emnist_dir):
  first = datasets.load_dataset(
    'emnist_digits', seed=0, data_dir=emnist_dir, num_clients=2, pick='first'
  )
  assert first.client_ids == ('f1', 'f2')
  picked = {
    datasets.load_dataset('emnist_digits', seed=seed, data_dir=emnist_dir, num_clients=2).client_ids
    for seed in range(8)
  }
  assert len(picked) > 2
  with pytest.raises(ValueError, match='num_clients is 5'):
    datasets.load_dataset('emnist_digits', seed=0, data_dir=emnist_dir, num_clients=5)
