"""GLEAM: 38 wearers of Google Glass, eating or not.

27,800 rows of 180 features of head movement, labels -1 and +1, from the
cross-silo paper's `gleam.mat`; 699 to 776 training rows a wearer.
"""

import os

import numpy as np

from datasets import federated, files, silos, vehicle

FILE = files.DataFile(
  name='gleam.mat',
  how=vehicle.AUTHORS_ARCHIVE + ' The licence is at healthailab.org/data.html.',
)
_NUM_FEATURES = 180
_CITATION = 'Rahman et al. (2015), Unintrusive eating recognition using Google Glass.'


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  preprocessing: str,
  test_fraction: float,
  density: float,
) -> federated.FederatedDataset:
  """38 wearers.

  Args:
    seed: decides the split and the rows kept by a lower density.
    data_dir: folder with `gleam.mat` (cells X, Y), or None.
    preprocessing: `silo` standardises by each wearer's training rows, `none` not.
    test_fraction: share of each wearer's rows kept for test; the paper has 0.25.
    density: share of each wearer's training rows that is kept.
  """
  file = files.get(FILE, data_dir)
  xs, ys = silos.read_mat_cells(file.path, num_features=_NUM_FEATURES)
  return silos.build(
    name='gleam',
    task_kind='binary',
    xs=[x.astype(np.float32) for x in xs],
    ys=ys,
    client_ids=[f'wearer_{k + 1}' for k in range(len(xs))],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    density=density,
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )
