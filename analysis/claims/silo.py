"""Cross-silo: mean estimation, own lambdas, what a selection and a private choice cost.

Long because every claim's two sides stand beside one another here.
"""

import dataclasses
import functools
import itertools
import math
import types
from collections.abc import Iterator

import numpy as np
from scipy import optimize

import processes
from analysis import mean_estimation, private_tuning
from analysis.claims import mean_process
from analysis.claims.pairs import CASES, EXACT, SAME, Aside, Pair, generator, minimum
from analysis.mean_estimation import HeterogeneousMeanEstimation, MeanEstimation
from privacy import accounting, calibration
from privacy.example_level import local_steps_per_round
from privacy.tuning import PrivateTuning
from processes.setup import Population


def _means(count: int = CASES) -> Iterator[MeanEstimation]:
  rng = generator()
  for _ in range(count):
    yield MeanEstimation(
      num_silos=int(rng.integers(2, 50)), num_examples=int(rng.integers(5, 500)),
      sampling_variance=float(10 ** rng.uniform(-1, 1)),
      centre_variance=float(10 ** rng.uniform(-2, 0)),
      privacy_variance=float(10 ** rng.uniform(0, 3)),
    )  # fmt: skip


def _local(problem: MeanEstimation) -> float:
  """sigma^2 / n + sigma_DP^2 / n^2 from the parameters alone."""
  n = problem.num_examples
  return problem.sampling_variance / n + problem.privacy_variance / n**2


def _error(problem: MeanEstimation, mtl_lambda: float) -> float:
  """E (w_k - w_hat_k(lambda))^2 by its linear parts: own noise, others' noise, centres."""
  silos, own = problem.num_silos, 1 / (1 + mtl_lambda)
  weights = np.full(silos, (1 - own) / silos)
  weights[0] += own
  centres = weights.copy()
  centres[0] -= 1
  return float(_local(problem) * np.sum(weights**2) + problem.centre_variance * np.sum(centres**2))


def estimator_and_posterior() -> list[Pair]:
  """Lemmas 6.1 and 6.2 against a numerical minimum and Gaussian conditioning."""
  rng = generator()
  pairs = []
  for i, problem in enumerate(_means()):
    silos, mtl_lambda = problem.num_silos, float(10 ** rng.uniform(-2, 2))
    local = rng.normal(size=silos)

    def objective(w, local=local, mtl_lambda=mtl_lambda):
      return 0.5 * (w - local[0]) ** 2 + 0.5 * mtl_lambda * (w - local.mean()) ** 2

    # A parabola: three values tell its minimum.
    low, middle, high = (objective(x) for x in (-1.0, 0.0, 1.0))
    place = 0.5 * (low - high) / (low - 2 * middle + high)
    alpha = (silos + mtl_lambda) / ((1 + mtl_lambda) * silos)
    others = float(local[1:].mean())
    printed = alpha * local[0] + (1 - alpha) * others
    ours = float(mean_estimation.estimate(local, mtl_lambda)[0])
    pairs += [
      Pair(what=f'minimiser, case {i}', left=place, right=printed),
      Pair(what=f'the estimate, case {i}', left=ours, right=printed),
    ]
    mean, variance = problem.posterior(local[0], others)
    # With a flat prior on theta: own and the others' mean are independent given w_k.
    s, tau = _local(problem), problem.centre_variance
    outer = tau + (tau + s) / (silos - 1)
    precision = 1 / s + 1 / outer
    pairs += [
      Pair(what=f'posterior variance, case {i}', left=float(variance), right=1 / precision),
      Pair(
        what=f'posterior mean, case {i}', left=float(mean),
        right=(local[0] / s + others / outer) / precision,
      ),
    ]  # fmt: skip
  return pairs


def optimal_lambda() -> list[Pair]:
  """Theorem 6.3 against a numerical minimum and the library's runs; more noise, more examples."""
  pairs = []
  for i, problem in enumerate(_means()):
    place, _ = minimum(functools.partial(_error, problem), 1e-6, 1e6)
    more = dataclasses.replace(problem, privacy_variance=2 * problem.privacy_variance)
    larger = dataclasses.replace(problem, num_examples=2 * problem.num_examples)
    star = problem.optimal_lambda
    pairs += [
      Pair(what=f'lambda*, case {i}', left=place, right=star),
      Pair(what=f'more noise, case {i}', left=more.optimal_lambda, right=star, relation='>'),
      Pair(what=f'more examples, case {i}', left=larger.optimal_lambda, right=star, relation='<'),
    ]
  return [*pairs, *_best_lambda_of_runs()]


