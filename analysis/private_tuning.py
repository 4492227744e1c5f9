"""What it costs to choose lambda privately, in mean estimation (Figure 7).

Liu et al., "On privacy and personalization in cross-silo federated learning", NeurIPS 2022,
section 7 and appendix F. MR-MTL is run h times, each with another lambda, and only the best
run is released; h is drawn from a truncated negative binomial distribution with parameters
eta and gamma. Theorem F.2 (`privacy.tuning.PrivateTuning`) says what the release costs, so
that each run needs more noise for the same (epsilon, delta) than a run that is not tuned.
Where MR-MTL with that noise and the best lambda is worse than local training or FedAvg
without tuning, it is better not to tune.

The paper's text has E[h] = 10, six pairs (eta, gamma) with eta >= -0.5, and 500 repetitions. The
rest is ours: K = 20 silos of n = 200 examples, sigma = 0.4, clip 1, epsilon 0.25 at delta 1e-5,
eta in {-0.5, 0, 0.5, 1, 2, 5}, and the tau of `PANELS`, one for each of the three cases. The
claims are judged over a range of settings (`analysis.claims.silo`).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize

from analysis import mean_estimation
from analysis.figures import Figure, Panel
from analysis.mean_estimation import MeanEstimation
from privacy import accounting
from privacy.tuning import PrivateTuning

ETAS = (-0.5, 0.0, 0.5, 1.0, 2.0, 5.0)
MEAN_RUNS = 10.0
LAMBDAS = np.logspace(-3, 2, 100)
# Panel -> tau: tuning loses against FedAvg, still helps, loses against local training.
PANELS = {'a': 0.03, 'b': 0.08, 'c': 0.2}


@functools.lru_cache(maxsize=256)
def noise_for_release(
  epsilon: float, delta: float, *, clip: float = 1.0, tuning: PrivateTuning | None = None
) -> float:
  """Standard deviation of one run's noise such that the release is (epsilon, delta)-DP.

  A run is one Gaussian mechanism on a sum whose sensitivity is `clip`.

  Args:
    epsilon: of the release, positive.
    delta: of the release, in (0, 1).
    clip: bound of one example.
    tuning: the random number of runs of which the best is released; None for one run.

  Returns:
    sigma_DP, the smallest to a relative 1e-9.

  Raises:
    ValueError: epsilon is not positive and finite, or so small that no noise reaches it (a
      random number of runs costs something even if the runs cost nothing).
  """
  if not (epsilon > 0 and math.isfinite(epsilon)):
    raise ValueError(f'epsilon={epsilon} must be positive and finite.')
  accounting.check_delta(delta)
  orders = np.array(accounting.RDP_ORDERS)

  def excess(log_noise: float) -> float:
    curve = orders / (2.0 * math.exp(2.0 * log_noise))
    if tuning is not None:
      curve = accounting.repeat_and_select_curve(curve, tuning.mean, tuning.shape)
    return float(accounting.epsilon_of_curves(curve, delta)[0]) - epsilon

  low, high = math.log(1e-3), math.log(1e9)
  if excess(high) > 0:
    raise ValueError(f'epsilon={epsilon} at delta={delta} is not reached by any noise.')
  return clip * math.exp(float(optimize.brentq(excess, low, high, xtol=1e-10)) + 1e-10)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
  """One curve of Figure 7: MR-MTL's error against lambda under one noise.

  Attributes:
    tuning: None for the runs that are not tuned.
    privacy_noise: sigma_DP, standard deviation of the noise on a silo's sum.
    problem: the mean estimation with that noise.
    errors: lemma 6.7 at the lambdas.
    simulated: mean of the squared errors over repetitions and silos.
  """

  tuning: PrivateTuning | None
  privacy_noise: float
  problem: MeanEstimation
  errors: np.ndarray
  simulated: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TuningCost:
  """Figure 7: without privacy, with it, and with it for every (eta, gamma).

  Attributes:
    lambdas: the x axis.
    non_private, private: curves without tuning.
    tuned: one curve for each eta.
  """

  lambdas: np.ndarray
  non_private: Curve
  private: Curve
  tuned: tuple[Curve, ...]

  @property
  def best_end_point(self) -> float:
    """The better of local training and FedAvg, private and not tuned."""
    return min(self.private.problem.local_error, self.private.problem.fedavg_error)

  @property
  def worth_tuning(self) -> tuple[bool, ...]:
    """For each eta: whether the best lambda beats both end points without tuning.

    It is as if tuning always found lambda*: what a real one gains is less.
    """
    return tuple(curve.problem.optimal_error < self.best_end_point for curve in self.tuned)


def tuning_cost(
  *,
  centre_deviation: float,
  num_silos: int = 20,
  num_examples: int = 200,
  sampling_deviation: float = 0.4,
  epsilon: float = 0.25,
  delta: float = 1e-5,
  clip: float = 1.0,
  mean_runs: float = MEAN_RUNS,
  etas: Sequence[float] = ETAS,
  lambdas: np.ndarray = LAMBDAS,
  repetitions: int = 500,
  seed: int = 0,
) -> TuningCost:
  """The data of one panel of Figure 7.

  Args:
    centre_deviation: tau.
    num_silos: K.
    num_examples: n.
    sampling_deviation: sigma.
    epsilon: of what is released, whether tuned or not.
    delta: likewise.
    clip: bound of one example.
    mean_runs: E[h]; gamma follows from it and eta.
    etas: shapes of the distribution of h.
    lambdas: where to evaluate.
    repetitions: of the simulation.
    seed: of the simulation.
  """
  generator = np.random.default_rng(seed)

  def curve(noise: float, tuning: PrivateTuning | None) -> Curve:
    problem = MeanEstimation(
      num_silos=num_silos,
      num_examples=num_examples,
      sampling_variance=sampling_deviation**2,
      centre_variance=centre_deviation**2,
      privacy_variance=noise**2,
    )
    centres, local = problem.draw(generator, repetitions)
    squares = np.stack(
      [np.mean((mean_estimation.estimate(local, x) - centres) ** 2, axis=0) for x in lambdas]
    )
    return Curve(
      tuning=tuning,
      privacy_noise=noise,
      problem=problem,
      errors=problem.error(lambdas),
      simulated=squares.mean(axis=1),
    )

  tunings = [PrivateTuning(mean=mean_runs, shape=eta) for eta in etas]
  return TuningCost(
    lambdas=np.asarray(lambdas),
    non_private=curve(0.0, None),
    private=curve(noise_for_release(epsilon, delta, clip=clip), None),
    tuned=tuple(
      curve(noise_for_release(epsilon, delta, clip=clip, tuning=tuning), tuning)
      for tuning in tunings
    ),
  )


def figure() -> Figure:
  """Figure 7: error against lambda in the three cases, at the same cost of privacy.

  Its numbers are the private errors: of the end points, of MR-MTL with the best lambda
  given, and of MR-MTL with the cheapest tuning (eta = -0.5) if that always found it.
  """
  panels, numbers = [], {}
  for name, deviation in PANELS.items():
    cost = tuning_cost(centre_deviation=deviation)
    lambdas, problem = cost.lambdas, cost.private.problem
    ones = np.ones_like(lambdas)
    curves = {
      'not private': cost.non_private.simulated,
      'private, not tuned': cost.private.simulated,
      **{f'tuned, η = {c.tuning.shape:g}': c.simulated for c in cost.tuned if c.tuning},
      'local, not tuned': problem.local_error * ones,
      'FedAvg, not tuned': problem.fedavg_error * ones,
    }
    panels.append(
      Panel(
        title=f'({name}) τ = {deviation:g}', x_label='λ (no unit, log scale)', log_x=True,
        curves={label: (lambdas, values) for label, values in curves.items()},
      )
    )  # fmt: skip
    numbers[f'({name}) FedAvg'] = problem.fedavg_error
    numbers[f'({name}) local training'] = problem.local_error
    numbers[f'({name}) MR-MTL with lambda given'] = problem.optimal_error
    numbers[f'({name}) MR-MTL tuned'] = cost.tuned[0].problem.optimal_error
  return Figure(
    panels=tuple(panels), y_label='mean squared error (log scale)', log_y=True, numbers=numbers
  )
