"""Builds a TFF graph anew, op by op, with what XLA cannot take held as Python objects.

Function calls are inlined. Loops and branches are built anew around the interpretation
of their functions; whatever can change in them (variables' values, iterators' positions,
the counter of random draws) enters and leaves them as tensors.

Long because `Interpreter` is.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import function_def_to_graph, op_def_registry, ops

from runtime.xla import lanes
from runtime.xla.lowering import (
  data_sizes,
  datasets,
  folding,
  known_sizes,
  recurrence,
  scope,
  turns,
  varying,
)

NotLowered = datasets.NotLowered
Value = tf.Tensor | datasets.Held
Handler = Callable[['Interpreter', Any, list[Any]], list[Any]]

# What an op raises that is used in a way that is not foreseen.
_UNFORESEEN = (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError, ValueError)
_IGNORED = ('Assert', 'AssertV2', 'CheckNumerics', 'NoOp')  # XLA cannot fail either.


class _BecameCut(Exception):
  """A loop's values at these places are made of what is cut; the loop is built again for that."""

  def __init__(self, places: set[int]):
    super().__init__()
    self.places = places


class Interpreter:
  """Interprets the graph of one computation.

  Attributes:
    scope: what the execution gives to the graph.
    session: what it shares with the other graphs for the same client.
    variables: the graph's variables by name.

  Long because whatever holds state, variables, data sets and draws, is changed while one graph
  is gone through.
  """

  def __init__(self, graph_def: Any, where: scope.Scope, handlers: Mapping[str, Handler]):
    """Makes an interpreter.

    Args:
      graph_def: the graph.
      where: what the execution gives to it.
      handlers: how ops are written anew, by their type; others are added as they are.
    """
    self._handlers = handlers
    self.scope = where
    self.session = where.session
    self.variables: dict[str, datasets.Variable] = {}
    self.list_lengths: set[int] = set()
    # The tensors that no turn of the loops around changes, by id.
    self.unchanged: dict[int, tf.Tensor] = {}
    # What is known of tensor lists, by their ids.
    self._lists: dict[int, tuple[tf.Tensor, datasets.ListFacts]] = {}
    self.known_sizes = known_sizes.Known()
    # Of varying sizes that XLA does not know, as it keeps none in tensor lists: by id.
    self.unsized: dict[int, tf.Tensor] = {}
    self._library = {f.signature.name: f for f in graph_def.library.function}
    self._bodies: dict[str, Any] = {}
    self._names = itertools.count()
    self._scratch = tf.Graph()
    with self._scratch.as_default():
      # Signatures of called functions are looked up here.
      tf.graph_util.import_graph_def(
        type(graph_def)(library=graph_def.library, versions=graph_def.versions), name=''
      )

  @property
  def state(self) -> dict[Hashable, tf.Tensor]:
    """The tensors that ops change."""
    return self.session.state

  @state.setter
  def state(self, state: dict[Hashable, tf.Tensor]) -> None:
    self.session.state = state

  def graph(
    self, nodes: Sequence[Any], feeds: dict[str, Any], fetches: Sequence[str], controls: Any = ()
  ) -> list[Any]:
    """Interprets what some tensors and control outputs of a graph need.

    Args:
      nodes: the graph's nodes.
      feeds: values by the names of tensors.
      fetches: names of tensors.
      controls: names of nodes that are to run as well.

    Returns:
      The fetched values.

    Raises:
      NotLowered: the graph has something that cannot be lowered.
    """
    by_name = {node.name: node for node in nodes}
    values: dict[str, list[Any]] = {_node_name(name): [value] for name, value in feeds.items()}
    for name in _in_order(by_name, [*controls, *fetches], set(values)):
      node = by_name[name]
      inputs = [] if node.op in _IGNORED and node.op != 'CheckNumerics' else _inputs(node, values)
      values[name] = self._node(node, inputs)
    return [_output(values, name) for name in fetches]

  def call(
    self,
    name: str,
    arguments: Sequence[Any],
    *,
    but: Container[int] = (),
    also: Sequence[str] = (),
  ) -> list[Any]:
    """Interprets a function of the library.

    Args:
      name: the function's.
      arguments: its own.
      but: the positions of results that are not asked for.
      also: names of tensors inside, whose values follow the results.
    """
    nodes, formals, results, controls = self.body(name)
    feeds = {f'{formal}:0': value for formal, value in zip(formals, arguments, strict=True)}
    asked = [result for i, result in enumerate(results) if i not in but]
    return self.graph(nodes, feeds, [*asked, *also], controls)

  def body(self, name: str) -> tuple[Any, list[str], list[str], list[str]]:
    """A function's nodes, and the names of its arguments, results and control outputs."""
    if name not in self._library:
      raise NotLowered(f'a call of the function {name}, which is not in the graph')
    if name not in self._bodies:
      definition = self._library[name]
      with self._scratch.as_default():
        graph_def, names = function_def_to_graph.function_def_to_graph_def(definition)
      self._bodies[name] = (
        graph_def.node,
        [argument.name for argument in definition.signature.input_arg],
        [names[definition.ret[result.name]] for result in definition.signature.output_arg],
        list(definition.control_ret.values()),
      )
    return self._bodies[name]

  def ops_called(self, name: str) -> set[str]:
    """The types of the ops of a function and of those that it calls."""
    found: set[str] = set()
    pending, seen = [name], {name}
    while pending:
      for node in self._library[pending.pop()].node_def:
        found.add(node.op)
        names = [f.name for a in node.attr.values() for f in (a.func, *a.list.func)]
        new = {n for n in (node.op, *names) if n in self._library} - seen
        seen |= new
        pending += new
    return found

  def _node(self, node: Any, inputs: list[Any]) -> list[Any]:
    try:
      outputs = self._outputs(node, inputs)
      for data in outputs:
        if isinstance(data, datasets.Indexed) and data.again is not None:
          self.session.orders.setdefault(id(data), (data, self.session.depth))
      if self.session.bounds:
        outputs = self.known_sizes.with_constants(node, inputs, outputs, self.session.cut)
        if varying.is_unsized(node.op, inputs, self.unsized):
          self.unsized.update({id(o): o for o in outputs if varying.is_varying(o)})
        self._note_cut(varying.handing_on(inputs, outputs, self.session.cut))
      return outputs
    except NotLowered:
      raise
    except _UNFORESEEN as error:
      first = (str(error).strip().splitlines() or [type(error).__name__])[0]
      raise NotLowered(f'the op {node.op} ({node.name}): {first}') from error

  def _outputs(self, node: Any, inputs: list[Any]) -> list[Any]:
    handler = self._handlers.get(node.op)
    is_call = (
      node.op in HANDLERS or node.op in self._library or node.op in (*turns.IDENTITIES, *_IGNORED)
    )
    unmade = next((i for i in inputs if isinstance(i, datasets.Unmade)), None)
    if unmade is not None and not is_call and node.op != 'AssignVariableOp':
      return _made_of(unmade, node)
    if self.session.bounds and not is_call:
      varying.check(node, inputs)
    data_sizes.check(node, inputs, self.sizes)
    if node.op in folding.OPS and (known := folding.folded(node, inputs)) is not None:
      return known
    if handler is not None:
      return handler(self, node, inputs)
    if node.op in self._library:
      return self.call(node.op, inputs)
    if node.op in _IGNORED:
      return inputs[:1]
    if node.op in turns.IDENTITIES:
      return inputs
    if any(isinstance(i, datasets.Held) for i in inputs):
      held = next(type(i).__name__ for i in inputs if isinstance(i, datasets.Held))
      raise NotLowered(f'the op {node.op} of a data set, iterator or variable ({held})')
    return self.op(node, inputs)

  def op(self, node: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds an op as it is."""
    for attribute in node.attr.values():
      if attribute.func.name or attribute.list.func:
        raise NotLowered(f'the op {node.op}, which calls functions')
    graph = ops.get_default_graph()
    # pylint: disable-next=protected-access
    operation = graph._create_op_internal(
      node.op,
      [tf.convert_to_tensor(i) for i in inputs],
      dtypes=None,
      name=f'lowered_{next(self._names)}',
      attrs={k: v for k, v in node.attr.items() if not k.startswith('_')},
      op_def=op_def_registry.get(node.op),
      compute_device=False,
    )
    return list(operation.outputs)

  @contextlib.contextmanager
  def unchanged_inside(self, tensors: Iterable[tf.Tensor]) -> Iterator[None]:
    """While a loop is built that changes none of these; one around it may change them."""
    before = self.unchanged
    self.unchanged = {**before, **{id(v): v for v in tensors}}
    try:
      yield
    finally:
      self.unchanged = before

  def while_loop(
    self,
    cond: Callable[..., tf.Tensor],
    body: Callable[..., Sequence[tf.Tensor]],
    start: Sequence[tf.Tensor],
    *,
    sets_variables: bool = True,
  ) -> list[tf.Tensor]:
    """A loop over tensors through which the state is threaded.

    Args:
      cond: values -> whether there is another turn.
      body: values -> values.
      start: the values before the first turn.
      sets_variables: whether a turn may set a variable; else those go past the loop.
    """
    cut = {i for i, value in enumerate(start) if self._is_cut(value)}
    while True:
      before = dict(self.state)
      depth = self.session.depth
      pulls = {k: [*k.pulls] for k in before if isinstance(k, datasets.Iterator)}
      try:
        return self._while_loop(cond, body, start, cut, sets_variables=sets_variables)
      except _BecameCut as became:
        cut |= became.places
        self.state, self.session.depth = before, depth
        for iterator, earlier in pulls.items():
          iterator.pulls[:] = earlier

  def _while_loop(
    self,
    cond: Callable[..., tf.Tensor],
    body: Callable[..., Sequence[tf.Tensor]],
    start: Sequence[tf.Tensor],
    cut: set[int],
    *,
    sets_variables: bool,
  ) -> list[tf.Tensor]:
    """A loop as `while_loop` has it; `cut` are the places of values that are cut at some turn."""
    before = dict(self.state)
    keys = [k for k in _made(before) if sets_variables or not isinstance(k, datasets.Variable)]
    passing_by = {k: v for k, v in before.items() if k not in keys}
    kept: list[bool] = []

    def enter(states):
      self.state = {**before, **dict(zip(keys, states, strict=True))}

    def threaded_cond(values, states):
      enter(states)
      goes_on = tf.reshape(cond(*values), [])
      return goes_on if self.session.is_asked is None else self.session.is_asked & goes_on

    def threaded_body(values, states):
      enter(states)
      self.session.depth += 1
      self._lack_sizes(values, start)
      self._note_cut(values[i] for i in cut)
      results = [self._as_sized(new, old) for new, old in zip(body(*values), values, strict=True)]
      self.session.depth -= 1
      if became := {i for i, value in enumerate(results) if self._is_cut(value)} - cut:
        raise _BecameCut(became)
      if any(isinstance(k, datasets.Variable) for k in self.state if k not in before):
        raise NotLowered('a variable that is initialised inside of a loop')
      if any(self.state[k] is not v for k, v in passing_by.items()):
        raise NotLowered('a loop that sets a variable by an op that is not known')
      new_states = [_as_shaped(self.state[k], before[k]) for k in keys]
      pairs = zip([*results, *new_states], [*values, *states], strict=True)
      kept[:] = [new is old for new, old in pairs]
      return results, new_states

    values = [tf.convert_to_tensor(v) for v in start]
    begin = [*values, *(before[k] for k in keys)]
    with self.unchanged_inside(passing_by.values()):
      results, states = tf.while_loop(threaded_cond, threaded_body, (values, begin[len(values) :]))
    # What no turn changes goes past the loop, not through it: constants stay known, and XLA
    # fails to carry one through several loops in a row.
    pairs = zip([*results, *states], begin, kept, strict=True)
    after = [old if same else new for new, old, same in pairs]
    enter(after[len(values) :])
    self._lack_sizes(after[: len(values)], start)
    self._note_cut(after[i] for i in cut)
    return after[: len(values)]

  def _note_cut(self, values: Iterable[tf.Tensor]) -> None:
    self.session.cut.update({id(value): value for value in values})

  def _is_cut(self, value: tf.Tensor) -> bool:
    return id(value) in self.session.cut

  def _lack_sizes(self, values: Sequence[tf.Tensor], sources: Sequence[tf.Tensor]) -> None:
    """Notes that XLA has lost these values' sizes where it lost those of their sources."""
    pairs = zip(values, sources, strict=True)
    self.unsized.update({id(v): v for v, source in pairs if id(source) in self.unsized})

  def _as_sized(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """A loop's new value with the old one's sizes, where XLA or TensorFlow lost them.

    Else the next turn would take the largest size for its own, and repeat the single row of a
    batch of one to meet it.
    """
    shaped = _as_shaped(new, old)
    if not self.session.bounds or not varying.is_varying(shaped):
      return shaped
    if id(old) in self.unsized and id(new) not in self.unsized:
      raise NotLowered('a loop whose value has a size that varies after the first turn only')
    if id(new) in self.unsized and id(old) not in self.unsized:
      for axis in range(shaped.shape.rank or 0):
        if varying.varies(shaped, axis) and varying.varies(old, axis):
          shaped = set_dynamic_size(shaped, axis, tf.shape(old)[axis])
    return shaped

  def cond(
    self,
    predicate: tf.Tensor,
    true: Callable[[], Sequence[Any]],
    false: Callable[[], Sequence[Any]],
  ) -> list[Any]:
    """A branch through which the state is threaded; known at once, it is only taken."""
    known = tf.get_static_value(predicate)
    if known is not None:
      return list((true if known else false)())
    index = tf.where(tf.reshape(tf.cast(predicate, tf.bool), []), 1, 0)
    return self.switch(index, [false, true])

  def switch(
    self,
    index: tf.Tensor,
    branches: Sequence[Callable[[], Sequence[Any]]],
    *,
    selects: bool = False,
  ) -> list[Any]:
    """One of several branches, by number; the last for a number out of range.

    Args:
      index: the number.
      branches: give the same number of values.
      selects: whether all of them are computed, and one's values selected.
    """
    before = dict(self.state)
    keys = _made(before)
    new_keys: list[list[Hashable]] = []
    held: list[dict[int, Any]] = []
    given: list[list[tf.Tensor]] = []
    changed: set[Hashable] = set()

    def run(branch):
      def traced():
        self.state = dict(before)
        outputs = branch()
        changed.update(k for k in keys if self.state[k] is not before[k])
        held.append({i: o for i, o in enumerate(outputs) if isinstance(o, datasets.Held)})
        new: list[Hashable] = [
          k for k in self.state if isinstance(k, datasets.Variable) and k not in before
        ]
        new_keys.append(new)
        tensors = [o for o in outputs if not isinstance(o, datasets.Held)]
        given.append(tensors)
        return [tf.identity(t) for t in tensors], [self.state[k] for k in (*keys, *new)]

      return traced

    runs = [run(branch) for branch in branches]
    # XLA takes a choice between more than two, of values whose sizes vary, one by one only.
    is_nested = self.session.bounds or len(runs) == 2
    choose: Any = _one_of if is_nested else tf.switch_case
    tensors, states = (_selected if selects else choose)(index, runs)
    if any(new != new_keys[0] for new in new_keys):
      raise NotLowered('a variable that only one branch of a condition initialises')
    if any(h != held[0] for h in held):
      raise NotLowered('branches of a condition with different data sets or iterators')
    if any(len({id(v) in self.unsized for v in each}) > 1 for each in zip(*given, strict=True)):
      raise NotLowered('a value whose size varies after one branch of a condition only')
    self._lack_sizes(tensors, given[0])
    pairs = zip(tensors, zip(*given, strict=True), strict=True)
    self._note_cut(t for t, sources in pairs if any(map(self._is_cut, sources)))
    after = dict(zip((*keys, *new_keys[0]), states, strict=True))
    self.state = {**before, **{k: v for k, v in after.items() if k in changed or k not in before}}
    remaining = iter(tensors)
    total = len(tensors) + len(held[0])
    return [held[0][i] if i in held[0] else next(remaining) for i in range(total)]

  def stacked(
    self,
    function: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    indices: tf.Tensor,
    specs: Sequence[tf.TensorSpec],
  ) -> list[tf.Tensor]:
    """A function's values [m, ...] at indices [m], one after the other."""
    (number,) = indices.shape
    buffers = [tf.zeros([number, *spec.shape], spec.dtype) for spec in specs]

    def body(i, *buffers):
      rows = function(indices[i])
      written = [
        gen_xla_ops.xla_dynamic_update_slice(
          buffer, row[tf.newaxis], tf.stack([i] + [tf.constant(0)] * row.shape.rank)
        )
        for buffer, row in zip(buffers, rows, strict=True)
      ]
      return [i + 1, *written]

    return self.while_loop(lambda i, *_: i < number, body, [tf.constant(0), *buffers])[1:]

  def partial_iterators(self) -> list[datasets.Iterator]:
    """The iterators over elements some of which may not be full."""
    iterators = [k for k in self.state if isinstance(k, datasets.Iterator)]
    return [i for i in iterators if i.data is not None and i.data.full is not None]

  def facts_of(self, value: Any) -> datasets.ListFacts:
    """What is known of a tensor list."""
    return self._lists.get(id(value), (value, datasets.ListFacts()))[1]

  def note(self, value: tf.Tensor, facts: datasets.ListFacts) -> None:
    """Adds to what is known of a tensor list.

    Elements' shapes only where all sizes are known, and none varies in the session but how many
    elements there are.
    """
    shape, is_filled = facts.element_shape, self.facts_of(value).filled or facts.filled
    may_vary = self.session.bounds and not is_filled
    if may_vary or shape is None or not shape.is_fully_defined():
      facts = dataclasses.replace(facts, element_shape=None)
    if facts.known():
      self._lists[id(value)] = value, dataclasses.replace(self.facts_of(value), **facts.known())

  def most(self, number: tf.Tensor) -> int | None:
    """The most that an integer can be that is a size which varies."""
    size = self.known_sizes.single(number)
    return None if size is None else size.most

  def sizes(self, shape: tf.Tensor) -> list[int | None] | None:
    """The sizes in a shape tensor, None for those that are not known; None for no shape."""
    known = tf.get_static_value(shape)
    if known is not None:
      return [int(k) for k in known]
    if not self.known_sizes.is_noted(shape):
      return None
    numbers = self.known_sizes.numbers(shape) or []
    return [n if isinstance(n, int) and n >= 0 else None for n in numbers]

  def in_two_phases(
    self,
    first: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    second: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    values: Sequence[tf.Tensor],
  ) -> list[tf.Tensor]:
    """A loop for several clients at once over elements some of which are not full.

    Sizes that differ between clients cannot be vectorised. So the loop is cut in two: its
    first turns, as long as elements are full, for all clients at once, and then the rest,
    usually the last batch, for one client after the other.

    Args:
      first: runs the loop while elements are full.
      second: runs it to its end.
      values: what the loop changes.
    """
    bounds = self.session.bounds
    self.session.assume_full, self.session.bounds = True, set()
    values = first([tf.convert_to_tensor(v) for v in values])
    self.session.assume_full, self.session.bounds = False, bounds
    before = dict(self.state)
    keys = _made(before)
    changed: set[Hashable] = set()

    def rest(values, states):
      given = dict(zip(keys, states, strict=True))
      self.state = {**before, **given}
      results = second(list(values))
      changed.update(k for k in given if self.state[k] is not given[k])
      return results, [self.state[k] for k in given]

    results, states = lanes.lane_by_lane(rest, list(values), [before[k] for k in keys])
    after = dict(zip(keys, states, strict=True))
    self.state = {**before, **{k: v for k, v in after.items() if k in changed}}
    return list(results)


def _one_of(index: tf.Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
  first, *others = branches
  if not others:
    return first()
  return tf.cond(tf.equal(index, 0), first, lambda: _one_of(index - 1, others))


def _selected(index: tf.Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
  """As `_one_of` from the values of all branches, without a condition of XLA's."""
  *others, last = [branch() for branch in branches]

  def select(is_it, own, rest):
    if own is rest:
      return own
    own, rest = tf.convert_to_tensor(own), tf.convert_to_tensor(rest)
    if own.dtype == tf.variant:
      raise NotLowered('a tensor list of a condition on a batch whose size varies')
    axes = [axis for axis in range(own.shape.rank) if varying.varies(own, axis)]
    if axes != [axis for axis in range(own.shape.rank) if varying.varies(rest, axis)]:
      raise NotLowered('a value whose size varies after one branch of a condition only')
    sizes = [tf.where(is_it, tf.shape(own)[axis], tf.shape(rest)[axis]) for axis in axes]
    # Other than `tf.where` it broadcasts nothing, such as one row to many.
    chosen = tf.raw_ops.Select(condition=is_it, x=_whole(own, axes), y=_whole(rest, axes))
    for axis, size in zip(axes, sizes, strict=True):
      chosen = set_dynamic_size(chosen, axis, size)
    return chosen

  chosen = last
  for number, own in reversed(list(enumerate(others))):
    chosen = tf.nest.map_structure(functools.partial(select, tf.equal(index, number)), own, chosen)
  return chosen


def _whole(value: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
  shape = value.shape
  for axis in axes:
    value = gen_xla_ops.xla_remove_dynamic_dimension_size(value, tf.constant(axis))
    value.set_shape(shape)
  return value


def _as_shaped(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
  """A loop's new value with the old one's static shape, where TensorFlow lost it.

  XLA knows its own shapes, and refuses a value that changes its own.
  """
  new = tf.convert_to_tensor(new)
  if new.dtype != tf.variant and new.shape.rank is not None:
    if not new.shape.is_compatible_with(old.shape):
      raise NotLowered(f'a loop whose value of shape {old.shape} becomes one of {new.shape}')
    if not new.shape.is_fully_defined() and old.shape.is_fully_defined():
      new = tf.identity(new)
      new.set_shape(old.shape)
  return new


def set_dynamic_size(value: tf.Tensor, axis: int, size: tf.Tensor) -> tf.Tensor:
  """The first `size` elements along an axis, as XLA's dynamic dimension."""
  shape = value.shape.as_list()
  value = gen_xla_ops.xla_set_dynamic_dimension_size(value, tf.constant(axis), size)
  shape[axis] = None
  # Else TensorFlow would fold `tf.shape` to the static size.
  return tf.compat.v1.placeholder_with_default(value, shape)


def of_fixed_size(value: tf.Tensor) -> tf.Tensor:
  """A value whose sizes TensorFlow knows, to XLA too."""
  fixed = value
  for axis in range(value.shape.rank):
    fixed = gen_xla_ops.xla_remove_dynamic_dimension_size(fixed, tf.constant(axis))
  fixed.set_shape(value.shape)
  return fixed


def _made(state: Mapping[Hashable, Any]) -> list[Hashable]:
  """The keys of the values that a loop or a branch can thread."""
  return [key for key, value in state.items() if not isinstance(value, datasets.Unmade)]


def _made_of(unmade: datasets.Unmade, node: Any) -> list[Any]:
  """What an op makes of numbers that cannot be made, which cannot be either."""
  definition = op_def_registry.get(node.op)
  calls = any(a.func.name or a.list.func for a in node.attr.values())
  outputs = definition.output_arg
  if definition.is_stateful or calls or any(o.number_attr or o.type_list_attr for o in outputs):
    raise NotLowered(unmade.reason)
  return [unmade] * len(outputs)


def _node_name(name: str) -> str:
  return name.lstrip('^').split(':')[0]


def _output(values: dict[str, list[Any]], name: str) -> Any:
  base, _, index = name.partition(':')
  return values[base][int(index or 0)]


def _inputs(node: Any, values: dict[str, list[Any]]) -> list[Any]:
  return [_output(values, name) for name in node.input if not name.startswith('^')]


def _in_order(nodes: dict[str, Any], names: Sequence[str], known: set[str]) -> Iterator[str]:
  """The nodes that some names need, each after what it needs."""
  seen = set(known)
  pending = [(_node_name(name), False) for name in reversed(names)]
  while pending:
    name, is_ready = pending.pop()
    if is_ready:
      yield name
    elif name not in seen:
      seen.add(name)
      pending.append((name, True))
      node = nodes[name]
      is_check = node.op in ('Assert', 'AssertV2')
      inputs = [i for i in node.input if i.startswith('^') or not is_check]
      pending += [(_node_name(i), False) for i in reversed(inputs)]


# Control flow.


def _call(interpreter: Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  return interpreter.call(node.attr['f'].func.name, inputs)


def _while(interpreter: Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  cond, body = (node.attr[name].func.name for name in ('cond', 'body'))
  if any(isinstance(v, datasets.PendingList) for v in inputs):
    inputs = _with_lists(interpreter, _most_turns(interpreter, cond, body, inputs), inputs)
  passed = _passed_on(interpreter, body)
  factors = _factors(interpreter, cond, body, inputs)
  past = {*passed, *factors.values}
  held = {i: v for i, v in enumerate(inputs) if isinstance(v, datasets.Held) or i in past}
  with interpreter.unchanged_inside(v for v in held.values() if tf.is_tensor(v)):
    results = _turns(interpreter, cond, body, [*inputs, *factors.begin()], held, factors)
  totals = factors.totals(results[len(inputs) :])
  return [totals.get(i, v) for i, v in enumerate(results[: len(inputs)])]


def _turns(
  interpreter: Interpreter,
  cond: str,
  body: str,
  inputs: list[Any],
  held: Mapping[int, Any],
  factors: recurrence.Factors,
) -> list[Any]:
  """A loop's results; what it holds goes past it."""
  start = [v for i, v in enumerate(inputs) if i not in held]

  def full(values):
    remaining = iter(values)
    return [held[i] if i in held else next(remaining) for i in range(len(inputs))]

  at_first = [interpreter.facts_of(v) for v in start]  # No turn changes a length that is known.
  after: list[datasets.ListFacts] = []

  def run_body(*values):
    shapes = [facts.element_shape for facts in after or at_first]
    for value, facts, shape in zip(values, at_first, shapes, strict=True):
      interpreter.note(value, dataclasses.replace(facts, room=None, element_shape=shape))
    outputs = _turn(interpreter, body, full(values), factors)
    after[:] = [interpreter.facts_of(o) for i, o in enumerate(outputs) if i not in held]
    if any(outputs[i] is not v for i, v in held.items()):
      raise NotLowered('a loop that changes which data set, iterator or variable it uses')
    return [o for i, o in enumerate(outputs) if i not in held]

  def run_cond(*values):
    return interpreter.call(cond, full(values)[: -factors.carried or None])[0]

  iterators = interpreter.partial_iterators()
  if not iterators or interpreter.scope.lanes == 1:
    sets_variables = any(map(_sets_variable, interpreter.ops_called(body)))
    results = interpreter.while_loop(run_cond, run_body, start, sets_variables=sets_variables)
    for result, value, before, last in zip(results, start, at_first, after, strict=True):
      is_same = value.op.type == 'EmptyTensorList' or before.element is last.element
      element = last.element if is_same else None
      facts = dataclasses.replace(before, element=element, element_shape=last.element_shape)
      interpreter.note(result, facts)
    return full(results)

  def run_cond_while_full(*values):
    positions: list[tuple[tf.Tensor, Any]] = [(interpreter.state[i], i.data) for i in iterators]
    is_full = [(p >= data.count) | data.full(p) for p, data in positions]
    return tf.reduce_all([tf.reshape(run_cond(*values), []), *is_full])

  def first(values):
    for iterator in iterators:
      iterator.pulls.clear()
    values = interpreter.while_loop(run_cond_while_full, run_body, values)
    if any(i.pulls not in ([], [interpreter.session.depth + 1]) for i in iterators):
      raise NotLowered(
        'several clients at once where a turn of a loop takes several batches of an iterator'
      )
    return values

  return full(
    interpreter.in_two_phases(
      first, lambda values: interpreter.while_loop(run_cond, run_body, values), start
    )
  )


def _turn(
  interpreter: Interpreter, body: str, values: list[Any], factors: recurrence.Factors
) -> list[Any]:
  """What one turn makes of the loop's values, and of the lists of factors behind them."""
  own = len(values) - factors.carried
  outputs = interpreter.call(body, values[:own], but=factors.values, also=factors.names)
  for position in sorted(factors.values):
    outputs.insert(position, values[position])
  return outputs[:own] + factors.kept(values[own:], outputs[own:])


def _factors(
  interpreter: Interpreter, cond: str, body: str, inputs: Sequence[Any]
) -> recurrence.Factors:
  """What a loop's sums of products are made of, where they are taken after it."""
  nodes, arguments, results, _ = interpreter.body(body)
  by_name = {node.name: node for node in nodes}
  passed = _passed_on(interpreter, body)
  rooms, sizes_known = [], not interpreter.session.bounds
  for i, value in enumerate(inputs):
    node, facts = by_name[_node_name(results[i])], interpreter.facts_of(value)
    is_popped = node.op == 'TensorListPopBack' and _node_name(node.input[0]) == arguments[i]
    if is_popped and facts.room is not None:
      rooms.append(facts.room)  # Each turn takes one.
    if is_popped or (not isinstance(value, datasets.Held) and value.dtype != tf.variant):
      shape = facts.element_shape if is_popped else value.shape
      sizes_known = sizes_known and shape is not None and shape.is_fully_defined()
  products = []
  if rooms and sizes_known and interpreter.scope.lanes == 1:
    in_cond, formals, _, _ = interpreter.body(cond)
    asked = {_node_name(name) for node in in_cond for name in node.input}
    unchanged = {arguments[i] for i in passed}
    products = [
      product
      for product in recurrence.summed_products(nodes, arguments, results, inputs, unchanged)
      if formals[product.value] not in asked
    ]
  return recurrence.Factors(products, inputs, min(rooms, default=0))


def _sets_variable(op: str) -> bool:
  return op.startswith(('Assign', 'ResourceApply', 'ResourceScatter')) or op == 'RngReadAndSkip'


def _passed_on(interpreter: Interpreter, body: str) -> set[int]:
  """The arguments that a loop's body passes on as they are."""
  nodes, arguments, results, _ = interpreter.body(body)
  by_name = {node.name: node for node in nodes}

  def source(name):
    node = by_name[_node_name(name)]
    return source(node.input[0]) if node.op == 'Identity' else node.name

  return {i for i, name in enumerate(results) if source(name) == arguments[i]}


def _most_turns(interpreter: Interpreter, cond: str, body: str, start: Sequence[Any]) -> int:
  found = turns.most(interpreter.body, cond, body, start, interpreter.most)
  if found is None:
    raise NotLowered('the gradient of a loop whose number of turns is not known')
  return max(found, 1)  # XLA has no lists without room.


def _with_lists(interpreter: Interpreter, length: int, inputs: Sequence[Any]) -> list[Any]:
  """Inputs with empty lists that have room for an element of each turn."""
  values = list(inputs)
  for i, value in enumerate(inputs):
    if isinstance(value, datasets.PendingList):
      (values[i],) = interpreter.op(value.node, [value.element_shape, tf.constant(length)])
      interpreter.note(values[i], datasets.ListFacts(room=length))
  return values


HANDLERS: dict[str, Handler] = dict(
  PartitionedCall=_call,
  StatefulPartitionedCall=_call,
  StatelessWhile=_while,
  While=_while,
)
