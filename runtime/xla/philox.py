"""TensorFlow's Philox bits for many keys at once.

XLA's own op takes one key. This is the same generator, Philox 4x32 with ten
rounds, in ordinary integer arithmetic, so that every lane of a vectorised block
draws from its own key. The bits are those of
`tf.random.stateless_uniform(..., alg='philox')`.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3
(SC 2011); constants as in TensorFlow's `philox_random.h`.
"""

import tensorflow as tf

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SCRAMBLE_KEY = (0x3EC8F720, 0x02461E29)
_ROUNDS = 10


def _split(word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Low and high half of uint64 as uint32."""
  shift = tf.constant(32, tf.uint64)
  return tf.cast(word, tf.uint32), tf.cast(tf.bitwise.right_shift(word, shift), tf.uint32)


def _join(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  shift = tf.constant(32, tf.uint64)
  return tf.cast(low, tf.uint64) + tf.bitwise.left_shift(tf.cast(high, tf.uint64), shift)


def _rounds(counter: list[tf.Tensor], key: list[tf.Tensor]) -> list[tf.Tensor]:
  for _ in range(_ROUNDS):
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
  return counter


def key_and_counter(seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """What `StatelessRandomGetKeyCounter` gives, for integer seeds [lanes, 2].

  Returns:
    Keys [lanes, 1] and counters [lanes, 2], uint64.
  """
  if seeds.dtype == tf.int32:
    seeds = tf.cast(seeds, tf.int64)  # Sign-extended, as TensorFlow does.
  words = [_split(tf.cast(seeds[:, i], tf.uint64)) for i in range(2)]
  key = [tf.fill(tf.shape(seeds)[:1], tf.constant(k, tf.uint32)) for k in _SCRAMBLE_KEY]
  mixed = _rounds([*words[0], *words[1]], key)
  high = _join(mixed[2], mixed[3])
  return (
    _join(mixed[0], mixed[1])[:, tf.newaxis],
    tf.stack([tf.zeros_like(high), high], axis=1),
  )


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
  blocks = -(-words // 4)
  low = counters[:, :1] + tf.cast(tf.range(blocks), tf.uint64)[tf.newaxis]
  carry = tf.cast(low < counters[:, :1], tf.uint64)
  high = counters[:, 1:] + carry
  key = [tf.broadcast_to(k, tf.shape(low)) for k in _split(keys)]
  output = tf.stack(_rounds([*_split(low), *_split(high)], key), axis=2)
  output = tf.reshape(output, [tf.shape(keys)[0], 4 * blocks])
  if dtype.size == 8:
    output = _join(output[:, 0::2], output[:, 1::2])
  return tf.bitcast(output[:, :size], dtype)
