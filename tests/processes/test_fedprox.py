"""FedProx: golden numbers, and the limit mu = 0, for each privacy unit."""

import numpy as np
import pytest

from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE, CLIP = 0.1, 0.15
UNITS = ['none', 'client', 'example']


def _run(name, data, privacy, mu=None, seed=0, **options):
  spec = small.spec_of(data, privacy, **options)
  hyperparameters = {'client_learning_rate': RATE, **({} if mu is None else {'fedprox_mu': mu})}
  run = small.start(name, spec, data, seed=seed, hyperparameters=hyperparameters)
  run.run(3)
  return numpy_loops.parameter_vector(run.server['model'])


def _plan(unit, data, noise=0.5):
  if unit == 'client':
    return small.client_level(data, noise_multiplier=noise, norm=CLIP)
  return (
    small.no_privacy(data) if unit == 'none' else small.example_level(data, noise_multiplier=noise)
  )


@pytest.mark.slow
@pytest.mark.parametrize('unit', UNITS)
def test_golden_numbers(unit):
  """Without the noise of a client-level plan, whose place the next test shows."""
  data = small.regression_data(sizes=[8, 6, 5])
  privacy = _plan(unit, data, noise=0.0 if unit == 'client' else 0.5)
  found = _run('fedprox', data, privacy, mu=0.8, seed=7, batch_size=4)
  reference, expected = numpy_loops.Reference(data, seed=7), np.zeros(4)
  lengths = []
  for t in range(3):
    pull = lambda own, w=expected: 0.8 * (own - w)  # noqa: E731
    settings = dict(learning_rate=RATE, penalty=pull)
    updates = np.array([
      reference.dp_sgd(expected, k, t, privacy, **settings) - expected
      if unit == 'example'
      else reference.sgd(expected, k, t, batch_size=4, **settings) - expected
      for k in range(3)
    ])  # fmt: skip
    if unit == 'client':
      norms = np.linalg.norm(updates, axis=1, keepdims=True)
      updates *= np.minimum(1.0, CLIP / norms)
      lengths += list(norms.ravel())
    expected = expected + updates.mean(0)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  assert unit != 'client' or max(lengths) > CLIP  # or nothing was clipped


@pytest.mark.slow
@pytest.mark.exhaustive(but=['client'])
@pytest.mark.parametrize('unit', UNITS)
def test_without_a_pull_it_is_fedavg(unit):
  """Bit for bit, noise included."""
  data = small.regression_data()
  privacy = _plan(unit, data)
  found = _run('fedprox', data, privacy, mu=0.0)
  np.testing.assert_array_equal(found, _run('fedavg', data, privacy))
  assert np.abs(found - _run('fedprox', data, privacy, mu=1.0)).max() > 1e-3
