"""FedAvg: limits, golden numbers, and the private mean's noise."""

import numpy as np
import pytest
from scipy import stats

from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = {'client_learning_rate': 0.1}


def _run(data, plan, rounds=2, seed=0, hyperparameters=RATE, **options):
  spec = small.spec_of(data, plan, **options)
  run = small.start('fedavg', spec, data, seed=seed, hyperparameters=hyperparameters)
  run.metrics = run.run(rounds)
  return run


@pytest.mark.slow
def test_full_batches_are_gradient_descent_on_all_data():
  data = small.regression_data()
  run = _run(data, small.no_privacy(data), batch_size=8, rounds=3)
  reference, expected = numpy_loops.Reference(data), np.zeros(4)
  for _ in range(3):
    gradients = [reference.gradients(expected, k).mean(0) for k in range(3)]
    loss = np.mean((reference.x @ expected - reference.y) ** 2) / 2
    expected = expected - 0.1 * np.mean(gradients, 0)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), expected, rtol=1e-5, atol=1e-6
  )
  assert run.server['round'] == 3
  assert run.metrics['participants'] == 3
  assert run.metrics['train_loss'] == pytest.approx(loss, rel=1e-5)  # of an example


@pytest.mark.slow
@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_golden_numbers_of_minibatches(weighting):
  data = small.regression_data(sizes=[8, 5, 2])
  hyperparameters = {**RATE, 'server_learning_rate': 0.7}
  run = _run(
    data,
    small.no_privacy(data),
    seed=11,
    hyperparameters=hyperparameters,
    batch_size=3,
    local_epochs=2,
    weighting=weighting,
  )
  weights = [8, 5, 2] if weighting == 'examples' else [1, 1, 1]
  reference, expected = numpy_loops.Reference(data, seed=11), np.zeros(4)
  for t in range(2):
    updates = [
      reference.sgd(expected, k, t, batch_size=3, learning_rate=0.1, epochs=2) - expected
      for k in range(3)
    ]
    expected = expected + 0.7 * np.average(updates, axis=0, weights=weights)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), expected, rtol=1e-5, atol=1e-6
  )


@pytest.mark.slow
def test_without_noise_and_clip_the_private_mean_is_fedavg():
  data = small.regression_data()
  plain = _run(data, small.no_privacy(data))
  private = _run(data, small.client_level(data))
  small.assert_trees_equal(plain.server['model'], private.server['model'], rtol=1e-6)


def test_client_updates_are_clipped():
  data = small.regression_data()
  run = _run(data, small.client_level(data, norm=0.05), rounds=1, batch_size=8)
  reference = numpy_loops.Reference(data)
  updates = [-0.1 * reference.gradients(np.zeros(4), k).mean(0) for k in range(3)]
  clipped = [u * min(1.0, 0.05 / np.linalg.norm(u)) for u in updates]
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), np.mean(clipped, 0), rtol=1e-5
  )


@pytest.mark.slow
def test_noise_of_the_private_mean_has_the_claimed_scale():
  data = small.regression_data(features=3000, rows=2)
  data['x'][:], data['y'][:] = 0.0, 0.0
  run = _run(data, small.client_level(data, noise_multiplier=1.5, norm=0.2), rounds=1)
  claimed = 1.5 * 0.2 / 3
  noise = run.server['model']['weights']
  assert stats.kstest(noise / claimed, 'norm').pvalue > 1e-3
  assert stats.kstest(noise / (2 / 3 * claimed), 'norm').pvalue < 1e-6


@pytest.mark.slow
def test_example_level_golden_numbers():
  data = small.regression_data(sizes=[8, 5, 2])
  plan = small.example_level(data, noise_multiplier=0.6, clipping_norm=1.5, steps=[2, 1, 3])
  run = _run(data, plan, seed=4, hyperparameters={**RATE, 'clipping_norm': 1.5})
  reference, expected = numpy_loops.Reference(data, seed=4), np.zeros(4)
  for t in range(2):
    updates = [
      reference.dp_sgd(expected, k, t, plan, learning_rate=0.1) - expected for k in range(3)
    ]
    expected = expected + np.mean(updates, 0)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), expected, rtol=1e-5, atol=1e-6
  )


def test_counts_are_not_leaked_by_weights():
  data = small.regression_data()
  spec = small.spec_of(data, small.client_level(data, norm=1.0), weighting='examples')
  with pytest.raises(ValueError, match='weighting=examples'):
    small.start('fedavg', spec, data)


@pytest.mark.slow
def test_global_evaluation_sums_over_real_examples():
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(data, small.no_privacy(data), rounds=1)
  sums = run.evaluate('global')
  params = numpy_loops.parameter_vector(run.server['model'])
  reference = numpy_loops.Reference(data)
  errors = [
    np.sum((reference.x[k, :n] @ params - reference.y[k, :n]) ** 2)
    for k, n in enumerate(data['num_examples'])
  ]
  np.testing.assert_allclose(sums['mse'], errors, rtol=1e-4)
  np.testing.assert_array_equal(sums['num_examples'], [8, 5, 2])
