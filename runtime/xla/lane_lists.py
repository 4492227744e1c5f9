"""Tensor lists of many lanes: how pfor is to convert their ops.

A list that differs between lanes is one list whose elements have a leading axis of lanes. A list
becomes one where something that differs is written to it; a loop that does so is given one. All
lanes read and write at the same place. Where places differ between them, clients are worked on one
at a time.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.parallel_for import pfor as pfor_lib

from runtime.xla import lanes

PROBE = 'lanes_probe'  # The name of a graph that is made to see what differs, and thrown away.


def stacked(wrapped: Any) -> tf.Tensor:
  """A value of pfor's for each lane, [lanes, ...], or a list of such."""
  if wrapped.is_stacked:
    return wrapped.t
  if wrapped.t.dtype == tf.variant:
    return _of_lanes(wrapped.t)
  if wrapped.t.shape.is_fully_defined():
    return tf.broadcast_to(wrapped.t, [lanes.number(), *wrapped.t.shape])
  return tf.broadcast_to(wrapped.t, _in_front(tf.shape(wrapped.t)))


def stand_in(wrapped: Any, is_stacked: bool) -> tf.Tensor:
  """A placeholder for a value of one lane, or of all."""
  value = wrapped.t
  if value.dtype == tf.variant:
    return _stand_in_list(value, in_front=is_stacked and not wrapped.is_stacked)
  shape = value.shape[1:] if wrapped.is_stacked else value.shape
  in_front = [lanes.number()] if is_stacked else []
  return tf.compat.v1.placeholder(value.dtype, tf.TensorShape(in_front).concatenate(shape))


def _stand_in_list(like: tf.Tensor, *, in_front: bool) -> tf.Tensor:
  """A placeholder for a list like another one, or for one with the axis of lanes."""
  made = _typed(tf.compat.v1.placeholder(tf.variant, []), like)
  if in_front:
    known = handle_data_util.get_resource_handle_data(made)
    for element in known.shape_and_type:
      if not element.shape.unknown_rank:
        sizes = tf.TensorShape([lanes.number()]).concatenate(tf.TensorShape(element.shape))
        element.shape.CopyFrom(sizes.as_proto())
    handle_data_util.set_handle_data(made, known)
  return made


