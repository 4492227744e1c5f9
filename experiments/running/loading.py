"""The data of a run: loaded here, and by cohort workers their own clients' by themselves.

A worker loads what the driver has loaded, by the same settings, keeps its clients' training data,
and compares them with what the driver has found: it trains on these or not at all.
"""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import datasets
import datasets.registry
from experiments.config.experiment import ExperimentConfig
from experiments.running import validation
from experiments.running.evaluation import client_data
from runtime.hosts import rows as rows_lib

# What decides the data, and nothing else: a worker need not know the method.
_SETTINGS = (
  'seed', 'dataset', 'dataset_option', 'silo_column', 'target_column', 'data_dir', 'test_fraction',
  'min_examples', 'validation_fraction',
)  # fmt: skip
_LOOKED_AT = 64  # clients


def load_dataset(
  config: ExperimentConfig, dataset: datasets.FederatedDataset | None = None
) -> datasets.FederatedDataset:
  """Loads the configuration's data set, or takes the one given; holds out what is asked for.

  Clients with fewer than `config.min_examples` training examples are left out first.

  Raises:
    ValueError, FileNotFoundError: see `datasets.load_dataset`.
    TypeError: it is no configuration.
  """
  if not isinstance(config, ExperimentConfig):
    what = type(config).__name__
    raise TypeError(f'the configuration is a {what}; give an ExperimentConfig.')
  least = config.min_examples
  if dataset is None:
    dataset = datasets.load_dataset(
      config.dataset, seed=config.seed, data_dir=config.data_dir or None, **config.dataset_options
    )
    dataset = dataclasses.replace(
      dataset, partition=_cut_by_settings(config, dataset), loaded_by=_settings_of(config)
    )
    least = least or datasets.registry.find(config.dataset).min_examples
  elif not isinstance(dataset, datasets.FederatedDataset):
    raise ValueError(
      f'the data set is a {type(dataset).__name__}; give a FederatedDataset, for example that of '
      'datasets.from_dataframe.'
    )
  if least is not None:
    dataset = dataset.with_at_least(least)
  if config.validation_fraction and dataset.validation is None:
    dataset = validation.hold_out(dataset, config.validation_fraction, seed=config.seed)
  return dataset


def is_of_settings(config: ExperimentConfig, dataset: datasets.FederatedDataset) -> bool:
  """Whether the configuration says what the data are, and not a program that gives them."""
  return dataset.loaded_by == _settings_of(config)


@functools.lru_cache(maxsize=4)
def cut_of(dataset: datasets.FederatedDataset) -> str:
  """What tells how the data are cut into clients: of unknown origin, by what each one holds."""
  return dataset.partition or _digest(dataset, 0, dataset.num_clients)


@functools.lru_cache(maxsize=4)
def digest_of(dataset: datasets.FederatedDataset) -> str:
  """SHA-256 of every client's training and validation data.

  Of clients that are loaded by cohort, or have fresh data in every round, it takes some, and the
  first round.
  """
  digest = hashlib.sha256(_digest(dataset, 0, dataset.num_clients).encode())
  few = np.unique(np.linspace(0, dataset.num_clients - 1, _LOOKED_AT).astype(int))
  for split in (dataset.train, dataset.validation):
    if split is not None:
      examples = split if isinstance(split, datasets.ClientExamples) else split.load(few)
      _add(digest, examples.num_examples, examples.x, examples.y)
  return digest.hexdigest()


def _settings_of(config: ExperimentConfig) -> str:
  return json.dumps([getattr(config, name) for name in _SETTINGS if name != 'data_dir'])


