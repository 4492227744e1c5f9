"""Reading the SQLite files that TensorFlow Federated's data sets come in.

Such a file has a table `client_metadata` (client_id, split_name, num_examples)
and a table `examples` (split_name, client_id, serialized_example_proto), as
`tff.simulation.datasets.save_to_sql_client_data` writes it. It is read here by
SQLite itself, many examples at once, which is far faster than one `tf.data`
pipeline for each client and needs no TensorFlow Federated.
"""

import contextlib
import itertools
import os
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping


def client_counts(path: str | os.PathLike, split: str) -> dict[str, int]:
  """The clients of a split in alphabetical order, with their number of examples.

  Raises:
    ValueError: the file is not in this format, or has no such split.
  """
  with _connection(path) as connection:
    rows = connection.execute(
      'SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id',
      (split,),
    ).fetchall()
  if not rows:
    raise ValueError(f'{path} has no clients in the split {split!r}.')
  return dict(rows)


def read_client(
  path: str | os.PathLike, split: str, client_id: str, *, limit: int | None = None
) -> list[bytes]:
  """The serialised examples of one client, the first `limit` of them."""
  with _connection(path) as connection:
    rows = connection.execute(
      'SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?'
      ' ORDER BY rowid LIMIT ?',
      (client_id, split, -1 if limit is None else limit),
    ).fetchall()
  return [row[0] for row in rows]


def read_all(path: str | os.PathLike, split: str) -> Iterator[tuple[str, list[bytes]]]:
  """Every client of a split with its serialised examples, in one pass of the file.

  Nothing is sorted, since these files are larger than memory: a client whose rows
  do not lie together comes several times, its examples in their order.
  """
  with _connection(path) as connection:
    rows = connection.execute(
      'SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?', (split,)
    )
    for client_id, group in itertools.groupby(rows, key=lambda row: row[0]):
      yield client_id, [row[1] for row in group]


def shared_clients(
  path: str | os.PathLike, train_split: str, test_split: str
) -> Mapping[str, tuple[int, int]]:
  """Clients with examples in both splits, alphabetically, and how many in each."""
  train, test = client_counts(path, train_split), client_counts(path, test_split)
  shared = {id_: (count, test[id_]) for id_, count in train.items() if count and test.get(id_)}
  if not shared:
    raise ValueError(f'{path}: no client has examples in both {train_split} and {test_split}.')
  return shared


@contextlib.contextmanager
def _connection(path: str | os.PathLike) -> Iterator[sqlite3.Connection]:
  # A connection of its own for each call: SQLite's may not change threads.
  address = pathlib.Path(path).absolute().as_uri() + '?mode=ro'
  try:
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
      yield connection
  except sqlite3.Error as error:
    raise ValueError(
      f"{path} is not a SQLite file of TensorFlow Federated's format: {error}."
    ) from error
