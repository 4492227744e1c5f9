"""MR-MTL against algorithm A1 and equation 18 of the cross-silo paper."""

import itertools

import numpy as np
import pytest

import runtime
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = {'client_learning_rate': 0.1}


def _run(
  name, data, plan, rounds=3, hyperparameters=RATE, attributes=None, machine=None, **options
):
  spec = small.spec_of(data, plan, **options)
  run = small.start(
    name, spec, data, machine=machine, hyperparameters=hyperparameters, attributes=attributes
  )
  run.run(rounds)
  return run


def _plan(data, private, batches='poisson'):
  return (
    small.example_level(data, noise_multiplier=0.5, steps=[2, 1, 3], batches=batches)
    if private
    else small.no_privacy(data)
  )


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_lambda_zero_is_local_training(private):
  data = small.regression_data(sizes=[8, 5, 2])
  hyperparameters = {**RATE, 'mtl_lambda': 0.0}
  ours = _run('mr_mtl', data, _plan(data, private), hyperparameters=hyperparameters)
  local = _run('local', data, _plan(data, private))
  small.assert_trees_equal(ours.clients['model'], local.clients['model'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('batches', 'inside_clip', 'weighting'),
  [
    *itertools.product(['poisson'], [False, True], ['uniform', 'examples']),
    ('shuffled', False, 'uniform'),
  ],
)
def test_algorithm_a1_in_numpy(batches, inside_clip, weighting):
  data = small.regression_data(sizes=[8, 5, 2])
  plan, factors = _plan(data, private=True, batches=batches), np.array([1.0, 0.5, 2.0])
  run = _run(
    'mr_mtl',
    data,
    plan,
    hyperparameters={**RATE, 'mtl_lambda': 0.8, 'server_learning_rate': 0.7},
    attributes={'mtl_lambda_factor': factors},
    weighting=weighting,
    regularizer_inside_clip=inside_clip,
  )
  reference = numpy_loops.Reference(data)
  personal, mean = np.zeros([3, 4]), np.zeros(4)
  for t in range(3):
    new = np.stack(
      [
        reference.dp_sgd(
          personal[k],
          k,
          t,
          plan,
          learning_rate=0.1,
          penalty=lambda w, k=k, mean=mean: 0.8 * factors[k] * (w - mean),
          inside_clip=inside_clip,
        )
        for k in range(3)
      ]
    )
    weights = data['num_examples'] if weighting == 'examples' else None
    mean = mean + 0.7 * np.average(new - personal, axis=0, weights=weights)
    personal = new
  found = numpy_loops.parameter_vector(run.clients['model'])
  np.testing.assert_allclose(found, personal, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), mean, rtol=1e-4, atol=1e-6
  )


@pytest.mark.slow
def test_it_minimises_equation_18():
  """Full batches to convergence: the stationary point, solved as one linear system."""
  data = small.regression_data()
  strength = 0.7
  with runtime.create('xla', devices='cpu') as xla:
    run = _run(
      'mr_mtl',
      data,
      small.no_privacy(data),
      machine=xla,
      rounds=250,
      hyperparameters={'client_learning_rate': 0.3, 'mtl_lambda': strength},
      batch_size=8,
    )
    personal, mean = run.clients['model'], run.server['model']
  reference = numpy_loops.Reference(data)
  # grad F_k(w_k) + lambda (w_k - w_bar) = 0 for every k.
  blocks, right = np.zeros([3, 4, 3, 4]), np.zeros([3, 4])
  for k in range(3):
    blocks[k, :, k] += reference.x[k].T @ reference.x[k] / 8 + strength * np.eye(4)
    blocks[k] -= strength / 3 * np.eye(4)[:, np.newaxis]
    right[k] = reference.x[k].T @ reference.y[k] / 8
  expected = np.linalg.solve(blocks.reshape(12, 12), right.ravel()).reshape(3, 4)
  np.testing.assert_allclose(numpy_loops.parameter_vector(personal), expected, atol=2e-3)
  np.testing.assert_allclose(numpy_loops.parameter_vector(mean), expected.mean(0), atol=2e-3)


@pytest.mark.slow
def test_a_strong_pull_holds_the_models_together():
  data = small.regression_data()
  spread = []
  for strength in (0.0, 1.0, 5.0):
    run = _run(
      'mr_mtl',
      data,
      small.no_privacy(data),
      hyperparameters={**RATE, 'mtl_lambda': strength},
    )
    spread.append(numpy_loops.parameter_vector(run.clients['model']).std(0).sum())
  assert spread[0] > spread[1] > spread[2]
