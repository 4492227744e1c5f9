"""Runs one function for many lanes at once, in a form that XLA accepts.

`tf.vectorized_map` (pfor) rewrites a graph of one lane into a graph of all.
Its own treatment of a `While` or an `If` whose condition differs between lanes
partitions the lanes, with shapes that depend on data; XLA refuses those. Here
such a loop runs until every lane has ended, and a lane that has ended keeps its
values: the rule that `jax.vmap` has. Function calls are inlined, so that the
number of lanes stays a constant everywhere.
"""

# pylint: disable=protected-access
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import func_graph, tensor_util
from tensorflow.python.ops.parallel_for import pfor as pfor_lib

from runtime.xla import lane_lists, local, philox
from runtime.xla import lanes as lanes_lib


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
    UnsupportedComputationError: an op makes tensors of shapes that are not known.
  """
  graph = func_graph.FuncGraph('one_lane')
  with graph.as_default():
    formal = [tf.compat.v1.placeholder(t.dtype, t.shape[1:]) for t in inputs]
    # Identities, for a result may be a tensor of an outer graph.
    results = tf.nest.map_structure(tf.identity, fn(formal))
  converter = _pfor(graph, lanes)
  for tensor, value in zip(formal, inputs, strict=True):
    converter._add_conversion(tensor, pfor_lib.wrap(value, True))
  for value, tensor in graph.captures:
    converter._add_conversion(tensor, pfor_lib.wrap(value, False))
  with lanes_lib.of(lanes):
    try:
      return tf.nest.map_structure(converter.convert, results)
    except _ConversionFailed as failure:
      cause = failure.__cause__
      assert cause is not None
      raise cause from None


def _pfor(graph, lanes: int) -> pfor_lib.PFor:
  return pfor_lib.PFor(
    # Nothing depends on the loop variable: lanes differ by their inputs.
    loop_var=tf.compat.v1.placeholder_with_default(0, []),
    loop_len=tf.constant(lanes),
    pfor_ops=graph.get_operations(),
    fallback_to_while_loop=False,
  )


def _convert_while(pfor_input):
  """Converts a While so that all lanes iterate until the last one ends."""
  cond, body = (_function(pfor_input, name) for name in ('cond', 'body'))
  pass_through = [i is o for i, o in zip(body.graph.inputs, body.graph.outputs, strict=True)]
  inputs = pfor_input.inputs
  stacked = [i.is_stacked for i in inputs]
  # What the body makes differ between lanes has to enter it so; to a fixed point.
  while True:
    (cond_stacked,) = _stacked_outputs(cond, inputs, stacked)
    out_stacked = _stacked_outputs(body, inputs, stacked)
    new = [
      s or o or (cond_stacked and not p)
      for s, o, p in zip(stacked, out_stacked, pass_through, strict=True)
    ]
    if new == stacked:
      break
    stacked = new
  start = [_wanted(i, s) for i, s in zip(inputs, stacked, strict=True)]

  def vectorized_cond(*values):
    active = _convert(cond, values, stacked)[0].t
    return tf.reduce_any(active) if cond_stacked else active

  def vectorized_body(*values):
    outputs = _convert(body, values, stacked)
    results = [_wanted(o, s) for o, s in zip(outputs, stacked, strict=True)]
    if cond_stacked:
      active = _convert(cond, values, stacked)[0].t
      results = [
        old if p else _select(active, result, old)
        for p, result, old in zip(pass_through, results, values, strict=True)
      ]
    return [
      r if r.dtype == tf.variant else tf.ensure_shape(r, old.shape)
      for r, old in zip(results, values, strict=True)
    ]

  outputs = tf.while_loop(vectorized_cond, vectorized_body, start)
  return [pfor_lib.wrap(o, s) for o, s in zip(outputs, stacked, strict=True)]


def _convert_if(pfor_input):
  """Converts an If or Case whose condition differs by computing every branch."""
  index = pfor_input.input(0)
  if pfor_input.op_type in ('If', 'StatelessIf'):
    branches = [_function(pfor_input, name) for name in ('else_branch', 'then_branch')]
  else:
    graph = pfor_input.op.graph
    branches = [
      graph._get_function(tf.compat.as_bytes(f.name)) for f in pfor_input.get_attr('branches')
    ]
  values = [i.t for i in pfor_input.inputs[1:]]
  stacked = [i.is_stacked for i in pfor_input.inputs[1:]]
  if not index.is_stacked:

    def branch(function):
      return lambda: [lane_lists.stacked(o) for o in _convert(function, values, stacked)]

    outputs = tf.switch_case(tf.cast(index.t, tf.int32), [branch(f) for f in branches])
    return [pfor_lib.wrap(o, True) for o in tf.nest.flatten(outputs)]
  results = [
    [lane_lists.stacked(o) for o in _convert(function, values, stacked)] for function in branches
  ]
  chosen = tf.cast(index.t, tf.int32)
  # An index outside is the last branch's, a negative one, too.
  chosen = tf.where((chosen < 0) | (chosen >= len(branches)), len(branches) - 1, chosen)
  outputs = results[0]
  for number, candidate in enumerate(results[1:], start=1):
    outputs = [
      _select(tf.equal(chosen, number), c, o) for c, o in zip(candidate, outputs, strict=True)
    ]
  return [pfor_lib.wrap(o, True) for o in outputs]


def _convert_call(pfor_input):
  """Converts a function call by inlining it."""
  if lanes_lib.MARK in pfor_input.get_attr('f').name:
    return _convert_lane_by_lane(pfor_input)
  return _inline(_function(pfor_input, 'f'), pfor_input.inputs)


def _called_by_name(function, pfor_input):
  """Converts an op whose type is a function's name, which calls it."""
  if not hasattr(function, 'graph'):  # A Defun's, such as of `tf.nn.ctc_loss`.
    raise NotImplementedError(f'the function {pfor_input.op_type} for several clients at once')
  return _inline(function, pfor_input.inputs)


