"""Privacy plans: one object for the sampler, the mechanism and the accountant.

`NoPrivacy`, `ClientLevelPrivacy` and `ExampleLevelPrivacy` have the same
interface: `cohorts`, `unit`, `adjacency`, `epsilon(rounds)`,
`statement(rounds)`. Epsilon is always that of the rounds given, which are the
rounds that were run.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting
import numpy as np

from privacy import accounting, queries, sampling
from privacy import selection as selection_lib
from privacy import statement as statement_lib
from privacy import tuning as tuning_lib
from runtime import random_streams

_OUTSIDE = (
  'Metrics marked as simulation-only (training losses, update norms, cohort sizes, per-client test '
  'results) are not private releases.',
  'The noise is floating-point Gaussian noise for simulation, not hardened against attacks on '
  'floating-point arithmetic.',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedClipping:
  """Updates are clipped to a constant L2 norm.

  Attributes:
    norm: the clipping norm C > 0; infinite only without noise.
  """

  norm: float

  def __post_init__(self):
    if not self.norm > 0:
      raise ValueError(f'clipping norm must be positive, got {self.norm}.')

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
class NoPrivacy:
  """No guarantee: exact sums of unclipped updates.

  Attributes:
    cohorts: how clients are drawn.
  """

  cohorts: sampling.CohortSampler

  unit = 'none'
  adjacency = 'none'

  @property
  def denominator(self) -> float:
    """Expected number of clients in a round."""
    return self.cohorts.expected_size

  @property
  def hyperparameters(self) -> dict[str, float]:
    """Values that make the query exact: an infinite clip and no noise."""
    return {'clipping_norm': math.inf, 'noise_multiplier': 0.0}

  def make_query(
    self, hyperparameters: Mapping[str, Any] | None = None, seed: Any = 0
  ) -> queries.TreeQuery:
    """A query with the interface of the private ones, which changes nothing."""
    return _fixed_query({**self.hyperparameters, **(hyperparameters or {})}, seed)

  def event(self, rounds: int) -> dp_accounting.DpEvent:
    if _check_rounds(rounds) == 0:
      return dp_accounting.NoOpDpEvent()
    return dp_accounting.NonPrivateDpEvent()

  def epsilon(self, rounds: int) -> float:
    """Infinite, or zero before the first round."""
    return 0.0 if _check_rounds(rounds) == 0 else math.inf

  def statement(
    self, rounds: int, *, preprocessing: Sequence[str] = (), notes: Sequence[str] = ()
  ) -> statement_lib.PrivacyStatement:
    """Says that there is no guarantee."""
    return statement_lib.PrivacyStatement(
      unit=self.unit,
      protected='Nobody: this run has no differential privacy, and nothing bounds what its models '
      'reveal about any client or example.',
      adjacency=self.adjacency,
      mechanism='Exact sums of unclipped updates; ' + self.cohorts.description + '.',
      rounds=_check_rounds(rounds),
      loss=accounting.PrivacyLoss(
        epsilon=self.epsilon(rounds), delta=0.0, order=None, accountant='none'
      ),
      notes=tuple(notes),
      outside=tuple(preprocessing),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientLevelPrivacy:
  """Client-level DP by clipped updates, a noised sum and a fixed denominator.

  Formal guarantee: with respect to all data of one client, under the cohort
  sampler's relation (add/remove for Poisson and full participation, replace
  for cohorts of fixed size). The sum of the updates clipped to C gets noise of
  standard deviation z C and is divided by q N, which does not depend on who was
  drawn. With adaptive clipping, z is the noise multiplier of the update and the
  count *together*; it is accounted once.

  Attributes:
    cohorts: how clients are drawn.
    noise_multiplier: z >= 0, relative to the clip.
    delta: the guarantee's delta, in (0, 1).
    clipping: `FixedClipping` or `AdaptiveClipping`.
    num_opted_out: clients (a public number) who opted out of privacy: they have
      no guarantee, and are not in the private sum's denominator.
    tuning: set if this run is the released one of a private tuning: epsilon then
      includes the other runs.
  """

  cohorts: sampling.CohortSampler
  noise_multiplier: float
  delta: float
  clipping: FixedClipping | AdaptiveClipping
  num_opted_out: int = 0
  tuning: tuning_lib.PrivateTuning | None = None

  def __post_init__(self):
    accounting.check_delta(self.delta)
    _check_noise_multiplier(self.noise_multiplier)
    if not 0 <= self.num_opted_out < self.cohorts.population:
      raise ValueError(
        f'number of clients without privacy must be from 0 to below the '
        f'{self.cohorts.population} clients, got {self.num_opted_out}.'
      )
    if self.noise_multiplier > 0 and math.isinf(self.clipping.initial_norm):
      raise ValueError(
        'clipping norm must be finite when there is noise: the noise is a multiple of it.'
      )
    if isinstance(self.clipping, AdaptiveClipping) and self.noise_multiplier > 0:
      _check_budget_split(self.noise_multiplier, self.quantile_noise_multiplier)

  unit = 'client'

  @property
  def adjacency(self) -> str:
    """The neighbouring relation, in words."""
    if self.cohorts.relation is sampling.Relation.REPLACE_ONE:
      return 'replace-one: two federations that differ in all data of one client'
    return 'add/remove-one: two federations of which one has one more client'

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
    self, hyperparameters: Mapping[str, Any] | None = None, seed: Any = 0
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
    `plan.make_query(values, seed).initial_global_state()`.

    Args:
      hyperparameters: overrides of `self.hyperparameters`, Python numbers or
        float32 scalars. Values that differ from the plan's have another
        epsilon than the plan says.
      seed: int32 scalar, the run's seed.

    Returns:
      The query. Round by round it draws noise keyed by (seed, counter), the
      counter being in its global state.
    """
    values = {**self.hyperparameters, **(hyperparameters or {})}
    if isinstance(self.clipping, FixedClipping):
      return _fixed_query(values, seed)
    return queries.TreeQuery(
      queries.StreamQuantileAdaptiveClipSumQuery(
        values['clipping_norm'],
        values['noise_multiplier'],
        values['target_quantile'],
        values['clipping_learning_rate'],
        values['quantile_noise_multiplier'],
        self.cohorts.expected_size,
        seed,
      )
    )

  def event(self, rounds: int) -> dp_accounting.DpEvent:
    """The event of the given number of rounds."""
    run = dp_accounting.SelfComposedDpEvent(
      self.cohorts.event(self.noise_multiplier), _check_rounds(rounds)
    )
    return run if self.tuning is None else self.tuning.event(run)

  def loss(self, rounds: int) -> accounting.PrivacyLoss:
    """Epsilon of the given number of rounds, with its Renyi order."""
    return accounting.rdp_loss(self.event(rounds), self.delta, self.cohorts.relation)

  def epsilon(self, rounds: int) -> float:
    """Epsilon of the given number of rounds, by RDP."""
    return self.loss(rounds).epsilon

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
        f'{self.noise_multiplier:.6g}, divided by the fixed {self.denominator:.6g}; '
        f'{self.cohorts.description}.{_describe_tuning(self.tuning)}'
      ),
      rounds=_check_rounds(rounds),
      loss=self.loss(rounds),
      pld_epsilon=accounting.pld_epsilon(self.event(rounds), self.delta, self.cohorts.relation),
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
        *_delta_warning(self.delta, self.cohorts.population),
        *preprocessing,
        *_outside(self.tuning),
      ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExampleLevelPrivacy:
  """Silo-specific example-level DP: each silo runs DP-SGD on its own examples.

  Formal guarantee, for each silo k on its own: with respect to one of its
  examples, under the zero-out relation (the example is replaced by one that
  contributes nothing). Sizes of silos are public, and rates, divisors and
  weights are computed from them, which add/remove-one would not allow. In a
  step every example is in the batch independently with rate B_k / n_k; the sum
  of the gradients clipped to C gets noise of standard deviation z_k C and is
  divided by the fixed B_k. Zeroing one example moves the sum by at most C, so
  that the pair of output distributions is that of the Poisson-sampled Gaussian
  under add/remove-one, as which it is accounted (dp-accounting's
  REPLACE_SPECIAL relation supports no Poisson sampling). Everything a silo
  releases, to the server and in its personal model, is post-processing.

  Attributes:
    num_examples: n_k, int [K], public.
    batch_size: expected batch size B; silo k uses B_k = min(B, n_k).
    steps_per_round: DP-SGD steps of each silo in a round, int [K] or scalar,
      all passes over the data counted (`local_steps_per_round`).
    noise_multiplier: z_k, float [K] or scalar, relative to the clip.
    delta: float [K] or scalar.
    clipping_norm: C of the per-example gradients.
    cohorts: how silos are drawn; all take part by default. Silos who sit out
      rounds spend less than is accounted: no amplification is claimed for it.
    selection: the private selections made beside DP-SGD, if any.
    tuning: set if what a silo releases is the best of a private tuning: epsilon
      then includes the other runs.
  """

  # Scalars are given for every silo; the attributes are arrays [K].
  num_examples: Any
  batch_size: int
  steps_per_round: Any
  noise_multiplier: Any
  delta: Any
  clipping_norm: float
  cohorts: sampling.CohortSampler = dataclasses.field(default=None)  # type: ignore[assignment]
  selection: selection_lib.PrivateSelection | None = None
  tuning: tuning_lib.PrivateTuning | None = None

  unit = 'example'
  adjacency = (
    'zero-out, silo sizes public: two data sets of a silo that differ in one example, which in one '
    'of them contributes nothing'
  )

  def __post_init__(self):
    sizes = np.atleast_1d(np.asarray(self.num_examples))
    if sizes.ndim != 1 or not len(sizes) or np.any(sizes < 1) or np.any(sizes != np.floor(sizes)):
      raise ValueError('number of examples must be a positive whole number for every silo.')
    self._set('num_examples', sizes.astype(np.int64))
    if self.batch_size != int(self.batch_size) or self.batch_size < 1:
      raise ValueError(f'batch size must be a positive whole number, got {self.batch_size}.')
    steps = _per_silo('steps per round', self.steps_per_round, len(sizes))
    if np.any(steps < 0) or np.any(steps != np.floor(steps)):
      raise ValueError(f'steps per round must be whole numbers from 0, got {steps.min()}.')
    self._set('steps_per_round', steps.astype(np.int64))
    noise = _per_silo('noise multiplier', self.noise_multiplier, len(sizes))
    for z in (noise.min(), noise.max()):
      _check_noise_multiplier(z)
    self._set('noise_multiplier', noise)
    delta = _per_silo('delta', self.delta, len(sizes))
    accounting.check_delta(delta)
    self._set('delta', delta)
    FixedClipping(norm=self.clipping_norm)
    if math.isinf(self.clipping_norm) and np.any(noise > 0):
      raise ValueError(
        'clipping norm must be finite when there is noise: the noise is a multiple of it.'
      )
    if self.cohorts is None:
      object.__setattr__(self, 'cohorts', sampling.EveryClient(len(sizes)))
    if self.cohorts.population != len(sizes):
      raise ValueError(
        f'the cohorts are drawn from {self.cohorts.population} silos, but {len(sizes)} have a '
        'number of examples.'
      )

  def _set(self, name: str, value: np.ndarray):
    value = value.copy()
    value.setflags(write=False)
    object.__setattr__(self, name, value)

  @property
  def num_silos(self) -> int:
    return len(self.num_examples)

  @property
  def batch_sizes(self) -> np.ndarray:
    """B_k = min(B, n_k), int64 [K]: the fixed divisors."""
    return np.minimum(int(self.batch_size), self.num_examples)

  @property
  def sampling_rates(self) -> np.ndarray:
    """B_k / n_k, float64 [K]."""
    return self.batch_sizes / self.num_examples

  def silo_parameters(self) -> dict[str, np.ndarray]:
    """What each silo's DP-SGD needs, as arrays [K] to go into the client state.

    Returns:
      noise_multiplier float32, sampling_rate float32, steps_per_round int32 and
      batch_size float32 (B_k, the divisor of the noised gradient sum).
    """
    return {
      'noise_multiplier': self.noise_multiplier.astype(np.float32),
      'sampling_rate': self.sampling_rates.astype(np.float32),
      'steps_per_round': self.steps_per_round.astype(np.int32),
      'batch_size': self.batch_sizes.astype(np.float32),
    }

  def event(self, rounds: int) -> tuple[dp_accounting.DpEvent, ...]:
    """One event per silo, for the given number of rounds."""
    return tuple(self._silo_event(k, _check_rounds(rounds)) for k in range(self.num_silos))

  def _silo_event(self, silo: int, rounds: int) -> dp_accounting.DpEvent:
    training = dp_accounting.SelfComposedDpEvent(
      step_event(self.sampling_rates[silo], self.noise_multiplier[silo]),
      int(self.steps_per_round[silo]) * rounds,
    )
    run = training
    if self.selection is not None:
      run = dp_accounting.ComposedDpEvent([training, self.selection.event(rounds)])
    return run if self.tuning is None else self.tuning.event(run)

  @functools.cached_property
  def _step_curves(self) -> np.ndarray:
    rates = self.sampling_rates
    return np.stack(
      [
        accounting.rdp_curve(step_event(rates[k], self.noise_multiplier[k]))
        for k in range(self.num_silos)
      ]
    )

  def _training_curves(self, rounds: int) -> np.ndarray:
    steps = self.steps_per_round * _check_rounds(rounds)
    return accounting.scale_curve(self._step_curves, steps[:, None])

  def _curves(self, rounds: int) -> np.ndarray:
    curves = self._training_curves(rounds)
    if self.selection is not None:
      curves = curves + accounting.rdp_curve(self.selection.event(rounds))
    if self.tuning is not None:
      mean, shape = self.tuning.mean, self.tuning.shape
      curves = np.stack([accounting.repeat_and_select_curve(c, mean, shape) for c in curves])
    return curves

  def epsilons(self, rounds: int) -> np.ndarray:
    """Epsilon of each silo after the given number of rounds, float64 [K]."""
    return accounting.epsilon_of_curves(self._curves(rounds), self.delta)[0]

  def epsilon(self, rounds: int) -> float:
    """The largest silo's epsilon. Silos' data are disjoint: it is never a sum."""
    return float(self.epsilons(rounds).max())

  def loss(self, rounds: int) -> accounting.PrivacyLoss:
    """The guarantee of the silo with the largest epsilon."""
    worst = int(np.argmax(self.epsilons(rounds)))
    return accounting.rdp_loss(self._silo_event(worst, rounds), float(self.delta[worst]))

  def statement(
    self, rounds: int, *, preprocessing: Sequence[str] = (), notes: Sequence[str] = ()
  ) -> statement_lib.PrivacyStatement:
    """What these rounds guarantee to the examples of each silo.

    Args:
      rounds: rounds that were run.
      preprocessing: sentences about steps outside the guarantee, such as
        standardising a silo by its own mean.
      notes: sentences of the method.
    """
    curves = self._curves(rounds)
    epsilons, _ = accounting.epsilon_of_curves(curves, self.delta)
    worst = int(np.argmax(epsilons))
    pld = None
    if self.selection is None:  # a selection's Gaussian stands for its Renyi curve only
      pld = accounting.pld_epsilon(self._silo_event(worst, rounds), float(self.delta[worst]))
    training = accounting.epsilon_of_curves(self._training_curves(rounds), self.delta)[0]
    silos = [
      {
        'silo': k,
        'num_examples': int(self.num_examples[k]),
        'sampling_rate': float(self.sampling_rates[k]),
        'steps': int(self.steps_per_round[k]) * rounds,
        'noise_multiplier': float(self.noise_multiplier[k]),
        'epsilon': float(epsilons[k]),
        'epsilon_of_training_alone': float(training[k]),
        'delta': float(self.delta[k]),
        'order': accounting.loss_of_curve(curves[k], float(self.delta[k])).order,
      }
      for k in range(self.num_silos)
    ]
    selecting = ''
    if self.selection is not None:
      selecting = (
        f' Beside it, the exponential mechanism with epsilon {self.selection.epsilon:.6g} in '
        f'{min(rounds, self.selection.rounds)} rounds, not amplified by sampling.'
      )
    return statement_lib.PrivacyStatement(
      unit=self.unit,
      protected='Each single example of a silo, against everything that its silo releases, its '
      "personal model included; each silo's own epsilon is listed, and the largest is given here.",
      adjacency=self.adjacency,
      mechanism=(
        f'DP-SGD: gradients of single examples clipped to L2 norm {self.clipping_norm:.6g}, '
        f'Poisson batches of expected size min({self.batch_size}, n) '
        f'(rates {_range(self.sampling_rates)}), Gaussian noise multipliers '
        f'{_range(self.noise_multiplier)}, {_range(self.steps_per_round * rounds)} steps; '
        f'{self.cohorts.description}.{selecting}{_describe_tuning(self.tuning)}'
      ),
      rounds=_check_rounds(rounds),
      loss=self.loss(rounds),
      pld_epsilon=pld,
      parameters={'clipping_norm': float(self.clipping_norm), 'batch_size': int(self.batch_size)},
      silos=tuple(silos),
      notes=tuple(notes),
      outside=(
        'The sizes of the silos are public.',
        *_delta_warning(self.delta, self.num_examples),
        *preprocessing,
        *_outside(self.tuning),
      ),
    )


