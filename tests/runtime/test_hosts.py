"""Rounds over several members: the numbers of one process, whatever is sent where."""

import collections
import contextlib
import dataclasses
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime import stored_states
from runtime.hosts import member, stragglers
from runtime.hosts import runtime as hosts_runtime
from runtime.hosts import states as states_lib
from runtime.noise_key import NoiseKey
from tests.processes import small_federation as small
from tests.runtime import example_process as example
from tests.runtime import test_methods as methods
from tests.runtime.local_crew import LocalCrew


@pytest.fixture(scope='module')
def reference():
  with runtime.create('xla') as xla:
    return example.run(xla)


@pytest.mark.exhaustive(but=['3-2'])
@pytest.mark.slow
@pytest.mark.parametrize(('size', 'block'), [(1, None), (2, None), (3, 2), (9, None)])
def test_any_number_of_members_gives_the_numbers_of_one_process(reference, size, block):
  with hosts_runtime.HostsRuntime(LocalCrew(size, block)) as machine:
    example.assert_same(reference, example.run(machine))


@pytest.mark.slow
def test_the_same_number_of_members_gives_the_same_bits():
  runs = []
  for _ in range(2):
    with hosts_runtime.HostsRuntime(LocalCrew(3)) as machine:
      runs.append(example.run(machine))
  for one, other in zip(*map(tf.nest.flatten, runs), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.exhaustive(but=['5-2'])
@pytest.mark.slow
@pytest.mark.parametrize(('size', 'fan_in'), [(4, 2), (5, 2), (7, 3), (3, 3)])
def test_a_tree_of_members_gives_the_numbers_of_one_process(reference, size, fan_in):
  with hosts_runtime.HostsRuntime(LocalCrew(size), fan_in=fan_in) as machine:
    example.assert_same(reference, example.run(machine))
    assert any(method == 'add_up' for _, method, _ in machine._crew.calls) == (size > fan_in)


@tff.tensorflow.computation(np.float32, np.float32)
def _add_and_halve(total, value):
  return total / 2 + value


@tff.tensorflow.computation(np.float32)
def _as_it_is(total):
  return total


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def in_order(values):
  """Tells in which order totals were joined: b is halved as often as others came after it."""
  zero = tff.tensorflow.computation(lambda: tf.constant(0.0))()
  fold = tff.federated_aggregate(values, zero, _add_and_halve, _add_and_halve, _as_it_is)
  return fold, tff.federated_sum(values)


@pytest.mark.parametrize(
  ('fan_in', 'expected', 'sums', 'left'),
  [
    (0, (((((1 / 2 + 2) / 2 + 4) / 2 + 8) / 2 + 16) / 2 + 32) / 2 + 64, [], 7),
    # ((a b) (c d)) ((e f) g): one after the other at each level, until two are left.
    (2, ((1 / 2 + 2) / 2 + (4 / 2 + 8)) / 2 + ((16 / 2 + 32) / 2 + 64), [0, 2, 4, 0, 4], 2),
    (3, (((1 / 2 + 2) / 2 + 4) / 2 + ((8 / 2 + 16) / 2 + 32)) / 2 + 64, [0, 3], 3),
    (7, (((((1 / 2 + 2) / 2 + 4) / 2 + 8) / 2 + 16) / 2 + 32) / 2 + 64, [], 7),
  ],
)
def test_the_shape_of_the_tree_is_the_order_of_sums(fan_in, expected, sums, left):
  values = [np.float32(2**k) for k in range(7)]
  with hosts_runtime.HostsRuntime(LocalCrew(7), fan_in=fan_in) as machine:
    assert in_order(values) == (expected, 127)
    assert [index for index, method, _ in machine._crew.calls if method == 'add_up'] == sums
    assert machine.bytes_received == left * 2 * 4  # two totals of four bytes


def test_a_member_that_is_lost_with_the_totals_of_its_branch_is_replaced(tmp_path):
  found = []
  for losses in ({}, {4: (2, True), 9: (0, False)}):
    crew = Losing(4, losses)
    with hosts_runtime.HostsRuntime(crew, fan_in=2) as machine:
      found.append(go_on(machine, tmp_path / str(len(losses)))[:2])
    assert crew.number_lost == len(losses)
  for one, other in zip(*map(tf.nest.flatten, found), strict=True):
    np.testing.assert_array_equal(one, other)


def test_a_tree_of_one_is_refused():
  with pytest.raises(ValueError, match='fan_in=1'):
    hosts_runtime.HostsRuntime(LocalCrew(2), fan_in=1)


@pytest.mark.slow
def test_data_by_cohort():
  """Rows of the data that are not those of the states are sent round by round."""
  results = []
  for machine in (
    runtime.create('xla'),
    hosts_runtime.HostsRuntime(LocalCrew(3)),
  ):
    with machine:
      states = machine.place_states(example.client_states())
      server = example.server_state()
      for cohort in ([5, 2, 6], [0], []):
        arrays = {k: v[cohort or [0]] for k, v in example.data().items()}
        placed = machine.place(arrays)
        server, metrics = machine.round(
          example.next_round, server, states, placed, cohort, data_rows=np.arange(len(cohort))
        )
      results.append((machine.to_numpy(server), states.to_numpy(), machine.to_numpy(metrics)))
  example.assert_same(*results)


def test_states_are_read_and_placed_in_parts(monkeypatch):
  monkeypatch.setattr(hosts_runtime, '_BYTES_AT_ONCE', 50)  # two or three clients
  with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
    states = example.client_states()
    states['personal'] = np.arange(states['personal'].size, dtype=np.float32).reshape(
      states['personal'].shape
    )
    placed = machine.place_states(states)
    example.assert_same(states, placed.to_numpy())
    assert sum(method == 'receive' for _, method, _ in machine._crew.calls) > 2


@pytest.mark.slow
def test_only_totals_leave_a_member():
  """What comes back does not grow with the cohort, and data are sent once."""
  received = []
  for clients in (6, 60):
    with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
      data, states = example.data(clients), example.client_states(clients)
      placed, states = machine.place(data), machine.place_states(states)
      server = example.server_state()
      for _ in range(2):
        before = machine.bytes_received
        server, _ = machine.round(
          example.next_round, server, states, placed, np.arange(clients, dtype=np.int32)
        )
      received.append(machine.bytes_received - before)
      calls = machine._crew.calls
      works = [arguments for _, method, arguments in calls if method == 'work']
      assert not any(data['x'][0].tobytes() in pickle.dumps(own) for own in works)
      sends = [arguments for _, method, arguments in calls if method == 'receive']
      assert sum(data['x'][0].tobytes() in pickle.dumps(own) for own in sends) == 1
  assert received[0] == received[1] > 0


@pytest.mark.slow
def test_no_member_is_sent_the_noise_key_of_the_server():
  """With privacy for clients; at example level each silo has a secret of its own."""
  key = NoiseKey.rehearsal(3)  # the simulation's
  words = [np.asarray(w, np.int32).tobytes() for w in np.split(key.words, 4)]
  with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
    method, data, attributes = methods.case('fedavg', 'client')
    simulation = small.Simulation(machine, method, data, seed=3, attributes=attributes)
    simulation.round([0, 1, 3])
    held = pickle.dumps(simulation.server['noise_key'])
    assert all(word in held for word in words)  # what is looked for is what there is
    for _, _, arguments in machine._crew.calls:
      text = pickle.dumps(arguments)
      assert not any(word in text for word in words)


@pytest.mark.slow
def test_a_lost_member_is_replaced_and_takes_its_clients_again(reference):
  crew = LocalCrew(3)
  with hosts_runtime.HostsRuntime(crew) as machine:
    example.run(machine)
    states = machine.place_states(example.client_states())
    crew.lost = {1}
    with pytest.raises(runtime.MemberLostError):
      example.run(machine)
    assert states.num_clients  # are still there, and some of theirs were lost
    assert machine.recover() == runtime.Recovery(
      words='cohort worker 1 was lost and has been replaced', keeps_states=False
    )
    example.assert_same(reference, example.run(machine))


@pytest.mark.slow
def test_with_states_on_disk_rounds_are_those_of_memory_to_the_bit(tmp_path):
  with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
    expected = example.run(machine)
    found = example.run(runtime.with_states_on_disk(machine, tmp_path / 'states'))
  for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
    np.testing.assert_array_equal(one, other)


_SERVER, _CLIENT = np.float32, collections.OrderedDict(sum=tff.TensorType(np.float32, (2,)))


@tff.tensorflow.computation(np.float32, _CLIENT, _CLIENT)
def _add(server, client, data):
  return collections.OrderedDict(sum=client['sum'] / 2 + data['sum'] + server)


@tff.tensorflow.computation(_CLIENT)
def _total(client):
  return tf.reduce_sum(client['sum'])


@tff.tensorflow.computation(np.float32, np.float32)
def _move(server, total):
  return server / 2 + total / 10


@tff.federated_computation(
  tff.FederatedType(_SERVER, tff.SERVER),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
)
def adding(server, client, data):
  """A process which compiles fast, and whose states tell how often each round was run."""
  client = tff.federated_map(_add, (tff.federated_broadcast(server), client, data))
  total = tff.federated_sum(tff.federated_map(_total, client))
  return tff.federated_map(_move, (server, total)), client, total


class Losing(LocalCrew):
  """Loses a member in some calls of `work`, before or after the others have done theirs."""

  def __init__(self, size, losses):
    super().__init__(size)
    self._losses = dict(losses)  # by call: (member, whether the others are at work first)
    self._works = 0
    self.number_lost = 0

  def gather(self, calls):
    is_work = self.calls[-1][1] in ('work', 'add_up') and len(calls) == self.size
    self._works += is_work
    lost, others_first = self._losses.pop(self._works, (None, False)) if is_work else (None, False)
    if lost is not None:
      self.number_lost += 1
      self.lost = {lost}
      if others_first:
        super().gather({index: call for index, call in calls.items() if index != lost})
    return super().gather(calls)


def recover(machine):
  """Until nobody is lost meanwhile."""
  while True:
    with contextlib.suppress(runtime.MemberLostError):
      assert machine.recover().keeps_states
      return


def go_on(machine, folder, *, keep=()):
  """Rounds of `adding`, each again where a member was lost in it; the end, and checkpoints."""
  machine = runtime.with_states_on_disk(machine, folder)
  numbers = np.arange(14, dtype=np.float32).reshape(7, 2)
  data, states = machine.place({'sum': numbers}), machine.place_states({'sum': 0 * numbers})
  server, kept = np.float32(1), []
  for number, cohort in enumerate(example.COHORTS * 2):
    while True:
      try:
        server, _ = machine.round(adding, server, states, data, cohort)
        break
      except runtime.MemberLostError:
        recover(machine)
    if number in keep:
      kept.append((states.snapshot()['client_records'], states.to_numpy()))
  return machine.to_numpy(server), states.to_numpy(), kept


# By round, from 1, each of which has one stage with clients.
# One member is lost twice after the last checkpoint, which stays what it was.
LOSSES = {1: (1, True), 3: (0, False), 4: (2, True), 6: (1, True), 13: (2, True), 15: (2, True)}


@pytest.mark.parametrize('size', [1, 9])
def test_with_states_on_disk_any_number_of_members_has_the_same_states(tmp_path, size):
  """Also more members than clients, of whom some have none."""
  found = []
  for each in (2, size):
    with hosts_runtime.HostsRuntime(LocalCrew(each)) as machine:
      found.append(go_on(machine, tmp_path / str(each))[:2])
  example.assert_same(*found)


def test_with_states_on_disk_only_the_round_in_which_a_member_is_lost_is_run_again(tmp_path):
  crew = Losing(3, LOSSES)
  with hosts_runtime.HostsRuntime(crew) as machine:
    *found, kept = go_on(machine, tmp_path / 'lost', keep=(2, 4))
  assert crew.number_lost == len(LOSSES) and not list((tmp_path / 'lost').glob('.*'))
  with hosts_runtime.HostsRuntime(LocalCrew(3)) as machine:
    *expected, _ = go_on(machine, tmp_path / 'well')
  for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
    np.testing.assert_array_equal(one, other)
  # Both checkpoints are what they were, for any number of members.
  for size, (snapshot, states) in zip((2, 3), kept, strict=True):
    with hosts_runtime.HostsRuntime(LocalCrew(size)) as machine:
      runtime.with_states_on_disk(machine, tmp_path / 'lost')
      again = machine.place_states({'sum': np.zeros([7, 2], np.float32)}, snapshot=snapshot)
      example.assert_same(states, again.to_numpy(), rtol=0)


class LosingAgain(Losing):
  """Loses further members while those lost are replaced."""

  def __init__(self, size, losses, further):
    super().__init__(size, losses)
    self._further = dict(further)  # by recovery, from 1: (method in whose call, member)
    self._recoveries = 0

  def replace_lost(self):
    self._recoveries += 1
    return super().replace_lost()

  def gather(self, calls):
    method, lost = self._further.get(self._recoveries, (None, None))
    if self.calls[-1][1] == method and lost in calls:
      del self._further[self._recoveries]
      self.number_lost += 1
      self.lost = {lost}
    return super().gather(calls)


# Each before all states are back: whoever is asked where he is; who takes up the states after
# another one has; who takes back his last round.
FURTHER = {1: ('machine', 1), 2: ('store_states', 1), 3: ('undo', 2), 5: ('undo', 0)}


def test_further_members_that_are_lost_in_a_recovery_are_replaced_too(tmp_path):
  losses = {3: (1, True), 6: (1, True), 12: (2, True)}
  crew = LosingAgain(3, losses, FURTHER)
  with hosts_runtime.HostsRuntime(crew) as machine:
    *found, _ = go_on(machine, tmp_path / 'lost')
  assert crew.number_lost == len(losses) + len(FURTHER)
  with hosts_runtime.HostsRuntime(LocalCrew(3)) as machine:
    *expected, _ = go_on(machine, tmp_path / 'well')
  for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
    np.testing.assert_array_equal(one, other)


def test_a_recovery_that_forgets_whom_one_before_replaced_is_found(tmp_path, monkeypatch):
  """The broken twin."""
  plain = hosts_runtime.HostsRuntime.recover

  def forgets(self):
    self._lost = set()
    return plain(self)

  monkeypatch.setattr(hosts_runtime.HostsRuntime, 'recover', forgets)
  with pytest.raises((AssertionError, KeyError)):
    test_further_members_that_are_lost_in_a_recovery_are_replaced_too(tmp_path)


def test_a_file_whose_states_are_taken_up_twice_is_still_its_members_own(tmp_path):
  """A process's lock of a file ends where it closes the file, even if it has opened it again."""
  crew, numbers = LocalCrew(1), np.arange(14, dtype=np.float32).reshape(7, 2)
  with hosts_runtime.HostsRuntime(crew) as machine:
    runtime.with_states_on_disk(machine, tmp_path)
    data, states = machine.place({'sum': numbers}), machine.place_states({'sum': 0 * numbers})
    machine.round(adding, np.float32(1), states, data, np.arange(7))
    for _ in range(2):
      machine._lost = {0}
      assert machine.recover().keeps_states
    (file,) = tmp_path.glob('[0-9]*')
    code = 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)'
    done = subprocess.run([sys.executable, '-c', code, file], capture_output=True, check=False)
    assert b'BlockingIOError' in done.stderr


