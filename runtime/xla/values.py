"""Between tensors and what TFF's own runtime takes and gives: NumPy values, bytes, data sets."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from runtime import trees


def python_value(type_: tff.Type, value: Any) -> Any:
  """A value as TFF gives it.

  Args:
    type_: the value's type, without placements.
    value: nested tuples of tensors; a sequence is the variant of a data set.

  Returns:
    Python containers with NumPy arrays and scalars, bytes, and `tf.data.Dataset`s.
  """
  leaves = [
    _python_leaf(leaf_type, leaf)
    for leaf, leaf_type in zip(tf.nest.flatten(value), trees.leaf_types(type_), strict=True)
  ]
  return trees.container(type_, iter(leaves))


def _python_leaf(type_, leaf: Any) -> Any:
  if isinstance(type_, tff.SequenceType):
    return dataset(type_, leaf)
  return leaf.numpy() if tf.is_tensor(leaf) else leaf


def listed(type_: tff.Type, leaves: Sequence[tf.Tensor], count: int) -> list[Any]:
  """The values of the first clients of stacks [P, ...]: a list of Python containers."""
  arrays = [leaf[:count].numpy() for leaf in leaves]
  # A row of a vector is a NumPy scalar; of anything larger, a view.
  return [trees.container(type_, iter([array[k] for array in arrays])) for k in range(count)]


def dataset(type_: tff.SequenceType, value: Any) -> tf.data.Dataset:
  """The data set of a sequence: as it is, of a variant tensor, or of a list of elements."""
  if isinstance(value, tf.data.Dataset):
    return value
  if tf.is_tensor(value) and value.dtype == tf.variant:
    return dataset_of_variant(type_, value)
  elements = [
    trees.container(type_.element, iter(trees.flatten(type_.element, element))) for element in value
  ]
  return tf.data.Dataset.from_generator(
    lambda: iter(elements), output_signature=element_spec(type_)
  )


def not_optimized(type_: tff.SequenceType, variant: tf.Tensor) -> tf.Tensor:
  """A data set's variant tensor, such that the data set is read as it is.

  TensorFlow would optimise it anew at each reading, which takes longer than what most clients do.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  data = dataset_of_variant(type_, variant).with_options(options)
  return tf.data.experimental.to_variant(data)


def dataset_of_variant(type_: tff.SequenceType, variant: tf.Tensor) -> tf.data.Dataset:
  """The data set that a variant tensor stands for."""
  return tf.data.experimental.from_variant(variant, element_spec(type_))


def element_spec(type_: tff.SequenceType) -> Any:
  """The `element_spec` of a sequence's data sets."""
  return tff.types.structure_from_tensor_type_tree(
    lambda t: tf.TensorSpec(trees.static_shape(t), t.dtype), type_.element
  )
