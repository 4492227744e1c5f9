"""Convolutions and pooling of pictures, in forms that XLA compiles well.

On a CPU, XLA turns a convolution inside of a loop into a plain nest of loops unless its axes are
in the order of a forward pass, and clients are loops. So gradients of convolutions are written as
forward convolutions of rearranged values, some thirty times faster for a 3x3 filter. Where several
clients are worked on at once, each with filters of its own, a convolution is patches times a
matrix: XLA's grouped convolutions are slow to differentiate. So it is on a CPU for pictures of few
channels; 3x3 filters of many channels are taken in Winograd's form there (`runtime.winograd`).
Pooling whose windows do not overlap is a maximum of slices.
"""

import dataclasses
import functools
import operator
from typing import Any

import tensorflow as tf

from runtime import winograd
from runtime.xla.lowering import interpreter

_Interpreter = interpreter.Interpreter
_ROWS, _COLUMNS = 1, 2  # The axes of a picture.
_FEW_CHANNELS = 16  # Fewer fill a core's registers as patches only: up to four times as fast.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Axis:
  """How windows go along an axis.

  Attributes:
    axis: which.
    length: its size.
    window: the number of a window's elements.
    stride: from a window to the next.
    dilation: from an element of a window to the next.
    before: the padding before the first element.
    count: the number of windows.
  """

  axis: int
  length: int
  window: int
  stride: int
  dilation: int
  before: int
  count: int

  @property
  def reach(self) -> int:
    """From a window's first element to its last."""
    return (self.window - 1) * self.dilation

  def fitted(self, x: tf.Tensor, value: float = 0) -> tf.Tensor:
    """Padded and cut to what the windows cover."""
    end = (self.count - 1) * self.stride + self.reach + 1
    return _resized(x, self.axis, self.before, end, value)

  def elements(self, x: tf.Tensor) -> list[tf.Tensor]:
    """The first, second, ... elements of all windows, of what is fitted."""
    last = (self.count - 1) * self.stride + 1
    starts = range(0, self.reach + 1, self.dilation)
    return [_cut(x, self.axis, start, start + last, self.stride) for start in starts]

  def spread(self, x: tf.Tensor) -> tf.Tensor:
    """Values of the windows where a convolution with the reversed filter takes them from."""
    apart = _with_gaps(x, self.axis, self.stride)
    return _resized(apart, self.axis, self.reach - self.before, self.length + self.reach, 0)


def _resized(x: tf.Tensor, axis: int, before: int, length: int, value: float) -> tf.Tensor:
  """Padded or cut before the first element and after the last, to a length."""
  after = length - x.shape[axis] - before
  x = _cut(x, axis, max(0, -before), x.shape[axis] - max(0, -after), 1)
  paddings = [[0, 0]] * x.shape.rank
  paddings[axis] = [max(0, before), max(0, after)]
  return tf.pad(x, paddings, constant_values=tf.cast(value, x.dtype)) if any(paddings[axis]) else x


def _with_gaps(x: tf.Tensor, axis: int, step: int) -> tf.Tensor:
  """With zeros between the elements along an axis."""
  if step == 1:
    return x
  paddings = [[0, 0]] * (x.shape.rank + 1)
  paddings[axis + 1] = [0, step - 1]
  spaced = tf.pad(tf.expand_dims(x, axis + 1), paddings)
  shape = _open(x.shape)
  joined = tf.reshape(spaced, [*shape[:axis], shape[axis] * step, *shape[axis + 1 :]])
  return _cut(joined, axis, 0, (x.shape[axis] - 1) * step + 1, 1)


def _cut(x: tf.Tensor, axis: int, start: int, stop: int, step: int) -> tf.Tensor:
  return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _open(shape: tf.TensorShape) -> list[int]:
  return [-1 if size is None else size for size in shape.as_list()]


