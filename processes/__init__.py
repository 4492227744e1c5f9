"""Methods of private, personalised federated learning as TFF iterative processes."""

import importlib
from typing import TYPE_CHECKING

from processes.registry import ALIASES, METHODS

if TYPE_CHECKING:
  from processes.method import BuildSpec, FederatedMethod

__all__ = ['ALIASES', 'METHODS', 'build']


def build(name: str, spec: 'BuildSpec') -> 'FederatedMethod':
  """Builds a registered method.

  Raises:
    ValueError: an unknown method, or a privacy unit that it does not have.
  """
  if name not in METHODS:
    raise ValueError(f'--method={name} is unknown; use one of {", ".join(METHODS)}.')
  entry = METHODS[name]
  if spec.plan.unit not in entry.privacy_units:
    raise ValueError(
      f'--privacy={spec.plan.unit} is not defined for --method={name}; '
      f'use one of {", ".join(entry.privacy_units)}.'
    )
  return importlib.import_module(f'processes.{name}').build(spec)
