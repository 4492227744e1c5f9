"""Rotated & Masked MNIST: 40 silos, 4 rotations, one mask of white patches a silo.

As in the cross-silo paper's program: the 60,000 and the 10,000 images are
shuffled once and cut into 4 equal chunks, rotated by 0, 90, 180 and 270 degrees,
and then into 40 equal silos (1,500 and 250 images each), so that 10 silos share a
rotation. Each silo has a mask of patches, each white with the probability
`mask_ratio`; an image becomes max(image, mask) and is min-max normalised again.
A mask_ratio of 0 leaves the rotated images as they are.
"""

import os

import numpy as np

from datasets import federated, mnist
from runtime import random_streams

_ROTATIONS = 4
_SIDE = 28
_CITATION = 'MNIST, ' + mnist.CITATION + " Rotations and masks of the cross-silo paper's C.1."


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  mask_ratio: float,
  patch_size: int,
) -> federated.FederatedDataset:
  """Silos in four clusters.

  Args:
    seed: decides the shuffles and the masks.
    data_dir: folder with `mnist.npz`, or None.
    num_clients: K, a multiple of 4; 40 in the paper.
    mask_ratio: the probability of a patch, at least 0 and below 1.
    patch_size: side of a patch in pixels; 2 in the paper.

  Returns:
    The data set; its groups `rotated_0` ... `rotated_270` are its `clusters`, and
    `extras['masks']` the silos' masks, [K, 28, 28] bool.
  """
  if num_clients < _ROTATIONS or num_clients % _ROTATIONS:
    raise ValueError(f'num_clients is {num_clients}; it must be a multiple of {_ROTATIONS}.')
  if not 0 <= mask_ratio < 1:
    raise ValueError(f'mask_ratio is {mask_ratio}; it must be at least 0 and below 1.')
  if not 1 <= patch_size <= _SIDE:
    raise ValueError(f'patch_size is {patch_size}; allowed: 1..{_SIDE}.')
  data = mnist.read(data_dir)
  generator = random_streams.host_generator(seed, random_streams.Stream.DATA)
  patches = -(-_SIDE // patch_size)
  drawn = generator.random((num_clients, patches, patches)) < mask_ratio
  masks = np.kron(drawn, np.ones((1, patch_size, patch_size), bool))[:, :_SIDE, :_SIDE]
  splits = [
    _silos(x, y, masks, random_streams.host_generator(seed, random_streams.Stream.SPLIT, part))
    for part, (x, y) in enumerate(((data.train_x, data.train_y), (data.test_x, data.test_y)))
  ]
  rotation = np.arange(num_clients) // (num_clients // _ROTATIONS)
  groups = {f'rotated_{90 * k}': rotation == k for k in range(_ROTATIONS)}
  return federated.FederatedDataset(
    name='rotated_masked_mnist',
    task=mnist.TASK,
    train=splits[0],
    test=splits[1],
    client_ids=tuple(f'silo_{k + 1}' for k in range(num_clients)),
    groups=groups,
    clusters=tuple(groups),
    x_scale=mnist.PIXEL_SCALE,
    extras={'masks': masks},
    preprocessing=(
      mnist.PIXELS,
      'Each image is min-max normalised by itself, which costs no privacy.',
    ),
    checksums=data.checksums,
    citation=_CITATION,
  )


def _silos(
  x: np.ndarray, y: np.ndarray, masks: np.ndarray, generator: np.random.Generator
) -> federated.ClientExamples:
  num_clients = len(masks)
  if len(y) % num_clients:
    raise ValueError(f'num_clients is {num_clients}; it must divide the {len(y)} images.')
  order = generator.permutation(len(y))
  images = x[order].reshape(_ROTATIONS, -1, *x.shape[1:])
  rotated = np.stack([np.rot90(chunk, k, axes=(1, 2)) for k, chunk in enumerate(images)])
  silos = rotated.reshape(num_clients, -1, *x.shape[1:])
  if masks.any():
    silos = np.maximum(silos, np.uint8(255) * masks[:, None, :, :, None])
    silos = _min_max(silos)
  return federated.ClientExamples(
    x=silos,
    y=y[order].reshape(num_clients, -1),
    num_examples=np.full(num_clients, silos.shape[1], np.int32),
  )


def _min_max(images: np.ndarray) -> np.ndarray:
  """Stretches each image [K, n, 28, 28, 1] to 0..255, to the nearest byte."""
  least = images.min(axis=(2, 3, 4))
  span = images.max(axis=(2, 3, 4)) - least
  # With white patches nearly all images have the full range and stay untouched.
  rows = np.nonzero(span < 255)
  some = images[rows].astype(np.float32) - least[rows][:, None, None, None]
  images[rows] = np.rint(some * 255 / np.maximum(span[rows], 1)[:, None, None, None])
  return images
