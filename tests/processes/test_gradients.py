"""Clipped sums of single examples' gradients: what one example moves, and the forms they take."""

import dataclasses

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from privacy import norms
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

_SIDES = 8, 12  # Inputs and outputs of a matrix that is held as factors.


def _bilinear(predict):
  """A model whose loss is the product of outputs and labels."""
  return dataclasses.replace(
    _model(1), predict=predict, loss=lambda outputs, y: tf.reduce_sum(outputs * y, axis=1)
  )


def _vector(tree):
  return np.concatenate([np.ravel(part).astype(np.float64) for part in tree.values()])


def _clipped_product_sum_eagerly(x, y, mask, clip):
  """Gradients are x y^T, whatever the weights are."""
  model = _bilinear(lambda params, x: tf.matmul(x, params['weights']))
  total, _ = gradients.clipped_gradient_sum(
    model, Tree(weights=tf.zeros(_SIDES)), x, y, mask, clipping_norm=clip
  )
  return total['weights']


_IN_GRAPH = {
  compiled: tf.function(_clipped_product_sum_eagerly, jit_compile=compiled)
  for compiled in (False, True)
}


def _clipped_product_sum(x, y, mask, clip, function=_clipped_product_sum_eagerly):
  x, y, clip = (tf.constant(value, tf.float32) for value in (x, y, clip))
  return function(x, y, tf.constant(mask), clip)


_POWERS = st.integers(-42, 37)


@pytest.mark.slow
@pytest.mark.parametrize('compiled', [False, True])
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  powers=st.tuples(_POWERS, _POWERS),
  numbers=st.lists(st.floats(-9.0, 9.0, width=32), min_size=sum(_SIDES), max_size=sum(_SIDES)),
  odd=st.sampled_from([None, np.inf, -np.inf, np.nan]),
  clip=st.sampled_from([0.0, 1e-25, 1e-12, 1e-3, 1.0, 50.0]),
)
def test_an_outer_product_moves_the_sum_by_at_most_the_clip(compiled, powers, numbers, odd, clip):
  """Of a tiny input and a huge gradient by the output as well."""
  rows = [
    np.array(part) * 10.0**power
    for part, power in zip((numbers[: _SIDES[0]], numbers[_SIDES[0] :]), powers, strict=True)
  ]
  if odd is not None:
    rows[0][0] = odd
  with np.errstate(over='ignore'):
    pair = [np.stack([row, np.ones_like(row)]).astype(np.float32) for row in rows]
  sums = [
    _clipped_product_sum(*pair, [here, True], clip, _IN_GRAPH[compiled]) for here in (True, False)
  ]
  assert np.all(np.isfinite(sums))
  # The other example's own sum has eight digits.
  assert np.linalg.norm(np.subtract(*sums, dtype=np.float64)) <= clip * (1 + 1e-4)


def _in_float32(monkeypatch):
  """The broken twin: squares of small numbers vanish, and nothing is put in their place."""

  def sums(values):
    return tf.reduce_sum(tf.square(values), axis=list(range(1, values.shape.rank)))

  monkeypatch.setattr(norms, 'sums_of_squares', sums)
  monkeypatch.setattr(norms, '_SMALLEST', 0.0)


@pytest.mark.parametrize('honest', [True, False])
@pytest.mark.parametrize(
  ('x', 'y', 'clip'),
  [
    (1e-23, 1e18, 1e-6),  # the squares of a factor vanish
    (1e-11, 1e-11, 1e-25),  # those of the product
    (0.0, 0.0, 0.0),
  ],
)
def test_an_outer_product_is_not_taken_for_a_shorter_one(x, y, clip, honest, monkeypatch):
  if not honest:
    _in_float32(monkeypatch)
  rows = (np.full([1, side], value) for side, value in zip(_SIDES, (x, y), strict=True))
  total = _clipped_product_sum(*rows, [True], clip)
  is_clipped = np.linalg.norm(np.asarray(total, np.float64)) <= clip * (1 + 1e-6)
  assert is_clipped == honest  # The twin's is 97 clips and more, or NaN.