PrivacyPlan = NoPrivacy | ClientLevelPrivacy | ExampleLevelPrivacy


def local_steps_per_round(
  num_examples, batch_size: int, local_epochs: int = 1, passes: int = 1
) -> np.ndarray:
  """Steps of a round: max(1, floor(n_k / B_k)) x epochs x passes, int64 [K].

  Args:
    num_examples: n_k, int [K].
    batch_size: B; B_k = min(B, n_k).
    local_epochs: epochs in a round.
    passes: how often the method trains on the data in a round (2 for Ditto:
      the global and the personal model).
  """
  num_examples = np.asarray(num_examples, np.int64)
  batch_sizes = np.maximum(1, np.minimum(int(batch_size), num_examples))
  return np.maximum(1, num_examples // batch_sizes) * int(local_epochs) * int(passes)


def step_event(rate: float, noise_multiplier: float) -> dp_accounting.DpEvent:
  """The event of one DP-SGD step with Poisson batches."""
  return dp_accounting.PoissonSampledDpEvent(
    float(rate), dp_accounting.GaussianDpEvent(float(noise_multiplier))
  )


def _fixed_query(values: Mapping[str, Any], seed: Any) -> queries.TreeQuery:
  return queries.TreeQuery(
    queries.StreamGaussianSumQuery(
      values['clipping_norm'],
      values['noise_multiplier'],
      seed,
      random_streams.Stream.DP_NOISE,
    )
  )


def _check_rounds(rounds: int) -> int:
  if rounds != int(rounds) or rounds < 0:
    raise ValueError(f'number of rounds must be a whole number from 0, got {rounds}.')
  return int(rounds)


def _check_noise_multiplier(value: float):
  if not (value >= 0 and math.isfinite(value)):
    raise ValueError(f'noise multiplier must be 0 or more and finite, got {value}.')


def _check_budget_split(noise_multiplier: float, sigma: float):
  if 2 * sigma <= noise_multiplier:
    raise ValueError(
      f'quantile noise multiplier {sigma:.6g} (clients) is too small for the noise multiplier '
      f'{noise_multiplier:.6g}: counting the unclipped clients alone would spend the budget. It '
      f'must be above half the noise multiplier, {noise_multiplier / 2:.6g}.'
    )


def _per_silo(name: str, value, num_silos: int) -> np.ndarray:
  array = np.asarray(value, np.float64)
  if array.shape not in ((), (1,), (num_silos,)):
    raise ValueError(
      f'{name} must be one number or one for each of the {num_silos} silos, '
      f'got shape {array.shape}.'
    )
  if np.any(np.isnan(array)):
    raise ValueError(f'{name} must be a number, got NaN.')
  return np.broadcast_to(array, (num_silos,)).copy()


def _delta_warning(delta, size) -> tuple[str, ...]:
  count = int(np.sum(np.asarray(delta) > 1 / np.asarray(size, np.float64)))
  if not count:
    return ()
  what = 'delta is' if np.ndim(delta) == 0 else f'delta of {count} silos is'
  return (
    f'{what} larger than 1 / n: publishing one record at random would satisfy such a delta, so the '
    'guarantee is weak.',
  )


def _describe_tuning(tuning: tuning_lib.PrivateTuning | None) -> str:
  if tuning is None:
    return ''
  return (
    f' The best of a random number of runs is released (truncated negative binomial, shape '
    f'{tuning.shape:.6g}, {tuning.mean:.6g} runs expected); epsilon includes all of them.'
  )


def _outside(tuning: tuning_lib.PrivateTuning | None) -> tuple[str, ...]:
  if tuning is not None:
    return _OUTSIDE
  return ('Hyper-parameters chosen by looking at results are not accounted for.', *_OUTSIDE)


def _range(values: np.ndarray) -> str:
  low, high = values.min(), values.max()
  return f'{low:.6g}' if low == high else f'{low:.6g} to {high:.6g}'
