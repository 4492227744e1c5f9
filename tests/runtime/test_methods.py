"""Every method of the registry: the same numbers on both runtimes, noise on."""

import numpy as np
import pytest
import tensorflow as tf

import runtime
from privacy import plan, sampling
from processes import registry
from tests.processes import small_federation as small

DATA = small.examples()
COHORTS = ([0, 1, 3, 5], [2, 4], [], [1, 2, 3, 4, 5])
CASES = [(name, unit) for name, entry in registry.METHODS.items() for unit in entry.privacy_units]


def _plan(name, unit):
  everyone = sampling.PoissonCohorts(small.CLIENTS, 0.5)
  if unit == 'none':
    return plan.NoPrivacy(cohorts=sampling.EveryClient(small.CLIENTS))
  if unit == 'client':
    return plan.ClientLevelPrivacy(
      cohorts=everyone,
      noise_multiplier=0.8,
      delta=1e-3,
      clipping=plan.AdaptiveClipping(quantile_noise_multiplier=1.0),
      num_opted_out=2 if name == 'feo2' else 0,
    )
  ones = np.ones(small.CLIENTS)
  return plan.ExampleLevelPrivacy(
    num_examples=DATA['num_examples'],
    batch_size=4,
    steps_per_round=(2 + np.arange(small.CLIENTS) % 3).astype(np.int32),
    noise_multiplier=0.7 * ones,
    delta=1e-3 * ones,
    clipping_norm=1.0,
  )


def _method(name, unit):
  model = 'linear_regression'
  return small.build(name, _plan(name, unit), DATA, model_name=model, batch_size=4)


def _attributes(name, unit, method):
  attributes = _plan(name, unit).silo_parameters() if unit == 'example' else {}
  if 'is_private' in method.attributes:
    attributes['is_private'] = np.array([1, 1, 1, 0, 0, 1], np.float32)
  return {k: v for k, v in attributes.items() if k in method.attributes}


def run(run_time, method, attributes):
  """Three rounds and one with nobody; the states, metrics and evaluations."""
  simulation = small.Simulation(run_time, method, DATA, seed=3, attributes=attributes)
  metrics = [simulation.round(cohort) for cohort in COHORTS]
  values = {which: simulation.evaluate(which) for which in method.evaluations}
  return metrics, run_time.to_numpy(simulation.server), simulation.clients, values


@pytest.fixture(scope='module')
def native():
  with runtime.create('native') as created:
    yield created


def assert_same(a, b):
  """All numbers within 1e-5 relative."""
  tf.nest.assert_same_structure(a, b)
  for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    scale = np.max(np.abs(x), initial=1e-3, where=np.isfinite(x))
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(('name', 'unit'), CASES)
def test_parity(native, name, unit):
  method = _method(name, unit)
  attributes = _attributes(name, unit, method)
  with runtime.create('xla') as xla:
    found = run(xla, method, attributes)
    assert xla.compilations == 1 + len(method.evaluations)
  assert_same(run(native, method, attributes), found)
