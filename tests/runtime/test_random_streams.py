"""The one stream of random numbers."""

import functools
import itertools
import math
import pickle

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from runtime import random_streams
from runtime.noise_key import NoiseKey
from runtime.random_streams import Stream
from runtime.xla import vectorize


def _grandchildren(fold_in, count):
  """The keys (stream, i, 0) for all i, as an array [count, 2]."""

  @tf.function(jit_compile=True)
  def run():
    parent = random_streams.key(0, Stream.DP_NOISE)
    return tf.vectorized_map(lambda i: fold_in(fold_in(parent, i), 0), tf.range(count))

  return run().numpy()


def _repeated(keys):
  return len(keys) - len(np.unique(keys, axis=0))


@pytest.mark.slow
def test_keys_do_not_repeat():
  """Among as many draws as a large run makes; TensorFlow's own function does repeat."""
  count = 400_000
  assert _repeated(_grandchildren(random_streams.fold_in, count)) == 0
  tensorflows = functools.partial(tf.random.experimental.stateless_fold_in, alg='philox')
  assert _repeated(_grandchildren(tensorflows, count)) > 0


@pytest.mark.parametrize(
  'draw',
  [random_streams.uniform, random_streams.normal, functools.partial(random_streams.index, count=7)],
)
def test_draws_are_equal_with_and_without_xla(draw):
  key = random_streams.key(-7, Stream.BATCH, 3, 2**31 - 1)
  plain = draw(key, [1000])
  compiled = tf.function(draw, jit_compile=True)(key, [1000])
  np.testing.assert_allclose(plain, compiled, rtol=2e-5, atol=2e-6)


def test_every_index_counts():
  """Each change of seed, stream, index, or of their order, makes other numbers."""
  keys = [
    random_streams.key(*arguments)
    for arguments in itertools.chain(
      ((seed, Stream.BATCH, 0) for seed in (-1, 0, 1, 2**31 - 1)),
      ((0, stream) for stream in Stream),
      ((0, Stream.COHORT, i, j) for i in (0, 1, 2) for j in (0, 1, 2)),
    )
  ]
  first = [tuple(random_streams.bits(key, [2]).numpy()) for key in keys]
  assert len(set(first)) == len(first)


def test_draws_from_a_key_do_not_tell_its_children():
  key = random_streams.key(3, Stream.SELECTION)
  drawn = tf.bitcast(random_streams.bits(key, [4]), tf.int32).numpy()
  child = random_streams.fold_in(key, 0).numpy()
  assert not set(drawn) & set(child)


def test_neighbouring_keys_draw_independent_normals():
  """Correlation over keys that differ by one index, with a control that is rejected."""
  key = random_streams.key(1, Stream.DP_NOISE)
  draws = tf.vectorized_map(
    lambda i: random_streams.normal(random_streams.fold_in(key, i), [64]), tf.range(2000)
  ).numpy()
  first, second = draws[:-1].ravel(), draws[1:].ravel()
  assert abs(stats.pearsonr(first, second).statistic) < 4 / np.sqrt(len(first))
  mixed = second + 0.05 * first
  assert abs(stats.pearsonr(first, mixed).statistic) > 4 / np.sqrt(len(first))
  assert stats.kstest(draws.ravel(), 'norm').pvalue > 1e-3


@pytest.mark.parametrize('compiled', [False, True])
def test_tails_of_normals_reach_beyond_nine_deviations(monkeypatch, compiled):
  """What the radius' smallest numbers give, against float64; both runtimes take the same path.

  From 24 bits the tails end at 5.9 and from 31 at 6.7 deviations: for noise multiplier 0.5 the
  cut alone costs a delta of 3e-5 in some settings.
  """
  words = np.array([[0, 0, 0, 1, 2**31, 2**32 - 1], [0] * 6, [0, 1, 2**32 - 1, 9, 0, 0]], np.uint32)
  monkeypatch.setattr(random_streams, 'bits', lambda key, shape: tf.constant(words))
  draw = lambda: random_streams.normal(None, [12])  # noqa: E731
  radius = tf.function(draw, jit_compile=compiled)().numpy()[:6]
  high, low = (words[[0, 2]] >> 1).astype(np.float64)
  exact = np.sqrt(-2 * np.log((high + (low + 0.5) * 2.0**-31) * 2.0**-31))
  np.testing.assert_allclose(radius, exact, rtol=2e-6, atol=4e-4)
  assert radius[0] > 9.2
  # The mass beyond is what (epsilon, delta) may leave out: nothing, at every delta in use.
  assert 2 * stats.norm.sf(radius[0]) < 1e-19


