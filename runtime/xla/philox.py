"""TensorFlow's Philox bits for many keys at once, and long draws on a CPU.

XLA's own op takes one key. This is the same generator, Philox 4x32 with ten
rounds, in ordinary integer arithmetic, so that every lane of a vectorised block
draws from its own key. The bits are those of
`tf.random.stateless_uniform(..., alg='philox')`.

On a CPU, XLA fuses all ten rounds into what reads the bits, and computes them
anew, one number at a time, for each of a block's four words. There a long draw's
rounds are turns of a loop, over vectors.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3
(SC 2011); constants as in TensorFlow's `philox_random.h`.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

PHILOX = tf.random.Algorithm.PHILOX.value
# What TensorFlow chooses on a CPU and a GPU is Philox.
ALGORITHMS = (PHILOX, tf.random.Algorithm.AUTO_SELECT.value)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SCRAMBLE_KEY = (0x3EC8F720, 0x02461E29)
_ROUNDS = 10
_ROUNDS_A_TURN = 2
_LONG = 256  # blocks of four words, from which a draw's rounds are a loop on a CPU

OPS = ('StatelessRandomUniformFullIntV2',)
SEEDED = ('StatelessRandomGetKeyCounter', 'StatelessRandomUniformFullInt')

_State = list[tf.Tensor]  # a counter's four words, or a key's two, for each lane and block


def _split(word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Low and high half of uint64 as uint32."""
  shift = tf.constant(32, tf.uint64)
  return tf.cast(word, tf.uint32), tf.cast(tf.bitwise.right_shift(word, shift), tf.uint32)


def join(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  """uint64 of two uint32; XLA cannot bitcast values of dynamic sizes to it."""
  shift = tf.constant(32, tf.uint64)
  return tf.cast(low, tf.uint64) + tf.bitwise.left_shift(tf.cast(high, tf.uint64), shift)


def _rounds(counter: _State, key: _State, count: int = _ROUNDS) -> tuple[_State, _State]:
  """The words, and the key of the next round."""
  for _ in range(count):
    low, high = zip(
      *(
        _split(tf.cast(word, tf.uint64) * tf.constant(multiplier, tf.uint64))
        for word, multiplier in zip((counter[0], counter[2]), _MULTIPLIERS, strict=True)
      ),
      strict=True,
    )
    counter = [
      high[1] ^ counter[1] ^ key[0],
      low[1],
      high[0] ^ counter[3] ^ key[1],
      low[0],
    ]
    key = [k + tf.constant(w, tf.uint32) for k, w in zip(key, _WEYL, strict=True)]
  return counter, key


def _rounds_in_a_loop(counter: _State, key: _State) -> _State:
  def turn(i, counter, key):
    return i + 1, *_rounds(counter, key, _ROUNDS_A_TURN)

  _, counter, _ = tf.while_loop(
    lambda i, *_: i < _ROUNDS // _ROUNDS_A_TURN, turn, (tf.constant(0), counter, key)
  )
  return counter


def of_seed(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """What TensorFlow's `StatelessRandomGetKeyCounter` gives.

  XLA's own takes the lower words of a seed only, and of a negative one another upper word.

  Args:
    seed: [2], integers.

  Returns:
    Philox's key [1] and first counter [2], uint64.
  """
  if seed.dtype == tf.int32:
    seed = tf.cast(seed, tf.int64)  # Sign-extended, as TensorFlow does.
  low, high = (_split(tf.cast(word, tf.uint64)) for word in tf.unstack(seed, 2))
  key = [tf.constant(word, tf.uint32) for word in _SCRAMBLE_KEY]
  mixed, _ = _rounds([*low, *high], key)
  counter = [tf.constant(0, tf.uint64), join(mixed[2], mixed[3])]
  return join(mixed[0], mixed[1])[tf.newaxis], tf.stack(counter)


def bits(keys: tf.Tensor, counters: tf.Tensor, size: int, dtype: tf.DType) -> tf.Tensor:
  """What `StatelessRandomUniformFullIntV2` gives, for every lane.

  Args:
    keys: [lanes, 1], uint64.
    counters: [lanes, 2], uint64.
    size: the number of values for each lane.
    dtype: a 32- or 64-bit integer.

  Returns:
    [lanes, size] of the dtype.
  """
  words = size if dtype.size == 4 else 2 * size
  count = -(-words // 4)
  output = _blocks(keys, counters, tf.range(count), in_a_loop=_is_long(count))
  output = tf.reshape(output, [tf.shape(keys)[0], 4 * count])
  if dtype.size == 8:
    output = join(output[:, 0::2], output[:, 1::2])
  return tf.bitcast(output[:, :size], dtype)


def blocks(key: tf.Tensor, counter: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Blocks of four words each of a draw, whose size may be one that only XLA knows.

  Args:
    key: [1], uint64.
    counter: [2], uint64.
    numbers: [n], which of the draw's blocks.

  Returns:
    [n, 4], uint32.
  """
  return tf.squeeze(_blocks(key[tf.newaxis], counter[tf.newaxis], numbers, in_a_loop=False), 0)


def _blocks(
  keys: tf.Tensor, counters: tf.Tensor, numbers: tf.Tensor, *, in_a_loop: bool
) -> tf.Tensor:
  """[lanes, n, 4]: the same blocks of every lane's draw."""
  low = counters[:, :1] + tf.cast(numbers, tf.uint64)[tf.newaxis]
  carry = tf.cast(low < counters[:, :1], tf.uint64)
  high = counters[:, 1:] + carry
  state, key = [*_split(low), *_split(high)], list(_split(keys))
  if in_a_loop:
    state = _rounds_in_a_loop(state, key)
  else:
    state, _ = _rounds(state, [tf.broadcast_to(k, tf.shape(low)) for k in key])
  return tf.stack(state, axis=2)


def seeded(op: str, inputs: Sequence[tf.Tensor], dtype: Any) -> list[tf.Tensor]:
  """What TensorFlow's op gives, see `of_seed`.

  Args:
    op: one of `SEEDED`.
    inputs: its own; the seed is the last.
    dtype: the type of what it draws, if it draws.
  """
  *shape, seed = inputs
  key, counter = of_seed(seed)
  if not shape:
    return [key, counter]
  return [
    tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape[0], key=key, counter=counter, alg=PHILOX, dtype=dtype
    )
  ]


def _is_long(blocks: int) -> bool:
  return blocks >= _LONG and not tf.config.list_physical_devices('GPU')


def taken(operation: tf.Operation) -> tf.Tensor | None:
  """A long draw of XLA's own op in a loop, where that is faster; else None.

  Args:
    operation: `StatelessRandomUniformFullIntV2`.

  Returns:
    The same bits, of the shape and dtype of the op's output.
  """
  shape, dtype = operation.outputs[0].shape, operation.outputs[0].dtype
  _, key, counter, algorithm = operation.inputs
  if not shape.is_fully_defined() or tensor_util.constant_value(algorithm) != PHILOX:
    return None
  size = shape.num_elements()
  if not _is_long(size * dtype.size // 16):
    return None
  return tf.reshape(bits(key[tf.newaxis], counter[tf.newaxis], size, dtype), shape)
