"""Linear models: regression, support vector machine, softmax, one-versus-all."""

import math

import tensorflow as tf

from tff_models import model as model_lib


def build_linear(*, name, example_shape, num_outputs, objective, decode, bias=True):
  """A linear map of the flattened example, started at zero.

  Args:
    name: the model's name.
    example_shape: shape of one example; it is flattened.
    num_outputs: 1 gives outputs [B] (regression, binary), more gives [B, outputs].
    objective: `model_lib.Objective`.
    decode: x [B, ...] of the stored dtype -> float32.
    bias: whether there is an intercept.

  Returns:
    A `Model` with parameters `weights` [features, outputs] (or [features]) and
    `bias` [outputs] (or a scalar).
  """
  features = math.prod(example_shape)
  outputs_shape = [] if num_outputs == 1 else [num_outputs]

  def init(key):
    del key  # a convex problem starts at zero
    params = model_lib.Params(weights=tf.zeros([features, *outputs_shape]))
    if bias:
      params['bias'] = tf.zeros(outputs_shape)
    return params

  def predict(params, x):
    flat = tf.reshape(decode(x), [-1, features])
    if num_outputs == 1:
      outputs = tf.linalg.matvec(flat, params['weights'])
    else:
      outputs = tf.matmul(flat, params['weights'])
    return outputs + params['bias'] if bias else outputs

  return model_lib.Model(
    name=name,
    init=init,
    predict=predict,
    loss=objective.loss,
    metrics=objective.metrics,
    metric_names=objective.metric_names,
    convex=True,
    head=('weights', 'bias') if bias else ('weights',),
  )
