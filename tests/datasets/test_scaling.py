import numpy as np

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


def test_constant_columns_become_zero():
  train = np.array([[0.1, 7.0, 1.0], [0.1, 7.0, 2.0], [0.1, 7.0, 3.0]])
  scaled_train, scaled_test = scaling.standardise(train, np.array([[5.0, 8.0, 2.0]]))
  np.testing.assert_array_equal(scaled_train[:, :2], 0)
  np.testing.assert_array_equal(scaled_test[:, :2], 0)
  assert scaled_train.dtype == np.float32
