"""`--resume --output_dir=DIR` alone, what may stand beside it, and what failed runs leave."""

import dataclasses
import json
import os
import pathlib
import shlex
import signal

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import cli
from experiments.config import continuing, launcher
from experiments.config.experiment import ExperimentConfig
from experiments.folder import noise_keys, results
from experiments.running import build, interruption, parts, runner
from experiments.sweeps import grid, record, sweep
from privacy import ledger
from tests.experiments import fakes
from tests.experiments.test_runner import assert_same_results, make_config
from tests.privacy.test_ledger import claim

SWEEP = ('--method=mr_mtl', '--dataset=exam', '--privacy=example', '--delta=1e-3', '--rounds=3')


@pytest.fixture
def fast(monkeypatch):
  """Runs of a few lines, whatever they are asked to be."""
  fakes.without_figures(monkeypatch.setattr)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  monkeypatch.setattr(runner, 'load_dataset', lambda config: None)
  monkeypatch.setattr(
    runner, 'build_process',
    lambda config, dataset, *, noise_key: dataclasses.replace(
      fakes.make_experiment(config), noise_key=noise_key
    ),
  )  # fmt: skip
  monkeypatch.setattr(build.Experiment, 'warning', '')


def command(*arguments):
  with flagsaver.flagsaver():
    return cli.main(['run_experiment.py', *map(str, arguments)])


def flags_of(config):
  """A configuration as a command line."""
  return [
    f'--{name}={str(value).lower() if isinstance(value, bool) else value}'
    for name, value in config.to_json().items()
    if name != 'resume' and not isinstance(value, list)
  ]


def stop_after(monkeypatch, rounds):
  """Ctrl-C after so many rounds of the next run."""
  original, done = fakes.FakeRuntime.round, []

  def round_(self, *arguments, **keywords):
    done.append(1)
    if len(done) == rounds:
      os.kill(os.getpid(), signal.SIGINT)
    return original(self, *arguments, **keywords)

  monkeypatch.setattr(fakes.FakeRuntime, 'round', round_)


@pytest.mark.slow
def test_a_setup_that_is_drawn_from_the_key_goes_on_with_it(tmp_path):
  """By the same call with resume=True; an experiment of another key trains other candidates."""
  config = ExperimentConfig(
    method='tuned_mr_mtl', dataset='exam', privacy='example', noise_multiplier=1.0, delta=1e-3,
    accountant='renyi', validation_fraction=0.2, tuning_lambdas='0,10', tuning_gamma=0.4,
    rounds=3, eval_every=0, checkpoint_every=1, runtime='native', output_dir=str(tmp_path / 'run'),
  )  # fmt: skip

  class Stop(parts.Callback):
    def after_round(self, round_, metrics):
      if round_ == 2:
        raise KeyError('killed')

  first = build.build_process(config)
  with pytest.raises(KeyError):
    runner.run(first, show_progress=False, callbacks=[Stop()])
  config = dataclasses.replace(config, resume=True)
  other = dataclasses.replace(first, config=config, noise_key=noise_keys.NoiseKey.fresh())
  with pytest.raises(ValueError, match=r'draws its setup from the noise key, .* with resume=True'):
    runner.run(other, show_progress=False)
  again = build.build_process(config)
  assert again.noise_key_fingerprint == first.noise_key_fingerprint
  assert runner.run(again, show_progress=False).summary['rounds'] == 3


@pytest.mark.slow
def test_the_printed_hint_continues_to_the_same_numbers(tmp_path, monkeypatch, capsys, fast):
  config = make_config(tmp_path / 'a folder')
  with monkeypatch.context() as patch:
    stop_after(patch, 5)
    assert command(*flags_of(config)) == 130
  said = capsys.readouterr().err.strip().splitlines()[-1]
  first, *arguments = shlex.split(said.partition('continue with ')[2])
  assert first == './fl' and len(arguments) == 2
  assert command(*arguments) == 0
  assert 'Continuing FedAvg' in capsys.readouterr().err
  whole = make_config(tmp_path / 'whole')
  assert command(*flags_of(whole)) == 0
  assert_same_results(tmp_path / 'a folder', tmp_path / 'whole')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('beside', 'words'),
  [
    ('--rounds=13', '--rounds=13 contradicts --output_dir=DIR, which was begun with 12'),
    ('--method=mr_mtl', '--method=mr_mtl contradicts'),
    ('--seed=1', '--seed=1 contradicts'),
    ('--mtl_lambda=1', 'begun with no such setting'),
    ('--noise_multiplier=2', '--noise_multiplier=2.0 contradicts'),
    ('--dataset_option=num_clients=9', '--dataset_option=num_clients=9 contradicts'),
    ('--privacy=none', '--privacy=none contradicts'),
    ('--sweep=rounds=1,2', 'which holds a run and no sweep'),
  ],
)
def test_what_contradicts_the_folder_is_refused(tmp_path, capsys, fast, beside, words):
  config = make_config(tmp_path / 'run')
  runner.run(fakes.make_experiment(config), show_progress=False)
  before = (tmp_path / 'run' / 'summary.json').read_bytes()
  assert command('--resume', f'--output_dir={tmp_path}/run', beside) == 2
  said = capsys.readouterr().err.strip().splitlines()
  assert said[-1].startswith('error: ') and len(said) == 1
  assert words.replace('DIR', str(tmp_path / 'run')) in said[0]
  assert (tmp_path / 'run' / 'summary.json').read_bytes() == before


