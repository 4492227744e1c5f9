"""Federated data as plain arrays: the one form that every data set has.

A split holds the examples of all clients in arrays with a leading client axis,
padded with zeros to the largest client. A batch is then a gather with a mask,
every client has the same shapes, and a cohort is one tensor program. Populations
too large for that give a `ClientSource`, which loads one cohort at a time, and a
`ClientStream` gives every client fresh examples in every round.

Long because all forms of a split are here, and the checks that they have in common.
"""

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Literal

import numpy as np

from datasets import stored_names

TaskKind = Literal['regression', 'binary', 'classification', 'multilabel', 'next_word']
TASK_KINDS = ('regression', 'binary', 'classification', 'multilabel', 'next_word')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """What is predicted from what.

  Attributes:
    kind: `regression` (float32 targets), `binary` (float32 labels -1 and +1),
      `classification` (int32 labels 0..num_outputs - 1), `multilabel`
      (float32 0 or 1 for each of num_outputs labels), or `next_word` (int32 tokens
      0..num_outputs - 1; an example is a sentence of T tokens, a label the token that follows
      at each of its places; token 0 is padding, which stands behind the sentence and counts
      nowhere).
    num_outputs: what the model puts out: 1, 1, the classes, the labels, the vocabulary's
      size with the padding.
    example_shape: the shape of one example's features; (T,) of sentences.
    label_deviation: of a regression, how far targets are from their mean, as public knowledge
      has it: it is not computed from the data.
  """

  kind: TaskKind
  num_outputs: int
  example_shape: tuple[int, ...]
  label_deviation: float = 1.0

  def __post_init__(self):
    if not 0 < self.label_deviation < np.inf:
      raise ValueError(f'label_deviation is {self.label_deviation}; it must be positive.')
    if self.kind not in TASK_KINDS:
      raise ValueError(f'kind is {self.kind!r}; allowed: {", ".join(TASK_KINDS)}.')
    if self.kind in ('regression', 'binary') and self.num_outputs != 1:
      raise ValueError(f'num_outputs is {self.num_outputs}; a {self.kind} task has 1.')
    if self.kind == 'classification' and self.num_outputs < 2:
      raise ValueError(f'num_outputs is {self.num_outputs}; a classification needs 2 classes.')
    if self.kind == 'next_word' and (self.num_outputs < 2 or len(self.example_shape) != 1):
      raise ValueError(
        f'num_outputs is {self.num_outputs} and example_shape {self.example_shape}; a next_word '
        'task has a vocabulary of 2 tokens or more, and sentences of shape (T,).'
      )
    if self.num_outputs < 1:
      raise ValueError(f'num_outputs is {self.num_outputs}; it must be at least 1.')
    if not self.example_shape or min(self.example_shape) < 1:
      raise ValueError(f'example_shape is {self.example_shape}; every dimension must be positive.')

  @property
  def label_dtype(self) -> np.dtype:
    return np.dtype(np.int32 if self.kind in ('classification', 'next_word') else np.float32)

  @property
  def loss_scale(self) -> float:
    """About the loss of an example for a prediction that knows nothing, a public number."""
    if self.kind == 'regression':
      return self.label_deviation**2 / 2
    if self.kind in ('classification', 'next_word'):
      return float(np.log(self.num_outputs))
    return 1.0  # hinge; of the logistic loss it is log 2

  @property
  def feature_dtypes(self) -> tuple[type, ...]:
    """What features may be stored as."""
    return (np.int32,) if self.kind == 'next_word' else (np.uint8, np.float32)

  @property
  def label_shape(self) -> tuple[int, ...]:
    """The shape of one example's label."""
    if self.kind == 'next_word':
      return self.example_shape
    return (self.num_outputs,) if self.kind == 'multilabel' else ()

  def check_labels(self, y: np.ndarray, where: str) -> None:
    """Raises a ValueError unless labels [M, ...] are possible for the task."""
    if y.dtype != self.label_dtype:
      raise ValueError(f'{where}: labels are {y.dtype}; a {self.kind} task has {self.label_dtype}.')
    if y.shape[1:] != self.label_shape:
      raise ValueError(f'{where}: a label has shape {y.shape[1:]}, expected {self.label_shape}.')
    if self.kind in ('classification', 'next_word'):
      allowed, bad = f'0..{self.num_outputs - 1}', (y < 0) | (y >= self.num_outputs)
    elif self.kind == 'binary':
      allowed, bad = '-1 or +1', np.abs(y) != 1
    elif self.kind == 'multilabel':
      allowed, bad = '0 or 1', (y != 0) & (y != 1)
    else:
      allowed, bad = 'finite', ~np.isfinite(y)
    if np.any(bad):
      raise ValueError(f'{where}: label {y[bad][0]} is out of range; allowed: {allowed}.')


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientExamples:
  """The examples of K clients, padded with zeros to N rows. Read only.

  Attributes:
    x: features, [K, N, ...], uint8 or float32; int32 tokens of sentences, [K, N, T].
    y: labels or targets, [K, N], [K, N, L] or (of sentences) [K, N, T], int32 or float32.
    num_examples: [K] int32; a client's rows from there on are padding.
  """

  x: np.ndarray
  y: np.ndarray
  num_examples: np.ndarray

  def __post_init__(self):
    x, y, count = self.x, self.y, self.num_examples
    if x.ndim < 3:
      raise ValueError(f'x has shape {x.shape}; it must be [clients, examples, features, ...].')
    if x.dtype not in (np.uint8, np.int32, np.float32):
      raise ValueError(f'x is {x.dtype}; it must be uint8, float32, or (tokens) int32.')
    if y.dtype not in (np.int32, np.float32):
      raise ValueError(f'y is {y.dtype}; it must be int32 or float32.')
    if y.shape[:2] != x.shape[:2]:
      raise ValueError(f'y has shape {y.shape}; its first two axes must be {x.shape[:2]} as in x.')
    if count.shape != x.shape[:1] or count.dtype != np.int32:
      raise ValueError(
        f'num_examples is {count.dtype} of shape {count.shape}; it must be int32 of {x.shape[:1]}.'
      )
    if np.any(count < 0) or np.any(count > x.shape[1]):
      raise ValueError(f'num_examples reaches {count.min()}..{count.max()}; 0..{x.shape[1]} fit.')
    for name in ('x', 'y', 'num_examples'):
      # A view, so that the caller's own array stays as writeable as it was.
      view = getattr(self, name).view()
      view.flags.writeable = False
      object.__setattr__(self, name, view)

  @classmethod
  def from_lists(
    cls, xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], *, max_examples: int | None = None
  ) -> 'ClientExamples':
    """Pads one array of features and one of labels per client, [n_k, ...] each."""
    if not xs or len(xs) != len(ys):
      raise ValueError(f'{len(xs)} clients have features and {len(ys)} have labels.')
    count = np.array([len(x) for x in xs], np.int32)
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
      if len(x) != len(y):
        raise ValueError(f'Client {k} has {len(x)} rows of features and {len(y)} labels.')
    size = max(1, int(count.max())) if max_examples is None else max_examples
    padded_x = np.zeros((len(xs), size, *xs[0].shape[1:]), xs[0].dtype)
    padded_y = np.zeros((len(ys), size, *ys[0].shape[1:]), ys[0].dtype)
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
      padded_x[k, : len(x)] = x
      padded_y[k, : len(y)] = y
    return cls(x=padded_x, y=padded_y, num_examples=count)

  @classmethod
  def from_rows(
    cls, x: np.ndarray, y: np.ndarray, rows: np.ndarray | Sequence[np.ndarray]
  ) -> 'ClientExamples':
    """Examples of one table by row numbers: [K, n] of equal clients, or one array each."""
    if isinstance(rows, np.ndarray):
      return cls(x=x[rows], y=y[rows], num_examples=np.full(len(rows), rows.shape[1], np.int32))
    return cls.from_lists([x[own] for own in rows], [y[own] for own in rows])

  @property
  def num_clients(self) -> int:
    return self.x.shape[0]

  @property
  def max_examples(self) -> int:
    return self.x.shape[1]

  @property
  def mask(self) -> np.ndarray:
    """[K, N] bool: which rows are examples and not padding."""
    return np.arange(self.max_examples) < self.num_examples[:, None]

  def load(self, rows: np.ndarray) -> 'ClientExamples':
    """The examples of some clients, in the order of `rows`."""
    return ClientExamples(x=self.x[rows], y=self.y[rows], num_examples=self.num_examples[rows])

  def select(self, rows: np.ndarray) -> 'ClientExamples':
    """A population of some of the clients only."""
    size = max(1, int(self.num_examples[rows].max(initial=0)))
    return ClientExamples(
      x=self.x[rows, :size], y=self.y[rows, :size], num_examples=self.num_examples[rows]
    )

  def pooled(self) -> tuple[np.ndarray, np.ndarray]:
    """All clients' examples in one: x [M, ...], y [M, ...], without padding."""
    mask = self.mask
    return self.x[mask], self.y[mask]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientSource:
  """The examples of a population too large for one array: loaded by cohort.

  Attributes:
    num_examples: [K] int32, known without loading.
    max_examples: N, the padded size of every cohort, so that shapes never change.
    read: gives the features and labels of one client, [n_k, ...] each; it must be
      safe to call from another thread.
  """

  num_examples: np.ndarray
  max_examples: int
  read: Callable[[int], tuple[np.ndarray, np.ndarray]]

  def __post_init__(self):
    if self.num_examples.ndim != 1 or self.num_examples.dtype != np.int32:
      raise ValueError('num_examples must be an int32 vector, one number a client.')
    if len(self.num_examples) and self.num_examples.max() > self.max_examples:
      raise ValueError(
        f'max_examples is {self.max_examples}; a client has {self.num_examples.max()} examples.'
      )

  @property
  def num_clients(self) -> int:
    return len(self.num_examples)

  def load(self, rows: np.ndarray) -> ClientExamples:
    """The examples of some clients, [len(rows), max_examples, ...]."""
    if not len(rows):
      # Shapes come from a client, even for a cohort of nobody.
      return self.load(np.array([0])).load(np.array([], np.int64))
    xs, ys = zip(*(self.read(int(row)) for row in rows), strict=True)
    for row, y in zip(rows, ys, strict=True):
      if len(y) != self.num_examples[row]:
        raise ValueError(
          f'Client {row} came with {len(y)} examples; {self.num_examples[row]} were announced.'
        )
    return ClientExamples.from_lists(xs, ys, max_examples=self.max_examples)

  def select(self, rows: np.ndarray) -> 'ClientSource':
    """A population of some of the clients only."""
    chosen = np.asarray(rows)
    return ClientSource(
      num_examples=self.num_examples[chosen],
      max_examples=self.max_examples,
      read=lambda k: self.read(int(chosen[k])),
    )

  def prefetch(self, cohorts: Iterable[np.ndarray], *, depth: int = 1) -> Iterator[ClientExamples]:
    """Yields `load` of each cohort; a thread loads up to `depth` cohorts ahead."""
    yield from _ahead(self.load, cohorts, depth)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientStream:
  """Fresh examples of K clients in every round: one pass over data that never end.

  Attributes:
    num_examples: [K] int32, each client's examples in a round.
    draw: round (from 0) -> the examples of all clients; it must depend on nothing else,
      and be safe to call from another thread.
  """

  num_examples: np.ndarray
  draw: Callable[[int], ClientExamples]

  @property
  def num_clients(self) -> int:
    return len(self.num_examples)

  def load(self, rows: np.ndarray) -> ClientExamples:
    """Some clients' examples of the first round, which stand for those of any."""
    return self._first.load(rows)

  @functools.cached_property
  def _first(self) -> ClientExamples:
    """Drawn once: every run of a sweep asks for the shapes of its examples."""
    return self.draw(0)

  def select(self, rows: np.ndarray) -> 'ClientStream':
    """A population of some of the clients only."""
    return ClientStream(
      num_examples=self.num_examples[rows], draw=lambda round_: self.draw(round_).load(rows)
    )

  def prefetch(self, rounds: Iterable[int], *, depth: int = 1) -> Iterator[ClientExamples]:
    """Yields `draw` of each round; a thread draws up to `depth` rounds ahead."""
    yield from _ahead(self.draw, rounds, depth)


