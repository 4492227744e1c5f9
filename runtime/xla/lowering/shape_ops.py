"""Shapes and tensor lists, where XLA wants constants.

A batch whose number of rows depends on data makes every shape tensor of a graph one that
depends on data. Most of its sizes are known all the same, and what is known is kept here
beside the tensors, through the tensor lists that carry values from a loop to its gradient.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from runtime.xla import (
  activations,
  long_sums,
  masks,
  places,
  principal_values,
  products,
  replacements,
  row_maxima,
  shifts,
)
from runtime.xla.lowering import (
  broadcasts,
  datasets,
  folding,
  interpreter,
  recurrence,
  reshapes,
  row_ops,
  shape_numbers,
  sized_ops,
  slices,
  varying,
)

_Interpreter = interpreter.Interpreter
_ListFacts = datasets.ListFacts
NotLowered = datasets.NotLowered


def _empty_list(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  length = tf.get_static_value(inputs[1])
  if length is None or length < 0:
    return [datasets.PendingList(node=node, element_shape=inputs[0])]
  (result,) = interp.op(node, inputs)
  interp.note(result, _ListFacts(room=int(length)))
  return [result]


def _reserved_list(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  length = tf.get_static_value(inputs[1])
  size = None if length is not None else interp.known_sizes.single(inputs[1])
  if size is not None:  # of an element for each row, as `tf.map_fn` has it
    (result,) = interp.op(node, [inputs[0], _room(size)])
    interp.note(result, _ListFacts(filled=(inputs[1], size)))
    return [result]
  if length is None:
    # The gradient of reading a list: as long as that one. XLA would refuse another length.
    if len(interp.list_lengths) != 1:
      raise NotLowered('a tensor list whose length is not known')
    (length,) = interp.list_lengths
  return [
    _of_length(interp, interp.op(node, [inputs[0], tf.constant(int(length))])[0], int(length))
  ]


def _room(size: shape_numbers.Size) -> tf.Tensor:
  """The most that a size can be, int32 scalar, as a constant for XLA."""
  if size.most is not None:
    return tf.constant(size.most)
  whole = reshapes.of_largest_size(size.of, size.axis)
  return size.times * tf.shape(whole)[size.axis]


def _of_length(interp: _Interpreter, result: tf.Tensor, length: int) -> tf.Tensor:
  interp.list_lengths.add(length)
  interp.note(result, _ListFacts(length=length))
  return result


def _length(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  facts = interp.facts_of(inputs[0])
  if facts.filled is not None:
    return [facts.filled[0]]
  known = facts.length
  return interp.op(node, inputs) if known is None else [tf.constant(known)]


def _set_item(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  if node.attr['resize_if_index_out_of_bounds'].b:
    raise NotLowered(replacements.LONGER)
  (result,) = interp.op(node, inputs)
  facts, shape = interp.facts_of(inputs[0]), inputs[2].shape
  if not shape.is_fully_defined():
    shape = facts.element_shape
  known = _ListFacts(length=facts.length, filled=facts.filled, element_shape=shape)
  interp.note(result, known)
  return [result]


def _get_item(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  (value,) = interp.op(node, inputs)
  return [_shaped(value, interp.facts_of(inputs[0]).element_shape)]


def _stack(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  (value,) = interp.op(node, inputs)
  facts = interp.facts_of(inputs[0])
  if facts.filled is not None:
    number, size = facts.filled
    if facts.element_shape is not None:
      _shaped(value, [None, *facts.element_shape])
    if value.shape.rank is None or None in value.shape[1:]:
      raise varying.refusal(node.op)
    value = interpreter.set_dynamic_size(value, 0, tf.cast(number, tf.int32))
    interp.known_sizes.note_rows(value, size)
    return [value]
  shape = value.shape[1:] if facts.element_shape is None else facts.element_shape
  return [_shaped(value, None if shape.rank is None else [facts.length, *shape])]


def _shaped(value: tf.Tensor, shape: Any) -> tf.Tensor:
  """A value whose shape, that a tensor list has lost, is known again."""
  if shape is not None:
    value.set_shape(shape)
  return value


def _push_back(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  if isinstance(inputs[1], datasets.Held):
    raise NotLowered('the gradient of a condition in a loop that the gradient goes through')
  (result,) = interp.op(node, inputs)
  value = inputs[1]
  constant = tf.get_static_value(value)
  element: Any = None
  if inputs[0].op.type == 'TensorListPushBack':
    pass  # Its elements are not all this one.
  elif constant is not None:
    element = ('constant', constant)
  elif id(value) in interp.unchanged or _is_size_outside(interp, value):
    element = ('tensor', value)
  elif interp.known_sizes.is_noted(value):
    element = ('sizes', interp.sizes(value))
  interp.note(result, _ListFacts(element=element, element_shape=value.shape))
  return [result]


def _is_size_outside(interp: _Interpreter, value: tf.Tensor) -> bool:
  """Whether a number is a size that varies, of a graph around this one: no turn changes it."""
  is_outside = value.graph is not tf.compat.v1.get_default_graph()
  return is_outside and interp.known_sizes.single(value) is not None


def _pop_back(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """What was pushed: a constant, a loop's argument, or a shape of known sizes, is one again."""
  rest, value = interp.op(node, inputs)
  facts = interp.facts_of(inputs[0])
  element = facts.element
  interp.note(rest, _ListFacts(element=element, element_shape=facts.element_shape))
  _shaped(value, facts.element_shape)
  if element is not None and element[0] == 'constant':
    value = tf.constant(element[1], value.dtype)
  elif element is not None and element[0] == 'tensor':
    # The list of a loop's weights is then used by nothing, and XLA makes none.
    value = element[1]
  elif element is not None:
    interp.known_sizes.note_numbers(value, element[1])
  return [rest, value]


