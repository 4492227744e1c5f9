"""Layers written so that every client can train its own weights at once.

`tf.nn.conv2d` under `tf.vectorized_map` becomes a grouped convolution whose
filter gradient is a loop: some twenty times slower. Convolutions are therefore
patches times a matrix, or in Winograd's form, and pooling a maximum of slices: all
turn into batched matrix products and elementwise work, also for per-example gradients.
"""

import functools
import math

import tensorflow as tf

from runtime import random_streams, winograd


def image_shape(name: str, example_shape: tuple[int, ...]) -> tuple[int, int, int]:
  """(height, width, channels) of the pictures that a model is for.

  Args:
    name: the model's name.
    example_shape: (H, W, C) or (H, W).

  Raises:
    ValueError: examples that are no pictures.
  """
  if len(example_shape) not in (2, 3):
    what = f'rows of {example_shape[0]} numbers' if len(example_shape) == 1 else 'no pictures'
    raise ValueError(
      f'--model={name} is for pictures, of shape (height, width) or (height, width, channels); '
      f'the examples here are {what}, of shape {tuple(example_shape)}. mlp takes any shape.'
    )
  height, width = example_shape[:2]
  return height, width, example_shape[2] if len(example_shape) == 3 else 1


def glorot_uniform(key: tf.Tensor, shape, fan_in: int, fan_out: int) -> tf.Tensor:
  """Glorot and Bengio's uniform initialisation, float32 of the given shape."""
  limit = math.sqrt(6.0 / (fan_in + fan_out))
  return (2.0 * random_streams.uniform(key, shape) - 1.0) * limit


def dense_init(key: tf.Tensor, inputs: int, outputs: int) -> tf.Tensor:
  """Weights [inputs, outputs] of a dense layer."""
  return glorot_uniform(key, [inputs, outputs], inputs, outputs)


def conv_init(key: tf.Tensor, size: int, inputs: int, outputs: int) -> tf.Tensor:
  """Weights [size * size * inputs, outputs] of a square convolution."""
  area = size * size
  return glorot_uniform(key, [area * inputs, outputs], area * inputs, area * outputs)


def he_conv_init(key: tf.Tensor, size: int, inputs: int, outputs: int) -> tf.Tensor:
  """Weights [size * size * inputs, outputs], normal as in He et al. 2015 (fan-out)."""
  deviation = math.sqrt(2.0 / (size * size * outputs))
  return deviation * random_streams.normal(key, [size * size * inputs, outputs])


def embedding_init(key: tf.Tensor, tokens: int, width: int) -> tf.Tensor:
  """Vectors [tokens, width], uniform in (-0.05, 0.05) as Keras's."""
  return 0.1 * random_streams.uniform(key, [tokens, width]) - 0.05


def dense(params, name: str, x) -> tf.Tensor:
  """x [..., inputs] times `<name>_weights` plus `<name>_bias`: [..., outputs]."""
  weights = params[f'{name}_weights']
  # One matrix product, whatever stands before the last axis.
  flat = tf.matmul(tf.reshape(x, [-1, weights.shape[0]]), weights) + params[f'{name}_bias']
  return tf.reshape(flat, [-1, *x.shape[1:-1], weights.shape[1]])


class Dropout:
  """Inverted dropout (Srivastava et al. 2014) from numbers that each example brings along.

  One object serves one call of a model; its calls use up the numbers from left to right.
  An example keeps its numbers whoever else is in the batch, so that the gradient of the
  one does not depend on the other: per-example clipping relies on that.
  """

  def __init__(self, draws: tf.Tensor | None):
    """Args: draws: uniform in (0, 1), [B, numbers]; None drops nothing."""
    self._draws, self.used = draws, 0

  def __call__(self, x, rate: float):
    """x [B, ...] with each entry zero with probability `rate`, and else over 1 - `rate`."""
    if self._draws is None or rate == 0.0:
      return x
    start, self.used = self.used, self.used + math.prod(x.shape[1:])
    mine = tf.reshape(self._draws[:, start : self.used], [-1, *x.shape[1:]])
    return tf.where(mine >= rate, x / (1.0 - rate), 0.0)


def layer_norm(x, scale, offset, *, epsilon: float = 1e-5):
  """Each vector of the last axis to mean 0 and variance 1, then scale and offset [width]."""
  mean = tf.reduce_mean(x, axis=-1, keepdims=True)
  variance = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
  return (x - mean) * tf.math.rsqrt(variance + epsilon) * scale + offset


