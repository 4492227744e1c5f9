"""Every model by name. Importable without TensorFlow: the flags read it.

A new model is a function `build(*, name, task_kind, example_shape, num_outputs, decode,
**options) -> Model` and one entry here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """One option of a model.

  Attributes:
    kind: int, float, bool, str, or tuple (whole numbers; a single one is a tuple of it).
    default: its value where it is not given.
    help: what it is.
    minimum: smallest value, of a tuple's every number.
    below: values are smaller than that.
    choices: allowed strings.
  """

  kind: type
  default: Any
  help: str
  minimum: float | None = None
  below: float | None = None
  choices: tuple[str, ...] = ()

  def check(self, name: str, value: Any) -> Any:
    """The value in the option's kind.

    Raises:
      ValueError: a value that is not allowed; the message names it.
    """
    if self.kind is tuple:
      numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
      if not numbers or any(type(n) is not int for n in numbers):
        raise ValueError(f'{name}={value} must be whole numbers, such as 256,128.')
    else:
      if self.kind is float and type(value) is int:
        value = float(value)
      if type(value) is not self.kind:
        raise ValueError(f'{name}={value} must be {_KIND_WORDS[self.kind]}.')
      numbers = (value,)
    if self.minimum is not None and min(numbers) < self.minimum:
      raise ValueError(f'{name}={value} must be at least {self.minimum:g}.')
    if self.kind in (int, tuple) and max(numbers) > _LARGEST:
      raise ValueError(f'{name}={value} must be at most {_LARGEST}, as sizes of tensors are.')
    if self.below is not None and max(numbers) >= self.below:
      raise ValueError(f'{name}={value} must be below {self.below:g}.')
    if self.choices and value not in self.choices:
      raise ValueError(f'{name}={value} must be one of {", ".join(self.choices)}.')
    return numbers if self.kind is tuple else value


_LARGEST = 2**31 - 1
_KIND_WORDS = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'text'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelEntry:
  """One line of the registry.

  Attributes:
    name: value of `--model`.
    summary: one line.
    tasks: the kinds of task that it serves.
    builder: its function, as module:function.
    options: what `--model_option` can set, by name.
    fixed: further arguments of the function.
  """

  name: str
  summary: str
  tasks: tuple[str, ...]
  builder: str
  options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def resolve(self, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values: those given, and the defaults.

    Raises:
      ValueError: an option that the model does not have, or a wrong value.
    """
    unknown = sorted(set(options) - set(self.options))
    if unknown:
      raise ValueError(
        f'--model={self.name} has no option {", ".join(unknown)}; '
        f'it has {", ".join(self.options) or "none"}.'
      )
    return {
      name: option.check(name, options.get(name, option.default))
      for name, option in self.options.items()
    }


_ANY_LABEL = ('classification', 'regression', 'binary', 'multilabel')
_CLASSES = ('classification', 'multilabel')


def _dropout(where: str) -> dict[str, Option]:
  help_ = f'Share of the numbers that training drops {where}.'
  return {'dropout': Option(kind=float, default=0.0, help=help_, minimum=0.0, below=1.0)}


def _size(default: int, help_: str) -> Option:
  return Option(kind=int, default=default, help=help_, minimum=1)


_COMPUTE_DTYPE = {
  'compute_dtype': Option(
    kind=str,
    default='float32',
    help="Type of the convolutions' products; parameters stay float32.",
    choices=('float32', 'bfloat16'),
  )
}

