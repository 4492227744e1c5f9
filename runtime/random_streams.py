"""One stream of random numbers, the same on every runtime and device.

TensorFlow's and XLA's kernels turn the same seed into *different* floats, but
into the same raw bits when the Philox generator is named. So every random
number of this project starts as Philox bits, and uniforms, normals and Gumbels
are made from the bits by ordinary arithmetic. Streams are named and keyed by
what they belong to (round, client, step), never by the order of the calls:
a run that is resumed, or whose clients are visited in another order, draws
the same numbers.

Streams grow from a *root*: a public seed (an int32 scalar), or a secret noise
key (`runtime.noise_key.NoiseKey`; in a program its words, int32 [8]). Inside a
TensorFlow graph a key is an int32 tensor [2] or, from a secret root, [8]. On the
host, `host_generator` gives a NumPy generator for (root, stream, indices).

Why a secret key has 256 bits: Philox 4x32 has a key of 64 bits, and with 128
known bits of one block each of 2^64 keys could be tried, inverting the generator
and looking at the counter. So of a secret key's eight words four are TensorFlow's
seed, which it mixes, one to one, into Philox' key and the upper half of its
counter, and four are added (xor) to every block of the output: the construction
FX of Kilian and Rogaway ("How to protect DES against exhaustive key search",
1996). A block known at one place then tells nothing about the Philox key without
the four words, the difference of two blocks nothing without the counter: trying
them all takes 2^128 evaluations. `fold_in` draws all words of a new key in this
way, so that no key tells its parent. This rules out search. Philox is no cipher
that has been studied by cryptanalysts: the root's own bytes never meet it.
"""

import collections
import enum
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from runtime import noise_key

# Separates the draws that make new keys from all others.
_FOLD_IN_TAG = [0x5F3759DF, 0x2545F491]

# How TensorFlow makes Philox' key and counter of a seed.
_SCRAMBLE_KEY = np.array([0x02461E293EC8F720], np.uint64)
_PHILOX = tf.random.Algorithm.PHILOX.value
_LONG = 2**12  # Blocks of four words, from which a draw is long.
_LOOP_FROM = 4  # Equal draws that are worth a loop.


class Stream(enum.IntEnum):
  """What a random number is for. The values are part of a run's identity."""

  INIT = 1  # initial model parameters
  COHORT = 2  # which clients take part in a round
  BATCH = 3  # which examples of a client are in a batch
  DP_NOISE = 4  # noise of a differentially private mechanism
  SELECTION = 5  # noise of a private selection (exponential mechanism)
  SPLIT = 6  # train / test splits and partitions
  DATA = 7  # synthetic data, random masks, label noise
  ATTRIBUTES = 8  # random attributes of clients, such as opting out
  TUNING = 9  # private hyper-parameter tuning
  PERSONAL_BATCH = 10  # batches of a personal model trained beside a global one
  PERSONAL_NOISE = 11  # noise of a personal model trained beside a global one
  QUANTILE_NOISE = 12  # noise of the adaptive clipping's quantile estimate
  DROPOUT = 13  # dropout and other noise inside a model


def key(root, stream: Stream, *indices) -> tf.Tensor:
  """The key of a stream.

  Args:
    root: a public seed (int or int32 scalar tensor), or a secret noise key or its words
      (int32 [8]).
    stream: what the numbers are for.
    *indices: int32 scalars which say where: usually round, client id, step.

  Returns:
    An int32 tensor of shape [2] or [8], to be given to `bits` and its relatives. Each
    key is used for one draw only; `fold_in` makes further keys of it.
  """
  if isinstance(root, noise_key.NoiseKey):
    root = root.words
  root = tf.cast(root, tf.int32)
  if root.shape.rank == 0:
    result = tf.stack([root, tf.constant(int(stream), tf.int32)])
  else:
    result = fold_in(root, int(stream))
  for index in indices:
    result = fold_in(result, index)
  return result


def fold_in(key_: tf.Tensor, index) -> tf.Tensor:
  """A new key, of the same size, from a key and an int32 scalar.

  All bits of a key are used: among n keys of 64 bits about n^2 / 2^65 pairs are equal.
  (`tf.random.experimental.stateless_fold_in` keeps 32 bits, by which a run of a
  hundred thousand draws would use some noise twice.)
  """
  words = key_.shape[0]
  return _child(key_) + tf.pad(tf.reshape(tf.cast(index, tf.int32), [1]), [[1, words - 2]])


def _child(key_: tf.Tensor) -> tf.Tensor:
  """The key that `fold_in` makes of a key and 0; an index is added to its second word."""
  # Draws from the key itself must not tell the keys that are made of it.
  words = key_.shape[0]
  tag = tf.constant(_FOLD_IN_TAG + [0] * (words - 2), tf.int32)
  return tf.bitcast(bits(tf.bitwise.bitwise_xor(key_, tag), [words]), tf.int32)


