"""Layers written so that every client can train its own weights at once.

`tf.nn.conv2d` under `tf.vectorized_map` becomes a grouped convolution whose
filter gradient is a loop: some twenty times slower. Convolutions are therefore
patches times a matrix, and pooling a maximum of slices: both turn into batched
matrix products and elementwise work, also for per-example gradients.
"""

import math

import tensorflow as tf

from runtime import random_streams


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


def conv2d(
  x, weights, bias, *, size: int, stride: int = 1, padding: str = 'VALID', dtype=tf.float32
):
  """A convolution as patches times a matrix.

  Args:
    x: [B, H, W, C].
    weights: [size * size * C, F], rows ordered by (row, column, channel).
    bias: [F].
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
  height, width, channels = (int(d) for d in x.shape[1:])
  out_height = (height - size) // stride + 1
  out_width = (width - size) // stride + 1
  x = tf.cast(x, dtype)
  shifted = [
    x[
      :,
      i : i + (out_height - 1) * stride + 1 : stride,
      j : j + (out_width - 1) * stride + 1 : stride,
    ]
    for i in range(size)
    for j in range(size)
  ]
  patches = tf.reshape(tf.concat(shifted, axis=-1), [-1, size * size * channels])
  product = tf.cast(tf.matmul(patches, tf.cast(weights, dtype)), tf.float32)
  return tf.reshape(product + bias, [-1, out_height, out_width, weights.shape[-1]])


def max_pool(x, *, size: int = 2, stride: int = 2):
  """Maximum over windows, 'VALID' padding. x: [B, H, W, C]."""
  height = (int(x.shape[1]) - size) // stride + 1
  width = (int(x.shape[2]) - size) // stride + 1
  windows = [
    x[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
    for i in range(size)
    for j in range(size)
  ]
  result = windows[0]
  for window in windows[1:]:
    result = tf.maximum(result, window)
  return result


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
