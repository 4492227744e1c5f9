"""The privacy plan of a configuration: cohorts, clip, noise and accountant, calibrated."""

import pathlib
import warnings
from typing import Any

import numpy as np

import datasets
from experiments.config import silo_budgets
from experiments.config.experiment import ExperimentConfig
from experiments.folder import noise_correlations
from privacy import calibration, correlated, hypothetical, nothing_shared, plan, sampling
from privacy.correlated.cohorts import SeparatedCohorts
from processes.setup import Population, Setup
from runtime.noise_key import NoiseKey

_MOST_BUDGET_GROUPS = 6


def build_plan(config: ExperimentConfig, dataset: datasets.FederatedDataset) -> plan.PrivacyPlan:
  """The privacy plan: calibrated to the target epsilon where one is given.

  Raises:
    ValueError: the budget cannot be met, or does not fit the population.
  """
  cohorts = cohorts_of(config, dataset.num_clients)
  with warnings.catch_warnings():
    # A weak delta is part of the statement, in better words.
    warnings.filterwarnings('ignore', message='delta .* is larger than 1 / n')
    if config.privacy == 'client':
      return _client_level(config, cohorts, dataset)
    if config.privacy == 'example':
      return _example_level(config, cohorts, dataset)
  return plan.NoPrivacy(cohorts=cohorts)


