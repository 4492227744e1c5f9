"""Variables: a value in the interpreter's state, made anew for each client."""

from typing import Any

import tensorflow as tf

from runtime.xla import philox
from runtime.xla.lowering import datasets, interpreter

_Interpreter = interpreter.Interpreter
NotLowered = datasets.NotLowered


def _handle(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del inputs
  name = node.attr['shared_name'].s.decode() or node.name
  if name not in interp.variables:
    interp.variables[name] = datasets.Variable(
      name=name,
      dtype=tf.as_dtype(node.attr['dtype'].type),
      shape=tf.TensorShape(node.attr['shape'].shape),
    )
  return [interp.variables[name]]


def _value(interp: _Interpreter, variable: Any) -> tf.Tensor:
  if not isinstance(variable, datasets.Variable):
    raise NotLowered('a resource that is not a variable, such as a lookup table')
  if variable not in interp.state:
    raise NotLowered(f'the variable {variable.name}, read before it is initialised')
  value = interp.state[variable]
  if isinstance(value, datasets.Unmade):
    raise NotLowered(value.reason)
  return value


def _set(interp: _Interpreter, variable: Any, value: tf.Tensor) -> None:
  if not isinstance(variable, datasets.Variable):
    raise NotLowered('a resource that is not a variable, such as a lookup table')
  if not isinstance(value, datasets.Unmade):
    value = tf.identity(value)
    if variable.shape.is_compatible_with(value.shape):
      value.set_shape(variable.shape)
  interp.state[variable] = value


def _assign(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del node
  _set(interp, *inputs[:2])
  return []


def _update(compute):
  """An op that sets a variable to a function of its value and the op's other inputs."""

  def handler(interp, node, inputs):
    _set(interp, inputs[0], compute(_value(interp, inputs[0]), *inputs[1:]))
    return []

  return handler


def _scatter(compute):
  """An op on rows of a variable; `compute` is TensorFlow's op on a tensor."""

  def on_rows(value, indices, updates):
    shape = tf.concat([tf.shape(indices), tf.shape(value)[1:]], axis=0)
    # A scalar update is for all rows.
    return compute(value, indices[..., tf.newaxis], tf.broadcast_to(updates, shape))

  return _update(on_rows)


def _gather(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  batch_dims = node.attr['batch_dims'].i
  return [tf.gather(_value(interp, inputs[0]), inputs[1], batch_dims=batch_dims, axis=batch_dims)]


def _read_and_skip(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  """A `tf.random.Generator` gives its state and goes on by a number of draws."""
  del node
  variable, algorithm, delta = inputs
  if tf.get_static_value(algorithm) not in philox.ALGORITHMS:
    raise NotLowered('a random generator that is not Philox')
  before = _value(interp, variable)
  # Philox: a counter of 128 bits, and the key; a draw takes 256 of the counter.
  words = tf.bitcast(before, tf.uint64)
  low = words[0] + tf.cast(delta, tf.uint64) * tf.constant(256, tf.uint64)
  high = words[1] + tf.cast(low < words[0], tf.uint64)
  after = tf.bitcast(tf.stack([low, high, *tf.unstack(words[2:])]), tf.int64)
  _set(interp, variable, after)
  return [before]


def _apply_adagrad(interp, node, inputs):
  variable, accumulator, rate, *epsilon, slope = inputs
  total = _value(interp, accumulator)
  if node.attr['update_slots'].b or 'update_slots' not in node.attr:
    total += slope * slope
  root = tf.sqrt(total) + (epsilon[0] if epsilon else 0.0)
  _set(interp, accumulator, total)
  _set(interp, variable, _value(interp, variable) - rate * slope / root)
  return []


def _apply_adam(interp, node, inputs):
  variable, m, v, power1, power2, rate, beta1, beta2, epsilon, slope = inputs
  first = _value(interp, m) + (slope - _value(interp, m)) * (1 - beta1)
  second = _value(interp, v) + (slope * slope - _value(interp, v)) * (1 - beta2)
  rate *= tf.sqrt(1 - power2) / (1 - power1)
  step = first * beta1 + (1 - beta1) * slope if node.attr['use_nesterov'].b else first
  _set(interp, m, first)
  _set(interp, v, second)
  _set(interp, variable, _value(interp, variable) - rate * step / (tf.sqrt(second) + epsilon))
  return []


def _apply_momentum(interp, node, inputs):
  variable, accumulator, rate, slope, momentum = inputs
  total = _value(interp, accumulator) * momentum + slope
  step = slope + total * momentum if node.attr['use_nesterov'].b else total
  _set(interp, accumulator, total)
  _set(interp, variable, _value(interp, variable) - rate * step)
  return []


def _apply_keras_momentum(interp, node, inputs):
  variable, accumulator, rate, slope, momentum = inputs
  total = _value(interp, accumulator) * momentum - rate * slope
  step = total * momentum - rate * slope if node.attr['use_nesterov'].b else total
  _set(interp, accumulator, total)
  _set(interp, variable, _value(interp, variable) + step)
  return []


def _apply_rms_prop(interp, node, inputs):
  del node
  variable, ms, mom, rate, rho, momentum, epsilon, slope = inputs
  square = _value(interp, ms) + (slope * slope - _value(interp, ms)) * (1 - rho)
  step = _value(interp, mom) * momentum + slope * rate / tf.sqrt(square + epsilon)
  _set(interp, ms, square)
  _set(interp, mom, step)
  _set(interp, variable, _value(interp, variable) - step)
  return []


def _variable_shape(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  dtype = tf.as_dtype(node.attr['out_type'].type or tf.int32)
  return [tf.shape(_value(interp, inputs[0]), out_type=dtype)]


HANDLERS: dict[str, interpreter.Handler] = dict(
  AssignAddVariableOp=_update(lambda value, x: value + x),
  AssignSubVariableOp=_update(lambda value, x: value - x),
  AssignVariableOp=_assign,
  DestroyResourceOp=lambda interp, node, inputs: [],
  ReadVariableOp=lambda interp, node, inputs: [_value(interp, inputs[0])],
  ResourceApplyAdagrad=_apply_adagrad,
  ResourceApplyAdagradV2=_apply_adagrad,
  ResourceApplyAdam=_apply_adam,
  ResourceApplyGradientDescent=_update(lambda value, rate, slope: value - rate * slope),
  ResourceApplyKerasMomentum=_apply_keras_momentum,
  ResourceApplyMomentum=_apply_momentum,
  ResourceApplyRMSProp=_apply_rms_prop,
  ResourceGather=_gather,
  ResourceGatherNd=lambda interp, node, inputs: [
    tf.gather_nd(_value(interp, inputs[0]), inputs[1])
  ],
  ResourceScatterAdd=_scatter(tf.tensor_scatter_nd_add),
  ResourceScatterMax=_scatter(tf.tensor_scatter_nd_max),
  ResourceScatterMin=_scatter(tf.tensor_scatter_nd_min),
  ResourceScatterNdAdd=_update(tf.tensor_scatter_nd_add),
  ResourceScatterNdSub=_update(tf.tensor_scatter_nd_sub),
  ResourceScatterNdUpdate=_update(tf.tensor_scatter_nd_update),
  ResourceScatterSub=_scatter(tf.tensor_scatter_nd_sub),
  ResourceScatterUpdate=_scatter(tf.tensor_scatter_nd_update),
  RngReadAndSkip=_read_and_skip,
  VarHandleOp=_handle,
  VarIsInitializedOp=lambda interp, node, inputs: [tf.constant(inputs[0] in interp.state)],
  VariableShape=_variable_shape,
)
