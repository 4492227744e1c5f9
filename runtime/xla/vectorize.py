"""Runs one function for many lanes at once, in a form that XLA accepts.

`tf.vectorized_map` (pfor) rewrites a graph of one lane into a graph of all.
Its own treatment of a `While` or an `If` whose condition differs between lanes
partitions the lanes, with shapes that depend on data; XLA refuses those. Here
such a loop runs until every lane has ended, and a lane that has ended keeps its
values: the rule that `jax.vmap` has. Function calls are inlined, so that the
number of lanes stays a constant everywhere.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops.parallel_for import pfor as pfor_lib

from runtime.xla import local

_lanes: list[int] = []


def vectorized(
  fn: Callable[[list[tf.Tensor]], Any], lanes: int, inputs: Sequence[tf.Tensor]
) -> Any:
  """Applies a function to every lane.

  Args:
    fn: takes one lane's tensors, returns nested tuples of tensors.
    lanes: the static number of lanes.
    inputs: tensors [lanes, ...], at least one.

  Returns:
    The function's results with a leading axis [lanes, ...].

  Raises:
    UnsupportedComputationError: an op has no vectorised form.
  """
  with _converters(lanes):
    try:
      return tf.vectorized_map(fn, list(inputs), fallback_to_while_loop=False, warn=False)
    except (ValueError, NotImplementedError) as error:
      op_type = _unconverted_op(str(error))
      if op_type is None:
        raise
      raise local.unsupported(
        f'the op {op_type} for several clients at once (clients_per_block > 1)'
      ) from error


def _unconverted_op(message: str) -> str | None:
  marker = 'No pfor vectorization defined for '
  return message.split(marker, 1)[1].split()[0] if marker in message else None


def _convert_while(pfor_input):
  """Converts a While so that all lanes iterate until the last one ends."""
  if any(i.t.dtype == tf.variant for i in pfor_input.inputs):
    return pfor_lib.WhileV2(pfor_input)()  # Tensor lists: as pfor does it.
  cond, body = (_function(pfor_input, name) for name in ('cond', 'body'))
  pass_through = [
    i is o for i, o in zip(body.graph.inputs, body.graph.outputs)
  ]
  inputs = pfor_input.inputs
  stacked = [i.is_stacked for i in inputs]
  # What the body makes differ between lanes has to enter it so; to a fixed point.
  while True:
    cond_stacked, = _stacked_outputs(pfor_input, cond, stacked)
    out_stacked = _stacked_outputs(pfor_input, body, stacked)
    new = [
      s or o or (cond_stacked and not p) for s, o, p in zip(stacked, out_stacked, pass_through)
    ]
    if new == stacked:
      break
    stacked = new
  start = [_stack(i, s) for i, s in zip(inputs, stacked)]

  def vectorized_cond(*values):
    active = _convert(pfor_input, cond, values, stacked)[0].t
    return tf.reduce_any(active) if cond_stacked else active

  def vectorized_body(*values):
    outputs = _convert(pfor_input, body, values, stacked)
    results = [_stack(o, s) for o, s in zip(outputs, stacked)]
    if cond_stacked:
      active = _convert(pfor_input, cond, values, stacked)[0].t
      results = [
        old if p else _select(active, result, old)
        for p, result, old in zip(pass_through, results, values)
      ]
    return [tf.ensure_shape(r, old.shape) for r, old in zip(results, values)]

  outputs = tf.while_loop(vectorized_cond, vectorized_body, start)
  return [pfor_lib.wrap(o, s) for o, s in zip(outputs, stacked)]


def _convert_if(pfor_input):
  """Converts an If or Case whose condition differs by computing every branch."""
  index = pfor_input.input(0)
  if pfor_input.op_type in ('If', 'StatelessIf'):
    branches = [_function(pfor_input, name) for name in ('else_branch', 'then_branch')]
  else:
    graph = pfor_input.op.graph
    branches = [
      graph._get_function(tf.compat.as_bytes(f.name))  # pylint: disable=protected-access
      for f in pfor_input.get_attr('branches')
    ]
  values = [i.t for i in pfor_input.inputs[1:]]
  stacked = [i.is_stacked for i in pfor_input.inputs[1:]]
  if not index.is_stacked:
    def branch(function):
      return lambda: [_stack(o, True) for o in _convert(pfor_input, function, values, stacked)]

    outputs = tf.switch_case(tf.cast(index.t, tf.int32), [branch(f) for f in branches])
    return [pfor_lib.wrap(o, True) for o in tf.nest.flatten(outputs)]
  results = [
    [_stack(o, True) for o in _convert(pfor_input, function, values, stacked)]
    for function in branches
  ]
  chosen = tf.clip_by_value(tf.cast(index.t, tf.int32), 0, len(branches) - 1)
  outputs = results[0]
  for number, candidate in enumerate(results[1:], start=1):
    outputs = [_select(tf.equal(chosen, number), c, o) for c, o in zip(candidate, outputs)]
  return [pfor_lib.wrap(o, True) for o in outputs]


def _convert_call(pfor_input):
  """Converts a function call by inlining it."""
  return _inline(pfor_input, _function(pfor_input, 'f'), pfor_input.inputs)


def _function(pfor_input, attribute: str):
  name = pfor_input.get_attr(attribute).name
  # pylint: disable-next=protected-access
  return pfor_input.op.graph._get_function(tf.compat.as_bytes(name))


def _convert(pfor_input, function, values, stacked):
  return _inline(pfor_input, function, [pfor_lib.wrap(v, s) for v, s in zip(values, stacked)])


def _inline(pfor_input, function, inputs):
  """A function's outputs for all lanes, its ops added to the current graph."""
  outer = pfor_input.pfor
  inner = pfor_lib.PFor(
    loop_var=outer.loop_var,
    loop_len=tf.constant(_lanes[-1]),
    pfor_ops=function.graph.get_operations(),
    fallback_to_while_loop=False,
    pfor_config=outer.pfor_config,
  )
  for formal, actual in zip(function.graph.inputs, inputs):
    inner._add_conversion(formal, actual)  # pylint: disable=protected-access
  # pylint: disable-next=protected-access
  return [inner._convert_helper(output) for output in function.graph.outputs]


