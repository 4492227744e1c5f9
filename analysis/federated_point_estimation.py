"""FeO2's theory: federated point estimation.

Aldaghri, Mahdavifar and Beirami, "FeO2: federated learning with opt-out differential
privacy", section 4 and appendices A and B. Client j wants phi_j = phi + p_j with
p_j ~ N(0, tau^2 I), and knows phi_hat_j ~ N(phi_j, alpha^2 I), alpha^2 = beta^2 / n_s. The
server gets psi_j = phi_hat_j + l_j, with l_j = 0 for the clients who opted out and
l_j ~ N(0, N_p gamma^2 I) for the N_p private ones, so that the mean over the private
clients has the privacy noise gamma^2. It estimates phi by FeO2's weighted mean

  theta = (sum_np psi_j + r sum_p psi_j) / (N_np + r N_p)

and client j estimates phi_j by Ditto, (phi_hat_j + lambda theta) / (1 + lambda).

Point estimation is d = 1. Federated linear regression with F_j^T F_j = n_s I is the same
problem in d dimensions (equations 14-18), where all variances here are per coordinate;
`federated_linear_regression` has features of any kind.

Where the paper is not exact:
- In equation 39 the private client's own share of the broadcast theta has no noise. In
  algorithm 1 the client cannot take its share of the noise out, so its risk is larger (by
  one part in about N_p of the noise) and its best lambda smaller. `own_noise` chooses:
  False is the paper's formula, True the algorithm.
- Section 4.1 has gamma^2 proportional to 1 / N_p^2: the noise of the *sum* is what clip and
  z fix, and fewer private clients do not make it less. The text's percentages for opting
  out need a gamma^2 that stays. `opt_out` does either.
"""