def test_states_that_were_given_up_stay_so_though_who_is_lost_next_has_his(tmp_path, monkeypatch):
  crew = LocalCrew(3)
  with hosts_runtime.HostsRuntime(crew) as machine:
    runtime.with_states_on_disk(machine, tmp_path)
    states = machine.place_states(example.client_states())
    with monkeypatch.context() as patch:
      patch.setattr(member.Member, 'machine', lambda self: 'another')
      crew.lost = {1}
      assert not machine.recover().keeps_states
    crew.lost = {2}
    assert not machine.recover().keeps_states  # member 1 has none
    del states
    crew.lost = {2}
    assert machine.recover().keeps_states


@pytest.mark.parametrize('what', ['undo', 'slots', 'snapshot'])
def test_a_recovery_that_forgets_is_found(tmp_path, monkeypatch, what):
  """The broken twins: others keep what they wrote in the lost round; the lost begins anew; and
  what the replaced finds counts as a checkpoint, so that the true ones are written over."""
  if what == 'undo':
    monkeypatch.setattr(member.Member, 'undo', lambda *arguments: None)
  elif what == 'slots':
    plain = states_lib.OnDisk.again

    @contextlib.contextmanager
    def again(*arguments):
      with plain(*arguments) as storing:
        yield dataclasses.replace(storing, slots=None)

    monkeypatch.setattr(states_lib.OnDisk, 'again', again)
  else:

    def store_states(self, handle, first, storing):
      placed = storing.stored(self._arrived(handle), first, '')
      self._placed[handle] = placed
      return placed.written.snapshot()

    monkeypatch.setattr(member.Member, 'store_states', store_states)
  with pytest.raises(AssertionError):
    test_with_states_on_disk_only_the_round_in_which_a_member_is_lost_is_run_again(tmp_path)


