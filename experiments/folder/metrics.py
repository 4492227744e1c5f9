"""The long table of a run's metrics: one row per round, split, client or group, metric."""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.folder import files

if TYPE_CHECKING:
  import pandas as pd

EVERYONE = 'all'  # the group of all clients
# Not a split of the data, but a fact about a round: epsilon so far, clipping norm, ...
ROUND = 'round'


def is_better_high(metric: str) -> bool:
  """Whether a larger value of a metric is better."""
  return 'accuracy' in metric or 'agreement' in metric


class Row(NamedTuple):
  """One value. `client` is None for a group's value, `group` None for a client's."""

  round: int
  split: str
  client: str | None
  group: str | None
  metric: str
  value: float

  @property
  def name(self) -> str:
    """The metric's name in a summary: 'test_accuracy', 'epsilon'."""
    return self.metric if self.split == ROUND else f'{self.split}_{self.metric}'


@dataclasses.dataclass
class MetricTable:
  """Rows in the order in which they came about, which is the same after a resume."""

  rows: list[Row] = dataclasses.field(default_factory=list)

  def add(self, round_: int, split: str, metric: str, value: float, group: str = EVERYONE):
    """Adds a group's value after `round_` rounds."""
    self.rows.append(Row(round_, split, None, group, metric, float(value)))

  def add_clients(
    self, round_: int, split: str, values: Mapping[str, tuple[list[str], np.ndarray]]
  ):
    """Adds clients' own values: metric -> (client ids, values)."""
    for metric, (clients, numbers) in values.items():
      self.rows += [
        Row(round_, split, client, None, metric, float(value))
        for client, value in zip(clients, numbers, strict=True)
      ]

  def latest(self, group: str = EVERYONE) -> dict[str, float]:
    """The last value of each of a group's metrics, by name ('test_accuracy')."""
    return {row.name: row.value for row in self.rows if row.group == group}

  def curve(self, name: str, group: str = EVERYONE) -> tuple[list[int], list[float]]:
    """Rounds and values of a group's metric."""
    points = [(r.round, r.value) for r in self.rows if r.group == group and r.name == name]
    return [p[0] for p in points], [p[1] for p in points]

  def of_clients(self, name: str) -> np.ndarray:
    """The clients' values of a metric after the last round of which it has any."""
    rows = [row for row in self.rows if row.client is not None and row.name == name]
    last = max((row.round for row in rows), default=0)
    return np.array([row.value for row in rows if row.round == last])

  def groups(self) -> list[str]:
    """Names of the groups, all clients first."""
    return list(dict.fromkeys(r.group for r in self.rows if r.group is not None))

  def first_divergence(self) -> Row | None:
    """The first row whose value is not a finite number (epsilon may be infinite), losses first."""
    losses = (row for row in self._not_finite() if row.metric.endswith('loss'))
    return next(losses, next(self._not_finite(), None))

  def _not_finite(self) -> Iterator[Row]:
    return (r for r in self.rows if not math.isfinite(r.value) and not r.metric.endswith('epsilon'))

  def to_frame(self) -> 'pd.DataFrame':
    """The table as pandas: round, split, client, group, metric, value."""
    import pandas as pd

    return pd.DataFrame(self.rows, columns=list(Row._fields)).astype(
      {'round': 'int64', 'value': 'float64'}
    )

  def write(self, path: pathlib.Path) -> None:
    """Writes the table as parquet, atomically."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = list(zip(*self.rows, strict=True)) or [()] * len(Row._fields)
    table = pa.table(
      [pa.array(c, type_) for c, type_ in zip(columns, _arrow_types(), strict=True)],
      names=list(Row._fields),
    )
    with files.writing_atomically(path) as temporary:
      parquet.write_table(table, temporary)

  @classmethod
  def read(
    cls, path: pathlib.Path, *, of_groups_after: Collection[int] | None = None
  ) -> 'MetricTable':
    """Reads what `write` wrote.

    Args:
      path: the file.
      of_groups_after: of the groups' rows those after so many rounds; None for all rows, which
        are many more where clients have their own.

    Raises:
      ValueError: it is no such table.
    """
    import pyarrow as pa
    from pyarrow import compute

    table = _read(path, None if of_groups_after is None else 'group')
    if of_groups_after is not None:
      rounds = pa.array(sorted(of_groups_after), pa.int64())
      table = table.filter(compute.is_in(table.column('round'), value_set=rounds))
    columns = [column.to_pylist() for column in table.columns]
    return cls(rows=[Row(*values) for values in zip(*columns, strict=True)])


def read_frame(path: pathlib.Path, whose: str) -> 'pd.DataFrame':
  """The rows of groups alone, or of clients, of a file that `MetricTable.write` wrote.

  Args:
    path: the file.
    whose: 'group' or 'client'.

  Raises:
    ValueError: it is no such table.
  """
  return _read(path, whose).to_pandas()


def check(path: pathlib.Path) -> None:
  """Refuses a file that is no table of metrics, by what stands at its end.

  Raises:
    ValueError: it is none.
  """
  import pyarrow as pa
  from pyarrow import parquet

  try:
    schema = parquet.read_schema(path)
    if lacking := [name for name in Row._fields if name not in schema.names]:
      raise KeyError(f'it has no {", ".join(lacking)}')
    for name, type_ in zip(Row._fields, _arrow_types(), strict=True):
      found = schema.field(name).type
      if found != type_ and not pa.types.is_null(found):  # of no value at all
        raise KeyError(f'{name} is of the type {found}')
  except (pa.ArrowException, KeyError, OSError) as error:
    raise ValueError(f'{path} cannot be read as a table of metrics ({error}).') from error


def _read(path: pathlib.Path, whose: str | None) -> Any:
  """The columns of `Row` as an Arrow table, of the rows that have a value in one of them."""
  import pyarrow as pa
  from pyarrow import compute, parquet

  try:
    # Without partitioning: a run's folder is named 'setting=value', too.
    table = parquet.read_table(path, columns=list(Row._fields), partitioning=None)
    if table.column_names != list(Row._fields):
      raise KeyError(f'it has {", ".join(table.column_names) or "no columns"}')
  except (pa.ArrowException, KeyError, OSError) as error:
    raise ValueError(f'{path} cannot be read as a table of metrics ({error}).') from error
  return table if whose is None else table.filter(compute.is_valid(table.column(whose)))


def _arrow_types():
  import pyarrow as pa

  text = pa.string()
  return (pa.int64(), text, text, text, text, pa.float64())
