"""Heterogeneous CIFAR-10: 30 silos with 5 of the 10 classes each.

As in the cross-silo paper, whose split is based on the program of Shamsian et al. (ICML 2021,
pFedHN): each silo has 5 random classes, dealt in turns, as there, so that silos are pairs which
have all ten between them; each class goes to 15
silos in random proportions (0.4 to 0.6 before they are made to sum to one), which
gives some 1,400 to 1,940 training images a silo, by the seed (the paper's draw 1,515
to 1,839). The 10,000 test images are divided in the same proportions. All images are
used.

`cifar10_heterogeneous` has the exact pixels; `cifar10_jpeg` is the same federation
made of a JPEG copy, whose pixels differ a little, for machines with that archive.
"""

import io
import itertools
import os
import pickle
import re
import tarfile
from typing import Any

import numpy as np

from datasets import federated, files, partition, sources
from runtime import random_streams

FILE = sources.CIFAR10
JPEG_FILE = sources.CIFAR10_JPEG
# In the order of CIFAR-10's labels.
CLASSES = (
  'airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck'
)  # fmt: skip
_TASK = federated.Task(kind='classification', num_outputs=10, example_shape=(32, 32, 3))
_LEAST_SHARE, _LARGEST_SHARE = 0.4, 0.6
_JPEG_NAME = re.compile(r'(?:\./)?(train|test)/([a-z]+)/(\d+)\.jpg')
_CITATION = 'Krizhevsky (2009), Learning multiple layers of features from tiny images.'

_PARTS = ('train_x', 'train_y', 'test_x', 'test_y')

# x [M, 32, 32, 3] uint8 and y [M] int32.
_Images = tuple[np.ndarray, np.ndarray]


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  classes_per_client: int,
) -> federated.FederatedDataset:
  """Silos of few classes, exact pixels.

  Args:
    seed: decides classes, proportions and images of each silo.
    data_dir: folder with `cifar-10-python.tar.gz`, or where to put it; or None.
    num_clients: K, 30 in the paper.
    classes_per_client: classes of each silo, 5 in the paper.
  """
  file = files.get(FILE, data_dir)
  train, test = read_batches(file.path)
  return _federate(
    'cifar10_heterogeneous',
    train,
    test,
    seed=seed,
    num_clients=num_clients,
    classes_per_client=classes_per_client,
    checksums={FILE.name: file.sha256},
  )


def load_jpeg(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  classes_per_client: int,
) -> federated.FederatedDataset:
  """The same from `cifar10_jpeg.tar.xz`. The arguments are those of `load`."""
  file = files.get(JPEG_FILE, data_dir)
  # Decoding takes a quarter of a minute: done once.
  arrays = files.cached_arrays(
    f'cifar10_jpeg-{file.sha256[:16]}',
    lambda: dict(zip(_PARTS, itertools.chain(*read_jpegs(file.path)), strict=True)),
  )
  train_x, train_y, test_x, test_y = (arrays[part] for part in _PARTS)
  return _federate(
    'cifar10_jpeg',
    (train_x, train_y),
    (test_x, test_y),
    seed=seed,
    num_clients=num_clients,
    classes_per_client=classes_per_client,
    checksums={JPEG_FILE.name: file.sha256},
  )


def _federate(
  name: str,
  train: _Images,
  test: _Images,
  *,
  seed: int,
  num_clients: int,
  classes_per_client: int,
  checksums: dict[str, str],
) -> federated.FederatedDataset:
  generator = random_streams.host_generator(seed, random_streams.Stream.SPLIT)
  assignment = partition.assign_labels(
    np.bincount(train[1], minlength=len(CLASSES)),
    num_clients=num_clients,
    labels_per_client=classes_per_client,
    generator=generator,
  )
  shares = generator.uniform(_LEAST_SHARE, _LARGEST_SHARE, assignment.shape)
  splits = []
  for x, y in (train, test):
    rows = partition.deal_by_share(y, assignment, shares, generator=generator)
    splits.append(federated.ClientExamples.from_rows(x, y, rows))
  return federated.FederatedDataset(
    name=name,
    task=_TASK,
    train=splits[0],
    test=splits[1],
    client_ids=tuple(f'silo_{k + 1}' for k in range(num_clients)),
    x_scale=2 / 255,
    x_offset=-1.0,
    extras={'classes': np.sort(assignment, axis=1)},
    preprocessing=('Pixels are scaled to -1..1 by public constants, which costs no privacy.',),
    checksums=checksums,
    citation=_CITATION,
  )


