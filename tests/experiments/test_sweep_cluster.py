"""Sweeps on a Ray cluster: the same table, dead workers, a stop, and nothing left behind."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pandas as pd
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.running import interruption, runner
from experiments.sweeps import cluster as sweep_cluster
from experiments.sweeps import sweep
from experiments.sweeps import workers as sweep_workers
from experiments.sweeps.grid import Grid
from experiments.sweeps.progress import SweepProgress
from tests.experiments import watching

SMALL = dict(
  method='mr_mtl', dataset='exam', privacy='example', delta=1e-3, target_epsilon=4.0, rounds=400,
  eval_every=100, checkpoint_every=0, device='cpu',
  noise_key='rehearsal',
)  # fmt: skip
GRID = Grid.parse(SMALL, ['batch_size=16,32'], ['0'])


@pytest.fixture(name='ray', scope='module')
def _ray():
  return pytest.importorskip('ray', reason='needs the extra "cluster" (ray)')


@pytest.fixture(name='expected', scope='module')
def _expected(ray, tmp_path_factory):
  """The table of the sweep without a cluster."""
  return sweep.run(GRID, folder=tmp_path_factory.mktemp('plain'), show_progress=False).table


def equal(table: pd.DataFrame, expected: pd.DataFrame) -> bool:
  pd.testing.assert_frame_equal(table, expected, rtol=1e-5, atol=1e-5)
  return True


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cluster_gives_the_same_table_although_a_worker_is_killed(
  ray, expected, tmp_path, monkeypatch
):
  killed, addresses = [], set()

  def report(self, worker, *state):
    ours = watching.descendants()
    addresses.update(watching.listening(ours))
    runners = [pid for pid, command in ours.items() if command.startswith('ray::_Runner')]
    if runners and not killed:
      killed.append(runners[0])
      os.kill(runners[0], signal.SIGKILL)

  monkeypatch.setattr(sweep.SweepProgress, 'reports', report)
  before = set(watching.descendants())
  result = sweep.run(
    GRID, folder=tmp_path / 'sweep', workers=2, cluster='local', show_progress=False
  )
  assert killed and equal(result.table, expected)
  assert addresses <= watching.LOOPBACK
  assert addresses, 'nothing was seen to listen'
  until = time.monotonic() + 20
  while set(watching.descendants()) - before and time.monotonic() < until:
    time.sleep(0.2)
  left = {pid: words for pid, words in watching.descendants().items() if pid not in before}
  assert not any('ray' in words for words in left.values()), left


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_all_workers_tell_is_there_again_after_its_loss(ray, tmp_path):
  """It is on any of the machines, with whose loss each worker would end, and every later one."""
  with sweep_cluster.connected('local', 1, tmp_path) as cluster:
    board = cluster._board
    ray.get(board.warn.remote(0, 'it is there'))
    [pid] = [p for p, words in watching.descendants().items() if words.startswith('ray::_Board')]
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # the first call may meet its end
      assert not ray.get(board.is_stopping.remote(), timeout=60)
    assert ray.get(board.take.remote(0), timeout=60) == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_stopped_sweep_on_somebodys_cluster_continues(ray, expected, tmp_path, monkeypatch):
  with watching.somebodys_cluster(tmp_path / 'cluster') as (address, _):
    stopped = []

    def stop(self, worker, ended, rounds_done, rounds, runs):
      if 0 < rounds_done < rounds and not stopped:  # a second signal would end it at once
        stopped.append(rounds_done)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
      patch.setattr(sweep.SweepProgress, 'reports', stop)
      with pytest.raises(interruption.Interrupted, match='--resume'):
        sweep.run(GRID, folder=tmp_path / 'sweep', cluster=address, show_progress=False)
    assert list((tmp_path / 'sweep' / 'checkpoints').rglob('*.npz'))
    with pytest.raises(ValueError, match='--workers=3: the cluster has 2 CPUs'):
      grid = Grid.parse(SMALL, ['batch_size=8,16,32'], ['0'])
      sweep.run(grid, folder=tmp_path / 'b', workers=3, cluster=address, show_progress=False)
    again = sweep.run(
      GRID, folder=tmp_path / 'sweep', resume=True, cluster=address, show_progress=False
    )
    assert equal(again.table, expected)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_signal_to_all_processes_ends_a_sweep_on_a_cluster_of_its_own(ray, tmp_path):
  """As a scheduler sends it; and the sweep goes on, without a word of TFF's at its end."""
  own = dict(
    dataset='digits', method='fedavg', rounds=9000, checkpoint_every=20, eval_every=0, device='cpu',
    seeds='0', workers=2, cluster='local', sweep='batch_size=8,16',
  )  # fmt: skip
  with watching.command(own, tmp_path) as command:
    until = time.monotonic() + 120
    while not re.search(r'round \d+/', command.said()):
      assert command.process.poll() is None and time.monotonic() < until, command.said()
      time.sleep(0.1)
    os.killpg(command.process.pid, signal.SIGTERM)
    assert command.process.wait(60) == 128 + signal.SIGTERM, command.said()
    command.assert_ended()
  assert '--resume' in command.said().splitlines()[-1], command.said()
  with watching.command({}, tmp_path, '--resume') as command:
    assert command.process.wait(300) == 0, command.said()
  assert 'Exception ignored' not in command.said(), command.said()
  assert (tmp_path / 'run' / 'sweep.json').exists()


