"""What is said of the mechanisms of a run: the worst of them, by both accountants.

Units whose data are disjoint, such as the examples of several silos, each pay for their own
mechanism only: what holds for all of them is the largest epsilon at one delta, never a sum.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dp_accounting

from privacy import accounting, attack
from privacy.events import Adjacency

EventsOf = Callable[[Adjacency], Iterable[dp_accounting.DpEvent]]


def worst(
  events: Iterable[dp_accounting.DpEvent],
  delta: float,
  adjacency: Adjacency,
  accountant: str,
) -> accounting.PrivacyLoss:
  """The guarantee that holds for all of some events on disjoint data, at one delta.

  Raises:
    ValueError: as `accounting.loss`.
  """
  losses = [accounting.loss(e, delta, adjacency, accountant=accountant) for e in events]
  return max(losses, key=lambda loss: loss.epsilon)


def findings(
  events_of: EventsOf, delta: float, adjacencies: Sequence[Adjacency], accountant: str
) -> dict[str, Any]:
  """The fields `loss`, `pld_epsilon`, `rdp`, `other_losses` and `attack` of a statement.

  Args:
    events_of: the events (without duplicates) of all mechanisms, under an adjacency.
    delta: of the statement.
    adjacencies: the neighbouring relations that the mechanisms support, the headline's first.
    accountant: the headline's, and that of other relations where it has their events.
  """
  first, *others = adjacencies
  events = list(events_of(first))
  loss = worst(events, delta, first, accountant)
  by_pld = [accounting.pld_epsilon(event, delta, first) for event in events]
  other_losses: dict[str, accounting.PrivacyLoss | None] = {}
  for adjacency in others:
    try:
      losses = [
        accounting.loss_by_either(event, delta, adjacency, accountant=accountant)
        for event in events_of(adjacency)
      ]
      other_losses[adjacency.value] = max(losses, key=lambda loss: loss.epsilon)
    except ValueError:  # no accountant has such an event
      other_losses[adjacency.value] = None
  bounds = None
  if 0 < loss.epsilon < float('inf'):
    curves = [attack.privacy_curve(e, first, accountant=accountant) for e in events]
    bounds = attack.bounds(curves, delta)
  return {
    'loss': loss,
    'pld_epsilon': max((e for e in by_pld if e is not None), default=None)
    if None not in by_pld
    else None,
    'rdp': worst(events, delta, first, 'renyi'),
    'other_losses': other_losses,
    'attack': bounds,
  }
