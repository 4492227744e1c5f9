"""Data of your own that are larger than memory: a folder of Parquet files, one row an example.

When a folder is used for the first time, its rows are brought together by client in files of plain
arrays, in the cache folder; from then on a round reads the examples of its cohort, the next one's
while a round runs. The files of a folder are taken to be unchanged while their names, sizes and
times are.

Long because what such a folder may hold, and what is refused of it, is said in one place.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets import federated, files, stored_clients, stored_names
from settings import did_you_mean

if TYPE_CHECKING:
  import pyarrow as pa
  from pyarrow import dataset as arrow_dataset

TASKS = ('regression', 'binary', 'classification')
_VERSION = 2  # of the arrays in the cache
_MOST_CLASSES = 1000
_MOST_INFERRED_CLASSES = 20
_ROWS_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 1 << 26
_CHUNK = 1 << 20
_INDEX = re.compile(r'__index_level_\d+__')


def from_parquet(
  folder: str | os.PathLike,
  *,
  client_column: str,
  target: str,
  task: str | None = None,
  features: Sequence[str] | None = None,
  example_shape: Sequence[int] | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  cache: str | os.PathLike | None = None,
  name: str | None = None,
) -> federated.FederatedDataset:
  """Makes a federation of the Parquet files in a folder, whose rows stay on disk.

  Args:
    folder: with files `*.parquet` of the same columns, also in folders below it.
    client_column: the column that says whose a row is: numbers or text.
    target: the column to predict.
    task: `regression`, `binary` (two values, the smaller becomes -1, the other +1) or
      `classification` (values become 0, 1, ... in their order; `extras['target_values']` has
      them). None infers it, says so in a warning and in `preprocessing`: two values are binary;
      text, and up to 20 different whole numbers that each come twice or more on average, are
      classes; all else is regression.
    features: the columns to predict from, numbers, truth values, or lists of numbers which all
      have the same length; None for all the others but an index of pandas. They are taken as
      they are: bytes if all are bytes, else float32, which holds 7 digits: take 1.7e9 off times
      in seconds before.
    example_shape: the shape of an example, such as (28, 28, 1); by default it is flat.
    test_fraction: the share of each client's rows kept for its test.
    seed: decides the split inside each client.
    cache: the folder of the arrays; by default the cache folder of all data sets. They take the
      space of the features and targets, uncompressed.
    name: what reports call the data set; by default the folder's name.

  Returns:
    The data set; clients are in the order of their names, as text.

  Raises:
    FileNotFoundError: there is no such folder.
    ValueError: no or damaged files, files of different columns, a column that is missing, not a
      number or has gaps; a client with fewer than two rows; a target that does not fit the task
      or is not finite.
    OSError: the cache cannot be written.
  """
  from datasets import partition

  partition.check_test_fraction(test_fraction)
  if task is not None and task not in TASKS:
    raise ValueError(f'task is {task!r}; allowed: {", ".join(TASKS)}.')
  path = pathlib.Path(folder).expanduser()
  found = _files(path)
  table = _open(path, found)
  chosen = _columns(table.schema, client_column, target, features)
  source = [[str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns] for f in found]
  asked = [_VERSION, str(path.resolve()), source, client_column, target, task, chosen]
  key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
  root = pathlib.Path(cache).expanduser() if cache else files.cache_folder() / 'parquet'
  arrays = root / key
  if not (arrays / 'facts.json').exists():
    with _made(arrays) as new:
      _convert(table, new, path, found, client_column, target, chosen, task)
  facts = json.loads((arrays / 'facts.json').read_text())
  if task is None:
    warnings.warn(
      f'Column {target!r} was taken as a {facts["task"]} target; task={facts["task"]!r} says so '
      'without this warning.',
      stacklevel=2,
    )
  return _federation(
    arrays, facts, example_shape=example_shape, test_fraction=test_fraction, seed=seed,
    name=name or path.resolve().name, inferred=task is None,
  )  # fmt: skip


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None = None,
  folder: str,
  silo_column: str | None,
  target_column: str | None,
  task: str | None = None,
  features: str | None = None,
  example_shape: str | None = None,
  cache: str | None = None,
  test_fraction: float = 0.2,
) -> federated.FederatedDataset:
  """`--dataset=parquet:FOLDER`; see `from_parquet`. Lists are texts: `a,b`, `28x28x1`."""
  del data_dir
  if silo_column is None or target_column is None:
    missing = 'silo_column' if silo_column is None else 'target_column'
    raise ValueError(f'--dataset=parquet:{folder} needs --{missing}, one of its columns.')
  try:
    return from_parquet(
      folder, client_column=silo_column, target=target_column, task=task, seed=seed, cache=cache,
      features=None if features is None else features.split(','),
      example_shape=None if example_shape is None else [int(n) for n in example_shape.split('x')],
      test_fraction=test_fraction,
    )  # fmt: skip
  except (ValueError, FileNotFoundError) as error:
    raise type(error)(f'--dataset=parquet:{folder}: {error}') from error


def _federation(
  arrays: pathlib.Path,
  facts: Mapping[str, Any],
  *,
  example_shape: Sequence[int] | None,
  test_fraction: float,
  seed: int,
  name: str,
  inferred: bool,
) -> federated.FederatedDataset:
  width, dtype = facts['width'], facts['dtype']
  shape = (width,) if example_shape is None else tuple(int(n) for n in example_shape)
  if int(np.prod(shape)) != width:
    raise ValueError(f'example_shape is {shape}, {np.prod(shape)} numbers; an example has {width}.')
  task = federated.Task(kind=facts['task'], num_outputs=facts['num_outputs'], example_shape=shape)
  sizes = np.load(arrays / 'sizes.npy')
  num_test = np.clip(np.round(test_fraction * sizes), 1, sizes - 1).astype(np.int64)
  # The rows of a block are in random order: neighbours are a random sample, and so is
  # who comes after any start.
  from runtime import random_streams  # with TensorFlow, which naming a data set need not wait for

  starts = random_streams.host_generator(seed, random_streams.Stream.SPLIT).integers(0, sizes)
  x = stored_clients.RowFile(arrays / 'x', shape, dtype)
  y = stored_clients.RowFile(arrays / 'y', (), task.label_dtype)

  def clients(counts: np.ndarray, first: np.ndarray) -> stored_clients.StoredClients:
    return stored_clients.StoredClients(
      num_examples=counts.astype(np.int32), max_examples=int(counts.max()), x=x, y=y,
      blocks=np.cumsum(sizes) - sizes, sizes=sizes, starts=first,
    )  # fmt: skip

  notes = []
  if inferred:
    notes.append(f'That the task is {task.kind} was inferred from all values of the target.')
  extras = {}
  if facts['values']:
    notes.append('The list of the classes was read from all values of the target.')
    extras['target_values'] = np.array(facts['values'])
  return federated.FederatedDataset(
    name=name,
    task=task,
    train=clients(sizes - num_test, starts + num_test),
    test=clients(num_test, starts),
    client_ids=stored_names.StoredNames(arrays / 'names'),
    extras=extras,
    preprocessing=tuple(notes),
    checksums=facts['checksums'],
    citation='a folder of the user',
  )


# --------------------------------------------------------------------------- what is there


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if not path.is_dir():
    raise FileNotFoundError(f'there is no folder {path.absolute()}.')
  found = sorted(p for p in path.rglob('*.parquet') if p.is_file())
  if not found:
    raise ValueError(f'{path} has no files *.parquet.')
  return found


def _open(path: pathlib.Path, found: Sequence[pathlib.Path]) -> 'arrow_dataset.Dataset':
  """All files as one table, whose columns have been compared."""
  import pyarrow as pa
  from pyarrow import dataset as arrow_dataset
  from pyarrow import parquet

  first: Any = None
  for file in found:
    name = file.relative_to(path)
    try:
      schema = parquet.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
      raise ValueError(f'{name} is no Parquet file: {" ".join(str(error).split())}') from error
    types = {field.name: field.type for field in schema}
    if len(types) < len(schema):
      raise ValueError(f'{name} has a column more than once.')
    if first is None:
      first = name, types
    elif types != first[1]:
      column = next(c for c in [*first[1], *types] if types.get(c) != first[1].get(c))
      raise ValueError(
        f'the files differ: column {column!r} is {types.get(column, "missing")} in {name} and '
        f'{first[1].get(column, "missing")} in {first[0]}.'
      )
  return arrow_dataset.dataset([str(file) for file in found], format='parquet')


def _columns(
  schema: 'pa.Schema', client_column: str, target: str, features: Sequence[str] | None
) -> list[str]:
  """The features' columns, checked."""
  import pyarrow as pa

  if isinstance(features, str):
    raise ValueError(f'features is the text {features!r}; give a list of columns: [{features!r}].')
  # A table's index, as pandas writes it, says where a row was and nothing about it.
  chosen = [c for c in schema.names if c not in (client_column, target) and not _INDEX.fullmatch(c)]
  if features is not None:
    chosen = list(features)
  for column in (client_column, target, *chosen):
    if column not in schema.names:
      more = ', ...' if len(schema.names) > 10 else ''
      raise ValueError(
        f'there is no column {column!r}; there are {", ".join(schema.names[:10])}{more}'
        f'{did_you_mean(str(column), schema.names)}'
      )
  if client_column == target:
    raise ValueError(f'column {target!r} cannot be the client and the target.')
  if not chosen:
    raise ValueError('there are no columns beside the client and the target to predict from.')
  if len(set(chosen)) < len(chosen) or {client_column, target} & set(chosen):
    raise ValueError('features names a column twice, or the client or the target.')
  for column in chosen:
    type_ = schema.field(column).type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or _is_fixed(type_):
      type_ = type_.value_type
    if not _is_number(type_):
      raise ValueError(f'column {column!r} is {type_}, not a number; encode it first.')
  of_client = schema.field(client_column).type
  if not (_is_text(of_client) or pa.types.is_integer(of_client)):
    raise ValueError(f'column {client_column!r} is {of_client}; clients are whole numbers or text.')
  of_target = schema.field(target).type
  if not (_is_number(of_target) or _is_text(of_target)):
    raise ValueError(f'column {target!r} is {of_target}; a target is a number or text.')
  return chosen