def test_clients_without_states_lose_nothing_with_a_member():
  crew = LocalCrew(2)
  with hosts_runtime.HostsRuntime(crew) as machine:
    machine.place(example.data())
    crew.lost = {1}
    assert machine.recover().keeps_states


def test_states_in_memory_are_not_kept_though_who_is_lost_had_none():
  """The others have written theirs in the round that failed."""
  crew = LocalCrew(9)  # of whom two have no client
  with hosts_runtime.HostsRuntime(crew) as machine:
    states = machine.place_states(example.client_states())
    crew.lost = {0}
    assert machine._ends(states.num_clients)[0] == (0, 0)
    assert not machine.recover().keeps_states


def test_another_machine_lacks_what_was_on_its_way_to_the_disk(tmp_path, monkeypatch):
  crew = LocalCrew(3)
  with hosts_runtime.HostsRuntime(crew) as machine:
    runtime.with_states_on_disk(machine, tmp_path)
    states = machine.place_states(example.client_states())
    crew.lost = {1}
    assert machine.recover().keeps_states
    crew.lost = {1}
    monkeypatch.setattr(member.Member, 'machine', lambda self: 'another')
    assert not machine.recover().keeps_states
    assert states.num_clients


def test_a_member_that_does_not_see_the_folder_says_so(tmp_path, monkeypatch):
  monkeypatch.setattr(states_lib.pathlib.Path, 'touch', lambda self: None)
  with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
    runtime.with_states_on_disk(machine, tmp_path)
    with pytest.raises(ValueError, match=r'does not see .* an --output_dir that every worker sees'):
      machine.place_states(example.client_states())


