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

from datasets import federated, files, silos, sources

FILE = sources.SCHOOL
_NUM_FEATURES = 28
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
  xs, scores = silos.read_mat_cells(file.path, num_features=_NUM_FEATURES)
  scale = np.ones(_NUM_FEATURES, np.float32)
  scale[list(_PERCENTAGES)] = 1 / 100
  scale[_CONSTANT] = 0.0
  return silos.build(
    name='school',
    task_kind='regression',
    label_deviation=12**-0.5,  # as if all scores were equally likely
    xs=[x.astype(np.uint8) for x in xs],
    ys=[(score - np.float32(1)) / np.float32(69) for score in scores],
    client_ids=[f'school_{k + 1}' for k in range(len(xs))],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    fixed=lambda x: x * scale,
    notes=(
      'Scores 1..70 are scaled to 0..1 by (score - 1) / 69, public constants without privacy cost.',
      "A pupil's features 3 and 4 (from 0) are percentages of all the school's pupils: what they "
      'tell of the others is outside the guarantee.',
    ),
    checksums={FILE.name: file.sha256},
    citation=_CITATION,
  )
