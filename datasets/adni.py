"""ADNI: brain scans of nine kinds of scanners, regression of the SUVR value.

Slices of PET scans as 32x32 grey images; the target lies between 0.8 and 2. Nine
silos, one for each manufacturer, with 45 to 2,685 training images. Access has to
be approved, so the file is made by the user:

1. Apply at adni.loni.usc.edu and download the AV45 PET scans ('Coreg, Avg, Std Img
   and Vox Siz, Uniform Resolution') with their SUVR values.
2. Take axial slices of each scan (96 in the paper, whose 11,040 images would then be
   115 scans), scaled to 32x32 grey values 0..255.
3. Save `adni.npz` with the arrays
   `x` [M, 32, 32] uint8, `y` [M] float32 (the SUVR value), and
   `silo` [M] (the manufacturer, as text or number):
   `numpy.savez_compressed('adni.npz', x=x, y=y, silo=silo)`.

The split is of images, as in the paper: slices of one scan may be on both sides of it.
"""

import os

import numpy as np

from datasets import federated, files, partition, silos, sources

FILE = sources.ADNI
_DEVIATION = 1.2 * 12**-0.5  # as if all values from 0.8 to 2 were equally likely
_CITATION = "Alzheimer's Disease Neuroimaging Initiative (ADNI), adni.loni.usc.edu."


def load(
  *, seed: int, data_dir: str | os.PathLike | None, test_fraction: float
) -> federated.FederatedDataset:
  """One silo for each kind of scanner.

  Args:
    seed: decides the split inside each silo.
    data_dir: folder with `adni.npz`, or None.
    test_fraction: share of each silo's images kept for test; the paper has 0.25.
  """
  file = files.get(FILE, data_dir)
  x, y, silo = _read(file.path)
  ids, rows_of = partition.rows_by_client(silo)
  # The paper's program gives each silo a seed of its own.
  splits = [
    partition.train_test_rows(len(rows), test_fraction=test_fraction, seed=seed + k)
    for k, rows in enumerate(rows_of)
  ]
  train, test = (
    federated.ClientExamples.from_rows(
      x, y, [rows[split[part]] for rows, split in zip(rows_of, splits, strict=True)]
    )
    for part in (0, 1)
  )
  return federated.FederatedDataset(
    name='adni',
    task=federated.Task(
      kind='regression', num_outputs=1, example_shape=(32, 32, 1), label_deviation=_DEVIATION
    ),
    train=train,
    test=test,
    client_ids=tuple(f'scanner_{id_}' for id_ in ids),
    x_scale=1 / 255,
    preprocessing=(
      'Pixels are divided by 255, a public constant, which costs no privacy.',
      'An example is one slice: a patient of whom there are several is not protected as a whole.',
    ),
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )


def _read(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  x, y, silo = silos.read_npz(path, owner='silo')
  if x.dtype != np.uint8 or x.shape[1:] != (32, 32):
    raise ValueError(f'{path}: x is {x.dtype} of {x.shape}, expected uint8 of [M, 32, 32].')
  return x[..., None], y.astype(np.float32), silo
