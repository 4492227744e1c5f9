"""Every method by name. Importable without TensorFlow: the flags read it.

A new method is a package with its declaration `METHOD` (`processes.declaration`) and its algorithm
(`process.py`), and its name here. One from a user's own file is added by `register`.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from processes.declaration import Method
from settings import Setting, did_you_mean

_NAMES = (
  'fedavg',
  'local',
  'mr_mtl',
  'tuned_mr_mtl',
  'finetune',
  'mocha',
  'ifca',
  'ifca_mr_mtl',
  'pooled',
  'ditto',
  'feo2',
  'ppsgd',
  'fedprox',
  'scaffold',
)

DEFAULT = 'fedavg'  # whichever is listed first: a new method changes no command that names none
METHODS: dict[str, Method] = {}
"""Every method by name."""
ALIASES: dict[str, tuple[str, Mapping[str, Any]]] = {}
"""Names that stand for a method with some settings given."""


def register(method: Method) -> Method:
  """Adds a method; from then on it has flags, and can be named.

  Raises:
    ValueError: its name is taken, or one of its settings is another method's in another form.
  """
  for name in (method.name, *method.aliases):
    if name in METHODS or name in ALIASES:
      raise ValueError(f'method {method.name}: the name {name} is taken; choose another.')
  known = settings()
  for setting in method.settings:
    other = known.get(setting.name, setting)
    if setting.but(default=other.default, help=other.help) != other:
      raise ValueError(
        f'method {method.name}: its setting {setting.name} is another one than that of '
        f'--method={" or ".join(owners(setting.name))}; share that, or choose another name.'
      )
  METHODS[method.name] = method
  ALIASES.update({alias: (method.name, values) for alias, values in method.aliases.items()})
  return method


def find(name: str) -> Method:
  """The method of a name.

  Raises:
    ValueError: there is none.
  """
  if name not in METHODS:
    raise ValueError(
      f'--method={name} is unknown; use one of {", ".join(METHODS)}{did_you_mean(name, METHODS)}'
    )
  return METHODS[name]


def settings() -> dict[str, Setting]:
  """Every method's settings by name; of a shared one the first method's declaration."""
  found: dict[str, Setting] = {}
  for method in METHODS.values():
    for setting in method.settings:
      found.setdefault(setting.name, setting)
  return found


def owners(name: str) -> tuple[str, ...]:
  """The methods that have the setting `name`."""
  return _owners(name, tuple(METHODS))


@functools.cache
def _owners(name: str, methods: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(method for method in methods if METHODS[method].setting(name) is not None)


for _name in _NAMES:
  register(importlib.import_module(f'processes.{_name}').METHOD)