MODELS: Mapping[str, ModelEntry] = {
  entry.name: entry
  for entry in (
    ModelEntry(
      name='linear_regression',
      summary='linear regression',
      tasks=('regression',),
      builder='tff_models.linear:build_linear',
      options={'bias': Option(kind=bool, default=True, help='Whether there is an intercept.')},
    ),
    ModelEntry(
      name='linear_svm',
      summary='linear support vector machine',
      tasks=('binary',),
      builder='tff_models.linear:build_linear',
    ),
    ModelEntry(
      name='logistic_regression',
      summary='logistic regression',
      tasks=('binary',),
      builder='tff_models.linear:build_logistic_regression',
    ),
    ModelEntry(
      name='softmax',
      summary='one softmax layer',
      tasks=_CLASSES,
      builder='tff_models.linear:build_linear',
    ),
    ModelEntry(
      name='one_versus_all',
      summary='linear, squared loss per class, no bias (PPSGD)',
      tasks=_CLASSES,
      builder='tff_models.linear:build_one_versus_all',
    ),
    ModelEntry(
      name='one_hidden_layer',
      summary='one hidden relu layer (FeO2)',
      tasks=_ANY_LABEL,
      builder='tff_models.neural:build_mlp',
      options={'hidden_units': _size(50, 'Units of the hidden layer.')},
    ),
    ModelEntry(
      name='mlp',
      summary='hidden relu layers of any widths, with dropout',
      tasks=_ANY_LABEL,
      builder='tff_models.neural:build_mlp',
      options={
        'hidden_units': Option(
          kind=tuple, default=(256, 256), help='Units of each hidden layer.', minimum=1
        ),
        **_dropout('after each hidden layer'),
      },
    ),
    ModelEntry(
      name='cnn3x3',
      summary='two 3x3 convolutions of 32 and 64 channels, dense (cross-silo)',
      tasks=_ANY_LABEL,
      builder='tff_models.neural:build_cnn',
      options=_COMPUTE_DTYPE,
    ),
    ModelEntry(
      name='cnn5x5',
      summary='two 5x5 convolutions of 32 and 64 channels, dense (cross-silo, ADNI)',
      tasks=_ANY_LABEL,
      builder='tff_models.neural:build_cnn',
      options=_COMPUTE_DTYPE,
      fixed={'filter_size': 5},
    ),
    ModelEntry(
      name='femnist_cnn',
      summary="3x3 convolutions of 32 and 64 channels, dense 128, dense (for FeO2's 2-layer CNN)",
      tasks=_CLASSES,
      builder='tff_models.neural:build_cnn',
      options=_COMPUTE_DTYPE,
      fixed={'hidden_units': 128},
    ),
    ModelEntry(
      name='ppsgd_cnn',
      summary='four layers, squared loss per class, the last one without bias (PPSGD)',
      tasks=_CLASSES,
      builder='tff_models.neural:build_ppsgd_cnn',
    ),
    ModelEntry(
      name='dropout_cnn',
      summary='3x3 convolutions of 32 and 64 channels, pooling, dropout, dense 128, dropout, dense',
      tasks=_CLASSES,
      builder='tff_models.neural:build_dropout_cnn',
    ),
    ModelEntry(
      name='resnet18',
      summary='ResNet-18 with group normalisation, for 32x32 images and for larger ones',
      tasks=_ANY_LABEL,
      builder='tff_models.residual:build_resnet18',
      options={
        'width': _size(64, 'Channels of the first stage; each later one has twice as many.'),
        'groups': _size(32, 'Groups of channels that are normalised together.'),
        **_COMPUTE_DTYPE,
      },
    ),
    ModelEntry(
      name='next_word_lstm',
      summary='next word by one LSTM layer and a projection',
      tasks=('next_word',),
      builder='tff_models.language:build_lstm',
      options={
        'embedding_size': _size(96, "Length of a word's vector."),
        'lstm_units': _size(670, "Length of the LSTM's state."),
        **_dropout("of the word's vectors and before the output"),
      },
    ),
    ModelEntry(
      name='next_word_transformer',
      summary='next word by a small transformer with causal attention',
      tasks=('next_word',),
      builder='tff_models.language:build_transformer',
      options={
        'depth': _size(3, 'Number of transformer layers.'),
        'width': _size(96, "Length of a word's vector."),
        'heads': _size(8, 'Heads of the attention; they divide the width.'),
        'feed_forward_units': _size(1536, "Hidden units of a layer's feed-forward part."),
        **_dropout("of the words' vectors and of what each half of a layer adds"),
      },
    ),
  )
}
"""Every model by name."""

DEFAULT_MODEL = {
  'regression': 'linear_regression',
  'binary': 'linear_svm',
  'classification': 'softmax',
  'multilabel': 'softmax',
  'next_word': 'next_word_lstm',
}
"""The model of each kind of task where none is named."""