def _is_fixed(type_: 'pa.DataType') -> bool:
  import pyarrow as pa

  return pa.types.is_fixed_size_list(type_)


def _is_text(type_: 'pa.DataType') -> bool:
  import pyarrow as pa

  if pa.types.is_dictionary(type_):
    type_ = type_.value_type
  return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def _is_number(type_: 'pa.DataType') -> bool:
  import pyarrow as pa

  return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)


# ----------------------------------------------------------------------- by client, on disk


@contextlib.contextmanager
def _made(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """A new folder which takes the place of `target` when the block succeeds."""
  target.parent.mkdir(parents=True, exist_ok=True)
  new = pathlib.Path(tempfile.mkdtemp(prefix='.writing-', dir=target.parent))
  try:
    yield new
    for file in new.iterdir():  # what a power cut leaves is whole, or is not there
      with open(file, 'rb') as written:
        os.fsync(written.fileno())
    with contextlib.suppress(FileExistsError, OSError):  # another process was as fast
      os.rename(new, target)
    if not target.exists():
      raise OSError(f'cannot write {target}.')
  finally:
    shutil.rmtree(new, ignore_errors=True)


def _convert(
  table: 'arrow_dataset.Dataset',
  new: pathlib.Path,
  folder: pathlib.Path,
  found: Sequence[pathlib.Path],
  client_column: str,
  target: str,
  chosen: Sequence[str],
  task: str | None,
) -> None:
  """Writes `names`, `sizes.npy`, the files `x` and `y` of rows, and `facts.json`."""
  names, sizes, values = _counted(table, client_column, target, task)
  if task is None:
    task = _inferred(table.schema.field(target).type, values, int(sizes.sum()))
  num_outputs = _check_values(target, task, values, int(sizes.sum()))
  labels = [] if task == 'regression' or values is None else sorted(values)
  width = dtype = None
  x: Any = None
  y = _room(new / 'y', np.int32 if task == 'classification' else np.float32, (int(sizes.sum()),))
  filled = np.cumsum(sizes) - sizes  # the next free row of each block
  known = np.array(names)
  for batch in _batches(table, [client_column, target, *chosen]):
    rows = _numbers(batch, chosen)
    if x is None:
      width, dtype = rows.shape[1], rows.dtype
      x = _room(new / 'x', dtype, (int(sizes.sum()), width))
    if rows.shape[1] != width:
      raise ValueError(f'the lists of {", ".join(map(repr, chosen))} differ in length.')
    clients = _codes(batch.column(client_column), known)
    order = np.argsort(clients, kind='stable')
    own, first, count = np.unique(clients[order], return_index=True, return_counts=True)
    where = np.repeat(filled[own] - first, count) + np.arange(len(order))
    filled[own] += count
    x[where] = rows[order]
    y[where] = _targets(batch, target, task, labels)[order]
  assert x is not None
  _shuffle(x, y, sizes)
  x.flush()
  y.flush()
  stored_names.StoredNames.write(new / 'names', names)
  np.save(new / 'sizes.npy', sizes)
  facts = {
    'task': task, 'num_outputs': num_outputs, 'width': width, 'dtype': np.dtype(dtype).name,
    'values': labels, 'checksums': {str(f.relative_to(folder)): _sha256(f) for f in found},
  }  # fmt: skip
  (new / 'facts.json').write_text(json.dumps(facts))


def _counted(
  table: 'arrow_dataset.Dataset', client_column: str, target: str, task: str | None
) -> tuple[list[str], np.ndarray, set | None]:
  """The clients' names in their order, their rows, and the target's values if they are few."""
  counts: collections.Counter[str] = collections.Counter()
  values: set | None = None if task == 'regression' else set()
  for batch in _batches(table, [client_column, target]):
    for column in (client_column, target):
      _refuse_gaps(batch, column)
    if not _is_finite(batch.column(target)):
      raise ValueError(
        f'column {target!r} has values that are not finite, NaN or infinity, in '
        f'{_not_finite_file(table, target)}; fill or drop these rows.'
      )
    for pair in _text(batch.column(client_column)).value_counts().to_pylist():
      counts[pair['values']] += pair['counts']
    if values is not None:
      values |= set(batch.column(target).unique().to_pylist())
      if len(values) > _MOST_CLASSES:
        values = None
  if not counts:
    raise ValueError('the files have no rows.')
  names = sorted(counts)
  small = [name for name in names if counts[name] < 2]
  if small:
    raise ValueError(
      f'{len(small)} clients have fewer than two rows, one to train and one to test on: '
      f'{", ".join(small[:5])}; drop or merge them.'
    )
  return names, np.array([counts[name] for name in names], np.int64), values


def _inferred(type_: 'pa.DataType', values: set | None, num_rows: int) -> str:
  import pyarrow as pa

  if values is not None and len(values) == 2:
    return 'binary'
  if _is_text(type_):
    return 'classification'
  few = values is not None and len(values) <= min(_MOST_INFERRED_CLASSES, num_rows // 2)
  return 'classification' if pa.types.is_integer(type_) and few else 'regression'


def _check_values(target: str, task: str, values: set | None, num_rows: int) -> int:
  """The task's number of outputs."""
  if task == 'regression':
    return 1
  count = f'more than {_MOST_CLASSES}' if values is None else str(len(values))
  if task == 'binary' and (values is None or len(values) != 2):
    raise ValueError(f'column {target!r} has {count} values; a binary task has 2.')
  if values is not None and len(values) > max(_MOST_INFERRED_CLASSES, num_rows // 2):
    raise ValueError(
      f'column {target!r} has {count} different values in {num_rows} rows, which are no classes.'
    )
  if values is None or len(values) < 2:
    raise ValueError(
      f'column {target!r} has {count} values; a classification has 2 to {_MOST_CLASSES}.'
    )
  return 1 if task == 'binary' else len(values)


def _batches(table: 'arrow_dataset.Dataset', columns: Sequence[str]) -> Iterator[Any]:
  for batch in table.to_batches(columns=list(columns), batch_size=_ROWS_AT_ONCE):
    if batch.num_rows:
      yield batch


def _text(column: 'pa.Array') -> 'pa.Array':
  import pyarrow as pa

  return column.cast(pa.string())


def _codes(column: 'pa.Array', names: np.ndarray) -> np.ndarray:
  """The numbers of the clients of some rows."""
  unique = _text(column).dictionary_encode()
  numbers = np.searchsorted(names, np.array(unique.dictionary.to_pylist()))
  return numbers[unique.indices.to_numpy()]


def _refuse_gaps(batch: 'pa.RecordBatch', column: str) -> None:
  gaps = batch.column(column).null_count
  if gaps:
    raise ValueError(f'column {column!r} has missing values; fill or drop these rows.')


def _is_finite(column: 'pa.Array') -> bool:
  import pyarrow as pa

  floating = pa.types.is_floating(column.type)
  return not floating or bool(np.isfinite(column.to_numpy(zero_copy_only=False)).all())


def _not_finite_file(table: 'arrow_dataset.Dataset', target: str) -> str:
  """The first file with a target that is not finite, of which there is one."""
  return next(
    fragment.path
    for fragment in table.get_fragments()
    if not all(_is_finite(batch.column(target)) for batch in _batches(fragment, [target]))
  )


def _numbers(batch: 'pa.RecordBatch', columns: Sequence[str]) -> np.ndarray:
  """The features of some rows, [n, width], uint8 or float32."""
  import pyarrow as pa

  parts = []
  for column in columns:
    _refuse_gaps(batch, column)
    values = batch.column(column)
    type_ = values.type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or _is_fixed(type_):
      flat = values.flatten()
      if flat.null_count:
        raise ValueError(f'column {column!r} has missing values in its lists.')
      if not _is_fixed(type_):
        lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
          raise ValueError(f'the lists of column {column!r} have {lengths[0]} to {lengths[-1]} '
                           'numbers; they must all have the same.')  # fmt: skip
      parts.append(flat.to_numpy(zero_copy_only=False).reshape(len(values), -1))
    else:
      parts.append(values.to_numpy(zero_copy_only=False)[:, np.newaxis])
  dtype = np.uint8 if all(part.dtype == np.uint8 for part in parts) else np.float32
  for column, part in zip(columns, parts, strict=True):
    if part.dtype.kind == 'f' and not np.isfinite(part.astype(np.float32)).all():
      raise ValueError(f'column {column!r} has values that are not finite in 32 bits.')
  return np.concatenate([part.astype(dtype, copy=False) for part in parts], axis=1)


def _targets(batch: 'pa.RecordBatch', target: str, task: str, labels: Sequence[Any]) -> np.ndarray:
  column = batch.column(target)
  if task == 'regression':
    if _is_text(column.type):
      raise ValueError(f'column {target!r} is {column.type}, no number to regress on.')
    values = column.to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isfinite(values).all():
      raise ValueError(f'column {target!r} has values that are not finite in 32 bits.')
    return values
  encoded = column if hasattr(column, 'dictionary') else column.dictionary_encode()
  number = {value: code for code, value in enumerate(labels)}
  codes = np.array([number[v] for v in encoded.dictionary.to_pylist()])
  codes = codes[encoded.indices.to_numpy(zero_copy_only=False)]
  if task == 'binary':
    return np.where(codes == 1, 1, -1).astype(np.float32)
  return codes.astype(np.int32)


def _room(path: pathlib.Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
  """A mapped file whose space is taken: a full disk is an error here, and not a signal later."""
  with open(path, 'wb') as file:
    try:
      os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    except OSError as error:
      raise OSError(f'cannot write {path.parent.parent}: {error.strerror}') from error
  return np.memmap(path, dtype=dtype, mode='r+', shape=shape)


def _shuffle(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> None:
  """Brings the rows of each block into a random order, the same for the same sizes."""
  ends = np.cumsum(sizes)
  from runtime import random_streams  # with TensorFlow, which naming a data set need not wait for

  generator = random_streams.host_generator(0, random_streams.Stream.SPLIT)
  first = 0
  while first < len(sizes):
    begin = int(ends[first] - sizes[first])
    most = begin + max(1, _BYTES_AT_ONCE // x[:1].nbytes)
    last = max(first + 1, int(np.searchsorted(ends, most, side='right')))
    rows = slice(begin, int(ends[last - 1]))
    block = np.repeat(np.arange(first, last), sizes[first:last])
    order = np.lexsort((generator.random(len(block)), block))
    x[rows], y[rows] = x[rows][order], y[rows][order]
    first = last


def _sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    while part := file.read(_CHUNK):
      digest.update(part)
  return digest.hexdigest()
