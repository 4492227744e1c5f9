"""Rounds over a population: parity, cohorts of any size, sweeps, evaluation."""

import collections
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime import interface
from tests.runtime import example_process as example


@pytest.fixture(scope='module')
def reference(native):
  return example.run(native)


@pytest.mark.slow
@pytest.mark.parametrize('block', [None, 3])
def test_parity_with_native_and_one_compilation_for_all_cohort_sizes(reference, block):
  with runtime.create('xla', clients_per_block=block) as xla:
    example.assert_same(reference, example.run(xla))
    assert xla.compilations == xla.compiled_programs == 1
    assert xla.compile_seconds > 0.0


@pytest.mark.slow
def test_clients_outside_the_cohort_keep_their_states():
  with runtime.create('xla') as xla:
    _, states, _ = example.run(xla, cohorts=[[3, 5]])
  changed = np.any(states['personal'] != 0.0, axis=1)
  assert changed.tolist() == [False, False, False, True, False, True, False]


def test_states_read_earlier_do_not_change(native):
  with runtime.create('xla') as xla:
    for machine in (native, xla):
      placed, states = machine.place(example.data()), machine.place_states(example.client_states())
      before = states.to_numpy()
      machine.round(example.next_round, example.server_state(), states, placed, [1, 2, 3])
      assert not before['personal'].any()
      assert states.to_numpy()['personal'].any()


def test_the_order_of_the_cohort_does_not_matter():
  with runtime.create('xla') as xla:
    example.assert_same(
      example.run(xla, cohorts=[[1, 2, 3], [4, 6]]), example.run(xla, cohorts=[[3, 1, 2], [6, 4]])
    )


@pytest.mark.slow
def test_larger_cohorts_than_the_first_are_compiled_again_and_agree():
  with runtime.create('xla') as xla:
    many = 100
    placed = xla.place(example.data(many))
    results = []
    for sizes in ([3, 90], [90]):
      for size in sizes:
        states = xla.place_states(example.client_states(many))
        server, _ = xla.round(
          example.next_round, example.server_state(), states, placed, np.arange(size)
        )
      results.append(xla.to_numpy(server))
    example.assert_same(*results)
    assert xla.compilations == 2


@pytest.mark.slow
def test_data_that_are_placed_by_cohort_share_programs():
  with runtime.create('xla') as xla:
    results = []
    for size in (20, 23, 26, 21, 28):
      placed, states = xla.place(example.data(size)), xla.place_states(example.client_states(28))
      server, _ = xla.round(
        example.next_round,
        example.server_state(),
        states,
        placed,
        np.arange(size)[::-1],
        data_rows=np.arange(size)[::-1],
      )
      results.append(xla.to_numpy(server))
    assert xla.compilations <= 2
    placed, states = xla.place(example.data(23)), xla.place_states(example.client_states(23))
    alone, _ = xla.round(example.next_round, example.server_state(), states, placed, range(23))
    example.assert_same(results[1], xla.to_numpy(alone))


@pytest.mark.slow
@pytest.mark.parametrize('block', [None, 4])
def test_sweep_equals_single_runs(block):
  rates = [0.05, 0.1, 0.3]
  cohorts = [[0, 1, 2, 3], [4, 6], []]
  with runtime.create('xla', clients_per_block=block) as xla:
    server = collections.OrderedDict(
      (k, np.stack([v] * 3)) for k, v in example.server_state().items()
    )
    server['learning_rate'] = np.array(rates, np.float32)
    placed = xla.place(example.data())
    stacked = {k: np.concatenate([v] * 3) for k, v in example.client_states().items()}
    states = xla.place_states(stacked)
    rows = [np.array(c, np.int32) + s * example.CLIENTS for s, c in enumerate(cohorts)]
    for _ in range(2):
      server, metrics = xla.round(example.next_round, server, states, placed, rows, settings=3)
    assert xla.compilations == 1
    found = xla.to_numpy(server), states.to_numpy(), xla.to_numpy(metrics)
    for s, rate in enumerate(rates):
      expected = example.run(xla, [cohorts[s]] * 2, rate)
      example.assert_same(expected[0], {k: v[s] for k, v in found[0].items()})
      rows_of_s = slice(s * example.CLIENTS, (s + 1) * example.CLIENTS)
      example.assert_same(expected[1], {k: v[rows_of_s] for k, v in found[1].items()})
      example.assert_same(expected[2][-1], {k: v[s] for k, v in found[2].items()})


@tff.tensorflow.computation(np.float32, np.float32)
def _halve_and_add(total, x):
  return 0.5 * total + x


