"""Silo-specific example-level privacy: every silo runs DP-SGD on its own examples."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np

from privacy import accounting, guarantee, sampling, wording
from privacy import batches as batches_lib
from privacy import selection as selection_lib
from privacy import statement as statement_lib
from privacy import tuning as tuning_lib
from privacy.events import Adjacency
from privacy.rounding import rounded_up
from runtime import random_streams


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExampleLevelPrivacy:
  """Silo-specific example-level DP: each silo runs DP-SGD on its own examples.

  Formal guarantee, for each silo k on its own: with respect to one of its examples, under
  zero-out (the example is replaced by one that contributes nothing) and replace-one. Sizes of
  silos are public, and rates, divisors and weights are computed from them, which add/remove-one
  would not allow. In a step every example is in the batch independently with rate B_k / n_k (or
  batches are drawn in another way: `privacy.batches`, which also accounts for them); the
  sum of the gradients clipped to C gets noise of standard deviation z_k C and is divided by the
  fixed B_k. Zeroing one example moves the sum by at most C, so that the pair of output
  distributions is that of the Poisson-sampled Gaussian; replacing one moves it by at most 2 C.
  Everything a silo releases, to the server and in its personal model, is post-processing.

  Long because sampling, noise, loss and statement of a silo are read from one object.

  Attributes:
    num_examples: n_k, int [K], public.
    batch_size: expected batch size B; silo k uses B_k = min(B, n_k).
    steps_per_round: DP-SGD steps of each silo in a round, int [K] or scalar,
      all passes over the data counted (`local_steps_per_round`).
    noise_multiplier: z_k, float [K] or scalar, relative to the clip.
    delta: float [K] or scalar.
    clipping_norm: C of the per-example gradients.
    batches: one of `privacy.batches.BATCHES`; for balls in bins and shuffled batches a round's
      steps are whole epochs.
    batch_capacity: most examples in a truncated Poisson batch, by default eight deviations above
      the batch size.
    cohorts: how silos are drawn; all take part by default. Silos who sit out
      rounds spend less than is accounted: no amplification is claimed for it.
    selection: the private selections made beside DP-SGD, if any.
    tuning: set if a silo also keeps a random number of such runs to itself, and
      releases the best of them at the end (cross-silo paper, appendix F.3).
      Epsilon is then that of the run which is shared round by round, composed
      with that of the tuning.
    accountant: 'pld' (tight) or 'renyi'; see `accounting.loss`.
  """

  # Scalars are given for every silo; the attributes are arrays [K].
  num_examples: Any
  batch_size: int
  steps_per_round: Any
  noise_multiplier: Any
  delta: Any
  clipping_norm: float
  batches: str = 'poisson'
  batch_capacity: int | None = None
  cohorts: sampling.CohortSampler = dataclasses.field(default=None)  # type: ignore[assignment]
  selection: selection_lib.PrivateSelection | None = None
  tuning: tuning_lib.PrivateTuning | None = None
  accountant: str = 'pld'

  unit = 'example'
  adjacencies = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
  adjacency = Adjacency.ZERO_OUT.words('data sets of a silo', 'example', 'silo sizes')

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
    if self.batch_capacity is not None and self.batches != batches_lib.TRUNCATED:
      raise ValueError(
        f'batch capacity {self.batch_capacity} belongs to truncated_poisson batches, '
        f'not to {self.batches}.'
      )
    self._set('steps_per_round', np.array([silo.steps for silo in self.silo_batches]))
    if self.batches == batches_lib.TRUNCATED and self.tuning is not None:
      raise ValueError(
        'batches=truncated_poisson cannot be used with private tuning: no theorem covers runs that '
        'may fail.'
      )
    noise = _per_silo('noise multiplier', self.noise_multiplier, len(sizes))
    for z in (noise.min(), noise.max()):
      accounting.check_noise_multiplier(z)
    self._set('noise_multiplier', noise)
    delta = _per_silo('delta', self.delta, len(sizes))
    accounting.check_delta(delta)
    self._set('delta', delta)
    accounting.check_accountant(self.accountant)
    accounting.check_clipping_norm(self.clipping_norm)
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

  @functools.cached_property
  def silo_batches(self) -> tuple[batches_lib.SiloBatches, ...]:
    """How each silo draws its batches."""
    return tuple(
      batches_lib.SiloBatches(
        kind=self.batches,
        num_examples=int(n),
        batch_size=int(self.batch_size),
        steps=int(steps),
        capacity=self.batch_capacity,
      )
      for n, steps in zip(self.num_examples, self.steps_per_round, strict=True)
    )

  @property
  def batch_sizes(self) -> np.ndarray:
    """B_k, the expected sizes of the batches and the fixed divisors, float64 [K]."""
    return np.array([silo.expected_size for silo in self.silo_batches])

  @property
  def sampling_rates(self) -> np.ndarray:
    """Probability that an example is in a given batch, float64 [K]."""
    return np.array([silo.rate for silo in self.silo_batches])

  def silo_parameters(self) -> dict[str, np.ndarray]:
    """What each silo's DP-SGD needs, as arrays [K] to go into the client state.

    Returns:
      noise_multiplier float32, sampling_rate float32 (which the coins meet: never above what is
      accounted for), steps_per_round int32 and batch_size float32 (B_k, the divisor of the
      noised gradient sum).
    """
    return {
      'noise_multiplier': self.noise_multiplier.astype(np.float32),
      'sampling_rate': random_streams.rate_of_coins(self.sampling_rates),
      'steps_per_round': self.steps_per_round.astype(np.int32),
      'batch_size': self.batch_sizes.astype(np.float32),
    }

  @property
  def _batches_in_words(self) -> str:
    size = f'min({self.batch_size}, n)'
    rates = wording.value_range(self.sampling_rates)
    epochs = wording.value_range(
      np.array([silo.steps // silo.steps_per_epoch for silo in self.silo_batches])
    )
    if self.batches == batches_lib.SHUFFLED:
      return (
        f'shuffled batches of size {size}, accounted as one Gaussian mechanism for each of the '
        f'{epochs} epochs of a round, without amplification'
      )
    if self.batches == batches_lib.BALLS_IN_BINS:
      bins = wording.value_range(np.array([silo.steps_per_epoch for silo in self.silo_batches]))
      return (
        f'balls-in-bins batches (in each of the {epochs} epochs of a round every example falls '
        f'into one of {bins} batches by itself; without amplification under replace-one)'
      )
    words = f'Poisson batches of expected size {size} (rates {rates})'
    if self.batches == batches_lib.TRUNCATED:
      capacity = batches_lib.truncated_capacity(self.batch_size, self.batch_capacity)
      worst = max(silo.truncation_probability for silo in self.silo_batches)
      words += (
        f', of which a random part is left out beyond {capacity} examples (in a step with '
        f'probability {worst:.3g} at most, which is part of delta)'
      )
    return words

  def event(
    self, rounds: int, adjacency: Adjacency | None = None
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """One event per silo, for the given number of rounds."""
    rounds = accounting.check_rounds(rounds)
    return tuple(self._silo_event(k, rounds, adjacency) for k in range(self.num_silos))

  def _silo_event(
    self, silo: int, rounds: int, adjacency: Adjacency | None = None
  ) -> dp_accounting.DpEvent:
    adjacency = adjacency or self.adjacencies[0]
    if adjacency not in self.adjacencies:
      raise ValueError(
        f'adjacency must be {" or ".join(a.value for a in self.adjacencies)}, '
        f'got {adjacency.value}.'
      )
    run = self.silo_batches[silo].event(self.noise_multiplier[silo], rounds, adjacency)
    if self.selection is not None:
      run = dp_accounting.ComposedDpEvent([run, self.selection.event(rounds)])
    return run if self.tuning is None else self.tuning.event(run, shared=True)

  @functools.cached_property
  def _kinds(self) -> tuple[np.ndarray, np.ndarray]:
    """Silos with equal mechanisms: one of each kind, and every silo's kind [K]."""
    places: dict[Any, int] = {}
    first: list[int] = []
    kinds: list[int] = []
    for k, silo in enumerate(self.silo_batches):
      mechanism = silo.event(1.0, 1), float(self.noise_multiplier[k]), float(self.delta[k])
      if mechanism not in places:
        places[mechanism] = len(first)
        first.append(k)
      kinds.append(places[mechanism])
    return np.array(first), np.array(kinds)

  def _distinct_events(self, rounds: int, adjacency: Adjacency) -> list[dp_accounting.DpEvent]:
    return [self._silo_event(int(k), rounds, adjacency) for k in self._kinds[0]]

  def losses(
    self, rounds: int, adjacency: Adjacency | None = None
  ) -> tuple[accounting.PrivacyLoss, ...]:
    """Each silo's own guarantee, at its own delta."""
    rounds = accounting.check_rounds(rounds)
    adjacency = adjacency or self.adjacencies[0]
    first, kinds = self._kinds
    of_kinds = [
      accounting.loss_by_either(
        self._silo_event(int(k), rounds, adjacency),
        float(self.delta[k]),
        adjacency,
        accountant=self.accountant,
      )
      for k in first
    ]
    return tuple(of_kinds[kind] for kind in kinds)

  def epsilons(self, rounds: int, adjacency: Adjacency | None = None) -> np.ndarray:
    """Epsilon of each silo after the given number of rounds, at its own delta; float64 [K]."""
    return np.array([loss.epsilon for loss in self.losses(rounds, adjacency)])

  @property
  def common_delta(self) -> float:
    """The smallest silo's delta: that of the one statement which holds for all silos."""
    return float(self.delta.min())

  def epsilon(self, rounds: int) -> float:
    """The largest silo's epsilon at `common_delta`.

    Silos' data are disjoint: it is never a sum. Where their deltas differ it is not the largest
    of `epsilons` either, which belong to several deltas.
    """
    return self.loss(rounds).epsilon

  def loss_of_runs(self, rounds: int, runs: int) -> accounting.PrivacyLoss:
    """The guarantee of so many runs on the same data, if all of them are released."""
    events = [
      dp_accounting.SelfComposedDpEvent(event, int(runs))
      for event in self._distinct_events(accounting.check_rounds(rounds), self.adjacencies[0])
    ]
    return guarantee.worst(events, self.common_delta, self.adjacencies[0], self.accountant)

  def loss(self, rounds: int, adjacency: Adjacency | None = None) -> accounting.PrivacyLoss:
    """The guarantee that holds for all silos, at `common_delta`."""
    adjacency = adjacency or self.adjacencies[0]
    events = self._distinct_events(accounting.check_rounds(rounds), adjacency)
    return guarantee.worst(events, self.common_delta, adjacency, self.accountant)

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
    rounds = accounting.check_rounds(rounds)
    silos = self._silo_records(rounds)
    largest = 'the largest'
    if np.ptp(self.delta) > 0:
      largest = 'the largest at the smallest of their deltas'
    selecting = ''
    if self.selection is not None:
      choices = min(rounds, self.selection.rounds)
      selecting = (
        ' Beside it, the exponential mechanism with epsilon '
        f'{rounded_up(self.selection.epsilon)} in {choices} round{"s" * (choices != 1)}, not '
        'amplified by sampling.'
      )
    return statement_lib.PrivacyStatement(
      unit=self.unit,
      protected='Each single example of a silo, against everything that its silo releases, its '
      f"personal model included; each silo's own epsilon is listed, and {largest} is given here.",
      adjacency=self.adjacency,
      mechanism=(
        f'DP-SGD: gradients of single examples clipped to L2 norm {self.clipping_norm:.6g}, '
        f'{self._batches_in_words}, Gaussian noise multipliers '
        f'{wording.value_range(self.noise_multiplier)}, '
        f'{wording.value_range(self.steps_per_round * rounds)} steps; '
        f'{self.cohorts.description}.{selecting}{wording.of_tuning(self.tuning, shared=True)}'
      ),
      rounds=rounds,
      **guarantee.findings(
        lambda adjacency: self._distinct_events(rounds, adjacency),
        self.common_delta,
        self.adjacencies,
        self.accountant,
      ),
      parameters={'clipping_norm': float(self.clipping_norm), 'batch_size': int(self.batch_size)},
      silos=silos,
      notes=tuple(notes),
      outside=(
        'The sizes of the silos are public.',
        *wording.delta_warning(self.delta, self.num_examples),
        *wording.delta_rule(self.delta, self.num_examples),
        *preprocessing,
        *wording.outside(self.tuning),
      ),
    )

  def _silo_records(self, rounds: int) -> tuple[dict[str, Any], ...]:
    """Each silo's own numbers, for the statement."""
    training = dataclasses.replace(self, selection=None, tuning=None)
    columns = {'training': training.epsilons(rounds)}
    if self.selection is not None:
      choices = self.selection.event(rounds)
      columns['selection'] = np.array(
        [accounting.loss(choices, float(d), accountant=self.accountant).epsilon for d in self.delta]
      )
    try:
      replaced = self.epsilons(rounds, Adjacency.REPLACE_ONE)
    except ValueError:  # no accountant has such an event
      replaced = np.full(self.num_silos, np.nan)
    return tuple(
      {
        'silo': k,
        'num_examples': int(self.num_examples[k]),
        'sampling_rate': float(self.sampling_rates[k]),
        'steps': int(self.steps_per_round[k]) * rounds,
        'noise_multiplier': float(self.noise_multiplier[k]),
        'epsilon': float(loss.epsilon),
        **{f'epsilon_of_{name}_alone': float(values[k]) for name, values in columns.items()},
        'epsilon_by_replace_one': None if np.isnan(replaced[k]) else float(replaced[k]),
        'delta': float(self.delta[k]),
        'accountant': loss.accountant,
        'order': loss.order,
      }
      for k, loss in enumerate(self.losses(rounds))
    )


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
