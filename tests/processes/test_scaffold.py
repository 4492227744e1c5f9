"""SCAFFOLD: the paper's algorithm, its limits, and what one client can move."""

import dataclasses
import math

import numpy as np
import pytest

import processes
import runtime
from experiments import ExperimentConfig
from privacy import plan, sampling
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = 0.1


def _run(name, data, privacy, rounds, *, seed=0, cohort=None, rate=RATE, machine=None, **options):
  spec = small.spec_of(data, privacy, **options)
  run = small.start(
    name, spec, data, machine=machine, seed=seed, hyperparameters={'client_learning_rate': rate}
  )
  run.run(rounds, cohort)
  return run


def _vector(run):
  return numpy_loops.parameter_vector(run.server['model'])


def _reference(data, rounds, cohorts, *, seed, batch_size, epochs=1, plan=None, decay=1.0):
  """Algorithm 1 with option II in loops; DP-SGD's steps where there is a plan."""
  reference = numpy_loops.Reference(data, seed=seed)
  x, c, own = np.zeros(4), np.zeros(4), np.zeros((len(data['num_examples']), 4))
  for t in range(rounds):
    updates, changes, rate = [], [], RATE * decay**t
    for i in cohorts[t]:
      correct = lambda y, c=c, i=i: c - own[i]  # noqa: E731
      if plan is None:
        steps = epochs * math.ceil(data['num_examples'][i] / batch_size)
        y = reference.sgd(
          x, i, t, batch_size=batch_size, learning_rate=rate, penalty=correct, epochs=epochs
        )
      else:
        steps = plan.silo_parameters()['steps_per_round'][i]
        y = reference.dp_sgd(x, i, t, plan, learning_rate=rate, penalty=correct)
      new = own[i] - c + (x - y) / (steps * rate)
      updates.append(y - x)
      changes.append(new - own[i])
      own[i] = new
    x = x + np.mean(updates, 0)
    c = c + len(cohorts[t]) / len(own) * np.mean(changes, 0)
  return x, c, own


