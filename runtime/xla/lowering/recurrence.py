"""Recurrent layers' loops and their gradients, in the form that XLA takes well on a CPU.

TensorFlow's gradient of a loop adds two things at every turn: a product a^T b to the gradient by a
layer's weights, and a list that has one element to the gradient by a sequence. XLA goes through the
whole of both, over single numbers where it works in place. Weights that are to be transposed are
transposed at every turn by the library that XLA calls, number by number. And what is computed for
a concatenation, such as of the gradients by a cell's gates, XLA makes a loop that asks for each
number of which part it is.

Where sizes vary, only the weights are transposed: XLA keeps no varying sizes in lists and updates.
"""

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# Of weights with fewer numbers the sum costs no more than keeping what it is made of.
_FEWEST_WEIGHTS = 1024
_MOST_PARTS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
  """A product a^T b that each turn of a loop adds to a value.

  Attributes:
    value: the position of that value among the loop's.
    a: the name of [n, k] in the body's graph.
    b: the name of [n, m].
  """

  value: int
  a: str
  b: str


def summed_products(
  nodes: Sequence[Any],
  arguments: Sequence[str],
  results: Sequence[str],
  starts: Sequence[Any],
  unchanged: Container[str] = (),
) -> list[Product]:
  """The products that a loop does nothing with but add them up.

  Args:
    nodes: of the body's graph.
    arguments: the names of its arguments.
    results: the names of its results' tensors.
    starts: the values before the first turn.
    unchanged: the arguments that every turn passes on. What is made of them is not kept for each.
  """
  by_name = {node.name: node for node in nodes}
  users: dict[str, int] = {}
  for name in [*(i for node in nodes for i in node.input), *results]:
    users[_base(name)] = users.get(_base(name), 0) + 1

  def source(name: str) -> Any:
    node = by_name[_base(name)]
    return source(node.input[0]) if node.op == 'Identity' else node

  def is_alone(name: str) -> bool:
    """Whether one thing alone reads this, and what it is another name of."""
    node = by_name[_base(name)]
    return users.get(node.name) == 1 and (node.op != 'Identity' or is_alone(node.input[0]))

  def is_same(name: str) -> bool:
    """Whether a factor is the same at every turn."""
    return source(name).op == 'Const' or source(name).name in unchanged

  found = []
  for position, (argument, result, start) in enumerate(
    zip(arguments, results, starts, strict=True)
  ):
    total = source(result)
    inputs = [i for i in total.input if not i.startswith('^')]
    if total.op != 'AddN' or len(inputs) != 2:  # An `AddV2` may broadcast.
      continue
    before = [i for i in inputs if source(i).name == argument]
    others = [i for i in inputs if source(i).name != argument]
    if len(before) != 1 or not (is_alone(before[0]) and is_alone(result)):
      continue
    product = source(others[0])
    if not (tf.is_tensor(start) and start.dtype == tf.float32 and start.shape.rank == 2):
      continue
    is_large = (start.shape.num_elements() or 0) >= _FEWEST_WEIGHTS
    if is_large and _is_product(product) and not any(map(is_same, product.input[:2])):
      found.append(Product(value=position, a=product.input[0], b=product.input[1]))
  return found


def _is_product(node: Any) -> bool:
  return node.op == 'MatMul' and node.attr['transpose_a'].b and not node.attr['transpose_b'].b


def _base(name: str) -> str:
  return name.lstrip('^').split(':')[0]


