"""A Keras model as a model of this project: pure functions on explicit parameters."""

import contextlib
import dataclasses
import hashlib
import math
import threading
from collections.abc import Iterator

import tensorflow as tf

from tff_models import layers
from tff_models import model as model_lib
from tff_models.build import decoder


def from_keras(
  keras_model: tf.keras.Model,
  *,
  task_kind: str = 'classification',
  name: str | None = None,
  x_scale: float = 1.0,
  x_offset: float = 0.0,
) -> model_lib.Model:
  """A functional or sequential Keras model as pure functions.

  The model is copied, not changed. Its parameters are its trainable weights, and every run
  starts from the values that they have now, whatever its seed: pretrained ones, or those of
  `tf.keras.utils.set_random_seed`. Frozen weights stay as they are. Convolutions and pooling
  are those of `tff_models.layers` (patches times a matrix), recurrent layers are unrolled, and
  dropout takes the trainer's numbers.

  Args:
    keras_model: one input [B, ...] and one output: raw outputs (logits), without a softmax or
      sigmoid at the end: [B, classes], [B, 1] for one, [B, T, tokens] for 'next_word'.
    task_kind: 'regression', 'binary' (labels -1 and +1, hinge loss), 'classification',
      'multilabel' or 'next_word'; loss and metrics are those of the task.
    name: what reports call it; the Keras model's name if None.
    x_scale: the model sees float32(x) * x_scale + x_offset. Tokens are taken as they are.
    x_offset: see `x_scale`.

  Raises:
    ValueError: a layer with state (batch normalisation: its averages are no parameters and mix
      examples, which no per-example guarantee allows), with randomness other than dropout, with
      a loss of its own, or with weights out of reach; a subclassed model; several inputs or
      outputs; an output activation; an unknown task; when it is called, examples of another shape.
  """
  if task_kind not in model_lib.OBJECTIVES:
    allowed = ', '.join(model_lib.OBJECTIVES)
    raise ValueError(f'task_kind is {task_kind!r}; allowed: {allowed}.')
  _check(keras_model, task_kind)
  copy = tf.keras.models.clone_model(keras_model, clone_function=_clone)
  copy.set_weights(keras_model.get_weights())
  weights = copy.trainable_weights
  if not weights:
    raise ValueError(f'Keras model {copy.name}: it has no trainable weights.')
  names = _names(weights)
  start = [weight.numpy() for weight in weights]
  frozen = [(w, w.numpy()) for w in copy.weights if not any(w is own for own in weights)]
  decode = decoder(task_kind, x_scale, x_offset)

  def call(params, x, dropout):
    if not tf.TensorShape(x.shape)[1:].is_compatible_with(copy.input_shape[1:]):
      raise ValueError(
        f'Keras model {copy.name}: it takes examples of shape {copy.input_shape[1:]}, and the data '
        f'have {tuple(x.shape[1:])}.'
      )
    values = [(w, params[name]) for w, name in zip(weights, names, strict=True)]
    with _call_in_progress(copy, values + frozen, dropout):
      return copy(decode(x), training=False)

  def init(key):
    del key  # the Keras model's own values
    return model_lib.Params(
      (name, tf.constant(value)) for name, value in zip(names, start, strict=True)
    )

  def predict(params, x, draws=None):
    outputs = call(params, x, layers.Dropout(draws))
    return tf.reshape(outputs, [-1]) if task_kind in ('regression', 'binary') else outputs

  held = hashlib.sha256()
  for array in (*start, *(value for _, value in frozen)):
    held.update(repr((array.dtype.str, array.shape)).encode() + array.tobytes())
  model = model_lib.OBJECTIVES[task_kind]().model(
    name=name or keras_model.name,
    init=init,
    predict=predict,
    head=_head(copy, names, weights),
    draws=_trace(copy, call, init),
  )
  return dataclasses.replace(model, contents=held.hexdigest())


