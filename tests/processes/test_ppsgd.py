"""PPSGD: algorithms 1 to 3 in NumPy, its end points, its minibatches and its noise."""

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from experiments.config.experiment import ExperimentConfig
from experiments.running import build
from privacy import accounting
from privacy.events import Adjacency
from privacy.plan import AdaptiveClipping, ClientLevelPrivacy, FixedClipping, NoPrivacy
from privacy.sampling import EveryClient, FixedSizeCohorts, PoissonCohorts
from processes.ppsgd import process as ppsgd
from tests.processes import small_federation as small

DATA = small.examples()
COHORTS = ([0, 1, 3], [2, 4, 5], [0, 3, 4, 5], [], [1, 2])
RATE = 0.5
CLIP = 1.5


def _plan(cohorts=None):
  return ClientLevelPrivacy(
    cohorts=cohorts or PoissonCohorts(small.CLIENTS, RATE),
    noise_multiplier=0.0,
    delta=1e-3,
    clipping=FixedClipping(norm=CLIP),
  )


@functools.cache
def _method(weighting='average', iterate='last', model='linear_regression', layers='last'):
  options = {'minibatch_weighting': weighting, 'iterate': iterate, 'personal_layers': layers}
  return small.build('ppsgd', _plan(), DATA, model=model, **options)


def _run(native, method, cohorts=COHORTS, data=DATA, **kwargs):
  simulation = small.Simulation(native, method, data, **kwargs)
  for cohort in cohorts:
    simulation.round(cohort)
  return simulation


def _values(eta, alpha, **further):
  """Hyper-parameters for the paper's eta and alpha."""
  users = RATE * small.CLIENTS
  if math.isinf(alpha):
    return {'client_learning_rate': eta, 'personalization_alpha': alpha, **further}
  return {
    'client_learning_rate': max(eta / users, alpha * eta),
    'personalization_alpha': alpha * users,
    **further,
  }


def _paper(eta, alpha, weighting='average', data=DATA, cohorts=COHORTS):
  """Algorithms 2 (sum) and 3 (average) with whole-client minibatches: w, theta, z_bar."""
  clients = small.CLIENTS
  w, theta = np.zeros(small.FEATURES), np.zeros((clients, small.FEATURES))
  w_average, theta_average = np.zeros_like(w), np.zeros_like(theta)
  m = data['num_examples']
  divisor = RATE * (m.sum() if weighting == 'sum' else clients)
  for cohort in cohorts:
    w_average, theta_average = w_average + w / len(cohorts), theta_average + theta / len(cohorts)
    total = np.zeros_like(w)
    for i in cohort:
      g = small.mean_gradient(data, i, w + theta[i]) * (m[i] if weighting == 'sum' else 1)
      theta[i] -= eta / divisor * g
      total += g / max(1, np.linalg.norm(g) / CLIP)
    w = w - alpha * eta * total / divisor
  return w, theta, w_average, theta_average


@pytest.mark.slow
def test_equals_algorithm_1_in_numpy(native):
  """All users in every round, one fresh example each; averages of the iterates before a round."""
  eta, alpha, rounds, users = 0.5, 0.7, 6, small.CLIENTS
  method = small.build('ppsgd', _plan(EveryClient(users)), DATA, batch_size=1, iterate='average')
  simulation = small.Simulation(
    native,
    method,
    DATA,
    hyperparameters={
      'client_learning_rate': max(eta / users, alpha * eta),
      'personalization_alpha': alpha * users,
    },
  )
  w, theta = np.zeros(small.FEATURES), np.zeros((users, small.FEATURES))
  w_sum, theta_sum = np.zeros_like(w), np.zeros_like(theta)
  seen = set()
  for t in range(rounds):
    simulation.round(range(users))
    w_sum, theta_sum = w_sum + w, theta_sum + theta
    total = np.zeros_like(w)
    for i in range(users):
      row = _row_of_round(i, t)
      assert (i, row) not in seen  # fresh, as 6 rounds are one pass
      seen.add((i, row))
      x, y = DATA['x'][i, row], DATA['y'][i, row]
      g = x * (x @ (w + theta[i]) - y)
      theta[i] = theta[i] - eta / users * g
      total += g / max(1, np.linalg.norm(g) / CLIP)
    w = w - alpha * eta * total / users
  np.testing.assert_allclose(simulation.weights, w, atol=3e-6)
  np.testing.assert_allclose(small.flat(simulation.clients['offset']), theta, atol=3e-6)
  np.testing.assert_allclose(small.flat(simulation.server['average']), w_sum / rounds, atol=3e-6)
  inside = np.arange(small.ROWS) < DATA['num_examples'][:, None]
  averaged = (w_sum + theta_sum) / rounds
  for which, models in (('personal', averaged), ('last_iterate', w + theta)):
    errors = (np.einsum('knd,kd->kn', DATA['x'], models) - DATA['y']) ** 2 * inside
    np.testing.assert_allclose(simulation.evaluate(which)['mse'], errors.sum(1), rtol=1e-4)


