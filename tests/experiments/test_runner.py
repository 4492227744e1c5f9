"""The round loop: results, kills, resumes, refusals."""

import dataclasses
import functools
import json
import math
import multiprocessing
import os
import random
import re
import signal
import time
import types

import numpy as np
import pandas as pd
import pytest

import datasets
import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import provenance, results
from experiments.folder.metrics import MetricTable
from experiments.running import console, evaluation, interruption, plans, population, runner
from privacy import accounting
from runtime import stored_states
from tests.experiments import fakes
from tests.experiments.timings import TIMINGS


@pytest.fixture(autouse=True)
def no_pld(monkeypatch):
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)  # takes seconds


@pytest.fixture(autouse=True)
def no_figures(monkeypatch, request):  # they take a second each
  if 'complete_folder' not in request.node.name:
    fakes.without_figures(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def fake_runtime(monkeypatch):
  machine = fakes.FakeRuntime()
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: machine)
  return machine


def make_config(folder, **values):
  defaults = dict(
    noise_key=None if values.get('privacy') == 'none' else 'rehearsal',
    rounds=12, eval_every=4, checkpoint_every=3, clients_per_round=3, privacy='client',
    noise_multiplier=1.0, delta=1e-2, output_dir=str(folder),
  )  # fmt: skip
  return ExperimentConfig(**{**defaults, **values})


def run(folder, dataset=None, **values):
  config = make_config(folder, **values)
  return runner.run(fakes.make_experiment(config, dataset), show_progress=False)


def read(folder):
  """What must be the same however often a run was interrupted."""
  summary = json.loads((folder / 'summary.json').read_text())
  for name in TIMINGS:
    summary.pop(name)
  table = pd.read_parquet(folder / 'metrics.parquet')
  return table, summary, json.loads((folder / 'privacy.json').read_text())


def assert_same_results(folder, reference):
  table, summary, privacy = read(folder)
  expected_table, expected_summary, expected_privacy = read(reference)
  pd.testing.assert_frame_equal(table, expected_table, check_exact=True)
  assert (folder / 'metrics.parquet').read_bytes() == (reference / 'metrics.parquet').read_bytes()
  assert summary == expected_summary and privacy == expected_privacy


@pytest.mark.slow
def test_a_run_leaves_a_complete_folder(tmp_path):
  result = run(tmp_path / 'run')
  folder = tmp_path / 'run'
  table, summary, privacy = read(folder)
  assert list(table.columns) == ['round', 'split', 'client', 'group', 'metric', 'value']
  everyone = table[table.group == 'all']
  assert sorted(everyone[everyone.metric == 'mse']['round'].unique()) == [0, 4, 8, 12]
  assert len(everyone[everyone.metric == 'loss'].query('split == "train"')) == 12
  clients = table[table.client.notna()]
  assert set(clients['round']) == {12} and set(clients.client) == {f'c{k}' for k in range(6)}
  assert {'test_mse', 'test_global_mse', 'server_test_mse', 'train_loss', 'epsilon',
          'participants', 'test_mse_std'} <= set(summary['metrics'])  # fmt: skip
  assert summary['metrics_by_group']['even']['test_mse'] > 0
  assert summary['rounds'] == privacy['rounds'] == 12
  assert privacy['epsilon'] == pytest.approx(summary['metrics']['epsilon'])
  assert 'counted once' in privacy['replay'] and 'Guarantee' in privacy['statement']
  config = json.loads((folder / 'config.json').read_text())
  assert config['data_checksums'] == {'fake': '00'} and 'tensorflow' in config['versions']
  assert ExperimentConfig.from_json(config['config']) == make_config(folder)
  assert len(fakes.checkpoint_files(folder)) == 2
  for name in ('learning_curve.png', 'learning_curve.svg'):
    assert (folder / 'figures' / name).stat().st_size > 5000
  assert list((folder / 'tensorboard').glob('events.out.tfevents.*'))
  assert 'test, all clients' in result.report and 'even' in result.report
  assert not list(folder.rglob('.writing-*'))