def group_norm(x, scale, offset, *, groups: int, epsilon: float = 1e-5):
  """Group normalisation (Wu and He 2018): every example and group of channels by itself.

  Args:
    x: [B, H, W, C].
    scale: [C].
    offset: [C].
    groups: number of groups of neighbouring channels; it divides C.
    epsilon: added to the variance.
  """
  height, width, channels = x.shape[1:]
  grouped = tf.reshape(x, [-1, height * width, groups, channels // groups])
  mean = tf.reduce_mean(grouped, axis=[1, 3], keepdims=True)
  variance = tf.reduce_mean(tf.square(grouped - mean), axis=[1, 3], keepdims=True)
  normal = (grouped - mean) * tf.math.rsqrt(variance + epsilon)
  return tf.reshape(normal, [-1, height, width, channels]) * scale + offset


def conv2d(x, weights, *, size: int, stride: int = 1, padding: str = 'VALID', dtype=tf.float32):
  """A convolution without a bias: as patches times a matrix, or faster where that can be.

  Args:
    x: [B, H, W, C].
    weights: [size * size * C, F], rows ordered by (row, column, channel).
    size: height and width of the filter.
    stride: step in both directions.
    padding: 'VALID' or 'SAME' (TensorFlow's meaning of both).
    dtype: dtype of the product, float32 or bfloat16; the result is float32.

  Returns:
    float32 [B, H', W', F].
  """
  if padding == 'SAME':
    pads = [_same_padding(int(x.shape[axis]), size, stride) for axis in (1, 2)]
    x = tf.pad(x, [[0, 0], *pads, [0, 0]])
  _, *picture, channels = x.shape
  filters = [size, size, channels, weights.shape[1]]
  if (size, stride, dtype) == (3, 1, tf.float32) and winograd.is_faster(picture, filters[2:]):
    is_batch = x.shape[0] != 1
    convolution = winograd.convolution if is_batch else winograd.convolution_of_one_example
    return convolution(x, tf.reshape(weights, filters))
  # Columns, then rows: two copies of few parts, and gradients that are sums of few.
  patches = tf.cast(x, dtype)
  for axis in (2, 1):
    patches = tf.concat(_shifted(patches, axis, size, stride), axis=-1)
  product = tf.matmul(tf.reshape(patches, [-1, patches.shape[-1]]), tf.cast(weights, dtype))
  return tf.reshape(tf.cast(product, tf.float32), [-1, *patches.shape[1:3], weights.shape[-1]])


def max_pool(x, *, size: int = 2, stride: int = 2, padding: str = 'VALID'):
  """Maximum over windows. x: [B, H, W, C].

  Among equal values the gradient goes to the first in the order of rows, as TensorFlow's.
  """
  if padding == 'SAME':
    pads = [_same_padding(int(x.shape[axis]), size, stride) for axis in (1, 2)]
    x = tf.pad(x, [[0, 0], *pads, [0, 0]], constant_values=x.dtype.min)
  for axis in (2, 1):
    x = functools.reduce(tf.maximum, _shifted(x, axis, size, stride))
  return x


def _shifted(x, axis: int, size: int, stride: int) -> list[tf.Tensor]:
  """The first, second, ... element of every window along an axis."""
  count = (int(x.shape[axis]) - size) // stride + 1
  if size == stride:
    # Its gradient is one copy, where that of strided slices is a sum of padded ones.
    x = _cut(x, axis, 0, count * size, 1)
    return tf.unstack(
      tf.reshape(x, [-1, *x.shape[1:axis], count, size, *x.shape[axis + 1 :]]), axis=axis + 1
    )
  return [_cut(x, axis, start, start + (count - 1) * stride + 1, stride) for start in range(size)]


def _cut(x, axis: int, start: int, stop: int, step: int):
  return x[(slice(None),) * axis + (slice(start, stop, step),)]


def conv_output_size(
  size: int, *, filter_size: int, stride: int = 1, padding: str = 'VALID'
) -> int:
  """Length of one side after a convolution or pooling."""
  if padding == 'SAME':
    return -(-size // stride)
  return (size - filter_size) // stride + 1


def _same_padding(length: int, size: int, stride: int) -> list[int]:
  total = max((-(-length // stride) - 1) * stride + size - length, 0)
  return [total // 2, total - total // 2]
