"""A run over worker processes: the numbers of one process, also when a worker is killed."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints
from experiments.running import runner
from experiments.running.parts import Callback
from runtime.hosts import ray_crew
from tests.runtime import example_process as example
from tests.runtime.local_crew import LocalCrew

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = dict(
  dataset='exam', privacy='example', delta=1e-3, target_epsilon=4.0, rounds=8, eval_every=4,
  checkpoint_every=3, device='cpu', noise_key='rehearsal',
)  # fmt: skip
FEDERATIONS = {
  'cross-silo': dict(method='mr_mtl', **SMALL),
  'cross-device': dict(
    method='ditto', dataset='digits', privacy='client', delta=1e-2, noise_multiplier=1.0,
    clients_per_round=5, rounds=8, eval_every=4, checkpoint_every=3, device='cpu',
    noise_key='rehearsal',
  ),
}  # fmt: skip
FEDERATIONS['on disk'] = {**FEDERATIONS['cross-device'], 'client_states': 'disk'}


@pytest.fixture(scope='module', autouse=True)
def _ray():
  return pytest.importorskip('ray', reason='needs the extra "cluster" (ray)')


class Killer(Callback):
  """Ends a worker process after some rounds, as a lost machine would."""

  def __init__(self, crews, rounds):
    self._crews = crews
    self._rounds = list(rounds)
    self.killed = []

  def after_round(self, round_, metrics):
    if round_ in self._rounds:
      self._rounds.remove(round_)
      (found,) = self._crews
      pid = found.gather({1: found._members[1].ready.remote()})[1]
      os.kill(pid, signal.SIGKILL)
      self.killed.append(pid)


@pytest.fixture(name='crews')
def _crews(monkeypatch):
  made = []
  plain = ray_crew.connect

  def connect(*arguments, **options):
    made.append(plain(*arguments, **options))
    return made[-1]

  monkeypatch.setattr(ray_crew, 'connect', connect)
  return made


def run(settings, **options):
  """The numbers of a run."""
  result = runner.run(ExperimentConfig(**settings), show_progress=False, **options)
  rows = [r for r in result.metrics.rows]
  values = {tuple(r[:-1]): r[-1] for r in map(tuple, rows)}
  return result, values


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('name', FEDERATIONS)
def test_a_lost_worker_changes_no_number(name, tmp_path, crews, capsys):
  plain, expected = run(FEDERATIONS[name])
  killer = Killer(crews, [5])
  found, values = run(
    {**FEDERATIONS[name], 'cohort_workers': 2, 'output_dir': str(tmp_path / 'run')},
    callbacks=[killer],
  )
  assert killer.killed
  # The round in which it was missed, or what follows that round, is done again; else all that
  # came after the last checkpoint.
  after = '[56]' if name == 'on disk' else '3'
  words = f'cohort worker 1 was lost and has been replaced; going on after round {after}'
  assert re.search(words, capsys.readouterr().err)
  example.assert_same(
    tf.nest.flatten(plain.server_state), tf.nest.flatten(found.server_state), rtol=1e-4
  )
  example.assert_same(
    tf.nest.flatten(_in_memory(plain)), tf.nest.flatten(_in_memory(found)), rtol=1e-4
  )
  assert values.keys() == expected.keys()
  np.testing.assert_allclose(
    [values[k] for k in expected], list(expected.values()), rtol=1e-3, atol=1e-5
  )
  assert found.privacy['epsilon'] == plain.privacy['epsilon']


def _in_memory(result):
  states = result.client_states
  return states.to_numpy() if isinstance(states, runtime.StoredStates) else states


def _processes_of(mark):
  """The processes that have a word in their environment."""
  found = []
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):
      if mark.encode() in (process / 'environ').read_bytes():
        found.append(int(process.name))
  return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sigint_ends_all_workers_and_the_run_goes_on_later(tmp_path):
  """As from a terminal: every process of the group has the signal, the workers too."""
  mark, folder = f'TEST_OF={tmp_path}', tmp_path / 'run'
  flags = [f'--{n}={v}' for n, v in FEDERATIONS['cross-device'].items() if n != 'rounds']
  flags += ['--rounds=100000', '--cohort_workers=2', f'--output_dir={folder}']
  with open(tmp_path / 'said', 'w') as said:
    process = subprocess.Popen(
      [sys.executable, 'run_experiment.py', *flags], cwd=ROOT, stdin=subprocess.DEVNULL,
      stdout=said, stderr=said, start_new_session=True,
      env={**os.environ, 'TEST_OF': str(tmp_path)},
    )  # fmt: skip
  while not list(folder.glob('checkpoints/round_*.npz')):
    assert process.poll() is None, (tmp_path / 'said').read_text()
    time.sleep(0.2)
  assert len(_processes_of(mark)) > 3  # ours, the workers, Ray's
  os.killpg(process.pid, signal.SIGINT)
  assert process.wait(300) == 130
  last = (tmp_path / 'said').read_text().splitlines()[-1]
  assert re.match(r'stopped after round \d+ of 100000; continue with .*--resume', last)
  for _ in range(100):
    if not _processes_of(mark):
      break
    time.sleep(0.1)
  assert not _processes_of(mark)
  kept = sorted(folder.glob('checkpoints/round_*.npz'))[-1]
  assert int(kept.stem.removeprefix('round_')) == int(re.findall(r'round (\d+) of', last)[0])
  assert len(checkpoints.load(kept).shards.files) == 2


def test_each_worker_is_given_a_gpu_or_a_part_that_fits():
  assert ray_crew.gpus_of_each('cpu', 3, 8) == ray_crew.gpus_of_each('auto', 3, 0) == 0
  for size in range(1, 20):
    for total in range(1, 9):
      each = ray_crew.gpus_of_each('gpu', size, total)
      assert each <= 1 and int(1 / each + 1e-9) * total >= size
  assert ray_crew.gpus_of_each('auto', 3, 2) == 0.5  # of 2/3 two would not fit on one
  with pytest.raises(ValueError, match='--device=gpu: the cluster has no GPU'):
    ray_crew.gpus_of_each('gpu', 1, 0)


@pytest.mark.slow
def test_workers_add_up_one_anothers_totals_by_flag(monkeypatch):
  crews = []

  def connect(address, size, **options):
    crews.append(LocalCrew(size))
    return crews[-1]

  monkeypatch.setattr(ray_crew, 'connect', connect)
  settings = {**FEDERATIONS['cross-silo'], 'rounds': 2}
  plain, _ = run(settings)
  found, _ = run({**settings, 'cohort_workers': 4, 'cohort_fan_in': 2})
  assert sum(method == 'add_up' for _, method, _ in crews[0].calls) >= 2 * 2
  example.assert_same(
    tf.nest.flatten(plain.server_state), tf.nest.flatten(found.server_state), rtol=1e-4
  )


class LosingCrew(LocalCrew):
  """Loses a member in its fifth round, and another one while that one is replaced."""

  def __init__(self, size):
    super().__init__(size)
    self._losses = [('work', 1), ('place_states', 0)]

  def gather(self, calls):
    method, lost = self._losses[0] if self._losses else (None, None)
    begun = [own for index, own, _ in self.calls if index == lost]
    if begun.count('work') >= 5 and begun[-1] == method:
      del self._losses[0]
      self.lost = {lost}
    return super().gather(calls)


@pytest.mark.slow
def test_a_further_worker_that_is_lost_in_a_recovery_changes_no_number(monkeypatch, capsys):
  crews, found = [LocalCrew(2), LosingCrew(2)], []
  for crew in crews:
    monkeypatch.setattr(ray_crew, 'connect', lambda *arguments, _crew=crew, **options: _crew)
    found.append(run({**FEDERATIONS['cross-device'], 'cohort_workers': 2}))
  assert not crews[1]._losses
  assert capsys.readouterr().err.splitlines() == [
    'gone; while it was replaced, gone',
    'gone; cohort worker 0 was lost and has been replaced; going on after round 0',
  ]
  (well, values), (lost, again) = found
  example.assert_same(well.server_state, lost.server_state, rtol=0)
  example.assert_same(well.client_states, lost.client_states, rtol=0)
  assert values == again


def test_a_worker_that_holds_the_others_up_is_named_on_the_terminal(monkeypatch, capsys):
  """Though warnings are turned away there."""
  monkeypatch.setattr(ray_crew, 'connect', lambda address, size, **options: LocalCrew(size))
  config = ExperimentConfig(**FEDERATIONS['cross-device'], cohort_workers=2)
  with warnings.catch_warnings(), runner.create_runtime(config) as machine:
    for _ in range(20):
      machine._watch_stragglers([1.0, 3.0])
  assert 'Cohort worker 1 (' in capsys.readouterr().err


def test_what_workers_wait_for_is_said_on_the_terminal(monkeypatch, capfd):
  def connect(address, size, *, tell, **options):
    tell('waiting')
    return LocalCrew(size)

  monkeypatch.setattr(ray_crew, 'connect', connect)
  with warnings.catch_warnings():
    runner.create_runtime(ExperimentConfig(**FEDERATIONS['cross-device'], cohort_workers=2)).close()
  assert capfd.readouterr().err.startswith('waiting\n')


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    (dict(cohort_fan_in=2), '--cohort_fan_in=2 needs --cohort_workers'),
    (dict(cohort_fan_in=1, cohort_workers=4), '--cohort_fan_in=1 adds nothing up'),
  ],
)
def test_a_tree_of_nothing_is_refused(options, words):
  with pytest.raises(ValueError, match=words):
    ExperimentConfig(**FEDERATIONS['cross-silo'], **options)