def bits(key_: tf.Tensor, shape) -> tf.Tensor:
  """Uniform uint32 tensor of the given shape, which is static if the key is secret."""
  generator, counter, whitening = philox_of(key_)
  if whitening is None:
    return _generated(generator, counter, shape)
  shape = tf.TensorShape(shape)
  count = shape.num_elements()
  blocks = (count + 3) // 4
  result = _generated(generator, counter, [blocks, 4])
  if blocks < _LONG:
    result = result ^ whitening
  else:  # Word by word: a loop over all would look up which of the four it needs.
    words = zip(tf.unstack(result, axis=1), tf.unstack(whitening), strict=True)
    result = tf.stack([word ^ own for word, own in words], axis=1)
  if count < 4 * blocks:
    result = tf.reshape(result, [4 * blocks])[:count]
  return tf.reshape(result, shape)


def philox_of(key_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
  """The generator from which `bits` of a key come.

  Returns:
    Philox's key [1] and first counter [2], uint64, and what each of its blocks is whitened with,
    uint32 [4] or None. Without whitening the bits are those of
    `tf.random.stateless_uniform(..., alg='philox')`, in fewer ops.
  """
  whitening = None
  if key_.shape[0] > 2:
    key_, whitening = tf.split(key_, 2)
    key_ = tf.bitcast(tf.reshape(key_, [2, 2]), tf.int64)
    whitening = tf.bitcast(whitening, tf.uint32)
  mixed = _generated(_SCRAMBLE_KEY, tf.cast(key_, tf.uint64), [4])
  generator, upper = tf.split(tf.bitcast(tf.reshape(mixed, [2, 2]), tf.uint64), 2)
  return generator, tf.pad(upper, [[1, 0]]), whitening


def _generated(key_, counter: tf.Tensor, shape) -> tf.Tensor:
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=shape, key=key_, counter=counter, alg=_PHILOX, dtype=tf.uint32
  )


def uniform(key_: tf.Tensor, shape) -> tf.Tensor:
  """Uniform float32 in the open interval (0, 1), on a grid of 2^-24."""
  return uniform_of_words(bits(key_, shape))


def uniform_of_words(words: tf.Tensor) -> tf.Tensor:
  """What `uniform` makes of uint32 words, each of its own."""
  # The largest value would round to 1, where -log(-log(u)) is infinite.
  return tf.minimum(_unit_interval(words), 1.0 - 2.0**-24)


def index(key_: tf.Tensor, shape, count) -> tf.Tensor:
  """Uniform int32 from 0 to count - 1.

  Each has a probability within 2^-32 of 1 / count.

  Args:
    key_: the key.
    shape: of the result.
    count: how many there are to choose from, int32 scalar of at most 2^20.
  """
  # A product below 2^52: exact.
  product = tf.cast(bits(key_, shape), tf.float64) * tf.cast(count, tf.float64)
  return tf.cast(product * 2.0**-32, tf.int32)


def normal(key_: tf.Tensor, shape) -> tf.Tensor:
  """Standard normal float32 of a static shape, by the Box-Muller transform.

  The radius uses 62 bits, so that the tails reach 9.3 standard deviations: what is cut off has
  the probability 2^-62. (From 24 bits they end at 5.9, from 31 at 6.7, and a pair of worlds that a
  clip of more than that many deviations moves apart would be told by the end alone.) Inversion by
  `tf.math.ndtri` is not used: XLA's gives -inf below 2^-25 and differs from TensorFlow's in the
  tails. It is a floating-point Gaussian: good for simulation, not hardened against attacks on
  floating-point noise.
  """
  shape = tf.TensorShape(shape)
  return _joined(_pairs(key_, _half(shape)), shape)


def _half(shape) -> int:
  return (tf.TensorShape(shape).num_elements() + 1) // 2


def _pairs(key_: tf.Tensor, count: int) -> tf.Tensor:
  """Standard normals [2, count]."""
  raw = bits(key_, [3, count])
  radius = tf.sqrt(-2.0 * tf.math.log(_unit_interval_to_its_end(raw[0], raw[2])))
  cos, sin = _cos_and_sin(_unit_interval(raw[1]))
  # No concatenation: XLA's loops would ask at every number which half it is in.
  return radius * tf.where(tf.constant([[True], [False]]), cos, sin)


def _joined(pairs: tf.Tensor, shape) -> tf.Tensor:
  """A shape's numbers, the first of pairs, which may have one more."""
  count = tf.TensorShape(shape).num_elements()
  return tf.reshape(tf.reshape(pairs, [-1])[:count], shape)


