"""Ops that are done on all the rows that there is room for, where the number of rows varies.

What does each row of a batch by itself (linear algebra, Fourier transforms, pictures) reads nothing
of other rows, and so nothing of the padding: its result is given its number of rows again. What
adds up along the rows has the padding filled with what changes nothing before.
"""

from typing import Any

import tensorflow as tf

from runtime.xla import solutions
from runtime.xla.lowering import interpreter, reshapes, varying

_Interpreter = interpreter.Interpreter


def _row_by_row(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """An op on each row of a batch by itself."""

  def op(inputs: list[Any]) -> list[Any]:
    if node.op in solutions.OPS:
      return [solutions.taken(inputs, adjoint=node.attr['adjoint'].b)]
    return interp.op(node, inputs)

  batches = [i for i in inputs if varying.is_varying(i)]
  if not interp.session.bounds or not batches:
    return op(inputs)
  ranks = {value.shape.rank for value in batches}
  if None in ranks or max(ranks) <= varying.ROW_AXES[node.op]:
    raise varying.refusal(node.op)
  if any(None in value.shape[1:] for value in batches):
    raise varying.refusal(node.op)
  fixed = [i for i in inputs if not varying.is_varying(i)]
  if any(i.shape.rank in ranks and i.shape[0] != 1 for i in fixed):
    raise varying.refusal(node.op)  # of as many rows as a batch has by chance
  sized = [value for value in batches if id(value) not in interp.unsized]
  whole = [reshapes.of_largest_size(i, 0) if varying.is_varying(i) else i for i in inputs]
  if node.op == 'MatrixInverse':  # of which XLA's padder fails
    unit = tf.zeros_like(whole[0]) + tf.eye(int(whole[0].shape[-1]), dtype=whole[0].dtype)
    found = [solutions.taken([*whole, unit], adjoint=node.attr['adjoint'].b)]
  else:
    found = op(whole)
  # Where XLA has lost the number of rows of all of them, it is not known of the results either.
  return [interpreter.set_dynamic_size(o, 0, tf.shape(sized[0])[0]) if sized else o for o in found]


def _decomposition(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """Eigenvalues or singular values; vectors have signs of their own where XLA finds them."""
  if node.attr['compute_v' if node.op == 'SelfAdjointEigV2' else 'compute_uv'].b:
    raise interpreter.NotLowered(f'the op {node.op} with vectors, which XLA gives other signs')
  return _row_by_row(interp, node, inputs)


def filled(value: tf.Tensor, axis: int, filling: Any) -> tf.Tensor:
  """A value of its largest size along an axis, with the padding filled."""
  whole = reshapes.of_largest_size(value, axis)
  places = tf.range(tf.shape(whole)[axis])
  shape = [1] * value.shape.rank
  shape[axis] = -1
  found = tf.where(tf.reshape(places < tf.shape(value)[axis], shape), whole, filling)
  for other in range(value.shape.rank):
    if other != axis and varying.varies(value, other):
      found = interpreter.set_dynamic_size(found, other, tf.shape(value)[other])
  return found


def _quantisation_gradient(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The gradients by values that are quantised, and by their range, which add up along the rows."""
  gradients, values, *limits = inputs
  if not interp.session.bounds or not any(map(varying.is_varying, (gradients, values))):
    return interp.op(node, inputs)
  of_rows = 1 + ('PerChannel' in node.op)  # Channels are no rows.
  for value in (gradients, values):
    if id(value) in interp.unsized or value.shape.rank is None or value.shape.rank < of_rows:
      raise varying.refusal(node.op)
    if not varying.varies(value, 0) or None in value.shape[1:]:
      raise varying.refusal(node.op)
  whole = [filled(gradients, 0, 0.0), reshapes.of_largest_size(values, 0)]
  by_values, *by_limits = interp.op(node, [*whole, *limits])
  return [interpreter.set_dynamic_size(by_values, 0, tf.shape(values)[0]), *by_limits]


_NOTHING = {'Cumsum': 0, 'Cumprod': 1, 'CumulativeLogsumexp': -float('inf')}


def _cumulative(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A sum, product or log-sum-exp of all that is before, or behind, along one axis."""
  value, axis = inputs
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  along = tf.get_static_value(axis)
  if along is None or value.shape.rank is None or id(value) in interp.unsized:
    raise varying.refusal(node.op)
  along = int(along) % value.shape.rank
  if not varying.varies(value, along):
    return interp.op(node, inputs)
  nothing = tf.constant(_NOTHING[node.op], value.dtype)
  (result,) = interp.op(node, [filled(value, along, nothing), axis])
  return [interpreter.set_dynamic_size(result, along, tf.shape(value)[along])]


def _roll(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A value whose elements along one axis are moved, the last ones to the front."""
  value, shift, axis = inputs
  along = tf.get_static_value(axis)
  if not interp.session.bounds or not varying.is_varying(value):
    return interp.op(node, inputs)
  if along is None or along.size != 1 or value.shape.rank is None or id(value) in interp.unsized:
    raise varying.refusal(node.op)
  place = int(along.ravel()[0]) % value.shape.rank
  size = tf.shape(value)[place]
  whole = reshapes.of_largest_size(value, place) if varying.varies(value, place) else value
  places = tf.range(tf.shape(whole)[place]) - tf.cast(tf.reshape(shift, []), tf.int32)
  result = reshapes.gather(whole, places % tf.maximum(size, 1), axis=place)
  return [interpreter.set_dynamic_size(result, place, size) if whole is not value else result]


def _inverse_permutation(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """The places of 0, 1, ... in a permutation."""
  if not interp.session.bounds or not varying.is_varying(inputs[0]):
    return interp.op(node, inputs)
  if id(inputs[0]) in interp.unsized:
    raise varying.refusal(node.op)
  return [tf.cast(tf.argsort(inputs[0], stable=True), inputs[0].dtype)]


DECOMPOSITIONS: dict[str, interpreter.Handler] = dict.fromkeys(
  ('SelfAdjointEigV2', 'Svd'), _decomposition
)
HANDLERS: dict[str, interpreter.Handler] = {
  **dict.fromkeys(varying.ROW_AXES, _row_by_row),
  **dict.fromkeys(_NOTHING, _cumulative),
  'FakeQuantWithMinMaxVarsGradient': _quantisation_gradient,
  'FakeQuantWithMinMaxVarsPerChannelGradient': _quantisation_gradient,
  'InvertPermutation': _inverse_permutation,
  'Roll': _roll,
}
