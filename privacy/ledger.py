"""What all runs on some data have spent together; refuses the run that would pass a budget.

Epsilons of several runs on the same data add up, whoever made them and whatever was released. A
ledger is a file of JSON lines, one or more for each run; the last line of a run counts. A run
*reserves* what it will spend before its first round, and is refused if the data's budget would be
passed; what it has really spent is recorded before its results are written, so that a run which was
killed has spent what was recorded. As long as a run goes on its whole reservation counts.

A run may be set up after looking at what earlier ones released (adaptively), but the budget may not
(a *filter*). Two theorems allow for that, and the smaller epsilon counts. As results may decide
which of them is leant on, each has half of delta once there is more than one run: the two
cases' deltas add up, at most.

- Renyi differential privacy adds curves (Lecuyer 2021, https://arxiv.org/abs/2103.01379, theorem
  3.1, for orders and a budget fixed in advance): whatever the mechanisms are.
- Privacy loss distributions, where only the *number* of steps was open: all steps of all runs have
  one dominating pair (a step that is not taken has none), or all are Gaussian mechanisms, which
  are one of the added precision (Smith and Thakurta 2022, 'Fully adaptive composition for Gaussian
  differential privacy').

A single run was set up beforehand. For others the composed loss distribution is beside epsilon:
it holds if none was set up after looking at another's results.

Long because a claim, its line in the file and how claims add up are read together.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attr
import dp_accounting

from privacy import accounting, loss_distributions
from privacy.events import (
  Adjacency,
  BallsInBinsDpEvent,
  DisjointDpEvent,
  ExponentialMechanismDpEvent,
  FailingDpEvent,
  KnownParticipationDpEvent,
  ReplacedDpEvent,
)
from privacy.rounding import rounded_up

_EVENTS = {
  event.__name__: event
  for event in (
    dp_accounting.ComposedDpEvent,
    dp_accounting.GaussianDpEvent,
    dp_accounting.NoOpDpEvent,
    dp_accounting.NonPrivateDpEvent,
    dp_accounting.PoissonSampledDpEvent,
    dp_accounting.SampledWithoutReplacementDpEvent,
    dp_accounting.SelfComposedDpEvent,
    dp_accounting.dp_event.RepeatAndSelectDpEvent,
    BallsInBinsDpEvent,
    DisjointDpEvent,
    ExponentialMechanismDpEvent,
    FailingDpEvent,
    KnownParticipationDpEvent,
    ReplacedDpEvent,
  )
}
RESERVED, SPENT, ENDED = 'reserved', 'spent', 'ended'
_BEGINNING = b'{"kind": "'  # of every line
_ROUNDING = 1 + 1e-9  # of sums in another order


class BudgetError(ValueError):
  """A run that would pass the budget of its data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
  """What a run spends, or would spend.

  Attributes:
    run: the run's identity, the same when it is continued.
    data: names or checksums of what it looks at; two runs share data if they share one.
    partition: how the data are cut into clients (or silos); equal for equal ones.
    unit: 'client' or 'example'.
    relation: value of the neighbouring relation (`Adjacency`) of the events.
    delta: of the run's own guarantee.
    events: the event of each silo by its id; under '' that of every client.
    rounds: the rounds that the events are of.
    folder: where the run's results are.
    host: the machine on which the folder was named; empty if that is not known.
    settings: what tells runs with other settings apart, empty if that is not known; what stands
      after a plus is of what no setting tells, and after another one of the code. Lines of earlier
      versions lack them.
    replaced: of a run that protects clients, the event where a client's data are replaced; None if
      that is not known. It is what a run that protects examples composes with.
    unprotected: which clients it does not protect, equal for the same ones; empty for none.
  """

  run: str
  data: tuple[str, ...]
  partition: str
  unit: str
  relation: str
  delta: float
  events: Mapping[str, dp_accounting.DpEvent]
  rounds: int
  folder: str = ''
  host: str = ''
  settings: str = ''
  replaced: dp_accounting.DpEvent | None = None
  unprotected: str = ''

  def __post_init__(self):
    if self.unit not in ('client', 'example'):
      raise ValueError(f'A ledger holds runs that protect clients or examples, not {self.unit!r}.')
    if not self.data:
      raise ValueError('A ledger needs the checksums of the data of a run.')
    accounting.check_delta(self.delta)
    for event in filter(None, (*self.events.values(), self.replaced)):
      accounting.check_event(event)

  def to_json(self) -> dict[str, Any]:
    """Everything as JSON values; silos with the same event share it."""
    texts = {silo: json.dumps(_event_to_json(event)) for silo, event in self.events.items()}
    distinct = list(dict.fromkeys(texts.values()))
    return {
      **{f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != 'events'},
      'data': list(self.data),
      'replaced': None if self.replaced is None else _event_to_json(self.replaced),
      'events': [json.loads(text) for text in distinct],
      'silos': {silo: distinct.index(text) for silo, text in texts.items()},
    }

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Claim':
    """Reads what `to_json` gave."""
    events = [_event_from_json(event) for event in value['events']]
    later = {'host', 'settings', 'replaced', 'unprotected'}  # lines of earlier versions have none
    names = {f.name for f in dataclasses.fields(cls)} - {'events', 'data'} - later
    replaced = value.get('replaced')
    return cls(
      **{name: value[name] for name in names},
      host=value.get('host', ''),
      settings=value.get('settings', ''),
      replaced=None if replaced is None else _event_from_json(replaced),
      unprotected=value.get('unprotected', ''),
      data=tuple(value['data']),
      events={silo: events[index] for silo, index in value['silos'].items()},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
  """The guarantee of several runs together.

  Attributes:
    epsilon: of the most affected client, or of the most affected silo's examples.
    delta: the smallest of the runs' own deltas.
    runs: how many runs, the asked one included.
    accountant: 'PLD' or 'RDP', by which epsilon is.
    epsilon_of_fixed: by PLD, if all runs were set up before any of them had results; None where
      PLD does not apply.
    epsilon_of_others: of those whom another of the runs protects, where theirs is larger: a run
      that protects examples may end the guarantee of clients.
  """

  epsilon: float
  delta: float
  runs: int
  accountant: str = 'RDP'
  epsilon_of_fixed: float | None = None
  epsilon_of_others: float | None = None

  @property
  def largest_epsilon(self) -> float:
    """Of all whom any of the runs protects."""
    return self.epsilon if self.epsilon_of_others is None else self.epsilon_of_others

  def __str__(self) -> str:
    runs = '1 run' if self.runs == 1 else f'{self.runs} runs together'
    epsilon, delta = rounded_up(self.epsilon), f'{self.delta:g}'
    text = f'epsilon = {epsilon} at delta = {delta} of {runs} ({self.accountant})'
    if self.epsilon_of_fixed is not None and self.epsilon_of_fixed < self.epsilon:
      text += (
        f'; {rounded_up(self.epsilon_of_fixed)} if none was set up after looking at results of '
        'another (PLD)'
      )
    if self.epsilon_of_others is not None:
      text += f'; {rounded_up(self.epsilon_of_others)} for those whom another of the runs protects'
    return text


class Ledger:
  """The ledger in a file, which several processes may use at once."""

  def __init__(
    self, path: pathlib.Path, *, is_running: Callable[[Claim], bool] = lambda claim: True
  ):
    """Opens, or begins, the ledger at `path`.

    Args:
      path: the file.
      is_running: tells of a run's claim whether somebody is at it. By default a run that did not
        record its end counts as going on.
    """
    self.path = path
    self._is_running = is_running

  def reserve(self, claim: Claim, *, epsilon: float | None = None) -> Composition:
    """Takes note of what a run will spend, before it begins or goes on.

    Args:
      claim: all that it may spend.
      epsilon: the budget of its data, at the smallest delta of its runs, for all whom one of these
        protects; None for no limit.

    Returns:
      What all runs on its data will have spent.

    Raises:
      BudgetError: that is more than the budget. Nothing is written then.
      ValueError: the file is damaged, or the runs have no common neighbouring relation, or another
        run had the same noise.
    """
    with self._locked() as file:
      states = self._read(file)
      if claim.run in states:
        states[claim.run].check_same(claim, self.path)
      together = self._compose(states, claim)
      if epsilon is not None and together.largest_epsilon > epsilon:
        raise BudgetError(
          f'--ledger_epsilon={epsilon:g} would be passed: with this run it is {together}, by the '
          f'ledger {self.path}.'
        )
      self._append(file, RESERVED, claim)
    return together

  def withdraw(self, claim: Claim) -> None:
    """Takes back a reservation of which no round was run, if no other run has written since.

    Where one has, the line stays: a reservation counts only while its run goes on.
    """
    with self._locked() as file:
      file.seek(0)
      content = file.read()
      last = content.rstrip(b'\n').rfind(b'\n') + 1
      with contextlib.suppress(ValueError):
        record = json.loads(content[last:])
        if record['kind'] == RESERVED and record['run'] == claim.run:
          file.truncate(last)
          os.fsync(file.fileno())

  def record(self, claim: Claim, *, ended: bool = False) -> None:
    """Takes note of what a run has spent; `ended` if it will spend no more (or is stopped)."""
    with self._locked() as file:
      self._append(file, ENDED if ended else SPENT, claim)

  def composition(self, claim: Claim) -> Composition:
    """The guarantee of a run together with all others on its data."""
    with self._locked() as file:
      return self._compose(self._read(file), claim)

  def _compose(self, states: Mapping[str, '_State'], claim: Claim) -> Composition:
    others = [s.counted(self._is_running) for run, s in states.items() if run != claim.run]
    claims = [claim] + [c for c in others if c is not None and set(c.data) & set(claim.data)]
    return _for_all(claims)

  @contextlib.contextmanager
  def _locked(self) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
      try:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
          is_new = not self.path.exists()
          file = stack.enter_context(open(self.path, 'a+b'))
          fcntl.flock(file, fcntl.LOCK_EX)
          if self._is(file):
            break  # else it was removed since it was opened
      except OSError as error:
        why = error.strerror or error
        raise OSError(f'--ledger={self.path} cannot be written: {why}') from error
      try:
        yield file
      finally:
        if is_new and not os.fstat(file.fileno()).st_size:  # a run that is refused begins none
          with contextlib.suppress(OSError):
            self.path.resolve().unlink()  # and no link to where others have theirs

  def _is(self, file) -> bool:
    """Whether an open file is the ledger's still."""
    with contextlib.suppress(FileNotFoundError):
      return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
    return False

  def _read(self, file) -> dict[str, '_State']:
    file.seek(0)
    states: dict[str, _State] = {}
    for number, line in enumerate(self._whole_lines(file.read()).splitlines(), start=1):
      try:
        record = json.loads(line)
        claim, kind = Claim.from_json(record), record['kind']
      except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
          f'--ledger={self.path}: line {number} cannot be read ({error}).'
        ) from error
      states.setdefault(claim.run, _State()).add(kind, claim)
    return states

  def _whole_lines(self, content: bytes) -> bytes:
    """The whole lines of the file, with their ends; none of a line that a kill cut short.

    A last line that lacks its end alone is whole: what it says was spent.

    Raises:
      ValueError: what follows is no beginning of a line: the file is not ours, to be cut there.
    """
    whole = content.rfind(b'\n') + 1
    rest = content[whole:]
    if not _BEGINNING.startswith(rest[: len(_BEGINNING)]):
      raise ValueError(f'--ledger={self.path} is no ledger; give one, or a file that is not there.')
    try:
      json.loads(rest)
    except ValueError:
      return content[:whole]
    return content + b'\n'

  def _append(self, file, kind: str, claim: Claim) -> None:
    file.seek(0)
    content = file.read()
    kept = self._whole_lines(content)
    file.truncate(min(len(kept), len(content)))
    end = kept[len(content) :]
    file.write(end + json.dumps({'kind': kind, **claim.to_json()}).encode() + b'\n')
    file.flush()
    os.fsync(file.fileno())