def _row_of_round(client, round_):
  """Which example a minibatch of one holds."""
  data = {key: value[client] for key, value in DATA.items()}
  state = {'minibatches': tf.constant(round_), 'attributes': {'minibatch_size': 1}}
  rows, weights = ppsgd.minibatch({'seed': tf.constant(0), 'round': round_}, state, data, 1)
  assert weights.numpy().tolist() == [1.0]
  return int(rows[0])


@pytest.mark.slow
@pytest.mark.parametrize('alpha', [0.05, 2.0])
@pytest.mark.parametrize('weighting', ['average', 'sum'])
def test_equals_algorithms_2_and_3_in_numpy(native, weighting, alpha):
  eta = 0.3
  further = {}
  if weighting == 'sum':
    further['mean_minibatch_size'] = DATA['num_examples'].mean()
  simulation = _run(
    native,
    _method(weighting, 'average'),
    hyperparameters=_values(eta, alpha, **further),
    attributes={'minibatch_size': DATA['num_examples']},
  )
  w, theta, w_average, theta_average = _paper(eta, alpha, weighting)
  np.testing.assert_allclose(simulation.weights, w, atol=3e-6)
  np.testing.assert_allclose(small.flat(simulation.clients['offset']), theta, atol=3e-6)
  np.testing.assert_allclose(small.flat(simulation.server['average']), w_average, atol=3e-6)
  # The personal models are those of the averaged iterates, of clients in no late round too.
  inside = np.arange(small.ROWS) < DATA['num_examples'][:, None]
  for which, models in (('personal', w_average + theta_average), ('global', w_average + 0 * theta)):
    errors = (np.einsum('knd,kd->kn', DATA['x'], models) - DATA['y']) ** 2 * inside
    np.testing.assert_allclose(simulation.evaluate(which)['mse'], errors.sum(1), rtol=1e-4)


@pytest.mark.slow
def test_the_last_iterate_is_evaluated_by_default(native):
  simulation = _run(native, _method(), hyperparameters=_values(0.3, 0.4))
  w, theta, _, _ = _paper(0.3, 0.4)
  inside = np.arange(small.ROWS) < DATA['num_examples'][:, None]
  for which, models in (('personal', w + theta), ('global', np.tile(w, (small.CLIENTS, 1)))):
    errors = (np.einsum('knd,kd->kn', DATA['x'], models) - DATA['y']) ** 2 * inside
    np.testing.assert_allclose(simulation.evaluate(which)['mse'], errors.sum(1), rtol=1e-4)


def test_alpha_zero_shares_nothing(native):
  """w stays where it was, noise or not, and theta_i knows client i only."""
  values = _values(0.3, 0.0, noise_multiplier=2.0)
  changed = DATA.copy()
  changed['y'] = DATA['y'].copy()
  changed['y'][1:] *= 7.0
  a = _run(native, _method(), hyperparameters=values)
  b = _run(native, _method(), data=changed, hyperparameters=values)
  np.testing.assert_array_equal(a.weights, 0.0)
  offsets = small.flat(a.clients['offset'])
  np.testing.assert_array_equal(offsets[0], small.flat(b.clients['offset'])[0])
  np.testing.assert_allclose(offsets, _paper(0.3, 0.0)[1], atol=3e-6)


