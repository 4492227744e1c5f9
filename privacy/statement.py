"""What a run guarantees: in words for people, as JSON for programs."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from typing import Any

from privacy import accounting
from privacy.attack import AttackBounds
from privacy.rounding import rounded_up


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
  """The guarantee of the rounds that were run.

  Attributes:
    unit: 'client', 'example' or 'none'.
    protected: who is protected, a sentence.
    adjacency: the neighbouring relation.
    mechanism: mechanism and sampling, a sentence.
    rounds: rounds that were run.
    loss: the headline: epsilon, delta, accountant and order; of the silo with the
      largest epsilon for example-level privacy.
    pld_epsilon: the same by privacy loss distributions, where available.
    rdp: the same by Renyi DP.
    other_losses: the same under other neighbouring relations, by name; None where
      no accountant has it.
    attack: what the best attacker can do, where there is a guarantee.
    parameters: numbers of the mechanism.
    silos: one record per silo, for example-level privacy.
    notes: what the method adds, sentences.
    outside: what is outside the guarantee, sentences.
    condition: whose the guarantee is, where it is not that of the clients who are here; it follows
      epsilon wherever that is told.
  """

  unit: str
  protected: str
  adjacency: str
  mechanism: str
  rounds: int
  loss: accounting.PrivacyLoss
  pld_epsilon: float | None = None
  rdp: accounting.PrivacyLoss | None = None
  other_losses: Mapping[str, accounting.PrivacyLoss | None] = dataclasses.field(
    default_factory=dict
  )
  attack: AttackBounds | None = None
  parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  silos: tuple[Mapping[str, Any], ...] = ()
  notes: tuple[str, ...] = ()
  outside: tuple[str, ...] = ()
  condition: str = ''

  @property
  def epsilon(self) -> float:
    """Infinite where there is no guarantee."""
    return self.loss.epsilon

  def guarantee(self) -> str:
    """One line: epsilon at delta, after which rounds, by which accountant."""
    if self.unit == 'none':
      return 'No differential privacy.'
    rounds = '1 round' if self.rounds == 1 else f'{self.rounds} rounds'
    if math.isinf(self.epsilon):
      return f'No differential privacy after {rounds}: there is too little or no noise.'
    details = _accounted(self.loss)
    if self.loss.accountant != 'PLD' and self.pld_epsilon is not None:
      details += f'; by PLD {rounded_up(self.pld_epsilon)}'
    if self.loss.accountant != 'RDP' and self.rdp is not None:
      details += f'; by {_accounted(self.rdp)}: {rounded_up(self.rdp.epsilon)}'
    epsilon, delta = rounded_up(self.epsilon), self.loss.delta
    of = f' of {self.condition}' if self.condition else ''
    return f'epsilon = {epsilon} at delta = {delta:g} after {rounds}{of} ({details}).'

  @property
  def _relation(self) -> str:
    """The neighbouring relation, and what epsilon is under others."""
    others = []
    for name, loss in self.other_losses.items():
      if loss is not None:
        by = '' if loss.accountant == self.loss.accountant else f' ({loss.accountant})'
        others.append(f'Under {name}: epsilon = {rounded_up(loss.epsilon)} at the same delta{by}.')
    return ' '.join([self.adjacency + '.', *others])

  def _meaning(self, attack: AttackBounds) -> str:
    strength = '' if math.isinf(attack.mu) else f' It is about {attack.mu:.3g}-GDP.'
    return (
      f'Whoever sees all outputs, and may accuse 1 in 1000 (1 in 100) of the {self.unit}s that '
      f'were not there, finds at most {_percent(attack.true_positives_at_1e_3)} '
      f'({_percent(attack.true_positives_at_1e_2)}) of those that were. Membership advantage at '
      f'most {_percent(attack.advantage)}.{strength}'
    )

  def text(self) -> str:
    """The statement in words, lines of at most 100 characters."""
    entries = [('Guarantee', self.guarantee()), ('Protected', self.protected)]
    if self.unit != 'none':
      entries.append(('Adjacency', self._relation))
    if self.attack is not None:
      entries.append(('Meaning', self._meaning(self.attack)))
    entries.append(('Mechanism', self.mechanism))
    if self.silos:
      epsilons = sorted(float(silo['epsilon']) for silo in self.silos)
      least, median, most = (rounded_up(epsilons[i]) for i in (0, len(epsilons) // 2, -1))
      words = f'from {least} to {most}, median {median}' if least != most else f'{most} in each'
      entries.append(('Silos', f'{len(epsilons)} silos, epsilon {words}.'))
    entries += [('Note', sentence) for sentence in self.notes]
    entries += [('Outside', sentence) for sentence in self.outside]
    return '\n'.join(entry(name, sentence) for name, sentence in entries)

  def to_json(self) -> dict[str, Any]:
    """Everything, as plain JSON values; an infinite epsilon is None."""
    return {
      'private': self.unit != 'none' and math.isfinite(self.epsilon),
      'unit': self.unit,
      'guarantee': self.guarantee(),
      'condition': self.condition,
      'protected': self.protected,
      'adjacency': self.adjacency,
      'mechanism': self.mechanism,
      'rounds': self.rounds,
      'epsilon': _finite(self.epsilon),
      'delta': self.loss.delta,
      'accountant': self.loss.accountant,
      'order': self.loss.order,
      'order_is_interior': self.loss.order_is_interior,
      'pld_epsilon': self.pld_epsilon,
      'rdp_epsilon': None if self.rdp is None else _finite(self.rdp.epsilon),
      'epsilon_by_adjacency': {
        name: None if loss is None else _finite(loss.epsilon)
        for name, loss in self.other_losses.items()
      },
      'attack': None if self.attack is None else self.attack.to_json(),
      'parameters': {k: _finite(v) for k, v in self.parameters.items()},
      'silos': [{k: _finite(v) for k, v in silo.items()} for silo in self.silos],
      'notes': list(self.notes),
      'outside': list(self.outside),
    }


def entry(heading: str, sentence: str) -> str:
  """A sentence of a statement under its heading; files' names and flags stay in one piece."""
  return textwrap.fill(
    sentence,
    100,
    initial_indent=f'{heading + ":":<11}',
    subsequent_indent=' ' * 11,
    break_on_hyphens=False,
    break_long_words=False,
  )


def _accounted(loss: accounting.PrivacyLoss) -> str:
  """'PLD', or 'RDP, order 5.1'."""
  details = loss.accountant
  if loss.order is not None:
    details += f', order {loss.order:g}'
  if not loss.order_is_interior:
    details += ', the end of the list of orders'
  return details


def _percent(share: float) -> str:
  """Three digits, rounded up."""
  return f'{math.ceil(share * 1000 - 1e-9) / 10:g} %'


def _finite(value: Any) -> Any:
  return None if isinstance(value, float) and not math.isfinite(value) else value
