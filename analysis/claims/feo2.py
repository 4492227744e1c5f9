"""FeO2: point estimation, linear regression, opting out, budgets."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import dp_accounting
import numpy as np

from analysis import federated_linear_regression as regression
from analysis import federated_point_estimation as point_estimation
from analysis.claims import feo2_process
from analysis.claims.pairs import CASES, Aside, Pair, generator, minimum
from analysis.federated_point_estimation import PointEstimation
from privacy import accounting


def _points(count: int = CASES) -> Iterator[PointEstimation]:
  rng = generator()
  for _ in range(count):
    clients = int(rng.integers(10, 500))
    yield PointEstimation(
      num_clients=clients,
      num_private=int(rng.integers(2, clients - 1)),
      sampling_variance=float(10 ** rng.uniform(-1, 1)),
      client_variance=float(10 ** rng.uniform(-1, 1)),
      privacy_variance=float(10 ** rng.uniform(-2, 0)),
    )


def _variance(problem: PointEstimation, ratio: float) -> float:
  """Var(r) as printed, from the parameters alone."""
  spread = problem.sampling_variance + problem.client_variance
  private, others = problem.num_private, problem.num_clients - problem.num_private
  noisy = spread + private * problem.privacy_variance
  return (others * spread + ratio**2 * private * noisy) / (others + ratio * private) ** 2


def lemma_1() -> list[Pair]:
  """Equations 5 and 6 against a numerical minimum, the sum of precisions and a simulation."""
  pairs = []
  for i, problem in enumerate(_points()):
    place, value = minimum(functools.partial(_variance, problem), 1e-5, 2.0)
    spread, noisy = problem.estimate_variance, problem.private_update_variance
    bayes = 1 / (problem.num_private / noisy + problem.num_non_private / spread)
    pairs += [
      Pair(what=f'r*, case {i}', left=place, right=problem.optimal_ratio),
      Pair(what=f'variance, case {i}', left=value, right=problem.optimal_server_variance),
      Pair(what=f'Bayes, case {i}', left=bayes, right=problem.optimal_server_variance),
    ]
  problem = next(_points(1))
  rng, repetitions = np.random.default_rng(5), 40_000
  private = np.arange(problem.num_clients) < problem.num_private
  deviations = np.sqrt(
    np.where(private, problem.private_update_variance, problem.estimate_variance)
  )
  weights = np.where(private, problem.optimal_ratio, 1.0)
  theta = rng.normal(size=(repetitions, problem.num_clients)) @ (deviations * weights)
  theta /= weights.sum()
  pairs.append(
    Pair(
      what='a simulated round',
      left=float(np.mean(theta**2)),
      right=problem.optimal_server_variance,
      relation='equals',
      margin=3 * math.sqrt(2 / repetitions),
    )
  )
  return pairs


def lemma_2() -> list[Pair]:
  """Equations 7 to 9 against variances from the parameters alone; ends and limits."""
  pairs = []
  for i, problem in enumerate(_points()):
    clients, private = problem.num_clients, problem.num_private
    spread = problem.sampling_variance + problem.client_variance
    noise = private * problem.privacy_variance
    _, least = minimum(functools.partial(_variance, problem), 1e-5, 2.0)
    fedavg, dp_fedavg = _variance(problem, 1.0), (spread + noise) / clients
    pairs += [
      Pair(what=f'(7), case {i}', left=fedavg, right=problem.fedavg_server_variance),
      Pair(what=f'(8), case {i}', left=fedavg - least, right=problem.gap_to_fedavg),
      Pair(what=f'(9), case {i}', left=dp_fedavg - least, right=problem.gap_to_dp_fedavg),
      Pair(what=f'(8) > 0, case {i}', left=problem.gap_to_fedavg, right=0.0, relation='>'),
      Pair(what=f'(9) > 0, case {i}', left=problem.gap_to_dp_fedavg, right=0.0, relation='>'),
    ]
  problem = next(_points(1))
  for private in (0, problem.num_clients):
    end = dataclasses.replace(problem, num_private=private)
    pairs += [
      Pair(what=f'{private} private', left=gap, right=0.0, relation='about', margin=1e-12)
      for gap in (end.gap_to_fedavg, end.gap_to_dp_fedavg)
    ]
  gamma = problem.privacy_variance
  large = dataclasses.replace(problem, num_clients=10**9, num_private=7 * 10**8)
  pairs += [
    Pair(what='(8) for many clients', left=large.gap_to_fedavg, right=0.7**2 * gamma),
    Pair(what='(9) for many clients', left=large.gap_to_dp_fedavg, right=0.7 * gamma),
  ]
  return pairs


def lemma_10() -> list[Pair | Aside]:
  """Equations 36, 37, 52 and 53: minimum, Bayes risk and weights, for both kinds of clients."""
  pairs: list[Pair | Aside] = []
  for i, problem in enumerate(_points()):
    ratio = problem.optimal_ratio
    stars = {}
    for private in (True, False):
      who = f'{"private" if private else "opted out"}, case {i}'

      def risk(x: float, private=private, problem=problem, ratio=ratio) -> float:
        return float(problem.personal_risk(x, private=private, ratio=ratio, own_noise=False))

      place, value = minimum(risk, 1e-4, 1e4)
      star = stars[private] = problem.optimal_lambda(private=private)
      pairs += [
        Pair(what=f'lambda*, {who}', left=place, right=star),
        Pair(what=f'Bayes risk, {who}', left=value, right=problem.bayes_risk(private=private)),
        Pair(
          what=f'weights of (37), {who}',
          left=_distance_from_posterior(problem, private, star),
          right=0.0,
          relation='about',
          margin=1e-6,
        ),
      ]
    pairs.append(
      Pair(
        what=f'opted out at least private, case {i}',
        left=stars[False], right=stars[True], relation='>=', margin=0.0,
      )
    )  # fmt: skip
  return [*pairs, *_corner_cases(), _with_own_noise()]


def _with_own_noise() -> Aside:
  """The other reading of theta, as the algorithm runs: a private client's own noise is in it."""
  shares, losses = [], []
  for problem in _points():
    values: dict[str, Any] = dict(private=True, ratio=problem.optimal_ratio, own_noise=True)
    best = problem.best_lambda(**values)
    shares.append(best / problem.optimal_lambda(private=True))
    risk = float(problem.personal_risk(best, **values))
    losses.append(100 * (risk / problem.bayes_risk(private=True) - 1))
  return Aside(
    text="With a private client's own noise in theta its best lambda is "
    f'{min(shares):.4f} to {max(shares):.4f} times lambda_p*, and its least risk '
    f'{min(losses):.2g} to {max(losses):.2g} % above the Bayes risk'
  )


