"""Runs the TensorFlow graph of a TFF `CompiledComputation` inside another graph.

TFF serialises a `tff.tensorflow.computation` as a GraphDef with bindings which
say which tensors are its parameters and results. Importing it with
`tf.graph_util.import_graph_def` alone is not enough here:

*   XLA refuses placeholders, so the bound ones and the session token go.
*   `pfor` can only look into a `While` or a function call if the function is a
    real `FuncGraph`; so the library's functions are rebuilt as
    `ConcreteFunction`s, callees first, instead of being copied as FunctionDefs.

A graph with data sets, variables or random ops is interpreted instead, when the program is
one to be compiled; see `lowering`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import function_def_to_graph, ops
from tensorflow.python.ops import control_flow_util

from runtime.xla import checks, exact_division, obstacles, reductions, replacements
from runtime.xla.lowering import graphs, scope

_ANONYMOUS = b'cd2c89b7-88b7-44c8-ad83-06c2a9158347'  # ResourceHandle::ANONYMOUS_NAME
_EMPTY_TABLES = {
  'MutableDenseHashTableV2': 'AnonymousMutableDenseHashTable',
  'MutableHashTableOfTensorsV2': 'AnonymousMutableHashTableOfTensors',
  'MutableHashTableV2': 'AnonymousMutableHashTable',
}
# Marks a function of one device. TensorFlow optimises a data set's other functions anew at each
# reading, which takes as long as a client's whole work on strings.
_ONE_DEVICE = 'experimental_ints_on_device'


def run(proto: Any, argument: Any) -> Any:
  """Adds a computation's graph to the current graph and returns its result.

  Args:
    proto: a `computation_pb2.Computation` whose `tensorflow` field is set.
    argument: nested tuples of tensors (sequences as variant tensors), or None.

  Returns:
    The result as nested tuples of tensors (sequences as variant tensors).
  """
  tensorflow = proto.tensorflow
  graph_def = tf.compat.v1.GraphDef()
  tensorflow.graph_def.Unpack(graph_def)
  where = scope.current()
  if where is not None and (where.session.bounds or graphs.is_needed(proto, graph_def)):
    return graphs.run(proto, graph_def, argument, where)
  feeds: dict[str, Any] = {}
  if tensorflow.HasField('parameter'):
    _bind(tensorflow.parameter, argument, feeds)
  results = _tensor_names(tensorflow.result)
  graph = ops.get_default_graph()
  is_compiled = control_flow_util.GraphOrParentsInXlaContext(graph)
  if is_compiled:
    graph_def = checks.without(graph_def, results)

  needed = ancestors(graph_def, results)
  if tensorflow.initialize_op:
    _run_initializer_first(graph_def, tensorflow.initialize_op)
    needed |= ancestors(graph_def, [tensorflow.initialize_op])
  fed = {name.split(':')[0] for name in (*feeds, tensorflow.session_token_tensor_name)}
  _keep(graph_def, needed, fed)
  _own_resources(graph_def)
  _own_states(graph_def)
  if is_compiled:
    exact_division.keep(graph_def)
  _rebuild_library(graph_def, is_compiled)
  used = {name.lstrip('^').split(':')[0] for node in graph_def.node for name in node.input}
  fetches = [name for name in results if name not in feeds]
  fetched = {}
  if fetches:
    before = len(graph.get_operations())
    imported = tf.graph_util.import_graph_def(
      graph_def,
      input_map={k: v for k, v in feeds.items() if k.split(':')[0] in used},
      return_elements=fetches,
      name='tff',
    )
    if is_compiled:
      imported = replacements.replaced(graph.get_operations()[before:], imported)
    fetched = dict(zip(fetches, imported, strict=True))
  # A result may be a parameter that is passed through.
  return _unbind(tensorflow.result, iter([feeds[n] if n in feeds else fetched[n] for n in results]))


def _bind(binding, value, feeds) -> None:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    # An identity, because importing does not capture tensors of an outer graph.
    feeds[binding.tensor.tensor_name] = tf.identity(value)
  elif kind == 'sequence':
    feeds[binding.sequence.variant_tensor_name] = tf.identity(value)
  elif kind == 'struct':
    for element, part in zip(binding.struct.element, value, strict=True):
      _bind(element, part, feeds)


def _tensor_names(binding) -> list[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  return [name for element in binding.struct.element for name in _tensor_names(element)]


def _unbind(binding, tensors: Iterator[tf.Tensor]) -> Any:
  if binding.WhichOneof('binding') == 'struct':
    return tuple(_unbind(element, tensors) for element in binding.struct.element)
  return next(tensors)


def ancestors(graph_def: Any, names: Iterable[str], past: Container[str] = ()) -> set[str]:
  """The nodes that some nodes depend on, and these.

  Args:
    graph_def: a GraphDef.
    names: names of nodes or tensors.
    past: types of ops whose own inputs do not matter.
  """
  nodes = {node.name: node for node in graph_def.node}
  found = set()
  pending = list(names)
  while pending:
    name = pending.pop().lstrip('^').split(':')[0]
    if name not in found:
      found.add(name)
      if nodes[name].op not in past:
        pending += nodes[name].input
  return found


def _run_initializer_first(graph_def, initializer: str) -> None:
  """Makes everything wait for the initialisation of the graph's variables and tables."""
  before = ancestors(graph_def, [initializer])
  for node in graph_def.node:
    if node.name not in before and node.op not in ('Placeholder', 'Const'):
      node.input.append(f'^{initializer}')


