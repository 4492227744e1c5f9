"""MR-MTL's theory: federated mean estimation under silo-specific example-level privacy.

Liu et al., "On privacy and personalization in cross-silo federated learning", NeurIPS 2022,
section 6 and appendix E. Silo k has n examples x_{k,i} ~ N(w_k, sigma^2) around a hidden
centre w_k ~ N(theta, tau^2). It releases its mean once, with noise on the sum:

  w_hat_k = (sum_i x_{k,i} + xi_k) / n,   xi_k ~ N(0, sigma_DP^2)

and MR-MTL with w_bar = mean_k w_hat_k estimates w_k by the minimiser of
F_k(w) + lambda/2 (w - w_bar)^2, F_k(w) = (w - w_hat_k)^2 / 2 up to a constant (lemma 6.1):

  w_hat_k(lambda) = (w_hat_k + lambda w_bar) / (1 + lambda)

lambda = 0 is local training, lambda = infinity FedAvg. All errors are E (w_k - estimate)^2,
per coordinate: generalisation errors without the variance sigma^2 of a new example. Clipping
is taken to do nothing (assumption E.2).

`MeanEstimation` has equal silos; `HeterogeneousMeanEstimation` is appendix E.5, where sizes,
variances and privacy noise differ.
"""

import dataclasses
import math

import numpy as np


