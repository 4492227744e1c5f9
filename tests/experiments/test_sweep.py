"""Sweeps: the grid, what shares a program, equal results, resuming, dead workers."""

import dataclasses
import json
import os
import queue
import re
import signal
import weakref

import numpy as np
import pandas as pd
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import cli
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints, files, noise_correlations, provenance
from experiments.folder.metrics import MetricTable
from experiments.reports import sections
from experiments.sweeps import grid as sweep_grid
from experiments.sweeps import record, sweep
from experiments.sweeps import table as sweep_table
from experiments.sweeps import workers as sweep_workers
from experiments.sweeps.grid import Grid
from experiments.sweeps.progress import SweepProgress
from privacy import accounting
from privacy.plan import ClientLevelPrivacy, FixedClipping
from privacy.sampling import EveryClient
from runtime import memory
from tests.experiments.timings import TIMINGS

SMALL = dict(
  method='mr_mtl', dataset='exam', privacy='example', delta=1e-3, rounds=3, eval_every=2,
  checkpoint_every=0, noise_key='rehearsal',
)  # fmt: skip


def small_grid(**changes) -> Grid:
  return Grid.parse({**SMALL, **changes}, ['target_epsilon=2,4', 'mtl_lambda=0.1,1'], ['0-1'])


def test_runs_are_all_combinations_with_all_seeds():
  runs = small_grid().runs()
  assert len(runs) == 8
  config = runs['target_epsilon=4,mtl_lambda=0.1,seed=1']
  assert (config.target_epsilon, config.mtl_lambda, config.seed) == (4.0, 0.1, 1)


def test_without_seeds_there_is_the_one_of_the_flags():
  assert Grid.parse({'seed': 7}, [], []).seeds == (7,)
  assert [c.seed for c in Grid.parse({}, ['rounds=1,2'], []).runs().values()] == [0, 0]


def test_a_sweep_takes_the_place_of_a_flag():
  grid = Grid.parse({'rounds': 9, 'seed': 4}, ['rounds=1,2'], ['0', '1'])
  assert [(c.rounds, c.seed) for c in grid.runs().values()] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_more_processes_than_memory_has_room_for_are_refused(tmp_path, monkeypatch):
  """Before any is started; those that have nothing to run are none."""
  monkeypatch.setattr(memory, 'available_bytes', lambda: 2**30)
  monkeypatch.setattr(sweep_workers, 'run', lambda groups, *rest: {})
  grid = Grid.parse({'dataset': 'exam', 'rounds': 1}, [], ['0-4'])
  how = sweep.record.How(workers=9)
  plan = sweep.Plan(grid=grid, folder=str(tmp_path / 'a'), resume=False, how=how)
  for check in (plan.check, plan.run):
    with pytest.raises(
      ValueError, match=r'--workers=9: .* 0\.31 GB .* has 1 GB left; at most 3 fit'
    ):
      check()
  assert not (tmp_path / 'a').exists()
  for name in ('seed=0', 'seed=3'):  # finished before
    (tmp_path / 'a' / 'runs' / name).mkdir(parents=True)
    (tmp_path / 'a' / 'runs' / name / 'summary.json').touch()
  plan.check()
  monkeypatch.setattr(memory, 'available_bytes', lambda: None)
  plan.check()


def test_a_setting_of_another_method_is_left_out():
  grid = Grid.parse({}, ['method=local,fedavg,mr_mtl', 'mtl_lambda=0.1,1'], ['0'])
  assert list(grid.runs()) == [
    'method=local,seed=0',
    'method=fedavg,seed=0',
    'method=mr_mtl,mtl_lambda=0.1,seed=0',
    'method=mr_mtl,mtl_lambda=1,seed=0',
  ]


def test_what_is_of_cohorts_is_left_out_of_what_is_not_federated():
  grid = Grid.parse({}, ['method=fedavg,pooled', 'clients_per_round=5'], ['0'])
  assert list(grid.runs()) == ['method=fedavg,clients_per_round=5,seed=0', 'method=pooled,seed=0']


@pytest.mark.parametrize(
  'base, sweep, words',
  [
    ({'clients_per_round': 5}, 'method=fedavg,pooled', 'Give --sweep=clients_per_round=5 instead'),
    ({'target_epsilon': 3.0, 'delta': 1e-3}, 'privacy=none,example',
     'Give --sweep=target_epsilon=3 --sweep=delta=0.001 instead'),
    ({'mtl_lambda': 1.0}, 'method=fedavg,mr_mtl,local', 'Give --sweep=mtl_lambda=1 instead'),
    # Nothing uses it, or the error is another one.
    ({'clients_per_round': 5}, 'method=pooled', 'is in every round.$'),
    ({'mtl_lambda': 1.0}, 'method=fedavg,ditto', 'does not use it.$'),
    ({'clients_per_round': 5}, 'cohort_sampling_rate=0.1,0.2', 'exclude each other; give one.$'),
  ],
)  # fmt: skip
def test_a_fixed_setting_that_some_runs_would_ignore_is_refused_with_a_way(base, sweep, words):
  with pytest.raises(ValueError, match=f'of the sweep: --.*{words}') as refused:
    Grid.parse(base, [sweep], []).runs()
  ways = re.findall(r'--sweep=(\S+)', str(refused.value).partition(' Give ')[2])
  left = {name: value for name, value in base.items() if not ways}
  assert not ways or len(Grid.parse(left, [sweep, *ways], []).runs()) > 1


@pytest.mark.parametrize(
  'base, sweep, words',
  [
    ({}, 'mtl_lambda=0.1,1', 'mtl_lambda belongs to --method=.*; --method=fedavg does not use it'),
    ({}, 'delta=1e-3,1e-4', 'delta belongs to --privacy=.*; --privacy=none does not use it'),
    ({}, 'mtl_lambda+ditto_lambda=0.1,1', 'mtl_lambda belongs to'),
    ({'method': 'dp_fedavg', 'privacy': 'client'}, 'mtl_lambda=1,2', '.*--method=fedavg does not'),
  ],
)
def test_a_setting_that_belongs_to_no_run_is_refused(base, sweep, words):
  grid = Grid.parse({**base, **({'noise_multiplier': 1.0, 'delta': 1e-3} if base else {})},
                    [sweep], ['0'])  # fmt: skip
  with pytest.raises(ValueError, match=f'--sweep={re.escape(sweep.partition("=")[0])}=.*: {words}'):
    grid.runs()


def test_a_setting_that_needs_a_default_is_kept():
  base = dict(method='feo2', privacy='client', noise_multiplier=1.0, delta=1e-3)
  grid = Grid.parse(base, ['ditto_lambda_private+ditto_lambda_non_private=1,2'], [])
  assert len(grid.runs()) == 2
  grid = Grid.parse({**base, 'personalize': False}, ['ditto_lambda_private=1,2'], [])
  assert len(grid.runs()) == 1


