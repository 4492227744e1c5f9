"""The table of settings: defaults, belonging, refusals, and the way to JSON and back."""

import dataclasses
import json
import resource
import subprocess
import sys

import pytest
from absl import flags

from experiments.config import flags as experiment_flags
from experiments.config.experiment import ExperimentConfig, settings

CLIENT = {'privacy': 'client', 'noise_multiplier': 1.0, 'delta': 1e-3}
EXAMPLE = {'method': 'mr_mtl', 'privacy': 'example', 'target_epsilon': 4.0, 'delta': 1e-3}

# Each wrong use with a part of the message that it gets.
REFUSED = [
  ({'rounds': 0}, '--rounds=0 must be at least 1'),
  ({'rounds': -3}, '--rounds=-3'),
  ({'rounds': 2.5}, '--rounds=2.5 must be a whole number'),
  ({'rounds': '5'}, "--rounds='5' must be a whole number"),
  ({'rounds': True}, '--rounds=True must be a whole number'),
  ({'seed': -1}, '--seed=-1'),
  ({'seed': 2**31}, '--seed=2147483648'),
  ({'method': 'fedavgg'}, '--method=fedavgg must be one of'),
  ({'dataset': 'mnis'}, '--dataset=mnis must be one of'),
  ({'model': 'resnet'}, '--model=resnet must be one of'),
  ({'privacy': 'both'}, '--privacy=both must be one of none, client, example'),
  ({'runtime': 'gpu'}, '--runtime=gpu must be one of xla, native'),
  ({'client_learning_rate': 0.0}, '--client_learning_rate=0.0 must be greater than 0'),
  ({'client_learning_rate': float('nan')}, '--client_learning_rate=nan must be a finite number'),
  ({'client_learning_rate': float('inf')}, '--client_learning_rate=inf must be a finite number'),
  ({'server_learning_rate': -1.0}, '--server_learning_rate=-1.0'),
  ({'device': 'tpu'}, '--device=tpu must be auto, cpu, gpu'),
  ({'device': 'gpu:0,'}, '--device=gpu:0,'),
  ({'runtime': 'native', 'device': 'gpu'}, '--device=gpu needs --runtime=xla'),
  ({'runtime': 'native', 'clients_per_block': 3}, '--clients_per_block=3 belongs to'),
  ({'local_epochs': 0}, '--local_epochs=0'),
  ({'batch_size': 0}, '--batch_size=0'),
  ({'eval_every': -1}, '--eval_every=-1'),
  ({'checkpoint_every': -1}, '--checkpoint_every=-1'),
  ({'clients_per_block': 0}, '--clients_per_block=0'),
  ({'clients_per_round': 0}, '--clients_per_round=0'),
  ({'cohort_sampling_rate': 0.0}, '--cohort_sampling_rate=0.0 must be greater than 0'),
  ({'cohort_sampling_rate': 1.2}, '--cohort_sampling_rate=1.2 must be'),
  ({'cohort_sampling_rate': 0.1, 'clients_per_round': 5}, 'exclude each other'),
  ({'cohort_sampling': 'fixed'}, '--cohort_sampling=fixed needs --clients_per_round'),
  ({'cohort_sampling': 'shuffle'}, '--cohort_sampling=shuffle must be one of'),
  ({'method': 'pooled', 'clients_per_round': 1}, '--clients_per_round=1 cannot be used with'),
  ({'method': 'pooled', 'cohort_sampling': 'fixed'}, '--cohort_sampling=fixed cannot be used with'),
  (
    {**EXAMPLE, 'method': 'pooled', 'cohort_sampling_rate': 0.5},
    '--cohort_sampling_rate=0.5 cannot be used with --method=pooled, which is not federated',
  ),
  ({'test_fraction': 1.5}, '--test_fraction=1.5'),
  ({'test_fraction': 0.0}, '--test_fraction=0.0 must be greater than 0'),
  ({'dataset': 'mnist', 'test_fraction': 0.5}, 'does not apply to --dataset=mnist'),
  ({'dataset_option': ('num_clients',)}, 'must have the form name=value'),
  ({'dataset_option': ('clients=3',)}, "has no option 'clients'"),
  ({'dataset_option': ('num_clients=many',)}, "option num_clients is 'many'"),
  ({'dataset_option': ('num_clients=3', 'num_clients=4')}, 'a second time'),
  ({'model_option': ('hidden_units=3',)}, 'needs --model'),
  ({'model': 'softmax', 'model_option': ('hidden_units=3',)}, 'no option of --model=softmax'),
  ({'model': 'mlp', 'model_option': ('hidden_units=0',)}, '--model_option: hidden_units=0 must be'),
  (
    {'model': 'mlp', 'model_option': ('hidden_units=3,2147483648',)},
    'hidden_units=(3, 2147483648) must be at most 2147483647',
  ),
  ({'mtl_lambda': 1.0}, '--mtl_lambda=1.0 belongs to --method=mr_mtl or tuned_mr_mtl or mocha'),
  ({'method': 'local', 'server_learning_rate': 1.0}, '--server_learning_rate=1.0 belongs to'),
  ({'method': 'mr_mtl', 'mtl_lambda': -1.0}, '--mtl_lambda=-1.0 must be at least 0'),
  (
    {'method': 'ifca_mr_mtl', 'after_clustering': 'local', 'silo_lambdas': 'own.csv'},
    '--silo_lambdas=own.csv needs --after_clustering=mr_mtl',
  ),
  ({'method': 'mr_mtl', 'regularizer_inside_clip': True}, 'belongs to --privacy=example'),
  ({'method': 'mr_mtl', **CLIENT}, '--privacy=client is not offered by --method=mr_mtl'),
  ({'weighting': 'size'}, '--weighting=size must be one of uniform, examples'),
  ({**CLIENT, 'weighting': 'examples'}, '--weighting=examples'),
  ({'noise_multiplier': 1.0}, '--noise_multiplier=1.0 belongs to --privacy=client or example'),
  ({'delta': 1e-5}, '--delta=1e-05 belongs to --privacy=client or example'),
  ({'clipping_norm': 1.0}, '--clipping_norm=1.0 belongs to'),
  ({'privacy': 'client', 'delta': 1e-3}, 'needs --noise_multiplier or --target_epsilon'),
  ({'privacy': 'client', 'noise_multiplier': 1.0}, 'needs --delta'),
  ({**CLIENT, 'target_epsilon': 3.0}, 'exclude each other'),
  ({**CLIENT, 'noise_multiplier': -1.0}, '--noise_multiplier=-1.0 must be at least 0'),
  ({**CLIENT, 'delta': 0.0}, '--delta=0.0 must be greater than 0'),
  ({**CLIENT, 'delta': 0.9}, '--delta=0.9'),
  ({**CLIENT, 'clipping_norm': 0.0}, '--clipping_norm=0.0'),
  ({**CLIENT, 'clipping_norm': float('inf')}, '--clipping_norm=inf'),
  ({**CLIENT, 'target_quantile': 0.4}, '--target_quantile=0.4 needs --adaptive_clipping'),
  ({**CLIENT, 'adaptive_clipping': True, 'target_quantile': 1.4}, '--target_quantile=1.4'),
  ({**CLIENT, 'silo_epsilons': 'e.csv'}, '--silo_epsilons=e.csv belongs to --privacy=example'),
  ({**EXAMPLE, 'silo_epsilons': 'e.csv'}, 'exclude each other'),
  ({**EXAMPLE, 'target_epsilon': 0.0}, '--target_epsilon=0.0'),
  ({**EXAMPLE, 'adaptive_clipping': True}, '--adaptive_clipping=true belongs to --privacy=client'),
  ({**CLIENT, 'ledger_epsilon': 1.0}, '--ledger_epsilon=1 needs --ledger'),
  ({**CLIENT, 'ledger': 'l', 'noise_key': 'rehearsal'}, '--ledger=l records what protects'),
  ({**CLIENT, 'epsilon_budget': 0.0}, '--epsilon_budget=0.0'),
  ({**CLIENT, 'noise_key': 'mine'}, '--noise_key=mine must be one of secret, rehearsal'),
  ({'noise_key': 'rehearsal'}, '--noise_key=rehearsal belongs to --privacy=client or example'),
  ({**CLIENT, 'noise_key': 'rehearsal', 'noise_key_file': 'k'}, 'exclude each other'),
  ({'method': 'dp_fedavg', **CLIENT, 'adaptive_clipping': False}, '--method=dp_fedavg stands for'),
  ({'method': 'dp_fedavg', 'privacy': 'none'}, '--method=dp_fedavg stands for'),
]