@pytest.mark.parametrize(
  ('address', 'words'),
  [
    ('ray://127.0.0.1:9', 'nothing answers at 127.0.0.1:9'),
    ('127.0.0.1:9', 'nothing answers at'),
    ('here', 'must be local, ray://host:port or host:port'),
  ],
)
def test_an_address_without_a_cluster_is_one_line(ray, tmp_path, address, words):
  with pytest.raises(ValueError, match=f'--cluster={address}.* {words}') as caught:
    sweep.run(GRID, folder=tmp_path / 'a', cluster=address, show_progress=False)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('answer', [b'', b'HTTP/1.0 400 Bad Request\r\n\r\n'])
def test_something_else_at_the_address_is_one_line(ray, tmp_path, monkeypatch, answer):
  """Ray itself would try for many minutes."""
  monkeypatch.setattr(sweep_cluster.cluster, '_SECONDS_TO_CONNECT', 0.5)
  with socket.create_server(('', 0)) as listening:

    def serve():
      with listening.accept()[0] as connection:
        connection.sendall(answer)
        connection.recv(1)  # it is held as long as the other side wants
        time.sleep(1)

    threading.Thread(target=serve, daemon=True).start()
    address = f'127.0.0.1:{listening.getsockname()[1]}'
    with pytest.raises(ValueError, match=f'--cluster={address}: what listens .* no Ray cluster'):
      sweep.run(GRID, folder=tmp_path / 'a', cluster=address, show_progress=False)
  assert not (tmp_path / 'a').exists()


def test_an_error_of_rays_without_words_has_some(monkeypatch):
  """As where something else than a cluster answers."""

  def init(**options):
    raise RuntimeError

  ray = types.SimpleNamespace(init=init, shutdown=lambda: None)
  monkeypatch.setattr(sweep_cluster.cluster, 'import_ray', lambda address: ray)
  monkeypatch.setattr(sweep_cluster.cluster, '_check_address', lambda ray, address: None)
  connected = sweep_cluster.cluster.connected('here:1', workers=1, flag='workers')
  with pytest.raises(ValueError, match='here:1: no Ray cluster answers'), connected:
    pass


@pytest.mark.parametrize('cluster', ['', 'local'])
def test_without_the_extra_a_run_is_refused_before_its_data_are_loaded(
  tmp_path, monkeypatch, cluster
):
  monkeypatch.setitem(sys.modules, 'ray', None)
  folder = tmp_path / 'run'
  config = ExperimentConfig(
    dataset='school', data_dir=str(tmp_path), cohort_workers=2, output_dir=str(folder)
  )
  asked = '--cluster=local' if cluster else '--cohort_workers=2'
  with pytest.raises(ValueError, match=f'{asked} needs Ray.*--extra cluster'):
    runner.run(config, cluster=cluster)
  assert not folder.exists()


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with (
    pytest.raises(ValueError, match=r'--cluster=local needs Ray.*--extra cluster'),
    sweep_cluster.connected('local', 1, tmp_path),
  ):
    pass


