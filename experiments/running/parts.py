"""Parts of a run that a user brings: data, a model, metrics, callbacks.

Importing this module does not import TensorFlow.
"""

import collections
import contextlib
import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tff_models
from experiments.config import user_files
from experiments.config.experiment import ExperimentConfig
from settings import show

if TYPE_CHECKING:
  import datasets
  from tff_models.model import Model

# (outputs [B, ...], labels [B, ...]) -> a value for each example [B], whose mean is the metric
Metric = Callable[[Any, Any], Any]
# configuration of a run of a sweep -> the callbacks of that run
CallbacksOf = Callable[[ExperimentConfig], Sequence['Callback']]


def no_callbacks(config: ExperimentConfig) -> Sequence['Callback']:
  """Nobody is told."""
  del config
  return ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
  """What takes the place of, or comes to, what a configuration names.

  Attributes:
    dataset: the data; every seed of a sweep has the same.
    model: a `tff_models.model.Model`, whose `predict` gets features in the data set's scale; a
      Keras model as it is (`tff_models.from_keras`); or a function `build(task, **options)` which
      gives one of the two, as that of a user's file does. `task` is a `datasets.Task`.
    metrics: further metrics by name.
    callbacks: of a sweep, from a run's configuration to that run's callbacks.
  """

  dataset: 'datasets.FederatedDataset | None' = None
  model: Any = None
  metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
  callbacks: CallbacksOf = no_callbacks

  def __post_init__(self):
    what = 'a function (outputs, labels) -> a value for each example'
    if not isinstance(self.metrics, Mapping):
      kind = type(self.metrics).__name__
      raise ValueError(f'metrics is a {kind}; give a mapping from a name to {what}.')
    for name, metric in self.metrics.items():
      if not callable(metric):
        raise ValueError(f'the metric {name!r} is {metric!r}; give {what}.')

  @property
  def given(self) -> bool:
    """Whether there are any."""
    own_callbacks = self.callbacks is not no_callbacks
    return self.dataset is not None or self.model is not None or bool(self.metrics) or own_callbacks


class Callback:
  """Is told how a run goes on: derive from it, and give it to `run(..., callbacks=[...])`.

  In a sweep every run has its own: `sweep.run(..., callbacks=lambda config: [...])`. Its runs go on
  side by side, and each is told of by itself; a run that is finished already, in a sweep that is
  continued, is not told of again.

  All values are exact, for the eyes of a simulation: only a method's `released_metrics` are
  private releases. What a callback raises ends the run, or the runs of a sweep's program.
  """

  def after_round(self, round_: int, metrics: Mapping[str, float]) -> None:
    """After each round, in their order; rounds are looked at together, several times a second.

    Args:
      round_: from 1.
      metrics: the round's own, such as `train_loss`.
    """

  def after_evaluation(self, round_: int, metrics: Mapping[str, float]) -> None:
    """After each evaluation: all metrics of all clients so far, such as `test_accuracy`."""

  def at_end(self, result: Any) -> None:
    """After the last round, with the `RunResult`."""


def model_of(
  config: ExperimentConfig, dataset: 'datasets.FederatedDataset', parts: Parts
) -> 'Model':
  """The model of a run, with the further metrics.

  Args:
    config: names the model, or the user's file, and further metrics.
    dataset: whose task it serves.
    parts: what takes their place.

  Raises:
    ValueError: an unknown model or option, a task that the model does not serve, or a metric whose
      name is taken.
  """
  metrics = dict(parts.metrics)
  for text in config.metric:
    name = text.rpartition(':')[2]
    if name in metrics:
      raise ValueError(f'--metric={text}: there is a metric {name} already.')
    metrics[name] = user_files.function('metric', text)
  model = _with_metrics(_model(config, dataset, parts.model), metrics)
  if metrics:
    _check_values(model, metrics, dataset.task)
  return model


def _model(config, dataset, model) -> 'Model':
  import tensorflow as tf

  from tff_models.build import decoder
  from tff_models.model import Model

  task, scaling = dataset.task, dict(x_scale=dataset.x_scale, x_offset=dataset.x_offset)
  if model is None and config.model is not None and config.model not in tff_models.MODELS:
    model = user_files.function('model', config.model)
  if model is None:
    return tff_models.build_model(
      config.model or tff_models.DEFAULT_MODEL[task.kind], example_shape=task.example_shape,
      num_outputs=task.num_outputs, task_kind=task.kind, **scaling, **config.model_options,
    )  # fmt: skip
  if not isinstance(model, Model | tf.keras.Model) and callable(model):
    _check_takes(model, config.model, task, config.model_options)
    with _same_draws():
      model = model(task, **config.model_options)
  if isinstance(model, tf.keras.Model):
    _check_outputs(model, config.model, task)
    model = tff_models.from_keras(model, task_kind=task.kind, **scaling)
    _check_shapes(model, config.model, task)
    return model
  if not isinstance(model, Model):
    raise ValueError(
      f'--model={config.model or "the one given"} gives a {type(model).__name__}; it must be a '
      'Model of tff_models, or a Keras model.'
    )
  decode, own = decoder(task.kind, **scaling), model.predict

  def predict(params, x, *draws):  # of dropout, if the model has it
    return own(params, decode(x), *draws)

  model = dataclasses.replace(model, predict=predict)
  _check_shapes(model, config.model, task)
  return model


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
  """Has Keras draw a model's first weights alike in every process.

  Runs that are continued, and those of a sweep that share a program, must have the same ones. The
  generators of Python and NumPy go on as if nothing had been drawn.
  """
  import tensorflow as tf

  states = random.getstate(), np.random.get_state()
  tf.keras.utils.set_random_seed(0)
  try:
    yield
  finally:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _check_takes(function: Callable[..., Any], named: str | None, task, options) -> None:
  """Refuses a function of a model that does not take the task and the options that are given.

  Python's own error would name neither the flag nor the user's file.
  """
  try:
    inspect.signature(function).bind(task, **options)
  except TypeError as error:
    what = ', '.join(['the task', *(f'--model_option={n}={show(v)}' for n, v in options.items())])
    raise ValueError(f'--model={named or "the one given"} is called with {what}: {error}') from None


