"""Workers of a sweep that die, that are slow to stop, or that are at fault themselves."""

import collections
import os
import queue
import signal
import subprocess
import sys
import time

import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.running import interruption
from experiments.sweeps import progress as sweep_progress
from experiments.sweeps import workers as sweep_workers

UP, DIED = {'up': True}, {'died': True}
FINISHED = {'finished': True, 'refused': {}}
ROUND = {'state': (0, 1, 5, 1)}
DIES_AT_A_PROGRAM = [UP, {'state': (2, 0, 5, 1)}, DIED]  # others of its runs have ended before


class Said(sweep_progress.SweepProgress):
  """What a user is told."""

  def __init__(self, groups=()):
    names = [name for group in groups for name in group]
    left = dict.fromkeys(names, ExperimentConfig(rounds=5))
    super().__init__(left, total=len(names), groups=len(groups), shown=False)
    self.lines = []

  def say(self, message):
    self.lines.append(message)


class Fake(sweep_workers.Worker):
  """Tells what a test has it tell of what it is given."""

  def __init__(self, index, messages, tells):
    super().__init__(index, messages)
    self._tells = tells

  def _hand_out(self, names):
    for message in self._tells(self, names):
      self.tell(message)

  def ending(self):
    return 'SIGKILL'

  def ask_to_stop(self):
    if self.busy:
      self.tell(DIED)

  def wait(self):
    pass


class Sweep:
  """Programs of a run each on workers; `starts` counts how often each of these was started."""

  def __init__(self, names, size, tells):
    self.starts = collections.Counter()
    groups = [[name] for name in names]
    self.progress = Said(groups)
    self._tells = tells
    with interruption.Interruption() as caught:
      self.failures = sweep_workers.run(groups, size, self._make, caught, self.progress)
    assert not self.progress._now, 'somebody is shown who is at nothing'

  def _make(self, index, messages):
    self.starts[index] += 1
    assert self.starts.total() < 60, 'it is restarted without end'
    return Fake(index, messages, self._tells)


@pytest.mark.parametrize('deaths', [[DIED], DIES_AT_A_PROGRAM])
@pytest.mark.parametrize('names', ['ab', 'abcd', 'abcdefgh'])
def test_a_worker_that_always_dies_takes_no_program_with_it(monkeypatch, deaths, names):
  """While the other one is busy with its first."""
  held = []

  def say(self, message):
    self.lines.append(message)
    if 'is given up' in message:
      held[0].tell(FINISHED)

  def tells(worker, names):
    if worker.index == 1:
      return deaths
    if not held:
      held.append(worker)
      return [UP, ROUND]
    return [ROUND, FINISHED]

  monkeypatch.setattr(Said, 'say', say)
  done = Sweep(names, 2, tells)
  assert done.failures == {} and done.starts == {0: 1, 1: 3}
  assert done.progress.lines[-1] == (
    'worker 1 died 3 times before its first round (SIGKILL) and is given up'
  )
  of = f'{len(names)}/{len(names)}'
  assert done.progress.line() == f'runs {of}, programs {of}'


@pytest.mark.parametrize('size', [1, 2, 3])
def test_where_no_worker_starts_there_is_one_error(size):
  done = Sweep('abcdefgh', size, lambda worker, names: [DIED])
  assert done.failures.keys() == set('abcdefgh') and done.starts.total() == 3 * size
  [reason] = set(done.failures.values())
  assert reason.endswith('died 3 times before its first round (SIGKILL), and no worker is left.')


@pytest.mark.parametrize('size', [1, 2, 3, 8])
@pytest.mark.parametrize('bad', ['a', 'h', 'abcd', 'efgh'])
def test_programs_that_end_every_worker_fail_alone(size, bad):
  """As those that need too much memory; where all that are left do so, one worker is enough."""
  done = Sweep(
    'abcdefgh', size,
    lambda worker, names: DIES_AT_A_PROGRAM if names[0] in bad else [UP, ROUND, FINISHED],
  )  # fmt: skip
  assert done.failures.keys() == set(bad)
  assert all('its worker died 3 times' in reason for reason in done.failures.values())


def test_a_program_whose_worker_dies_in_its_rounds_is_tried_three_times():
  done = Sweep(
    'abc', 2, lambda worker, names: [UP, ROUND, DIED] if names == ['b'] else [UP, FINISHED]
  )
  assert done.failures == {'b': done.failures['b']}
  assert done.starts.total() <= 2 + 2  # the third time nothing is left
  assert [line.endswith('its runs are tried again') for line in done.progress.lines] == [True] * 2


def test_a_worker_at_nothing_is_not_replaced_until_it_is_needed():
  first = []

  def tells(worker, names):
    if names == ['a'] and not first:
      first.append(worker)
      return [UP, ROUND]
    if names == ['b']:
      for message in (UP, FINISHED, DIED):
        worker.tell(message)
      first[0].tell(DIED)
      return []
    return [UP, FINISHED]

  done = Sweep('ab', 2, tells)
  assert done.failures == {} and done.starts == {0: 2, 1: 1}


