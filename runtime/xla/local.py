"""Evaluates the parts of TFF's language that know nothing of placements.

A value is a nested tuple of tensors. An environment is a mapping from names to
values. What a computation does with federated values is in `program`.
"""

import collections
from collections.abc import MutableMapping
from typing import Any

import tensorflow as tf
from tensorflow_federated import framework as bb

from runtime import interface, trees
from runtime.tff_internals import intrinsic_defs
from runtime.xla import graph_import, sequence_calls

_GENERIC = {
  intrinsic_defs.GENERIC_PLUS.uri: tf.add,
  intrinsic_defs.GENERIC_MULTIPLY.uri: tf.multiply,
  intrinsic_defs.GENERIC_DIVIDE.uri: tf.divide,
}


def evaluate(block: bb.ComputationBuildingBlock, env: MutableMapping[str, Any]) -> Any:
  """The value of a building block of local calls.

  Raises:
    UnsupportedComputationError: the block has something that is not interpreted.
  """
  if isinstance(block, bb.Reference):
    return env[block.name]
  if isinstance(block, bb.Selection):
    return evaluate(block.source, env)[selected_index(block)]
  if isinstance(block, bb.Struct):
    return tuple(evaluate(element, env) for element in block)
  if isinstance(block, bb.Block):
    env = collections.ChainMap({}, env)
    for name, value in block.locals:
      env[name] = evaluate(value, env)
    return evaluate(block.result, env)
  if isinstance(block, bb.Literal):
    return tf.constant(block.value, dtype=tf.as_dtype(block.type_signature.dtype))
  if isinstance(block, bb.Call):
    argument = None if block.argument is None else evaluate(block.argument, env)
    return call(block.function, argument, env)
  if isinstance(block, (bb.Lambda, bb.CompiledComputation)):
    return lambda argument: call(block, argument, env)
  raise unsupported(type(block).__name__)


def call(
  function: bb.ComputationBuildingBlock, argument: Any, env: MutableMapping[str, Any]
) -> Any:
  """Applies a functional building block to a value (None without a parameter)."""
  if isinstance(function, bb.CompiledComputation):
    kind = function.proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise unsupported(f'a {kind} computation')
    return graph_import.run(function.proto, argument)
  if isinstance(function, bb.Lambda):
    inner: MutableMapping[str, Any] = collections.ChainMap({}, env)
    if function.parameter_name is not None:
      inner[function.parameter_name] = argument
    return evaluate(function.result, inner)
  if isinstance(function, bb.Reference):
    return env[function.name](argument)
  if isinstance(function, bb.Intrinsic):
    if function.uri in _GENERIC:
      return _elementwise(_GENERIC[function.uri], *argument)
    if function.uri in sequence_calls.INTRINSICS:
      return sequence_calls.INTRINSICS[function.uri](function.type_signature.parameter, argument)
    raise unsupported(function.uri)
  raise unsupported(type(function).__name__)


INTRINSICS = frozenset([*_GENERIC, *sequence_calls.INTRINSICS])  # which know nothing of placements


def _elementwise(op, a, b):
  """A binary operator over a struct and a struct of its form, or a scalar."""
  if isinstance(a, tuple):
    bs = b if isinstance(b, tuple) else [b] * len(a)
    return tuple(_elementwise(op, x, y) for x, y in zip(a, bs, strict=True))
  return op(a, b)


def selected_index(block: bb.Selection) -> int:
  """The position which a selection, by name or by index, stands for."""
  if block.index is not None:
    return block.index
  return [name for name, _ in trees.fields(block.source.type_signature)].index(block.name)


def unsupported(what: str) -> interface.UnsupportedComputationError:
  """The error for something which this runtime cannot do."""
  return interface.UnsupportedComputationError(
    f'The xla runtime cannot run {what}; use --runtime=native for this computation.'
  )
