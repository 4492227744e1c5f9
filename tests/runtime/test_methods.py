"""Every method of the registry: the same numbers on both runtimes, noise on."""

import warnings

import numpy as np
import pytest

import runtime
from privacy import plan, sampling, selection, tuning
from processes import registry
from tests.processes import small_federation as small
from tests.runtime import example_process as example

CASES = [(name, unit) for name, entry in registry.METHODS.items() for unit in entry.privacy_units]


def _data(name):
  data = small.examples()
  if registry.METHODS[name].federated:
    return data
  return small.pooled(data)


def _plan(name, unit, data):
  population = len(data['x'])
  if unit == 'none':
    return plan.NoPrivacy(cohorts=sampling.EveryClient(population))
  if unit == 'client':
    return plan.ClientLevelPrivacy(
      cohorts=sampling.PoissonCohorts(population, 0.5),
      noise_multiplier=0.8,
      delta=1e-3,
      clipping=plan.AdaptiveClipping(quantile_noise_multiplier=1.0),
      num_opted_out=2 if name == 'feo2' else 0,
    )
  clustered, tuned = (registry.METHODS[name].setting(s) for s in ('num_clusters', 'tuning_eta'))
  return plan.ExampleLevelPrivacy(
    num_examples=data['num_examples'],
    batch_size=4,
    steps_per_round=(2 + np.arange(population) % 3).astype(np.int32),
    noise_multiplier=np.full(population, 0.7),
    delta=np.full(population, 1e-3),
    clipping_norm=1.0,
    selection=selection.PrivateSelection(epsilon=0.5, rounds=2) if clustered else None,
    tuning=tuning.PrivateTuning(mean=2.0, shape=1.0, score_noise_multiplier=1.0) if tuned else None,
  )


def run(machine, method, data, attributes=None):
  """Rounds of varying cohorts, one with nobody; the states, metrics and evaluations."""
  simulation = small.Simulation(machine, method, data, seed=3, attributes=attributes)
  clients = len(data['x'])
  metrics = []
  for cohort in ([0, 1, 3, 5], [2, 4], [], [1, 2, 3, 4, 5]):
    metrics.append(simulation.round([k for k in cohort if k < clients]))
  values = {which: simulation.evaluate(which) for which in method.evaluations}
  return metrics, simulation.server, simulation.clients, values


def case(name, unit):
  """A method with privacy for a unit, data for it, and what its clients hold."""
  data = _data(name)
  privacy = _plan(name, unit, data)
  method = small.build(name, privacy, data, batch_size=4)
  attributes = {}
  if 'is_private' in method.attributes:
    attributes['is_private'] = np.array([1, 1, 1, 0, 0, 1], np.float32)
  return method, data, attributes


@pytest.mark.exhaustive(
  but=[
    'fedavg-example',
    'mr_mtl-example',
    'ifca-example',
    'ditto-example',
    'feo2-client',
    'ppsgd-client',
  ]
)
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'unit'), CASES)
def test_parity(native, name, unit):
  method, data, attributes = case(name, unit)
  with runtime.create('xla') as xla:
    found = run(xla, method, data, attributes)
    assert xla.compilations == 1 + len(method.evaluations)
  example.assert_same(run(native, method, data, attributes), found)


@pytest.mark.exhaustive(but=['fedavg-client'])
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'unit'), [('fedavg', 'client'), ('mr_mtl', 'example')])
def test_blocks_of_clients_agree_with_single_ones(name, unit):
  data = _data(name)
  privacy = _plan(name, unit, data)
  method = small.build(name, privacy, data, batch_size=4)
  results = []
  for block in (1, 4):
    with runtime.create('xla', clients_per_block=block) as xla, warnings.catch_warnings():
      # What cannot be vectorised would work on one client at a time, and agree.
      warnings.filterwarnings('error', message='Clients are worked on one at a time')
      results.append(run(xla, method, data))
  example.assert_same(*results)
