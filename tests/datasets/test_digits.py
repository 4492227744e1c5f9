import numpy as np
import pytest

import datasets


def test_clients_hold_one_digit():
  dataset = datasets.load_dataset('digits', seed=1)
  assert dataset.num_clients == 100
  for split in (dataset.train, dataset.test):
    assert split.x.dtype == np.uint8
    np.testing.assert_array_equal(
      split.y, np.repeat(dataset.extras['digit'][:, None], split.y.shape[1], 1)
    )
  assert len(dataset.server_test[1]) == 359
  assert dataset.train.x.max() * dataset.x_scale == 1.0


def test_no_image_is_in_two_parts():
  dataset = datasets.load_dataset('digits', seed=1, num_clients=50)
  parts = [dataset.train.pooled()[0], dataset.test.pooled()[0], dataset.server_test[0]]
  seen = [{image.tobytes() for image in part} for part in parts]
  # scikit-learn's images are all different, so bytes identify an image.
  assert sum(len(s) for s in seen) == sum(len(p) for p in parts)
  assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])


def test_seed_decides():
  first, again, other = (datasets.load_dataset('digits', seed=s) for s in (1, 1, 2))
  np.testing.assert_array_equal(first.train.x, again.train.x)
  assert not np.array_equal(first.train.x, other.train.x)


def test_too_many_clients():
  with pytest.raises(ValueError, match='num_clients is 1000'):
    datasets.load_dataset('digits', seed=0, num_clients=1000)
