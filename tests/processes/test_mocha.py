"""Mocha: limits, the relationship matrix, and its algorithm in NumPy."""

import dataclasses

import numpy as np
import pytest

from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small


def _run(data, plan, rounds=3, name='mocha', hyperparameters=None, **options):
  spec = small.spec_of(data, plan, **options)
  hyperparameters = {'client_learning_rate': 0.1, **(hyperparameters or {})}
  run = small.start(name, spec, data, hyperparameters=hyperparameters)
  run.run(rounds)
  return run


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_lambda_zero_is_local_training(private):
  data = small.regression_data(sizes=[8, 5, 2])
  plan = small.example_level(data, noise_multiplier=0.5) if private else small.no_privacy(data)
  ours = _run(data, plan, hyperparameters={'mtl_lambda': 0.0})
  local = _run(data, plan, name='local')
  small.assert_trees_equal(ours.clients['model'], local.clients['model'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('form', 'num_clients', 'inside_clip'),  # fewer and more clients than the four parameters
  [
    ('inverse', 3, False), ('relationship', 3, False), ('inverse', 7, False),
    ('relationship', 7, False), ('inverse', 3, True), ('relationship', 7, True),
  ],
)  # fmt: skip
def test_the_algorithm_in_numpy(form, num_clients, inside_clip):
  data = small.regression_data(num_clients, sizes=[8, 5, 2, 8, 8, 3, 8][:num_clients])
  plan = small.example_level(data, noise_multiplier=0.3, steps=2)
  strength, floor = 0.05, 0.2
  run = _run(
    data,
    plan,
    hyperparameters={'mtl_lambda': strength, 'mocha_eigenvalue_floor': floor},
    mocha_penalty=form,
    regularizer_inside_clip=inside_clip,
  )
  reference = numpy_loops.Reference(data)
  models, omega = np.zeros([num_clients, 4]), np.eye(num_clients) / num_clients
  for t in range(3):
    matrix = np.linalg.inv(omega) if form == 'inverse' else omega
    new = []
    for k in range(num_clients):

      def penalty(w, k=k, models=models, matrix=matrix):
        at = models.copy()
        at[k] = w
        return strength * (matrix @ at)[k]  # the gradient of tr(W^T M W) / 2

      new.append(
        reference.dp_sgd(
          models[k], k, t, plan, learning_rate=0.1, penalty=penalty, inside_clip=inside_clip
        )
      )
    models = np.stack(new)
    values, vectors = np.linalg.eigh(models @ models.T)
    values = np.sqrt(np.maximum(values, 0.0))
    values = np.maximum(values, floor * values.mean())
    omega = vectors @ np.diag(values / values.sum()) @ vectors.T
  found = numpy_loops.parameter_vector(run.clients['model'])
  np.testing.assert_allclose(found, models, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(run.server['relationship'], omega, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_relationship_minimises_the_penalty():
  """Zhang and Yeung: no other matrix of trace one has a smaller tr(W^T Omega^-1 W)."""
  data = small.regression_data(clients=3, features=5)
  run = _run(data, small.no_privacy(data), hyperparameters={'mocha_eigenvalue_floor': 1e-4})
  models = numpy_loops.parameter_vector(run.clients['model'])
  omega = run.server['relationship'].astype(np.float64)
  assert np.trace(omega) == pytest.approx(1.0, abs=1e-5)
  np.testing.assert_allclose(omega, omega.T, atol=1e-6)

  def penalty(matrix):
    return np.trace(models.T @ np.linalg.solve(matrix, models))

  rng = np.random.default_rng(0)
  for _ in range(50):
    change = rng.normal(size=(3, 3)) * 0.02
    other = omega + change + change.T
    other /= np.trace(other)
    if np.linalg.eigvalsh(other).min() > 0:
      assert penalty(other) >= penalty(omega) * (1 - 1e-4)


def test_relationships_have_the_sign_of_the_truth():
  data = small.regression_data(clients=4, rows=20)
  coefficients = np.array([1.0, -2.0, 0.5])
  signs = np.array([1.0, 1.0, -1.0, -1.0])
  data['y'] = (signs[:, None] * (data['x'] @ coefficients)).astype(np.float32)
  run = _run(data, small.no_privacy(data), rounds=5)
  off_diagonal = ~np.eye(4, dtype=bool)
  np.testing.assert_array_equal(
    np.sign(run.server['relationship'])[off_diagonal], np.outer(signs, signs)[off_diagonal]
  )


@pytest.mark.slow
def test_many_clients_with_few_parameters_stay_stable():
  """W W^T is singular there; the floor bounds the penalty's curvature."""
  data = small.regression_data(clients=12, rows=6)
  run = _run(data, small.no_privacy(data), rounds=30, hyperparameters={'mtl_lambda': 0.01})
  models = numpy_loops.parameter_vector(run.clients['model'])
  assert np.all(np.isfinite(models)) and np.abs(models).max() < 10
  curvature = np.linalg.eigvalsh(run.server['penalty']).max()
  assert curvature <= 12 / 0.1 * 2


def test_an_absent_clients_row_stays():
  data = small.regression_data()
  spec = small.spec_of(data, small.no_privacy(data))
  run = small.start('mocha', spec, data)
  run.run(1)
  before = run.server['models'].copy()
  run.run(1, cohort=[0, 2])
  np.testing.assert_array_equal(run.server['models'][1], before[1])
  assert np.any(run.server['models'][0] != before[0])


def test_models_that_are_not_convex_are_refused():
  data = small.regression_data()
  spec = small.spec_of(data, small.no_privacy(data))
  spec = dataclasses.replace(
    spec, model=dataclasses.replace(spec.model, name='cnn3x3', convex=False)
  )
  with pytest.raises(ValueError, match='--model=cnn3x3 is not convex'):
    small.start('mocha', spec, data)