def _own_resources(graph_def) -> None:
  """Gives variables and tables names that no other computation of this process has.

  A table that changes has none: each execution, such as a client's, begins with an empty one.
  """
  suffix = f'_{ops.uid()}'
  for node in [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]:
    if node.op in _EMPTY_TABLES:
      node.op = _EMPTY_TABLES[node.op]
      for name in ('container', 'shared_name', 'use_node_name_sharing'):
        node.attr.pop(name, None)
    elif 'shared_name' in node.attr:
      name = node.attr['shared_name'].s or node.name.encode()
      if name != _ANONYMOUS:
        node.attr['shared_name'].s = name + suffix.encode()


def _own_states(graph_def) -> None:
  """Copies what generators begin with that draw binomial numbers.

  TensorFlow's op writes over it, a constant too, so that the next execution would begin elsewhere.
  """
  if 'StatefulRandomBinomial' not in graphs.ops_of(graph_def):
    return
  for node in [n for n in graph_def.node if n.op == 'AssignVariableOp']:
    copy = graph_def.node.add(name=f'{node.name}/copy', op='DeepCopy', input=[node.input[1]])
    copy.attr['T'].CopyFrom(node.attr['dtype'])
    node.input[1] = copy.name


def _keep(graph_def, needed: set[str], fed: set[str]) -> None:
  """Drops the nodes that are not needed, and the placeholders that are fed."""
  nodes = [n for n in graph_def.node if n.name in needed]
  dropped = {n.name for n in nodes if n.op == 'Placeholder' and n.name in fed}
  kept = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
  kept.node.extend(n for n in nodes if n.name not in dropped)
  for node in kept.node:
    node.attr.pop('_class', None)  # Colocation with nodes that may be gone.
    for control in [i for i in node.input if i.startswith('^') and i[1:] in dropped]:
      node.input.remove(control)
  graph_def.CopyFrom(kept)


def _callees(nodes, names) -> set[str]:
  found = set()
  for node in nodes:
    if node.op in names:
      found.add(node.op)
    for attr in node.attr.values():
      for function in (attr.func, *attr.list.func):
        if function.name in names:
          found.add(function.name)
  return found


def _rename_callees(nodes, new_names: dict[str, str]) -> None:
  for node in nodes:
    node.op = new_names.get(node.op, node.op)
    for attr in node.attr.values():
      for function in (attr.func, *attr.list.func):
        if function.name:
          function.name = new_names.get(function.name, function.name)


