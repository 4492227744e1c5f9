"""What an audit attacks, and what it reports."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from privacy import attack, hypothetical, trade_off
from privacy.events import Adjacency
from privacy.rounding import rounded_up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """What is attacked.

  Attributes:
    method: a built method (`processes.build`).
    plan: its privacy plan.
    examples: shapes of a client's data (`processes.method.ExamplesSpec`).
    client: number of the attacked client (silo) in the plan's population.
    attributes: what the attacked client's state holds besides the silo's privacy
      parameters, name -> number.
    num_classes: of the labels; 1 if they are numbers.
  """

  method: Any
  plan: Any
  examples: Any
  client: int = 0
  attributes: Mapping[str, float] = dataclasses.field(default_factory=dict)
  num_classes: int = 1

  @property
  def delta(self) -> float:
    """Delta of the attacked client's guarantee."""
    own = np.atleast_1d(self.plan.delta)  # of every silo, or one for all
    return float(own[self.client if len(own) > 1 else 0])

  def claimed(self, rounds: int) -> float:
    """The accountant's epsilon for the attacked client after some rounds."""
    if self.plan.unit == 'example':
      return float(self.plan.epsilons(rounds)[self.client])
    return float(self.plan.epsilon(rounds))

  @property
  def is_svm(self) -> bool:
    """Whether the labels are signs and the loss a hinge."""
    return self.method._model.name == 'linear_svm'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """What an audit found.

  Attributes:
    claimed: epsilon of the accountant after the rounds that were attacked.
    bound: the attack's lower bound (`privacy.audit.EpsilonLowerBound`).
    rounds: rounds of every run.
    strength: how much of the sensitivity the canary used, mean over the rounds; an attack
      with a weak canary proves less.
    measure: the sensitivity, in a word.
  """

  claimed: float
  bound: Any
  rounds: int
  strength: float
  measure: str = 'the clip'

  @property
  def broken(self) -> bool:
    """Whether the claim is refuted."""
    return self.bound.epsilon > self.claimed

  def text(self) -> str:
    """The report in words."""
    lines = [
      f'Claimed:     epsilon <= {rounded_up(self.claimed)} at delta = {self.bound.delta:g} after '
      f'{self.rounds} rounds (the accountant)',
      f'Shown:       epsilon >= {self.bound.epsilon:.4g} with confidence '
      f'{self.bound.confidence:g} ({self.bound.method})',
      f'Canary:      used {self.strength:.0%} of {self.measure}',
      'Verdict:     the claim is REFUTED: sampler, mechanism and accountant do not agree'
      if self.broken
      else 'Verdict:     the claim stands',
    ]
    return '\n'.join(lines)


class Mechanism:
  """The numbers of the plan that a likelihood ratio needs.

  Attributes:
    steps: noisy steps of a round.
    replaces: whether the other world has another client in the canary's place.
    full_effect: what a canary of the full clip adds to a round's release.
    likelihood: arguments of `privacy.audit.log_likelihood_ratio`, of rounds by themselves.
    is_correlated: whether the noise of the rounds goes together; then rounds are scored together.
  """

  def __init__(self, target: Target):
    plan = target.plan
    if isinstance(plan, hypothetical.HypotheticalDeployment):
      raise ValueError(
        '--hypothetical_deployment claims nothing of the clients who are here: there is nothing to '
        'audit.'
      )
    self.steps, self.replaces = 1, False
    if plan.unit == 'client':
      rate, noise = float(plan.cohorts.rate), float(plan.update_noise_multiplier)
      self.replaces = Adjacency.ZERO_OUT not in plan.cohorts.adjacencies
      clip, divisor = float(plan.clipping.initial_norm), float(plan.denominator)
      step = target.method.server_step(target.method.hyperparameters)
      self.full_effect = clip / divisor * step
    elif plan.unit == 'example':
      k = target.client
      if plan.batches != 'poisson':
        raise ValueError(f'--batches={plan.batches} cannot be audited here; poisson can.')
      rate, noise = float(plan.sampling_rates[k]), float(plan.noise_multiplier[k])
      self.steps = int(plan.steps_per_round[k])
      rates = target.method.hyperparameters['client_learning_rate']
      self.full_effect = self.steps * rates * plan.clipping_norm / float(plan.batch_sizes[k])
    else:
      raise ValueError('--privacy=none claims nothing: there is nothing to audit.')
    if not noise > 0:
      raise ValueError('A noise multiplier of 0 claims nothing: there is nothing to audit.')
    self.likelihood: dict[str, Any] = dict(rate=rate, noise_multiplier=noise, steps=self.steps)
    # Choices are more than noise, and replacing is another pair of worlds.
    only_noise = not self.replaces and not any(
      getattr(plan, name, None) for name in ('selection', 'tuning')
    )
    self._rate = rate if only_noise else None
    self._plan, self._client = plan, target.client
    self.is_correlated = getattr(plan, 'correlation', None) is not None

  def family(self, rounds: int) -> trade_off.Family:
    """The trade-off functions of so many rounds, by one over the noise multiplier.

    Correlated noise is one Gaussian mechanism for the whole run. Where a plan is more than Gaussian
    mechanisms with Poisson sampling, they are what the accountant promises at all epsilons.
    """
    if self._rate is None:
      return self._promised(rounds)
    if self.is_correlated:
      return trade_off.Gaussian
    return trade_off.sampled_gaussians(self._rate, self.steps * rounds)

  def _promised(self, rounds: int) -> trade_off.Family:
    plan, changes = self._plan, {}
    if getattr(plan, 'tuning', None) is not None:  # canaries are trained on, and score nothing
      changes['tuning'] = dataclasses.replace(plan.tuning, score_noise_multiplier=None)

    @functools.cache
    def of(strength: float) -> trade_off.TradeOff:
      noised = dataclasses.replace(plan, noise_multiplier=1 / float(strength), **changes)
      event = noised.event(rounds)
      curve = attack.privacy_curve(
        event[self._client] if plan.unit == 'example' else event,
        plan.adjacencies[0],
        accountant=plan.accountant,
      )
      return trade_off.Profile.of_curve(curve)

    return of

  def covariance(self, rounds: int) -> np.ndarray:
    """Of correlated noise in the first rounds, in units of one canary, float64 [rounds, rounds]."""
    strategy, cohorts = self._plan.correlation, self._plan.cohorts
    factor = strategy.sensitivity(cohorts.participation(strategy.rounds)) * strategy.decoder()
    return (self.likelihood['noise_multiplier'] ** 2 * factor @ factor.T)[:rounds, :rounds]
