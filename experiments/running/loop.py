"""The round loop: runs of one process, from where they are to their last round.

There is one, for a single run and for the S runs of a sweep's program: `Population` knows
how many stand side by side, `Keeper` what is written of them, and whoever starts the loop
what is shown of it and what becomes of its end.
"""

import math
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.folder import checkpoints
from experiments.folder.metrics import ROUND, MetricTable
from experiments.running import interruption, references, spending
from experiments.running.build import Experiment
from experiments.running.clock import Clock
from experiments.running.divergence import Diverged
from experiments.running.guarantees import guarantors
from experiments.running.keeping import Keeper, Kept
from experiments.running.parts import Callback
from experiments.running.population import Population
from runtime import MemberLostError

# The rest, with every silo's own numbers, is in privacy.json.
_SUMMARY_OF_PRIVACY = (
  'private', 'unit', 'adjacency', 'condition', 'epsilon', 'delta', 'accountant', 'order',
  'pld_epsilon', 'guarantee',
)  # fmt: skip
_RECOVERIES = 3  # In a row, for a loss and those that follow while it is replaced.


class Loop:
  """The state of runs while they go on.

  Long because what becomes of a round, lost or not, is followed in one place.

  Attributes:
    runs: the experiments.
    guarantors: for each the one which computes its guarantee; see `guarantors`.
    tables: their metrics.
    rounds_done: how far they all are.
    resumed: whether they were continued from a checkpoint.
    clock: how long a round of all takes.
    machine: the runtime.
  """

  def __init__(self, population: Population, keeper: Keeper, caught: interruption.Interruption):
    self.runs = population.runs
    self.guarantors = guarantors(self.runs)
    self.tables = [MetricTable() for _ in self.runs]
    self.rounds_done, self.resumed = 0, False
    self.machine, self.clock = population.machine, Clock(population.machine)
    self._config = self.runs[0].config
    self._last = self.runs[0].last_round  # a budget's filter has the runs to itself
    self._population = population
    self._keeper = keeper
    self._caught = caught
    self._pending: list[tuple[int, Any]] = []  # metrics still on the device
    self._show: Callable[[Loop], None] = lambda loop: None
    self._callbacks: Sequence[Sequence[Callback]] = ()
    self._stop_when_diverged = False
    self._is_warned = False  # of a loss that is not finite, in a private run
    self._is_open = False  # what follows the last round is still to be done
    self._evaluated = 0  # rounds done at the last evaluation

  def start(self) -> None:
    """Sets up the states, fresh or from the last checkpoint."""
    server, clients = self._population.initial_states()
    found = self._keeper.open(self.machine.description)
    self.resumed = found is not None
    if found is not None:
      self.clock.restore(found[0].facts['clock'])
    self._take_up(server, clients, found)
    if self.rounds_done < self._last:
      # Also where no checkpoint is left, and what was released is begun again.
      _check_keys(self.runs, self._keeper.noise_keys)
      self._keeper.reserve()
    self._caught.defer()

  def _take_up(self, server: Any, clients: Any, found: Kept | None) -> None:
    """Places the initial states, or in their stead those that have been kept."""
    if self._config.client_states == 'disk':  # later ones point to records that are written over
      self._keeper.drop_after(-1 if found is None else found[0].rounds)
    kept, self.tables = (None, self.tables) if found is None else found
    if kept is not None:
      server = checkpoints.restore(server, kept.arrays, 'server')
      self.rounds_done = kept.rounds
      if self.rounds_done < self._last:
        _check_keys(self.runs, kept.facts.get('noise_keys') or [])
      server = self._population.with_noise_buffers(server)
    self._population.begin(server, clients, self.rounds_done, kept)

  def advance(
    self,
    show: Callable[['Loop'], None],
    *,
    callbacks: Sequence[Sequence[Callback]] = (),
    stop_when_diverged: bool = False,
  ) -> None:
    """Runs the rounds that are left.

    Args:
      show: called whenever there is news.
      callbacks: those of each run, told of its rounds and evaluations.
      stop_when_diverged: whether to end where a loss is not finite. Without it the runs go on,
        as those of a sweep have to, whose others are well.

    Raises:
      Interrupted: a signal came; what was done has been kept.
      Diverged: a loss is not finite.
      MemberLostError: a worker was lost, and again before there was a further round; or again and
        again while it was replaced.
    """
    self._show, self._callbacks = show, callbacks
    self._stop_when_diverged = stop_when_diverged
    self.clock.restart()
    furthest = -1
    while True:
      try:
        return self._run_rounds()
      except MemberLostError as lost:
        self._end_if_asked(lost)
        if self.rounds_done <= furthest:  # no round further than the last time
          raise
        furthest = self.rounds_done
        self._recover(lost)

  def _recover(self, lost: MemberLostError) -> None:
    """Goes on with other workers for those lost, and for those that are lost meanwhile."""
    for attempt in range(1, _RECOVERIES + 1):
      try:
        with self.clock.pause():  # it is no round's time, nor what was lost
          return self._go_back(lost)
      except MemberLostError as further:
        self._end_if_asked(further)
        if attempt == _RECOVERIES:
          raise
        print(f'{lost}; while it was replaced, {further}', file=sys.stderr)
        lost = further

  def _go_back(self, lost: MemberLostError) -> None:
    """Goes on with other workers for those lost.

    After the last whole round, if the clients' states are not lost with them; else from the last
    checkpoint, or the beginning.
    """
    self._population.close()
    recovery = self.machine.recover()
    if recovery.keeps_states and self._population.is_whole:
      self._population.again(self.rounds_done)
    else:
      self._population.is_whole = False  # until all of it is placed anew
      self.rounds_done, self._pending = 0, []
      self.tables = [MetricTable() for _ in self.runs]
      self._is_open, self._evaluated = False, 0
      self._take_up(*self._population.initial_states(), self._keeper.last())
    print(f'{lost}; {recovery.words}; going on after round {self.rounds_done}', file=sys.stderr)

  def _run_rounds(self) -> None:
    if self.rounds_done == 0 and not self.tables[0].rows:
      self._evaluate()
    while True:
      if self._is_open:
        self._end_round()
      if self.rounds_done == self._last:
        return
      self._stop_if_asked()
      is_last = self.rounds_done + 1 == self._last
      metrics = self._population.round(releases=is_last and self.runs[0].method.releases)
      self._keeper.begin(self.rounds_done + 1)
      self.rounds_done += 1
      self._pending.append((self.rounds_done, metrics))
      self._is_open = True

  def _end_round(self) -> None:
    """Does what follows a round; what is left of it, where a worker was lost in it."""
    if self._is_evaluation_due() and self._evaluated < self.rounds_done:
      self._collect(then_show=False)
      self._evaluate()
      self._evaluated = self.rounds_done
    is_end = self.rounds_done == self._last
    if self._keeper.wants_checkpoint(self.rounds_done, is_end=is_end):
      self.save()
    elif is_end or self.clock.round_is_over(len(self._pending)):
      self._collect()
    if self._keeper.wants_metrics():
      self._collect()
      self._keeper.write_metrics(self.tables)
    self._is_open = False

  def save(self) -> None:
    """Keeps where the runs are, if there is a place for it."""
    self._collect()
    if not self._keeper.holds(self.rounds_done):
      with self.clock.pause():
        prints = [run.noise_key_fingerprint for run in self.runs]
        facts = {'clock': self.clock.to_json(), 'noise_keys': prints}
        self._keeper.save(self.rounds_done, self.tables, self._population, facts)

  def privacy_report(self, index: int) -> dict[str, Any]:
    """The content of a run's privacy.json after its last round, which ends its spending.

    Args:
      index: which run.
    """
    own, report = self._keeper.spendings[index], self.guarantors[index].privacy_report
    own.record(self.rounds_done, ended=True)
    return spending.with_ledger(report(self.rounds_done), own.together(self.rounds_done))

  def _is_evaluation_due(self) -> bool:
    every = self._config.eval_every
    return self.rounds_done == self._last or (every > 0 and self.rounds_done % every == 0)

  def _stop_if_asked(self) -> None:
    number = self._caught.signal_number
    if number is not None:
      self.save()
      self._keeper.end(self.rounds_done)
      where = f'stopped after round {self.rounds_done} of {self._last}'
      raise interruption.Interrupted(number, where)

  def _end_if_asked(self, lost: MemberLostError) -> None:
    """Ends at once if a signal came, which the workers may have got, too."""
    number = self._caught.signal_number
    if number is not None:
      self._keeper.end(0)  # rounds after the last checkpoint may be lost
      round_ = self.rounds_done + (not self._is_open)  # with what follows it
      where = f'stopped in round {round_} of {self._last}, in which {lost}'
      raise interruption.Interrupted(number, where)

  def _collect(self, *, then_show: bool = True) -> None:
    """Brings the metrics of the rounds so far from the device into the tables."""
    if not self._pending:
      return
    for round_, metrics in self._pending:
      found = {n: np.atleast_1d(values) for n, values in checkpoints.flatten(metrics).items()}
      for name, values in found.items():
        split, _, rest = name.partition('_')
        known = ('train', rest) if split == 'train' else (ROUND, name)
        for table, value in zip(self.tables, values, strict=True):
          table.add(round_, *known, float(value))
      self._check_finite(round_, 'training', metrics.get('train_loss'))
      for index, callback in _each(self._callbacks):
        callback.after_round(round_, {n: float(values[index]) for n, values in found.items()})
    self.clock.looked(len(self._pending))
    self._pending = []
    if then_show:
      self._show(self)

  def _evaluate(self) -> None:
    with self.clock.pause():
      done, record = self.rounds_done, self._population.evaluate()
      for run, guarantor, table in zip(self.runs, self.guarantors, self.tables, strict=True):
        if run.private:
          table.add(done, ROUND, run.epsilon_metric, guarantor.epsilon(done))
      record(self.tables, done, each_client=done == self._last)
      self._show(self)
      if self._stop_when_diverged:
        self._check_finite(done, 'test', self.tables[0].latest().get('test_loss'))
      for index, callback in _each(self._callbacks):
        callback.after_evaluation(done, self.tables[index].latest())

  def _check_finite(self, round_: int, which: str, loss: Any) -> None:
    if loss is None or not self._stop_when_diverged or math.isfinite(loss):
      return
    if self.runs[0].private and self._population.released_is_finite():
      # One example's own loss may be infinite, and the end of the run would tell that it is there.
      if not self._is_warned:
        print(
          f'after round {round_} the {which} loss is {float(loss):g}, while the models are finite: '
          'a private run goes on, since its end would tell of whose loss it is',
          file=sys.stderr,
        )
      self._is_warned = True
      return
    if not self._keeper.holds(self.rounds_done):
      self._keeper.write_metrics(self.tables)
    raise Diverged(self._config, round_, which, float(loss))