def test_states_on_disk_are_evaluated_in_parts(tmp_path, monkeypatch):
  whole = example.client_states(11) | {'steps': np.arange(11, dtype=np.int32)}
  rows = np.array([6, 0, 1, 10, 2, 5, 9])
  for most in (2**26, 2 * 20):
    monkeypatch.setattr(stored_states, 'BYTES_AT_ONCE', most)
    with hosts_runtime.HostsRuntime(LocalCrew(2)) as machine:
      runtime.with_states_on_disk(machine, tmp_path)
      states, data = machine.place_states(whole), machine.place(example.data(11))
      found = machine.evaluate(example.look, example.server_state(), states, data, rows)
      np.testing.assert_array_equal(found['state'], rows)
      np.testing.assert_array_equal(found['data'], rows)
      works = sum(method == 'work' for _, method, _ in machine._crew.calls)
      assert works == 2 * (1 if most > 1000 else 2)


def load_some(first, last):
  """The example's data of some clients, as a member loads them."""
  return {name: leaf[first:last] for name, leaf in example.data().items()}


def load_by_cohort(first, last):
  own = load_some(first, last)
  return lambda rows: {name: leaf[rows] for name, leaf in own.items()}


SIZES = np.array([3, 9, 1, 4, 1, 5, 9])  # as of examples