def _rebuild_library(graph_def, is_compiled: bool) -> None:
  """Replaces the GraphDef's function library by functions of the current graph."""
  pending = {f.signature.name: f for f in graph_def.library.function}
  needed = set()
  frontier = _callees(graph_def.node, pending)
  while frontier:
    needed |= frontier
    frontier = {
      callee for name in frontier for callee in _callees(pending[name].node_def, pending)
    } - needed
  every_node = [*graph_def.node, *(n for name in needed for n in pending[name].node_def)]
  of_data_sets = _callees([n for n in every_node if 'Dataset' in n.op], pending)
  steps = _callees([n for n in every_node if n.op == reductions.OP], pending)
  built: dict[str, concrete_function.ConcreteFunction] = {}
  suffix = f'_{ops.uid()}'
  with ops.Graph().as_default():

    def build(name):
      if name in built:
        return
      definition = type(pending[name])()
      definition.CopyFrom(pending[name])
      callees = _callees(definition.node_def, pending)
      for callee in callees:
        build(callee)
      _rename_callees(definition.node_def, _names(built))
      if not is_compiled:
        callees |= _without_reductions(definition, built)
      definition.signature.name = name + suffix
      attrs: dict[str, bool] = {}
      if name in steps:
        attrs |= reductions.UNCHANGED
      elif name in of_data_sets and not is_compiled and _is_exact(name, pending):
        attrs[_ONE_DEVICE] = True
      called = [built[c] for c in callees]
      built[name] = _concrete_function(definition, called, is_compiled, attrs)

    for name in sorted(needed):
      build(name)
    _rename_callees(graph_def.node, _names(built))
    if not is_compiled:
      _without_reductions(graph_def, built)
  graph = ops.get_default_graph()
  for function in built.values():
    function.add_to_graph(graph)
  graph_def.ClearField('library')


def _without_reductions(definition, built: dict[str, Any]) -> set[str]:
  """Makes a graph's or a function's reductions of data sets loops, which are added to `built`.

  Its functions have the names of those that were built. Returns the loops' keys.
  """
  by_name = {name: built[key] for key, name in _names(built).items()}
  is_function = hasattr(definition, 'signature')
  loops: set[str] = set()

  def added(loop) -> str:
    name = tf.compat.as_str(loop.name)
    built[name] = loop
    loops.add(name)
    return name

  for node in definition.node_def if is_function else definition.node:
    if node.op == reductions.OP:
      is_loop = reductions.as_loop(node, by_name[node.attr['f'].func.name], added)
      if is_loop and is_function:
        old, new = (f'{node.name}:{output}:' for output in ('components', 'output'))
        for user in definition.node_def:
          user.input[:] = [i.replace(old, new) if i.startswith(old) else i for i in user.input]
        for name, value in definition.ret.items():
          if value.startswith(old):
            definition.ret[name] = value.replace(old, new)
  return loops


def _names(functions) -> dict[str, str]:
  return {key: tf.compat.as_str(function.name) for key, function in functions.items()}


def _is_exact(name: str, library: Mapping[str, Any]) -> bool:
  """Whether a function gives the same optimised or not: it has no rounding, and no state."""
  nodes = library[name].node_def
  types = {t for node in nodes for a in node.attr.values() for t in (a.type, *a.list.type) if t}
  dtypes = map(tf.as_dtype, types)
  return (
    not any(dtype.is_floating or dtype.is_complex for dtype in dtypes)
    and not any(obstacles.is_stateful(node.op) for node in nodes)
    and all(_is_exact(callee, library) for callee in _callees(nodes, library))
  )


def _concrete_function(
  definition, callees, is_compiled: bool, attrs: dict[str, bool]
) -> concrete_function.ConcreteFunction:
  for callee in callees:
    callee.add_to_graph(ops.get_default_graph())
  graph = function_def_to_graph.function_def_to_graph(definition)
  if is_compiled:
    graph.outputs = replacements.replaced(graph.get_operations(), graph.outputs)
  inputs = tuple(
    tf.TensorSpec(t.shape, t.dtype, name=f'argument_{i}') for i, t in enumerate(graph.inputs)
  )
  graph.structured_input_signature = (inputs, {})
  graph.structured_outputs = list(graph.outputs)
  for callee in callees:
    callee.add_to_graph(graph)
  function_type = function_type_lib.from_structured_signature(
    (inputs, {}),
    [tf.TensorSpec(t.shape, t.dtype) for t in graph.outputs],
    graph.function_captures.capture_types,
  )
  function = concrete_function.ConcreteFunction.from_func_graph(graph, function_type, attrs=attrs)
  function.add_to_graph(ops.get_default_graph())
  return function
