"""Landmine: is there a mine on the radar image? 29 mine fields.

14,820 rows of 9 features, 445 to 690 rows a field, 6.1 % mines; labels -1 (none)
and +1 (mine). Not in the papers; a real cross-silo set of its full size. Since
mines are rare, accuracy says little here: always 'none' has 94 %.
"""

import os

import numpy as np

from datasets import federated, files, partition, silos

FILE = files.DataFile(
  name='landmine_29.npz',
  sha256=('945c6fdbcd366e00de151b70eace9f9e70437894a981868781242a68d7ed9769',),
  how=(
    'It holds the arrays x [14820, 9], y (0, 1) and client of the landmine data that is published'
    ' with several papers on multi-task learning.'
  ),
)
_CITATION = (
  'Xue, Liao, Carin, Krishnapuram (2007), Multi-task learning for classification with Dirichlet'
  ' process priors.'
)


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  preprocessing: str,
  test_fraction: float,
  density: float,
) -> federated.FederatedDataset:
  """29 mine fields.

  Args:
    seed: decides the split and the rows kept by a lower density.
    data_dir: folder with `landmine_29.npz`, or None.
    preprocessing: `silo` standardises by each field's training rows, `none` not.
    test_fraction: share of each field's rows kept for test.
    density: share of each field's training rows that is kept.
  """
  file = files.get(FILE, data_dir)
  with np.load(file.path) as arrays:
    x = arrays['x'].astype(np.float32)
    y = np.where(arrays['y'] > 0, 1, -1).astype(np.float32)
    ids, rows_of = partition.rows_by_client(arrays['client'])
  return silos.build(
    name='landmine',
    task_kind='binary',
    xs=[x[rows] for rows in rows_of],
    ys=[y[rows] for rows in rows_of],
    client_ids=[f'field_{id_ + 1}' for id_ in ids],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    density=density,
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )
