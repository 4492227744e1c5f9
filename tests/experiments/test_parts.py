"""Parts from outside: a method, a model, metrics and a table of the user's own."""

import collections
import json
import math
import pathlib
import random
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import datasets
import processes.registry
import tff_models
from experiments import cli
from experiments.audits import command
from experiments.config import user_files
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder.metrics import EVERYONE
from experiments.recipes import recipes
from experiments.running import build, divergence, loading, parts, runner
from experiments.sweeps import sweep
from experiments.sweeps.grid import Grid

METHOD = '''
"""Federated averaging of what is left of each update."""

from processes import trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.declaration import Method
from processes.local_training import LocalTrainer
from processes.method import Tree, assemble
from settings import Setting

SHARE = Setting(name='NAME_share', kind=float, default=0.5, minimum=0.0, maximum=1.0,
                help='Share of each update that is sent.')


def check(config):
  if config.NAME_share == 0.0:
    raise ValueError('--NAME_share=0.0 sends nothing.')


METHOD = Method(name='NAME', summary='sends a share', citation='none', privacy_units=('none',),
                settings=(SHARE,), check=check)


def build(spec):
  train, mean_update = LocalTrainer(spec), MeanUpdate(spec)

  def client_update(server, client, data):
    params, statistics = train(server['model'], server, client, data)
    update = trees.scale(trees.subtract(params, server['model']),
                         server['hyperparameters']['NAME_share'])
    return Tree(**mean_update.report(update, server, data), **loss_report(statistics)), client

  def server_update(server, total):
    update, _, _ = mean_update.mean(total, server)
    return Tree(server, model=trees.add(server['model'], update)), loss_metrics(total)

  return assemble(
    spec, client_update=client_update, server_update=server_update,
    hyperparameters=spec.values('client_learning_rate', 'NAME_share'),
    models={'global': lambda server, client: server['model']},
  )
'''
PRIVATE_METHOD = """
from processes import common_settings as common, trees
from processes.declaration import Method
from processes.fedavg.process import build_global_model
from settings import Setting

DECAY = Setting(name='NAME_decay', kind=float, default=0.0, minimum=0.0, help='Pull to zero.')
METHOD = Method(name='NAME', summary='pulls to zero', citation='none', privacy_units=('client',),
                settings=(*common.GLOBAL_MODEL, DECAY), check=common.check_global_model)


def build(spec):
  def to_zero(server, params):
    return trees.scale(params, server['hyperparameters']['NAME_decay'])

  return build_global_model(
    spec, regularizer_gradient=to_zero, hyperparameters=spec.values('NAME_decay')
  )
"""
SMALL = dict(
  dataset='digits', dataset_option=('num_clients=4',), rounds=2, eval_every=0, device='cpu'
)


@pytest.fixture(autouse=True)
def forget():
  """A user's file is known to one test only."""
  before = {*processes.METHODS}
  yield
  _forget_methods({*processes.METHODS} - before)


def _forget_methods(names):
  for name in names & {*processes.METHODS}:
    del processes.METHODS[name]
  user_files._METHODS.clear()
  user_files._MODULES.clear()


@pytest.fixture(name='file')
def _file(tmp_path):
  def write(name, text):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text).replace('NAME', path.stem))
    return str(path)

  return write


def test_a_file_that_ends_the_process_is_an_error(file, tmp_path, capsys):
  path = file('leaves.py', 'import sys\n\n\ndef build(task):\n  sys.exit(0)\n')
  flags = ['--dataset=digits', f'--model={path}:build', f'--output_dir={tmp_path}/run']
  with flagsaver.flagsaver():
    assert cli.main(['x', *flags]) == 2
  said = capsys.readouterr().err.strip().splitlines()[-1]
  assert said.startswith('error: SystemExit: 0') and 'leaves.py, line 5' in said
  assert not (tmp_path / 'run').exists()


# ------------------------------------------------------------ a method


@pytest.mark.slow
def test_a_method_from_a_file_runs_with_its_setting(file):
  path = file('sends_a_share.py', METHOD)
  config = ExperimentConfig(method=path, sends_a_share_share=0.25, **SMALL)
  assert config.method == 'sends_a_share' and config.method_file == path
  assert config.sends_a_share_share == 0.25 and config.mtl_lambda is None
  assert ExperimentConfig(method=path).sends_a_share_share == 0.5
  assert ExperimentConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
  whole = ExperimentConfig(method='fedavg', **SMALL)
  runs = [runner.run(c, show_progress=False) for c in (config, whole)]
  first, second = (run.server_state['model']['weights'] for run in runs)
  assert 0 < np.linalg.norm(first) < np.linalg.norm(second)


def test_its_file_is_part_of_what_a_run_is(file):
  path = file('told_apart.py', METHOD)
  before = ExperimentConfig(method=path).identity['method_file']
  assert before.startswith('told_apart.py@')
  file('told_apart.py', METHOD + '# changed')
  assert ExperimentConfig(method=path).identity['method_file'] != before


def test_a_file_of_another_kind_is_no_method(file):
  with pytest.raises(ValueError, match=r'own\.txt must be a Python file, such as my_method\.py'):
    ExperimentConfig(method_file=file('own.txt', METHOD))


def test_its_settings_are_known_with_it_only(file):
  with pytest.raises(TypeError, match='unknown_until_now_share is no setting'):
    ExperimentConfig(unknown_until_now_share=0.1)
  ExperimentConfig(method=file('unknown_until_now.py', METHOD))
  with pytest.raises(ValueError, match=r'--unknown_until_now_share=0\.1 belongs to'):
    ExperimentConfig(unknown_until_now_share=0.1)
  with pytest.raises(ValueError, match='sends nothing'):
    ExperimentConfig(method='unknown_until_now', unknown_until_now_share=0.0)


def test_a_method_whose_clients_states_change_their_kind_is_refused(file):
  more = METHOD.replace('NAME', 'swollen').replace(
    '**loss_report(statistics)), client\n',
    "**loss_report(statistics)), Tree(client, more=server['round'])\n",
  )
  assert more.count('more=') == 1
  config = ExperimentConfig(method=file('swollen.py', more), **SMALL)
  words = (
    r"client_update of swollen changes the kind of a client's state: more is int32 and was not"
  )
  with pytest.raises(ValueError, match=words):
    build.build_process(config)


@pytest.mark.parametrize(
  'right,wrong,words',
  [
    (
      ', **loss_report(statistics)), client',
      '), client',
      r"server_update of slip reads 'loss_sum', which is not there\. There is in server: model, "
      r"round, seed, hyperparameters; reports: update, weight; server\['hyperparameters'\]: ",
    ),
    ("['NAME_share'])", "['share'])", "client_update of slip reads 'share', .*: .*slip_share"),
    ('statistics)), client', 'statistics))', r'client_update of slip returns .*\(report, client'),
    (', loss_metrics(total)', '', r'server_update of slip returns .*\(server state, metrics\)'),
    ('return Tree(server', 'Tree(server', 'server_update of slip returns None; it must return the'),
    (
      'Tree(server, model=',
      "Tree(server, more=server['round'], model=",
      "server_update of slip changes the kind of a server's state: more is int32 and was not there",
    ),
    (
      'loss_metrics(total)',
      "Tree(sizes=server['model'])",
      'server_update of slip gives the metric sizes as <.*>; metrics are scalars by name',
    ),
    (
      "'client_learning_rate', 'NAME_share'",
      "'client_learning_rate', 'share'",
      'slip reads the hyper-parameter share, which it does not declare; it has .*slip_share',
    ),
    ("{'global': lambda server, client: server['model']}", '{}', 'slip gives no `models`'),
  ],
)
def test_a_slip_in_an_update_is_named(file, right, wrong, words):
  assert METHOD.count(right) == 1
  path = file('slip.py', METHOD.replace(right, wrong))
  with pytest.raises(ValueError, match=words) as caught:
    build.build_process(ExperimentConfig(method=path, **SMALL))
  assert '\n' not in str(caught.value)
  # The line that reads, or where there is none `return assemble(...)`.
  assert path in user_files.place_of(caught.value)


def test_the_methods_that_a_command_line_names():
  assert user_files.methods_in([]) == []  # what an empty flagfile comes to
  arguments = ['--method', 'a.py', '--sweep=method=b.py,ditto']
  assert user_files.methods_in(arguments) == ['a.py', 'b.py']


@pytest.mark.parametrize(
  'text,words',
  [
    ('x = 1', 'has no METHOD'),
    ('METHOD = 3', 'has no METHOD'),
    ('x = 1\nx = y\n', 'NameError: name .y. is not defined .*wrong.py, line 2'),
    ('x = 1\n\nx = = 2\n', 'SyntaxError: invalid syntax .*wrong.py, line 3'),
    ('import no_such_module', 'ModuleNotFoundError: .*line 1'),
    (
      "from processes import Method\nMETHOD = Method(name='wrong', summary='', citation='', "
      "privacy_units=('none',))",
      'has no function build',
    ),
    (METHOD.replace("name='NAME', s", "name='fedavg', s"), 'the name fedavg is taken'),
    (METHOD.replace("'NAME_share'", "'mtl_lambda'"), 'setting mtl_lambda is another one'),
    (METHOD.replace("('none',)", "('nobody',)"), 'privacy_units are'),
  ],
)
def test_what_is_wrong_with_a_file_is_one_line(file, text, words):
  path = file('wrong.py', text)
  with pytest.raises(ValueError, match=words) as caught:
    ExperimentConfig(method=path)
  assert '\n' not in str(caught.value)
  assert str(caught.value).startswith(f'--method={path}')


def test_a_missing_file_is_said():
  with pytest.raises(ValueError, match='there is no file'):
    ExperimentConfig(method='nowhere.py')


def test_methods_are_found_in_a_command_line():
  arguments = ['--method=a.py', '--rounds=3', '--method', 'b.py', '--sweep=method=c.py,fedavg']
  assert user_files.methods_in(arguments) == ['a.py', 'b.py', 'c.py']
  assert user_files.methods_in(['--method=fedavg', '--sweep', 'method=d.py']) == ['d.py']


@pytest.mark.slow
def test_help_shows_its_flags(file):
  path = file('seen_in_help.py', METHOD)
  done = subprocess.run(
    [sys.executable, 'run_experiment.py', '--help', f'--method={path}'],
    capture_output=True, text=True, check=True,
  )  # fmt: skip
  assert '--seen_in_help_share [0.5]' in done.stdout
  assert 'Only with --method=seen_in_help.' in ' '.join(done.stdout.split())
  assert not done.stderr


@pytest.mark.slow
def test_the_audit_takes_a_users_method_and_its_flag(file, capsys):
  path = file('pulls_to_zero.py', PRIVATE_METHOD)
  arguments = [
    'audit', f'--method={path}', '--pulls_to_zero_decay=0.5', '--dataset=digits',
    '--dataset_option=num_clients=4', '--privacy=client', '--clients_per_round=2',
    '--noise_multiplier=1', '--delta=1e-3', '--rounds=1', '--audit_runs=16', '--device=cpu',
  ]  # fmt: skip
  try:
    assert command.main(arguments) == 0
    assert 'the claim stands' in capsys.readouterr().out
    arguments[2] = '--pulls_to_zero_decay=-1'
    assert command.main(arguments) == 2
    assert '--pulls_to_zero_decay=-1' in capsys.readouterr().err
  finally:
    del flags.FLAGS.pulls_to_zero_decay
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()


def test_a_recipe_takes_a_users_method_and_its_flag(file, tmp_path, monkeypatch):
  monkeypatch.setattr(recipes, 'FOLDER', tmp_path)
  (tmp_path / 'mine.flags').write_text(f'--method={file("in_a_recipe.py", METHOD)}\n--rounds=3\n')
  recipe = recipes.Recipe(
    name='mine', title='mine', parts={'all': ('--sweep=in_a_recipe_share=0.25,0.5',)}
  )
  runs = recipe.grid('all').runs().values()
  assert sorted(config.in_a_recipe_share for config in runs) == [0.25, 0.5]