def compose(claims: Sequence[Claim]) -> Composition:
  """The guarantee of several runs together, of what the first one protects.

  Raises:
    ValueError: they have no common neighbouring relation, or clients.
  """
  delta = min(c.delta for c in claims)
  relation = Adjacency(claims[0].relation)
  counted, fixed, by_renyi = 0.0, 0.0, False
  alone = len(claims) == 1
  share = delta if alone else delta / 2
  for event in _events(claims, claims[0].unit):
    renyi = accounting.loss(event, share, relation, accountant='renyi').epsilon
    pld = None
    if alone or _only_steps_are_open(event, relation):
      pld = accounting.pld_epsilon(event, share, relation)
    if pld is None or pld > renyi:
      counted, by_renyi = max(counted, renyi), True
    else:
      counted = max(counted, pld)
    settled = accounting.pld_epsilon(event, delta, relation)
    fixed = math.inf if settled is None else max(fixed, settled)
  return Composition(
    epsilon=counted,
    delta=delta,
    runs=len(claims),
    accountant='RDP' if by_renyi else 'PLD',
    epsilon_of_fixed=fixed if math.isfinite(fixed) else None,
  )


def _for_all(claims: Sequence[Claim]) -> Composition:
  """As `compose`, with what is left to those whom the other runs protect."""
  found = compose(claims)
  seen, worst = {_whose(claims[0])}, found.epsilon
  for own in claims:
    if _whose(own) in seen:
      continue
    seen.add(_whose(own))
    others = [c for c in claims if c is not own and set(c.data) & set(own.data)]
    # From above there is one event; each silo's own takes long where there are many.
    if compose(of_any_silo([own, *others])).epsilon > worst * _ROUNDING:
      worst = max(worst, compose([own, *others]).epsilon)
  return dataclasses.replace(found, epsilon_of_others=worst) if worst > found.epsilon else found