def _function(pfor_input, attribute: str):
  return _function_of(pfor_input, pfor_input.get_attr(attribute).name)


def _function_of(pfor_input, name: str):
  # pylint: disable-next=protected-access
  return pfor_input.op.graph._get_function(tf.compat.as_bytes(name))


def _convert(function, values, stacked):
  return _inline(function, [pfor_lib.wrap(v, s) for v, s in zip(values, stacked, strict=True)])


def _inline(function, inputs):
  """A function's outputs for all lanes, its ops added to the current graph."""
  inner = _pfor(function.graph, lanes_lib.number())
  for formal, actual in zip(function.graph.inputs, inputs, strict=True):
    inner._add_conversion(formal, actual)
  return [inner._convert_helper(output) for output in function.graph.outputs]


def _stacked_outputs(function, inputs, stacked) -> list[bool]:
  """Which outputs differ between lanes, found by a conversion that is thrown away.

  It is asked for again with every conversion of a loop around this one, and then known.
  """
  known, key = lanes_lib.known(), (id(function.graph), *stacked)
  if key not in known:
    with func_graph.FuncGraph(lane_lists.PROBE).as_default():
      values = [lane_lists.stand_in(i, s) for i, s in zip(inputs, stacked, strict=True)]
      known[key] = [o.is_stacked for o in _convert(function, values, stacked)]
  return known[key]


def _wanted(wrapped, is_stacked: bool) -> tf.Tensor:
  return lane_lists.stacked(wrapped) if is_stacked else wrapped.t