def test_a_summary_says_whose_epsilon_it_has(tmp_path):
  """Of a hypothetical deployment, for nobody here, as privacy.json does."""
  asked = dict(hypothetical_deployment=True, noise_cohort_size=1000, noise_population=10**6)
  for name, flags in (('here', {}), ('there', asked)):
    config = make_config(tmp_path / name, **flags)
    experiment = fakes.make_experiment(config)
    experiment = dataclasses.replace(experiment, plan=plans.build_plan(config, experiment.dataset))
    runner.run(experiment, show_progress=False)
    _, summary, privacy = read(tmp_path / name)
    assert summary['privacy']['condition'] == privacy['condition']
    assert ('hypothetical' in privacy['condition']) == bool(flags)


def test_pooled_and_per_client_metrics_agree_with_numpy(tmp_path):
  result = run(tmp_path / 'run')
  test = fakes.make_dataset().test
  errors = np.square(test.y - result.client_states['model'][:, None])
  metrics = result.summary['metrics']
  assert metrics['test_mse'] == pytest.approx(errors.mean())
  assert metrics['test_mse_std'] == pytest.approx(errors.mean(axis=1).std())
  assert metrics['test_mse_variance'] == pytest.approx(errors.mean(axis=1).var())
  assert result.summary['metrics_by_group']['even']['test_mse'] == pytest.approx(errors[::2].mean())


def test_opting_out_is_compared_with_staying_private():
  """The FeO2 paper's Delta_g and Delta_l: of means over clients, not of pooled rows."""
  table, away = MetricTable(), np.array([False, False, True])
  task = evaluation.EvaluationTask(
    split='test', which='global', prefix='global_', examples=None,
    groups={'all': np.ones(3, bool), 'private': ~away, 'opted out': away},
    compared=(('opted out', 'private'),),
  )  # fmt: skip
  sums = {'accuracy': [1.0, 3.0, 4.0], 'num_examples': [2, 4, 4]}
  task.record(table, 7, sums, each_client=False)
  assert table.latest()['test_global_accuracy_opted_out_minus_private'] == 1 - (0.5 + 0.75) / 2
  assert table.latest('private')['test_global_accuracy_variance'] == 0.125**2
  # Of the group itself: the share of all its rows, and the mean of its clients' shares.
  assert table.latest()['test_global_accuracy'] == 8 / 10
  assert table.latest()['test_global_accuracy_mean'] == 0.75
  assert table.latest('private')['test_global_accuracy'] == 4 / 6


def test_the_servers_test_rows_count_alike_however_they_are_cut():
  x, y = np.arange(450, dtype=np.float32)[:, np.newaxis], np.arange(450, dtype=np.int32)
  examples, table = evaluation.cut_into_clients(x, y), MetricTable()
  np.testing.assert_array_equal(examples.num_examples, [200, 200, 50])
  np.testing.assert_array_equal(examples.pooled()[0], x)
  np.testing.assert_array_equal(examples.pooled()[1], y)
  task = evaluation.EvaluationTask(
    split='server_test', which='global', prefix='', examples=examples
  )
  sums = {'accuracy': [100.0, 100.0, 50.0], 'num_examples': examples.num_examples}
  task.record(table, 1, sums, each_client=True)
  assert table.latest() == {'server_test_accuracy': 250 / 450}


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  result = run('')
  assert result.summary['rounds'] == 12 and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_finished_run_resumes_to_itself(tmp_path, fake_runtime):
  run(tmp_path / 'reference')
  run(tmp_path / 'run')
  fake_runtime.cohorts.clear()
  run(tmp_path / 'run', resume=True)
  assert not fake_runtime.cohorts
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