def _check(keras_model, task_kind: str) -> None:
  """Raises a ValueError that names the layer which cannot be turned into pure functions."""
  where = f'Keras model {keras_model.name}'
  models = [m for m in (keras_model, *keras_model.submodules) if isinstance(m, tf.keras.Model)]
  for model in models:
    if not model._is_graph_network:
      raise ValueError(
        f'{where}: {type(model).__name__} {model.name} is a subclassed model, or has no input '
        'shape yet; give a functional or sequential model with a tf.keras.Input.'
      )
  if len(keras_model.inputs) != 1 or len(keras_model.outputs) != 1:
    raise ValueError(f'{where}: it must have one input and one output.')
  if None in keras_model.input_shape[1:]:
    raise ValueError(f'{where}: its input {keras_model.input_shape} must have a fixed shape.')
  if keras_model.losses:
    raise ValueError(f'{where}: it has losses of its own (regularisers), which would be left out.')
  replaced = [layer for model in models for layer in model.layers]
  for layer in keras_model.submodules:
    if isinstance(layer, tf.keras.layers.Layer):
      _check_layer(where, layer, any(layer is other for other in replaced))
  _check_output(where, keras_model, task_kind)


def _check_layer(where: str, layer, is_replaced: bool) -> None:
  what = f'{where}: layer {layer.name} ({type(layer).__name__})'
  own = [value for value in vars(layer).values() if isinstance(value, tf.Variable)]
  if layer.trainable and any(not weight.trainable for weight in own):
    raise ValueError(
      f'{what} has state that training changes beside the gradient, such as batch '
      "normalisation's averages, which depends on other examples of a batch. Use group or layer "
      'normalisation, or freeze the layer (trainable = False) if its state is to stay.'
    )
  if getattr(layer, 'stateful', False):
    raise ValueError(f'{what} keeps its state from batch to batch; use stateful=False.')
  if any(getattr(weight, 'constraint', None) is not None for weight in own):
    raise ValueError(f'{what} has a constraint on its weights, which would be left out.')
  if layer.compute_dtype not in (None, 'float32'):
    raise ValueError(f'{what} computes in {layer.compute_dtype}; float32 is needed.')
  if not isinstance(layer, tf.keras.__internal__.layers.BaseRandomLayer):
    return
  if type(layer) is tf.keras.layers.Dropout and is_replaced and layer.noise_shape is None:
    return
  rates = [getattr(layer, name, None) for name in ('rate', 'dropout', 'recurrent_dropout')]
  if all(rate is None for rate in rates) or any(rates):
    raise ValueError(
      f'{what} draws random numbers of its own; the one random layer is Dropout, as a layer of '
      'the model and without a noise_shape.'
    )


def _check_output(where: str, keras_model, task_kind: str) -> None:
  rank = 3 if task_kind == 'next_word' else 2
  shape = keras_model.output_shape
  one_output = task_kind in ('regression', 'binary')
  if not (len(shape) == rank and (not one_output or shape[1] == 1)):
    expected = {True: '[B, 1]', False: '[B, T, tokens]' if rank == 3 else '[B, outputs]'}
    raise ValueError(
      f'{where}: its output has shape {shape}; a {task_kind} task needs {expected[one_output]}.'
    )
  last = keras_model
  while isinstance(last, tf.keras.Model | tf.keras.layers.Wrapper):
    last = last.outputs[0].node.layer if isinstance(last, tf.keras.Model) else last.layer
  functions = [getattr(last, name, None) for name in ('activation', 'function')]
  squashed = any(function in _SQUASHING for function in functions)
  if task_kind != 'regression' and (squashed or isinstance(last, tf.keras.layers.Softmax)):
    raise ValueError(
      f'{where}: layer {last.name} ends in a softmax or sigmoid; the loss takes raw outputs '
      '(logits), so leave it out.'
    )


_SQUASHING = (
  tf.keras.activations.softmax,
  tf.keras.activations.sigmoid,
  tf.nn.softmax,
  tf.nn.sigmoid,
)

# A copy's weights are exchanged for tensors while it is called, its dropout gets the call's
# numbers: one call at a time.
_LOCK = threading.RLock()
_DROPOUT: list[layers.Dropout] = []


@contextlib.contextmanager
def _call_in_progress(copy, values, dropout) -> Iterator[None]:
  """Inside, the copy's layers find tensors in the place of their variables."""
  value_of = {id(weight): value for weight, value in values}
  with _LOCK:
    exchanged = []
    for module in (copy, *copy.submodules):
      for name, old in list(vars(module).items()):
        if id(old) in value_of:
          exchanged.append((module, name, old))
          # Keras would track what is set the usual way.
          vars(module)[name] = tf.convert_to_tensor(value_of[id(old)])
    _DROPOUT.append(dropout)
    try:
      yield
    finally:
      _DROPOUT.pop()
      for module, name, old in exchanged:
        vars(module)[name] = old


