"""Keeps floating-point divisions what IEEE 754 says when XLA compiles them.

TensorFlow's graph optimiser and XLA both replace `x / c` by `x * (1 / c)` where they can
see that c is a constant, and XLA `a / (b / c)` and `a / sqrt(b)` by products too. The
quotient is then off by an ulp, and what follows with a jump at whole numbers - `floor`,
`//`, `%`, a cast to an integer - by one: `10.0 / 15.0 + 5.0 / 15.0` is no longer 1, and
TFF's modular clipping of 10 to [-5, 10) gave 10. A barrier before the divisor hides from
both what it is made of.

On a GPU XLA has float32 divided by an instruction that may be off by two ulps (LLVM's
`nvptx-prec-divf32=1`): -105 / 7 is below -15 there, and floored -16. The float64 quotient is
IEEE's, and rounded to float32 the same number, as it has more than twice the digits. It is
rounded by its bits: of a conversion LLVM would make the inexact division again.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

_DIVISIONS = frozenset(
  ['Div', 'DivNoNan', 'FloorDiv', 'FloorMod', 'Mod', 'RealDiv', 'TruncateDiv', 'Xdivy']
)
_BARRIER = 'XlaOptimizationBarrier'
OPS = ('Div', 'DivNoNan', 'FloorDiv', 'RealDiv', 'TruncateDiv', 'Xdivy')
# Exponents and mantissas of the types that XLA divides inexactly. (Of float16, which has few digits
# and small numbers that rounding by bits would lose, its error is rounded away.)
_BITS = {tf.float32: (8, 23), tf.bfloat16: (8, 7)}


def keep(graph_def: Any) -> None:
  """Puts a barrier before the divisor of every floating-point division, functions included.

  Args:
    graph_def: a GraphDef that is imported into a function which XLA compiles; changed in place.
  """
  _keep_in(graph_def.node, '')
  for function in graph_def.library.function:
    _keep_in(function.node_def, ':output:0')


def taken(op: str, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
  """An exact quotient; None where XLA's own is.

  Args:
    op: one of `OPS`.
    inputs: what is divided, and by what.
  """
  return exact(op, inputs) if inputs[0].dtype in _BITS and _divides_inexactly() else None


def exact(op: str, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
  """The quotient of float32 or bfloat16 numbers as IEEE 754 has it, by float64; see `taken`."""
  is_whole = op in ('FloorDiv', 'TruncateDiv')
  divide = getattr(tf.raw_ops, 'RealDiv' if is_whole else op)
  wide = divide(x=tf.cast(inputs[0], tf.float64), y=tf.cast(inputs[1], tf.float64))
  rounded = gen_xla_ops.xla_reduce_precision(wide, *_BITS[inputs[0].dtype])
  quotient = tf.cast(rounded, inputs[0].dtype)
  if op == 'TruncateDiv':
    return tf.sign(quotient) * tf.floor(tf.abs(quotient))
  return tf.floor(quotient) if is_whole else quotient


def _divides_inexactly() -> bool:
  return bool(tf.config.list_logical_devices('GPU'))


def _keep_in(nodes, of_first_output: str) -> None:
  ordered = []
  for node in nodes:
    dtype = tf.as_dtype(node.attr['T'].type) if node.op in _DIVISIONS else None
    if dtype is not None and (dtype.is_floating or dtype.is_complex):
      barrier = type(node)(op=_BARRIER, name=f'{node.name}/exact_divisor')
      barrier.input.append(node.input[1])
      barrier.attr['T'].list.type.append(dtype.as_datatype_enum)
      ordered.append(barrier)  # Before what uses it.
      node.input[1] = barrier.name + of_first_output
    ordered.append(node)
  if len(ordered) > len(nodes):
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del nodes[:]
    nodes.extend(copies)