def _best_lambda_of_runs() -> Iterator[Pair]:
  """One round of MR-MTL with lambdas of 1/8 to 8 times lambda*: the best of them is lambda*."""
  factors = 2.0 ** np.arange(-3, 4)
  for silos, examples, centre, privacy in ((5, 10, 0.4, 15.0), (20, 5, 0.1, 20.0)):
    problem = MeanEstimation(
      num_silos=silos, num_examples=examples, sampling_variance=1.0, centre_variance=centre,
      privacy_variance=privacy,
    )  # fmt: skip
    errors = mean_process.errors(problem, factors * problem.optimal_lambda)
    what = f"the library's best lambda over lambda*, {silos} silos"
    yield Pair(what=what, left=float(factors[np.argmin(errors)]), right=1.0)


def gap_to_local() -> list[Pair]:
  """Proposition 6.5 from `_error` alone."""
  pairs = []
  for i, problem in enumerate(_means()):
    _, least = minimum(functools.partial(_error, problem), 1e-6, 1e6)
    more = dataclasses.replace(problem, privacy_variance=2 * problem.privacy_variance)
    pairs += [
      Pair(what=f'E*, case {i}', left=least, right=problem.optimal_error),
      Pair(what=f'gap, case {i}', left=_error(problem, 0.0) - least, right=problem.gap_to_local),
      Pair(
        what=f'more noise, case {i}', left=more.gap_to_local, right=problem.gap_to_local,
        relation='>',
      ),
    ]  # fmt: skip
  return pairs


def gap_to_fedavg() -> list[Pair]:
  """Proposition 6.6 from `_error` alone."""
  pairs = []
  for i, problem in enumerate(_means()):
    silos, tau, s = problem.num_silos, problem.centre_variance, _local(problem)
    _, least = minimum(functools.partial(_error, problem), 1e-6, 1e6)
    fedavg = s / silos + tau * (1 - 1 / silos)
    more = dataclasses.replace(problem, privacy_variance=2 * problem.privacy_variance)
    pairs += [
      Pair(what=f'E_fed, case {i}', left=fedavg, right=problem.fedavg_error),
      Pair(what=f'gap, case {i}', left=fedavg - least, right=problem.gap_to_fedavg),
      Pair(
        what=f'more noise, case {i}', left=more.gap_to_fedavg, right=problem.gap_to_fedavg,
        relation='<',
      ),
    ]  # fmt: skip
  return pairs


def error_of_lambda() -> list[Pair]:
  """Lemma 6.7 against the linear parts, and a simulation."""
  rng = generator()
  pairs = []
  for i, problem in enumerate(_means()):
    mtl_lambda = float(rng.uniform(0, 100))
    ours = float(problem.error(mtl_lambda))
    pairs.append(Pair(what=f'case {i}', left=_error(problem, mtl_lambda), right=ours))
  problem, mtl_lambda, repetitions = next(_means(1)), 1.5, 20_000
  centres, local = problem.draw(rng, repetitions)
  errors = np.mean((mean_estimation.estimate(local, mtl_lambda) - centres) ** 2, axis=1)
  expected = float(problem.error(mtl_lambda))
  margin = 3 * float(errors.std()) / math.sqrt(repetitions) / expected
  pairs.append(
    Pair(
      what='a simulation', left=float(errors.mean()), right=expected, relation='equals',
      margin=margin,
    )
  )  # fmt: skip
  return pairs


def private_gap() -> list[Pair]:
  """Theorem 6.8 from `_error` alone; its limits differ by the factor K."""
  rng = generator()
  pairs = []
  for i, problem in enumerate(_means()):
    mtl_lambda = float(10 ** rng.uniform(-2, 2))
    without = dataclasses.replace(problem, privacy_variance=0.0)
    cost = _error(problem, mtl_lambda) - _error(without, mtl_lambda)
    limits = float(problem.privacy_cost(math.inf)) / float(problem.privacy_cost(0.0))
    pairs += [
      Pair(what=f'case {i}', left=cost, right=float(problem.privacy_cost(mtl_lambda))),
      Pair(what=f'limits, case {i}', left=limits, right=1 / problem.num_silos),
    ]
  return pairs


