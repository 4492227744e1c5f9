import numpy as np
import pytest

import datasets
from datasets import mnist


@pytest.mark.parametrize('options', [{}, {'partition': 'by_label', 'labels_per_client': 2}])
def test_every_image_goes_to_one_client(mnist_dir, numbers_of_images, options):
  dataset = datasets.load_dataset('mnist', seed=3, data_dir=mnist_dir, num_clients=10, **options)
  train = numbers_of_images(dataset.train.pooled()[0])
  test = numbers_of_images(dataset.test.pooled()[0])
  assert len(np.unique(train)) == len(train) == 600
  assert len(np.unique(test)) == len(test) == 200
  assert not set(train) & set(test)
  np.testing.assert_array_equal(np.sort(numbers_of_images(dataset.server_test[0])), np.sort(test))
  assert dataset.checksums['mnist.npz']


def test_by_label_gives_few_labels(mnist_dir):
  dataset = datasets.load_dataset(
    'mnist', seed=3, data_dir=mnist_dir, num_clients=20, partition='by_label', labels_per_client=2
  )
  for train_y, test_y in zip(dataset.train.y, dataset.test.y, strict=True):
    assert len(set(train_y)) == 2
    assert set(train_y) == set(test_y)


def test_seed_decides(mnist_dir):
  first, again, other = (
    datasets.load_dataset('mnist', seed=s, data_dir=mnist_dir, num_clients=10) for s in (1, 1, 2)
  )
  np.testing.assert_array_equal(first.train.x, again.train.x)
  assert not np.array_equal(first.train.x, other.train.x)


@pytest.mark.parametrize('content', [b'not a zip', None])
def test_wrong_layout(mnist_dir, content):
  path = mnist_dir / 'mnist.npz'
  if content is None:
    np.savez(path, x_train=np.zeros(3))
  else:
    path.write_bytes(content)
  with pytest.raises(ValueError, match='is not in the layout'):
    mnist.read(mnist_dir)


def test_real_mnist(need_file):
  data = mnist.read(need_file('mnist.npz'))
  assert len(data.train_y) == 60000 and len(data.test_y) == 10000
  np.testing.assert_array_equal(data.train_y[:4], [5, 0, 4, 1])
