"""Checkpoints whose clients' states cohort workers write and read by themselves."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import runtime
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints, files
from experiments.folder.store import Store
from experiments.running import runner
from runtime.hosts import ray_crew
from runtime.hosts import runtime as hosts_runtime
from tests.runtime import example_process as example
from tests.runtime.local_crew import LocalCrew


def hosts(size):
  return hosts_runtime.HostsRuntime(LocalCrew(size))


def kept(machine, states, folder, rounds=3):
  """Keeps states; returns the store and what it finds again."""
  store = Store(folder / 'checkpoints', fingerprint='one', tables=[])
  shards = store.save_shards(rounds, states.visit)
  arrays = {'server/round': np.int32(rounds)}
  store.save(checkpoints.Checkpoint(rounds=rounds, arrays=arrays, facts={}, shards=shards), [])
  return store, store.load(pytest.fail)[0]


def some_states(clients=example.CLIENTS):
  rng = np.random.default_rng(1)
  states = example.client_states(clients)
  return {**states, 'personal': rng.normal(size=states['personal'].shape).astype(np.float32)}


@pytest.mark.parametrize('size', [1, 2, 3, 9])
@pytest.mark.parametrize('later', [1, 2, 4, None])
def test_any_number_of_workers_reads_what_any_other_wrote(size, later, tmp_path):
  states = some_states()
  with hosts(size) as machine:
    _, checkpoint = kept(machine, machine.place_states(states), tmp_path)
  owners = min(size, example.CLIENTS)
  assert len(checkpoint.shards.files) == owners
  assert not any(name.startswith('clients') for name in checkpoint.arrays)
  with hosts(later) if later else runtime.create('xla') as machine:
    placed = machine.fill_states(example.client_states(), checkpoint.shards.restored)
    tf.nest.map_structure(np.testing.assert_array_equal, dict(placed.to_numpy()), states)


@pytest.mark.parametrize('later', [2, None])
def test_states_that_are_no_numbers_are_read_too(later, tmp_path):
  states = some_states()
  states['personal'][3] = np.nan
  with hosts(2) as machine:
    with pytest.raises(ValueError, match='client 3 has NaN'):
      machine.place_states(states)  # those that nobody has asked for
    _, checkpoint = kept(machine, machine.place_states(states, allow_nan=True), tmp_path)
  with hosts(later) if later else runtime.create('xla') as machine:
    placed = machine.fill_states(example.client_states(), checkpoint.shards.restored)
    tf.nest.map_structure(np.testing.assert_array_equal, dict(placed.to_numpy()), states)


def test_a_secret_is_in_no_shard_and_stays_that_of_the_silo(tmp_path):
  secret = np.arange(example.CLIENTS * 2, dtype=np.int32).reshape(-1, 2) + 10**9
  with hosts(2) as machine:
    states = machine.place_states({**some_states(), 'noise_key': secret})
    _, checkpoint = kept(machine, states, tmp_path)
    for file in tmp_path.rglob('*.npz'):
      assert not any('noise_key' in name for name in np.load(file).files)
    template = {**example.client_states(), 'noise_key': secret + 1}
    found = machine.fill_states(template, checkpoint.shards.restored).to_numpy()
    np.testing.assert_array_equal(found['noise_key'], secret + 1)
    np.testing.assert_array_equal(found['personal'], some_states()['personal'])


def test_a_checkpoint_without_all_its_shards_is_none(tmp_path):
  """Gone, cut short, or exchanged for another's: the checkpoint before is taken."""

  def remove(path):
    path.unlink()

  def cut(path):
    path.write_bytes(path.read_bytes()[:-5])

  def exchange(path):
    other = path.parent.parent / before / path.name
    path.write_bytes(other.read_bytes())

  with hosts(2) as machine:
    for number, damage in enumerate((remove, cut, exchange)):
      folder = tmp_path / str(number)
      _, first = kept(machine, machine.place_states(some_states()), folder, rounds=3)
      before = first.shards.folder.rsplit('/', 1)[-1]
      store, _ = kept(machine, machine.place_states(example.client_states()), folder, rounds=4)
      (shard, _) = sorted(folder.glob('checkpoints/round_00000004.*/*.npz'))
      damage(shard)
      said = []
      checkpoint, _ = store.load(said.append)
      assert checkpoint.rounds == 3
      assert len(said) == 1 and 'round_00000004.npz cannot be used' in said[0]