def cohorts_of(config: ExperimentConfig, population: int) -> sampling.CohortSampler:
  """How the clients of a round are drawn.

  Raises:
    ValueError: more clients in a round than there are.
  """
  size, rate = config.clients_per_round, config.cohort_sampling_rate
  if size is not None and size > population:
    raise ValueError(
      f'--clients_per_round={size} must be at most {population}, the number of clients of '
      f'--dataset={config.dataset}.'
    )
  if config.cohort_sampling == 'fixed':
    is_known = config.declaration.has_stateful_reports
    return sampling.FixedSizeCohorts(population, size, is_known=is_known)
  if config.cohort_sampling == 'separated':
    return SeparatedCohorts(population, population // size)
  if size is None and rate is None:
    return sampling.EveryClient(population)
  return sampling.PoissonCohorts(population, size / population if rate is None else rate)


def _client_level(
  config: ExperimentConfig, cohorts: sampling.CohortSampler, dataset: datasets.FederatedDataset
) -> plan.PrivacyPlan:
  clipping: plan.FixedClipping | plan.AdaptiveClipping
  if config.adaptive_clipping:
    clipping = plan.AdaptiveClipping(
      initial_norm=config.clipping_norm,
      target_quantile=config.target_quantile,
      learning_rate=config.clipping_learning_rate,
      quantile_noise_multiplier=config.quantile_noise_multiplier,
    )
  else:
    clipping = plan.FixedClipping(norm=config.clipping_norm)
  common: dict[str, Any] = dict(
    cohorts=cohorts, delta=config.delta, clipping=clipping, accountant=config.accountant,
    correlation=correlation_of(config, cohorts),
  )  # fmt: skip
  share = setup_of(config, dataset).plan_share(config.target_epsilon, config.delta)
  if config.hypothetical_deployment:
    if share.num_opted_out or share.silent_setting:
      raise ValueError(
        f'--hypothetical_deployment cannot be used with --method={config.method} where clients opt '
        'out of privacy or share nothing.'
      )
    return _hypothetical(config, common)
  common['num_opted_out'] = share.num_opted_out
  if config.noise_multiplier is None:
    calibrated = calibration.calibrate_client_level(
      target_epsilon=config.target_epsilon, rounds=config.rounds, **common
    )
    if not share.silent_setting:
      return calibrated
    common['noise_multiplier'] = calibrated.noise_multiplier
  else:
    common['noise_multiplier'] = config.noise_multiplier
  if share.silent_setting:
    return nothing_shared.NothingShared(silent_setting=share.silent_setting, **common)
  return plan.ClientLevelPrivacy(**common)


def _hypothetical(config: ExperimentConfig, common: dict[str, Any]) -> plan.PrivacyPlan:
  simulated, size = common['cohorts'], config.noise_cohort_size
  population = config.noise_population or simulated.population
  # An expected size is a rate times a number, and rounded.
  if not simulated.expected_size * (1 - 1e-12) <= size <= population:
    raise ValueError(
      f'--noise_cohort_size={size} must be from {simulated.expected_size:.6g}, the clients in a '
      f'simulated round, to {population}, those of the deployment (--noise_population).'
    )
  deployed = sampling.PoissonCohorts(population, size / population)
  noise = config.noise_multiplier
  if noise is None:
    noise = calibration.calibrate_client_level(
      target_epsilon=config.target_epsilon, rounds=config.rounds, **{**common, 'cohorts': deployed}
    ).noise_multiplier
  return hypothetical.HypotheticalDeployment(deployed=deployed, noise_multiplier=noise, **common)


def correlation_of(
  config: ExperimentConfig, cohorts: sampling.CohortSampler
) -> correlated.Strategy | None:
  """The strategy of the noise: that with which the run was begun, or one fitted now."""
  if not isinstance(cohorts, SeparatedCohorts):
    return None
  participation = cohorts.participation(config.rounds)
  match config.noise_correlation:
    case 'independent':
      return correlated.Independent(rounds=config.rounds)
    case 'tree':
      return correlated.Tree(rounds=config.rounds)
    case 'buffered':
      buffers = config.noise_buffers or 3
      begun = noise_correlations.read(config.output_dir, (2, buffers))
      if begun is None:
        return correlated.fit_buffered_toeplitz(participation, buffers)
      scales, decays = begun.tolist()
      return correlated.BufferedToeplitz(
        rounds=config.rounds, scales=tuple(scales), decays=tuple(decays)
      )
  most = min(participation.separation, config.rounds)
  width = config.noise_bands or most
  if width > most:
    raise ValueError(
      f'--noise_bands={width} must be at most {most}, the rounds from one of a client to its next.'
    )
  begun = noise_correlations.read(config.output_dir, (config.rounds, width))
  if begun is None:
    return correlated.fit_banded(participation, width)
  return correlated.Banded(bands=begun)


def _example_level(
  config: ExperimentConfig, cohorts: sampling.CohortSampler, dataset: datasets.FederatedDataset
) -> plan.PrivacyPlan:
  num_examples = dataset.train.num_examples
  target: Any = config.target_epsilon
  delta: Any = config.delta
  if config.silo_epsilons is not None:
    target, delta = _silo_budgets(config, dataset)
  smallest_target = None if target is None else float(np.min(target))
  share = setup_of(config, dataset).plan_share(smallest_target, float(np.min(delta)))
  common: dict[str, Any] = dict(
    cohorts=cohorts,
    num_examples=num_examples,
    batch_size=config.batch_size,
    clipping_norm=config.clipping_norm,
    batches=config.batches,
    batch_capacity=config.batch_capacity,
    steps_per_round=plan.local_steps_per_round(
      num_examples,
      config.batch_size,
      config.local_epochs,
      passes=config.declaration.passes,
    ),
    selection=share.selection,
    tuning=share.tuning,
    accountant=config.accountant,
  )
  if config.noise_multiplier is not None:
    return plan.ExampleLevelPrivacy(
      noise_multiplier=config.noise_multiplier, delta=config.delta, **common
    )
  return calibration.calibrate_example_level(
    target_epsilon=target, delta=delta, rounds=config.rounds, **common
  )


def budget_groups(
  config: ExperimentConfig, dataset: datasets.FederatedDataset
) -> dict[str, np.ndarray]:
  """The silos of each epsilon of `--silo_epsilons`, bool [K] by name; none if all are alike.

  Nor are there any where most silos have a budget of their own: the table of clients shows those.
  """
  if config.silo_epsilons is None:
    return {}
  epsilons, _ = _silo_budgets(config, dataset)
  several = np.unique(epsilons)
  if not 1 < len(several) <= _MOST_BUDGET_GROUPS:
    return {}
  return {
    f'epsilon {np.format_float_positional(epsilon, trim="-")}': epsilons == epsilon
    for epsilon in several
  }


def _silo_budgets(
  config: ExperimentConfig, dataset: datasets.FederatedDataset
) -> tuple[np.ndarray, np.ndarray]:
  """(epsilons, deltas) of the silos, float64 [K] each."""
  return silo_budgets.read_epsilons(
    pathlib.Path(config.silo_epsilons),
    dataset.client_ids,
    config.delta,
    left_out=dataset.left_out,
  )


def setup_of(
  config: ExperimentConfig,
  dataset: datasets.FederatedDataset,
  noise_key: NoiseKey | None = None,
) -> Setup:
  """What the method takes from the configuration and the clients."""
  population = Population(
    client_ids=dataset.client_ids,
    left_out=dataset.left_out,
    num_examples=dataset.train.num_examples,
    groups=dataset.groups,
    loss_scale=dataset.task.loss_scale,
  )
  return config.declaration.setup(config, population, noise_key)