def _distance_from_posterior(problem: PointEstimation, private: bool, star: float) -> float:
  """Largest difference of Ditto's weights from those of Gaussian conditioning (equation 37)."""
  client = 0 if private else problem.num_clients - 1
  rows = regression.LinearRegression(
    features=np.ones((problem.num_clients, 1, 1)), num_private=problem.num_private,
    label_variance=problem.sampling_variance, client_variance=problem.client_variance,
    privacy_variance=problem.privacy_variance,
  )  # fmt: skip
  bayes = rows.posterior(client)[0][:, 0, 0]
  ditto = star / (1 + star) * rows.ratio_weights(problem.optimal_ratio)
  ditto[client] += 1 / (1 + star)
  return float(np.max(np.abs(bayes - ditto)))


def _corner_cases() -> list[Pair]:
  problem = PointEstimation(
    num_clients=50, num_private=40, sampling_variance=1.5, client_variance=0.5,
    privacy_variance=0.3,
  )  # fmt: skip
  upsilon = problem.client_variance / problem.sampling_variance
  gamma = 40 * 0.3 / 1.5
  little = dataclasses.replace(problem, privacy_variance=1e-12)
  all_private = dataclasses.replace(problem, num_private=50)
  exact = dataclasses.replace(problem, sampling_variance=1e-12)
  alike = dataclasses.replace(problem, client_variance=1e-12)
  everybody = 50 / (upsilon * 50 + 50 * 0.3 / 1.5)
  return [
    Pair(what='r to 1', left=little.optimal_lambda(private=True), right=1 / upsilon),
    Pair(what='N_p to N', left=all_private.optimal_lambda(private=True), right=everybody),
    Pair(
      what='alpha to 0', left=exact.optimal_lambda(private=True), right=0.0, relation='about',
      margin=1e-6,
    ),
    Pair(
      what='tau to 0', left=alike.optimal_lambda(private=True), right=(50 + gamma * 10) / gamma
    ),
  ]  # fmt: skip


