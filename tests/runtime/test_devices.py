"""Several devices, as logical CPUs in a process of their own; the default block."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import devices, executable

PROGRAM = """
import tensorflow as tf
cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

import sys, types
import numpy as np
import runtime
# This folder, not a package of the same name that is installed.
sys.modules['tests'] = types.ModuleType('tests')
sys.modules['tests'].__path__ = ['tests']
from tests.runtime import example_process as example
from tests.runtime import test_intrinsics as intrinsics

def sweep(machine):
  server = {k: np.stack([v] * 3) for k, v in example.server_state().items()}
  states = machine.place_states(
    {k: np.concatenate([v] * 3) for k, v in example.client_states().items()})
  rows = [np.array(c, int) + s * example.CLIENTS for s, c in enumerate([[0, 1, 2, 3], [4], []])]
  server, metrics = machine.round(
    example.next_round, server, states, machine.place(example.data()), rows, settings=3)
  return machine.to_numpy(server), states.to_numpy(), machine.to_numpy(metrics)

def everything(count, **options):
  with runtime.XlaContext(**options):
    result = intrinsics.as_numpy(intrinsics.everything(intrinsics.clients(count)))
  result.pop('fold')  # It has no merge that equals it here.
  return result

with runtime.create('xla') as one:
  expected, swept = example.run(one), sweep(one)
found = {count: everything(count) for count in (5, 0)}
for names, block, count in (('cpu:0,cpu:1,cpu:2', 1, 5), ('cpu:2,cpu:0', 2, 0), ('cpu,cpu', 1, 5)):
  with runtime.create('xla', devices=names, clients_per_block=block) as several:
    example.assert_same(expected, example.run(several))
    # The server's work before and after the clients'; the clients' on the device that has
    # the data, and on those that are sent theirs.
    assert several.compilations == 1
    assert several.compiled_programs == 2 + min(2, len(set(names.split(','))))
  if block == 2:
    with runtime.create('xla', devices=names) as several:
      example.assert_same(swept, sweep(several))
  found_there = everything(count, devices=names, clients_per_block=block)
  example.assert_same(found[count], found_there)
print('agreed')
"""


@pytest.mark.slow
def test_clients_are_split_over_devices():
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM], capture_output=True, text=True, timeout=600, check=False
  )
  assert 'agreed' in done.stdout, done.stderr[-3000:]


SUMS = '--xla_disable_hlo_passes=tree_reduction_rewriter'


@pytest.mark.parametrize(
  'before, after',
  [
    (None, f'--xla_cpu_enable_fast_min_max=false {SUMS}'),
    ('--xla_a=1', f'--xla_a=1 --xla_cpu_enable_fast_min_max=false {SUMS}'),
    ('--xla_cpu_enable_fast_min_max=true', f'--xla_cpu_enable_fast_min_max=true {SUMS}'),
    (f'--xla_a=1 {SUMS}', f'--xla_a=1 {SUMS} --xla_cpu_enable_fast_min_max=false'),
    ('/folder/flags', '/folder/flags'),  # a file with them
  ],
)
def test_the_users_flags_of_xla_stay(before, after):
  environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
  environment |= {} if before is None else {'XLA_FLAGS': before}
  program = "import os, runtime; print(os.environ['XLA_FLAGS'])"
  found = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, env=environment, check=True
  )
  assert found.stdout.strip() == after


ONE_THREAD = '--xla_disable_hlo_passes=cpu-parallel-task-assigner'
NO_POOL = '--xla_cpu_multi_thread_eigen=false'


@pytest.mark.slow
@pytest.mark.parametrize(
  'names, environment, before, expected',
  [
    ('cpu', {}, '', ['0']),
    ('cpu,cpu', {}, '', ['1', ONE_THREAD]),
    # TensorFlow has made its threads, or the user wants several: no pool is used.
    ('cpu,cpu', {}, 'tf.ones([2]) + 1', ['0', NO_POOL, ONE_THREAD]),
    ('cpu,cpu', {'TF_NUM_INTRAOP_THREADS': '4'}, '', ['0', NO_POOL, ONE_THREAD]),
    ('cpu,cpu', {'TF_NUM_INTRAOP_THREADS': '1'}, '', ['0', ONE_THREAD]),
    ('auto', {'TF_NUM_INTRAOP_THREADS': '1'}, '', ['0', ONE_THREAD]),  # a worker of a sweep
    (
      'cpu,cpu',
      {'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=true'},
      'tf.ones([2])',
      ['0', ONE_THREAD],
    ),
  ],
)
def test_a_client_is_left_to_one_thread_where_clients_are_spread_over_cores(
  names, environment, before, expected
):
  program = f"""
