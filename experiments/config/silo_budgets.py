"""Budgets of the silos, each its own: the file of `--silo_epsilons`."""

import pathlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from settings import silo_tables

_LARGEST_DELTA = 0.5  # that of --delta


def read_epsilons(
  path: pathlib.Path,
  silos: Sequence[str],
  delta: float | None,
  *,
  left_out: Collection[str] = (),
) -> tuple[np.ndarray, np.ndarray]:
  """Reads one budget per silo from a CSV file with the columns silo, epsilon[, delta].

  Args:
    path: the file, of `--silo_epsilons`.
    silos: the silos' names, in the order of the result.
    delta: of the silos without one of their own.
    left_out: silos that take no part, whose rows are passed over.

  Returns:
    (epsilons, deltas), float64 [K] each.

  Raises:
    ValueError: a silo that is missing, unknown or there twice, or a number that is none.
  """

  def budget(row: Mapping[str, str], where: str) -> tuple[float, float]:
    epsilon = silo_tables.positive(row['epsilon'], f'{where}: epsilon')
    own_delta = delta
    if row.get('delta'):
      own_delta = silo_tables.positive(row['delta'], f'{where}: delta', most=_LARGEST_DELTA)
    if own_delta is None:
      raise ValueError(f'{where}: silo {row["silo"]!r} has no delta; add a column or give --delta.')
    return epsilon, own_delta

  rows = silo_tables.read('silo_epsilons', path, silos, 'epsilon', budget, left_out=left_out)
  table = np.array(rows, np.float64)
  return table[:, 0], table[:, 1]