def theorem_8() -> list[Pair]:
  """Regression with features of each client's own: lemma 4 in matrices against FeO2's scalars.

  And the algorithm against both: the library's process and its optimiser.
  """
  pairs = _regression_as_run()
  rng = generator()
  for dimension, problem in itertools.product((1, 3, 6), _points(4)):
    problem = dataclasses.replace(problem, num_clients=12, num_private=8)
    rows = regression.like_point_estimation(
      problem,
      regression.orthogonal_features(
        rng, num_clients=12, rows=dimension + 5, dimension=dimension, scale=7.0
      ),
    )
    weights, covariance = rows.bayes_weights()
    expected = problem.optimal_server_variance * np.eye(dimension)
    case = f'd {dimension}, gamma^2 {problem.privacy_variance:.2g}'
    ratio = rows.ratio_weights(problem.optimal_ratio)[:, None, None] * np.eye(dimension)
    differences = {
      'covariance': np.max(np.abs(covariance - expected)) / expected[0, 0],
      'weights': np.max(np.abs(weights - ratio)),
    }
    for private, client in ((True, 0), (False, 11)):
      star = problem.optimal_lambda(private=private)
      bayes = rows.posterior(client)[1]
      ditto = rows.personal_covariance(client, star, ratio=problem.optimal_ratio, own_noise=False)
      differences[f'own model, {"private" if private else "opted out"}'] = np.max(
        np.abs(ditto - bayes)
      ) / np.max(bayes)
    pairs += [
      Pair(what=f'{name}, {case}', left=float(value), right=0.0, relation='about', margin=1e-6)
      for name, value in differences.items()
    ]
  return pairs


def _regression_as_run() -> list[Pair]:
  """Theorem 8 of the process: one step of eta = 1 and of eta_p = 1 / (1 + lambda_j), r = r*."""
  pairs = []
  for problem, rows in _regressions():
    dimension, ratio, stars = rows.dimension, problem.optimal_ratio, _optimal_lambdas(problem)
    expected = rows.ratio_weights(ratio)
    weights, own = feo2_process.weights(rows, ratio=ratio, lambdas=stars)
    covariance = np.einsum('nd,nij->dij', weights**2, rows.update_covariances)[0]
    variance = problem.optimal_server_variance
    differences = {
      'weights': np.abs(weights / expected[:, None] - 1),
      'covariance': np.abs(covariance / variance - np.eye(dimension)),
    }
    for (group, clients), star, models in zip(_GROUPS, stars, own, strict=True):
      ditto = (np.eye(12) + star * expected) / (1 + star)
      differences[f'own models, {group}'] = np.abs(models / ditto[:, :, None] - 1)[clients]
    pairs += [
      Pair(
        what=f'{name} of the process, d {dimension}', left=float(np.max(value)), right=0.0,
        relation='about', margin=1e-6,
      )
      for name, value in differences.items()
    ]  # fmt: skip
  return pairs


def theorem_8_simulated() -> list[Pair | Aside]:
  """Theorem 8 on simulated regression: what the process learns is the Bayes estimate.

  Theta and the own models of runs on drawn responses (equations 10 and 11), beside the posterior
  means given what the clients have and send, from the joint precision of phi and all phi_j.
  """
  pairs, errors = [], []
  for problem, rows in _regressions():
    drawn = [rows.draw(np.random.default_rng(seed)) for seed in range(100)]
    points, responses = (np.stack([one[i] for one in drawn], axis=-1) for i in (0, 1))
    estimates = np.stack([rows.estimates(x) for x in np.moveaxis(responses, -1, 0)], axis=1)
    theta, own = feo2_process.run(
      rows, responses, ratio=problem.optimal_ratio, lambdas=_optimal_lambdas(problem)
    )
    found = {'theta': (theta, _posterior_means(rows, estimates)[0])}
    for (group, clients), models in zip(_GROUPS, own, strict=True):
      bayes = [_posterior_means(rows, estimates, j)[1 + j] for j in range(*clients.indices(12))]
      found[f'own models, {group}'] = (models[clients], np.stack(bayes))
      errors.append(np.mean((models[clients] - np.moveaxis(points[clients], -1, 1)) ** 2))
    pairs += [
      Pair(
        what=f'{name} of the process, d {rows.dimension}', right=0.0, relation='about', margin=1e-6,
        left=float(np.linalg.norm(ours - bayes) / np.linalg.norm(bayes)),
      )
      for name, (ours, bayes) in found.items()
    ]  # fmt: skip
  said = f'{max(pair.left for pair in pairs):.1g} of the estimates'
  said += f'; their squared errors are {min(errors):.2g} to {max(errors):.2g} a coordinate'
  return [*pairs, Aside(text=f'Largest difference {said}')]


_GROUPS = (('private', slice(0, 8)), ('opted out', slice(8, 12)))


def _regressions() -> Iterator[tuple[PointEstimation, regression.LinearRegression]]:
  """Theorem 8's case in several dimensions, with as many rows as a step of 1 asks for."""
  rng = generator()
  problem = dataclasses.replace(next(_points(1)), num_clients=12, num_private=8)
  for dimension in (1, 3, 6):
    features = regression.orthogonal_features(
      rng, num_clients=12, rows=dimension + 5, dimension=dimension, scale=dimension + 5.0
    )
    yield problem, regression.like_point_estimation(problem, features)


def _optimal_lambdas(problem: PointEstimation) -> list[float]:
  """Of private clients, and of those who opted out."""
  return [problem.optimal_lambda(private=private) for private in (True, False)]