import os
import tensorflow as tf
import runtime
{before}
runtime.prepare({names!r})
runtime.prepare({names!r})  # as before
print(tf.config.threading.get_intra_op_parallelism_threads(), os.environ['XLA_FLAGS'])
"""
  clean = {n: v for n, v in os.environ.items() if n not in ('XLA_FLAGS', 'TF_NUM_INTRAOP_THREADS')}
  done = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True, text=True, env=clean | environment, check=True, timeout=300,
  )  # fmt: skip
  threads, *flags = done.stdout.split()
  told = environment.get('XLA_FLAGS', '').split()
  found = [x for x in flags if x not in told and 'fast_min_max' not in x and x != SUMS]
  assert [threads, *found] == expected


IS_SPLIT = """
import sys, types
sys.modules['tests'] = types.ModuleType('tests')
sys.modules['tests'].__path__ = ['tests']
from tests.runtime import test_devices
print(test_devices.is_split(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize('names, expected', [('cpu', 'True'), ('cpu,cpu', 'False')])
def test_a_clients_work_is_on_one_thread_where_clients_are_spread_over_cores(names, expected):
  """In a process of its own: what is set for one list of devices holds for the process."""
  clean = {n: v for n, v in os.environ.items() if n not in ('XLA_FLAGS', 'TF_NUM_INTRAOP_THREADS')}
  done = subprocess.run(
    [sys.executable, '-c', IS_SPLIT, names],
    capture_output=True, text=True, env=clean, timeout=300, check=False,
  )  # fmt: skip
  assert done.stdout.strip() == expected, done.stderr[-3000:]


def is_split(names):
  """Whether XLA splits anything of a round whose clients have large products over threads.

  The server's program as well: in the clients', which is a condition, XLA splits nothing anyway.
  """
  programs = {}
  compiled = executable.Executable._compiled

  def recorded(self, key, function):
    made = compiled(self, key, function)

    def run(*arguments):
      with tf.init_scope():
        any_ = tf.nest.map_structure(
          lambda t: t if t is None else tf.zeros(t.shape, t.dtype), arguments
        )
        text = made.experimental_get_compiler_ir(*any_)(stage='optimized_hlo')
      programs[key if isinstance(key, str) else key[0]] = text
      return made(*arguments)

    run.get_concrete_function = made.get_concrete_function
    return run

  executable.Executable._compiled = recorded
  with runtime.XlaContext(devices=names):
    total([np.ones([512, 512], np.float32)] * 4)
  assert set(programs) == ({'round'} if names == 'cpu' else {'clients', 'server'})
  return any('parallel_' in text for text in programs.values())  # XLA's name for what it splits


@tff.tensorflow.computation(tff.TensorType(np.float32, [512, 512]))
def product_of_sines(x):
  return tf.matmul(tf.sin(x), x)


@tff.federated_computation(tff.FederatedType(tff.TensorType(np.float32, [512, 512]), tff.CLIENTS))
def total(values):
  return tff.federated_sum(tff.federated_map(product_of_sines, values))


def test_default_block(monkeypatch):
  monkeypatch.setattr(devices, 'free_memory', lambda device: 2**30)
  assert devices.clients_per_block('/device:CPU:0', 1000, 500) == 1
  assert devices.clients_per_block('/device:GPU:0', 1000, 500) == 256
  assert devices.clients_per_block('/device:GPU:0', 1000, 10**6) == 1024
  # A quarter of the memory holds 2^28 / 2^26 = 4 clients' working memory.
  assert devices.clients_per_block('/device:GPU:0', 2**22, 500) == 4
  assert devices.clients_per_block('/device:GPU:0', 2**40, 500) == 1


_FREE_ON_GPUS = {0: 5 * 2**30, 1: 7 * 2**30, 'GPU-b': 7 * 2**30}


class _Nvml:
  """NVIDIA's library on a machine with two GPUs."""

  def nvmlInit(self):
    pass

  def nvmlDeviceGetHandleByIndex(self, index):
    assert isinstance(index, int)
    return index

  def nvmlDeviceGetHandleByUUID(self, name):
    return name

  def nvmlDeviceGetMemoryInfo(self, handle):
    return types.SimpleNamespace(free=_FREE_ON_GPUS[handle])


@pytest.mark.parametrize(
  ('visible', 'free'), [(None, 5), ('', 5), ('1', 7), ('1,0', 7), ('GPU-b', 7)]
)
def test_the_free_memory_of_a_gpu_is_of_the_one_that_is_seen(monkeypatch, visible, free):
  monkeypatch.setitem(sys.modules, 'pynvml', _Nvml())
  if visible is None:
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  else:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  assert devices.free_memory('/device:GPU:0') == free * 2**30


def test_what_the_process_has_freed_on_a_gpu_is_free(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pynvml', _Nvml())
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '1,0')
  used = {'GPU:0': {'current': 2**30, 'peak': 3 * 2**30}, 'GPU:1': {'current': 5, 'peak': 5}}
  monkeypatch.setattr(tf.config.experimental, 'get_memory_info', used.get)
  assert devices.free_memory('/device:GPU:0') == (7 + 2) * 2**30
  assert devices.free_memory('/device:GPU:1') == 5 * 2**30


def test_what_is_larger_than_a_gpus_memory_is_refused_before_it_is_copied(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pynvml', _Nvml())
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0,1')
  monkeypatch.setattr(devices, '_kilobytes', lambda path, name: 2**40)  # of the machine's own
  monkeypatch.setattr(devices, '_CGROUPS', ())
  for gpu, free in (('/device:GPU:0', 5 * 2**30), ('/device:GPU:1', 7 * 2**30)):
    with devices.refused_if_too_large(gpu, free):
      pass
    with pytest.raises(MemoryError), devices.refused_if_too_large(gpu, free + 1):
      pass


def test_what_is_larger_than_the_machines_memory_is_not_copied_to_a_gpu(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pynvml', None)  # not installed
  monkeypatch.setattr(devices, 'free_memory', lambda device: 2**20 if 'CPU' in device else 2**40)
  with devices.refused_if_too_large('/device:GPU:0', 2**20):
    pass
  with pytest.raises(MemoryError), devices.refused_if_too_large('/device:GPU:0', 2**20 + 1):
    pass


def test_buckets():
  assert devices.padded_size(0) == 16
  assert devices.padded_size(100) == 128
  assert devices.padded_size(110) == 160
  assert devices.padded_size(480) == 640
  assert devices.padded_size(139, limit=139) == 139
  assert devices.padded_size(20, limit=139) == 32


@pytest.mark.parametrize('row', [(), (3,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize('count', [0, 2, 3])
def test_rows_of_states_are_written_alike_on_a_cpu_and_a_gpu(row, count):
  """In any order, and none of the padding's: a loop does not meet it, a scatter drops it."""
  before = np.arange(7 * np.prod(row, dtype=int), dtype=np.float32).reshape(7, *row)
  new = -1.0 - np.arange(5 * np.prod(row, dtype=int), dtype=np.float32).reshape(5, *row)
  index = np.array([6, 0, 4][:count] + [7] * (5 - count), np.int32)
  after = before.copy()
  after[index[:count]] = new[:count]
  for write, of in ((executable._write_rows, count), (executable._scatter_rows, None)):
    variable = tf.Variable(before)
    tf.function(write, jit_compile=True)(
      variable, tf.constant(index), tf.constant(new), None if of is None else tf.constant(of)
    )
    np.testing.assert_array_equal(variable, after)


@pytest.mark.cpu
def test_auto_without_a_gpu_is_every_core(monkeypatch):
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  monkeypatch.setattr(devices.os, 'sched_getaffinity', lambda _: {0, 1, 2})
  names = devices.resolve('auto')
  assert len(names) == 3 and len(set(names)) == 1 and names[0].endswith('CPU:0')
  monkeypatch.setattr(devices.os, 'sched_getaffinity', lambda _: set(range(64)))
  assert len(devices.resolve('auto')) == 16
  # Workers beside each other share the cores.
  for threads, count in (('1', 1), ('2', 2), ('64', 16)):
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads)
    assert len(devices.resolve('auto')) == count


def test_a_number_is_no_list_of_devices():
  with pytest.raises(ValueError, match='devices=3 must be text'):
    devices.resolve(3)


def test_a_gpu_works_on_one_piece_only(monkeypatch):
  gpu = type('Device', (), {'name': '/device:GPU:0'})
  monkeypatch.setattr(devices, '_gpus', lambda: [gpu])
  assert devices.resolve('gpu') == ['/device:GPU:0']
  with pytest.raises(ValueError, match='names a GPU twice'):
    devices.resolve('gpu,gpu:0')
