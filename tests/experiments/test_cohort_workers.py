"""A run over worker processes: the numbers of one process, also when a worker is killed."""

import os
import re
import signal
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints
from experiments.running import interruption, runner
from experiments.running.parts import Callback
from runtime.hosts import ray_crew
from tests.experiments import watching
from tests.runtime import example_process as example
from tests.runtime.local_crew import LocalCrew

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
# Of rounds enough for a worker to be killed from outside between the first and the last.
SPREAD = {**FEDERATIONS['cross-device'], 'rounds': 200, 'eval_every': 200, 'checkpoint_every': 10}


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


INSIDE = {
  'in memory': dict(cohort_workers=2),
  'on disk': dict(cohort_workers=2, client_states='disk'),
  'in a tree': dict(cohort_workers=3, cohort_fan_in=2),
}


class KillerInside(Callback):
  """Ends a worker at work, in a round of which all the others have done their part."""

  def __init__(self, ray, crews, round_, monkeypatch):
    self._ray, self._crews, self._round = ray, crews, round_
    self._due = self.killed = None
    self._tasks = {}  # what the members' last ones give
    self._gather = ray_crew.RayCrew.gather
    monkeypatch.setattr(
      ray_crew.RayCrew, 'gather', lambda crew, calls: self._meanwhile(crew, calls)
    )
    for name in ('call', 'call_for_two'):
      monkeypatch.setattr(ray_crew.RayCrew, name, self._noted(getattr(ray_crew.RayCrew, name)))

  def after_round(self, round_, metrics):
    if round_ == self._round and not self.killed:
      (crew,) = self._crews
      self._due = crew.gather({1: crew._members[1].ready.remote()})[1]

  def _noted(self, plain):
    def call(crew, index, method, *arguments):
      found = plain(crew, index, method, *arguments)
      if method in ('work', 'work_for_totals'):
        self._tasks[index] = found if method == 'work' else found[1]
      return found

    return call

  def _meanwhile(self, crew, calls):
    if self._due and calls == self._tasks:
      while not watching.command_line(self._due).startswith('ray::_Actor.call'):
        assert not self._ray.wait([calls[1]], timeout=0.01)[0]
      os.kill(self._due, signal.SIGSTOP)
      others = [call for index, call in calls.items() if index != 1]
      done, _ = self._ray.wait(others, num_returns=len(others), timeout=120)
      assert done == others and not self._ray.wait([calls[1]], timeout=0)[0]
      os.kill(self._due, signal.SIGKILL)
      self._due, self.killed = None, self._due
    return self._gather(crew, calls)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('where', INSIDE)
def test_a_worker_that_is_lost_at_work_changes_no_bit(
  where, _ray, tmp_path, monkeypatch, crews, capsys
):
  """The others have written the round's states, which the round that is run again must not find."""
  settings = {**FEDERATIONS['cross-device'], **INSIDE[where], 'rounds': 6, 'eval_every': 6}
  settings |= {'clients_per_round': 20, 'local_epochs': 10_000}  # some tenths of a second
  (plain, expected), _ = run(settings), crews.clear()
  killer = KillerInside(_ray, crews, 4, monkeypatch)
  found, values = run({**settings, 'output_dir': str(tmp_path / 'run')}, callbacks=[killer])
  assert killer.killed
  after = '[45]' if where == 'on disk' else '3'
  words = f'cohort worker 1 was lost and has been replaced; going on after round {after}'
  assert re.search(words, capsys.readouterr().err)
  for one, other in zip(
    tf.nest.flatten([plain.server_state, _in_memory(plain)]),
    tf.nest.flatten([found.server_state, _in_memory(found)]),
    strict=True,
  ):
    np.testing.assert_array_equal(one, other)
  assert values == expected
  assert found.privacy == plain.privacy


def _recorded(folder):
  """What a run in a folder has come to: its metrics, and its server's last state."""
  rows = pd.read_parquet(folder / 'metrics.parquet').itertuples(index=False)
  last = checkpoints.load(sorted(folder.glob('checkpoints/round_*.npz'))[-1])
  server = {n: value for n, value in last.arrays.items() if n.startswith('server/')}
  return {tuple(row[:-1]): row[-1] for row in rows}, server


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_of_the_command_line_is_killed_and_replaced(tmp_path):
  """The one run over real workers that is made at every change."""
  plain, expected = run(SPREAD)
  with watching.command(SPREAD, tmp_path, '--cohort_workers=2') as command:
    addresses = command.wait_for(tmp_path / 'run', 'checkpoints/round_*.npz')
    killed, _ = command.cohort_workers()
    os.kill(killed, signal.SIGKILL)
    assert command.process.wait(180) == 0, command.said()
    command.assert_ended()
  words = 'cohort worker [01] was lost and has been replaced; going on after round ([0-9]+)'
  assert 0 < int(re.findall(words, command.said())[0]) < 200
  assert addresses and addresses <= watching.LOOPBACK
  values, found = _recorded(tmp_path / 'run')
  assert values.keys() == expected.keys()
  np.testing.assert_allclose(
    [values[k] for k in expected], list(expected.values()), rtol=1e-3, atol=1e-5
  )
  for name, leaf in checkpoints.flatten(plain.server_state).items():
    example.assert_same(leaf, found[f'server/{name}'], rtol=1e-4)


