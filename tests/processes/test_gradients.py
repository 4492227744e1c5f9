"""Clipped sums of single examples' gradients: what one example moves, and the forms they take."""

import dataclasses

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from processes import gradients, trees
from processes.method import Tree
from runtime import random_streams
from tests.processes import reference as numpy_loops
from tff_models import build_model

KEY = random_streams.key(4, random_streams.Stream.INIT)


def _model(features):
  return build_model(
    'linear_regression', example_shape=(features,), num_outputs=1, task_kind='regression'
  )


_VALUES = st.one_of(
  st.floats(-3.0, 3.0, width=32),
  st.sampled_from([0.0, 1e-40, -1e-42, 1e-20, 1e18, -1e19, 1e30, 3e38, np.inf, -np.inf, np.nan]),
)


@tf.function
def _clipped_sum_in_graph(x, y, mask, clip, inside):
  return gradients.clipped_gradient_sum(
    _model(2),
    Tree(weights=tf.constant([0.5, -1.0]), bias=tf.constant(0.25)),
    x,
    y,
    mask,
    clipping_norm=clip,
    regularizer_gradient=(lambda p: trees.scale(p, 3.0)) if inside else None,
  )


def _clipped_sum(x, y, mask, clip, inside):
  floats = (tf.constant(value, tf.float32) for value in (x, y))
  total, _ = _clipped_sum_in_graph(
    *floats, tf.constant(mask), tf.constant(clip, tf.float32), inside
  )
  return numpy_loops.parameter_vector(total)


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  examples=st.lists(st.tuples(_VALUES, _VALUES, _VALUES), min_size=4, max_size=4),
  other=st.tuples(_VALUES, _VALUES, _VALUES),
  clip=st.sampled_from([1e-3, 1.0, 50.0]),
  inside=st.booleans(),
)
def test_one_example_moves_the_clipped_sum_by_at_most_the_clip(examples, other, clip, inside):
  """Removing, adding or zeroing out one example; replacing it: twice the clip."""
  table = np.array(examples, np.float32)
  mask = np.array([True, True, True, False])
  total = _clipped_sum(table[:, :2], table[:, 2], mask, clip, inside)
  assert np.all(np.isfinite(total))
  without = mask.copy()
  without[0] = False
  changed = table.copy()
  changed[0] = other
  bound = clip * (1.0 + 1e-4) + 1e-6
  for new_table, new_mask, factor in (
    (table, without, 1.0),
    (table, np.ones([4], bool), 1.0),
    (changed, mask, 2.0),
  ):
    new_total = _clipped_sum(new_table[:, :2], new_table[:, 2], new_mask, clip, inside)
    assert np.linalg.norm(new_total - total) <= factor * bound


def test_the_sensitivity_is_reached():
  """The bound is not loose: a large gradient moves the sum by the clip."""
  x, y = np.array([[3.0, 4.0], [1.0, 1.0]]), np.array([1e4, 0.0])
  both = _clipped_sum(x, y, [True, True], 0.5, False)
  one = _clipped_sum(x, y, [False, True], 0.5, False)
  assert np.linalg.norm(both - one) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize('clip', [1e-25, 1e-21, 1e-15])
def test_gradients_whose_squares_vanish_are_clipped(clip):
  """70 clips below float32's squares: taken for a gradient of norm 0, it would pass as it is."""
  zero = Tree(weights=tf.zeros([1]), bias=tf.constant(0.0))
  total, _ = gradients.clipped_gradient_sum(
    _model(1),
    zero,
    tf.zeros([1, 1]),
    tf.constant([-70.0 * clip]),
    tf.constant([True]),
    clipping_norm=tf.constant(clip),
  )
  norm = np.linalg.norm(numpy_loops.parameter_vector(total).astype(np.float64))
  assert norm <= clip * (1 + 1e-6)
  if clip == 1e-15:
    assert norm == pytest.approx(clip, rel=1e-5)  # where float32 can tell, nothing is lost


# ---------------------------------------------------------------- dense layers

_SIDE = 8  # Inputs and outputs of a matrix that is held as factors.


def _product_model():
  """Parameters [8, 8] whose gradient is x y^T, whatever they are."""
  model = _model(_SIDE)
  return dataclasses.replace(
    model,
    predict=lambda params, x: tf.matmul(x, params['weights']),
    loss=lambda outputs, y: tf.reduce_sum(outputs * y, axis=1),
  )


def _clipped_product_sum_eagerly(x, y, mask, clip):
  params = Tree(weights=tf.zeros([_SIDE, _SIDE]))
  total, _ = gradients.clipped_gradient_sum(
    _product_model(), params, x, y, mask, clipping_norm=clip
  )
  return total['weights']


_clipped_product_sum_in_graph = tf.function(_clipped_product_sum_eagerly)


def _clipped_product_sum(x, y, mask, clip, in_graph=_clipped_product_sum_in_graph):
  x, y, clip = (tf.constant(value, tf.float32) for value in (x, y, clip))
  return in_graph(x, y, tf.constant(mask), clip)


