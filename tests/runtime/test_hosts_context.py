"""An ordinary TFF program over several members: lists, data sets and populations of clients."""

import os
import pickle
import signal

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.hosts.runtime import HostsRuntime
from runtime.xla.lowering import scope
from tests.runtime import example_process as example
from tests.runtime import learning, test_population, test_strings
from tests.runtime import test_context as lists
from tests.runtime import test_intrinsics as intrinsics
from tests.runtime.local_crew import LocalCrew


def fed_avg(model=learning.functional_model):
  model = model() if model is learning.functional_model else model
  return tff.learning.algorithms.build_weighted_fed_avg(
    model, tff.learning.optimizers.build_sgdm(0.1)
  )


def calls(machine, method):
  return [arguments for _, name, arguments in machine._crew.calls if name == method]


def assert_same_bits(one, other):
  for (states, metrics), (other_states, other_metrics) in zip(one, other, strict=True):
    for a, b in zip([*states, *metrics], [*other_states, *other_metrics], strict=True):
      np.testing.assert_array_equal(a, b)


@pytest.mark.exhaustive(but=['functional_model-4-3', 'keras_model-3-None'])
@pytest.mark.slow
@pytest.mark.parametrize('model', [learning.functional_model, learning.keras_model])
@pytest.mark.parametrize(('size', 'block'), [(1, None), (3, None), (4, 3), (9, None)])
def test_fed_avg_on_data_sets_is_that_of_one_process(model, size, block):
  process, clients = fed_avg(model), learning.data_sets()
  with runtime.XlaContext():
    expected = learning.rounds(process, clients)
  with HostsRuntime(LocalCrew(size, block)) as machine:
    learning.assert_same(learning.rounds(process, clients), expected)
    assert len(calls(machine, 'work')) == 2 * size
    assert len(calls(machine, 'place')) == size  # once for both rounds
    each = [len(task.rows[0]) for task, _ in calls(machine, 'work')]
    assert sum(each) == 2 * len(clients) and max(each) - min(each) <= 1  # evenly
    assert machine.context.explain(process.next).where == f'clients go through on {size} workers'


@pytest.mark.slow
def test_the_same_number_of_members_gives_the_same_bits_and_only_totals_come_back():
  process, found, received = fed_avg(), [], []
  for times in (1, 1, 5):
    with HostsRuntime(LocalCrew(2)) as machine:
      found.append(learning.rounds(process, learning.data_sets(learning.ROWS * times)))
      received.append(machine.bytes_received)
  assert_same_bits(*found[:2])
  assert received[0] == received[2] > 0


@pytest.mark.slow
def test_a_cohort_of_a_population_is_where_its_clients_are(native):
  process, rows = fed_avg(), np.array([3, 0, 3])
  with HostsRuntime(LocalCrew(2)) as machine:
    population = machine.context.place(test_population.client_data())
    for chosen in (rows, [1], rows):
      found = learning.rounds(process, population[chosen])
    assert len(calls(machine, 'place')) == 2  # all of them, once
    held = [task.rows[0].tolist() for (task, _) in calls(machine, 'work')[-2:]]
    assert held == [[0], [1, 1]]
  with runtime.XlaContext():
    expected = learning.rounds(process, [population[rows][k] for k in range(3)])
  learning.assert_same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize('size', [2, 9])
def test_every_intrinsic(size):
  """Values and results at clients too, in their order; a fold that depends on it has its own."""
  points = intrinsics.clients(5)
  results = []
  for machine in (runtime.create('xla'), HostsRuntime(LocalCrew(size))):
    with machine:
      found = intrinsics.as_numpy(intrinsics.everything(points))
      del found['fold']
      results.append(found)
  assert len(calls(machine, 'work')) == 2 * size  # two passes over the clients
  example.assert_same(*results)


@pytest.mark.slow
def test_lists_of_states_and_data_and_nobody():
  results = []
  for machine in (runtime.create('xla'), HostsRuntime(LocalCrew(3))):
    with machine:
      nobody = example.next_round(example.server_state(), [], [])
      results.append((lists.three_rounds(), nobody))
  assert calls(machine, 'work')
  example.assert_same(*results)


def test_select():
  keys = [np.array([0, 3], np.int32), np.array([1, 1], np.int32)]
  table = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
  with HostsRuntime(LocalCrew(2)) as machine:
    assert intrinsics.selected(keys, table) == 9.0
    assert calls(machine, 'work')