@tff.tensorflow.computation(np.float32)
def _same(x):
  return x


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(collections.OrderedDict(), tff.CLIENTS),
  tff.FederatedType(collections.OrderedDict(x=np.float32), tff.CLIENTS),
)
def fold_round(server, client, data):
  """A fold in which the order of the clients matters."""

  @tff.tensorflow.computation(collections.OrderedDict(x=np.float32), np.float32)
  def scaled(d, factor):
    return factor * d['x']

  values = tff.federated_map(scaled, (data, tff.federated_broadcast(server)))
  folded = tff.federated_aggregate(values, np.float32(0.0), _halve_and_add, _halve_and_add, _same)
  return server, client, folded


@pytest.mark.parametrize('block', [1, 3])
def test_a_fold_in_a_sweep(block):
  x = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
  cohorts = [[0, 1, 2, 3], [3, 1], []]
  with runtime.create('xla', clients_per_block=block) as xla:
    data = xla.place({'x': x})
    rows = [np.array(c, np.int32) + 4 * s for s, c in enumerate(cohorts)]
    factors = np.array([1.0, 10.0, 100.0], np.float32)
    _, folded = xla.round(fold_round, factors, None, data, rows, settings=3)
  expected = []
  for factor, cohort in zip(factors, cohorts, strict=True):
    total = 0.0
    for k in cohort:
      total = 0.5 * total + factor * x[k]
    expected.append(total)
  np.testing.assert_allclose(folded, expected)


@tff.tensorflow.computation(collections.OrderedDict(x=np.float32))
def _root(d):
  return tf.sqrt(d['x'])


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(collections.OrderedDict(), tff.CLIENTS),
  tff.FederatedType(collections.OrderedDict(x=np.float32), tff.CLIENTS),
)
def extremes_round(server, client, data):
  roots = tff.federated_map(_root, data)
  return server, client, tff.federated_zip((tff.federated_min(roots), tff.federated_max(roots)))


@pytest.mark.parametrize('block', [1, 3])
def test_extremes_in_a_sweep_are_nan_where_a_clients_value_is(block):
  with runtime.create('xla', clients_per_block=block) as xla:
    data = xla.place({'x': np.array([4.0, -1.0, 1.0, 0.0], np.float32)})
    rows = [np.array(c) + 4 * s for s, c in enumerate([[0, 3, 2], [2, 1, 0], [1]])]
    _, (smallest, largest) = xla.round(extremes_round, np.zeros(3), None, data, rows, settings=3)
  np.testing.assert_array_equal(smallest, [0.0, np.nan, np.nan])
  np.testing.assert_array_equal(largest, [2.0, np.nan, np.nan])


@pytest.mark.slow
def test_a_sweep_too_large_for_the_memory_is_split(monkeypatch):
  results = []
  for scarce in (False, True):
    with runtime.create('xla') as xla:
      if scarce:
        monkeypatch.setattr('runtime.xla.devices.free_memory', lambda device: 2000)
      server = {k: np.stack([v] * 4) for k, v in example.server_state().items()}
      states = xla.place_states(
        {k: np.concatenate([v] * 4) for k, v in example.client_states().items()}
      )
      rows = [np.array([1, 2, 3]) + s * example.CLIENTS for s in range(4)]
      server, metrics = xla.round(
        example.next_round, server, states, xla.place(example.data()), rows, settings=4
      )
      results.append((xla.to_numpy(server), states.to_numpy(), xla.to_numpy(metrics)))
      assert xla.compilations == 1  # Equal chunks: one program serves them all.
  example.assert_same(*results)


@pytest.mark.slow
def test_native_sweep_is_a_loop_over_settings(native):
  with runtime.create('xla') as xla:
    results = []
    for machine in (native, xla):
      server = {k: np.stack([v] * 2) for k, v in example.server_state().items()}
      states = machine.place_states(
        {k: np.concatenate([v] * 2) for k, v in example.client_states().items()}
      )
      rows = [np.array([1, 2, 3]), np.array([1, 4]) + example.CLIENTS]
      server, metrics = machine.round(
        example.next_round, server, states, machine.place(example.data()), rows, settings=2
      )
      results.append((machine.to_numpy(server), states.to_numpy(), machine.to_numpy(metrics)))
  example.assert_same(*results)


@tff.tensorflow.computation(example.SERVER, example.CLIENT, example.DATA)
def _loss(server, client, data):
  w = server['model'] + client['personal']
  error = tf.linalg.matvec(data['x'], w) - data['y']
  return collections.OrderedDict(loss=tf.reduce_sum(error**2), steps=client['steps'])


