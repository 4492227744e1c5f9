"""Wrong uses of the command line and the library: one line that names them, exit code 2.

`tests/experiments/test_config.py` has the table of settings that do not fit together; here
are the ways in which people get as far as that, and past it.
"""

import importlib
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import datasets
from experiments import cli
from experiments.audits import command
from experiments.config import checks
from experiments.config.experiment import ExperimentConfig
from experiments.recipes import reproduce
from experiments.reports import report
from experiments.running import build, runner
from experiments.sweeps.grid import Grid
from tests.experiments import test_report

PRIVATE = ('--privacy=client', '--noise_multiplier=1', '--delta=1e-3')
SILOS = ('--method=mr_mtl', '--privacy=example', '--delta=1e-3')
TABLE = ('--silo_column=a', '--target_column=b')

# Arguments (files in {}: see FILES) and a part of the line that they get. All of it is said
# before TensorFlow is loaded.
AT_ONCE = [
  (['--lerning_rate=0.1'], '--lerning_rate is no flag; did you mean server_learning_rate?'),
  (['--client_learningrate=0.1'], 'did you mean client_learning_rate?'),
  (['-rounds', '5', '--sede=3'], "--sede is no flag; did you mean seed?"),
  (['--rounds'], 'rounds'),
  (['--rounds='], '--rounds= must be a whole number.'),
  (['--rounds=1e3'], '--rounds=1e3 must be a whole number.'),
  (['--rounds=ten'], '--rounds=ten must be a whole number.'),
  (['--rounds=0'], '--rounds=0 must be at least 1'),
  (['--rounds=99999999999999999999'], '--rounds=99999999999999999999'),
  (['--rounds=0x'], '--rounds=0x'),
  (['--seed=1.5'], '--seed=1.5'),
  (['--seed=-1'], '--seed=-1'),
  (['--seed=4294967296'], '--seed=4294967296'),
  (['--client_learning_rate=nan'], '--client_learning_rate=nan must be a finite number'),
  (['--client_learning_rate=inf'], '--client_learning_rate=inf'),
  (['--client_learning_rate=-0.1'], '--client_learning_rate=-0.1'),
  (['--client_learning_rate=fast'], '--client_learning_rate=fast must be a number.'),
  (['--client_learning_rate=0,1'], '--client_learning_rate=0,1'),
  (['--adaptive_clipping=maybe'], 'adaptive_clipping'),
  (['--method='], '--method='),
  (['--method=FedAvg'], 'did you mean fedavg?'),
  (['--method=MR-MTL'], 'did you mean mr_mtl?'),
  (['--dataset=MNIST'], 'did you mean mnist?'),
  (['--dataset=cifar'], 'did you mean cifar10_heterogeneous or cifar10_jpeg?'),
  (['--dataset=my_table.xlsx'], 'a table of your own (a .csv or a .parquet file)'),
  (['--model=CNN'], 'did you mean cnn3x3, cnn5x5, femnist_cnn or ppsgd_cnn?'),
  (['--learning_rate=0.1'], 'did you mean client_learning_rate, '),
  (['--epochs=3'], 'did you mean local_epochs?'),
  (['--lambda=1'], 'did you mean mtl_lambda, '),
  (['--noise=1'], 'did you mean noise_multiplier, '),
  (['--lr=0.1'], ' --help lists the flags.'),
  (['--workers=many'], '--workers=many must be a whole number.'),
  (['--method=scaffolds'], '--method=scaffolds must be one of'),
  (['--dataset=imagenet'], '--dataset=imagenet must be one of'),
  (['--model=transformer'], '--model=transformer must be one of'),
  (['fedavg'], "'fedavg' is no flag"),
  (['--rounds=3', 'digits', '--seed=2'], "'digits' is no flag"),
  (['--', '--rounds=3'], "'--rounds=3' is no flag"),
  (['--flagfile=/nowhere/at.flags'], '--flagfile: Unable to open flagfile: '),
  (['--flagfile={typo}'], '--roundz is no flag; did you mean rounds?'),
  (['--flagfile={wrong_value}'], '--rounds=-7'),
  (['--flagfile={binary}'], ''),
  (['--flagfile={folder}'], ''),
  (['--cohort_sampling_rate=1.5'], '--cohort_sampling_rate=1.5 must be'),
  (['--cohort_sampling_rate=0'], '--cohort_sampling_rate=0'),
  (['--clients_per_round=-3'], '--clients_per_round=-3'),
  (['--clients_per_round=5', '--cohort_sampling_rate=0.1'], 'exclude each other'),
  (['--cohort_sampling=shuffle'], '--cohort_sampling=shuffle'),
  (['--privacy=yes'], '--privacy=yes must be one of'),
  (['--privacy=client'], 'needs --noise_multiplier or --target_epsilon'),
  (['--privacy=client', '--target_epsilon=3'], 'needs --delta'),
  (['--privacy=client', '--target_epsilon=-3', '--delta=1e-3'], '--target_epsilon=-3'),
  (['--privacy=client', '--target_epsilon=nan', '--delta=1e-3'], '--target_epsilon=nan'),
  (['--privacy=client', '--target_epsilon=inf', '--delta=1e-3'], '--target_epsilon=inf'),
  ([*PRIVATE, '--delta=0'], '--delta=0'),
  ([*PRIVATE, '--delta=1'], '--delta=1'),
  ([*PRIVATE, '--delta=-1e-5'], '--delta=-1e-05'),
  ([*PRIVATE, '--noise_multiplier=-1'], '--noise_multiplier=-1'),
  ([*PRIVATE, '--noise_multiplier=inf'], '--noise_multiplier=inf'),
  ([*PRIVATE, '--clipping_norm=0'], '--clipping_norm=0'),
  ([*PRIVATE, '--weighting=examples'], 'leak the counts'),
  ([*PRIVATE, '--quantile_noise_multiplier=1'], 'needs --adaptive_clipping'),
  ([*PRIVATE, '--adaptive_clipping', '--clipping_learning_rate=-1'], '--clipping_learning_rate=-1'),
  (['--epsilon=3', *PRIVATE], '--epsilon is no flag; did you mean target_epsilon, '),
  ([*SILOS], 'needs --noise_multiplier or --target_epsilon or --silo_epsilons'),
  ([*SILOS, '--target_epsilon=3', '--mtl_lambda=-1'], '--mtl_lambda=-1'),
  ([*SILOS, '--target_epsilon=3', '--mtl_lambda=nan'], '--mtl_lambda=nan'),
  ([*SILOS, '--target_epsilon=3', '--adaptive_clipping'], 'belongs to --privacy=client'),
  (['--method=local', *PRIVATE], '--privacy=client is not offered by --method=local'),
  (['--mtl_lambda=0.1'], '--mtl_lambda=0.1 belongs to --method=mr_mtl'),
  (['--test_fraction=1'], '--test_fraction=1'),
  (['--test_fraction=-0.1'], '--test_fraction=-0.1'),
  (['--dataset_option=clients:3'], 'must have the form name=value'),
  (['--dataset_option=clients=3'], "has no option 'clients'"),
  (['--dataset_option=num_clients=2.5'], 'num_clients'),
  (['--model_option=hidden_units=5'], 'needs --model'),
  (['--batch_size=0'], '--batch_size=0'),
  (['--local_epochs=-1'], '--local_epochs=-1'),
  (['--eval_every=-5'], '--eval_every=-5'),
  (['--runtime=ray'], '--runtime=ray must be one of xla, native'),
  (['--clients_per_block=0'], '--clients_per_block=0'),
  (['--resume'], '--resume needs --output_dir'),
  (['--output_dir=/proc/nothing'], 'cannot write /proc/nothing'),
  (['--output_dir={binary}'], 'is a file, not a folder'),
  (['--output_dir={folder}'], 'holds something.txt and no run'),
  (['--sweep=rounds'], '--sweep=rounds'),
  (['--sweep=lambda=1,2'], 'lambda is no setting'),
  (['--sweep=client_learning_rate=0.1,fast'], "--client_learning_rate='fast'"),
  (['--seeds=one'], '--seeds=one'),
  (['--seeds='], '--seeds= must be one or more'),
  (['--seeds=3-1'], '--seeds=3-1: the first must not be above the last'),
  (['--seeds=0-99999999999'], '--seed=99999999999 must be'),
  (['--seeds=0-999999999'], '--seeds=0-999999999 must be at most 1,000,000 seeds'),
  (['--ledger={folder}', *PRIVATE], 'is a folder; give a file, which need not exist'),
  (['--ledger=/dev/full', *PRIVATE], '--ledger=/dev/full is no ordinary file'),
  (['--noise_key_file=/dev/zero', *PRIVATE], '--noise_key_file=/dev/zero is no ordinary file'),
  (['--local_epochs=2200000000'], '--local_epochs=2200000000 must be at least 1 and at most'),
  (['--client_learning_rate=1e39'], '--client_learning_rate=1e+39 must be at most 3.4e+38'),
  # Typing errors in values.
  (['--dataset=scool'], 'did you mean school?'),
  (['--method=mr-mtl'], 'did you mean mr_mtl?'),
  (['--model=lienar'], 'did you mean linear_'),
  (['--privacy=clients'], 'did you mean client?'),
  (['--cohort_sampling=possion'], 'did you mean poisson?'),
  (['--noise_key=secrt', *PRIVATE], 'did you mean secret?'),
  (['--accountant=pdl', *PRIVATE], 'did you mean pld?'),
  (['--runtime=xal'], 'did you mean xla?'),
  ([*SILOS, '--noise_multiplier=1', '--batches=poison'], 'did you mean poisson?'),
  (['--dataset=mnist', '--dataset_option=partitoin=iid'], 'did you mean partition?'),
  (['--dataset=mnist', '--dataset_option=partition=by_lable'], 'did you mean by_label?'),
  (['--device=gpus'], '--device=gpus must be auto, cpu, gpu'),
  # Models and metrics.
  (['--model=mlp', '--model_option=hiden_units=5'], 'did you mean hidden_units?'),
  (['--model=mlp', '--model_option=hidden_units'], 'must have the form name=value'),
  (['--model=my_model.py'], '--model=my_model.py must have the form file.py:function'),
  (['--model=my_model.py:'], 'must have the form file.py:function'),
  (['--model=my_model.keras'], 'must have the form file.py:function'),
  (['--metric=accuracy'], '--metric=accuracy must have the form file.py:function'),
  # Sweeps.
  (['--sweep=client_learning_rate='], 'must have the form name=value,value,...'),
  (['--sweep==1'], 'must have the form name=value,value,...'),
  (['--sweep=rounds:1,2'], 'must have the form name=value,value,...'),
  (['--sweep=mtl_lamda=1,2'], 'did you mean mtl_lambda?'),
  (['--sweep=rounds=1,1'], '--sweep=rounds=1,1 has a value twice'),
  (['--sweep=rounds=1,2', '--sweep=rounds=3'], '--sweep=rounds=3 gives rounds a second time'),
  (['--sweep=rounds+eval_every=1,2', '--sweep=rounds=2'], 'gives rounds a second time'),
  (['--sweep=seed=1,2'], 'give the seeds as --seeds=1,2'),
  (['--sweep=output_dir=a,b'], 'output_dir is no setting that can be swept.'),
  (['--sweep=method=fedavg,mrmtl'], 'did you mean mr_mtl?'),
  (['--sweep=privacy=client,none'], 'needs --noise_multiplier or --target_epsilon'),
  (['--sweep=adaptive_clipping=yes,no'], "--adaptive_clipping='yes' must be true or false"),
  (['--sweep=dataset_option=num_clients=3,dataset_option=num_clients=4'], "no option 'dataset_o"),
  (['--seeds=0-1', '--seed=3'], '--seed=3 and --seeds=0-1 exclude each other'),
  (['--seed', '3', '--seeds', '0-1'], '--seed=3 and --seeds=0-1 exclude each other'),
  (['--sweep=rounds=1,2', '--rounds=3'], '--rounds=3 and --sweep=rounds=1,2 exclude each other'),
  (['--sweep=eval_every+rounds=1,2', '--rounds=3'], '--sweep=eval_every+rounds=1,2 exclude each'),
  (['--seeds=0,0'], '--seeds=0,0 must be one or more different numbers'),
  (['--seeds=-1'], '--seeds=-1 must be whole numbers from 0'),
  (['--seeds=0,1', '--workers=0'], '--workers=0 must be at least 1'),
  (['--seeds=0,1', '--cluster=foo'], '--cluster=foo must be local, ray://host:port or host:port'),
  (['--cohort_workers=2', '--cluster=foo'], '--cluster=foo must be local, ray://host:port or'),
  (['--seeds=0,1', '--workers=2', '--cohort_workers=2'], 'a sweep is spread by --workers'),
  (['--workers=two'], '--workers=two'),
  (['--workers=3'], '--workers=3 belongs to a sweep'),
  (['--select_on=test'], '--select_on=test belongs to a sweep'),
  (['--seeds=0,1', '--select_on=tests'], 'did you mean test?'),
  (['--seeds=0,1', '--resume'], '--resume needs --output_dir'),
  (['--seeds=0,1', '--resume', '--output_dir={folder}'], 'holds something.txt and no sweep'),
  (['--sweep=rounds=1,2', '--output_dir={binary}'], 'is a file, not a folder'),
  (['--sweep=rounds=1,2', '--output_dir={folder}'], 'holds something.txt and no sweep'),
  (['--sweep=rounds=1,2', '--output_dir=/proc/nothing'], 'error: cannot write /proc/nothing'),
  ([*PRIVATE, '--seeds=0,1', '--noise_key_file=k'], 'is the key of one run'),
  # Files that are not there.
  (['--model=no.py:f'], '--model=no.py:f: there is no file /'),
  (['--metric=no.py:f'], '--metric=no.py:f: there is no file /'),
  ([*TABLE, '--dataset=no.csv'], '--dataset=no.csv: there is no file /'),
  ([*TABLE, '--dataset=parquet:/no/at/all'], '=parquet:/no/at/all: there is no folder /no/at/all.'),
  ([*SILOS, '--silo_epsilons=no.csv'], '--silo_epsilons=no.csv cannot be read: No such'),
  ([*PRIVATE, '--noise_key_file=no.key'], '--noise_key_file=no.key cannot be read: No such'),
  (['--sweep=model=mlp,no.py:f'], '--model=no.py:f: there is no file /'),
  (['--resume', '--output_dir={folder}'], 'holds no run and no sweep to continue'),
]  # fmt: skip


