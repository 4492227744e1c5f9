"""What the cross-silo data sets share: from one table per silo to a federation.

A silo's rows are split, thinned out if asked for, and scaled, in this order, as
the cross-silo paper's program does: the split is scikit-learn's with the same
seed in each silo, a lower density leaves out training rows only, and
standardisation sees no test row.
"""

import dataclasses
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from datasets import federated, files, partition, scaling
from runtime import random_streams

# Numbers of the silos, their features [n_k, d] and their labels [n_k].
Tables = tuple[Sequence[int], list[np.ndarray], list[np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryTables:
  """A data set that is a file of one table for each silo, labels -1 and +1.

  Calling it loads it.

  Attributes:
    name: the data set's name.
    file: where its tables are.
    read: from the file's path to its tables.
    silo: what a silo is; the silos are called `silo_1`, ...
    notes: further sentences on what was done to the data.
    citation: where the data come from.
  """

  name: str
  file: files.DataFile
  read: Callable[[os.PathLike], Tables]
  silo: str
  notes: tuple[str, ...] = ()
  citation: str

  def __call__(
    self,
    *,
    seed: int,
    data_dir: str | os.PathLike | None,
    preprocessing: str,
    test_fraction: float,
    density: float,
  ) -> federated.FederatedDataset:
    """The federation.

    Args:
      seed: decides the split and the rows kept by a lower density.
      data_dir: folder with the file, or None.
      preprocessing: `silo` standardises by each silo's training rows, `none` not.
      test_fraction: share of each silo's rows kept for test; the cross-silo paper's Vehicle
        has 0.25.
      density: share of each silo's training rows that is kept.
    """
    file = files.get(self.file, data_dir)
    numbers, xs, ys = self.read(file.path)
    return build(
      name=self.name,
      task_kind='binary',
      xs=xs,
      ys=ys,
      client_ids=[f'{self.silo}_{number}' for number in numbers],
      seed=seed,
      test_fraction=test_fraction,
      preprocessing=preprocessing,
      density=density,
      notes=self.notes,
      checksums={self.file.name: file.sha256},
      citation=self.citation,
    )


def build(
  *,
  name: str,
  task_kind: federated.TaskKind,
  num_outputs: int = 1,
  label_deviation: float = 1.0,
  xs: Sequence[np.ndarray],
  ys: Sequence[np.ndarray],
  client_ids: Sequence[str],
  seed: int,
  test_fraction: float,
  preprocessing: str,
  density: float = 1.0,
  fixed: Callable[[np.ndarray], np.ndarray] | None = None,
  notes: Sequence[str] = (),
  checksums: Mapping[str, str],
  extras: Mapping[str, np.ndarray] | None = None,
  citation: str,
) -> federated.FederatedDataset:
  """A federation of tables.

  Args:
    name: the data set's name.
    task_kind: what is predicted.
    num_outputs: outputs of the task.
    label_deviation: see `federated.Task`.
    xs: features of each silo, [n_k, d], uint8 or float32; also float64 where they are scaled.
    ys: labels of each silo, in the dtype of the task.
    client_ids: a name for each silo.
    seed: decides the split and which rows a lower density keeps.
    test_fraction: the share of each silo's rows kept for test.
    preprocessing: `silo`, `fixed` or `none`.
    density: the share of each silo's training rows that is kept.
    fixed: with `fixed`, maps features to scaled features by public constants.
    notes: further sentences on what was done to the data.
    checksums: SHA-256 by file name.
    extras: as in `FederatedDataset`.
    citation: where the data come from.
  """
  train_x, train_y, test_x, test_y = [], [], [], []
  for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
    try:
      train, test = partition.train_test_rows(len(x), test_fraction=test_fraction, seed=seed)
    except ValueError as error:
      raise ValueError(f'Data set {name}, silo {client_ids[k]!r}: {error}') from error
    generator = random_streams.host_generator(seed, random_streams.Stream.SPLIT, k)
    train = partition.keep_density(train, density=density, generator=generator)
    train_x.append(x[train])
    train_y.append(y[train])
    test_x.append(x[test])
    test_y.append(y[test])
  sentence = scaling.UNCHANGED
  if preprocessing == 'silo':
    train_x, test_x = scaling.standardise_silos(train_x, test_x)
    sentence = scaling.STANDARDISED_PER_SILO
  elif preprocessing == 'fixed':
    if fixed is None:
      raise ValueError(f'Data set {name} has no public bounds; preprocessing may be silo or none.')
    train_x, test_x = [fixed(x) for x in train_x], [fixed(x) for x in test_x]
    sentence = scaling.FIXED
  return federated.FederatedDataset(
    name=name,
    task=federated.Task(
      kind=task_kind,
      num_outputs=num_outputs,
      example_shape=train_x[0].shape[1:],
      label_deviation=label_deviation,
    ),
    train=federated.ClientExamples.from_lists(train_x, train_y),
    test=federated.ClientExamples.from_lists(test_x, test_y),
    client_ids=tuple(client_ids),
    preprocessing=(sentence, *notes),
    checksums=checksums,
    extras=extras or {},
    citation=citation,
  )


def mat_tables(num_features: int) -> Callable[[os.PathLike], Tables]:
  """The reader of a MATLAB file whose features are float32; see `read_mat_cells`."""

  def read(path: os.PathLike) -> Tables:
    xs, ys = read_mat_cells(path, num_features=num_features)
    return range(1, len(xs) + 1), [x.astype(np.float32) for x in xs], ys

  return read


def npz_tables(path: os.PathLike) -> Tables:
  """Reads x [M, d], y [M] (positive or not) and client [M] (from 0) of an npz file."""
  x, y, client = read_npz(path, owner='client')
  x, y = x.astype(np.float32), np.where(y > 0, 1, -1).astype(np.float32)
  clients, rows = partition.rows_by_client(client)
  return [int(client) + 1 for client in clients], [x[r] for r in rows], [y[r] for r in rows]


def read_npz(path: str | os.PathLike, *, owner: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The arrays x, y and whose each row is, of an npz file.

  Args:
    path: the file.
    owner: name of the array which says whose a row is.

  Returns:
    (x [M, ...], y [M], owner [M]), as they are stored.

  Raises:
    ValueError: an array is missing, or they are of different lengths.
  """
  try:
    with np.load(path, allow_pickle=False) as arrays:
      x, y, owners = arrays['x'], arrays['y'], arrays[owner]
  except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise ValueError(f'{path} does not have the arrays x, y and {owner}: {error}.') from error
  if not x.ndim:
    raise ValueError(f'{path}: x is a single number; it must have a row for each example.')
  if y.shape != (len(x),) or owners.shape != (len(x),):
    raise ValueError(
      f'{path}: y and {owner} must have one entry for each of the {len(x)} rows of x.'
    )
  return x, y, owners


def read_mat_cells(
  path: str | os.PathLike, *, num_features: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """The cells X and Y of a MATLAB file: one table and one column for each silo.

  Args:
    path: a file with the cell arrays X, of [n_k, num_features] each, and Y, of
      [n_k, 1] each; the cells may lie in a row or in a column.
    num_features: what each table must have.

  Returns:
    Features as they are stored and labels as float32 vectors.

  Raises:
    ValueError: the file is something else.
  """
  from scipy import io  # Slow to import.

  name = os.path.basename(path)
  try:
    cells = io.loadmat(path)
    xs = [np.asarray(x) for x in cells['X'].ravel()]
    ys = [np.asarray(y, np.float32).ravel() for y in cells['Y'].ravel()]
  except Exception as error:  # scipy raises many kinds
    raise ValueError(f'{path} is not a {name} with the cells X and Y: {error}.') from error
  if len(xs) != len(ys):
    raise ValueError(f'{path} has {len(xs)} cells in X and {len(ys)} in Y.')
  for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
    if x.shape != (len(y), num_features):
      raise ValueError(
        f'{path}: silo {k} has features of shape {x.shape}, expected {(len(y), num_features)}.'
      )
  return xs, ys
