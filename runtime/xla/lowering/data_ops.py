"""Data-set ops, iterators and optionals.

Long because every one of TensorFlow's ops has its function here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from runtime import random_streams
from runtime.xla.lowering import datasets, interpreter, random_ops, scope

_Interpreter = interpreter.Interpreter
_Indexed = datasets.Indexed
NotLowered = datasets.NotLowered

_ENDLESS = 2**31 - 1
_MOST_EPOCHS = 16  # Of a data set that is shuffled anew in each: each is traced.


def from_arrays(interp: _Interpreter, arrays, sizes, count) -> _Indexed:
  """A client's data set.

  Args:
    interp: the interpreter whose graph reads it.
    arrays: for each component of an element [n, ...], padded.
    sizes: for each component and axis of an element the true sizes int32 [n], or () where
      the size is always the array's.
    count: int32 scalar, the number of elements.
  """
  bound = arrays[0].shape[0]
  dynamic = [
    (component, axis, of_axis)
    for component, of_component in enumerate(sizes)
    for axis, of_axis in enumerate(of_component)
    if tf.is_tensor(of_axis)
  ]
  of_positions: dict[int, set[int]] = {}
  for _, axis, of_axis in dynamic:
    of_positions.setdefault(axis, set()).add(id(of_axis))
  # Components of which one may have a single row beside many of another.
  differ = any(len(different) > 1 for different in of_positions.values())
  interp.session.bounds |= {arrays[component].shape[1 + axis] for component, axis, _ in dynamic}

  def get(index):
    element = [tf.gather(array, index) for array in arrays]
    if not interp.session.assume_full:
      number = {id(of_axis): tf.gather(of_axis, index) for _, _, of_axis in dynamic}
      for component, axis, of_axis in dynamic:
        size = number[id(of_axis)]
        element[component] = interpreter.set_dynamic_size(element[component], axis, size)
      if differ:
        interp.session.cut.update({id(leaf): leaf for leaf in element})
    return element

  def full(index):
    return tf.reduce_all(
      [
        tf.equal(tf.gather(of_axis, index), arrays[component].shape[1 + axis])
        for component, axis, of_axis in dynamic
      ]
    )

  return _Indexed(
    count=count,
    bound=bound,
    get=get,
    get_many=None if dynamic else lambda indices: [tf.gather(a, indices) for a in arrays],
    full=full if dynamic else None,
  )


def _indexed(interp: _Interpreter, data: Any, op: str) -> _Indexed:
  if not isinstance(data, _Indexed):
    raise NotLowered(f'{op} of a data set that is scanned or ends early')
  return _iterated(interp, data)


def _iterated(interp: _Interpreter, data: _Indexed) -> _Indexed:
  """A data set as whatever goes through it now sees it: what is shuffled anew in another order.

  Its first reader sees the order that was drawn with it, unless that is in a loop, each turn of
  which goes through it again.
  """
  if data.again is None:
    return data
  orders = interp.session.orders
  _, depth = orders.get(id(data), (data, None))
  orders[id(data)] = data, None
  return data if depth == interp.session.depth else data.again()


def _again(data: _Indexed, transform) -> Any:
  again = data.again
  return None if again is None else lambda: transform(again())


def _tensor_slices(interp, node, inputs):
  del interp, node
  tensors = list(inputs)
  number = tensors[0].shape[0]
  if number is None:
    raise NotLowered('a data set of slices of a tensor whose number of rows is not known')

  def rows(index):
    return [tf.gather(t, index) for t in tensors]

  return [_Indexed(count=tf.constant(number), bound=number, get=rows, get_many=rows)]


def _tensor(interp, node, inputs):
  del interp, node
  tensors = list(inputs)

  def repeated(indices):
    return [tf.broadcast_to(t, tf.concat([tf.shape(indices), tf.shape(t)], 0)) for t in tensors]

  return [_Indexed(count=tf.constant(1), bound=1, get=lambda index: tensors, get_many=repeated)]


def _range(interp, node, inputs):
  del interp
  dtype = tf.as_dtype(node.attr['output_types'].list.type[0])
  start, stop, step = inputs
  known = [tf.get_static_value(i) for i in inputs]
  if known[2] is None or known[2] < 1:
    raise NotLowered('a range of steps that are not known, or not positive')
  # The distance may be more than int64 counts: as an unsigned number it is not.
  apart = tf.bitcast(stop - start - 1, tf.uint64) // tf.bitcast(step, tf.uint64)
  apart = tf.bitcast(tf.minimum(apart, _ENDLESS - 1), tf.int64)
  count = tf.cast(tf.where(stop > start, apart + 1, 0), tf.int32)
  bound = None
  if known[0] is not None and known[1] is not None:
    bound = max(0, -((int(known[0]) - int(known[1])) // int(known[2])))
    bound = None if bound >= _ENDLESS else bound

  def values(index):
    return [tf.cast(start + tf.cast(index, tf.int64) * step, dtype)]

  return [_Indexed(count=count, bound=bound, get=values, get_many=values)]


def _limit(number, data: _Indexed) -> tuple[tf.Tensor, int | None]:
  """How many elements a count argument stands for, which is all if it is negative."""
  known = tf.get_static_value(number)  # Of the argument itself: not all ops are folded.
  number = tf.cast(tf.minimum(number, _ENDLESS), tf.int32)
  count = tf.where(number < 0, data.count, tf.minimum(number, data.count))
  bound = data.bound
  if known is not None and known >= 0:
    bound = int(known) if bound is None else min(int(known), bound)
  return count, bound


def _in_parts(count, size):
  """How many parts of a size a count has, a smaller last one included; of an endless one, too."""
  return count // size + tf.cast(count % size > 0, tf.int32)


def _times(count, times):
  """A count so many times: endless where int32 has no such number."""
  return tf.where(count > _ENDLESS // tf.maximum(1, times), _ENDLESS, count * times)


def _take(interp, node, inputs):
  del node

  def transform(data):
    count, bound = _limit(inputs[1], data)
    return dataclasses.replace(data, count=count, bound=bound, again=_again(data, transform))

  return [transform(_indexed(interp, inputs[0], 'take'))]


def _skip(interp, node, inputs):
  del node

  def transform(data):
    skipped, _ = _limit(inputs[1], data)
    known = tf.get_static_value(inputs[1])
    if known is not None and known >= _ENDLESS:
      raise NotLowered('skipping more elements than int32 counts')
    bound = data.bound
    if bound is not None and known is not None:
      bound = max(0, bound - int(known)) if known >= 0 else 0
    return data.reindexed(
      lambda i: i + skipped,
      count=data.count - skipped,
      bound=bound,
      again=_again(data, transform),
    )

  return [transform(_indexed(interp, inputs[0], 'skip'))]


def _shard(interp, node, inputs):
  del node
  shards, index = (tf.cast(i, tf.int32) for i in inputs[1:])

  def transform(data):
    return data.reindexed(
      lambda i: i * shards + index,
      count=_in_parts(tf.maximum(data.count - index, 0), shards),
      bound=data.bound,
      again=_again(data, transform),
    )

  return [transform(_indexed(interp, inputs[0], 'shard'))]


def _specs(node) -> list[tf.TensorSpec]:
  types = node.attr['output_types'].list.type
  shapes = node.attr['output_shapes'].list.shape
  return [
    tf.TensorSpec(tf.TensorShape(s), tf.as_dtype(t)) for s, t in zip(shapes, types, strict=True)
  ]


def _map(interp, node, inputs):
  number = len(node.attr['Targuments'].list.type)
  others = inputs[1 : 1 + number]
  name = node.attr['f'].func.name

  def one(element):
    return interp.call(name, [*element, *others])

  return [mapped(interp, inputs[0], one, _specs(node))]


def mapped(interp: _Interpreter, data: Any, function: Any, specs: Sequence[tf.TensorSpec]) -> Any:
  """A data set whose elements go through a function.

  Args:
    interp: the interpreter.
    data: the data set.
    function: element -> element.
    specs: of the new element's tensors.
  """

  def transform(data):
    if isinstance(data, datasets.Stream):
      step = datasets.Step(kind='map', function=function)
      return dataclasses.replace(data, steps=(*data.steps, step))
    # Elements whose shapes vary cannot be stacked by a batch.
    is_static = data.get_many is not None and all(s.shape.is_fully_defined() for s in specs)

    def get_many(indices):
      return interp.stacked(get, indices, specs)

    def get(index):
      return function(data.get(index))

    return dataclasses.replace(
      data,
      get=get,
      get_many=get_many if is_static else None,
      again=_again(data, transform),
    )

  return transform(_iterated(interp, data) if isinstance(data, _Indexed) else data)


def selected(
  interp: _Interpreter, keys: tf.Tensor, function: Any, specs: Sequence[tf.TensorSpec]
) -> _Indexed:
  """The data set of what a function gives for each of some keys.

  Args:
    interp: the interpreter.
    keys: [n].
    function: key -> element.
    specs: of the element's tensors.
  """
  number = keys.shape[0]

  def get(index):
    return function(tf.gather(keys, index))

  def get_many(indices):
    return interp.stacked(get, indices, specs)

  is_static = all(spec.shape.is_fully_defined() for spec in specs)
  return _Indexed(
    count=tf.constant(number),
    bound=number,
    get=get,
    get_many=get_many if is_static else None,
  )


def _drawn(interp: _Interpreter, function: Any) -> tuple[bool, Any]:
  """Whether what a function gives is drawn at random, and what it gives once."""
  before = dict(interp.state)
  result = function()
  is_drawn = interp.state[scope.DRAWS] is not before[scope.DRAWS]
  interp.state = before
  return is_drawn, result


def _kept(interp: _Interpreter, data: _Indexed) -> _Indexed:
  """A data set whose elements are the same whenever they are read: those that are drawn are kept.

  The elements of every other are made anew for each reader, of what does not change.
  """
  is_drawn, element = _drawn(interp, lambda: data.get(tf.constant(0)))
  if not is_drawn:
    return data
  specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in element]
  if data.bound is None or not all(spec.shape.is_fully_defined() for spec in specs):
    raise NotLowered('keeping elements that are drawn, of sizes that vary or without an end')
  room = max(1, data.bound)
  arrays = interp.stacked(data.get, tf.range(room), specs)

  def rows(index):
    return [tf.gather(array, index) for array in arrays]

  return dataclasses.replace(data, get=rows, get_many=rows, again=None)


def _cache(interp, node, inputs):
  """The data set as its first reader sees it, for all."""
  del node
  if tf.get_static_value(inputs[1]) != b'':  # of whose contents it would be another time
    raise NotLowered('a cache in a file')
  data = _indexed(interp, inputs[0], 'a cache')
  return [dataclasses.replace(_kept(interp, data), again=None)]


def _filter(interp, node, inputs):
  others, name = inputs[1:], node.attr['predicate'].func.name

  def keep(element):
    return interp.call(name, [*element, *others])[0]

  def transform(source):
    data = _kept(interp, source)  # Else what is kept is not what was asked about.
    if data.bound is None:
      raise NotLowered('a filter of a data set without an end')
    asks_anew, _ = _drawn(interp, lambda: keep(data.get(tf.constant(0))))
    is_new = asks_anew or data is not source or source.again is not None
    room = data.bound + 1

    def again():
      return transform(source if source.again is None else source.again())

    def body(i, kept, order):
      # What is not kept is overwritten by the next.
      order = tf.tensor_scatter_nd_update(order, [[kept]], [i])
      is_kept = tf.reshape(keep(data.get(i)), [])
      return i + 1, kept + tf.cast(is_kept, tf.int32), order

    _, kept, order = interp.while_loop(
      lambda i, *_: i < data.count,
      body,
      [tf.constant(0), tf.constant(0), tf.zeros([room], tf.int32)],
    )
    found = data.reindexed(
      lambda i: tf.gather(order, i),
      count=kept,
      bound=data.bound,
      again=again if is_new else None,
    )
    return dataclasses.replace(found, is_counted=False)

  return [transform(_indexed(interp, inputs[0], 'filter'))]


def _batch(interp, node, inputs):
  size = tf.get_static_value(inputs[1])
  drop = tf.get_static_value(inputs[-1])
  if size is None or drop is None:
    raise NotLowered('a batch whose size is not a constant')

  def transform(data):
    if data.get_many is None:
      raise NotLowered('a batch of elements whose shapes vary')
    rows = int(size) if data.bound is None or drop else min(int(size), max(1, data.bound))
    batches = data.count // rows if drop else _in_parts(data.count, rows)
    bound = None if data.bound is None else -(-data.bound // rows)
    if not drop:
      interp.session.bounds.add(rows)

    def get(index):
      positions = tf.clip_by_value(index * rows + tf.range(rows), 0, data.count - 1)
      element = data.get_many(positions)
      if drop or interp.session.assume_full:
        return element
      number = tf.clip_by_value(data.count - index * rows, 0, rows)
      return [interpreter.set_dynamic_size(leaf, 0, number) for leaf in element]

    return _Indexed(
      count=batches,
      bound=bound,
      get=get,
      get_many=None,
      full=None if drop else lambda index: (index + 1) * rows <= data.count,
      again=_again(data, transform),
      is_counted=data.is_counted,
    )

  return [transform(_indexed(interp, inputs[0], 'batch'))]


def _repeat(interp, node, inputs):
  del node
  number = tf.get_static_value(inputs[1])
  data = _indexed(interp, inputs[0], 'repeat')
  if data.again is not None:
    return [_repeat_anew(interp, data, number)]
  if number is None:
    times = tf.cast(tf.minimum(inputs[1], _ENDLESS), tf.int32)
    count = tf.where(times < 0, tf.where(data.count > 0, _ENDLESS, 0), _times(data.count, times))
    bound = None
  elif number < 0:
    count, bound = tf.where(data.count > 0, _ENDLESS, 0), None
  else:
    times = min(int(number), _ENDLESS)
    count = _times(data.count, times)
    bound = None if data.bound is None or data.bound * times >= _ENDLESS else data.bound * times
  return [data.reindexed(lambda i: i % tf.maximum(1, data.count), count=count, bound=bound)]


def _repeat_anew(interp, data: _Indexed, number) -> _Indexed:
  """Epochs of a data set that is another one at each iteration."""
  if number is None or not 0 <= number <= _MOST_EPOCHS:
    raise NotLowered(f'a shuffle that is repeated more than {_MOST_EPOCHS} times, or endlessly')
  assert data.again is not None and data.bound is not None
  epochs = [data, *(data.again() for _ in range(int(number) - 1))][: int(number)]
  joined: Any = None
  for epoch in epochs:
    joined = epoch if joined is None else _concatenated(interp, joined, epoch)
  return joined if joined is not None else dataclasses.replace(data, count=tf.constant(0), bound=0)


def _concatenated(interp, first: _Indexed, second: _Indexed) -> _Indexed:
  if first.bound is None:
    raise NotLowered('what follows a data set without an end')

  def choose(index, of_first, of_second):
    return interp.cond(
      index < first.count, lambda: of_first(index), lambda: of_second(index - first.count)
    )

  many_of_first: Any = first.get_many
  many_of_second: Any = second.get_many

  def of_many(indices):
    pairs = zip(
      many_of_first(indices),
      many_of_second(tf.maximum(indices - first.count, 0)),
      strict=True,
    )
    is_first = indices < first.count
    return [tf.where(tf.reshape(is_first, [-1] + [1] * (a.shape.rank - 1)), a, b) for a, b in pairs]

  def is_full(data, index):
    return tf.constant(True) if data.full is None else data.full(index)

  full = None
  if first.full is not None or second.full is not None:

    def full(index):
      return tf.where(
        index < first.count,
        is_full(first, index),
        is_full(second, tf.maximum(index - first.count, 0)),
      )

  stackable = first.get_many is not None and second.get_many is not None
  again = None
  if first.again is not None or second.again is not None:

    def again():
      parts = [part.again() if part.again is not None else part for part in (first, second)]
      return _concatenated(interp, *parts)

  return _Indexed(
    count=first.count + second.count,
    bound=None if second.bound is None else first.bound + second.bound,
    get=lambda index: choose(index, first.get, second.get),
    get_many=of_many if stackable else None,
    full=full,
    again=again,
    is_counted=first.is_counted and second.is_counted,
  )


def _concatenate(interp, node, inputs):
  del node
  first, second = (_indexed(interp, i, 'concatenate') for i in inputs)
  return [_concatenated(interp, first, second)]


def _zip(interp, node, inputs):
  del node

  def transform(parts):
    counts = [p.count for p in parts]
    bounds = [p.bound for p in parts if p.bound is not None]

    def every(name, index):
      return [leaf for p in parts for leaf in getattr(p, name)(index)]

    full = None
    partial = [p.full for p in parts if p.full is not None]
    if partial:

      def full(index):
        return tf.reduce_all([f(index) for f in partial])

    again = None
    if any(p.again is not None for p in parts):

      def again():
        return transform([p if p.again is None else p.again() for p in parts])

    return _Indexed(
      count=tf.reduce_min(counts),
      bound=min(bounds) if bounds else None,
      get=lambda index: every('get', index),
      get_many=(None if any(p.get_many is None for p in parts) else lambda i: every('get_many', i)),
      full=full,
      again=again,
      is_counted=all(p.is_counted for p in parts),
    )

  return [transform([_indexed(interp, i, 'zip') for i in inputs])]


def _shuffle(interp, node, inputs):
  size = tf.get_static_value(inputs[1])
  reshuffled = True
  if 'reshuffle_each_iteration' in node.attr:
    reshuffled = node.attr['reshuffle_each_iteration'].b
  seeds = [tf.get_static_value(i) for i in inputs[2:4] if tf.is_tensor(i)]
  if size is None:
    raise NotLowered('a shuffle whose buffer is not a constant')

  def draw():
    number = interp.session.next_draw()
    if len(seeds) < 2 or None in seeds or not any(seeds):
      return random_streams.fold_in(interp.scope.key(), number)
    return random_streams.fold_in(interp.scope.seeded_key(*map(int, seeds)), number)

  def transform(data):
    if data.bound is None:
      raise NotLowered('a shuffle of a data set without an end')
    bound = max(1, data.bound)  # XLA refuses to look up an order that is empty.
    if size < 0 or size >= bound:
      order = random_ops.permutation(draw(), bound, data.count)
    else:
      order = _through_buffer(draw(), int(size), bound, data.count)

    def again():
      return transform(data if data.again is None else data.again())

    return data.reindexed(
      lambda i: tf.gather(order, i),
      count=data.count,
      bound=bound,
      again=again if reshuffled or data.again is not None else None,
    )

  return [transform(_indexed(interp, inputs[0], 'shuffle'))]


def _through_buffer(key, size: int, bound: int, count) -> tf.Tensor:
  """The order in which elements leave a shuffle buffer that is smaller than the data set.

  A uniform slot of the buffer leaves and is filled by the next element; at the end, the
  buffer shrinks: the last slot fills the one that left.
  """
  raw = random_streams.bits(key, [bound])

  def body(i, buffer, order):
    filled = tf.minimum(size, count - i)
    slot = tf.cast(raw[i] % tf.cast(tf.maximum(filled, 1), tf.uint32), tf.int32)
    order = tf.tensor_scatter_nd_update(order, [[i]], [buffer[slot]])
    last = tf.gather(buffer, tf.maximum(filled - 1, 0))
    following = tf.where(i + size < count, i + size, last)
    return i + 1, tf.tensor_scatter_nd_update(buffer, [[slot]], [following]), order

  start = [tf.constant(0), tf.range(size), tf.range(bound)]
  return tf.while_loop(lambda i, *_: i < count, body, start)[2]


def _scan(interp, node, inputs):
  number = len(node.attr['Tstate'].list.type)
  data, start, others = inputs[0], inputs[1 : 1 + number], inputs[1 + number :]
  name = node.attr['f'].func.name

  def function(state, element):
    outputs = interp.call(name, [*state, *element, *others])
    return outputs[:number], outputs[number:]

  return [_stream(data, datasets.Step(kind='scan', function=function, start=tuple(start)))]


def _take_while(interp, node, inputs):
  data, others = inputs[0], inputs[1:]
  name = node.attr['predicate'].func.name

  def function(element):
    return tf.reshape(interp.call(name, [*element, *others])[0], [])

  return [_stream(data, datasets.Step(kind='take_while', function=function))]


def _stream(data, step: datasets.Step) -> datasets.Stream:
  if isinstance(data, datasets.Stream):
    return dataclasses.replace(data, steps=(*data.steps, step))
  return datasets.Stream(source=data, steps=(step,))


def _reduce(interp, node, inputs):
  number = len(node.attr['Tstate'].list.type)
  data, start, others = inputs[0], inputs[1 : 1 + number], inputs[1 + number :]
  name = node.attr['f'].func.name
  if any(isinstance(v, datasets.Held) for v in start):
    raise NotLowered('a reduction whose state is a data set, an iterator or a variable')

  def function(totals, element):
    return interp.call(name, [*totals, *element, *others])

  return reduced(interp, data, start, function)


def reduced(
  interp: _Interpreter, data: Any, start: Sequence[tf.Tensor], function: Any
) -> list[tf.Tensor]:
  """What a function makes of a total and each element in turn.

  Args:
    interp: the interpreter.
    data: the data set.
    start: the total's tensors before the first element.
    function: (total's tensors, element) -> total's tensors.
  """
  stream = data if isinstance(data, datasets.Stream) else datasets.Stream(source=data, steps=())
  source = _iterated(interp, stream.source)

  def push(k, element, states, totals):
    """(whether to go on, the steps' states, totals) after an element that reached step k."""
    if k == len(stream.steps):
      return [tf.constant(True), states, function(totals, element)]
    step = stream.steps[k]
    if step.kind == 'map':
      return push(k + 1, step.function(element), states, totals)
    if step.kind == 'scan':
      new, element = step.function(states[k], element)
      return push(k + 1, element, [*states[:k], list(new), *states[k + 1 :]], totals)
    predicate = step.function(element)
    if tf.get_static_value(predicate):
      return push(k + 1, element, states, totals)

    def go_on():
      return tf.nest.flatten(push(k + 1, element, states, totals))

    def stop():
      return tf.nest.flatten([tf.constant(False), states, totals])

    flat = interp.cond(predicate, go_on, stop)
    return tf.nest.pack_sequence_as([tf.constant(False), states, totals], flat)

  form: Any = [[list(s.start) for s in stream.steps], list(start)]

  def loop(*, limit, begin):
    def cond(i, going, *_):
      more = tf.logical_and(going, i < source.count)
      return more if limit is None else tf.logical_and(more, limit(i))

    def body(i, _, *flat):
      states, totals = tf.nest.pack_sequence_as(form, flat)
      going, *rest = push(0, source.get(i), states, totals)
      return [i + 1, going, *tf.nest.flatten(rest)]

    return interp.while_loop(cond, body, begin)

  begin = [tf.constant(0), tf.constant(True), *tf.nest.flatten(form)]
  if interp.scope.lanes > 1 and source.full is not None:
    full = source.full
    values = interp.in_two_phases(
      lambda values: loop(limit=full, begin=values),
      lambda values: loop(limit=None, begin=values),
      begin,
    )
  else:
    values = loop(limit=None, begin=begin)
  return list(tf.nest.pack_sequence_as(form, values[2:])[1])


# Iterators and optionals.


def _iterator(interp, node, inputs):
  del node, inputs
  iterator = datasets.Iterator()
  interp.state[iterator] = tf.constant(0)
  return [iterator]


def _make_iterator(interp, node, inputs):
  del node
  data, iterator = inputs
  iterator.data = _indexed(interp, data, 'an iterator')
  interp.state[iterator] = tf.constant(0)
  return []


def _next_as_optional(interp, node, inputs):
  del node
  (iterator,) = inputs
  data, index = iterator.data, interp.state[iterator]
  if data is None:
    raise NotLowered('an iterator that is read before its data set is known')
  iterator.pulls.append(interp.session.depth)
  interp.state[iterator] = tf.minimum(index + 1, data.count)
  return [datasets.Optional(has_value=index < data.count, value=lambda: data.get(index))]


def _no_next(interp, node, inputs):
  del interp, inputs
  raise NotLowered(f'the op {node.op}, which fails at the end of a data set')


def _cardinality(interp, node, inputs):
  del interp, node
  (data,) = inputs
  if not isinstance(data, _Indexed) or not data.is_counted or data.bound is None:
    raise NotLowered('the cardinality of a data set that is filtered, ends early or has no end')
  return [tf.cast(data.count, tf.int64)]


def _same(interp, node, inputs):
  del interp, node
  return inputs[:1]


def _seed(interp, node, inputs):
  del interp, inputs
  return [datasets.Seed()] * (2 if node.op == 'AnonymousSeedGenerator' else 1)


HANDLERS: dict[str, interpreter.Handler] = dict(
  AnonymousIterator=_iterator,
  AnonymousIteratorV2=lambda interp, node, inputs: [
    *_iterator(interp, node, inputs),
    datasets.Seed(),  # The deleter.
  ],
  AnonymousIteratorV3=_iterator,
  AnonymousSeedGenerator=_seed,
  AssertCardinalityDataset=_same,
  BatchDatasetV2=_batch,
  CacheDataset=_cache,
  CacheDatasetV2=_cache,
  ConcatenateDataset=_concatenate,
  DatasetCardinality=_cardinality,
  DatasetToSingleElement=_no_next,
  DeleteIterator=lambda interp, node, inputs: [],
  DeleteMemoryCache=lambda interp, node, inputs: [],
  DeleteSeedGenerator=lambda interp, node, inputs: [],
  DummyMemoryCache=_seed,
  DummySeedGenerator=_seed,
  FilterDataset=_filter,
  FinalizeDataset=_same,
  IteratorGetNext=_no_next,
  IteratorGetNextAsOptional=_next_as_optional,
  IteratorGetNextSync=_no_next,
  IteratorV2=_iterator,
  MakeIterator=_make_iterator,
  MapDataset=_map,
  ModelDataset=_same,
  OptionsDataset=_same,
  ParallelBatchDataset=_batch,
  ParallelMapDataset=_map,
  ParallelMapDatasetV2=_map,
  PrefetchDataset=_same,
  RangeDataset=_range,
  ReduceDataset=_reduce,
  RepeatDataset=_repeat,
  RewriteDataset=_same,
  ScanDataset=_scan,
  ShardDataset=_shard,
  ShuffleDataset=_shuffle,
  ShuffleDatasetV2=_shuffle,
  ShuffleDatasetV3=_shuffle,
  SkipDataset=_skip,
  TakeDataset=_take,
  TakeWhileDataset=_take_while,
  TensorDataset=_tensor,
  TensorSliceDataset=_tensor_slices,
  ZipDataset=_zip,
)
