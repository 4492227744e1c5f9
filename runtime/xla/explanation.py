"""What of a computation is compiled, what is not, why, and what to change."""

import dataclasses
from collections.abc import Sequence

from runtime.xla import partition, program

_NOT_KNOWN = 'write this part with TensorFlow ops that XLA has, on tensors of fixed shapes'
_PLACES = {
  program.Kind.SERVER: 'server',
  program.Kind.CLIENTS: 'clients',
  program.Kind.AGGREGATE: 'aggregation',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """A part of a computation.

  Attributes:
    what: what it is.
    place: `server`, `clients`, `aggregation`, or `everywhere`.
    how: `compiled`, `interpreted` (each client's graphs one by one, by TensorFlow), or
      `on the host` (the same, beside parts that are compiled).
    reasons: why it is not compiled, or why its clients are worked on one at a time.
    advice: what to change, for each reason; empty where there is nothing to say.
  """

  what: str
  place: str
  how: str
  reasons: tuple[str, ...] = ()
  advice: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
  """How a computation is run; prints as a table.

  Attributes:
    parts: in the order in which they run.
    where: where clients go through, if it could be elsewhere than in this process.
  """

  parts: tuple[Part, ...]
  where: str = ''

  @property
  def is_compiled(self) -> bool:
    """Whether all of it is."""
    return all(part.how == 'compiled' for part in self.parts)

  @property
  def slow_for_clients(self) -> list[Part]:
    """The parts that are done client by client, and not compiled."""
    return [p for p in self.parts if p.how != 'compiled' and p.place != 'server']

  def __str__(self) -> str:
    lines = []
    for part in self.parts:
      lines.append(f'{part.how:<12} {part.place:<12} {part.what}')
      for reason, advice in zip(part.reasons, part.advice, strict=True):
        lines.append(f'{"":<12} because {reason}' + (f'; {advice}' if advice else ''))
    return '\n'.join([*lines, self.where] if self.where else lines)


def compiled(prog: program.Program, serial_reasons: Sequence[str]) -> Explanation:
  """Of a computation that is one compiled program."""
  count = len(prog.nodes)
  part = Part(
    what=f'all of it, {count} call' + ('s' if count != 1 else ''),
    place='everywhere',
    how='compiled',
    reasons=_in_words(serial_reasons),
    advice=('',) * len(serial_reasons),
  )
  return Explanation(parts=(part,))


def _in_words(serial_reasons: Sequence[str]) -> tuple[str, ...]:
  return tuple(f'clients are worked on one at a time: {r}' for r in serial_reasons)


def interpreted(reasons: Sequence[str]) -> Explanation:
  """Of a computation that is not compiled at all."""
  part = Part(
    what='all of it',
    place='everywhere',
    how='interpreted',
    reasons=tuple(reasons),
    advice=tuple(_NOT_KNOWN for _ in reasons),
  )
  return Explanation(parts=(part,))


def mixed(cut: partition.Cut, serial_reasons: Sequence[Sequence[str]]) -> Explanation:
  """Of a computation in pieces; `serial_reasons` are those of each."""
  return Explanation(
    parts=tuple(
      _of_step(step, piece.on_host, reasons)
      for piece, reasons in zip(cut.pieces, serial_reasons, strict=True)
      for step in piece.steps
    )
  )


def _of_step(step: partition.Step, on_host: bool, serial_reasons: Sequence[str]) -> Part:
  serial = serial_reasons if step.kind == program.Kind.CLIENTS else ()
  return Part(
    what=step.what,
    place=_PLACES[step.kind],
    how='on the host' if on_host else 'compiled',
    reasons=(*(str(o) for o in step.obstacles), *_in_words(serial)),
    advice=(*(o.advice for o in step.obstacles), *('' for _ in serial)),
  )