@pytest.mark.exhaustive(but=['load_some'])
@pytest.mark.slow
@pytest.mark.parametrize('load', [load_some, load_by_cohort])
def test_members_load_their_clients_data_by_themselves(reference, load):
  with hosts_runtime.HostsRuntime(LocalCrew(3)) as machine:
    placed = machine.place_loaded(load, load_some(0, 1), SIZES)
    states, server, history = machine.place_states(example.client_states()), None, []
    server = example.server_state()
    for cohort in example.COHORTS:
      cohort = np.array(cohort, np.int32)
      if load is load_by_cohort and len(cohort) != 1:
        machine.load_ahead(placed, cohort)  # which changes nothing but the time
      server, metrics = machine.round(example.next_round, server, states, placed, cohort)
      history.append(machine.to_numpy(metrics))
      if len(cohort) == 1:  # a member is lost after the round; its successor loads them, too
        kept = states.to_numpy()
        machine._crew.lost = {1}
        machine.recover()
        states = machine.place_states(kept)
    example.assert_same(reference, (machine.to_numpy(server), states.to_numpy(), history))
    sent = [a for _, method, a in machine._crew.calls if method == 'receive']
    assert not any(example.data()['x'][k].tobytes() in pickle.dumps(sent) for k in range(7))
    held = [own for one in machine._crew.members for own in one._placed.values()]
    assert not any(getattr(own, '_ahead', ()) for own in held)  # all that was begun was taken
    rows = [task.rows[-1] for _, method, (task, *_) in machine._crew.calls if method == 'work']
    assert any(np.any(np.diff(own) < 0) for own in rows)  # the largest first


