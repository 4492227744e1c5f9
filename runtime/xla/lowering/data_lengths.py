"""Slices as long as data say, as `x[:n]` of padded rows with their number n beside them.

XLA gives such a slice a size that varies, without a word, and loses it where a program reads it,
counts from the end or looks at all rows. So a graph that has one is interpreted, and `slices`
makes it as it makes what is cut of a batch. What is as long in any case (`x[i]`, `x[2:]`, a slice
of a known size, or one up to a size of another tensor) is none of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import data_sizes, datasets

# The inputs of ops that say which part is taken, and that how much `tf.math.top_k` takes.
_POSITIONS: Mapping[str, tuple[int, ...]] = dict(
  Slice=(1, 2), StridedSlice=(1, 2, 3), StridedSliceGrad=(1, 2, 3), TopKV2=(1,)
)
_ALL = 'all of a vector'


def ops(graph_def: Any) -> set[str]:
  """The types of a graph's ops, those of its functions included, that are as long as data say.

  What a function is given counts as data; whether it is shows when the graph is interpreted.
  """
  return {
    node.op
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function))
    for node in _found(nodes)
  }


def refusal(op: str) -> datasets.NotLowered:
  """Says what to change."""
  return datasets.NotLowered(
    f'the op {op} of a length that depends on data (a mask of all padded rows is compiled)'
  )


def places_of_slice(places: Iterable[int], begin: Any, size: Any) -> Iterator[int]:
  """The axes along which a slice is as long as data say.

  Args:
    places: the axes.
    begin: where it begins on each, None if that depends on data.
    size: its sizes, None for those that depend on data; -1 for all that is left.
  """
  return (p for p in places if size[p] is None or (size[p] == -1 and begin[p] is None))


def places_of_strided(
  node: Any, places: Iterable[int], begin: Any, end: Any, strides: Any
) -> Iterator[int]:
  """The places in a strided slice's specification at which it is as long as data say.

  Args:
    node: the op.
    places: those that may be so.
    begin: what it has there, None for what depends on data.
    end: see `begin`.
    strides: see `begin`.
  """
  masks = ('begin_mask', 'end_mask', 'ellipsis_mask', 'new_axis_mask', 'shrink_axis_mask')
  no_begin, no_end, *without_length = (node.attr[mask].i for mask in masks)
  for p in places:
    is_begin = begin[p] is not None or no_begin >> p & 1
    is_end = end[p] is not None or no_end >> p & 1
    is_fixed = is_begin and is_end and strides[p] is not None
    if not is_fixed and not any(mask >> p & 1 for mask in without_length):
      yield p


def _found(nodes: Iterable[Any]) -> Iterator[Any]:
  """Those of a graph's or of a function's nodes that are as long as data say."""
  candidates = [node for node in nodes if node.op in _POSITIONS]
  if not candidates:
    return
  by_name = {node.name: node for node in nodes}
  for node in candidates:
    given = [_numbers(by_name, node.input[i]) for i in _POSITIONS[node.op]]
    count = max(map(len, given))
    given = [numbers if len(numbers) == count else numbers * count for numbers in given]
    if node.op == 'TopKV2':
      is_found = None in given[0]
    elif node.op == 'Slice':
      is_found = any(True for _ in places_of_slice(range(count), *given))
    else:
      is_found = any(True for _ in places_of_strided(node, range(count), *given))
    if is_found:
      yield node


def _numbers(nodes: Mapping[str, Any], name: str) -> list[Any]:
  """The numbers of a vector, None for those that depend on data; one for all if they do alike."""
  node = _node(nodes, name)
  if node is not None and node.op == 'Const':
    return [int(number) for number in tf.make_ndarray(node.attr['value'].tensor).ravel()]
  if node is not None and node.op == 'Pack':
    return [number for part in node.input for number in _numbers(nodes, part)[:1]]
  return [_ALL if _is_of_sizes(nodes, name) else None]


def _is_of_sizes(nodes: Mapping[str, Any], name: str) -> bool:
  """Whether a number is made of nothing but constants and sizes of tensors."""
  pending, seen = [name], set()
  while pending:
    node = _node(nodes, pending.pop())
    if node is None:
      return False
    if node.name in seen or node.op in data_sizes.OF_SHAPES:
      continue
    seen.add(node.name)
    inputs = [i for i in node.input if not i.startswith('^')]
    if not inputs:
      return False
    pending += inputs
  return True


def _node(nodes: Mapping[str, Any], name: str) -> Any:
  """What gives a tensor; None for an argument of a function."""
  return nodes.get(name.split(':')[0])
