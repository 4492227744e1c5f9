"""Random ops, made of raw Philox bits.

An op *without* a seed draws from a key which the operating system's generator gives anew
for every execution: other numbers at every client, round and turn of a loop, which nobody
can work out from the program. (XLA's own generators start from constants.) An op *with* a
seed draws from its seed, the number of the execution, the client's position and the turn:
a program that is started again draws the same, but not the same as TFF's own runtime.

*Stateless* ops are functions of their arguments, and give here what TensorFlow's kernels
give; XLA's own kernels turn the same bits into other floats. Those that are not made of
bits here (categorical and truncated numbers, other types than float32) go to the host, if
anything reads them: nothing does where they are what a layer's weights begin with, which are
then set to those that a client is given.
"""

import math
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from runtime import random_streams
from runtime.xla import philox
from runtime.xla.lowering import datasets, interpreter, reshapes

_Interpreter = interpreter.Interpreter
NotLowered = datasets.NotLowered
# Of the standard normal distribution within two standard deviations.
_TRUNCATED = (0.022750131948179195, 0.9544997361036416)
_MANTISSA_BITS = {tf.float16: 10, tf.bfloat16: 7}  # Of types that hold fewer than float32.


def draw_key(interp: _Interpreter, node: Any) -> tf.Tensor:
  """The key of one execution of a stateful random op."""
  seeds = node.attr['seed'].i, node.attr['seed2'].i
  key = interp.scope.seeded_key(*seeds) if any(seeds) else interp.scope.key()
  return random_streams.fold_in(key, interp.session.next_draw())


def _drawn(make, make_of_words, words_each):
  """A stateful op (shape, ...) -> numbers.

  Args:
    make: (node, key, static shape, ...) -> numbers.
    make_of_words: (node, [n, words_each] uint32 words, ...) -> n numbers; of a shape that depends
      on data.
    words_each: 1, 2 or 4.
  """

  def handler(interp, node, inputs):
    shape, *others = inputs
    sizes = _sizes(interp, node, shape)
    draw = draw_key(interp, node)
    if None not in sizes:
      return [make(node, draw, sizes, *others)]
    count = _count(shape, sizes)
    words = _some_words(*random_streams.philox_of(draw), count * words_each)
    words = tf.reshape(words, [-1, words_each])
    return [tf.reshape(make_of_words(node, words, *others)[:count], shape)]

  return handler