@pytest.mark.slow
def test_alpha_zero_moves_no_clip_by_data(native):
  """An adaptive clip is a release: it must not follow data for which epsilon 0 is claimed."""
  plan = dataclasses.replace(
    _plan(), noise_multiplier=0.5, clipping=AdaptiveClipping(quantile_noise_multiplier=1.0)
  )
  method = small.build('ppsgd', plan, DATA)
  changed = DATA.copy()
  changed['y'] = DATA['y'] * 0.0  # no gradient, so that nothing is clipped

  def clips(data, alpha):
    simulation = small.Simulation(
      native, method, data, hyperparameters={'personalization_alpha': alpha}
    )
    return [simulation.round(cohort)['clipping_norm'] for cohort in COHORTS]

  assert clips(DATA, 0.0) == clips(changed, 0.0)
  assert clips(DATA, 1.0) != clips(changed, 1.0)


def test_alpha_infinity_is_one_global_model(native):
  simulation = _run(native, _method(), hyperparameters=_values(0.3, math.inf))
  np.testing.assert_array_equal(small.flat(simulation.clients['offset']), 0.0)
  w = np.zeros(small.FEATURES)
  for cohort in COHORTS:
    gradients = [small.mean_gradient(DATA, i, w) for i in cohort]
    total = sum((g / max(1, np.linalg.norm(g) / CLIP) for g in gradients), np.zeros_like(w))
    w = w - 0.3 * total / (RATE * small.CLIENTS)
  np.testing.assert_allclose(simulation.weights, w, atol=2e-6)


def test_without_privacy_the_mean_is_over_the_participants(native):
  method = small.build('ppsgd', NoPrivacy(cohorts=EveryClient(small.CLIENTS)), DATA)
  values = {'client_learning_rate': 0.2, 'personalization_alpha': 1.0}
  simulation = _run(native, method, cohorts=[[0, 1]], hyperparameters=values)
  gradients = [small.mean_gradient(DATA, i, np.zeros(small.FEATURES)) for i in (0, 1)]
  np.testing.assert_allclose(simulation.weights, -0.2 * np.mean(gradients, axis=0), rtol=1e-5)


@pytest.mark.slow
def test_representation_is_shared_and_the_last_layer_personal(native):
  """theta_i is in the last layer alone; with alpha = 0 the representation is frozen."""
  method = _method(model='one_hidden_layer')
  simulation = _run(native, method, hyperparameters={'personalization_alpha': 1.0})
  assert list(simulation.clients['offset']) == ['output_weights', 'output_bias']
  start = small.initial_server_state(method)['model']
  for name, value in simulation.server['model'].items():
    assert np.any(np.asarray(value) != start[name]), name
  frozen = _run(native, method, hyperparameters={'personalization_alpha': 0.0})
  for name, value in frozen.server['model'].items():
    np.testing.assert_array_equal(value, start[name])
  assert np.all(frozen.clients['offset']['output_bias'] != 0.0)


def test_all_layers_can_be_personal():
  method = _method(model='one_hidden_layer', layers='all')
  state = method.initial_client_states(small.initial_server_state(method), small.CLIENTS)
  assert list(state['offset']) == list(small.initial_server_state(method)['model'])


