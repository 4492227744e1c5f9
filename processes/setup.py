"""What a method takes from a run's configuration and population before it is built."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privacy import opt_out
from privacy.plan import PrivacyPlan
from privacy.selection import PrivateSelection
from privacy.tuning import PrivateTuning
from runtime.noise_key import NoiseKey


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Population:
  """The clients, as far as a method may know of them before the first round.

  Attributes:
    client_ids: their names, K of them.
    num_examples: training examples of each, int [K].
    groups: bool [K] masks of clients by name, which the data set has.
    left_out: the names of clients who are too small to take part.
    loss_scale: of their task, `datasets.Task.loss_scale`.
  """

  client_ids: Sequence[str]
  num_examples: np.ndarray
  groups: Mapping[str, np.ndarray]
  left_out: tuple[str, ...] = ()
  loss_scale: float = 1.0

  @property
  def size(self) -> int:
    return len(self.client_ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanShare:
  """A method's share in the privacy plan.

  Attributes:
    num_opted_out: clients without a guarantee, a public number (client level).
    silent_setting: the setting whose value 0 keeps protected clients from sending anything, so
      that epsilon is 0 (client level); None if they send.
    selection: the private choices made beside DP-SGD (example level).
    tuning: the private tuning whose best run is released (example level).
  """

  num_opted_out: int = 0
  silent_setting: str | None = None
  selection: PrivateSelection | None = None
  tuning: PrivateTuning | None = None


def opting_out(config: Any, population: Population, fraction: float) -> np.ndarray:
  """bool [K]: the clients who opt out, a fraction of all, the same in every use of a seed; public.

  They are drawn from the group `opt_out_candidates` of the data set, or from all clients.

  Raises:
    ValueError: there are fewer candidates.
  """
  candidates = population.groups.get('opt_out_candidates')
  return opt_out.choose_opted_out(config.seed, population.size, fraction, candidates)


class Setup:
  """Nothing but the settings: what most methods need. The others derive from it.

  A method's module (`Method.module`) has its own as `Setup`. All answers depend on the arguments
  of the constructor only; random ones are keyed by `config.seed`, or, where they are secrets, by
  the noise key, which is None until a run has one.
  """

  def __init__(self, config: Any, population: Population, noise_key: NoiseKey | None = None):
    """Takes a configuration (its settings are attributes), and the clients."""
    self.config = config
    self.population = population
    self.noise_key = noise_key

  def groups(self) -> Mapping[str, np.ndarray]:
    """Groups of clients to be reported beside those of the data set: bool [K] by name."""
    return {}

  def plan_share(self, smallest_target: float | None, smallest_delta: float) -> PlanShare:
    """What the method adds to the privacy plan.

    Args:
      smallest_target: the smallest target epsilon of any silo; None if none is given.
      smallest_delta: the smallest delta of any silo.
    """
    return PlanShare()

  def client_attributes(self, plan: PrivacyPlan) -> Mapping[str, np.ndarray]:
    """What each client holds besides its model, arrays [K] by the names of `attributes` in
    `assemble`; those of the plan's DP-SGD are added."""
    return {}

  def options(self, plan: PrivacyPlan) -> Mapping[str, Any]:
    """Options of the build spec beside the settings, such as shapes that the clients decide."""
    return {}
