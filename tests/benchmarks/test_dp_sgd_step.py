"""The benchmark compares the same step."""

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import dp_sgd_step
from runtime import random_streams

_SHAPE = (10, 10, 2)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn3x3', 'mlp'])
def test_both_steps_are_the_same_apart_from_their_noise(name):
  network = dp_sgd_step.model(name, _SHAPE)
  params = network.init(random_streams.key(0, random_streams.Stream.INIT))
  x, y = dp_sgd_step.examples(5, _SHAPE)
  results = []
  for noise in (0.0, 1.0):
    ours = dp_sgd_step.step_of_ours(network, noise)(params, tf.constant(x), tf.constant(y), 1)
    theirs = dp_sgd_step.step_of_jax(name, noise)(
      {name: jnp.asarray(value.numpy()) for name, value in params.items()}, x, y, 1
    )
    results.append((ours, theirs))
  (ours, theirs), noised = results
  for name in params:
    assert np.any(ours[name] != params[name])
    np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
  # As much noise, too.
  expected = dp_sgd_step.LEARNING_RATE * dp_sgd_step.CLIPPING_NORM / 5
  for with_noise, exact in zip(noised, (ours, theirs), strict=True):
    weights = max(params, key=lambda part: np.size(params[part]))
    noise = np.asarray(with_noise[weights] - exact[weights])
    assert abs(noise.std() / expected - 1) < 0.05
