"""FeO2: its end points, algorithm 1 in NumPy, its noise, and what private clients reveal."""

import dataclasses
import functools
import math
import types

import numpy as np
import pytest
from scipy import stats

import runtime
from experiments.config.experiment import ExperimentConfig
from privacy.nothing_shared import NothingShared
from privacy.plan import AdaptiveClipping, ClientLevelPrivacy, FixedClipping, NoPrivacy
from privacy.sampling import FixedSizeCohorts, PoissonCohorts
from processes import setup
from processes.feo2 import process as feo2
from tests.processes import small_federation as small

DATA = small.examples()
PRIVATE = np.array([1, 1, 1, 0, 0, 1], np.float32)
COHORTS = ([0, 1, 3], [2, 4, 5], [0, 3, 4, 5], [1, 2])
SAMPLING = PoissonCohorts(small.CLIENTS, 0.5)


# One method for many settings: everything continuous is a hyper-parameter.
FIXED = {'clipping_norm': 0.5, 'noise_multiplier': 0.0}
ADAPTIVE = {
  'clipping_norm': 0.3,
  'noise_multiplier': 0.8,
  'target_quantile': 0.5,
  'clipping_learning_rate': 0.2,
  'quantile_noise_multiplier': 1.0,
}


@functools.cache
def _method(adaptive=False, personalize=True, opted_out=2, batch_size=8):
  clipping = AdaptiveClipping(quantile_noise_multiplier=1.0) if adaptive else None
  return small.build(
    'feo2',
    _plan(clipping, 0.8 if adaptive else 0.0, opted_out),
    DATA,
    local_epochs=2,
    batch_size=batch_size,
    personalize=personalize,
  )


def _plan(clipping=None, noise=0.0, opted_out=2, cohorts=SAMPLING):
  return ClientLevelPrivacy(
    cohorts=cohorts,
    noise_multiplier=noise,
    delta=1e-3,
    clipping=clipping or FixedClipping(norm=0.5),
    num_opted_out=opted_out,
  )


def _run(native, method, cohorts=COHORTS, data=DATA, **kwargs):
  simulation = small.Simulation(native, method, data, **kwargs)
  for cohort in cohorts:
    simulation.round(cohort)
  return simulation


@pytest.mark.slow
@pytest.mark.parametrize(('adaptive', 'r'), [(False, 0.3), (True, 0.3), (True, 0.0)])
def test_equals_algorithm_1_in_numpy(native, adaptive, r):
  """No noise, whole-client batches, two epochs; every line of the algorithm.

  With r = 0 the server talks to the opted-out clients only (appendix C).
  """
  eta, decay, eta_p, lambda_p, lambda_np = 0.2, 0.8, 0.1, 0.7, 0.2
  method = _method(adaptive)
  hyperparameters = {
    'client_learning_rate': eta,
    'client_learning_rate_decay': decay,
    'personal_learning_rate': eta_p,
    'ratio': r,
    'ditto_lambda_private': lambda_p,
    'ditto_lambda_non_private': lambda_np,
    **FIXED,
  }
  if adaptive:
    hyperparameters.update(
      target_quantile=0.6, clipping_learning_rate=0.4, quantile_noise_multiplier=1e-6
    )
  simulation = small.Simulation(
    native, method, DATA, hyperparameters=hyperparameters, attributes={'is_private': PRIVATE}
  )

  theta, personal, norm = np.zeros(small.FEATURES), {}, 0.5
  expected_private, expected_clients = 0.5 * 4, 0.5 * (6 if r else 2)
  for everybody in COHORTS:
    cohort = [j for j in everybody if r or not PRIVATE[j]]
    metrics = simulation.round(everybody)
    assert metrics['clipping_norm'] == pytest.approx(norm, rel=1e-5)
    private_sum, other_sum = np.zeros_like(theta), np.zeros_like(theta)
    unclipped = 0.0
    for j in cohort:
      local, own = theta.copy(), personal.get(j, theta).copy()
      ditto_lambda = lambda_p if PRIVATE[j] else lambda_np
      for _ in range(2):
        gradient = small.mean_gradient(DATA, j, own) + ditto_lambda * (own - theta)
        local, own = local - eta * small.mean_gradient(DATA, j, local), own - eta_p * gradient
      personal[j] = own
      delta = local - theta
      unclipped += np.linalg.norm(delta) <= norm
      clipped = delta * norm / max(np.linalg.norm(delta), norm)
      if PRIVATE[j]:
        private_sum += clipped
      else:
        other_sum += clipped
    opted_out = sum(1 - PRIVATE[j] for j in cohort)
    if cohort:
      theta = theta + (other_sum + r * private_sum) / (opted_out + r * expected_private)
    if adaptive:
      # The counts are shifted by 1/2, so that a client's share is at most 1/2.
      fraction = (unclipped - 0.5 * len(cohort)) / expected_clients + 0.5
      norm *= math.exp(-0.4 * (np.clip(fraction, 0.0, 1.0) - 0.6))
    eta *= decay
  np.testing.assert_allclose(simulation.weights, theta, atol=2e-6)
  models = small.flat(simulation.clients['model'])
  for j, own in personal.items():
    np.testing.assert_allclose(models[j], own, atol=2e-6)
  np.testing.assert_array_equal(simulation.clients['started'], 1 if r else 1 - PRIVATE)


