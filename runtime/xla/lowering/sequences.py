"""Clients' data sets as padded arrays.

A data set is read once, by one traced pass in TensorFlow, and kept by identity. A data
set that is another one each time it is read (it shuffles, draws, or reads what may change)
is read at every call, as TFF's own runtime does. One that reads files is read anew once
they have changed.

A program is compiled for shapes. So lengths are padded to buckets, and a form that was
used before is used again where it fits. Elements' axes whose size TFF's type leaves open
(the last batch is smaller) are padded too, and have their true sizes beside them; where
all have the same size, there are none.

An element's components are everywhere in the order in which tf.data flattens it, dicts by
their sorted keys: graphs count on it. TFF's types have another order.

Long because reading, keeping and stacking data sets share the order of an element's components.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import trees
from runtime.xla import devices as devices_lib
from runtime.xla.lowering import datasets

_MOST_WASTE = 2.0  # A form of up to this many times the size is used again.
_EVERYTHING = 2**20  # Elements of one batch; TensorFlow reserves 24 bytes for each.
_LAST_COHORTS = 4  # Whose stacked arrays are kept.
_CACHE_PART = 8  # The cache takes at most this part of the memory that is free at first.
# Sources whose elements are the same each time they are read.
_FIXED_SOURCES = frozenset(
  [
    'RangeDataset',
    'TensorDataset',
    'TensorSliceDataset',
  ]
)
# Ops that TensorFlow does not call stateful, and that may give something else each time.
_CHANGING_OPS = frozenset(['MatchingFiles', 'PyFuncStateless', 'ReadFile'])
# Sources that read files, and the attribute that has the files' names.
_FILE_SOURCES = {
  'FixedLengthRecordDataset': '_filenames',
  'SqlDataset': '_data_source_name',
  'TextLineDataset': '_filenames',
  'TFRecordDataset': '_filenames',
}
_BESIDE_FILES = ('', '-wal', '-journal')  # What SQLite writes first, and later to the file.
_SETTLED = 2.0  # Seconds. A file that changed later may change again within its time stamp.


# In the place of the sizes of a component along an axis: those of an earlier one there.
_AS_BEFORE = tff.StructType([(None, tff.StructType([]))])


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """One data set, read.

  Attributes:
    elements: for each component [n, ...], padded to the largest of this data set.
    sizes: for each component the true sizes of its open axes, int32 [n, axes].
  """

  elements: tuple[np.ndarray, ...]
  sizes: tuple[np.ndarray, ...]

  @property
  def count(self) -> int:
    """The number of elements."""
    return len(self.elements[0])

  @property
  def nbytes(self) -> int:
    """The bytes of the arrays."""
    return sum(a.nbytes for a in (*self.elements, *self.sizes))


@dataclasses.dataclass(frozen=True)
class Form:
  """The shapes of a cohort's padded data sets.

  Attributes:
    length: the most elements.
    open_sizes: for each component the sizes that its open axes are padded to.
    is_full: whether every element has these sizes.
    is_alike: whether in every element all components have one size along an axis that is open.
  """

  length: int
  open_sizes: tuple[tuple[int, ...], ...]
  is_full: bool
  is_alike: bool = True

  def holds(self, other: 'Form') -> bool:
    """Whether this form can be used for another one, without much waste."""
    ours, theirs = (
      [f.length, *(size for sizes in f.open_sizes for size in sizes)] for f in (self, other)
    )
    return (
      (other.is_full or not self.is_full)
      and (other.is_alike or not self.is_alike)
      and all(a >= b for a, b in zip(ours, theirs, strict=True))
      and (not self.is_full or self.open_sizes == other.open_sizes)
      and float(np.prod(ours, dtype=np.float64))
      <= _MOST_WASTE * max(1.0, float(np.prod(theirs, dtype=np.float64)))
    )


def _open_axes(type_: Any) -> list[int]:
  shape = trees.static_shape(type_)
  if shape.rank is None:
    raise ValueError(f'A sequence of tensors of unknown rank, {type_}, is not supported.')
  return [axis for axis, size in enumerate(shape) if size is None]


def _order(type_: Any, first: int = 0) -> list[int]:
  """For each component as tf.data flattens an element, which one it is of the type's leaves.

  As on TFF's own runtime, a struct with names is a dict, whatever container its type has.
  """
  if not isinstance(type_, tff.StructType):
    return [first]
  of_fields: list[Any] = []
  for name, field in trees.fields(type_):
    of_fields.append((name, _order(field, first)))
    first += len(of_fields[-1][1])
  if all(name is not None for name, _ in of_fields):
    of_fields.sort(key=lambda of_field: of_field[0])
  return [leaf for _, leaves in of_fields for leaf in leaves]


def is_reordered(type_: tff.SequenceType) -> bool:
  """Whether tf.data has an element's components in another order than the type its leaves."""
  order = _order(type_.element)
  return order != sorted(order)