def test_two_settings_can_be_swept_as_one():
  grid = Grid.parse({}, ['client_learning_rate+server_learning_rate=0.5,2'], ['0'])
  rates = [(c.client_learning_rate, c.server_learning_rate) for c in grid.runs().values()]
  assert rates == [(0.5, 0.5), (2.0, 2.0)]


def test_a_swept_option_takes_the_place_of_the_same_option():
  grid = Grid.parse(
    {'dataset_option': ('num_clients=5', 'test_fraction=0.5')},
    ['dataset_option=num_clients=3,num_clients=4'],
    [],
  )
  options = [c.dataset_options for c in grid.runs().values()]
  assert options == [
    {'test_fraction': 0.5, 'num_clients': 3},
    {'test_fraction': 0.5, 'num_clients': 4},
  ]


@pytest.mark.parametrize(
  ('sweeps', 'seeds', 'words'),
  [
    (['mtl_lambda'], [], '--sweep=mtl_lambda must have the form'),
    (['lambda=1,2'], [], 'lambda is no setting'),
    (['seed=1,2'], [], 'give the seeds as --seeds=1,2'),
    (['mtl_lambda=-1,1'], [], '--mtl_lambda=-1'),
    (['mtl_lambda=1,1'], [], 'a value twice'),
    (['mtl_lambda=1', 'mtl_lambda=2'], [], 'a second time'),
    ([], ['a'], '--seeds=a must be whole numbers'),
    ([], ['1', '1'], 'different'),
  ],
)
def test_what_is_no_grid_is_refused_by_name(sweeps, seeds, words):
  with pytest.raises(ValueError, match=words):
    Grid.parse(SMALL, sweeps, seeds).runs()


def test_a_combination_that_is_no_experiment_is_named():
  with pytest.raises(ValueError, match='privacy=client,seed=0'):
    Grid.parse({'method': 'local'}, ['privacy=none,client'], []).runs()


def test_a_grid_survives_its_file():
  base = {**SMALL, 'target_epsilon': 4.0, 'dataset_option': ('test_fraction=0.5',)}
  grid = Grid.parse(base, ['mtl_lambda=1,2'], ['3'])
  assert Grid.from_json(json.loads(json.dumps(grid.to_json()))).runs() == grid.runs()


def test_a_run_of_a_grid_is_checked_as_if_it_were_alone():
  """Seeds of one combination are copies of each other."""
  runs = Grid.parse(SMALL, ['mtl_lambda=0,1', 'target_epsilon=2'], ['0-2']).runs()
  assert [config.seed for config in runs.values()] == [0, 1, 2] * 2
  for config in runs.values():
    alone = ExperimentConfig.from_json(config.to_json())
    assert alone == config and alone.fingerprint == config.fingerprint
  with pytest.raises(ValueError, match='--seed='):
    config.with_seed('a')


def test_continuous_settings_and_seeds_share_a_program_and_others_do_not():
  base = {k: v for k, v in SMALL.items() if k != 'rounds'}
  grid = Grid.parse(base, ['mtl_lambda=0,1', 'target_epsilon=1,2', 'batch_size=8,16'], ['0-2'])
  groups = sweep_grid.programs(grid.runs())
  assert [len(group) for group in groups] == [12, 12]
  assert all('batch_size=8' in name for name in groups[0])


def test_workers_share_out_a_large_program():
  runs = small_grid().runs()
  assert sorted(map(len, sweep_grid.programs(runs, workers=3))) == [2, 2, 4]
  assert len(sweep_grid.programs(runs, workers=20)) == 8


def test_what_has_begun_together_goes_on_together():
  runs = small_grid().runs()
  names = list(runs)
  begun = [names[2:6][::-1], names[6:]]
  groups = sweep_grid.programs(runs, workers=3, together=begun)
  assert sorted(map(sorted, groups)) == sorted(map(sorted, [names[:2], *begun]))
  for workers in (1, 2, 9):
    groups = sweep_grid.programs(runs, workers, begun)
    assert sorted(name for group in groups for name in group) == sorted(names)
    for unit in begun:  # in its own order, by which its checkpoint is found
      [place] = [group for group in groups if unit[0] in group]
      assert place[place.index(unit[0]) :][: len(unit)] == unit


def test_names_are_file_names():
  name = sweep_grid.run_name({'silo_epsilons': '/a b/c.csv', 'seed': 0})
  assert '/' not in name and ' ' not in name
  assert name != sweep_grid.run_name({'silo_epsilons': '_a_b_c.csv', 'seed': 0})
  assert len(sweep_grid.run_name({'silo_epsilons': 'x' * 500})) <= 160


def table(values: dict[tuple[float, int], tuple[float, float]]) -> pd.DataFrame:
  """(lambda, seed) -> (validation mse, test mse)."""
  return pd.DataFrame(
    [
      dict(
        run=f'{lambda_}-{seed}', method='mr_mtl', target_epsilon=2.0, mtl_lambda=lambda_,
        seed=seed, rounds=1, group='all', metric=f'{split}_mse', value=value,
      )
      for (lambda_, seed), pair in values.items()
      for split, value in zip(('validation', 'test'), pair, strict=True)
    ]
  )  # fmt: skip


def test_selection_is_by_validation_data_and_says_so():
  frame = table({(0.1, 0): (1.0, 9.0), (0.1, 1): (3.0, 9.0), (1.0, 0): (4.0, 1.0),
                 (1.0, 1): (4.0, 3.0)})  # fmt: skip
  [best] = sweep_table.select(frame, on='validation')
  assert best['setting'] == {'mtl_lambda': 0.1} and best['selected_on'] == 'validation'
  assert best['validation'] == {'mean': 2.0, 'std': 1.0} and best['test']['mean'] == 9.0
  [on_test] = sweep_table.select(frame, on='test')
  assert on_test['setting'] == {'mtl_lambda': 1.0} and on_test['selected_on'] == 'test'


def test_test_data_are_never_chosen_on_for_lack_of_validation_data():
  frame = table({(0.1, 0): (1.0, 9.0), (1.0, 0): (4.0, 1.0)})
  only_test = frame[frame['metric'] == 'test_mse']
  assert sweep_table.select(only_test, on='validation') == []


def test_a_setting_with_fewer_seeds_is_not_chosen():
  frame = table({(0.1, 0): (5.0, 5.0), (0.1, 1): (5.0, 5.0), (1.0, 0): (1.0, 1.0)})
  [best] = sweep_table.select(frame, on='validation')
  assert best['setting'] == {'mtl_lambda': 0.1}


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_setting_of_which_a_run_has_diverged_is_not_chosen(value):
  """The mean of those that have not would look better than the setting is."""
  frame = table({(0.1, 0): (5.0, 5.0), (0.1, 1): (5.0, 5.0), (1.0, 0): (1.0, 1.0),
                 (1.0, 1): (value, value)})  # fmt: skip
  [best] = sweep_table.select(frame, on='validation')
  assert best['setting'] == {'mtl_lambda': 0.1}
  assert sweep_table.diverged(frame) == ['1.0-1']
  said = sweep._closing_words(frame, [best], 'validation')
  assert 'Diverged' in said and '1 of 4 runs (1.0-1).' in said


def test_a_chosen_setting_may_have_diverged_on_test_data(tmp_path):
  """The file has null for what is no number, and whoever reads it says so."""
  frame = table({(0.1, 0): (5.0, 5.0), (1.0, 0): (1.0, np.nan)})
  selection = sweep_table.select(frame, on='validation')
  said = sweep._closing_words(frame, selection, 'validation')
  assert 'mtl_lambda=1.0 (of 2); test mse nan' in said and '1 of 2 runs (1.0-0).' in said
  assert 'not chosen' not in said
  record.write(tmp_path, small_grid(), selection)
  [best] = json.loads((tmp_path / 'sweep.json').read_text())['selection']
  assert best['test'] == {'mean': None, 'std': None} and best['validation']['mean'] == 1.0
  assert '>nan</td>' in sections.selection(tmp_path)


def test_rounds_that_are_swept_are_a_setting():
  """And no seeds: the mean of runs of 1 and of 20 rounds is nobody's."""
  frame = pd.concat([
    table({(0.1, 0): (2.0, 2.0), (0.1, 1): (4.0, 4.0)}),
    table({(0.1, 0): (1.0, 1.0), (0.1, 1): (2.0, 2.0)}).assign(rounds=20),
  ])  # fmt: skip
  [best] = sweep_table.select(frame, on='validation')
  assert best['setting'] == {'rounds': 20} and best['seeds'] == 2 and best['test']['mean'] == 1.5
  assert list(sweep_table.over_seeds(frame, 'test_mse')['rounds']) == [1, 20]


def test_the_test_value_is_of_the_setting_that_was_chosen():
  """Some settings kept no validation data, and have test values only."""
  without = table({(0.1, 0): (9.0, 0.11)}).assign(validation_fraction=0.0)
  frame = pd.concat([
    without[without['metric'] == 'test_mse'],
    table({(0.1, 0): (0.77, 0.88)}).assign(validation_fraction=0.2),
  ])  # fmt: skip
  [best] = sweep_table.select(frame, on='validation')
  assert best['validation']['mean'] == 0.77 and best['test']['mean'] == 0.88


def test_data_of_two_kinds_are_chosen_for_by_their_own_metric():
  errors = table({(0.1, 0): (1.0, 1.0), (1.0, 0): (2.0, 2.0)}).assign(dataset='exam')
  rates = table({(0.1, 0): (0.7, 0.7), (1.0, 0): (0.8, 0.8)}).assign(dataset='digits')
  rates['metric'] = rates['metric'].str.replace('mse', 'accuracy')
  frame = pd.concat([errors, rates])
  found = sweep_table.select(frame, on='validation')
  assert [(b['for']['dataset'], b['metric'], b['setting']['mtl_lambda']) for b in found] == [
    ('digits', 'accuracy', 1.0), ('exam', 'mse', 0.1)
  ]  # fmt: skip
  said = sweep._closing_words(frame, found, 'validation')
  assert 'Test accuracy:' in said and 'Test mse:' in said and said.count('(of 2)') == 2


def test_an_infinite_epsilon_is_no_divergence():
  frame = table({(0.1, 0): (1.0, 1.0)})
  spent = frame.head(1).assign(metric='deployment_epsilon', value=np.inf)
  assert sweep_table.diverged(pd.concat([frame, spent])) == []


@pytest.mark.parametrize('name', ['checkpoint_every', 'ledger', 'output_dir', 'metric', 'device'])
def test_what_makes_no_other_run_is_not_swept(name):
  with pytest.raises(ValueError, match=f'{name} is no setting that can be swept'):
    Grid.parse({}, [f'{name}=1,2'], ['0'])


def test_a_refused_folder_is_left_as_it_was(tmp_path):
  for name in ('notes.txt', '.writing-1-notes.txt'):
    (tmp_path / name).write_text('mine')
  with pytest.raises(ValueError, match=r'holds notes\.txt and no sweep'):
    sweep.run(small_grid(), folder=tmp_path)
  assert sorted(os.listdir(tmp_path)) == ['.writing-1-notes.txt', 'notes.txt']


def test_a_folder_in_which_nothing_can_be_written_is_named():
  with pytest.raises(files.WriteError, match='cannot write /proc/self: '):
    sweep.run(small_grid(), folder='/proc/self')


def test_a_folder_of_another_sweep_is_refused(tmp_path):
  record.take(tmp_path, small_grid(), resume=False)
  with pytest.raises(ValueError, match='another sweep: its base'):
    record.take(tmp_path, small_grid(rounds=4), resume=True)
  with pytest.raises(ValueError, match=r'its base has rounds=\d+, not rounds=4\. Choose'):
    record.take(tmp_path, small_grid(rounds=4), resume=True)  # and nothing that is the same
  with pytest.raises(ValueError, match='--resume'):
    record.take(tmp_path, small_grid(), resume=False)
  record.take(tmp_path, small_grid(), resume=True)
  record.take(tmp_path, small_grid(data_dir='moved', checkpoint_every=7), resume=True)
  assert record.read_grid(tmp_path).base['data_dir'] == 'moved'  # as workers see it


def metrics_of(folder) -> pd.DataFrame:
  return MetricTable.read(folder / 'metrics.parquet').to_frame()


def test_runs_share_a_guarantee_only_if_their_plans_are_equal():
  from experiments.running import build, guarantees, loading

  base = dict(method='feo2', dataset='digits', privacy='client', delta=1e-3, rounds=5)
  grid = Grid.parse({**base, 'clients_per_round': 10}, ['ratio=0,0.1,1', 'noise_multiplier=1,2'],
                    ['0', '1'])  # fmt: skip
  runs = []
  for config in grid.runs().values():
    dataset = build.prepared(config, loading.load_dataset(config))
    plan = build.build_plan(config, dataset)
    runs.append(
      build.Experiment(config=config, dataset=dataset, plan=plan, model=None, method=None)
    )
  guarantors = guarantees.guarantors(runs)
  for run, guarantor in zip(runs, guarantors, strict=True):
    assert guarantor.epsilon(5) == run.plan.epsilon(5)
  # Two noises, and with r = 0 another plan: nothing is sent then. Seeds share.
  assert len(set(map(id, guarantors))) == 4


