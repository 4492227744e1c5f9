"""PPSGD's theory: privacy noise, generalisation bounds and the threshold on n.

Bietti et al., "Personalization improves privacy-accuracy tradeoffs in federated
learning", theorems 4.1, 4.5, 5.1, 5.2, B.4 and lemma 4.6. All three generalisation bounds
are one inequality,

  E f(z_bar_T) - f(z*)  <=  4 L_a ||z*||_a^2 / T  +  3 sigma_a ||z*||_a / sqrt(T)
  with the step size eta = min(1 / (4 L_a), ||z*||_a / (sqrt(T) sigma_a)),

for different L_a and sigma_a, with ||z||_a^2 = ||w||^2 / alpha + sum_i ||theta_i||^2
(equation 5). The losses are jointly convex and L-smooth in (w, theta_i), the gradients
bounded by G, and the clip no smaller than they are.

Two slips of the paper are put right here (both vanish with q = 1):
- theorems 5.2 and B.4 print L_{m,alpha} without the q of their lemma B.3, whose proof
  needs m_max / (q M): sampling makes a round's step for a sampled user larger;
- in equation 31, E[(b - q)^2] / q^2 = (1 - q) / q, so the variance of sampling the users
  has the factor (1 - q) and not the printed q (1 - q).
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
  """A generalisation bound and the step size that it needs.

  Attributes:
    step_size: the paper's eta.
    bias: 4 L_a ||z*||^2 / T.
    variance: 3 sigma_a ||z*|| / sqrt(T), the cost of privacy included.
  """

  step_size: float
  bias: float
  variance: float

  @property
  def total(self) -> float:
    """Bound on the expected excess risk of the averaged iterate."""
    return self.bias + self.variance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """What the bounds need to know of a problem, all at one minimiser z*.

  Attributes:
    smoothness: L; 2 R^2 for the additive model with squared loss and ||x|| <= R.
    shared_variances: sigma_{w,i}^2 [N], of a single gradient with respect to w.
    personal_variances: sigma_{theta,i}^2 [N], likewise for theta_i.
    shared_gradients: ||grad_w f_i(z*)||^2 [N]; zero in additive models.
    dimension: d_w.
  """

  smoothness: float
  shared_variances: np.ndarray
  personal_variances: np.ndarray
  shared_gradients: np.ndarray
  dimension: int

  def __post_init__(self):
    if not self.smoothness > 0:
      raise ValueError(f'smoothness={self.smoothness} must be positive.')
    if len({len(a) for a in (self.shared_variances, self.personal_variances)}) != 1 or len(
      self.shared_gradients
    ) != len(self.shared_variances):
      raise ValueError('variances and gradients must be arrays of one length, the users.')

  @property
  def num_users(self) -> int:
    """N."""
    return len(self.shared_variances)


def gaussian_regression(
  feature_variances: np.ndarray, *, label_noise: float, num_users: int
) -> Problem:
  """The paper's synthetic problem: x ~ N(0, Sigma), loss ((w + theta_i) x - y)^2 / 2.

  Gaussian features have no largest norm R, and single losses no common smoothness. But the
  proofs need it in the mean only (lemmas B.2 and B.3): with Delta = w + theta_i - theta*_i,

    E ||grad f_i(z) - grad f_i(z*)||^2 = 2 E ||x x^T Delta||^2
      = 2 Delta^T (tr(Sigma) Sigma + 2 Sigma^2) Delta <= 2 L (f_i(z) - f_i(z*))

  with L = 2 (tr(Sigma) + 2 max Sigma), as f_i(z) - f_i(z*) = Delta^T Sigma Delta / 2: half
  the excess risk of the experiments. Gradients are unbounded: the bounds are for no clip.

  Args:
    feature_variances: the diagonal of Sigma, [d].
    label_noise: tau, the deviation of the labels' noise.
    num_users: N.
  """
  variances = np.asarray(feature_variances, np.float64)
  of_gradient = np.full(num_users, label_noise**2 * variances.sum())
  return Problem(
    smoothness=float(2 * (variances.sum() + 2 * variances.max())),
    shared_variances=of_gradient,
    personal_variances=of_gradient,
    shared_gradients=np.zeros(num_users),
    dimension=len(variances),
  )


def noise_scale(
  *, clip: float, rounds: int, delta: float, epsilon: float, total: float, constant: float = 1.0
) -> float:
  """sigma_zeta of theorems 4.1, 5.1 and B.4 up to their absolute constant.

  Args:
    clip: C.
    rounds: n or T.
    delta: in (0, 1).
    epsilon: target, positive.
    total: N (theorems 4.1, B.4), or M, the sum of the minibatch sizes (theorem 5.1).
    constant: c or c_2, which the paper does not give. A run's true epsilon comes from
      the accountant, not from here.
  """
  return constant * clip * math.sqrt(rounds * math.log(1 / delta)) / (total * epsilon)


def minimal_alpha_norm(optima: np.ndarray, alpha: float) -> tuple[float, np.ndarray, np.ndarray]:
  """The minimiser of least alpha-norm of an additive model (lemma 4.6, any users).

  w + theta_i must be the user's optimum; w = alpha N / (alpha N + 1) times the mean of the
  optima. For equal optima v the norm is sqrt(N / (alpha N + 1)) ||v||.

  Args:
    optima: theta*_i, [N, d].
    alpha: from 0 (local) to infinity (global).

  Returns:
    (||z*||_alpha, w [d], theta [N, d]).
  """
  optima = np.asarray(optima, np.float64)
  num_users = len(optima)
  share = 1.0 if math.isinf(alpha) else alpha * num_users / (alpha * num_users + 1)
  shared = share * optima.mean(axis=0)
  personal = optima - shared
  squared = float(np.sum(personal**2))
  if 0 < alpha < math.inf:
    squared += float(np.sum(shared**2)) / alpha
  return math.sqrt(squared), shared, personal


def theorem_4_5(
  problem: Problem, *, alpha: float, norm: float, rounds: int, noise: float = 0.0
) -> Bound:
  """Algorithm 1: all users in every round, one example each.

  Args:
    problem: the problem; f is the mean over the users.
    alpha: global/local ratio, positive and finite.
    norm: ||z*||_alpha.
    rounds: n.
    noise: sigma_zeta.
  """
  ones = np.ones(problem.num_users)
  return theorem_5_2(
    problem,
    alpha=alpha,
    norm=norm,
    rounds=rounds,
    rate=1.0,
    minibatches=ones,
    noise=noise,
    smoothness=problem.smoothness * max(alpha, 1 / problem.num_users),
  )


def theorem_5_2(
  problem: Problem,
  *,
  alpha: float,
  norm: float,
  rounds: int,
  rate: float,
  minibatches: np.ndarray,
  noise: float = 0.0,
  smoothness: float | None = None,
) -> Bound:
  """Algorithm 2: users sampled with a rate, sums over minibatches, weighted objective f^m.

  Args:
    problem: the problem; f^m weights users by m_i / M, and z* minimises it.
    alpha: global/local ratio, positive and finite.
    norm: ||z*||_alpha.
    rounds: T.
    rate: q in (0, 1].
    minibatches: m_i [N].
    noise: sigma_zeta.
    smoothness: L_{m,alpha} where a sharper one is known.
  """
  m = np.asarray(minibatches, np.float64)
  total, largest = m.sum(), m.max() / (rate * m.sum())
  if smoothness is None:
    smoothness = problem.smoothness * max(alpha + alpha * largest, largest)
  samples = np.sum(m * (alpha * problem.shared_variances + problem.personal_variances)) / total
  users = alpha * (1 - rate) * np.sum(m**2 * problem.shared_gradients) / total
  variance = (samples + users) / (rate * total) + alpha * problem.dimension * noise**2
  return _bound(smoothness, float(variance), norm, rounds)


def theorem_b_4(
  problem: Problem,
  *,
  alpha: float,
  norm: float,
  rounds: int,
  rate: float,
  minibatches: np.ndarray,
  noise: float = 0.0,
) -> Bound:
  """Algorithm 3: users sampled with a rate, means over minibatches, f the plain mean."""
  m = np.asarray(minibatches, np.float64)
  num_users = problem.num_users
  one_user = 1 / (rate * num_users)
  samples = np.mean((alpha * problem.shared_variances + problem.personal_variances) / m)
  users = alpha * (1 - rate) * np.mean(problem.shared_gradients)
  variance = (samples + users) * one_user + alpha * problem.dimension * noise**2
  smoothness = problem.smoothness * max(alpha + alpha * one_user, one_user)
  return _bound(smoothness, float(variance), norm, rounds)


def variance_term(
  alpha,
  *,
  num_users: int,
  samples: float,
  variance: float,
  dimension: int,
  gradient_bound: float,
  epsilon: float,
  delta: float,
  optimum_norm: float = 1.0,
):
  """Lemma 4.6: the variance term of the excess risk for equal users, up to a constant.

  Args:
    alpha: a number or an array, 0 or more.
    num_users: N.
    samples: n, per user.
    variance: sigma^2 of the gradients at the optimum.
    dimension: d_w.
    gradient_bound: G.
    epsilon: privacy; infinity for none.
    delta: privacy.
    optimum_norm: ||v||.
  """
  alpha = np.asarray(alpha, np.float64)
  privacy = dimension * gradient_bound**2 * math.log(1 / delta) / (num_users * epsilon) ** 2
  inside = (alpha + 1) * variance / (num_users * samples) + alpha * privacy
  return optimum_norm * np.sqrt(num_users / (alpha * num_users + 1) * inside)


def threshold_on_samples(
  *,
  num_users: int,
  variance: float,
  dimension: int,
  gradient_bound: float,
  epsilon: float,
  delta: float,
) -> float:
  """The n above which personalisation pays: `variance_term` grows with alpha (equation 10).

  n = N (N - 1) sigma^2 epsilon^2 / (d_w G^2 log(1 / delta)), exact for `variance_term`. (The
  proof in appendix B.3 drops the square of epsilon on its way; equation 10 is right.)
  """
  numerator = num_users * (num_users - 1) * variance * epsilon**2
  return numerator / (dimension * gradient_bound**2 * math.log(1 / delta))


def _bound(smoothness: float, variance: float, norm: float, rounds: int) -> Bound:
  deviation = math.sqrt(variance)
  step = 1 / (4 * smoothness)
  if deviation > 0:
    step = min(step, norm / (math.sqrt(rounds) * deviation))
  return Bound(
    step_size=step,
    bias=4 * smoothness * norm**2 / rounds,
    variance=3 * deviation * norm / math.sqrt(rounds),
  )