def test_what_may_differ_does(tmp_path):
  recorded = make_config(tmp_path, privacy='none', noise_multiplier=None, delta=None).to_json()
  given = {'device': 'cpu,cpu', 'checkpoint_every': 1, 'data_dir': 'moved', 'rounds': 12}
  merged = ExperimentConfig.from_json(
    continuing.merged(recorded, given, '--output_dir=x', complete=True)
  )
  assert (merged.device, merged.checkpoint_every, merged.data_dir) == ('cpu,cpu', 1, 'moved')
  assert merged.differences(ExperimentConfig.from_json({**recorded, 'device': 'cpu,cpu'})) == []


def test_nothing_to_continue(tmp_path, capsys):
  for folder in ('none', ''):
    assert command('--resume', f'--output_dir={tmp_path}/{folder}', '--device=cpu') == 2
    assert 'holds no run and no sweep to continue' in capsys.readouterr().err
  (tmp_path / 'config.json').write_text('{')
  assert command('--resume', f'--output_dir={tmp_path}') == 2
  assert 'config.json is damaged' in capsys.readouterr().err


def test_a_setting_that_there_is_not_is_said_with_its_folder(tmp_path, capsys):
  path = tmp_path / 'run' / 'config.json'
  path.parent.mkdir()
  values = make_config(tmp_path / 'run').to_json()
  path.write_text(json.dumps({'config': {**values, 'roundz': 3}}))
  assert command('--resume', f'--output_dir={tmp_path}/run', '--device=cpu') == 2
  [said] = capsys.readouterr().err.splitlines()
  assert f'--output_dir={tmp_path}/run holds' in said and 'roundz; did you mean rounds?' in said


def test_a_hint_works_from_other_folders_and_with_spaces(tmp_path, monkeypatch):
  assert launcher.resume('a b') == "./fl --resume --output_dir='a b'"
  monkeypatch.chdir(tmp_path)
  assert launcher.command().endswith('/fl') and (tmp_path / launcher.command()).is_file()
  monkeypatch.setattr(launcher, '_LAUNCHER', tmp_path / 'fl')
  assert launcher.command() == 'run-experiment'


@pytest.fixture(name='elsewhere')
def _elsewhere(tmp_path, monkeypatch):
  """Goes to one folder now, and to another when it is called."""
  for name in ('here', 'there'):
    (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / 'here')
  return lambda: monkeypatch.chdir(tmp_path / 'there')


def test_a_run_goes_on_in_another_working_folder_with_its_own_files(tmp_path, elsewhere):
  """From there the same relative path would be another ledger, in which nothing is spent."""
  here, folder = tmp_path / 'here', str(tmp_path / 'run')
  settings = dict(
    dataset='mine.csv', silo_column='a', target_column='b', model='my_model.py:build',
    metric=('my_metrics.py:top',), privacy='client', noise_multiplier=1.0, delta=1e-3,
    ledger='book.json', data_dir='data', output_dir=folder,
  )  # fmt: skip
  for name in ('mine.csv', 'my_model.py', 'my_metrics.py'):
    (here / name).write_text('a,b\n1,2\n')
  open_folder = results.RunFolder(ExperimentConfig(**settings))
  open_folder.record_environment({}, {})
  open_folder.begin('key')
  assert cli._configuration({'resume': True, 'output_dir': folder}).model == 'my_model.py:build'
  elsewhere()
  found = cli._configuration({'resume': True, 'output_dir': folder})
  assert found.ledger == str(here / 'book.json') and found.data_dir == str(here / 'data')
  assert found.dataset == str(here / 'mine.csv')
  assert found.model == f'{here}/my_model.py:build'
  assert found.metric == (f'{here}/my_metrics.py:top',)
  given = {'resume': True, 'output_dir': folder, 'ledger': 'mine.json'}
  assert cli._configuration(given).ledger == 'mine.json'
  open_folder.close()
  again = results.RunFolder(found)
  assert again.resuming
  again.close()