def component_types(type_: tff.SequenceType) -> list[Any]:
  """The types of an element's components, as tf.data flattens it."""
  return in_order(type_, trees.leaf_types(type_.element))


def in_order(type_: tff.SequenceType, leaves: Sequence[Any]) -> list[Any]:
  """An element's components, as tf.data flattens it, from its leaves in the type's order."""
  return [leaves[leaf] for leaf in _order(type_.element)]


def leaves_of(type_: tff.SequenceType, components: Sequence[Any]) -> list[Any]:
  """An element's leaves in the type's order, from its components as tf.data flattens it."""
  of_leaf = dict(zip(_order(type_.element), components, strict=True))
  return [of_leaf[leaf] for leaf in sorted(of_leaf)]


def _components_of(type_: tff.SequenceType, element: Any, what: str = 'value') -> list[Any]:
  """A Python element's components, as tf.data flattens it."""
  return in_order(type_, trees.flatten(type_.element, element, what))


def is_supported(type_: tff.SequenceType) -> bool:
  """Whether the sequence's elements are numeric tensors of known ranks."""
  types = component_types(type_)
  return bool(types) and all(
    isinstance(leaf, tff.TensorType)
    and not np.issubdtype(leaf.dtype, np.str_)
    and trees.static_shape(leaf).rank is not None
    for leaf in types
  )


def padded_type(type_: tff.SequenceType, form: Form) -> Any:
  """The type of a padded sequence: (elements, sizes of open axes, number of elements)."""
  elements, sizes = [], []
  seen: set[int] = set()
  for leaf, open_sizes in zip(component_types(type_), form.open_sizes, strict=True):
    shape = trees.static_shape(leaf).as_list()
    of_axes = [(None, tff.StructType([]))] * len(shape)
    for axis, size in zip(_open_axes(leaf), open_sizes, strict=True):
      shape[axis] = size
      if form.is_full:
        continue
      of_axes[axis] = (None, tff.TensorType(np.int32, [form.length]))
      if form.is_alike and axis in seen:
        of_axes[axis] = (None, _AS_BEFORE)
      seen.add(axis)
    elements.append((None, tff.TensorType(leaf.dtype.type, [form.length, *shape])))
    sizes.append((None, tff.StructType(of_axes)))
  return tff.StructType(
    [
      (None, tff.StructType(elements)),
      (None, tff.StructType(sizes)),
      (None, tff.TensorType(np.int32)),
    ]
  )


def components(value: Any) -> tuple[list[Any], list[Any], Any]:
  """(arrays, sizes, count) of a padded sequence; see `data_ops.from_arrays`."""
  elements, sizes, count = value
  before: dict[int, Any] = {}
  found = []
  for of_component in sizes:
    of_axes = [before[a] if _is_as_before(s) else s for a, s in enumerate(of_component)]
    before.update({a: s for a, s in enumerate(of_axes) if not _is_struct(s)})
    found.append(of_axes)
  return list(elements), found, count


def _is_as_before(size: Any) -> bool:
  """Whether a component has the size along an axis that an earlier one has there."""
  return _is_struct(size) and len(size) > 0


def _is_struct(size: Any) -> bool:
  return isinstance(size, tuple | list)