@pytest.fixture(scope='module', name='cluster')
def _cluster(tmp_path_factory):
  with watching.somebodys_cluster(tmp_path_factory.mktemp('cluster')) as found:
    yield found


@pytest.fixture(scope='module', name='on_its_own')
def _on_its_own(tmp_path_factory):
  """What a run comes to on a cluster that lives as long as it does."""
  folder = tmp_path_factory.mktemp('own')
  with watching.command(SPREAD, folder, '--cohort_workers=2') as command:
    assert command.process.wait(180) == 0, command.said()
  return _recorded(folder / 'run')


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('kills', [0, 1])
def test_somebodys_cluster_gives_the_same_bits(tmp_path, cluster, on_its_own, kills):
  address, server = cluster
  flags = ('--cohort_workers=2', f'--cluster={address}')
  with watching.command(SPREAD, tmp_path, *flags) as command:
    addresses = command.wait_for(tmp_path / 'run', 'checkpoints/round_*.npz')
    workers = server.cohort_workers()
    assert len(workers) == 2 and not command.cohort_workers()
    for pid in workers[:kills]:
      os.kill(pid, signal.SIGKILL)
    assert command.process.wait(180) == 0, command.said()
    command.assert_ended()
  assert command.said().count('was lost and has been replaced') == kills
  assert not addresses  # all that listens is the cluster's
  (values, found), (expected, state) = _recorded(tmp_path / 'run'), on_its_own
  assert values == expected and found.keys() == state.keys()
  for name, leaf in state.items():
    np.testing.assert_array_equal(found[name], leaf, err_msg=name)
  until = time.monotonic() + 20
  while server.cohort_workers():  # they are a run's, the cluster is not
    assert time.monotonic() < until
    time.sleep(0.1)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
  ('number', 'to_all'), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_a_signal_ends_all_workers_and_the_run_goes_on_later(tmp_path, number, to_all):
  """SIGINT as from a terminal, to every process of the group; SIGTERM to the command alone, too."""
  settings = {**FEDERATIONS['cross-device'], 'rounds': 100000}
  with watching.command(settings, tmp_path, '--cohort_workers=2') as command:
    command.wait_for(tmp_path / 'run', 'checkpoints/round_*.npz')
    assert len(command.processes()) > 3 and len(command.cohort_workers()) == 2
    (os.killpg if to_all else os.kill)(command.process.pid, number)
    assert command.process.wait(300) == 128 + number, command.said()
    command.assert_ended(10)
  last = command.said().splitlines()[-1]
  assert re.match(r'stopped after round \d+ of 100000; continue with .*--resume', last)
  kept = sorted(tmp_path.glob('run/checkpoints/round_*.npz'))[-1]
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


class SignalledCrew(LosingCrew):
  """Loses a member as a signal comes, which it may have got, too."""

  def replace_lost(self):
    raise AssertionError('a run that is asked to end needs no other worker')

  def gather(self, calls):
    try:
      return super().gather(calls)
    except runtime.MemberLostError:
      os.kill(os.getpid(), signal.SIGTERM)
      raise


@pytest.mark.slow
def test_a_worker_that_is_lost_with_a_signal_is_not_replaced(monkeypatch, tmp_path):
  settings = {**FEDERATIONS['cross-device'], 'checkpoint_every': 1}
  settings |= {'cohort_workers': 2, 'output_dir': str(tmp_path)}
  crew = SignalledCrew(2)
  monkeypatch.setattr(ray_crew, 'connect', lambda *arguments, **options: crew)
  words = 'stopped in round 2 of 8, in which gone; continue with .*--resume'
  with pytest.raises(interruption.Interrupted, match=words) as stopped:
    run(settings)
  assert stopped.value.exit_code == 128 + signal.SIGTERM
  assert [path.stem for path in tmp_path.glob('checkpoints/round_*.npz')] == ['round_00000001']