def test_a_folder_of_parquet_files_is_found_from_elsewhere(tmp_path, elsewhere):
  assert continuing.as_begun({'dataset': 'parquet:mine'}, os.getcwd()) == {
    'dataset': 'parquet:mine'
  }
  began = os.getcwd()
  elsewhere()
  found = continuing.as_begun({'dataset': 'parquet:mine', 'rounds': 3, 'data_dir': ''}, began)
  assert found == {'dataset': f'parquet:{began}/mine', 'rounds': 3, 'data_dir': ''}
  assert continuing.as_begun({'ledger': 'book.json'}, f'{began}/gone') == {'ledger': 'book.json'}


def test_a_sweep_goes_on_in_another_working_folder_with_its_own_ledger(tmp_path, elsewhere):
  folder = tmp_path / 'swept'
  folder.mkdir()
  begun = grid.Grid(
    base={'privacy': 'client', 'noise_multiplier': 1.0, 'delta': 1e-3, 'ledger': 'book.json'},
    axes={'client_learning_rate': (0.1, 0.2)},
    seeds=(0,),
  )
  record.take(folder, begun, resume=False)
  elsewhere()
  again = record.continued(folder, {}, [], [])
  assert again.base['ledger'] == str(tmp_path / 'here' / 'book.json')
  assert not record.take(folder, again, resume=True)
  assert record.continued(folder, {}, [], []).base == again.base


# ------------------------------------------------ runs that had no round


def test_a_run_that_fails_before_its_first_round_leaves_nothing(
  tmp_path, monkeypatch, fast, capsys
):
  """Neither folder nor key nor ledger entry; the corrected command goes there."""
  book, folder = tmp_path / 'ledger', tmp_path / 'run'
  config = make_config(folder, noise_key='secret', ledger=str(book))

  def fail(self, *arguments, **keywords):
    assert (folder / noise_keys.NAME).exists() and '"reserved"' in book.read_text()
    raise ValueError('out of luck')

  with monkeypatch.context() as patch:
    patch.setattr(fakes.FakeRuntime, 'round', fail)
    assert command(*flags_of(config)) == 2
  said = capsys.readouterr().err
  assert 'error: out of luck' in said and 'resume' not in said
  assert not folder.exists() and book.read_text() == ''
  corrected = make_config(folder, noise_key='secret', ledger=str(book), rounds=2)
  assert command(*flags_of(corrected)) == 0
  assert (folder / 'summary.json').exists() and '"ended"' in book.read_text()


def test_others_in_the_ledger_stay(tmp_path):
  """Only a reservation at the end of the file is taken back."""
  book = ledger.Ledger(tmp_path / 'ledger')
  book.reserve(claim(run='a'))
  before = book.path.read_bytes()
  book.reserve(claim(run='b'))
  after = book.path.read_bytes()
  book.withdraw(claim(run='a'))
  assert book.path.read_bytes() == after
  book.withdraw(claim(run='b'))
  assert book.path.read_bytes() == before
  book.record(claim(run='a'))
  spent = book.path.read_bytes()
  book.withdraw(claim(run='a'))
  assert book.path.read_bytes() == spent


def test_a_new_numbered_folder_goes_too(tmp_path, monkeypatch, fast):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(runner, 'load_dataset', lambda config: (_ for _ in ()).throw(OSError('no')))
  assert command('--method=fedavg') == 2
  assert list((tmp_path / 'results').iterdir()) == []


def test_a_folder_of_ones_own_stays_empty(tmp_path):
  (tmp_path / 'mine').mkdir()
  results.RunFolder(make_config(tmp_path / 'mine')).close()
  assert list((tmp_path / 'mine').iterdir()) == []
  results.RunFolder(make_config(tmp_path / 'new')).close()
  assert not (tmp_path / 'new').exists()


