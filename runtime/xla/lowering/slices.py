"""Slices along axes that vary, and slices as long as data say: XLA counts from the padded end."""

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from runtime.xla.lowering import (
  data_lengths,
  data_sizes,
  folding,
  interpreter,
  reshapes,
  shape_numbers,
  varying,
)

_Interpreter = interpreter.Interpreter


def every(
  value: tf.Tensor, axis: int, start: Any, step: int, count: tf.Tensor, room: int | None = None
) -> tf.Tensor:
  """`count` of a value's elements along an axis, one after `step` others, `room` at most."""
  is_first = isinstance(start, int) and (start, step) == (0, 1)
  if is_first and room is not None and room == value.shape[axis]:
    return interpreter.set_dynamic_size(value, axis, count)
  size = tf.shape(value)[axis]
  # XLA knows the most that a range of a size has, not of what is computed from a size.
  places = tf.range(size if room is None else room)
  positions = tf.clip_by_value(start + step * places, 0, tf.maximum(size - 1, 0))
  found = reshapes.gather(value, positions, axis=axis)
  return interpreter.set_dynamic_size(found, axis, count)


def is_as_data_say(interp: _Interpreter, node: Any, inputs: list[Any]) -> bool:
  """Whether a slice takes as much along an axis of a known size as data say."""
  shape, positions = inputs[0].shape, inputs[1 : 3 if node.op == 'Slice' else 4]
  if node.op == 'StridedSliceGrad':
    shape = tf.TensorShape(interp.sizes(inputs[0]))
  return shape.rank is not None and any(
    shape[axis] is not None for axis in _axes_as_data_say(interp, node, positions, shape.rank)
  )


def _axes_as_data_say(
  interp: _Interpreter, node: Any, positions: list[tf.Tensor], rank: int
) -> set[int]:
  """The axes along which a slice takes as much as data say."""
  if not any(id(p) in interp.session.cut or data_sizes.reads_data(p) for p in positions):
    return set()
  known = [_known(interp, p) for p in positions]
  if node.op == 'Slice':
    return set(data_lengths.places_of_slice(range(rank), *known))
  pairs = _places(node, rank, positions[0].shape[0] or 0)
  axes = dict(pairs)
  return {axes[place] for place in data_lengths.places_of_strided(node, axes, *known)}


def _known(interp: _Interpreter, vector: tf.Tensor) -> list[int | None]:
  """The numbers in a vector, None for those that are not known."""
  known = tf.get_static_value(vector, partial=True)
  if known is None:  # of a shape, perhaps, some of whose sizes vary
    known = interp.known_sizes.numbers(vector) or [None] * (vector.shape[0] or 0)
  return [None if k is None or isinstance(k, shape_numbers.Size) else int(k) for k in known]


def _numbers_in(vector: tf.Tensor) -> list[tf.Tensor]:
  """The numbers in a vector; the tensors themselves that it was made of."""
  is_made = vector.op.type == 'Pack'
  return [tf.identity(i) for i in vector.op.inputs] if is_made else tf.unstack(vector)


def _room(start: tf.Tensor, stop: tf.Tensor, size: int) -> int:
  """The most that there is between two numbers; c between n and n + c, whatever n is.

  Not where c is negative: `x[0:-1]` has all but the last.
  """
  begin, distance = _terms(start), _terms(stop)
  distance.subtract(begin)
  known = distance.pop(None, 0)
  return size if any(distance.values()) or known < 0 else int(np.clip(known, 1, size))


def _terms(number: tf.Tensor) -> collections.Counter:
  """A number as a sum of others, by their names, each so many times; None is for known ones."""
  known = tf.get_static_value(number)
  if known is not None:
    return collections.Counter({None: int(known)})
  op = number.op
  if op.type in ('Identity', 'Cast') and op.inputs[0].dtype.is_integer:
    return _terms(op.inputs[0])
  if op.type in ('Add', 'AddV2', 'Sub', 'Mul') and all(i.shape.rank == 0 for i in op.inputs):
    one, other = map(_terms, op.inputs)
    if op.type == 'Mul':
      factor, terms = (one, other) if one.keys() <= {None} else (other, one)
      if factor.keys() <= {None}:
        return collections.Counter({k: n * factor[None] for k, n in terms.items()})
    else:
      (one.subtract if op.type == 'Sub' else one.update)(other)
      return one
  return collections.Counter({number.name: 1})


