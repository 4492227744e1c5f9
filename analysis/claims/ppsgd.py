"""PPSGD: the noise of a budget, the bounds of both theorems, the threshold of lemma 4.6."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from analysis import ppsgd_bounds
from analysis.claims.pairs import CASES, EXACT, Aside, Pair, generator
from privacy import calibration, sampling
from privacy.client_level import FixedClipping


def noise_multiplier(
  users: int, rate: float, rounds: int, epsilon: float, delta: float = 1e-4
) -> float:
  """The least noise multiplier for a budget."""
  cohorts = sampling.EveryClient(users) if rate == 1 else sampling.PoissonCohorts(users, rate)
  return calibration.calibrate_client_level(
    target_epsilon=epsilon, delta=delta, rounds=rounds, cohorts=cohorts,
    clipping=FixedClipping(norm=1.0),
  ).noise_multiplier  # fmt: skip


def slope(x, y) -> float:
  """Of a line through the logarithms."""
  return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def noise_scale() -> list[Pair]:
  """Theorem 4.1: slopes of the noise on the mean, z C / N, in n, N and epsilon."""
  rounds, users, epsilons = (100, 1000, 10_000), (100, 1000, 10_000), (0.1, 0.3, 1.0)
  in_n = [noise_multiplier(1000, 1.0, n, 0.5) / 1000 for n in rounds]
  in_users = [noise_multiplier(n, 1.0, 1000, 0.5) / n for n in users]
  in_epsilon = [noise_multiplier(1000, 1.0, 1000, e) / 1000 for e in epsilons]
  return [
    Pair(what='slope in n', left=slope(rounds, in_n), right=0.5),
    Pair(what='slope in N', left=slope(users, in_users), right=-1.0),
    Pair(what='slope in epsilon', left=slope(epsilons, in_epsilon), right=-1.0),
  ]


def sampling_amplification() -> list[Pair]:
  """Theorem 5.1: slopes of the noise multiplier in q and T where it is 2 or more."""
  rates, rounds = (0.01, 0.02, 0.05, 0.1, 0.2), (1000, 3000, 10_000)
  in_rate = [noise_multiplier(1000, q, 10_000, 1.0) for q in rates]
  in_rounds = [noise_multiplier(1000, 0.05, t, 0.5) for t in rounds]
  least = min(in_rate + in_rounds)
  return [
    Pair(what='slope in q', left=slope(rates, in_rate), right=1.0),
    Pair(what='slope in T', left=slope(rounds, in_rounds), right=0.5),
    Pair(what='least z', left=least, right=2.0, relation='>=', margin=0.0),
  ]


class _Risks(NamedTuple):
  """Mean excess risks of a run: of z_bar, of which the theorems speak, and of the last iterate."""

  averaged: float
  last: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Additive:
  """Additive least squares with |x| = radius: y = (w + theta_i) x + label noise."""

  users: int
  dimension: int = 3
  radius: float = 1.0
  label_noise: float = 0.3
  spread: float = 0.2

  @property
  def optima(self) -> np.ndarray:
    """theta*_i [N, d]."""
    rng = np.random.default_rng(1)
    shared = np.array([1.0, -1.0, 0.5])[: self.dimension]
    return shared + self.spread * rng.normal(size=(self.users, self.dimension))

  @property
  def problem(self) -> ppsgd_bounds.Problem:
    """What the bounds need to know."""
    variances = np.full(self.users, (self.label_noise * self.radius) ** 2)
    return ppsgd_bounds.Problem(
      smoothness=2 * self.radius**2, shared_variances=variances, personal_variances=variances,
      shared_gradients=np.zeros(self.users), dimension=self.dimension,
    )  # fmt: skip

  def run(
    self, *, alpha: float, step: float, rounds: int, noise: float = 0.0, rate: float = 1.0,
    repetitions: int = 20, seed: int = 0,
  ) -> _Risks:  # fmt: skip
    """Algorithm 1 (rate 1), or algorithm 3 with one example a user.

    Args:
      alpha: the ratio; infinity trains w alone, 0 theta alone.
      step: eta (with alpha infinite alpha eta).
      rounds: how many.
      noise: sigma_zeta.
      rate: q.
      repetitions: independent runs.
      seed: of all draws.
    """
    rng = np.random.default_rng(seed)
    optima, users, d = self.optima, self.users, self.dimension
    # alpha = infinity: eta tends to 0 while alpha eta stays.
    on_shared, on_own = (step, 0.0) if math.isinf(alpha) else (alpha * step, step)
    w, theta = np.zeros((repetitions, 1, d)), np.zeros((repetitions, users, d))
    sum_w, sum_theta = np.zeros_like(w), np.zeros_like(theta)
    for _ in range(rounds):
      sum_w, sum_theta = sum_w + w, sum_theta + theta
      x = rng.normal(size=(repetitions, users, d))
      x *= self.radius / np.linalg.norm(x, axis=-1, keepdims=True)
      labels = self.label_noise * rng.choice([-1.0, 1.0], size=(repetitions, users, 1))
      error = np.sum(x * (w + theta - optima), axis=-1, keepdims=True) - labels
      gradient = x * error
      if rate < 1:
        gradient = gradient * (rng.random(size=(repetitions, users, 1)) < rate)
      mean = gradient.sum(axis=1, keepdims=True) / (rate * users)
      theta = theta - on_own * gradient / (rate * users)
      w = w - on_shared * (mean + noise * rng.normal(size=mean.shape))
    return _Risks(self.risk((sum_w + sum_theta) / rounds), self.risk(w + theta))

  @property
  def at_start(self) -> float:
    """Excess risk of models of zeros."""
    return self.risk(np.zeros_like(self.optima))

  def risk(self, models: np.ndarray) -> float:
    """Mean excess risk of models [..., N, d]."""
    squares = np.sum((models - self.optima) ** 2, axis=-1)
    return float(0.5 * self.radius**2 / self.dimension * np.mean(squares))


def bound_of_averaged_iterates() -> list[Pair | Aside]:
  """Theorem 4.5 for runs of algorithm 1 with the theorem's step, in one and in three dimensions.

  With ten rounds most bounds lie above the risk at the start, so that only what diverges breaks
  them; with 10,000 they are at 1 to 4 % of it. One dimension has the least slack.
  """
  pairs, slacks, lasts, below = [], [], [], 0
  for dimension, alpha, rounds, noise in itertools.product(
    (1, 3), (0.01 / 8, 1 / 8, 1.0, 100 / 8), (10, 100, 1000, 10_000), (0.0, 0.05)
  ):
    case = _Additive(users=8, dimension=dimension)
    norm, _, _ = ppsgd_bounds.minimal_alpha_norm(case.optima, alpha)
    bound = ppsgd_bounds.theorem_4_5(
      case.problem, alpha=alpha, norm=norm, rounds=rounds, noise=noise
    )
    risks = case.run(alpha=alpha, step=bound.step_size, rounds=rounds, noise=noise)
    what = f'd {dimension}, alpha {alpha:.3g}, n {rounds}, noise {noise}'
    pairs.append(Pair(what=what, left=risks.averaged, right=bound.total))
    slacks.append(bound.total / risks.averaged)
    lasts.append(risks.last / bound.total)
    below += bound.total < case.at_start
  said = (
    f'{below} bounds lie below the risk at the start; they are {min(slacks):.4g} to '
    f'{max(slacks):.4g} times the risk; the last iterate has {max(lasts):.2g} of its bound at most'
  )
  return [*pairs, Aside(text=said)]


def privacy_cost_free_of_n() -> list[Pair | Aside]:
  """Equation 9 at fixed epsilon: what noise costs in runs of global learning, and in the bound.

  From 300 rounds on the noise decides the theorem's step.
  """
  case, rounds = _Additive(users=20), (300, 1000, 3000, 10_000)
  costs = [_cost_of_noise(case, n, epsilon=3.0) for n in rounds]
  measured, bound = slope(rounds, costs), _slope_of_noise_term()
  return [
    Pair(what='slope of the measured cost', left=measured, right=0.0),
    Pair(what='slope of the bound', left=bound, right=0.0),
    Aside(
      text=f'Slopes in n: {measured:.3f} of the measured cost, {bound:.3f} of the bound; the cost '
      f'is {costs[-1]:.2g} beside a risk of {case.at_start:.2g} at the start'
    ),
  ]


def _cost_of_noise(case: _Additive, n: int, *, epsilon: float) -> float:
  """Excess risk of averaged iterates with a budget's noise less that without.

  Both with the theorem's step for what is shared alone: its own smoothness, variance and norm.
  """
  norm, risks = float(np.linalg.norm(case.optima.mean(axis=0))), []
  for noise, repetitions in (
    (noise_multiplier(case.users, 1.0, n, epsilon) / case.users, 100),
    (0.0, 20),
  ):
    variance = (case.label_noise * case.radius) ** 2 / case.users + case.dimension * noise**2
    step = min(1 / (4 * case.problem.smoothness), norm / math.sqrt(n * variance))
    values: dict[str, Any] = dict(noise=noise, repetitions=repetitions)
    risks.append(case.run(alpha=math.inf, step=step, rounds=n, **values).averaged)
  return risks[0] - risks[1]


def _slope_of_noise_term() -> float:
  """Of the noise's term of the bound, over a factor 100 of n."""
  users, alpha = 1000, 10.0
  case = _Additive(users=users)
  norm, _, _ = ppsgd_bounds.minimal_alpha_norm(case.optima, alpha)
  rounds = (300, 1000, 3000, 10_000, 30_000)
  costs = []
  for n in rounds:
    noise = noise_multiplier(users, 1.0, n, 0.1) / users
    values: dict[str, Any] = dict(alpha=alpha, norm=norm, rounds=n)
    # The privacy part alone: the variance of the samples is taken away under the root.
    with_noise = ppsgd_bounds.theorem_4_5(case.problem, noise=noise, **values).variance
    without = ppsgd_bounds.theorem_4_5(case.problem, **values).variance
    costs.append(math.sqrt(with_noise**2 - without**2))
  return slope(rounds, costs)


