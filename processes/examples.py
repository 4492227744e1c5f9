"""Sums over a client's examples, at the cost of its own rows and not of the largest client's."""

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

# A client's rows are worked off in so many pieces at most, none of fewer rows and numbers than
# these: XLA takes the products of small matrices on a CPU one number after the other. Floats
# are a product's numbers themselves; each of a text's words is a whole vector of the model's.
_PIECES, _FEWEST_ROWS, _FEWEST_NUMBERS = 32, 16, 2**14


def sums_of_examples(
  data,
  names: Sequence[str],
  of_rows: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Mapping[str, tf.Tensor]],
) -> dict[str, tf.Tensor]:
  """Adds up what a function gives of a client's examples, piece by piece.

  Args:
    data: OrderedDict with `x` [N, ...], `y` [N, ...] and `num_examples` (int32); pieces
      beyond `num_examples` are not computed.
    names: of the sums.
    of_rows: (x [B, ...], y [B, ...], bool [B] which of them are examples) -> the sums over these
      examples, a float32 scalar for every name.

  Returns:
    The sums by name.
  """
  capacity = data['x'].shape[0]
  of_row = max(1, math.prod(data['x'].shape[1:]))
  fewest = -(-_FEWEST_NUMBERS // of_row) if data['x'].dtype.is_floating else 1
  piece = max(_FEWEST_ROWS, -(-capacity // _PIECES), fewest)

  def add(start, totals):
    position = start + tf.range(piece)
    rows = tf.minimum(position, capacity - 1)
    found = of_rows(
      tf.gather(data['x'], rows), tf.gather(data['y'], rows), position < data['num_examples']
    )
    return start + piece, [total + found[name] for total, name in zip(totals, names, strict=True)]

  if piece >= capacity:
    found = of_rows(data['x'], data['y'], tf.range(capacity) < data['num_examples'])
    return {name: found[name] for name in names}
  _, totals = tf.while_loop(
    lambda start, _: start < data['num_examples'],
    add,
    (tf.constant(0), [tf.constant(0.0) for _ in names]),
  )
  return dict(zip(names, totals, strict=True))
