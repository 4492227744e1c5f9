"""Variables that hold clients' states: TensorFlow has none of int32 on a GPU.

There such states (a count of rounds, say) are held as int64, of the same values.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from runtime import trees

_HELD_WIDER = 'int32_held_as_int64'  # A variable's name outlives what made it.


def create(array: np.ndarray, device: str) -> tf.Variable:
  """A variable of a population's states on the current device.

  Args:
    array: the states.
    device: the current one, which is asked for what it is.
  """
  if needs_wider(array.dtype, device):
    return tf.Variable(array.astype(np.int64), name=_HELD_WIDER)
  return tf.Variable(array)


def needs_wider(dtype: np.dtype, device: str) -> bool:
  """Whether a device has no variables of a dtype."""
  return dtype == np.int32 and 'GPU' in device


def dtype_of(leaf: Any) -> tf.DType:
  """The dtype of a state, of a placed array's too."""
  return tf.int32 if _is_held_wider(leaf) else tf.as_dtype(leaf.dtype)


def _is_held_wider(leaf: Any) -> bool:
  return isinstance(leaf, tf.Variable) and leaf.name.startswith(_HELD_WIDER)


def some(leaf: Any, rows: Any) -> tf.Tensor:
  """Rows of a state, an index or a slice of them, or of a placed array, outside of programs."""
  found = leaf[rows] if isinstance(rows, slice) else tf.gather(leaf, rows)
  return tf.cast(found, dtype_of(leaf))


def write(variable: tf.Variable, rows: np.ndarray, values: tf.Tensor) -> None:
  """Overwrites rows of a state, outside of programs."""
  variable.scatter_nd_update(rows[:, np.newaxis], tf.cast(values, variable.dtype))


def to_numpy(tree: Any) -> Any:
  """A copy on the host, states as they were placed."""
  return trees.map_leaves(
    lambda leaf: trees.as_array(leaf, np.int32 if _is_held_wider(leaf) else None), tree
  )