def test_shards_that_no_checkpoint_names_are_removed(tmp_path):
  with hosts(2) as machine:
    states = machine.place_states(some_states())
    store, _ = kept(machine, states, tmp_path, rounds=1)
    store.save_shards(2, states.visit)  # and was killed before the checkpoint
    assert store.load(pytest.fail)[0].rounds == 1
    assert len(list(tmp_path.rglob('*.shards'))) == 2
    for rounds in (2, 3, 3):
      kept(machine, states, tmp_path, rounds=rounds)
    assert sorted(p.name[:14] for p in tmp_path.rglob('*.shards')) == [
      'round_00000002', 'round_00000003',
    ]  # fmt: skip


def test_a_folder_that_workers_do_not_see_has_no_shards(tmp_path, monkeypatch):
  """As on a cluster without a shared folder: the driver gathers the states then."""
  plain = checkpoints.save_shard

  def elsewhere(first, states, *, folder):
    return plain(first, states, folder='/nowhere' if first else folder)

  monkeypatch.setattr(checkpoints, 'save_shard', elsewhere)
  with hosts(2) as machine:
    store = Store(tmp_path, fingerprint='one', tables=[])
    assert store.save_shards(1, machine.place_states(some_states()).visit) is None
  assert not list(tmp_path.iterdir())


def test_a_worker_that_does_not_see_the_shards_says_so(tmp_path):
  """They were written where all saw the folder, and are to be read where it is not."""
  with hosts(2) as machine:
    _, checkpoint = kept(machine, machine.place_states(some_states()), tmp_path / 'run')
    shutil.rmtree(checkpoint.shards.folder)  # after the driver has looked
    with pytest.raises(checkpoints.CheckpointError, match=r'does not see .*shards') as raised:
      machine.fill_states(example.client_states(), checkpoint.shards.restored)
  assert str(raised.value).startswith(f'--output_dir={tmp_path / "run"}: ')
  assert 'cohort_workers=0' in str(raised.value)


def test_other_attributes_are_refused_by_the_worker(tmp_path):
  attributes = np.arange(example.CLIENTS, dtype=np.float32)
  with hosts(2) as machine:
    states = machine.place_states({**some_states(), 'attributes': {'weight': attributes}})
    _, checkpoint = kept(machine, states, tmp_path)
    attributes[-1] += 1
    with pytest.raises(checkpoints.CheckpointError, match='made with other settings'):
      machine.fill_states(
        {**example.client_states(), 'attributes': {'weight': attributes}},
        checkpoint.shards.restored,
      )


CLIENTS = dict(
  method='ditto', dataset='digits', dataset_option=('num_clients=10',), privacy='client',
  delta=1e-2, noise_multiplier=1.0, rounds=4, eval_every=0, checkpoint_every=2, device='cpu',
  noise_key='rehearsal',
)  # fmt: skip


def run(workers, folder):
  config = ExperimentConfig(**CLIENTS, cohort_workers=workers, output_dir=str(folder), resume=True)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(ray_crew, 'connect', lambda address, size, **options: LocalCrew(size))
    return runner.run(config, show_progress=False)


@pytest.fixture(scope='module', name='plain')
def _plain(tmp_path_factory):
  folder = tmp_path_factory.mktemp('plain') / 'run'
  return run(2, folder), folder


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('later', [2, 3, 0])
def test_a_killed_run_goes_on_with_other_workers_or_none(plain, later, tmp_path):
  """As after SIGKILL in round 3: the checkpoint of round 2, its shards, and a half-written one."""
  expected, whole = plain
  folder = shutil.copytree(whole, tmp_path / 'run')
  (folder / 'checkpoints' / 'round_00000004.npz').unlink()
  (folder / 'summary.json').unlink()
  (folder / 'checkpoints' / f'{files._TEMPORARY_PREFIX}1-round_00000004.npz').write_bytes(b'PK')
  assert [p.name for p in (folder / 'checkpoints').glob('round_*.npz')] == ['round_00000002.npz']
  assert len(list(folder.glob('checkpoints/round_00000002.*/*.npz'))) == 2
  found = run(later, folder)
  compare = np.testing.assert_array_equal if later == 2 else example.assert_same
  for one, other in zip(
    tf.nest.flatten([expected.server_state, expected.client_states]),
    tf.nest.flatten([found.server_state, found.client_states]),
    strict=True,
  ):
    compare(one, other)
  assert found.privacy['epsilon'] == expected.privacy['epsilon']
  assert found.privacy['rounds'] == 4
  assert not list(folder.rglob(files._TEMPORARY_PREFIX + '*'))
  owners = len(list(folder.glob('checkpoints/round_00000004.*/*.npz')))
  assert owners == later  # what was there before is gone, and in one process there are none