@pytest.mark.slow
def test_seeds_whose_clients_have_other_sizes_have_their_own_program():
  from experiments.running import evaluation
  from experiments.sweeps import sharing

  base = {**SMALL, 'dataset': 'digits', 'dataset_option': ('num_clients=5',), 'noise_multiplier': 1}
  built = sharing.build_all(Grid.parse(base, [], ['0-2']).runs())
  sizes = [e.dataset.train.x.shape for e in built.values()]
  assert len(set(sizes)) > 1
  for experiment in built.values():
    data = experiment.method.process.next.type_signature.parameter[2].member['x']
    assert tuple(data.shape) == evaluation.examples_spec(experiment.dataset.train).x_shape
  assert len({id(e.method.process) for e in built.values()}) == len(set(sizes))


@pytest.mark.slow
@pytest.mark.parametrize('correlation', ['banded', 'buffered'])
def test_runs_begun_with_another_correlation_have_their_own_program(tmp_path, correlation):
  """Its matrices are constants of the program."""
  from experiments.sweeps import sharing

  base = dict(
    dataset='digits', method='fedavg', rounds=6, privacy='client', delta=1e-3, noise_multiplier=1.0,
    cohort_sampling='separated', clients_per_round=20, noise_correlation=correlation,
  )  # fmt: skip
  runs = {
    name: dataclasses.replace(config, output_dir=str(tmp_path / name))
    for name, config in Grid.parse(base, [], ['0-1']).runs().items()
  }
  one, two = sharing.build_all(runs).values()
  assert one.method.process is two.method.process
  (tmp_path / 'seed=1').mkdir(exist_ok=True)
  noise_correlations.write(tmp_path / 'seed=1', 0.9 * one.fitted_correlation)
  two = sharing.build_all(runs)['seed=1']
  assert two.method.process is not one.method.process
  assert not np.array_equal(two.fitted_correlation, one.fitted_correlation)


def test_infinity_survives_the_files(tmp_path):
  grid = Grid.parse({'method': 'ppsgd', 'seed': 0}, ['personalization_alpha=1,inf'], [])
  files.write_json(tmp_path / 'grid', grid.to_json())
  assert Grid.from_json(json.loads((tmp_path / 'grid').read_text())) == grid
  config = grid.runs()['personalization_alpha=inf,seed=0']
  files.write_json(tmp_path / 'config', config.to_json())
  assert ExperimentConfig.from_json(json.loads((tmp_path / 'config').read_text())) == config
  with pytest.raises(ValueError, match=r"--client_learning_rate='inf' must be a number"):
    ExperimentConfig(client_learning_rate='inf')


class StopAfter:
  """An interruption which asks to stop when a round has been reported."""

  def __init__(self, rounds=None):
    self.signal_number = None
    self._rounds = rounds

  def defer(self):
    pass

  def report(self, ended, done, *others):
    if done == self._rounds:
      self.signal_number = signal.SIGTERM


def test_a_sweep_spends_little_of_its_time_on_checkpoints(monkeypatch):
  """At most a twentieth, and none after its last round, when the results are written at once."""
  import types

  from experiments.running import keeping

  now = 0.0

  def save(checkpoint, tables):
    nonlocal now
    now += 30.0

  monkeypatch.setattr(keeping.time, 'monotonic', lambda: now)
  run = types.SimpleNamespace(config=types.SimpleNamespace(checkpoint_every=5))
  population = types.SimpleNamespace(
    clients=types.SimpleNamespace(visit=None), arrays=lambda with_clients: {}
  )
  store = types.SimpleNamespace(save=save)

  def saved_rounds(**options):
    nonlocal now
    now, saved = 0.0, []
    keeper = keeping.Keeper([run], [], store, **options)
    for rounds_done in range(1, 1001):
      now += 2.0
      if keeper.wants_checkpoint(rounds_done, is_end=rounds_done == 1000):
        keeper.save(rounds_done, [], population, {})
        saved.append(rounds_done)
    return saved

  monkeypatch.setattr(keeping, 'guarantors', lambda runs: [])
  monkeypatch.setattr(keeping, 'Spending', lambda run, path: None)
  monkeypatch.setattr(keeping.Keeper, '_write_spent', lambda self: None)
  # A minute is 30 rounds; afterwards 20 times what one takes are 300.
  assert saved_rounds(seconds_between_checkpoints=60.0, keeps_end=False) == [30, 330, 630, 930]
  assert saved_rounds() == list(range(5, 1001, 5))  # a run by itself: as its flags say


@pytest.mark.slow
@pytest.mark.parametrize('stopped_after', [None, 4, 8])
def test_one_loop_runs_one_or_several(tmp_path, monkeypatch, stopped_after):
  """Side by side, stopped or not, each run is bit for bit what it is alone."""
  from experiments.running import interruption, runner
  from experiments.sweeps import program as sweep_program
  from experiments.sweeps import sharing
  from tests.experiments import fakes
  from tests.experiments.test_runner import make_config

  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)  # takes seconds
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  fakes.without_figures(monkeypatch.setattr)
  monkeypatch.setattr(sweep_program, '_SECONDS_BETWEEN_CHECKPOINTS', 0.0)
  data = [fakes.make_dataset(seed) for seed in range(2)]
  configs = {}
  for name, values in {'a': {}, 'b': {'seed': 1}, 'c': {'noise_multiplier': 2.0}}.items():
    configs[name] = make_config(tmp_path / 'sweep' / name, **values)
    alone = make_config(tmp_path / name, **values)
    runner.run(fakes.make_experiment(alone, data[alone.seed]), show_progress=False)

  def together(caught):
    experiments = {n: fakes.make_experiment(c, data[c.seed]) for n, c in configs.items()}
    monkeypatch.setattr(sharing, 'build_all', lambda configs, *parts: experiments)
    sweep_program.run_all(
      configs, num_settings=2, checkpoint_folder=tmp_path / 'checkpoints', caught=caught,
      report=caught.report, refuse=lambda name, error: pytest.fail(f'{name}: {error}'),
    )  # fmt: skip

  if stopped_after is not None:
    with pytest.raises(interruption.Interrupted, match=f'after round {stopped_after} of 12'):
      together(StopAfter(stopped_after))
    assert len(list((tmp_path / 'checkpoints').rglob('*.npz'))) <= 2
  together(StopAfter())
  for name in configs:
    mine, alone = tmp_path / 'sweep' / name, tmp_path / name
    pd.testing.assert_frame_equal(metrics_of(mine), metrics_of(alone), check_exact=True)
    read = [json.loads((folder / 'summary.json').read_text()) for folder in (mine, alone)]
    assert read[0].pop('name') == name and read[0].pop('runs_at_once') == 3
    for summary in read:
      for timing in TIMINGS:
        summary.pop(timing)
    assert read[0] == read[1]
  assert not list((tmp_path / 'checkpoints').rglob('*.npz'))