class Factors:
  """The factors of a loop's products, of all its turns, in tensor lists."""

  def __init__(self, products: Sequence[Product], starts: Sequence[tf.Tensor], turns: int):
    """Notes what is to be kept.

    Args:
      products: of the loop.
      starts: the loop's values before the first turn.
      turns: how often it turns at most.
    """
    self._products = products
    self._starts = {p.value: starts[p.value] for p in products}
    # A factor of several products is kept once.
    self._columns: dict[str, int] = {}
    for product in products:
      k, m = self._starts[product.value].shape
      self._columns |= {product.a: k, product.b: m}
    self._turns = turns

  @property
  def values(self) -> set[int]:
    """The positions of the values that are sums of products."""
    return set(self._starts)

  @property
  def carried(self) -> int:
    """How many tensors the loop carries for them."""
    return 1 + len(self._columns) if self._columns else 0

  @property
  def names(self) -> list[str]:
    """The names of the factors in the body's graph."""
    return list(self._columns)

  def begin(self) -> list[tf.Tensor]:
    """What the loop carries: the number of the turn, and a list for each factor."""
    lists = [
      tf.raw_ops.TensorListReserve(
        element_shape=[-1, columns], num_elements=self._turns, element_dtype=tf.float32
      )
      for columns in self._columns.values()
    ]
    return [tf.constant(0), *lists] if lists else []

  def kept(self, carried: Sequence[tf.Tensor], factors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """What the loop carries after a turn that has these factors."""
    if not carried:
      return []
    turn, *lists = carried
    changed = [
      tf.raw_ops.TensorListSetItem(input_handle=before, index=turn, item=factor)
      for before, factor in zip(lists, factors, strict=True)
    ]
    return [turn + 1, *changed]

  def totals(self, carried: Sequence[tf.Tensor]) -> Mapping[int, tf.Tensor]:
    """The loop's values that are sums of products, by position."""
    rows = {
      name: tf.reshape(
        tf.raw_ops.TensorListStack(
          input_handle=kept, element_shape=[-1, columns], element_dtype=tf.float32
        ),
        [-1, columns],
      )
      for (name, columns), kept in zip(self._columns.items(), carried[1:], strict=True)
    }
    return {
      p.value: self._starts[p.value] + tf.matmul(rows[p.a], rows[p.b], transpose_a=True)
      for p in self._products
    }


def with_element_added(inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
  """The sum of two lists of which one has a single element that is not zero; None if none has."""
  if len(inputs) != 2 or not all(tf.is_tensor(i) and i.dtype == tf.variant for i in inputs):
    return None
  for total, other in (inputs, inputs[::-1]):
    if other.op.type != 'TensorListSetItem':
      continue
    empty, index, item = other.op.inputs
    if empty.op.type == 'TensorListReserve':
      before = tf.raw_ops.TensorListGetItem(
        input_handle=total, index=index, element_shape=tf.shape(item), element_dtype=item.dtype
      )
      return tf.raw_ops.TensorListSetItem(input_handle=total, index=index, item=before + item)
  return None


def by_transposed_weights(
  inputs: Sequence[tf.Tensor], *, transpose_a: bool, transpose_b: bool
) -> tf.Tensor | None:
  """A product a b^T with a matrix b that no turn of a loop changes, transposed before the loop.

  Args:
    inputs: a [n, m] and b [k, m].
    transpose_a: whether the first is to be transposed.
    transpose_b: whether the second is.

  Returns:
    [n, k]; None if there is nothing to be transposed.
  """
  a, b = inputs
  graph = getattr(b, 'graph', None)  # A constant of Python's has none.
  if not transpose_b or transpose_a or b.dtype != tf.float32 or graph is None:
    return None
  with graph.as_default():
    turned = tf.transpose(b)
  return tf.matmul(a, turned)


def side_by_side(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor | None:
  """A concatenation that is written part by part; None if the parts' sizes are not known."""
  if len(parts) > _MOST_PARTS or not all(p.shape.is_fully_defined() for p in parts):
    return None
  axis %= parts[0].shape.rank
  shape = parts[0].shape.as_list()
  shape[axis] = sum(part.shape[axis] for part in parts)
  whole = tf.zeros(shape, parts[0].dtype)
  begin = [0] * len(shape)
  for part in parts:
    whole = gen_xla_ops.xla_dynamic_update_slice(whole, part, tf.constant(begin))
    begin[axis] += part.shape[axis]
  return tf.ensure_shape(whole, shape)