@pytest.mark.parametrize('honest', [True, False])
@pytest.mark.parametrize(
  ('size', 'clip', 'rounding'), [(6e-20, 1e-19, 0.0), (1e-23, 1.5e-23, 1e-6)]
)
def test_many_vanishing_squares_count_each(size, clip, rounding, honest, monkeypatch):
  """A thousand numbers, whose squares have a sum of 4e-36 or 1e-43."""
  if not honest:
    _in_float32(monkeypatch)
  rows = 1000
  model = _bilinear(lambda params, x: tf.reduce_sum(params['weights'] * x, axis=1, keepdims=True))
  total, _ = gradients.clipped_gradient_sum(
    model, Tree(weights=tf.zeros([rows])), tf.fill([1, rows], size), tf.ones([1, 1]),
    tf.constant([True]), clipping_norm=tf.constant(clip),
  )  # fmt: skip
  norm = np.linalg.norm(np.asarray(total['weights'], np.float64))
  assert (norm <= clip * (1 + rounding)) == honest
  assert not honest or norm == pytest.approx(clip, rel=1e-5)


def _matmul_with_a_gradient_of_its_own(x, weights):
  @tf.custom_gradient
  def product(x, weights):
    return x @ weights, lambda g: (g @ tf.transpose(weights), 3.0 * (tf.transpose(x) @ g))

  return product(x, weights)


_W = [8, 12]
# Ways to use weights: their shape, the outputs, and whether their gradients are held as factors.
_USES = {
  'a matrix': (_W, lambda w, x: x @ w, True),
  'transposed by the product': (_W[::-1], lambda w, x: tf.matmul(x, w, transpose_b=True), True),
  'of three axes': ([2, 4, 12], lambda w, x: x @ tf.reshape(w, _W), True),
  'in a row': ([96], lambda w, x: x @ tf.reshape(w, _W), True),
  'in other places': ([12, 8], lambda w, x: x @ tf.reshape(w, _W), True),
  'transposed before': ([12, 8], lambda w, x: x @ tf.transpose(w), False),
  'scaled': (_W, lambda w, x: x @ (2.0 * w), False),
  'twice': (_W, lambda w, x: x @ w + tf.square(x) @ w, False),
  'on rows': (_W, lambda w, x: tf.reduce_sum(tf.stack([x, 2 * x * x], 1) @ w, 1), False),
  'with a gradient of its own': (_W, lambda w, x: _matmul_with_a_gradient_of_its_own(x, w), False),
  'looked up': (_W, lambda w, x: tf.gather(w, tf.cast(x[:, 0] > 0.0, tf.int32)), False),
}


@pytest.mark.slow
@pytest.mark.parametrize('use', _USES)
def test_weights_may_be_used_in_any_way(use):
  shape, outputs, as_factors = _USES[use]
  rng = np.random.default_rng(0)
  params = Tree(weights=tf.constant(rng.normal(size=shape), tf.float32))
  model = _bilinear(lambda params, x: tf.sin(outputs(params['weights'], x)))
  x, y = (tf.constant(rng.normal(size=[5, side]), tf.float32) for side in _SIDES)
  clip, everyone = 3.0, tf.ones([5], tf.bool)
  total, _ = tf.function(gradients.clipped_gradient_sum)(
    model, params, x, y, everyone, clipping_norm=tf.constant(clip)
  )
  expected = 0.0
  for i in range(5):
    gradient, _ = gradients.mean_gradient(model, params, x[i : i + 1], y[i : i + 1], tf.ones([1]))
    vector = _vector(gradient)
    expected = expected + vector * min(1.0, clip / np.linalg.norm(vector))
  np.testing.assert_allclose(_vector(total), expected, atol=1e-5 * np.abs(expected).max())
  held = gradients.numbers_per_example(model, params, x, y, regularizer=False)
  assert held == (sum(_SIDES) if as_factors else 96)


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


@pytest.mark.exhaustive(
  but=['False-softmax', 'False-mlp', 'True-softmax', 'True-mlp', 'True-cnn3x3', 'True-dropout_cnn']
)
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