def _whose(claim: Claim) -> tuple[Any, ...]:
  """Equal for runs that protect the same clients or examples."""
  return claim.unit, claim.partition, claim.unprotected, *sorted(claim.events)


def of_any_silo(claims: Sequence[Claim]) -> list[Claim]:
  """The claims for an example that may be in any silo of each run: cut alike, from above."""
  return [
    dataclasses.replace(claim, partition='', events={'': _any_of(claim.events.values())})
    for claim in claims
  ]


class _State:
  """What the lines of one run say."""

  def __init__(self):
    self._reserved: Claim | None = None
    self._spent: Claim | None = None
    self._ended = False

  def add(self, kind: str, claim: Claim) -> None:
    if kind == RESERVED:
      self._reserved, self._ended = claim, False
    elif self._spent is None or claim.rounds >= self._spent.rounds:
      self._spent = claim
    if kind == ENDED:
      self._ended = True

  def check_same(self, claim: Claim, path: pathlib.Path) -> None:
    """Refuses a claim of another run under this one's identity, that of its noise key.

    Two such runs have the same noise, which cancels in what they release: no composition covers it.
    """
    earlier = self._reserved or self._spent
    if earlier is None or not (earlier.settings and claim.settings):
      return
    parts = claim.settings.split('+')
    known = parts[: earlier.settings.count('+') + 1]
    # Earlier versions may have read the checksums of fewer files.
    data = claim.data if known == parts else tuple(d for d in claim.data if d in earlier.data)
    if (earlier.settings, earlier.data) != ('+'.join(known), data):
      raise ValueError(
        f'--ledger={path} holds another run with this noise key, with other settings or data'
        + (f' (in {earlier.folder})' if earlier.folder else '')
        + ': the noise of both is the same, and cancels. A key is for one run; make another.'
      )

  def counted(self, is_running: Callable[[Claim], bool]) -> Claim | None:
    """What counts of the run: its reservation while it goes on, then what it has spent."""
    if self._reserved is not None and not self._ended and is_running(self._reserved):
      return self._reserved
    return self._spent