def _cut_by_settings(config: ExperimentConfig, dataset: datasets.FederatedDataset) -> str:
  """What decides which client holds what: on some data the seed does, in a table a column."""
  options = config.dataset_options
  if datasets.registry.is_table(config.dataset):
    who = [options.get(name) for name in ('silo_column', 'client_column')]
    return json.dumps([dataset.name, who])
  return json.dumps([dataset.name, options, config.seed], sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnPart:
  """Loads some clients' training data in another process, which it is sent to.

  Attributes:
    settings: of the configuration, those that decide the data.
    digests: by (first, last) client of a part, what tells its data from others.
  """

  settings: Mapping[str, Any]
  digests: Mapping[tuple[int, int], str]

  def __call__(self, first: int, last: int) -> Any:
    """The clients from `first` to `last`: arrays, or a function from rows to arrays.

    Raises:
      ValueError: they are not what the driver has found.
      FileNotFoundError: a file is not on this machine.
    """
    dataset = load_dataset(ExperimentConfig(**self.settings))
    if _digest(dataset, first, last) != self.digests[first, last]:
      raise ValueError(f'--dataset={dataset.name} is not what it is where the command was given')
    if isinstance(dataset.train, datasets.ClientSource):
      return functools.partial(_of_rows, dataset.train, first)
    ids = np.arange(first, last)
    return client_data(dataset.train.load(ids), ids)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LoadedAgain(datasets.ClientSource):
  """Training examples that fit into memory and are in it only while somebody looks at them.

  Attributes:
    somebody: client 0, whose form is asked for now and then.
    settings: by which the data are loaded anew.
  """

  read: Callable[[int], tuple[np.ndarray, np.ndarray]] = dataclasses.field(init=False)
  somebody: datasets.ClientExamples
  settings: Mapping[str, Any]

  def __post_init__(self):
    object.__setattr__(self, 'read', self._one)
    super().__post_init__()

  def load(self, rows: np.ndarray) -> datasets.ClientExamples:
    if not np.any(rows):
      return self.somebody.load(rows)
    found = load_dataset(ExperimentConfig(**self.settings)).train
    assert isinstance(found, datasets.ClientExamples)  # as it was the first time
    everyone = len(rows) == self.num_clients and np.array_equal(rows, np.arange(len(rows)))
    return found if everyone else found.load(rows)

  def _one(self, client: int) -> tuple[np.ndarray, np.ndarray]:
    return self.load(np.array([client])).pooled()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainParts:
  """Training data that the workers of a run load by themselves.

  Attributes:
    load: the loader of a worker's part.
    form: some client's data [1, ...].
    num_examples: [K].
    by_cohort: whether they are loaded round by round.
  """

  load: OwnPart
  form: collections.OrderedDict
  num_examples: np.ndarray
  by_cohort: bool


def for_workers(
  config: ExperimentConfig, dataset: datasets.FederatedDataset
) -> tuple[datasets.FederatedDataset, TrainParts | None]:
  """The data without the training examples that the workers of a run are to load.

  Those of methods that are not federated, and fresh ones in every round, are not.

  Args:
    config: of the run.
    dataset: from `load_dataset(config)`.

  Returns:
    The data, whose training examples are loaded again should somebody ask for them, and how the
    workers load theirs; the data as they are and None if these are to be sent.
  """
  size = config.cohort_workers
  if not size or not config.declaration.federated:
    return dataset, None
  train = dataset.train
  if isinstance(train, datasets.ClientStream):
    return dataset, None
  given = {name: getattr(config, name) for name in _SETTINGS}
  given = {name: value for name, value in given.items() if value is not None}
  parts = [rows_lib.own(m, dataset.num_clients, size) for m in range(size)]
  digests = {(p.start, p.stop): _digest(dataset, p.start, p.stop) for p in parts}
  somebody = train.load(np.zeros([1], np.int32))
  found = TrainParts(
    load=OwnPart(settings=given, digests=digests), form=client_data(somebody),
    num_examples=train.num_examples.copy(), by_cohort=isinstance(train, datasets.ClientSource),
  )  # fmt: skip
  if not found.by_cohort:
    source = LoadedAgain(
      num_examples=train.num_examples.copy(), max_examples=train.max_examples,
      somebody=somebody, settings=given,
    )  # fmt: skip
    dataset = dataclasses.replace(dataset, train=source)
  return dataset, found


def _of_rows(source: datasets.ClientSource, first: int, rows: np.ndarray) -> Any:
  ids = first + np.asarray(rows)
  return client_data(source.load(ids), ids)


def _digest(dataset: datasets.FederatedDataset, first: int, last: int) -> str:
  """SHA-256 of some clients' training data; of what is loaded by cohort, of the files read."""
  train, digest = dataset.train, hashlib.sha256()
  said = [
    tuple(dataset.client_ids[first:last]),
    sorted(dataset.checksums.items()),
    None if isinstance(train, datasets.ClientStream) else train.max_examples,
  ]
  digest.update(repr(said).encode())
  arrays = [train.num_examples]
  if isinstance(train, datasets.ClientExamples):
    arrays += [train.x, train.y]
  _add(digest, *(array[first:last] for array in arrays))
  return digest.hexdigest()


def _add(digest: Any, *arrays: np.ndarray) -> None:
  for array in arrays:
    own = np.ascontiguousarray(array)
    digest.update(repr((own.dtype.str, own.shape)).encode())
    digest.update(own.data.cast('B'))