def estimate(local_estimates: np.ndarray, mtl_lambda) -> np.ndarray:
  """w_hat_k(lambda) of every silo (lemma 6.1, equation 22).

  Args:
    local_estimates: w_hat, [..., K].
    mtl_lambda: lambda >= 0, infinite for FedAvg; a number or one per silo, [K].

  Returns:
    [..., K].
  """
  own = _share(mtl_lambda)
  return own * local_estimates + (1.0 - own) * np.mean(local_estimates, axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanEstimation:
  """The problem with equal silos (assumption E.1).

  Attributes:
    num_silos: K >= 2.
    num_examples: n >= 1, of each silo.
    sampling_variance: sigma^2 >= 0, of the examples around their silo's centre.
    centre_variance: tau^2 >= 0, of the centres: the heterogeneity.
    privacy_variance: sigma_DP^2 >= 0, of the noise on a silo's *sum*.
  """

  num_silos: int
  num_examples: int
  sampling_variance: float
  centre_variance: float
  privacy_variance: float = 0.0

  def __post_init__(self):
    _check_counts(self.num_silos, self.num_examples)
    for name in ('sampling_variance', 'centre_variance', 'privacy_variance'):
      _check_variance(name, getattr(self, name))

  @property
  def local_variance(self) -> float:
    """sigma_loc^2 = sigma^2 / n + sigma_DP^2 / n^2, of w_hat_k around w_k (equation 5)."""
    n = self.num_examples
    return self.sampling_variance / n + self.privacy_variance / n**2

  @property
  def external_variance(self) -> float:
    """(K tau^2 + sigma_loc^2) / (K - 1), of w_hat_{\\k} around w_k (equation 30)."""
    return (self.num_silos * self.centre_variance + self.local_variance) / (self.num_silos - 1)

  def weight_of_own(self, mtl_lambda):
    """alpha, the weight of w_hat_k beside the others' mean w_hat_{\\k} (equation 20)."""
    own = _share(mtl_lambda)
    return own + (1.0 - own) / self.num_silos

  def posterior(self, own, external) -> tuple[np.ndarray, float]:
    """Mean mu_k and variance sigma_w^2 of w_k, given w_hat_k and w_hat_{\\k} (lemma 6.2)."""
    return _combine(own, self.local_variance, external, self.external_variance)

  @property
  def optimal_lambda(self) -> float:
    """lambda* = sigma_loc^2 / tau^2 (theorem 6.3); infinite without heterogeneity."""
    if self.centre_variance == 0:
      return math.inf
    return self.local_variance / self.centre_variance

  def error(self, mtl_lambda):
    """E_lambda, MR-MTL's error (lemma 6.7, equation 37); lambda a number or an array."""
    own = _share(mtl_lambda)
    apart = own**2 * self.local_variance + (1.0 - own) ** 2 * self.centre_variance
    return (1 - 1 / self.num_silos) * apart + self.local_variance / self.num_silos

  @property
  def optimal_error(self) -> float:
    """E* = sigma_w^2, the error at lambda* (corollary 6.4)."""
    local, centre, silos = self.local_variance, self.centre_variance, self.num_silos
    if local + centre == 0:
      return 0.0
    return local * (local + silos * centre) / (silos * (local + centre))

  @property
  def local_error(self) -> float:
    """E_loc = sigma_loc^2, of local training (equation 33)."""
    return self.local_variance

  @property
  def fedavg_error(self) -> float:
    """E_fed = (sigma_loc^2 + (K - 1) tau^2) / K, of FedAvg (equation 35)."""
    return (self.local_variance + (self.num_silos - 1) * self.centre_variance) / self.num_silos

  @property
  def gap_to_local(self) -> float:
    """Delta_loc = E_loc - E* (proposition 6.5, equation 34)."""
    return (1 - 1 / self.num_silos) * _ratio(self.local_variance, self.centre_variance)

  @property
  def gap_to_fedavg(self) -> float:
    """Delta_fed = E_fed - E* (proposition 6.6, equation 36)."""
    return (1 - 1 / self.num_silos) * _ratio(self.centre_variance, self.local_variance)

  def privacy_cost(self, mtl_lambda):
    """E_lambda with privacy minus E_lambda without (theorem 6.8).

    It is sigma_DP^2 / n^2 times [(1 - 1/K) / (1 + lambda)^2 + 1/K]: the whole of the noise at
    lambda = 0, a K-th of it at infinity.
    """
    noise = self.privacy_variance / self.num_examples**2
    return noise * ((1 - 1 / self.num_silos) * _share(mtl_lambda) ** 2 + 1 / self.num_silos)

  def draw(self, generator: np.random.Generator, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Repetitions of the problem: centres w and released means w_hat, [repetitions, K]."""
    shape = (repetitions, self.num_silos)
    centres = generator.normal(scale=math.sqrt(self.centre_variance), size=shape)
    sums = self.num_examples * centres
    sums += generator.normal(
      scale=math.sqrt(self.num_examples * self.sampling_variance), size=shape
    )
    sums += generator.normal(scale=math.sqrt(self.privacy_variance), size=shape)
    return centres, sums / self.num_examples


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HeterogeneousMeanEstimation:
  """The problem with silos of their own sizes, variances and privacy (appendix E.5).

  The paper's equation 39 writes n for the silo's own n_k, which is meant and used here.

  Attributes:
    num_examples: n_k, [K].
    sampling_variance: sigma_k^2, [K] or one number.
    centre_variance: tau^2 >= 0.
    privacy_variance: sigma_{k,DP}^2 of the noise on silo k's sum, [K] or one number.
  """

  num_examples: np.ndarray
  sampling_variance: np.ndarray | float
  centre_variance: float
  privacy_variance: np.ndarray | float = 0.0

  def __post_init__(self):
    sizes = np.atleast_1d(np.asarray(self.num_examples, np.float64))
    _check_counts(len(sizes), sizes)
    object.__setattr__(self, 'num_examples', sizes)
    for name in ('sampling_variance', 'privacy_variance'):
      value = np.asarray(getattr(self, name), np.float64)
      _check_variance(name, value)
      object.__setattr__(self, name, np.broadcast_to(value, sizes.shape))
    _check_variance('centre_variance', self.centre_variance)

  @property
  def num_silos(self) -> int:
    """K."""
    return len(self.num_examples)

  @property
  def local_variances(self) -> np.ndarray:
    """sigma~_k^2 = sigma_k^2 / n_k + sigma_{k,DP}^2 / n_k^2, [K] (equation 39)."""
    n = self.num_examples
    return self.sampling_variance / n + self.privacy_variance / n**2

  @property
  def mean_external_local_variances(self) -> np.ndarray:
    """The mean of sigma~_j^2 over j != k, [K]."""
    local = self.local_variances
    return (local.sum() - local) / (self.num_silos - 1)

  @property
  def external_variances(self) -> np.ndarray:
    """Variance of w_hat_{\\k} around w_k, [K] (equation 43)."""
    silos = self.num_silos
    return (silos * self.centre_variance + self.mean_external_local_variances) / (silos - 1)

  def posterior(self, own, external) -> tuple[np.ndarray, np.ndarray]:
    """mu_bar_k and sigma_bar_k^2 of w_k, given w_hat_k and w_hat_{\\k} (lemma E.4)."""
    return _combine(own, self.local_variances, external, self.external_variances)

  @property
  def optimal_lambdas(self) -> np.ndarray:
    """lambda*_k, [K] (theorem E.5, equation 47).

    Where the formula's denominator is not positive the silo is so noisy that it does best
    with FedAvg's model: infinite.
    """
    local = self.local_variances
    difference = self.mean_external_local_variances - local
    denominator = self.centre_variance + difference / self.num_silos
    positive = denominator > 0
    return np.where(positive, local / np.where(positive, denominator, 1.0), np.inf)

  def errors(self, mtl_lambda) -> np.ndarray:
    """Errors of w_hat_k(lambda), [K]; lambda a number or one per silo, [K]."""
    own = _share(mtl_lambda)
    alpha = own + (1.0 - own) / self.num_silos
    return alpha**2 * self.local_variances + (1 - alpha) ** 2 * self.external_variances

  def draw(self, generator: np.random.Generator, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Repetitions of the problem: centres w and released means w_hat, [repetitions, K]."""
    shape = (repetitions, self.num_silos)
    centres = math.sqrt(self.centre_variance) * generator.normal(size=shape)
    return centres, centres + np.sqrt(self.local_variances) * generator.normal(size=shape)


def _share(mtl_lambda):
  """1 / (1 + lambda), the weight of w_hat_k beside w_bar; 0 for an infinite lambda."""
  mtl_lambda = np.asarray(mtl_lambda, np.float64)
  if np.any(mtl_lambda < 0) or np.any(np.isnan(mtl_lambda)):
    raise ValueError(f'mtl_lambda={mtl_lambda} must be 0 or more.')
  return 1.0 / (1.0 + mtl_lambda)


def _combine(a, variance_of_a, b, variance_of_b):
  """Mean and variance given two independent observations (lemma E.3, equation 19)."""
  total = np.asarray(variance_of_a + variance_of_b)
  safe = np.where(total > 0, total, 1.0)
  weight_of_a = np.where(total > 0, variance_of_b / safe, 0.5)
  return weight_of_a * a + (1 - weight_of_a) * b, variance_of_a * variance_of_b / safe


def _ratio(a: float, b: float) -> float:
  """a^2 / (a + b), 0 for a = b = 0."""
  return a**2 / (a + b) if a + b > 0 else 0.0


def _check_counts(num_silos, num_examples):
  if num_silos < 2:
    raise ValueError(f'num_silos={num_silos} must be at least 2.')
  if np.any(np.asarray(num_examples) < 1):
    raise ValueError(f'num_examples={num_examples} must be at least 1.')


def _check_variance(name, value):
  if not np.all((np.asarray(value) >= 0) & np.isfinite(value)):
    raise ValueError(f'{name}={value} must be 0 or more and finite.')
