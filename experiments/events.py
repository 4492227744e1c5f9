"""A run's curves as TensorBoard events."""

import pathlib
import shutil

import tensorflow as tf

from experiments.metrics import EVERYONE, MetricTable, Row


class EventWriter:
  """Writes the rows of a metric table that it has not yet written.

  A continued run starts its event file afresh from the table, so that no step is
  there twice.
  """

  def __init__(self, folder: pathlib.Path):
    shutil.rmtree(folder, ignore_errors=True)
    self._writer = tf.summary.create_file_writer(str(folder))
    self._written = 0

  def write(self, table: MetricTable) -> None:
    """Adds the groups' values (not the single clients') that came since the last call."""
    with self._writer.as_default():
      for row in table.rows[self._written :]:
        if row.group is not None:
          tf.summary.scalar(_tag(row), row.value, step=row.round)
    self._written = len(table.rows)
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()


def _tag(row: Row) -> str:
  tag = f'{row.split}/{row.metric}'
  return tag if row.group == EVERYONE else f'{tag}/{row.group}'
