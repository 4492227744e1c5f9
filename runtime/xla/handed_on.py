"""Results of a compiled function that are its arguments, or one another, without a copy.

XLA writes out every result, one that is an argument as well. What passes through a stage of a
round, such as the server's state, would be written once for each of its names.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class HandedOn:
  """A function whose compiled form writes only what is new."""

  def __init__(self, function: Callable[..., Any]):
    """Args: function: of nested tensors, to nested tensors."""
    self._function = function

  def new_results(self, *arguments: Any) -> list[tf.Tensor]:
    """The function to compile: the results that are no arguments, each of them once."""
    results = self._function(*arguments)
    sources = {id(a): ('argument', i) for i, a in enumerate(tf.nest.flatten(arguments))}
    new: list[tf.Tensor] = []
    places = []
    for result in map(_source, tf.nest.flatten(results)):
      if id(result) not in sources:
        sources[id(result)] = ('new', len(new))
        new.append(result)
      places.append(sources[id(result)])
    graph = tf.compat.v1.get_default_graph()
    graph.handed_on = tf.nest.map_structure(lambda _: None, results), places
    return new

  def call(self, compiled: Any, *arguments: Any) -> Any:
    """The function's results.

    Args:
      compiled: the `tf.function` of `new_results`.
      *arguments: of the function.
    """
    structure, places = compiled.get_concrete_function(*arguments).graph.handed_on
    found = {'argument': tf.nest.flatten(arguments), 'new': compiled(*arguments)}
    return tf.nest.pack_sequence_as(structure, [found[where][i] for where, i in places])


def _source(result: Any) -> tf.Tensor:
  tensor = tf.convert_to_tensor(result)
  while _is_another_name(tensor):
    tensor = tensor.op.inputs[0]
  return tensor


def _is_another_name(tensor: tf.Tensor) -> bool:
  # What is computed already, such as a constant of Python's, is of no graph.
  is_of_graph = tf.is_symbolic_tensor(tensor)
  return is_of_graph and tensor.op.type == 'Identity' and not tensor.op.control_inputs
