"""TFF's intrinsics of sequences: `sequence_map`, `_reduce`, `_sum`, and `federated_select`.

In a program that is compiled a sequence is a data set of `lowering`, and each intrinsic a loop of
the compiled program; else it is the variant tensor of a `tf.data` data set.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtime import trees
from runtime.tff_internals import intrinsic_defs
from runtime.xla import values
from runtime.xla.lowering import data_ops, datasets, interpreter, scope, sequences


def select(
  type_: tff.SequenceType, function: Callable[[Any], Any], keys: tf.Tensor
) -> datasets.Held:
  """What `federated_select` gives to a client, in a program that is compiled.

  Args:
    type_: of the sequence.
    function: key -> element.
    keys: the client's [n].
  """
  return data_ops.selected(
    _interpreter(), keys, lambda key: tf.nest.flatten(function(key)), _specs(type_.element)
  )


def _map(type_, argument):
  function, sequence = argument
  of_function, of_sequence = (t for _, t in trees.fields(type_))

  def one(element):
    return tf.nest.flatten(function(trees.nested(of_sequence.element, iter(element))))

  if scope.current() is not None:
    interp = _interpreter()
    data = _data_set(interp, sequence)
    return data_ops.mapped(interp, data, one, _specs(of_function.result))
  mapped = values.dataset_of_variant(of_sequence, sequence).map(
    lambda *element: trees.container(
      of_function.result, iter(one(_flat(of_sequence.element, element)))
    )
  )
  return tf.data.experimental.to_variant(mapped)


def _reduce(type_, argument):
  sequence, zero, operator = argument
  (_, of_sequence), (_, of_zero), _ = trees.fields(type_)

  def step(total, element):
    total = trees.nested(of_zero, iter(total))
    return tf.nest.flatten(operator((total, trees.nested(of_sequence.element, iter(element)))))

  return trees.nested(of_zero, iter(_folded(of_sequence, sequence, tf.nest.flatten(zero), step)))


def _sum(type_, sequence):
  zero = [tf.zeros(trees.static_shape(t), t.dtype) for t in trees.leaf_types(type_.element)]
  total = _folded(type_, sequence, zero, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
  return trees.nested(type_.element, iter(total))


INTRINSICS = {
  intrinsic_defs.SEQUENCE_MAP.uri: _map,
  intrinsic_defs.SEQUENCE_REDUCE.uri: _reduce,
  intrinsic_defs.SEQUENCE_SUM.uri: _sum,
}


def _folded(type_, sequence, start, step) -> list[tf.Tensor]:
  """`step` takes and gives flat lists."""
  if scope.current() is not None:
    interp = _interpreter()
    return data_ops.reduced(interp, _data_set(interp, sequence), start, step)
  return values.dataset_of_variant(type_, sequence).reduce(
    tuple(start), lambda total, *element: tuple(step(total, _flat(type_.element, element)))
  )


def _flat(type_, element: tuple[Any, ...]) -> list[tf.Tensor]:
  """The leaves of what tf.data passed to a function: an element, or the elements of a tuple."""
  return trees.flatten(type_, element[0] if len(element) == 1 else element)


def _interpreter() -> interpreter.Interpreter:
  where = scope.current()
  assert where is not None
  return interpreter.Interpreter(tf.compat.v1.GraphDef(), where, {})


def _data_set(interp: interpreter.Interpreter, value: Any) -> datasets.Held:
  if isinstance(value, datasets.Held):
    return value
  return data_ops.from_arrays(interp, *sequences.components(value))


def _specs(type_: tff.Type) -> list[tf.TensorSpec]:
  return [tf.TensorSpec(trees.static_shape(t), t.dtype) for t in trees.leaf_types(type_)]
