"""The papers' theory against the algorithms themselves, run as TFF processes."""

import numpy as np
import pytest

import processes
import runtime
import tff_models
from analysis import ppsgd_bounds
from analysis.federated_point_estimation import PointEstimation, opt_out
from privacy.plan import ClientLevelPrivacy, FixedClipping
from privacy.sampling import EveryClient, PoissonCohorts
from processes.method import BuildSpec, ExamplesSpec
from tests.processes import small_federation as small

# Few clients and much noise: a client's own share of it can be seen.
PROBLEM = PointEstimation(
  num_clients=7,
  num_private=4,
  sampling_variance=1.0,
  client_variance=0.6,
  privacy_variance=0.5,
)
# Independent coordinates, each a repetition of the experiment.
COORDINATES = 40_000
CLIP = 1e4  # no update is clipped


def _estimates():
  """phi_j and phi_hat_j, [K, COORDINATES], for phi = 0."""
  rng = np.random.default_rng(0)
  shape = (PROBLEM.num_clients, COORDINATES)
  points = rng.normal(scale=np.sqrt(PROBLEM.client_variance), size=shape)
  return points, points + rng.normal(scale=np.sqrt(PROBLEM.sampling_variance), size=shape)


@pytest.fixture(scope='module')
def feo2():
  """FeO2 on one example per client: loss ||w - phi_hat_j||^2 / 2."""
  points, estimates = _estimates()
  data = {
    'x': np.ones([PROBLEM.num_clients, 1, 1], np.float32),
    # The model takes 0.1 from its labels.
    'y': (estimates[:, None] + 0.1).astype(np.float32),
    'num_examples': np.ones(PROBLEM.num_clients, np.int32),
    'client_id': np.arange(PROBLEM.num_clients, dtype=np.int32),
  }
  plan = ClientLevelPrivacy(
    cohorts=EveryClient(PROBLEM.num_clients),
    # z S / N_p = gamma
    noise_multiplier=PROBLEM.num_private * np.sqrt(PROBLEM.privacy_variance) / CLIP,
    delta=1e-3,
    clipping=FixedClipping(norm=CLIP),
    num_opted_out=PROBLEM.num_non_private,
  )
  model = tff_models.build_model(
    'one_versus_all', example_shape=(1,), num_outputs=COORDINATES, task_kind='multilabel'
  )
  examples = ExamplesSpec(
    x_shape=(1, 1), x_dtype=np.float32, y_shape=(1, COORDINATES), y_dtype=np.float32
  )
  spec = BuildSpec(model=model, examples=examples, plan=plan, batch_size=1, local_epochs=40)
  return processes.build('feo2', spec), data, points


def _run(native, feo2, ratio, lambdas):
  """The global estimate of the first round, and the personal ones that use it."""
  method, data, _ = feo2
  private_lambda, non_private_lambda = lambdas
  simulation = small.Simulation(
    native,
    method,
    data,
    hyperparameters={
      'ratio': ratio,
      # Lemma 7: eta = 1 and eta_p = 1 / (1 + lambda); the smaller one for both groups, with
      # more steps.
      'client_learning_rate': 1.0,
      'personal_learning_rate': 1 / (1 + max(lambdas)),
      'ditto_lambda_private': private_lambda,
      'ditto_lambda_non_private': non_private_lambda,
    },
    attributes={'is_private': np.arange(PROBLEM.num_clients) < PROBLEM.num_private},
  )
  simulation.round(range(PROBLEM.num_clients))
  theta = simulation.weights
  simulation.round(range(PROBLEM.num_clients))
  return theta, small.flat(simulation.clients['model']).reshape(PROBLEM.num_clients, -1)


@pytest.mark.slow
def test_feo2_is_optimal_in_point_estimation(native, feo2):
  """Equations 5-7, 40; lemmas 1, 3 and 7; theorem 8. 40,000 repetitions: 0.7 % deviation."""
  points = feo2[2]
  star = PROBLEM.optimal_ratio
  lambdas = tuple(PROBLEM.optimal_lambda(private=private) for private in (True, False))
  groups = ((True, slice(0, PROBLEM.num_private)), (False, slice(PROBLEM.num_private, None)))
  server, personal = {}, {}
  for ratio in (star, 0.4 * star, 1.0):
    theta, models = _run(native, feo2, ratio, lambdas)
    server[ratio] = np.mean(theta**2)
    assert server[ratio] == pytest.approx(PROBLEM.server_variance(ratio), rel=0.03)
    for private, group in groups:
      risk = np.mean((models[group] - points[group]) ** 2)
      values = dict(private=private, ratio=ratio)
      expected = PROBLEM.personal_risk(lambdas[0 if private else 1], **values)
      assert risk == pytest.approx(expected, rel=0.02)
      personal[ratio, private] = risk
  assert server[star] == min(server.values())
  # Opted-out clients reach the Bayes risk; private ones would without their own noise.
  assert personal[star, False] == pytest.approx(PROBLEM.bayes_risk(private=False), rel=0.02)
  assert personal[star, True] > 1.008 * PROBLEM.bayes_risk(private=True)
  without = PROBLEM.personal_risk(lambdas[0], private=True, ratio=1.0, own_noise=False)
  assert personal[1.0, True] > 1.02 * without