def threshold() -> list[Pair | Aside]:
  """Lemma 4.6: the sign on both sides of equation 10, and the minimal norm numerically."""
  rng = generator()
  pairs = []
  for i in range(CASES):
    values: dict[str, Any] = dict(
      num_users=int(rng.integers(2, 500)), variance=float(10 ** rng.uniform(-1, 1)),
      dimension=int(rng.integers(1, 200)), gradient_bound=float(10 ** rng.uniform(-1, 1)),
      epsilon=float(10 ** rng.uniform(-1, 1)), delta=1e-4,
    )  # fmt: skip
    place = ppsgd_bounds.threshold_on_samples(**values)
    for side in (0.9, 1.1):
      low, high = ppsgd_bounds.variance_term(
        np.array([0.5, 0.5 + 1e-4]), samples=side * place, **values
      )
      sign = float(np.sign(high - low))
      pairs.append(Pair(what=f'case {i}, n x {side}', left=sign, right=float(np.sign(side - 1))))
  users, alpha = 6, 0.7
  v = rng.normal(size=2)

  def norm_squared(w: np.ndarray) -> float:
    return float(np.sum(w**2) / alpha + users * np.sum((v - w) ** 2))

  numeric = math.sqrt(optimize.minimize(norm_squared, np.zeros(2), tol=1e-14).fun)
  printed = math.sqrt(users / (alpha * users + 1)) * float(np.linalg.norm(v))
  pairs.append(
    Pair(what='minimal norm', left=numeric, right=printed, relation='equals', margin=1e-8)
  )
  epsilons = (0.5, 1.0, 2.0)
  power = slope(epsilons, [_where_variance_turns(epsilon) for epsilon in epsilons])
  return [*pairs, Aside(text=f'Equation 9 has its threshold grow as epsilon^{power:.3f}')]


