"""Reductions of data sets on the host, as loops over an iterator.

TensorFlow's own op makes its function ready anew at each reading, which takes many times as long as
the steps of a small model.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.util import function_utils

OP = 'ReduceDataset'
# TensorFlow does not optimise a data set's functions, and so not the steps of a loop in its place:
# of `x / 3` it would make `x * (1 / 3)`, which has another last bit.
UNCHANGED = {'_noinline': True, '_tf_data_function': True}
_HELD = (tf.variant, tf.resource)


def as_loop(node: Any, step: Any, loop_name: Callable[[Any], str]) -> bool:
  """Makes a node of `OP` the call of a loop.

  Args:
    node: its NodeDef, changed in place; its outputs are named `output` then.
    step: the ConcreteFunction that it names.
    loop_name: takes the loop's ConcreteFunction, and gives the name by which it is called.

  Returns:
    Whether it did: not of elements that are data sets themselves, nor where a step draws from a
    seed of its own, which TensorFlow's op begins anew at each reading.
  """
  number = len(node.attr['Tstate'].list.type)
  others = len(node.attr['Targuments'].list.type)
  inputs = step.graph.inputs
  elements = inputs[number : len(inputs) - others]
  if any(value.dtype in _HELD for value in (*inputs[:number], *elements)):
    return False
  if _draws_from_a_seed(step.graph.as_graph_def()):
    return False
  shapes = [tf.TensorShape(shape) for shape in node.attr['output_shapes'].list.shape]
  states = [tf.TensorSpec(s, v.dtype) for s, v in zip(shapes, inputs[:number], strict=True)]
  of_others = [tf.TensorSpec(None, v.dtype) for v in inputs[len(inputs) - others :]]
  spec = tuple(tf.TensorSpec(v.shape, v.dtype) for v in elements)

  def loop(data, *values):
    iterator = iter(tf.data.experimental.from_variant(data, spec))

    def body(optional, *state):
      after = tf.raw_ops.StatefulPartitionedCall(
        args=[*state, *optional.get_value(), *values[number:]],
        Tout=[state.dtype for state in states],
        f=step,
        config_proto=function_utils.get_disabled_rewriter_config(),
      )
      for value, shape in zip(after, shapes, strict=True):
        value.set_shape(shape)
      return iterator.get_next_as_optional(), *after

    first = iterator.get_next_as_optional()
    invariants = (tf.type_spec_from_value(first), *states)
    found = tf.while_loop(
      lambda optional, *_: optional.has_value(), body, (first, *values[:number]), invariants
    )
    return list(found[1:])

  made = tf.function(loop, autograph=False).get_concrete_function(
    tf.TensorSpec([], tf.variant), *states, *of_others
  )
  types = [tf.variant, *(spec.dtype for spec in (*states, *of_others))]
  node.op = 'StatefulPartitionedCall'
  node.attr.clear()
  node.attr['f'].func.name = loop_name(made)
  node.attr['Tin'].list.type.extend(t.as_datatype_enum for t in types)
  node.attr['Tout'].list.type.extend(spec.dtype.as_datatype_enum for spec in states)
  return True


def _draws_from_a_seed(graph_def: Any) -> bool:
  nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
  return any(n.attr[s].i for n in nodes for s in ('seed', 'seed2') if s in n.attr)