class Reference:
  """What a call of a fake actor gives, sooner or later."""

  def __init__(self, value=None):
    self.value, self.is_there = value, threading.Event()

  def give(self, value):
    self.value = value
    self.is_there.set()
    return self


class FakeActor:
  """A runner or the board, with methods that are called as Ray's are."""

  class Method:
    def __init__(self, method):
      self.remote = method

  def __init__(self, **methods):
    for name, method in methods.items():
      setattr(self, name, self.Method(method))


class FakeRay:
  """A cluster whose one runner takes `seconds` to keep its state, or never starts.

  The first `lost` calls to stop are lost with the board.
  """

  def __init__(self, *, gpus=0, seconds=0.0, starts=True, cpus=(8,), lost=0):
    self._lost, self._stops = lost, 0
    self.asked, self.happened, self.made = [], [], []
    self._cpus = cpus
    self._gpus, self._seconds = gpus, seconds
    self._ready, self._ran = Reference(), Reference()
    if starts:
      self._ready.give(True)

  def cluster_resources(self):
    return {'CPU': 8.0, 'GPU': float(self._gpus)}

  available_resources = cluster_resources

  def nodes(self):
    # One that is lost stays in Ray's list, without anything, and a machine may have GPUs alone.
    mine = [{'Alive': True, 'Resources': {'CPU': float(n), 'memory': 1e9}} for n in self._cpus]
    return [*mine, {'Alive': False, 'Resources': {}}, {'Alive': True, 'Resources': {'GPU': 1.0}}]

  def remote(self, **options):
    self.asked.append(options)
    news = [{'state': (0, 1, 400, 1)}]
    board = FakeActor(take=lambda index: Reference().give(news), stop=self._stop)
    runner = FakeActor(ready=lambda: self._ready, run=lambda names: self._ran)
    made = {sweep_cluster._Board: board, sweep_cluster._Runner: runner}
    return lambda kind: FakeActor.Method(
      lambda *arguments: self.made.append((kind, arguments)) or made[kind]
    )

  def _stop(self):
    self._stops += 1
    if self._stops == self._lost + 1 and self._ready.is_there.is_set():
      threading.Timer(self._seconds, self._end, ['kept', {'died': True}]).start()

  def _end(self, how, value):
    self.happened.append(how)
    for reference in (self._ready, self._ran):
      if not reference.is_there.is_set():
        reference.give(value)

  def kill(self, actor):
    self._end('killed', RuntimeError('it was killed'))

  def wait(self, references, timeout):
    [reference] = references
    return (references, []) if reference.is_there.wait(timeout) else ([], references)

  def get(self, reference):
    reference.is_there.wait()
    if isinstance(reference.value, Exception):
      raise reference.value
    return reference.value


def connected(monkeypatch, ray, workers, folder):
  """A context with the cluster, which is a fake one."""

  @contextlib.contextmanager
  def connect(address, **options):
    yield ray

  monkeypatch.setattr(sweep_cluster.cluster, 'connected', connect)
  return sweep_cluster.connected('local', workers, folder)


@pytest.mark.parametrize(
  ('workers', 'gpus', 'each'), [(3, 2, 1 / 2), (2, 2, 1), (1, 4, 1), (5, 2, 1 / 3), (3, 0, 0)]
)
def test_all_workers_find_a_gpu_or_a_part_of_one(monkeypatch, tmp_path, workers, gpus, each):
  """Ray takes a part of one GPU only: of 2/3 two would not fit on it, and the third would wait."""
  ray = FakeRay(gpus=gpus)
  with connected(monkeypatch, ray, workers, tmp_path):
    [found] = [options['num_gpus'] for options in ray.asked if 'num_gpus' in options]
  assert found == each and (not each or int(1 / found + 1e-9) * gpus >= workers)


