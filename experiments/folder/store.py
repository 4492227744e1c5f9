"""The checkpoints of runs that go on together, with the metrics that belong to them."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from experiments.folder import checkpoints, files
from experiments.folder.metrics import MetricTable

_NAMES = 'runs.json'


def kept_together(folder: pathlib.Path, among: Collection[str]) -> list[list[str]]:
  """The names of runs, of some, that have checkpoints in common below a folder, in their order."""
  found = [[name for name in names if name in among] for names in _kept(folder).values()]
  return [names for names in found if names]


def place_of(folder: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """Where below a folder runs that go on together have their checkpoints.

  That is where they have some, in common with others maybe that have ended or cannot go on.
  """
  for path, others in _kept(folder).items():
    if set(names) <= set(others):
      return path
  return folder / hashlib.sha256('\n'.join(names).encode()).hexdigest()[:16]


def _kept(folder: pathlib.Path) -> dict[pathlib.Path, list[str]]:
  found = {}
  for path in sorted(folder.glob(f'*/{_NAMES}')):
    with contextlib.suppress(FileNotFoundError):  # of another worker, which has ended its runs
      found[path.parent] = json.loads(path.read_text())
  return found


class Store:
  """Keeps the state of one run, or of the runs of a sweep's program, and finds it again."""

  def __init__(
    self,
    path: pathlib.Path,
    *,
    fingerprint: str,
    tables: Sequence[pathlib.Path],
    names: Sequence[str] = (),
  ):
    """Makes nothing yet.

    Args:
      path: the folder of the checkpoints.
      fingerprint: of what is run; a checkpoint of anything else is not used.
      tables: each run's `metrics.parquet`.
      names: the runs' names, if somebody has to know which go on together (see `kept_together`);
        a checkpoint may have others beside them.
    """
    self.path = path
    self._names = list(names)
    self._fingerprint = fingerprint
    self._tables = tables

  def save(self, checkpoint: checkpoints.Checkpoint, tables: Sequence[MetricTable]) -> None:
    """Writes the metrics, then the checkpoint which counts on them."""
    for table, path in zip(tables, self._tables, strict=True):
      table.write(path)
    facts = {
      **checkpoint.facts,
      'fingerprint': self._fingerprint,
      'names': self._names,
      'num_rows': [len(table.rows) for table in tables],
    }
    self.path.mkdir(parents=True, exist_ok=True)
    if self._names:
      files.write_json(self.path / _NAMES, self._names)
    checkpoints.save(
      self.path,
      dataclasses.replace(checkpoint, facts=facts),
    )

  def save_shards(
    self, rounds: int, visit: Callable[[Callable[..., Any]], list[Any]]
  ) -> checkpoints.Shards | None:
    """Has the clients' states written where they are, for the next checkpoint to name.

    Args:
      rounds: rounds done.
      visit: `runtime.ClientStates.visit`.

    Returns:
      The shards; None if whoever has the states does not see this folder.
    """
    folder = checkpoints.new_shards(self.path.resolve(), rounds)
    found = visit(functools.partial(checkpoints.save_shard, folder=str(folder)))
    if all(shard is not None and (folder / shard['name']).exists() for shard in found):
      return checkpoints.Shards(folder=str(folder), files=found)
    shutil.rmtree(folder, ignore_errors=True)
    return None

  def load(
    self, warn: Callable[[str], None]
  ) -> tuple[checkpoints.Checkpoint, list[MetricTable]] | None:
    """The last usable checkpoint and the metrics up to it; None to start anew.

    Args:
      warn: told about each checkpoint that cannot be used.
    """
    for path in reversed(checkpoints.list_files(self.path)):
      try:
        checkpoint = checkpoints.load(path)
        if checkpoint.facts.get('fingerprint') != self._fingerprint:
          raise checkpoints.CheckpointError('it is of another configuration')
        names = checkpoint.facts.get('names', self._names)  # older ones do not say
        if names != self._names:
          checkpoint = _of_some(checkpoint, names, self._names)
        tables = [MetricTable.read(table) for table in self._tables]
        counts = np.atleast_1d(checkpoint.facts['num_rows'])  # a number in older runs
        if any(len(t.rows) < count for t, count in zip(tables, counts, strict=True)):
          raise checkpoints.CheckpointError('metrics.parquet has lost rows')
        rows = [t.rows[:count] for t, count in zip(tables, counts, strict=True)]
        return checkpoint, [MetricTable(rows=kept) for kept in rows]
      except (ValueError, OSError) as error:
        warn(f'{path.name} cannot be used: {error}; an earlier one is taken')
    return None

  @property
  def client_states(self) -> pathlib.Path:
    """The folder of the clients' states with `--client_states=disk`, beside the checkpoints."""
    return checkpoints.client_states(self.path)

  def drop_after(self, rounds_done: int) -> None:
    """Removes the checkpoints after so many rounds."""
    for path in checkpoints.list_files(self.path):
      if checkpoints.rounds_of(path) > rounds_done:
        path.unlink()

  def remove(self) -> None:
    """Removes the checkpoints."""
    shutil.rmtree(self.path, ignore_errors=True)


def _of_some(
  checkpoint: checkpoints.Checkpoint, names: Sequence[str], wanted: Sequence[str]
) -> checkpoints.Checkpoint:
  """Of a checkpoint of several runs what belongs to some of them.

  Raises:
    CheckpointError: it does not have them all, or not to itself.
  """
  if not set(wanted) <= set(names):
    raise checkpoints.CheckpointError('it is of other runs')
  chosen, arrays = [names.index(name) for name in wanted], {}
  for path, array in checkpoint.arrays.items():
    whose, *_ = path.split('/')
    if whose not in ('server', 'clients'):
      raise checkpoints.CheckpointError("it has clients' states on disk, of other runs too")
    # The settings' axis is the server's first one; each setting's clients are side by side.
    parts = np.split(array, len(names))
    arrays[path] = np.concatenate([parts[index] for index in chosen])
  facts = dict(checkpoint.facts)
  for name in ('num_rows', 'noise_keys'):
    if name in facts:
      facts[name] = [facts[name][index] for index in chosen]
  return dataclasses.replace(checkpoint, arrays=arrays, facts=facts)
