"""The pieces of a program that the driver and the members of a round run, each compiled."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import interface, trees
from runtime.tff_internals import computation_pb2
from runtime.xla import aggregation, executable, local, lowered, program, state_variables
from runtime.xla import stages as stages_lib
from runtime.xla.lowering import scope

Values = Mapping[str, Any]  # by name: nested tuples of arrays or tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
  """What the clients' work of a stage, or their results, read of the server's values.

  Attributes:
    names: of the server's values.
    parts: positions of the parameter's parts at SERVER.
  """

  names: frozenset[str]
  parts: frozenset[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
  """What members make a plan from.

  Attributes:
    flat: the program's flat form, serialised.
    types: a reference to a struct of the types of the parameter's parts, serialised, which have
      arrays in the place of data sets; None for a program without data sets, variables and
      random ops.
    is_serial: whether clients are worked on one at a time, whatever `clients_per_block` says.
  """

  flat: bytes
  types: bytes | None = None
  is_serial: bool = False


class Plan:
  """A program as driver and members both have it.

  Attributes:
    program: the program.
    text: what members make theirs from.
    part_types: the types of the parameter's parts.
    result_types: the types of the result's parts.
    client_stages: the stages in which clients have work.
  """

  def __init__(self, prog: program.Program, text: Text):
    self.program = prog
    self.text = text
    self.part_types = (
      [] if prog.parameter_type is None else program.placed_parts(prog.parameter_type)
    )
    self.result_types = program.placed_parts(prog.result_type)
    self._results = program.part_blocks(prog.result, prog.result_type)
    stages = stages_lib.Stages(program=prog, block=1, settings=None)
    self.client_stages = [s for s in range(prog.num_stages) if stages.has_client_work(s)]

  @classmethod
  def of(
    cls, prog: program.Program, types: Sequence[Any] | None = None, *, is_serial: bool = False
  ) -> 'Plan':
    """The plan of a whole computation's program; for `types` and `is_serial` see `Text`."""
    flat, own = _serialized(program.to_flat_form(prog)), None
    if types is not None:
      struct = tff.StructType([(None, type_) for type_ in types])
      own = _serialized(bb.Reference('parts', struct))
    return cls.read(Text(flat=flat, types=own, is_serial=is_serial))

  @classmethod
  def read(cls, text: Text) -> 'Plan':
    """The plan that another process has made."""
    flat = _read(text.flat)
    signature = flat.type_signature
    prog = program.of_flat_form(flat, signature.parameter, signature.result)
    if text.types is not None:
      struct = _read(text.types).type_signature
      prog = lowered.with_parts(prog, [type_ for _, type_ in trees.fields(struct)])
    return cls(prog, text)

  @functools.cache  # noqa: B019 - a plan is kept as long as its computation
  def needs(self, stage: int | None) -> Needs:
    """What a stage's work at the clients, or (None) their results, read of the server."""
    prog = self.program
    if stage is None:
      blocks = [b for b, t in self.results(stages_lib.is_client_part)]
      names = {name for block in blocks for name in program.free_names(block)}
    else:
      aggregates = prog.select(program.Kind.AGGREGATE, stage)
      nodes = [*prog.visited(stage), *aggregates]
      blocks = [node.block for node in nodes]
      names = {name for node in nodes for name in node.inputs}
      names |= {f'zero:{n.name}' for n in aggregates if aggregation.reduction(n) is None}
    kinds = {node.name: node.kind for node in prog.nodes}
    here = {n for n in names if kinds.get(n) not in (None, program.Kind.CLIENTS) or ':' in n}
    parts = {
      index
      for block in blocks
      for index in self.parts_of(block)
      if not stages_lib.is_client_part(self.part_types[index])
    }
    return Needs(names=frozenset(here), parts=frozenset(parts))

  def results(self, wanted: Any) -> list[tuple[bb.ComputationBuildingBlock, Any]]:
    """(block, type) of the result's parts whose type is wanted."""
    pairs = zip(self._results, self.result_types, strict=True)
    return [(block, type_) for block, type_ in pairs if wanted(type_)]

  def parts_of(self, block: bb.ComputationBuildingBlock) -> set[int]:
    """Positions of the parameter's parts that a block reads."""
    path: list[int] = []
    inner = block
    while isinstance(inner, bb.Selection):
      path.insert(0, local.selected_index(inner))
      inner = inner.source
    if isinstance(inner, bb.Reference):
      return set() if inner.name != self.program.parameter_name else self._parts_at(path)
    return {index for child in inner.children() for index in self.parts_of(child)}

  def _parts_at(self, path: Sequence[int]) -> set[int]:
    type_, first = self.program.parameter_type, 0
    for step in path:
      if not isinstance(type_, tff.StructType):
        break
      elements = [t for _, t in trees.fields(type_)]
      first += sum(len(program.placed_parts(t)) for t in elements[:step])
      type_ = elements[step]
    return set(range(first, first + len(program.placed_parts(type_))))


