"""Your own silos: from a pandas table with a silo column to a federation."""

import dataclasses
import hashlib
import numbers
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from datasets import federated
from settings import did_you_mean

if TYPE_CHECKING:
  import pandas as pd

Kind = Literal['regression', 'binary', 'classification']
_TASKS = ('regression', 'binary', 'classification')
# More classes than these are names or measurements, not classes.
_MOST_CLASSES = 1000
# Whole numbers are inferred to be classes up to so many of them.
_MOST_INFERRED_CLASSES = 20


def from_dataframe(
  df: 'pd.DataFrame',
  *,
  silo_column: str,
  target: str,
  task: Kind | None = None,
  features: Sequence[str] | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  preprocessing: Literal['silo', 'fixed', 'none'] = 'silo',
  bounds: Mapping[str, tuple[float, float]] | None = None,
  target_bounds: tuple[float, float] | None = None,
  name: str = 'dataframe',
) -> federated.FederatedDataset:
  """Makes a federation of a table: one row an example, one column says whose it is.

  >>> import pandas as pd
  >>> table = pd.DataFrame({'ward': list('aaabbb'), 'age': [30, 41, 28, 77, 60, 52],
  ...                       'days': [1.5, 2.0, 1.0, 6.5, 5.0, 4.0]})
  >>> from_dataframe(table, silo_column='ward', target='days', task='regression',
  ...                preprocessing='none', seed=1)
  <dataframe: 2 clients with 2 to 2 training rows (4), 1 features, regression, features 28 to 60, \
labels 1 to 5>

  Args:
    df: the table; features must be numbers or booleans, without missing values.
    silo_column: the column whose values are the silos.
    target: the column to predict.
    task: `regression`, `binary` (two values, the smaller becomes -1, the other +1)
      or `classification` (values become 0, 1, ... in their order;
      `extras['target_values']` has them). None infers it, says so in a warning and in
      `preprocessing`: two values are binary; text, and up to 20 different whole numbers
      that each come twice or more on average, are classes; all else is regression.
    features: the columns to predict from; None for all the others.
    test_fraction: the share of each silo's rows kept for its test.
    seed: decides the split inside each silo.
    preprocessing: `silo` standardises by each silo's training rows, which is
      outside the guarantee; `fixed` clips each feature to its `bounds` and maps
      them to 0..1, which costs no privacy; `none` takes the numbers as they are, in float32.
    bounds: with `fixed`, the public (low, high) of each feature.
    target_bounds: for regression, public (low, high) which map the target to
      0..1; a target outside is an error. None leaves the target as it is.
    name: what reports call the data set.

  Returns:
    The data set; clients are in the order of their names.

  Raises:
    ValueError: a column that is missing, given twice, not a number or has gaps; a silo
      with fewer than two rows; a target that does not fit the task.
    TypeError: `df` is no table.
  """
  from datasets import partition, silos  # With TensorFlow, which `import datasets` must not.

  if not hasattr(df, 'columns') or not hasattr(df, 'iloc'):
    raise TypeError(f'the table is a {type(df).__name__}; give a pandas DataFrame.')
  if task is not None:
    _check_choice('task', task, _TASKS)
  _check_choice('preprocessing', preprocessing, ('silo', 'fixed', 'none'))
  if bounds is not None and preprocessing != 'fixed':
    raise ValueError(f"bounds are for preprocessing='fixed'; it is {preprocessing!r}.")
  _check_kinds(silo_column, target, features, test_fraction, seed)
  if features is None:
    chosen = [column for column in df.columns if column not in (silo_column, target)]
  else:
    chosen = list(features)
  _check_columns(df, silo_column, target, chosen)
  notes = []
  if task is None:
    task = _inferred_task(df[target])
    notes.append(f'That the task is {task} was inferred from all values of the target.')
    warnings.warn(
      f'Column {target!r} was taken as a {task} target ({_in_words(df[target])}); '
      f'task={task!r} says so without this warning.',
      stacklevel=2,
    )
  # In 64 bits until it is scaled: of a time in seconds 32 bits have no minutes.
  x = np.stack([_numbers(df, column) for column in chosen], axis=1)
  if preprocessing == 'none':
    x = x.astype(np.float32)
  y, extras, num_outputs = _target(df, target, task, target_bounds)
  if extras:
    notes.append('The list of the classes was read from all values of the target.')
  names = df[silo_column].astype(str).to_numpy()
  ids, rows_of = partition.rows_by_client(names)
  if df[silo_column].nunique() > len(ids):
    own = df[silo_column].drop_duplicates()
    name = own.astype(str)[own.astype(str).duplicated()].iloc[0]
    raise ValueError(
      f'Column {silo_column!r} has two silos that are both written {name!r}, such as a number and '
      'a text; make them of one type.'
    )
  small = [str(id_) for id_, rows in zip(ids, rows_of, strict=True) if len(rows) < 2]
  if small:
    raise ValueError(
      f'{len(small)} silos have fewer than two rows, one to train and one to test on:'
      f' {", ".join(small[:5])}; drop or merge them.'
    )
  if target_bounds is not None:
    notes.append('The target is scaled to 0..1 by public bounds, which costs no privacy.')
  dataset = silos.build(
    name=name,
    task_kind=task,
    num_outputs=num_outputs,
    label_deviation=1.0 if target_bounds is None else 12**-0.5,  # as if all were equally likely
    xs=[x[rows] for rows in rows_of],
    ys=[y[rows] for rows in rows_of],
    client_ids=[str(id_) for id_ in ids],
    seed=seed,
    test_fraction=test_fraction,
    preprocessing=preprocessing,
    fixed=_bounded(chosen, bounds) if preprocessing == 'fixed' else None,
    notes=notes,
    # The whole table's tells runs on other columns of the same people.
    checksums={
      name: _sha256(x.astype(np.float32), y, names),
      f'{name}, the whole table': sha256_of_table(df),
    },
    extras=extras,
    citation='a table of the user',
  )
  return dataclasses.replace(dataset, partition=_sha256(names))


