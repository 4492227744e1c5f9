"""A meter of private data: how often a run looks at an example, and what its plan accounts for.

The noise is off, every example is in every batch, and one example (or client) pulls at a weight
with exactly the clip. So the way that the weight went, over everything that was trained, counts how
often the example entered anything that leaves its silo; the plan's event says how often it may.
"""

import dp_accounting
import numpy as np
import pytest

import runtime
from privacy import correlated, events, plan, sampling, selection, tuning
from privacy.correlated.cohorts import SeparatedCohorts
from processes import local_training, registry
from tests.processes import small_federation as small

ROWS, ROUNDS, EPOCHS = 4, 4, 2
RATE, CLIP = 2.0**-6, 0.5
RUNS, SLOTS = 2, 3  # of private tuning


@pytest.fixture(scope='module')
def machine():
  with runtime.create('xla', devices='cpu') as created:
    yield created


def _gaussians(event) -> int:
  """How many Gaussian mechanisms, and private choices, an event holds."""
  if isinstance(event, dp_accounting.GaussianDpEvent | events.ExponentialMechanismDpEvent):
    return 1
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return event.count * _gaussians(event.event)
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return sum(map(_gaussians, event.events))
  raise AssertionError(f'no count of {event}')


def _of_one_run(event):
  """What a run costs of which others are made too, and the best is released; else the event."""
  if isinstance(event, events.DisjointDpEvent):
    training, score = event.events
    shared, best = training.events
    assert best.event == shared and _gaussians(score.event) == 1
    return shared
  return event


def _data(clients=1):
  """Of each client only the first example (or all of the first client) is not zero."""
  data = small.regression_data(clients, rows=ROWS, features=2)
  data['x'][:], data['y'][:] = 0.0, 0.0
  data['x'][0, 0, 0], data['y'][0, 0] = 1.0, 1e6
  return data


def _moved(state, start, name):
  """How far the first weight of a model, or of all cluster models, went."""
  return float(np.sum(state[name]['weights'][..., 0]) - np.sum(start[name]['weights'][..., 0]))


# What a silo's releases are made of, in the server's and in its own state.
SILOS = {
  'fedavg': (('model',), ()),
  'fedprox': (('model',), ()),
  'scaffold': (('model',), ()),
  'pooled': (('model',), ()),
  'local': ((), ('model',)),
  'finetune': ((), ('model',)),  # which begins where the shared one ends
  'mr_mtl': ((), ('model',)),
  'mocha': ((), ('model',)),
  'ditto': (('model',), ('model',)),
  'ifca': (('clusters',), ()),
  'ifca_mr_mtl': ((), ()),  # measured round by round
  'tuned_mr_mtl': ((), ('model',)),
}
OF_SILOS = {name for name, method in registry.METHODS.items() if 'example' in method.privacy_units}
OF_CLIENTS = {name for name, method in registry.METHODS.items() if 'client' in method.privacy_units}


def _silo_meter(machine, name):
  """(accesses that were measured, accesses that are accounted for) of the first example."""
  data, chosen, tuned = _data(), None, None
  if name.startswith('ifca'):
    chosen = selection.PrivateSelection(epsilon=1e-6, rounds=2)
  if name == 'tuned_mr_mtl':
    tuned = tuning.PrivateTuning(
      mean=3.0, shape=0.0, score_noise_multiplier=1.0, held_out_score=True
    )
  silo = plan.ExampleLevelPrivacy(
    num_examples=data['num_examples'], batch_size=ROWS,
    steps_per_round=plan.local_steps_per_round(
      data['num_examples'], ROWS, EPOCHS, registry.METHODS[name].passes
    ),
    noise_multiplier=0.0, delta=1e-3, clipping_norm=CLIP, selection=chosen, tuning=tuned,
    cohorts=sampling.EveryClient(1),
  )  # fmt: skip
  values = {'client_learning_rate': RATE, 'personal_learning_rate': RATE, 'mtl_lambda': 0.0,
            'ditto_lambda': 0.0, 'fedprox_mu': 0.0}  # fmt: skip
  options = {'num_clusters': 50} if chosen else {}
  options |= {'tuning_lambdas': '0', 'tuning_slots': SLOTS} if tuned else {}
  method = small.build(name, silo, data, local_epochs=EPOCHS, rounds=ROUNDS, **options)
  known = {n: v for n, v in values.items() if n in method.hyperparameters}
  own = silo.silo_parameters() | ({'tuning_runs': np.array([RUNS])} if tuned else {})
  simulation = small.Simulation(machine, method, data, hyperparameters=known, attributes=own)
  start = before = simulation.server, simulation.clients
  clusters, way = [], 0.0
  for t in range(ROUNDS):
    simulation.round([0])
    end = simulation.server, simulation.clients
    clusters.append(int(np.ravel(end[1].get('cluster', [0]))[0]))
    if name == 'ifca_mr_mtl':  # from the cluster's model while there are choices
      shared = before[0]['clusters']['weights'][clusters[-1], ..., 0]
      origin = shared if t < chosen.rounds else before[1]['model']['weights'][..., 0]
      way += float(np.sum(end[1]['model']['weights'][..., 0]) - np.sum(origin))
    before = end
  way += sum(
    _moved(after, before, model)
    for after, before, models in zip(end, start, SILOS[name], strict=True)
    for model in models
  )
  step = RATE * CLIP / ROWS
  if tuned is not None:  # every run is one like the pivot, whose event is in that of the best
    runs = end[1]['runs']['weights'][0, :, ..., 0] - start[1]['runs']['weights'][0, :, ..., 0]
    np.testing.assert_allclose(
      np.ravel(runs) / step, way / step * (np.arange(SLOTS) < RUNS), atol=1e-3
    )
  measured, accounted = way / step, _gaussians(_of_one_run(silo.event(ROUNDS)[0]))
  if chosen is not None:  # a Gaussian stands for each choice; with no budget each is another one
    measured += 1 + np.count_nonzero(np.diff(clusters))
  return measured, accounted