@pytest.mark.slow
def test_a_personal_model_learns_of_the_same_batches(native):
  """Algorithm 1: without a pull, and at the same rate, both models take the same steps."""
  values = {**FIXED, 'client_learning_rate': 0.1, 'personal_learning_rate': 0.1, 'ratio': 0.0}
  values |= {'ditto_lambda_private': 0.0, 'ditto_lambda_non_private': 0.0, 'clipping_norm': 1e6}
  simulation = small.Simulation(
    native, _method(batch_size=4), DATA, hyperparameters=values,
    attributes={'is_private': PRIVATE},
  )  # fmt: skip
  simulation.round([3])  # opted out, and alone: the global model is then its own
  assert np.linalg.norm(simulation.weights) > 0.1
  own = small.flat(simulation.clients['model'])[3]
  np.testing.assert_allclose(own, simulation.weights, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('adaptive', [False, True])
def test_nobody_opted_out_and_ratio_one_is_dp_fedavg(native, adaptive):
  """With the same noise, round by round."""
  feo2 = _method(adaptive, personalize=False, opted_out=0, batch_size=4)
  plan = _plan(
    AdaptiveClipping(quantile_noise_multiplier=1.0) if adaptive else None, 0.8, opted_out=0
  )
  dp_fedavg = small.build('fedavg', plan, DATA, local_epochs=2, batch_size=4)
  values = ADAPTIVE if adaptive else {**FIXED, 'noise_multiplier': 0.8}
  everybody = {'is_private': np.ones(small.CLIENTS)}
  a = _run(native, feo2, attributes=everybody, seed=5, hyperparameters=values)
  b = _run(native, dp_fedavg, seed=5, hyperparameters=values)
  assert np.linalg.norm(b.weights) > 0.1
  np.testing.assert_allclose(a.weights, b.weights, rtol=2e-6, atol=1e-6)


@pytest.mark.slow
def test_everybody_opted_out_and_no_clip_is_fedavg(native):
  a = _run(
    native,
    # The plan cannot have everybody opted out: it would protect nobody.
    dataclasses.replace(_method(personalize=False, opted_out=0, batch_size=4), most_opted_out=None),
    hyperparameters={**FIXED, 'clipping_norm': math.inf, 'expected_private_clients': 0.0},
    attributes={'is_private': np.zeros(small.CLIENTS)},
  )
  plan = NoPrivacy(cohorts=SAMPLING)
  fedavg = small.build('fedavg', plan, DATA, local_epochs=2, batch_size=4)
  np.testing.assert_allclose(a.weights, _run(native, fedavg).weights, rtol=2e-6, atol=1e-6)


@pytest.mark.slow
def test_ratio_zero_never_touches_private_clients(native):
  method = _method(adaptive=True)
  kwargs = dict(hyperparameters={**ADAPTIVE, 'ratio': 0.0}, attributes={'is_private': PRIVATE})
  a = _run(native, method, **kwargs)
  changed = DATA.copy()
  changed['y'] = np.where(PRIVATE[:, None] > 0, 100.0, DATA['y']).astype(np.float32)
  b = _run(native, method, data=changed, **kwargs)
  np.testing.assert_array_equal(a.weights, b.weights)
  np.testing.assert_array_equal(a.clients['started'], 1 - PRIVATE)
  # Its personal model is the global one, as in the paper's tables.
  for name in ('loss', 'mse'):
    personal, shared = a.evaluate('personal')[name], a.evaluate('global')[name]
    np.testing.assert_allclose(personal[PRIVATE > 0], shared[PRIVATE > 0], rtol=1e-6)
    assert np.all(personal[PRIVATE == 0] != shared[PRIVATE == 0])


@pytest.mark.slow
def test_rounds_with_an_empty_group(native):
  method = _method()
  private_only, others_only, nobody = [0, 1], [3, 4], []
  for ratio in (0.0, 0.5):
    values = {**FIXED, 'noise_multiplier': 0.8, 'ratio': ratio}
    simulation = small.Simulation(
      native, method, DATA, hyperparameters=values, attributes={'is_private': PRIVATE}
    )
    for cohort in (private_only, others_only, nobody):
      before = simulation.weights
      simulation.round(cohort)
      assert np.all(np.isfinite(simulation.weights))
      moved = np.any(simulation.weights != before)
      # Without r there is nothing to say, and nothing to hide, where nobody opted out.
      assert moved == (ratio > 0 or cohort == others_only)


@functools.cache
def _many_parameters():
  data = small.examples(features=4000)
  return small.build('feo2', _plan(), data, personalize=False), data


@pytest.mark.parametrize('cohort', [[0, 1, 3, 4], [0], [3], []])
def test_noise_has_the_claimed_scale(native, cohort):
  """r z S / (N_np + r q N_p), whoever takes part; and the test can fail."""
  ratio, clip, z = 0.5, 0.7, 1.3
  opted_out = sum(1 - PRIVATE[j] for j in cohort)
  expected = ratio * z * clip / (opted_out + ratio * 0.5 * 4)
  method, data = _many_parameters()
  simulation = small.Simulation(
    native,
    method,
    data,
    hyperparameters={
      'ratio': ratio,
      'client_learning_rate': 0.0,
      'noise_multiplier': z,
      'clipping_norm': clip,
    },
    attributes={'is_private': PRIVATE},
  )
  simulation.round(cohort)
  noise = simulation.weights
  assert stats.kstest(noise / expected, 'norm').pvalue > 1e-3
  assert stats.kstest(noise / (expected * 2 / 3), 'norm').pvalue < 1e-6
  assert np.std(noise) == pytest.approx(expected, rel=0.05)


def test_one_private_client_moves_the_sum_by_at_most_the_clip(native):
  """Also with an update that overflows."""
  clip, ratio = 0.4, 1.0
  method = _method()
  for factor in (1.0, 1e30, 1e38):
    data = DATA.copy()
    data['y'] = DATA['y'].copy()
    data['y'][0] *= factor
    hyperparameters = {'ratio': ratio, 'clipping_norm': clip}
    kwargs = dict(
      data=data, hyperparameters=hyperparameters, attributes={'is_private': PRIVATE}
    )  # fmt: skip
    with_client = _run(native, method, cohorts=[[0, 1, 3]], **kwargs).weights
    without = _run(native, method, cohorts=[[1, 3]], **kwargs).weights
    divisor = 1 + ratio * 0.5 * 4  # one opted-out client, q N_p = 2
    assert np.all(np.isfinite(with_client))
    assert np.linalg.norm(with_client - without) * divisor <= clip * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('initial_norm', [0.01, 20.0])
def test_clip_approaches_the_quantile_from_both_sides(native, initial_norm):
  simulation = small.Simulation(
    native,
    _method(adaptive=True, personalize=False, opted_out=2, batch_size=4),
    DATA,
    # The model stands still, so the norms are the same in every round.
    hyperparameters={
      **ADAPTIVE,
      'server_learning_rate': 0.0,
      'client_learning_rate': 0.01,
      'clipping_norm': initial_norm,
      'clipping_learning_rate': 1.0,
      'quantile_noise_multiplier': 1e-6,
      'noise_multiplier': 0.0,
    },
    attributes={'is_private': PRIVATE},
  )
  # A few small steps of SGD go about as many times the mean gradient's way.
  steps = 2 * np.ceil(DATA['num_examples'] / 4)
  norms = sorted(
    0.01 * steps[j] * np.linalg.norm(small.mean_gradient(DATA, j, np.zeros(small.FEATURES)))
    for j in range(small.CLIENTS)
  )
  clips = [simulation.round(range(small.CLIENTS))['clipping_norm'] for _ in range(14)]
  assert (clips[1] > clips[0]) == (initial_norm < 1)
  assert norms[1] < clips[-1] < norms[4]


def test_clients_never_sampled_use_the_global_model(native):
  simulation = _run(native, _method(), cohorts=[[0, 3], [0, 4]], attributes={'is_private': PRIVATE})
  personal, shared = (simulation.evaluate(which)['loss'] for which in ('personal', 'global'))
  same = np.isclose(personal, shared, rtol=1e-6)
  np.testing.assert_array_equal(same, [False, True, True, False, False, True])


@pytest.mark.slow
def test_an_expected_denominator_in_numpy(native):
  """The sum over the cohort divided by q (N_np + r N_p), whoever takes part."""
  eta, r, norm = 0.2, 0.3, 0.5
  method = small.build(
    'feo2', _plan(), DATA, local_epochs=1,
    personalize=False, opt_out_denominator='expected',
  )  # fmt: skip
  simulation = small.Simulation(
    native, method, DATA, attributes={'is_private': PRIVATE},
    hyperparameters={'client_learning_rate': eta, 'ratio': r, **FIXED},
  )  # fmt: skip
  theta = np.zeros(small.FEATURES)
  for cohort in ([0, 1, 3], [1, 2], [3]):  # the second has no opted-out client
    simulation.round(cohort)
    total = np.zeros_like(theta)
    for j in cohort:
      delta = -eta * small.mean_gradient(DATA, j, theta)
      total += (r if PRIVATE[j] else 1.0) * delta * norm / max(np.linalg.norm(delta), norm)
    theta = theta + total / (0.5 * (2 + r * 4))
  np.testing.assert_allclose(simulation.weights, theta, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize('denominator', ['counted', 'expected'])
def test_the_ratio_damps_the_noise_of_every_round_only_with_an_expected_denominator(denominator):
  """Updates that stand still: what is left is noise, whose deviation is known."""
  data = small.examples(features=400)
  plan = ClientLevelPrivacy(
    cohorts=SAMPLING, noise_multiplier=0.8, delta=1e-3, clipping=FixedClipping(norm=0.5),
    num_opted_out=2,
  )  # fmt: skip
  method = small.build(
    'feo2', plan, data,
    personalize=False, opt_out_denominator=denominator,
  )  # fmt: skip
  r, spread = 0.01, {}
  with runtime.create('xla', devices='cpu') as xla:
    for name, cohort in (('without', [0, 1, 2]), ('with', [0, 3])):
      simulation = small.Simulation(
        xla, method, data, attributes={'is_private': PRIVATE},
        hyperparameters={'client_learning_rate': 1e-9, 'ratio': r},
      )  # fmt: skip
      simulation.round(cohort)
      spread[name] = np.std(simulation.weights)
  full = 0.8 * 0.5 / 2  # z S / N_p, DP-FedAvg's
  if denominator == 'counted':
    assert spread['without'] == pytest.approx(full, rel=0.15)
    assert spread['with'] == pytest.approx(r * 0.8 * 0.5 / (1 + r * 2), rel=0.15)
  else:
    damped = r * 0.8 * 0.5 / (0.5 * (2 + r * 4))
    assert spread['without'] == pytest.approx(damped, rel=0.15)
    assert spread['with'] == pytest.approx(damped, rel=0.15)


def test_wrong_use_is_refused():
  with pytest.raises(ValueError, match='--opt_out_denominator=none must be one of counted'):
    small.build('feo2', _plan(), DATA, opt_out_denominator='none')
  with pytest.raises(ValueError, match='--cohort_sampling=fixed cannot be used'):
    small.build('feo2', _plan(cohorts=FixedSizeCohorts(small.CLIENTS, 3)), DATA)
  with pytest.raises(ValueError, match='--privacy=none'):
    small.build('feo2', NoPrivacy(cohorts=SAMPLING), DATA)


def test_the_rate_of_personal_models_needs_them():
  settings = dict(method='feo2', privacy='client', noise_multiplier=1.0, delta=1e-3)
  for own in ({'personal_learning_rate': 0.5}, {'ditto_lambda_private': 0.5}):
    (name,) = own
    ExperimentConfig(**settings, **own)
    with pytest.raises(ValueError, match=f'--{name}=0.5 needs --personalize'):
      ExperimentConfig(**settings, **own, personalize=False)
  config = ExperimentConfig(**settings, personalize=False)
  assert ExperimentConfig.from_json(config.to_json()) == config


def test_somebody_is_protected():
  population = setup.Population(client_ids=['a', 'b'], num_examples=np.ones(2, int), groups={})
  config = types.SimpleNamespace(seed=0, opt_out_fraction=1.0)
  with pytest.raises(ValueError, match='--opt_out_fraction=1: all 2 clients would opt out'):
    feo2.Setup(config, population).groups()


@pytest.mark.parametrize('name', ['noise_multiplier', 'quantile_noise_multiplier'])
def test_noise_is_the_plans(name):
  """Nobody gets less noise than the privacy statement says."""
  plan = _plan(AdaptiveClipping(quantile_noise_multiplier=1.0), 0.8)
  method = small.build('feo2', plan, DATA, hyperparameters={name: plan.hyperparameters[name]})
  assert small.initial_server_state(method)['hyperparameters'][name] > 0
  with pytest.raises(ValueError, match=f'--{name}=0.1 is not the'):
    method.initial_server_state(0, {name: 0.1})
  with pytest.raises(ValueError, match=f'--{name}=0.1 is not the'):
    small.build('feo2', plan, DATA, hyperparameters={name: 0.1})


def test_clients_are_private_by_default():
  method = _method()
  state = method.initial_client_states(small.initial_server_state(method), small.CLIENTS)
  np.testing.assert_array_equal(state['attributes']['is_private'], 1.0)


def test_nobody_opts_out_but_by_the_plan():
  method = _method(opted_out=2)
  server = small.initial_server_state(method)
  away = np.ones(small.CLIENTS)
  away[:2] = 0.0
  method.initial_client_states(server, small.CLIENTS, {'is_private': away})
  away[2] = 0.0
  with pytest.raises(ValueError, match=r'3 clients have no privacy .* 2 opted out'):
    method.initial_client_states(server, small.CLIENTS, {'is_private': away})


def test_a_plan_of_nothing_shared_holds_the_ratio_at_zero():
  """Epsilon 0 rests on it: the API refuses what the flags never give."""
  values = dict(
    cohorts=SAMPLING, noise_multiplier=0.5, delta=1e-3, clipping=FixedClipping(norm=0.5),
    num_opted_out=2,
  )  # fmt: skip
  plan = NothingShared(silent_setting='ratio', **values)
  method = small.build('feo2', plan, DATA, hyperparameters={'ratio': 0.0})
  assert small.initial_server_state(method)['hyperparameters']['ratio'] == 0.0
  with pytest.raises(ValueError, match=r'--ratio=1\.0 is not the 0\.0 that the privacy plan'):
    small.build('feo2', plan, DATA, hyperparameters={'ratio': 1.0})
  with pytest.raises(ValueError, match=r'--ratio=0\.1 is not the'):
    method.initial_server_state(0, {'ratio': 0.1})
  other = NothingShared(silent_setting='personalization_alpha', **values)
  with pytest.raises(ValueError, match='rests on --personalization_alpha'):
    small.build('feo2', other, DATA)
