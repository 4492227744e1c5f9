"""The plain interpreter: one client after the other, nothing compiled by XLA.

It runs what the staged program cannot: strings, tensors whose shapes are not
known, and what `lowering` gives a reason for. Every graph is a `tf.function` of its own, traced
once. It is also the reference for an empty cohort, which TFF's native runtime
cannot run.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtime import trees
from runtime.xla import aggregation, local, program

_Kind = program.Kind


class EagerProgram:
  """Runs a program for lists of clients."""

  def __init__(self, prog: program.Program):
    self._program = prog
    self._functions: dict[str, tf.types.experimental.GenericFunction] = {}

  def __call__(self, parameter: Any, num_clients: int) -> Any:
    """Runs the program.

    Args:
      parameter: nested tuples of tensors by the parameter's type; a part at CLIENTS
        is a list with an element for each client.
      num_clients: the number of clients.

    Returns:
      The result in the same form.
    """
    prog = self._program
    server: dict[str, Any] = {}
    clients: list[dict[str, Any]] = [{} for _ in range(num_clients)]
    if prog.parameter_name is not None:
      server[prog.parameter_name] = parameter
      for index, env in enumerate(clients):
        env[prog.parameter_name] = _for_client(prog.parameter_type, parameter, index)
    for node in prog.nodes:
      if node.kind is _Kind.SERVER:
        server[node.name] = self._run('value', node, server)
      elif node.kind is _Kind.CLIENTS:
        for env in clients:
          env[node.name] = self._client_value(node, server | env)
      else:
        server[node.name] = self._aggregate(node, server, clients)
    at_clients = [n.name for n in prog.nodes if n.kind is _Kind.CLIENTS]
    lists = {name: [env[name] for env in clients] for name in at_clients}
    return local.evaluate(prog.result, server | lists)

  def _run(self, what: str, node: program.Node, env: Any, *arguments: Any) -> Any:
    """Evaluates one part of a node as a traced function of what it refers to."""
    steps: dict[str, Callable[..., Any]] = {
      'value': program.evaluate,
      'contribution': aggregation.contribution,
      'zero': lambda n, e: local.evaluate(n.argument(1), e),
      'fold': lambda n, e, total, value: aggregation.fold(n, total, value, e),
      'combine': lambda n, e, a, b: aggregation.merge(n, a, b, e),
      'report': lambda n, e, total: aggregation.report(n, total, e),
      'select': lambda n, e, key: local.call(
        n.argument(3), (local.evaluate(n.argument(2), e), key), e
      ),
    }
    key = f'{what}:{node.name}'
    if key not in self._functions:
      self._functions[key] = function = tf.function(
        lambda e, *a: steps[what](node, e, *a), autograph=False, reduce_retracing=True
      )
      # TensorFlow would warn that many functions come from this one line.
      function._omit_frequent_tracing_warning = True  # pylint: disable=protected-access
    used = {name: env[name] for name in node.inputs if name in env}
    return self._functions[key](_without_lists(used), *arguments)

  def _client_value(self, node: program.Node, env: Any) -> Any:
    if node.intrinsic not in program.SELECT_INTRINSICS:
      return self._run('value', node, env)
    keys = local.evaluate(node.argument(0), env)
    slices = [self._run('select', node, env, key) for key in keys]
    if not slices:
      raise local.unsupported('federated_select without keys')
    stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *slices)
    return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(stacked))

  def _aggregate(self, node: program.Node, server: Any, clients: list[Any]) -> Any:
    reduction = aggregation.reduction(node)
    if reduction is None:
      total = self._run('zero', node, server)
      step = 'fold'
    else:
      total = neutral_accumulator(node)
      step = 'combine'
    for env in clients:
      env = server | env
      total = self._run(step, node, env, total, self._run('contribution', node, env))
    return self._run('report', node, server, total)


def neutral_accumulator(node: program.Node) -> Any:
  """The accumulator of an elementwise reduction over no clients."""
  reduction = aggregation.reduction(node)
  assert reduction is not None  # A fold starts from its own zero.
  type_ = aggregation.accumulator_type(node)
  leaves = []
  for leaf in trees.leaf_types(type_):
    dtype = tf.as_dtype(leaf.dtype)
    leaves.append(tf.fill(trees.static_shape(leaf), tf.constant(reduction.neutral(dtype), dtype)))
  return trees.nested(type_, iter(leaves))


def _for_client(type_, value, index):
  if trees.is_clients(type_):
    return value if type_.all_equal else value[index]
  if isinstance(type_, tff.StructType):
    return tuple(
      _for_client(t, v, index) for (_, t), v in zip(trees.fields(type_), value, strict=True)
    )
  return value


def _without_lists(value):
  """Drops the clients' lists of a parameter, which server work cannot refer to."""
  if isinstance(value, dict):
    return {k: _without_lists(v) for k, v in value.items()}
  if isinstance(value, tuple):
    return tuple(_without_lists(v) for v in value)
  return () if isinstance(value, list) else value
