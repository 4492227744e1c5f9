"""Federated EMNIST: handwritten characters by writer, from TensorFlow Federated.

`emnist_digits` has 3,383 writers of digits (the FeO2 paper's FMNIST, the PPSGD
paper's EMNIST), `femnist` 3,400 writers of 62 classes. Both are in the file
`emnist_all.sqlite`, which TensorFlow Federated publishes, with its own split
inside each writer. Images are 28x28 with a white background of 1.0; they are
kept as bytes. The server's test set is the union of the clients' test sets, as
in the FeO2 paper.
"""

import functools
import os

import numpy as np

from datasets import federated, files, sources, tff_sqlite
from runtime import random_streams

FILE = sources.EMNIST
CITATION = (
  'Cohen, Afshar, Tapson, van Schaik (2017), EMNIST; Caldas et al. (2018), LEAF;'
  ' TensorFlow Federated.'
)
PIXELS = 'Pixels are scaled to 0..1 by public constants, which costs no privacy.'
_IMAGE_SHAPE = (28, 28, 1)


def pixel_scale(background: str) -> tuple[float, float]:
  """x_scale and x_offset of bytes whose paper is white (255)."""
  return (1 / 255, 0.0) if background == 'white' else (-1 / 255, 1.0)


def pick_clients(ids: list[str], *, num_clients: int | None, pick: str, seed: int) -> list[str]:
  """`num_clients` of the ids, the first ones or random ones, in their order."""
  if num_clients is None:
    return ids
  if not 1 <= num_clients <= len(ids):
    raise ValueError(f'num_clients is {num_clients}; the file has 1..{len(ids)} clients.')
  if pick == 'first':
    return ids[:num_clients]
  generator = random_streams.host_generator(seed, random_streams.Stream.SPLIT)
  return [ids[k] for k in np.sort(generator.permutation(len(ids))[:num_clients])]


def _load(
  name: str,
  split_prefix: str,
  num_classes: int,
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int | None,
  pick: str,
  background: str,
  loading: str,
) -> federated.FederatedDataset:
  """Writers as clients.

  Args:
    name: the registry's name.
    split_prefix: `digits_only` or `all`, as TensorFlow Federated's splits begin.
    num_classes: 10 or 62.
    seed: picks the writers where not all are taken; the split is the file's own.
    data_dir: folder with `emnist_all.sqlite`, or where to put it; or None.
    num_clients: how many writers; None for all.
    pick: `random` by the seed, or the `first` in alphabetical order.
    background: `white` (1.0, as the file has it) or `black` (0.0).
    loading: `memory`, or `cohort` to read training images when they are needed.
  """
  file = files.get(FILE, data_dir, digest=False)
  train_split, test_split = f'{split_prefix}_train', f'{split_prefix}_test'
  counts = tff_sqlite.shared_clients(file.path, train_split, test_split)
  ids = pick_clients(list(counts), num_clients=num_clients, pick=pick, seed=seed)
  test = _read_split(file.path, test_split, ids)
  train: federated.ClientExamples | federated.ClientSource
  if loading == 'memory':
    train = _read_split(file.path, train_split, ids)
  else:
    train = federated.ClientSource(
      num_examples=np.array([counts[id_][0] for id_ in ids], np.int32),
      max_examples=max(counts[id_][0] for id_ in ids),
      read=lambda k: _parse(tff_sqlite.read_client(file.path, train_split, ids[k])),
    )
  scale, offset = pixel_scale(background)
  return federated.FederatedDataset(
    name=name,
    task=federated.Task(kind='classification', num_outputs=num_classes, example_shape=_IMAGE_SHAPE),
    train=train,
    test=test,
    server_test=test.pooled(),
    client_ids=tuple(ids),
    x_scale=scale,
    x_offset=offset,
    preprocessing=(PIXELS,),
    checksums={FILE.name: file.sha256 or f'{FILE.name}, {file.path.stat().st_size} bytes'},
    citation=CITATION,
  )


def _read_split(path: os.PathLike, split: str, ids: list[str]) -> federated.ClientExamples:
  parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {id_: [] for id_ in ids}
  for id_, examples in tff_sqlite.read_all(path, split):
    if id_ in parts:
      parts[id_].append(_parse(examples))
  xs, ys = ([np.concatenate([part[k] for part in parts[id_]]) for id_ in ids] for k in (0, 1))
  return federated.ClientExamples.from_lists(xs, ys)


def _parse(examples: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
  """Images [n, 28, 28, 1] uint8 and labels [n] int32 of serialised examples."""
  import tensorflow as tf  # Only where such a file is read.

  spec = {
    'label': tf.io.FixedLenFeature([], tf.int64),
    'pixels': tf.io.FixedLenFeature([28, 28], tf.float32),
  }
  try:
    parsed = tf.io.parse_example(examples, spec)
  except tf.errors.InvalidArgumentError as error:
    raise ValueError(f'{FILE.name} holds an example without label and pixels.') from error
  # Multiples of 1/255 were bytes once, and are again.
  x = np.rint(parsed['pixels'].numpy() * 255).astype(np.uint8)
  return x[..., None], parsed['label'].numpy().astype(np.int32)


load_digits = functools.partial(_load, 'emnist_digits', 'digits_only', 10)
load_femnist = functools.partial(_load, 'femnist', 'all', 62)
