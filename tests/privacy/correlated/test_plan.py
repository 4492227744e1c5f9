"""Correlated noise as a privacy plan, in every client-level method, through flags and a resume."""

import dataclasses

import dp_accounting
import numpy as np
import pytest

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.running import plans, runner
from privacy import calibration, correlated, plan, sampling
from privacy.correlated import query
from privacy.correlated.cohorts import SeparatedCohorts
from privacy.events import Adjacency
from processes.registry import METHODS
from tests.processes import small_federation as small

COHORTS = SeparatedCohorts(small.CLIENTS, 3)
ROUNDS = 7
WHOLE = COHORTS.participation(ROUNDS)
STRATEGIES = {
  'independent': correlated.Independent(rounds=ROUNDS),
  'tree': correlated.Tree(rounds=ROUNDS),
  'banded': correlated.fit_banded(WHOLE),
  'buffered': correlated.fit_buffered_toeplitz(WHOLE, 2),
}


def make_plan(name, noise_multiplier=1.0, **values):
  return plan.ClientLevelPrivacy(
    **{
      'cohorts': COHORTS, 'noise_multiplier': noise_multiplier, 'delta': 1e-3,
      'clipping': plan.FixedClipping(norm=0.1), 'correlation': STRATEGIES[name], **values,
    }
  )  # fmt: skip


@pytest.mark.parametrize('name', STRATEGIES)
def test_a_whole_run_is_one_gaussian_mechanism(name):
  made = make_plan(name, 2.0)
  assert made.event(ROUNDS) == dp_accounting.GaussianDpEvent(2.0)
  assert made.event(ROUNDS, Adjacency.REPLACE_ONE) == dp_accounting.GaussianDpEvent(1.0)
  assert made.event(0) == dp_accounting.NoOpDpEvent() and made.epsilon(0) == 0.0
  spent = [made.epsilon(t) for t in range(ROUNDS + 1)]
  assert spent == sorted(spent) and spent[1] < 0.9 * spent[-1]
  with pytest.raises(ValueError, match=f'rounds must be from 1 to the {ROUNDS} planned ones'):
    made.event(ROUNDS + 1)


def test_independent_noise_pays_for_every_participation():
  made = make_plan('independent', np.sqrt(3.0))
  # Rounds 1 to 3 hold one participation of each client, 4 to 6 two, and 7 three.
  for rounds, times in ((1, 1), (3, 1), (4, 2), (6, 2), (7, 3)):
    # Three participations at noise multiplier 3 each are one at sqrt(3).
    assert made.event(rounds).noise_multiplier == pytest.approx(3.0 / np.sqrt(times))


def test_calibration_meets_the_target():
  for name in STRATEGIES:
    made = calibration.calibrate_client_level(
      target_epsilon=3.0, delta=1e-3, rounds=ROUNDS, cohorts=COHORTS,
      clipping=plan.FixedClipping(norm=0.1), correlation=STRATEGIES[name],
    )  # fmt: skip
    assert 2.99 < made.epsilon(ROUNDS) <= 3.0
    assert made.noise_multiplier == pytest.approx(make_plan(name).noise_multiplier, rel=0.5)


def test_refusals():
  with pytest.raises(ValueError, match='go together'):
    make_plan('tree', cohorts=sampling.EveryClient(small.CLIENTS))
  with pytest.raises(ValueError, match='go together'):
    make_plan('tree', correlation=None)
  with pytest.raises(ValueError, match='needs a fixed clipping norm'):
    make_plan('tree', clipping=plan.AdaptiveClipping(quantile_noise_multiplier=2.0))


# --------------------------------------------------------- inside the processes


