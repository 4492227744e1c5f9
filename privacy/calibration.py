"""From a target epsilon to a noise multiplier.

The result never gives less privacy than asked: the accountant's epsilon at the
returned noise multiplier is at most the target. Noise multipliers are returned
as float32 values (rounded up), which are what the mechanisms compute with.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable

import attr
import dp_accounting
import numpy as np
from scipy import optimize

from privacy import accounting, correlated, plan, sampling
from privacy import selection as selection_lib
from privacy import tuning as tuning_lib
from privacy.rounding import rounded_up

# The bracket of the search. Below it nothing useful is private, above it
# nothing useful is left of the signal.
MIN_NOISE_MULTIPLIER = 0.05
MAX_NOISE_MULTIPLIER = 1e6


def calibrate_client_level(
  *,
  target_epsilon: float,
  delta: float,
  rounds: int,
  cohorts: sampling.CohortSampler,
  clipping: plan.FixedClipping | plan.AdaptiveClipping,
  num_opted_out: int = 0,
  tuning: tuning_lib.PrivateTuning | None = None,
  accountant: str = 'pld',
  correlation: correlated.Strategy | None = None,
) -> plan.ClientLevelPrivacy:
  """The client-level plan that spends at most epsilon over the rounds.

  Args:
    target_epsilon: positive.
    delta: in (0, 1); a warning if it is above 1 / population.
    rounds: number of rounds to be run.
    cohorts: how clients are drawn.
    clipping: how updates are clipped.
    num_opted_out: see `ClientLevelPrivacy`.
    tuning: see `ClientLevelPrivacy`.
    accountant: by which epsilon is at most the target, see `accounting.loss`.
    correlation: see `ClientLevelPrivacy`.

  Raises:
    ValueError: a target that no noise reaches, or that adaptive clipping's
      quantile noise does not allow.
  """
  _check_target(target_epsilon, delta, cohorts.population, 'clients')
  _check_rounds(rounds)

  draft = plan.ClientLevelPrivacy(
    cohorts=cohorts,
    noise_multiplier=0.0,
    delta=delta,
    clipping=clipping,
    num_opted_out=num_opted_out,
    tuning=tuning,
    accountant=accountant,
    correlation=correlation,
  )
  # The event alone: adaptive clipping may refuse a noise multiplier on the way to the right one.
  fixed = dataclasses.replace(draft, clipping=plan.FixedClipping(norm=1.0))

  def epsilon(noise_multiplier: float) -> float:
    return dataclasses.replace(fixed, noise_multiplier=noise_multiplier).epsilon(rounds)

  noise = _smallest_noise(epsilon, target_epsilon, delta, accountant)
  return dataclasses.replace(draft, noise_multiplier=noise)


def calibrate_example_level(
  *,
  target_epsilon,
  delta,
  rounds: int,
  num_examples,
  batch_size: int,
  steps_per_round,
  clipping_norm: float,
  batches: str = 'poisson',
  batch_capacity: int | None = None,
  cohorts: sampling.CohortSampler | None = None,
  selection: selection_lib.PrivateSelection | None = None,
  tuning: tuning_lib.PrivateTuning | None = None,
  accountant: str = 'pld',
) -> plan.ExampleLevelPrivacy:
  """The example-level plan in which each silo spends at most its epsilon.

  Silos with the same mechanisms and budget share one search.

  Args:
    target_epsilon: float [K] or scalar, positive: each silo's *total* budget.
    delta: float [K] or scalar; a warning where it is above 1 / n_k.
    rounds: number of rounds to be run.
    num_examples: n_k, int [K].
    batch_size: B.
    steps_per_round: int [K] or scalar (`plan.local_steps_per_round`).
    clipping_norm: C.
    batches: see `ExampleLevelPrivacy`.
    batch_capacity: see `ExampleLevelPrivacy`.
    cohorts: see `ExampleLevelPrivacy`.
    selection: private selections; DP-SGD gets what they leave of the budget.
    tuning: see `ExampleLevelPrivacy`.
    accountant: by which epsilon is at most the target, see `accounting.loss`.

  Raises:
    ValueError: a target that no noise reaches (such as selections which alone
      spend it), or a delta outside (0, 1).
  """
  _check_rounds(rounds)
  num_examples = np.atleast_1d(np.asarray(num_examples))
  _check_target(target_epsilon, delta, num_examples, 'examples')
  if cohorts is None:
    cohorts = sampling.EveryClient(len(num_examples))
  draft = plan.ExampleLevelPrivacy(
    num_examples=num_examples,
    batch_size=batch_size,
    steps_per_round=steps_per_round,
    noise_multiplier=0.0,
    delta=delta,
    clipping_norm=clipping_norm,
    batches=batches,
    batch_capacity=batch_capacity,
    cohorts=cohorts,
    selection=selection,
    tuning=tuning,
    accountant=accountant,
  )
  targets = np.broadcast_to(np.asarray(target_epsilon, np.float64), num_examples.shape)
  noise = [
    _silo_noise(
      draft.silo_batches[k].event(1.0, int(rounds)),
      float(draft.delta[k]),
      float(targets[k]),
      None if selection is None else selection.event(rounds),
      tuning,
      accountant,
    )
    for k in range(draft.num_silos)
  ]
  return dataclasses.replace(draft, noise_multiplier=np.array(noise))


def calibrate_score(
  tuning: tuning_lib.PrivateTuning,
  *,
  target_epsilon: float,
  delta: float,
  accountant: str = 'pld',
) -> float:
  """The least noise of the scores at which an example that they are of spends at most epsilon.

  Args:
    tuning: with scores of held-out examples, who pay for nothing else.
    target_epsilon: positive.
    delta: in (0, 1).
    accountant: by which epsilon is at most the target, see `accounting.loss`.
  """
  _check_target(target_epsilon, delta, 1, 'examples')

  def epsilon(noise_multiplier: float) -> float:
    noised = dataclasses.replace(tuning, score_noise_multiplier=noise_multiplier)
    return accounting.loss(noised.scores_event(), delta, accountant=accountant).epsilon

  return _smallest_noise(epsilon, target_epsilon, delta, accountant)


def rounds_within(budget: float, epsilon: Callable[[int], float], most: int) -> int:
  """The largest number of rounds, from 0 to `most`, whose epsilon is at most the budget.

  As it follows from public settings, a run that ends there is a filter: the end tells nothing.
  """
  if epsilon(most) <= budget:
    return most
  allowed, too_many = 0, most
  while too_many - allowed > 1:
    middle = (allowed + too_many) // 2
    if epsilon(middle) <= budget:
      allowed = middle
    else:
      too_many = middle
  return allowed


@functools.cache
def _silo_noise(
  training: dp_accounting.DpEvent,
  delta: float,
  target_epsilon: float,
  choices: dp_accounting.DpEvent | None,
  tuning: tuning_lib.PrivateTuning | None,
  accountant: str,
) -> float:
  def epsilon_of(steps: dp_accounting.DpEvent) -> float:
    run = steps
    if choices is not None:
      run = dp_accounting.ComposedDpEvent([steps, choices])
    event = run if tuning is None else tuning.event(run, shared=True)
    return accounting.loss(event, delta, accountant=accountant).epsilon

  alone = epsilon_of(dp_accounting.NoOpDpEvent())
  # Scores of held-out examples may spend all of it: nothing is taken from training.
  is_spent = alone == target_epsilon and (tuning is None or not tuning.held_out_score)
  if alone > target_epsilon or is_spent:
    raise ValueError(
      f'private choices alone spend {rounded_up(alone)} of the target epsilon {target_epsilon:.6g} '
      f'at delta {delta:.6g}: nothing is left for training. '
      f'{"" if choices is None else f"Selections: {choices}. "}'
      f'{"" if tuning is None else f"Tuning: {tuning}."}'
    )

  def epsilon(noise_multiplier: float) -> float:
    return epsilon_of(_with_noise(training, noise_multiplier))

  return _smallest_noise(epsilon, target_epsilon, delta, accountant)


def _with_noise(event: dp_accounting.DpEvent, noise_multiplier: float) -> dp_accounting.DpEvent:
  """The event with another noise multiplier in its Gaussian mechanism."""
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return dp_accounting.GaussianDpEvent(noise_multiplier)
  return attr.evolve(event, event=_with_noise(event.event, noise_multiplier))


def _smallest_noise(
  epsilon_of_noise: Callable[[float], float],
  target_epsilon: float,
  delta: float,
  accountant: str,
) -> float:
  """The smallest noise multiplier of the bracket whose epsilon is at most the target."""

  def gap(log_noise: float) -> float:
    return epsilon_of_noise(math.exp(log_noise)) - target_epsilon

  low, high = 0.0, math.log(2.0)  # expands from 1..2 to a bracket of a factor of 2
  limits = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
  while gap(high) > 0:
    if high >= limits[1]:
      raise ValueError(
        f'target epsilon {target_epsilon:.6g} at delta {delta:.6g} is too small: no noise '
        f'multiplier up to {MAX_NOISE_MULTIPLIER:g} reaches it.'
      )
    low, high = high, min(2 * high + math.log(2.0), limits[1])
  while gap(low) <= 0:
    if low <= limits[0]:
      return _float32_above(MIN_NOISE_MULTIPLIER)
    low, high = max(low - math.log(2.0), limits[0]), low
  # An infinite epsilon has no slope: halve the interval until there is one.
  while not math.isfinite(gap(low)):
    middle = (low + high) / 2
    low, high = (middle, high) if gap(middle) > 0 else (low, middle)
  # The grid of a loss distribution follows the noise in small jumps, of 1e-6 of epsilon or less.
  tolerance = 1e-9 if accountant == 'renyi' else 1e-7
  result = _float32_above(math.exp(optimize.brentq(gap, low, high, xtol=tolerance)))
  more = 1e-7
  while gap(math.log(result)) > 0:
    result, more = _float32_above(result * (1 + more)), 2 * more
  return result


def _float32_above(value: float) -> float:
  rounded = np.float32(value)
  return float(rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf)))


def _check_rounds(rounds: int):
  if rounds != int(rounds) or rounds < 1:
    raise ValueError(f'number of rounds must be a positive whole number, got {rounds}.')


def _check_target(target_epsilon, delta, size, what: str):
  targets = np.asarray(target_epsilon, np.float64)
  if not np.all((targets > 0) & np.isfinite(targets)):
    raise ValueError(f'target epsilon must be positive and finite, got {target_epsilon}.')
  accounting.check_delta(delta)
  weak = np.asarray(delta) > 1 / np.asarray(size, np.float64)
  if np.any(weak):
    warnings.warn(
      f"delta {np.max(delta):.6g} is larger than 1 / n for {int(np.sum(weak))} of the federation's "
      f'populations of {what}: the guarantee is weak there. Use a smaller delta.',
      stacklevel=3,
    )
