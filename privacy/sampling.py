"""How the cohort of a round is drawn, and what that sampling costs.

A sampler draws the cohorts *and* makes the privacy event of a round, so what is
accounted for is what was done. Cohorts are keyed by (root, round): a resumed
run draws the same ones. Where sampling amplifies privacy the cohorts are secret,
and the root is a secret noise key.
"""

import dataclasses
import math
from typing import Protocol, TypeAlias, runtime_checkable

import dp_accounting
import numpy as np

from privacy.events import Adjacency, KnownParticipationDpEvent
from runtime import noise_key, random_streams

_LISTED = 1_000_000  # from so many clients on a Poisson cohort is drawn without listing them
_MOST = 2**31 - 1  # clients are numbered by 32 bits

Root: TypeAlias = int | noise_key.NoiseKey


@runtime_checkable
class CohortSampler(Protocol):
  """What the plans need of a sampler of clients."""

  @property
  def population(self) -> int:
    """Number of clients that may be drawn."""
    ...

  @property
  def rate(self) -> float:
    """Probability that a given client is in a given round."""
    ...

  @property
  def expected_size(self) -> float:
    """Expected number of clients in a round."""
    ...

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    """The neighbouring relations under which `event` is valid; the first is the headline's."""
    ...

  @property
  def description(self) -> str:
    """How the cohort is drawn, in words."""
    ...

  @property
  def secret(self) -> bool:
    """Whether privacy rests on nobody knowing who was drawn: then by a secret root."""
    ...

  def sample(self, root: Root, round_number: int) -> np.ndarray:
    """Sorted int32 indices of the round's clients; may be empty.

    Args:
      root: a public seed, or the run's secret noise key.
      round_number: from 0.
    """
    ...

  def event(
    self, noise_multiplier: float, adjacency: Adjacency | None = None
  ) -> dp_accounting.DpEvent:
    """The event of one noised sum over the cohort.

    Args:
      noise_multiplier: z; records have norm at most C, and the noise has the deviation z C.
      adjacency: one of `adjacencies`; None is the first.

    Raises:
      ValueError: another adjacency.
    """
    ...


@dataclasses.dataclass(frozen=True)
class PoissonCohorts:
  """Each client takes part in each round independently, with the same rate.

  A round may be empty; it still adds its noise and still counts. From a million clients on nobody
  is listed: the size of a cohort is drawn, a binomial number, and then who they are, each set of
  that size as likely as any other. That is the same distribution, in time and memory that go with
  the cohort.

  Formal guarantee: a sum of records of norm at most C with noise of standard deviation z C is
  `PoissonSampled(rate, Gaussian(z))` where one client contributes nothing (zero-out), and
  `PoissonSampled(rate, Gaussian(z / 2))` where its data are replaced: the sum then moves by up to
  2 C. The population is public: the rate, the divisors and the noise may depend on it, so that
  adding or removing a client is not covered.

  Attributes:
    population: number of clients.
    rate: probability of taking part in a round, in (0, 1].
  """

  population: int
  rate: float

  secret = True

  def __post_init__(self):
    _check_population(self.population)
    if not 0 < self.rate <= 1:
      raise ValueError(f'cohort sampling rate must be in (0, 1], got {self.rate}.')

  @property
  def expected_size(self) -> float:
    return self.rate * self.population

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    return Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE

  @property
  def description(self) -> str:
    return (
      f'each of the {self.population} clients takes part in a round independently with '
      f'probability {self.rate:.6g} (Poisson sampling, {self.expected_size:.6g} clients expected)'
    )

  def sample(self, root: Root, round_number: int) -> np.ndarray:
    generator = _generator(root, round_number)
    if self.population < _LISTED:
      return np.flatnonzero(generator.random(self.population) < self.rate).astype(np.int32)
    size = int(generator.binomial(self.population, self.rate))
    return _distinct(generator, self.population, size)

  def event(
    self, noise_multiplier: float, adjacency: Adjacency | None = None
  ) -> dp_accounting.DpEvent:
    return dp_accounting.PoissonSampledDpEvent(
      float(self.rate), gaussian(self, noise_multiplier, adjacency)
    )


