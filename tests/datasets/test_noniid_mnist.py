import time

import numpy as np
import pytest

import datasets


def test_clients_hold_one_digit(mnist_dir, numbers_of_images):
  dataset = datasets.load_dataset(
    'noniid_mnist', seed=5, data_dir=mnist_dir, num_clients=50, test_examples=7
  )
  assert dataset.train.x.shape == (50, 12, 28, 28, 1)
  assert dataset.test.x.shape == (50, 7, 28, 28, 1)
  digit = dataset.extras['digit']
  np.testing.assert_array_equal(dataset.train.y, np.repeat(digit[:, None], 12, axis=1))
  np.testing.assert_array_equal(dataset.test.y, np.repeat(digit[:, None], 7, axis=1))
  train = numbers_of_images(dataset.train.pooled()[0])
  assert len(np.unique(train)) == len(train)
  assert numbers_of_images(dataset.test.pooled()[0]).min() >= 1000  # Test images only.
  assert len(dataset.server_test[1]) == 200
  assert not dataset.groups


def test_skewed_has_the_same_clients_and_the_sevens_may_opt_out(mnist_dir):
  options = {'seed': 5, 'data_dir': mnist_dir, 'num_clients': 50, 'test_examples': 7}
  plain = datasets.load_dataset('noniid_mnist', **options)
  skewed = datasets.load_dataset('skewed_noniid_mnist', **options)
  np.testing.assert_array_equal(plain.train.x, skewed.train.x)
  candidates = skewed.groups['opt_out_candidates']
  assert candidates.sum() == 5
  assert np.all(skewed.train.y[candidates] == 7)
  assert not np.any(skewed.train.y[~candidates] == 7)


def test_too_many_examples(mnist_dir):
  with pytest.raises(ValueError, match='examples_per_client is 13'):
    datasets.load_dataset(
      'noniid_mnist', seed=5, data_dir=mnist_dir, num_clients=50, examples_per_client=13
    )


def test_real_size(need_file):
  folder = need_file('mnist.npz')
  start = time.perf_counter()
  dataset = datasets.load_dataset('skewed_noniid_mnist', seed=0, data_dir=folder)
  assert time.perf_counter() - start < 2
  assert dataset.train.x.shape == (2000, 29, 28, 28, 1)
  # 5 % of 2,000 clients opt out; there must be enough with the digit 7.
  assert dataset.groups['opt_out_candidates'].sum() >= 100
