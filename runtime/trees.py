"""Between TFF types, Python containers and flat lists of leaves."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Type: TypeAlias = tff.Type


class MismatchError(TypeError, ValueError):
  """A value is not of its type: a TypeError, as on TFF's own runtime."""


def is_clients(type_: Type) -> bool:
  """Whether the type is placed at CLIENTS."""
  return isinstance(type_, tff.FederatedType) and type_.placement is tff.CLIENTS


def member(type_: Type) -> Type:
  """The type without its placement."""
  return type_.member if isinstance(type_, tff.FederatedType) else type_


def fields(type_: Type) -> list[tuple[str | None, Type]]:
  """Names (None where unnamed) and types of a struct's elements."""
  return list(tff.structure.iter_elements(type_))


def leaf_types(type_: Type) -> list[Type]:
  """The tensor and sequence types inside a type, depth first; placements are ignored."""
  type_ = member(type_)
  if isinstance(type_, tff.StructType):
    return [leaf for _, element in fields(type_) for leaf in leaf_types(element)]
  return [type_]


def static_shape(type_: Type) -> tf.TensorShape:
  """The shape of a tensor type as TensorFlow has it."""
  return tf.TensorShape(type_.shape)


def is_static(type_: Type) -> bool:
  """Whether every leaf is a tensor of fully known shape and of a numeric type."""
  return all(
    isinstance(leaf, tff.TensorType)
    and static_shape(leaf).is_fully_defined()
    and not np.issubdtype(leaf.dtype, np.str_)
    for leaf in leaf_types(type_)
  )


def num_bytes(type_: Type) -> int:
  """The bytes of a value whose leaves are tensors of known shapes."""
  return sum(
    static_shape(leaf).num_elements() * tf.as_dtype(leaf.dtype).size for leaf in leaf_types(type_)
  )


def leaf_names(type_: Type, prefix: str = '') -> list[str]:
  """A readable path for every leaf, in the order of `leaf_types`."""
  type_ = member(type_)
  if not isinstance(type_, tff.StructType):
    return [prefix or 'value']
  names = []
  for index, (name, element) in enumerate(fields(type_)):
    step = name if name is not None else str(index)
    names += leaf_names(element, f'{prefix}.{step}' if prefix else step)
  return names


def flatten(type_: Type, value: Any, what: str = 'value') -> list[Any]:
  """The leaves of a Python value which follows a TFF type.

  Args:
    type_: a type without CLIENTS placements.
    value: mappings, sequences, attrs or dataclass objects, or TFF structs, nested
      as the type says.
    what: what the value is, for messages.

  Returns:
    The leaves in the order of `leaf_types(type_)`, unconverted.

  Raises:
    MismatchError: the value's structure is not the type's.
  """
  type_ = member(type_)
  if not isinstance(type_, tff.StructType):
    if isinstance(value, (Mapping, tff.structure.Struct)):
      raise MismatchError(f'{what} is a structure, but {type_} is expected.')
    return [value]
  elements = fields(type_)
  leaves = []
  for index, (name, inner) in enumerate(elements):
    step = f'{what}.{name}' if name is not None else f'{what}[{index}]'
    leaves += flatten(inner, element(value, index, name, elements, what), step)
  return leaves


def by_position(type_: Type, value: Any) -> Any:
  """An argument whose mappings count by the order of their values, as on TFF's own runtime.

  Args:
    type_: the argument's type.
    value: as `flatten` takes it; a list of such values at CLIENTS. Names that are not the
      type's are left for `flatten` to refuse.
  """
  if is_clients(type_) and not type_.all_equal:
    if isinstance(value, (list, tuple)) and isinstance(type_.member, tff.StructType):
      return [by_position(type_.member, client) for client in value]
    return value
  type_ = member(type_)
  if not isinstance(type_, tff.StructType):
    return value
  elements = fields(type_)
  if isinstance(value, Mapping):
    if value.keys() != {name for name, _ in elements}:
      return value
    value = list(value.values())
  elif not (type(value) in (list, tuple) or isinstance(value, tff.structure.Struct)):
    return value
  if len(value) != len(elements):
    return value
  return [by_position(t, v) for (_, t), v in zip(elements, value, strict=True)]


