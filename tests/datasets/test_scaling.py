import numpy as np
from sklearn import preprocessing

from datasets import scaling


def test_standardises_by_training_rows_only():
  generator = np.random.default_rng(0)
  train, test = generator.normal(5, 3, (50, 4)), generator.normal(5, 3, (20, 4))
  scaled_train, scaled_test = scaling.standardise(train, test)
  np.testing.assert_allclose(scaled_train.mean(axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(scaled_train.std(axis=0), 1, rtol=1e-5)
  expected = (test - train.mean(axis=0)) / train.std(axis=0)
  np.testing.assert_allclose(scaled_test, expected, rtol=1e-5, atol=1e-6)
  # Other test rows do not move the training rows.
  again, _ = scaling.standardise(train, test * 100)
  np.testing.assert_array_equal(again, scaled_train)


def test_as_scikit_learns_scaler():
  generator = np.random.default_rng(0)
  train, test = generator.integers(0, 2, (2, 12, 28))
  train[:, :5] = 7
  train_scaler = preprocessing.StandardScaler().fit(train)
  scaled_train, scaled_test = scaling.standardise(train, test)
  np.testing.assert_allclose(scaled_train, train_scaler.transform(train), rtol=1e-6, atol=1e-7)
  np.testing.assert_allclose(scaled_test, train_scaler.transform(test), rtol=1e-6, atol=1e-7)


def test_columns_in_small_units_and_far_from_zero_are_scaled_too():
  train = np.random.default_rng(0).normal(0, 1, (12, 3)) * [1e-12, 1e-3, 1.0] + [0, 1e7, 1.7e9]
  expected = preprocessing.StandardScaler().fit_transform(train)
  np.testing.assert_allclose(scaling.standardise(train, train)[0], expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(expected.std(axis=0), 1, rtol=1e-5)


def test_constant_columns_become_zero():
  train = np.array([[0.1, 7.0, 1.0], [0.1, 7.0, 2.0], [0.1, 7.0, 3.0]])
  scaled_train, scaled_test = scaling.standardise(train, np.array([[0.1, 8.0, 2.0]]))
  np.testing.assert_array_equal(np.round(scaled_train[:, :2], 6), 0)
  np.testing.assert_allclose(scaled_test, [[0, 1, 0]], atol=1e-6)
  assert scaled_train.dtype == np.float32
  constant = np.full((10_007, 1), 0.1)
  np.testing.assert_allclose(scaling.standardise(constant, constant)[0], 0, atol=1e-9)