import dataclasses
import functools
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointEstimation:
  """One instance of the problem; variances are per coordinate.

  Attributes:
    num_clients: N.
    num_private: N_p, from 0 to N.
    sampling_variance: alpha^2 = beta^2 / n_s > 0, of a client's own estimate.
    client_variance: tau^2 >= 0, of the clients' points around phi.
    privacy_variance: gamma^2 >= 0, of the noise in the mean over private clients.
  """

  num_clients: int
  num_private: int
  sampling_variance: float
  client_variance: float
  privacy_variance: float

  def __post_init__(self):
    if self.num_clients < 1 or not 0 <= self.num_private <= self.num_clients:
      raise ValueError(
        f'num_private={self.num_private} must be from 0 to num_clients={self.num_clients}.'
      )
    if not (self.sampling_variance > 0 and math.isfinite(self.sampling_variance)):
      raise ValueError(f'sampling_variance={self.sampling_variance} must be positive and finite.')
    for name in ('client_variance', 'privacy_variance'):
      value = getattr(self, name)
      if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f'{name}={value} must be 0 or more and finite.')

  @property
  def num_non_private(self) -> int:
    """N_np."""
    return self.num_clients - self.num_private

  @property
  def opt_out_fraction(self) -> float:
    """rho_np."""
    return self.num_non_private / self.num_clients

  @property
  def estimate_variance(self) -> float:
    """sigma_c^2 = alpha^2 + tau^2, of phi_hat_j around phi."""
    return self.sampling_variance + self.client_variance

  @property
  def private_update_variance(self) -> float:
    """sigma_p^2 = sigma_c^2 + N_p gamma^2, of a private client's psi_j around phi."""
    return self.estimate_variance + self.num_private * self.privacy_variance

  # ------------------------------------------------------------ at the server

  @property
  def optimal_ratio(self) -> float:
    """r* = sigma_c^2 / (sigma_c^2 + N_p gamma^2) (equation 5)."""
    return self.estimate_variance / self.private_update_variance

  def server_variance(self, ratio):
    """sigma_s^2 of theta for a ratio r, a number or an array (Figure 1).

    Raises:
      ValueError: r = 0 where everybody is private: nothing is left to average.
    """
    ratio = np.asarray(ratio, np.float64)
    weight = self.num_non_private + ratio * self.num_private
    if np.any(ratio < 0) or np.any(weight <= 0):
      raise ValueError('ratio must be 0 or more, and above 0 where all clients are private.')
    total = self.num_non_private * self.estimate_variance
    total = total + ratio**2 * self.num_private * self.private_update_variance
    return total / weight**2

  @property
  def optimal_server_variance(self) -> float:
    """sigma_s^2 with r = r* (equation 6)."""
    noise = self.num_private * self.privacy_variance
    numerator = self.estimate_variance * (self.estimate_variance + noise)
    return numerator / (self.estimate_variance + self.opt_out_fraction * noise) / self.num_clients

  @property
  def fedavg_server_variance(self) -> float:
    """sigma_s^2 with r = 1: FedAvg of what private and other clients send (equation 7)."""
    noise = self.num_private * self.privacy_variance
    return (self.estimate_variance + (1 - self.opt_out_fraction) * noise) / self.num_clients

  @property
  def dp_fedavg_server_variance(self) -> float:
    """sigma_s^2 of DP-FedAvg: everybody sends what a private client would (lemma 2)."""
    return self.private_update_variance / self.num_clients

  @property
  def gap_to_fedavg(self) -> float:
    """sigma_s^2 of FedAvg (r = 1) minus that of the optimal FeO2 (equation 8)."""
    noise, rho = self.num_private * self.privacy_variance, self.opt_out_fraction
    return rho * (1 - rho) * noise**2 / (self.estimate_variance + rho * noise) / self.num_clients

  @property
  def gap_to_dp_fedavg(self) -> float:
    """sigma_s^2 of DP-FedAvg minus that of the optimal FeO2 (equation 9)."""
    noise, rho = self.num_private * self.privacy_variance, self.opt_out_fraction
    numerator = noise * rho * (self.estimate_variance + noise)
    return numerator / (self.estimate_variance + rho * noise) / self.num_clients

  # ----------------------------------------------------------- at the clients

  def optimal_lambda(self, *, private: bool) -> float:
    """lambda*_p or lambda*_np for r = r* (equations 40, 49, 52, 53).

    Infinite for opted-out clients with tau = 0, whose best model is the global one.
    """
    upsilon = self.client_variance / self.sampling_variance
    if not private:
      return 1 / upsilon if upsilon > 0 else math.inf
    gamma = self.num_private * self.privacy_variance / self.sampling_variance
    n, n_np = self.num_clients, self.num_non_private
    denominator = upsilon * (upsilon + 1) * n + upsilon * gamma * (n_np + 1) + gamma
    numerator = n + upsilon * n + gamma * n_np
    return numerator / denominator if denominator > 0 else math.inf

  def best_lambda(self, *, private: bool, ratio: float, own_noise: bool = True) -> float:
    """The lambda of least risk for any ratio r, also for FedAvg (r = 1).

    With r = r* and `own_noise=False` it is `optimal_lambda`.
    """
    pull, rest = self._risk_parts(private, ratio, own_noise)
    weight = pull * self.sampling_variance / (pull**2 * self.sampling_variance + rest)
    return weight / (1 - weight) if weight < 1 else math.inf

  def personal_risk(self, ditto_lambda, *, private: bool, ratio: float, own_noise: bool = True):
    """E (theta_j - phi_j)^2 per coordinate (Figures 2 and 3; the paper has half of it).

    Args:
      ditto_lambda: lambda >= 0, a number or an array; may be infinite.
      private: whether client j is private.
      ratio: r at the server.
      own_noise: see the module.
    """
    pull, rest = self._risk_parts(private, ratio, own_noise)
    ditto_lambda = np.asarray(ditto_lambda, np.float64)
    with np.errstate(invalid='ignore'):
      weight = np.where(np.isinf(ditto_lambda), 1.0, ditto_lambda / (1 + ditto_lambda))
    return (1 - weight * pull) ** 2 * self.sampling_variance + weight**2 * rest

  def bayes_risk(self, *, private: bool) -> float:
    """Variance of phi_j given phi_hat_j and all other clients' psi_i (equation 36)."""
    n, m = self._others(private)
    precision = n / self.private_update_variance + m / self.estimate_variance
    if precision == 0:
      return self.sampling_variance
    prior = 1 / precision + self.client_variance
    return 1 / (1 / prior + 1 / self.sampling_variance)

  def _others(self, private: bool) -> tuple[int, int]:
    """Private and opted-out clients beside client j."""
    n, m = self.num_private - int(private), self.num_non_private - int(not private)
    if n < 0 or m < 0:
      raise ValueError(f'There is no {"private" if private else "non-private"} client.')
    return n, m

  def _risk_parts(self, private: bool, ratio: float, own_noise: bool) -> tuple[float, float]:
    """(1 - w_j, variance of theta - phi_j without client j's own sampling noise).

    With w = lambda / (1 + lambda), w_j client j's weight in theta and u_j = phi_hat_j -
    phi_j, the error of Ditto's estimate is

      (1 - w (1 - w_j)) u_j + w [sum_{i != j} w_i (psi_i - phi) - (1 - w_j) p_j + w_j l_j].
    """
    n, m = self._others(private)
    weight = self.num_non_private + ratio * self.num_private
    if weight <= 0:
      raise ValueError('ratio must be above 0 where all clients are private.')
    own = (ratio if private else 1.0) / weight
    rest = (m * self.estimate_variance + ratio**2 * n * self.private_update_variance) / weight**2
    rest += (1 - own) ** 2 * self.client_variance
    if private and own_noise:
      rest += own**2 * self.num_private * self.privacy_variance
    return 1 - own, rest