@pytest.mark.parametrize(('size', 'largest'), [(3, 3), (3, 5), (8, 8), (4, 20)])
def test_minibatches_are_passes_over_the_client(size, largest):
  rows, capacity = 8, 10
  data = {'x': tf.zeros([capacity, 2]), 'num_examples': rows, 'client_id': 4}
  server = {'seed': tf.constant(0), 'round': 0}
  passes = []
  for count in range(3 * (rows // size)):
    client = {'minibatches': tf.constant(count), 'attributes': {'minibatch_size': size}}
    chosen, weights = ppsgd.minibatch(server, client, data, largest)
    assert len(chosen) == min(largest, capacity)
    drawn = chosen.numpy()[weights.numpy() > 0]
    assert len(drawn) == size
    passes.append(drawn)
  passes = [np.concatenate(p) for p in np.array_split(np.array(passes), 3)]
  for drawn in passes:
    assert len(set(drawn)) == len(drawn) == rows // size * size
    assert drawn.max() < rows
  # A minibatch of all examples is the same in every order.
  assert size == rows or any(np.any(passes[0] != other) for other in passes[1:])


def test_minibatches_of_small_and_empty_clients():
  server = {'seed': tf.constant(0), 'round': 0}
  for rows in (0, 2):
    data = {'x': tf.zeros([10, 2]), 'num_examples': rows, 'client_id': 4}
    client = {'minibatches': tf.constant(7), 'attributes': {'minibatch_size': 5}}
    chosen, weights = ppsgd.minibatch(server, client, data, 5)
    assert sorted(chosen.numpy()[weights.numpy() > 0]) == list(range(rows))


@functools.cache
def _noise_method(weighting):
  data = small.examples(features=4000)
  data['x'] = np.zeros_like(data['x'])
  return small.build('ppsgd', _plan(), data, minibatch_weighting=weighting), data


@pytest.mark.parametrize(
  ('weighting', 'cohort'), [('average', [0, 2]), ('average', []), ('sum', [1])]
)
def test_noise_has_the_claimed_scale(native, weighting, cohort):
  """s_w z C / (q N), or / (q M) for sums, whoever takes part; and the test can fail."""
  method, data = _noise_method(weighting)
  values = {'client_learning_rate': 0.4, 'personalization_alpha': 0.5, 'noise_multiplier': 1.3}
  expected = 0.4 * 0.5 * 1.3 * CLIP / (RATE * small.CLIENTS)
  if weighting == 'sum':
    values['mean_minibatch_size'] = 7.0
    expected /= 7.0
  noise = _run(native, method, cohorts=[cohort], data=data, hyperparameters=values).weights
  assert stats.kstest(noise / expected, 'norm').pvalue > 1e-3
  assert stats.kstest(noise / (expected * 2 / 3), 'norm').pvalue < 1e-6


def test_one_client_moves_w_by_at_most_the_clip(native):
  """Also where its gradient overflows, which must not destroy its theta either."""
  values = {'client_learning_rate': 1.0, 'personalization_alpha': 1.0}
  for factor in (1.0, 1e30):
    data = DATA.copy()
    data['y'] = DATA['y'].copy()
    data['y'][0] *= factor
    with_client = _run(native, _method(), cohorts=[[0, 1]], data=data, hyperparameters=values)
    without = _run(native, _method(), cohorts=[[1]], data=data, hyperparameters=values)
    moved = np.linalg.norm(with_client.weights - without.weights) * RATE * small.CLIENTS
    assert moved <= CLIP * (1 + 1e-5)
    assert np.all(np.isfinite(small.flat(with_client.clients['offset'])))


def test_flags_reach_the_minibatches():
  """m_i in proportion to the examples, and the public M / N of algorithm 2."""
  config = ExperimentConfig(
    method='ppsgd', dataset='exam', batch_size=8, minibatch_fraction=0.1,
    minibatch_weighting='sum', mean_minibatch_size=5.5, privacy='client', delta=1e-3,
    noise_multiplier=1.0, clients_per_round=10,
  )  # fmt: skip
  experiment = build.build_process(config)
  server, clients = experiment.initial_states()
  examples = experiment.dataset.train.num_examples
  sizes = clients['attributes']['minibatch_size']
  np.testing.assert_array_equal(sizes, np.clip(np.rint(0.1 * examples), 1, 8))
  assert len(set(sizes)) > 3
  assert server['hyperparameters']['mean_minibatch_size'] == 5.5
  with pytest.raises(
    ValueError, match=r'--mean_minibatch_size=5.5 needs --minibatch_weighting=sum'
  ):
    dataclasses.replace(config, minibatch_weighting='average')


@pytest.mark.slow
@pytest.mark.parametrize('fixed', [False, True])
def test_statement_says_what_stays_on_the_client_and_how_users_are_drawn(fixed):
  config = ExperimentConfig(
    method='ppsgd', dataset='exam', privacy='client', delta=1e-3, noise_multiplier=4.0,
    clients_per_round=10, cohort_sampling='fixed' if fixed else 'poisson',
  )  # fmt: skip
  report = build.build_process(config).privacy_report(20)
  text = ' '.join(report['statement'].split())
  assert 'Personal models never leave their clients' in text
  assert 'joint differential privacy' in text and 'billboard' in text
  # The others tell who is in a cohort of a fixed size: see tests/privacy/test_sampling.py.
  assert ('accounted for as if all knew which' in text) == fixed
  assert ('replace' in report['adjacency']) == fixed
  local = build.build_process(dataclasses.replace(config, personalization_alpha=0.0))
  assert local.privacy_report(20)['epsilon'] == 0.0
  everything = build.build_process(dataclasses.replace(config, personalization_alpha=math.inf))
  assert everything.privacy_report(20)['epsilon'] == report['epsilon'] > 0


def test_cohorts_of_a_fixed_size_are_accounted_as_such():
  """Q users without replacement: replace-one, noise relative to the sensitivity 2 C."""
  fixed = ClientLevelPrivacy(
    cohorts=FixedSizeCohorts(1000, 10),
    noise_multiplier=1.0,
    delta=1e-4,
    clipping=FixedClipping(norm=CLIP),
  )
  poisson = ClientLevelPrivacy(
    cohorts=PoissonCohorts(1000, 0.01),
    noise_multiplier=1.0,
    delta=1e-4,
    clipping=FixedClipping(norm=CLIP),
  )
  assert fixed.denominator == poisson.denominator == 10
  assert fixed.epsilon(500) > 2 * poisson.epsilon(500)
  assert 'replace-one' in fixed.adjacency


@pytest.mark.slow
@pytest.mark.parametrize('method', ['ditto', 'fedavg', 'scaffold'])
def test_what_statements_of_other_methods_say_of_cohorts_of_a_fixed_size(method):
  """Reports that depend on no state are amplified, against those who do not know who takes part."""
  config = ExperimentConfig(
    method=method, dataset='exam', privacy='client', delta=1e-3, noise_multiplier=4.0,
    clients_per_round=10, cohort_sampling='fixed',
  )  # fmt: skip
  experiment = build.build_process(config)
  report = experiment.privacy_report(20)
  text = ' '.join(report['statement'].split())
  assert ('not joint' in text) == (method == 'ditto')
  assert ('accounted for as if all knew which' in text) == (method == 'scaffold')
  cohorts = FixedSizeCohorts(experiment.dataset.num_clients, 10, is_known=method == 'scaffold')
  event = dp_accounting.SelfComposedDpEvent(cohorts.event(4.0), 20)
  exact = accounting.loss(event, 1e-3, Adjacency.REPLACE_ONE).epsilon
  assert report['epsilon'] == pytest.approx(exact, rel=1e-3)


def test_cohorts_of_a_fixed_size_amplify_nothing_where_clients_send_what_their_state_says():
  with pytest.raises(ValueError, match='is_known=True'):
    small.build('ppsgd', _plan(FixedSizeCohorts(small.CLIENTS, 3)), DATA)
  small.build('ppsgd', _plan(FixedSizeCohorts(small.CLIENTS, 3, is_known=True)), DATA)


@pytest.mark.parametrize(
  ('spec', 'message'),
  [
    ({'local_epochs': 2}, '--local_epochs=2 cannot be used with --method=ppsgd'),
    ({'iterate': 'first'}, '--iterate=first must be one of last, average'),
    ({'minibatch_weighting': 'x'}, '--minibatch_weighting=x must be one of'),
    ({'personal_layers': 'x'}, '--personal_layers=x must be one of last, all'),
  ],
)
def test_wrong_use_is_refused(spec, message):
  with pytest.raises(ValueError, match=message):
    small.build('ppsgd', _plan(), DATA, **spec)