def advantage_peaks() -> list[Pair]:
  """The privacy noise of the largest advantage has s = tau^2."""
  pairs = []
  for i, problem in enumerate(_means()):
    n = problem.num_examples
    tau = 2 * problem.sampling_variance / n  # so that noise is needed for balance

    def advantage(privacy: float, problem=problem, tau=tau) -> float:
      case = dataclasses.replace(problem, centre_variance=tau, privacy_variance=privacy)
      return min(case.local_error, case.fedavg_error) - case.optimal_error

    noises = np.logspace(-3, 3, 400) * n**2 * tau
    i_best = int(np.argmax([advantage(float(x)) for x in noises]))
    best = optimize.minimize_scalar(
      lambda x: -advantage(x), bounds=(noises[i_best - 1], noises[i_best + 1]), method='bounded',
      options={'xatol': 1e-12 * noises[i_best]},
    ).x  # fmt: skip
    case = dataclasses.replace(problem, centre_variance=tau, privacy_variance=float(best))
    pairs += [
      Pair(what=f'lambda*, case {i}', left=case.optimal_lambda, right=1.0),
      Pair(what=f'end points, case {i}', left=case.local_error, right=case.fedavg_error),
    ]
  return pairs


def _silos(count: int = CASES) -> Iterator[HeterogeneousMeanEstimation]:
  """Problems whose silos all have a finite best lambda."""
  rng = generator()
  while count:
    silos = int(rng.integers(2, 20))
    problem = HeterogeneousMeanEstimation(
      num_examples=rng.integers(20, 500, size=silos),
      sampling_variance=10 ** rng.uniform(-1, 1, size=silos),
      centre_variance=float(10 ** rng.uniform(-1, 0)),
      privacy_variance=10 ** rng.uniform(0, 3, size=silos),
    )
    if np.all(np.isfinite(problem.optimal_lambdas)):
      count -= 1
      yield problem


def _errors(problem: HeterogeneousMeanEstimation, silo: int, mtl_lambda: float) -> float:
  """As `_error`, for one of unequal silos."""
  silos, own = problem.num_silos, 1 / (1 + mtl_lambda)
  n = problem.num_examples
  local = problem.sampling_variance / n + problem.privacy_variance / n**2
  weights = np.full(silos, (1 - own) / silos)
  weights[silo] += own
  centres = weights.copy()
  centres[silo] -= 1
  return float(np.sum(weights**2 * local) + problem.centre_variance * np.sum(centres**2))


def lambda_per_silo() -> list[Pair]:
  """Theorem E.5 against a numerical minimum for every silo; equal silos are theorem 6.3."""
  pairs = []
  for i, problem in enumerate(_silos(10)):
    for silo in range(problem.num_silos):
      place, _ = minimum(functools.partial(_errors, problem, silo), 1e-6, 1e6)
      right = float(problem.optimal_lambdas[silo])
      pairs.append(Pair(what=f'case {i}, silo {silo}', left=place, right=right))
  for i, equal in enumerate(_means(5)):
    as_silos = HeterogeneousMeanEstimation(
      num_examples=np.full(equal.num_silos, equal.num_examples),
      sampling_variance=equal.sampling_variance, centre_variance=equal.centre_variance,
      privacy_variance=equal.privacy_variance,
    )  # fmt: skip
    left = float(as_silos.optimal_lambdas[0])
    pairs.append(Pair(what=f'equal silos, case {i}', left=left, right=equal.optimal_lambda))
  return pairs


def outlier_direction() -> list[Pair]:
  """Two budgets of a factor 4 in the noise's variance 16: the strict silo's lambda is larger."""
  pairs = []
  for i, equal in enumerate(_means()):
    privacy = np.full(equal.num_silos, equal.privacy_variance)
    privacy[0] *= 16
    problem = HeterogeneousMeanEstimation(
      num_examples=np.full(equal.num_silos, equal.num_examples),
      sampling_variance=equal.sampling_variance, centre_variance=10 * equal.centre_variance,
      privacy_variance=privacy,
    )  # fmt: skip
    local = problem.local_variances
    if local[0] >= equal.num_silos * problem.centre_variance + local[1]:
      continue  # beyond the bound the optimum is FedAvg
    strict, loose = (minimum(functools.partial(_errors, problem, k), 1e-8, 1e8)[0] for k in (0, 1))
    pairs.append(Pair(what=f'case {i}', left=strict, right=loose))
  return pairs


