"""School: exam scores of 15,362 pupils of 139 inner London schools, 1985-1987.

28 features: the year (0-2), the percentages of the school's pupils with free
meals (3) and in the top verbal-reasoning band (4), the pupil's gender, band and
ethnic group and the school's gender and denomination as zeros and ones, and a
constant 1 (27). The label is the score 1..70, scaled to (y - 1) / 69.

The split is scikit-learn's `train_test_split(random_state=seed)` inside each
school, as in the cross-silo paper's program, which uses the seeds 100, 1100, ...
and test fractions 0.2, 0.5 and 0.8.
"""

import os

import numpy as np

from datasets import federated, files, partition, scaling

FILE = files.DataFile(
  name='school.mat',
  url='https://raw.githubusercontent.com/jiayuzhou/MALSAR/master/data/school.mat',
  sha256=('57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068',),
)
_PERCENTAGES = (3, 4)
_CONSTANT = 27
_CITATION = (
  'Goldstein (1991), Multilevel modelling of survey data; file of MALSAR (Zhou, Chen, Ye 2011).'
)


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  preprocessing: str,
  test_fraction: float,
) -> federated.FederatedDataset:
  """139 schools, regression of the scaled score.

  Args:
    seed: `random_state` of the split.
    data_dir: folder with `school.mat`, or None.
    preprocessing: `silo` standardises by each school's training rows; `fixed`
      divides the two percentages by 100 and drops the constant; `none` gives the
      numbers of the file.
    test_fraction: share of each school's rows kept for test.
  """
  file = files.get(FILE, data_dir)
  xs, ys = read_silos(file.path)
  splits = [partition.train_test_rows(len(x), test_fraction=test_fraction, seed=seed) for x in xs]
  train_x = [x[rows] for x, (rows, _) in zip(xs, splits, strict=True)]
  test_x = [x[rows] for x, (_, rows) in zip(xs, splits, strict=True)]
  labels = [((y - np.float32(1)) / np.float32(69)) for y in ys]
  sentence = scaling.UNCHANGED
  if preprocessing == 'silo':
    train_x, test_x = scaling.standardise_silos(train_x, test_x)
    sentence = scaling.STANDARDISED_PER_SILO
  elif preprocessing == 'fixed':
    scale = np.ones(train_x[0].shape[1], np.float32)
    scale[list(_PERCENTAGES)] = 1 / 100
    scale[_CONSTANT] = 0.0
    train_x, test_x = [x * scale for x in train_x], [x * scale for x in test_x]
    sentence = scaling.FIXED
  return federated.FederatedDataset(
    name='school',
    task=federated.Task(kind='regression', num_outputs=1, example_shape=train_x[0].shape[1:]),
    train=federated.ClientExamples.from_lists(
      train_x, [y[rows] for y, (rows, _) in zip(labels, splits, strict=True)]
    ),
    test=federated.ClientExamples.from_lists(
      test_x, [y[rows] for y, (_, rows) in zip(labels, splits, strict=True)]
    ),
    client_ids=tuple(f'school_{k + 1}' for k in range(len(xs))),
    preprocessing=(
      sentence,
      'Scores 1..70 are scaled to 0..1 by (score - 1) / 69, public constants without privacy cost.',
    ),
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )


def read_silos(path: str | os.PathLike) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """The cells of a school.mat: features [n, 28] uint8 and scores [n] float32."""
  from scipy import io  # Slow to import.

  try:
    cells = io.loadmat(path)
    xs = [np.asarray(x, np.uint8) for x in cells['X'].ravel()]
    ys = [np.asarray(y, np.float32).ravel() for y in cells['Y'].ravel()]
  except (KeyError, ValueError, NotImplementedError) as error:
    raise ValueError(f'{path} is not a school.mat with the cells X and Y: {error}.') from error
  if any(x.ndim != 2 or x.shape[1] != 28 or len(x) != len(y) for x, y in zip(xs, ys, strict=True)):
    raise ValueError(f'{path}: a school does not have 28 features and one score for each pupil.')
  return xs, ys
