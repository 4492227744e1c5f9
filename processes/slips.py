"""Slips in a method's updates: refused when it is built, in one line that has its name."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_federated as tff

from runtime.trees import fields


@contextlib.contextmanager
def reads(who: str, **given: Mapping[str, Any]) -> Iterator[None]:
  """Says of a key that `who` reads and that is not there which keys are, in one line."""
  try:
    yield
  except KeyError as error:
    parts = dict(given)
    for name, tree in given.items():
      for key in ('hyperparameters', 'attributes'):
        if key in tree:
          parts[f"{name}['{key}']"] = tree[key]
    keys = '; '.join(f'{name}: {", ".join(tree) or "none"}' for name, tree in parts.items())
    # The traceback is the cause's: it has the line that reads.
    raise ValueError(
      f'{who} reads {error}, which is not there. There is in {keys}.'
    ).with_traceback(error.__traceback__) from error


def pair(found: Any, who: str, what: str) -> tuple[Any, Any]:
  """Refuses what is no pair: a tree of two entries would come apart into its keys."""
  if isinstance(found, (tuple, list)) and len(found) == 2:
    return found[0], found[1]
  kind = 'None' if found is None else type(found).__name__
  raise ValueError(f'{who} returns {kind}; it must return the pair {what}.')


def check_kept(who: str, method: str, old: tff.StructType, new: tff.Type) -> None:
  """Refuses a state that an update gives of another kind than the one that it was given."""
  if old.is_assignable_from(new):
    return
  before, after = (dict(fields(t)) if isinstance(t, tff.StructType) else {} for t in (old, new))
  changed = ', '.join(
    f'{name} is {after.get(name, "gone")} and was {before.get(name, "not there")}'
    for name in {**before, **after}
    if before.get(name) != after.get(name)
  )
  raise ValueError(
    f"{who}_update of {method} changes the kind of a {who}'s state: {changed}. "
    f'What a {who} holds is what init_{who} gives.'
  )


def check_scalars(method: str, metrics: tff.Type) -> None:
  """Refuses metrics that cannot be rows of a table."""
  for name, kind in fields(metrics) if isinstance(metrics, tff.StructType) else [('', metrics)]:
    if not (isinstance(kind, tff.TensorType) and kind.shape == () and name):
      raise ValueError(
        f'server_update of {method} gives the metric {name or "without a name"} as {kind}; '
        'metrics are scalars by name.'
      )