def _check_kinds(silo_column: Any, target: Any, features: Any, test_fraction: Any, seed: Any):
  for name, column in (('silo_column', silo_column), ('target', target)):
    if not isinstance(column, Hashable):
      raise ValueError(f'{name} is {column!r}; give the name of one column.')
  if isinstance(features, str):
    raise ValueError(f'features is the text {features!r}; give a list of columns: [{features!r}].')
  if features is not None and not isinstance(features, Iterable):
    raise ValueError(f'features is {features!r}; give a list of columns.')
  if not isinstance(test_fraction, numbers.Real):
    raise ValueError(f'test_fraction is {test_fraction!r}; it must be a number between 0 and 1.')
  if not isinstance(seed, numbers.Integral):
    raise ValueError(f'seed is {seed!r}; it must be a whole number.')


def _pair(name: str, bounds: Any) -> tuple[float, float]:
  try:
    low, high = map(float, bounds)
  except (TypeError, ValueError):
    raise ValueError(f'{name} is {bounds!r}; give two numbers, (low, high).') from None
  return low, high


def _check_choice(name: str, value: object, allowed: Sequence[str]):
  if value not in allowed:
    raise ValueError(
      f'{name} is {value!r}; allowed: {", ".join(allowed)}{did_you_mean(str(value), allowed)}'
    )


def _check_columns(df: 'pd.DataFrame', silo_column: str, target: str, features: list[str]):
  twice = df.columns[df.columns.duplicated()]
  if len(twice):
    raise ValueError(f'The table has the column {twice[0]!r} more than once; rename or drop it.')
  for column in (silo_column, target, *features):
    if column not in df.columns:
      there = [str(name) for name in df.columns]
      raise ValueError(
        f'The table has no column {column!r}; it has {", ".join(there)}'
        f'{did_you_mean(str(column), there)}'
      )
    gaps = int(df[column].isna().sum())
    if gaps:
      raise ValueError(f'Column {column!r} has {gaps} missing values; fill or drop these rows.')
  if df[target].dtype.kind == 'f' and not np.isfinite(df[target]).all():  # infinity is no class
    raise ValueError(f'Column {target!r} has values that are not finite; drop these rows.')
  if silo_column == target:
    raise ValueError(f'Column {target!r} cannot be the silo and the target.')
  if not len(df):
    raise ValueError('The table has no rows.')
  if not features:
    raise ValueError('The table has no columns beside silo_column and target to predict from.')
  for column in (silo_column, target):
    if column in features:
      raise ValueError(f'Column {column!r} cannot be a feature too.')
  if len(set(features)) != len(features):
    again = next(column for column in features if features.count(column) > 1)
    raise ValueError(f'Column {again!r} is listed more than once in features.')


def _inferred_task(column: 'pd.Series') -> Kind:
  count = column.nunique()
  if count == 2:
    return 'binary'
  if column.dtype.kind not in 'biuf':
    return 'classification'
  whole = column.dtype.kind in 'iu'
  few = count <= _MOST_INFERRED_CLASSES and 2 * count <= len(column)
  return 'classification' if whole and few else 'regression'


