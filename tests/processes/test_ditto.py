"""Ditto: its end points, algorithm 1 in NumPy, its global solvers and its noise."""

import functools
import types

import numpy as np
import pytest
from scipy import stats

from privacy.plan import (
  ClientLevelPrivacy,
  ExampleLevelPrivacy,
  FixedClipping,
  NoPrivacy,
  local_steps_per_round,
)
from privacy.sampling import EveryClient
from processes import setup
from processes.ditto import process as ditto
from processes.feo2 import process as feo2
from runtime.random_streams import Stream
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

DATA = small.examples()
EVERYBODY = EveryClient(small.CLIENTS)
COHORTS = ([0, 1, 3], [2, 4, 5], [0, 3, 4, 5], [1, 2])


@functools.cache
def _method(name='ditto', unit='none', batch_size=8):
  plan = {
    'none': lambda: NoPrivacy(cohorts=EVERYBODY),
    'client': lambda: ClientLevelPrivacy(
      cohorts=EVERYBODY, noise_multiplier=0.7, delta=1e-3, clipping=FixedClipping(norm=0.5)
    ),
    'example': _example_level,
  }[unit]()
  epochs = 1 if unit == 'example' else 2
  return small.build(name, plan, DATA, batch_size=batch_size, local_epochs=epochs)


def _example_level(passes=2):
  return ExampleLevelPrivacy(
    num_examples=DATA['num_examples'],
    batch_size=4,
    steps_per_round=local_steps_per_round(DATA['num_examples'], 4, passes=passes),
    noise_multiplier=0.9,
    delta=1e-3,
    clipping_norm=1.0,
  )


def _run(native, method, cohorts=COHORTS, data=DATA, **kwargs):
  simulation = small.Simulation(native, method, data, **kwargs)
  for cohort in cohorts:
    simulation.round(cohort)
  return simulation


