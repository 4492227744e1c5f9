"""Ops of imported graphs that XLA takes badly, in the form in which it takes them well."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from runtime.xla import activations, long_sums, philox, products


def _sum(operation: tf.Operation) -> tf.Tensor | None:
  keep_dims = operation.type != 'L2Loss' and operation.get_attr('keep_dims')
  return long_sums.taken(operation.type, list(operation.inputs), keep_dims=keep_dims)


def _product(operation: tf.Operation) -> tf.Tensor | None:
  transposed = {name: operation.get_attr(name) for name in ('transpose_a', 'transpose_b')}
  return products.taken(list(operation.inputs), **transposed)


def _activation(operation: tf.Operation) -> tf.Tensor:
  return activations.taken(operation.type, list(operation.inputs))


_TAKEN: dict[str, Callable[[tf.Operation], tf.Tensor | None]] = {
  **dict.fromkeys(activations.OPS, _activation),
  **dict.fromkeys(long_sums.OPS, _sum),
  **dict.fromkeys(products.OPS, _product),
  **dict.fromkeys(philox.OPS, philox.taken),
}


def replaced(operations: Iterable[tf.Operation], outputs: Sequence[Any]) -> list[Any]:
  """Replaces the first output of such ops in what uses it.

  Args:
    operations: of one graph that XLA compiles; what uses the replaced ones is changed.
    outputs: the graph's results.

  Returns:
    The outputs, with the new ones in the place of those that were replaced.
  """
  found: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
  for operation in [o for o in operations if o.type in _TAKEN]:
    with operation.graph.as_default():
      new = _TAKEN[operation.type](operation)
    if new is not None:
      old = operation.outputs[0]
      for user in old.consumers():
        for index, value in enumerate(user.inputs):
          if value is old:
            user._update_input(index, new)  # pylint: disable=protected-access
      found[id(old)] = (old, new)
  return [found[id(t)][1] if id(t) in found else t for t in outputs]
