"""Local training: every client by itself."""

import numpy as np
import pytest

import processes
import runtime
from privacy.plan import ClientLevelPrivacy, ExampleLevelPrivacy, FixedClipping
from runtime.noise_key import NoiseKey
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = {'client_learning_rate': 0.1}


def _run(data, plan, rounds=3, cohort=None, **options):
  spec = small.spec_of(data, plan, **options)
  run = small.start('local', spec, data, hyperparameters=RATE)
  run.run(rounds, cohort)
  return run


def test_every_client_follows_its_own_numpy_loop():
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(data, small.no_privacy(data), batch_size=3)
  reference = numpy_loops.Reference(data)
  found = numpy_loops.parameter_vector(run.clients['model'])
  for k in range(3):
    expected = np.zeros(4)
    for t in range(3):
      expected = reference.sgd(expected, k, t, batch_size=3, learning_rate=0.1)
    np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_with_privacy_too():
  data = small.regression_data(sizes=[8, 5, 2])
  plan = small.example_level(data, noise_multiplier=0.5, steps=[2, 1, 3])
  run = _run(data, plan)
  reference = numpy_loops.Reference(data)
  found = numpy_loops.parameter_vector(run.clients['model'])
  for k in range(3):
    expected = np.zeros(4)
    for t in range(3):
      expected = reference.dp_sgd(expected, k, t, plan, learning_rate=0.1)
    np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_nobody_elses_data_matter():
  data = small.regression_data()
  plan = small.example_level(data, noise_multiplier=0.5)
  together = _run(data, plan)
  data['x'][1:] += 1.0
  alone = _run(data, plan, cohort=[0])
  for name in ('weights', 'bias'):
    np.testing.assert_array_equal(
      together.clients['model'][name][0], alone.clients['model'][name][0]
    )
    np.testing.assert_array_equal(alone.clients['model'][name][1:], 0.0)


def test_client_level_privacy_is_refused():
  data = small.regression_data()
  plan = ClientLevelPrivacy(
    cohorts=small.no_privacy(data).cohorts,
    noise_multiplier=1.0,
    delta=1e-5,
    clipping=FixedClipping(norm=1.0),
  )
  with pytest.raises(ValueError, match='--privacy=client'):
    _run(data, plan)


@pytest.mark.parametrize(
  ('name', 'value'),
  [('noise_multiplier', 0.0), ('sampling_rate', 0.9), ('batch_size', 99.0), ('steps_per_round', 7)],
)
def test_silos_have_what_the_plan_accounts_for(name, value):
  """No noise multiplier of 0 by the API, nor a rate that the plan does not know."""
  data = small.regression_data()
  plan = small.example_level(data, noise_multiplier=0.5, steps=[2, 1, 3])
  method = processes.build('local', small.spec_of(data, plan))
  key = NoiseKey.rehearsal(0)
  server = method.initial_server_state(0, noise_key=key)
  with pytest.raises(ValueError, match='need a noise_key'):
    method.initial_client_states(server, 3)
  clients = method.initial_client_states(server, 3, noise_key=key)
  for attribute, values in plan.silo_parameters().items():
    np.testing.assert_array_equal(clients['attributes'][attribute], values)
  wrong = {**plan.silo_parameters(), name: np.full(3, value)}
  with pytest.raises(ValueError, match=f'Attribute {name} of client .* privacy plan accounts for'):
    method.initial_client_states(server, 3, wrong)
  with pytest.raises(ValueError, match='is for 3 silos, got 5 clients'):
    method.initial_client_states(server, 5)
  repeated = method.initial_client_states(server, 5, silos=np.full(5, 2), noise_key=key)
  np.testing.assert_array_equal(repeated['attributes']['steps_per_round'], 3)


def test_truncated_batches_have_the_plans_bound():
  """Equal examples without noise: how far a model moves counts those of its batch."""
  data = small.regression_data(rows=12)
  data['x'][:], data['y'][:] = 1.0, 100.0
  plan = small.example_level(
    data, batch_size=5, steps=1, batches='truncated_poisson', batch_capacity=5
  )
  run, before, sizes = _run(data, plan, rounds=0), np.zeros(3), []
  for _ in range(4):
    run.run(1)
    bias = run.clients['model']['bias']
    # Each of the four parameters moves by half of a clipped gradient.
    sizes += [*np.rint((bias - before) * 2 * 5 / RATE['client_learning_rate'])]
    before = bias
  assert min(sizes) < 5 == max(sizes)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('batches', ['balls_in_bins', 'truncated_poisson'])
def test_batches_are_the_same_on_both_runtimes(batches):
  data = small.regression_data(clients=3, rows=12, features=2)
  silos = ExampleLevelPrivacy(
    num_examples=data['num_examples'], batch_size=5, steps_per_round=4, noise_multiplier=0.5,
    delta=1e-3, clipping_norm=1.0, batches=batches,
    batch_capacity=6 if batches == 'truncated_poisson' else None,
  )  # fmt: skip
  models = []
  for name in ('native', 'xla'):
    with runtime.create(name) as machine:
      method = small.build('local', silos, data, rounds=2)
      simulation = small.Simulation(machine, method, data)
      for _ in range(2):
        simulation.round([0, 2])
      models.append(simulation.clients['model']['weights'])
  np.testing.assert_allclose(models[0], models[1], rtol=1e-4, atol=1e-5)
  assert np.all(np.abs(models[0][[0, 2]]) > 0) and not models[0][1].any()