@tff.federated_computation(
  tff.FederatedType(example.SERVER, tff.SERVER),
  tff.FederatedType(example.CLIENT, tff.CLIENTS),
  tff.FederatedType(example.DATA, tff.CLIENTS),
)
def evaluate(server, client, data):
  return tff.federated_map(_loss, (tff.federated_broadcast(server), client, data))


@pytest.mark.slow
@pytest.mark.parametrize('rows', [None, [5, 0, 3]])
def test_evaluation(native, rows):
  def run(machine):
    states = machine.place_states(example.client_states())
    placed = example.placed_with_work(machine)
    server, _ = machine.round(
      example.next_round, example.server_state(), states, placed, np.arange(7)
    )
    return machine.evaluate(evaluate, server, states, placed, rows)

  with runtime.create('xla') as xla:
    found = run(xla)
  assert found['loss'].shape == (7 if rows is None else 3,)
  example.assert_same(run(native), found)


@pytest.mark.slow
@pytest.mark.parametrize('devices', ['cpu', 'cpu,cpu'])
def test_states_are_freed_while_the_programs_that_saw_them_stay(devices):
  with runtime.create('xla', devices=devices) as xla:
    placed = xla.place(example.data())
    for _ in range(2):
      states = xla.place_states(example.client_states())
      held = [weakref.ref(leaf.handle) for leaf in tf.nest.flatten(states.tree)]
      server, _ = xla.round(example.next_round, example.server_state(), states, placed, [1, 2, 3])
      xla.evaluate(evaluate, server, states, placed)
      assert all(handle() is not None for handle in held)
      del states
      gc.collect()
      assert not any(handle() is not None for handle in held)


def _idle(work, order, shares, block):
  """Of the lanes' work, what is waiting for the largest client of a block, and for other shares."""
  of_share = []
  for part in np.array_split(work[order], shares):
    blocks = [part[i : i + block] for i in range(0, len(part), block)]
    of_share.append(sum(block * own.max() for own in blocks))
  return shares * max(of_share) / work.sum() - 1.0


@pytest.mark.parametrize(('shares', 'block'), [(1, 1), (2, 1), (1, 32), (3, 16)])
def test_clients_of_like_work_are_together(shares, block):
  rng = np.random.default_rng(4)
  population = np.minimum(np.ceil(rng.lognormal(3.0, 1.2, 1000)), 128).astype(np.int32)
  for size in (400, 401, 0, 1):
    rows = rng.permutation(1000)[:size].astype(np.int32)
    order = interface.by_work(population, rows, shares)
    np.testing.assert_array_equal(np.sort(order), np.arange(size))  # nobody twice, nobody left out
    if size > 1:
      work = population[rows]
      assert _idle(work, order, shares, block) < 0.3
      if block > 1:
        assert _idle(work, np.arange(size), shares, block) > 1.0
  np.testing.assert_array_equal(interface.by_work(None, rows, shares), np.arange(1))


def test_work_is_a_number_for_each_client():
  with runtime.create('xla') as xla:
    for work in (np.ones(6), -np.ones(7), np.ones([7, 1]), ['many'] * 7, [np.nan] * 7):
      with pytest.raises(ValueError, match='one number of at least 0 for each of the 7 clients'):
        xla.place(example.data(), work=work)


@pytest.mark.parametrize(('devices', 'block'), [('cpu', 3), ('cpu,cpu', 2)])
def test_evaluations_stand_in_the_order_asked_for(devices, block):
  with runtime.create('xla', devices=devices, clients_per_block=block) as xla:
    states = xla.place_states({**example.client_states(), 'steps': np.arange(7, dtype=np.int32)})
    placed = example.placed_with_work(xla)
    for rows in ([5, 0, 3], [6, 2, 1, 4, 3]):
      found = xla.evaluate(evaluate, example.server_state(), states, placed, rows)
      np.testing.assert_array_equal(found['steps'], rows)


def test_evaluation_of_a_sweep():
  with runtime.create('xla') as xla:
    server = {k: np.stack([v] * 2) for k, v in example.server_state().items()}
    server['model'] = np.stack([np.ones(4), np.zeros(4)]).astype(np.float32)
    states = xla.place_states(
      {k: np.concatenate([v] * 2) for k, v in example.client_states().items()}
    )
    placed = xla.place(example.data())
    found = xla.evaluate(evaluate, server, states, placed, settings=2)
    assert found['loss'].shape == (2, 7)
    for s in range(2):
      one = {k: v[s] for k, v in server.items()}
      alone = xla.evaluate(evaluate, one, xla.place_states(example.client_states()), placed)
      example.assert_same(alone['loss'], found['loss'][s])