class _CountingDropout(layers.Dropout):
  """Counts the numbers that one example needs."""

  def __init__(self):
    super().__init__(None)

  def __call__(self, x, rate: float):
    self.used += math.prod(x.shape[1:]) if rate else 0
    return x


def _trace(copy, call, init) -> int:
  """How many numbers dropout needs; raises a ValueError if a weight is out of reach."""
  counter = _CountingDropout()
  spec = tf.TensorSpec([1, *copy.input_shape[1:]], copy.inputs[0].dtype)
  traced = tf.function(lambda params, x: call(params, x, counter)).get_concrete_function(
    init(None), spec
  )
  if traced.variables:
    names = ', '.join(variable.name for variable in traced.variables)
    raise ValueError(
      f'Keras model {copy.name}: the weights {names} are not attributes of their layers, or '
      'are used in another way than by them, and cannot be made parameters.'
    )
  return counter.used


def _names(weights) -> list[str]:
  """dense/kernel:0 -> dense_kernel, numbered where it is not unique."""
  names = [weight.name.partition(':')[0].replace('/', '_') for weight in weights]
  if len(set(names)) < len(names):
    return [f'{name}_{i}' for i, name in enumerate(names)]
  return names


def _head(copy, names, weights) -> tuple[str, ...]:
  """The weights of the layer that has the last one."""
  for module in copy.submodules:
    own = [id(value) for value in vars(module).values()]
    if id(weights[-1]) in own:
      return tuple(n for n, w in zip(names, weights, strict=True) if id(w) in own)
  return (names[-1],)


class _Dropout(tf.keras.layers.Dropout):
  """Dropout from the numbers of the call in progress."""

  def call(self, inputs, training=None):
    # Keras calls it while it builds the copy, too.
    return _DROPOUT[-1](inputs, self.rate) if _DROPOUT else inputs


class _Conv2D(tf.keras.layers.Conv2D):
  """A convolution as patches times a matrix."""

  def convolution_op(self, inputs, kernel):
    size, _, depth, filters = kernel.shape
    return layers.conv2d(
      inputs,
      tf.reshape(kernel, [size * size * depth, filters]),
      size=size,
      stride=self.strides[0],
      padding=self.padding.upper(),
    )


class _MaxPooling2D(tf.keras.layers.MaxPooling2D):
  """Pooling as a maximum of slices."""

  def call(self, inputs):
    return layers.max_pool(
      inputs, size=self.pool_size[0], stride=self.strides[0], padding=self.padding.upper()
    )


class _LayerNormalization(tf.keras.layers.LayerNormalization):
  """Normalisation by ordinary arithmetic, which vectorises, instead of a fused kernel."""

  def build(self, input_shape):
    super().build(input_shape)
    self._fused = False


def _clone(layer):
  """What takes the place of a layer in the copy."""
  if isinstance(layer, tf.keras.Model):
    return tf.keras.models.clone_model(layer, clone_function=_clone)
  config, kind = layer.get_config(), type(layer)
  if kind is tf.keras.layers.Dropout:  # exactly: a subclass may do something else
    return _Dropout.from_config(config)
  if kind is tf.keras.layers.LayerNormalization:
    return _LayerNormalization.from_config(config)
  if kind is tf.keras.layers.Conv2D and (
    _is_square(layer, 'kernel_size') and layer.dilation_rate == (1, 1) and layer.groups == 1
  ):
    return _Conv2D.from_config(config)
  if kind is tf.keras.layers.MaxPooling2D and _is_square(layer, 'pool_size'):
    return _MaxPooling2D.from_config(config)
  if isinstance(layer, tf.keras.layers.RNN):
    config['unroll'] = True
  return kind.from_config(config)


def _is_square(layer, size: str) -> bool:
  sides = (getattr(layer, size), layer.strides)
  return all(a == b for a, b in sides) and layer.data_format == 'channels_last'