@pytest.mark.cpu
def test_parts_on_the_host_are_not_sent():
  data = test_strings.clients()
  with HostsRuntime(LocalCrew(2)) as machine:
    found = test_strings.counted(data)
    assert not calls(machine, 'work')
    where = 'clients go through in this process: it is not compiled as a whole'
    assert str(machine.context.explain(test_strings.counted)).endswith(where)
    assert not machine.context.explain(fed_avg().initialize).where
  with runtime.XlaContext() as context:
    tf.nest.map_structure(np.testing.assert_array_equal, found, test_strings.counted(data))
    assert not context.explain(test_strings.counted).where


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(tff.federated_map(intrinsics.double, values))


def test_what_members_cannot_do_is_done_here_and_said(monkeypatch):
  def refuse(*arguments, **options):
    raise runtime.UnsupportedComputationError('too strange')

  with HostsRuntime(LocalCrew(2)) as machine:
    assert total([1.0, 2.0]) == 6.0
    monkeypatch.setattr(machine, 'call', refuse)
    for _ in range(2):
      assert total([1.0, 2.0]) == 6.0
    where = machine.context.explain(total).where
    assert where == 'clients go through in this process: too strange'


def test_after_its_end_everything_runs_here():
  machine = HostsRuntime(LocalCrew(2))
  with machine:
    assert total([1.0, 2.0]) == 6.0
  with machine.context:
    assert total([1.0, 2.0]) == 6.0
  assert len(calls(machine, 'work')) == 2


def test_a_wrong_value_is_named_before_anything_is_sent():
  with HostsRuntime(LocalCrew(2)) as machine:
    with pytest.raises(TypeError, match='client 1'):
      total([1.0, 'two'])
    assert not calls(machine, 'receive')


@pytest.mark.slow
def test_a_lost_member_changes_no_number():
  process, clients = fed_avg(), learning.data_sets()
  found = []
  for lost in (False, True):
    crew = LocalCrew(3)
    with HostsRuntime(crew):
      state = process.next(process.initialize(), clients).state
      if lost:
        crew.lost = {1}
        with pytest.warns(RuntimeWarning, match='worker 1 was lost and has been replaced; its'):
          output = process.next(state, clients)
      else:
        output = process.next(state, clients)
      found.append([(learning.leaves(output.state), learning.leaves(output.metrics))])
  assert_same_bits(*found)


def test_a_member_that_is_lost_with_states_is_the_callers():
  crew = LocalCrew(2)
  with HostsRuntime(crew) as machine:
    states = machine.place_states(example.client_states())
    crew.lost = {0}
    with pytest.raises(runtime.MemberLostError):
      total([1.0, 2.0])
    assert states.num_clients and not machine.recover().keeps_states


@tff.tensorflow.computation(np.float32)
def with_noise(value):
  return value + tf.random.normal([])


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def noisy(values):
  """A client's noise, and the server's."""
  of_clients = tff.federated_map(with_noise, values)
  return tff.federated_map(with_noise, tff.federated_sum(values)), of_clients


def test_no_member_is_sent_what_the_servers_noise_is_made_of(monkeypatch):
  keys, plain = [], scope.Fresh.draw

  def draw(number):
    fresh = plain(number)
    keys.append(fresh.key.numpy())
    return fresh

  monkeypatch.setattr(scope.Fresh, 'draw', draw)
  with HostsRuntime(LocalCrew(2)) as machine:
    noises = [noisy([0.0] * 4) for _ in range(2)]
    assert len(keys) == len({key.tobytes() for key in keys}) == 2 * 3  # each draws its own
    sent = pickle.dumps([arguments for _, _, arguments in machine._crew.calls])
    assert not any(key.tobytes() in sent for key in keys)
  drawn = [x for server, clients in noises for x in (server, *clients)]
  assert len(set(drawn)) == len(drawn) == 10


def test_plans_of_the_past_are_forgotten(monkeypatch):
  monkeypatch.setattr('runtime.hosts.runtime._KEPT_PLANS', 1)
  with HostsRuntime(LocalCrew(1)) as machine:
    for _ in range(2):
      assert total([1.0]) == 2.0
      assert len(noisy([1.0])[1]) == 1
    assert len(machine._crew.members[0]._plans) == 1


@pytest.mark.exhaustive
@pytest.mark.slow
def test_worker_processes_have_the_numbers_of_one():
  """With a worker that dies between two rounds."""
  process, clients = fed_avg(), learning.data_sets()
  with runtime.XlaContext():
    expected = learning.rounds(process, clients)
  with runtime.create_hosts(2, device='cpu') as machine:
    learning.assert_same(learning.rounds(process, clients), expected)
    crew = machine._crew
    os.kill(crew._ray.get(crew._members[1].ready.remote()), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match='worker 1 was lost and has been replaced; its'):
      learning.assert_same(learning.rounds(process, clients), expected)