def _events(claims: Sequence[Claim], unit: str) -> list[dp_accounting.DpEvent]:
  """What all runs together do to each silo (or the clients) of the first claim; each kind once."""
  relations = {claim.relation for claim in claims}
  if len(relations) > 1:
    raise ValueError(
      f'--ledger: runs under the relations {" and ".join(sorted(relations))} on the same data have '
      'no common epsilon; use a ledger for each.'
    )
  first = claims[0]
  parts: dict[str, list[dp_accounting.DpEvent]] = {silo: [] for silo in first.events}
  for claim in claims:
    same = claim.partition == first.partition
    if unit == 'client' and claim.unit == 'client' and not same:
      raise ValueError(
        '--ledger: other runs cut the same data into other clients (another --seed or '
        '--dataset_option), and what protects one client of theirs does not protect one of these.'
      )
    for silo, own in parts.items():
      if unit == 'client' and claim.unit != 'client':
        # Silos' examples were protected one by one, and no client was.
        own.append(dp_accounting.NonPrivateDpEvent())
      elif claim.unprotected and claim.unprotected != first.unprotected:
        # Some of those whom the first run protects may be among them.
        own.append(dp_accounting.NonPrivateDpEvent())
      elif unit == 'example' and claim.unit == 'client':
        # Another example makes another update of its client: nothing that is zeroed.
        known = claim.replaced is not None
        own.append(ReplacedDpEvent(claim.replaced) if known else dp_accounting.NonPrivateDpEvent())
      elif same and claim.events.keys() == first.events.keys():
        own.append(claim.events[silo])
      else:  # other silos of the same data: any of them may be meant
        own.append(_any_of(claim.events.values()))
  composed = {json.dumps([_event_to_json(e) for e in own]): own for own in parts.values()}
  return [dp_accounting.ComposedDpEvent(own) for own in composed.values()]