# A worker that takes a while to end its round.
_SLOW = """
import json, sys, time
print(json.dumps({'up': True}), flush=True)
sys.stdin.readline()
print(json.dumps({'state': [0, 1, 5, 1]}), flush=True)
sys.stdin.read()
time.sleep(float(sys.argv[1]))
open(sys.argv[2], 'w').close()
"""


class Stopped:
  """A sweep on a slow process, which a signal stops after its first round, and maybe another."""

  def __init__(self, monkeypatch, folder, seconds, *, second=False):
    start = subprocess.Popen
    self.kept, self.progress = folder / 'kept', Said([['a']])
    slow = [sys.executable, '-c', _SLOW, str(seconds), str(self.kept)]
    monkeypatch.setattr(sweep_workers, '_SECONDS_TO_STOP', 0.05)
    monkeypatch.setattr(sweep_progress, '_SECONDS_TO_SAY_SO', 0.1)
    monkeypatch.setattr(sweep_workers.subprocess, 'Popen', lambda _, **how: start(slow, **how))
    monkeypatch.setattr(Said, 'reports', lambda *state: os.kill(os.getpid(), signal.SIGTERM))
    self.processes = []

    def make(index, messages):
      worker = sweep_workers.Process(folder, 1, index, messages)
      self.processes.append(worker._process)
      return worker

    def say(shown, message):
      shown.lines.append(message)
      if second and message.startswith('waiting'):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Said, 'say', say)
    since = time.monotonic()
    with interruption.Interruption() as caught, pytest.raises(interruption.Interrupted) as stopped:
      sweep_workers.run([['a']], 1, make, caught, self.progress)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    self.seconds = time.monotonic() - since
    self.waited, *self.lines = self.progress.lines


WAITED = (
  'waiting for worker 0 to end the round and to keep its state; a second signal ends them at once'
)


def test_a_round_may_take_longer_than_anything_else_when_a_sweep_is_stopped(monkeypatch, tmp_path):
  done = Stopped(monkeypatch, tmp_path, 1.5)
  assert done.kept.exists() and [process.poll() for process in done.processes] == [0]
  assert done.waited == WAITED and not done.lines


def test_a_second_signal_ends_the_workers_at_once(monkeypatch, tmp_path):
  done = Stopped(monkeypatch, tmp_path, 60, second=True)
  assert done.seconds < 30 and not done.kept.exists()
  assert [process.poll() for process in done.processes] == [-signal.SIGKILL]
  assert done.waited == WAITED
  assert done.lines == ['the workers were ended at once; what was kept last is there']


def test_a_worker_at_nothing_that_does_not_end_is_ended(monkeypatch, tmp_path):
  slow = [sys.executable, '-c', 'import time; time.sleep(60)']
  start = subprocess.Popen
  monkeypatch.setattr(sweep_workers, '_SECONDS_TO_STOP', 0.05)
  monkeypatch.setattr(sweep_workers.subprocess, 'Popen', lambda _, **how: start(slow, **how))
  worker = sweep_workers.Process(tmp_path, 1, 0, queue.Queue())
  worker.ask_to_stop()
  worker.wait()
  assert worker.ending().startswith('SIGKILL')


# What is handed out is there before the worker has started, and so is the end of its input.
_LATE = """
import pathlib, sys, time
from experiments.sweeps import workers
class Programs:
  def __init__(self, folder, size):
    pass
  def run(self, names, report, warn):
    print('begins', names, file=sys.stderr)
    time.sleep(60)
workers.Programs = Programs
class Input:
  def __iter__(self):
    yield '["a"]'
sys.stdin = Input()
sys.setswitchinterval(5)  # whoever reads it has read all before anybody looks
sys.exit(workers.work(pathlib.Path('.'), 1))
"""


def test_a_worker_that_is_stopped_while_it_starts_begins_nothing():
  done = subprocess.run(
    [sys.executable, '-c', _LATE], stdin=subprocess.DEVNULL, capture_output=True, text=True,
    timeout=30,
  )  # fmt: skip
  assert 'begins' not in done.stderr and done.stdout == '{"up": true}\n', done


# Its rounds end when a signal has come, and what was done is kept.
_ROUNDS = """
import pathlib, sys, time
from experiments.running import interruption
from experiments.sweeps import workers
class Programs:
  def __init__(self, folder, size):
    pass
  def run(self, names, report, warn):
    with interruption.Interruption() as caught:
      caught.defer()
      while caught.signal_number is None:
        report(0, 1, 5, 1)
        time.sleep(0.01)
    print('kept', file=sys.stderr)
    raise interruption.Interrupted(caught.signal_number)
workers.Programs = Programs
sys.exit(workers.work(pathlib.Path('.'), 1))
"""


def test_a_worker_whose_parent_was_killed_keeps_its_state():
  worker = subprocess.Popen(
    [sys.executable, '-c', _ROUNDS], text=True,
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
  )  # fmt: skip
  worker.stdin.write('["a"]\n')
  worker.stdin.flush()
  assert 'up' in worker.stdout.readline() and 'state' in worker.stdout.readline()
  worker.stdout.close()  # nobody reads what it tells; the end of its input is seen later
  time.sleep(0.5)
  worker.stdin.close()
  said = worker.stderr.read()
  assert worker.wait(30) == 128 + signal.SIGTERM and said.startswith('kept\n'), said
