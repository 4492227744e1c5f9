"""A table of the user's own, from a CSV or Parquet file: `--dataset=my_table.csv`."""

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from datasets import dataframe, federated

if TYPE_CHECKING:
  import pandas as pd


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None = None,
  file: str,
  silo_column: str | None,
  target_column: str | None,
  task: str | None = None,
  features: str | None = None,
  preprocessing: str = 'silo',
  test_fraction: float = 0.2,
) -> federated.FederatedDataset:
  """Reads the file and makes a federation of it; see `from_dataframe`.

  Args:
    seed: decides the split inside each silo.
    data_dir: not used: the file's path says where it is.
    file: a path that ends in .csv or .parquet.
    silo_column: the column whose values are the silos, in a CSV file as they are written there.
    target_column: the column to predict.
    task: regression, binary, classification; None infers it from the target.
    features: the columns to predict from, with commas; None for all the others.
    preprocessing: `silo` or `none`.
    test_fraction: the share of each silo's rows kept for its test.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no table, lacks a column, or is a CSV file with a column without a name.
  """
  import pandas as pd  # which `import datasets` need not wait for

  del data_dir
  path = pathlib.Path(file)
  if not path.is_file():
    raise FileNotFoundError(f'--dataset={file}: there is no file {path.resolve()}.')
  try:
    is_text = path.suffix == '.csv'
    parsed = _read_csv(path, silo_column) if is_text else pd.read_parquet(path)
    table = _with_silos_as_written(parsed, path, silo_column) if is_text else parsed
  except Exception as error:  # pandas and pyarrow raise many kinds
    said = ' '.join(str(error).split())
    raise ValueError(f'--dataset={file} cannot be read: {said}') from error
  (name, *others) = map(str, table.columns)
  mark = next((mark for mark in (';', '\t', '|') if mark in name), None)
  if not others and mark:
    raise ValueError(
      f'--dataset={file} has one column, {name!r}: its values are separated by {mark!r}; save it '
      'with commas.'
    )
  for flag, column in (('silo_column', silo_column), ('target_column', target_column)):
    if column is None:
      names = ', '.join(map(str, table.columns[:10]))
      raise ValueError(f'--dataset={file} needs --{flag}, one of its columns: {names}.')
  assert silo_column is not None and target_column is not None
  try:
    dataset = dataframe.from_dataframe(
      table,
      silo_column=silo_column,
      target=target_column,
      task=task,  # type: ignore[arg-type] # one of the choices of the option
      features=None if features is None else features.split(','),
      test_fraction=test_fraction,
      seed=seed,
      preprocessing=preprocessing,  # type: ignore[arg-type]
      name=path.stem,
    )
  except ValueError as error:
    raise ValueError(f'--dataset={file}: {error}') from error
  if table is parsed:
    return dataset
  # A ledger has to see the people of runs on another silo column, and of earlier versions, to which
  # 01 was 1: the whole table's checksum is that of the parsed one, whichever column is the silo's.
  whole = {f'{path.stem}, the whole table': dataframe.sha256_of_table(parsed)}
  return dataclasses.replace(dataset, checksums={**dataset.checksums, **whole})


def _read_csv(path: pathlib.Path, silo_column: str | None) -> 'pd.DataFrame':
  """A CSV file as a table of its own columns; a silo may be called NA or None.

  Raises:
    ValueError: what pandas would make sense of in silence: a column without a name, as it writes an
      index (of a sorted table that would be a feature which gives the target away); a name that
      is there twice, whose second column it numbers (of a target that would be a feature); and
      rows of more values than there are names, whose first values it takes for names of rows,
      so that all names move.
  """
  import pandas as pd

  table = pd.read_csv(path)
  names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
  blank = np.flatnonzero(names.str.strip() == '')
  if len(blank):
    raise ValueError(
      f'Its column {blank[0] + 1} has no name. If it is the index of pandas, write the table with '
      'index=False; else name the column.'
    )
  twice = names[names.duplicated()]
  if len(twice):
    raise ValueError(
      f'The table has the column {twice.iloc[0]!r} more than once; rename or drop it.'
    )
  if not isinstance(table.index, pd.RangeIndex):
    more = len(table.columns) + table.index.nlevels
    raise ValueError(f'Its rows have {more} values, and its first line {len(table.columns)} names.')
  own = table[silo_column] if silo_column in table else pd.Series(dtype=float)
  if own.isna().any() and (own.isna().all() or not pd.api.types.is_numeric_dtype(own)):
    written = pd.read_csv(path, usecols=[silo_column], dtype=str, keep_default_na=False)
    table[silo_column] = own.astype(object).fillna(written[silo_column].replace('', np.nan))
  return table


def _with_silos_as_written(
  table: 'pd.DataFrame', path: pathlib.Path, silo_column: str | None
) -> 'pd.DataFrame':
  """The table with the text of the file for its silos, if pandas has made others of it.

  To it 01, 1 and 001 are one number. Text stays as it is; blanks around numbers go, as for pandas.
  """
  import pandas as pd

  if silo_column is None or silo_column not in table:  # which will be said
    return table
  own = table[silo_column]
  if own.isna().any() or pd.api.types.infer_dtype(own) == 'string':  # gaps will be said, too
    return table
  written = pd.read_csv(path, usecols=[silo_column], dtype=str, keep_default_na=False)[silo_column]
  if own.dtype != object:  # otherwise some are text, such as where a large file is read in parts
    written = written.str.strip()
    if written.equals(own.astype(str)):
      return table
  return table.assign(**{silo_column: written})
