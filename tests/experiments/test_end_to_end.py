"""From flags to results with the real parts, in this process and in killed ones."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from absl.testing import flagsaver

from experiments import cli
from tests.experiments.timings import TIMINGS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ['--dataset=digits', '--dataset_option=num_clients=10', '--batch_size=16', '--rounds=6']
DP_FEDAVG = [
  *SMALL, '--method=dp_fedavg', '--noise_multiplier=0.3', '--delta=1e-2',
  '--cohort_sampling_rate=0.6', '--client_learning_rate=0.5', '--eval_every=3',
  '--checkpoint_every=2', '--noise_key=rehearsal',
]  # fmt: skip
MR_MTL = [
  *SMALL, '--method=mr_mtl', '--privacy=example', '--target_epsilon=8', '--delta=1e-2',
  '--eval_every=2', '--checkpoint_every=1', '--noise_key=rehearsal',
]  # fmt: skip


def run(*arguments):
  with flagsaver.flagsaver():
    return cli.main(['run_experiment.py', *arguments])


@pytest.fixture(autouse=True)
def no_process_left():
  yield
  for process in spawned:
    process.kill()
    process.communicate()
  spawned.clear()


spawned = []


def spawn(*arguments):
  command = [sys.executable, str(ROOT / 'run_experiment.py'), *arguments]
  environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': ''}
  process = subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
  )
  spawned.append(process)
  return process


def load(folder):
  summary = json.loads((folder / 'summary.json').read_text())
  privacy = json.loads((folder / 'privacy.json').read_text())
  for name in TIMINGS:
    assert summary.pop(name) >= 0
  return pd.read_parquet(folder / 'metrics.parquet'), summary, privacy


def assert_same(folder, reference):
  for mine, other in zip(load(folder), load(reference), strict=True):
    if isinstance(mine, pd.DataFrame):
      pd.testing.assert_frame_equal(mine, other, check_exact=True)
    else:
      assert mine == other


@pytest.mark.slow
def test_dp_fedavg_and_its_resume(tmp_path, capsys, monkeypatch):
  assert run(*DP_FEDAVG, f'--output_dir={tmp_path}/a') == 0
  said = capsys.readouterr()
  assert "server's test set" in said.out and 'Guarantee: epsilon' in said.out
  assert 'Traceback' not in said.err
  table, summary, privacy = load(tmp_path / 'a')
  assert {'test_accuracy', 'test_accuracy_std', 'server_test_accuracy', 'clipping_norm',
          'train_loss'} <= set(summary['metrics'])  # fmt: skip
  assert privacy['unit'] == 'client' and privacy['rounds'] == 6 and privacy['epsilon'] > 0
  assert table.value.notna().all()
  # Stopped in the middle by a signal, then continued: the same numbers.
  from experiments.running import loop

  original, rounds = loop.Loop._collect, []

  def collect_then_signal(self, **keywords):
    original(self, **keywords)
    if self.rounds_done == 3 and not rounds:
      rounds.append(3)
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(loop.Loop, '_collect', collect_then_signal)
  assert run(*DP_FEDAVG, f'--output_dir={tmp_path}/b') == 143
  said = capsys.readouterr().err
  hint = said.partition('stopped after round 3 of 6; continue with ')[2].split()
  assert hint == ['./fl', '--resume', f'--output_dir={tmp_path}/b']
  assert run(*hint[1:]) == 0  # exactly as it was printed
  assert_same(tmp_path / 'b', tmp_path / 'a')


@pytest.mark.exhaustive
@pytest.mark.slow
def test_private_tuning_and_its_resume(tmp_path, monkeypatch, capsys):
  """Appendix F.3: the release comes after the last round, and once however often one resumes."""
  flags = [
    *SMALL[:3], '--method=tuned_mr_mtl', '--privacy=example', '--target_epsilon=8', '--delta=1e-2',
    '--validation_fraction=0.2', '--tuning_lambdas=0,10', '--tuning_gamma=0.4', '--rounds=3',
    '--eval_every=1', '--checkpoint_every=1', '--noise_key=rehearsal',
  ]  # fmt: skip
  assert run(*flags, f'--output_dir={tmp_path}/a') == 0
  _, summary, privacy = load(tmp_path / 'a')
  assert privacy['epsilon'] == pytest.approx(8, rel=1e-4) and privacy['epsilon'] <= 8
  assert 'scores with noise multiplier 0.451702' in privacy['mechanism']
  assert 'gamma 0.4' in privacy['mechanism'] and 'shared round by round' in privacy['mechanism']
  assert 'looking at results are not accounted for' not in privacy['statement']
  assert privacy['pld_epsilon'] == privacy['epsilon'] < privacy['rdp_epsilon']
  for silo in privacy['silos']:
    assert silo['epsilon'] > 1.2 * silo['epsilon_of_training_alone']
  assert 0 <= summary['metrics']['selection_agreement'] <= 1
  # Until the release the clients' own model is the pivot; then it is another one.
  assert summary['metrics']['test_loss'] != pytest.approx(_pivots_loss(flags, tmp_path))

  from experiments.running import loop

  original, rounds = loop.Loop._collect, []

  def collect_then_signal(self, **keywords):
    original(self, **keywords)
    if self.rounds_done == 2 and not rounds:
      rounds.append(2)
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(loop.Loop, '_collect', collect_then_signal)
  assert run(*flags, f'--output_dir={tmp_path}/b') == 143
  for _ in range(2):
    assert run(*flags, f'--output_dir={tmp_path}/b', '--resume') == 0
    assert_same(tmp_path / 'b', tmp_path / 'a')
  capsys.readouterr()
  without = [flag for flag in flags if 'validation' not in flag]
  assert run(*without, f'--output_dir={tmp_path}/c') == 2
  assert 'needs --validation_fraction' in capsys.readouterr().err


def _pivots_loss(flags, tmp_path):
  """Of the same run in which nothing is released."""
  from experiments.running import population

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(population.Population, '_release', lambda self: {})
    assert run(*flags, f'--output_dir={tmp_path}/pivots') == 0
  return load(tmp_path / 'pivots')[1]['metrics']['test_loss']


@pytest.mark.slow
@pytest.mark.exhaustive(
  but=[
    '--method=mr_mtl --mtl_lambda=0.5 --weighting=examples',
    '--method=fedavg --privacy=example --noise_multiplier=1 --delta=1e-2',
  ]
)
@pytest.mark.parametrize(
  'arguments',
  [
    ['--method=fedavg'],
    ['--method=local'],
    ['--method=mr_mtl', '--mtl_lambda=0.5', '--weighting=examples'],
    ['--method=local', '--privacy=example', '--noise_multiplier=1', '--delta=1e-2'],
    ['--method=fedavg', '--privacy=example', '--noise_multiplier=1', '--delta=1e-2'],
    ['--clients_per_round=4', '--cohort_sampling=fixed', '--server_learning_rate=0.5'],
  ],
  ids=' '.join,
)
def test_methods_run_through_flags(tmp_path, arguments):
  assert run(*SMALL[:3], '--rounds=2', *arguments, f'--output_dir={tmp_path}/run') == 0
  _, summary, privacy = load(tmp_path / 'run')
  assert 0 <= summary['metrics']['test_accuracy'] <= 1
  assert privacy['private'] == ('--privacy=example' in arguments)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_reporting_who_would_opt_out_changes_no_number(tmp_path):
  """All of DP-FedAvg's numbers stay, to the last bit; gaps of two groups come with them."""
  flags = [
    *SMALL[:3], '--method=ditto', '--privacy=client', '--noise_multiplier=1', '--delta=1e-2',
    '--noise_key=rehearsal', '--clients_per_round=5', '--rounds=2',
  ]  # fmt: skip
  assert run(*flags, f'--output_dir={tmp_path}/plain') == 0
  assert run(*flags, '--would_opt_out_fraction=0.2', f'--output_dir={tmp_path}/apart') == 0
  (_, plain, privacy), (_, apart, with_groups) = (load(tmp_path / n) for n in ('plain', 'apart'))
  metrics, gap = apart['metrics'], 'would_opt_out_minus_would_stay'
  assert plain['metrics'].items() <= metrics.items()
  assert {f'test_accuracy_{gap}', f'test_global_accuracy_{gap}'} <= metrics.keys()
  assert not any(gap in name for name in plain['metrics'])
  means = [
    apart['metrics_by_group'][group]['test_accuracy_mean']
    for group in ('would opt out', 'would stay')
  ]
  assert metrics[f'test_accuracy_{gap}'] == means[0] - means[1]
  assert privacy == with_groups


