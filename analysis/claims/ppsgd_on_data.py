"""PPSGD as the library runs it, on the paper's synthetic regression: bounds, noise, sampling.

A check is given what loads the data: seed and options -> data set, whose features are Gaussian
with known variances; `ppsgd_bounds.gaussian_regression` says why the theorems hold for them.
Importing this module does not import TensorFlow.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import processes
import runtime
from analysis import ppsgd_bounds
from analysis.claims import ppsgd
from analysis.claims.pairs import Aside, Pair

_NO_CLIP = 1e6
_SEEDS = 3
_LABEL_NOISE = 0.01  # the program's: the paper has a symbol

Data = Any  # a `datasets.FederatedDataset`: this room knows no data sets
Load = Callable[..., Data]


def bound_of_averaged_iterates(
  load: Load, *, rounds: Sequence[int] = (10, 100, 1000, 10_000), noises: Sequence[float] = (0, 1)
) -> list[Pair | Aside]:
  """Theorem 4.5 for runs of algorithm 1 with the theorem's step.

  Where a bound lies above the risk at the start, only what diverges breaks it; how many lie below
  is said beside the comparisons.

  Args:
    load: the data.
    rounds: n, ascending.
    noises: sigma_zeta.
  """
  pairs, slacks, lasts, below = [], [], [], 0
  for seed in range(_SEEDS):
    data = load(seed=seed, examples_per_round=1, label_noise=_LABEL_NOISE)
    problem, optima = _problem(data), data.extras['theta_star']
    at_start = float(np.mean(optima**2 @ data.extras['feature_variances'])) / 2
    users = data.num_clients
    for alpha, noise in itertools.product((0.01 / users, 1 / users, 100 / users), noises):
      norm, _, _ = ppsgd_bounds.minimal_alpha_norm(optima, alpha)
      bounds = [
        ppsgd_bounds.theorem_4_5(problem, alpha=alpha, norm=norm, rounds=n, noise=noise)
        for n in rounds
      ]
      found = _at_steps(
        [bound.step_size for bound in bounds], rounds, data, alpha=alpha, noise=noise
      )
      for n, bound, risk in zip(rounds, bounds, found, strict=True):
        what = f'seed {seed}, alpha {alpha:.3g}, n {n}, noise {noise}'
        pairs.append(Pair(what=what, left=risk.averaged, right=bound.total))
        slacks.append(bound.total / risk.averaged)
        lasts.append(risk.last / bound.total)
        below += bound.total < at_start
  said = (
    f'Run through the process. {below} bounds lie below the risk at the start; they are '
    f'{min(slacks):.4g} to {max(slacks):.4g} times the risk; the last iterate has '
    f'{max(lasts):.2g} of its bound at most'
  )
  return [*pairs, Aside(text=said)]


def privacy_cost_free_of_n(
  load: Load,
  *,
  rounds: Sequence[int] = (2000, 10_000, 60_000),
  epsilon: float = 0.1,
  clip: float = 100.0,
) -> list[Pair | Aside]:
  """Equation 9 at fixed epsilon: what noise costs global learning, and in the bound.

  Both with the theorem's step for what is shared alone: its own smoothness, variance and norm.
  Epsilon is so small that noise decides that step, and n so large that learning without noise
  leaves some eighth of the risk or less (features of variance 1 / k are learnt slowly): both are
  seen from the theorem, without a run.

  Args:
    load: the data.
    rounds: n, ascending.
    epsilon: of every n, at delta 1e-4.
    clip: C, the largest of the paper's.
  """
  pairs: list[Pair | Aside] = []
  slopes, shares = [], []
  for seed in range(_SEEDS):
    data = load(seed=seed, examples_per_round=1, label_noise=_LABEL_NOISE)
    problem, optima, users = _problem(data), data.extras['theta_star'], data.num_clients
    norm = float(np.linalg.norm(optima.mean(axis=0)))

    def step_of(n: int, noise: float, problem=problem, norm=norm, users=users) -> float:
      variance = problem.shared_variances[0] / users + problem.dimension * noise**2
      return min(1 / (4 * problem.smoothness), norm / math.sqrt(n * variance))

    noises = [ppsgd.noise_multiplier(users, 1.0, n, epsilon) * clip / users for n in rounds]
    values: dict[str, float] = dict(alpha=math.inf, clip=clip)
    private = [
      _at_steps([step_of(n, noise)], [n], data, noise=noise, **values)[0].averaged
      for n, noise in zip(rounds, noises, strict=True)
    ]
    open_ = _at_steps([step_of(n, 0.0) for n in rounds], rounds, data, **values)
    costs = [with_noise - other.averaged for with_noise, other in zip(private, open_, strict=True)]
    slopes.append(ppsgd.slope(rounds, costs))
    shares.append(costs[-1] / float(np.mean(optima**2 @ data.extras['feature_variances'])))
    pairs.append(Pair(what=f'seed {seed}, slope of the cost', left=slopes[-1], right=0.0))
  # The noise's term is 3 sqrt(d) sigma ||w*|| / sqrt(n).
  of_bound = ppsgd.slope(rounds, np.array(noises) / np.sqrt(rounds))
  said = (
    f'Run through the process. Slopes in n: {", ".join(f"{slope:.3f}" for slope in slopes)} of the '
    f'measured cost, {of_bound:.3f} of the bound; the cost is {min(shares):.2g} to '
    f'{max(shares):.2g} of the risk at the start'
  )
  return [*pairs, Pair(what='slope of the bound', left=of_bound, right=0.0), Aside(text=said)]


def sampling_shrinks_bias(
  load: Load, *, samples: Sequence[int] = (5, 10, 20), rates: Sequence[float] = (0.01, 0.1)
) -> list[Pair | Aside]:
  """Theorem 5.2: the same samples a user, each rate q against q = 1, without privacy's noise.

  alpha is 100 / N: with fewer than one user in a hundred sampling would gain no more, as theorem
  5.2's smoothness says. The bound has lemma B.3's q M.

  Args:
    load: the data.
    samples: n, a user's samples in all; T = n / q.
    rates: q.
  """
  pairs, ratios = [], []
  for seed in range(_SEEDS):
    data = load(seed=seed, examples_per_round=1, label_noise=_LABEL_NOISE)
    problem, users = _problem(data), data.num_clients
    alpha = 100 / users
    norm, _, _ = ppsgd_bounds.minimal_alpha_norm(data.extras['theta_star'], alpha)
    averaged = {}
    for rate in (*rates, 1.0):
      rounds = [round(n / rate) for n in samples]
      bounds = [
        ppsgd_bounds.theorem_b_4(
          problem, alpha=alpha, norm=norm, rounds=n, rate=rate, minibatches=np.ones(users)
        )
        for n in rounds
      ]
      steps = [bound.step_size for bound in bounds]
      for n, bound, risk in zip(
        samples, bounds, _at_steps(steps, rounds, data, alpha=alpha, rate=rate), strict=True
      ):
        averaged[rate, n] = risk.averaged
        what = f'seed {seed}, bound, q {rate}, n {n}'
        pairs.append(
          Pair(what=what, left=risk.averaged, right=bound.total, relation='<=', margin=0.0)
        )
    for rate, n in itertools.product(rates, samples):
      every = averaged[1.0, n]
      pairs.append(Pair(what=f'seed {seed}, q {rate}, n {n}', left=averaged[rate, n], right=every))
      ratios.append(averaged[rate, n] / every)
  said = (
    f'Run through the process. With sampling the risk is {min(ratios):.2g} to {max(ratios):.2g} '
    'times that of everybody in every round'
  )
  return [*pairs, Aside(text=said)]


def _problem(data: Data) -> ppsgd_bounds.Problem:
  return ppsgd_bounds.gaussian_regression(
    data.extras['feature_variances'], label_noise=_LABEL_NOISE, num_users=data.num_clients
  )


class Risks(NamedTuple):
  """Excess risks of a run, means over the users: of z_bar, and of the last iterate."""

  averaged: float
  last: float


def risks(
  data: Data, *, alpha: float, step: float, rounds: Sequence[int],
  noise: float = 0.0, rate: float = 1.0, clip: float = _NO_CLIP,
) -> list[Risks]:  # fmt: skip
  """Algorithm 1 (rate 1), or algorithm 3, with one fresh example a user and round.

  Args:
    data: least squares with fresh examples in every round, and points for the excess risk.
    alpha: the paper's; infinity trains what is shared alone.
    step: eta (with alpha infinite alpha eta).
    rounds: after which the risks are taken, ascending.
    noise: sigma_zeta.
    rate: q.
    clip: C.

  Returns:
    E f(z) - f(z*) for each of the rounds, with f the mean of (x . z - y)^2 / 2.
  """
  import tff_models
  from privacy.plan import ClientLevelPrivacy, FixedClipping
  from privacy.sampling import EveryClient, PoissonCohorts
  from processes.method import BuildSpec, ExamplesSpec
  from runtime.noise_key import NoiseKey

  users = data.num_clients
  cohorts = EveryClient(users) if rate == 1 else PoissonCohorts(users, rate)

  def spec_of(examples: Any) -> ExamplesSpec:
    x, y = examples.x, examples.y
    return ExamplesSpec(x_shape=x.shape[1:], x_dtype=x.dtype, y_shape=y.shape[1:], y_dtype=y.dtype)

  first = data.train.load(np.arange(users))
  method = processes.build(
    'ppsgd',
    BuildSpec(
      model=tff_models.build_model(
        'linear_regression', example_shape=first.x.shape[2:], num_outputs=1,
        task_kind='regression', bias=False,
      ),
      examples=spec_of(first),
      plan=ClientLevelPrivacy(
        cohorts=cohorts, noise_multiplier=noise * rate * users / clip, delta=1e-4,
        clipping=FixedClipping(norm=clip),
      ),
      batch_size=1,
      # The library's two numbers for the paper's: see `processes.ppsgd.process`.
      hyperparameters={
        'client_learning_rate': (
          step if math.isinf(alpha) else max(step / (rate * users), alpha * step)
        ),
        'personalization_alpha': alpha * rate * users,
      },
      options={'iterate': 'average'},
    ),
  )  # fmt: skip
  key = NoiseKey.rehearsal(0)
  found: list[Risks] = []
  with runtime.create('xla', devices='cpu') as machine:
    server = method.initial_server_state(0, noise_key=key)
    states = machine.place_states(method.initial_client_states(server, users, noise_key=key))
    points = _placed(machine, data.excess_risk)

    def risk(which: str) -> float:
      evaluation = method.build_evaluation(which, spec_of(data.excess_risk))
      sums = machine.evaluate(evaluation, server, states, points)
      return float(np.mean(sums['loss'] / sums['num_examples']))

    for round_number, examples in enumerate(data.train.prefetch(range(max(rounds)))):
      placed = _placed(machine, examples)
      cohort = cohorts.sample(0, round_number)
      server, _ = machine.round(method.process.next, server, states, placed, cohort)
      if round_number + 1 in rounds:
        found.append(Risks(risk('personal'), risk('last_iterate')))
  return found


def _placed(machine: runtime.Runtime, examples: Any) -> runtime.ClientData:
  return machine.place(
    dict(
      x=examples.x, y=examples.y, num_examples=examples.num_examples,
      client_id=np.arange(len(examples.num_examples), dtype=np.int32),
    )
  )  # fmt: skip


def _at_steps(
  steps: Sequence[float], rounds: Sequence[int], data: Data, **values: float
) -> list[Risks]:
  """The risks after so many rounds, each with its step: those with one step are of one run."""
  found = {}
  for step in dict.fromkeys(steps):
    of_step = [n for n, own in zip(rounds, steps, strict=True) if own == step]
    of_run = risks(data, step=step, rounds=of_step, **values)
    found.update({(step, n): risk for n, risk in zip(of_step, of_run, strict=True)})
  return [found[key] for key in zip(steps, rounds, strict=True)]