def _posterior_means(
  rows: regression.LinearRegression, estimates: np.ndarray, client: int | None = None
) -> np.ndarray:
  """E of phi and of every phi_j [1 + N, experiments, d], given the clients' messages.

  Args:
    rows: the problem; phi has no prior, phi_j ~ N(phi, tau^2 I).
    estimates: phi_hat_j [N, experiments, d], those of private clients with noise N_p gamma^2.
    client: which knows its own estimate without noise.
  """
  count, dimension = rows.num_clients, rows.dimension
  noise = np.where(np.arange(count) == client, 0.0, rows.private_noise)
  seen = np.linalg.inv(rows.estimate_covariances + noise[:, None, None] * np.eye(dimension))
  tie = np.eye(dimension) / rows.client_variance
  precision = np.zeros((1 + count, dimension, 1 + count, dimension))
  for j in range(count):
    precision[0, :, 0] += tie
    precision[1 + j, :, 1 + j] = tie + seen[j]
    precision[0, :, 1 + j] = precision[1 + j, :, 0] = -tie
  pull = np.einsum('nij,nej->nie', seen, estimates)
  return np.einsum('aibj,bje->aei', np.linalg.tensorinv(precision)[:, :, 1:], pull)


def opting_out_order() -> list[Pair]:
  """Section 4.1's noise: the least losses of one client who stays or leaves, and r* against 1."""
  pairs = []
  for i, problem in enumerate(_points()):
    found = point_estimation.incentive(problem, noise_kept='sum', own_noise=False)
    pairs += [
      Pair(what=f'opting out, FedAvg, case {i}', left=-found.by_opting_out_fedavg, right=0.0),
      Pair(what=f'opting out, FeO2, case {i}', left=-found.by_opting_out_feo2, right=0.0),
      Pair(what=f'r* against 1, case {i}', left=-found.by_ratio, right=0.0),
    ]
  return pairs


def opting_out_percentages() -> list[Pair | Aside]:
  """The nearest that any parameters come with section 4.1's noise, in the claim's margins.

  A gamma^2 that stays when a client opts out is not the paper's: what it gives stands beside.
  """
  found: list[Pair | Aside] = []
  for figure, target in (('2', (0.17, 0.024, 0.012)), ('3', (0.18, 0.025, 0.012))):
    distances, words = {}, []
    for kept, own in itertools.product(point_estimation.KEPT_NOISES, (False, True)):
      problem, nearest = point_estimation.search_incentive(target, noise_kept=kept, own_noise=own)
      distances[kept, own] = nearest.distance(*target)
      if kept == 'mean':
        words.append(
          f'{distances[kept, own]:.2g} {"with" if own else "without"} own noise in theta '
          f'(N {problem.num_clients}, N_p {problem.num_private}, tau^2 '
          f'{problem.client_variance:.3g} alpha^2, gamma^2 {problem.privacy_variance:.3g} alpha^2)'
        )
    found += [
      Pair(
        what=f'Figure {figure}: margins from all three',
        left=min(distances['sum', own] for own in (False, True)), right=0.0, relation='about',
        margin=1.0,
      ),
      Aside(text=f'Figure {figure} with a gamma^2 that stays: {" and ".join(words)}'),
    ]  # fmt: skip
  return found


def ratio_falls_with_noise() -> list[Pair]:
  """Lemma 1: r* over a factor 16 of the noise."""
  pairs = []
  for i, problem in enumerate(_points()):
    noises = problem.privacy_variance * np.array([1.0, 4.0, 16.0, 256.0])
    cases = [dataclasses.replace(problem, privacy_variance=float(g)) for g in noises]
    ratios = [minimum(functools.partial(_variance, case), 1e-7, 2.0)[0] for case in cases]
    pairs += [
      Pair(what=f'case {i}', left=b, right=a, relation='<', margin=0.0)
      for a, b in itertools.pairwise(ratios)
    ]
  return pairs


def budgets() -> list[Pair]:
  """The budgets in the captions of Tables 4 to 7, with Table 3's q; no z is printed."""
  cases = ((1.50, 0.05, 3.6), (3.86, 0.03, 0.6), (1.00, 0.03, 4.1))
  return [
    Pair(what=f'z {z}, q {q}', left=_poisson_epsilon(q, z, 500, 1e-4), right=epsilon)
    for z, q, epsilon in cases
  ]


def _poisson_epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
  event = dp_accounting.GaussianDpEvent(float(noise))
  if rate < 1:
    event = dp_accounting.PoissonSampledDpEvent(float(rate), event)
  return accounting.rdp_loss(dp_accounting.SelfComposedDpEvent(event, rounds), delta).epsilon
