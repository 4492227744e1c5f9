"""Sweeps on a Ray cluster: the same table, dead workers, a stop, and nothing left behind."""

import os
import re
import signal
import sys
import time

import pandas as pd
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.running import interruption, runner
from experiments.sweeps import cluster as sweep_cluster
from experiments.sweeps import sweep
from experiments.sweeps.grid import Grid
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
def test_a_stopped_sweep_on_somebodys_cluster_continues(ray, expected, tmp_path, monkeypatch):
  with watching.somebodys_cluster(tmp_path / 'cluster') as (address, _):

    def stop(self, worker, ended, rounds_done, rounds, runs):
      if 0 < rounds_done < rounds:
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