@pytest.mark.slow
def test_silo_epsilons(tmp_path):
  budgets = tmp_path / 'budgets.csv'
  rows = [f'client_{k},{1 + k}' for k in range(10)]
  budgets.write_text('\n'.join(['silo,epsilon', *rows]))
  arguments = [a for a in MR_MTL if 'target' not in a and 'rounds' not in a]
  flags = [*arguments, '--rounds=2', f'--silo_epsilons={budgets}']
  assert run(*flags, f'--output_dir={tmp_path}/run') == 0
  silos = load(tmp_path / 'run')[2]['silos']
  assert [s['silo'] for s in silos] == [f'client_{k}' for k in range(10)]
  for k, silo in enumerate(silos):
    assert silo['epsilon'] == pytest.approx(1 + k, rel=1e-3) and silo['epsilon'] <= 1 + k


@pytest.mark.exhaustive
@pytest.mark.slow
def test_silos_of_few_budgets_are_reported_apart(tmp_path):
  arguments = [a for a in MR_MTL if 'target' not in a and 'rounds' not in a]
  found = {}
  for name, epsilons in (('two', [2, 8.5]), ('each', range(1, 11)), ('one', [3])):
    rows = [f'client_{k},{epsilons[k % len(epsilons)]}' for k in range(10)]
    budgets = tmp_path / f'{name}.csv'
    budgets.write_text('\n'.join(['silo,epsilon', *rows]))
    flags = [*arguments, '--rounds=2', f'--silo_epsilons={budgets}']
    assert run(*flags, f'--output_dir={tmp_path}/{name}') == 0
    found[name] = load(tmp_path / name)
  two = found['two'][1]['metrics_by_group']
  assert set(two) == {'all', 'epsilon 2', 'epsilon 8.5'}
  assert all(set(found[name][1]['metrics_by_group']) == {'all'} for name in ('each', 'one'))
  table = pd.read_parquet(tmp_path / 'two' / 'metrics.parquet')
  own = table[(table['split'] == 'test') & (table['metric'] == 'accuracy')]
  own = own[own['client'].notna() & (own['round'] == 2)].set_index('client')['value']
  for group, members in (('epsilon 2', range(0, 10, 2)), ('epsilon 8.5', range(1, 10, 2))):
    mean = own[[f'client_{k}' for k in members]].mean()
    assert two[group]['test_accuracy_mean'] == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
  'content,message',
  [
    ('client,eps\n', 'must have the columns silo and epsilon'),
    ('silo,epsilon\nclient_77,1\n', "silo 'client_77' is not in the data"),
    ('silo,epsilon\nclient_0,1\nclient_0,2\n', "line 3: silo 'client_0' is there a second time"),
    ('silo,epsilon\nclient_0,-1\n', "line 2: epsilon is '-1'; it must be greater than 0"),
    ('silo,epsilon\nclient_0,2,5\n', 'line 2 has more values than the 2 columns'),
    (
      'silo,epsilon,delta\nclient_0,1,.9\n',
      "line 2: delta is '.9'; it must be greater than 0 and at",
    ),
    ('silo,epsilon\nclient_0,nan\n', "epsilon is 'nan'"),
    ('silo,epsilon\nclient_0,\n', "epsilon is ''"),
    ('silo,epsilon\nclient_0,1\n', "no row for 9 silos, such as 'client_1'"),
    ('silo,epsilon,delta\nclient_0,1,x\n', "delta is 'x'"),
    (None, 'No such file or directory'),
  ],
)
def test_wrong_silo_epsilons(tmp_path, capsys, content, message):
  path = tmp_path / 'budgets.csv'
  if content is not None:
    path.write_text(content)
  arguments = [a for a in MR_MTL if 'target' not in a]
  flags = [*arguments, f'--silo_epsilons={path}', f'--output_dir={tmp_path}/run']
  assert run(*flags) == 2
  said = capsys.readouterr().err.strip().splitlines()
  assert said[-1].startswith('error: ') and message in said[-1]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_silo_lambdas(tmp_path):
  """lambda_k in units of --mtl_lambda: twice a half is one, and silo 0 goes its own way."""
  for name, own in (('ones', 2), ('alone', 0)):
    rows = [f'client_{k},{own if k == 0 else 2}' for k in range(10)]
    (tmp_path / f'{name}.csv').write_text('\n'.join(['silo,mtl_lambda', *rows]))
  flags = [a for a in MR_MTL if 'rounds' not in a and 'mtl_lambda' not in a] + ['--rounds=2']
  half = ['--mtl_lambda=0.5', f'--silo_lambdas={tmp_path}/']
  assert run(*flags, '--mtl_lambda=1', f'--output_dir={tmp_path}/plain') == 0
  for name in ('ones', 'alone'):
    assert run(*flags, half[0], f'{half[1]}{name}.csv', f'--output_dir={tmp_path}/{name}') == 0
  plain, ones, alone = (
    load(tmp_path / name)[1]['metrics']['test_loss'] for name in ('plain', 'ones', 'alone')
  )
  assert ones == plain != alone
  (tmp_path / 'ones.csv').write_text('silo,mtl_lambda\nclient_0,-1\n')
  assert run(*flags, f'{half[1]}ones.csv', f'--output_dir={tmp_path}/wrong') == 2