@pytest.mark.parametrize('how', ['base', 'axes'])
def test_a_grid_knows_the_settings_of_a_users_method_in_any_process(file, how):
  """A worker, and whoever goes on with a sweep, has the sweep's folder alone."""
  path = file(f'in_a_grid_{how}.py', METHOD)
  base, axes = {'rounds': 2}, {f'in_a_grid_{how}_share': (0.25, 0.5)}
  if how == 'base':
    base['method'] = path
  else:
    axes['method'] = (path, 'fedavg')
  grid = Grid(base=base, axes=axes, seeds=(0,))
  written = json.dumps(grid.to_json())
  _forget_methods({'in_a_grid_base', 'in_a_grid_axes'})
  assert Grid.from_json(json.loads(written)).runs().keys() == grid.runs().keys()
  # One value alone, as `--method=... --NAME_share=...` with another setting swept.
  written = json.dumps({'base': {'method': path, f'in_a_grid_{how}_share': 0.25}, 'seeds': [0],
                        'axes': {'rounds': [1, 2]}})  # fmt: skip
  _forget_methods({'in_a_grid_base', 'in_a_grid_axes'})
  assert len(Grid.from_json(json.loads(written)).runs()) == 2


# ------------------------------------------------------------ a model, metrics


MODEL = """
  import tensorflow as tf

  def build(task, units=3):
    return tf.keras.Sequential([
      tf.keras.Input(task.example_shape), tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(units, 'tanh'), tf.keras.layers.Dense(task.num_outputs),
    ])

  def nothing(task):
    return 3

  def top_two(outputs, y):
    return tf.math.in_top_k(y, outputs, 2)
"""


@pytest.mark.slow
def test_a_keras_model_and_a_metric_from_files(file):
  path = file('own_model.py', MODEL)
  config = ExperimentConfig(
    model=f'{path}:build', model_option=('units=5',), metric=(f'{path}:top_two',), **SMALL
  )
  result = runner.run(config, show_progress=False)
  assert (64, 5) in [leaf.shape for leaf in tf.nest.flatten(result.server_state['model'])]
  metrics = result.summary['metrics']
  assert metrics['test_accuracy'] <= metrics['test_top_two'] <= 1.0


def test_a_keras_model_of_a_file_has_the_same_weights_in_every_process(file):
  """Its frozen ones too: a run that goes on elsewhere would be one of another network."""
  config = ExperimentConfig(model=f'{file("own_model.py", MODEL)}:build', **SMALL)
  dataset = loading.load_dataset(config)
  found = []
  for seed in (1, 2):  # as two processes begin
    tf.keras.utils.set_random_seed(seed)
    before = random.getstate(), np.random.get_state()[1].tolist()
    model = parts.model_of(config, dataset, parts.Parts())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    found.append(model)
  assert found[0].contents == found[1].contents != ''
  for a, b in zip(*(model.init(tf.constant([0, 0])).values() for model in found), strict=True):
    np.testing.assert_array_equal(a, b)
  # A model that a program made is known by its numbers.
  own = [tf.keras.Sequential([tf.keras.Input([64]), tf.keras.layers.Dense(10)]) for _ in range(2)]
  contents = {tff_models.from_keras(m, task_kind='classification').contents for m in own}
  assert len(contents) == 2


def test_what_a_file_imports_from_beside_it_is_known(file):
  helper = file('beside_own_model.py', 'UNITS = 3')
  path = file(
    'own_model_with_helper.py', 'from beside_own_model import UNITS\n' + MODEL.replace('\n  ', '\n')
  )
  config = ExperimentConfig(model=f'{path}:build', **SMALL)
  assert user_files.imported(ExperimentConfig(**SMALL)) == {}
  parts.model_of(config, loading.load_dataset(config), parts.Parts())
  first = user_files.imported(config)
  assert list(first) == ['beside_own_model']
  pathlib.Path(helper).write_text('UNITS = 4')
  assert user_files.imported(config) != first


