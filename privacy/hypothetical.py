"""The noise of a larger deployment that is not simulated, as the field's benchmarks use it.

A simulation of 50 clients a round stands for a deployment with 1,000: its mean of updates is to
be as noisy as the mean over the 1,000 would be. Epsilon is then the deployment's, which nobody has
run, and never that of the clients whose data are here.
"""

import dataclasses
from collections.abc import Sequence

import dp_accounting

from privacy import accounting, client_level, sampling
from privacy import statement as statement_lib
from privacy.events import Adjacency
from privacy.rounding import rounded_up


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypotheticalDeployment(client_level.ClientLevelPrivacy):
  """Client-level privacy of a deployment with larger cohorts than those that are simulated.

  With C clients expected in a simulated round and D in one of the deployment, the sum over the
  simulated cohort gets noise of standard deviation (C / D) z S, S being the clip, and is divided by
  C: the mean has the deviation z S / D, as the deployment's.

  Formal guarantee: a client of the *deployment* has that of `ClientLevelPrivacy` with the cohorts
  `deployed` and noise multiplier z. The clients of the simulation have that of noise multiplier
  (C / D) z in the cohorts `cohorts` (`simulated`), which is far weaker.

  Source: the benchmarks of Granqvist et al. 2024 (arXiv 2404.06430), whose 'noise cohort' is D.

  Attributes:
    deployed: the deployment's cohorts, D or more clients of a population of its own.
  """

  deployed: sampling.PoissonCohorts

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.clipping, client_level.AdaptiveClipping):
      raise ValueError(
        'a hypothetical deployment needs a fixed clipping norm, not an adaptive one.'
      )
    if self.correlation is not None or self.tuning is not None or self.num_opted_out:
      raise ValueError(
        'a hypothetical deployment has independent noise, no private tuning, and nobody who opted '
        'out of privacy.'
      )
    # Both are rates times numbers, and rounded.
    if self.deployed.expected_size < self.cohorts.expected_size * (1 - 1e-12):
      raise ValueError(
        f'the hypothetical deployment has {self.deployed.expected_size:.6g} clients in a round, '
        f'fewer than the {self.cohorts.expected_size:.6g} of the simulation: it must be larger.'
      )

  @property
  def condition(self) -> str:
    return (
      f'a hypothetical deployment with {self.deployed.expected_size:.6g} of '
      f'{self.deployed.population} clients in a round, not of this simulation'
    )

  @property
  def scale(self) -> float:
    """C / D, by which the deployment's noise multiplier is multiplied."""
    return self.cohorts.expected_size / self.deployed.expected_size

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    return self.deployed.adjacencies

  @property
  def update_noise_multiplier(self) -> float:
    """(C / D) z, of the sum over the simulated cohort."""
    return self.scale * self.noise_multiplier

  @property
  def hyperparameters(self) -> dict[str, float]:
    return {**super().hyperparameters, 'noise_multiplier': self.update_noise_multiplier}

  @property
  def of_deployment(self) -> client_level.ClientLevelPrivacy:
    """The plan of the deployment."""
    return self._plan(self.deployed, self.noise_multiplier)

  @property
  def simulated(self) -> client_level.ClientLevelPrivacy:
    """What the clients have who are simulated: the same noise, in their own cohorts."""
    return self._plan(self.cohorts, self.update_noise_multiplier)

  def _plan(self, cohorts, noise_multiplier: float) -> client_level.ClientLevelPrivacy:
    return client_level.ClientLevelPrivacy(
      cohorts=cohorts,
      noise_multiplier=noise_multiplier,
      delta=self.delta,
      clipping=self.clipping,
      accountant=self.accountant,
    )

  def event(self, rounds: int, adjacency: Adjacency | None = None) -> dp_accounting.DpEvent:
    """The event of so many rounds of the deployment."""
    return self.of_deployment.event(rounds, adjacency)

  def statement(
    self, rounds: int, *, preprocessing: Sequence[str] = (), notes: Sequence[str] = ()
  ) -> statement_lib.PrivacyStatement:
    """What these rounds would guarantee in the deployment; arguments as for the base class."""
    adjacency = self.simulated.adjacencies[0]
    own = accounting.loss(  # by Renyi, whose bound is quick where there is next to no noise
      self.simulated.event(rounds), self.delta, adjacency, accountant='renyi'
    )
    told = self.of_deployment.statement(rounds, preprocessing=preprocessing, notes=notes)
    return dataclasses.replace(
      told,
      condition=self.condition,
      protected=f'Each client of {self.condition}, with all of its examples.',
      mechanism=(
        f'{told.mechanism} Simulated with {self.cohorts.expected_size:.6g} clients in a round: '
        f'their sum gets {self.scale:.6g} of that noise, so that the mean is as noisy.'
      ),
      parameters={
        **told.parameters,
        'noise_cohort_size': float(self.deployed.expected_size),
        'simulated_cohort_size': float(self.cohorts.expected_size),
        'simulated_noise_multiplier': float(self.update_noise_multiplier),
      },
      outside=(
        'The clients of this simulation. At the same delta their epsilon is '
        f'{rounded_up(own.epsilon)} ({adjacency.value}), and releasing this model would cost them '
        'that.',
        *told.outside,
      ),
    )