def _some_words(
  key: tf.Tensor, counter: tf.Tensor, whitening: tf.Tensor | None, count: tf.Tensor
) -> tf.Tensor:
  """At least so many words of a draw, in whole blocks of four."""
  # XLA can tell how long such a range may be, and not a quotient.
  blocks = philox.blocks(key, counter, tf.range(0, count, 4) // 4)
  if whitening is not None:
    blocks = tf.bitwise.bitwise_xor(blocks, whitening)
  return tf.reshape(blocks, [-1])


def _sizes(interp: _Interpreter, node: Any, shape: tf.Tensor) -> list[int | None]:
  """The sizes of a shape, None for those of a batch whose size varies."""
  found = tensor_util.constant_value_as_shape(shape)
  if found.rank is None:
    raise NotLowered(f'the op {node.op} of an unknown number of dimensions')
  sizes = found.as_list()
  if None in sizes and not interp.session.bounds:
    raise NotLowered(f'the op {node.op} of sizes that depend on data')
  return sizes


def _count(shape: tf.Tensor, sizes: list[int | None]) -> tf.Tensor:
  """The number of numbers, as a product of which XLA can tell how large it may be."""
  count = tf.constant(math.prod(size for size in sizes if size is not None))
  for axis, size in enumerate(sizes):
    if size is None:
      count *= tf.cast(shape[axis], tf.int32)
  return count


def _dtype(node: Any, name: str = 'dtype') -> tf.DType:
  return tf.as_dtype(node.attr[name].type)


def _uniform(node, key, shape):
  return _unit_of(_dtype(node), random_streams.bits(key, shape))


def _uniform_of_words(node, words):
  return _unit_of(_dtype(node), words[:, 0])


def _unit_of(dtype: tf.DType, raw: tf.Tensor) -> tf.Tensor:
  """[0, 1) in a type, of no more bits than it holds: else the largest would round to 1."""
  if dtype in _MANTISSA_BITS:
    raw &= tf.constant(2**32 - 2 ** (23 - _MANTISSA_BITS[dtype]), tf.uint32)
  return tf.cast(_unit(raw), dtype)


def _normal(node, key, shape):
  return tf.cast(random_streams.normal(key, shape), _dtype(node))


def _normal_of_words(node, words):
  numbers = random_streams.normal_of_words(words[:, 0], words[:, 1], words[:, 2])
  return tf.cast(numbers, _dtype(node))


def _truncated_normal(node, key, shape):
  return _truncated(node, random_streams.uniform(key, shape))


def _truncated_normal_of_words(node, words):
  return _truncated(node, random_streams.uniform_of_words(words[:, 0]))


def _truncated(node, uniform):
  below, inside = _TRUNCATED
  return tf.cast(tf.math.ndtri(below + inside * uniform), _dtype(node))


def _uniform_int(node, key, shape, low, high):
  del node
  # 64 bits even for 32: the remainder is then even to 2^-32.
  raw = tf.reshape(tf.bitcast(random_streams.bits(key, [*shape, 2]), tf.uint64), shape)
  return _within(raw, low, high)


def _uniform_int_of_words(node, words, low, high):
  del node
  return _within(philox.join(words[:, 0], words[:, 1]), low, high)


def _within(raw: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  # The width may be more than the type holds, and is then its unsigned twin's.
  unsigned = tf.uint64 if low.dtype.size == 8 else tf.uint32
  width = tf.cast(tf.bitcast(high - low, unsigned), tf.uint64)
  return low + tf.bitcast(tf.cast(raw % width, unsigned), low.dtype)


def _unit(raw: tf.Tensor) -> tf.Tensor:
  """[0, 1) in float32, as TensorFlow's kernels make it of 32 bits."""
  mantissa = raw & tf.constant(0x7FFFFF, tf.uint32)
  return tf.bitcast(mantissa | tf.constant(0x3F800000, tf.uint32), tf.float32) - 1.0


def permutation(key: tf.Tensor, size: int, count: tf.Tensor | int) -> tf.Tensor:
  """[size], whose first `count` elements are a uniform permutation of range(count)."""
  raw = random_streams.bits(key, [2, size])
  # 62 random bits each: no two are equal but once in 2^62 / size^2.
  high, low = tf.unstack(tf.cast(raw, tf.int64) // 2)
  word = high * 2**31 + low
  word = tf.where(tf.range(size) < count, word, tf.int64.max)
  return tf.argsort(word, stable=True)


def _shuffle(interp, node, inputs):
  (value,) = inputs
  size = value.shape[0]
  if size is None:
    raise NotLowered(f'the op {node.op} of an unknown number of rows')
  return [reshapes.gather(value, permutation(draw_key(interp, node), size, size), axis=0)]


def _multinomial(interp, node, inputs):
  logits, samples = inputs
  number = tf.get_static_value(samples)
  if number is None or not logits.shape.is_fully_defined():
    raise NotLowered(f'the op {node.op} of a number or shape that depends on data')
  rows, classes = logits.shape
  noise = random_streams.gumbel(draw_key(interp, node), [rows, int(number), classes])
  dtype = _dtype(node, 'output_dtype')
  scores = tf.cast(logits, tf.float64)[:, tf.newaxis] + noise
  return [tf.argmax(scores, axis=2, output_type=dtype)]


def _any_ints(interp, node, inputs):
  """`NonDeterministicInts`: the state of a new `tf.random.Generator`."""
  shape = _sizes(interp, node, inputs[0])
  if None in shape:
    raise NotLowered(f'the op {node.op} of sizes that depend on data')
  dtype = _dtype(node)
  raw = random_streams.bits(draw_key(interp, node), [*shape, dtype.size // 4])
  return [tf.reshape(tf.bitcast(raw, dtype), shape)]


# Stateless.


def _stateless(make):
  """A stateless op (shape, seed, ...)."""

  def handler(interp, node, inputs):
    shape, seed, *others = inputs
    key, counter = philox.of_seed(seed)
    return _with_bits(interp, node, shape, key, counter, make, others)

  return handler


def _stateless_v2(make):
  """A stateless op (shape, key, counter, alg, ...)."""

  def handler(interp, node, inputs):
    shape, key, counter, algorithm, *others = inputs
    if tf.get_static_value(algorithm) not in philox.ALGORITHMS:
      raise NotLowered('random numbers of a generator that is not Philox')
    return _with_bits(interp, node, shape, key, counter, make, others)

  return handler


def _with_bits(interp, node, shape, key, counter, make, others):
  """Numbers of a draw's words, which come in whole blocks of four."""
  if _dtype(node).is_floating and _dtype(node) != tf.float32:
    return [datasets.Unmade(reason=f'the op {node.op} of type {_dtype(node).name}')]
  sizes = _sizes(interp, node, shape)
  known = [size for size in sizes if size is not None]
  varies = len(known) < len(sizes)
  count = _count(shape, sizes) if varies else math.prod(known)
  words = count * (2 if _dtype(node).size == 8 else 1)
  if varies:
    raw = _some_words(key, counter, None, words)
  else:
    raw = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[-(-words // 4) * 4], key=key, counter=counter, alg=philox.PHILOX, dtype=tf.uint32
    )
  return [tf.reshape(make(node, raw, *others)[:count], shape if varies else known)]


def _tf_uniform(node, raw):
  del node
  return _unit(raw)


def _tf_normal(node, raw):
  """Box-Muller over pairs, as in TensorFlow's `random_distributions.h`."""
  del node
  pairs = _unit(tf.reshape(raw, [-1, 2]))
  radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(pairs[:, 0], 1e-7)))
  angle = pairs[:, 1] * (2.0 * math.pi)
  both = tf.stack([tf.sin(angle), tf.cos(angle)], axis=1) * radius[:, tf.newaxis]
  return tf.reshape(both, [-1])


def _tf_int(node, raw, low, high):
  dtype = _dtype(node)
  unsigned = tf.uint64 if dtype.size == 8 else tf.uint32
  if dtype.size == 8:
    pairs = tf.reshape(raw, [-1, 2])
    raw = philox.join(pairs[:, 0], pairs[:, 1])
  width = tf.bitcast(high - low, unsigned)
  return low + tf.bitcast(raw % width, dtype)


def _seeded(interp, node, inputs):
  del interp
  dtype = node.attr['dtype'].type if 'dtype' in node.attr else None
  return philox.seeded(node.op, inputs, dtype)


def _on_the_host(interp, node, inputs):
  """An op which has a kernel of XLA's, with other numbers than TensorFlow's."""
  del interp, inputs
  reason = f'the op {node.op}: XLA draws other numbers than TensorFlow'
  return [datasets.Unmade(reason=reason)]


# Of their seeds XLA's ops take other words.
SEEDED: dict[str, interpreter.Handler] = dict.fromkeys(philox.SEEDED, _seeded)
HANDLERS: dict[str, interpreter.Handler] = dict(
  Multinomial=_multinomial,
  NonDeterministicInts=_any_ints,
  ParameterizedTruncatedNormal=_on_the_host,
  RandomShuffle=_shuffle,
  RandomStandardNormal=_drawn(_normal, _normal_of_words, 4),
  RandomUniform=_drawn(_uniform, _uniform_of_words, 1),
  RandomUniformInt=_drawn(_uniform_int, _uniform_int_of_words, 2),
  StatelessMultinomial=_on_the_host,
  StatelessParameterizedTruncatedNormal=_on_the_host,
  StatelessRandomNormal=_stateless(_tf_normal),
  StatelessRandomNormalV2=_stateless_v2(_tf_normal),
  StatelessRandomUniform=_stateless(_tf_uniform),
  StatelessRandomUniformInt=_stateless(_tf_int),
  StatelessRandomUniformIntV2=_stateless_v2(_tf_int),
  StatelessRandomUniformV2=_stateless_v2(_tf_uniform),
  StatelessTruncatedNormal=_on_the_host,
  StatelessTruncatedNormalV2=_on_the_host,
  Timestamp=lambda interp, node, inputs: [interp.scope.now(interp.session.next_draw())],
  TruncatedNormal=_drawn(_truncated_normal, _truncated_normal_of_words, 1),
)