def test_evaluation_of_a_sweep_on_data_of_its_own(native):
  """Two settings, each on its own half of the data; some clients, in one pass."""
  both = {k: np.concatenate([v, example.data(seed=1)[k]]) for k, v in example.data().items()}
  server = {k: np.stack([v] * 2) for k, v in example.server_state().items()}
  clients = [5, 0, 3]
  steps = np.arange(2 * example.CLIENTS, dtype=np.int32)
  results = []
  with runtime.create('xla') as xla:
    for machine in (native, xla):
      states = {k: np.concatenate([v] * 2) for k, v in example.client_states().items()}
      found = machine.evaluate(
        evaluate,
        server,
        machine.place_states({**states, 'steps': steps}),
        machine.place(both),
        clients,
        data_rows=[np.array(clients) + s * example.CLIENTS for s in range(2)],
        settings=2,
      )
      np.testing.assert_array_equal(found['steps'], steps.reshape(2, -1)[:, clients])
      for seed in range(2):
        alone = machine.evaluate(
          evaluate,
          example.server_state(),
          machine.place_states(example.client_states()),
          machine.place(example.data(seed=seed)),
          clients,
        )
        example.assert_same(alone['loss'], found['loss'][seed])
      results.append(found)
    assert xla.compilations == 2
  example.assert_same(*results)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (dict(rows=[7]), r'rows has rows outside \[0, 7\)'),
    (dict(data_rows=[1, 2]), 'data_rows has 2 rows for a cohort of 7'),
    (dict(rows=[1], data_rows=[9]), r'data_rows has rows outside \[0, 7\)'),
  ],
)
def test_evaluation_of_rows_that_are_not_there(options, message):
  with runtime.create('xla') as xla, pytest.raises(ValueError, match=message):
    placed, states = xla.place(example.data()), xla.place_states(example.client_states())
    xla.evaluate(evaluate, example.server_state(), states, placed, **options)


WIDE = tff.to_type(collections.OrderedDict(w=tff.TensorType(np.float32, (10_000,))))


def _peak_megabytes():
  with open('/proc/self/status') as file:
    return next(int(line.split()[1]) for line in file if line.startswith('VmHWM')) / 1024


def _resident_megabytes():
  with open('/proc/self/statm') as file:
    return int(file.read().split()[1]) * 4096 / 2**20


@tff.tensorflow.computation(WIDE)
def _next_wide(state):
  return collections.OrderedDict(w=state['w'] + 1.0)


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(WIDE, tff.CLIENTS),
  tff.FederatedType(collections.OrderedDict(x=np.float32), tff.CLIENTS),
)
def wide_round(server, client, data):
  return server, tff.federated_map(_next_wide, client), tff.federated_sum(data)


@pytest.mark.slow
@pytest.mark.parametrize('device', ['cpu', 'cpu,cpu'])
def test_a_round_copies_its_cohort_and_not_the_population(device):
  """200 MB of clients' states, of which a round takes three."""
  population = 5000
  with runtime.create('xla', devices=device) as xla:
    data = xla.place({'x': np.ones(population, np.float32)})
    states = xla.place_states({'w': np.zeros((population, 10_000), np.float32)})
    for _ in range(2):
      xla.round(wide_round, 0.0, states, data, [1, 2, 3])
    before = _resident_megabytes()
    with open('/proc/self/clear_refs', 'w') as file:
      file.write('5')  # The peak starts anew.
    for _ in range(3):
      xla.round(wide_round, 0.0, states, data, [1, 2, 4999])
    assert _peak_megabytes() < before + 50.0
    assert states.to_numpy()['w'][[0, 1, 3, 4999], 0].tolist() == [0.0, 5.0, 2.0, 3.0]


@pytest.mark.slow
def test_rounds_leave_no_memory_behind():
  rng = np.random.default_rng(0)
  with runtime.create('xla') as xla:
    placed, states = xla.place(example.data()), xla.place_states(example.client_states())
    server = example.server_state()
    for index in range(2000):
      cohort = np.flatnonzero(rng.random(example.CLIENTS) < 0.5)
      server, metrics = xla.round(example.next_round, server, states, placed, cohort)
      float(metrics['weight'])
      if index == 50:
        before = _resident_megabytes()
    assert xla.compilations == 1
  assert _resident_megabytes() < before + 10.0
