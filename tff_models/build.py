"""Builds a model by name for a task."""

import tensorflow as tf

from tff_models import linear, neural
from tff_models import model as model_lib
from tff_models.registry import MODELS

_DTYPES = {'float32': tf.float32, 'bfloat16': tf.bfloat16}


def build_model(
  name: str,
  *,
  example_shape: tuple[int, ...],
  num_outputs: int,
  task_kind: str,
  x_scale: float = 1.0,
  x_offset: float = 0.0,
  **options,
) -> model_lib.Model:
  """Builds a registered model.

  Args:
    name: one of `tff_models.MODELS`.
    example_shape: shape of one example.
    num_outputs: outputs: 1, the number of classes, or of tags.
    task_kind: 'regression', 'binary', 'classification' or 'multilabel'.
    x_scale: the model sees float32(x) * x_scale + x_offset, so that images can be
      stored as bytes.
    x_offset: see `x_scale`.
    **options: the model's own options (`MODELS[name].options`).

  Raises:
    ValueError: an unknown model, a task that it does not serve, or an option that
      it does not have.
  """
  if name not in MODELS:
    raise ValueError(f'--model={name} is unknown; use one of {", ".join(sorted(MODELS))}.')
  entry = MODELS[name]
  if task_kind not in entry.tasks:
    fitting = ', '.join(sorted(m.name for m in MODELS.values() if task_kind in m.tasks))
    raise ValueError(f'--model={name} does not serve a {task_kind} task; use one of {fitting}.')
  unknown = sorted(set(options) - set(entry.options))
  if unknown:
    raise ValueError(
      f'--model={name} has no option {", ".join(unknown)}; '
      f'it has {", ".join(entry.options) or "none"}.'
    )

  def decode(x):
    x = tf.cast(x, tf.float32)
    if x_scale != 1.0:
      x = x * x_scale
    return x + x_offset if x_offset else x

  common = dict(example_shape=tuple(example_shape), num_outputs=num_outputs, decode=decode)
  objective = {
    'regression': model_lib.squared_error,
    'binary': model_lib.logistic if name == 'logistic_regression' else model_lib.hinge,
    'classification': model_lib.cross_entropy,
    'multilabel': model_lib.multilabel,
  }[task_kind]()
  if name == 'one_versus_all':
    return linear.build_linear(
      name=name, objective=model_lib.one_versus_all(), bias=False, **common
    )
  if name == 'linear_regression':
    bias = options.get('bias', True)
    if not isinstance(bias, bool):
      raise ValueError(f'bias={bias} must be true or false.')
    return linear.build_linear(name=name, objective=objective, bias=bias, **common)
  if name in ('linear_svm', 'logistic_regression', 'softmax'):
    return linear.build_linear(name=name, objective=objective, **common)
  if name == 'one_hidden_layer':
    hidden_units = int(options.get('hidden_units', 50))
    if hidden_units < 1:
      raise ValueError(f'hidden_units={hidden_units} must be at least 1.')
    return neural.build_one_hidden_layer(objective=objective, hidden_units=hidden_units, **common)
  if name == 'ppsgd_cnn':
    return neural.build_ppsgd_cnn(objective=model_lib.one_versus_all(mean=True), **common)
  dtype_name = options.get('compute_dtype', 'float32')
  if dtype_name not in _DTYPES:
    raise ValueError(f'compute_dtype={dtype_name} must be one of {", ".join(_DTYPES)}.')
  return neural.build_cnn(
    name=name,
    objective=objective,
    filter_size=5 if name == 'cnn5x5' else 3,
    hidden_units=128 if name == 'femnist_cnn' else 0,
    compute_dtype=_DTYPES[dtype_name],
    **common,
  )