@pytest.mark.parametrize('compiled', [False, True])
def test_cosine_and_sine_are_those_of_the_turn(compiled):
  """All over the turn and at both ends of each quadrant, against float64."""
  grid = np.concatenate([np.arange(0, 2**24, 997), np.arange(0, 2**24 + 1, 2**21)])
  turns = np.float32([n * 2.0**-24 for n in (*grid, *(grid[1:] - 0.5), *(grid[:-1] + 0.5))])
  found = tf.function(random_streams._cos_and_sin, jit_compile=compiled)(turns)
  angle = 2 * np.pi * turns.astype(np.float64)
  np.testing.assert_allclose(found, [np.cos(angle), np.sin(angle)], rtol=0, atol=1.2e-7)


def test_host_generators_differ():
  """Also where the last index is 0, which NumPy's seed sequence does not see."""
  generators = [
    random_streams.host_generator(0, Stream.SPLIT),
    random_streams.host_generator(0, Stream.SPLIT, 0),
    random_streams.host_generator(0, Stream.SPLIT, 0, 0),
    random_streams.host_generator(0, Stream.DATA),
    random_streams.host_generator(1, Stream.SPLIT),
  ]
  assert len({generator.integers(2**63) for generator in generators}) == len(generators)


# -------------------------------------------------------------- secret roots

SECRET = NoiseKey.rehearsal(5)
GOLDEN_BITS = [2170356235, 3593254480, 1071779431]
GOLDEN_HOST = [1817473982, 3373573727]


def test_every_bit_of_a_secret_key_counts():
  """In its draws and in the keys that are made of it: no part of it can be searched by itself."""
  key = random_streams.key(SECRET, Stream.DP_NOISE, 3)
  drawn, child = (f(key) for f in (_bits_of, lambda k: random_streams.fold_in(k, 7).numpy()))
  for word in range(8):
    for bit in (0, 13, 31):
      flipped = key.numpy()
      flipped[word] ^= np.int32(np.uint32(1 << bit).view(np.int32))
      changed = _bits_of(tf.constant(flipped)) != drawn
      assert changed[word % 4 :: 4].all() if word >= 4 else changed.mean() > 0.95
      assert np.all(random_streams.fold_in(tf.constant(flipped), 7).numpy() != child) or word >= 4


def _bits_of(key):
  return random_streams.bits(key, [64]).numpy()


def test_words_beyond_philox_key_are_added_to_every_block():
  """The whitening of FX: without it 2^64 keys could be tried on one block."""
  key = random_streams.key(SECRET, Stream.DP_NOISE).numpy()
  other = np.concatenate([key[:4], key[4:] ^ np.array([1, 2, 4, 8], np.int32)])
  for blocks in (16, 2**15):  # a long draw is whitened in another way
    one, two = (
      random_streams.bits(tf.constant(k), [4 * blocks]).numpy().reshape(-1, 4) for k in (key, other)
    )
    np.testing.assert_array_equal(one ^ two, np.tile([1, 2, 4, 8], [blocks, 1]))


def test_secret_draws_do_not_depend_on_how_many_are_drawn():
  key = random_streams.key(SECRET, Stream.BATCH, 1)
  for shape in ([], [3], [2, 5], [7, 1, 3]):
    count = int(np.prod(shape))
    drawn = random_streams.bits(key, shape).numpy()
    assert drawn.shape == tuple(shape)
    np.testing.assert_array_equal(drawn.ravel(), _bits_of(key)[:count])
  for count in (2**17, 2**17 - 3):
    np.testing.assert_array_equal(random_streams.bits(key, [count])[:64], _bits_of(key))