def read_batches(path: str | os.PathLike) -> tuple[_Images, _Images]:
  """Training and test images of CIFAR-10's own archive of Python batches.

  Raises:
    ValueError: it is another archive.
  """
  parts: dict[str, _Images] = {}
  try:
    # Read inside the archive; nothing is unpacked to disk.
    with tarfile.open(path) as archive:
      for member in archive:
        name = os.path.basename(member.name)
        stream = archive.extractfile(member)
        if stream is not None and (name.startswith('data_batch_') or name == 'test_batch'):
          batch = _ArraysOnly(stream, encoding='bytes').load()
          x = batch[b'data'].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
          parts[name] = x, np.asarray(batch[b'labels'], np.int32)
  except (
    tarfile.TarError,
    EOFError,
    OSError,
    pickle.UnpicklingError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
  ) as error:
    raise ValueError(f"{path} is not CIFAR-10's archive of Python batches: {error}.") from error
  names = sorted(name for name in parts if name != 'test_batch')
  if not names or 'test_batch' not in parts:
    raise ValueError(f'{path} lacks data_batch_* or test_batch.')
  train = tuple(np.concatenate([parts[name][k] for name in names]) for k in (0, 1))
  return train, parts['test_batch']


class _ArraysOnly(pickle.Unpickler):
  """Reads pickles of plain values and NumPy arrays; nothing else that they name is looked up."""

  _KNOWN = frozenset(
    {('numpy.core.multiarray', '_reconstruct'), ('numpy', 'ndarray'), ('numpy', 'dtype')}
  )

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in self._KNOWN:
      raise pickle.UnpicklingError(f'it names {module}.{name}, which is no data')
    return super().find_class(module, name)


def read_jpegs(path: str | os.PathLike) -> tuple[_Images, _Images]:
  """Training and test images of an archive of split/class/number.jpg, in that order."""
  from PIL import Image  # Comes with matplotlib.

  found: dict[str, list[tuple[int, int, np.ndarray]]] = {'train': [], 'test': []}
  try:
    # Read inside the archive; nothing is unpacked to disk, whatever its names are.
    with tarfile.open(path) as archive:
      for member in archive:
        match = _JPEG_NAME.fullmatch(member.name)
        if not match or not member.isfile() or match[2] not in CLASSES:
          continue
        stream = archive.extractfile(member)
        assert stream is not None  # It is a file.
        with Image.open(io.BytesIO(stream.read())) as image:
          pixels = np.asarray(image.convert('RGB'))
        if pixels.shape != _TASK.example_shape:
          raise ValueError(f'{member.name} is {pixels.shape}, not {_TASK.example_shape}')
        found[match[1]].append((CLASSES.index(match[2]), int(match[3]), pixels))
  except (tarfile.TarError, EOFError, OSError, ValueError) as error:
    raise ValueError(f'{path} is not an archive of CIFAR-10 as JPEG: {error}.') from error
  if not found['train'] or not found['test']:
    raise ValueError(f'{path} holds no images under train/CLASS/ or test/CLASS/.')
  train, test = (
    sorted(images, key=lambda image: image[:2]) for images in (found['train'], found['test'])
  )
  return _stack(train), _stack(test)


def _stack(images: list[tuple[int, int, np.ndarray]]) -> _Images:
  labels, _, pixels = zip(*images, strict=True)
  return np.stack(pixels), np.array(labels, np.int32)