class Store:
  """Reads, keeps and stacks data sets."""

  def __init__(self) -> None:
    self._read: collections.OrderedDict[int, tuple[Any, Any, Any, Arrays]] = (
      collections.OrderedDict()
    )
    self._cohorts: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    self._forms: dict[Any, list[Form]] = collections.defaultdict(list)
    self._limit: int | None = None

  def arrays(self, type_: tff.SequenceType, value: Any, what: str) -> Arrays:
    """A data set, or a list of elements, as arrays.

    Raises:
      MismatchError: an element's structure, dtype or shape is not the type's.
      NotLowered: the data set has no end.
    """
    if not isinstance(value, tf.data.Dataset):
      return _from_list(type_, list(value), what)
    kept = self._read.get(id(value))
    is_kept = kept is not None and kept[0]() is value and kept[1] == type_
    if kept is not None and is_kept and (not kept[2] or kept[2] == files(value)):
      self._read.move_to_end(id(value))
      return kept[3]
    if value.cardinality() == tf.data.INFINITE_CARDINALITY:
      raise datasets.NotLowered(f'{what} is a data set without an end: give it one with take()')
    before = files(value)  # Had they changed meanwhile, what was read would be of neither time.
    result = _from_dataset(type_, value, what)
    if before is not None and is_fixed(value):
      self._keep(value, type_, before, result)
    return result

  def _keep(self, value: tf.data.Dataset, type_: Any, files_: Any, result: Arrays) -> None:
    if self._limit is None:
      self._limit = devices_lib.free_memory('CPU') // _CACHE_PART
    key = id(value)
    read = self._read
    reference = weakref.ref(value, lambda _: read.pop(key, None))
    read[key] = (reference, type_, files_, result)
    total = sum(arrays.nbytes for *_, arrays in read.values())
    while total > self._limit and len(read) > 1:
      total -= read.popitem(last=False)[1][-1].nbytes

  def form(self, key: Any, type_: Any, cohort: Sequence[Arrays]) -> Form:
    """The form for a cohort's data sets: one that was used for `key` before, if one fits."""
    needed = form_of(type_, cohort)
    fitting = [f for f in self._forms[key] if f.holds(needed)]
    if not fitting:
      fitting = [_rounded(needed)]
      self._forms[key] += fitting
    return min(fitting, key=lambda f: (f.length, f.open_sizes, not f.is_full))

  def forget(self, is_past: Callable[[Any], bool]) -> None:
    """Drops the forms of some keys."""
    for key in [key for key in self._forms if is_past(key)]:
      del self._forms[key]

  def stack(
    self, cohort: Sequence[Arrays], form: Form, type_: Any, size: int, device: str
  ) -> list[tf.Tensor]:
    """The leaves [size, ...] of `padded_type` for a cohort, padded to `size` clients."""
    key = (tuple(map(id, cohort)), form, size, device)
    if key in self._cohorts:
      self._cohorts.move_to_end(key)
      return self._cohorts[key][1]
    with tf.device(device):
      leaves = [tf.convert_to_tensor(leaf) for leaf in stacked(cohort, form, type_, size)]
    # The arrays are kept, so that their ids are not given to others.
    self._cohorts[key] = (list(cohort), leaves)
    while len(self._cohorts) > _LAST_COHORTS:
      self._cohorts.popitem(last=False)
    return leaves


def form_of(type_: tff.SequenceType, cohort: Sequence[Arrays]) -> Form:
  """The smallest form of some data sets."""
  largest, is_full = [], True
  for component, leaf in enumerate(component_types(type_)):
    sizes = [a.sizes[component] for a in cohort if a.count]
    none = np.zeros([1, len(_open_axes(leaf))], np.int32)
    most = np.concatenate([none, *sizes]).max(axis=0)
    # Where nothing is in any element, there is room for something all the same (`_rounded`).
    is_full = is_full and all(bool((s == most).all() and most.all()) for s in sizes)
    largest.append(tuple(int(m) for m in most))
  length = max([1, *(a.count for a in cohort)])
  is_alike = is_full or all(_is_alike(type_, arrays) for arrays in cohort)
  return Form(length=length, open_sizes=tuple(largest), is_full=is_full, is_alike=is_alike)


def _is_alike(type_: tff.SequenceType, arrays: Arrays) -> bool:
  first: dict[int, np.ndarray] = {}
  for leaf, sizes in zip(component_types(type_), arrays.sizes, strict=True):
    for axis, of_axis in zip(_open_axes(leaf), sizes.T, strict=True):
      if not np.array_equal(first.setdefault(axis, of_axis), of_axis):
        return False
  return True


def _rounded(form: Form) -> Form:
  """A form with some space, so that it fits what comes later."""
  sizes = form.open_sizes
  if not form.is_full:
    sizes = tuple(tuple(bucket(size) for size in of_one) for of_one in sizes)
  sizes = tuple(tuple(max(1, size) for size in of_one) for of_one in sizes)
  return dataclasses.replace(form, length=bucket(form.length), open_sizes=sizes)