@pytest.mark.slow
@pytest.mark.parametrize('stop_after', [0, 1, 5, 11])
@pytest.mark.parametrize('signal_number,code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_rounds_done(tmp_path, monkeypatch, stop_after, signal_number, code):
  run(tmp_path / 'reference')
  original = fakes.FakeRuntime.round

  def round_then_signal(self, next_, server, *arguments, **keywords):
    if server['round'] == max(stop_after - 1, 0):
      os.kill(os.getpid(), signal_number)
    return original(self, next_, server, *arguments, **keywords)

  monkeypatch.setattr(fakes.FakeRuntime, 'round', round_then_signal)
  with pytest.raises(interruption.Interrupted) as caught:
    run(tmp_path / 'run')
  assert caught.value.exit_code == code
  assert f'stopped after round {max(stop_after, 1)} of 12' in str(caught.value)
  assert 'resume=True and output_dir=' in str(caught.value)
  monkeypatch.setattr(fakes.FakeRuntime, 'round', original)
  run(tmp_path / 'run', resume=True)
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


# Its processes have all imported, and none of them the threads of a TensorFlow that has been used.
_FORKSERVER = multiprocessing.get_context('forkserver')
_FORKSERVER.set_forkserver_preload([__name__])


def run_slowly(folder, values):
  """A run whose rounds can be hit, in a process of its own."""
  machine = fakes.FakeRuntime()
  machine.seconds_per_round = 0.02
  accounting.pld_epsilon = lambda *arguments: None
  fakes.without_figures(setattr)
  runner.create_runtime = lambda config, **_: machine
  run(folder, **values)


def run_in_a_child(folder, **values):
  process = _FORKSERVER.Process(target=run_slowly, args=(folder, values))
  process.start()
  return process


def kill_at_random(rng, folder, seconds):
  process = run_in_a_child(folder, resume=True)
  time.sleep(rng.uniform(0.0, seconds))
  process.kill()
  process.join()
  return process.exitcode


def check_kills(tmp_path, times):
  run(tmp_path / 'reference')
  run_in_a_child(tmp_path / 'warm').join()  # starts the server
  begin = time.monotonic()
  timed = run_in_a_child(tmp_path / 'timing')
  timed.join()
  assert timed.exitcode == 0
  seconds = time.monotonic() - begin
  rng = random.Random(0)
  finished = 0
  for attempt in range(times):
    # Early kills never get far: let the run come to its end now and then.
    finished += kill_at_random(rng, tmp_path / 'run', seconds * (0.4 + attempt % 5 / 4)) == 0
  run(tmp_path / 'run', resume=True)
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')
  assert not list((tmp_path / 'run').rglob('.writing-*'))


@pytest.mark.slow
def test_sigkill_between_and_inside_rounds(tmp_path):
  check_kills(tmp_path, times=8)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sigkill_many_times(tmp_path):
  check_kills(tmp_path, times=50)


# Twelve rounds, evaluations at 0, 4, 8 and 12 (of three kinds each), checkpoints at 3, 6, 9 and 12.
@pytest.mark.parametrize(
  ('losses', 'keeps_states', 'after'),
  [
    ({'round': [1]}, True, [0]),
    ({'round': [6, 9]}, True, [5, 7]),
    ({'round': [6]}, False, [3]),
    ({'evaluate': [2]}, True, [0]),
    ({'evaluate': [4, 10]}, True, [4, 8]),
    ({'evaluate': [4]}, False, [3]),
    ({'snapshot': [2]}, True, [6]),
    ({'snapshot': [2]}, False, [3]),
    ({'snapshot': [4]}, True, [12]),
    # Again while it is replaced.
    ({'round': [6], 'recover': [1]}, True, [5]),
    ({'round': [6, 9], 'recover': [1, 2, 4, 5]}, True, [5, 7]),
    ({'round': [6], 'recover': [1]}, False, [3]),
    ({'round': [6], 'place': [2]}, False, [3]),
    ({'round': [6], 'place': [2], 'recover': [2]}, False, [3]),
  ],
)  # fmt: skip
def test_a_lost_worker_costs_what_went_with_it(
  tmp_path, monkeypatch, capsys, losses, keeps_states, after
):
  """Whatever is lost when: the same numbers, each evaluation once."""
  run(tmp_path / 'reference')
  machine = fakes.LosingRuntime(losses, keeps_states=keeps_states)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: machine)
  run(tmp_path / 'run')
  said = re.findall(r'another has its place; going on after round (\d+)', capsys.readouterr().err)
  assert list(map(int, said)) == after
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


