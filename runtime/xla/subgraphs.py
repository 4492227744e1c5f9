"""A TensorFlow graph's results apart: those that XLA can compute, and those that it cannot."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.tff_internals import computation_pb2
from runtime.xla import checks, graph_import, obstacles


class NotCutError(Exception):
  """A program that cannot be cut; the message says why."""


class Graph:
  """The graph of a `CompiledComputation`, whose results can be computed apart."""

  def __init__(self, block: bb.CompiledComputation, refused: Mapping[str, str]):
    proto = block.proto
    if proto.WhichOneof('computation') != 'tensorflow':
      raise NotCutError(f'a {proto.WhichOneof("computation")} computation')
    self._block = block
    self._refused = refused
    self._graph = proto.tensorflow
    self._graph_def = tf.compat.v1.GraphDef()
    self._graph.graph_def.Unpack(self._graph_def)
    signature = block.type_signature
    self.parameters = []
    self._parameter_types = []
    if signature.parameter is not None:
      self._bindings = list(_leaf_bindings(self._graph.parameter))
      self.parameters = [_tensor_name(b) for b in self._bindings]
      self._parameter_types = trees.leaf_types(signature.parameter)
    self._result_bindings = list(_leaf_bindings(self._graph.result))
    self.results = [_tensor_name(b) for b in self._result_bindings]
    self._compiled = checks.without(self._graph_def, self.results)
    self._nodes = {node.name: node for node in self._compiled.node}
    self._library = {f.signature.name: f for f in self._compiled.library.function}
    self.result_types = trees.leaf_types(signature.result)

  def _ancestors(self, indices, is_compiled: bool = True) -> set[str]:
    """The nodes that some results depend on; the initialisation of what they use included.

    XLA makes no assertions and prints nothing: what only these use is not needed there.
    """
    past = obstacles.IGNORED if is_compiled else ()
    graph_def = self._compiled if is_compiled else self._graph_def
    found = graph_import.ancestors(graph_def, [self.results[i] for i in indices], past)
    if self._graph.initialize_op and any(self._is_resource(name) for name in found):
      found |= graph_import.ancestors(graph_def, [self._graph.initialize_op], past)
    return found

  def _is_resource(self, name) -> bool:
    node = self._nodes[name]
    return any('Table' in op or op == 'VarHandleOp' for op in (node.op, *self._ops_called(node)))

  def _ops_called(self, node) -> set[str]:
    found, pending = set(), [n for n in obstacles.called(node) if n in self._library]
    seen = set()
    while pending:
      name = pending.pop()
      if name in seen:
        continue
      seen.add(name)
      for inner in self._library[name].node_def:
        found.add(inner.op)
        pending += [n for n in obstacles.called(inner) if n in self._library]
    return found

  def obstacles(self, index: int) -> list[obstacles.Obstacle]:
    """Why a result cannot be compiled."""
    ancestors = self._ancestors([index])
    used = self._used_parameters(ancestors)
    types = [self.result_types[index], *(self._parameter_types[i] for i in used)]
    found = [o for type_ in types for o in obstacles.of_type(type_)]
    nodes = [self._nodes[name] for name in sorted(ancestors)]
    return list(dict.fromkeys([*obstacles.of_nodes(nodes, self._library, self._refused), *found]))

  def _used_parameters(self, ancestors) -> list[int]:
    return [i for i, name in enumerate(self.parameters) if name.split(':')[0] in ancestors]

  def shares_state(self, some, others) -> bool:
    """Whether two groups of results depend on one random draw, or another op with a state."""
    shared = self._ancestors(some) & self._ancestors(others)
    return any(
      obstacles.is_stateful(op)
      for name in shared
      for op in (self._nodes[name].op, *self._ops_called(self._nodes[name]))
    )

  def restricted(
    self, indices: Sequence[int], is_compiled: bool
  ) -> tuple[list[int], bb.CompiledComputation]:
    """What computes some of the results, from the parameters that they depend on, both flat.

    Returns:
      The positions of these parameters, and the graph.
    """
    ancestors = self._ancestors(indices, is_compiled)
    used = self._used_parameters(ancestors)
    parameter = None
    if used:
      parameter = tff.StructType([(None, self._parameter_types[i]) for i in used])
    result = tff.StructType([(None, self.result_types[i]) for i in indices])
    type_ = tff.FunctionType(parameter, result)
    proto = computation_pb2.Computation(type=tff.types.serialize_type(type_))
    graph = proto.tensorflow
    graph.CopyFrom(self._graph)
    graph.ClearField('parameter')
    graph.ClearField('result')
    for i in used:
      graph.parameter.struct.element.append(self._bindings[i])
    for i in indices:
      graph.result.struct.element.append(self._result_bindings[i])
    if not any(self._is_resource(name) for name in ancestors):
      graph.ClearField('initialize_op')
    if is_compiled:
      graph_def = tf.compat.v1.GraphDef()
      graph_def.CopyFrom(self._compiled)
      for node in graph_def.node:
        if node.op in obstacles.IGNORED and node.op != 'Placeholder':
          node.op = 'NoOp'
          del node.input[:]
          node.attr.clear()
      graph.graph_def.Pack(graph_def)
    return used, bb.CompiledComputation(proto, type_signature=type_)

  def description(self, indices) -> str:
    """What some of its results are, for people."""
    names = trees.leaf_names(self._block.type_signature.result)
    wanted = [names[i] for i in indices]
    shown = ', '.join(wanted[:3]) + (', ...' if len(wanted) > 3 else '')
    return f'a graph that computes {shown}'


def _leaf_bindings(binding) -> Iterator[Any]:
  if binding.WhichOneof('binding') == 'struct':
    for element in binding.struct.element:
      yield from _leaf_bindings(element)
  elif binding.WhichOneof('binding') is not None:
    yield binding


def _tensor_name(binding) -> str:
  if binding.WhichOneof('binding') == 'sequence':
    return binding.sequence.variant_tensor_name
  return binding.tensor.tensor_name