def summary_of(loop: Loop, index: int, privacy: dict[str, Any]) -> dict[str, Any]:
  """The content of a run's summary.json.

  Args:
    loop: the runs, which are finished.
    index: which run.
    privacy: its privacy report.
  """
  table, machine = loop.tables[index], loop.machine
  return {
    'metrics': table.latest(),
    **references.facts(loop.runs[index].dataset),
    'metrics_by_group': {group: table.latest(group) for group in table.groups()},
    'privacy': {name: privacy[name] for name in _SUMMARY_OF_PRIVACY},
    'rounds': loop.rounds_done,
    'seconds_per_round': loop.clock.seconds_per_round / len(loop.runs),  # this run's share
    'compile_seconds': loop.clock.compile_seconds,
    'compilations': machine.compilations,  # since the program was started
    'compiled_programs': machine.compiled_programs,
    'peak_memory_bytes': _peak_memory_bytes(),
  }


def _check_keys(runs: Sequence[Experiment], earlier: Sequence[str | None]) -> None:
  """Refuses to run rounds with other noise than that with which the runs were begun.

  Args:
    runs: the experiments.
    earlier: the fingerprint of the key of each, None where it is not known; empty for none.
  """
  for run, key in zip(runs, earlier, strict=False):
    if key not in (None, run.noise_key_fingerprint):
      where = run.config.noise_key_file
      raise ValueError(
        f'--output_dir={run.config.output_dir} holds a run with another noise key'
        + (f' than --noise_key_file={where}' if where else ', which is gone')
        + ': rounds that are run again with other noise cost privacy twice. Choose another folder.'
      )


def _each(callbacks: Sequence[Sequence[Callback]]) -> list[tuple[int, Callback]]:
  """Every callback with the number of its run."""
  return [(index, callback) for index, own in enumerate(callbacks) for callback in own]


def _peak_memory_bytes() -> int:
  """The process's largest resident memory so far."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
