"""The filter, and the ledger as runs use it: stopped, killed, refused."""

import dataclasses
import json
import math
import os

import numpy as np
import pandas as pd
import pytest

import datasets
from experiments.config import user_files
from experiments.config.experiment import ExperimentConfig
from experiments.folder import files, provenance
from experiments.running import build, interruption, loading, loop, plans, runner, spending
from privacy import accounting, ledger
from privacy.ledger import BudgetError
from runtime.noise_key import NoiseKey
from tests.experiments import fakes


@pytest.fixture(autouse=True)
def fast(monkeypatch):
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  fakes.without_figures(monkeypatch.setattr)


def experiment(folder, **values):
  defaults = dict(
    rounds=12, eval_every=4, checkpoint_every=3, clients_per_round=3, privacy='client',
    noise_multiplier=2.0, delta=1e-2, output_dir=str(folder),
  )  # fmt: skip
  return fakes.make_experiment(ExperimentConfig(**{**defaults, **values}))


def run(folder, **values):
  return runner.run(experiment(folder, **values), show_progress=False)


def stop_after(rounds, monkeypatch, how=None):
  """Ends the run after some rounds, by a signal or by what `how` raises."""
  original, done = loop.Loop._collect, []

  def collect(self, **keywords):
    original(self, **keywords)
    if self.rounds_done == rounds and not done:
      done.append(rounds)
      if how is not None:
        raise how
      self._caught.signal_number = 15

  monkeypatch.setattr(loop.Loop, '_collect', collect)


# --------------------------------------------------------------------- filter


@pytest.mark.slow
@pytest.mark.parametrize('allowed', [1, 5, 11])
def test_a_filter_ends_before_the_round_that_would_pass_it(tmp_path, allowed):
  plan = experiment('').plan
  budget = (plan.epsilon(allowed) + plan.epsilon(allowed + 1)) / 2
  result = run(tmp_path / 'run', epsilon_budget=budget)
  assert result.summary['rounds'] == result.privacy['rounds'] == allowed
  assert plan.epsilon(allowed) == result.privacy['epsilon'] <= budget < plan.epsilon(allowed + 1)
  assert f'here after {allowed} of the 12' in ' '.join(result.privacy['statement'].split())
  # The last round is evaluated like any last round, and nothing is left to continue.
  assert max(row[0] for row in result.metrics.rows) == allowed
  again = run(tmp_path / 'run', epsilon_budget=budget, resume=True)
  assert again.summary['rounds'] == allowed


def test_a_filter_that_is_not_reached_changes_nothing(tmp_path):
  result = run(tmp_path / 'run', epsilon_budget=experiment('').plan.epsilon(12))
  assert result.summary['rounds'] == 12


def test_a_filter_that_allows_no_round_is_refused(tmp_path):
  with pytest.raises(ValueError, match='allows no round: one takes epsilon'):
    run(tmp_path / 'run', epsilon_budget=1e-3)