def _check_outputs(model, named: str | None, task) -> None:
  """Refuses a Keras model of another number of outputs than the task has.

  The loss of a label without an output is no error of TensorFlow's, but a wrong number.
  """
  shape = model.output_shape
  if isinstance(shape, tuple) and shape[-1] not in (task.num_outputs, None):
    raise ValueError(
      f'--model={named or "the one given"}: Keras model {model.name} has {shape[-1]} outputs, and '
      f'the data {task.num_outputs} (task.num_outputs).'
    )


def _check_shapes(model: 'Model', named: str | None, task) -> None:
  """Refuses a model whose outputs or loss have another form than the task's, or without its head.

  TensorFlow repeats what does not fit, such as outputs [B, 1] beside labels [B]: no error of its
  own, but a wrong number.
  """
  batch, count = task.num_outputs + 2, task.num_outputs  # not to be taken for one another
  found: dict[str, Any] = {}

  def look(params, outputs, y):
    if wrong := [name for name in model.head if name not in params]:
      raise ValueError(
        f'--model={named or "the one given"} names {wrong[0]!r} in its head; its parameters are '
        f'{", ".join(params)}.'
      )
    found.update(outputs=outputs, loss=model.loss(outputs, y), **model.metrics(outputs, y))

  _trace(model, task, batch, look)
  outputs = {
    'classification': [batch, count],
    'multilabel': [batch, count],
    'next_word': [batch, *task.label_shape, count],
  }
  expected = {name: [batch] for name in found} | {'outputs': outputs.get(task.kind)}
  for name, values in found.items():
    if not values.shape.is_compatible_with(expected[name]):
      source = '' if name == 'outputs' else f', of outputs {found["outputs"].shape},'
      raise ValueError(
        f'--model={named or "the one given"} gives {name} of shape {values.shape}{source} for '
        f'{batch} examples; {expected[name]} is expected.'
      )


def _trace(model: 'Model', task, batch: int, look: Callable[[Any, Any, Any], None]) -> None:
  """Calls `look` with a model's parameters, its outputs for so many examples, and their labels.

  Nothing is computed.
  """
  import tensorflow as tf

  from runtime import random_streams

  x_type = tf.int32 if task.kind == 'next_word' else tf.float32
  x = tf.zeros([batch, *task.example_shape], x_type)
  y = tf.zeros([batch, *task.label_shape], task.label_dtype)

  @tf.function(autograph=False)
  def trace():
    params = model.init(random_streams.key(0, random_streams.Stream.INIT))
    look(params, model.predict(params, x), y)

  trace.get_concrete_function()


def _check_values(model: 'Model', metrics: Mapping[str, Metric], task) -> None:
  """Refuses a metric that does not give a number for each example; nothing is computed."""
  import tensorflow as tf

  batch = 3
  found: dict[str, Any] = {}

  def look(params, outputs, y):
    del params
    for name, metric in metrics.items():
      try:
        found[name] = tf.convert_to_tensor(metric(outputs, y))
      except Exception as error:
        where = user_files.place_of(error)
        raise ValueError(f'--metric {name}: {type(error).__name__}: {error}{where}') from error

  _trace(model, task, batch, look)
  for name, values in found.items():
    if not values.shape.is_compatible_with([batch]):
      raise ValueError(
        f'--metric {name} gives shape {values.shape} for {batch} examples; it must give a value '
        f'for each, [{batch}].'
      )
    if not (values.dtype.is_floating or values.dtype.is_integer or values.dtype.is_bool):
      raise ValueError(f'--metric {name} gives {values.dtype.name}; it must give numbers.')


def _with_metrics(model: 'Model', metrics: Mapping[str, Metric]) -> 'Model':
  import tensorflow as tf

  if not metrics:
    return model
  taken = sorted({*metrics} & {*model.metric_names, 'loss', 'num_examples'})
  if taken:
    raise ValueError(f'There is a metric {taken[0]} already; give yours another name.')
  of_model = model.metrics

  def all_metrics(outputs, y):
    found = collections.OrderedDict(of_model(outputs, y))
    for name, metric in metrics.items():
      found[name] = tf.cast(metric(outputs, y), tf.float32)
    return found

  names = (*model.metric_names, *metrics)
  return dataclasses.replace(model, metrics=all_metrics, metric_names=names)