@pytest.mark.slow
def test_batches_of_one_program_compile_nothing_and_leave_nothing(tmp_path, monkeypatch):
  """A batch's states are freed before the next one's are placed; one's programs serve all."""
  import tensorflow as tf

  from experiments.running import runner
  from experiments.sweeps import sharing
  from runtime.xla.runtime import XlaRuntime

  monkeypatch.setattr(sharing, '_MOST_STATE_BYTES', 1)  # every run is a batch
  placed, alive, programs, machines = [], [], [], []

  def place_states(self, tree, **options):
    if tree is not None:
      alive.append(sum(handle() is not None for handle in placed))
      programs.append(machines[-1].compiled_programs)
    states = place(self, tree, **options)
    placed.extend(weakref.ref(leaf.handle) for leaf in tf.nest.flatten(states.tree))
    return states

  def create(config):
    machines.append(make(config))
    return machines[-1]

  place, make = XlaRuntime.place_states, runner.create_runtime
  monkeypatch.setattr(XlaRuntime, 'place_states', place_states)
  monkeypatch.setattr(runner, 'create_runtime', create)
  grid = Grid.parse({**SMALL, 'target_epsilon': 2.0}, ['mtl_lambda=0.1,1,10'], ['0'])
  sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  assert len(placed) > 0 and alive == [0, 0, 0]
  assert programs[0] == 0 < programs[1] == programs[2] == machines[-1].compiled_programs


@pytest.mark.slow
def test_every_setting_has_the_noise_of_its_own_plan():
  from experiments.sweeps import sharing

  built = sharing.build_all(small_grid().runs())
  noise = {}
  for name, experiment in built.items():
    _, clients = experiment.initial_states()
    own = clients['attributes']['noise_multiplier']
    np.testing.assert_array_equal(own, experiment.plan.noise_multiplier.astype(np.float32))
    noise[name] = float(own.max())
  assert len({id(e.method.process) for e in built.values()}) == 1
  few, many = (noise[f'target_epsilon={e},mtl_lambda=1,seed=0'] for e in (4, 2))
  assert many > 1.5 * few


@pytest.mark.exhaustive
@pytest.mark.slow
def test_some_of_a_sweeps_runs_and_then_the_others(tmp_path):
  """A part of the grid is run by name; the table has all that is finished."""
  grid = small_grid()
  first, *others = grid.runs()
  result = sweep.run(grid, folder=tmp_path / 'sweep', select_on='nothing', only=[first])
  assert set(result.table['run']) == {first}
  result = sweep.run(
    grid, folder=tmp_path / 'sweep', resume=True, select_on='nothing', only=others[:1]
  )
  assert set(result.table['run']) == {first, others[0]}
  assert record.read_grid(tmp_path / 'sweep').to_json() == grid.to_json()


def test_workers_share_the_memory(monkeypatch):
  """Of a machine's memory each worker's runs take its part, and of a large one not all of it."""
  from experiments.sweeps import sharing

  built = sharing.build_all(small_grid().runs())
  _, states = next(iter(built.values())).initial_states()
  each = sum(leaf.nbytes for leaf in checkpoints.flatten(states).values())
  room = {'SC_PAGE_SIZE': 1, 'SC_PHYS_PAGES': 12 * each * len(built)}
  monkeypatch.setattr(sharing.os, 'sysconf', room.__getitem__)
  assert len(sharing.batches(built)) == 1
  assert len(sharing.batches(built, workers=len(built))) == len(built)
  monkeypatch.setattr(sharing, '_MOST_STATE_BYTES', each)
  assert len(sharing.batches(built)) == len(built)