def _noise_of_a_run(machine, name, features, seed=0):
  """What the rounds add to the model where the clients' updates are zero: [n, parameters]."""
  data = small.examples(features=features)
  data = type(data)(data, x=np.zeros_like(data['x']))
  method = small.build('fedavg', make_plan(name), data)
  simulation = small.Simulation(machine, method, data, seed=seed)
  models = [simulation.weights]
  for t in range(ROUNDS):
    simulation.round(COHORTS.sample(seed, t))
    models.append(simulation.weights)
  return np.diff(np.array(models), axis=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', STRATEGIES)
def test_the_noise_of_a_process_is_the_strategy_s(name):
  strategy = STRATEGIES[name]
  with runtime.create('xla') as machine:
    noise = _noise_of_a_run(machine, name, 800)
  # z sens C / (q N), by the decoder.
  scale = strategy.sensitivity(WHOLE) * 0.1 / (small.CLIENTS / 3)
  expected = scale**2 * strategy.decoder() @ strategy.decoder().T
  found = noise @ noise.T / noise.shape[1]
  spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
  tolerance = 5 / np.sqrt(noise.shape[1])
  assert np.all(np.abs(found - expected) <= tolerance * spread)
  # Negative control: noise of one round by itself is told from it, but for independent noise.
  alone = np.diag(np.diag(expected))
  if name != 'independent':
    assert np.any(np.abs(found - alone) > tolerance * spread)


@pytest.mark.slow
def test_both_runtimes_draw_the_same_noise():
  with runtime.create('xla') as xla, runtime.create('native') as native:
    ours, theirs = (_noise_of_a_run(machine, 'banded', 5) for machine in (xla, native))
  np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow
def test_the_buffers_are_made_again_from_the_key():
  stream = make_plan('banded').noise_stream
  data = small.examples()
  for name in ('banded', 'buffered', 'tree'):
    stream = make_plan(name).noise_stream
    with runtime.create('xla') as machine:
      simulation = small.Simulation(machine, small.build('fedavg', make_plan(name), data), data)
      for t in range(5):
        simulation.round(COHORTS.sample(0, t))
      state = simulation.server['query']
    again = query.with_noise_buffers(
      type(state)(state, noise_buffers={k: 0 * v for k, v in state['noise_buffers'].items()}),
      stream,
    )
    for key, value in state['noise_buffers'].items():
      np.testing.assert_allclose(again['noise_buffers'][key], value, rtol=1e-4, atol=1e-5)
      assert np.abs(value).max() > 0.1


# ----------------------------------------------------------- from flags to results

FLAGS = dict(
  dataset='digits', privacy='client', delta=1e-3, target_epsilon=8.0, clients_per_round=20,
  cohort_sampling='separated', clipping_norm=0.5, rounds=6, noise_key='rehearsal',
)  # fmt: skip


@pytest.mark.exhaustive(but=['fedavg'])
@pytest.mark.slow
@pytest.mark.parametrize('method', [n for n, m in METHODS.items() if 'client' in m.privacy_units])
def test_every_client_level_method_takes_it(method):
  config = ExperimentConfig(method=method, noise_correlation='buffered', **{**FLAGS, 'rounds': 2})
  result = runner.run(config, show_progress=False)
  assert 'BLT' in result.privacy['mechanism']
  assert result.privacy['epsilon'] <= 8.0


def _fitted_elsewhere(participation, width):
  bands = correlated.fit_banded(participation, width).bands
  return correlated.Banded(bands=np.where(np.arange(width) == 0, bands, 0.5 * bands))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_that_is_resumed_is_the_same_run(tmp_path):
  config = ExperimentConfig(
    method='fedavg', checkpoint_every=1, output_dir=str(tmp_path / 'whole'), **FLAGS
  )
  whole = runner.run(config, show_progress=False)

  class Stop(Exception):
    pass

  broken = dataclasses.replace(config, output_dir=str(tmp_path / 'broken'))
  with pytest.MonkeyPatch.context() as patch:
    from experiments.running import population

    rounds = population.Population.round
    calls = []

    def stops(self, **keywords):
      calls.append(1)
      if len(calls) > 3:
        raise Stop
      return rounds(self, **keywords)

    patch.setattr(population.Population, 'round', stops)
    with pytest.raises(Stop):
      runner.run(broken, show_progress=False)
    patch.undo()
    # As on another machine, whose search ends elsewhere.
    patch.setattr(correlated, 'fit_banded', _fitted_elsewhere)
    again = runner.run(dataclasses.replace(broken, resume=True), show_progress=False)
  for name, value in whole.server_state['model'].items():
    np.testing.assert_allclose(again.server_state['model'][name], value, rtol=1e-5, atol=1e-6)
  for folder in (tmp_path / 'whole', tmp_path / 'broken'):
    for file in folder.rglob('*.npz'):
      with np.load(file) as arrays:
        assert not any('noise' in name and 'multiplier' not in name for name in arrays.files)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (dict(clients_per_round=None), 'needs --clients_per_round'),
    (dict(adaptive_clipping=True), 'cannot be used with --adaptive_clipping'),
    (dict(noise_bands=3, noise_correlation='tree'), '--noise_bands=3 needs'),
    (dict(noise_buffers=3), '--noise_buffers=3 needs --noise_correlation=buffered'),
    (
      dict(cohort_sampling='poisson', noise_correlation='tree'),
      'needs --cohort_sampling=separated',
    ),
  ],
)
def test_wrong_flags(values, message):
  with pytest.raises(ValueError, match=message):
    ExperimentConfig(method='fedavg', **{**FLAGS, **values})


def test_bands_are_those_of_the_default_correlation():
  config = ExperimentConfig(method='fedavg', noise_bands=2, **FLAGS)
  assert plans.correlation_of(config, SeparatedCohorts(100, 5)).width == 2
  config = dataclasses.replace(config, noise_bands=6)
  with pytest.raises(ValueError, match='--noise_bands=6 must be at most 5, the rounds from one of'):
    plans.correlation_of(config, SeparatedCohorts(100, 5))