def _where_variance_turns(epsilon: float) -> float:
  """The n at which equation 9's variance term, with its noise, neither falls nor grows with alpha.

  By bisection, without equation 10.
  """
  values: dict[str, Any] = dict(
    num_users=100, variance=1.0, dimension=100, gradient_bound=10.0, epsilon=epsilon, delta=1e-4
  )

  def growth(log_n: float) -> float:
    low, high = ppsgd_bounds.variance_term(np.array([0.5, 0.6]), samples=math.exp(log_n), **values)
    return float(high - low)

  return math.exp(optimize.brentq(growth, math.log(1e-6), math.log(1e9), xtol=1e-12))


def more_samples() -> list[Pair]:
  """Lemma 4.6's bound at fixed epsilon: the best alpha over a factor 1000 of n."""
  values: dict[str, Any] = dict(
    num_users=100, variance=1.0, dimension=100, gradient_bound=10.0, epsilon=1.0, delta=1e-4
  )
  alphas = np.logspace(-4, 4, 200)
  place = ppsgd_bounds.threshold_on_samples(**values)
  best = [
    float(alphas[np.argmin(ppsgd_bounds.variance_term(alphas, samples=n * place, **values))])
    for n in (30.0, 1 / 30)
  ]
  return [Pair(what='best alpha, large n against small n', left=best[0], right=best[1])]