def _serialized(block: bb.ComputationBuildingBlock) -> bytes:
  return block.proto.SerializeToString(deterministic=True)


def _read(text: bytes) -> Any:
  return bb.ComputationBuildingBlock.from_proto(computation_pb2.Computation.FromString(text))


class Pieces(executable.Executable):
  """A plan's pieces on one device, compiled when they are first run."""

  def __init__(
    self,
    plan: Plan,
    *,
    device: str,
    clients_per_block: int | None,
    statistics: interface.Statistics,
  ):
    super().__init__(
      plan.program,
      devices=[device],
      clients_per_block=1 if plan.text.is_serial else clients_per_block,
      statistics=statistics,
      is_lowered=plan.text.types is not None,
    )
    self._plan = plan

  @property
  def part_types(self) -> Sequence[Any]:
    """The types of the parameter's parts."""
    return self._part_types

  def fresh(self, number: int) -> tuple[tf.Tensor, ...]:
    """The random bits of an execution after `number` others, if the program may use them.

    Driver and members each draw their own: nobody knows another's noise.
    """
    return scope.Fresh.draw(number).tensors() if self._is_lowered else ()

  def server(
    self,
    stage: int,
    parts: Sequence[Any],
    env: Values,
    totals: Sequence[Values],
    fresh: Sequence[tf.Tensor] = (),
  ) -> dict[str, Any]:
    """The server's values that a stage adds.

    Args:
      stage: the stage.
      parts: the leaves of the parameter's parts; of those at CLIENTS none.
      env: the server's values so far.
      totals: of each member, in order, for the stage before; empty if it has none.
      fresh: the execution's random bits.
    """
    with self._watched(executable.Cohort(rows=[], settings=None, count=0, limit=None)):
      if not self._stages.has_server_work(stage):
        return {}
      with tf.device(self._devices[0]):
        return self._server_piece(stage)(parts, env, list(totals), tuple(fresh))

  def at_server(self, parts: Sequence[Any], env: Values) -> list[list[Any]]:
    """The leaves of the result's parts that are not at CLIENTS."""
    values = self._values(parts, env)
    wanted = self._plan.results(lambda type_: not stages_lib.is_client_part(type_))
    return [tf.nest.flatten(local.evaluate(block, values)) for block, _ in wanted]

  def begin(
    self,
    parts: Sequence[Any],
    rows: Sequence[np.ndarray],
    count: int,
    *,
    number: int = 0,
    piece: int = 0,
  ) -> 'Turn':
    """Begins a round of this member's clients.

    Args:
      parts: the leaves of the parameter's parts: of those at CLIENTS tensors or variables
        [K, ...], of the others none.
      rows: for every part at CLIENTS, the rows of the clients that take part.
      count: how many they are.
      number: of executions before.
      piece: which of the members this is.
    """
    held = [leaves[0].shape[0] for leaves in parts if leaves]
    limit = min(held, default=None)
    if limit is not None and count > limit:  # clients of a population, some more than once
      limit = None
    cohort = executable.Cohort(rows=rows, settings=None, count=count, limit=limit)
    with self._watched(cohort), tf.device(self._devices[0]):
      padding = (0, self._bucket - count)
      # Rows of the padding are read, and used for nothing.
      padded = [tf.constant(np.pad(of_part, padding), tf.int32) for of_part in rows]
      values, read = [], []
      remaining = iter(padded)
      for type_, leaves in zip(self._plan.part_types, parts, strict=True):
        if stages_lib.is_client_part(type_):
          of_part = next(remaining)
          if leaves and isinstance(leaves[0], tf.Variable):  # whose reading would copy them all
            leaves = [state_variables.some(leaf, of_part) for leaf in leaves]
            of_part = tf.range(self._bucket)
          read.append(of_part)
        values.append(leaves)
    return Turn(
      cohort=cohort, values=values, rows=read, bucket=self._bucket, piece=piece,
      fresh=self.fresh(number),
    )  # fmt: skip

  def clients(
    self, stage: int, turn: 'Turn', parts: Mapping[int, Any], env: Values
  ) -> dict[str, Any]:
    """The totals of a stage's pass over this member's clients; what is kept goes to `turn`.

    Args:
      stage: the stage.
      turn: of the round, from `begin`.
      parts: the leaves of the parameter's parts at SERVER that the stage reads, by position.
      env: the server's values that it reads.
    """
    with self._watched(turn.cohort), tf.device(self._devices[0]):
      count = tf.constant(turn.cohort.count, tf.int32)
      totals, kept = self._client_piece(stage, turn.bucket)(
        turn.with_server(parts), env, turn.kept, turn.rows, None, count,
        tf.constant(turn.piece), turn.fresh,
      )  # fmt: skip
    turn.kept |= kept
    return totals

  def add_up(
    self, stage: int, totals: Sequence[Values], env: Values, *, number: int, piece: int
  ) -> dict[str, Any]:
    """The totals of several members in one, in their order.

    Args:
      stage: of the totals.
      totals: the members'.
      env: the server's values that the stage reads.
      number: of executions before.
      piece: which of the members this is.
    """

    def run(totals, env, fresh, piece):
      with scope.entered(executable.scope_of(fresh, clients=1, piece=piece)):
        return self._stages.merge(totals, stage, env)

    with tf.device(self._devices[0]):
      joined = self._compiled(('totals', stage), run)
      return joined(list(totals), dict(env), self.fresh(number), tf.constant(piece))

  def at_clients(self, turn: 'Turn', parts: Mapping[int, Any], env: Values) -> list[list[Any]]:
    """The leaves [n, ...] of the result's parts at CLIENTS, of this member's clients."""
    count = turn.cohort.count
    wanted = self._plan.results(stages_lib.is_client_part)
    read = {index for block, _ in wanted for index in self._plan.parts_of(block)}
    rows, own = iter(turn.rows), []
    for index, (type_, leaves) in enumerate(
      zip(self._plan.part_types, turn.with_server(parts), strict=True)
    ):
      if stages_lib.is_client_part(type_):
        of_part = next(rows)
        # Most often none of it is read, and the data are large.
        leaves = [tf.gather(leaf, of_part) for leaf in leaves] if index in read else leaves
      own.append(leaves)
    values = self._values(own, {**env, **turn.kept})
    return [
      [leaf[:count] for leaf in tf.nest.flatten(local.evaluate(block, values))]
      for block, _ in wanted
    ]

  def _values(self, parts: Sequence[Any], env: Values) -> dict[str, Any]:
    values = dict(env)
    prog = self._plan.program
    if prog.parameter_name is not None:
      values[prog.parameter_name] = stages_lib.assemble(prog.parameter_type, self._parameter(parts))
    return values


@dataclasses.dataclass(kw_only=True)
class Turn:
  """A member's clients in one round.

  Attributes:
    cohort: who they are.
    values: the leaves of the parameter's parts at CLIENTS; none of the others.
    rows: of each such part, the row of each client in its leaves, padded to the bucket.
    bucket: the padded number of clients.
    piece: which of the members has them.
    fresh: random bits; empty for a program that cannot use them.
    kept: what earlier stages keep of every client [bucket, ...], by name.
  """

  cohort: executable.Cohort
  values: list[Any]
  rows: list[tf.Tensor]
  bucket: int
  piece: int
  fresh: tuple[tf.Tensor, ...]
  kept: dict[str, Any] = dataclasses.field(default_factory=dict)

  def with_server(self, parts: Mapping[int, Any]) -> list[Any]:
    """The leaves of all parts, with those at SERVER that were sent."""
    return [parts.get(index, leaves) for index, leaves in enumerate(self.values)]
