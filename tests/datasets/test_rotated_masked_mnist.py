import numpy as np
import pytest

import datasets
from datasets import mnist


def _load(folder, **options):
  return datasets.load_dataset(
    'rotated_masked_mnist', seed=2, data_dir=folder, **{'num_clients': 8, **options}
  )


def test_every_image_once_and_rotated_by_cluster(mnist_dir):
  dataset = _load(mnist_dir, mask_ratio=0)
  data = mnist.read(mnist_dir)
  original = {image.tobytes() for image in data.train_x}
  assert dataset.train.x.shape == (8, 75, 28, 28, 1)
  for k in range(8):
    turns = next(quarter for quarter in range(4) if dataset.groups[f'rotated_{90 * quarter}'][k])
    back = np.rot90(dataset.train.x[k], -turns, axes=(1, 2))
    found = {np.ascontiguousarray(image).tobytes() for image in back}
    assert found <= original and len(found) == 75
    original -= found
  assert not original
  assert sum(mask.sum() for mask in dataset.groups.values()) == 8
  np.testing.assert_array_equal(dataset.true_clusters, [0, 0, 1, 1, 2, 2, 3, 3])
  assert not dataset.extras['masks'].any()


def test_masks_are_white_patches_of_the_silo(mnist_dir):
  plain, masked = _load(mnist_dir, mask_ratio=0), _load(mnist_dir, mask_ratio=0.3)
  masks = masked.extras['masks']
  assert masks.mean() == pytest.approx(0.3, abs=0.05)
  patches = masks.reshape(8, 14, 2, 14, 2)
  np.testing.assert_array_equal(patches, patches[:, :, :1, :, :1] & np.ones((2, 1, 2), bool))
  for split, before in ((masked.train, plain.train), (masked.test, plain.test)):
    white = np.broadcast_to(masks[:, None, :, :, None], split.x.shape)
    assert np.all(split.x[white] == 255)
    # These images have black and white pixels already, so the rest is untouched.
    np.testing.assert_array_equal(split.x[~white], before.x[~white])
  assert len({mask.tobytes() for mask in masks}) == 8


def test_min_max_normalised(mnist_dir):
  arrays = dict(np.load(mnist_dir / 'mnist.npz'))
  arrays['x_train'] = arrays['x_train'] // 4 + 10
  np.savez(mnist_dir / 'mnist.npz', **arrays)
  dataset = _load(mnist_dir, mask_ratio=0.1)
  assert np.all(dataset.train.x.min(axis=(2, 3, 4)) == 0)
  assert np.all(dataset.train.x.max(axis=(2, 3, 4)) == 255)


@pytest.mark.parametrize(
  ('name', 'value'),
  [('num_clients', 6), ('num_clients', 7 * 4), ('mask_ratio', 1.0), ('patch_size', 0)],
)
def test_impossible_options(mnist_dir, name, value):
  with pytest.raises(ValueError, match=name):
    _load(mnist_dir, **{name: value})


def test_odd_patches_are_cut_off_at_the_edge(mnist_dir):
  masks = _load(mnist_dir, mask_ratio=0.5, patch_size=3).extras['masks']
  assert masks.shape == (8, 28, 28)