@pytest.mark.slow
def test_the_algorithms_own_best_lambda_beats_the_papers_model(native, feo2):
  """The private client's broadcast model holds its own noise: it should trust it less."""
  points = feo2[2]
  model, algorithm = (
    PROBLEM.best_lambda(private=True, ratio=1.0, own_noise=own_noise) for own_noise in (False, True)
  )
  assert algorithm < 0.95 * model
  private = slice(0, PROBLEM.num_private)
  risks = {}
  for value in (model, algorithm, 0.8 * algorithm):
    _, models = _run(native, feo2, 1.0, (value, 1.0))
    risks[value] = np.mean((models[private] - points[private]) ** 2)
  # The same data and noise in all three: differences are far more exact than the values.
  assert risks[algorithm] == min(risks.values())


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('alpha', [0.05, 2.0])
def test_ppsgd_keeps_its_bound(alpha):
  """Theorem B.4 on additive least squares with fresh samples, through the process."""
  users, dimension, radius, tau, rounds, size, repeats = 8, 3, 1.2, 0.05, 600, 2, 2
  rate, sigma_zeta, clip = 0.5, 0.001, 50.0
  rng = np.random.default_rng(0)
  optima = rng.normal(size=(users, dimension)) * 0.2 + np.array([1.0, -1.0, 0.5])
  variances = np.full(users, (tau * radius) ** 2)
  problem = ppsgd_bounds.Problem(
    smoothness=2 * radius**2,
    shared_variances=variances,
    personal_variances=variances,
    shared_gradients=np.zeros(users),
    dimension=dimension,
  )
  norm, _, _ = ppsgd_bounds.minimal_alpha_norm(optima, alpha)
  bound = ppsgd_bounds.theorem_b_4(
    problem,
    alpha=alpha,
    norm=norm,
    rounds=rounds,
    rate=rate,
    minibatches=np.full(users, size),
    noise=sigma_zeta,
  )
  plan = ClientLevelPrivacy(
    cohorts=PoissonCohorts(users, rate),
    noise_multiplier=sigma_zeta * rate * users / clip,
    delta=1e-3,
    clipping=FixedClipping(norm=clip),
  )
  data = small.regression_data(users, rows=rounds * size, features=dimension)
  method = small.build('ppsgd', plan, data, batch_size=size, iterate='average')
  eta, expected_users = bound.step_size, rate * users
  values = {
    'client_learning_rate': max(eta / expected_users, alpha * eta),
    'personalization_alpha': alpha * expected_users,
  }
  at_start = 0.5 * radius**2 / dimension * np.mean(np.sum(optima**2, axis=1))
  # Far below the start: what does not learn, or not together, breaks it.
  assert bound.total < 0.4 * at_start

  def excess(xla, seeds, **changes):
    found = []
    for seed in range(seeds):
      x = rng.normal(size=data['x'].shape)
      x *= radius / np.linalg.norm(x, axis=-1, keepdims=True)
      noise = tau * rng.choice([-1, 1], size=data['y'].shape)
      fresh = dict(data, x=x.astype(np.float32))
      fresh['y'] = (np.einsum('knd,kd->kn', x, optima) + noise).astype(np.float32)
      simulation = small.Simulation(
        xla, method, fresh, seed=seed, hyperparameters={**values, **changes}
      )
      for round_number in range(rounds):
        simulation.round(plan.cohorts.sample(seed, round_number))
      # Without label noise, the test loss is the excess risk.
      exact = dict(fresh, y=np.einsum('knd,kd->kn', x, optima).astype(np.float32))
      sums = xla.evaluate(
        method.build_evaluation('personal', small.examples_spec(data)),
        simulation.server,
        xla.place_states(simulation.clients),
        xla.place(exact),
      )
      found.append(np.mean(sums['loss'] / sums['num_examples']))
    return np.mean(found)

  with runtime.create('xla', devices='cpu') as xla:
    assert excess(xla, repeats) < bound.total
    # Twins: steps as small as if the rounds divided them, and next to no clip.
    for broken in (
      {'client_learning_rate': values['client_learning_rate'] / rounds},
      {'clipping_norm': 1e-5, 'personalization_alpha': np.inf},
    ):
      assert excess(xla, 1, **broken) > bound.total, broken


def test_opting_out_pays_in_the_theory_that_was_just_checked():
  """Section 4.4, for these very numbers."""
  after = opt_out(PROBLEM)
  before, later = PROBLEM.optimal_ratio, after.optimal_ratio
  risk = PROBLEM.personal_risk(
    PROBLEM.best_lambda(private=True, ratio=before), private=True, ratio=before
  )
  assert after.bayes_risk(private=False) < risk
  assert after.optimal_server_variance < PROBLEM.optimal_server_variance
  assert later != before