def test_a_member_that_cannot_load_says_so_and_where():
  def load(first, last):
    raise FileNotFoundError(f'no data of {first} to {last}')

  with (
    hosts_runtime.HostsRuntime(LocalCrew(2)) as machine,
    pytest.raises(ValueError, match=r'cohort worker \(.*process \d+\) cannot load .*no data of 0'),
  ):
    machine.place_loaded(load, load_some(0, 1), SIZES)


def test_a_straggler_is_named():
  with hosts_runtime.HostsRuntime(LocalCrew(3)) as machine, warnings.catch_warnings():
    warnings.simplefilter('error')
    for _ in range(40):
      machine._watch_stragglers([1.0, 1.5, 0.9])
      machine._watch_stragglers([0.001, 0.01, 0.001])  # too short to matter
    for _ in range(19):
      machine._watch_stragglers([1.0, 1.0, 3.0])
      machine._watch_stragglers([0.001, 0.001, 0.001])  # and to tell anything
    with pytest.raises(RuntimeWarning, match=r'Cohort worker 2 .* holds the others up'):
      machine._watch_stragglers([1.0, 1.0, 3.0])


@pytest.mark.parametrize(
  ('seconds', 'expected'),
  [
    ([3.0], []),  # there are no others
    ([1.0, 1.9], []),
    ([1.0, 2.1], [1]),
    ([2.1, 1.0], [0]),
    ([1.0, 2.9, 2.0], []),  # the others' median is 1.5
    ([1.0, 3.1, 2.0], [1]),
    ([3.0, 1.0, 3.0, 1.0], [0, 2]),
    ([0.0, 0.04], []),
  ],
)
def test_a_straggler_is_slow_beside_the_others(seconds, expected):
  watch = stragglers.Stragglers(len(seconds))
  assert [watch.found(seconds) for _ in range(40)] == [[]] * 19 + [expected] + [[]] * 20