@pytest.fixture(scope='module')
def wrong_files(tmp_path_factory):
  folder = tmp_path_factory.mktemp('wrong')
  (folder / 'typo.flags').write_text('--seed=3\n--roundz=4\n')
  (folder / 'wrong_value.flags').write_text('# a comment\n--rounds=-7\n')
  (folder / 'binary').write_bytes(bytes(range(256)))
  (folder / 'folder').mkdir()
  (folder / 'folder' / 'something.txt').write_text('mine')
  return {
    'typo': folder / 'typo.flags', 'wrong_value': folder / 'wrong_value.flags',
    'binary': folder / 'binary', 'folder': folder / 'folder',
  }  # fmt: skip


def _arguments(arguments, wrong_files):
  return [a.format(**wrong_files) if '{' in a else a for a in arguments]


def _run(arguments, capsys):
  """(exit code, lines of standard error) of the command line, in this process."""
  with flagsaver.flagsaver():
    code = cli.main(['run_experiment.py', *arguments])
  captured = capsys.readouterr()
  assert 'Traceback' not in captured.err + captured.out
  lines = captured.err.strip().splitlines()
  assert sum(line.startswith('error: ') for line in lines) == 1, captured.err
  return code, lines


@pytest.mark.parametrize(('arguments', 'message'), AT_ONCE, ids=lambda v: str(v)[:70])
def test_said_at_once(arguments, message, wrong_files, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(cli, '_run', _checked_run)
  code, (*others, line) = _run(_arguments(arguments, wrong_files), capsys)
  assert code == cli.EXIT_ERROR
  assert line.startswith('error: ') and message in line
  assert len(line) < 600
  # What is in a folder is seen when it is opened; all else is refused before any other word.
  assert not others or any(a.startswith('--output_dir') for a in arguments)
  assert not [path for path in tmp_path.rglob('*') if path.is_file()]  # nothing was begun


_real_run = cli._run


def _checked_run(config, notes):
  if not config.output_dir and not config.resume:
    raise AssertionError('the wrong use was not noticed')
  return _real_run(config, notes)


def test_there_are_enough_of_them():
  assert len(AT_ONCE) >= 110 and len(FRAMES) >= 40


def test_said_before_tensorflow_is_loaded(wrong_files, tmp_path):
  """All of them in one fresh process, which never loads it."""
  table = [_arguments(arguments, wrong_files) for arguments, _ in AT_ONCE]
  program = f"""
import sys
from absl.testing import flagsaver
from experiments import cli
for arguments in {table!r}:
  with flagsaver.flagsaver():
    assert cli.main(['run_experiment.py', *arguments]) == 2, arguments
assert not any(name.split('.')[0] in ('tensorflow', 'tensorflow_federated') for name in sys.modules)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=120,
    env={**os.environ, 'PYTHONPATH': os.getcwd()}, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-2000:]
  assert 'Traceback' not in done.stderr


@pytest.mark.parametrize('sweep', [(), ('--seeds=0,1',)])
def test_a_gpu_on_a_machine_without_its_driver(sweep, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(checks, '_GPU_DRIVER', 'libof_no_gpu.so.1')
  code, lines = _run(['--device=gpu', '--rounds=1', *sweep], capsys)
  assert code == cli.EXIT_ERROR and len(lines) == 1
  assert '--device=gpu: this machine has no driver of an NVIDIA GPU (libof_no_gpu' in lines[0]
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('module', 'arguments', 'message'),
  [
    ('reports.report', ['/nowhere/at/all'], '/nowhere/at/all'),
    ('reports.report', [], 'DIR'),
    ('reports.report', ['{folder}'], 'folder'),
    ('reports.report', ['{binary}'], 'binary'),
    ('reports.report', ['{folder}', '--titel=x'], '--titel=x'),
    ('reports.report', ['{typo}', '{folder}'], 'typo.flags'),
    ('recipes.reproduce', ['no_such_recipe'], 'RECIPE=no_such_recipe is no recipe'),
    ('recipes.reproduce', ['../../etc/passwd'], 'is no recipe'),
    ('recipes.reproduce', ['silo_fig77'], 'did you mean silo_fig7?'),
    ('recipes.reproduce', ['--list', '--foo'], '--foo: the list of recipes takes --data_dir'),
    ('recipes.reproduce', ['--lsit'], '--lsit stands where a recipe has to'),
    ('recipes.reproduce', ['quickstart'], 'RECIPE=quickstart is no recipe'),
    ('recipes.reproduce', ['silo_fig7', '--rounds=3'], 'is computed, not run'),
    ('recipes.reproduce', ['silo_fig7', '--output_dir=/proc/nothing'], 'error: cannot write /proc'),
    ('recipes.reproduce', ['claims_silo_exam', 'rounds=3'], "'rounds=3' is no flag"),
    ('recipes.reproduce', ['claims_silo_exam', 'silo_fig7'], "'silo_fig7' is no flag"),
    ('recipes.reproduce', ['claims_silo_exam', '--roundz=3'], 'did you mean rounds?'),
    ('recipes.reproduce', ['claims_silo_exam', '--workers=0'], '--workers=0 must be'),
    ('recipes.reproduce', ['claims_silo_exam', '--workers=x'], '--workers=x must be'),
    ('recipes.reproduce', ['claims_silo_exam', '--rounds=0'], '--rounds=0 must be at least 1'),
    ('recipes.reproduce', ['claims_silo_exam', '--method=mrmtl'], '--method: recipe claims_si'),
    ('recipes.reproduce', ['claims_silo_exam', '--dataset=scool'], 'did you mean school?'),
    ('recipes.reproduce', ['claims_silo_exam', '--output_dir={binary}'], 'binary'),
    ('recipes.claims', ['--run=theori'], '--run=theori is no claim'),
    ('recipes.claims', ['--run=theori'], 'did you mean theory?'),
    ('recipes.claims', ['--run=theory,foo'], '--run=foo is no claim'),
    ('recipes.claims', ['--runs=theory'], '--runs=theory'),
    ('recipes.claims', ['--workers=two'], "'two'"),
    ('recipes.claims', ['--workers=0', '--run=theory'], '--workers=0 must be'),
    ('recipes.claims', ['--judge=theori'], '--judge=theori is no claim'),
    ('recipes.claims', ['--judge=theory'], '--judge=theory rests on no runs'),
    ('recipes.claims', ['--judge='], '--judge= names nothing'),
    ('recipes.claims', ['--judge', '--run=theory'], '--run and --judge'),
    ('audits.command', ['--privacy=none'], '--privacy=none claims nothing'),
    ('audits.command', ['--roundz=1'], 'roundz'),
    ('audits.command', ['--audit_runs=3'], '--audit_runs=3'),
    ('audits.command', ['--audit_confidence=2'], '--audit_confidence=2'),
    ('audits.command', ['--audit_client=-1'], '--audit_client=-1'),
    ('audits.command', ['--audit_run=100', *PRIVATE], 'audit_runs'),
    ('audits.command', ['--method=mr-mtl'], 'did you mean mr_mtl?'),
    ('audits.command', ['exam'], "'exam' is no flag"),
    ('audits.command', ['--model=no.py:f', *PRIVATE], '--model=no.py:f: there is no file'),
    ('recipes.reproduce', ['claims_ppsgd_synthetic', '--metric=no.py:f'], '--metric=no.py:f: the'),
  ],
)
def test_other_tools(module, arguments, message, wrong_files, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  module = f'experiments.{module}'
  tool = importlib.import_module(module)
  arguments = _arguments(arguments, wrong_files)
  with flagsaver.flagsaver():
    try:
      code = tool.main([module, *arguments])
    except SystemExit as done:  # argparse
      code = done.code
  said = capsys.readouterr().err
  assert code == 2
  assert 'error: ' in said.splitlines()[-1] and 'Traceback' not in said
  assert message in said.splitlines()[-1] and len(said.splitlines()) <= 4
  assert not list(tmp_path.rglob('*'))  # nothing was begun


@pytest.mark.parametrize(('arguments', 'code'), [([], 2), (['--help'], 0), (['-h'], 0)])
def test_what_an_audit_takes_is_said(arguments, code, capsys):
  assert command.main(['audit', *arguments]) == code
  said = capsys.readouterr().out
  for words in ('Attacks a configuration', '--audit_runs [4000]', '--audit_choice', '--help lists'):
    assert words in said


def test_what_the_list_of_recipes_takes_is_said(capsys):
  assert reproduce.main(['recipes', '--list', '--help']) == 0
  assert '--data_dir' in capsys.readouterr().out


# A file of a run, what it holds, and a part of the line that a report of it gives.
RUNS = [
  ('config.json', '', 'config.json is damaged'),
  ('config.json', '{"config":', 'config.json is damaged'),
  ('config.json', '[1]', 'config.json has no configuration of a run'),
  ('config.json', '{}', 'config.json has no configuration of a run'),
  ('config.json', '{"config": 3}', 'config.json has no configuration of a run'),
  ('config.json', '{"config": {"roundz": 3}}', 'did you mean rounds?'),
  ('config.json', '{"config": {"rounds": -3}}', '--rounds=-3 must be at least 1'),
  ('metrics.parquet', '', 'metrics.parquet cannot be read as a table of metrics'),
  ('metrics.parquet', 'PAR1', 'metrics.parquet cannot be read as a table of metrics'),
  ('privacy.json', '{', 'privacy.json is damaged'),
  ('summary.json', '{', 'summary.json is damaged'),
  ('config.json', '{"config": {}, "contents": [1]}', 'config.json is not of a run'),
  ('config.json', '{"config": {}, "file_contents": 3}', 'config.json is not of a run'),
  ('privacy.json', '[1]', 'privacy.json is not of a run'),
  ('privacy.json', '{"epsilon": "x"}', "privacy.json is not of a run: epsilon is 'x'"),
  ('privacy.json', '{"statement": 3}', 'privacy.json is not of a run: statement is 3'),
  ('summary.json', 'null', 'summary.json is not of a run'),
]


@pytest.mark.parametrize(('name', 'content', 'message'), RUNS)
def test_reports_of_damaged_runs(name, content, message, tmp_path, capsys):
  test_report.make_run(tmp_path / 'run', target_epsilon=2.0, **test_report.PRIVATE)
  (tmp_path / 'run' / name).write_text(content)
  _refused([str(tmp_path)], message, capsys)
  assert not (tmp_path / 'report' / 'report.html').exists()


@pytest.mark.parametrize(('name', 'content', 'message'), RUNS)
def test_a_damaged_run_beside_others_is_left_out(name, content, message, tmp_path, capsys):
  for folder in ('good', 'bad'):
    test_report.make_run(tmp_path / folder, target_epsilon=2.0, **test_report.PRIVATE)
  (tmp_path / 'bad' / name).write_text(content)
  assert report.main(['report', str(tmp_path), f'--output={tmp_path / "page"}']) == 0
  [said] = capsys.readouterr().err.splitlines()
  assert said.startswith('Left out: ') and message in said and 'bad' in said
  assert 'Left out: ' in (tmp_path / 'page' / 'report.html').read_text()


@pytest.mark.parametrize('place', ['taken', 'taken/below', '/proc/nothing'])
def test_places_where_no_report_can_be(place, tmp_path, capsys):
  test_report.make_run(tmp_path / 'run', target_epsilon=2.0, **test_report.PRIVATE)
  (tmp_path / 'taken').write_text('mine')
  _refused([str(tmp_path), f'--output={tmp_path / place}'], 'no report can be written to', capsys)


def _refused(arguments, message, capsys):
  assert importlib.import_module('experiments.reports.report').main(['report', *arguments]) == 2
  (line,) = capsys.readouterr().err.strip().splitlines()
  assert line.startswith('error: ') and message in line and len(line) < 600


@pytest.mark.parametrize(
  ('tool', 'at', 'arguments'),
  [(command, '_audit_configuration', [*PRIVATE]), (reproduce, 'reproduce', ['silo_fig7'])],
)
def test_a_fault_is_no_verdict(tool, at, arguments, monkeypatch, capsys):
  """1, which Python gives for it, says that a claim is refuted, or that numbers are not met."""

  def fail(*_, **__):
    raise KeyError('a fault')

  monkeypatch.setattr(tool, at, fail)
  with flagsaver.flagsaver():
    assert tool.main(['tool', *arguments]) == 2
  assert capsys.readouterr().err.splitlines()[-1].startswith("error: KeyError: 'a fault'")


def test_an_audit_attacks_one_thing(capsys):
  command = importlib.import_module('experiments.audits.command')
  private = ['--privacy=client', '--noise_multiplier=1', '--delta=1e-3']
  with flagsaver.flagsaver():
    assert command.main(['audit', *private, '--audit_choice', '--audit_canaries=9']) == 2
  said = capsys.readouterr().err
  assert '--audit_choice and --audit_canaries=9 exclude each other' in said


# ------------------------------------------------------------ tables of the user


def _frame(**columns):
  rows = 12
  values = {
    'silo': ['a', 'b', 'c'] * (rows // 3), 'x': np.arange(rows) / 10.0,
    'y': np.tile([0.0, 1.0], rows // 2),
  }  # fmt: skip
  return pd.DataFrame({**values, **columns})


def _many(y):
  rows = len(y)
  return pd.DataFrame({'silo': np.arange(rows) % 4, 'x': np.arange(rows) / rows, 'y': y})


FRAMES = [
  (_frame(), dict(silo_column='hospital'), "no column 'hospital'"),
  (_frame(), dict(target='label'), "no column 'label'"),
  (_frame(), dict(features=['x', 'age']), "no column 'age'"),
  (_frame(), dict(features=['x', 'y']), "'y' cannot be a feature"),
  (_frame(), dict(features=['x', 'silo']), "'silo' cannot be a feature"),
  (_frame(), dict(task='ranking'), "task is 'ranking'"),
  (_frame(), dict(preprocessing='standard'), "preprocessing is 'standard'"),
  (_frame(x=[np.nan] + [1.0] * 11), {}, "'x' has 1 missing values"),
  (_frame(x=[np.inf] + [1.0] * 11), {}, 'not finite'),
  (_frame(x=[1e300] + [1.0] * 11), {}, 'not finite'),
  (_frame(x=['low'] * 12), {}, 'not a number'),
  (_frame(y=[None] + [1.0] * 11), {}, "'y' has 1 missing values"),
  (_frame(silo=[None] + ['a'] * 11), {}, "'silo' has 1 missing values"),
  (_frame(silo=['a'] * 10 + ['b', 'c']), {}, 'fewer than two rows'),
  (_frame(y=[0.0, 1.0, 2.0] * 4), dict(task='binary'), 'a binary task has 2'),
  (_frame(), dict(preprocessing='fixed', bounds={}), "lacks 'x'"),
  (_frame(), dict(preprocessing='fixed', bounds={'x': (1.0, 1.0)}), 'not (low, high)'),
  (_frame(), dict(target_bounds=(1.0, 0.0)), 'must be below'),
  (_frame(), dict(target_bounds=(0.0, 0.5)), 'beyond target_bounds'),
  (_frame().drop(columns='x'), {}, 'no columns beside'),
  (_frame()[:0], {}, 'no rows'),
  (_frame(), dict(features='x'), "give a list of columns: ['x']"),
  (_frame(), dict(features=['x', 'x']), "'x' is listed more than once"),
  (_frame(), dict(features=[]), 'no columns beside'),
  (pd.concat([_frame(), _frame()[['x']]], axis=1), {}, "the column 'x' more than once"),
  (_frame(), dict(target='silo'), 'cannot be the silo and the target'),
  (_frame(), dict(target='Y'), "no column 'Y'"),
  (_frame(), dict(silo_column='silos'), 'did you mean silo?'),
  (_frame(), dict(task='regresion'), 'did you mean regression?'),
  (_frame(), dict(preprocessing='fix'), 'did you mean fixed?'),
  (_frame(), dict(bounds={'x': (0.0, 1.0)}), "bounds are for preprocessing='fixed'"),
  (_frame(), dict(target_bounds=(0.0, 1.0), task='binary'), 'target_bounds is for regression'),
  (_frame(y=[0, '1', 2] * 4), dict(task='classification'), 'mixes values of kind int and str'),
  (_frame(y=[0, '1', 2] * 4), dict(task=None), 'mixes values of kind int and str'),
  (_frame(y=['no', True, 'no'] * 4), dict(task='binary'), 'mixes values of kind bool and str'),
  (_frame(y=['low', 'high', 'low'] * 4), {}, 'not a number'),
  (_frame(y=[1.0] * 12), dict(task='binary'), 'a binary task has 2'),
  (_frame(y=[1.0] * 12), dict(task='classification'), 'has one value only'),
  (_many(y=np.linspace(0.0, 1.0, 60)), dict(task='classification'), '60 different values'),
  (_many(y=[f'pupil {i}' for i in range(1200)]), dict(task=None), '1200 different values'),
  (_frame(), dict(test_fraction=0.0), 'test_fraction is 0.0'),
  (_frame(), dict(test_fraction=1.0), 'test_fraction is 1.0'),
  (_frame(), dict(test_fraction=-0.2), 'test_fraction is -0.2'),
  (_frame(x=pd.to_datetime(['2020-01-01'] * 12)), {}, 'not a number'),
  (_frame(x=pd.Categorical(['low', 'high'] * 6)), {}, 'not a number'),
  (_frame(x=np.arange(12) * 1j), {}, 'not a number'),
  (_frame(y=[np.inf] + [1.0] * 11), {}, 'not finite'),
  (_frame(), dict(silo_column=['silo']), "silo_column is ['silo']; give the name of one column"),
  (_frame(), dict(target=['y']), "target is ['y']; give the name of one column"),
  (_frame(), dict(features=3), 'features is 3; give a list of columns'),
  (_frame(), dict(test_fraction='half'), "test_fraction is 'half'; it must be a number"),
  (_frame(), dict(test_fraction=None), 'test_fraction is None; it must be a number'),
  (_frame(), dict(seed='one'), "seed is 'one'; it must be a whole number"),
  (_frame(), dict(target_bounds=3), 'target_bounds is 3; give two numbers'),
  (_frame(), dict(target_bounds='ab'), "target_bounds is 'ab'; give two numbers"),
  (_frame(), dict(preprocessing='fixed', bounds={'x': (0, 1, 2)}), "bounds of 'x' is (0, 1, 2);"),
  (_frame(), dict(preprocessing='fixed', bounds={'x': 'no'}), "bounds of 'x' is 'no'; give two"),
]  # fmt: skip


@pytest.mark.filterwarnings('ignore:.*was taken as a')
@pytest.mark.parametrize(('frame', 'options', 'message'), FRAMES, ids=[m for *_, m in FRAMES])
def test_data_frames(frame, options, message):
  options = {'silo_column': 'silo', 'target': 'y', 'task': 'regression', **options}
  with pytest.raises(ValueError) as caught:
    datasets.from_dataframe(frame, **options)
  assert message in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('wrong', 'message'),
  [
    (dict(dataset={'x': 1}), 'the data set is a dict; give a FederatedDataset'),
    (dict(metrics=['mae']), 'metrics is a list; give a mapping from a name to a function'),
    (
      dict(metrics={'words': lambda outputs, y: tf.strings.as_string(y)}),
      '--metric words gives string; it must give numbers',
    ),
    (dict(metrics={'mae': 3}), "the metric 'mae' is 3; give a function (outputs, labels)"),
  ],
)
def test_parts_that_are_none(wrong, message):
  with pytest.raises(ValueError) as caught:
    build.build_process(ExperimentConfig(dataset='digits', device='cpu'), **wrong)
  assert message in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('axes', 'message'),
  [
    ({'client_learning_rte': (0.1,)}, 'did you mean client_learning_rate?'),
    ({'mtl_lambda+rate': (0.1,)}, 'rate is no setting that can be swept'),
    ({'client_learning_rate': '0.1'}, "client_learning_rate is '0.1'; give a tuple"),
    ({'client_learning_rate': ()}, 'client_learning_rate is (); give a tuple'),
  ],
)
def test_grids_that_are_none(axes, message):
  with pytest.raises(ValueError) as caught:
    Grid(base={}, axes=axes, seeds=(0,))
  assert message in str(caught.value)


def test_a_table_without_rows():
  with pytest.raises(ValueError) as caught:
    datasets.from_dataframe(_frame()[:0], silo_column='silo', target='y', task='regression')
  assert '\n' not in str(caught.value)


def test_a_table_that_is_none():
  with pytest.raises(TypeError, match='the table is a dict; give a pandas DataFrame'):
    datasets.from_dataframe({'silo': ['a']}, silo_column='silo', target='y')


def test_flags_are_as_they_were():
  """The tests above leave no flag behind."""
  assert flags.FLAGS['rounds'].using_default_value or not flags.FLAGS.is_parsed()


def test_the_library_says_what_it_takes():
  with pytest.raises(TypeError, match='the experiment is a dict; give an ExperimentConfig'):
    runner.run({'rounds': 1})
  with pytest.raises(TypeError, match='the configuration is a NoneType; give an ExperimentConfig'):
    build.build_process(None)
  with pytest.raises(TypeError, match='a callback is a int; derive it from Callback'):
    runner.run(ExperimentConfig(), callbacks=[3])
  with pytest.raises(ValueError, match=r'client_learning_rate is 0\.1; give a tuple'):
    Grid(base={}, axes={'client_learning_rate': 0.1}, seeds=(0,))
  # NumPy's numbers are numbers.
  config = ExperimentConfig(rounds=np.int64(3), client_learning_rate=np.float32(0.5))
  assert (config.rounds, config.client_learning_rate) == (3, 0.5) and type(config.rounds) is int