def test_what_is_spent_so_far_is_called_an_odometer(tmp_path, monkeypatch):
  stop_after(3, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    run(tmp_path / 'run')
  privacy = json.loads((tmp_path / 'run' / 'privacy.json').read_text())
  plan = experiment('').plan
  assert privacy['rounds'] == 3 and privacy['epsilon'] == plan.epsilon(3)
  assert privacy['rounds_of_all'] == 12 and privacy['epsilon_of_all'] == plan.epsilon(12)
  assert 'because of what it showed' in privacy['stopping']


# --------------------------------------------------------------------- ledger


def of_several(rounds):
  """Epsilon of so many rounds of more than one run: at half of delta."""
  plan = experiment('').plan
  return dataclasses.replace(plan, delta=plan.delta / 2).epsilon(rounds)


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_runs_are_recorded_and_composed(tmp_path):
  book = tmp_path / 'ledger.jsonl'
  first = run(tmp_path / 'a', ledger=str(book))
  second = run(tmp_path / 'b', ledger=str(book), rounds=6)
  plan = experiment('').plan
  assert first.privacy['ledger']['runs'] == 1
  assert first.privacy['ledger']['epsilon'] == pytest.approx(plan.epsilon(12))
  assert second.privacy['ledger']['runs'] == 2
  assert second.privacy['ledger']['epsilon'] == pytest.approx(of_several(18))
  assert '2 runs together' in ' '.join(second.privacy['statement'].split())
  kinds = [line['kind'] for line in lines(book)]
  assert kinds[0] == 'reserved' and kinds[-1] == 'ended' and set(kinds[1:3]) == {'spent'}
  assert 'noise_key' not in book.read_text()


def test_a_finished_run_that_is_opened_again_is_no_further_run(tmp_path):
  book = str(tmp_path / 'ledger')
  first = run(tmp_path / 'a', ledger=book)
  assert run(tmp_path / 'a', ledger=book, resume=True).privacy == first.privacy
  assert {line['run'] for line in lines(tmp_path / 'ledger')} == {
    lines(tmp_path / 'ledger')[0]['run']
  }


def test_a_key_of_the_users_is_for_one_run(tmp_path):
  key, book = tmp_path / 'key', str(tmp_path / 'ledger')
  key.write_text(NoiseKey.fresh().hex())
  os.chmod(key, 0o600)
  own = dict(ledger=book, noise_key_file=str(key))
  first = run(tmp_path / 'a', **own)
  with pytest.raises(ValueError, match='another run with this noise key'):
    run(tmp_path / 'b', **own, clients_per_round=2)
  assert not (tmp_path / 'b' / 'metrics.parquet').exists()
  assert run(tmp_path / 'c', **own).privacy['ledger'] == first.privacy['ledger']


def test_a_key_is_not_for_two_versions_of_the_code(tmp_path, monkeypatch):
  """The noise of both would be the same, and what is noised another; a run that goes on is one."""
  key, book = tmp_path / 'key', str(tmp_path / 'ledger')
  key.write_text(NoiseKey.fresh().hex())
  os.chmod(key, 0o600)
  own = dict(ledger=book, noise_key_file=str(key))
  first = run(tmp_path / 'a', **own)
  monkeypatch.setattr(provenance, '_source', lambda: 'edited')
  assert run(tmp_path / 'a', **own, resume=True).privacy == first.privacy
  assert lines(tmp_path / 'ledger')[-1]['settings'] == lines(tmp_path / 'ledger')[0]['settings']
  with pytest.raises(ValueError, match='another run with this noise key'):
    run(tmp_path / 'b', **own)


@pytest.mark.parametrize('begun_before', [False, True])
def test_a_run_goes_on_where_other_modules_are_known(tmp_path, monkeypatch, begun_before):
  """A process has loaded those of other runs' files, too; earlier versions knew fewer."""
  own, other = {'mine': 'mine.py@1'}, {'theirs': 'theirs.py@2'}
  first, later = ({}, own) if begun_before else ({**own, **other}, own)
  book = tmp_path / 'ledger'
  stop_after(6, monkeypatch)
  monkeypatch.setattr(user_files, 'imported', lambda config: dict(first))
  with pytest.raises(interruption.Interrupted):
    run(tmp_path / 'a', ledger=str(book))
  if begun_before:
    _of_an_earlier_version(tmp_path / 'a' / 'config.json', book)
  for _ in range(2):
    monkeypatch.setattr(user_files, 'imported', lambda config: dict(later))
    assert run(tmp_path / 'a', ledger=str(book), resume=True).summary['rounds'] == 12
  assert len({line['run'] for line in lines(book)}) == 1
  monkeypatch.setattr(user_files, 'imported', lambda config: {'mine': 'mine.py@edited'})
  if not begun_before:
    with pytest.raises(ValueError, match=r'a run with another mine\.py'):
      run(tmp_path / 'a', ledger=str(book), resume=True)


def _of_an_earlier_version(config, book):
  """Takes from a run's files what an earlier version did not write."""
  record = json.loads(config.read_text())
  config.write_text(json.dumps({n: v for n, v in record.items() if not n.startswith('begun_')}))
  earlier = lines(book)
  for line in earlier:
    line['settings'] = '+'.join(line['settings'].split('+')[:2])
  book.write_text(''.join(json.dumps(line) + '\n' for line in earlier))


def test_a_key_is_not_for_two_cuts_of_data_that_a_program_gives(tmp_path):
  """Nor for data with another validation split, or that are loaded by cohort."""
  key, book = tmp_path / 'key', str(tmp_path / 'ledger')
  key.write_text(NoiseKey.fresh().hex())
  os.chmod(key, 0o600)

  def start(name, dataset):
    own = experiment(tmp_path / name, ledger=book, noise_key_file=str(key))
    # Of one table, which has the checksum, whatever a split takes from it.
    dataset = dataclasses.replace(dataset, checksums={'table': 'the same'}, partition='who')
    return runner.run(dataclasses.replace(own, dataset=dataset), show_progress=False)

  whole = fakes.make_dataset(0)
  start('a', whole)
  assert start('again', fakes.make_dataset(0)).privacy['ledger']['runs'] == 1
  held = dataclasses.replace(whole, validation=whole.test)
  source = datasets.ClientSource(
    num_examples=whole.train.num_examples, max_examples=whole.train.max_examples,
    read=lambda k: fakes.make_dataset(1).train.select(np.array([k])).pooled(),
  )  # fmt: skip
  for other in (fakes.make_dataset(1), held, dataclasses.replace(whole, train=source)):
    with pytest.raises(ValueError, match='another run with this noise key'):
      start('b', other)


def test_a_run_counts_whole_where_its_folder_is_not_seen(tmp_path, monkeypatch):
  whole = spending.claim_of(
    (made := experiment('')).config, made.dataset, made.plan, 12, run='a',
    folder=str(tmp_path / 'gone'),
  )  # fmt: skip
  assert not spending._is_running(whole)  # it was here
  assert spending._is_running(dataclasses.replace(whole, host='elsewhere'))
  assert spending._is_running(dataclasses.replace(whole, host=''))  # of an earlier version
  (tmp_path / 'there').mkdir()
  there = dataclasses.replace(whole, folder=str(tmp_path / 'there'))
  assert not spending._is_running(there)

  def refused(folder):
    raise PermissionError

  monkeypatch.setattr(files, 'is_held', refused)
  assert spending._is_running(there)


@pytest.mark.slow
def test_the_run_that_would_pass_is_refused_before_its_first_round(tmp_path):
  budget = dict(ledger=str(tmp_path / 'ledger'), ledger_epsilon=of_several(20))
  run(tmp_path / 'a', **budget)
  with pytest.raises(BudgetError, match='--ledger_epsilon='):
    run(tmp_path / 'b', **budget)
  privacy = tmp_path / 'b' / 'privacy.json'
  assert not privacy.exists() and not (tmp_path / 'b' / 'metrics.parquet').exists()
  assert run(tmp_path / 'c', **budget, rounds=8).privacy['ledger']['runs'] == 2


@pytest.mark.slow
@pytest.mark.parametrize('how', [None, OSError('the device is gone')], ids=['signal', 'failure'])
def test_a_run_that_ended_early_has_spent_what_it_wrote(tmp_path, monkeypatch, how):
  book = tmp_path / 'ledger'
  stop_after(6, monkeypatch, how)
  with pytest.raises((interruption.Interrupted, OSError)):
    run(tmp_path / 'a', ledger=str(book))
  written = json.loads((tmp_path / 'a' / 'privacy.json').read_text())['rounds']
  assert written in (3, 6) and lines(book)[-1]['rounds'] == written
  other = run(tmp_path / 'b', ledger=str(book), rounds=1)
  assert other.privacy['ledger']['epsilon'] == pytest.approx(of_several(written + 1))
  # Continued, it is still one run.
  whole = run(tmp_path / 'a', ledger=str(book), resume=True)
  assert whole.privacy['ledger']['runs'] == 2
  assert whole.privacy['ledger']['epsilon'] == pytest.approx(of_several(13))


def test_a_run_that_goes_on_counts_whole(tmp_path, monkeypatch):
  book = tmp_path / 'ledger'
  stop_after(3, monkeypatch, OSError('gone'))
  with pytest.raises(OSError, match='gone'):
    run(tmp_path / 'a', ledger=str(book))
  lock = files.FolderLock(tmp_path / 'a')  # as if another process were at it
  try:
    found = run(tmp_path / 'b', ledger=str(book), rounds=1).privacy['ledger']['epsilon']
  finally:
    lock.release()
  assert found == pytest.approx(of_several(13))


def test_nothing_is_written_that_the_ledger_does_not_hold(tmp_path, monkeypatch):
  """At whatever moment a run is killed: the order of its writes."""
  book, written = tmp_path / 'ledger', []
  original = files.write_json

  def write(path, value):
    if path.name == 'privacy.json':
      written.append((value['rounds'], max(x['rounds'] for x in lines(book)
                                           if x['kind'] != 'reserved')))  # fmt: skip
    original(path, value)

  monkeypatch.setattr(files, 'write_json', write)
  run(tmp_path / 'a', ledger=str(book))
  assert len(written) > 3 and all(recorded >= rounds for rounds, recorded in written)


# --------------------------------------------------------------------- what is claimed


@pytest.fixture
def claim_on(tmp_path):
  """Claims of runs on one table of eight clients."""
  table = tmp_path / 't.csv'
  rows = [f'{k % 8},{k},{2 * k},{k % 3}.5' for k in range(80)]
  table.write_text('\n'.join(['who,a,b,y', *rows]))

  def claim(*options, **values):
    config = ExperimentConfig(
      dataset=str(table), silo_column='who', target_column='y', rounds=3, delta=1e-3,
      dataset_option=('task=regression', *options), noise_multiplier=2.0, clients_per_round=4,
      privacy='client', **{'method': 'fedavg', **values},
    )  # fmt: skip
    dataset = build.load_dataset(config)
    return spending.claim_of(config, dataset, plans.build_plan(config, dataset), 3, run='r')

  return claim


@pytest.mark.slow
def test_a_table_is_the_same_people_whichever_columns_are_used(claim_on):
  every, some = claim_on(), claim_on('features=a', seed=1)
  assert set(every.data) & set(some.data) and every.partition == some.partition
  both = ledger.compose([every, some])
  assert both.runs == 2 and both.epsilon > ledger.compose([every]).epsilon


def test_a_table_that_a_program_cuts_otherwise_has_other_clients():
  """Though they are as many, of the same names, and no flag says who they are."""
  table = pd.DataFrame({'a': np.arange(80.0), 'y': np.arange(80) % 3.5})
  table['hospital'], table['doctor'] = np.arange(80) % 8, np.arange(80) // 10

  def claim(dataset):
    config = ExperimentConfig(
      method='fedavg', privacy='client', rounds=3, delta=1e-3, noise_multiplier=2.0,
      clients_per_round=4,
    )  # fmt: skip
    dataset = loading.load_dataset(config, dataset)
    return spending.claim_of(config, dataset, plans.build_plan(config, dataset), 3, run='r')

  def cut(column):
    return datasets.from_dataframe(
      table, silo_column=column, target='y', task='regression', features=['a'],
      preprocessing='none',
    )  # fmt: skip

  hospital, again, doctor = claim(cut('hospital')), claim(cut('hospital')), claim(cut('doctor'))
  assert set(hospital.data) & set(doctor.data)
  assert ledger.compose([hospital, again]).runs == 2
  with pytest.raises(ValueError, match='cut the same data into other clients'):
    ledger.compose([hospital, doctor])
  # What settings say of data is said by those that loaded them, whatever a run's own are.
  config = ExperimentConfig(dataset='digits', seed=3)
  loaded = loading.load_dataset(config)
  assert loading.load_dataset(config, loaded) is loaded  # a run's data go through the door twice
  assert loading.is_of_settings(config, loaded)
  other = dataclasses.replace(config, seed=4)
  assert not loading.is_of_settings(other, loaded)
  assert loading.cut_of(loaded) != loading.cut_of(loading.load_dataset(other))
  # Data of a program of which nothing else is known are what the clients hold.
  fakes_of = [claim(fakes.make_dataset(seed)) for seed in (0, 0, 1)]
  assert fakes_of[0].partition == fakes_of[1].partition != fakes_of[2].partition


@pytest.mark.slow
def test_who_opted_out_is_part_of_the_claim(claim_on):
  half, same, other = (
    claim_on(method='feo2', opt_out_fraction=fraction) for fraction in (0.5, 0.5, 0.25)
  )
  everyone = claim_on()
  assert half.unprotected == same.unprotected != other.unprotected and not everyone.unprotected
  assert ledger.compose([half, same]).epsilon < ledger.compose([half, other]).epsilon == math.inf
  assert math.isfinite(ledger.compose([half, everyone]).epsilon)
  assert ledger.compose([everyone, half]).epsilon == math.inf