def bucket(size: int) -> int:
  """The size rounded up to one of four steps between powers of two."""
  step = max(1, 2 ** max(0, (max(1, size) - 1).bit_length() - 3))
  return -(-max(1, size) // step) * step


def stacked(
  cohort: Sequence[Arrays], form: Form, type_: tff.SequenceType, size: int
) -> list[np.ndarray]:
  """The leaves [size, ...] of `padded_type`; clients beyond the cohort are empty."""
  leaves, sizes = [], []
  seen: set[int] = set()
  types = component_types(type_)
  for component, (leaf, open_sizes) in enumerate(zip(types, form.open_sizes, strict=True)):
    shape = trees.static_shape(leaf).as_list()
    open_axes = _open_axes(leaf)
    for axis, open_size in zip(open_axes, open_sizes, strict=True):
      shape[axis] = open_size
    result = np.zeros([size, form.length, *shape], leaf.dtype)
    true_sizes = np.zeros([size, form.length, len(open_axes)], np.int32)
    for client, arrays in enumerate(cohort):
      element = arrays.elements[component]
      result[(client, *(slice(0, n) for n in element.shape))] = element
      true_sizes[client, : arrays.count] = arrays.sizes[component]
    leaves.append(result)
    for i, axis in enumerate(() if form.is_full else open_axes):
      if not (form.is_alike and axis in seen):
        sizes.append(np.ascontiguousarray(true_sizes[..., i]))
      seen.add(axis)
  counts = np.zeros([size], np.int32)
  counts[: len(cohort)] = [arrays.count for arrays in cohort]
  return [*leaves, *sizes, counts]


def _from_list(type_, elements: list[Any], what: str) -> Arrays:
  """A list of elements."""
  types, names = component_types(type_), in_order(type_, trees.leaf_names(type_.element))
  rows = []
  for index, element in enumerate(elements):
    leaves = _components_of(type_, element, f'{what}[{index}]')
    rows.append(
      [
        trees.to_array(leaf, t, f'{what}[{index}].{name}')
        for leaf, t, name in zip(leaves, types, names, strict=True)
      ]
    )
  arrays, sizes = [], []
  for component, leaf in enumerate(types):
    axes = _open_axes(leaf)
    shape = [size or 0 for size in trees.static_shape(leaf).as_list()]
    for axis in axes:
      shape[axis] = max([row[component].shape[axis] for row in rows], default=0)
    array = np.zeros([len(rows), *shape], leaf.dtype)
    for index, row in enumerate(rows):
      array[(index, *(slice(0, n) for n in row[component].shape))] = row[component]
    arrays.append(array)
    true = [[row[component].shape[axis] for axis in axes] for row in rows]
    sizes.append(np.asarray(true, np.int32).reshape(len(rows), len(axes)))
  return Arrays(tuple(arrays), tuple(sizes))


def reader_of_clients(type_: tff.SequenceType, client_data: Any) -> Callable[[str], Arrays]:
  """Reads the data sets of a `tff.simulation.datasets.ClientData` by the clients' names."""

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.string)])
  def variant(client_id):
    return tf.data.experimental.to_variant(client_data.serializable_dataset_fn(client_id))

  read = _reader(type_, _Spec(client_data.element_type_structure))
  dataset = client_data.create_tf_dataset_for_client
  return lambda name: _read(type_, lambda: read(variant(name)), lambda: dataset(name), name)


def _from_dataset(type_, dataset: tf.data.Dataset, what: str) -> Arrays:
  types = trees.leaf_types(type_.element)
  leaves = [
    tff.TensorType(s.dtype.as_numpy_dtype, s.shape)
    for s in trees.flatten(type_.element, dataset.element_spec, what)
  ]
  for leaf, expected, name in zip(leaves, types, trees.leaf_names(type_.element), strict=True):
    if leaf.dtype != expected.dtype or not trees.static_shape(expected).is_compatible_with(
      trees.static_shape(leaf)
    ):
      raise trees.MismatchError(
        f'{what}.{name} has elements of type {leaf}; {expected} is expected.'
      )
  read = _reader(type_, _Spec(dataset.element_spec))
  variant = tf.data.experimental.to_variant
  return _read(type_, lambda: read(variant(dataset)), lambda: dataset, what)


def _read(type_, read: Callable[[], Any], dataset: Callable[[], Any], what: str) -> Arrays:
  """What a reader gives; element by element if there are more than it takes at once."""
  *arrays, sizes = read()
  if len(sizes) == _EVERYTHING:  # There may be more.
    return _from_list(type_, list(dataset()), what)
  axes = [_open_axes(leaf) for leaf in component_types(type_)]
  splits = np.cumsum([len(a) for a in axes])[:-1]
  return Arrays(
    tuple(a.numpy() for a in arrays),
    tuple(np.split(sizes.numpy(), splits, axis=1)),
  )


def _check_names(spec: Any) -> None:
  """Refuses, as TFF does, elements whose names tf.data has in an order that is no dict's.

  A graph that was made for such elements takes them in that order; its type does not say so.
  """
  names = None
  if isinstance(spec, tuple) and hasattr(spec, '_fields'):
    names = list(spec._fields)
  elif attrs.has(type(spec)) and not isinstance(spec, tf.TypeSpec):
    names = [field.name for field in attrs.fields(type(spec))]
  if names is not None and names != sorted(names):
    raise trees.MismatchError(
      f'A data set has elements of the type {type(spec).__name__}, whose fields'
      f' {", ".join(names)} are not in alphabetical order: make them an OrderedDict.'
    )
  if isinstance(spec, Mapping):
    for inner in spec.values():
      _check_names(inner)
  elif isinstance(spec, (tuple, list)):
    for inner in spec:
      _check_names(inner)
  elif names is not None:
    for name in names:
      _check_names(getattr(spec, name))


