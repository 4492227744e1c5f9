"""Runs the graph of a TFF computation by interpretation."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow_federated import framework as bb

from runtime.xla import checks, exact_division
from runtime.xla.lowering import (
  broadcasts,
  conditions,
  counts,
  data_lengths,
  data_ops,
  datasets,
  image_ops,
  interpreter,
  random_ops,
  row_ops,
  scope,
  sequences,
  shape_ops,
  variable_ops,
)

# What XLA cannot take as it is, or not well.
_LOWERED = {
  **conditions.OPTIONALS,
  **counts.DYNAMIC,
  **data_ops.HANDLERS,
  **image_ops.HANDLERS,
  **random_ops.HANDLERS,
  **row_ops.DECOMPOSITIONS,
  **variable_ops.HANDLERS,
}
# How ops are written anew; all others are taken as they are.
HANDLERS = broadcasts.around(
  {
    **interpreter.HANDLERS,
    **conditions.HANDLERS,
    **counts.HANDLERS,
    **random_ops.SEEDED,
    **shape_ops.HANDLERS,
    **_LOWERED,
  }
)


def inside(block: bb.ComputationBuildingBlock) -> Iterator[tuple[Any, Any]]:
  """The TensorFlow computations inside a building block, and their graphs."""
  is_graph = isinstance(block, bb.CompiledComputation)
  if is_graph and block.proto.WhichOneof('computation') == 'tensorflow':
    graph_def = tf.compat.v1.GraphDef()
    block.proto.tensorflow.graph_def.Unpack(graph_def)
    yield block.proto, graph_def
  for child in block.children():
    yield from inside(child)


def ops_of(graph_def: Any) -> set[str]:
  """The types of a graph's ops, those of its functions included."""
  nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
  return {node.op for node in nodes}


def is_needed(proto: Any, graph_def: Any) -> bool:
  """Whether a computation's graph has to be interpreted, for XLA cannot take it as it is."""
  of_gradients = {'EmptyTensorList'}  # Of loops, whose number of turns XLA has to be told.
  return (
    bool(ops_of(graph_def) & (_LOWERED.keys() | of_gradients))
    or has_lengths_of_data(graph_def)
    or bool(proto.tensorflow.initialize_op)
    or _has_sequence(proto)
  )


def has_lengths_of_data(graph_def: Any) -> bool:
  """Whether something in a graph is as long as data say."""
  return bool(ops_of(graph_def) & counts.DYNAMIC.keys() or data_lengths.ops(graph_def))


def _has_sequence(proto: Any) -> bool:
  def visit(binding):
    kind = binding.WhichOneof('binding')
    if kind == 'struct':
      return any(visit(element) for element in binding.struct.element)
    return kind == 'sequence'

  graph = proto.tensorflow
  return visit(graph.result) or (graph.HasField('parameter') and visit(graph.parameter))


def run(proto: Any, graph_def: Any, argument: Any, where: scope.Scope) -> Any:
  """Adds a computation's graph to the current graph and returns its result.

  Args:
    proto: a `computation_pb2.Computation` whose `tensorflow` field is set.
    graph_def: its graph.
    argument: nested tuples of tensors (sequences as `sequences.padded_type` says or as
      data sets that another graph made), or None.
    where: what the execution gives to the graph.

  Returns:
    The result as nested tuples of tensors (sequences as data sets).

  Raises:
    NotLowered: the graph has something that cannot be lowered.
  """
  graph = proto.tensorflow
  names = list(_tensor_names(graph.result))
  graph_def = checks.without(graph_def, names)
  exact_division.keep(graph_def)
  interp = interpreter.Interpreter(graph_def, where, HANDLERS)
  feeds: dict[str, Any] = {}
  if graph.HasField('parameter'):
    _bind(interp, graph.parameter, argument, feeds)
  if graph.session_token_tensor_name:
    feeds[graph.session_token_tensor_name] = tf.constant('')
  if graph.initialize_op:
    interp.graph(graph_def.node, feeds, [], [graph.initialize_op])
  values = interp.graph(graph_def.node, feeds, names)
  if unmade := [v for v in values if isinstance(v, datasets.Unmade)]:
    raise datasets.NotLowered(unmade[0].reason)
  return _unbind(graph.result, iter(values))


def _bind(interp: interpreter.Interpreter, binding: Any, value: Any, feeds: dict[str, Any]) -> None:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    feeds[binding.tensor.tensor_name] = tf.identity(value)
  elif kind == 'sequence':
    if not isinstance(value, datasets.Held):
      value = data_ops.from_arrays(interp, *sequences.components(value))
    feeds[binding.sequence.variant_tensor_name] = value
  elif kind == 'struct':
    for element, part in zip(binding.struct.element, value, strict=True):
      _bind(interp, element, part, feeds)


def _tensor_names(binding: Any) -> Iterator[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  else:
    for element in binding.struct.element:
      yield from _tensor_names(element)


def _unbind(binding: Any, values: Iterator[Any]) -> Any:
  if binding.WhichOneof('binding') == 'struct':
    return tuple(_unbind(element, values) for element in binding.struct.element)
  return next(values)