KEPT_NOISES = ('sum', 'mean')


def privacy_variance_after_opt_out(
  privacy_variance: float, num_private: int, noise_kept: str
) -> float:
  """gamma^2 when one of N_p private clients opts out.

  Args:
    privacy_variance: gamma^2 before.
    num_private: N_p before.
    noise_kept: 'sum': the noise of the sum over private clients, N_p^2 gamma^2, stays, as in
      section 4.1 and in algorithm 1; 'mean': gamma^2 itself stays.

  Raises:
    ValueError: it is neither, or nobody is private.
  """
  if noise_kept not in KEPT_NOISES:
    raise ValueError(f'noise_kept={noise_kept!r} must be one of {", ".join(KEPT_NOISES)}.')
  if num_private < 1:
    raise ValueError('Nobody is private: nobody can opt out.')
  if noise_kept == 'mean':
    return privacy_variance
  # Without private clients there is no noise.
  return privacy_variance * (num_private / (num_private - 1)) ** 2 if num_private > 1 else 0.0


def opt_out(problem: PointEstimation, *, noise_kept: str = 'sum') -> PointEstimation:
  """The same problem after one more private client has opted out.

  Args:
    problem: before.
    noise_kept: see `privacy_variance_after_opt_out`.
  """
  gamma = privacy_variance_after_opt_out(problem.privacy_variance, problem.num_private, noise_kept)
  return dataclasses.replace(problem, num_private=problem.num_private - 1, privacy_variance=gamma)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Incentive:
  """The three percentages of section 4.4, as fractions of the least personal risk.

  Attributes:
    by_ratio: what r = r* takes off against r = 1, for a private client.
    by_opting_out_fedavg: what opting out takes off with r = 1; negative if it costs.
    by_opting_out_feo2: likewise with r = r*.
  """

  by_ratio: float
  by_opting_out_fedavg: float
  by_opting_out_feo2: float

  def distance(self, by_ratio: float, fedavg: float, feo2: float) -> float:
    """Largest difference, in units of 2 points for the first number and 0.3 for the others."""
    return max(
      abs(self.by_ratio - by_ratio) / 0.02,
      abs(self.by_opting_out_fedavg - fedavg) / 0.003,
      abs(self.by_opting_out_feo2 - feo2) / 0.003,
    )