def _ahead(load: Callable, arguments: Iterable, depth: int) -> Iterator[ClientExamples]:
  with futures.ThreadPoolExecutor(max_workers=1) as executor:
    waiting: collections.deque[futures.Future] = collections.deque()
    for argument in arguments:
      waiting.append(executor.submit(load, argument))
      if len(waiting) > depth:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FederatedDataset:
  """A named population of K clients, each with training and test examples.

  Attributes:
    name: the registry's name.
    task: what is predicted.
    train: every client's training examples.
    test: the same clients' own test examples; no row of them is in `train`.
    validation: the same clients' examples for choosing settings, which are in neither
      of the others; None if there are none. A client may have no row of them.
    server_test: the server's test set, x [M, ...] and y [M], or None.
    excess_risk: rows of each client on which the mean squared error is exactly the excess
      risk under the client's distribution, where that is known; or None.
    client_ids: one name per client; of many a `StoredNames`, which are not in memory.
    min_examples: training examples that each client has at least, by `with_at_least`.
    left_out: the names of those whom `with_at_least` has left out.
    groups: bool [K] masks by name, such as `opt_out_candidates`; may be empty.
    clusters: the names of the groups that are the clients' true clusters, each client in one of
      them, where these are known: how many clients a method finds them for is reported.
    x_scale: the model sees float32(x) * x_scale + x_offset, so that images stay
      bytes until they are used.
    x_offset: see x_scale.
    extras: further arrays by name, as the data set's own file documents them.
    preprocessing: sentences on what was done to the data, for the privacy
      statement: they say what is outside the guarantee.
    checksums: SHA-256 of the files (or the table) which were read, by name; of a file that is
      too large to be read twice its size. Data sets that share one are of the same people.
    partition: what tells how the same data may be cut into other clients from this way: a
      table's from whose each row is, others by the settings that loaded them; empty if unknown.
    loaded_by: the settings by which an experiment has loaded it; empty if a program gave it.
    citation: where the data come from.
  """

  name: str
  task: Task
  train: ClientExamples | ClientSource | ClientStream
  test: ClientExamples | ClientSource
  validation: ClientExamples | ClientSource | None = None
  server_test: tuple[np.ndarray, np.ndarray] | None = None
  excess_risk: ClientExamples | None = None
  client_ids: Sequence[str]
  min_examples: int = 1
  left_out: tuple[str, ...] = ()
  groups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  clusters: tuple[str, ...] = ()
  x_scale: float = 1.0
  x_offset: float = 0.0
  extras: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  preprocessing: tuple[str, ...] = ()
  checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)
  partition: str = ''
  loaded_by: str = ''
  citation: str

  def __post_init__(self):
    for name in ('groups', 'extras', 'checksums'):
      object.__setattr__(self, name, types.MappingProxyType(dict(getattr(self, name))))
    if not self.client_ids:
      raise ValueError(f'Data set {self.name} has no clients.')
    names = self.client_ids  # those of a file were compared when they were written
    if not isinstance(names, stored_names.StoredNames) and len(set(names)) != len(names):
      raise ValueError(f'Data set {self.name}: client_ids are not unique.')
    for split, examples in (('train', self.train), ('test', self.test)):
      self._check_split(split, examples)
    if self.excess_risk is not None:
      self._check_split('excess_risk', self.excess_risk)
    if self.server_test is not None:
      x, y = self.server_test
      if len(x) != len(y):
        raise ValueError(
          f'Data set {self.name}: server_test has {len(x)} rows of features and {len(y)} labels.'
        )
      self._check_features('server_test', x, x.shape[1:])
      self.task.check_labels(y, f'Data set {self.name}, server_test')
    for name, mask in self.groups.items():
      if mask.shape != (self.num_clients,) or mask.dtype != np.bool_:
        raise ValueError(
          f'Data set {self.name}: group {name} must be a bool vector of {self.num_clients} clients.'
        )
    self._check_clusters()

  @property
  def num_clients(self) -> int:
    return len(self.client_ids)

  @property
  def true_clusters(self) -> np.ndarray | None:
    """int [K], each client's place in `clusters`; None where they are not known."""
    if not self.clusters:
      return None
    return np.argmax([self.groups[name] for name in self.clusters], axis=0)

  def __repr__(self) -> str:
    """One line: clients, rows, features, task and ranges."""
    sizes = self.train.num_examples
    task = self.task.kind + (f' of {self.task.num_outputs}' if self.task.num_outputs > 1 else '')
    shape = 'x'.join(map(str, self.task.example_shape))
    ranges = ''
    if isinstance(self.train, ClientExamples) and self.train.x.size:
      x, y = self.train.x, self.train.y
      ranges = f', features {x.min():.4g} to {x.max():.4g}, labels {y.min():.4g} to {y.max():.4g}'
    return (
      f'<{self.name}: {self.num_clients:,} clients with {sizes.min():,} to {sizes.max():,} '
      f'training rows ({sizes.sum(dtype=np.int64):,}), {shape} features, {task}{ranges}>'
    )

  def with_at_least(self, min_examples: int) -> 'FederatedDataset':
    """Without the clients who have fewer training examples, and with a sentence on it.

    They neither train nor are reported on: nothing of them is used, or released, but that they
    are too small. A server's test set which is all clients' is that of those who stay. Who is
    left out may follow from nothing else than the number of a client's training examples, which
    the adjacency of examples takes to be public. That of clients does not, so that the sentence
    is there though nobody is left out. Leaving somebody out by what the examples say (a label
    that is rare, a model that fits badly) would itself tell something, and no epsilon covers it.
    `extras` stay those of all clients. Asked for less than before, it changes nothing, so that
    examples held out later leave nobody out.

    Raises:
      ValueError: a number below 1, or one that nobody reaches.
    """
    if min_examples != int(min_examples) or min_examples < 1:
      raise ValueError(f'--min_examples={min_examples} must be a positive whole number.')
    if min_examples <= self.min_examples:
      return self
    enough = self.train.num_examples >= min_examples
    kept, small = np.flatnonzero(enough), np.flatnonzero(~enough)
    if not len(kept):
      raise ValueError(
        f'--min_examples={min_examples} leaves nobody of --dataset={self.name}, whose largest '
        f'client has {self.train.num_examples.max()} training examples.'
      )
    return dataclasses.replace(
      self,
      train=self.train.select(kept),
      test=self.test.select(kept),
      server_test=_server_test_of(kept, self.test, self.server_test),
      validation=None if self.validation is None else self.validation.select(kept),
      excess_risk=None if self.excess_risk is None else self.excess_risk.select(kept),
      client_ids=tuple(self.client_ids[k] for k in kept),
      min_examples=min_examples,
      left_out=(*self.left_out, *(self.client_ids[k] for k in small)),
      groups={name: mask[kept] for name, mask in self.groups.items()},
      preprocessing=(
        *self.preprocessing,
        f'{len(small)} of {self.num_clients} clients are left out, who have fewer than '
        f'{min_examples} training examples: who that is follows from the numbers of examples '
        'alone. Where the adjacency does not take these to be public, as between clients, who has '
        'so many is not covered, and the number of clients is that of those who have.',
      ),
    )

  def _check_clusters(self):
    unknown = [name for name in self.clusters if name not in self.groups]
    if unknown:
      raise ValueError(
        f'Data set {self.name}: clusters has {unknown[0]!r}, which is none of its groups: '
        f'{", ".join(self.groups) or "it has none"}.'
      )
    if self.clusters:
      times = np.sum([self.groups[name] for name in self.clusters], axis=0)
      wrong = np.flatnonzero(times != 1)
      if len(wrong):
        raise ValueError(
          f'Data set {self.name}: client {self.client_ids[wrong[0]]!r} is in {times[wrong[0]]} of '
          'the clusters; every client must be in one.'
        )

  def _check_split(self, split: str, examples: ClientExamples | ClientSource | ClientStream):
    if examples.num_clients != self.num_clients:
      raise ValueError(
        f'Data set {self.name}: {split} has {examples.num_clients} clients,'
        f' client_ids has {self.num_clients}.'
      )
    empty = np.flatnonzero(examples.num_examples == 0)
    if len(empty):
      raise ValueError(
        f'Data set {self.name}: client {self.client_ids[empty[0]]!r} has no {split} examples'
        f' ({len(empty)} such clients); every client needs one at least.'
      )
    if not isinstance(examples, ClientExamples):
      examples = examples.load(np.array([0]))  # One client stands for all.
    mask = examples.mask
    self._check_features(split, examples.x, examples.x.shape[2:])
    self.task.check_labels(examples.y[mask], f'Data set {self.name}, {split}')
    if not mask.all() and (np.any(examples.x[~mask]) or np.any(examples.y[~mask])):
      raise ValueError(f'Data set {self.name}: padding of {split} is not zero.')

  def _check_features(self, split: str, x: np.ndarray, shape: tuple[int, ...]):
    where = f'Data set {self.name}, {split}'
    if x.dtype not in self.task.feature_dtypes:
      allowed = ' or '.join(dtype.__name__ for dtype in self.task.feature_dtypes)
      raise ValueError(f'{where}: x is {x.dtype}; it must be {allowed}.')
    if shape != self.task.example_shape:
      raise ValueError(
        f'{where}: an example has shape {shape}, expected {self.task.example_shape}.'
      )
    # Finite float32s have a finite sum in float64, and anything else has not: one
    # pass without a copy.
    if x.dtype == np.float32 and not np.isfinite(x.sum(dtype=np.float64)):
      raise ValueError(f'{where}: features hold NaN or infinity.')
    if x.dtype == np.int32 and x.size and not 0 <= x.min() <= x.max() < self.task.num_outputs:
      raise ValueError(
        f'{where}: tokens reach {x.min()}..{x.max()}; allowed: 0..{self.task.num_outputs - 1}.'
      )


def _server_test_of(
  kept: np.ndarray,
  test: ClientExamples | ClientSource,
  server_test: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray] | None:
  """The server's test set where some clients are left out: theirs if it was all clients'."""
  if server_test is None or not isinstance(test, ClientExamples):
    return server_test
  is_all_clients = all(map(np.array_equal, test.pooled(), server_test))
  return test.select(kept).pooled() if is_all_clients else server_test
