"""Convolutions with 3x3 filters in 4/9 of the multiplications.

Winograd's minimal filtering F(2x2, 3x3) (Lavin and Gray 2016, arXiv 1509.09308): every four
neighbouring outputs come from a window of 4x4 inputs by 16 products instead of 36,

  Y = A^T [(G g G^T) * (B^T d B)] A,

and over all windows and channels each of the 16 is one matrix product. B and A add and subtract
only, G halves, so that float32 keeps its digits. What is written here are TensorFlow's own
operations, differentiable and the same on every device.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_SIZE = 3
_WINDOW = 4
_ROWS, _COLUMNS = 1, 2  # The axes of a picture.
_FEWEST_CHANNELS = 16  # With fewer, adding costs more than the products that it saves.
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_OF_FILTER = np.kron(_G, _G)  # [16, 9]: a filter as a column -> G g G^T as a column


def is_faster(picture: Sequence[int], channels: Sequence[int]) -> bool:
  """Whether a 3x3 convolution of a batch is faster so than as patches times a matrix.

  Args:
    picture: height and width, as padded.
    channels: of the picture and of the result.
  """
  height, width = picture
  outputs = (height - _SIZE + 1) * (width - _SIZE + 1)
  # Else the filters' own transform, and compiling it, cost more than is saved.
  has_windows = 2 * outputs >= max(channels)
  return has_windows and min(channels) >= _FEWEST_CHANNELS


def convolution(x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
  """`tf.nn.conv2d(x, filters, 1, 'VALID')`.

  Args:
    x: [B, H, W, C].
    filters: [3, 3, C, F].

  Returns:
    [B, H - 2, W - 2, F].
  """
  channels, outputs = filters.shape[2:]
  height, width = (int(x.shape[axis]) - _SIZE + 1 for axis in (_ROWS, _COLUMNS))
  matrix = tf.constant(_OF_FILTER, filters.dtype)
  of_filters = tf.unstack(  # not slices, whose gradients would be added up
    tf.reshape(matrix @ tf.reshape(filters, [_SIZE**2, -1]), [_WINDOW**2, channels, outputs])
  )
  windows = _windows(x)
  products = [
    tf.reshape(window, [-1, channels]) @ of_filter
    for window, of_filter in zip(itertools.chain(*windows), of_filters, strict=True)
  ]
  by_row = (products[i : i + _WINDOW] for i in range(0, _WINDOW**2, _WINDOW))
  rows = zip(*map(_outputs, by_row), strict=True)  # [2][4]: by column, then row
  columns = [_outputs(list(column)) for column in rows]
  shape = [-1, -(-height // 2), -(-width // 2), outputs]
  result = tf.stack(
    [
      tf.stack([tf.reshape(columns[j][i], shape) for j in range(2)], axis=_COLUMNS + 1)
      for i in range(2)
    ],
    axis=_ROWS + 1,
  )
  return tf.reshape(result, [-1, 2 * shape[1], 2 * shape[2], outputs])[:, :height, :width]


@tf.custom_gradient
def convolution_of_one_example(x: tf.Tensor, filters: tf.Tensor):
  """`convolution` where every example has a gradient by the filters of its own.

  An example has few windows, and sixteen products for each would cost more than they save: the
  gradient by the filters is that of patches times a matrix. Its gradient by x is in Winograd's
  form again, as a convolution with the filters turned round.

  Args:
    x: [1, H, W, C].
    filters: [3, 3, C, F].

  Returns:
    [1, H - 2, W - 2, F].
  """

  def gradients(upstream):
    around = tf.pad(upstream, [[0, 0], *[[_SIZE - 1, _SIZE - 1]] * 2, [0, 0]])
    by_x = convolution(around, tf.transpose(filters[::-1, ::-1], [0, 1, 3, 2]))
    patches = x
    for axis in (_COLUMNS, _ROWS):
      count = int(x.shape[axis]) - _SIZE + 1
      shifted = [_part(patches, axis, start, count) for start in range(_SIZE)]
      patches = tf.concat(shifted, axis=-1)
    by_filters = tf.matmul(
      tf.reshape(patches, [-1, patches.shape[-1]]),
      tf.reshape(upstream, [-1, upstream.shape[-1]]),
      transpose_a=True,
    )
    return by_x, tf.reshape(by_filters, filters.shape)

  return convolution(x, filters), gradients


def filter_gradient(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
  """The gradient of `convolution` by its filters.

  Args:
    x: [B, H, W, C].
    gradient: by the result, [B, H - 2, W - 2, F].

  Returns:
    [3, 3, C, F].
  """
  channels, outputs = int(x.shape[-1]), int(gradient.shape[-1])
  windows = _windows(x)
  of_products = [_spread(part, _COLUMNS) for part in _spread(gradient, _ROWS)]
  products = [
    tf.matmul(tf.reshape(window, [-1, channels]), tf.reshape(part, [-1, outputs]), transpose_a=True)
    for window, part in zip(itertools.chain(*windows), itertools.chain(*of_products), strict=True)
  ]
  flat = tf.reshape(tf.stack(products), [_WINDOW**2, -1])
  by_filters = tf.matmul(tf.constant(_OF_FILTER, x.dtype), flat, transpose_a=True)
  return tf.reshape(by_filters, [_SIZE, _SIZE, channels, outputs])


def _windows(x: tf.Tensor) -> list[list[tf.Tensor]]:
  """B^T d B of all windows: [4][4] of [B, H', W', C]."""
  by_column = zip(*(_transformed(part, _ROWS) for part in _transformed(x, _COLUMNS)), strict=True)
  return [list(row) for row in by_column]


def _transformed(x: tf.Tensor, axis: int) -> list[tf.Tensor]:
  """B^T d along an axis, for windows of four that begin at every second element."""
  count = -(-(int(x.shape[axis]) - _SIZE + 1) // 2)
  even, odd = _halves(x, axis, count + 1)
  first, third = _part(even, axis, 0, count), _part(even, axis, 1, count)
  second, fourth = _part(odd, axis, 0, count), _part(odd, axis, 1, count)
  return [first - third, second + third, third - second, second - fourth]


def _spread(gradient: tf.Tensor, axis: int) -> list[tf.Tensor]:
  """A dY along an axis: the adjoint of `_outputs`."""
  even, odd = _halves(gradient, axis, -(-int(gradient.shape[axis]) // 2))
  return [even, even + odd, even - odd, -odd]


def _outputs(products: list[tf.Tensor]) -> list[tf.Tensor]:
  """A^T M along an axis."""
  first, second, third, fourth = products
  return [first + second + third, second - third - fourth]


def _halves(x: tf.Tensor, axis: int, count: int) -> list[tf.Tensor]:
  """The elements with even and with odd numbers, so many of each; zeros behind the last."""
  paddings = [[0, 0]] * x.shape.rank
  paddings[axis] = [0, 2 * count - int(x.shape[axis])]
  shape = [-1, *x.shape[1:axis], count, 2, *x.shape[axis + 1 :]]
  return tf.unstack(tf.reshape(tf.pad(x, paddings), shape), axis=axis + 1)


def _part(x: tf.Tensor, axis: int, start: int, count: int) -> tf.Tensor:
  begin, size = [0] * x.shape.rank, [-1] * x.shape.rank
  begin[axis], size[axis] = start, count
  return tf.slice(x, begin, size)
