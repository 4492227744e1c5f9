"""FeO2's linear regression: against point estimation, Gaussian conditioning, and the process."""

import dataclasses

import numpy as np
import pytest

import processes
import runtime
import tff_models
from analysis import federated_linear_regression as regression
from analysis.federated_linear_regression import LinearRegression
from analysis.federated_point_estimation import PointEstimation
from privacy.plan import ClientLevelPrivacy, FixedClipping
from privacy.sampling import EveryClient
from processes.method import BuildSpec
from tests.processes import small_federation as small

POINT = PointEstimation(
  num_clients=7, num_private=4, sampling_variance=1.0, client_variance=0.6, privacy_variance=0.5
)  # fmt: skip


def _problem(kind='gaussian', dimension=3, rows=8):
  rng = np.random.default_rng(dimension)
  if kind == 'gaussian':
    features = rng.normal(size=(POINT.num_clients, rows, dimension))
  else:
    features = regression.orthogonal_features(
      rng, num_clients=POINT.num_clients, rows=rows, dimension=dimension, scale=float(rows)
    )
  return regression.like_point_estimation(POINT, features)


@pytest.mark.parametrize('dimension', [1, 2, 5])
def test_with_orthogonal_features_every_coordinate_is_point_estimation(dimension):
  """Lemmas 5 and 6, equations 17, 23 and 36."""
  problem = _problem('orthogonal', dimension)
  identity = np.eye(dimension)
  variances = np.where(problem.is_private, POINT.private_update_variance, POINT.estimate_variance)
  np.testing.assert_allclose(
    problem.update_covariances, variances[:, None, None] * identity, atol=1e-12
  )
  assert problem.best_ratio == pytest.approx(POINT.optimal_ratio)
  for ratio in (0.2, 1.0):
    server = problem.server_covariance(ratio)
    np.testing.assert_allclose(server, POINT.server_variance(ratio) * identity, atol=1e-12)
  weights, covariance = problem.bayes_weights()
  np.testing.assert_allclose(covariance, POINT.optimal_server_variance * identity, atol=1e-12)
  np.testing.assert_allclose(
    weights, problem.ratio_weights(POINT.optimal_ratio)[:, None, None] * identity, atol=1e-12
  )
  for client, private in ((0, True), (POINT.num_clients - 1, False)):
    _, posterior = problem.posterior(client)
    np.testing.assert_allclose(posterior, POINT.bayes_risk(private=private) * identity, atol=1e-12)
    for own_noise in (False, True):
      values = dict(ratio=0.4, own_noise=own_noise)
      risk = problem.personal_risk(client, 1.7, **values)
      assert risk == pytest.approx(POINT.personal_risk(1.7, private=private, **values))


def _joint(problem, client):
  """Covariances of (phi_j; observations) for a nearly flat prior on phi, by brute force."""
  n, d, flat = problem.num_clients, problem.dimension, 1e6
  identity = np.eye(d)
  shared = flat * identity
  observed = np.kron(np.ones((n, n)), shared)
  for i in range(n):
    block = slice(i * d, (i + 1) * d)
    noise = problem.private_noise[i] if i != client else 0.0
    observed[block, block] += problem.estimate_covariances[i]
    observed[block, block] += (problem.client_variance + noise) * identity
  cross = np.kron(np.ones((1, n)), shared)
  cross[:, client * d : (client + 1) * d] += problem.client_variance * identity
  return shared + problem.client_variance * identity, cross, observed


@pytest.mark.parametrize('client', [0, 6])
def test_the_posterior_is_that_of_the_joint_gaussian(client):
  """Lemma 4 and equations 29 to 37 in full, for features of any kind."""
  problem = _problem()
  prior, cross, observed = _joint(problem, client)
  gain = np.linalg.solve(observed, cross.T).T
  weights, covariance = problem.posterior(client)
  np.testing.assert_allclose(np.concatenate(list(weights), axis=1), gain, atol=1e-5)
  np.testing.assert_allclose(covariance, prior - gain @ cross.T, atol=1e-4)
  # Equation 37's weights sum to the identity: the estimate is unbiased.
  np.testing.assert_allclose(weights.sum(axis=0), np.eye(problem.dimension), atol=1e-12)


