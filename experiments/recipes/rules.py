"""The rules of judgement: paired errors over seeds, margins, trends, optima, crossings, tables.

Functions of numbers alone. A quantity is an array [seeds] whose entries belong together with
those of another one: the seed moves split, sampling and noise on both sides. A quantity that
does not depend on chance has one entry with `exact`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.running.progress import show

FEWEST_SEEDS = 3
_MANY_SEEDS = 6
_DRAWS = 2000
SHARE_OF_CELLS = 0.8
SHARE_OF_DRAWS = 0.9
NO_PREMISE = 'the premise does not hold'  # in the words of a finding that does not judge


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """What a rule says.

  Attributes:
    met: None where it cannot be judged.
    text: the numbers, or why not.
    seeds: that it rests on; 0 for what is exact.
  """

  met: bool | None
  text: str
  seeds: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
  """A mean of paired differences and its error.

  Attributes:
    mean: over the seeds.
    error: two standard errors; below 6 seeds Student's t at 95 %; 0 for what is exact.
    seeds: how many.
  """

  mean: float
  error: float
  seeds: int

  def __str__(self) -> str:
    return f'{show(self.mean)} ± {show(self.error)}' if self.seeds else show(self.mean)


def difference(
  left: np.ndarray | float, right: np.ndarray | float = 0.0, *, exact: bool = False
) -> Difference:
  """The paired difference left - right.

  Raises:
    ValueError: fewer than 3 seeds.
  """
  values = np.atleast_1d(np.asarray(left, np.float64) - right)
  if exact:
    return Difference(mean=float(values.mean()), error=0.0, seeds=0)
  if len(values) < FEWEST_SEEDS:
    raise ValueError(f'{len(values)} seeds are fewer than {FEWEST_SEEDS}')
  count = len(values)
  factor = 2.0 if count >= _MANY_SEEDS else float(stats.t.ppf(0.975, count - 1))
  error = factor * float(values.std(ddof=1)) / math.sqrt(count)
  return Difference(mean=float(values.mean()), error=error, seeds=count)


def holds(relation: str, gap: Difference, margin: float, size: float = 1.0) -> bool:
  """Whether left stands in a relation to right.

  Args:
    relation: '>', '<', '>=', '<=', 'about', 'within', 'equals'; 'not below': not worse than the
      margin; 'indifferent': within two errors.
    gap: left - right.
    margin: in the quantity's unit; for 'equals' relative.
    size: of the right side, for 'equals'.
  """
  if not math.isfinite(gap.mean):
    # Infinite optima may be compared, but nothing is near to them.
    return (relation in ('>', '>=') and gap.mean > 0) or (relation in ('<', '<=') and gap.mean < 0)
  if relation in ('<', '<='):
    gap = dataclasses.replace(gap, mean=-gap.mean)
    relation = relation.replace('<', '>')
  if relation == '>':
    return gap.mean > margin and gap.mean > gap.error
  if relation == '>=':
    return gap.mean >= -margin - gap.error
  if relation == 'not below':
    return gap.mean >= -margin
  if relation == 'indifferent':
    return abs(gap.mean) <= gap.error
  if relation in ('about', 'within'):
    return abs(gap.mean) <= margin
  if relation == 'equals':
    return abs(gap.mean) <= margin * abs(size) or gap.mean == 0.0
  raise ValueError(f'{relation!r} is no relation.')


def order(
  relation: str,
  left: np.ndarray,
  right: np.ndarray | float,
  margin: float | None = None,
  *,
  exact: bool = False,
) -> Finding:
  """A comparison; without a margin one of 0."""
  gap = difference(left, right, exact=exact)
  margin = margin or 0.0
  needed = f' (margin {show(margin)})' if margin else ''
  met = holds(relation, gap, margin, float(np.mean(right)))
  return Finding(met=met, text=f'{gap}{needed}', seeds=gap.seeds)


def trend(values: Sequence[np.ndarray], *, rises: bool) -> Finding:
  """Monotone within two errors from step to step, and strict from end to end.

  Args:
    values: one quantity for each step, [seeds].
    rises: or falls.
  """
  sign = 1.0 if rises else -1.0
  steps = [difference(sign * (b - a)) for a, b in itertools.pairwise(values)]
  ends = difference(sign * (values[-1] - values[0]))
  back = sum(step.mean < -step.error for step in steps)
  met = not back and ends.mean > ends.error
  word = 'up' if rises else 'down'
  return Finding(
    met=met,
    text=f'{word} by {ends} from end to end, {back} of {len(steps)} steps the other way',
    seeds=ends.seeds,
  )


def turns(values: Sequence[np.ndarray]) -> int:
  """How often a quantity changes its direction beyond two errors."""
  count, direction, extreme = 0, 0, values[0]
  for value in values[1:]:
    step = difference(value, extreme)
    now = int(np.sign(step.mean)) if abs(step.mean) > step.error else 0
    if now and direction and now != direction:
      count += 1
    if now:
      direction, extreme = now, value
    elif direction and np.sign(step.mean) == direction:
      extreme = value  # goes on, if only a little
  return count


def best_of(settings: Sequence[float], utilities: np.ndarray, *, smooth: bool = False) -> float:
  """The setting of most utility.

  Args:
    settings: increasing, [settings].
    utilities: means, [settings].
    smooth: by a parabola through the best and its neighbours, in log settings.
  """
  i = int(np.argmax(utilities))
  inside = 0 < i < len(settings) - 1
  if not (smooth and inside and settings[i - 1] > 0 and math.isfinite(settings[i + 1])):
    return float(settings[i])
  x, y = np.log(np.asarray(settings[i - 1 : i + 2])), np.asarray(utilities[i - 1 : i + 2])
  curve, slope, _ = np.polyfit(x - x[1], y, 2)
  top = -slope / (2 * curve) if curve < 0 else 0.0
  return float(np.exp(x[1] + np.clip(top, x[0] - x[1], x[2] - x[1])))


def bootstrap(statement: Callable[[np.ndarray], bool], seeds: int, *, draws: int = _DRAWS) -> float:
  """The share of draws of the seeds, with replacement, for which a statement is true.

  Args:
    statement: of the seeds' places, int [seeds].
    seeds: how many.
    draws: how many.

  Raises:
    ValueError: fewer than 3 seeds.
  """
  if seeds < FEWEST_SEEDS:
    raise ValueError(f'{seeds} seeds are fewer than {FEWEST_SEEDS}')
  rng = np.random.default_rng(0)
  return float(np.mean([statement(rng.integers(seeds, size=seeds)) for _ in range(draws)]))


def crossing(places: Sequence[float], differences: Sequence[float]) -> float:
  """Where a difference first turns positive for good, by interpolation; infinity if it does not.

  Args:
    places: increasing, [places].
    differences: [places].
  """
  values = np.asarray(differences, float)
  below = np.flatnonzero(values <= 0)
  if not len(below):
    return float(places[0])
  i = int(below[-1])
  if i == len(places) - 1:
    return math.inf
  if not math.isfinite(places[i + 1]):
    return float(places[i])
  share = -values[i] / (values[i + 1] - values[i])
  return float(places[i] + share * (places[i + 1] - places[i]))


def outside(value: float, cell: Mapping[str, float]) -> float:
  """How far a value is from a cell of a table, in tolerances: met up to 1, far beyond 2.

  Args:
    value: ours, in the table's unit.
    cell: {'target', 'tol'}, {'target', 'factor'} or {'target_error', 'error_factor'}: a factor
      holds either way, that of an error on 100 - value.
  """
  if 'tol' in cell:
    return abs(value - cell['target']) / cell['tol']
  target, factor = (
    (cell['target'], cell['factor'])
    if 'factor' in cell
    else (cell['target_error'], cell['error_factor'])
  )
  value = value if 'factor' in cell else 100.0 - value
  if value <= 0:
    return math.inf
  return abs(math.log(value / target)) / math.log(factor)


def table(values: Mapping[str, np.ndarray], cells: Mapping[str, Mapping[str, float]]) -> Finding:
  """A row of a table: 80 % of its cells inside, and none beyond twice its tolerance.

  Args:
    values: ours by cell, [seeds].
    cells: tolerances by cell.

  Raises:
    ValueError: a cell without a value, or fewer than 3 seeds.
  """
  missing = [name for name in cells if name not in values]
  if missing:
    raise ValueError(f'there is no value for {", ".join(missing)}')
  seeds = min(len(values[name]) for name in cells)
  if seeds < FEWEST_SEEDS:
    raise ValueError(f'{seeds} seeds are fewer than {FEWEST_SEEDS}')
  far = {name: outside(float(np.mean(values[name])), cell) for name, cell in cells.items()}
  slack = 1e-9  # a value on the border is inside
  inside = sum(distance <= 1 + slack for distance in far.values())
  worst = max(far, key=lambda name: far[name])
  met = inside >= SHARE_OF_CELLS * len(cells) and far[worst] <= 2 + slack
  return Finding(
    met=met,
    text=f'{inside} of {len(cells)} cells inside, the worst ({worst}) at {show(far[worst])} '
    'tolerances',
    seeds=seeds,
  )


def together(findings: Sequence[Finding], *, needed: str = 'all') -> Finding:
  """Several findings as one.

  Args:
    findings: at least one.
    needed: 'all', 'half' or 'any' of them.
  """
  unknown = [f for f in findings if f.met is None]
  if unknown:
    return unknown[0]
  met = sum(bool(f.met) for f in findings)
  enough = {'all': met == len(findings), 'half': 2 * met >= len(findings), 'any': met > 0}[needed]
  count = f'{met} of {len(findings)}: ' if len(findings) > 1 else ''
  return Finding(
    met=enough,
    text=count + '; '.join(f.text for f in findings),
    seeds=min(f.seeds for f in findings),
  )
