"""One clear exception for what cannot run; the context works afterwards."""

import collections
import re
import resource

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import devices, program
from tests.runtime import example_process as example


@pytest.fixture(scope='module')
def xla():
  with runtime.create('xla') as created:
    yield created


def works(machine):
  example.run(machine, [[0, 1]])


@pytest.fixture(params=['xla', 'native'])
def machine(request, xla, native):
  return xla if request.param == 'xla' else native


@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
def test_a_client_with_nan(machine, dtype):
  tree = example.data()
  tree['x'][3, 1, 2] = np.nan
  tree['x'] = tree['x'].astype(dtype.as_numpy_dtype)
  with pytest.raises(ValueError, match=r'data\.x: client 3 has NaN'):
    machine.place(tree)
  assert machine.place(tree, allow_nan=True).num_clients == example.CLIENTS


def test_arrays_for_different_numbers_of_clients(machine):
  tree = example.data()
  tree['y'] = tree['y'][:5]
  with pytest.raises(ValueError, match=r'data\.y is for 5 clients; .* for 7'):
    machine.place(tree)


def test_wrong_dtype_of_the_data(xla):
  tree = example.data()
  tree['x'] = tree['x'].astype(np.float64)
  data = xla.place(tree)
  with pytest.raises(ValueError, match=r'data\.x has the dtype float64; float32 is expected'):
    xla.round(
      example.next_round,
      example.server_state(),
      xla.place_states(example.client_states()),
      data,
      [0],
    )
  works(xla)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda s: s.pop('round'), 'server_state has the fields model, learning_rate; expected'),
    (lambda s: s.update(model=np.zeros(3, np.float32)), r'model has the shape \(3,\); \(4,\)'),
    (lambda s: s.update(round=np.float32(1.0)), 'round has the dtype float32; int32'),
  ],
)
def test_mismatched_server_state(xla, change, message):
  server = example.server_state()
  change(server)
  with pytest.raises(ValueError, match=message):
    xla.round(
      example.next_round,
      server,
      xla.place_states(example.client_states()),
      xla.place(example.data()),
      [0],
    )
  works(xla)


@pytest.mark.parametrize(
  ('cohort', 'message'),
  [
    ([0, 7], r'outside \[0, 7\)'),
    ([1, 1], 'a client twice'),
    ([0.5], 'integers'),
  ],
)
def test_wrong_cohort(machine, cohort, message):
  with pytest.raises(ValueError, match=message):
    machine.round(
      example.next_round,
      example.server_state(),
      machine.place_states(example.client_states()),
      machine.place(example.data()),
      cohort,
    )


def test_lists_of_different_lengths():
  states = [collections.OrderedDict((k, v[0]) for k, v in example.client_states().items())] * 2
  data = [collections.OrderedDict((k, v[0]) for k, v in example.data().items())] * 3
  with runtime.XlaContext(), pytest.raises(ValueError, match=r'Conflicting cardinalities.* 2, 3'):
    example.next_round(example.server_state(), states, data)


@pytest.mark.slow
def test_an_op_that_xla_does_not_have():
  """It is refused where values stay on the device; a context interprets it."""

  @tff.tensorflow.computation(np.float32)
  def through_text(x):
    return tf.strings.to_number(tf.strings.as_string(x))

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(tff.to_type(()), tff.CLIENTS),
    tff.FederatedType(collections.OrderedDict(x=np.float32), tff.CLIENTS),
  )
  def one_round(server, states, data):
    total = tff.federated_sum(tff.federated_map(through_text, data['x']))
    return server, states, total

  for block in (1, 2):
    with runtime.create('xla', clients_per_block=block) as xla:
      data = xla.place({'x': np.float32([1.0, 2.0])})
      for _ in range(2):
        refused = pytest.raises(runtime.UnsupportedComputationError, match=r'AsString|StringToNum')
        with refused as caught:
          xla.round(one_round, 0.0, xla.place_states(None), data, [0, 1])
        assert '--runtime=native' in str(caught.value)
  for compiled in (True, False):
    with runtime.XlaContext(compiled=compiled):
      clients = [collections.OrderedDict(x=x) for x in (1.0, 2.0)]
      assert one_round(0.0, [(), ()], clients) == (0.0, [(), ()], 3.0)


def test_an_intrinsic_that_is_not_known(monkeypatch):
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def smallest(values):
    return tff.federated_min(values)

  known = program._AGGREGATE_INTRINSICS - {'federated_min'}
  monkeypatch.setattr(program, '_AGGREGATE_INTRINSICS', known)
  unsupported = pytest.raises(runtime.UnsupportedComputationError, match='federated_min')
  with runtime.XlaContext(), unsupported:
    smallest([1.0])


def test_whole_numbers_beyond_their_type():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def add(values):
    return tff.federated_sum(values)

  with runtime.XlaContext():
    with pytest.raises(ValueError, match='client 1: value has values beyond int32'):
      add([1, np.int64(2**40)])
    assert add([1, np.int64(2**30)]) == 2**30 + 1


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (dict(name='spark'), 'expected one of xla, native'),
    (dict(devices='tpu'), "device='tpu': expected auto, cpu, gpu"),
    (dict(devices='cpu:7'), 'TensorFlow sees 1 CPU'),
    (dict(devices='cpu,'), 'expected auto, cpu'),
    (dict(clients_per_block=0), 'clients_per_block=0'),
    (dict(name='native', devices='gpu'), 'runtime=native runs on the CPU'),
  ],
)
def test_options(options, message):
  with pytest.raises(ValueError, match=message):
    runtime.create(**options)


