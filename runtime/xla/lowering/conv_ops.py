"""Convolutions as patches times a matrix.

XLA's own on a CPU are slow where they are differentiated: the gradient by the filter is a plain
loop. Of several clients with filters of their own they become grouped convolutions, which are
slow everywhere. As products of matrices both are fast.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import interpreter

_Interpreter = interpreter.Interpreter


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Axis:
  """How a filter moves along one axis of an image.

  Attributes:
    size: the image's, without padding.
    kernel, stride, dilation: the filter's.
    low, high: the padding.
    out: in how many places the filter is.
  """

  size: int
  kernel: int
  stride: int
  dilation: int
  low: int
  high: int
  out: int

  @property
  def offsets(self) -> list[int]:
    """Where each of the filter's elements begins."""
    return [k * self.dilation for k in range(self.kernel)]

  def window(self, offset: int) -> slice:
    """What an element of the filter sees of the padded image."""
    return slice(offset, offset + (self.out - 1) * self.stride + 1, self.stride)


def _axes(node: Any, image: Any, kernel: Any) -> list[_Axis] | None:
  """The two axes of an image [rows, H, W, C] and filter [h, w, C, out]; None for other forms."""
  if image is None or kernel is None or None in image[1:] or None in kernel:
    return None
  if node.attr['data_format'].s not in (b'', b'NHWC') or image[3] != kernel[2]:
    return None
  strides, dilations = (list(node.attr[name].list.i) for name in ('strides', 'dilations'))
  padding, explicit = node.attr['padding'].s, list(node.attr['explicit_paddings'].list.i)
  found = []
  for axis in (1, 2):
    dilation = (dilations or [1] * 4)[axis]
    reach, stride, size = (kernel[axis - 1] - 1) * dilation + 1, strides[axis], image[axis]
    low = high = 0
    if padding == b'SAME':
      total = max(0, (-(-size // stride) - 1) * stride + reach - size)
      low, high = total // 2, total - total // 2
    elif padding == b'EXPLICIT':
      low, high = explicit[2 * axis : 2 * axis + 2]
    out = (size + low + high - reach) // stride + 1
    if out < 1:
      return None
    found.append(
      _Axis(
        size=size,
        kernel=kernel[axis - 1],
        stride=stride,
        dilation=dilation,
        low=low,
        high=high,
        out=out,
      )
    )
  return found


def _patches(image: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
  """What the filter sees at each of its places, [places of all rows, h * w * C]."""
  rows, columns = axes
  image = tf.pad(image, [[0, 0], *([a.low, a.high] for a in axes), [0, 0]])
  seen = [
    image[:, rows.window(i), columns.window(j)] for i in rows.offsets for j in columns.offsets
  ]
  joined = tf.concat(seen, axis=-1)
  return tf.reshape(joined, [-1, joined.shape[-1]])


def _conv(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  image, kernel = inputs
  axes = _axes(node, image.shape.as_list(), kernel.shape.as_list())
  if axes is None:
    return interp.op(node, inputs)
  product = tf.matmul(_patches(image, axes), tf.reshape(kernel, [-1, kernel.shape[3]]))
  rows, columns = axes
  result = tf.reshape(product, [_rows(image), rows.out, columns.out, kernel.shape[3]])
  return [result]


def _rows(tensor: tf.Tensor) -> int:
  return -1 if tensor.shape[0] is None else tensor.shape[0]


def _kernel_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  image, sizes, slope = inputs
  kernel = interp.sizes(sizes)
  axes = _axes(node, image.shape.as_list(), kernel)
  if axes is None or kernel is None:
    return interp.op(node, inputs)
  places = tf.reshape(slope, [-1, slope.shape[3]])
  return [tf.reshape(tf.matmul(_patches(image, axes), places, transpose_a=True), kernel)]


def _image_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  sizes, kernel, slope = inputs
  image = interp.sizes(sizes)
  axes = _axes(node, image, kernel.shape.as_list())
  if axes is None or image is None or any(a.stride > 1 for a in axes):
    return interp.op(node, inputs)
  channels, (rows, columns) = image[3], axes
  matrix = tf.reshape(kernel, [-1, kernel.shape[3]])
  product = tf.matmul(tf.reshape(slope, [-1, slope.shape[3]]), matrix, transpose_b=True)
  parts = tf.reshape(product, [_rows(slope), rows.out, columns.out, matrix.shape[0]])

  def back(number, i, j):
    """An element's part of the gradient, where it sees the padded image."""
    part = parts[..., number * channels : (number + 1) * channels]
    around = [
      [offset, a.size + a.low + a.high - a.out - offset]
      for a, offset in zip(axes, (i, j), strict=True)
    ]
    return tf.pad(part, [[0, 0], *around, [0, 0]])

  offsets = [(i, j) for i in rows.offsets for j in columns.offsets]
  total = tf.add_n([back(number, i, j) for number, (i, j) in enumerate(offsets)])
  return [total[:, rows.low : rows.low + rows.size, columns.low : columns.low + columns.size]]


HANDLERS: dict[str, interpreter.Handler] = dict(
  Conv2D=_conv,
  Conv2DBackpropFilter=_kernel_gradient,
  Conv2DBackpropInput=_image_gradient,
)