def incentive(
  problem: PointEstimation, *, noise_kept: str = 'sum', own_noise: bool = False
) -> Incentive:
  """What section 4.4 measures: one client stays private, or opts out; each with its best lambda.

  Args:
    problem: with the client private.
    noise_kept: see `privacy_variance_after_opt_out`.
    own_noise: see the module.
  """
  after = opt_out(problem, noise_kept=noise_kept)

  def least(case: PointEstimation, private: bool, ratio: float) -> float:
    best = case.best_lambda(private=private, ratio=ratio, own_noise=own_noise)
    return float(case.personal_risk(best, private=private, ratio=ratio, own_noise=own_noise))

  fedavg, feo2 = least(problem, True, 1.0), least(problem, True, problem.optimal_ratio)
  return Incentive(
    by_ratio=1 - feo2 / fedavg,
    by_opting_out_fedavg=1 - least(after, False, 1.0) / fedavg,
    by_opting_out_feo2=1 - least(after, False, after.optimal_ratio) / feo2,
  )


def search_incentive(
  target: tuple[float, float, float], *, noise_kept: str, own_noise: bool
) -> tuple[PointEstimation, Incentive]:
  """The problem whose `incentive` comes nearest to three given numbers.

  The risks' ratios depend on N, N_p, tau^2 / alpha^2 and gamma^2 / alpha^2 alone. A grid
  over N from 10 to 1000, up to half of the clients opted out and six decades of both ratios
  is refined by the simplex method.

  Args:
    target: by_ratio, by_opting_out_fedavg, by_opting_out_feo2.
    noise_kept: see `privacy_variance_after_opt_out`.
    own_noise: see the module.
  """
  from scipy import optimize

  def distance(logarithms, num_clients, num_private) -> float:
    case = _of_logarithms(num_clients, num_private, logarithms)
    return incentive(case, noise_kept=noise_kept, own_noise=own_noise).distance(*target)

  grid = _incentives_of_a_grid(noise_kept, own_noise)
  (num_clients, num_private, start), _ = min(grid, key=lambda found: found[1].distance(*target))
  result = optimize.minimize(
    distance, start, args=(num_clients, num_private), method='Nelder-Mead',
    options={'maxiter': 400, 'xatol': 1e-4, 'fatol': 1e-5},
  )  # fmt: skip
  nearest = _of_logarithms(num_clients, num_private, result.x)
  return nearest, incentive(nearest, noise_kept=noise_kept, own_noise=own_noise)


@functools.cache
def _incentives_of_a_grid(
  noise_kept: str, own_noise: bool
) -> list[tuple[tuple[int, int, tuple[float, float]], Incentive]]:
  """((N, N_p, logarithms of both ratios), what its `incentive` is), wherever a search starts."""
  found = []
  for num_clients in (10, 20, 50, 200, 1000):
    for share in (0.5, 0.7, 0.85, 0.95):
      num_private = min(math.ceil(share * num_clients), num_clients - 1)
      for spread in np.linspace(-3, 3, 9):
        for noise in np.linspace(-4, 2, 13):
          place = (num_clients, num_private, (float(spread), float(noise)))
          case = _of_logarithms(*place)
          found.append((place, incentive(case, noise_kept=noise_kept, own_noise=own_noise)))
  return found


def _of_logarithms(num_clients: int, num_private: int, logarithms) -> PointEstimation:
  """The problem with alpha^2 = 1 whose tau^2 and gamma^2 have these logarithms, to base 10."""
  spread, noise = (10.0 ** min(max(float(x), -6.0), 6.0) for x in logarithms)
  return PointEstimation(
    num_clients=num_clients, num_private=num_private, sampling_variance=1.0,
    client_variance=spread, privacy_variance=noise,
  )  # fmt: skip