def sampling_shrinks_bias() -> list[Pair]:
  """Section 5: the same samples a user, q small against q = 1, without noise."""
  case = dataclasses.replace(_Additive(users=20), label_noise=0.0)
  pairs = []
  for samples in (5, 10, 20):
    risks = {}
    for rate in (0.1, 1.0):
      rounds, alpha = round(samples / rate), 1.0
      norm, _, _ = ppsgd_bounds.minimal_alpha_norm(case.optima, alpha)
      values: dict[str, Any] = dict(
        alpha=alpha, norm=norm, rounds=rounds, rate=rate, minibatches=np.ones(20)
      )
      bound = ppsgd_bounds.theorem_b_4(case.problem, **values)
      run = case.run(alpha=alpha, step=bound.step_size, rounds=rounds, rate=rate)
      risks[rate] = run.averaged
      pairs.append(
        Pair(
          what=f'bound, q {rate}, n {samples}', left=risks[rate], right=bound.total,
          relation='<=', margin=0.0,
        )
      )  # fmt: skip
    pairs.append(Pair(what=f'n {samples}', left=risks[0.1], right=risks[1.0]))
  return pairs


def _privacy_terms(sizes: np.ndarray) -> tuple[float, float]:
  """What one user moves, for G = 1: sums of algorithm 2, and means of algorithm 3."""
  return float(sizes.max() / sizes.sum()), 1 / len(sizes)


def unequal_samples() -> list[Pair]:
  """Theorem B.4: G m_max / M against G / N, and the effective numbers of samples."""
  rng = generator()
  pairs = []
  for i in range(CASES):
    sizes = rng.integers(1, 20, size=int(rng.integers(2, 50)))
    sums, means = _privacy_terms(sizes)
    pairs += [
      Pair(what=f'privacy, case {i}', left=sums, right=means),
      Pair(
        what=f'samples, case {i}', left=float(len(sizes) * sizes.min()), right=float(sizes.sum()),
        relation='<=', margin=0.0,
      ),
      Pair(
        what=f'strict unless equal, case {i}', left=float(sums - means > 1e-12),
        right=float(len(set(sizes)) > 1), **EXACT,
      ),
    ]  # fmt: skip
  sums, means = _privacy_terms(np.full(7, 3))
  pairs.append(Pair(what='equal sizes', left=sums, right=means, **EXACT))
  return pairs


def local_rate_free_of_users() -> list[Pair]:
  """Equal users, averaged iterates, the theorem's step: slopes of the risk in N.

  Labels are noisy, so that the variance rules: the bias does not depend on N for anybody.
  """
  users, rounds = (5, 50, 500), 100
  risks: dict[str, list[float]] = {'local': [], 'global': []}
  for n in users:
    case = dataclasses.replace(_Additive(users=n), spread=0.0, label_noise=10.0)
    repetitions = max(10, 2000 // n)
    for name, alpha in (('local', 0.0), ('global', math.inf)):
      # The theorem's bound for one part: its own smoothness, variance and norm.
      norm, _, _ = ppsgd_bounds.minimal_alpha_norm(case.optima, alpha)
      variance = (case.label_noise * case.radius) ** 2 / n
      if name == 'local':
        smoothness = case.problem.smoothness / n
      else:
        norm, smoothness = float(np.linalg.norm(case.optima[0])), case.problem.smoothness
      step = min(1 / (4 * smoothness), norm / math.sqrt(rounds * variance))
      run = case.run(alpha=alpha, step=step, rounds=rounds, repetitions=repetitions)
      risks[name].append(run.averaged)
  return [
    Pair(what='slope of local learning', left=slope(users, risks['local']), right=0.0),
    Pair(
      what='slope of global learning', left=slope(users, risks['global']), right=0.0,
      relation='<',
    ),
  ]  # fmt: skip
