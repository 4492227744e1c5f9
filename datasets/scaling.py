"""Standardisation of features inside each silo."""

from collections.abc import Sequence

import numpy as np

STANDARDISED_PER_SILO = (
  "Features are standardised by the mean and deviation of each silo's own training rows."
  ' These statistics are exact, without noise: they are outside the guarantee.'
)
FIXED = 'Features are scaled by public constants, which cost no privacy.'
UNCHANGED = 'Features are used as they are, which costs no privacy.'


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """One silo's features by the mean and the deviation of its training rows.

  As scikit-learn's StandardScaler: a column that is constant in the training rows
  is only centred, so it is 0 there, and not quite in the test rows which differ.

  Args:
    train: [n, d] training rows.
    test: [m, d] test rows.

  Returns:
    Both as float32.
  """
  train = train.astype(np.float64)
  mean, deviation = train.mean(axis=0), train.std(axis=0)
  # A constant column of decimals may show a deviation of rounding errors.
  varies = deviation > len(train) * np.finfo(np.float64).eps * np.abs(mean)
  scale = np.where(varies, deviation, 1.0)
  return (
    ((train - mean) / scale).astype(np.float32),
    ((test.astype(np.float64) - mean) / scale).astype(np.float32),
  )


def standardise_silos(
  train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """`standardise` for each silo."""
  pairs = [standardise(a, b) for a, b in zip(train, test, strict=True)]
  return [a for a, _ in pairs], [b for _, b in pairs]