def own_lambda_beats_common() -> list[Pair]:
  """Mean errors with each silo's own lambda and with the best common one."""
  pairs = []
  for i, equal in enumerate(_means()):
    privacy = equal.privacy_variance * np.where(np.arange(equal.num_silos) % 2, 16.0, 1.0)
    problem = HeterogeneousMeanEstimation(
      num_examples=np.full(equal.num_silos, equal.num_examples),
      sampling_variance=equal.sampling_variance, centre_variance=equal.centre_variance,
      privacy_variance=privacy,
    )  # fmt: skip
    own = float(np.mean(problem.errors(problem.optimal_lambdas)))

    def mean_error(x: float, problem=problem) -> float:
      return float(np.mean(problem.errors(x)))

    grid = np.logspace(-6, 6, 200)
    place = np.log(grid[np.argmin([mean_error(float(x)) for x in grid])])
    refined = optimize.minimize_scalar(
      lambda x: mean_error(math.exp(x)), bounds=(place - 0.2, place + 0.2), method='bounded'
    ).fun
    common = min(mean_error(0.0), mean_error(math.inf), float(refined))
    pairs.append(Pair(what=f'case {i}', left=own, right=common))
  return pairs


def lambda_interpolates() -> list[Pair]:
  """MR-MTL's error at a small and a large lambda against the end points'."""
  return [
    pair
    for i, problem in enumerate(_means())
    for pair in (
      Pair(
        what=f'small end, case {i}', left=_error(problem, 1e-9), right=problem.local_error,
        relation='equals', margin=1e-6,
      ),
      Pair(
        what=f'large end, case {i}', left=_error(problem, 1e9), right=problem.fedavg_error,
        relation='equals', margin=1e-6,
      ),
    )
  ]  # fmt: skip


def quasi_concave() -> list[Pair]:
  """Changes of direction of the error over 400 lambdas."""
  lambdas = np.logspace(-5, 5, 400)
  pairs = []
  for i, problem in enumerate(_means()):
    signs = np.sign(np.diff([_error(problem, float(x)) for x in lambdas]))
    changes = np.count_nonzero(np.diff(signs[signs != 0]))
    pairs.append(Pair(what=f'case {i}', left=float(changes), right=1.0))
  return pairs


def _score(wrong: int, n: int) -> float:
  """What a choice compares: the error rate of n examples."""
  return wrong / n