def _reshape(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  value, shape = inputs
  known = folding.constants(inputs)
  if known is not None:
    return [tf.constant(np.reshape(known[0], known[1]), value.dtype)]
  shape, varied = interp.known_sizes.reshaped(value, shape)
  sizes = interp.sizes(shape)
  if sizes is not None and sizes.count(None) == 1 and -1 not in sizes:
    shape = tf.constant([-1 if size is None else size for size in sizes], shape.dtype)
  if interp.session.bounds:
    reshapes.check_order(value, shape)
    if interp.known_sizes.finds_another(value, shape):
      raise varying.refusal(node.op)  # XLA finds the size as of the most rows.
    value = reshapes.in_order(value, sizes)
  if interp.session.bounds and shape.dtype == tf.int64:  # XLA takes no such sizes that vary
    result = tf.reshape(value, tf.cast(shape, tf.int32))
  else:
    (result,) = interp.op(node, [value, shape])
  result = _of_one_axis(interp, value, result)
  if varied is not None:
    interp.known_sizes.note_rows(result, varied)
  return [result]


def _of_one_axis(interp: _Interpreter, value: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
  """What was reshaped, with its size again where XLA takes room for one row to have one."""
  sizes = result.shape.as_list() if result.shape.rank else []
  is_sized = varying.is_varying(value) and id(value) not in interp.unsized
  if 1 not in interp.session.bounds or not is_sized or sizes.count(None) != 1:
    return result
  rest = math.prod(size for size in sizes if size is not None)
  return interpreter.set_dynamic_size(result, sizes.index(None), tf.size(value) // max(rest, 1))


def _list_of_tensor(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  (result,) = interp.op(node, inputs)
  if inputs[0].shape.rank and inputs[0].shape[0] is not None:
    _of_length(interp, result, inputs[0].shape[0])
    interp.note(result, _ListFacts(element_shape=inputs[0].shape[1:]))
  elif inputs[0].shape.rank and (size := interp.known_sizes.varied(inputs[0])) is not None:
    number = tf.shape(inputs[0])[0]
    interp.known_sizes.note_numbers(number, [size])
    interp.note(result, _ListFacts(filled=(number, size), element_shape=inputs[0].shape[1:]))
  return [result]


def _shape(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A shape is a constant where it can be: XLA wants the lengths of tensor lists so."""
  outputs = interp.op(node, inputs)
  for value, shape in zip(inputs, outputs, strict=True):
    interp.known_sizes.note_shape(shape, value)
  return outputs


def _strided_slice(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  constant = folding.strided(node, inputs)
  if constant is not None:
    return [constant]
  sizes = interp.sizes(inputs[0]) if interp.known_sizes.is_noted(inputs[0]) else None
  begin = tf.get_static_value(inputs[1])
  if sizes is not None and begin is not None and node.attr['shrink_axis_mask'].i == 1:
    size = sizes[int(begin[0])]
    if size is not None:
      return [tf.constant(size, inputs[0].dtype)]
  changed = slices.slice_from_the_end(interp, node, inputs)
  return interp.op(*((node, inputs) if changed is None else changed))


def _barrier(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """XLA's barrier has no dynamic sizes; a quotient may then be off by an ulp."""
  if not all(i.shape.is_fully_defined() for i in inputs):
    return inputs
  # XLA may take a fixed piece of what varies to vary.
  if interp.session.bounds:
    inputs = [interpreter.of_fixed_size(i) for i in inputs]
  return interp.op(node, inputs)


def _sum(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  if isinstance(inputs[-1], broadcasts.Axes) and node.op == 'Sum':
    return broadcasts.gradient_sum(interp, node, *inputs)
  keep_dims = node.op != 'L2Loss' and node.attr['keep_dims'].b
  in_pieces = long_sums.taken(node.op, inputs, keep_dims=keep_dims)
  return interp.op(node, inputs) if in_pieces is None else [in_pieces]


def _product(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  transposed = {name: node.attr[name].b for name in ('transpose_a', 'transpose_b')}
  taken = products.taken(inputs, **transposed)
  if taken is None and interp.scope.lanes == 1 and id(inputs[1]) in interp.unchanged:
    taken = recurrence.by_transposed_weights(inputs, **transposed)
  return interp.op(node, inputs) if taken is None else [taken]


def _added(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  taken = None if interp.session.bounds else recurrence.with_element_added(inputs)
  return interp.op(node, inputs) if taken is None else [taken]


def _concatenation(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  *parts, axis = inputs
  known = tf.get_static_value(axis)
  is_computed = interp.session.depth > 0 and parts[0].dtype.is_floating and len(parts) > 1
  if known is None or not is_computed or interp.scope.lanes > 1 or interp.session.bounds:
    return interp.op(node, inputs)
  taken = recurrence.side_by_side(parts, int(known))
  return interp.op(node, inputs) if taken is None else [taken]


def _activation(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del interp
  return [activations.taken(node.op, inputs)]


def _cast(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  taken = masks.taken(inputs[0], tf.as_dtype(node.attr['DstT'].type))
  return interp.op(node, inputs) if taken is None else [taken]


def _place(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del interp
  return [places.taken(inputs, node.attr['boundaries'].list.f if len(inputs) == 1 else ())]


def _principal(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  taken = principal_values.taken(inputs[0])
  return interp.op(node, inputs) if taken is None else [taken]


def _shift(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  taken = shifts.taken(node.op, inputs)
  return interp.op(node, inputs) if taken is None else [taken]


def _of_rows(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  if interp.session.bounds:
    return interp.op(node, inputs)
  # What an op lacks, asking for would add.
  keep_dims = node.op in ('Max', 'Min') and node.attr['keep_dims'].b
  taken = row_maxima.taken(node.op, inputs, keep_dims=keep_dims)
  return interp.op(node, inputs) if taken is None else taken


HANDLERS: dict[str, interpreter.Handler] = dict(
  AddN=_added,
  BroadcastGradientArgs=broadcasts.axes,
  ConcatV2=_concatenation,
  EmptyTensorList=_empty_list,
  Reshape=_reshape,
  Shape=_shape,
  ShapeN=_shape,
  StridedSlice=_strided_slice,
  TensorListFromTensor=_list_of_tensor,
  TensorListGetItem=_get_item,
  TensorListLength=_length,
  TensorListPopBack=_pop_back,
  TensorListPushBack=_push_back,
  TensorListReserve=_reserved_list,
  TensorListSetItem=_set_item,
  TensorListStack=_stack,
  XlaOptimizationBarrier=_barrier,
  **dict.fromkeys(activations.OPS, _activation),
  **dict.fromkeys(long_sums.OPS, _sum),
  **dict.fromkeys(masks.OPS, _cast),
  **dict.fromkeys(places.OPS, _place),
  **dict.fromkeys(principal_values.OPS, _principal),
  **dict.fromkeys(products.OPS, _product),
  **dict.fromkeys(row_maxima.OPS, _of_rows),
  **dict.fromkeys(shifts.OPS, _shift),
  **row_ops.HANDLERS,
  **sized_ops.HANDLERS,
  **slices.HANDLERS,
)
