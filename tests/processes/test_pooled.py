"""Pooled training: all examples as those of one client."""

import numpy as np
import pytest

from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small


def test_pooling_keeps_every_real_row_once():
  data = small.regression_data(sizes=[8, 5, 2])
  together = small.pooled(data)
  expected = np.concatenate([data['x'][k, :n] for k, n in enumerate([8, 5, 2])])
  np.testing.assert_array_equal(together['x'][0], expected)
  np.testing.assert_array_equal(together['num_examples'], [15])
  assert together['y'].shape == (1, 15)


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_it_trains_on_the_union(private):
  data = small.pooled(small.regression_data(sizes=[8, 5, 2]))
  plan = (
    small.example_level(data, noise_multiplier=0.5, steps=3) if private else small.no_privacy(data)
  )
  run = small.start('pooled', small.spec_of(data, plan), data)
  run.run(2)
  reference, expected = numpy_loops.Reference(data), np.zeros(4)
  for t in range(2):
    if private:
      expected = reference.dp_sgd(expected, 0, t, plan, learning_rate=0.1)
    else:
      expected = reference.sgd(expected, 0, t, batch_size=4, learning_rate=0.1)
  found = numpy_loops.parameter_vector(run.server['model'])
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_several_clients_are_refused():
  data = small.regression_data()
  spec = small.spec_of(data, small.no_privacy(data))
  with pytest.raises(ValueError, match='population of 3'):
    small.start('pooled', spec, data)