class CompilingRuntime(fakes.LosingRuntime):
  """Compiles for five seconds in its first call, and for three where a worker is replaced."""

  def round(self, *arguments, **keywords):
    result = super().round(*arguments, **keywords)
    self.compile_seconds = max(self.compile_seconds, 5.0)
    return result

  def recover(self):
    recovery = super().recover()
    self.compile_seconds += 3.0
    return recovery


def test_what_compiled_before_a_worker_was_lost_is_counted_once(tmp_path, monkeypatch):
  machine = CompilingRuntime({'round': [6]}, keeps_states=False)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: machine)
  run(tmp_path / 'run')
  assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['compile_seconds'] == 8.0


@pytest.mark.parametrize('losses', [{'round': [5, 6]}, {'round': [5], 'recover': [1, 2, 3]}])
def test_a_worker_that_is_lost_again_and_again_ends_the_run(tmp_path, monkeypatch, losses):
  machine = fakes.LosingRuntime(losses, keeps_states=True)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: machine)
  with pytest.raises(runtime.DeviceError, match='continue with'):
    run(tmp_path / 'run')


class StoppedRuntime(fakes.LosingRuntime):
  """Is sent SIGINT in its n-th round."""

  def __init__(self, losses=(), *, stop_in):
    super().__init__(losses, keeps_states=False)
    self._stop_in = stop_in

  def round(self, *arguments, **keywords):
    result = super().round(*arguments, **keywords)
    if self._calls['round'] == self._stop_in:
      os.kill(os.getpid(), signal.SIGINT)
    return result


def spent(folder):
  """(rounds that count, whether more may have been run) of a run that was stopped."""
  privacy, config = (json.loads((folder / f'{n}.json').read_text()) for n in ('privacy', 'config'))
  return privacy['rounds'], config['running']


def test_rounds_that_were_lost_with_a_worker_stay_spent(tmp_path, monkeypatch, fake_runtime):
  run(tmp_path / 'reference')
  # Five rounds, back to the checkpoint after three, and stopped after the fourth.
  machine = StoppedRuntime({'round': [6]}, stop_in=7)
  with monkeypatch.context() as patch:
    patch.setattr(runner, 'create_runtime', lambda config, **_: machine)
    with pytest.raises(interruption.Interrupted, match='stopped after round 4 of 12'):
      run(tmp_path / 'run')
  assert spent(tmp_path / 'run') == (5, True)
  again = StoppedRuntime(stop_in=1)
  with monkeypatch.context() as patch:
    patch.setattr(runner, 'create_runtime', lambda config, **_: again)
    with pytest.raises(interruption.Interrupted, match='stopped after round 5 of 12'):
      run(tmp_path / 'run', resume=True)
  assert spent(tmp_path / 'run')[0] == 5
  run(tmp_path / 'run', resume=True)
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')
  assert spent(tmp_path / 'run') == (12, False)


@pytest.mark.parametrize('killed', [False, True])
def test_after_a_kill_nobody_knows_what_was_run_before_all_is(tmp_path, monkeypatch, killed):
  for resume, after in ((False, 5), (True, 7)):
    machine = StoppedRuntime(stop_in=after if not resume else 2)
    with monkeypatch.context() as patch:
      patch.setattr(runner, 'create_runtime', lambda config, machine=machine, **_: machine)
      with pytest.raises(interruption.Interrupted):
        run(tmp_path / 'run', resume=resume)
    assert spent(tmp_path / 'run') == (after, killed and resume)
    if killed and not resume:  # as the record is when a process is killed
      record = json.loads((tmp_path / 'run' / 'config.json').read_text())
      (tmp_path / 'run' / 'config.json').write_text(json.dumps({**record, 'running': True}))
  run(tmp_path / 'run', resume=True)
  assert spent(tmp_path / 'run') == (12, False)


