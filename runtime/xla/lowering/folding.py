"""Arithmetic of single known numbers, done by TensorFlow while a program is traced.

XLA wants sizes as constants, and some are computed from others: the next power of two, by
logarithms. TensorFlow itself folds no arithmetic while it traces.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

OPS = frozenset(
  [
    'Abs',
    'Add',
    'AddV2',
    'Cast',
    'Ceil',
    'DivNoNan',
    'Exp',
    'Floor',
    'FloorDiv',
    'FloorMod',
    'Log',
    'Maximum',
    'Minimum',
    'Mod',
    'Mul',
    'Neg',
    'Pow',
    'RealDiv',
    'Rint',
    'Round',
    'Sqrt',
    'Square',
    'Sub',
  ]
)


_MOST_SIZES = 64


def constants(inputs: list[Any]) -> list[np.ndarray] | None:
  """The values of sizes or paddings; TensorFlow's own folding stops at a slice or a reshape."""
  if inputs[0].dtype not in (tf.int32, tf.int64) or not inputs[0].shape.is_fully_defined():
    return None
  if inputs[0].shape.num_elements() > _MOST_SIZES:
    return None
  known = [tf.get_static_value(i) for i in inputs]
  return None if any(k is None for k in known) else known


def strided(node: Any, inputs: list[Any]) -> tf.Tensor | None:
  """A strided slice of known numbers as a constant; None as of `folded`."""
  known = constants(inputs)
  if known is None:
    return None
  masks = ('begin_mask', 'end_mask', 'ellipsis_mask', 'new_axis_mask', 'shrink_axis_mask')
  try:
    with tf.init_scope(), tf.device('CPU:0'):
      result = tf.strided_slice(*known, **{mask: node.attr[mask].i for mask in masks}).numpy()
  except tf.errors.InvalidArgumentError:
    return None
  return tf.constant(result)


def folded(node: Any, inputs: list[Any]) -> list[tf.Tensor] | None:
  """The results of one of `OPS` as constants; None unless its inputs are known numbers.

  None, too, where TensorFlow refuses them, as an integer over 0: no round may come to that op.
  """
  if not all(tf.is_tensor(i) and i.shape.rank == 0 for i in inputs):
    return None
  known = [_known(i) for i in inputs]
  if any(value is None for value in known):
    return None
  names = [argument.name for argument in op_def_registry.get(node.op).input_arg]
  values = dict(zip(names, known, strict=True))
  if node.op == 'Cast':
    values['DstT'] = tf.as_dtype(node.attr['DstT'].type)
  try:
    with tf.init_scope(), tf.device('CPU:0'):
      result = getattr(tf.raw_ops, node.op)(**values).numpy()
  except tf.errors.InvalidArgumentError:
    return None
  return [tf.constant(result)]


def _known(number: tf.Tensor) -> Any:
  if number.op.type == 'XlaOptimizationBarrier':  # before divisors; TensorFlow divides exactly
    number = number.op.inputs[number.value_index]
  return tf.get_static_value(number)