def test_an_unwritable_folder_is_one_line_at_once(capsys):
  begin = time.monotonic()
  assert run(*SMALL, '--output_dir=/proc/results') == 2
  assert time.monotonic() - begin < 2.0
  said = capsys.readouterr().err.strip().splitlines()
  assert len(said) == 1 and said[0].startswith('error: cannot write /proc/results: ')


@pytest.mark.slow
def test_without_output_dir_folders_are_numbered(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for number in (1, 2):
    assert run(*SMALL[:3], '--rounds=1') == 0
    assert f'Results: results/digits-fedavg-00{number}' in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('flags', [DP_FEDAVG, MR_MTL], ids=['dp_fedavg', 'mr_mtl'])
def test_sigkill_then_resume_in_fresh_processes(tmp_path, flags):
  flags = [*(f for f in flags if 'rounds=' not in f), '--rounds=200', '--checkpoint_every=7']
  # In a process of its own, too: with as many threads.
  whole = spawn(*flags, f'--output_dir={tmp_path}/reference')
  said = whole.communicate(timeout=300)
  assert whole.returncode == 0, said
  rng = random.Random(1)
  folder = tmp_path / 'run'
  for _ in range(2):
    process = spawn(*flags, f'--output_dir={folder}', '--resume')
    begin = time.monotonic()
    while not list(folder.glob('metrics.parquet')) and time.monotonic() - begin < 120:
      time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 0.5) if folder.exists() else 0.0)
    process.kill()
    process.communicate()
  process = spawn(*flags, f'--output_dir={folder}', '--resume')
  said = process.communicate(timeout=300)
  assert process.returncode == 0, said
  assert_same(folder, tmp_path / 'reference')


@pytest.mark.exhaustive(but=['2-130'])
@pytest.mark.slow
@pytest.mark.parametrize('number,code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_with_one_line(tmp_path, number, code):
  process = spawn(*SMALL[:3], '--rounds=1000000', '--eval_every=0', f'--output_dir={tmp_path}/run')
  assert process.stderr is not None
  for line in process.stderr:
    if re.search(r'round [1-9]\d* of', line):
      break
  process.send_signal(number)
  said = process.communicate(timeout=120)[1].strip().splitlines()
  assert process.returncode == code
  assert len(said) <= 3 and said[-1].startswith('stopped after round')
  assert (tmp_path / 'run' / 'metrics.parquet').exists()