def _in_words(column: 'pd.Series') -> str:
  kind = {'i': 'whole numbers', 'u': 'whole numbers', 'f': 'numbers', 'b': 'truth values'}
  return (
    f'{column.nunique()} different {kind.get(column.dtype.kind, "values")} in {len(column)} rows'
  )


def _numbers(df: 'pd.DataFrame', column: str) -> np.ndarray:
  if df[column].dtype.kind not in 'biuf':
    raise ValueError(
      f'Column {column!r} is {df[column].dtype}, not a number; encode it first, for example with'
      ' pandas.get_dummies.'
    )
  values = df[column].to_numpy(np.float64)
  if not np.all(np.abs(values) <= np.finfo(np.float32).max):
    raise ValueError(f'Column {column!r} has values that are not finite in 32 bits.')
  return values


def _target(
  df: 'pd.DataFrame', column: str, task: str, bounds: tuple[float, float] | None
) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
  """Labels of the whole table, extras and the number of outputs."""
  if task == 'regression':
    y = _numbers(df, column)
    if bounds is None:
      y = y.astype(np.float32)
    else:
      low, high = _pair('target_bounds', bounds)
      if df[column].dtype.kind == 'f':  # in 32 bits 0.1 is a little more than it
        low, high = np.array([low, high], df[column].to_numpy().dtype).tolist()
      if not low < high:
        raise ValueError(f'target_bounds is {bounds}; the first must be below the second.')
      if y.min() < low or y.max() > high:
        raise ValueError(
          f'Column {column!r} reaches {y.min()}..{y.max()}, beyond target_bounds {bounds}.'
        )
      y = ((y - low) / (high - low)).astype(np.float32)
    return y, {}, 1
  if bounds is not None:
    raise ValueError(f'target_bounds is for regression; the task is {task}.')
  kinds = sorted({type(value).__name__ for value in df[column]})
  if df[column].dtype.kind == 'O' and len(kinds) > 1:
    raise ValueError(f'Column {column!r} mixes values of kind {" and ".join(kinds)}; choose one.')
  values, codes = np.unique(df[column].to_numpy(), return_inverse=True)
  if task == 'binary':
    if len(values) != 2:
      raise ValueError(f'Column {column!r} has {len(values)} values; a binary task has 2.')
    return np.where(codes == 1, 1, -1).astype(np.float32), {'target_values': values}, 1
  fractions = df[column].dtype.kind == 'f' and np.any(values != np.floor(values))
  most = min(_MOST_CLASSES, max(_MOST_INFERRED_CLASSES, len(df) // 2))  # names differ in most rows
  if len(values) > most or (fractions and len(values) > _MOST_INFERRED_CLASSES):
    raise ValueError(
      f'Column {column!r} has {len(values)} different values in {len(df)} rows, which are no '
      f"classes; use task='regression', or bins."
    )
  if len(values) < 2:
    raise ValueError(f'Column {column!r} has one value only; a classification needs 2 classes.')
  return codes.astype(np.int32), {'target_values': values}, len(values)


def _bounded(
  features: list[str], bounds: Mapping[str, tuple[float, float]] | None
) -> Callable[[np.ndarray], np.ndarray]:
  """Clips each feature to its public bounds and maps them to 0..1."""
  bounds = bounds or {}
  missing = [column for column in features if column not in bounds]
  if missing:
    raise ValueError(f'preprocessing is fixed; bounds lacks {", ".join(map(repr, missing))}.')
  pairs = [_pair(f'bounds of {column!r}', bounds[column]) for column in features]
  low, high = np.array(pairs).T
  if not np.all(low < high):
    raise ValueError(f'bounds of {features[int(np.argmin(low < high))]!r} are not (low, high).')
  return lambda x: ((np.clip(x, low, high) - low) / (high - low)).astype(np.float32)


def _sha256(*arrays: np.ndarray) -> str:
  digest = hashlib.sha256()
  for array in arrays:
    # Text arrays hold Python objects, whose bytes are addresses.
    content = '\0'.join(array) if array.dtype == object else array.tobytes()
    digest.update(content.encode() if isinstance(content, str) else content)
  return digest.hexdigest()


def sha256_of_table(df: 'pd.DataFrame') -> str:
  """SHA-256 of a table's columns, by name, and of their values in the order of the rows."""
  import pandas as pd

  digest = hashlib.sha256()
  for column in sorted(df.columns, key=str):
    values = df[column]
    if not isinstance(values.dtype, np.dtype) or values.dtype == object:
      values = values.astype(str)
    digest.update(f'{column}\0'.encode())
    digest.update(pd.util.hash_array(values.to_numpy(), categorize=False).tobytes())
  return digest.hexdigest()
