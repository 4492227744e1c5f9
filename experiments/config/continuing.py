"""What a folder that is continued says counts; of the flags beside it some may differ."""

from collections.abc import Mapping
from typing import Any

import processes
from experiments.config import user_files
from experiments.config.experiment import default_of, names_content, settings, with_own_method
from settings import show

_MAY_DIFFER = {'device'}  # which may have gone; beside all that is no part of a run's identity


def may_differ(name: str) -> bool:
  """Whether a run may go on with another value of a setting."""
  return name in _MAY_DIFFER or not settings()[name].identity


def names_a_run(given: Mapping[str, Any]) -> bool:
  """Whether any of the given settings says what is run, and not only where or how."""
  return not all(map(may_differ, given))


def merged(
  recorded: Mapping[str, Any], given: Mapping[str, Any], where: str, *, complete: bool
) -> dict[str, Any]:
  """The settings of what goes on: those recorded, and of those given what may differ.

  Args:
    recorded: the folder's settings by name.
    given: settings by name, as from flags.
    where: the folder's flag, for messages.
    complete: whether a setting that is not recorded has no value; else it has its default.

  Raises:
    ValueError: a given setting contradicts the folder.
  """
  given = with_own_method(given)
  alias = given.get('method')
  if alias in processes.ALIASES:
    method, implied = processes.ALIASES[alias]
    given = {**implied, **given, 'method': method}
  values = dict(recorded)
  for name, value in given.items():
    value = settings()[name].check(value)
    earlier = recorded.get(name)
    if name not in recorded and not complete:
      earlier = default_of(name, recorded.get('method', settings()['method'].default))
    if _same(name, value, earlier):
      continue
    if not may_differ(name):
      raise ValueError(
        f'--{name}={show(value)} contradicts {where}, which was begun with '
        f'{show(earlier) if earlier is not None else "no such setting"}; leave the flag out to '
        'continue, or choose another folder.'
      )
    values[name] = value
  return values


def _same(name: str, value: Any, earlier: Any) -> bool:
  if isinstance(value, tuple):
    return list(value) == list(earlier or ())
  if names_content(name, value) and isinstance(earlier, str):
    return user_files.digest(value) == user_files.digest(earlier)
  return value == earlier
