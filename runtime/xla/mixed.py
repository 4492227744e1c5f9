"""Runs a program in pieces: compiled, and on the host beside it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import eager, partition, program, stages, steps, values
from runtime.xla.lowering import sequences

# (key, program, (type, value) of the parameter's parts, number of clients) -> the result's
# parts, each a list of leaves, those at CLIENTS [P, ...]; None if XLA refuses the program.
Compiled = Callable[[Hashable, program.Program, Sequence[tuple[Any, Any]], int], Any]


class MixedProgram:
  """Runs the pieces of a program one after the other."""

  def __init__(self, prog: program.Program, compiled: Compiled, refused: Mapping[str, str]):
    """Cuts a program.

    Args:
      prog: the program.
      compiled: runs a piece, compiled.
      refused: types of ops that are known not to compile in it, and why.

    Raises:
      subgraphs.NotCutError: it cannot be cut.
    """
    self.cut = partition.cut(prog, refused)
    self._refused = frozenset(refused)
    self._result_types = program.placed_parts(prog.result_type)
    self._compiled = compiled
    self._interpreters: dict[int, eager.EagerProgram] = {}

  def piece_key(self, key: Hashable, index: int) -> Hashable:
    """Stands for a piece of the program that `key` stands for; another cut has other pieces."""
    return key, index, self._refused

  def __call__(
    self, key: Hashable, parts: Sequence[tuple[Any, Any]], count: int
  ) -> list[Any] | None:
    """Runs the program.

    Args:
      key: stands for the program.
      parts: (type, value) of the parameter's parts; values at CLIENTS are lists.
      count: the number of clients.

    Returns:
      The result's parts: nested tuples of leaves, at CLIENTS a list of them. None if XLA
      refuses a piece that was to be compiled.
    """
    known: dict[steps.Leaf, Any] = {}
    for (type_, value), leaves in zip(parts, self.cut.parameter, strict=True):
      flat = tf.nest.flatten(leaves)
      if stages.is_client_part(type_):
        rows = [_leaves(type_.member, v, f'client {k}') for k, v in enumerate(value)]
        known |= {leaf: [row[j] for row in rows] for j, leaf in enumerate(flat)}
      else:
        known |= dict(zip(flat, _leaves(type_, value, 'argument'), strict=True))
    for index, piece in enumerate(self.cut.pieces):
      types = () if not piece.inputs else program.placed_parts(piece.program.parameter_type)
      given = [(t, known[leaf]) for t, leaf in zip(types, piece.inputs, strict=True)]
      if not piece.on_host:
        outputs = self._compiled(self.piece_key(key, index), piece.program, given, count)
        if outputs is None:
          return None
        outputs = [
          list(np.asarray(of_part[0])[:count]) if leaf.at_clients else of_part[0]
          for leaf, of_part in zip(piece.outputs, outputs, strict=True)
        ]
      else:
        outputs = self._interpreted(index, piece, given, count)
      known |= {
        leaf: _held(leaf, value) for leaf, value in zip(piece.outputs, outputs, strict=True)
      }
    return [
      _result_part(type_, part, known, count)
      for type_, part in zip(self._result_types, self.cut.result, strict=True)
    ]

  def _interpreted(self, index, piece, given, count):
    if index not in self._interpreters:
      self._interpreters[index] = eager.EagerProgram(piece.program)
    return interpreted(self._interpreters[index], piece.program, given, count)


def interpreted(
  run: eager.EagerProgram, prog: program.Program, parts: Sequence[tuple[Any, Any]], count: int
) -> list[Any]:
  """Runs a program without compiling it; `parts` and the result as `MixedProgram` has them."""
  built: list[Any] = []
  in_threads = all(_are_fixed(type_, value) for type_, value in parts)
  for type_, value in parts:
    if stages.is_client_part(type_):
      built.append([_tensors(type_.member, v, f'client {k}') for k, v in enumerate(value)])
    else:
      built.append(_tensors(type_, value, 'argument'))
  parameter = stages.assemble(prog.parameter_type, built) if built else None
  with tf.device('CPU:0'):
    result = run(parameter, count, in_threads)
  return stages.split(prog.result_type, result)


def _are_fixed(type_, value) -> bool:
  """Whether no data set of a part changes, or writes to a file, when another one is read."""
  member = trees.member(type_)
  if not program.has_sequence(member):
    return True
  of_each = value if stages.is_client_part(type_) else [value]
  return all(
    isinstance(leaf, list)
    or (isinstance(leaf, tf.data.Dataset) and sequences.is_fixed(leaf) and not _is_cached(leaf))
    for one in of_each
    for leaf, leaf_type in zip(trees.flatten(member, one), trees.leaf_types(member), strict=True)
    if isinstance(leaf_type, tff.SequenceType)
  )


def _is_cached(dataset: Any) -> bool:
  """Whether what is read of a data set is kept, perhaps in a file."""
  inputs = dataset._inputs()  # pylint: disable=protected-access
  return 'Cache' in type(dataset).__name__ or any(map(_is_cached, inputs))


def _tensors(type_, value, what):
  """A value as nested tuples of tensors, data sets as variants."""
  leaves = [
    tf.data.experimental.to_variant(leaf) if isinstance(leaf, tf.data.Dataset) else leaf
    for leaf in _leaves(type_, value, what)
  ]
  return trees.nested(type_, iter(leaves))


def _leaves(type_, value, what) -> list[Any]:
  """The leaves of a value: tensors and data sets."""
  names = trees.leaf_names(type_)
  return [
    values.dataset(leaf_type, leaf)
    if isinstance(leaf_type, tff.SequenceType)
    else trees.to_tensor(leaf, leaf_type, f'{what}: {name}')
    for leaf, leaf_type, name in zip(
      trees.flatten(type_, value, what), trees.leaf_types(type_), names, strict=True
    )
  ]


def _held(leaf: steps.Leaf, value: Any) -> Any:
  """A piece's output as other pieces take it: a sequence is a data set, no variant."""
  if not isinstance(leaf.type, tff.SequenceType):
    return value
  if leaf.at_clients:
    return [values.dataset(leaf.type, v) for v in value]
  return values.dataset(leaf.type, value)


def _result_part(type_, part, known, count):
  def of_server(leaf):
    if isinstance(leaf, bb.Literal):
      return tf.constant(leaf.value, tf.as_dtype(leaf.type_signature.dtype))
    return known[leaf]

  def of_client(k):
    return lambda leaf: (
      known[leaf][k] if isinstance(leaf, steps.Leaf) and leaf.at_clients else of_server(leaf)
    )

  if stages.is_client_part(type_):
    return [tf.nest.map_structure(of_client(k), part) for k in range(count)]
  return tf.nest.map_structure(of_server, part)