def _select(chosen: tf.Tensor, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  """Every lane's own choice [lanes, ...]; `tf.where` would make [1] and [0] or [8] one size."""
  if a.dtype == tf.variant:
    raise NotImplementedError('tensor lists that some of several clients change, and others do not')
  return tf.raw_ops.Select(condition=tf.reshape(chosen, [-1]), x=a, y=b)


def _convert_full_int(pfor_input):
  """Draws uniform bits from every lane's own Philox key."""
  shape = tensor_util.constant_value(pfor_input.unstacked_input(0))
  if shape is None:
    shape = pfor_input.outputs[0].shape.as_list()
  keys, counters = (lane_lists.stacked(pfor_input.input(i)) for i in (1, 2))
  dtype = pfor_input.get_attr('dtype')
  values = philox.bits(keys, counters, int(np.prod(shape)), dtype)
  return pfor_lib.wrap(tf.reshape(values, [lanes_lib.number(), *shape]), True)


def _convert_top_k(pfor_input):
  """Finds every lane's largest values; `tf.argsort` and `tf.sort` are made of it."""
  outputs = tf.raw_ops.TopKV2(
    input=pfor_input.stacked_input(0),
    k=pfor_input.unstacked_input(1),
    sorted=pfor_input.get_attr('sorted'),
  )
  return [pfor_lib.wrap(output, True) for output in outputs]


def _convert_l2_loss(pfor_input):
  values = pfor_input.stacked_input(0)
  return pfor_lib.wrap(tf.reduce_sum(tf.square(values), range(1, values.shape.rank)) / 2.0, True)


def _convert_pad(pfor_input):
  """Pads with the op's value: pfor's own conversion pads with 0."""
  paddings = pfor_input.unstacked_input(1)
  paddings = tf.concat([tf.zeros([1, 2], paddings.dtype), paddings], axis=0)
  value = pfor_input.unstacked_input(2)
  return pfor_lib.wrap(tf.pad(pfor_input.stacked_input(0), paddings, constant_values=value), True)


def _convert_roll(pfor_input):
  """Rolls by axes counted from the first: pfor takes -1 for the axis of the lanes."""
  values, shift, axes = pfor_input.inputs
  rank = values.t.shape.rank - values.is_stacked
  inputs = [values, shift, pfor_lib.wrap(axes.t % rank, axes.is_stacked)]
  return pfor_lib._convert_roll(pfor_lib._PforInput(pfor_input.pfor, pfor_input.op, inputs))


def _convert_bitcast(pfor_input):
  return pfor_lib.wrap(tf.bitcast(pfor_input.stacked_input(0), pfor_input.get_attr('type')), True)


def _convert_lane_by_lane(pfor_input):
  """Computes an op that has no other conversion for one lane after the other."""
  op = pfor_input.op
  dtypes = [output.dtype for output in op.outputs]

  def one_lane(lane):
    inputs = [tf.gather(i.t, lane) if i.is_stacked else i.t for i in pfor_input.inputs]
    outputs = pfor_lib._create_op(op.type, inputs, dtypes, op.node_def.attr).outputs
    for output, known in zip(outputs, op.outputs, strict=True):
      output.set_shape(known.shape)
    return outputs

  first = one_lane(tf.constant(0))
  if not all(t.shape.is_fully_defined() and t.dtype != tf.variant for t in first):
    raise local.unsupported(
      f'the op {op.type} for several clients at once (with clients_per_block=1 it may)'
    )
  buffers = [tf.zeros([lanes_lib.number(), *t.shape], t.dtype) for t in first]

  def body(lane, *buffers):
    written = [
      gen_xla_ops.xla_dynamic_update_slice(
        b, value[tf.newaxis], tf.stack([lane] + [tf.constant(0)] * value.shape.rank)
      )
      for b, value in zip(buffers, one_lane(lane), strict=True)
    ]
    shaped = [tf.ensure_shape(w, b.shape) for w, b in zip(written, buffers, strict=True)]
    return [lane + 1, *shaped]

  outputs = tf.while_loop(
    lambda lane, *_: lane < lanes_lib.number(), body, [tf.constant(0), *buffers]
  )
  return [pfor_lib.wrap(output, True) for output in outputs[1:]]


def _convert_barrier(pfor_input):
  inputs = pfor_input.inputs
  outputs = gen_xla_ops.xla_optimization_barrier([i.t for i in inputs])
  return [pfor_lib.wrap(o, i.is_stacked) for o, i in zip(outputs, inputs, strict=True)]


def _convert_rounding(pfor_input):
  bits = [pfor_input.get_attr(name) for name in ('exponent_bits', 'mantissa_bits')]
  rounded = gen_xla_ops.xla_reduce_precision(pfor_input.stacked_input(0), *bits)
  return pfor_lib.wrap(rounded, True)


def _convert_fixed_size(pfor_input):
  value, axis = pfor_input.stacked_input(0), pfor_input.unstacked_input(1)
  fixed = gen_xla_ops.xla_remove_dynamic_dimension_size(value, axis + 1)
  fixed.set_shape(value.shape)
  return pfor_lib.wrap(fixed, True)


def _convert_segments(pfor_input):
  """Sums (or the like) of every lane's segments, and of no other's.

  To pfor's own conversion an id at or above the number of segments is the next lane's; it is left
  out, as for a client by itself.
  """
  data, ids = (lane_lists.stacked(pfor_input.input(i)) for i in (0, 1))
  ids, number = (tf.cast(x, tf.int64) for x in (ids, pfor_input.unstacked_input(2)))
  first = tf.reshape(
    tf.range(lanes_lib.number(), dtype=tf.int64), [-1] + [1] * (ids.shape.rank - 1)
  )
  of_lanes = tf.where((ids >= 0) & (ids < number), ids + first * number, -1)
  combine = getattr(tf.raw_ops, pfor_input.op.type)
  output = combine(data=data, segment_ids=of_lanes, num_segments=number * lanes_lib.number())
  return pfor_lib.wrap(
    tf.reshape(output, tf.concat([[lanes_lib.number(), -1], tf.shape(output)[1:]], axis=0)), True
  )


def _convert_matmul(pfor_input):
  """As pfor does, whose own conversion takes adjoints of complex numbers for transposes."""
  if not pfor_input.op.outputs[0].dtype.is_complex:
    return _PRODUCT(pfor_input)
  a, b = (lane_lists.stacked(pfor_input.input(i)) for i in (0, 1))
  turned = {name: pfor_input.get_attr(name) for name in ('transpose_a', 'transpose_b')}
  return pfor_lib.wrap(tf.matmul(a, b, **turned), True)


_PRODUCT = pfor_lib._pfor_converter_registry['MatMul']
_SEGMENTS = tuple(f'UnsortedSegment{kind}' for kind in ('Max', 'Min', 'Prod', 'Sum'))
_CONVERTERS = {
  **lane_lists.CONVERTERS,
  **dict.fromkeys(_SEGMENTS, _convert_segments),
  'Bitcast': _convert_bitcast,
  'Case': _convert_if,
  'If': _convert_if,
  'L2Loss': _convert_l2_loss,
  'MatMul': _convert_matmul,
  'PadV2': _convert_pad,
  'PartitionedCall': _convert_call,
  'Roll': _convert_roll,
  'StatefulPartitionedCall': _convert_call,
  'StatelessCase': _convert_if,
  'StatelessIf': _convert_if,
  'StatelessRandomUniformFullIntV2': _convert_full_int,
  'StatelessWhile': _convert_while,
  'TopKV2': _convert_top_k,
  'While': _convert_while,
  'XlaOptimizationBarrier': _convert_barrier,
  'XlaReducePrecision': _convert_rounding,
  'XlaRemoveDynamicDimensionSize': _convert_fixed_size,
}


class _ConversionFailed(BaseException):
  """Carries a converter's error past pfor, which would log and replace it."""


class _Registry(dict):
  """pfor's converters, and in a thread that makes a graph of many lanes this module's.

  There an op without one goes lane by lane. The registry takes the place of pfor's for good: a
  `tf.vectorized_map` of another thread may look into it at any time.
  """

  def get(self, key, default=None):
    converter = super().get(key, default)
    if not lanes_lib.are_made():
      return converter
    converter = _CONVERTERS.get(key, converter)

    def convert(pfor_input):
      try:
        try:
          if converter is None and (function := _function_of(pfor_input, key)) is not None:
            return _called_by_name(function, pfor_input)
          return (converter or _convert_lane_by_lane)(pfor_input)
        except pfor_lib.ConversionNotImplementedError:
          return _convert_lane_by_lane(pfor_input)
      except Exception as error:
        raise _ConversionFailed from error

    return convert


pfor_lib._pfor_converter_registry = _Registry(pfor_lib._pfor_converter_registry)