@tff.federated_computation(
  tff.FederatedType(_SERVER, tff.SERVER),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
)
def adding_twice(server, client, data):
  """A round of two stages with clients."""
  server, client, _ = adding(server, client, data)
  return adding(server, client, data)


@pytest.mark.parametrize('computation', [adding, adding_twice])
def test_a_straggler_is_slow_in_twenty_rounds_of_any_number_of_stages(monkeypatch, computation):
  """Of two members, one second each, of which one takes three; and nothing is said in silence."""
  plain, said = member.Member.work, []

  def work(self, task, sent):
    answer = plain(self, task, sent)
    return dataclasses.replace(answer, seconds=3.0 if task.piece else 1.0)

  monkeypatch.setattr(member.Member, 'work', work)
  numbers = np.arange(14, dtype=np.float32).reshape(7, 2)
  with hosts_runtime.HostsRuntime(LocalCrew(2), tell=said.append) as machine:
    data, states = machine.place({'sum': numbers}), machine.place_states({'sum': 0 * numbers})

    def run_rounds(count):
      for _ in range(count):
        machine.round(computation, np.float32(1), states, data, np.arange(7))

    run_rounds(1)  # compiles, which does not count
    run_rounds(19)
    assert not said
    run_rounds(1)
  (words,) = said
  assert words.startswith('Cohort worker 1 (') and '20 times in a row' in words


def test_a_sweep_is_refused():
  with hosts_runtime.HostsRuntime(LocalCrew(1)) as machine:
    placed = machine.place(example.data())
    with pytest.raises(runtime.UnsupportedComputationError, match='--workers'):
      machine.round(example.next_round, example.server_state(), None, placed, [[0]], settings=1)


class Backwards(LocalCrew):
  """Whose last member is done first."""

  def gather(self, calls):
    found = super().gather(dict(reversed(calls.items())))
    return {index: found[index] for index in calls}


# Every unit of privacy that a method has.
CASES = [(name, unit) for name, unit in methods.CASES if unit != 'none']


@pytest.mark.exhaustive(but=['fedavg-client'])
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'unit'), CASES)
def test_every_method(name, unit):
  """As many members give the same bits, whoever is done first; any others the same numbers."""
  results = []
  for machine in (
    runtime.create('xla'),
    hosts_runtime.HostsRuntime(LocalCrew(2)),
    hosts_runtime.HostsRuntime(LocalCrew(3)),  # of two totals the sum has no order
    hosts_runtime.HostsRuntime(Backwards(3)),
  ):
    with machine:
      results.append(methods.run(machine, *methods.case(name, unit)))
  one, two, three, again = results
  example.assert_same(one, two)
  example.assert_same(one, three)
  for leaf, other in zip(*map(tf.nest.flatten, (three, again)), strict=True):
    np.testing.assert_array_equal(leaf, other)


def test_totals_that_are_summed_as_they_come_are_found():
  """The broken twin of the above."""

  class AsTheyCome(LocalCrew):
    def gather(self, calls):
      return super().gather(dict(reversed(calls.items())))

  found = []
  for crew in (LocalCrew(3), Backwards(3), AsTheyCome(3)):
    with hosts_runtime.HostsRuntime(crew):
      found.append(in_order([np.float32(2**k) for k in range(3)])[0])
  assert found[0] == found[1] != found[2]
