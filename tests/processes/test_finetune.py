"""Finetuning: its end points are FedAvg and local training, exactly."""

import numpy as np
import pytest

from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

SIZES = [8, 5, 2]


def _run(name, rounds, private, start=None, **options):
  data = small.regression_data(sizes=SIZES)
  plan = (
    small.example_level(data, noise_multiplier=0.5, steps=[2, 1, 3])
    if private
    else small.no_privacy(data)
  )
  hyperparameters = {'client_learning_rate': 0.1}
  if start is not None:
    hyperparameters['finetune_start_round'] = start
  spec = small.spec_of(data, plan, **options)
  run = small.start(name, spec, data, hyperparameters=hyperparameters)
  run.run(rounds)
  return run


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_finetuning_after_all_rounds_is_fedavg(private):
  ours = _run('finetune', 3, private, start=3.0, weighting='examples')
  fedavg = _run('fedavg', 3, private, weighting='examples')
  small.assert_trees_equal(ours.server['model'], fedavg.server['model'])
  # Before finetuning a client's model is the global one.
  small.assert_trees_equal(ours.evaluate('personal'), fedavg.evaluate('global'))


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_finetuning_from_the_start_is_local_training(private):
  ours = _run('finetune', 3, private, start=0.0)
  local = _run('local', 3, private)
  small.assert_trees_equal(ours.clients['model'], local.clients['model'])
  small.assert_trees_equal(ours.evaluate(), local.evaluate())
  for leaf in ours.server['model'].values():
    np.testing.assert_array_equal(leaf, 0.0)


@pytest.mark.slow
def test_clients_continue_alone_from_the_last_global_model():
  run, fedavg = _run('finetune', 5, True, start=2.0), _run('fedavg', 2, True)
  small.assert_trees_equal(run.server['model'], fedavg.server['model'])
  reference = numpy_loops.Reference(run.data)
  plan = small.example_level(run.data, noise_multiplier=0.5, steps=[2, 1, 3])
  found = numpy_loops.parameter_vector(run.clients['model'])
  for k in range(3):
    expected = numpy_loops.parameter_vector(fedavg.server['model'])
    for t in (2, 3, 4):
      expected = reference.dp_sgd(expected, k, t, plan, learning_rate=0.1)
    np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_who_was_absent_starts_from_the_global_model():
  data = small.regression_data(sizes=SIZES)
  spec = small.spec_of(data, small.no_privacy(data))
  run = small.start('finetune', spec, data, hyperparameters={'finetune_start_round': 1.0})
  run.run(2, cohort=[0, 1])
  before = run.evaluate('personal')
  np.testing.assert_array_equal(before['mse'][2], run.evaluate('global')['mse'][2])
  run.run(1, cohort=[2])
  expected = numpy_loops.Reference(data).sgd(
    numpy_loops.parameter_vector(run.server['model']), 2, 2, batch_size=4, learning_rate=0.1
  )
  found = numpy_loops.parameter_vector(run.clients['model'])[2]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(('fraction', 'start'), [(0.25, 10), (0.5, 20), (0.75, 30), (1.0, 40)])
def test_the_switch_is_a_fraction_of_the_rounds(fraction, start):
  data = small.regression_data()
  spec = small.spec_of(
    data,
    small.no_privacy(data),
    rounds=40,
    hyperparameters={'finetune_fraction': fraction},
  )
  run = small.start('finetune', spec, data)
  assert run.server['hyperparameters']['finetune_start_round'] == start


def test_a_fraction_above_one_is_refused():
  data = small.regression_data()
  spec = small.spec_of(data, small.no_privacy(data), hyperparameters={'finetune_fraction': 1.5})
  with pytest.raises(ValueError, match='finetune_fraction=1'):
    small.start('finetune', spec, data)
