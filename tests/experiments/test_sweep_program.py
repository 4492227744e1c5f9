"""Runs of a sweep beside one another: budgets, and kills while their results are written."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from experiments.folder import checkpoints, provenance, store
from experiments.folder.metrics import MetricTable
from experiments.folder.results import RunFolder
from experiments.running import interruption, runner
from experiments.running.population import Population
from experiments.sweeps import program, sharing
from privacy import accounting
from tests.experiments import fakes
from tests.experiments.test_runner import make_config
from tests.experiments.test_sweep import StopAfter
from tests.experiments.timings import TIMINGS


@pytest.fixture(autouse=True)
def fast(monkeypatch):
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  monkeypatch.setattr(program, '_SECONDS_BETWEEN_CHECKPOINTS', 0.0)
  fakes.without_figures(monkeypatch.setattr)


@pytest.fixture(name='run_all')
def _run_all(tmp_path, monkeypatch):
  """Runs configurations of the fakes; gives what was refused, and what was warned of."""

  def run_all(configs, caught=None, *, seeds=range(9)):
    data = {config.seed: fakes.make_dataset(seeds[config.seed]) for config in configs.values()}
    made = {n: fakes.make_experiment(c, data[c.seed]) for n, c in configs.items()}
    monkeypatch.setattr(sharing, 'build_all', lambda configs, *rest: made)
    refused, warned, caught = {}, [], caught or StopAfter()
    program.run_all(
      configs, num_settings=len(configs), checkpoint_folder=tmp_path / 'checkpoints',
      caught=caught, report=caught.report, refuse=refused.__setitem__, warn=warned.append,
    )  # fmt: skip
    return refused, warned

  return run_all


def configs_in(folder, names, **values):
  return {n: make_config(folder / n, seed=seed, **values) for seed, n in enumerate(names)}


def read(folder, name):
  return json.loads((folder / name).read_text())


def killed(*arguments):
  raise KeyError('killed')


def kill_at(monkeypatch, owner, name, is_there):
  """Ends what calls a function, once it has been called with what `is_there` knows."""
  original = getattr(owner, name)

  def call(*arguments, **keywords):
    result = original(*arguments, **keywords)
    if is_there(*arguments):
      killed()
    return result

  monkeypatch.setattr(owner, name, call)


def test_a_run_alone_is_not_finished_before_it_says_that_it_was_tuned(
  tmp_path, monkeypatch, run_all
):
  configs = configs_in(tmp_path, 'ab', epsilon_budget=1000.0)
  with monkeypatch.context() as patch:
    kill_at(patch, RunFolder, 'write_json', lambda folder, name, value: name == 'summary.json')
    with pytest.raises(KeyError):
      run_all(configs)
  assert 'Tuning is not accounted for' in read(tmp_path / 'a', 'privacy.json')['statement']
  assert read(tmp_path / 'a', 'summary.json')['name'] == 'a'
  run_all(configs)  # what is finished stays as it is
  for name in configs:
    assert read(tmp_path / name, 'privacy.json')['tuning']['settings'] == 2


# --------------------------------------------------------------------- budgets

SAME = [0, 0, 0, 0]  # the seeds of the data


def of_budget(tmp_path, rounds):
  """Four runs of 12 rounds on data with a budget for so many."""
  values = dict(privacy='client', noise_multiplier=2.0, noise_key=None)
  plan = fakes.make_experiment(make_config('', **values)).plan
  budget = 1.001 * dataclasses.replace(plan, delta=plan.delta / 2).epsilon(rounds)
  return configs_in(
    tmp_path / 'runs', 'abcd', **values, ledger=str(tmp_path / 'ledger'), ledger_epsilon=budget,
  )  # fmt: skip


def test_runs_that_the_ledger_has_no_budget_for_fail_alone(tmp_path, run_all):
  configs = of_budget(tmp_path, 24)
  refused, warned = run_all(configs, seeds=SAME)
  assert list(refused) == ['c', 'd']
  assert all('--ledger_epsilon=' in str(error) for error in refused.values())
  assert len(warned) == 1 and warned[0].startswith('Warning: cannot be run: 2 runs, such as c: --')
  for name in 'ab':
    assert read(tmp_path / 'runs' / name, 'summary.json')['runs_at_once'] == 2
  assert sorted(path.name for path in (tmp_path / 'runs').iterdir()) == ['a', 'b']  # no key either
  assert read(tmp_path / 'runs' / 'b', 'privacy.json')['ledger']['runs'] == 2
  assert run_all(configs, seeds=SAME)[0].keys() == refused.keys()  # nothing else is left to run


def test_runs_that_the_ledger_cannot_compose_fail_alone(tmp_path, run_all):
  refused, _ = run_all(of_budget(tmp_path, 48))
  assert list(refused) == ['b', 'c', 'd']
  assert 'cut the same data into other clients' in str(refused['b'])


def test_reservations_of_runs_that_do_not_begin_are_withdrawn(tmp_path, monkeypatch, run_all):
  with monkeypatch.context() as patch:
    patch.setattr(Population, 'begin', killed)
    with pytest.raises(KeyError):
      run_all(of_budget(tmp_path, 48), seeds=SAME)
  assert (tmp_path / 'ledger').read_text() == ''


def test_of_runs_that_go_on_those_without_a_budget_fail_alone(
  tmp_path, monkeypatch, run_all, capsys
):
  """The others go on from where they all were."""
  with pytest.raises(interruption.Interrupted):
    run_all(of_budget(tmp_path, 48), StopAfter(8), seeds=SAME)
  rounds = rounds_of(monkeypatch)
  monkeypatch.setattr(provenance, '_versions', lambda: {'tensorflow': '3.0'})
  refused, _ = run_all(of_budget(tmp_path, 12 + 12 + 8 + 8), seeds=SAME)
  assert list(refused) == ['c', 'd'] and rounds == [(2, r) for r in range(9, 13)]
  assert 'begun by another version of the code' in capsys.readouterr().err
  assert read(tmp_path / 'runs' / 'd', 'privacy.json')['rounds'] == 8  # what it had stays


# --------------------------------------------------------------------- kills


def rounds_of(monkeypatch):
  """(how many runs, which round) of what is run from now on."""
  rounds, original = [], Population.round

  def round_(self, **keywords):
    result = original(self, **keywords)
    rounds.append((len(self.runs), int(np.ravel(self.server['round'])[0])))
    return result

  monkeypatch.setattr(Population, 'round', round_)
  return rounds


@pytest.mark.slow
@pytest.mark.parametrize('finished', ['a', 'ab'])
def test_a_kill_while_results_are_written_costs_no_more_than_any_other(
  tmp_path, monkeypatch, run_all, finished
):
  """Those that are not yet finished go on from the checkpoint of all, to what they are alone."""
  configs = configs_in(tmp_path / 'sweep', 'abc', checkpoint_every=5)
  with monkeypatch.context() as patch:
    last = finished[-1]
    kill_at(patch, RunFolder, 'rest', lambda folder: folder.path.name == last)
    with pytest.raises(KeyError):
      run_all(configs)
  left = [name for name in configs if name not in finished]
  before = (tmp_path / 'sweep' / 'a' / 'summary.json').read_bytes()
  assert store.kept_together(tmp_path / 'checkpoints', left) == [left]
  rounds = rounds_of(monkeypatch)
  run_all(configs)
  assert rounds == [(len(left), 11), (len(left), 12)]
  assert (tmp_path / 'sweep' / 'a' / 'summary.json').read_bytes() == before
  assert not list((tmp_path / 'checkpoints').rglob('*.npz'))
  for seed, name in enumerate(configs):
    alone = make_config(tmp_path / name, seed=seed)
    made = fakes.make_experiment(alone, fakes.make_dataset(seed))
    runner.run(made, show_progress=False)
    tables = [MetricTable.read(f / 'metrics.parquet') for f in (tmp_path / 'sweep' / name,
                                                               tmp_path / name)]  # fmt: skip
    pd.testing.assert_frame_equal(*(table.to_frame() for table in tables), check_exact=True)
    mine, other = (read(f / name, 'summary.json') for f in (tmp_path / 'sweep', tmp_path))
    for timing in (*TIMINGS, 'name', 'runs_at_once'):
      mine.pop(timing), other.pop(timing, None)
    assert mine == other


def test_of_a_checkpoint_of_several_runs_some_go_on(tmp_path):
  """In any order; those of which it has nothing begin anew."""
  arrays = {'server/w': np.arange(3.0), 'clients/w': np.arange(6.0).reshape(6, 1)}

  def kept(names, folder='one', saved=arrays):
    tables = [tmp_path / f'{name}.parquet' for name in names]
    own = store.Store(
      tmp_path / folder, fingerprint='one', tables=tables, names=list(names),
    )  # fmt: skip
    return own, checkpoints.Checkpoint(
      rounds=4, arrays=saved, facts={'noise_keys': [*names], 'clock': {}}
    )

  own, checkpoint = kept('abc')
  own.save(checkpoint, [MetricTable() for _ in 'abc'])
  found, tables = kept('ca')[0].load(pytest.fail)
  assert found.arrays['server/w'].tolist() == [2, 0] and len(tables) == 2
  assert found.arrays['clients/w'].ravel().tolist() == [4, 5, 0, 1]
  assert found.facts['noise_keys'] == ['c', 'a']
  assert store.place_of(tmp_path, ['c', 'a']) == tmp_path / 'one'
  assert store.place_of(tmp_path, ['c', 'd']) != tmp_path / 'one'
  kept('ca')[0].save(found, tables)  # from now on it is theirs alone
  assert store.kept_together(tmp_path, 'abc') == [['c', 'a']]
  said = []
  assert kept('ad')[0].load(said.append) is None and 'it is of other runs' in said[0]
  own, checkpoint = kept('abc', 'disk', {**arrays, 'client_records/x/slots': np.arange(2)})
  own.save(checkpoint, [MetricTable() for _ in 'abc'])
  assert kept('ab', 'disk')[0].load(said.append) is None and 'on disk' in said[-1]