@pytest.mark.slow
@pytest.mark.parametrize('draw', [random_streams.uniform, random_streams.normal])
def test_secret_draws_are_equal_with_and_without_xla_and_for_every_lane(draw):
  def of_lane(lane):
    return draw(random_streams.key(SECRET.words, Stream.BATCH, 3, lane), [9])

  alone = np.stack([of_lane(lane) for lane in range(5)])
  lanes = tf.range(5)
  compiled = tf.function(
    lambda: vectorize.vectorized(lambda one: of_lane(one[0]), 5, [lanes]), jit_compile=True
  )
  np.testing.assert_allclose(compiled(), alone, rtol=2e-5, atol=2e-6)


# Five of an odd size, which are a loop, between four of an even one and one of another.
_SHAPES = [
  tf.TensorShape(s) for s in ([3, 5], [3, 5], [4], [3, 5], [4], [7], [4], [3, 5], [4], [3, 5])
]


def _one_by_one(key):
  return [
    random_streams.normal(random_streams.fold_in(key, i), shape) for i, shape in enumerate(_SHAPES)
  ]


@pytest.mark.parametrize('root', [7, SECRET])
@pytest.mark.parametrize('compiled', [False, True])
def test_normals_of_many_shapes_are_those_of_their_own_keys(root, compiled):
  key = random_streams.key(root, Stream.DP_NOISE, 5)
  draw = tf.function(lambda key: random_streams.normals(key, _SHAPES), jit_compile=compiled)
  drawn, own = draw(key), _one_by_one(key)
  for one, two in zip(drawn, own, strict=True):
    np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)
  flat = np.concatenate([np.ravel(values) for values in drawn])
  assert len(np.unique(flat)) == len(flat), 'two parameters have one noise'