def test_a_sweep_gives_what_single_runs_give(tmp_path):
  from experiments.running import runner

  grid = small_grid()
  result = sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  summary = json.loads((tmp_path / 'sweep/runs/target_epsilon=2,mtl_lambda=1,seed=0/summary.json')
                       .read_text())  # fmt: skip
  assert summary['runs_at_once'] == 8
  for name in ('target_epsilon=2,mtl_lambda=1,seed=0', 'target_epsilon=4,mtl_lambda=0.1,seed=1'):
    alone = dataclasses.replace(grid.runs()[name], output_dir=str(tmp_path / name))
    runner.run(alone, show_progress=False)
    mine, other = metrics_of(tmp_path / 'sweep' / 'runs' / name), metrics_of(tmp_path / name)
    columns = ['round', 'split', 'client', 'group', 'metric']
    pd.testing.assert_frame_equal(mine[columns], other[columns])
    np.testing.assert_allclose(mine['value'], other['value'], rtol=1e-5, atol=1e-5)
  assert len(result.table['run'].unique()) == 8
  privacy = json.loads((tmp_path / 'sweep' / 'runs' / name / 'privacy.json').read_text())
  assert privacy['tuning'] == {**privacy['tuning'], 'settings': 4, 'accounted': False}
  assert 'Tuning is not accounted for' in privacy['statement']
  assert (tmp_path / 'sweep' / 'table.csv').exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_client_level_budgets_and_clips_share_a_program(tmp_path):
  from experiments.running import runner

  base = dict(
    method='dp_fedavg', dataset='digits', dataset_option=('num_clients=20',), delta=1e-2, rounds=3,
    clients_per_round=10, eval_every=3, checkpoint_every=0, noise_key='rehearsal',
  )  # fmt: skip
  grid = Grid.parse(base, ['noise_multiplier=0.2,0.5', 'clipping_norm=0.1,1'], ['0'])
  sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  name = 'noise_multiplier=0.5,clipping_norm=0.1,seed=0'
  alone = dataclasses.replace(grid.runs()[name], output_dir=str(tmp_path / 'alone'))
  runner.run(alone, show_progress=False)
  mine, other = metrics_of(tmp_path / 'sweep' / 'runs' / name), metrics_of(tmp_path / 'alone')
  np.testing.assert_allclose(mine['value'], other['value'], rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_opting_out_and_no_contact_with_private_clients_share_a_program(tmp_path):
  from experiments.running import runner

  base = dict(
    method='feo2', dataset='digits', dataset_option=('num_clients=40',), privacy='client',
    delta=1e-2, noise_multiplier=1.0, opt_out_fraction=0.2, rounds=3, clients_per_round=20,
    eval_every=3, checkpoint_every=0, noise_key='rehearsal',
  )  # fmt: skip
  grid = Grid.parse(base, ['ratio=0,0.1'], ['0-1'])
  sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  for name in ('ratio=0,seed=1', 'ratio=0.1,seed=0'):
    folder = tmp_path / 'sweep' / 'runs' / name
    assert json.loads((folder / 'summary.json').read_text())['runs_at_once'] == 4
    alone = dataclasses.replace(grid.runs()[name], output_dir=str(tmp_path / name))
    runner.run(alone, show_progress=False)
    mine, other = metrics_of(folder), metrics_of(tmp_path / name)
    pd.testing.assert_frame_equal(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_stream_is_shared_and_its_excess_risk_is_that_of_the_models(tmp_path):
  from datasets import ppsgd_synthetic
  from experiments.running import loading, runner

  base = dict(
    method='ppsgd', dataset='ppsgd_synthetic', model='linear_regression',
    model_option=('bias=false',), dataset_option=('num_clients=5', 'dimension=6'),
    privacy='client', delta=1e-2, noise_multiplier=0.1, clipping_norm=10.0, iterate='average',
    rounds=4, eval_every=2, checkpoint_every=0, noise_key='rehearsal',
  )  # fmt: skip
  grid = Grid.parse(base, ['personalization_alpha=0.5,inf'], ['0-1'])
  sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  for name in ('personalization_alpha=0.5,seed=1', 'personalization_alpha=inf,seed=0'):
    alone = dataclasses.replace(grid.runs()[name], output_dir=str(tmp_path / name))
    result = runner.run(alone, show_progress=False)
    mine, other = metrics_of(tmp_path / 'sweep' / 'runs' / name), metrics_of(tmp_path / name)
    pd.testing.assert_frame_equal(mine, other, rtol=1e-4, atol=1e-5)
    extras = loading.load_dataset(alone).extras
    last = result.server_state['model']['weights'] + result.client_states['offset']['weights']
    assert result.summary['metrics']['test_last_iterate_excess_risk'] == pytest.approx(
      ppsgd_synthetic.excess_risk(last, extras['theta_star'], extras['feature_variances']), rel=1e-4
    )
    assert result.summary['metrics']['test_excess_risk'] > 0


@pytest.mark.slow
def test_a_stopped_sweep_continues_to_the_same_numbers(tmp_path, monkeypatch):
  from experiments.running import interruption, loop
  from experiments.sweeps import program as sweep_program

  whole = sweep.run(small_grid(), folder=tmp_path / 'whole', show_progress=False)
  stopped = []

  def stop(self, worker, ended, rounds_done, rounds, runs):
    if rounds_done == 2 and not stopped:
      stopped.append(rounds_done)
      os.kill(os.getpid(), signal.SIGTERM)

  with monkeypatch.context() as patch:
    patch.setattr(sweep.SweepProgress, 'reports', stop)
    with pytest.raises(interruption.Interrupted, match='--resume'):
      sweep.run(small_grid(), folder=tmp_path / 'cut', show_progress=False)
  assert list((tmp_path / 'cut' / 'checkpoints').rglob('*.npz'))
  records = sorted((tmp_path / 'cut' / 'runs').rglob('config.json'))
  before = [path.read_text() for path in records]
  assert not any(json.loads(text)['running'] for text in before)
  records[0].write_text(before[0].replace('"running": false', '"running": true'))  # was killed
  with monkeypatch.context() as patch:
    patch.setattr(provenance, '_versions', lambda: {'tensorflow': '3.0'})
    with pytest.raises(ValueError, match='killed under another version of the code'):
      sweep.run(small_grid(), folder=tmp_path / 'cut', resume=True, show_progress=False)
  for path, text in zip(records, before, strict=True):
    path.write_text(text)
  rounds = []
  original = loop.Loop._collect
  monkeypatch.setattr(
    loop.Loop,
    '_collect',
    lambda self, **how: (rounds.extend(r for r, _ in self._pending), original(self, **how)),
  )
  from experiments.sweeps import sharing

  # With less room than before, as with more workers, they still go on from where they were.
  monkeypatch.setattr(sharing, '_MOST_STATE_BYTES', 1)
  again = sweep.run(small_grid(), folder=tmp_path / 'cut', resume=True, show_progress=False)
  assert rounds == [3] and not (tmp_path / 'cut' / 'checkpoints').exists()
  pd.testing.assert_frame_equal(whole.table, again.table)
  monkeypatch.setattr(sweep_program, 'run_all', None)  # nothing is left to run
  done = sweep.run(small_grid(), folder=tmp_path / 'cut', resume=True, show_progress=False)
  pd.testing.assert_frame_equal(whole.table, done.table)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_runs_of_a_dead_worker_are_tried_again(tmp_path, monkeypatch):
  killed = []

  def take(self, names, attempt):
    original(self, names, attempt)
    if not killed:
      killed.append(self._process.pid)
      os.kill(self._process.pid, signal.SIGKILL)

  original = sweep_workers.Process.take
  monkeypatch.setattr(sweep_workers.Process, 'take', take)
  grid = Grid.parse({**SMALL, 'target_epsilon': 4.0}, ['batch_size=16,32'], ['0'])
  result = sweep.run(grid, folder=tmp_path / 'sweep', workers=2, show_progress=False)
  assert killed and result.table['run'].nunique() == 2


# Of one program; a noise of 5 leaves nothing for the count that moves the clip.
ADAPTIVE = dict(
  method='dp_fedavg', dataset='digits', dataset_option=('num_clients=20',), delta=1e-2, rounds=3,
  clients_per_round=10, eval_every=3, checkpoint_every=0, noise_key='rehearsal',
  adaptive_clipping=True, quantile_noise_multiplier=1.0, accountant='renyi',
)  # fmt: skip
TOO_MUCH = 'counting the unclipped clients alone would spend the budget'


def adaptive_grid(noise: str, **changes) -> Grid:
  return Grid.parse({**ADAPTIVE, **changes}, [f'noise_multiplier={noise}'], ['0-1'])


@pytest.fixture(name='possible', scope='module')
def _possible(tmp_path_factory):
  """The sweep without what cannot be had."""
  folder = tmp_path_factory.mktemp('possible')
  return sweep.run(adaptive_grid('0.5,1'), folder=folder, show_progress=False)


def values_of(table: pd.DataFrame) -> pd.Series:
  return table.set_index(['run', 'group', 'metric'])['value'].sort_index()


def no_values_differ(table: pd.DataFrame, other: pd.DataFrame) -> bool:
  pd.testing.assert_series_equal(values_of(table), values_of(other), rtol=1e-6, atol=1e-6)
  return True


@pytest.mark.exhaustive(but=['1'])
@pytest.mark.slow
@pytest.mark.parametrize('workers', [1, 2])
def test_a_run_that_cannot_be_had_fails_alone(tmp_path, capsys, possible, workers):
  grid = adaptive_grid('5,0.5,1')
  assert len(sweep_grid.programs(grid.runs())) == 1
  folder = tmp_path / 'sweep'
  with pytest.raises(sweep.RunsFailed) as caught:
    sweep.run(grid, folder=folder, workers=workers)
  said = str(caught.value)
  assert said.startswith('2 of 6 runs failed. 2 runs with noise_multiplier=5: quantile noise')
  assert said.count(TOO_MUCH) == 1 and f'The others are in {folder}; ' in said
  # Said before the rounds, too.
  warned = capsys.readouterr().err
  assert 'Warning: cannot be run: 2 runs with noise_multiplier=5: quantile noise' in warned
  assert no_values_differ(caught.value.result.table, possible.table)
  failed = {f'noise_multiplier=5,seed={seed}' for seed in range(2)}
  assert caught.value.failures.keys() == failed == record.read_failures(folder).keys()
  assert pd.read_csv(folder / 'table.csv')['run'].nunique() == 4
  # What is finished stays, what failed is tried again and leaves nothing.
  assert len(list((folder / 'runs').iterdir())) == 4
  before = {path: path.stat().st_mtime_ns for path in folder.rglob('summary.json')}
  with pytest.raises(sweep.RunsFailed, match='2 of 6 runs failed'):
    sweep.run(grid, folder=folder, resume=True, show_progress=False)
  assert {path: path.stat().st_mtime_ns for path in folder.rglob('summary.json')} == before


def _only_if(monkeypatch, is_possible):
  """Plans are refused where they are not possible."""
  from experiments.running import build

  original = build.build_plan

  def build_plan(config, dataset):
    if not is_possible(config):
      raise ValueError(f'no plan for {config.noise_multiplier:g}.')
    return original(config, dataset)

  monkeypatch.setattr(build, 'build_plan', build_plan)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_that_can_be_had_by_now_is_run_when_the_sweep_goes_on(
  tmp_path, monkeypatch, possible
):
  grid, folder = adaptive_grid('0.5,1'), tmp_path / 'sweep'
  with monkeypatch.context() as patch:
    _only_if(patch, lambda config: config.noise_multiplier < 1)
    with pytest.raises(sweep.RunsFailed, match=r'2 runs with noise_multiplier=1: no plan for 1\.'):
      sweep.run(grid, folder=folder, show_progress=False)
  result = sweep.run(grid, folder=folder, resume=True, show_progress=False)
  assert no_values_differ(result.table, possible.table)
  assert record.read_failures(folder) == {}


def test_without_refusals_one_run_takes_all_with_it(tmp_path, monkeypatch):
  """The negative control: a program that is built as a whole, or not at all."""
  from experiments.sweeps import sharing

  original = sharing.build_all
  monkeypatch.setattr(sharing, 'build_all', lambda configs, parts, refuse: original(configs, parts))
  with pytest.raises(ValueError, match='All 6 runs failed: quantile noise multiplier') as caught:
    sweep.run(adaptive_grid('5,0.5,1'), folder=tmp_path / 'sweep', show_progress=False)
  assert not isinstance(caught.value, sweep.RunsFailed)
  assert not (tmp_path / 'sweep').exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_budget_that_allows_no_round_fails_alone(tmp_path):
  """Runs with a filter are not side by side; one does not stop those behind it."""
  grid = Grid.parse(
    {**ADAPTIVE, 'noise_multiplier': 1.0}, ['epsilon_budget=0.001,100'], ['0'],
  )  # fmt: skip
  with pytest.raises(sweep.RunsFailed, match='allows no round') as caught:
    sweep.run(grid, folder=tmp_path / 'sweep', show_progress=False)
  assert set(caught.value.failures) == {'epsilon_budget=0.001,seed=0'}
  assert set(caught.value.result.table['run']) == {'epsilon_budget=100,seed=0'}
  assert not (tmp_path / 'sweep' / 'runs' / 'epsilon_budget=0.001,seed=0').exists()


@pytest.mark.slow
def test_choices_that_spend_a_budget_alone_are_refused_alone():
  """IFCA with a choice in every round, whose Renyi epsilon does not grow as its target does."""
  from experiments.sweeps import sharing

  base = dict(
    method='ifca', dataset='exam', privacy='example', delta=1e-3, rounds=200,
    selection_fraction=1.0, accountant='renyi', noise_key='rehearsal',
  )  # fmt: skip
  runs = Grid.parse(base, ['target_epsilon=8,16'], ['0']).runs()
  refused = {}
  built = sharing.build_all(runs, refuse=lambda name, error: refused.update({name: str(error)}))
  assert list(built) == ['target_epsilon=8,seed=0']
  [(name, why)] = refused.items()
  assert name == 'target_epsilon=16,seed=0' and 'nothing is left for training' in why
  with pytest.raises(ValueError, match='nothing is left for training'):
    sharing.build_all(runs)


def test_data_that_cannot_be_loaded_are_tried_once(monkeypatch):
  from experiments.sweeps import sharing

  tried, refused = [], []

  def load(config, dataset):
    tried.append(config.seed)
    raise ValueError('no such data.')

  monkeypatch.setattr(sharing.loading, 'load_dataset', load)
  runs = adaptive_grid('0.5,1').runs()
  assert not sharing.build_all(runs, refuse=lambda name, error: refused.append(name))
  assert tried == [0, 1] and refused == list(runs)


@pytest.mark.parametrize(('own', 'threads'), [(None, '2'), ('7', '7')])
def test_workers_share_the_threads_unless_the_user_says_how_many(
  tmp_path, monkeypatch, own, threads
):
  started = {}

  class Started:
    stdout = ()

    def __init__(self, command, env, **options):
      started.update(env)

  monkeypatch.setattr(sweep_workers.subprocess, 'Popen', Started)
  monkeypatch.setattr(sweep_workers.os, 'sched_getaffinity', lambda pid: set(range(8)))
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  if own:
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', own)
  sweep_workers.Process(tmp_path, 4, 0, queue.Queue())
  assert started['TF_NUM_INTRAOP_THREADS'] == threads


class _Telling(sweep_workers.Worker):
  """A worker which has one thing to tell of what it is given."""

  def __init__(self, index, messages, told):
    super().__init__(index, messages)
    self._told = told

  def _hand_out(self, names):
    self.tell(self._told)

  def ending(self):
    return 'never'

  def ask_to_stop(self):
    pass

  def wait(self):
    pass


@pytest.mark.parametrize(
  ('told', 'failures'),
  [
    ({'finished': True, 'refused': {}}, {}),
    ({'finished': True, 'refused': {'b': 'budget'}}, {'b': 'budget'}),
    ({'failed': 'disk', 'refused': {'b': 'budget'}}, {'a': 'disk', 'b': 'budget', 'c': 'disk'}),
  ],
)
def test_a_worker_tells_what_was_refused_and_what_failed(told, failures):
  names = ['a', 'b', 'c']
  progress = SweepProgress(
    dict.fromkeys(names, ExperimentConfig()), total=3, groups=1, shown=False
  )  # fmt: skip
  found = sweep_workers.run(
    [names], 1, lambda index, messages: _Telling(index, messages, told), StopAfter(), progress
  )
  assert found == failures


def test_equal_reasons_are_one_sentence():
  failures = {f'mtl_lambda={x},target_epsilon=16,seed=0': 'spent.' for x in (1, 2)}
  failures['mtl_lambda=1,target_epsilon=8,seed=0'] = 'worker 0\n died.'
  assert record.in_words(failures) == [
    '2 runs with target_epsilon=16,seed=0: spent.',
    'mtl_lambda=1,target_epsilon=8,seed=0: worker 0 died.',
  ]
  assert record.in_words({'a': 'x', 'b': 'x'}) == ['2 runs, such as a: x']
  assert record.in_words({}) == []


def test_a_run_is_read_from_its_folder(tmp_path):
  with pytest.raises(ValueError, match='holds no run'):
    sweep_table.Run.read(tmp_path)
  config = ExperimentConfig(rounds=5)
  (tmp_path / 'config.json').write_text(json.dumps({'config': config.to_json()}))
  run = sweep_table.Run.read(tmp_path)
  assert run.config == config and run.summary is None


def test_a_sweep_of_seeds_says_what_all_runs_cost_together():
  """Several models of the same data are several mechanisms, also where no setting differs."""
  from experiments.sweeps import program as sweep_program

  plan = ClientLevelPrivacy(
    cohorts=EveryClient(20), noise_multiplier=5.0, delta=1e-3, clipping=FixedClipping(norm=1.0)
  )
  privacy = {'unit': 'client', 'statement': 'Guarantee'}
  seeds = sweep_program.Sweep(settings=1, runs=5)
  told = sweep_program.with_sweep(privacy, seeds, plan, 10)
  assert told['sweep']['epsilon'] == plan.loss_of_runs(10, 5).epsilon > 2 * plan.epsilon(10)
  assert 'one of 5 runs' in told['statement'] and 'tuning' not in told
  assert (
    'Tuning is not'
    in sweep_program.with_sweep(privacy, sweep_program.Sweep(settings=2, runs=2), plan, 10)[
      'statement'
    ]
  )
  elsewhere = sweep_program.with_sweep({**privacy, 'condition': 'a deployment'}, seeds, plan, 10)
  assert 'at delta = 0.001 of a deployment (' in elsewhere['statement']
  alone = sweep_program.Sweep(settings=1, runs=1)
  assert sweep_program.with_sweep(privacy, alone, plan, 10) == privacy


@pytest.mark.slow
def test_the_closing_words_say_what_all_runs_spend_together(tmp_path, monkeypatch):
  grid = Grid.parse({**SMALL, 'method': 'local', 'target_epsilon': 2.0}, [], ['0-2'])
  plan = sweep.Plan(grid=grid, folder=str(tmp_path / 's'), resume=False, how=record.How())
  words = ' '.join(plan.run().report.split())
  [told] = json.loads((tmp_path / 's' / 'spent.json').read_text())['together']
  assert told in words and '3 runs together' in told and 'Unit: example.' in told
  epsilon = float(told.split('epsilon = ')[1].split()[0])
  # Of each seed's split an example may be in another silo: more than three runs of its own silo.
  alone = json.loads((tmp_path / 's' / 'runs' / 'seed=0' / 'privacy.json').read_text())
  assert alone['sweep']['epsilon'] < epsilon < 3 * alone['epsilon']
  # Also where the data have been moved since.
  from experiments.sweeps import spent

  where, load = set(), spent.build.load_dataset
  monkeypatch.setattr(
    spent.build, 'load_dataset', lambda config: (where.add(config.data_dir), load(config))[1]
  )
  again = spent.together(sorted((tmp_path / 's' / 'runs').iterdir()), data_dir='moved')
  assert again == [told] and where == {'moved'}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_closing_words_count_what_they_do_not_compose(tmp_path):
  """A run without privacy, or one that protects another unit, on the same data."""
  base = {'dataset': 'ppsgd_synthetic', 'dataset_option': ('num_clients=8', 'dimension=3',
          'local_coordinates=1', 'examples_per_client=20'), 'rounds': 2, 'delta': 1e-3,
          'noise_key': 'rehearsal', 'clipping_norm': 1.0, 'eval_every': 0}  # fmt: skip
  found = {}
  for name, values, sweeps in (
    ('noise', {'privacy': 'client'}, ['noise_multiplier=0,5,6']),
    ('unit', {'batch_size': 5}, ['privacy=client,example', 'noise_multiplier=5,6']),
  ):
    grid = Grid.parse({**base, 'method': 'fedavg', **values}, sweeps, [])
    plan = sweep.Plan(grid=grid, folder=str(tmp_path / name), resume=False, how=record.How())
    plan.run()
    found[name] = json.loads((tmp_path / name / 'spent.json').read_text())['together']
  [told] = found['noise']
  assert told.startswith('What is released by 2 runs, ')
  assert told.endswith('does not count 1 run without privacy, on the same data: released too, they '
                       'cost more.')  # fmt: skip
  assert sorted(t.partition('does not count ')[2].partition(',')[0] for t in found['unit']) == [
    '2 runs that protect clients (zero-out)', '2 runs that protect examples (zero-out)',
  ]  # fmt: skip


def test_a_choice_on_validation_data_that_nobody_keeps_is_refused_at_once():
  """Where it was asked for; by default nothing is chosen, and that is said at the end."""

  def plan(*arguments):
    given = ['x', '--method=mr_mtl', '--dataset=exam', '--sweep=mtl_lambda=1,2', *arguments]
    with flagsaver.flagsaver():
      flags.FLAGS(given)
      return sweep.from_flags(cli.experiment_flags.given(given).values, flags.FLAGS)

  with pytest.raises(ValueError, match='--select_on=validation needs validation data'):
    plan('--select_on=validation')
  for arguments in ([], ['--select_on=test'],
                    ['--select_on=validation', '--validation_fraction=0.2']):  # fmt: skip
    assert len(plan(*arguments).grid.runs()) == 2