def normals(key_: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
  """What `normal` gives for each of some shapes, from `fold_in(key_, i)` for the i-th.

  Where a model has many parameters of one shape they are drawn in a loop: each draw that is
  written out costs XLA its time and memory anew.
  """
  indices = tf.range(len(shapes))[:, tf.newaxis]
  keys = _child(key_) + tf.pad(indices, [[0, 0], [1, key_.shape[0] - 2]])
  places = collections.defaultdict(list)
  for i, shape in enumerate(shapes):
    places[tuple(shape)].append(i)
  drawn: dict[int, tf.Tensor] = {}
  for shape, of_shape in places.items():
    if len(of_shape) < _LOOP_FROM or 0 in shape:
      values = [normal(keys[i], shape) for i in of_shape]
    else:
      values = _in_a_loop(tf.gather(keys, of_shape), shape)
    drawn.update(zip(of_shape, values, strict=True))
  return [drawn[i] for i in range(len(shapes))]


def _in_a_loop(keys: tf.Tensor, shape) -> list[tf.Tensor]:
  """A `normal` of every key, [n, words]."""
  count, half = keys.shape[0], _half(shape)

  # Not a list of tensors, of which a sweep cannot have one for each setting. Pairs, as XLA's loops
  # over any other shape would ask at every number which half it is in.
  def turn(i, drawn):
    pairs = _pairs(tf.gather(keys, i), half)
    return i + 1, tf.tensor_scatter_nd_update(drawn, [[i]], pairs[tf.newaxis])

  start = (tf.constant(0), tf.zeros([count, 2, half]))
  _, drawn = tf.while_loop(lambda i, _: i < count, turn, start)
  return [_joined(pairs, shape) for pairs in tf.unstack(drawn)]


def normal_of_words(high: tf.Tensor, turn: tf.Tensor, low: tf.Tensor) -> tf.Tensor:
  """Standard normal float32, each of three uint32 words, as `normal` has its first half."""
  radius = tf.sqrt(-2.0 * tf.math.log(_unit_interval_to_its_end(high, low)))
  cos, _ = _cos_and_sin(_unit_interval(turn))
  return radius * cos


def _cos_and_sin(turns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """cos and sin of 2 pi times float32 in [0, 1], to 1.2e-7.

  The same polynomials on every device (single precision, of Cephes by Moshier), and in
  vectors: XLA calls the C library on a CPU, for one number at a time.
  """
  quarter = tf.round(4.0 * turns)
  x = (turns - 0.25 * quarter) * (2.0 * math.pi)  # within an eighth of a turn; exact before pi
  square = x * x
  sin = x + x * square * (-1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4))
  cos = (
    1.0
    - 0.5 * square
    + tf.square(square)
    * (4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5))
  )
  quarter = tf.cast(quarter, tf.int32)
  is_odd = tf.equal(quarter % 2, 1)
  cos, sin = tf.where(is_odd, sin, cos), tf.where(is_odd, cos, sin)
  # Negative in the second and third quadrant, and in the third and fourth.
  cos = tf.where(tf.logical_or(tf.equal(quarter, 1), tf.equal(quarter, 2)), -cos, cos)
  sin = tf.where(tf.logical_or(tf.equal(quarter, 2), tf.equal(quarter, 3)), -sin, sin)
  return cos, sin


def gumbel(key_: tf.Tensor, shape) -> tf.Tensor:
  """Standard Gumbel float64, -log(-log(u)), of a static shape.

  u has all of float64's digits, so that the tail reaches 36.7 (2^-53 is cut off). From 24 bits it
  ends at 17.3, and what is chosen only beyond it would be chosen with another probability.
  """
  high, low = tf.unstack(bits(key_, [2, *shape]))
  return gumbel_of_words(high, low)


def gumbel_of_words(high: tf.Tensor, low: tf.Tensor) -> tf.Tensor:
  """What `gumbel` makes of uint32 words, each of two."""
  words = tf.cast(high, tf.float64) + (tf.cast(low, tf.float64) + 0.5) * 2.0**-32
  # The largest value would round to 1, where -log(-log(u)) is infinite.
  return -tf.math.log(-tf.math.log(tf.minimum(words * 2.0**-32, 1.0 - 2.0**-53)))


def rate_of_coins(rates: np.ndarray) -> np.ndarray:
  """The rates that `uniform` meets, float32: no larger than these, by less than 2^-24.

  A coin below any other rate falls as often as below the nearest one on its grid, which may be
  larger than what is accounted for.
  """
  return (np.floor(np.asarray(rates, np.float64) * 2.0**24) * 2.0**-24).astype(np.float32)


def _unit_interval(raw: tf.Tensor) -> tf.Tensor:
  top_bits = tf.bitwise.right_shift(raw, tf.constant(8, tf.uint32))
  return (tf.cast(top_bits, tf.float32) + 0.5) * 2.0**-24


def _unit_interval_to_its_end(high: tf.Tensor, low: tf.Tensor) -> tf.Tensor:
  """float32 in (0, 1] from 62 bits, with all of float32's digits down to 2^-63."""
  one = tf.constant(1, tf.uint32)
  high = tf.cast(tf.bitwise.right_shift(high, one), tf.float32)
  low = tf.cast(tf.bitwise.right_shift(low, one), tf.float32)
  return (high + (low + 0.5) * 2.0**-31) * 2.0**-31


def host_generator(
  root: int | noise_key.NoiseKey, stream: Stream, *indices: int
) -> np.random.Generator:
  """A NumPy generator for what is drawn outside the round (cohorts, splits)."""
  if isinstance(root, noise_key.NoiseKey):
    return root.generator(int(stream), *indices)
  # NumPy pads the numbers with zeros; their count tells a trailing 0 from nothing.
  numbers = [len(indices), *(int(i) for i in indices)]
  entropy = [int(root) & 0xFFFFFFFF, int(stream), *numbers]
  return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
