"""Dropout in local training: repeatable, off in evaluations, and each example's own."""

import numpy as np
import pytest
import tensorflow as tf

import runtime
from privacy import plan, sampling
from processes import gradients, local_training
from processes.method import Tree
from runtime import random_streams
from tests.processes import small_federation as small
from tff_models import build_model, layers

KEY = random_streams.key(0, random_streams.Stream.DROPOUT)
RATE = 0.25
SIZE = 4000


def _model(dropout, hidden_units=(6, 5)):
  return build_model(
    'mlp',
    example_shape=(3,),
    num_outputs=1,
    task_kind='regression',
    hidden_units=hidden_units,
    dropout=dropout,
  )


def _vector(params):
  return np.concatenate([np.ravel(p) for p in params.values()])


def test_shares_and_scale():
  draws = random_streams.uniform(KEY, [3, SIZE + 10])
  drop = layers.Dropout(draws)
  dropped = drop(tf.ones([3, SIZE]), RATE).numpy()
  assert set(np.unique(dropped)) == {0.0, np.float32(1 / (1 - RATE))}
  deviation = np.sqrt(RATE * (1 - RATE) / (3 * SIZE))
  assert abs((dropped == 0).mean() - RATE) < 4 * deviation
  # The next layer has numbers of its own, and examples do not share theirs.
  assert drop.used == SIZE
  np.testing.assert_array_equal(drop(tf.ones([3, 10]), 0.5) == 0, draws[:, SIZE:] < 0.5)
  assert (dropped[0] != dropped[1]).any()
  np.testing.assert_array_equal(layers.Dropout(None)(draws, RATE), draws)


def test_evaluation_drops_nothing_and_training_does():
  model, plain = _model(0.5), _model(0.0)
  assert (model.draws, plain.draws) == (11, 0)
  params = model.init(KEY)
  x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  np.testing.assert_array_equal(model.predict(params, x), plain.predict(params, x))
  draws = local_training.dropout_draws(model, KEY, (1, 2), 8)
  assert draws.shape == (8, 11)
  assert np.abs(model.predict(params, x, draws) - model.predict(params, x)).max() > 0.01
  assert local_training.dropout_draws(plain, None, (1,), 8) is None
  with pytest.raises(ValueError, match='mlp has dropout, and training it needs a key'):
    local_training.dropout_draws(model, None, (1,), 8)


def test_the_mean_over_masks_is_the_undropped_output():
  """Of one linear layer behind the dropout; a dropout without its scale is far off."""
  model = build_model(
    'mlp', example_shape=(3,), num_outputs=1, task_kind='regression', hidden_units=(40,),
    dropout=0.5,
  )  # fmt: skip
  params = model.init(KEY)
  x = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
  draws = random_streams.uniform(KEY, [SIZE, model.draws])
  outputs = model.predict(params, np.repeat(x, SIZE, axis=0), draws).numpy()
  expected = float(model.predict(params, x)[0])
  error = outputs.std() / np.sqrt(SIZE)
  assert abs(outputs.mean() - expected) < 4 * error
  assert abs(0.5 * outputs.mean() - expected) > 4 * error


def _clipped_sums(rows_in_batch, by_row):
  """DP-SGD's sums without noise, by chunks, of a batch and of the batch less its first row."""
  model = _model(0.5)
  params = model.init(KEY)
  capacity = 8
  rng = np.random.default_rng(1)
  x = rng.normal(size=(capacity, 3)).astype(np.float32)
  y = rng.normal(size=capacity).astype(np.float32)
  draws = local_training.dropout_draws(model, KEY, (0,), capacity)

  def total(rows):
    own = tf.gather(draws, rows) if by_row else draws[: len(rows)]
    clipped, _ = gradients.clipped_gradient_sum(
      model, params, x[rows], y[rows], tf.ones([len(rows)], tf.bool), clipping_norm=0.5, draws=own
    )
    return _vector(clipped)

  return np.linalg.norm(total(rows_in_batch) - total(rows_in_batch[1:]))


@pytest.mark.slow
def test_one_example_moves_a_step_by_the_clip_at_most():
  rows = np.array([0, 2, 3, 5, 6, 7])
  assert _clipped_sums(rows, by_row=True) <= 0.5 * (1 + 1e-5)
  # The broken twin, whose numbers go by the place in the batch, moves by much more.
  assert _clipped_sums(rows, by_row=False) > 0.6


@pytest.mark.slow
def test_dp_sgd_gives_each_row_its_own_numbers(monkeypatch):
  """The same step worked off in chunks and as a masked silo: other places, the same masks."""
  model = _model(0.5)
  params, rows = model.init(KEY), 12
  rng = np.random.default_rng(2)
  data = Tree(
    x=tf.constant(rng.normal(size=(rows, 3)), tf.float32),
    y=tf.constant(rng.normal(size=rows), tf.float32),
    num_examples=tf.constant(rows - 1),
  )

  def train():
    return local_training.dp_sgd(
      model,
      params,
      data,
      batch_key=random_streams.fold_in(KEY, 1),
      noise_key=random_streams.fold_in(KEY, 2),
      steps=tf.constant(3),
      sampling_rate=tf.constant(0.5),
      noise_multiplier=tf.constant(0.0),
      clipping_norm=tf.constant(0.5),
      batch_divisor=tf.constant(5.0),
      expected_batch_size=1,
      learning_rate=tf.constant(0.1),
      dropout_key=random_streams.fold_in(KEY, 3),
    )[0]

  whole = train()
  monkeypatch.setattr(local_training, '_MASK_WHOLE_SILO_LIMIT', 0)
  chunked = train()
  assert local_training._chunk_size(model, params, data, 1, regularizer=False) < rows
  np.testing.assert_allclose(_vector(whole), _vector(chunked), atol=1e-6)


@pytest.mark.exhaustive(but=['example'])
@pytest.mark.slow
@pytest.mark.parametrize('unit', ['none', 'example'])
def test_both_runtimes_drop_the_same(native, unit):
  data = small.examples()
  clients = small.CLIENTS
  privacy = plan.NoPrivacy(cohorts=sampling.EveryClient(clients))
  if unit == 'example':
    privacy = plan.ExampleLevelPrivacy(
      num_examples=data['num_examples'],
      batch_size=4,
      steps_per_round=2,
      noise_multiplier=0.5,
      delta=1e-3,
      clipping_norm=1.0,
    )

  def weights(machine, dropout, seed=0):
    method = small.build(
      'fedavg', privacy, data, batch_size=4, model='mlp',
      model_options={'hidden_units': (8,), 'dropout': dropout},
    )  # fmt: skip
    run = small.Simulation(machine, method, data, seed=seed)
    for _ in range(2):
      run.round(range(clients))
    return _vector(run.server['model'])

  with runtime.create('xla') as xla:
    found, plain = weights(xla, 0.5), weights(xla, 0.0)
  np.testing.assert_allclose(found, weights(native, 0.5), atol=1e-5)
  assert np.abs(found - plain).max() > 1e-3
