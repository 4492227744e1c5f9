"""Client-level privacy: a client's whole data is protected by clipping and noising its update."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting

from privacy import accounting, correlated, guarantee, queries, sampling, wording
from privacy import statement as statement_lib
from privacy import tuning as tuning_lib
from privacy.correlated import query
from privacy.correlated.cohorts import SeparatedCohorts
from privacy.correlated.noise import NoiseStream
from privacy.events import Adjacency
from runtime.noise_key import NoiseKey


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedClipping:
  """Updates are clipped to a constant L2 norm.

  Attributes:
    norm: the clipping norm C > 0; infinite only without noise.
  """

  norm: float

  def __post_init__(self):
    accounting.check_clipping_norm(self.norm)

  @property
  def initial_norm(self) -> float:
    return self.norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
  """The clip follows a quantile of the update norms (Andrew et al. 2021).

  Attributes:
    initial_norm: the first clipping norm, positive and finite.
    target_quantile: the fraction of updates to be left unclipped, in [0, 1].
    learning_rate: of the geometric update of the clip.
    quantile_noise_multiplier: sigma_b, the standard deviation of the noise on
      the number of unclipped clients, in clients; by default 1/20 of the
      expected cohort, as Andrew et al. recommend.
  """

  initial_norm: float = 0.1
  target_quantile: float = 0.5
  learning_rate: float = 0.2
  quantile_noise_multiplier: float | None = None

  def __post_init__(self):
    if not (self.initial_norm > 0 and math.isfinite(self.initial_norm)):
      raise ValueError(
        f'initial clipping norm of adaptive clipping must be positive and finite, '
        f'got {self.initial_norm}.'
      )
    if not 0 <= self.target_quantile <= 1:
      raise ValueError(f'target quantile must be in [0, 1], got {self.target_quantile}.')
    if not (self.learning_rate >= 0 and math.isfinite(self.learning_rate)):
      raise ValueError(f'clipping learning rate must be 0 or more, got {self.learning_rate}.')
    sigma = self.quantile_noise_multiplier
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
      raise ValueError(f'quantile noise multiplier must be positive, got {sigma}.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientLevelPrivacy:
  """Client-level DP by clipped updates, a noised sum and a fixed denominator.

  Formal guarantee: with respect to all data of one client, under the cohort sampler's relations
  (zero-out and replace-one, or replace-one alone for cohorts of fixed size). The number of clients
  is public: the sampling rate and the divisor follow from it. The sum of the updates clipped to C
  gets noise of standard deviation z C and is divided by q N, which does not depend on who was
  drawn. With adaptive clipping, z is the noise multiplier of the update and the count *together*;
  it is accounted once.

  Attributes:
    cohorts: how clients are drawn.
    noise_multiplier: z >= 0, relative to the clip.
    delta: the guarantee's delta, in (0, 1).
    clipping: `FixedClipping` or `AdaptiveClipping`.
    num_opted_out: clients (a public number) who opted out of privacy: they have
      no guarantee, and are not in the private sum's denominator.
    tuning: set if this run is the released one of a private tuning: epsilon then
      includes the other runs.
    accountant: 'pld' (tight) or 'renyi'; see `accounting.loss`.
    correlation: how the noise of the rounds goes together, with `SeparatedCohorts` and a fixed
      clip; z is then the noise multiplier of the whole run. None: independent noise every round.

  Long because mechanism, event and statement stand in one place: they cannot disagree.
  """

  cohorts: sampling.CohortSampler
  noise_multiplier: float
  delta: float
  clipping: FixedClipping | AdaptiveClipping
  num_opted_out: int = 0
  tuning: tuning_lib.PrivateTuning | None = None
  accountant: str = 'pld'
  correlation: correlated.Strategy | None = None

  def __post_init__(self):
    accounting.check_delta(self.delta)
    accounting.check_accountant(self.accountant)
    accounting.check_noise_multiplier(self.noise_multiplier)
    if not 0 <= self.num_opted_out < self.cohorts.population:
      raise ValueError(
        f'number of clients without privacy must be from 0 to below the '
        f'{self.cohorts.population} clients, got {self.num_opted_out}.'
      )
    if self.tuning is not None and self.tuning.held_out_score:
      raise ValueError(
        'held_out_score keeps an example out of the training, and no client: a client has rows in '
        'both parts, and pays for both. Leave it out.'
      )
    if self.noise_multiplier > 0 and math.isinf(self.clipping.initial_norm):
      raise ValueError(
        'clipping norm must be finite when there is noise: the noise is a multiple of it.'
      )
    if isinstance(self.clipping, AdaptiveClipping) and self.noise_multiplier > 0:
      _check_budget_split(self.noise_multiplier, self.quantile_noise_multiplier)
    if (self.correlation is not None) != isinstance(self.cohorts, SeparatedCohorts):
      raise ValueError('cohorts with a minimum separation and a strategy of noise go together.')
    if self.correlation is not None and isinstance(self.clipping, AdaptiveClipping):
      raise ValueError('correlated noise needs a fixed clipping norm, not an adaptive one.')

  unit = 'client'

  @property
  def condition(self) -> str:
    """Whose the guarantee is, where it is not that of the clients who are here."""
    return ''

  @property
  def adjacencies(self) -> tuple[Adjacency, ...]:
    """The neighbouring relations under which epsilon is known; the first is the headline's."""
    return self.cohorts.adjacencies

  @property
  def adjacency(self) -> str:
    """The neighbouring relation, in words."""
    return self.adjacencies[0].words('federations', 'client', 'number of clients')

  @property
  def fixed_hyperparameters(self) -> Mapping[str, float]:
    """A method's hyper-parameters on which the guarantee rests, with the values it needs."""
    return {}

  @property
  def denominator(self) -> float:
    """q N, the fixed divisor of the noised sum (of the clients with privacy)."""
    return self.cohorts.rate * (self.cohorts.population - self.num_opted_out)

  @property
  def quantile_noise_multiplier(self) -> float:
    """sigma_b of adaptive clipping, in clients."""
    if isinstance(self.clipping, FixedClipping):
      raise ValueError('a fixed clipping norm has no quantile noise multiplier.')
    sigma = self.clipping.quantile_noise_multiplier
    return self.cohorts.expected_size / 20 if sigma is None else sigma

  @property
  def update_noise_multiplier(self) -> float:
    """z_delta, of the update alone: z, or what the quantile's share leaves."""
    z = self.noise_multiplier
    if isinstance(self.clipping, FixedClipping) or z == 0:
      return z
    return (z**-2 - (2 * self.quantile_noise_multiplier) ** -2) ** -0.5

  @property
  def hyperparameters(self) -> dict[str, float]:
    """The plan's values of what `make_query` takes as tensors."""
    values = {
      'clipping_norm': self.clipping.initial_norm,
      'noise_multiplier': self.noise_multiplier,
    }
    if isinstance(self.clipping, AdaptiveClipping):
      values['target_quantile'] = self.clipping.target_quantile
      values['clipping_learning_rate'] = self.clipping.learning_rate
      values['quantile_noise_multiplier'] = self.quantile_noise_multiplier
    return values

  def make_query(
    self,
    hyperparameters: Mapping[str, Any] | None = None,
    noise_key: Any = None,
    template: Any = None,
  ) -> queries.TreeQuery:
    """The mechanism of a round, as a TF-Privacy query.

    Example, inside a TFF process (update is a nested OrderedDict of tensors):

        query = plan.make_query()

        @tff.tensorflow.computation
        def initialize():
          return query.initial_global_state()

        @tff.tensorflow.computation(params_type, update_type)
        def clip(params, update):                        # at each client
          return query.preprocess_record(params, update)

        @tff.tensorflow.computation(sum_type, state_type)
        def noise(total, state):                         # at the server
          noised, state, _ = query.get_noised_result(total, state)
          mean = tf.nest.map_structure(lambda x: x / plan.denominator, noised)
          return mean, state

    All continuous parameters are in the state that `initial_global_state`
    returns, so that a sweep gives the same computations other states:
    `plan.make_query(values, noise_key).initial_global_state()`.

    Args:
      hyperparameters: overrides of `self.hyperparameters`, Python numbers or
        float32 scalars. Values that differ from the plan's have another
        epsilon than the plan says.
      noise_key: the run's secret `NoiseKey` or its words, int32 [8]; a fresh one by
        default. The state holds the words: it is as secret as they are. (An int32 scalar
        is taken as well; noise from such a public seed can be subtracted.)
      template: tensors with the shapes of an update, which correlated noise needs.

    Returns:
      The query. Round by round it draws noise keyed by (noise key, counter), the
      counter being in its global state.
    """
    values = {**self.hyperparameters, **(hyperparameters or {})}
    if noise_key is None:
      noise_key = NoiseKey.fresh()
    if isinstance(noise_key, NoiseKey):
      noise_key = noise_key.words
    if self.correlation is not None:
      return query.correlated_query(values, noise_key, self.noise_stream, template)
    if isinstance(self.clipping, FixedClipping):
      return queries.fixed_clip_query(values, noise_key)
    return queries.TreeQuery(
      queries.StreamQuantileAdaptiveClipSumQuery(
        values['clipping_norm'],
        values['noise_multiplier'],
        values['target_quantile'],
        values['clipping_learning_rate'],
        values['quantile_noise_multiplier'],
        self.cohorts.expected_size,
        noise_key,
      )
    )

  @property
  def noise_stream(self) -> NoiseStream:
    """The correlated noise, round by round.

    Raises:
      ValueError: the noise of the rounds is independent.
    """
    if self.correlation is None or not isinstance(self.cohorts, SeparatedCohorts):
      raise ValueError('the noise of the rounds is independent.')
    return NoiseStream(self.correlation, self.cohorts.participation(self.correlation.rounds))

  def event(self, rounds: int, adjacency: Adjacency | None = None) -> dp_accounting.DpEvent:
    """The event of the given number of rounds.

    Args:
      rounds: from 0.
      adjacency: one of `adjacencies`; None is the first.

    Raises:
      ValueError: more rounds than the correlated noise is made for.
    """
    rounds = accounting.check_rounds(rounds)
    run: dp_accounting.DpEvent
    if self.correlation is not None and isinstance(self.cohorts, SeparatedCohorts):
      run = self.cohorts.event_of_rounds(self.correlation, rounds, self.noise_multiplier, adjacency)
    else:
      run = dp_accounting.SelfComposedDpEvent(
        self.cohorts.event(self.noise_multiplier, adjacency), rounds
      )
    return run if self.tuning is None else self.tuning.event(run)

  def loss(
    self, rounds: int, adjacency: Adjacency | None = None, *, accountant: str | None = None
  ) -> accounting.PrivacyLoss:
    """The guarantee of the given number of rounds.

    Args:
      rounds: from 0.
      adjacency: one of `adjacencies`; None is the first.
      accountant: None is the plan's.

    Raises:
      ValueError: the accountants do not have the event under the adjacency.
    """
    adjacency = adjacency or self.adjacencies[0]
    event = self.event(rounds, adjacency)
    return accounting.loss(event, self.delta, adjacency, accountant=accountant or self.accountant)

  def loss_of_runs(self, rounds: int, runs: int) -> accounting.PrivacyLoss:
    """The guarantee of so many runs on the same data, if all of them are released."""
    event = dp_accounting.SelfComposedDpEvent(self.event(rounds), int(runs))
    return accounting.loss(event, self.delta, self.adjacencies[0], accountant=self.accountant)

  def epsilon(self, rounds: int) -> float:
    """Epsilon of the given number of rounds, by the plan's accountant."""
    return self.loss(rounds).epsilon

  @property
  def _correlation_in_words(self) -> str:
    if self.correlation is None:
      return ''
    return f' of the whole run of {self.correlation.rounds} rounds, {self.correlation.description}'

  def statement(
    self, rounds: int, *, preprocessing: Sequence[str] = (), notes: Sequence[str] = ()
  ) -> statement_lib.PrivacyStatement:
    """What these rounds guarantee.

    Args:
      rounds: rounds that were run.
      preprocessing: sentences about steps outside the guarantee.
      notes: sentences of the method (such as what stays on the client).
    """
    protected = 'Each client, with all of its examples.'
    if self.num_opted_out:
      protected = (
        f'Each of the {self.cohorts.population - self.num_opted_out} clients with privacy, with '
        f'all of its examples. The {self.num_opted_out} clients who opted out have no guarantee.'
      )
    if isinstance(self.clipping, FixedClipping):
      clip = f'clipped to L2 norm {self.clipping.norm:.6g}'
    else:
      clip = (
        f'clipped to the adaptive L2 norm that follows the {self.clipping.target_quantile:.6g} '
        f'quantile (noise of {self.quantile_noise_multiplier:.6g} clients on the count, '
        f'{self.update_noise_multiplier:.6g} clips on the sum, together the noise multiplier)'
      )
    return statement_lib.PrivacyStatement(
      unit=self.unit,
      protected=protected,
      adjacency=self.adjacency,
      mechanism=(
        f'Gaussian mechanism on the sum of client updates {clip}, noise multiplier '
        f'{self.noise_multiplier:.6g}{self._correlation_in_words}, divided by the fixed '
        f'{self.denominator:.6g}; '
        f'{self.cohorts.description}.{wording.of_tuning(self.tuning)}'
      ),
      rounds=accounting.check_rounds(rounds),
      **guarantee.findings(
        lambda adjacency: [self.event(rounds, adjacency)],
        self.delta,
        self.adjacencies,
        self.accountant,
      ),
      parameters={
        'population': int(self.cohorts.population),
        'sampling_rate': float(self.cohorts.rate),
        'noise_multiplier': float(self.noise_multiplier),
        'update_noise_multiplier': float(self.update_noise_multiplier),
        'num_opted_out': int(self.num_opted_out),
        **{f'mechanism_{k}': float(v) for k, v in self.hyperparameters.items()},
      },
      notes=tuple(notes),
      outside=(
        *wording.delta_warning(self.delta, self.cohorts.population),
        *preprocessing,
        *wording.outside(self.tuning),
      ),
    )


def _check_budget_split(noise_multiplier: float, sigma: float):
  if 2 * sigma <= noise_multiplier:
    raise ValueError(
      f'quantile noise multiplier {sigma:.6g} (--quantile_noise_multiplier, in clients) is too '
      f'small for the noise multiplier {noise_multiplier:.6g}: counting the unclipped clients '
      'alone would spend the budget. It must be above half the noise multiplier, '
      f'{noise_multiplier / 2:.6g}.'
    )
