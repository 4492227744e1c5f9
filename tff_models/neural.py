"""Small networks: one hidden layer, and convolution networks of two layers."""

import itertools
import math

import tensorflow as tf

from runtime import random_streams
from tff_models import layers
from tff_models import model as model_lib


def build_one_hidden_layer(*, example_shape, num_outputs, objective, decode, hidden_units=50):
  """One hidden relu layer: the FeO2 paper's '1-layer NN' (section 5).

  Parameters: `hidden_weights` [features, hidden], `hidden_bias`, `output_weights`
  [hidden, outputs], `output_bias`; outputs [B] if there is one.
  """
  features = math.prod(example_shape)

  def init(key):
    return model_lib.Params(
      hidden_weights=layers.dense_init(random_streams.fold_in(key, 0), features, hidden_units),
      hidden_bias=tf.zeros([hidden_units]),
      output_weights=layers.dense_init(random_streams.fold_in(key, 1), hidden_units, num_outputs),
      output_bias=tf.zeros([num_outputs]),
    )

  def predict(params, x):
    flat = tf.reshape(decode(x), [-1, features])
    hidden = tf.nn.relu(tf.matmul(flat, params['hidden_weights']) + params['hidden_bias'])
    outputs = tf.matmul(hidden, params['output_weights']) + params['output_bias']
    return outputs[:, 0] if num_outputs == 1 else outputs

  return _model(
    'one_hidden_layer', init, predict, objective, head=('output_weights', 'output_bias')
  )


def build_cnn(
  *,
  name,
  example_shape,
  num_outputs,
  objective,
  decode,
  filter_size=3,
  channels=(32, 64),
  hidden_units=0,
  compute_dtype=tf.float32,
):
  """Convolutions with relu and 2x2 max-pooling, then a dense layer.

  The cross-silo paper's network has 3x3 filters of 32 and 64 channels, no padding
  and no hidden dense layer (5x5 and one output for ADNI). With `hidden_units` a
  dense relu layer stands before the output.

  Args:
    name: the model's name.
    example_shape: (H, W, C) or (H, W).
    num_outputs: outputs of the last layer; 1 gives outputs [B].
    objective: `model_lib.Objective`.
    decode: x of the stored dtype -> float32.
    filter_size: side of the square filters.
    channels: filters of each convolution.
    hidden_units: units of the dense hidden layer, 0 for none.
    compute_dtype: dtype of the convolutions' products; parameters stay float32.
  """
  height, width = example_shape[:2]
  depth = example_shape[2] if len(example_shape) == 3 else 1
  sides = [height, width]
  for _ in channels:
    sides = [layers.conv_output_size(side, filter_size=filter_size) // 2 for side in sides]
  if min(sides) < 1:
    raise ValueError(
      f'--model={name} needs larger images: {len(channels)} convolutions of '
      f'{filter_size}x{filter_size} with pooling leave nothing of {height}x{width} pixels.'
    )
  flat_size = sides[0] * sides[1] * channels[-1]
  dense_sizes = [flat_size, *([hidden_units] if hidden_units else []), num_outputs]

  def init(key):
    params = model_lib.Params()
    inputs = depth
    for i, outputs in enumerate(channels):
      params[f'conv{i}_weights'] = layers.conv_init(
        random_streams.fold_in(key, i), filter_size, inputs, outputs
      )
      params[f'conv{i}_bias'] = tf.zeros([outputs])
      inputs = outputs
    for i, (inputs, outputs) in enumerate(itertools.pairwise(dense_sizes)):
      params[f'dense{i}_weights'] = layers.dense_init(
        random_streams.fold_in(key, 100 + i), inputs, outputs
      )
      params[f'dense{i}_bias'] = tf.zeros([outputs])
    return params

  def predict(params, x):
    hidden = tf.reshape(decode(x), [-1, height, width, depth])
    for i in range(len(channels)):
      hidden = layers.conv2d(
        hidden, params[f'conv{i}_weights'], size=filter_size, dtype=compute_dtype
      )
      # Bias, relu and max commute; pooling first leaves a quarter of the work.
      hidden = tf.nn.relu(layers.max_pool(hidden) + params[f'conv{i}_bias'])
    hidden = tf.reshape(hidden, [-1, flat_size])
    for i in range(len(dense_sizes) - 1):
      if i > 0:
        hidden = tf.nn.relu(hidden)
      hidden = tf.matmul(hidden, params[f'dense{i}_weights']) + params[f'dense{i}_bias']
    return hidden[:, 0] if num_outputs == 1 else hidden

  last = f'dense{len(dense_sizes) - 2}'
  return _model(name, init, predict, objective, head=(f'{last}_weights', f'{last}_bias'))


def build_ppsgd_cnn(*, example_shape, num_outputs, objective, decode):
  """The PPSGD paper's network of four layers (section 6; sizes from its experiments).

  Convolution of 16 8x8 filters, stride 2, same padding; relu; 2x2 max-pooling, stride 1;
  convolution of 32 4x4 filters, stride 2, no padding; relu; 2x2 max-pooling, stride 1;
  dense layer of 32 units; relu: the shared representation Phi_W. Then a linear output
  without bias, the `head`, which is w + theta_i in the paper.
  """
  height, width = example_shape[:2]
  depth = example_shape[2] if len(example_shape) == 3 else 1
  filters = (('conv0', 8, 16, 'SAME'), ('conv1', 4, 32, 'VALID'))
  sides = [height, width]
  for _, size, _, padding in filters:
    sides = [
      layers.conv_output_size(side, filter_size=size, stride=2, padding=padding) - 1
      for side in sides
    ]
  if min(sides) < 1:
    raise ValueError(
      f'--model=ppsgd_cnn needs larger images: its convolutions and poolings leave nothing '
      f'of {height}x{width} pixels.'
    )
  flat_size, hidden_units = sides[0] * sides[1] * 32, 32

  def init(key):
    params = model_lib.Params()
    inputs = depth
    for i, (name, size, outputs, _) in enumerate(filters):
      params[f'{name}_weights'] = layers.conv_init(
        random_streams.fold_in(key, i), size, inputs, outputs
      )
      params[f'{name}_bias'] = tf.zeros([outputs])
      inputs = outputs
    params['dense_weights'] = layers.dense_init(
      random_streams.fold_in(key, 2), flat_size, hidden_units
    )
    params['dense_bias'] = tf.zeros([hidden_units])
    params['output_weights'] = layers.dense_init(
      random_streams.fold_in(key, 3), hidden_units, num_outputs
    )
    return params

  def predict(params, x):
    hidden = tf.reshape(decode(x), [-1, height, width, depth])
    for name, size, _, padding in filters:
      weights, bias = params[f'{name}_weights'], params[f'{name}_bias']
      hidden = layers.conv2d(hidden, weights, size=size, stride=2, padding=padding)
      hidden = tf.nn.relu(layers.max_pool(hidden, stride=1) + bias)
    hidden = tf.reshape(hidden, [-1, flat_size])
    features = tf.nn.relu(tf.matmul(hidden, params['dense_weights']) + params['dense_bias'])
    outputs = tf.matmul(features, params['output_weights'])
    return outputs[:, 0] if num_outputs == 1 else outputs

  return _model('ppsgd_cnn', init, predict, objective, head=('output_weights',))


def _model(name, init, predict, objective, *, head):
  return model_lib.Model(
    name=name,
    init=init,
    predict=predict,
    loss=objective.loss,
    metrics=objective.metrics,
    metric_names=objective.metric_names,
    convex=False,
    head=head,
  )
