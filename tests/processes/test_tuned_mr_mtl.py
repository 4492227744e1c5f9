"""MR-MTL with private tuning (cross-silo paper, appendix F.3)."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from experiments.config.experiment import ExperimentConfig
from experiments.running import build
from privacy.tuning import PrivateTuning
from processes import tuned_mr_mtl
from runtime import random_streams
from runtime.noise_key import NoiseKey
from runtime.random_streams import Stream
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = {'client_learning_rate': 0.1}
LAMBDAS = (0.0, 0.5, 2.0)


def _run(
  data, *, runs, rounds=3, lambdas='0,0.5,2', noise=0.5, score_noise=1.0, hyperparameters=None, **o
):
  plan = dataclasses.replace(
    small.example_level(data, noise_multiplier=noise, steps=[2, 1, 3]),
    tuning=PrivateTuning(mean=2.0, shape=1.0, score_noise_multiplier=score_noise),
  )
  spec = small.spec_of(data, plan, tuning_lambdas=lambdas, tuning_slots=max(runs), **o)
  run = small.start(
    'tuned_mr_mtl',
    spec,
    data,
    hyperparameters={**RATE, **(hyperparameters or {})},
    attributes={'tuning_runs': np.asarray(runs)},
  )
  run.plan = plan
  run.run(rounds)
  return run


def _release(run):
  run.metrics = run.release()
  return run.clients['released']


@pytest.mark.slow
def test_the_pivot_is_mr_mtl():
  data = small.regression_data(sizes=[8, 5, 2])
  values = {**RATE, 'mtl_lambda': 0.6, 'server_learning_rate': 0.7}
  run = _run(data, runs=[2, 1, 3], hyperparameters=values)
  spec = small.spec_of(data, dataclasses.replace(run.plan, tuning=None))
  mr_mtl = small.start('mr_mtl', spec, data, hyperparameters=values)
  mr_mtl.run(3)
  small.assert_trees_equal(run.server['model'], mr_mtl.server['model'])
  small.assert_trees_equal(run.clients['model'], mr_mtl.clients['model'])
  small.assert_trees_equal(run.evaluate(), mr_mtl.evaluate())  # nothing is released yet


@pytest.mark.slow
def test_a_run_with_the_pivots_lambda_and_without_noise_is_the_pivot():
  data = small.regression_data(sizes=[4, 3, 2])  # batches of 4: every example is in them
  run = _run(data, runs=[2, 1, 2], lambdas='0.7', noise=0.0, hyperparameters={'mtl_lambda': 0.7})
  pivots = numpy_loops.parameter_vector(run.clients['model'])
  found = numpy_loops.parameter_vector(run.clients['runs'])
  np.testing.assert_allclose(found[:, 0], pivots, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found[[0, 2], 1], pivots[[0, 2]], rtol=1e-5, atol=1e-6)
  assert np.all(found[1, 1] == 0.0)  # a silo makes no more runs than it drew


@pytest.mark.exhaustive(but=['True'])
@pytest.mark.slow
@pytest.mark.parametrize('inside_clip', [False, True])
def test_runs_in_numpy(inside_clip):
  """Appendix F.3: each run of a silo is MR-MTL with a lambda, batches and noise of its own."""
  data, counts = small.regression_data(sizes=[8, 5, 2]), [3, 1, 2]
  rate = {'server_learning_rate': 0.7}
  run = _run(data, runs=counts, regularizer_inside_clip=inside_clip, hyperparameters=rate)
  reference = numpy_loops.Reference(data)

  def train(model, k, t, strength, mean, **options):
    return reference.dp_sgd(
      model, k, t, run.plan, learning_rate=0.1, inside_clip=inside_clip,
      penalty=lambda w: strength * (w - mean), **options,
    )  # fmt: skip

  def drawn(k, s):
    key = random_streams.key(NoiseKey.rehearsal(0).words_of(k), Stream.TUNING, k, s)
    return LAMBDAS[int(float(random_streams.uniform(key, [])) * len(LAMBDAS))]

  strength = float(run.server['hyperparameters']['mtl_lambda'])
  personal = Stream.PERSONAL_BATCH, Stream.PERSONAL_NOISE
  pivots, mean = np.zeros([3, 4]), np.zeros(4)
  models = {(k, s): np.zeros(4) for k in range(3) for s in range(counts[k])}
  for t in range(3):
    models = {
      (k, s): train(model, k, t, drawn(k, s), mean, streams=personal, indices=(s,))
      for (k, s), model in models.items()
    }
    new = np.stack([train(pivots[k], k, t, strength, mean) for k in range(3)])
    mean, pivots = mean + 0.7 * (new - pivots).mean(0), new
  found = numpy_loops.parameter_vector(run.clients['runs'])
  for (k, s), model in models.items():
    np.testing.assert_allclose(found[k, s], model, rtol=1e-4, atol=1e-6)
  assert len({drawn(k, s) for k, s in models}) > 1
  # The other place of the pull gives other numbers.
  other = _run(data, runs=counts, regularizer_inside_clip=not inside_clip, hyperparameters=rate)
  assert np.abs(numpy_loops.parameter_vector(other.clients['runs']) - found).max() > 1e-3


@pytest.mark.slow
def test_runs_have_noise_of_their_own():
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(data, runs=[2, 2, 2], lambdas='1')
  found = numpy_loops.parameter_vector(run.clients['runs'])
  pivots = numpy_loops.parameter_vector(run.clients['model'])
  assert np.all(np.abs(found[:, 0] - found[:, 1]).max(axis=1) > 1e-3)
  assert np.all(np.abs(found[:, 0] - pivots).max(axis=1) > 1e-3)


@pytest.mark.slow
def test_each_run_draws_its_lambda_from_the_list():
  """Without noise each run is that of one of the lambdas; all of them turn up."""
  data = small.regression_data(clients=3, sizes=[4, 3, 2])
  drawn = numpy_loops.parameter_vector(_run(data, runs=[9, 9, 9], noise=0.0).clients['runs'])
  counts = np.zeros(len(LAMBDAS))
  for index, value in enumerate(LAMBDAS):
    alone = _run(data, runs=[1, 1, 1], noise=0.0, lambdas=str(value))
    single = numpy_loops.parameter_vector(alone.clients['runs'])
    counts[index] = np.sum(np.abs(drawn - single).max(axis=2) < 1e-5)
  assert counts.sum() == drawn.shape[0] * drawn.shape[1]
  assert np.all(counts > 0)


@pytest.mark.slow
def test_the_best_of_its_own_runs_is_released():
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(data, runs=[3, 1, 2], score_noise=1e-9, hyperparameters={'tuning_score_clip': 1e6})
  reference = numpy_loops.Reference(data)
  models, chosen = numpy_loops.parameter_vector(run.clients['runs']), _release(run)
  sums = run.evaluate()
  for k, count in enumerate([3, 1, 2]):
    n = data['num_examples'][k]
    errors = (models[k, :count] @ reference.x[k, :n].T - reference.y[k, :n]) ** 2 / 2
    assert chosen[k] == np.argmin(errors.sum(axis=1))
    np.testing.assert_allclose(sums['loss'][k], errors.sum(axis=1).min(), rtol=1e-4)
  np.testing.assert_array_equal(_release(run), chosen)  # again: the same
  assert run.metrics['selection_agreement'] == 1.0


@pytest.mark.slow
def test_scores_have_the_noise_that_is_accounted_for():
  """Two runs whose clipped scores differ by d: P(the better) = Phi(d / (sqrt(2) z c))."""
  num_clients, clip, biases = 600, 0.3, np.array([0.0, 0.4])
  data = small.regression_data(clients=num_clients, sizes=np.full(num_clients, 4))
  data['y'][:] = data['y'][0]  # the same examples everywhere: only the noise differs
  losses = np.minimum((biases[:, np.newaxis] - data['y'][0, :4]) ** 2 / 2, clip)
  gap = float(np.abs(np.diff(losses.sum(axis=1)))[0])
  score_noise = gap / (np.sqrt(2) * clip)
  plan = dataclasses.replace(
    small.example_level(data),
    tuning=PrivateTuning(mean=2.0, shape=1.0, score_noise_multiplier=score_noise),
  )
  run = small.start(
    'tuned_mr_mtl',
    small.spec_of(data, plan, tuning_slots=2),
    data,
    hyperparameters={'tuning_score_clip': clip},
    attributes={'tuning_runs': np.full(num_clients, 2)},
  )
  states = run.clients
  states['runs']['bias'] = np.tile(biases.astype(np.float32), (num_clients, 1))
  run.clients = states
  better = np.mean(_release(run) == np.argmin(losses.sum(axis=1)))
  assert run.metrics['selection_agreement'] == pytest.approx(better)

  def deviations(claimed):
    expected = stats.norm.cdf(gap / (np.sqrt(2) * claimed * clip))
    return abs(better - expected) / np.sqrt(expected * (1 - expected) / num_clients)

  assert deviations(score_noise) < 3.5 < deviations(1.5 * score_noise)


def test_scores_are_clipped_at_the_scale_of_the_task_if_nothing_else_is_said():
  config = ExperimentConfig(
    method='tuned_mr_mtl', dataset='digits', privacy='example', noise_multiplier=1.0, delta=1e-3,
    validation_fraction=0.2, rounds=1,
  )  # fmt: skip
  for given, clip in ((None, np.log(10)), (0.5, 0.5)):
    config = dataclasses.replace(config, tuning_score_clip=given)
    method = build.build_process(config).method
    assert method.hyperparameters['tuning_score_clip'] == pytest.approx(clip)


def test_what_is_missing_is_refused():
  data = small.regression_data(sizes=[8, 5, 2])
  with pytest.raises(ValueError, match='--tuning_eta'):
    small.start('tuned_mr_mtl', small.spec_of(data, small.example_level(data)), data)
  with pytest.raises(ValueError, match='releases nothing'):
    plain = small.spec_of(data, small.example_level(data))
    run = small.start('mr_mtl', plain, data)
    run.release()
  for text in ('', 'a,b', '0.1,-1', 'inf'):
    with pytest.raises(ValueError, match='tuning_lambdas'):
      tuned_mr_mtl.parse_lambdas(text)
