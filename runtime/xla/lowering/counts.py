"""Ops whose results are as many as data, or a batch's size, say.

XLA infers how much room such a result needs, and infers too little, without a word, of a number
that depends on data through a sum, as that of a mask of sums: its end is then missing. So room for
all is made here. `data_sizes` refuses what has sizes that depend on data in another way.
"""

from typing import Any

import tensorflow as tf

from runtime.xla.lowering import data_lengths, interpreter, row_ops, varying

_Interpreter = interpreter.Interpreter


def _note_room(interp: _Interpreter, room: int | None) -> None:
  """From here on sizes vary; room that is not known may be for one."""
  interp.session.bounds.add(1 if room is None else room)


def _where(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The places that are true, [number, axes], with room for all."""
  (condition,) = inputs
  if not condition.shape.rank or id(condition) in interp.unsized:
    raise varying.refusal(node.op)
  is_true = tf.cast(condition, tf.bool)
  if varying.is_varying(condition):
    is_true = row_ops.filled(is_true, 0, False)
  _note_room(interp, condition.shape.num_elements())
  number = tf.math.count_nonzero(is_true, dtype=tf.int32)
  order = tf.argsort(tf.cast(tf.reshape(~is_true, [-1]), tf.int32), stable=True)
  sizes = tf.unstack(tf.shape(is_true), condition.shape.rank)
  found: list[tf.Tensor] = []
  for size in reversed(sizes):
    found.insert(0, order % size)
    order //= size
  places = tf.cast(tf.stack(found, axis=-1), tf.int64)
  return [interpreter.set_dynamic_size(places, 0, number)]


def _of_fixed_values(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """An op whose results XLA gives sizes that depend on data."""
  outputs = interp.op(node, inputs)
  _note_room(interp, inputs[0].shape[0] if inputs[0].shape.rank else None)
  return outputs


def _unique_rows(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The different parts along one axis."""
  value, axis = inputs
  along = tf.get_static_value(axis)
  if along is None or along.size != 1 or value.shape.rank is None:
    raise data_lengths.refusal(node.op)
  outputs = interp.op(node, inputs)
  _note_room(interp, value.shape[int(along.ravel()[0])])
  return outputs


def _suppressed(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The places of the boxes that are kept, and with room for the most of them how many."""
  most = tf.get_static_value(inputs[2])
  if most is None:
    raise data_lengths.refusal(node.op)
  outputs = interp.op(node, inputs)
  if node.op == 'NonMaxSuppressionV3':
    _note_room(interp, int(most))
    return outputs
  places, number = outputs  # XLA leaves others than 0 behind them.
  return [tf.where(tf.range(int(most)) < number, places, 0), number]


def _range(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Numbers between two that may be sizes; XLA asks for the most of each, not of their distance."""
  start, limit, step = inputs
  is_known = [tf.get_static_value(i) is not None for i in inputs]
  by = tf.get_static_value(step)
  if not interp.session.bounds or all(is_known) or (is_known[0] and by is not None and by > 0):
    return interp.op(node, inputs)
  if by is not None and abs(by) == 1:
    number = tf.maximum(limit - start if by > 0 else start - limit, 0)
    return [start + tf.range(number, dtype=start.dtype) * by]
  if tf.get_static_value(start) == 0 and limit.op.type == 'Mul':
    numbers = [i for i in limit.op.inputs if i is not step]
    if len(numbers) == 1:  # as in the gradient of `tf.sort`
      return [tf.range(numbers[0]) * step]
  raise varying.refusal(node.op)


DYNAMIC: dict[str, interpreter.Handler] = {
  'DynamicPartition': _of_fixed_values,
  'NonMaxSuppressionV3': _suppressed,
  'NonMaxSuppressionV4': _suppressed,
  'Unique': _of_fixed_values,
  'UniqueV2': _unique_rows,
  'Where': _where,
}
HANDLERS: dict[str, interpreter.Handler] = {**DYNAMIC, 'Range': _range}
