"""What a program computes, as steps from leaves to leaves.

A program is taken apart to its single calls of TensorFlow graphs, and a graph to the
results that XLA can compute and those that it cannot. A step's inputs and results are
*leaves*: tensors, or sequences.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import local, obstacles, program, subgraphs

_Kind = program.Kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
  """A tensor or a sequence: an element of a parameter, or of a step's value.

  Attributes:
    source: the name of the step, or of the program's parameter.
    path: the positions of the element in it.
    type: its type, without placement.
    at_clients: whether each client has its own.
  """

  source: str
  path: tuple[int, ...]
  type: tff.Type
  at_clients: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """One call of a graph, or of an intrinsic that is more than such a call.

  Attributes:
    name: the name of its value.
    what: what it is, for people.
    kind: where its value lives.
    inputs: what it is computed from.
    obstacles: why it cannot be compiled; none if it can.
    build: gives its nodes, as (name, block, kind), from a function that makes a leaf a block.
  """

  name: str
  what: str
  kind: program.Kind
  inputs: tuple[Leaf, ...]
  obstacles: tuple[obstacles.Obstacle, ...]
  build: Callable[[Callable[[Leaf], Any]], list[tuple[str, Any, program.Kind]]]


class Evaluation:
  """Evaluates a program with leaves in place of tensors, and notes the steps.

  Long because calls, graphs and intrinsics are evaluated by each other.

  Attributes:
    steps: by the names of their values, in an order in which they can be made.
    parameter: for every part of the program's parameter, nested tuples of leaves.
    result: for every part of its result, nested tuples of leaves and constants.
  """

  def __init__(self, prog: program.Program, refused: Mapping[str, str]):
    """Evaluates.

    Args:
      prog: the program.
      refused: types of ops that are known not to compile in it, and why.

    Raises:
      NotCutError: it has something that is not understood here.
    """
    self.steps: dict[str, Step] = {}
    self.parameter: tuple[Any, ...] = ()
    self._refused = refused
    self._count = 0
    env: dict[str, Any] = {}
    if prog.parameter_name is not None:
      whole = _parameter_leaves(prog.parameter_name, prog.parameter_type, (), False)
      env[prog.parameter_name] = whole
      self.parameter = tuple(_parts(prog.parameter_type, whole))
    for node in prog.nodes:
      env[node.name] = self._node(node, env)
    result = self._evaluate(prog.result, env, _Kind.SERVER)
    self.result = tuple(_parts(prog.result_type, result))

  def _node(self, node: program.Node, env) -> Any:
    if node.kind is _Kind.AGGREGATE:
      return self._aggregate(node, env)
    uri = node.intrinsic
    if uri is None:
      return self._evaluate(node.block, env, node.kind)
    if uri in ('federated_apply', 'federated_map', 'federated_map_all_equal'):
      argument = self._evaluate(node.argument(1), env, node.kind)
      return self._call(node.argument(0), argument, env, node.kind)
    if uri in ('federated_eval_at_clients', 'federated_eval_at_server'):
      return self._call(node.block.argument, None, env, node.kind)
    if uri in program.SELECT_INTRINSICS:
      return self._whole_intrinsic(node, env)
    return self._evaluate(node.block.argument, env, node.kind)

  def _evaluate(self, block, env, kind) -> Any:
    if isinstance(block, bb.Reference):
      return env[block.name]
    if isinstance(block, bb.Selection):
      return self._evaluate(block.source, env, kind)[local.selected_index(block)]
    if isinstance(block, bb.Struct):
      return tuple(self._evaluate(element, env, kind) for element in block)
    if isinstance(block, bb.Block):
      env = dict(env)
      for name, value in block.locals:
        env[name] = self._evaluate(value, env, kind)
      return self._evaluate(block.result, env, kind)
    if isinstance(block, bb.Literal):
      return block
    if isinstance(block, bb.Call):
      argument = None
      if block.argument is not None:
        argument = self._evaluate(block.argument, env, kind)
      return self._call(block.function, argument, env, kind)
    if isinstance(block, (bb.Lambda, bb.CompiledComputation)):
      return lambda argument: self._call(block, argument, env, kind)
    raise subgraphs.NotCutError(f'a {type(block).__name__}')

  def _call(self, function, argument, env, kind) -> Any:
    if isinstance(function, bb.CompiledComputation):
      return self._graph(function, argument, kind)
    if isinstance(function, bb.Lambda):
      inner = dict(env)
      if function.parameter_name is not None:
        inner[function.parameter_name] = argument
      return self._evaluate(function.result, inner, kind)
    if isinstance(function, bb.Reference):
      return env[function.name](argument)
    raise subgraphs.NotCutError(f'a call of {function}')

  def _new_name(self) -> str:
    self._count += 1
    return f'_step_{self._count}'

  def _graph(self, block: bb.CompiledComputation, argument, kind) -> Any:
    """A call of a TensorFlow graph: a step for what XLA can compute, and one for the rest."""
    graph = subgraphs.Graph(block, self._refused)
    given = [] if argument is None else _flat(argument)
    results: list[Any] = [None] * len(graph.results)
    compiled: list[int] = []
    on_host: list[int] = []
    for index, name in enumerate(graph.results):
      if name in graph.parameters:
        results[index] = given[graph.parameters.index(name)]
      else:
        (on_host if graph.obstacles(index) else compiled).append(index)
    if on_host and graph.shares_state(compiled, on_host):
      compiled, on_host = [], sorted(compiled + on_host)
    for indices, is_compiled in ((compiled, True), (on_host, False)):
      if indices:
        self._add_graph_step(graph, indices, is_compiled, given, results, kind)
    return trees.nested(block.type_signature.result, iter(results))

  def _add_graph_step(self, graph, indices, is_compiled, given, results, kind):
    name = self._new_name()
    used, function = graph.restricted(indices, is_compiled)
    arguments = [given[i] for i in used]

    def build(block_of):
      argument = bb.Struct([block_of(a) for a in arguments]) if arguments else None
      return [(name, bb.Call(function, argument), kind)]

    found = [] if is_compiled else [o for i in indices for o in graph.obstacles(i)]
    self.steps[name] = Step(
      name=name,
      what=graph.description(indices),
      kind=kind,
      inputs=tuple(a for a in arguments if isinstance(a, Leaf)),
      obstacles=tuple(dict.fromkeys(found)),
      build=build,
    )
    for position, index in enumerate(indices):
      results[index] = Leaf(
        source=name,
        path=(position,),
        type=graph.result_types[index],
        at_clients=kind is _Kind.CLIENTS,
      )

  def _aggregate(self, node: program.Node, env) -> Any:
    """An aggregation; the report of a `federated_aggregate` is a step of its own."""
    if node.intrinsic != 'federated_aggregate':
      return self._whole_intrinsic(node, env)
    call = node.block
    functions = [node.argument(i) for i in (2, 3)]
    accumulator = node.argument(4).type_signature.parameter  # Its shapes may vary, zero's not.
    pass_on = bb.Lambda('_total', accumulator, bb.Reference('_total', accumulator))
    of_function = call.function.type_signature.parameter
    names = [name for name, _ in trees.fields(of_function)]
    types = [*(t for _, t in trees.fields(of_function))][:-1]
    types.append(tff.FunctionType(accumulator, accumulator))
    intrinsic = bb.Intrinsic(
      'federated_aggregate',
      tff.FunctionType(
        tff.StructType(list(zip(names, types, strict=True))),
        tff.FederatedType(accumulator, tff.SERVER),
      ),
    )
    arguments = [node.argument(0), node.argument(1), *functions, pass_on]
    total = self._whole_intrinsic(node, env, intrinsic=intrinsic, arguments=arguments)
    return self._call(node.argument(4), total, env, _Kind.SERVER)

  def _whole_intrinsic(self, node, env, intrinsic=None, arguments=None) -> Any:
    """A step that is a call of an intrinsic, with its values given as leaves."""
    name = self._new_name()
    intrinsic = intrinsic or node.block.function
    is_struct = isinstance(intrinsic.type_signature.parameter, tff.StructType)
    if arguments is None:
      count = len(intrinsic.type_signature.parameter) if is_struct else 1
      arguments = [node.argument(i) for i in range(count)] if is_struct else [node.block.argument]
    values: list[Any] = []  # (type, leaves) of a value, or a function's block
    inputs: list[Leaf] = []
    result_type = trees.member(intrinsic.type_signature.result)
    problems = [*obstacles.of_type(result_type)]
    for block in arguments:
      type_ = block.type_signature
      if isinstance(type_, tff.FunctionType):
        if isinstance(block, bb.Reference) or program.free_names(block):
          raise subgraphs.NotCutError(f'a function that uses other values, in {node.intrinsic}')
        values.append(block)
        problems += _obstacles_inside(block, self._refused)
        continue
      leaves = self._evaluate(block, env, _kind_of(type_))
      values.append((type_, leaves))
      problems += obstacles.of_type(type_)
      inputs += leaves_in(leaves)
    at_clients = node.kind is _Kind.CLIENTS

    def build(block_of):
      nodes, blocks = [], []
      for index, value in enumerate(values):
        if isinstance(value, bb.ComputationBuildingBlock):
          blocks.append(value)
          continue
        type_, leaves = value
        of_value = f'{name}_argument_{index}'
        block = _as_block(trees.member(type_), leaves, block_of)
        nodes.append((of_value, block, _kind_of(type_)))
        blocks.append(bb.Reference(of_value, type_))
      if is_struct:
        fields = trees.fields(intrinsic.type_signature.parameter)
        named = [(field, block) for (field, _), block in zip(fields, blocks, strict=True)]
        argument = bb.Struct(named)
      else:
        (argument,) = blocks
      return [*nodes, (name, bb.Call(intrinsic, argument), node.kind)]

    self.steps[name] = Step(
      name=name,
      what=node.intrinsic,
      kind=node.kind,
      inputs=tuple(inputs),
      obstacles=tuple(dict.fromkeys(problems)),
      build=build,
    )
    return _leaves_of(name, result_type, (), at_clients)


def _parameter_leaves(name, type_, path, at_clients):
  at_clients = at_clients or _kind_of(type_) is _Kind.CLIENTS
  type_ = trees.member(type_)
  if isinstance(type_, tff.StructType):
    return tuple(
      _parameter_leaves(name, element, (*path, i), at_clients)
      for i, (_, element) in enumerate(trees.fields(type_))
    )
  return Leaf(source=name, path=path, type=type_, at_clients=at_clients)


def leaves_in(value: Any) -> list[Leaf]:
  """The leaves of nested tuples; constants are left out."""
  return [leaf for leaf in _flat(value) if isinstance(leaf, Leaf)]


def _kind_of(type_) -> program.Kind:
  varies = trees.is_clients(type_) and not type_.all_equal
  return _Kind.CLIENTS if varies else _Kind.SERVER


def _flat(value) -> list[Any]:
  return [x for v in value for x in _flat(v)] if isinstance(value, tuple) else [value]


def _parts(type_, value) -> list[Any]:
  if isinstance(type_, tff.StructType):
    return [p for (_, t), v in zip(trees.fields(type_), value, strict=True) for p in _parts(t, v)]
  return [value]


def _leaves_of(name, type_, path, at_clients) -> Any:
  if isinstance(type_, tff.StructType):
    return tuple(
      _leaves_of(name, element, (*path, i), at_clients)
      for i, (_, element) in enumerate(trees.fields(type_))
    )
  return Leaf(source=name, path=path, type=type_, at_clients=at_clients)


def _as_block(type_, value, block_of):
  """Nested leaves as a building block of a type."""
  if isinstance(type_, tff.StructType):
    return bb.Struct(
      [
        (name, _as_block(element, v, block_of))
        for (name, element), v in zip(trees.fields(type_), value, strict=True)
      ]
    )
  return block_of(value)


def _obstacles_inside(block, refused) -> list[obstacles.Obstacle]:
  """Why the graphs inside a function cannot be compiled."""
  graphs = _graphs(block, refused)
  return [o for graph in graphs for i in range(len(graph.results)) for o in graph.obstacles(i)]


def _graphs(block, refused) -> list[subgraphs.Graph]:
  """The graphs inside a function."""
  if isinstance(block, bb.CompiledComputation):
    return [subgraphs.Graph(block, refused)]
  return [graph for child in block.children() for graph in _graphs(child, refused)]