@pytest.mark.parametrize('wrong,message', REFUSED, ids=lambda v: str(v)[:60])
def test_refuses(wrong, message):
  with pytest.raises(ValueError) as caught:
    ExperimentConfig(**wrong)
  assert message in str(caught.value)
  assert '\n' not in str(caught.value)


def test_defaults_fill_what_applies_and_nothing_else():
  config = ExperimentConfig()
  assert config.method == 'fedavg' and config.rounds == 100 and config.weighting == 'uniform'
  assert config.mtl_lambda is None and config.clipping_norm is None and config.delta is None
  config = ExperimentConfig(**EXAMPLE)
  assert config.mtl_lambda == 1.0 and config.regularizer_inside_clip is False
  assert config.clipping_norm == 1.0 and config.adaptive_clipping is None


def test_dp_fedavg_is_fedavg_with_adaptive_clipping():
  config = ExperimentConfig(method='dp_fedavg', noise_multiplier=1, delta=1e-3)
  assert (config.method, config.privacy, config.adaptive_clipping) == ('fedavg', 'client', True)
  assert config.target_quantile == 0.5
  assert config == ExperimentConfig(**CLIENT, adaptive_clipping=True)


@pytest.mark.parametrize(
  'values',
  [{}, CLIENT, EXAMPLE, {'dataset_option': ('num_clients=9',)}, {**EXAMPLE, 'method': 'pooled'}],
)
def test_json_gives_the_same_back(values):
  config = ExperimentConfig(**values)
  assert ExperimentConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_json_with_an_unknown_name_is_refused():
  with pytest.raises(ValueError, match='roundz is no setting'):
    ExperimentConfig.from_json({'roundz': 3})


