"""Flags of XLA, which it reads when it first compiles something."""

import os
from collections.abc import Mapping


def set_defaults(flags: Mapping[str, str]) -> None:
  """Sets flags that the user's environment does not name; a file of flags stays as it is."""
  own = os.environ.get('XLA_FLAGS', '').strip()
  if own[:1] in ('', '-'):  # else the name of a file with the user's flags
    added = [f'--{name}={value}' for name, value in flags.items() if name not in own]
    os.environ['XLA_FLAGS'] = ' '.join([own, *added]).strip()


def disable_pass(name: str) -> None:
  """Leaves out one of XLA's passes, beside those that the environment leaves out."""
  own = os.environ.get('XLA_FLAGS', '').strip()
  if own[:1] in ('', '-') and name not in own:
    os.environ['XLA_FLAGS'] = f'{own} --xla_disable_hlo_passes={name}'.strip()  # they add up