@pytest.mark.slow
def test_equals_ditto_in_numpy(native):
  eta, decay, eta_p, ditto_lambda = 0.2, 0.8, 0.1, 0.6
  values = {
    'client_learning_rate': eta,
    'client_learning_rate_decay': decay,
    'personal_learning_rate': eta_p,
    'ditto_lambda': ditto_lambda,
  }
  simulation = _run(native, _method(), hyperparameters=values)
  w, personal = np.zeros(small.FEATURES), {}
  for cohort in COHORTS:
    updates = []
    for k in cohort:
      local, own = w.copy(), personal.get(k, w).copy()
      for _ in range(2):
        local = local - eta * small.mean_gradient(DATA, k, local)
        own = own - eta_p * (small.mean_gradient(DATA, k, own) + ditto_lambda * (own - w))
      personal[k] = own
      updates.append(local - w)
    w = w + np.mean(updates, axis=0)
    eta *= decay
  np.testing.assert_allclose(simulation.weights, w, atol=2e-6)
  models = small.flat(simulation.clients['model'])
  np.testing.assert_allclose(models, [personal[k] for k in range(small.CLIENTS)], atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize('unit', ['none', 'client'])
def test_the_global_model_does_not_depend_on_the_personal_ones(native, unit):
  """It is that of FedAvg or DP-FedAvg, noise included."""
  ditto = _run(native, _method('ditto', unit, 4), hyperparameters={'ditto_lambda': 3.0})
  fedavg = _run(native, _method('fedavg', unit, 4))
  np.testing.assert_allclose(ditto.weights, fedavg.weights, rtol=1e-6, atol=1e-7)


def test_without_lambda_personal_models_are_local_ones(native):
  """They never meet the global model, so that nobody else's data can change them."""
  values = {'ditto_lambda': 0.0}
  everybody = [range(small.CLIENTS)] * 2
  alone = _run(native, _method(), everybody, hyperparameters=values)
  changed = DATA.copy()
  changed['y'] = DATA['y'].copy()
  changed['y'][1:] *= 5.0
  other = _run(native, _method(), everybody, data=changed, hyperparameters=values)
  models, others = small.flat(alone.clients['model']), small.flat(other.clients['model'])
  np.testing.assert_array_equal(models[0], others[0])
  assert np.all(np.abs(models[1] - others[1]) > 1e-3)
  # And with lambda they do meet it.
  values = {'ditto_lambda': 1.0}
  pulled = _run(native, _method(), everybody, data=changed, hyperparameters=values)
  assert np.any(small.flat(pulled.clients['model'])[0] != models[0])


def test_a_large_lambda_is_the_global_model(native):
  """With eta_p = 1 / lambda a step forgets the personal model: what is left is w."""
  values = {'ditto_lambda': 1e4, 'personal_learning_rate': 1e-4}
  simulation = small.Simulation(native, _method(), DATA, hyperparameters=values)
  simulation.round(range(small.CLIENTS))
  broadcast = simulation.weights
  simulation.round(range(small.CLIENTS))
  models = small.flat(simulation.clients['model'])
  np.testing.assert_allclose(models, np.tile(broadcast, (small.CLIENTS, 1)), atol=5e-3)
  assert np.linalg.norm(simulation.weights - broadcast) > 0.05


def test_the_personal_learning_rate_is_the_clients_by_default():
  plan = NoPrivacy(cohorts=EVERYBODY)
  method = small.build('ditto', plan, DATA, hyperparameters={'client_learning_rate': 0.03})
  assert method.hyperparameters['personal_learning_rate'] == 0.03


def test_who_would_opt_out_are_the_clients_who_do_with_feo2():
  """With the same seed and candidates; without a fraction there are no such groups."""
  candidates = np.arange(small.CLIENTS) % 2 == 0
  population = setup.Population(
    client_ids=[str(k) for k in range(small.CLIENTS)],
    num_examples=DATA['num_examples'],
    groups={'opt_out_candidates': candidates},
  )
  drawn = set()
  for seed in range(8):
    config = types.SimpleNamespace(seed=seed, opt_out_fraction=0.34, would_opt_out_fraction=0.34)
    groups = ditto.Setup(config, population).groups()
    of_feo2 = feo2.Setup(config, population).groups()
    np.testing.assert_array_equal(groups['would opt out'], of_feo2['opted out'])
    np.testing.assert_array_equal(groups['would stay'], of_feo2['private'])
    assert groups['would opt out'].sum() == 2 and not np.any(groups['would opt out'] & ~candidates)
    drawn.add(tuple(groups['would opt out']))
  assert len(drawn) > 1
  config.would_opt_out_fraction = 0.0
  assert not ditto.Setup(config, population).groups()


def test_clients_never_sampled_use_the_global_model(native):
  simulation = _run(native, _method(), cohorts=[[0, 3], [0, 4]])
  personal, shared = (simulation.evaluate(which)['loss'] for which in ('personal', 'global'))
  same = np.isclose(personal, shared, rtol=1e-6)
  np.testing.assert_array_equal(same, [False, True, True, False, False, True])


@pytest.mark.slow
def test_example_level_takes_the_planned_steps_for_both_models(native):
  """No data term (learning from zero gradients): what remains is the noise of the steps.

  Each model takes half of the plan's steps, so its noise has the variance of
  steps / 2 * (rate * z * C / B)^2 per coordinate; and the two models' are independent.
  """
  data = small.regression_data(clients=2, features=3000)
  data['x'] = np.zeros_like(data['x'])
  plan = ExampleLevelPrivacy(
    num_examples=data['num_examples'],
    batch_size=4,
    steps_per_round=local_steps_per_round(data['num_examples'], 4, passes=2),
    noise_multiplier=0.9,
    delta=1e-3,
    clipping_norm=1.0,
  )
  assert plan.steps_per_round[0] == 4
  method = small.build('ditto', plan, data, batch_size=4)
  values = {'client_learning_rate': 0.1, 'personal_learning_rate': 0.2, 'ditto_lambda': 0.0}
  simulation = small.Simulation(native, method, data, hyperparameters=values)
  simulation.round([0])
  shared, personal = simulation.weights, small.flat(simulation.clients['model'])[0]
  scale = np.sqrt(2) * 0.9 / 4
  for noise, rate in ((shared, 0.1), (personal, 0.2)):
    assert stats.kstest(noise / (rate * scale), 'norm').pvalue > 1e-3
    assert stats.kstest(noise / (rate * scale * np.sqrt(2)), 'norm').pvalue < 1e-6
  assert abs(np.corrcoef(shared, personal)[0, 1]) < 0.08


@pytest.mark.slow
@pytest.mark.parametrize('inside_clip', [False, True])
def test_example_level_in_numpy(inside_clip):
  """Both models of a silo by DP-SGD, with batches and noise of their own, and a pull."""
  data = small.regression_data(sizes=[8, 5, 2])
  plan = small.example_level(data, noise_multiplier=0.5, steps=[4, 2, 6])
  rate, own_rate, strength = 0.1, 0.2, 0.8
  values = {
    'client_learning_rate': rate, 'personal_learning_rate': own_rate, 'ditto_lambda': strength
  }  # fmt: skip
  spec = small.spec_of(data, plan, regularizer_inside_clip=inside_clip)
  run = small.start('ditto', spec, data, hyperparameters=values)
  run.run(3)
  reference = numpy_loops.Reference(data)
  mean, own = np.zeros(4), np.zeros([3, 4])
  for t in range(3):
    half = dict(share_of_steps=0.5)
    sent = [reference.dp_sgd(mean, k, t, plan, learning_rate=rate, **half) for k in range(3)]
    own = np.stack(
      [
        reference.dp_sgd(
          mean if t == 0 else own[k], k, t, plan, learning_rate=own_rate,
          penalty=lambda v, mean=mean: strength * (v - mean), inside_clip=inside_clip,
          streams=(Stream.PERSONAL_BATCH, Stream.PERSONAL_NOISE), **half,
        )
        for k in range(3)
      ]
    )  # fmt: skip
    mean = np.mean(sent, axis=0)
  found = numpy_loops.parameter_vector(run.clients['model'])
  np.testing.assert_allclose(found, own, rtol=1e-4, atol=1e-6)
  shared = numpy_loops.parameter_vector(run.server['model'])
  np.testing.assert_allclose(shared, mean, rtol=1e-4, atol=1e-6)


def test_example_level_costs_twice_the_steps():
  """Epsilon of two models is that of one with twice the rounds."""
  both, one = _example_level(passes=2), _example_level(passes=1)
  assert both.epsilon(10) == pytest.approx(one.epsilon(20))