_POWERS = st.integers(-42, 37)


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  powers=st.tuples(_POWERS, _POWERS),
  numbers=st.lists(st.floats(-9.0, 9.0, width=32), min_size=2 * _SIDE, max_size=2 * _SIDE),
  odd=st.sampled_from([None, np.inf, -np.inf, np.nan]),
  clip=st.sampled_from([1e-12, 1e-3, 1.0, 50.0]),
)
def test_an_outer_product_moves_the_sum_by_at_most_the_clip(powers, numbers, odd, clip):
  """Of a tiny input and a huge gradient by the output as well."""
  x, y = np.array(numbers).reshape(2, _SIDE) * 10.0 ** np.array(powers)[:, np.newaxis]
  if odd is not None:
    x[0] = odd
  with np.errstate(over='ignore'):
    pair = [np.stack([row, np.ones(_SIDE)]).astype(np.float32) for row in (x, y)]
  sums = [_clipped_product_sum(*pair, [here, True], clip) for here in (True, False)]
  assert np.all(np.isfinite(sums))
  # The other example's own sum has eight digits.
  assert np.linalg.norm(np.subtract(*sums, dtype=np.float64)) <= clip * (1 + 1e-4)


@pytest.mark.parametrize('honest', [True, False])
def test_an_outer_product_is_not_taken_for_a_shorter_one(honest, monkeypatch):
  """Squares of 1e-23 vanish, but times 1e18 the gradient is 1e-5 in each of 64 places, not 0."""
  if not honest:
    monkeypatch.setattr(gradients, '_SMALLEST_FLOAT', 0.0)
  clip = 1e-5
  total = _clipped_product_sum(
    np.full([1, _SIDE], 1e-23),
    np.full([1, _SIDE], 1e18),
    [True],
    clip,
    in_graph=_clipped_product_sum_eagerly,  # or the twin's trace would be kept
  )
  norm = np.linalg.norm(np.asarray(total, np.float64))
  assert 0.0 < norm <= clip * (1 + 1e-6) if honest else norm > 7.0 * clip


@pytest.mark.parametrize(
  ('name', 'held', 'all_numbers'),
  [
    ('softmax', 49 + 2 * 10, 49 * 10 + 10),
    ('mlp', 49 + 256 + 256 + 256 + 256 + 10 + 2 * 256 + 10, 49 * 256 + 256**2 + 256 * 10 + 522),
    ('linear_regression', 49 + 1, 49 + 1),
  ],
)
def test_dense_layers_gradients_are_not_written_down(name, held, all_numbers):
  task = 'regression' if name == 'linear_regression' else 'classification'
  outputs = 1 if task == 'regression' else 10
  model = build_model(name, example_shape=(7, 7), num_outputs=outputs, task_kind=task)
  params = model.init(KEY)
  label = tf.float32 if task == 'regression' else tf.int32
  data = tf.zeros([3, 7, 7]), tf.zeros([3], label)
  numbers = [
    gradients.numbers_per_example(model, params, *data, regularizer=inside)
    for inside in (False, True)
  ]
  assert numbers == [held, all_numbers]


def _vector(tree):
  return np.concatenate([np.ravel(part).astype(np.float64) for part in tree.values()])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['softmax', 'mlp', 'cnn3x3', 'dropout_cnn'])
@pytest.mark.parametrize('inside', [False, True])
def test_clipped_sums_are_those_of_single_gradients(name, inside):
  """One gradient after the other, clipped in float64."""
  side, rows, clip = 28, 5, 0.7
  model = build_model(
    name, example_shape=(side, side, 1), num_outputs=10, task_kind='classification'
  )
  params = model.init(KEY)
  rng = np.random.default_rng(0)
  x = tf.constant(rng.uniform(size=(rows, side, side, 1)), tf.float32)
  y = tf.constant(rng.integers(0, 10, rows), tf.int32)
  draws = tf.constant(rng.uniform(size=(rows, model.draws)), tf.float32) if model.draws else None
  mask = np.array([True, False, True, True, True])
  regularizer = (lambda p: trees.scale(p, 0.01)) if inside else None
  total, _ = tf.function(gradients.clipped_gradient_sum)(
    model, params, x, y, tf.constant(mask), clipping_norm=tf.constant(clip),
    regularizer_gradient=regularizer, draws=draws,
  )  # fmt: skip
  expected, norms = 0.0, []
  single = tf.function(gradients.mean_gradient)
  for i in np.flatnonzero(mask):
    own = [part[i : i + 1] for part in (x, y)]
    gradient, _ = single(
      model, params, *own, tf.ones([1]), None if draws is None else draws[i : i + 1]
    )
    if inside:
      gradient = trees.add(gradient, regularizer(params))
    vector = _vector(gradient)
    norms.append(np.linalg.norm(vector))
    expected = expected + vector * min(1.0, clip / norms[-1])
  assert max(norms) > clip
  np.testing.assert_allclose(_vector(total), expected, atol=2e-6 * np.abs(expected).max())
