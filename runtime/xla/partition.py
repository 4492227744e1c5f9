"""Cuts a program into pieces that XLA compiles and pieces that run on the host beside them.

One string in a state, one lookup, one Python callback shall not make a whole process
interpreted. So a program is taken apart to its single calls of TensorFlow graphs, and a
graph to the results that XLA can compute and those that it cannot (a DP aggregator's
noised sum, and the strings that describe its event). A call is then a *step* from leaves
to leaves: tensors, or sequences. Steps that cannot be compiled, and what can, alternate
in as few pieces as their order allows; each piece is a `program.Program`, whose
parameter is the leaves that it needs of the pieces before.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import obstacles, program, subgraphs
from runtime.xla.lowering import support
from runtime.xla.steps import Evaluation, Leaf, Step, leaves_in

_Kind = program.Kind
_INPUTS = '_inputs'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
  """A part of a program, which is one itself.

  Attributes:
    program: takes the inputs as the elements of its parameter, and returns the outputs.
    inputs: what it needs.
    outputs: what later pieces, or the result, need of it.
    steps: what it computes.
    on_host: whether it is one that cannot be compiled.
  """

  program: program.Program
  inputs: tuple[Leaf, ...]
  outputs: tuple[Leaf, ...]
  steps: tuple[Step, ...]
  on_host: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
  """A program in pieces.

  Attributes:
    pieces: in the order in which they run.
    parameter: for every part of the parameter, nested tuples of leaves.
    result: for every part of the result, nested tuples of leaves and constants.
  """

  pieces: tuple[Piece, ...]
  parameter: tuple[Any, ...]
  result: tuple[Any, ...]

  @property
  def is_worthwhile(self) -> bool:
    """Whether something is compiled.

    There may be no work for the host: a string that is only passed on goes past all pieces.
    """
    return not all(piece.on_host for piece in self.pieces)


def cut(prog: program.Program, refused: Mapping[str, str]) -> Cut:
  """Cuts a program.

  Args:
    prog: the program.
    refused: types of ops that are known not to compile in it, and why.

  Raises:
    subgraphs.NotCutError: it has something that is not understood here.
  """
  try:
    return _cut(prog, refused)
  except TypeError as error:  # TFF's: a block that does not fit another.
    raise subgraphs.NotCutError(str(error)) from error


def _cut(prog, refused) -> Cut:
  evaluation = Evaluation(prog, refused)
  wanted = leaves_in(evaluation.result)
  steps = dict(evaluation.steps)
  while True:
    needed = _needed(steps, wanted)
    if _sequences_to_host(steps, needed, wanted):
      continue
    pieces = tuple(_pieces(needed, wanted))
    if not _refused_to_host(steps, pieces):
      return Cut(pieces=pieces, parameter=evaluation.parameter, result=evaluation.result)


def _pieces(steps: Sequence[Step], wanted: Sequence[Leaf]) -> Iterator[Piece]:
  phase = _phases(steps)
  for number in sorted(set(phase.values())):
    own = [step for step in steps if phase[step.name] == number]
    names = {step.name for step in own}
    later = [i for s in steps if phase[s.name] > number for i in s.inputs]
    outputs = tuple(dict.fromkeys(x for x in [*later, *wanted] if x.source in names))
    inputs = tuple(dict.fromkeys(i for s in own for i in s.inputs if i.source not in names))
    yield Piece(
      program=_program(own, inputs, outputs),
      inputs=inputs,
      outputs=outputs,
      steps=tuple(own),
      on_host=number % 2 == 1,
    )


def _sequences_to_host(steps: dict[str, Step], needed: Sequence[Step], wanted) -> bool:
  """Takes to the host what makes a sequence that is needed elsewhere; whether it did."""
  phase = _phases(needed)
  uses = [(leaf, phase[step.name]) for step in needed for leaf in step.inputs]
  moved = False
  for leaf, user in [*uses, *((leaf, None) for leaf in wanted)]:
    maker = steps.get(leaf.source)
    is_sequence = isinstance(leaf.type, tff.SequenceType)
    if is_sequence and maker and not maker.obstacles and phase[maker.name] != user:
      obstacle = obstacles.Obstacle('a sequence', 'its sequence is needed on the host')
      steps[maker.name] = dataclasses.replace(maker, obstacles=(obstacle,))
      moved = True
  return moved


def _refused_to_host(steps: dict[str, Step], pieces: Sequence[Piece]) -> bool:
  """Takes to the host the pieces that are not compiled as a whole; whether there were any."""
  moved = False
  for piece in pieces:
    if piece.on_host or not (reasons := support.examine(piece.program).reasons):
      continue
    obstacle = obstacles.Obstacle('a piece', reasons[0])
    for step in piece.steps:
      steps[step.name] = dataclasses.replace(step, obstacles=(obstacle,))
    moved = True
  return moved


def _needed(steps: dict[str, Step], wanted: Sequence[Leaf]) -> list[Step]:
  found: set[str] = set()
  pending = list(wanted)
  while pending:
    name = pending.pop().source
    if name in steps and name not in found:
      found.add(name)
      pending += steps[name].inputs
  return [step for name, step in steps.items() if name in found]


def _phases(steps: Sequence[Step]) -> dict[str, int]:
  """The place of each step's piece: the even ones are compiled, the odd ones on the host."""
  phase: dict[str, int] = {}
  for step in steps:
    on_host = bool(step.obstacles)
    earliest = max([0, *(phase[i.source] for i in step.inputs if i.source in phase)])
    phase[step.name] = earliest + ((earliest % 2 == 1) != on_host)
  return phase


def _program(steps: Sequence[Step], inputs, outputs) -> program.Program:
  """The program of a piece's steps."""
  own = {step.name for step in steps}
  whole = tff.StructType([(None, leaf.type) for leaf in inputs])

  def block_of(leaf):
    if not isinstance(leaf, Leaf):
      return leaf  # A constant.
    if leaf.source not in own:
      return bb.Selection(bb.Reference(_INPUTS, whole), index=inputs.index(leaf))
    block = bb.Reference(leaf.source, values[leaf.source])
    for index in leaf.path:
      block = bb.Selection(block, index=index)
    return block

  values: dict[str, Any] = {}
  nodes: dict[str, program.Node] = {}
  for step in steps:
    for name, block, kind in step.build(block_of):
      nodes[name] = program.node(name, block, kind, nodes)
    values[step.name] = trees.member(nodes[step.name].type)
  results: list[Any] = []
  for leaf in outputs:
    block = block_of(leaf)
    if leaf.at_clients:  # A result at CLIENTS is a reference.
      name = f'_output_{len(results)}'
      nodes[name] = program.node(name, block, _Kind.CLIENTS, nodes)
      block = bb.Reference(name, leaf.type)
    results.append(block)
  result = bb.Struct(results)
  return program.Program(
    parameter_name=_INPUTS if inputs else None,
    parameter_type=tff.StructType([(None, _placed(leaf)) for leaf in inputs]) if inputs else None,
    result=result,
    result_type=tff.StructType([(None, _placed(leaf)) for leaf in outputs]),
    nodes=tuple(nodes.values()),
  )


def _placed(leaf: Leaf) -> tff.FederatedType:
  placement = tff.CLIENTS if leaf.at_clients else tff.SERVER
  return tff.FederatedType(leaf.type, placement)
