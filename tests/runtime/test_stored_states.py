"""Clients' states on disk: the numbers of memory, and what happens to records between snapshots."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import runtime
from runtime import records as records_lib
from runtime import stored_states, trees
from tests.runtime import example_process as example

SIZES = [4, 8]


def records(path, clients=12, first=0):
  return records_lib.Records(path, SIZES, clients, first=first)


def write(store, clients, value):
  """Gives clients records that say who and when."""
  parts = [np.full([len(clients), size], value, np.uint8) for size in SIZES]
  parts[0][:, 0] = clients
  store.write(np.array(clients), parts, np.arange(len(clients)))


def content(store):
  """{client: value} of everyone with a record."""
  clients = np.flatnonzero(store.has(np.arange(12)))
  parts = [np.zeros([len(clients), size], np.uint8) for size in SIZES]
  store.read(clients, parts, np.arange(len(clients)))
  np.testing.assert_array_equal(parts[0][:, 0], clients)
  return dict(zip(clients.tolist(), parts[1][:, -1].tolist(), strict=True))


def test_both_kept_snapshots_stay_as_they_were_whatever_is_written(tmp_path):
  """As a process that was killed at any moment would find them, the file as it is then."""
  rng, store = np.random.default_rng(0), records(tmp_path)
  kept = []
  for step in range(1, 200):
    before = content(store)
    write(store, rng.choice(12, size=rng.integers(1, 8), replace=False).tolist(), step % 256)
    if kept and rng.random() < 0.3:  # lost, and another goes on from what is known of it
      store = again(store, tmp_path, kept[-1][0])
    elif rng.random() < 0.3:
      store.undo()
      assert content(store) == before
    if rng.random() < 0.3:
      kept = [*kept, (store.snapshot(), content(store))][-2:]
    for snapshot, expected in kept:
      other = records(tmp_path)
      other.restore(snapshot)
      assert content(other) == expected
    if kept and rng.random() < 0.2:  # killed and continued, from either of the two
      chosen = int(rng.integers(len(kept)))
      store = records(tmp_path)
      store.restore(kept[chosen][0])
      kept = kept[: chosen + 1]
  # Twelve clients, as often changed since two snapshots, the last write's 7, and no more.
  assert store.path.stat().st_size <= (3 * 12 + 7) * sum(SIZES)


def again(store, path, snapshot):
  """Other records with the same file and slots, from the last snapshot and the slots now."""
  other = records(path)
  other.restore(snapshot, store.slots(np.arange(12)))
  assert content(other) == content(store)
  return other


def test_only_the_last_write_is_taken_back(tmp_path):
  store = records(tmp_path)
  for value in (1, 2, 3):
    write(store, [0, value], value)
  for _ in range(2):
    store.undo()
    assert content(store) == {0: 2, 1: 1, 2: 2}
  write(store, [5], 9)
  store.snapshot()
  store.undo()
  assert content(store) == {0: 2, 1: 1, 2: 2, 5: 9}


def test_records_of_other_files_are_copied(tmp_path, monkeypatch):
  """Three files' records to two, and back to one; the old files stay as they are."""
  monkeypatch.setattr(records_lib, '_BYTES_AT_ONCE', 2 * sum(SIZES))
  snapshot = {}
  for first in (0, 4, 8):
    store = records(tmp_path, 4, first)
    write(store, [0, 2, 3], first + 1)
    snapshot |= store.snapshot()
  files = {path: path.read_bytes() for path in tmp_path.iterdir()}
  for sizes in ((6, 6), (12,)):
    following, first = {}, 0
    for size in sizes:
      store = records(tmp_path, size, first)
      store.restore(snapshot)
      following |= store.snapshot()
      first += size
    snapshot = following
  clients, places = np.array([0, 2, 3, 4, 6, 7, 8, 10, 11]), np.arange(9)
  np.testing.assert_array_equal(np.flatnonzero(store.has(np.arange(12))), clients)
  parts = [np.zeros([9, size], np.uint8) for size in SIZES]
  store.read(clients, parts, places)
  np.testing.assert_array_equal(parts[0][:, 0], clients % 4)
  np.testing.assert_array_equal(parts[1][:, -1], clients // 4 * 4 + 1)
  assert {path: path.read_bytes() for path in files} == files
  records_lib.remove_others(tmp_path, snapshot)
  assert [path.name for path in tmp_path.iterdir()] == list(snapshot)


def test_a_snapshot_again_takes_the_place_of_the_last_one_only(tmp_path):
  """As where a run that goes on is stopped before its first round, and goes on again."""
  store, clients, kept = records(tmp_path), list(range(12)), []
  for value in (1, 2):
    write(store, clients, value)
    kept.append(store.snapshot())
  for _ in range(2):
    store = records(tmp_path)
    store.restore(kept[1])
    kept[1] = store.snapshot()
  write(store, clients, 3)
  for value, snapshot in enumerate(kept, 1):
    other = records(tmp_path)
    other.restore(snapshot)
    assert set(content(other).values()) == {value}


def test_a_store_that_writes_over_what_a_snapshot_has_is_found(tmp_path, monkeypatch):
  """The broken twin: every client keeps its slot."""
  plain = records_lib.Records.write

  def write_over(self, clients, parts, places):
    self._free += [slot for slot in self._slots[clients].tolist() if slot]
    plain(self, clients, parts, places)

  monkeypatch.setattr(records_lib.Records, 'write', write_over)
  with pytest.raises(AssertionError):
    test_both_kept_snapshots_stay_as_they_were_whatever_is_written(tmp_path)


def test_a_file_that_was_cut_or_lost_is_no_file_of_zeros(tmp_path):
  store = records(tmp_path)
  write(store, [1, 2, 3], 7)
  snapshot = store.snapshot()
  store.path.write_bytes(bytes(2 * sum(SIZES)))
  with pytest.raises(ValueError, match='has 2 records, and the checkpoint points to the record 3'):
    records(tmp_path).restore(snapshot)
  store.path.unlink()
  with pytest.raises(ValueError, match="lacks clients' states"):
    records(tmp_path).restore(snapshot)


def test_no_other_process_writes_the_same_file(tmp_path, monkeypatch):
  """Such as a worker of a run that was just killed."""
  store = records(tmp_path)
  write(store, [1], 7)
  snapshot = store.snapshot()
  code = 'import fcntl, sys; f = open(sys.argv[1], "r+"); fcntl.lockf(f, fcntl.LOCK_EX); print(1)'
  wait = 'sys.stdout.flush(); sys.stdin.read()'
  del store  # whose lock it is
  other = subprocess.Popen(
    [sys.executable, '-c', f'{code}; {wait}', tmp_path / next(iter(snapshot))],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
  )  # fmt: skip
  assert other.stdout.readline() == b'1\n'
  monkeypatch.setattr(records_lib.time, 'sleep', lambda seconds: None)
  with pytest.raises(ValueError, match='still goes on in another process'):
    records(tmp_path).restore(snapshot)
  monkeypatch.setattr(records_lib.time, 'sleep', lambda seconds: other.communicate())
  again = records(tmp_path)
  again.restore(snapshot)
  assert content(again) == {1: 7}


def test_a_full_disk_is_said(tmp_path, monkeypatch):
  monkeypatch.setattr(records_lib.os, 'pwritev', lambda *arguments: 3)
  with pytest.raises(OSError, match=r'cannot write .*0000000000.*: the disk is full'):
    write(records(tmp_path), [1], 7)


@pytest.mark.slow
@pytest.mark.parametrize('devices', ['cpu', 'cpu,cpu'])
def test_rounds_are_those_of_memory_to_the_bit(tmp_path, devices):
  with runtime.create('xla', devices=devices) as machine:
    expected = example.run(machine)
    compiled = machine.compiled_programs
    stored = runtime.with_states_on_disk(machine, tmp_path / 'states')
    found = example.run(stored)
    assert machine.compiled_programs == compiled  # the cohorts' states have the population's form
  for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_rounds_on_tffs_own_runtime(native):
  expected = example.run(native)
  example.assert_same(expected, example.run(runtime.with_states_on_disk(native)))


def test_long_populations_are_evaluated_in_parts(tmp_path, monkeypatch):
  """Two settings of 7 clients, 3 at a time: each client with its own state and data."""
  monkeypatch.setattr(stored_states, 'BYTES_AT_ONCE', 3 * 2 * 20)
  tree = example.client_states(14) | {'steps': np.arange(14, dtype=np.int32)}
  with runtime.create('xla') as machine:
    stored = runtime.with_states_on_disk(machine, tmp_path / 'states')
    data = stored.place(example.data())
    server = trees.stacked(example.SERVER, [example.server_state()] * 2)
    rows = np.array([6, 0, 1, 2, 5])
    for runs in (machine, stored):
      states = runs.place_states(tree)
      found = runs.evaluate(example.look, server, states, data, rows, settings=2)
      np.testing.assert_array_equal(found['state'], [rows, rows + 7])
      np.testing.assert_array_equal(found['data'], [rows, rows])
      alone = runs.evaluate(example.look, example.server_state(), states, data, data_rows=[0] * 14)
      np.testing.assert_array_equal(alone['state'], np.arange(14))


def test_only_who_took_part_takes_space(tmp_path):
  many = 100_000
  one = example.client_states(1)
  with runtime.create('xla') as machine:
    stored = runtime.with_states_on_disk(machine, tmp_path / 'states', fixed=frozenset({'steps'}))
    tree = {
      'personal': np.broadcast_to(one['personal'][0], [many, example.FEATURES]),
      'steps': np.arange(many, dtype=np.int32),
    }
    states, placed = stored.place_states(tree), stored.place(example.data())
    assert not list(tmp_path.glob('states/*'))
    server = example.server_state()
    for first in (99_990, 99_993):
      server, _ = stored.round(
        example.next_round, server, states, placed, first + np.arange(5), data_rows=np.arange(5)
      )
    (file,) = tmp_path.glob('states/*')
    assert file.stat().st_size == (5 + 5) * 4 * example.FEATURES  # two had been there before
    found = states.to_numpy([5, 99_990, 99_999])
    assert not found['personal'][0].any() and not found['personal'][2].any()
    assert states.to_numpy([99_991])['personal'].any()
    assert found['steps'].tolist() == [5, 99_990, 99_999]  # what is fixed is as it was given
