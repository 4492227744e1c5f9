import gzip

import numpy as np
import pytest

import datasets
from datasets import files, mnist_by_writer


@pytest.fixture
def writers(mnist_dir, monkeypatch):
  """30 writers of the 600 training images and 8 others of the 200 test images."""
  writer = np.concatenate([np.arange(600) % 30, 100 + np.arange(200) % 8])
  np.savez(mnist_dir / 'mnist_writer_ids.npz', writer=writer.astype(np.int16))
  monkeypatch.setattr(mnist_by_writer, 'WRITERS_FILE', files.DataFile(name='mnist_writer_ids.npz'))
  return writer


@pytest.mark.parametrize(('which', 'count'), [('all', 38), ('train', 30), ('test', 8)])
def test_split_inside_each_writer(mnist_dir, writers, numbers_of_images, which, count):
  dataset = datasets.load_dataset('mnist_by_writer', seed=0, data_dir=mnist_dir, writers=which)
  assert dataset.num_clients == count
  for k, id_ in enumerate(dataset.client_ids):
    numbers = [
      numbers_of_images(split.x[k, : split.num_examples[k]])
      for split in (dataset.train, dataset.test)
    ]
    rows = [np.where(n >= 1000, n - 400, n) for n in numbers]
    assert set(writers[np.concatenate(rows)]) == {int(id_.removeprefix('writer_'))}
    assert not set(rows[0]) & set(rows[1])
    assert len(rows[1]) == round(0.2 * (len(rows[0]) + len(rows[1])))
  assert len(dataset.server_test[1]) == dataset.test.num_examples.sum()


def _write_idx2(path, matrix):
  header = np.array([0x0C02, *matrix.shape], '>i4').tobytes()
  with gzip.open(path, 'wb') as stream:
    stream.write(header + matrix.astype('>i4').tobytes())


def test_from_qmnists_own_files(mnist_dir, writers):
  expected = datasets.load_dataset('mnist_by_writer', seed=0, data_dir=mnist_dir)
  labels = np.concatenate([np.arange(600) % 10, np.arange(200) % 10])
  extended = np.zeros((800, 8), np.int32)
  extended[:, 0], extended[:, 2] = labels, writers
  more = np.zeros((50, 8), np.int32)  # QMNIST has more test digits than MNIST.
  for file, part in zip(
    mnist_by_writer.QMNIST_FILES,
    (extended[:600], np.concatenate([extended[600:], more])),
    strict=True,
  ):
    _write_idx2(mnist_dir / file.name, part)
  (mnist_dir / 'mnist_writer_ids.npz').unlink()
  dataset = datasets.load_dataset('mnist_by_writer', seed=0, data_dir=mnist_dir)
  assert dataset.client_ids == expected.client_ids
  np.testing.assert_array_equal(dataset.train.x, expected.train.x)
  extended[3, 0] += 1
  _write_idx2(mnist_dir / mnist_by_writer.QMNIST_FILES[0].name, extended[:600])
  with pytest.raises(ValueError, match='not those of'):
    datasets.load_dataset('mnist_by_writer', seed=0, data_dir=mnist_dir)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (gzip.compress(b'\0' * 20, mtime=0), 'IDX'),
    (gzip.compress(b'\0' * 5, mtime=0), 'IDX'),
    (gzip.compress(b'\0' * 20, mtime=0)[:-9], r'f\.gz cannot be read as a gzipped file'),
    (b'\0' * 20, r'f\.gz cannot be read as a gzipped file'),
  ],
)
def test_wrong_idx_file(tmp_path, content, message):
  (tmp_path / 'f.gz').write_bytes(content)
  with pytest.raises(ValueError, match=message):
    mnist_by_writer.read_idx2_int(tmp_path / 'f.gz')


def test_real_writers(need_file):
  need_file('mnist_writer_ids.npz')
  folder = need_file('mnist.npz')
  train = datasets.load_dataset('mnist_by_writer', seed=0, data_dir=folder, writers='train')
  test = datasets.load_dataset('mnist_by_writer', seed=0, data_dir=folder, writers='test')
  assert (train.num_clients, test.num_clients) == (539, 297)
  assert not set(train.client_ids) & set(test.client_ids)
  sizes = train.train.num_examples + train.test.num_examples
  assert (sizes.min(), np.median(sizes), sizes.max()) == (19, 116, 131)
