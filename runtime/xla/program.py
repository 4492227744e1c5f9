"""A TFF computation as stages of server work, client work and aggregation.

TFF's compiler flattens a computation to a list of calls of intrinsics
(`to_call_dominant`). Each call gets a kind and a stage:

    stage 0:  server work | client work and aggregation, one pass over the clients
    stage 1:  server work | client work and aggregation
    ...

Server work of a stage may use the aggregates of the stage before. All client
work of a stage is done for one client after the other (or block after block),
and its aggregates are summed as it goes. So a client's value needs memory for
the whole cohort only if a later stage or the result asks for it.
"""

import collections
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import local, sequence_calls
from runtime.xla.lowering import scope


class Kind(enum.Enum):
  """Where a call's value lives."""

  SERVER = 'server'  # one value, at the server, unplaced, or equal at all clients
  CLIENTS = 'clients'  # one value for each client
  AGGREGATE = 'aggregate'  # one value, made of all clients' values


_SERVER_INTRINSICS = frozenset(
  [
    'federated_apply',
    'federated_broadcast',
    'federated_eval_at_server',
    'federated_map_all_equal',
    'federated_value_at_clients',
    'federated_value_at_server',
    'federated_zip_at_server',
  ]
)
_CLIENTS_INTRINSICS = frozenset(['federated_eval_at_clients', 'federated_map'])
SELECT_INTRINSICS = frozenset(['federated_secure_select', 'federated_select'])
_AGGREGATE_INTRINSICS = frozenset(
  [
    'federated_aggregate',
    'federated_max',
    'federated_mean',
    'federated_min',
    'federated_secure_modular_sum',
    'federated_secure_sum',
    'federated_secure_sum_bitwidth',
    'federated_sum',
    'federated_weighted_mean',
  ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
  """One call of the flat form."""

  name: str
  block: bb.ComputationBuildingBlock
  kind: Kind
  stage: int
  inputs: frozenset[str]

  @property
  def intrinsic(self) -> str | None:
    """The intrinsic's name, None for a local call."""
    return _intrinsic(self.block)

  @property
  def type(self) -> tff.Type:
    """The type of the call's value."""
    return self.block.type_signature

  def argument(self, index: int) -> bb.ComputationBuildingBlock:
    """An element of the call's argument."""
    argument = self.block.argument
    return (
      argument[index] if isinstance(argument, bb.Struct) else bb.Selection(argument, index=index)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A computation's calls in an order in which they can be made."""

  parameter_name: str | None
  parameter_type: tff.Type | None
  result: bb.ComputationBuildingBlock
  result_type: tff.Type
  nodes: tuple[Node, ...]

  @property
  def num_stages(self) -> int:
    """The number of stages; the last has server work only."""
    return 1 + max(
      [0, *(n.stage + (n.kind is Kind.AGGREGATE or n.kind is Kind.CLIENTS) for n in self.nodes)]
    )

  @property
  def is_static(self) -> bool:
    """Whether XLA can take it with nothing lowered: numbers of known shapes, and no variables."""
    blocks = (self.result, *(n.block for n in self.nodes))
    types = [self.result_type, *(n.type for n in self.nodes)]
    types += [] if self.parameter_type is None else [self.parameter_type]
    parts = (part for type_ in types for part in placed_parts(type_))
    return not any(map(_has_variables, blocks)) and all(map(trees.is_static, parts))

  def select(self, kind: Kind, stage: int) -> list[Node]:
    """The calls of a kind in a stage."""
    return [n for n in self.nodes if n.kind is kind and n.stage == stage]

  def visited(self, stage: int) -> list[Node]:
    """The calls that are made for each client in a stage.

    Besides the stage's own these are earlier ones which give data sets: such a value is
    not kept, but made again where it is used.
    """
    own = self.select(Kind.CLIENTS, stage)
    used = {i for n in (*own, *self.select(Kind.AGGREGATE, stage)) for i in n.inputs}
    again: list[Node] = []
    for node in reversed(self.nodes):
      is_earlier = node.kind is Kind.CLIENTS and node.stage < stage
      if is_earlier and node.name in used and has_sequence(node.type):
        again.insert(0, node)
        used |= node.inputs
    return [*again, *own]

  def kept(self, stage: int) -> list[Node]:
    """The client values of a stage which a later stage or the result needs."""
    later = set(free_names(self.result))
    for node in self.nodes:
      if node.stage > stage:
        later |= node.inputs
    for other in range(stage + 1, self.num_stages):
      for node in self.visited(other):
        later |= node.inputs
    nodes = self.select(Kind.CLIENTS, stage)
    return [n for n in nodes if n.name in later and not has_sequence(n.type)]


def build(computation: Any) -> Program:
  """Compiles a TFF computation to a program.

  Raises:
    UnsupportedComputationError: it uses an intrinsic that is not known here.
  """
  block = computation.to_building_block()
  if not isinstance(block, bb.Lambda):
    block = _as_lambda(block)
  signature = computation.type_signature
  flat = tff.framework.to_call_dominant(block)
  return of_flat_form(flat, signature.parameter, signature.result)


def to_flat_form(prog: Program) -> bb.Lambda:
  """What `of_flat_form` makes the program of a whole computation from."""
  body = bb.Block([(node.name, node.block) for node in prog.nodes], prog.result)
  return bb.Lambda(prog.parameter_name, prog.parameter_type, body)


def of_flat_form(
  flat: bb.Lambda, parameter_type: tff.Type | None, result_type: tff.Type
) -> Program:
  """The program of a flat form.

  Args:
    flat: as TFF's compiler flattens it; its calls keep their names.
    parameter_type: of the computation.
    result_type: of the computation.

  Raises:
    UnsupportedComputationError: it uses an intrinsic that is not known here.
  """
  body = flat.result
  calls, result = (body.locals, body.result) if isinstance(body, bb.Block) else ([], body)
  if isinstance(result, bb.Call):
    calls, result = [*calls, ('_result', result)], bb.Reference('_result', result.type_signature)
  nodes: dict[str, Node] = {}
  for name, call in calls:
    nodes[name] = _node(name, call, nodes, flat.parameter_name)
  return Program(
    parameter_name=flat.parameter_name,
    parameter_type=parameter_type,
    result=result,
    result_type=result_type,
    nodes=tuple(_needed(nodes, result)),
  )


def _as_lambda(block) -> bb.Lambda:
  parameter = block.type_signature.parameter
  if parameter is None:
    return bb.Lambda(None, None, bb.Call(block))
  return bb.Lambda('argument', parameter, bb.Call(block, bb.Reference('argument', parameter)))


def _node(name, block, nodes, parameter_name) -> Node:
  inputs = free_names(block)
  made_by = [nodes[i] for i in inputs if i in nodes]
  return node(name, block, _kind(block, made_by, parameter_name in inputs), nodes)


def node(
  name: str, block: bb.ComputationBuildingBlock, kind: Kind, nodes: Mapping[str, Node]
) -> Node:
  """A call, in the first stage in which its inputs among the nodes are there."""
  inputs = frozenset(free_names(block))
  made_by = [nodes[i] for i in inputs if i in nodes]
  stage = max([0, *(n.stage + (n.kind is Kind.AGGREGATE) for n in made_by)])
  return Node(name=name, block=block, kind=kind, stage=stage, inputs=inputs)


def _intrinsic(block) -> str | None:
  if not (isinstance(block, bb.Call) and isinstance(block.function, bb.Intrinsic)):
    return None
  return None if block.function.uri in local.INTRINSICS else block.function.uri


def _kind(block, made_by, uses_parameter: bool) -> Kind:
  uri = _intrinsic(block)
  if uri is None or uri in _SERVER_INTRINSICS:
    return Kind.SERVER
  if uri in _AGGREGATE_INTRINSICS:
    return Kind.AGGREGATE
  if uri in _CLIENTS_INTRINSICS or uri in SELECT_INTRINSICS:
    return Kind.CLIENTS
  if uri == 'federated_zip_at_clients':
    varies = uses_parameter or any(n.kind is Kind.CLIENTS for n in made_by)
    return Kind.CLIENTS if varies else Kind.SERVER
  raise local.unsupported(f'the intrinsic {uri}')


def _needed(nodes, result) -> Iterator[Node]:
  needed = set()
  pending = collections.deque(free_names(result))
  while pending:
    name = pending.popleft()
    if name in nodes and name not in needed:
      needed.add(name)
      pending.extend(nodes[name].inputs)
  return (node for name, node in nodes.items() if name in needed)


def _has_variables(block: bb.ComputationBuildingBlock) -> bool:
  """Whether a graph inside a block initialises variables or tables."""
  if isinstance(block, bb.CompiledComputation):
    return bool(block.proto.tensorflow.initialize_op)
  return any(map(_has_variables, block.children()))


def free_names(block: bb.ComputationBuildingBlock) -> list[str]:
  """The names which a block refers to and does not bind itself."""
  if isinstance(block, bb.Reference):
    return [block.name]
  if isinstance(block, bb.Lambda):
    return [n for n in free_names(block.result) if n != block.parameter_name]
  if isinstance(block, bb.Block):
    names, bound = [], set()
    for name, value in block.locals:
      names += [n for n in free_names(value) if n not in bound]
      bound.add(name)
    return names + [n for n in free_names(block.result) if n not in bound]
  return [name for child in block.children() for name in free_names(child)]


def placed_parts(type_: tff.Type) -> list[tff.Type]:
  """The placed types inside a type, and its unplaced leaves, depth first."""
  if isinstance(type_, tff.StructType):
    return [part for _, element in trees.fields(type_) for part in placed_parts(element)]
  return [type_]


def part_blocks(
  block: bb.ComputationBuildingBlock, type_: tff.Type
) -> list[bb.ComputationBuildingBlock]:
  """The blocks of a value's placed parts, in the order of `placed_parts`."""
  if not isinstance(type_, tff.StructType):
    return [block]
  return [
    part
    for index, (_, element) in enumerate(trees.fields(type_))
    for part in part_blocks(
      block[index] if isinstance(block, bb.Struct) else bb.Selection(block, index=index), element
    )
  ]


def has_sequence(type_: tff.Type) -> bool:
  """Whether a leaf of the type is a sequence."""
  return any(
    isinstance(leaf, tff.SequenceType)
    for part in placed_parts(type_)
    for leaf in trees.leaf_types(part)
  )


def has_placement(type_: tff.Type) -> bool:
  """Whether a part of the type is at SERVER or CLIENTS."""
  return any(isinstance(p, tff.FederatedType) for p in placed_parts(type_))


def evaluate(node: Node, env: Any) -> Any:
  """The value of a SERVER call, or of a CLIENTS call for one client.

  Args:
    node: a call that is no aggregation.
    env: values by name: of the server, and of this client.
  """
  uri = node.intrinsic
  if uri is None:
    return local.evaluate(node.block, env)
  if uri in ('federated_apply', 'federated_map', 'federated_map_all_equal'):
    return local.call(node.argument(0), local.evaluate(node.argument(1), env), env)
  if uri in ('federated_eval_at_clients', 'federated_eval_at_server'):
    return local.call(node.block.argument, None, env)
  if uri in SELECT_INTRINSICS:
    if scope.current() is None:
      raise local.unsupported(f'the intrinsic {uri} here')
    keys, whole = (local.evaluate(node.argument(i), env) for i in (0, 2))
    pick = node.argument(3)
    return sequence_calls.select(
      trees.member(node.type), lambda key: local.call(pick, (whole, key), env), keys
    )
  return local.evaluate(node.block.argument, env)