def test_what_a_methods_file_imports_from_beside_it_is_known(file):
  """Edited between two runs of one noise key, it would have the noise meet other updates."""
  helper = file('beside_own_method.py', 'SHARE = 0.5')
  text = (
    METHOD.replace('NAME', 'helped')
    .replace('default=0.5', 'default=SHARE')
    .replace(
      'from processes import trees\n',
      'from beside_own_method import SHARE\nfrom processes import trees\n',
    )
  )
  config = ExperimentConfig(**{**SMALL, 'method': file('helped.py', text)})
  first = user_files.imported(config)
  assert list(first) == ['beside_own_method']
  pathlib.Path(helper).write_text('SHARE = 0.25')
  assert user_files.imported(config) != first


@pytest.mark.parametrize(
  'text,words',
  [('own.py', 'must be one of|file.py:function'), ('PATH', 'file.py:function'),
   ('PATH:biuld', 'no function biuld; did you mean build'), ('PATH:nothing', 'gives a int')],
)  # fmt: skip
def test_a_wrong_model_is_one_line(file, text, words):
  path = file('own_model.py', MODEL)
  with pytest.raises(ValueError, match=words):
    build.build_process(ExperimentConfig(model=text.replace('PATH', path), **SMALL))


METRICS = """
  import tensorflow as tf

  def raises(outputs, y):
    raise ValueError('no such thing')

  def one(outputs, y):
    return tf.constant(1.0)

  def wide(outputs, y):
    return outputs
"""


@pytest.mark.parametrize(
  'name,words',
  [('raises', r'--metric raises: ValueError: no such thing \(.*own_metrics.py, line 5\)'),
   ('one', r'--metric one gives shape \(\) for 3 examples'),
   ('wide', r'--metric wide gives shape \(3, 10\) for 3 examples')],
)  # fmt: skip
def test_a_metric_without_a_value_for_each_example_is_named(file, name, words):
  path = file('own_metrics.py', METRICS)
  with pytest.raises(ValueError, match=words):
    build.build_process(ExperimentConfig(metric=(f'{path}:{name}',), **SMALL))


