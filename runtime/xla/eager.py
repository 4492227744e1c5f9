"""The plain interpreter: client by client, nothing compiled by XLA.

It runs what the staged program cannot: strings, tensors whose shapes are not
known, and what `lowering` gives a reason for. All that a client does in a stage is one
`tf.function`, traced once; so is the server's work, and a fold over clients' values. Clients whose
graphs share no state are worked on by several threads, as on TFF's own runtime; what they
contribute is summed in their order. It is also the reference for an empty cohort, which TFF's
native runtime cannot run.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import framework as bb

from runtime import trees
from runtime.xla import aggregation, local, obstacles, program, values
from runtime.xla.lowering import graphs

_Kind = program.Kind


class EagerProgram:
  """Runs a program for lists of clients."""

  def __init__(self, prog: program.Program):
    self._program = prog
    self._functions: dict[Any, tf.types.experimental.GenericFunction] = {}
    self._shared: dict[int, bool] = {}
    self._prepared: set[Any] = set()  # The forms of functions that have run.

  def __call__(self, parameter: Any, num_clients: int, in_threads: bool = False) -> Any:
    """Runs the program.

    Args:
      parameter: nested tuples of tensors by the parameter's type; a part at CLIENTS
        is a list with an element for each client.
      num_clients: the number of clients.
      in_threads: whether the clients' values allow for several clients at once.

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
      self._at_clients(stage, server, clients, in_threads)
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

  def _at_clients(
    self, stage: int, server: dict[str, Any], clients: list[dict[str, Any]], in_threads: bool
  ) -> None:
    """Adds the clients' values of a stage, and what is accumulated of them."""
    nodes = self._program.select(_Kind.CLIENTS, stage)
    aggregates = self._program.select(_Kind.AGGREGATE, stage)
    if not nodes and not aggregates:
      return
    sums = [n for n in aggregates if aggregation.reduction(n) is not None]
    prog = self._program

    def work(env):
      new: dict[str, Any] = {}
      if prog.parameter_name in env:
        parameter = _not_optimized(prog.parameter_type, env[prog.parameter_name])
        env = env | {prog.parameter_name: parameter}
      for node in nodes:
        new[node.name] = _client_value(node, env | new)
      return new, [aggregation.contribution(node, env | new) for node in sums]

    used = {i for node in (*nodes, *sums) for i in node.inputs}
    totals = [neutral_accumulator(node) for node in sums]
    # What only passes values on needs no function.
    is_plain = all(map(_is_plain, nodes)) and not sums
    run: Any = work if is_plain else self._function(('clients', stage), work)
    # What is visited has the data sets, too, that an earlier stage has made.
    visited = (*prog.visited(stage), *sums)
    in_threads = in_threads and not is_plain and not self._shares_state(stage, visited)
    environments = [_those(server | env, used) for env in clients]
    if in_threads:
      results = _in_threads(run, environments, self._prepared)
    else:
      results = map(run, environments)
    for env, (new, contributions) in zip(clients, results, strict=True):
      env |= new
      totals = [
        aggregation.merge(node, total, value, {})
        for node, total, value in zip(sums, totals, contributions, strict=True)
      ]
    names = [f'total:{node.name}' for node in sums]
    server |= dict(zip(names, totals, strict=True))
    for node in aggregates:
      if node not in sums:
        server[f'total:{node.name}'] = self._fold(node, server, clients)

  def _shares_state(self, stage: int, nodes: Sequence[program.Node]) -> bool:
    """Whether a client's work may change what another one's finds."""
    if stage not in self._shared:
      blocks = [node.block for node in nodes]
      read = {name for node in nodes for name in node.inputs}
      of_server = [n for n in self._program.nodes if n.kind is not _Kind.CLIENTS and n.name in read]
      self._shared[stage] = any(program.has_sequence(n.type) for n in of_server) or any(
        obstacles.is_stateful(op) and op not in obstacles.OWN_STATE
        for block in blocks
        for _, graph_def in graphs.inside(block)
        for op in graphs.ops_of(graph_def)
      )
    return self._shared[stage]

  def _fold(self, node: program.Node, server: dict[str, Any], clients: Sequence[Any]) -> Any:
    """The accumulated value of a `federated_aggregate`."""
    total = server[f'total:{node.name}']
    contributions = [aggregation.contribution(node, server | env) for env in clients]
    env = _without_lists(_those(server, node.inputs))
    flat = [tf.nest.flatten(value) for value in contributions]
    forms = {tuple((leaf.dtype, *leaf.shape) for leaf in leaves) for leaves in flat}
    type_ = node.argument(4).type_signature.parameter  # Its shapes may vary, zero's not.
    if len(forms) != 1 or not flat[0] or program.has_sequence(type_):  # They cannot be stacked.
      step = self._function(
        ('fold', node.name), lambda e, total, value: aggregation.fold(node, total, value, e)
      )
      for value in contributions:
        total = step(env, total, value)
      return total
    shapes = [trees.static_shape(leaf) for leaf in trees.leaf_types(type_)]

    def all_steps(env, total, stacked):
      def body(k, total):
        value = tf.nest.pack_sequence_as(contributions[0], [leaf[k] for leaf in stacked])
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


def _in_threads(run: Any, environments: Sequence[Any], prepared: set[Any]) -> Iterator[Any]:
  """`map`, by several threads; TensorFlow releases Python's lock while it works.

  Args:
    run: a `tf.function`.
    environments: its arguments.
    prepared: its forms that have run; others are added.
  """
  for env in environments:  # Which form a client has does not hang on who comes first.
    run.get_concrete_function(env)

  def run_on_host(env):
    with tf.device('CPU:0'):  # A thread has its own.
      return run(env)

  with futures.ThreadPoolExecutor() as pool:
    results = []
    for env in environments:
      results.append(pool.submit(run_on_host, env))
      form = run.get_concrete_function(env)
      if form not in prepared:  # Each thread that ran it for the first time would prepare it.
        futures.wait(results[-1:])
        prepared.add(form)
    for result in results:
      yield result.result()


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


def _not_optimized(type_, value):
  """One client's part of a value, with data sets that are read as they are."""
  type_ = trees.member(type_)
  if isinstance(type_, tff.StructType):
    elements = zip(trees.fields(type_), value, strict=True)
    return tuple(_not_optimized(element, part) for (_, element), part in elements)
  return values.not_optimized(type_, value) if isinstance(type_, tff.SequenceType) else value


def _those(env: dict[str, Any], names: Any) -> dict[str, Any]:
  return {name: env[name] for name in names if name in env}


def _without_lists(value):
  """Drops the clients' lists of a parameter, which server work cannot refer to."""
  if isinstance(value, dict):
    return {k: _without_lists(v) for k, v in value.items()}
  if isinstance(value, tuple):
    return tuple(_without_lists(v) for v in value)
  return () if isinstance(value, list) else value
