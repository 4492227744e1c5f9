"""Refuses ops whose results are as large as data say.

XLA wants the sizes of all results while it compiles, or the most that they can be. It infers too
little, without a word, where such a number depends on data through a largest value: `tf.range` of
the longest length then lacks its end.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import datasets

_RANDOM = (
  'ParameterizedTruncatedNormal',
  'RandomStandardNormal',
  'RandomUniform',
  'RandomUniformInt',
  'StatelessRandomNormal',
  'StatelessRandomNormalV2',
  'StatelessRandomUniform',
  'StatelessRandomUniformInt',
  'StatelessRandomUniformIntV2',
  'StatelessRandomUniformV2',
  'TruncatedNormal',
)
# The inputs of ops that say how large their results are.
_SIZES: Mapping[str, tuple[int, ...]] = {
  **dict.fromkeys(_RANDOM, (0,)),
  'BroadcastTo': (1,),
  'Fill': (0,),
  'LinSpace': (2,),
  'Multinomial': (1,),
  'OneHot': (1,),
  'Pad': (1,),
  'PadV2': (1,),
  'Range': (0, 1, 2),
  'Reshape': (1,),
  'ScatterNd': (2,),
  'SparseToDense': (1,),
  'SplitV': (1,),
  'Tile': (1,),
  'TopKV2': (1,),
  'UnsortedSegmentMax': (2,),
  'UnsortedSegmentMin': (2,),
  'UnsortedSegmentProd': (2,),
  'UnsortedSegmentSum': (2,),
}
OF_SHAPES = frozenset(['Const', 'Rank', 'Shape', 'ShapeN', 'Size'])


def check(node: Any, inputs: list[Any], known: Callable[[tf.Tensor], Any]) -> None:
  """Refuses an op whose result has a size that depends on data.

  Args:
    node: the op.
    inputs: its inputs.
    known: gives the sizes that are known in a shape, None for others; None for no shape.

  Raises:
    NotLowered: it has.
  """
  for place in _SIZES.get(node.op, ()):
    sizes = known(inputs[place]) if inputs[place].shape.rank == 1 else None
    is_known = sizes is not None and sizes.count(None) <= (node.op == 'Reshape')
    if not is_known and reads_data(inputs[place]):
      raise datasets.NotLowered(f'the op {node.op} of sizes that depend on data')


def reads_data(number: tf.Tensor) -> bool:
  """Whether a number is made of more than constants and sizes of tensors."""
  pending, seen = [number], set()
  while pending:
    tensor = pending.pop()
    if id(tensor) in seen or tensor.op.type in OF_SHAPES:
      continue
    seen.add(id(tensor))
    if tf.get_static_value(tensor) is not None:
      continue
    outside = _captured(tensor)
    sources = list(tensor.op.inputs) if outside is None else [outside]
    if not sources:
      return True
    pending += sources
  return False


def _captured(tensor: tf.Tensor) -> tf.Tensor | None:
  """What a loop's or a branch's graph has of the graph around it; None if it is no such value."""
  captures = getattr(tensor.graph, 'captures', ())
  return next((outer for outer, inner in captures if inner is tensor), None)
