"""Every model by name. Importable without TensorFlow: the flags read it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelEntry:
  """A model's name, what it is, which tasks it serves and which options it takes."""

  name: str
  summary: str
  tasks: tuple[str, ...]
  options: tuple[str, ...] = ()


MODELS = {
  entry.name: entry
  for entry in (
    ModelEntry(
      name='linear_regression',
      summary='linear regression',
      tasks=('regression',),
      options=('bias',),
    ),
    ModelEntry(name='linear_svm', summary='linear support vector machine', tasks=('binary',)),
    ModelEntry(name='logistic_regression', summary='logistic regression', tasks=('binary',)),
    ModelEntry(name='softmax', summary='one softmax layer', tasks=('classification', 'multilabel')),
    ModelEntry(
      name='one_versus_all',
      summary='linear, squared loss per class, no bias (PPSGD)',
      tasks=('classification', 'multilabel'),
    ),
    ModelEntry(
      name='one_hidden_layer',
      summary='one hidden relu layer (FeO2)',
      tasks=('classification', 'regression', 'binary', 'multilabel'),
      options=('hidden_units',),
    ),
    ModelEntry(
      name='cnn3x3',
      summary='two 3x3 convolutions of 32 and 64 channels, dense (cross-silo)',
      tasks=('classification', 'regression', 'binary', 'multilabel'),
      options=('compute_dtype',),
    ),
    ModelEntry(
      name='cnn5x5',
      summary='two 5x5 convolutions of 32 and 64 channels, dense (cross-silo, ADNI)',
      tasks=('classification', 'regression', 'binary', 'multilabel'),
      options=('compute_dtype',),
    ),
    ModelEntry(
      name='femnist_cnn',
      summary='two 3x3 convolutions of 32 and 64 channels, dense 128, dense (FeO2, FEMNIST)',
      tasks=('classification', 'multilabel'),
      options=('compute_dtype',),
    ),
    ModelEntry(
      name='ppsgd_cnn',
      summary='four layers, squared loss per class, the last one without bias (PPSGD)',
      tasks=('classification', 'multilabel'),
    ),
  )
}

DEFAULT_MODEL = {
  'regression': 'linear_regression',
  'binary': 'linear_svm',
  'classification': 'softmax',
  'multilabel': 'softmax',
}