def damage(path, how):
  content = bytearray(path.read_bytes())
  if how == 'cut':
    del content[len(content) // 2 :]
  elif how == 'empty':
    content.clear()
  else:
    content[len(content) // 3] ^= 1
  path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize('how', ['cut', 'empty', 'flipped'])
@pytest.mark.parametrize('both', [False, True])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, monkeypatch, capsys, how, both):
  run(tmp_path / 'reference')
  run(tmp_path / 'run')
  files = fakes.checkpoint_files(tmp_path / 'run')
  for path in files if both else files[-1:]:
    damage(path, how)
  run(tmp_path / 'run', resume=True)
  said = capsys.readouterr().err
  assert f'{files[-1].name} cannot be used: it is damaged' in said
  assert (f'{files[0].name} cannot be used' in said) == both
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


def test_another_configuration_is_refused(tmp_path):
  run(tmp_path / 'run')
  for resume in (False, True):
    with pytest.raises(ValueError, match=r'another configuration: --rounds is 13, was 12'):
      run(tmp_path / 'run', rounds=13, resume=resume)


def test_the_same_run_again_needs_resume(tmp_path):
  run(tmp_path / 'run')
  with pytest.raises(ValueError, match=r'holds this run already; continue it with .*/fl --resume'):
    run(tmp_path / 'run')


@pytest.mark.slow
def test_a_run_of_other_code_is_said(tmp_path, monkeypatch, capsys):
  """Rounds that it lost may not be replayed bit for bit."""
  run(tmp_path / 'run')
  run(tmp_path / 'run', resume=True)
  assert 'another version' not in capsys.readouterr().err
  monkeypatch.setattr(provenance, '_versions', lambda: {'tensorflow': '3.0'})
  run(tmp_path / 'run', resume=True)
  assert 'begun by another version of the code' in capsys.readouterr().err
  run(tmp_path / 'run', resume=True)
  assert 'another version' not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('privacy', ['client', 'none'])
def test_a_killed_run_is_not_continued_by_other_code(tmp_path, monkeypatch, privacy):
  """Its lost rounds have spent privacy, and other code may not replay them bit for bit."""
  values = {} if privacy == 'client' else dict(privacy='none', noise_multiplier=None, delta=None)
  process = run_in_a_child(tmp_path / 'run', **values)
  while not list((tmp_path / 'run').rglob('*.npz')):
    time.sleep(0.005)
  process.kill()
  process.join()
  assert process.exitcode == -signal.SIGKILL
  own = provenance._versions
  monkeypatch.setattr(provenance, '_versions', lambda: {'tensorflow': '3.0'})
  if privacy == 'none':
    run(tmp_path / 'run', resume=True, **values)
    return
  for _ in range(2):  # not even when it is asked again
    with pytest.raises(ValueError, match='killed under another version of the code'):
      run(tmp_path / 'run', resume=True)
  monkeypatch.setattr(provenance, '_versions', own)
  run(tmp_path / 'run', resume=True)
  run(tmp_path / 'reference')
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


def test_other_data_are_refused(tmp_path):
  import dataclasses

  run(tmp_path / 'run')
  other = dataclasses.replace(fakes.make_dataset(), checksums={'fake': '01'})
  with pytest.raises(ValueError, match='other data: the checksum of fake differs'):
    run(tmp_path / 'run', dataset=other, resume=True)


def test_a_foreign_folder_is_refused(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  with pytest.raises(ValueError, match=r'holds notes\.txt and no run'):
    run(tmp_path)
  assert os.listdir(tmp_path) == ['notes.txt']


def test_a_file_is_refused(tmp_path):
  (tmp_path / 'run').write_text('mine')
  with pytest.raises(ValueError, match='is a file, not a folder'):
    run(tmp_path / 'run')


def test_a_second_process_is_refused(tmp_path):
  folder = results.RunFolder(make_config(tmp_path / 'run'))
  with pytest.raises(ValueError, match=rf'in use by another process \(pid {os.getpid()}\)'):
    run(tmp_path / 'run')
  folder.close()
  run(tmp_path / 'run', resume=True)


@pytest.mark.slow
def test_damaged_config_is_one_line(tmp_path):
  run(tmp_path / 'run')
  (tmp_path / 'run' / 'config.json').write_text('{"config":')
  with pytest.raises(ValueError, match=r'config\.json is damaged'):
    run(tmp_path / 'run', resume=True)


def test_too_many_clients_per_round(tmp_path):
  with pytest.raises(ValueError, match='--clients_per_round=7 must be at most 6'):
    run(tmp_path / 'run', clients_per_round=7)


@pytest.mark.slow
def test_empty_cohorts_run(tmp_path, fake_runtime):
  run(tmp_path / 'run', clients_per_round=None, cohort_sampling_rate=0.05, rounds=30)
  assert any(len(c) == 0 for c in fake_runtime.cohorts)


@pytest.mark.slow
def test_clients_loaded_by_cohort_give_the_same(tmp_path):
  import dataclasses

  whole = fakes.make_dataset()
  source = datasets.ClientSource(
    num_examples=whole.train.num_examples,
    max_examples=4,
    read=lambda k: (whole.train.x[k], whole.train.y[k]),
  )
  by_cohort = dataclasses.replace(whole, train=source)
  for name, dataset in (('whole', whole), ('by_cohort', by_cohort)):
    run(tmp_path / name, dataset=dataset, clients_per_round=None, cohort_sampling_rate=0.2)
  assert_same_results(tmp_path / 'by_cohort', tmp_path / 'whole')


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
  from experiments.folder import files

  run(tmp_path / 'reference')
  original, calls = files._sync, []

  def full(path):
    calls.append(path)
    if len(calls) > 20:
      raise OSError(28, 'No space left on device')
    original(path)

  monkeypatch.setattr(files, '_sync', full)
  with pytest.raises(OSError, match=r'^cannot write .*: No space left on device$'):
    run(tmp_path / 'run')
  monkeypatch.setattr(files, '_sync', original)
  run(tmp_path / 'run', resume=True)
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


@pytest.mark.slow
def test_divergence_is_said(tmp_path):
  import dataclasses

  whole = fakes.make_dataset()
  x = whole.train.x.copy()
  x[0] = 1e38
  dataset = dataclasses.replace(whole, train=dataclasses.replace(whole.train, x=x))
  with np.errstate(all='ignore'), pytest.raises(ValueError, match='after round 1 of 12') as said:
    run(tmp_path / 'run', dataset=dataset, clients_per_round=6)
  assert 'has diverged' in str(said.value) and '--client_learning_rate' in str(said.value)
  assert len(MetricTable.read(tmp_path / 'run' / 'metrics.parquet').rows) > 1
  experiment = fakes.make_experiment(make_config(tmp_path / 'on', clients_per_round=6), dataset)
  with np.errstate(all='ignore'):  # as one of a sweep, whose others are well
    result = runner.run(experiment, show_progress=False, stop_when_diverged=False)
  assert 'has diverged' in result.report
  json.loads((tmp_path / 'on' / 'summary.json').read_text())


def test_a_metric_that_is_no_number_is_no_divergence(tmp_path):
  result = run(tmp_path / 'run', rounds=2)
  table = MetricTable.read(tmp_path / 'run' / 'metrics.parquet')
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert 'diverged' not in result.report
  for values, expected in (
    ((0, 'test', 'own', math.nan), '\ntest_own is nan after round 0.'),
    ((1, 'train', 'loss', math.inf), 'The run has diverged: train_loss is inf after round 1.'),
  ):
    table.add(*values)
    assert expected in console.final_report(
      table=table, metric='mse', statement='', summary=summary
    )


@pytest.mark.parametrize('model', [0.5, math.nan], ids=['finite', 'not_finite'])
@pytest.mark.parametrize('privacy', ['client', 'none'])
def test_the_end_of_a_private_run_does_not_tell_of_one_loss(tmp_path, capsys, privacy, model):
  class Method(fakes.FakeMethod):
    class process:
      @staticmethod
      def next(server, clients, data, cohort):
        server, clients, metrics = fakes.FakeMethod.process.next(server, clients, data, cohort)
        return server | {'model': np.float64(model)}, clients, metrics | {'train_loss': math.inf}

  values = {} if privacy == 'client' else dict(noise_multiplier=None, delta=None)
  config = make_config(tmp_path, privacy=privacy, clients_per_round=6, **values)
  experiment = dataclasses.replace(fakes.make_experiment(config), method=Method())
  start = functools.partial(runner.run, experiment, show_progress=False)
  if privacy == 'none' or math.isnan(model):
    with pytest.raises(ValueError, match='after round 1 of 12'):
      start()
  else:
    assert start().summary['rounds'] == 12
    assert capsys.readouterr().err.count('a private run goes on') == 1


@pytest.mark.parametrize('on_disk', [False, True], ids=['in_memory', 'on_disk'])
@pytest.mark.parametrize('bad', [None, 299])
def test_all_models_that_a_run_releases_are_looked_at(tmp_path, on_disk, bad):
  models = np.zeros([300, 2], np.float32)
  clients = {'model': models, 'attributes': np.full([300], np.inf, np.float32)}
  if on_disk:
    states = stored_states.stored(clients, tmp_path, fixed=frozenset(['attributes']))
    changed = models[[299]] if bad is None else np.full([1, 2], np.nan, np.float32)
    states.write(
      np.array([299]), np.array([0]), {'model': changed, 'attributes': clients['attributes'][:1]}
    )
  else:
    states, models[299] = clients, 0.0 if bad is None else np.nan
  for privacy, sees in (('example', True), ('client', False)):
    run_ = types.SimpleNamespace(
      config=types.SimpleNamespace(privacy=privacy), method=types.SimpleNamespace(releases=False)
    )
    server = {'model': np.zeros(2)}
    seen = types.SimpleNamespace(states_of=lambda index, s=server: (s, states), runs=[run_])
    assert population.Population.released_is_finite(seen) == (bad is None or not sees)


@pytest.mark.slow
def test_a_stream_gives_every_round_its_own_examples_also_when_resumed(tmp_path, monkeypatch):
  import dataclasses

  whole = fakes.make_dataset()
  seen = []

  def draw(round_):
    x = np.full((fakes.NUM_CLIENTS, 4, 2), round_, np.float32)
    return dataclasses.replace(whole.train, x=x)

  stream = datasets.ClientStream(num_examples=whole.train.num_examples, draw=draw)
  fresh = dict(dataset=dataclasses.replace(whole, train=stream))
  original = fakes.FakeRuntime.round

  def stop_once(self, next_, server, states, data, cohort, **keywords):
    seen.append((int(server['round']), float(data['x'][0, 0, 0])))
    if server['round'] == 7 and not stopped:
      stopped.append(os.kill(os.getpid(), signal.SIGTERM))
    return original(self, next_, server, states, data, cohort, **keywords)

  stopped = [True]
  monkeypatch.setattr(fakes.FakeRuntime, 'round', stop_once)
  run(tmp_path / 'reference', **fresh)
  stopped.clear()
  with pytest.raises(interruption.Interrupted):
    run(tmp_path / 'run', **fresh)
  run(tmp_path / 'run', **fresh, resume=True)
  assert seen == [(k, float(k)) for k in [*range(12), *range(12)]]
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')
