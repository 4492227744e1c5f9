"""Tables with a row for each silo, as CSV files."""

import collections
import csv
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from settings.setting import LARGEST


def read(
  name: str,
  path: pathlib.Path,
  silos: Sequence[str],
  column: str,
  value_of: Callable[[Mapping[str, str], str], Any],
  *,
  left_out: Collection[str] = (),
) -> list[Any]:
  """What `value_of` makes of each silo's row, in the order of `silos`.

  Args:
    name: of the flag.
    path: its file, with the columns `silo`, `column` and perhaps others. A silo is named as in the
      data, or without the blanks around its name (or with others) where that is one silo.
    silos: the silos' names, in the order of the result.
    column: which has to be there.
    value_of: (row, where it stands in words) -> the silo's value.
    left_out: silos that take no part, whose rows are passed over.

  Raises:
    ValueError: a silo that is missing, unknown or there twice, or a number that is none.
  """
  flag = f'--{name}={path}'
  try:
    with open(path, newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      columns, rows = reader.fieldnames or [], [(reader.line_num, row) for row in reader]
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise ValueError(f'{flag} cannot be read: {getattr(error, "strerror", error)}.') from error
  if not {'silo', column} <= set(columns):
    raise ValueError(f'{flag} must have the columns silo and {column}, not {", ".join(columns)}.')
  values: dict[str, Any] = {}
  known, every = frozenset(silos), frozenset((*silos, *left_out))
  alike = _without_blanks(every)
  for line, row in rows:
    written, where = row['silo'] or '', f'{flag}, line {line}'
    bare = written.strip()
    silo = next((name for name in (written, bare) if name in every), alike.get(bare, bare))
    if None in row:
      raise ValueError(f'{where} has more values than the {len(columns)} columns.')
    if silo in left_out:
      continue
    if silo not in known:
      raise ValueError(f'{where}: silo {silo!r} is not in the data, whose first is {silos[0]!r}.')
    if silo in values:
      raise ValueError(f'{where}: silo {silo!r} is there a second time.')
    values[silo] = value_of({**row, 'silo': silo}, where)
  missing = [silo for silo in silos if silo not in values]
  if missing:
    raise ValueError(f'{flag} has no row for {len(missing)} silos, such as {missing[0]!r}.')
  return [values[silo] for silo in silos]


def _without_blanks(silos: Collection[str]) -> dict[str, str]:
  """The silos by their names without blanks around them, but those that are then alike."""
  count = collections.Counter(silo.strip() for silo in silos)
  return {silo.strip(): silo for silo in silos if count[silo.strip()] == 1}


def positive(text: str | None, what: str, *, most: float = LARGEST) -> float:
  """A number above 0, or a `ValueError` that says what it is of."""
  value = _number(text)
  if not 0 < value <= most:
    raise ValueError(f'{what} is {text!r}; it must be greater than 0 and at most {most:g}.')
  return value


def not_negative(text: str | None, what: str) -> float:
  """A number from 0, or a `ValueError` that says what it is of."""
  value = _number(text)
  if not 0 <= value <= LARGEST:
    raise ValueError(f'{what} is {text!r}; it must be a number from 0 to {LARGEST:g}.')
  return value


def _number(text: str | None) -> float:
  try:
    return float(text or '')
  except ValueError:
    return float('nan')