def _any_of(events: Iterable[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  distinct = list({json.dumps(_event_to_json(event)): event for event in events}.values())
  return distinct[0] if len(distinct) == 1 else DisjointDpEvent(distinct)


def _only_steps_are_open(event: dp_accounting.DpEvent, relation: Adjacency) -> bool:
  """Whether all steps have one dominating pair, or are Gaussian mechanisms."""
  parts = loss_distributions.parts_of(event, relation)
  if parts is None:
    return False
  return len(parts) <= 1 or {key[0] for key, _ in parts} == {'gaussian'}


def _event_to_json(event: dp_accounting.DpEvent) -> dict[str, Any]:
  if type(event).__name__ not in _EVENTS:
    raise ValueError(f'a ledger has no form for the event {type(event).__name__}.')

  def value_of(value):
    if isinstance(value, dp_accounting.DpEvent):
      return _event_to_json(value)
    return [value_of(part) for part in value] if isinstance(value, list | tuple) else value

  fields = {f.name: value_of(getattr(event, f.name)) for f in attr.fields(type(event))}
  return {'type': type(event).__name__, **fields}


def _event_from_json(value: Mapping[str, Any]) -> dp_accounting.DpEvent:
  def value_of(part):
    if isinstance(part, Mapping):
      return _event_from_json(part)
    return [value_of(p) for p in part] if isinstance(part, list) else part

  fields = {name: value_of(part) for name, part in value.items() if name != 'type'}
  return _EVENTS[value['type']](**fields)