def element(value: Any, index: int, name: str | None, elements: Any, what: str) -> Any:
  """The element of a value that belongs to a struct type's element; see `flatten`."""
  names = [n for n, _ in elements]
  expected = ', '.join(n or str(i) for i, n in enumerate(names)) or 'nothing'
  if isinstance(value, Mapping):
    if len(value) != len(elements) or (name is not None and name not in value):
      raise MismatchError(
        f'{what} has the fields {", ".join(map(str, value)) or "nothing"}; expected {expected}.'
      )
    return value[name] if name is not None else list(value.values())[index]
  if isinstance(value, tff.structure.Struct) or (
    isinstance(value, (tuple, list)) and not hasattr(value, '_fields')
  ):
    if len(value) != len(elements):
      raise MismatchError(f'{what} has {len(value)} elements; expected {expected}.')
    return value[index]
  if name is not None and (attrs.has(type(value)) or hasattr(value, name)):
    return getattr(value, name)
  raise MismatchError(
    f'{what} is of type {type(value).__name__}; expected a structure of {expected}.'
  )


def nested(type_: Type, leaves: Iterator[Any]) -> Any:
  """Nested tuples of a type's form, filled from an iterator of leaves."""
  type_ = member(type_)
  if isinstance(type_, tff.StructType):
    return tuple(nested(element, leaves) for _, element in fields(type_))
  return next(leaves)


def container(type_: Type, leaves: Iterator[Any]) -> Any:
  """Python containers of a type's form (OrderedDict, attrs class, ...) from leaves."""
  type_ = member(type_)

  def build(t):
    if isinstance(t, tff.StructType):
      return tff.structure.Struct([(name, build(element)) for name, element in fields(t)])
    return next(leaves)

  return tff.types.type_to_py_container(build(type_), type_)


def to_tensor(leaf: Any, type_: Type, what: str) -> tf.Tensor:
  """Converts a leaf to the tensor that its type says; see `to_array`."""
  if tf.is_tensor(leaf):
    _check_leaf(type_, tf.TensorShape(leaf.shape), leaf.dtype, what, convertible=False)
    return leaf
  return tf.convert_to_tensor(to_array(leaf, type_, what))


def as_array(leaf: Any, dtype: Any = None) -> np.ndarray:
  """`np.asarray`, which fails for a tensor that is a single bfloat16."""
  if tf.is_tensor(leaf) and leaf.dtype == tf.bfloat16:
    leaf = leaf.numpy()
  return np.asarray(leaf, dtype)


def to_array(leaf: Any, type_: Type, what: str) -> np.ndarray:
  """Converts a leaf to the array that its type says.

  Raises:
    MismatchError: the leaf's dtype or shape differs. Python numbers and arrays of the
      same kind (say float64 for float32, int64 for int32) are converted.
  """
  found, dtype = as_array(leaf), tf.as_dtype(type_.dtype)
  if isinstance(leaf, (list, tuple)) and not found.size:
    found = found.astype(dtype.as_numpy_dtype)  # NumPy takes nothing for float64.
  found_dtype = tf.as_dtype(found.dtype)
  same_kind = (found_dtype.is_floating and dtype.is_floating) or (
    found_dtype.is_integer and dtype.is_integer
  )
  is_python = isinstance(leaf, (bool, int, float)) and dtype.is_floating
  is_complex = found_dtype.is_complex and dtype.is_complex
  # As on TFF's own runtime, an array's complex numbers lose no digits.
  is_python |= is_complex and (type(leaf) is complex or found_dtype.size <= dtype.size)
  convertible = (same_kind or is_python) and not tf.is_tensor(leaf)
  _check_leaf(type_, tf.TensorShape(found.shape), found_dtype, what, convertible=convertible)
  if found_dtype == dtype:
    return found
  converted = found.astype(dtype.as_numpy_dtype)
  if dtype.is_integer and (converted != found).any():
    raise MismatchError(
      f'{what} has values beyond {dtype.name}, from {found.min()} to {found.max()}.'
    )
  return converted