@pytest.mark.exhaustive(but=['mr_mtl', 'tuned_mr_mtl'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['mr_mtl', *(pytest.param(n, marks=pytest.mark.slow) for n in SILOS if n != 'mr_mtl')]
)
def test_a_silo_looks_at_an_example_as_often_as_it_accounts_for(machine, name):
  measured, accounted = _silo_meter(machine, name)
  assert accounted >= ROUNDS * EPOCHS
  assert measured == pytest.approx(accounted, abs=1e-3)


@pytest.mark.slow
def test_a_step_that_nobody_accounts_for_is_measured(machine, monkeypatch):
  """The broken twin of a trainer takes one step more in each round."""
  honest = local_training.dp_sgd

  def one_more(*arguments, steps, **keywords):
    return honest(*arguments, steps=steps + 1, **keywords)

  monkeypatch.setattr(local_training, 'dp_sgd', one_more)
  measured, accounted = _silo_meter(machine, 'mr_mtl')
  assert measured == pytest.approx(accounted + ROUNDS, abs=1e-3)


def test_every_method_is_measured():
  assert set(SILOS) == OF_SILOS and set(CLIENTS) == OF_CLIENTS


# By how much the model moves with the mean of what the clients send.
CLIENTS = {'fedavg': 1.0, 'fedprox': 1.0, 'scaffold': 1.0, 'ditto': 1.0, 'feo2': 1.0, 'ppsgd': RATE}


def _client_meter(machine, name, cohorts, drawn=None):
  """(rounds in which the first client was found in what was sent, the plan)."""
  population = cohorts.population
  data = _data(clients=population)
  data['x'][0, :, 0], data['y'][0] = 1.0, 1e6
  more = {}
  if isinstance(cohorts, SeparatedCohorts):
    more['correlation'] = correlated.Independent(rounds=ROUNDS)
  private = plan.ClientLevelPrivacy(
    cohorts=cohorts, noise_multiplier=0.0, delta=1e-3, clipping=plan.FixedClipping(norm=CLIP),
    **more,
  )  # fmt: skip
  method = small.build(name, private, data, local_epochs=1 if name == 'ppsgd' else EPOCHS,
                       rounds=ROUNDS)  # fmt: skip
  attributes = {'is_private': np.ones(population)} if name == 'feo2' else None
  known = {'client_learning_rate': RATE} if name == 'ppsgd' else {}
  simulation = small.Simulation(machine, method, data, attributes=attributes, hyperparameters=known)
  before, way = simulation.server, 0.0
  for t in range(ROUNDS):
    simulation.round((drawn or cohorts).sample(0, t))
    after = simulation.server
    moved = _moved(after, before, 'model')
    if name == 'scaffold':  # the pair is clipped together
      unit = method.hyperparameters['client_learning_rate'] * EPOCHS
      second = _moved(after, before, 'control') * unit / (cohorts.expected_size / population)
      moved = np.hypot(moved, second)
    way += moved
    before = after
  return way / (CLIENTS[name] * CLIP / private.denominator), private


@pytest.mark.slow
@pytest.mark.exhaustive(but=['fedavg', 'feo2'])
@pytest.mark.parametrize(
  'name', ['fedavg', *(pytest.param(n, marks=pytest.mark.slow) for n in CLIENTS if n != 'fedavg')]
)
def test_a_client_enters_the_server_once_a_round(machine, name):
  # SCAFFOLD's other clients would send their control variates.
  cohorts = sampling.EveryClient(1 if name == 'scaffold' else 2)
  measured, private = _client_meter(machine, name, cohorts)
  assert measured == pytest.approx(_gaussians(private.event(ROUNDS)), abs=1e-3)


@pytest.mark.slow
def test_a_client_rests_between_its_rounds(machine):
  cohorts = SeparatedCohorts(2, 2)
  measured, private = _client_meter(machine, 'fedavg', cohorts)
  times = cohorts.participation(ROUNDS).most_participations
  assert measured == pytest.approx(times, abs=1e-3)
  # What the noise of the whole run is scaled by: z sens is the noise of one round.
  found = private.correlation.sensitivity(cohorts.participation(ROUNDS))
  assert found**2 == pytest.approx(times)


@pytest.mark.slow
def test_a_round_that_nobody_accounts_for_is_measured(machine):
  """The broken twin of a sampler asks everybody in every round."""
  cohorts = SeparatedCohorts(2, 2)
  measured, _ = _client_meter(machine, 'fedavg', cohorts, drawn=sampling.EveryClient(2))
  assert measured > cohorts.participation(ROUNDS).most_participations + 1
