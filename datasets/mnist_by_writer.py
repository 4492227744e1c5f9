"""MNIST by the people who wrote it: 836 real writers.

QMNIST traced each image of MNIST to its writer in NIST's collection: 539 writers
of the training part (19 to 131 images each) and 297 others of the test part (8 to
130). Here each writer is a client and the split is inside each writer, so that
models can be personalised; the server's test set is the union of the clients'.
A stand-in for federated EMNIST that needs no large download.
"""

import gzip
import os
import zlib

import numpy as np

from datasets import federated, files, mnist, partition, sources

QMNIST_FILES = sources.QMNIST
WRITERS_FILE = sources.MNIST_WRITERS
_QMNIST_LABEL, _QMNIST_WRITER = 0, 2  # Columns of QMNIST's extended labels.
_CITATION = (
  'Yadav, Bottou (2019), Cold case: the lost MNIST digits (QMNIST), for the writers. MNIST, '
  + mnist.CITATION
)


def load(
  *, seed: int, data_dir: str | os.PathLike | None, writers: str, test_fraction: float
) -> federated.FederatedDataset:
  """One client for each writer.

  Args:
    seed: decides the split inside each writer.
    data_dir: folder with `mnist.npz` and either `mnist_writer_ids.npz` (array
      `writer`, [70000]) or QMNIST's extended label files; or None.
    writers: `train` (539 writers), `test` (297 others) or `all`.
    test_fraction: share of each writer's images kept for test.
  """
  data = mnist.read(data_dir)
  y = np.concatenate([data.train_y, data.test_y])
  x = np.concatenate([data.train_x, data.test_x])
  writer, checksums = _read_writers(data_dir, y)
  part = np.arange(len(y)) >= len(data.train_y)
  chosen = np.flatnonzero({'train': ~part, 'test': part}.get(writers, part | ~part))
  ids, rows_of = partition.rows_by_client(writer[chosen])
  splits = partition.random_splits(
    ids, [chosen[rows] for rows in rows_of], test_fraction=test_fraction, seed=seed
  )
  train, test = (federated.ClientExamples.from_rows(x, y, rows) for rows in splits)
  return federated.FederatedDataset(
    name='mnist_by_writer',
    task=mnist.TASK,
    train=train,
    test=test,
    server_test=test.pooled(),
    client_ids=tuple(f'writer_{id_}' for id_ in ids),
    x_scale=mnist.PIXEL_SCALE,
    preprocessing=(mnist.PIXELS,),
    checksums={**data.checksums, **checksums},
    citation=_CITATION,
  )


def _read_writers(
  data_dir: str | os.PathLike | None, labels: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
  """The writer of each of the 70,000 images, and the checksums of what was read."""
  if files.find(WRITERS_FILE, data_dir):
    file = files.get(WRITERS_FILE, data_dir)
    with np.load(file.path) as arrays:
      writer = arrays['writer'].astype(np.int64)
    checksums = {WRITERS_FILE.name: file.sha256}
  else:
    found = [files.get(file, data_dir) for file in QMNIST_FILES]
    extended = np.concatenate([read_idx2_int(file.path) for file in found])[: len(labels)]
    if not np.array_equal(extended[:, _QMNIST_LABEL], labels):
      raise ValueError(f'The labels of {found[0].path} are not those of mnist.npz, image by image.')
    writer = extended[:, _QMNIST_WRITER].astype(np.int64)
    checksums = {file.path.name: file.sha256 for file in found}
  if writer.shape != labels.shape:
    raise ValueError(f'{len(writer)} writer ids for {len(labels)} images: one each is needed.')
  return writer, checksums


def read_idx2_int(path: str | os.PathLike) -> np.ndarray:
  """A gzipped IDX file of a matrix of big-endian 32-bit integers."""
  try:
    with gzip.open(path) as stream:
      content = stream.read()
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f'{path} cannot be read as a gzipped file: {error}.') from error
  header = np.frombuffer(content.ljust(12, b'\0')[:12], '>i4')
  if header[0] != 0x0C02 or len(content) != 12 + 4 * header[1] * header[2]:
    raise ValueError(f'{path} is not an IDX file of 32-bit integers with two dimensions.')
  return np.frombuffer(content[12:], '>i4').reshape(header[1], header[2])
