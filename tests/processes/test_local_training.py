"""SGD and DP-SGD of one client: golden numbers, statistics."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from processes import local_training, trees
from processes.method import Tree
from runtime import random_streams
from runtime.noise_key import NoiseKey
from runtime.random_streams import Stream
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small
from tff_models import build_model


def _model(features):
  return build_model(
    'linear_regression', example_shape=(features,), num_outputs=1, task_kind='regression'
  )


def _row(data, client=0):
  return tf.nest.map_structure(lambda a: tf.constant(a[client]), data)


def _start(features, value=0.3):
  return Tree(weights=tf.fill([features], value), bias=tf.constant(value))


def _dp_sgd(data, features, *, seed=0, **changes):
  settings = dict(
    steps=tf.constant(1),
    sampling_rate=tf.constant(0.5),
    noise_multiplier=tf.constant(1.0),
    clipping_norm=tf.constant(1.0),
    batch_divisor=tf.constant(1.0),
    expected_batch_size=4,
    learning_rate=tf.constant(1.0),
  )
  settings.update(changes)
  params, root = settings.pop('params', _start(features)), NoiseKey.rehearsal(seed).words_of(0)

  @tf.function  # loops in Python would take a second for ten steps
  def run():
    return local_training.dp_sgd(
      _model(features),
      params,
      data,
      batch_key=random_streams.key(root, Stream.BATCH, 0, 0),
      noise_key=random_streams.key(root, Stream.DP_NOISE, 0, 0),
      **settings,
    )

  return run()


@pytest.mark.parametrize('epochs', [1, 3])
@pytest.mark.parametrize(('size', 'batch_size'), [(8, 4), (7, 3), (2, 4), (8, 100)])
def test_sgd_equals_a_numpy_loop(size, batch_size, epochs):
  data = small.regression_data(sizes=[size, 8, 8])
  params, statistics = local_training.sgd(
    _model(3),
    _start(3),
    _row(data),
    key=random_streams.key(5, Stream.BATCH, 2, 0),
    batch_size=batch_size,
    epochs=epochs,
    learning_rate=tf.constant(0.1),
    regularizer_gradient=lambda params: trees.scale(params, 0.5),
  )
  reference = numpy_loops.Reference(data, seed=5)
  expected = reference.sgd(
    numpy_loops.parameter_vector(_start(3)),
    0,
    2,
    batch_size=batch_size,
    epochs=epochs,
    learning_rate=0.1,
    penalty=lambda p: 0.5 * p,
  )
  np.testing.assert_allclose(numpy_loops.parameter_vector(params), expected, rtol=1e-5, atol=1e-6)
  assert statistics['loss_count'] == size * epochs


def test_a_client_without_examples_keeps_its_model():
  data = small.regression_data(sizes=[0, 8, 8])
  params, statistics = local_training.sgd(
    _model(3),
    _start(3),
    _row(data),
    key=random_streams.key(0, Stream.BATCH, 0, 0),
    batch_size=4,
    epochs=2,
    learning_rate=tf.constant(0.1),
  )
  small.assert_trees_equal(params, _start(3))
  assert statistics['loss_count'] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ('batches', 'inside_clip'), [('poisson', False), ('poisson', True), ('shuffled', False)]
)
def test_dp_sgd_equals_a_numpy_loop(batches, inside_clip):
  data = small.regression_data(sizes=[7, 8, 8])
  plan = small.example_level(
    data, noise_multiplier=0.7, clipping_norm=1.5, batch_size=3, steps=6, batches=batches
  )
  silo = {name: values[0] for name, values in plan.silo_parameters().items()}
  params, _ = _dp_sgd(
    _row(data),
    3,
    seed=9,
    steps=tf.constant(silo['steps_per_round']),
    sampling_rate=tf.constant(silo['sampling_rate']),
    noise_multiplier=tf.constant(silo['noise_multiplier']),
    clipping_norm=tf.constant(1.5),
    batch_divisor=tf.constant(silo['batch_size']),
    learning_rate=tf.constant(0.2),
    regularizer_gradient=lambda params: trees.scale(params, 0.5),
    regularizer_inside_clip=inside_clip,
    batches=batches,
  )
  expected = numpy_loops.Reference(data, seed=9).dp_sgd(
    numpy_loops.parameter_vector(_start(3)),
    0,
    0,
    plan,
    learning_rate=0.2,
    penalty=lambda p: 0.5 * p,
    inside_clip=inside_clip,
  )
  np.testing.assert_allclose(numpy_loops.parameter_vector(params), expected, rtol=1e-5, atol=1e-6)


def test_without_noise_clip_and_sampling_dp_sgd_is_gradient_descent():
  data = small.regression_data(sizes=[6, 8, 8])
  params, _ = _dp_sgd(
    _row(data),
    3,
    steps=tf.constant(4),
    sampling_rate=tf.constant(1.0),
    noise_multiplier=tf.constant(0.0),
    clipping_norm=tf.constant(np.inf, tf.float32),
    batch_divisor=tf.constant(6.0),
    learning_rate=tf.constant(0.1),
  )
  reference, expected = numpy_loops.Reference(data), numpy_loops.parameter_vector(_start(3))
  for _ in range(4):
    expected = expected - 0.1 * reference.gradients(expected, 0).mean(0)
  np.testing.assert_allclose(numpy_loops.parameter_vector(params), expected, rtol=1e-5)


@pytest.mark.slow
def test_gathered_chunks_give_what_the_masked_silo_gives(monkeypatch):
  data = small.regression_data(rows=200)
  settings = dict(sampling_rate=tf.constant(0.1), expected_batch_size=2, steps=tf.constant(3))
  whole, _ = _dp_sgd(_row(data), 3, **settings)
  monkeypatch.setattr(local_training, '_MASK_WHOLE_SILO_LIMIT', 0)
  chunk = local_training._chunk_size(_model(3), _start(3), _row(data), 2, regularizer=False)
  assert chunk < 10  # so that batches of 20 need several chunks
  chunked, _ = _dp_sgd(_row(data), 3, **settings)
  small.assert_trees_equal(whole, chunked, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('regularizer', 'rows'), [(False, 224), (True, 16)])
def test_chunks_are_as_large_as_what_is_held_of_an_example_lets_them_be(regularizer, rows):
  """A network of 269,322 parameters, of which an example has 2,340 numbers, or all."""
  model = build_model('mlp', example_shape=(28, 28), num_outputs=10, task_kind='classification')
  params = model.init(random_streams.key(0, Stream.INIT))
  data = Tree(x=tf.zeros([10_000, 28, 28]), y=tf.zeros([10_000], tf.int32))
  chunk = local_training._chunk_size(model, params, data, 1000, regularizer=regularizer)
  assert chunk == rows


# ---------------------------------------------------------------- statistics


def _noise_p_value(change, stddev):
  return stats.kstest(np.ravel(change) / stddev, 'norm').pvalue


@pytest.mark.slow
@pytest.mark.parametrize('rate', [0.0, 0.5])
def test_noise_has_the_claimed_scale(rate):
  """Also of an empty batch; and the test rejects noise of 2/3 of the scale."""
  features, clip, multiplier, divisor = 3000, 0.5, 1.4, 8.0
  data = small.regression_data(clients=1, rows=4, features=features)
  common = dict(
    seed=1,
    sampling_rate=tf.constant(rate),
    clipping_norm=tf.constant(clip),
    batch_divisor=tf.constant(divisor),
  )
  noised, _ = _dp_sgd(_row(data), features, noise_multiplier=tf.constant(multiplier), **common)
  exact, _ = _dp_sgd(_row(data), features, noise_multiplier=tf.constant(0.0), **common)
  noise = noised['weights'] - exact['weights']
  claimed = multiplier * clip / divisor
  assert _noise_p_value(noise, claimed) > 1e-3
  assert _noise_p_value(noise, 2.0 / 3.0 * claimed) < 1e-6
  assert _noise_p_value(2.0 / 3.0 * noise, claimed) < 1e-6


@pytest.mark.slow
def test_steps_and_rounds_have_noise_of_their_own():
  data = small.regression_data(clients=1, rows=4, features=1000)
  no_data = dict(seed=1, sampling_rate=tf.constant(0.0), params=_start(1000, 0.0))
  one, _ = _dp_sgd(_row(data), 1000, steps=tf.constant(1), **no_data)
  two, _ = _dp_sgd(_row(data), 1000, steps=tf.constant(2), **no_data)
  second = two['weights'] - one['weights']
  assert abs(np.corrcoef(one['weights'], second)[0, 1]) < 0.15
  assert _noise_p_value(two['weights'], np.sqrt(2.0)) > 1e-3
  assert _noise_p_value(two['weights'], 2.0 / 3.0 * np.sqrt(2.0)) < 1e-6


@pytest.mark.parametrize('rows_at_once', ['all', 'chunks'])
def test_an_example_is_in_one_shuffled_batch_of_an_epoch(rows_at_once, monkeypatch):
  """What the accounting relies on; of 10 rows in batches of 3 one sits out, not always the same."""
  if rows_at_once == 'chunks':
    monkeypatch.setattr(local_training, '_MASK_WHOLE_SILO_LIMIT', 0)
  size, rows, epochs = 3, 10, 12
  # Row i moves weight i alone; the padding would move the last one.
  data = Tree(
    x=tf.eye(rows + 1), y=tf.ones([rows + 1]),
    num_examples=tf.constant(rows), client_id=tf.constant(0),
  )  # fmt: skip
  model = build_model(
    'linear_regression', example_shape=(rows + 1,), num_outputs=1, task_kind='regression',
    bias=False,
  )  # fmt: skip

  @tf.function
  def weights_after(steps):
    params, statistics = local_training.dp_sgd(
      model,
      Tree(weights=tf.zeros([rows + 1])),
      data,
      batch_key=random_streams.key(0, Stream.BATCH, 0, 0),
      noise_key=random_streams.key(0, Stream.DP_NOISE, 0, 0),
      steps=steps,
      sampling_rate=tf.constant(0.3),
      noise_multiplier=tf.constant(0.0),
      clipping_norm=tf.constant(np.inf, tf.float32),
      batch_divisor=tf.constant(float(size)),
      expected_batch_size=size,
      learning_rate=tf.constant(1e-3 * size),
      batches='shuffled',
    )
    return params['weights'], statistics['loss_count']

  left_out = np.zeros(rows)
  before, seen = np.zeros(rows + 1), 0
  for epoch in range(1, epochs + 1):
    after, count = (a.numpy() for a in weights_after(tf.constant(3 * epoch)))
    used = np.rint((after - before) / 1e-3)
    assert count - seen == 9 and used[-1] == 0
    assert set(used[:-1]) == {0, 1} and used.sum() == 9
    left_out += used[:-1] == 0
    before, seen = after, count
  assert np.count_nonzero(left_out) > 3


@pytest.mark.slow
def test_batches_are_poisson_samples_of_the_claimed_rate():
  """Each example by itself; and the test rejects 2/3 of the rate and fixed-size batches."""
  rows, steps, rate = 50, 400, 0.2
  key = random_streams.key(NoiseKey.rehearsal(3).words_of(0), Stream.BATCH, 0, 0)

  def draw(step):
    return random_streams.uniform(random_streams.fold_in(key, step), [rows])

  coins = tf.function(lambda: tf.map_fn(draw, tf.range(steps), fn_output_signature=tf.float32))()
  chosen = coins.numpy() < rate

  def rate_p_value(total, p):
    return stats.binomtest(int(total), rows * steps, p).pvalue

  assert rate_p_value(chosen.sum(), rate) > 1e-3
  assert rate_p_value(chosen.sum(), 2.0 / 3.0 * rate) < 1e-6

  def is_binomial(sizes):
    dispersion = sizes.var(ddof=1) / (rows * rate * (1 - rate))
    return abs(dispersion - 1.0) < 5.0 * np.sqrt(2.0 / steps)

  assert is_binomial(chosen.sum(1))
  # Controls: the smallest coins make batches of a fixed size; one coin for two examples.
  smallest = np.argsort(coins.numpy(), axis=1)[:, : int(rows * rate)]
  fixed = np.zeros_like(chosen)
  np.put_along_axis(fixed, smallest, True, axis=1)
  assert not is_binomial(fixed.sum(1))
  assert not is_binomial(2 * chosen[:, ::2].sum(1))

  # The trainer counts exactly these examples.
  data = small.regression_data(clients=1, rows=rows)
  _, statistics = _dp_sgd(
    _row(data),
    3,
    seed=3,
    steps=tf.constant(steps),
    sampling_rate=tf.constant(rate),
    learning_rate=tf.constant(0.0),
  )
  assert statistics['loss_count'] == chosen.sum()


# ------------------------------------------------- batches that are not Poisson samples


def _weights_after(where, *, rows, **settings):
  """Final weights [n, rows] for n pairs (epoch's number, steps): row i moves weight i alone."""
  data = Tree(
    x=tf.eye(rows + 1), y=tf.ones([rows + 1]),
    num_examples=tf.constant(rows), client_id=tf.constant(0),
  )  # fmt: skip
  model = build_model(
    'linear_regression', example_shape=(rows + 1,), num_outputs=1, task_kind='regression',
    bias=False,
  )  # fmt: skip

  def weights_after(where):
    params, _ = local_training.dp_sgd(
      model,
      Tree(weights=tf.zeros([rows + 1])),
      data,
      batch_key=random_streams.key(0, Stream.BATCH, where[0]),
      noise_key=random_streams.key(0, Stream.DP_NOISE, 0),
      steps=where[1],
      noise_multiplier=tf.constant(0.0),
      clipping_norm=tf.constant(np.inf, tf.float32),
      learning_rate=tf.constant(_LEARNING_RATE),
      **settings,
    )
    return params['weights']

  run = tf.function(lambda w: tf.map_fn(weights_after, w, fn_output_signature=tf.float32))
  weights = run(tf.constant(where, tf.int32)).numpy()
  assert not weights[:, -1].any()  # the padding
  return weights[:, :-1]


_LEARNING_RATE = 1e-3


def _memberships(epochs, steps, *, rows, **settings):
  """Which rows are in which batch, bool [epochs, steps, rows]."""
  where = np.stack(np.meshgrid(np.arange(epochs), np.arange(steps + 1), indexing='ij'), axis=-1)
  weights = _weights_after(where.reshape(-1, 2), rows=rows, **settings)
  return np.diff(weights.reshape(epochs, steps + 1, rows), axis=1) > 0


def _memberships_of_epochs(epochs, bins, *, rows, batch_divisor, **settings):
  """The same of whole epochs: weights are halved in every step, and tell when they moved."""
  where = np.stack([np.arange(epochs), np.full(epochs, bins)], axis=-1)
  weights = _weights_after(
    where, rows=rows, batch_divisor=tf.constant(batch_divisor),
    regularizer_gradient=lambda params: trees.scale(params, 0.5 / _LEARNING_RATE), **settings,
  )  # fmt: skip
  units = weights * batch_divisor / _LEARNING_RATE  # 1 of the last step, 1/2 of the one before
  kept = 0.5 ** np.arange(bins - 1, -1, -1)
  return np.isclose(units[:, None], kept[None, :, None], rtol=1e-3)


def _is_balls_in_bins(inside):
  """Whether each row falls into one batch of an epoch, all alike and by itself."""
  epochs, bins, rows = inside.shape
  if not np.all(inside.sum(1) == 1):
    return False
  counts, sizes = inside.sum((0, 2)), inside.sum(2)
  alike = stats.chisquare(counts).pvalue > 1e-3
  dispersion = sizes[:, 0].var(ddof=1) / (rows * (1 / bins) * (1 - 1 / bins))
  return bool(alike and abs(dispersion - 1.0) < 5.0 * np.sqrt(2.0 / epochs))


@pytest.mark.parametrize('rows_at_once', ['all', 'chunks'])
def test_balls_fall_into_bins(rows_at_once, monkeypatch):
  """And the test rejects shuffled batches, and one coin for two examples."""
  if rows_at_once == 'chunks':
    monkeypatch.setattr(local_training, '_MASK_WHOLE_SILO_LIMIT', 0)
  rows, bins, epochs = 31, 3, 300
  inside = _memberships_of_epochs(
    epochs, bins, rows=rows, sampling_rate=tf.constant(1 / bins), expected_batch_size=10,
    batch_divisor=rows / bins, batches='balls_in_bins',
  )  # fmt: skip
  assert _is_balls_in_bins(inside)
  assert not _is_balls_in_bins(inside[..., np.arange(rows) // 2])
  shuffled = np.zeros_like(inside)
  order = np.random.default_rng(0).permuted(np.tile(np.arange(rows), (epochs, 1)), axis=1)
  np.put_along_axis(shuffled, (order % bins)[:, None], True, axis=1)
  assert not _is_balls_in_bins(shuffled)


def test_epochs_of_a_round_have_bins_of_their_own():
  """Bins that an example falls into together in every epoch are one draw, and not several."""
  rows, bins, rounds = 31, 3, 20
  settings = dict(
    rows=rows, batch_divisor=tf.constant(rows / bins), sampling_rate=tf.constant(1 / bins),
    expected_batch_size=10, batches='balls_in_bins',
    regularizer_gradient=lambda params: trees.scale(params, 0.5 / _LEARNING_RATE),
  )  # fmt: skip
  where = [[t, epochs * bins] for epochs in (1, 2) for t in range(rounds)]
  one, both = np.split(_weights_after(where, **settings), 2)
  # Weights are halved in every step, so that what an epoch adds tells the bin.
  of_epochs = [one, both - 0.5**bins * one]
  first, second = (np.rint(np.log2(added * rows / bins / _LEARNING_RATE)) for added in of_epochs)
  assert set(np.ravel(first)) == set(np.ravel(second)) == {0, -1, -2}
  same = int(np.sum(first == second))
  assert stats.binomtest(same, rows * rounds, 1 / bins).pvalue > 1e-3


def _is_truncated(inside, rate, capacity):
  """Whether batches are Poisson samples of which a random part beyond the capacity is left out."""
  rows, sizes = inside.shape[-1], inside.sum(-1).ravel()
  full = stats.binom.sf(capacity - 1, rows, rate)  # as large as the capacity, or cut to it
  if sizes.max() > capacity:
    return False
  by_row = inside.reshape(-1, rows)
  fair = stats.chisquare(by_row.sum(0)).pvalue
  return bool(stats.binomtest(int(np.sum(sizes == capacity)), len(sizes), full).pvalue > 1e-3
              and fair > 1e-3)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('rows_at_once', ['all', 'one gather'])
def test_truncated_batches_have_a_bound(rows_at_once, monkeypatch):
  """And the test rejects a batch of which the last rows are left out, and Poisson batches."""
  if rows_at_once == 'one gather':
    monkeypatch.setattr(local_training, '_MASK_WHOLE_SILO_LIMIT', 0)
  rows, rate, capacity, epochs = 24, 0.25, 7, 200
  settings = dict(rows=rows, sampling_rate=tf.constant(rate), expected_batch_size=6,
                  batch_divisor=tf.constant(6.0))  # fmt: skip
  inside = _memberships(epochs, 3, batches='truncated_poisson', batch_capacity=capacity, **settings)
  assert _is_truncated(inside, rate, capacity)
  poisson = _memberships(epochs, 3, batches='poisson', **settings)
  assert not _is_truncated(poisson, rate, capacity)
  # It is a part of that Poisson batch: whole, where this is no larger than the capacity.
  assert np.all(poisson | ~inside)
  np.testing.assert_array_equal(inside.sum(-1), np.minimum(poisson.sum(-1), capacity))
  first = poisson & (np.cumsum(poisson, axis=-1) <= capacity)
  assert not _is_truncated(first, rate, capacity)