def test_no_gpu():
  if tf.config.list_physical_devices('GPU'):
    pytest.skip('there is a GPU')
  with pytest.raises(ValueError, match='TensorFlow sees 0 GPU'):
    runtime.create(devices='gpu')


WIDE, BYTES = 2000, 4 * 2000 * 2000


@tff.tensorflow.computation(tff.TensorType(np.float32, (WIDE,)))
def _through_a_large_matrix(x):
  matrix = tf.matmul(x[:, tf.newaxis], x[tf.newaxis])
  # Of a product with one vector no matrix would be made.
  return tf.reduce_sum(tf.matmul(matrix, tf.stack([x / 2, x / 2], axis=1)))


@tff.federated_computation(tff.FederatedType(tff.TensorType(np.float32, (WIDE,)), tff.CLIENTS))
def sum_through_large_matrices(vectors):
  return tff.federated_sum(tff.federated_map(_through_a_large_matrix, vectors))


@tff.federated_computation(tff.FederatedType(tff.TensorType(np.float32, (WIDE,)), tff.CLIENTS))
def largest_through_large_matrices(vectors):
  return tff.federated_max(tff.federated_map(_through_a_large_matrix, vectors))


@pytest.mark.cpu
def test_a_block_beyond_the_free_memory_is_refused_with_the_size_that_fits(monkeypatch):
  """A lane needs 16 MB here; XLA is really refused the memory, and says how much it was."""
  vectors, free = [np.ones(WIDE, np.float32)] * 64, 2**29
  monkeypatch.setattr('runtime.xla.devices.free_memory', lambda device: free)
  refused = pytest.raises(MemoryError, match='64 clients in blocks of 64 do not fit')
  with runtime.XlaContext(clients_per_block=64), refused as caught:
    sum_through_large_matrices(vectors)
  found = re.search(r'--clients_per_block=(\d+) would', str(caught.value))
  assert found
  fits = int(found.group(1))
  assert 0.25 * free < fits * BYTES < 0.5 * free  # Half may be taken, with room for the rest.
  with runtime.XlaContext(clients_per_block=fits):
    assert sum_through_large_matrices(vectors) == 64.0 * WIDE**2
    assert largest_through_large_matrices(vectors) == WIDE**2
  assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


@pytest.mark.slow
@pytest.mark.parametrize(
  ('block', 'message', 'free', 'advice'),
  [
    # A lane is 1,000 bytes, and of each of 8 rows 20 bytes of state are kept.
    (4, 'Out of memory while trying to allocate 4160 bytes.', 5200, '--clients_per_block=2 would'),
    (4, 'Out of memory while trying to allocate 4160 bytes.', 2240, 'a cohort of 6 with'),
    (4, 'Out of memory while trying to allocate 4160 bytes.', 900, 'not even one client would'),
    # Without a number: 16 times the client's data and model, which are 152 bytes.
    (4, 'OOM', 10_400, '--clients_per_block=2 would'),
  ],
)
def test_out_of_memory_names_the_size_that_fits(monkeypatch, block, message, free, advice):
  with runtime.create('xla', clients_per_block=block) as small:
    placed, states = small.place(example.data()), small.place_states(example.client_states())
    run = small.context.executable(example.next_round, updated=(1, 1))

    def fail(*_):
      raise tf.errors.ResourceExhaustedError(None, None, message)

    with monkeypatch.context() as patch:
      patch.setattr(run, '_on_one_device', fail)
      patch.setattr('runtime.xla.devices.free_memory', lambda device: free)
      with pytest.raises(MemoryError, match=f'7 clients in blocks of 4 .* {advice}'):
        small.round(example.next_round, example.server_state(), states, placed, range(7))
    small.round(example.next_round, example.server_state(), states, placed, range(7))


@pytest.mark.cpu
def test_a_population_beyond_the_memory_is_refused_with_the_number_that_fits():
  """Ten times the machine's memory: views of one copy, until they are uploaded."""
  free = devices.free_memory('/device:CPU:0')
  clients = 10 * free // 4_000_000
  states = {'w': np.broadcast_to(np.int32(0), (clients, 1_000_000))}
  with runtime.create('xla') as xla:
    with pytest.raises(MemoryError, match=f'The states of {clients} clients are') as caught:
      xla.place_states(states)
    works(xla)
  found = re.search(r'(\d+) clients would fit', str(caught.value))
  assert found and int(found.group(1)) == pytest.approx(clients / 10, rel=0.2)


def test_a_device_that_fails_is_named_and_may_come_back(monkeypatch):
  with runtime.create('xla') as xla:
    placed, states = xla.place(example.data()), xla.place_states(example.client_states())

    def one_round():
      return xla.round(example.next_round, example.server_state(), states, placed, [0, 1])

    one_round()
    run = xla.context.executable(example.next_round, updated=(1, 1))

    def fail(*_):
      raise tf.errors.InternalError(None, None, 'CUDA_ERROR_LAUNCH_FAILED\nmore')

    with monkeypatch.context() as patch:
      patch.setattr(run, '_on_one_device', fail)
      with pytest.raises(runtime.DeviceError, match=r'computed: CUDA_ERROR_LAUNCH_FAILED$'):
        one_round()
    one_round()
