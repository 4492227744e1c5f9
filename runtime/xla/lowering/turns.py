"""How often a loop turns at most, which XLA has to know for the lists that its gradient reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# What a loop asks of its counter, by the sign of the counter's step; and whether it may be equal.
_ASKED = {'Less': (1, 0), 'LessEqual': (1, 1), 'Greater': (-1, 0), 'GreaterEqual': (-1, 1)}
IDENTITIES = ('Identity', 'IdentityN', 'PreventGradient', 'Snapshot', 'StopGradient')


class _Function:
  """The nodes of a loop's condition or body."""

  def __init__(self, nodes: Sequence[Any], arguments: Sequence[str], results: Sequence[str]):
    self._nodes: Mapping[str, Any] = {node.name: node for node in nodes}
    self.arguments = list(arguments)
    self.results = list(results)

  def source(self, name: str) -> Any:
    """The node that a tensor comes from."""
    node = self._nodes[name.lstrip('^').split(':')[0]]
    return self.source(node.input[0]) if node.op in IDENTITIES else node

  def argument(self, name: str) -> int | None:
    """Which argument a tensor is; None if it is none."""
    source = self.source(name).name
    return self.arguments.index(source) if source in self.arguments else None


def most(
  functions: Callable[[str], tuple],
  cond: str,
  body: str,
  start: Sequence[Any],
  largest: Callable[[tf.Tensor], int | None],
) -> int | None:
  """The most turns of a loop that counts an integer, by the same step each time, up to a limit.

  Args:
    functions: the name of a function -> (nodes, names of the arguments, names of the results, ...).
    cond, body: the names of the loop's functions.
    start: the loop's values before the first turn.
    largest: gives the most that an integer can be that is not known; None if that is not known.

  Returns:
    The number; None if it is not known.
  """
  asking, turning = (_Function(*functions(name)[:3]) for name in (cond, body))

  def known(function: _Function, name: str, *, most_of: bool = False) -> int | None:
    """An integer that no turn changes; or the most that it can be."""
    node, index = function.source(name), function.argument(name)
    if node.op == 'Const':
      value = tf.make_ndarray(node.attr['value'].tensor)
    elif index is not None and turning.argument(turning.results[index]) == index:
      value = tf.get_static_value(start[index])
      if value is None and most_of:
        return largest(start[index])
    else:
      return None
    return None if value is None or not np.issubdtype(value.dtype, np.integer) else int(value)

  def turns(name: str) -> list[int]:
    node = asking.source(name)
    if node.op == 'LogicalAnd':
      return [t for i in node.input[:2] for t in turns(i)]
    if node.op in ('If', 'StatelessIf'):  # AutoGraph's `break`: false where the first question is
      other = _Function(*functions(node.attr['else_branch'].func.name)[:3])
      end = other.source(other.results[0])
      is_false = end.op == 'Const' and not tf.make_ndarray(end.attr['value'].tensor)
      return turns(node.input[0]) if is_false else []
    counter = asking.argument(node.input[0]) if node.op in _ASKED else None
    if counter is None:
      return []
    step = turning.source(turning.results[counter])
    steps = {'Add': 1, 'AddV2': 1, 'Sub': -1}
    if step.op not in steps or turning.argument(step.input[0]) != counter:
      return []
    first, limit, by = (
      tf.get_static_value(start[counter]),
      known(asking, node.input[1], most_of=_ASKED[node.op][0] > 0),
      known(turning, step.input[1]),
    )
    sign, is_inclusive = _ASKED[node.op]
    if first is None or limit is None or by is None or by * steps[step.op] * sign <= 0:
      return []
    distance = sign * (limit - int(first)) + is_inclusive
    return [max(0, -(-distance // abs(by)))]

  return min(turns(asking.results[0]), default=None)
