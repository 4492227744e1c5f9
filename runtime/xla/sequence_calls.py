"""TFF's intrinsics of sequences: `sequence_map`, `_reduce`, `_sum`, and `federated_select`.

In a program that is compiled a sequence is a data set of `lowering`, and each intrinsic a loop of
the compiled program; else it is the variant tensor of a `tf.data` data set.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, trees
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
    _interpreter(), keys, lambda key: _components(type_, function(key)), _specs(type_)
  )


def _map(type_, argument):
  function, sequence = argument
  of_function, of_sequence = (t for _, t in trees.fields(type_))
  of_result = tff.SequenceType(of_function.result)

  def one(element):
    return _components(of_result, function(_nested(of_sequence, element)))

  if scope.current() is not None:
    interp = _interpreter()
    data = _data_set(interp, sequence)
    return data_ops.mapped(interp, data, one, _specs(of_result))
  mapped = values.dataset_of_variant(of_sequence, sequence).map(
    lambda *element: tuple(one(tf.nest.flatten(element)))
  )
  return tf.data.experimental.to_variant(mapped)


def _reduce(type_, argument):
  sequence, zero, operator = argument
  (_, of_sequence), (_, of_zero), _ = trees.fields(type_)

  def step(total, element):
    total = trees.nested(of_zero, iter(total))
    return tf.nest.flatten(operator((total, _nested(of_sequence, element))))

  return trees.nested(of_zero, iter(_folded(of_sequence, sequence, tf.nest.flatten(zero), step)))


def _sum(type_, sequence):
  if sequences.is_reordered(type_) and _is_positional(type_):
    # What a map or a select made has them in another order than a data set, and TFF sums none.
    raise interface.UnsupportedComputationError(
      'sequence_sum of elements whose names are not in alphabetical order is not supported.'
    )
  zero = [tf.zeros(spec.shape, spec.dtype) for spec in _specs(type_)]
  total = _folded(type_, sequence, zero, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
  return _nested(type_, total)


def _is_positional(type_: tff.SequenceType) -> bool:
  """Whether a component as tf.data has it stands for the leaf of the same number.

  TFF's own runtime always takes it so in these intrinsics, though names that are not in
  alphabetical order are then swapped. Where the types differ it fails, and names count here.
  """
  return sequences.component_types(type_) == trees.leaf_types(type_.element)


def _nested(type_: tff.SequenceType, components: Sequence[Any]) -> Any:
  """An element as nested tuples."""
  leaves = components if _is_positional(type_) else sequences.leaves_of(type_, components)
  return trees.nested(type_.element, iter(leaves))


def _components(type_: tff.SequenceType, element: Any) -> list[Any]:
  """The other way round."""
  leaves = tf.nest.flatten(element)
  return leaves if _is_positional(type_) else sequences.in_order(type_, leaves)


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
    tuple(start), lambda total, *element: tuple(step(total, tf.nest.flatten(element)))
  )


def _interpreter() -> interpreter.Interpreter:
  where = scope.current()
  assert where is not None
  return interpreter.Interpreter(tf.compat.v1.GraphDef(), where, {})


def _data_set(interp: interpreter.Interpreter, value: Any) -> datasets.Held:
  if isinstance(value, datasets.Held):
    return value
  return data_ops.from_arrays(interp, *sequences.components(value))


def _specs(type_: tff.SequenceType) -> list[tf.TensorSpec]:
  types = sequences.component_types(type_)
  return [tf.TensorSpec(trees.static_shape(t), t.dtype) for t in types]