def _stacked_outputs(pfor_input, function, stacked) -> list[bool]:
  """Which outputs differ between lanes, found by a conversion that is thrown away."""
  with func_graph.FuncGraph('lanes_probe').as_default():
    values = [
      tf.compat.v1.placeholder(t.dtype, [_lanes[-1], *t.shape] if s else t.shape)
      for t, s in zip(function.graph.inputs, stacked)
    ]
    return [o.is_stacked for o in _convert(pfor_input, function, values, stacked)]


def _stack(wrapped, wanted: bool) -> tf.Tensor:
  if not wanted or wrapped.is_stacked:
    return wrapped.t
  return tf.broadcast_to(wrapped.t, [_lanes[-1], *wrapped.t.shape])


def _select(chosen: tf.Tensor, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  return tf.where(tf.reshape(chosen, [-1] + [1] * (a.shape.rank - 1)), a, b)


_CONVERTERS = {
  'Case': _convert_if,
  'If': _convert_if,
  'PartitionedCall': _convert_call,
  'StatefulPartitionedCall': _convert_call,
  'StatelessCase': _convert_if,
  'StatelessIf': _convert_if,
  'StatelessWhile': _convert_while,
  'While': _convert_while,
}


@contextlib.contextmanager
def _converters(lanes: int):
  """Puts this module's converters in pfor's registry for the time of one tracing."""
  registry = pfor_lib._pfor_converter_registry  # pylint: disable=protected-access
  before = {op_type: registry.get(op_type) for op_type in _CONVERTERS}
  registry.update(_CONVERTERS)
  _lanes.append(lanes)
  try:
    yield
  finally:
    _lanes.pop()
    for op_type, converter in before.items():
      if converter is None:
        del registry[op_type]
      else:
        registry[op_type] = converter
