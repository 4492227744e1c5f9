"""Takes assertions out of a graph that XLA is to compile, with what only they need.

XLA makes no assertions, but would have to compute what they look at: a Keras metric with sample
weights checks their shape by an op of sets, for which XLA has no kernel. What they look at may
wait for an assignment, which others that wait for the assertion rely on: it stays.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

_CHECKS = ('Assert', 'AssertV2')
# Of the branches of `tf.debugging.Assert`, which give its condition back.
_IN_GUARDS = frozenset([*_CHECKS, 'Const', 'Identity', 'NoOp', 'ReadVariableOp'])
# Of the types of ops that change a variable, an iterator, a generator or a table.
_CHANGES = (
  'Assign',
  'IteratorGetNext',
  'LookupTableI',
  'LookupTableRemove',
  'ResourceApply',
  'ResourceScatter',
  'ResourceSparseApply',
  'ResourceStridedSliceAssign',
  'RngReadAndSkip',
)


def without(graph_def: Any, results: Iterable[str]) -> Any:
  """A graph whose assertions do nothing.

  Args:
    graph_def: a GraphDef, which is not changed.
    results: the names of the tensors that are asked for.

  Returns:
    A GraphDef with the same nodes, but for those of its functions that only assertions needed.
    The given one if it has no assertions.
  """
  functions = graph_def.library.function
  every_node = itertools.chain(graph_def.node, *(f.node_def for f in functions))
  if not any(node.op in _CHECKS for node in every_node):
    return graph_def
  asserting = {f.signature.name for f in functions if _is_guarded(f)}
  library = {f.signature.name: f for f in functions}
  made = type(graph_def)()
  made.CopyFrom(graph_def)
  _silence(made.node, library, asserting, results)
  for function in made.library.function:
    if _silence(function.node_def, library, asserting, function.ret.values()):
      _drop_unneeded(function)
  return made


def _is_guarded(function) -> bool:
  """Whether a function is an assertion, and nothing else."""
  types = {node.op for node in function.node_def}
  return types <= _IN_GUARDS and not types.isdisjoint(_CHECKS)


def _silence(
  nodes: Any, library: Mapping[str, Any], asserting: Container[str], results: Iterable[str]
) -> bool:
  """Makes the assertions among some nodes do nothing; whether there were any."""
  guards = {node.name for node in nodes if _is_guard(node, library, asserting)}
  followers = {
    node.name: source
    for node in nodes
    if node.op == 'Identity' and (source := _base(node.input[0])) in guards
  }
  used = {_base(name) for name in results}
  for node in nodes:
    used.update(_base(i) for i in _data(node) if followers.get(node.name) != _base(i))
  kept = used | {guard for follower, guard in followers.items() if follower in used}
  silent = [
    node
    for node in nodes
    if node.op in _CHECKS
    or (node.name in guards and node.name not in kept)
    or (node.name in followers and followers[node.name] not in kept)
  ]
  changing = _changes(nodes, library, {_base(i) for node in silent for i in _data(node)})
  for node in silent:
    controls = [f'^{_base(i)}' for i in node.input if i.startswith('^') or node.name in followers]
    if node.name not in followers:
      found = dict.fromkeys(name for i in _data(node) for name in changing[_base(i)])
      controls += [control for name in found if (control := f'^{name}') not in controls]
    node.op = 'NoOp'
    node.attr.clear()
    del node.input[:]
    node.input.extend(controls)
  return bool(silent)


def _is_guard(node, library: Mapping[str, Any], asserting: Container[str]) -> bool:
  if node.op not in ('If', 'StatelessIf'):
    return False
  names = [node.attr[branch].func.name for branch in ('then_branch', 'else_branch')]
  return any(name in asserting for name in names) and all(
    {inner.op for inner in library[name].node_def} <= _IN_GUARDS for name in names
  )


def _changes(nodes: Any, library: Mapping[str, Any], names: Iterable[str]) -> dict[str, list[str]]:
  """By the names of some nodes: those of nodes that change something for which they wait."""
  by_name = {node.name: node for node in nodes}
  changed = {node.name for node in nodes if _is_change(node, library, set())}
  found: dict[str, list[str]] = {}
  for name in names:
    pending, seen = [name] if changed else [], {name}
    found[name] = []
    while pending:
      one = pending.pop()
      if one in changed:
        found[name].append(one)  # It waits for what is before it.
      elif one in by_name:
        new = {_base(i) for i in by_name[one].input} - seen
        seen |= new
        pending += sorted(new)
  return found


def _is_change(node, library: Mapping[str, Any], seen: set[str]) -> bool:
  """Whether a node, or a function that it calls, changes something."""
  if node.op.startswith(_CHANGES):
    return True
  names = {node.op, *(f.name for a in node.attr.values() for f in (a.func, *a.list.func))}
  new = {name for name in names if name in library} - seen
  seen |= new
  return any(_is_change(inner, library, seen) for name in new for inner in library[name].node_def)


def _drop_unneeded(function) -> None:
  """Drops a function's nodes that neither its results nor its effects need."""
  nodes = {node.name: node for node in function.node_def}
  found: set[str] = set()
  pending = [_base(name) for name in (*function.ret.values(), *function.control_ret.values())]
  while pending:
    name = pending.pop()
    if name in nodes and name not in found:
      found.add(name)
      pending += [_base(i) for i in nodes[name].input]
  kept = [node for node in function.node_def if node.name in found]
  del function.node_def[:]
  function.node_def.extend(kept)


def _data(node) -> Iterator[str]:
  return (name for name in node.input if not name.startswith('^'))


def _base(name: str) -> str:
  return name.lstrip('^').split(':')[0]