def _check_leaf(type_, shape: tf.TensorShape, dtype: tf.DType, what, *, convertible: bool) -> None:
  expected = tf.as_dtype(type_.dtype)
  if not static_shape(type_).is_compatible_with(shape):
    raise MismatchError(f'{what} has the shape {shape}; {static_shape(type_)} is expected.')
  if dtype != expected and not convertible:
    raise MismatchError(f'{what} has the dtype {dtype.name}; {expected.name} is expected.')


def stacked_leaves(
  tree: Any, *, what: str, allow_nan: bool = False
) -> tuple[Any, list[np.ndarray]]:
  """The arrays of a nested mapping of [K, ...] arrays, checked.

  Args:
    tree: nested mappings with array leaves, all with the same leading axis.
    what: what the tree is, for messages.
    allow_nan: whether NaN and infinities are accepted.

  Returns:
    The tree with NumPy leaves, and its leaves.

  Raises:
    ValueError: leading axes differ, an array is not numeric, or has NaN or infinities.
  """
  arrays: list[np.ndarray] = []

  def visit(node, path):
    if isinstance(node, Mapping):
      return collections.OrderedDict((k, visit(v, f'{path}.{k}')) for k, v in node.items())
    array = np.asarray(node)
    if array.ndim == 0:
      raise ValueError(f'{path} is a scalar; arrays with a leading client axis are expected.')
    if array.dtype.kind not in 'biuf' and array.dtype.name != 'bfloat16':
      raise ValueError(f'{path} has the dtype {array.dtype}; numbers are expected.')
    if arrays and len(array) != len(arrays[0]):
      raise ValueError(
        f'{path} is for {len(array)} clients; the arrays before it are for {len(arrays[0])}.'
      )
    if not allow_nan and array.dtype.kind not in 'biu':
      check_finite(array, path)
    arrays.append(array)
    return array

  return visit(tree, what), arrays


def check_finite(array: np.ndarray, what: str, first: int = 0) -> None:
  """Raises ValueError naming the first client whose row is not finite; rows count from `first`."""
  # A sum is finite if all are, and needs no array of the same size.
  with np.errstate(over='ignore', invalid='ignore'):
    if np.isfinite(array.sum(dtype=np.float64)):
      return
  for row, values in enumerate(array):
    if not np.isfinite(values).all():
      raise ValueError(f'{what}: client {first + row} has NaN or infinite values.')


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
  """Applies a function to the leaves of nested mappings, sequences and attrs objects."""
  if isinstance(tree, Mapping):
    return collections.OrderedDict((k, map_leaves(function, v)) for k, v in tree.items())
  if isinstance(tree, tuple) and hasattr(tree, '_fields'):
    return type(tree)(*(map_leaves(function, v) for v in tree))
  if isinstance(tree, (tuple, list)):
    return type(tree)(map_leaves(function, v) for v in tree)
  if attrs.has(type(tree)):
    return attrs.evolve(
      tree,
      **{f.name: map_leaves(function, getattr(tree, f.name)) for f in attrs.fields(type(tree))},
    )
  return function(tree)


def to_numpy(tree: Any) -> Any:
  """The same structure with NumPy leaves."""
  return map_leaves(as_array, tree)


def at_row(tree: Any, row: int) -> Any:
  """A nested structure with every leaf indexed on its leading axis."""
  return map_leaves(lambda leaf: leaf[row], tree)


def stacked(type_: Type, structures: Sequence[Any]) -> Any:
  """One structure of NumPy leaves [n, ...] from n structures of a type; n may be 0."""
  rows = [flatten(type_, structure) for structure in structures]

  def stack(index: int, leaf_type: Type) -> np.ndarray:
    if rows:
      return np.stack([np.asarray(row[index]) for row in rows])
    shape = [size or 0 for size in static_shape(leaf_type).as_list()]
    return np.zeros([0, *shape], tf.as_dtype(leaf_type.dtype).as_numpy_dtype)

  return container(type_, (stack(i, leaf) for i, leaf in enumerate(leaf_types(type_))))


def leaves_of(tree: Any) -> Sequence[Any]:
  """The leaves of a nested mapping, depth first."""
  if isinstance(tree, Mapping):
    return [leaf for v in tree.values() for leaf in leaves_of(v)]
  return [tree]
