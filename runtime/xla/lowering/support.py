"""What a program needs of lowering, and why one cannot be compiled."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from runtime import trees
from runtime.xla import program
from runtime.xla.lowering import graphs, sequences


@dataclasses.dataclass
class Lowering:
  """How a program is to be run.

  Attributes:
    is_needed: whether graphs have to be interpreted: data sets, variables, random ops.
    reasons: why the program cannot be compiled; empty if it is. What is found only while
      it is traced or compiled is added then.
    serial_reasons: why its clients are worked on one at a time, whatever
      `clients_per_block` says; added while it is traced.
  """

  is_needed: bool
  reasons: list[str]
  serial_reasons: list[str] = dataclasses.field(default_factory=list)

  @property
  def is_possible(self) -> bool:
    """Whether nothing speaks against compiling, as far as is known."""
    return not self.reasons


def examine(prog: program.Program) -> Lowering:
  """What is known of a program before it is traced."""
  needed = any(graphs.is_needed(proto, graph_def) for proto, graph_def in _graphs(prog))
  reasons = []
  if prog.parameter_type is None and needed:
    # TensorFlow's kernels give seeded initial values as TFF's runtime does.
    reasons.append('it has no argument: it is run once, and by TensorFlow itself')
  reasons += _type_reasons('the argument', prog.parameter_type, may_have_sequences=True)
  for node in prog.nodes:
    may_have_sequences = node.kind is not program.Kind.AGGREGATE
    what = node.intrinsic or "a computation's result"
    reasons += _type_reasons(what, node.type, may_have_sequences=may_have_sequences)
  reasons += _type_reasons('the result', prog.result_type, may_have_sequences=False)
  types = [node.type for node in prog.nodes]
  if prog.parameter_type is not None:
    types.append(prog.parameter_type)
  needed = needed or any(map(program.has_sequence, types))
  return Lowering(is_needed=needed, reasons=list(dict.fromkeys(reasons)))


def has_lengths_of_data(prog: program.Program) -> bool:
  """Whether something in a program is as long as data say, and so has to be interpreted."""
  return any(graphs.has_lengths_of_data(graph_def) for _, graph_def in _graphs(prog))


def _graphs(prog: program.Program) -> Iterator[tuple[Any, Any]]:
  """The TensorFlow computations of a program, and their graphs."""
  for block in (prog.result, *(node.block for node in prog.nodes)):
    yield from graphs.inside(block)


def _type_reasons(what: str, type_: Any, *, may_have_sequences: bool) -> Iterator[str]:
  if type_ is None:
    return
  for part in program.placed_parts(type_):
    for leaf, name in zip(trees.leaf_types(part), trees.leaf_names(part), strict=True):
      where = f'{name!r} of {what}'
      if isinstance(leaf, tff.SequenceType):
        if not may_have_sequences:
          yield f'{where} is a sequence'
        elif not sequences.is_supported(leaf):
          yield f'{where} is a sequence of elements that are not numbers'
      elif not isinstance(leaf, tff.TensorType):
        yield f'{where} is of type {leaf}'
      elif np.issubdtype(leaf.dtype, np.str_):
        yield f'{where} is a string'
      elif not trees.static_shape(leaf).is_fully_defined():
        yield f'{where} has the shape {leaf.shape}, which is not known'
