"""Plain references beside a run's result: a constant, and linear models without privacy.

They are fitted to the exact examples, without noise, as every exact metric of a simulation is
computed: for the eyes of whoever runs it. Nothing of the run depends on them, no guarantee covers
them, and the privacy statement says so.
"""

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

import datasets
from experiments.folder.metrics import is_better_high
from experiments.running import loading
from experiments.running.progress import show

# What is larger is not fitted: a reference may cost seconds, not minutes.
_MOST_NUMBERS = 20_000_000  # rows x features x outputs
_MOST_CLIENTS = 500

CONSTANT, LINEAR, LOCAL = 'constant', 'linear', 'local_linear'
_WORDS = {
  CONSTANT: 'a constant prediction',
  LINEAR: 'one linear model of all examples without privacy',
  LOCAL: "each client's own linear model without privacy",
}
_OUTSIDE = (
  'The plain references beside the result (a constant, and linear models) are fitted to the exact '
  'examples without noise, for the eyes of whoever runs a simulation: they are not private '
  'releases.'
)

# By training and by test examples: a program may exchange either.
_known: 'weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, dict[str, float]]]' = (
  weakref.WeakKeyDictionary()
)


def of(dataset: datasets.FederatedDataset) -> dict[str, float]:
  """The metric of plain predictors, over all test rows, as the run's own is.

  Args:
    dataset: regression (mean squared error), or binary or several classes (accuracy).

  Returns:
    By name, those that can be had quickly: `constant`, the mean of all training labels or the
    label that most have; `linear`, a ridge or logistic regression of all training examples in one
    place; `local_linear`, one of each client's own. None of them for other tasks, for examples that
    are fresh in every round, and for data too large to be held at once; see `missing`.
  """
  if not _can_be_had(dataset):
    return {}
  known = _known.setdefault(dataset.train, weakref.WeakKeyDictionary())
  if dataset.test not in known:
    everyone = np.arange(dataset.num_clients)
    train, test = dataset.train.load(everyone), dataset.test.load(everyone)
    known[dataset.test] = _fitted(train, test, dataset.task)
  return known[dataset.test]


def facts(dataset: datasets.FederatedDataset) -> dict[str, Any]:
  """What summary.json has of the data: who is in it, who is not, and the references."""
  return {
    'references': of(dataset),
    'references_missing': missing(dataset),
    'clients': dataset.num_clients,
    'left_out': dataset.left_out,
    'min_examples': dataset.min_examples,
  }


def missing(dataset: datasets.FederatedDataset) -> str:
  """A sentence where the size of the data leaves references out; empty elsewhere."""
  if not _has_some(dataset):
    return ''
  most = f'{_MOST_NUMBERS:,} numbers'
  if not _can_be_had(dataset):
    return f'No plain references: the data are loaded by cohort, and are more than {most}.'
  one = int(np.prod(dataset.task.example_shape)) * dataset.task.num_outputs
  if int(dataset.train.num_examples.sum(dtype=np.int64)) * one > _MOST_NUMBERS:
    return f'Linear models are not fitted as references: rows x features x outputs exceed {most}.'
  return ''


def outside(dataset: datasets.FederatedDataset) -> tuple[str, ...]:
  """What a privacy statement has to say of the references, sentences."""
  return (_OUTSIDE,) if _can_be_had(dataset) else ()


def _has_some(dataset: datasets.FederatedDataset) -> bool:
  is_known = dataset.task.kind in ('regression', 'binary', 'classification')
  return is_known and not isinstance(dataset.train, datasets.ClientStream)


def _can_be_had(dataset: datasets.FederatedDataset) -> bool:
  if not _has_some(dataset):
    return False
  one = int(np.prod(dataset.task.example_shape))
  return all(_is_at_hand(split, one) for split in (dataset.train, dataset.test))


def _is_at_hand(examples, numbers_of_one: int) -> bool:
  if isinstance(examples, loading.LoadedAgain):  # it has been held before
    return True
  if isinstance(examples, datasets.ClientSource):  # loaded for this alone
    size = examples.num_clients * examples.max_examples * numbers_of_one
    return size <= _MOST_NUMBERS
  return True


def _fitted(train, test, task: datasets.Task) -> dict[str, float]:
  x, y = train.pooled()
  test_x, test_y = test.pooled()
  regression = task.kind == 'regression'
  found = {CONSTANT: _score(_constant(y, regression), test_y, regression)}
  if x.size * task.num_outputs > _MOST_NUMBERS:
    return found
  found[LINEAR] = _score(_linear(x, y, test_x, regression), test_y, regression)
  if 1 < train.num_clients <= _MOST_CLIENTS:
    predicted = [
      _linear(own_x, own_y, tested, regression)
      for (own_x, own_y), (tested, _) in zip(_clients(train), _clients(test), strict=True)
    ]
    found[LOCAL] = _score(np.concatenate(predicted), test_y, regression)
  return found


def _clients(examples):
  return (
    (examples.x[k, :count], examples.y[k, :count]) for k, count in enumerate(examples.num_examples)
  )


def _constant(y: np.ndarray, regression: bool) -> Any:
  if regression:
    return y.mean(dtype=np.float64)
  values, counts = np.unique(y, return_counts=True)
  return values[counts.argmax()]


def _linear(x: np.ndarray, y: np.ndarray, test_x: np.ndarray, regression: bool) -> np.ndarray:
  """What a linear model of x [M, ...] and y [M] predicts of other rows."""
  from sklearn import linear_model, pipeline, preprocessing

  x, test_x = (part.reshape(len(part), -1).astype(np.float64) for part in (x, test_x))
  if len(x) < 2 or (not regression and len(np.unique(y)) < 2):
    return np.full(len(test_x), _constant(y, regression))
  model = linear_model.Ridge() if regression else linear_model.LogisticRegression(max_iter=100)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # a fit that could be a little better will do
    fitted = pipeline.make_pipeline(preprocessing.StandardScaler(), model).fit(x, y)
  return fitted.predict(test_x)


def _score(predicted, y: np.ndarray, regression: bool) -> float:
  if regression:
    return float(np.mean((np.asarray(predicted, np.float64) - y) ** 2))
  return float(np.mean(predicted == y))


def sentence(value: float, references: Mapping[str, float], metric: str) -> str:
  """How good a value is beside the references; empty without any.

  Args:
    value: of the run, over all test rows.
    references: what `of` gave.
    metric: 'accuracy' or 'mse'.
  """
  high = is_better_high(metric)
  sides: dict[str, list[str]] = {'better than': [], 'as good as': [], 'worse than': []}
  for name, other in references.items():
    better = value > other if high else value < other
    alike = show(value) == show(other)
    side = 'as good as' if alike else 'better than' if better else 'worse than'
    sides[side].append(f'{_WORDS[name]} ({show(other)})')
  words = [f'{side} {_list(named)}' for side, named in sides.items() if named]
  return f'{metric} {show(value)} is {"; ".join(words)}.' if words else ''


def _list(names: list[str]) -> str:
  return names[0] if len(names) == 1 else f'{", ".join(names[:-1])} and {names[-1]}'