@dataclasses.dataclass(frozen=True)
class FixedSizeCohorts:
  """Each round draws a fixed number of clients uniformly, without replacement.

  Formal guarantee: replace one client, the population being public. Replacing a record of norm at
  most C moves the sum by up to 2 C, so noise of standard deviation z C has the noise multiplier
  z / 2 relative to the sensitivity: `SampledWithoutReplacement(population, size, Gaussian(z / 2))`.
  A client who contributes nothing is a special case: the same number bounds zero-out.
  It holds against those who do not know who took part. The other clients together do (one of a
  full cohort's places is left, or none), and against them nothing is amplified: the billboard
  lemma of joint privacy does not apply. Nor does the theorem of composition cover reports that
  depend on the client's own earlier rounds, as others' rounds are not independent of one's own.
  For those `is_known` accounts as if all knew who takes part: a client is in a round with the
  probability size / population, whatever was before, and then has a Gaussian mechanism's loss.

  Attributes:
    population: number of clients.
    size: clients in a round, from 1 to the population.
    is_known: whether the guarantee is to hold against those who know who takes part.
  """

  population: int
  size: int
  is_known: bool = False

  secret = True

  def __post_init__(self):
    _check_population(self.population)
    if self.size != int(self.size) or not 1 <= self.size <= self.population:
      raise ValueError(
        f'clients per round must be a whole number from 1 to the {self.population} clients, '
        f'got {self.size}.'
      )

  @property
  def rate(self) -> float:
    return self.size / self.population

  @property
  def expected_size(self) -> float:
    return float(self.size)

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    return (Adjacency.REPLACE_ONE,)

  @property
  def description(self) -> str:
    known = ', accounted for as if all knew which' if self.is_known else ''
    return (
      f'each round draws {self.size} of the {self.population} clients uniformly without '
      f'replacement{known}'
    )

  def sample(self, root: Root, round_number: int) -> np.ndarray:
    return _distinct(_generator(root, round_number), self.population, self.size)

  def event(
    self, noise_multiplier: float, adjacency: Adjacency | None = None
  ) -> dp_accounting.DpEvent:
    event = gaussian(self, noise_multiplier, adjacency)
    if self.is_known and self.rate < 1:
      return KnownParticipationDpEvent(float(self.rate), event)
    return dp_accounting.SampledWithoutReplacementDpEvent(
      int(self.population), int(self.size), event
    )


@dataclasses.dataclass(frozen=True)
class EveryClient:
  """Every client takes part in every round: no amplification by sampling.

  Formal guarantee: `Gaussian(z)` in each round where one client contributes nothing (zero-out),
  `Gaussian(z / 2)` where its data are replaced. The population is public.

  Attributes:
    population: number of clients.
  """

  population: int

  secret = False

  def __post_init__(self):
    _check_population(self.population)

  @property
  def rate(self) -> float:
    return 1.0

  @property
  def expected_size(self) -> float:
    return float(self.population)

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    return Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE

  @property
  def description(self) -> str:
    return f'all {self.population} clients take part in every round'

  def sample(self, root: Root, round_number: int) -> np.ndarray:
    del root, round_number
    return np.arange(self.population, dtype=np.int32)

  def event(
    self, noise_multiplier: float, adjacency: Adjacency | None = None
  ) -> dp_accounting.DpEvent:
    return gaussian(self, noise_multiplier, adjacency)


def gaussian(
  sampler, noise_multiplier: float, adjacency: Adjacency | None
) -> dp_accounting.GaussianDpEvent:
  """The Gaussian mechanism on a sampler's sum, its noise relative to the sensitivity.

  Raises:
    ValueError: an adjacency under which the sampler has no event.
  """
  if adjacency is None:
    adjacency = sampler.adjacencies[0]
  if adjacency not in sampler.adjacencies:
    raise ValueError(
      f'adjacency of {type(sampler).__name__} must be '
      f'{" or ".join(a.value for a in sampler.adjacencies)}, got {adjacency.value}.'
    )
  return dp_accounting.GaussianDpEvent(float(noise_multiplier) / adjacency.sensitivity)


def _distinct(generator: np.random.Generator, population: int, size: int) -> np.ndarray:
  """Sorted int32 [size]: a uniformly random set of clients. None is listed where they are few."""
  chosen = generator.choice(population, size=size, replace=False, shuffle=False)
  return np.sort(chosen).astype(np.int32)


def _check_population(population: int):
  if not math.isfinite(population) or population != int(population) or population < 1:
    raise ValueError(f'number of clients must be a positive whole number, got {population}.')
  if population > _MOST:
    raise ValueError(f'number of clients must be at most {_MOST}, got {population}.')


def _generator(root: Root, round_number: int) -> np.random.Generator:
  return random_streams.host_generator(root, random_streams.Stream.COHORT, round_number)