class _Spec:
  """A hashable element spec."""

  def __init__(self, spec: Any):
    self.spec = spec
    self._key = (tf.nest.flatten(spec), str(spec))

  def __hash__(self) -> int:
    return hash(self._key[1])

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Spec) and self._key == other._key


@functools.lru_cache(maxsize=256)
def _reader(type_: tff.SequenceType, spec: _Spec) -> Any:
  """variant of a data set -> (arrays [n, ...], padded; sizes of open axes [n, axes])."""
  types = component_types(type_)
  _check_names(spec.spec)

  def flat(*fields):
    element = fields if type(spec.spec) is tuple else fields[0]  # tf.data unpacks only these.
    leaves = _components_of(type_, element)
    sizes = [
      tf.shape(leaf)[axis] for leaf, t in zip(leaves, types, strict=True) for axis in _open_axes(t)
    ]
    return (*leaves, tf.stack(sizes) if sizes else tf.zeros([0], tf.int32))

  @tf.function(autograph=False)
  def read(variant):
    dataset = tf.data.experimental.from_variant(variant, spec.spec).map(flat)
    dataset = dataset.padded_batch(_EVERYTHING)
    # Of an empty data set there would be no element, and an error that clients' own resemble.
    nothing = [
      tf.zeros([size or 0 for size in [0, *s.shape[1:]]], s.dtype) for s in dataset.element_spec
    ]
    return (
      dataset.concatenate(tf.data.Dataset.from_tensors(tuple(nothing))).take(1).get_single_element()
    )

  # TensorFlow would warn that many functions come from this one line.
  read._omit_frequent_tracing_warning = True  # pylint: disable=protected-access
  return read


def is_fixed(dataset: Any) -> bool:
  """Whether a data set has the same elements, in the same order, each time it is read.

  As long as the files that it reads stay as they are; see `files`.
  """
  with contextlib.suppress(AttributeError, NotImplementedError):
    inputs = dataset._inputs()  # pylint: disable=protected-access
    name = type(dataset).__name__.lstrip('_')
    if not inputs and name not in _FIXED_SOURCES and _file_source(dataset) is None:
      return False
    if any(word in name for word in ('Shuffle', 'Random', 'Generator')):
      return False
    for function in dataset._functions():  # pylint: disable=protected-access
      graph = function.function.graph
      operations = [*graph.get_operations()]
      for inner in graph._functions.values():  # pylint: disable=protected-access
        operations += inner.graph.get_operations()
      if any(
        op.type in _CHANGING_OPS or (op.op_def is not None and op.op_def.is_stateful)
        for op in operations
      ):
        return False
    return all(map(is_fixed, inputs))
  return False


def files(dataset: Any) -> tuple[Any, ...] | None:
  """What tells whether the files that a data set reads have changed: () if it reads none.

  None if that is not known: files of another machine, names that a graph makes, or files that
  changed just now.
  """
  found: list[Any] = []
  with contextlib.suppress(AttributeError, NotImplementedError, OSError, ValueError):
    pending = [dataset]
    while pending:
      source = pending.pop()
      pending += source._inputs()  # pylint: disable=protected-access
      attribute = _file_source(source)
      if attribute is None:
        continue
      names = getattr(source, attribute)
      if isinstance(names, tf.data.Dataset):
        if not is_fixed(names):
          return None
        pending.append(names)
        names = list(names.as_numpy_iterator())
      for name in np.ravel(names):
        found += _stamps(name)
    return tuple(found)
  return None


def _file_source(dataset: Any) -> str | None:
  """The attribute with the names of the files that a data set itself reads."""
  return _FILE_SOURCES.get(type(dataset).__name__.lstrip('_').removesuffix('V2').removesuffix('V1'))


def _stamps(name: bytes) -> list[Any]:
  stamps = []
  for suffix in _BESIDE_FILES:
    path = os.fsdecode(name) + suffix
    if suffix and not os.path.exists(path):
      continue
    stat = os.stat(path)
    if abs(time.time() - stat.st_mtime) < _SETTLED:
      raise ValueError(f'{path} changed just now')
    stamps.append((path, stat.st_ino, stat.st_mtime_ns, stat.st_size))
  return stamps