@pytest.mark.slow
def test_normals_of_many_shapes_for_every_lane():
  def of_lane(draw, lane):
    return draw(random_streams.key(SECRET.words, Stream.DP_NOISE, lane))

  of_many = functools.partial(random_streams.normals, shapes=_SHAPES)
  lanes = tf.range(3)
  compiled = tf.function(
    lambda: vectorize.vectorized(lambda one: of_lane(of_many, one[0]), 3, [lanes]),
    jit_compile=True,
  )
  alone = [of_lane(_one_by_one, lane) for lane in range(3)]
  for values, own in zip(compiled(), zip(*alone, strict=True), strict=True):
    np.testing.assert_allclose(values, np.stack(own), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize('shape', [[0], [2, 0], [], [1]])
def test_many_normals_of_small_shapes(shape):
  drawn = random_streams.normals(
    random_streams.key(0, Stream.DP_NOISE), [tf.TensorShape(shape)] * 5
  )
  assert [value.shape for value in drawn] == [shape] * 5


def test_many_normals_of_one_shape_are_one_loop():
  def draws(count):
    function = tf.function(lambda key: random_streams.normals(key, [tf.TensorShape([3])] * count))
    graph = function.get_concrete_function(tf.TensorSpec([8], tf.int32)).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return sum(node.op == 'StatelessRandomUniformFullIntV2' for node in nodes)

  assert draws(40) == draws(4) < draws(3)


@pytest.mark.slow
def test_secret_keys_do_not_tell_their_children_and_do_not_repeat():
  key = random_streams.key(SECRET, Stream.SELECTION)
  drawn = tf.bitcast(random_streams.bits(key, [16]), tf.int32).numpy()
  children = tf.vectorized_map(lambda i: random_streams.fold_in(key, i), tf.range(1000)).numpy()
  assert not set(drawn) & set(children[0])
  assert _repeated(children) == 0
  draw = tf.function(lambda k: random_streams.normal(k, [64]), jit_compile=True)
  draws = np.stack([draw(tf.constant(child)) for child in children])
  first, second = draws[:-1].ravel(), draws[1:].ravel()
  assert abs(stats.pearsonr(first, second).statistic) < 4 / np.sqrt(len(first))
  assert stats.kstest(draws.ravel(), 'norm').pvalue > 1e-3
  assert stats.kstest(draws.ravel() * 1.05, 'norm').pvalue < 1e-3


def test_golden_numbers_of_a_rehearsal():
  """Recorded results are repeated by them: they must not change."""
  key = random_streams.key(NoiseKey.rehearsal(0), Stream.DP_NOISE, 1)
  assert random_streams.bits(key, [3]).numpy().tolist() == GOLDEN_BITS
  generator = random_streams.host_generator(NoiseKey.rehearsal(0), Stream.COHORT, 1)
  assert generator.integers(2**32, size=2).tolist() == GOLDEN_HOST


def test_a_key_is_not_shown_compared_or_pickled():
  key = NoiseKey.fresh()
  assert key.hex() not in repr(key) + str(key) and repr(key) == 'NoiseKey(secret)'
  assert repr(NoiseKey.rehearsal(1)) == 'NoiseKey(rehearsal)'
  with pytest.raises(TypeError, match='not pickled'):
    pickle.dumps(key)
  assert NoiseKey.from_hex(key.hex()).hex() == key.hex()
  assert key != NoiseKey.from_hex(key.hex())
  for text in ('', 'ab', key.hex()[1:], 'g' * 64):
    with pytest.raises(ValueError, match='64 hexadecimal digits') as refused:
      NoiseKey.from_hex(text)
    assert not text or text not in str(refused.value)
  with pytest.raises(ValueError, match='32 bytes'):
    NoiseKey(b'short')


def test_keys_and_their_derivatives_differ():
  keys = [NoiseKey.fresh(), NoiseKey.fresh(), *map(NoiseKey.rehearsal, (0, 1, 10))]
  assert len({tuple(key.words) for key in keys}) == len(keys)
  assert len({key.fingerprint for key in keys}) == len(keys)
  numbers = [(1,), (1, 2), (12,), (1, 0), (0, 1)]
  generators = [key.generator(*n) for key in keys for n in numbers]
  assert len({g.integers(2**63) for g in generators}) == len(generators)
  assert keys[0].words.tobytes() not in bytes.fromhex(keys[0].hex())


def test_the_gumbel_tail_is_exact_where_choices_are_rare():
  """24 bits of u would end at 17.3, and lie a half apart before that."""
  numbers = [2**64 - 1 - 2**k for k in (12, 20, 30, 40, 50)] + [2**63, 2**40, 0]
  words = np.array(numbers, np.uint64)
  high, low = (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)
  found = random_streams.gumbel_of_words(tf.constant(high), tf.constant(low))
  logarithms = [
    math.log1p(-(2**64 - n - 0.5) / 2**64) if n > 2**62 else math.log((n + 0.5) / 2**64)
    for n in numbers
  ]
  exact = [-math.log(-logarithm) for logarithm in logarithms]
  assert found.dtype == tf.float64
  np.testing.assert_allclose(found, exact, rtol=1e-5)
  end = random_streams.gumbel_of_words(*[tf.constant(2**32 - 1, tf.uint32)] * 2)
  assert float(end) == pytest.approx(53 * math.log(2), rel=1e-6)


def test_coins_fall_no_more_often_than_is_accounted_for():
  rates = np.concatenate([np.random.default_rng(0).uniform(size=1000) ** 8, [1.0, 1e-6, 2.0**-24]])
  met = random_streams.rate_of_coins(rates)
  assert met.dtype == np.float32

  def probability(threshold):
    """Of a coin (k + 1/2) 2^-24 below it."""
    return np.minimum(np.ceil(threshold.astype(np.float64) * 2.0**24 - 0.5), 2.0**24) * 2.0**-24

  assert np.all(probability(met) <= rates) and np.all(probability(met) > rates - 2.0**-24)
  # Negative control: the nearest float32.
  assert np.any(probability(rates.astype(np.float32)) > rates)


@pytest.mark.parametrize('count', [1, 3, 7, 10_000, 2**20])
def test_every_index_is_as_likely(monkeypatch, count):
  firsts = np.array([-(-(i << 32) // count) for i in range(count + 1)])  # each one's first word
  words = np.concatenate([firsts[:-1], firsts[1:] - 1])
  monkeypatch.setattr(random_streams, 'bits', lambda key, shape: tf.constant(words, tf.uint32))
  found = random_streams.index(random_streams.key(0, Stream.BATCH), [2 * count], count)
  np.testing.assert_array_equal(found, np.tile(np.arange(count), 2))
  # So many words each, to one; of 24 bits, by which 10,000 would be 6e-4 apart, it is not so.
  assert np.ptp(np.diff(firsts)) <= 1
  if count == 10_000:
    assert (
      np.ptp(np.diff([-(-(i << 24) // count) for i in range(count + 1)]) / 2**24 * count) > 5e-4
    )