@pytest.mark.parametrize('outputs', [7, 12])
def test_a_keras_model_of_another_number_of_outputs_is_refused(outputs):
  model = tf.keras.Sequential(
    [tf.keras.Input([8, 8, 1]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(outputs)]
  )
  with pytest.raises(ValueError, match=f'has {outputs} outputs, and the data 10'):
    build.build_process(ExperimentConfig(**SMALL), model=model)


PURE = """
  import math

  import tensorflow as tf
  from tff_models import model


  def build(task, outputs, form):
    width = math.prod(task.example_shape)

    def predict(params, x):
      found = tf.matmul(tf.reshape(x, [-1, width]), params['weights'])
      return {'plain': found, 'row': found[:, None], 'first': found[:, 0]}[form]

    return model.OBJECTIVES[task.kind]().model(
      name='pure', init=lambda key: model.Params(weights=tf.zeros([width, outputs])),
      predict=predict, head=('weights',)
    )
"""


@pytest.mark.parametrize(
  'dataset, outputs, form, words',
  [
    ('digits', 10, 'plain', ''),
    ('digits', 7, 'plain', r'outputs of shape \(12, 7\) for 12 examples; \[12, 10\] is expected'),
    ('digits', 10, 'row', r'outputs of shape \(12, 1, 10\) for 12'),
    ('digits', 10, 'first', r'outputs of shape \(12,\) for 12'),
    ('exam', 1, 'first', ''),
    ('exam', 1, 'plain', r'loss of shape \(3, 3\), of outputs \(3, 1\), for 3 examples; \[3\] is'),
  ],
)
def test_outputs_of_another_form_are_no_wrong_number(file, dataset, outputs, form, words):
  """TensorFlow repeats what does not fit: [B, 1] beside labels [B] were errors [B, B]."""
  path = file('own_pure.py', PURE)
  options = (f'outputs={outputs}', f'form={form}')
  config = ExperimentConfig(dataset=dataset, model=f'{path}:build', model_option=options, rounds=1)
  if words:
    with pytest.raises(ValueError, match=f'--model=.*own_pure.py:build gives {words}'):
      build.build_process(config)
  else:
    assert build.build_process(config).method


def test_a_head_that_a_model_does_not_have_is_named(file):
  path = file('own_pure.py', PURE.replace("head=('weights',)", "head=('wieghts',)"))
  options = ('outputs=10', 'form=plain')
  for method in ('fedavg', 'ppsgd'):
    config = ExperimentConfig(
      method=method, dataset='digits', model=f'{path}:build', model_option=options, rounds=1
    )
    with pytest.raises(ValueError, match="names 'wieghts' in its head; its parameters are weights"):
      build.build_process(config)


def test_options_that_a_model_of_ones_own_does_not_take_are_named(file):
  path = file('own_model.py', MODEL)
  config = ExperimentConfig(model=f'{path}:build', model_option=('widht=5',), **SMALL)
  words = r"own_model.py:build is called with the task, --model_option=widht=5: got .* 'widht'"
  with pytest.raises(ValueError, match=words):
    build.build_process(config)


@pytest.mark.slow
def test_parts_by_api(tmp_path):
  table = pd.DataFrame(
    {'who': list('aabbcc') * 6, 'x': np.arange(36.0) % 7, 'y': np.arange(36.0) % 5}
  )
  data = datasets.from_dataframe(table, silo_column='who', target='y', task='regression')
  model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
  own = dict(dataset=data, model=model, metrics={'absolute': lambda o, y: tf.abs(o - y)})
  seen = []

  class Logger(parts.Callback):
    def after_round(self, round_, metrics):
      seen.append((round_, round(metrics['participants'])))

    def after_evaluation(self, round_, metrics):
      seen.append((round_, sorted(metrics)[0]))

    def at_end(self, result):
      seen.append(result.summary['rounds'])

  config = ExperimentConfig(rounds=2, eval_every=0, device='cpu', client_learning_rate=0.01)
  result = runner.run(build.build_process(config, **own), show_progress=False, callbacks=[Logger()])
  assert [s for s in seen if isinstance(s, tuple) and s[1] == 3] == [(1, 3), (2, 3)]
  assert seen[0][0] == 0 and seen[-1] == 2
  assert 'test_absolute' in result.summary['metrics']
  grid = Grid(
    base={'rounds': 2, 'eval_every': 0, 'device': 'cpu', 'client_learning_rate': 0.01},
    axes={'server_learning_rate': (1.0, 0.5)}, seeds=(0,),
  )  # fmt: skip
  told = collections.defaultdict(list)

  class OfARun(parts.Callback):
    def __init__(self, config):
      self.told = told[config.server_learning_rate]

    def after_round(self, round_, metrics):
      self.told.append((round_, metrics['train_loss']))

    def after_evaluation(self, round_, metrics):
      self.told.append((round_, metrics['test_absolute']))

    def at_end(self, result):
      self.told.append(result)

  swept = sweep.run(
    grid, folder=tmp_path / 'swept', select_on='nothing', show_progress=False,
    callbacks=lambda config: [OfARun(config)], **own,
  )  # fmt: skip
  # Each run of the one program is told of by itself, and of its own numbers.
  for rate, (*events, ended) in told.items():
    assert [round_ for round_, _ in events] == [0, 1, 2, 2]
    assert ended.config.server_learning_rate == rate
    losses = [row.value for row in ended.metrics.rows if row.name == 'train_loss']
    assert [value for _, value in events[1:3]] == losses
    assert events[-1][1] == ended.summary['metrics']['test_absolute']
  whole, half = (tf.nest.flatten(told[rate][-1].server_state['model']) for rate in (1.0, 0.5))
  for alone, own_leaf, other in zip(
    tf.nest.flatten(result.server_state['model']), whole, half, strict=True
  ):
    np.testing.assert_allclose(own_leaf, alone, rtol=1e-6)
    assert np.any(own_leaf != other)
  found = swept.table.query(f"metric == 'test_absolute' and group == '{EVERYONE}'")
  assert found['value'].iloc[0] == pytest.approx(result.summary['metrics']['test_absolute'])
  for given in (own, {'callbacks': lambda config: []}):
    with pytest.raises(ValueError, match='lives in this process'):
      sweep.run(grid, folder=tmp_path / 'no', workers=2, **given)


def test_a_metric_that_is_there_already_is_refused():
  with pytest.raises(ValueError, match='a metric accuracy already'):
    build.build_process(ExperimentConfig(**SMALL), metrics={'accuracy': lambda o, y: y})


# ------------------------------------------------------------ a table


@pytest.fixture(name='table')
def _table(tmp_path):
  path = tmp_path / 'mine.csv'
  rng = np.random.default_rng(0)
  pd.DataFrame(
    {'who': list('abc') * 8, 'one': rng.normal(size=24), 'two': rng.normal(size=24),
     'score': rng.normal(size=24)}
  ).to_csv(path, index=False)  # fmt: skip
  return str(path)


def test_a_table_is_a_data_set(table):
  config = ExperimentConfig(
    dataset=table, silo_column='who', target_column='score', test_fraction=0.25,
    dataset_option=('features=one',),
  )  # fmt: skip
  data = loading.load_dataset(config)
  assert data.name == 'mine' and data.client_ids == ('a', 'b', 'c')
  assert data.task.kind == 'regression' and data.task.example_shape == (1,)
  assert data.train.num_examples.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
  'values,words',
  [
    ({}, 'needs --silo_column'),
    ({'silo_column': 'who'}, 'needs --silo_column, .* and --target_column'),
    ({'silo_column': 'why', 'target_column': 'score'}, "no column 'why'"),
    ({'dataset': 'digits', 'silo_column': 'who'}, 'belongs to a table of your own'),
    ({'dataset': 'none.csv', 'silo_column': 'a', 'target_column': 'b'}, 'there is no file'),
    ({'dataset': 'digitz'}, 'did you mean digits'),
  ],
)
def test_a_wrong_table_is_one_line(table, values, words):
  with pytest.raises((ValueError, FileNotFoundError), match=words):
    loading.load_dataset(ExperimentConfig(**{'dataset': table, **values}))