def test_the_best_ratio_is_best_but_not_bayes_for_other_features():
  problem = _problem()
  best = problem.best_ratio
  traces = {r: np.trace(problem.server_covariance(r)) for r in (best, 0.97 * best, 1.03 * best, 1)}
  assert min(traces, key=lambda r: traces[r]) == best
  _, bayes = problem.bayes_weights()
  assert np.trace(bayes) < 0.995 * traces[best]
  assert dataclasses.replace(problem, num_private=0).best_ratio == 1.0


def test_opting_out_keeps_the_noise_of_the_sum_or_of_the_mean():
  problem = _problem()
  after = problem.opted_out(1)
  assert (after.num_private, after.num_clients) == (3, 7)
  np.testing.assert_array_equal(after.features[-1], problem.features[1])
  assert 9 * after.privacy_variance == pytest.approx(16 * problem.privacy_variance)
  assert problem.opted_out(1, noise_kept='mean').privacy_variance == problem.privacy_variance


def _simulated(problem, *, ratio, lambdas, repetitions, curvatures=None, own_noise=True):
  """Mean squared errors of theta, and of Ditto's estimates [N], in NumPy."""
  rng = np.random.default_rng(1)
  server, personal = [], []
  weights = problem.ratio_weights(ratio)
  for _ in range(repetitions):
    points, responses, noises = problem.draw(rng)
    own = problem.estimates(responses)
    theta = weights @ (own + noises)
    server.append(np.outer(theta, theta))
    errors = []
    for j in range(problem.num_clients):
      seen = theta if own_noise else theta - weights[j] * noises[j]
      h = np.eye(problem.dimension) if curvatures is None else curvatures[j]
      left = h + lambdas[j] * np.eye(problem.dimension)
      errors.append(np.linalg.solve(left, h @ own[j] + lambdas[j] * seen) - points[j])
    personal.append(np.mean(np.square(errors), axis=1))
  return np.mean(server, axis=0), np.mean(personal, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize('own_noise', [False, True])
def test_simulations_have_the_covariances(own_noise):
  problem = _problem()
  lambdas = np.linspace(0.2, 3.0, problem.num_clients)
  curvatures = np.einsum('nmi,nmj->nij', problem.features, problem.features) / 8
  server, personal = _simulated(
    problem, ratio=0.3, lambdas=lambdas, repetitions=4000, curvatures=curvatures,
    own_noise=own_noise,
  )  # fmt: skip
  np.testing.assert_allclose(server, problem.server_covariance(0.3), atol=0.04)

  def expected(**changes):
    values = {'ratio': 0.3, 'own_noise': own_noise, **changes}
    return np.array(
      [
        problem.personal_risk(j, x, curvature=values.pop('curvatures', curvatures)[j], **values)
        for j, x in enumerate(lambdas)
      ]
    )

  np.testing.assert_allclose(personal, expected(), rtol=0.05)
  # Twins: no curvature of its own, another ratio.
  assert np.max(np.abs(personal / expected(ratio=1.0) - 1)) > 0.06
  flat = np.array(
    [problem.personal_risk(j, x, ratio=0.3, own_noise=own_noise) for j, x in enumerate(lambdas)]
  )
  assert np.max(np.abs(personal / flat - 1)) > 0.1


# ------------------------------------------------------------ through the process

CLIP, DRAWS = 1e4, 4000


@pytest.fixture(scope='module')
def xla():
  with runtime.create('xla', devices='cpu') as created:
    yield created


def _through_the_process(xla, problem, *, ratio, ditto_lambda, step):
  """theta [d, DRAWS] and the errors of personal models [N, d, DRAWS] of the FeO2 process.

  Every output of the model is a draw: its own points, labels and noise on the same features.
  A client takes full-batch steps until it is at its least-squares estimate; its loss is the
  mean of the halved squares.
  """
  n, rows, d = problem.features.shape
  rng = np.random.default_rng(2)
  points = np.sqrt(problem.client_variance) * rng.normal(size=(n, d, DRAWS))
  labels = np.sqrt(problem.label_variance) * rng.normal(size=(n, rows, DRAWS))
  responses = np.einsum('nmi,nir->nmr', problem.features, points) + labels
  plan = ClientLevelPrivacy(
    cohorts=EveryClient(n),
    # z S / N_p = gamma
    noise_multiplier=float(problem.num_private * np.sqrt(problem.privacy_variance) / CLIP),
    delta=1e-3,
    clipping=FixedClipping(norm=CLIP),
    num_opted_out=problem.num_non_private,
  )
  data = dict(
    x=problem.features.astype(np.float32),
    y=(responses + 0.1).astype(np.float32),  # the model takes 0.1 from its labels
    num_examples=np.full(n, rows, np.int32),
    client_id=np.arange(n, dtype=np.int32),
  )
  model = tff_models.build_model(
    'one_versus_all', example_shape=(d,), num_outputs=DRAWS, task_kind='multilabel'
  )
  spec = BuildSpec(
    model=model, examples=small.examples_spec(data), plan=plan, batch_size=rows, local_epochs=60
  )
  method = processes.build('feo2', spec)
  hyperparameters = {
    'ratio': ratio,
    'client_learning_rate': step,
    'personal_learning_rate': step / (1 + ditto_lambda * step),
    'ditto_lambda_private': ditto_lambda,
    'ditto_lambda_non_private': ditto_lambda,
  }
  simulation = small.Simulation(
    xla, method, data, hyperparameters=hyperparameters,
    attributes={'is_private': problem.is_private},
  )  # fmt: skip
  simulation.round(range(n))
  theta = simulation.weights.reshape(d, DRAWS)
  simulation.round(range(n))
  return theta, small.flat(simulation.clients['model']).reshape(n, d, DRAWS) - points


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['orthogonal', 'gaussian'])
def test_theorem_8_through_the_process(xla, kind):
  """Lemma 7 and theorem 8: one round of the algorithm, every client with features of its own."""
  problem = _problem(kind, dimension=3, rows=24)
  curvatures = np.einsum('nmi,nmj->nij', problem.features, problem.features) / 24
  step = 1.0 / float(np.linalg.eigvalsh(curvatures).max())
  ratio, ditto_lambda = problem.best_ratio, 0.8
  theta, errors = _through_the_process(
    xla, problem, ratio=ratio, ditto_lambda=ditto_lambda, step=step
  )
  expected = problem.server_covariance(ratio)
  np.testing.assert_allclose(np.cov(theta), expected, atol=0.06 * np.trace(expected) / 3)
  risks = np.array(
    [
      problem.personal_risk(j, ditto_lambda, ratio=ratio, curvature=curvatures[j])
      for j in range(problem.num_clients)
    ]
  )
  measured = np.mean(errors**2, axis=(1, 2))
  np.testing.assert_allclose(measured, risks, rtol=0.05)  # 12,000 values: 1.3 % deviation
  # Twins: FedAvg's weights, and another lambda.
  assert np.trace(np.cov(theta)) < 0.92 * np.trace(problem.server_covariance(1.0))
  other = [
    problem.personal_risk(j, 0.2, ratio=ratio, curvature=curvatures[j])
    for j in range(problem.num_clients)
  ]
  assert np.max(np.abs(measured / np.array(other) - 1)) > 0.1


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'features': np.ones((3, 4))}, 'must be .N, m_s, d.'),
    ({'features': np.ones((7, 4, 2))}, 'full rank'),
    ({'num_private': 8}, 'num_private=8 must be from 0 to 7'),
    ({'label_variance': 0.0}, 'label_variance=0.0 must be positive'),
    ({'privacy_variance': -1.0}, 'privacy_variance=-1.0 must be 0 or more'),
  ],
)
def test_wrong_problems_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_problem(), **changes)
  with pytest.raises(ValueError, match='above 0 where all clients are private'):
    dataclasses.replace(_problem(), num_private=7).ratio_weights(0.0)
  assert isinstance(_problem(), LinearRegression)
