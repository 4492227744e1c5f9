"""The plain interpreter: one client after the other, nothing compiled by XLA.

It runs what the staged program cannot: strings, tensors whose shapes are not
known, and what `lowering` gives a reason for. All that a client does in a stage is one
`tf.function`, traced once; so is the server's work, and a fold over clients' values. It is also
the reference for an empty cohort, which TFF's native runtime cannot run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import aggregation, local, program

_Kind = program.Kind


class EagerProgram:
  """Runs a program for lists of clients."""

  def __init__(self, prog: program.Program):
    self._program = prog
    self._functions: dict[Any, tf.types.experimental.GenericFunction] = {}

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
    for stage in range(prog.num_stages):
      self._at_server(stage, server)
      self._at_clients(stage, server, clients)
    at_clients = [n.name for n in prog.nodes if n.kind is _Kind.CLIENTS]
    lists = {name: [env[name] for env in clients] for name in at_clients}
    return local.evaluate(prog.result, server | lists)

  def _at_server(self, stage: int, server: dict[str, Any]) -> None:
    """Adds the values of a stage: of the server's calls, and where folds start."""
    select = self._program.select
    reported, nodes = select(_Kind.AGGREGATE, stage - 1), select(_Kind.SERVER, stage)
    folds = [n for n in select(_Kind.AGGREGATE, stage) if aggregation.reduction(n) is None]

    def work(env):
      new: dict[str, Any] = {}
      for node in reported:
        total = env[f'total:{node.name}']
        new[node.name] = aggregation.report(node, total, env | new)
      for node in nodes:
        new[node.name] = program.evaluate(node, env | new)
      for node in folds:
        new[f'total:{node.name}'] = local.evaluate(node.argument(1), env | new)
      return new

    if reported or nodes or folds:
      used = {i for node in (*reported, *nodes, *folds) for i in node.inputs}
      used |= {f'total:{node.name}' for node in reported}
      server |= self._function(('server', stage), work)(_without_lists(_those(server, used)))

  def _at_clients(self, stage: int, server: dict[str, Any], clients: list[dict[str, Any]]) -> None:
    """Adds the clients' values of a stage, and what is accumulated of them."""
    nodes = self._program.select(_Kind.CLIENTS, stage)
    aggregates = self._program.select(_Kind.AGGREGATE, stage)
    if not nodes and not aggregates:
      return
    sums = [n for n in aggregates if aggregation.reduction(n) is not None]

    def work(env, totals):
      new: dict[str, Any] = {}
      for node in nodes:
        new[node.name] = _client_value(node, env | new)
      totals = {
        node.name: aggregation.merge(
          node, totals[node.name], aggregation.contribution(node, env | new), env
        )
        for node in sums
      }
      return new, totals

    used = {i for node in (*nodes, *sums) for i in node.inputs}
    totals = {node.name: neutral_accumulator(node) for node in sums}
    # What only passes values on needs no function.
    is_plain = not sums and all(map(_is_plain, nodes))
    run = work if is_plain else self._function(('clients', stage), work)
    for env in clients:
      new, totals = run(_those(server | env, used), totals)
      env |= new
    server |= {f'total:{name}': total for name, total in totals.items()}
    for node in aggregates:
      if node not in sums:
        server[f'total:{node.name}'] = self._fold(node, server, clients)

  def _fold(self, node: program.Node, server: dict[str, Any], clients: Sequence[Any]) -> Any:
    """The accumulated value of a `federated_aggregate`."""
    total = server[f'total:{node.name}']
    values = [aggregation.contribution(node, server | env) for env in clients]
    env = _without_lists(_those(server, node.inputs))
    flat = [tf.nest.flatten(value) for value in values]
    forms = {tuple((leaf.dtype, *leaf.shape) for leaf in leaves) for leaves in flat}
    if len(forms) != 1 or not flat[0]:  # They cannot be stacked.
      step = self._function(
        ('fold', node.name), lambda e, total, value: aggregation.fold(node, total, value, e)
      )
      for value in values:
        total = step(env, total, value)
      return total
    type_ = node.argument(4).type_signature.parameter  # Its shapes may vary, zero's not.
    shapes = [trees.static_shape(leaf) for leaf in trees.leaf_types(type_)]

    def all_steps(env, total, stacked):
      def body(k, total):
        value = tf.nest.pack_sequence_as(values[0], [leaf[k] for leaf in stacked])
        after = aggregation.fold(node, trees.nested(type_, iter(total)), value, env)
        return k + 1, tf.nest.flatten(after)

      invariants = (tf.TensorShape([]), shapes)
      number = tf.shape(stacked[0])[0]
      start = (tf.constant(0), tf.nest.flatten(total))
      _, total = tf.while_loop(lambda k, _: k < number, body, start, invariants)
      return trees.nested(type_, iter(total))

    run = self._function(('folds', node.name), all_steps)
    return run(env, total, [tf.stack(leaves) for leaves in zip(*flat, strict=True)])

  def _function(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    if key not in self._functions:
      made = tf.function(function, autograph=False, reduce_retracing=True)
      # TensorFlow would warn that many functions come from this one line.
      made._omit_frequent_tracing_warning = True  # pylint: disable=protected-access
      self._functions[key] = made
    return self._functions[key]


def _client_value(node: program.Node, env: Any) -> Any:
  if node.intrinsic not in program.SELECT_INTRINSICS:
    return program.evaluate(node, env)
  keys, whole = (local.evaluate(node.argument(i), env) for i in (0, 2))
  element = trees.member(node.type).element

  def one(key):
    leaves = tf.nest.flatten(local.call(node.argument(3), (whole, key), env))
    return trees.container(element, iter(leaves))

  slices = tf.data.Dataset.from_tensor_slices(keys).map(one)
  return tf.data.experimental.to_variant(slices)


def _is_plain(node: program.Node) -> bool:
  """Whether a call only passes values on."""

  def visit(block):
    if isinstance(block, bb.Struct):
      return all(map(visit, block))
    if isinstance(block, bb.Selection):
      return visit(block.source)
    return isinstance(block, bb.Reference)

  if node.intrinsic is None:
    return visit(node.block)
  return node.intrinsic == 'federated_zip_at_clients' and visit(node.block.argument)


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


def _those(env: dict[str, Any], names: Any) -> dict[str, Any]:
  return {name: env[name] for name in names if name in env}


def _without_lists(value):
  """Drops the clients' lists of a parameter, which server work cannot refer to."""
  if isinstance(value, dict):
    return {k: _without_lists(v) for k, v in value.items()}
  if isinstance(value, tuple):
    return tuple(_without_lists(v) for v in value)
  return () if isinstance(value, list) else value