# ------------------------------------------------------------ a run that diverges


@pytest.mark.slow
def test_a_diverged_run_stops_in_one_line(tmp_path):
  config = ExperimentConfig(
    method='mr_mtl', dataset='exam', client_learning_rate=1e6, rounds=300, device='cpu',
    eval_every=0, output_dir=str(tmp_path / 'run'),
  )  # fmt: skip
  with pytest.raises(divergence.Diverged) as caught:
    runner.run(config, show_progress=False)
  assert '\n' not in str(caught.value)
  for words in ('after round', 'of 300', '--client_learning_rate (now 1000000.0)', '--mtl_lambda'):
    assert words in str(caught.value)
  assert (tmp_path / 'run' / 'metrics.parquet').exists()
  assert not (tmp_path / 'run' / 'summary.json').exists()


def test_weights_that_are_no_numbers_are_no_divergence():
  """Before any training no learning rate helps."""
  config = ExperimentConfig(method='mr_mtl', dataset='exam', rounds=300, model='mlp')
  said = str(divergence.Diverged(config, 0, 'test', math.nan))
  assert said.startswith('the test loss is nan before the first round: the initial weights of ')
  assert '--model=mlp, or the data, are' in said and 'learning_rate' not in said


def test_every_stiff_setting_is_one_of_the_method():
  for method in processes.METHODS.values():
    assert all(method.setting(name) for name in method.stiff_settings)
  assert {'method_file', 'metric'} <= {*settings()}
