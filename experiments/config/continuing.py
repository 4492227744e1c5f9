"""What a folder that is continued says counts; of the flags beside it some may differ."""

import os
from collections.abc import Mapping
from typing import Any

import processes
from experiments.config import user_files
from experiments.config.experiment import default_of, names_content, settings, with_own_method
from settings import did_you_mean, show

_PLACES = {'data_dir', 'ledger'}  # beside the files that are only read
_MAY_DIFFER = {'device'}  # which may have gone; beside all that is no part of a run's identity


def may_differ(name: str) -> bool:
  """Whether a run may go on with another value of a setting."""
  return name in _MAY_DIFFER or not settings()[name].identity


def names_a_run(given: Mapping[str, Any]) -> bool:
  """Whether any of the given settings says what is run, and not only where or how."""
  return not all(map(may_differ, given))


def as_begun(recorded: Mapping[str, Any], working_folder: str) -> dict[str, Any]:
  """The recorded settings with whole paths, if they are read in another folder than written.

  A relative path means what it meant when the run was begun: from elsewhere `--ledger=book.json`
  would be another ledger, in which nothing is spent.

  Args:
    recorded: settings by name.
    working_folder: where the process was that wrote them; what is no folder (any more) counts not.
  """
  if not os.path.isdir(working_folder) or os.path.samefile(working_folder, '.'):
    return dict(recorded)
  return {name: _from(working_folder, name, value) for name, value in recorded.items()}


def _from(folder: str, name: str, value: Any) -> Any:
  if name == 'metric':
    return [os.path.join(folder, text) for text in value]
  setting = settings().get(name)
  if not value or setting is None:
    return value
  if name in _PLACES or setting.is_path or setting.is_file(value):
    kind, of_kind, path = value.rpartition('parquet:')
    return f'{kind}{of_kind}{os.path.join(folder, path)}'
  return value


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
    ValueError: a given setting contradicts the folder, or what is recorded is none.
  """
  if complete and (unknown := sorted(with_own_method(recorded).keys() - settings().keys())):
    raise ValueError(
      f'{where} holds a config.json with a setting that there is not: {unknown[0]}'
      f'{did_you_mean(unknown[0], settings())}'
    )
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
