"""What is written of runs while they go on."""

import itertools
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from experiments.folder import checkpoints, events, noise_correlations
from experiments.folder.metrics import MetricTable
from experiments.folder.results import RunFolder
from experiments.folder.store import Store
from experiments.running.build import Experiment
from experiments.running.guarantees import guarantors
from experiments.running.population import Population
from experiments.running.spending import Spending

_LEAST_PAUSE = 20  # Between two checkpoints, by what one takes.

Kept: TypeAlias = tuple[checkpoints.Checkpoint, list[MetricTable]]


class Keeper:
  """Each run's metrics and guarantee in its folder, and one checkpoint of all.

  Without folders nothing is written.

  Attributes:
    spendings: each run's lines in the ledger of its data.
  """

  def __init__(
    self,
    runs: Sequence[Experiment],
    folders: Sequence[RunFolder],
    store: Store | None,
    *,
    with_events: bool = False,
    seconds_between_checkpoints: float = 0.0,
    keeps_end: bool = True,
    seconds_between_writes: float = math.inf,
    reserved: Sequence[Spending] | None = None,
  ):
    """Writes nothing yet.

    Args:
      runs: the runs.
      folders: each one's folder; none at all if nothing is written.
      store: where the checkpoints go; None if nothing is written.
      with_events: whether there are TensorBoard events too.
      seconds_between_checkpoints: at least, whatever `checkpoint_every` says; if positive, also
        at least 20 times what the last one took.
      keeps_end: whether there is a checkpoint after the last round, whatever `checkpoint_every`
        says.
      seconds_between_writes: of the metrics, between checkpoints.
      reserved: each run's lines in the ledger, where they have been reserved already, after
        `record`.
    """
    self._runs = runs
    self._guarantors = guarantors(runs)
    self._is_reserved = reserved is not None
    if reserved is None:
      reserved = [Spending(run, folder) for run, folder in itertools.zip_longest(runs, folders)]
    self.spendings = reserved
    self._folders = folders
    self._store = store
    self._with_events = with_events
    self._events: list[events.EventWriter] = []
    self._seconds_between_checkpoints = seconds_between_checkpoints
    self._pause = seconds_between_checkpoints
    self._keeps_end = keeps_end
    self._seconds_between_writes = seconds_between_writes
    self._last_checkpoint = self._last_write = time.monotonic()
    self._saved_rounds: int | None = None
    self._begun = False
    self._rounds_run = 0  # the most, also of those that were lost and are run again

  def open(self, machine: str) -> Kept | None:
    """Records what is run where; returns the state to continue from, None to start anew.

    Args:
      machine: the runtime's description.

    Raises:
      ValueError: see `RunFolder.record_environment`; or what is there is damaged.
    """
    for run, folder in zip(self._runs, self._folders, strict=False):
      if not self._is_reserved:  # a second time it would not see by which code a run was begun
        record(run, folder, machine)
      privacy = folder.read_json('privacy.json') or {}
      self._rounds_run = max(self._rounds_run, privacy.get('rounds', 0))
    found = None
    if self._store is not None and all(folder.resuming for folder in self._folders):
      if any(folder.begun_by_other_code for folder in self._folders):
        _warn('this run was begun by another version of the code or its packages')
      found = self._store.load(_warn)
    if self._with_events:
      self._events = [events.EventWriter(f.path / 'tensorboard') for f in self._folders]
    return found

  @property
  def noise_keys(self) -> list[str | None]:
    """The fingerprint of the key with which each folder's run was begun; None if not known."""
    return [folder.noise_key_fingerprint for folder in self._folders]

  def last(self) -> Kept | None:
    """What was kept last of these runs, now or before they were resumed; None if nothing was."""
    is_theirs = self._saved_rounds is not None or all(f.resuming for f in self._folders)
    return self._store.load(_warn) if self._store is not None and is_theirs else None

  def drop_after(self, rounds_done: int) -> None:
    """Drops the checkpoints after so many rounds, which could not be used."""
    if self._store is not None:
      self._store.drop_after(rounds_done)

  @property
  def begun(self) -> bool:
    """Whether a round has been run, now or before the runs were continued."""
    return self._begun or any(folder.begun for folder in self._folders)

  def begin(self, round_: int) -> None:
    """Records that a round is being run, before anything of it is shown or written."""
    self._begun = True
    self._rounds_run = max(self._rounds_run, round_)
    for run, folder in zip(self._runs, self._folders, strict=False):
      folder.begin(run.noise_key_fingerprint)

  def wants_checkpoint(self, rounds_done: int, *, is_end: bool) -> bool:
    """Whether it is time for a checkpoint."""
    if is_end and self._keeps_end:
      return True
    every = self._runs[0].config.checkpoint_every
    since = time.monotonic() - self._last_checkpoint
    due = every > 0 and rounds_done % every == 0
    return due and since >= self._pause

  def wants_metrics(self) -> bool:
    """Whether it is time to write the metrics, for whoever looks on."""
    since = time.monotonic() - self._last_write
    return bool(self._folders) and since > self._seconds_between_writes

  def write_metrics(self, tables: Sequence[MetricTable]) -> None:
    """Writes each run's metrics."""
    self._write_spent()
    for folder, table in zip(self._folders, tables, strict=True):
      table.write(folder.path / 'metrics.parquet')
    self._last_write = time.monotonic()

  def holds(self, rounds_done: int) -> bool:
    """Whether there is nothing new to be saved, or nowhere."""
    return self._store is None or not self.begun or self._saved_rounds == rounds_done

  def save(
    self,
    rounds_done: int,
    tables: Sequence[MetricTable],
    population: Population,
    facts: dict[str, Any],
  ) -> None:
    """Writes everything that continued runs need, and what a reader wants to see."""
    assert self._store is not None
    started = time.monotonic()
    self._write_spent()
    shards = None
    if population.clients.visit is not None:
      shards = self._store.save_shards(rounds_done, population.clients.visit)
    arrays = population.arrays(with_clients=shards is None)
    self._store.save(
      checkpoints.Checkpoint(rounds=rounds_done, arrays=arrays, facts=facts, shards=shards), tables
    )
    for writer, table in zip(self._events, tables, strict=False):
      writer.write(table)
    self._last_checkpoint = self._last_write = time.monotonic()
    if self._seconds_between_checkpoints > 0:
      took = self._last_checkpoint - started
      self._pause = max(self._seconds_between_checkpoints, _LEAST_PAUSE * took)
    self._saved_rounds = rounds_done

  def _write_spent(self) -> None:
    # First: what the tables hold has been spent, and so have rounds that were lost.
    for own in self.spendings:
      own.record(self._rounds_run)
    for folder, guarantor in zip(self._folders, self._guarantors, strict=True):
      folder.write_json('privacy.json', guarantor.privacy_so_far(self._rounds_run))

  def reserve(self) -> None:
    """Asks the ledger for all that the runs may spend, unless that has been done.

    Raises:
      BudgetError: one of them would pass its budget.
    """
    if not self._is_reserved:
      for own in self.spendings:
        own.reserve()

  def end(self, rounds_done: int) -> None:
    """Records that no other round will be run for now.

    Where all that were run have been kept, each folder says so. How many a process that was killed
    had run beyond its last checkpoint nobody knows before they are all run.
    """
    if not self.begun:
      return
    for own in self.spendings:
      own.record(self._rounds_run, ended=True)
    for folder in self._folders:
      if rounds_done >= self._rounds_run and not folder.was_killed:
        folder.rest()

  def close(self) -> None:
    """Ends the events. Runs of which no round was run have spent nothing."""
    if not self.begun:
      for own in reversed(self.spendings):  # the ledger gives back what was written last
        own.withdraw()
    for writer in self._events:
      writer.close()


def record(run: Experiment, folder: RunFolder, machine: str) -> None:
  """Records in a run's folder what is run where; arguments and errors as of `Keeper.open`."""
  checksums = run.dataset.checksums
  folder.record_environment(checksums, {'runtime': machine}, contents=run.contents)
  if run.fitted_correlation is not None:
    noise_correlations.write(folder.path, run.fitted_correlation)


def _warn(message: str) -> None:
  print(message, file=sys.stderr)
