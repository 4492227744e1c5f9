"""Ops of imported graphs that XLA takes badly, in the form in which it takes them well."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from runtime import interface
from runtime.xla import (
  activations,
  exact_division,
  large_fills,
  long_sums,
  masks,
  philox,
  places,
  principal_values,
  products,
  row_maxima,
  shifts,
  solutions,
)

# XLA drops what is written behind a list's end.
LONGER = (
  'the op TensorListSetItem, which may make a list longer (a `tf.TensorArray` of dynamic size)'
)


def _sum(operation: tf.Operation) -> list[tf.Tensor] | None:
  keep_dims = operation.type != 'L2Loss' and operation.get_attr('keep_dims')
  return _alone(long_sums.taken(operation.type, list(operation.inputs), keep_dims=keep_dims))


def _product(operation: tf.Operation) -> list[tf.Tensor] | None:
  transposed = {name: operation.get_attr(name) for name in ('transpose_a', 'transpose_b')}
  return _alone(products.taken(list(operation.inputs), **transposed))


def _activation(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(activations.taken(operation.type, list(operation.inputs)))


def _cast(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(masks.taken(operation.inputs[0], operation.outputs[0].dtype))


def _place(operation: tf.Operation) -> list[tf.Tensor] | None:
  boundaries = operation.get_attr('boundaries') if operation.type == 'Bucketize' else ()
  return [places.taken(list(operation.inputs), boundaries)]


def _write(operation: tf.Operation) -> None:
  if operation.get_attr('resize_if_index_out_of_bounds'):
    raise interface.UnsupportedComputationError(LONGER)


def _principal(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(principal_values.taken(operation.inputs[0]))


def _quotient(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(exact_division.taken(operation.type, list(operation.inputs)))


def _shift(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(shifts.taken(operation.type, list(operation.inputs)))


def _solution(operation: tf.Operation) -> list[tf.Tensor] | None:
  return [solutions.taken(list(operation.inputs), adjoint=operation.get_attr('adjoint'))]


def _random(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(philox.taken(operation))


def _seeded(operation: tf.Operation) -> list[tf.Tensor]:
  has_dtype = 'dtype' in operation.node_def.attr
  dtype = operation.get_attr('dtype') if has_dtype else None
  return philox.seeded(operation.type, list(operation.inputs), dtype)


def _of_rows(operation: tf.Operation) -> list[tf.Tensor] | None:
  keep_dims = operation.type in ('Max', 'Min') and operation.get_attr('keep_dims')
  return row_maxima.taken(operation.type, list(operation.inputs), keep_dims=keep_dims)


def _fill(operation: tf.Operation) -> list[tf.Tensor] | None:
  return _alone(large_fills.taken(*operation.inputs))


def _alone(output: tf.Tensor | None) -> list[tf.Tensor] | None:
  return None if output is None else [output]


_TAKEN: dict[str, Callable[[tf.Operation], list[tf.Tensor] | None]] = {
  **dict.fromkeys(activations.OPS, _activation),
  **dict.fromkeys(exact_division.OPS, _quotient),
  **dict.fromkeys(large_fills.OPS, _fill),
  **dict.fromkeys(long_sums.OPS, _sum),
  **dict.fromkeys(masks.OPS, _cast),
  'TensorListSetItem': _write,
  **dict.fromkeys(places.OPS, _place),
  **dict.fromkeys(principal_values.OPS, _principal),
  **dict.fromkeys(products.OPS, _product),
  **dict.fromkeys(philox.OPS, _random),
  **dict.fromkeys(philox.SEEDED, _seeded),
  **dict.fromkeys(row_maxima.OPS, _of_rows),
  **dict.fromkeys(shifts.OPS, _shift),
  **dict.fromkeys(solutions.OPS, _solution),
}


def replaced(operations: Iterable[tf.Operation], outputs: Sequence[Any]) -> list[Any]:
  """Replaces the outputs of such ops in what uses them.

  Args:
    operations: of one graph that XLA compiles; what uses the replaced ones is changed.
    outputs: the graph's results.

  Returns:
    The outputs, with the new ones in the place of those that were replaced.
  """
  found: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
  for operation in [o for o in operations if o.type in _TAKEN]:
    with operation.graph.as_default():
      taken = _TAKEN[operation.type](operation)
    for old, new in zip(operation.outputs, taken or [], strict=False):
      for user in old.consumers():
        for index, value in enumerate(user.inputs):
          if value is old:
            user._update_input(index, new)  # pylint: disable=protected-access
      found[id(old)] = (old, new)
  return [found[id(t)][1] if id(t) in found else t for t in outputs]