def _axes(node: Any, shape: Any, window: Any) -> list[_Axis] | None:
  """The axes of pictures [B, H, W, C] and windows over them; None for another layout."""

  def integers(name):  # Reading a missing attribute would add it to the node.
    return list(node.attr[name].list.i) if name in node.attr else []

  is_known = None not in (shape[_ROWS], shape[_COLUMNS], *window)
  if not is_known or node.attr['data_format'].s != b'NHWC':
    return None
  strides, dilations = integers('strides'), integers('dilations') or [1] * 4
  if (strides[0], strides[3], dilations[0], dilations[3]) != (1, 1, 1, 1):
    return None
  explicit = integers('explicit_paddings')
  found = []
  for axis, size in zip((_ROWS, _COLUMNS), window, strict=True):
    length, stride, dilation = shape[axis], strides[axis], dilations[axis]
    reach = (size - 1) * dilation
    if node.attr['padding'].s == b'SAME':
      count = -(-length // stride)
      before = max(0, (count - 1) * stride + reach + 1 - length) // 2
    else:
      before, after = explicit[2 * axis : 2 * axis + 2] if explicit else (0, 0)
      count = (length + before + after - reach - 1) // stride + 1
    if count < 1:
      return None
    found.append(
      _Axis(
        axis=axis,
        length=length,
        window=size,
        stride=stride,
        dilation=dilation,
        before=before,
        count=count,
      )
    )
  return found


def _convolution_axes(node: Any, sizes: Any, filters: Any) -> list[_Axis] | None:
  """The axes of a convolution of all channels; None for another one."""
  if sizes is None or filters is None or None in (*sizes[1:], *filters):
    return None
  return _axes(node, sizes, filters[:2]) if sizes[3] == filters[2] else None


def _patches(axes: list[_Axis], x: tf.Tensor) -> tf.Tensor:
  """[B, H, W, C] -> [B * H' * W', h * w * C], a filter's elements in their order."""
  for axis in reversed(axes):
    x = tf.concat(axis.elements(axis.fitted(x)), axis=-1)
  return tf.reshape(x, [-1, x.shape[-1]])


def _times_filter(axes: list[_Axis], x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """The convolution as patches times a matrix."""
  product = _patches(axes, x) @ tf.reshape(weights, [-1, weights.shape[3]])
  return tf.reshape(product, [_open(x.shape)[0], *(axis.count for axis in axes), weights.shape[3]])


def _is_on_a_cpu() -> bool:
  """Whether the form of a convolution is ours to choose; cuDNN chooses by itself."""
  return not tf.config.list_logical_devices('GPU')


def _is_of_patches(interp: _Interpreter, filters: Any) -> bool:
  return interp.scope.lanes > 1 or (_is_on_a_cpu() and filters[2] < _FEW_CHANNELS)


def _has_winograds_form(interp: _Interpreter, axes: list[_Axis], dtype: tf.DType, filters: Any):
  return (
    interp.scope.lanes == 1
    and _is_on_a_cpu()
    and dtype == tf.float32
    and all((axis.window, axis.stride, axis.dilation) == (3, 1, 1) for axis in axes)
    and winograd.is_faster((axes[0].count + 2, axes[1].count + 2), (filters[2], filters[3]))
  )


def _convolution(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  x, weights = inputs
  axes = _convolution_axes(node, x.shape, weights.shape)
  if axes is None:
    return interp.op(node, inputs)
  if _has_winograds_form(interp, axes, x.dtype, weights.shape):
    for axis in axes:
      x = axis.fitted(x)
    return [winograd.convolution(x, weights)]
  if _is_of_patches(interp, weights.shape):
    return [_times_filter(axes, x, weights)]
  return interp.op(node, inputs)


def _input_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The gradient's values, apart by the stride, convolved with the reversed filter."""
  sizes, weights, gradient = interp.sizes(inputs[0]), inputs[1], inputs[2]
  axes = _convolution_axes(node, sizes, weights.shape)
  if axes is None:
    return interp.op(node, inputs)
  is_winograds = _has_winograds_form(interp, axes, gradient.dtype, weights.shape)
  for axis in axes:
    gradient = axis.spread(gradient)
  weights = tf.transpose(weights[::-1, ::-1], [0, 1, 3, 2])
  if is_winograds:
    return [winograd.convolution(gradient, weights)]
  if interp.scope.lanes == 1:
    dilations = [axis.dilation for axis in axes]
    return [tf.nn.conv2d(gradient, weights, 1, 'VALID', dilations=dilations)]
  of_gradient = [
    dataclasses.replace(a, length=a.length + a.reach, stride=1, before=0, count=a.length)
    for a in axes
  ]
  return [_times_filter(of_gradient, gradient, weights)]


def _filter_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A convolution over the examples: channels are the pictures, and the gradient the filter."""
  x, sizes, gradient = inputs[0], interp.sizes(inputs[1]), inputs[2]
  axes = _convolution_axes(node, x.shape, sizes)
  if axes is None or sizes is None:
    return interp.op(node, inputs)
  if _is_of_patches(interp, sizes):
    flat = tf.reshape(gradient, [-1, gradient.shape[3]])
    return [tf.reshape(tf.matmul(_patches(axes, x), flat, transpose_a=True), sizes)]
  for axis in axes:
    x = axis.fitted(x)
  if _has_winograds_form(interp, axes, x.dtype, sizes):
    return [winograd.filter_gradient(x, gradient)]
  result = tf.nn.conv2d(
    tf.transpose(x, [3, 1, 2, 0]),
    tf.transpose(gradient, [1, 2, 0, 3]),
    [axis.dilation for axis in axes],
    'VALID',
    dilations=[axis.stride for axis in axes],
  )
  return [tf.ensure_shape(tf.transpose(result, [1, 2, 0, 3]), sizes)]


def _pooling_axes(node: Any, x: tf.Tensor) -> list[_Axis] | None:
  """The axes of pooling over windows that do not overlap; None for another one."""
  batch, *window, channels = node.attr['ksize'].list.i
  if not x.dtype.is_floating or x.shape.rank != 4 or (batch, channels) != (1, 1):
    return None
  axes = _axes(node, x.shape, window)
  return axes if axes and all(a.window == a.stride for a in axes) else None


def _windows(axes: list[_Axis], x: tf.Tensor) -> tf.Tensor:
  """[B, H, W, C] -> [B, H', h, W', w, C]."""
  for axis in axes:
    x = axis.fitted(x, x.dtype.min)
  rows, columns = axes
  shape = _open(x.shape)
  return tf.reshape(x, [shape[0], rows.count, rows.window, columns.count, columns.window, shape[3]])


def _elements(axes: list[_Axis], windows: tf.Tensor) -> list[list[tf.Tensor]]:
  return [
    [windows[:, :, row, :, column] for column in range(axes[1].window)]
    for row in range(axes[0].window)
  ]


def _max_pool(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  (x,) = inputs
  axes = _pooling_axes(node, x)
  if axes is None:
    return interp.op(node, inputs)
  elements = _elements(axes, _windows(axes, x))
  return [functools.reduce(tf.maximum, [e for row in elements for e in row])]


def _max_pool_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """To the first of a window's largest elements, as TensorFlow's."""
  x, largest, gradient = inputs
  axes = _pooling_axes(node, x)
  if axes is None:
    return interp.op(node, inputs)
  before: list[tf.Tensor] = []  # Where earlier elements are the largest.
  rows = []
  for row in _elements(axes, _windows(axes, x)):
    parts = []
    for element in row:
      is_largest = tf.equal(element, largest)
      chosen = functools.reduce(operator.and_, [~b for b in before], is_largest)
      parts.append(tf.where(chosen, gradient, tf.zeros_like(gradient)))
      before.append(is_largest)
    rows.append(tf.stack(parts, axis=3))
  result = tf.stack(rows, axis=2)
  for axis in axes:
    shape = _open(result.shape)
    joined = [*shape[: axis.axis], axis.count * axis.window, *shape[axis.axis + 2 :]]
    result = tf.reshape(result, joined)
  for axis in axes:
    result = _resized(result, axis.axis, -axis.before, axis.length, 0)
  return [result]


def _resizing(node: Any, op: Any, size: int, new_size: int) -> tf.Tensor:
  """What a resize makes of each of `size` places along an axis: [size, new_size]."""
  options = {name: node.attr[name].b for name in ('align_corners', 'half_pixel_centers')}
  with tf.init_scope():
    places = tf.eye(size)[:, :, tf.newaxis, tf.newaxis]
    result = op(images=places, size=[new_size, 1], **options).numpy()
  return tf.constant(result.reshape(size, new_size))


def _resize_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """XLA has none. A resize weighs rows and columns apart, and its gradient does so, too.

  (So an infinite number, or none, comes out as NaN all along its row and column.)
  """
  gradient, of = inputs
  if node.op == 'ResizeBilinearGrad':
    op, sizes = tf.raw_ops.ResizeBilinear, of.shape[_ROWS:3]
  else:
    op, sizes = tf.raw_ops.ResizeNearestNeighbor, tf.get_static_value(of)
  new_sizes = gradient.shape[_ROWS:3]
  if sizes is None or None in (*sizes, *new_sizes, gradient.shape[3]):
    raise interpreter.NotLowered('the gradient of a resize of pictures of unknown sizes')
  rows, columns = (
    tf.cast(_resizing(node, op, int(size), new_size), gradient.dtype)
    for size, new_size in zip(sizes, new_sizes, strict=True)
  )
  apart = tf.reshape(gradient, [-1, new_sizes[0], new_sizes[1] * gradient.shape[3]])
  resized = tf.reshape(rows @ apart, [-1, int(sizes[0]), new_sizes[1], gradient.shape[3]])
  return [columns @ resized]


HANDLERS: dict[str, interpreter.Handler] = dict(
  Conv2D=_convolution,
  Conv2DBackpropFilter=_filter_gradient,
  Conv2DBackpropInput=_input_gradient,
  MaxPool=_max_pool,
  MaxPoolGrad=_max_pool_gradient,
  ResizeBilinearGrad=_resize_gradient,
  ResizeNearestNeighborGrad=_resize_gradient,
)