@pytest.mark.slow
def test_golden_numbers_of_the_papers_algorithm():
  data = small.regression_data(sizes=[8, 5, 2])
  cohorts = [[0, 1, 2], [0, 2], [1], [0, 1, 2]]
  spec = small.spec_of(data, small.no_privacy(data), batch_size=3, local_epochs=2)
  # The control variates are gradients, whatever the rate of their round.
  values = {'client_learning_rate_decay': 0.5}
  run = small.start('scaffold', spec, data, seed=11, hyperparameters=values)
  for cohort in cohorts:
    run.run(1, cohort)
  x, c, own = _reference(data, 4, cohorts, seed=11, batch_size=3, epochs=2, decay=0.5)
  np.testing.assert_allclose(_vector(run), x, rtol=1e-4, atol=1e-5)
  found = numpy_loops.parameter_vector(run.server['control'])
  np.testing.assert_allclose(found, c, rtol=1e-4, atol=1e-5)
  found = numpy_loops.parameter_vector(run.clients['control'])
  np.testing.assert_allclose(found, own, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_golden_numbers_of_dp_sgd_in_silos():
  data = small.regression_data(sizes=[8, 6, 5])
  privacy = small.example_level(data, noise_multiplier=0.7, steps=[2, 1, 3])
  everyone = [range(3)] * 3
  run = _run('scaffold', data, privacy, 3, seed=5)
  x, c, _ = _reference(data, 3, everyone, seed=5, batch_size=4, plan=privacy)
  np.testing.assert_allclose(_vector(run), x, rtol=1e-4, atol=1e-5)
  found = numpy_loops.parameter_vector(run.server['control'])
  np.testing.assert_allclose(found, c, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_one_step_of_everybody_is_fedavg():
  """With K = 1 and all clients the corrections cancel in the mean."""
  data = small.regression_data()
  privacy = small.no_privacy(data)
  found = _run('scaffold', data, privacy, 4, batch_size=8)
  np.testing.assert_allclose(
    _vector(found), _vector(_run('fedavg', data, privacy, 4, batch_size=8)), rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_it_does_not_drift():
  """Many local steps end at the optimum of all data; FedAvg's end is elsewhere."""
  data = small.regression_data(rows=8)
  privacy = small.no_privacy(data)
  x = np.concatenate([np.ones((*data['y'].shape, 1)), data['x']], -1).reshape(-1, 4)
  optimum = np.linalg.lstsq(x.astype(float), data['y'].ravel(), rcond=None)[0]
  with runtime.create('xla', devices='cpu') as xla:
    errors = {
      name: np.linalg.norm(
        _vector(_run(name, data, privacy, 150, machine=xla, batch_size=8, local_epochs=10))
        - optimum
      )
      for name in ('scaffold', 'fedavg')
    }
  assert errors['scaffold'] < 1e-3 < 0.02 < errors['fedavg']


def _client_level(clip):
  return plan.ClientLevelPrivacy(
    cohorts=sampling.PoissonCohorts(small.CLIENTS, 0.5),
    noise_multiplier=1.0,
    delta=1e-3,
    clipping=plan.FixedClipping(norm=clip),
  )


@pytest.mark.slow
@pytest.mark.parametrize('rounds_before', [0, 2])
def test_one_client_moves_the_sum_of_both_halves_by_the_clip(native, rounds_before):
  """Model and control variate together: with clips of their own it would be sqrt(2) times that."""
  data, clip = small.examples(), 0.05
  privacy = _client_level(clip)
  method = small.build('scaffold', privacy, data, batch_size=4)
  unit = RATE * 2  # 8 rows in batches of 4

  def released(cohort):
    run = small.Simulation(
      native, method, data,
      hyperparameters={'client_learning_rate': RATE, 'noise_multiplier': 0.0},
    )  # fmt: skip
    for _ in range(rounds_before):
      run.round(range(1, small.CLIENTS))
    before = run.server
    run.round(cohort)
    after = run.server
    # Back from what the server makes of the sum to the sum.
    expected = privacy.cohorts.expected_size
    model = (small.flat(after['model']) - small.flat(before['model'])) * expected
    control = small.flat(after['control']) - small.flat(before['control'])
    return model, control * small.CLIENTS * unit

  (model, control), (model_less, control_less) = released([0, 2, 3]), released([2, 3])
  halves = [np.linalg.norm(model - model_less), np.linalg.norm(control - control_less)]
  assert min(halves) > 0.2 * clip  # neither is nothing
  np.testing.assert_allclose(np.hypot(*halves), clip, rtol=1e-3)


@pytest.mark.slow
def test_a_client_whose_training_diverges_forgets_it(native):
  """A control variate that is no number would keep the client out of all later rounds."""
  data = small.examples()
  data['x'][0, 0], data['y'][0, 0] = 1e30, 1e30
  method = small.build('scaffold', _client_level(0.5), data, batch_size=4)
  run = small.Simulation(native, method, data, hyperparameters={'noise_multiplier': 0.0})
  run.round([0, 1])
  controls = small.flat(run.clients['control'])
  assert not controls[0].any() and np.isfinite(controls[1]).all() and controls[1].any()
  assert np.isfinite(run.weights).all() and run.weights.any()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['scaffold', 'fedavg'])
def test_the_statement_says_where_the_largest_clients_size_is_released(native, name):
  """The unit of the control variates follows from it: the others' records scale with it."""
  sent = []
  for rows in (8, 24):  # of a client who takes no part
    data = small.regression_data(sizes=[4, 4, rows], clients=3, rows=rows)
    for part in ('x', 'y'):
      data[part][:2] = 0.5
      data[part][:2, 4:] = 0.0
    cohorts = sampling.PoissonCohorts(3, 0.5)
    privacy = dataclasses.replace(_client_level(0.05), cohorts=cohorts)
    run = small.Simulation(
      native, small.build(name, privacy, data, batch_size=4), data,
      hyperparameters={'client_learning_rate': RATE, 'noise_multiplier': 0.0},
    )  # fmt: skip
    run.round([0, 1])
    sent.append(small.flat(run.server['model']))
  depends = not np.array_equal(*sent)
  said = ' '.join(processes.METHODS[name].privacy_notes)
  assert depends == ('largest number of examples' in said)


@pytest.mark.slow
def test_the_noise_is_that_of_the_plan_on_both_halves():
  data, clip = small.examples(), 0.5
  privacy = _client_level(clip)
  method = small.build('scaffold', privacy, data, batch_size=4)
  models, controls = [], []
  with runtime.create('xla') as machine:
    for seed in range(60):
      run = small.Simulation(
        machine, method, data, seed=seed, hyperparameters={'client_learning_rate': RATE}
      )
      run.round([])
      server = run.server
      models.append(small.flat(server['model']) * privacy.cohorts.expected_size)
      controls.append(small.flat(server['control']) * small.CLIENTS * RATE * 2)
  for draws in (np.ravel(models), np.ravel(controls)):
    assert abs(draws.std() / clip - 1.0) < 4 / np.sqrt(2 * len(draws))
  assert abs(np.corrcoef(np.ravel(models), np.ravel(controls))[0, 1]) < 4 / np.sqrt(180)


def test_wrong_use_is_refused():
  with pytest.raises(ValueError, match='--client_learning_rate_final'):
    ExperimentConfig(method='scaffold', client_learning_rate_final=0.0)
  with pytest.raises(ValueError, match='weighting'):
    ExperimentConfig(method='scaffold', weighting='examples')
