"""Why XLA cannot compile a graph, or a part of one."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import kernels, op_def_registry

from runtime import trees
from runtime.xla.lowering import graphs, sequences

_XLA = 'XLA_CPU_JIT'
# Taken away before XLA sees a graph, or fed.
IGNORED = frozenset(['Assert', 'Placeholder', 'Print', 'PrintV2'])
# Stateful for TensorFlow, but the state is of one execution.
OWN_STATE = frozenset(
  [
    'AnonymousIteratorV2',
    'AnonymousIteratorV3',
    'DatasetToSingleElement',
    'DeleteIterator',
    'IteratorGetNext',
    'IteratorGetNextAsOptional',
    'IteratorGetNextSync',
    'MakeIterator',
    'RangeDataset',
    'ReduceDataset',
    'TensorDataset',
    'TensorSliceDataset',
  ]
)
_CALLBACKS = frozenset(['EagerPyFunc', 'PyFunc', 'PyFuncStateless', 'NumpyFunction'])
# Their strings need no computing.
_NAMES_ONLY = frozenset(['CacheDataset', 'CacheDatasetV2', 'Const', 'RewriteDataset'])
# Attributes with which XLA refuses an op, in words that do not name it.
_REFUSED_USES = {'TridiagonalSolve': 'partial_pivoting'}
_TABLES = ('HashTable', 'LookupTable', 'InitializeTable')
_ADVICE = {
  'a string': 'strings stay on the host; keep them out of the graphs that do the arithmetic',
  'a table': 'look up on the host, in a computation of its own, or use integers and tf.gather',
  'a callback': 'write it with TensorFlow ops',
  'a piece': 'where it takes long, give its values as an argument of the computation',
  'an op': 'XLA has no such op; use another one, or a computation of its own for it',
  'a use of an op': 'use another one, or a computation of its own for it',
  'a shape': 'give it a known shape: pad to a fixed size, with the number of real rows beside it',
  'a sequence': 'use tensors of fixed shape, padded, with the number of real rows beside them',
}


class Obstacle(str):
  """Why something cannot be compiled, as a phrase; `advice` says what to change."""

  advice: str

  def __new__(cls, kind: str, what: str) -> 'Obstacle':
    made = super().__new__(cls, what)
    made.advice = _ADVICE[kind]
    return made


def of_type(type_: tff.Type) -> Iterator[Obstacle]:
  """What of a type's leaves XLA cannot have; placements are ignored."""
  for leaf, name in zip(trees.leaf_types(type_), trees.leaf_names(type_), strict=True):
    if isinstance(leaf, tff.SequenceType):
      if not sequences.is_supported(leaf):
        yield Obstacle('a sequence', f'{name!r} is a sequence of elements that are not numbers')
    elif isinstance(leaf, tff.TensorType):
      if np.issubdtype(leaf.dtype, np.str_):
        yield Obstacle('a string', f'{name!r} is a string')
      elif not trees.static_shape(leaf).is_fully_defined():
        yield Obstacle('a shape', f'{name!r} has the shape {trees.static_shape(leaf)}')


def of_nodes(
  nodes: Iterable[Any], library: Mapping[str, Any], refused: Mapping[str, str]
) -> list[Obstacle]:
  """What of some nodes of a graph, and of the functions that they call, XLA has no op for.

  Args:
    nodes: NodeDefs.
    library: the graph's FunctionDefs by name.
    refused: types of ops that are known not to compile here, and why.
  """
  found: dict[Obstacle, None] = {}
  seen: set[str] = set()
  pending = list(nodes)
  while pending:
    node = pending.pop()
    if node.op not in library and (obstacle := _of_node(node, refused)) is not None:
      found[obstacle] = None
    for name in called(node):
      if name in library and name not in seen:
        seen.add(name)
        pending += library[name].node_def
  return list(found)


def refused(reasons: Iterable[str]) -> dict[str, str]:
  """The types of ops for which something was not compiled, each with the phrase that says so."""
  phrases = (re.finditer(r'the op (\w+)[^;\n]*', reason) for reason in reasons)
  return {found.group(1): found.group(0) for one in phrases for found in one}


def called(node: Any) -> Iterator[str]:
  """The names of the functions that a node calls."""
  yield node.op
  for attr in node.attr.values():
    for function in (attr.func, *attr.list.func):
      if function.name:
        yield function.name


def _of_node(node, refused) -> Obstacle | None:
  if node.op in IGNORED:
    return None
  if node.op in _CALLBACKS:
    return Obstacle('a callback', f'the Python callback {node.op}')
  if any(part in node.op for part in _TABLES):
    return Obstacle('a table', f'the lookup table op {node.op}')
  if node.op not in _NAMES_ONLY and _has_strings(node):
    return Obstacle('a string', f'the op {node.op} of strings')
  if (use := _REFUSED_USES.get(node.op)) is not None and node.attr[use].b:
    return Obstacle('a use of an op', f'the op {node.op} with {use}=True')
  if node.op in refused:
    return Obstacle('a use of an op', refused[node.op])
  if not (node.op in graphs.HANDLERS or _has_kernel(node.op)):
    return Obstacle('an op', f'the op {node.op}')
  return None


def _has_strings(node) -> bool:
  dtypes = [attr.type for attr in node.attr.values()]
  dtypes += [t for attr in node.attr.values() for t in attr.list.type]
  definition = op_def_registry.get(node.op)
  if definition is not None:
    dtypes += [a.type for a in (*definition.input_arg, *definition.output_arg)]
  return tf.string.as_datatype_enum in dtypes


def is_stateful(op: str) -> bool:
  """Whether an op gives another value each time, or changes something."""
  definition = op_def_registry.get(op)
  harmless = op in IGNORED or op in ('PartitionedCall', 'StatefulPartitionedCall', 'While', 'If')
  return definition is not None and definition.is_stateful and not harmless


@functools.cache
def _has_kernel(op: str) -> bool:
  _register_xlas_kernels()
  return any(k.device_type == _XLA for k in kernels.get_registered_kernels_for_op(op).kernel)


@functools.cache
def _register_xlas_kernels() -> None:
  """TensorFlow registers XLA's kernels when it first compiles something."""
  tf.function(lambda: tf.constant(0), jit_compile=True, autograph=False)()