def error_rate_sensitivity() -> list[Pair]:
  """Equation 15, enumerated: the rate of n examples, e of them wrong, and its neighbours."""
  pairs = []
  for n in (2, 3, 5, 10, 100, 2000):
    worst = 0.0
    for wrong in {0, 1, n // 2, n - 1, n}:
      neighbours = [(wrong + 1, n + 1), (wrong, n + 1)]
      neighbours += [(wrong - 1, n - 1)] * (wrong > 0) + [(wrong, n - 1)] * (wrong < n)
      neighbours += [(wrong + 1, n)] * (wrong < n) + [(wrong - 1, n)] * (wrong > 0)
      worst = max(worst, *(abs(_score(wrong, n) - _score(*other)) for other in neighbours))
    pairs.append(Pair(what=f'n {n}', left=worst, right=1 / (n - 1) + 1e-15))
  return pairs


def averaging_noise() -> list[Pair]:
  """Equation 2: the noise part of K averaged models after T steps, by simulation."""
  rng = generator()
  silos, steps, repetitions, rate, curvature = 8, 30, 20_000, 0.1, 0.7
  pairs = []
  for name, hessian in (('no gradient', 0.0), ('linear gradient', curvature)):
    w = np.zeros((repetitions, silos))
    for _ in range(steps):
      w -= rate * (hessian * w + rng.normal(size=w.shape))
    single = float(w[:, 0].var())
    weights = rng.uniform(0.5, 2.0, size=silos)
    weights /= weights.sum()
    pairs += [
      Pair(what=name, left=silos * float(w.mean(axis=1).var()) / single, right=1.0),
      Pair(
        what=f'{name}, weighted',
        left=float((w @ weights).var()) / single / float(np.sum(weights**2)), right=1.0,
      ),
    ]  # fmt: skip
  return pairs


def overhead() -> list[Pair | Aside]:
  """School's sizes, as a range of them: noise multipliers of the methods at one budget."""
  return overhead_of(np.array([17, 31, 32, 48, 82, 120, 175, 200]))


def overhead_of(sizes: np.ndarray) -> list[Pair | Aside]:
  """Noise multipliers of the methods at one budget, for silos of some sizes [K].

  What a method asks of the data is what the library's own one declares: its passes in a round, and
  its choices of a cluster.
  """
  noises = {name: _noise(name, sizes) for name in ('fedavg', 'local', 'finetune', 'mocha')}
  one = _noise('mr_mtl', sizes)
  more = {
    'ditto': _noise('ditto', sizes),
    'ifca': _noise('ifca', sizes, selection_fraction=1.0),
    'ifca_mr_mtl': _noise('ifca_mr_mtl', sizes, selection_fraction=0.1),
  }
  pairs = [
    Pair(what=f'{name}, n {n}', left=float(a), right=float(b), **how)
    for group, how in ((more, {}), (noises, SAME))
    for name, multipliers in group.items()
    for n, a, b in zip(sizes, multipliers, one, strict=True)
  ]
  means = ', '.join(f'{name} {np.mean(noise / one):.3g}' for name, noise in more.items())
  return [*pairs, Aside(text=f'Times the noise of the five, in the mean: {means}')]


def _noise(method: str, sizes: np.ndarray, *, selection_fraction: float = 0.0) -> np.ndarray:
  """The least noise multipliers of silos of some sizes: epsilon 6 at 1e-3, batch 32, 201 rounds."""
  epsilon, delta, rounds, batch_size = 6.0, 1e-3, 201, 32
  settings = types.SimpleNamespace(
    method=method, privacy='example', rounds=rounds, selection_fraction=selection_fraction,
    selection_epsilon=None, selection_epsilon_share=0.03,
  )  # fmt: skip
  population = Population(client_ids=[str(n) for n in sizes], num_examples=sizes, groups={})
  declared = processes.find(method)
  return calibration.calibrate_example_level(
    target_epsilon=epsilon, delta=delta, rounds=rounds, num_examples=sizes, batch_size=batch_size,
    clipping_norm=1.0,
    steps_per_round=local_steps_per_round(sizes, batch_size, passes=declared.passes),
    selection=declared.setup(settings, population).plan_share(epsilon, delta).selection,
  ).noise_multiplier  # fmt: skip


# Settings of Figure 7, which the text does not print: ours, a grid.
_GRID = tuple(itertools.product((10, 20, 40), (100, 200), (0.25, 0.5, 1.0)))


def _best_tuned(silos: int, examples: int, epsilon: float, tau: float) -> tuple[list[float], ...]:
  """(errors at the best lambda for each eta; FedAvg's, local training's and MR-MTL's untuned)."""

  def problem(tuning: PrivateTuning | None) -> MeanEstimation:
    noise = private_tuning.noise_for_release(epsilon, 1e-5, tuning=tuning)
    return MeanEstimation(
      num_silos=silos, num_examples=examples, sampling_variance=0.16, centre_variance=tau**2,
      privacy_variance=noise**2,
    )  # fmt: skip

  plain = problem(None)
  tuned = [
    problem(PrivateTuning(mean=private_tuning.MEAN_RUNS, shape=eta)).optimal_error
    for eta in private_tuning.ETAS
  ]
  return tuned, [plain.fedavg_error, plain.local_error, plain.optimal_error]


def _balance(silos: int, examples: int, epsilon: float) -> float:
  """The tau at which FedAvg and local training are equal: s = tau^2."""
  noise = private_tuning.noise_for_release(epsilon, 1e-5)
  return math.sqrt(0.16 / examples + noise**2 / examples**2)


def tuning_against_fedavg() -> list[Pair]:
  """Panel (a): settings with so little heterogeneity that FedAvg is the better end point."""
  return _tuning_against_the_better_end('fedavg', (0.25, 0.5, 1.0))


def tuning_against_local() -> list[Pair]:
  """Panel (c): settings with so much heterogeneity that local training is the better end point."""
  return _tuning_against_the_better_end('local', (1.0, 2.0, 4.0))


def _tuning_against_the_better_end(end: str, shares: tuple[float, ...]) -> list[Pair]:
  """One pair for each setting in which an end point is the better one, its median over eta.

  Args:
    end: fedavg or local.
    shares: tau in units of that of balance. Below 1 FedAvg is the better end point, above it local
      training; a setting in which the other one is, or neither, is none of the claim's.
  """
  pairs = []
  for (silos, examples, epsilon), share in itertools.product(_GRID, shares):
    tau = share * _balance(silos, examples, epsilon)
    tuned, (fedavg, local, _) = _best_tuned(silos, examples, epsilon, tau)
    better, other = (fedavg, local) if end == 'fedavg' else (local, fedavg)
    if better < other * (1 - 1e-6):
      what = f'K {silos}, n {examples}, epsilon {epsilon}, tau {share} of balance'
      # Half of the six pairs have to be worse: the median, taken on the side of the end point.
      pairs.append(Pair(what=what, left=sorted(tuned)[3], right=better))
  return pairs


def tuning_eats_gain() -> list[Pair]:
  """Panel (b): the gain left after paying, where the end points are equal; at best over eta."""
  pairs = []
  for silos, examples, epsilon in _GRID:
    tuned, (fedavg, local, given) = _best_tuned(
      silos, examples, epsilon, _balance(silos, examples, epsilon)
    )
    end = min(fedavg, local)
    left = (end - min(tuned)) / (end - given)
    what = f'K {silos}, n {examples}, epsilon {epsilon}'
    # Something is left: a gain of nothing does not count as one that was eaten in part.
    pairs.append(Pair(what=what, left=left if left > 0 else math.inf, right=0.5))
  return pairs


def tuning_cost_by_eta() -> list[Pair]:
  """Theorem F.2: epsilon grows with eta at E[h] = 10; the share of single runs falls."""
  orders = np.array(accounting.RDP_ORDERS)
  curve = orders / (2 * 10.0**2)
  tunings = [PrivateTuning(mean=10.0, shape=eta) for eta in private_tuning.ETAS]
  epsilons = [
    float(
      accounting.epsilon_of_curves(
        accounting.repeat_and_select_curve(curve, tuning.mean, tuning.shape), 1e-5
      )[0]
    )
    for tuning in tunings
  ]
  single = [float(np.exp(tuning.log_probability(np.array([1]))[0])) for tuning in tunings]
  pairs = [
    Pair(what=f'eta {a} against {b}', left=x, right=y)
    for (a, x), (b, y) in itertools.pairwise(zip(private_tuning.ETAS, epsilons, strict=True))
  ]
  pairs += [
    Pair(what=f'single runs, eta {a} against {b}', left=x, right=y, relation='>')
    for (a, x), (b, y) in itertools.pairwise(zip(private_tuning.ETAS, single, strict=True))
  ]
  for tuning in tunings:
    gamma, eta = tuning.gamma, tuning.shape
    if eta == 0:
      mean = (1 / gamma - 1) / math.log(1 / gamma)
    else:
      mean = eta * (1 - gamma) / (gamma * (1 - gamma**eta))
    runs = np.arange(1, 200_000)
    summed = float(np.sum(runs * np.exp(tuning.log_probability(runs))))
    pairs += [
      Pair(what=f'E[h] of eta {eta}', left=mean, right=10.0, **EXACT),
      Pair(what=f'E[h] summed, eta {eta}', left=summed, right=10.0, **EXACT),
    ]
  # The theorem by hand, minimised over its two orders.
  for tuning, epsilon in zip(tunings, epsilons, strict=True):
    gamma, eta = tuning.gamma, tuning.shape
    second = np.min((1 + eta) * (1 - 1 / orders) * curve + (1 + eta) * math.log(1 / gamma) / orders)
    by_hand = curve + second + math.log(10.0) / (orders - 1)
    # Either theorem of the same source may be the tighter one.
    best = float(accounting.epsilon_of_curves(by_hand, 1e-5)[0])
    pairs.append(Pair(what=f'F.2, eta {eta}', left=epsilon, right=best, relation='<=', margin=1e-9))
  return pairs