def _typed(value: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """A list that TensorFlow knows for one, as another one is."""
  handle_data_util.copy_handle_data(like, value)
  return value


def _of_lanes(value: tf.Tensor) -> tf.Tensor:
  """The list with a leading axis of lanes that is made as this one is made, without."""
  op, inputs = value.op, list(value.op.inputs)
  if op.type in _MAKE:
    return _MAKE[op.type](op, *inputs)
  if op.type == 'Identity':
    return _of_lanes(inputs[0])
  if op.type == 'ZerosLike':
    made = _of_lanes(inputs[0])
    return _typed(tf.raw_ops.ZerosLike(x=made), made)
  if op.type == 'Placeholder' and value.graph.name == PROBE:
    return _stand_in_list(value, in_front=True)
  raise NotImplementedError(f'a tensor list of the op {op.type} that comes to differ by client')


def _in_front(shape: tf.Tensor) -> tf.Tensor:
  """An element's shape with the axis of lanes, or -1 where it is not known."""
  return tf.concat([[lanes.number()], shape], axis=0) if shape.shape.rank else shape


def _turned(value: tf.Tensor) -> tf.Tensor:
  """Exchanges the axes of the elements and of the lanes."""
  return tf.transpose(value, [1, 0, *range(2, value.shape.rank)])


def _made_empty(op: Any, element_shape: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.EmptyTensorList(
    element_shape=_in_front(element_shape),
    max_num_elements=number,
    element_dtype=op.get_attr('element_dtype'),
  )


def _made_reserve(op: Any, element_shape: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.TensorListReserve(
    element_shape=_in_front(element_shape),
    num_elements=number,
    element_dtype=op.get_attr('element_dtype'),
  )


def _made_of_tensor(op: Any, tensor: tf.Tensor, element_shape: tf.Tensor) -> tf.Tensor:
  del op
  elements = _turned(stacked(pfor_lib.wrap(tensor, False)))
  return tf.raw_ops.TensorListFromTensor(tensor=elements, element_shape=_in_front(element_shape))


_MAKE = {
  'EmptyTensorList': _made_empty,
  'TensorListReserve': _made_reserve,
  'TensorListFromTensor': _made_of_tensor,
}


def _reserve(pfor_input: Any) -> Any:
  """pfor asks for it also where nothing differs between lanes."""
  result = tf.raw_ops.TensorListReserve(
    element_shape=pfor_input.unstacked_input(0),
    num_elements=pfor_input.unstacked_input(1),
    element_dtype=pfor_input.get_attr('element_dtype'),
  )
  return pfor_lib.wrap(result, False)


def _from_tensor(pfor_input: Any) -> Any:
  result = tf.raw_ops.TensorListFromTensor(
    tensor=_turned(pfor_input.stacked_input(0)),
    element_shape=_in_front(pfor_input.unstacked_input(1)),
  )
  return pfor_lib.wrap(result, True)


def _stack(pfor_input: Any) -> Any:
  elements = tf.raw_ops.TensorListStack(
    input_handle=pfor_input.stacked_input(0),
    element_shape=_in_front(pfor_input.unstacked_input(1)),
    element_dtype=pfor_input.get_attr('element_dtype'),
    num_elements=pfor_input.get_attr('num_elements'),
  )
  known = pfor_input.outputs[0].shape
  elements.set_shape([known[0], lanes.number(), *known[1:]])
  return pfor_lib.wrap(_turned(elements), True)


def _get_item(pfor_input: Any) -> Any:
  item = tf.raw_ops.TensorListGetItem(
    input_handle=stacked(pfor_input.input(0)),
    index=_place(pfor_input),
    element_shape=_in_front(pfor_input.unstacked_input(2)),
    element_dtype=pfor_input.get_attr('element_dtype'),
  )
  return pfor_lib.wrap(item, True)


def _set_item(pfor_input: Any) -> Any:
  result = tf.raw_ops.TensorListSetItem(
    input_handle=stacked(pfor_input.input(0)),
    index=_place(pfor_input),
    item=stacked(pfor_input.input(2)),
    resize_if_index_out_of_bounds=pfor_input.get_attr('resize_if_index_out_of_bounds'),
  )
  return pfor_lib.wrap(result, True)


def _place(pfor_input: Any) -> tf.Tensor:
  place = pfor_input.input(1)
  if place.is_stacked:
    raise NotImplementedError(f'the op {pfor_input.op_type} at places that differ by client')
  return place.t


def _push_back(pfor_input: Any) -> Any:
  before, item = (stacked(i) for i in pfor_input.inputs)
  return pfor_lib.wrap(tf.raw_ops.TensorListPushBack(input_handle=before, tensor=item), True)


def _pop_back(pfor_input: Any) -> Any:
  rest, item = tf.raw_ops.TensorListPopBack(
    input_handle=pfor_input.stacked_input(0),
    element_shape=_in_front(pfor_input.unstacked_input(1)),
    element_dtype=pfor_input.get_attr('element_dtype'),
  )
  return [pfor_lib.wrap(rest, True), pfor_lib.wrap(item, True)]


def _length(pfor_input: Any) -> Any:
  number = tf.raw_ops.TensorListLength(input_handle=pfor_input.stacked_input(0))
  return pfor_lib.wrap(number, False)


def _zeros(pfor_input: Any) -> Any:
  """Zeros, of a list too: what the gradient of a loop that reads one begins with."""
  value = pfor_input.stacked_input(0)
  if value.dtype == tf.variant:
    return pfor_lib.wrap(_typed(tf.raw_ops.ZerosLike(x=value), value), True)
  return pfor_lib.wrap(tf.zeros(tf.shape(value)[1:], value.dtype), False)


def _sum(pfor_input: Any) -> Any:
  """Of lists, too."""
  values = [stacked(i) for i in pfor_input.inputs]
  result = tf.raw_ops.AddN(inputs=values)
  if result.dtype == tf.variant:
    _typed(result, values[0])
  return pfor_lib.wrap(result, True)


CONVERTERS = {
  'AddN': _sum,
  'TensorListFromTensor': _from_tensor,
  'TensorListGetItem': _get_item,
  'TensorListLength': _length,
  'TensorListPopBack': _pop_back,
  'TensorListPushBack': _push_back,
  'TensorListReserve': _reserve,
  'TensorListSetItem': _set_item,
  'TensorListStack': _stack,
  'ZerosLike': _zeros,
}