def _places(node: Any, rank: int, count: int) -> Iterator[tuple[int, int]]:
  """(place in the specification, axis of the value) of a strided slice."""
  masks = {n: node.attr[n].i for n in ('ellipsis_mask', 'new_axis_mask')}
  used = sum(not (masks['ellipsis_mask'] | masks['new_axis_mask']) >> p & 1 for p in range(count))
  axis = 0
  for place in range(count):
    if masks['ellipsis_mask'] >> place & 1:
      axis += rank - used
    elif not masks['new_axis_mask'] >> place & 1:
      yield place, axis
      axis += 1


def slice_from_the_end(
  interp: _Interpreter, node: Any, inputs: list[Any]
) -> tuple[Any, list[tf.Tensor]] | None:
  """A strided slice along axes that vary, or as data say, without positions from the end and steps.

  Returns:
    The node and inputs of what is left to slice; None where nothing has to change.
  """
  value = inputs[0]
  is_cut_here = is_as_data_say(interp, node, inputs)
  if not is_cut_here and (not interp.session.bounds or not varying.is_varying(value)):
    return None
  rank, positions = value.shape.rank, inputs[1:]
  first, last, steps = (tf.get_static_value(p, partial=True) for p in positions)
  if rank is None or steps is None:
    raise varying.refusal(node.op)
  changed = type(node)()
  changed.CopyFrom(node)
  rest = [_numbers_in(p) for p in positions]
  cut = _axes_as_data_say(interp, node, positions, rank) if is_cut_here else set()
  for place, axis in _places(node, rank, len(steps)):
    step, is_set, room = steps[place], _masks(node, place), value.shape[axis]
    is_taken = axis in cut if room is not None else not _is_sized(first, last, step, place, is_set)
    if not is_taken:
      continue
    if step is None:
      raise varying.refusal(node.op) if room is None else data_lengths.refusal(node.op)
    size = tf.cast(tf.shape(value)[axis], tf.int32)
    if room is not None and step > 0 and first is not None and first[place] == 0:
      is_set['begin_mask'] = True
    if is_set['shrink_axis_mask']:
      taken = tf.maximum(_from_the_start(rest[0][place], size), 0)
      value = reshapes.gather(value, tf.reshape(taken, [1]), axis=axis)
      rest[0][place], rest[1][place] = (tf.constant(p, positions[0].dtype) for p in (0, 1))
      continue
    start = _start(rest[0][place], int(step), size, is_set)
    low, high = _ends(int(step), size)
    stop = high if step > 0 else low
    if not is_set['end_mask']:
      stop = tf.clip_by_value(_from_the_start(rest[1][place], size), low, high)
    count = tf.maximum((stop - start + int(step) - (1 if step > 0 else -1)) // int(step), 0)
    if room is not None:
      if step == 1 and not is_set['begin_mask'] and not is_set['end_mask']:
        room = _room(rest[0][place], rest[1][place], room)
      interp.session.bounds.add(room)
    value = every(value, axis, start, int(step), count, room)
    _take_all(changed, rest, place)
  return changed, [value, *map(tf.stack, rest)]


def is_cut(node: Any, inputs: list[Any]) -> bool:
  """Whether a strided slice takes less than all along an axis that varies, and leaves the axis."""
  value, first, _, steps = inputs[0], *map(tf.get_static_value, inputs[1:])
  if steps is None:
    return True
  for place, axis in _places(node, value.shape.rank, len(steps)):
    is_set = _masks(node, place)
    is_start = steps[place] == 1 and first is not None and first[place] == 0
    is_all = (is_start or is_set['begin_mask']) and is_set['end_mask']
    is_whole = is_all and abs(steps[place]) == 1
    if varying.varies(value, axis) and not is_whole and not is_set['shrink_axis_mask']:
      return True
  return False


def _masks(node: Any, place: int) -> dict[str, bool]:
  names = ('begin_mask', 'end_mask', 'shrink_axis_mask')
  return {name: bool(node.attr[name].i >> place & 1) for name in names}


def _is_sized(first: Any, last: Any, step: Any, place: int, masks: Any) -> bool:
  """Whether XLA slices so, whatever the size is: it takes `x[2:]` of one row to have -1 rows."""
  start = None if first is None else first[place]
  if masks['shrink_axis_mask']:
    return start is not None and start >= 0
  stop = None if last is None else last[place]
  is_stop = masks['end_mask'] or (stop is not None and stop >= 0)
  return step == 1 and is_stop and (masks['begin_mask'] or start == 0)


def _from_the_start(position: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  position = tf.cast(position, tf.int32)
  return tf.where(position < 0, size + position, position)


def _ends(step: int, size: tf.Tensor) -> tuple[Any, Any]:
  return (0, size) if step > 0 else (-1, size - 1)


def _start(position: tf.Tensor, step: int, size: tf.Tensor, masks: Any) -> Any:
  """The first place that is taken."""
  low, high = _ends(step, size)
  if masks['begin_mask']:
    return low if step > 0 else high
  return tf.clip_by_value(_from_the_start(position, size), low, high)


def _take_all(node: Any, positions: list[list[tf.Tensor]], place: int) -> None:
  """Changes a strided slice so that it takes all along an axis."""
  node.attr['begin_mask'].i |= 1 << place
  node.attr['end_mask'].i |= 1 << place
  node.attr['shrink_axis_mask'].i &= ~(1 << place)
  for i, position in enumerate((0, 0, 1)):  # XLA looks at them in spite of the masks.
    positions[i][place] = tf.constant(position, positions[i][place].dtype)


def _slice_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Zeros around what was sliced, put there by its places where XLA would count from the end."""
  shape, *positions, gradient = inputs
  sizes = interp.sizes(shape)
  is_cut_here = sizes is not None and is_as_data_say(interp, node, inputs)
  is_fixed = not interp.session.bounds or (sizes is not None and None not in sizes)
  if is_fixed and not is_cut_here:
    return interp.op(node, inputs)
  first, last, steps = (tf.get_static_value(p, partial=True) for p in positions)
  if sizes is None or steps is None or gradient.shape.rank is None:
    raise varying.refusal(node.op)
  changed = type(node)()
  changed.CopyFrom(node)
  rest = [tf.unstack(p) for p in positions]
  cut = _axes_as_data_say(interp, node, positions, len(sizes)) if is_cut_here else set()
  for place, axis in _places(node, len(sizes), len(steps)):
    step, is_set = steps[place], _masks(node, place)
    is_plain = sizes[axis] is None and _is_sized(first, last, step, place, is_set)
    if is_plain or (sizes[axis] is not None and axis not in cut):
      continue
    if step is None or node.attr['new_axis_mask'].i or node.attr['ellipsis_mask'].i:
      raise varying.refusal(node.op)
    # Axes before this one of which one place was taken are not in the gradient.
    along = axis - bin(changed.attr['shrink_axis_mask'].i & ((1 << place) - 1)).count('1')
    size = tf.cast(shape[axis], tf.int32)
    if is_set['shrink_axis_mask']:
      gradient = tf.expand_dims(gradient, along)
      start = _from_the_start(rest[0][place], size)
    else:
      start = _start(rest[0][place], int(step), size, is_set)
    gradient = _apart(gradient, along, start, int(step), size)
    _take_all(changed, rest, place)
  return interp.op(changed, [shape, *map(tf.stack, rest), gradient])


def _apart(value: tf.Tensor, axis: int, start: Any, step: int, size: tf.Tensor) -> tf.Tensor:
  """A value's elements along an axis at every `step`-th of `size` places, with zeros between."""
  distance = (tf.range(size) - start) * (1 if step > 0 else -1)
  number, places = tf.shape(value)[axis], distance // abs(step)
  is_there = (places >= 0) & (places < number) & (distance % abs(step) == 0)
  whole = reshapes.of_largest_size(value, axis) if varying.varies(value, axis) else value
  places = tf.clip_by_value(places, 0, tf.shape(whole)[axis] - 1)
  found = reshapes.gather(whole, places, axis=axis)
  beside = [1] * value.shape.rank
  beside[axis] = -1
  result = tf.where(tf.reshape(is_there, beside), found, tf.zeros([], value.dtype))
  for other in range(value.shape.rank):
    if varying.varies(found, other):
      result = interpreter.set_dynamic_size(result, other, tf.shape(found)[other])
  return result


def _slice(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  value, begin, size = inputs
  constant = folding.constants(inputs)
  if constant is not None:
    whole, start, size = constant
    stops = np.where(size < 0, whole.shape, start + size)
    return [tf.constant(whole[tuple(map(slice, start, stops))], value.dtype)]
  is_cut_here = is_as_data_say(interp, node, inputs)
  if not is_cut_here and (not interp.session.bounds or not varying.is_varying(value)):
    return interp.op(node, inputs)
  if value.shape.rank is None:
    raise varying.refusal(node.op)
  cut = _axes_as_data_say(interp, node, inputs[1:], value.shape.rank) if is_cut_here else set()
  starts, counts = (_numbers(interp, i, value.shape.rank) for i in (begin, size))
  taken_whole = whole_axes(interp, inputs)
  for axis in taken_whole:
    counts[axis] = -1
  for axis, (start, count) in enumerate(zip(starts, counts, strict=True)):
    room = value.shape[axis]
    if room is not None and axis in cut:
      left = room - start
      number = left if isinstance(count, int) else tf.where(count < 0, left, count)
      value = every(value, axis, start, 1, tf.clip_by_value(number, 0, left), room)
      interp.session.bounds.add(room)
      starts[axis], counts[axis] = 0, -1
      continue
    if room is not None or (isinstance(start, int) and start == 0):
      continue
    if data_sizes.reads_data(count) if tf.is_tensor(count) else count == -1:
      left = tf.shape(value)[axis] - start
      value = every(value, axis, start, 1, tf.where(tf.less(count, 0), left, count))
    else:
      value = reshapes.gather(value, start + tf.range(count), axis=axis)
    starts[axis], counts[axis] = 0, -1
  if value is inputs[0] and not taken_whole and begin.dtype == tf.int32:
    return interp.op(node, inputs)
  result = tf.slice(value, tf.stack(starts), tf.stack(counts))
  result.set_shape([count if isinstance(count, int) and count >= 0 else None for count in counts])
  return [result]


def whole_axes(interp: _Interpreter, inputs: list[tf.Tensor]) -> list[int]:
  """The axes that vary of which a slice (`tf.slice`) takes all, as a concatenation's gradient."""
  value, begin, size = inputs
  starts, counts = _known(interp, begin), interp.known_sizes.numbers(size) or []
  # Of what XLA has lost the size of, that which is asked for is one.
  own = None if id(value) in interp.unsized else interp.known_sizes.varied(value)
  return [
    axis
    for axis, (start, count) in enumerate(zip(starts, counts, strict=False))
    if varying.varies(value, axis) and start == 0 and count is not None and count in (-1, own)
  ]


def _numbers(interp: _Interpreter, values: tf.Tensor, length: int) -> list[Any]:
  """The numbers in a tensor, int where they are known, so that TensorFlow knows them, too."""
  every_one = tf.unstack(tf.cast(values, tf.int32), length)
  pairs = zip(every_one, _known(interp, values), strict=True)
  return [number if known is None else known for number, known in pairs]


HANDLERS: dict[str, interpreter.Handler] = {'Slice': _slice, 'StridedSliceGrad': _slice_gradient}