def test_identity_is_what_determines_the_numbers():
  config = ExperimentConfig(rounds=3)
  elsewhere = dataclasses.replace(config, output_dir='x', resume=True, checkpoint_every=1)
  assert elsewhere.fingerprint == config.fingerprint
  assert elsewhere.differences(config) == []
  other = dataclasses.replace(config, rounds=4, seed=7)
  assert other.fingerprint != config.fingerprint
  assert other.differences(config) == ['--rounds is 4, was 3', '--seed is 7, was 0']


def test_every_setting_has_a_flag_and_a_help():
  values = flags.FlagValues()
  experiment_flags.define(values)
  text = experiment_flags.help_text(full=False)
  for name, setting in settings().items():
    assert f'--{name}' in text
    assert experiment_flags.describe(name).endswith('.')
    assert values[name].default == (list(setting.default) if setting.kind is tuple else
                                    setting.default)  # fmt: skip


def test_flags_say_what_was_given():
  values = flags.FlagValues()
  experiment_flags.define(values)
  values(['program', '--rounds=7', '--dataset_option=num_clients=20', '--noresume'])
  config = ExperimentConfig.from_flags(values)
  assert config.rounds == 7 and config.dataset_options == {'num_clients': 20}
  assert config.resume is False and config.clipping_norm is None


def processor_seconds_of_children():
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime


# Runs the command line, and says which modules that take long to import it has asked for.
_COMMAND_LINE = """
import sys
from experiments import cli
code = cli.main(['run_experiment.py', *sys.argv[1:]])
heavy = {'tensorflow', 'tensorflow_federated', 'pandas', 'matplotlib', 'scipy', 'sklearn', 'ray'}
print('heavy:', *sorted(heavy & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(
  'arguments,code,words',
  [
    (['--help'], 0, 'Settings of one method'),
    (['--helpfull'], 0, '--flagfile'),
    (['--roundz=3'], 2, 'error: --roundz is no flag; did you mean rounds?'),
    (['--rounds=x'], 2, 'error: --rounds=x must be a whole number.'),
    (['--rounds=0'], 2, 'error: --rounds=0 must be at least 1'),
    (['--flagfile=nowhere.flags'], 2, 'nowhere.flags'),
    ([f'--flagfile={sys.executable}'], 2, f'error: --flagfile={sys.executable} is no text'),
    (['rounds=3'], 2, "error: 'rounds=3' is no flag"),
    (['--resume'], 2, 'error: --resume needs --output_dir'),
  ],
)
def test_help_and_errors_answer_at_once(arguments, code, words):
  begin = processor_seconds_of_children()
  done = subprocess.run(
    [sys.executable, '-c', _COMMAND_LINE, *arguments], capture_output=True, text=True, timeout=60
  )
  assert done.stdout.splitlines()[-1] == 'heavy:'
  assert processor_seconds_of_children() - begin < 2.0  # also where others use the machine
  assert done.returncode == code
  assert words in done.stdout + done.stderr
  if code:
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_import_that_takes_long_is_seen(tmp_path):
  (tmp_path / 'slow.py').write_text('import pandas')
  done = subprocess.run(
    [sys.executable, '-c', _COMMAND_LINE, f'--method={tmp_path / "slow.py"}', '--help'],
    capture_output=True, text=True, timeout=60,
  )  # fmt: skip
  assert done.returncode == 2
  assert done.stdout.splitlines()[-1] == 'heavy: pandas'


def test_a_path_in_ones_home_is_found_there(monkeypatch):
  """A shell leaves ~ as it is behind --output_dir=."""
  monkeypatch.setenv('HOME', '/home/me')
  table = {'silo_column': 'silo', 'target_column': 'y'}
  config = ExperimentConfig(output_dir='~/a', dataset='~/t.csv', metric=('~/m.py:f',), **table)
  assert config.output_dir == '/home/me/a' and config.dataset == '/home/me/t.csv'
  assert config.metric == ('/home/me/m.py:f',)


def test_columns_of_a_table_may_be_called_by_numbers():
  texts = ('features=0,1', 'test_fraction=0.5', 'preprocessing=none')
  config = ExperimentConfig(
    dataset='t.csv', silo_column='2', target_column='3', dataset_option=texts
  )
  columns = {'silo_column': '2', 'target_column': '3'}
  options = {'features': '0,1', 'test_fraction': 0.5, 'preprocessing': 'none', **columns}
  assert config.dataset_options == options