def test_a_folder_with_another_programs_config_is_left_as_it_is(tmp_path):
  """Other programs, too, write a config.json beside a folder of events."""
  (tmp_path / 'tensorboard').mkdir()
  for text in ('{"model_type": "bert"}', '[1]', '{"config": {"layers": 3}}'):
    (tmp_path / 'config.json').write_text(text)
    with pytest.raises(ValueError, match='that is not of a run; choose an empty or a new folder'):
      results.RunFolder(make_config(tmp_path, resume=True))
    assert (tmp_path / 'config.json').read_text() == text
    assert {'config.json', 'tensorboard'} <= {p.name for p in tmp_path.iterdir()}


def test_a_run_that_was_killed_before_its_first_round_blocks_nobody(tmp_path):
  """The kill leaves its files, and a run that was begun is never taken for such a one."""
  killed = results.RunFolder(make_config(tmp_path))
  killed.record_environment({}, {})
  killed._lock.release()  # as the kernel does
  other = results.RunFolder(make_config(tmp_path, rounds=3))
  assert not other.resuming and other.read_json('config.json')['config']['rounds'] == 3
  other.record_environment({}, {})
  other.begin()
  other._lock.release()
  with pytest.raises(ValueError, match='another configuration'):
    results.RunFolder(make_config(tmp_path, rounds=4))
  again = results.RunFolder(make_config(tmp_path, rounds=3, resume=True))
  assert again.resuming
  again.close()
  assert json.loads((tmp_path / 'config.json').read_text())['running']


def test_stopped_before_the_first_round(tmp_path, monkeypatch, fast, capsys):
  def stop(config):
    raise interruption.Interrupted(2)

  monkeypatch.setattr(runner, 'load_dataset', stop)
  assert command(*flags_of(make_config(tmp_path / 'run'))) == 130
  assert capsys.readouterr().err.splitlines()[-1] == interruption.NOTHING_KEPT
  assert not (tmp_path / 'run').exists()


# ---------------------------------------------------------- files that are read


def _silos(output_dir, **paths):
  return ExperimentConfig(
    method='mr_mtl', privacy='example', dataset='exam', rounds=3, output_dir=str(output_dir),
    **{name: str(path) for name, path in paths.items()},
  )  # fmt: skip


def _budgets(path, epsilon):
  path.write_text(f'silo,epsilon,delta\na,{epsilon},1e-3\n')
  return path


def test_a_file_counts_by_what_it_says(tmp_path):
  """Other budgets are another run: with the same key its noise, scaled, would cancel."""
  budgets, lambdas = _budgets(tmp_path / 'b.csv', 2), tmp_path / 'l.csv'
  lambdas.write_text('silo,mtl_lambda\na,2\n')
  config = _silos(tmp_path, silo_epsilons=budgets, silo_lambdas=lambdas)
  first = config.fingerprint, config.identity
  (tmp_path / 'elsewhere').mkdir()
  moved = _silos(tmp_path, silo_epsilons=_budgets(tmp_path / 'elsewhere' / 'b.csv', 2),
                 silo_lambdas=lambdas)  # fmt: skip
  assert (moved.fingerprint, moved.identity) == first
  _budgets(budgets, 4)
  assert config.fingerprint != first[0]
  assert [line.partition(' ')[0] for line in config.differences(moved)] == ['--silo_epsilons']
  _budgets(budgets, 2)
  assert config.fingerprint == first[0]
  lambdas.write_text('silo,mtl_lambda\na,3\n')
  assert config.fingerprint != first[0]


def test_a_run_whose_budgets_were_edited_is_not_continued(tmp_path):
  budgets, folder = _budgets(tmp_path / 'b.csv', 2), tmp_path / 'run'
  config = _silos(folder, silo_epsilons=budgets)
  opened = results.RunFolder(config)
  opened.record_environment({}, {})
  opened.begin('key')
  opened.close()
  again = dataclasses.replace(config, resume=True)
  _budgets(budgets, 4)
  with pytest.raises(ValueError, match='another content of the file of --silo_epsilons'):
    results.RunFolder(again)
  _budgets(budgets, 2)
  opened = results.RunFolder(again)
  assert opened.resuming
  opened.close()


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('model', 'a model that holds other numbers'),
    ('examples', 'other training or validation examples'),
    ('helper', 'another helper.py'),
  ],
)
def test_a_run_is_not_continued_with_other_things_that_no_flag_names(tmp_path, name, words):
  config = ExperimentConfig(rounds=3, output_dir=str(tmp_path / 'run'))
  opened = results.RunFolder(config)
  opened.record_environment({}, {}, contents={name: '1'})
  opened.begin('key')
  opened.close()
  again = dataclasses.replace(config, resume=True)
  opened = results.RunFolder(again)
  with pytest.raises(ValueError, match=words):
    opened.record_environment({}, {}, contents={name: '2'})
  opened.record_environment({}, {})  # what is not known here is not forgotten
  opened.record_environment({}, {}, contents={name: '1'})
  opened.close()