@pytest.mark.parametrize(
  ('workers', 'cpus', 'share'), [(3, (8,), 3), (8, (2, 4), 4), (6, (1,) * 6, 1)]
)
def test_workers_of_one_machine_share_its_memory(monkeypatch, tmp_path, workers, cpus, share):
  """As processes do: runs stand side by side in a part of it, and any machine may have most."""
  seen = []
  monkeypatch.setattr(
    sweep_workers, 'Programs', lambda folder, workers=1: seen.append((folder, workers))
  )
  ray = FakeRay(cpus=cpus)
  with connected(monkeypatch, ray, workers, tmp_path) as cluster:
    cluster.make_worker(0, queue.Queue())
  [arguments] = [given for kind, given in ray.made if kind is sweep_cluster._Runner]
  sweep_cluster._Runner(*arguments)
  assert seen == [(tmp_path.resolve(), share)]


def stopped(monkeypatch, ray, folder, when):
  """What is said of a sweep that a signal stops at what a user is told."""
  said = []

  class Said(SweepProgress):
    def say(self, message):
      said.append(message)
      if message.startswith(when):
        os.kill(os.getpid(), signal.SIGTERM)

    def reports(self, worker, *state):
      self.warn('it has begun')

  progress = Said({'a': ExperimentConfig(rounds=400)}, total=1, groups=1, shown=False)
  with (
    connected(monkeypatch, ray, 1, folder) as cluster,
    interruption.Interruption() as caught,
    pytest.raises(interruption.Interrupted),
  ):
    sweep_workers.run([['a']], 1, cluster.make_worker, caught, progress)
  return said


def test_a_worker_is_let_keep_its_state_however_long_that_takes(monkeypatch, tmp_path):
  monkeypatch.setattr(sweep_workers, '_SECONDS_TO_STOP', 0.05)
  ray = FakeRay(seconds=1.0)
  assert stopped(monkeypatch, ray, tmp_path, 'it has begun') == ['it has begun']
  assert ray.happened[0] == 'kept' and set(ray.happened[1:]) == {'killed'}


def test_a_stop_that_is_lost_with_the_board_is_said_again(monkeypatch, tmp_path):
  ray = FakeRay(lost=1)
  second = threading.Timer(20.0, os.kill, [os.getpid(), signal.SIGTERM])
  second.start()
  try:
    stopped(monkeypatch, ray, tmp_path, 'it has begun')
  finally:
    second.cancel()
  assert ray.happened[0] == 'kept'


def test_a_worker_that_does_not_start_is_said_and_can_be_stopped(monkeypatch, tmp_path):
  monkeypatch.setattr(sweep_cluster, '_SECONDS_TO_SAY_SO', 0.05)
  ray = FakeRay(gpus=1, starts=False)
  assert stopped(monkeypatch, ray, tmp_path, 'waiting for worker 0 to start') == [
    'waiting for worker 0 to start; each takes a CPU and 1 GPU of the cluster: '
    '8 of its 8 CPUs are free and 1 of its 1 GPUs are free'
  ]
  assert 'kept' not in ray.happened


# A worker of a cluster of our own, which has been told to stop.
_DEAF = """
import os, signal, sys, threading, time, types
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from experiments.running import interruption
from experiments.sweeps import cluster
sys.modules['ray'] = types.SimpleNamespace(get=lambda found: found)
stop = types.SimpleNamespace(remote=lambda: True)
runner = types.SimpleNamespace(_board=types.SimpleNamespace(is_stopping=stop))
with interruption.Interruption() as caught:
  caught.defer()
  if sys.argv[1:] == ['all']:
    os.kill(os.getpid(), signal.SIGTERM)
  cluster._Runner._watch(runner, threading.Event())
  time.sleep(0.2)
print(caught._handled, caught.signal_number)
"""


@pytest.mark.parametrize('who', ['worker', 'all'])
def test_a_worker_that_hears_no_signal_is_stopped_by_one(who):
  """Also if a scheduler has sent it one, which it heard as little: a second one would end it."""
  done = subprocess.run([sys.executable, '-c', _DEAF, who], capture_output=True, text=True)
  assert done.stdout == f'1 {signal.SIGTERM:d}\n', done
