import numpy as np
import pytest

from datasets import tff_sqlite


@pytest.fixture
def path(write_tff_sqlite):
  def clients(sizes):
    return {id_: {'value': np.arange(n, dtype=np.int64)} for id_, n in sizes.items()}

  return write_tff_sqlite(
    'f.sqlite',
    {'train': clients({'b': 3, 'a': 2, 'only_train': 1}), 'test': clients({'a': 1, 'b': 4})},
  )


def test_counts_and_clients(path):
  assert tff_sqlite.client_counts(path, 'train') == {'a': 2, 'b': 3, 'only_train': 1}
  assert tff_sqlite.shared_clients(path, 'train', 'test') == {'a': (2, 1), 'b': (3, 4)}
  assert len(tff_sqlite.read_client(path, 'train', 'b')) == 3
  assert len(tff_sqlite.read_client(path, 'train', 'b', limit=2)) == 2
  everything = dict(tff_sqlite.read_all(path, 'test'))
  assert {id_: len(examples) for id_, examples in everything.items()} == {'a': 1, 'b': 4}
  assert everything['b'] == tff_sqlite.read_client(path, 'test', 'b')


def test_errors(path, tmp_path):
  with pytest.raises(ValueError, match='has no clients in the split'):
    tff_sqlite.client_counts(path, 'holdout')
  (tmp_path / 'text').write_text('not a database' * 100)
  with pytest.raises(ValueError, match="TensorFlow Federated's format"):
    tff_sqlite.client_counts(tmp_path / 'text', 'train')
  with pytest.raises(ValueError, match="TensorFlow Federated's format"):
    tff_sqlite.client_counts(tmp_path / 'missing', 'train')