def test_a_sweep_whose_budgets_were_edited_is_not_continued(tmp_path):
  budgets = _budgets(tmp_path / 'b.csv', 2)
  base = {n: v for n, v in _silos('', silo_epsilons=budgets).to_json().items() if n != 'output_dir'}
  swept = f'silo_epsilons={budgets},{_budgets(tmp_path / "c.csv", 3)}'
  for name, sweeps in (('base', ['mtl_lambda=1,2']), ('axis', [swept])):
    (tmp_path / name).mkdir()
    one = grid.Grid.parse(base, sweeps, [])
    assert record.take(tmp_path / name, one, False)
    _budgets(budgets, 4)
    with pytest.raises(ValueError, match=f'content of the file of --silo_epsilons={budgets}'):
      record.take(tmp_path / name, one, True)
    _budgets(budgets, 2)
    assert not record.take(tmp_path / name, one, True)


# ------------------------------------------------------------------- sweeps


def _begun_sweep(tmp_path, **how):
  with flagsaver.flagsaver():
    flags.FLAGS(['x', *SWEEP, '--sweep=target_epsilon=2,4', '--seeds=0-1'])
    plan = sweep.from_flags(cli.experiment_flags.given(['x', *SWEEP]).values, flags.FLAGS)
  record.take(tmp_path, plan.grid, False, record.How(**how))
  return plan.grid


def _continued(tmp_path, *beside):
  with flagsaver.flagsaver():
    arguments = ['x', '--resume', f'--output_dir={tmp_path}', *beside]
    flags.FLAGS(arguments)
    return sweep.from_flags(cli.experiment_flags.given(arguments).values, flags.FLAGS)


def test_a_sweep_goes_on_from_its_folder_alone(tmp_path):
  begun = _begun_sweep(tmp_path, workers=2, select_on='test')
  plan = _continued(tmp_path)
  assert plan.grid == begun and plan.resume and plan.folder == str(tmp_path)
  assert plan.how == record.How(workers=2, select_on='test')
  assert 'Continuing a sweep of 4 runs, target_epsilon=2.0,4.0 x 2 seeds' in plan.in_words
  record.take(tmp_path, plan.grid, True)
  # The whole command line again, and what may differ.
  again = _continued(
    tmp_path, *SWEEP, '--sweep=target_epsilon=2,4', '--seeds=0-1', '--workers=3', '--device=cpu'
  )
  assert again.grid.axes == begun.axes and again.how.workers == 3
  assert again.grid.base['device'] == 'cpu'
  assert not record.take(tmp_path, again.grid, True)


@pytest.mark.parametrize(
  'beside',
  ['--rounds=4', '--target_epsilon=2', '--seeds=0-2', '--seed=5', '--sweep=target_epsilon=2,3',
   '--sweep=mtl_lambda=1', '--method=local'],
)  # fmt: skip
def test_what_contradicts_a_sweep_is_refused(tmp_path, beside):
  _begun_sweep(tmp_path)
  with pytest.raises(ValueError, match=f'^{beside.partition("=")[0]}=.*contradicts --output_dir='):
    _continued(tmp_path, beside)


def test_a_sweep_that_fails_before_its_first_round_leaves_nothing(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
    sweep, '_run_here', lambda path, grid, runs, *rest: dict.fromkeys(runs, 'no such file.')
  )
  arguments = [*SWEEP, '--sweep=target_epsilon=2,4', f'--output_dir={tmp_path}/sweep']
  assert command(*arguments) == 2
  assert 'error: All 2 runs failed: no such file.' in capsys.readouterr().err
  assert not (tmp_path / 'sweep').exists()


def test_runs_that_had_rounds_keep_their_sweep(tmp_path):
  runs = record.configs(_begun_sweep(tmp_path), tmp_path)
  begun, unbegun, *_ = runs.values()
  for config in (begun, unbegun):
    folder = pathlib.Path(config.output_dir)
    folder.mkdir(parents=True)
    (folder / noise_keys.NAME).touch()
  (pathlib.Path(begun.output_dir) / 'config.json').write_text('{}')
  assert not record.leave(tmp_path, runs, fresh=True)
  assert (tmp_path / 'sweep.json').exists()
  assert (pathlib.Path(begun.output_dir) / noise_keys.NAME).exists()
  assert not pathlib.Path(unbegun.output_dir).exists()
