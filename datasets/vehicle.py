"""Vehicle: 23 road sensors that tell two kinds of vehicles apart (SensIT).

100 acoustic and seismic features; labels -1 and +1. `vehicle` is the full set
(872 to 1,933 training rows a sensor) from the cross-silo paper's `vehicle.mat`;
`vehicle_small` is a part of it (7 to 534 rows a sensor, 1,860 in all) for
machines without that file.
"""

import os

import numpy as np

from datasets import federated, files, partition, silos

AUTHORS_ARCHIVE = (
  "It is in the data archive which the README of the cross-silo paper's program links to:"
  ' github.com/kenziyuliu/private-cross-silo-fl.'
)
FILE = files.DataFile(name='vehicle.mat', how=AUTHORS_ARCHIVE)
SMALL_FILE = files.DataFile(
  name='vehicle_ditto_train_23.npz',
  sha256=('1785164583d5f7c969a2310796b2c119cc0962433fca7e1e4df8b267cbca20cb',),
  how='It is a sample without a public address; the data set vehicle is the whole.',
)
_NUM_FEATURES = 100
_CITATION = 'Duarte, Hu (2004), Vehicle classification in distributed sensor networks.'


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  preprocessing: str,
  test_fraction: float,
  density: float,
) -> federated.FederatedDataset:
  """23 sensors, all rows.

  Args:
    seed: decides the split and the rows kept by a lower density.
    data_dir: folder with `vehicle.mat` (cells X, Y), or None.
    preprocessing: `silo` standardises by each sensor's training rows, `none` not.
    test_fraction: share of each sensor's rows kept for test; the paper has 0.25.
    density: share of each sensor's training rows that is kept.
  """
  file = files.get(FILE, data_dir)
  xs, ys = silos.read_mat_cells(file.path, num_features=_NUM_FEATURES)
  return silos.build(
    name='vehicle',
    task_kind='binary',
    xs=[x.astype(np.float32) for x in xs],
    ys=ys,
    client_ids=[f'sensor_{k + 1}' for k in range(len(xs))],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    density=density,
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )


def load_small(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  preprocessing: str,
  test_fraction: float,
  density: float,
) -> federated.FederatedDataset:
  """23 sensors, 1,860 rows. The arguments are those of `load`."""
  file = files.get(SMALL_FILE, data_dir)
  with np.load(file.path) as arrays:
    x, y = arrays['x'].astype(np.float32), arrays['y'].astype(np.float32)
    ids, rows_of = partition.rows_by_client(arrays['client'])
  return silos.build(
    name='vehicle_small',
    task_kind='binary',
    xs=[x[rows] for rows in rows_of],
    ys=[y[rows] for rows in rows_of],
    client_ids=[f'sensor_{id_ + 1}' for id_ in ids],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    density=density,
    notes=(
      "The file's features come standardised per sensor, by statistics of more rows than are in"
      ' it: they are outside the guarantee.',
    ),
    checksums={SMALL_FILE.name: file.sha256},
    citation=_CITATION,
  )
