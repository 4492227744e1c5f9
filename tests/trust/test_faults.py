"""Faults that the machine, not the user, makes: nothing half-written is read, nothing is lost."""

import io
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

import datasets.files
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints
from experiments.running import runner
from privacy import accounting
from runtime.noise_key import NoiseKey
from tests.experiments import fakes
from tests.experiments.test_runner import assert_same_results, run

# ---------------------------------------------------------------- checkpoints


def _checkpoint(folder):
  return checkpoints.save(
    folder,
    checkpoints.Checkpoint(
      rounds=3,
      arrays={'server/model': np.arange(6.0).reshape(2, 3), 'server/seed': np.int32(7)},
      facts={'num_rows': 4},
    ),
  )


@pytest.mark.slow
def test_every_flipped_byte_is_found(tmp_path):
  path = _checkpoint(tmp_path)
  whole = path.read_bytes()
  for position in range(len(whole)):
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
    with pytest.raises(checkpoints.CheckpointError):
      checkpoints.load(path)


def test_every_length_cut_short_is_found(tmp_path):
  path = _checkpoint(tmp_path)
  whole = path.read_bytes()
  for length in [*range(0, len(whole), 7), len(whole) - 1]:
    path.write_bytes(whole[:length])
    with pytest.raises(checkpoints.CheckpointError):
      checkpoints.load(path)
  path.write_bytes(whole + b'\0')
  with pytest.raises(checkpoints.CheckpointError):
    checkpoints.load(path)


class _Exploit:
  def __reduce__(self):
    return os.system, ('touch exploited',)


def test_a_checkpoint_runs_no_code(tmp_path, monkeypatch):
  """Even with the right hash: whoever can write the file can compute it."""
  import hashlib

  monkeypatch.chdir(tmp_path)
  buffer = io.BytesIO()
  np.savez(
    buffer, facts=np.frombuffer(b'{"rounds": 1}', np.uint8),
    model=np.array([_Exploit()], dtype=object),
  )  # fmt: skip
  content = buffer.getvalue()[:-2]
  digest = hashlib.sha256(content).hexdigest().encode()
  path = tmp_path / 'round_00000001.npz'
  path.write_bytes(content + struct.pack('<H', 64) + digest)
  with pytest.raises(checkpoints.CheckpointError, match='no checkpoint'):
    checkpoints.load(path)
  assert not (tmp_path / 'exploited').exists()


# ----------------------------------------------------------- a disk that is full


_LIMITED = """
import resource, sys, types
package = types.ModuleType('tests')  # ours: another one may be installed
package.__path__ = ['tests']
sys.modules['tests'] = package
from tests.experiments import fakes
from tests.experiments.test_runner import make_config
from experiments import cli
from experiments.running import runner
from experiments.running import startup
runner.create_runtime = lambda config, **_: fakes.FakeRuntime()
config = make_config(sys.argv[1], resume=len(sys.argv) > 3)
experiment = fakes.make_experiment(config)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
  runner.run(experiment, show_progress=False)
except OSError as error:
  print('error:', error, file=sys.stderr)
  sys.exit(2)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_writes_that_the_kernel_refuses(tmp_path, monkeypatch):
  """No file may grow beyond a limit: one line, and the run goes on when there is room."""
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  run(tmp_path / 'reference')
  for limit in (100, 3_000, 20_000):
    folder = tmp_path / str(limit)
    done = subprocess.run(
      [sys.executable, '-c', _LIMITED, str(folder), str(limit)], text=True, capture_output=True,
      timeout=180, env={**os.environ, 'PYTHONPATH': os.getcwd()}, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-800:]
    assert done.stderr.strip().splitlines()[-1].startswith('error: cannot write ')
    assert not list(folder.rglob('.writing-*'))
    begun = (folder / 'config.json').exists()
    run(folder, resume=begun)
    assert_same_results(folder, tmp_path / 'reference')


_FULL_THEN_READ_ONLY = """
import contextlib, os, pathlib, shutil, subprocess, sys, types
package = types.ModuleType('tests')  # ours: another one may be installed
package.__path__ = ['tests']
sys.modules['tests'] = package
from tests.experiments import fakes
from tests.experiments.test_runner import make_config
from experiments import cli
from experiments.running import runner
from privacy import accounting

accounting.pld_epsilon = lambda *arguments: None
disk, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

def mount(*options):
  subprocess.run(['mount', *options, str(disk)], check=True)

class Runtime(fakes.FakeRuntime):
  def round(self, next_, server, *arguments, **keywords):
    if server['round'] == 7 and fills:
      with contextlib.suppress(OSError), open(disk / 'somebody_else', 'wb', 0) as file:
        while True:
          file.write(bytes(4096))
    return super().round(next_, server, *arguments, **keywords)

def run(**values):
  config = make_config(disk / 'run', **values)
  try:
    runner.run(fakes.make_experiment(config), show_progress=False)
  except (OSError, ValueError) as error:
    print('error:', error, flush=True)
  else:
    print('done', flush=True)

mount('-t', 'tmpfs', '-o', 'size=24m', 'none')
runner.create_runtime = lambda config, **_: Runtime()
fills = True
run()
mount('-o', 'remount,ro')
run(resume=True)
mount('-o', 'remount,rw')
fills = False
run(resume=True)  # the disk is still full
(disk / 'somebody_else').unlink()
run(resume=True)
shutil.copytree(disk / 'run', out)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_and_goes_read_only(tmp_path, monkeypatch):
  """A real file system of 24 MiB, in a mount namespace of its own."""
  namespace = ['unshare', '--user', '--map-root-user', '--mount']
  if subprocess.run([*namespace, 'mount', '-t', 'tmpfs', 'none', '/mnt'], check=False,
                    capture_output=True).returncode:  # fmt: skip
    pytest.skip('this machine lets nobody mount a file system in a user namespace')
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)  # takes seconds
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: fakes.FakeRuntime())
  run(tmp_path / 'reference')
  disk = tmp_path / 'disk'
  disk.mkdir()
  done = subprocess.run(
    [*namespace, sys.executable, '-c', _FULL_THEN_READ_ONLY, str(disk), str(tmp_path / 'run')],
    text=True, capture_output=True, timeout=180, check=False,
    env={**os.environ, 'PYTHONPATH': os.getcwd()},
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-800:]
  full, read_only, still_full, end = done.stdout.strip().splitlines()
  assert full.startswith('error: cannot write ') and full.endswith('No space left on device')
  assert read_only.startswith('error: cannot write ')
  assert read_only.endswith('Read-only file system')
  assert still_full.startswith('error: ') and 'MiB free' in still_full
  assert end == 'done'
  assert_same_results(tmp_path / 'run', tmp_path / 'reference')


@pytest.mark.skipif(os.geteuid() == 0, reason='nothing is read-only for root')
def test_a_folder_without_permission(tmp_path):
  (tmp_path / 'closed').mkdir(mode=0o500)
  with pytest.raises(OSError, match=r'cannot write .*: Permission denied'):
    run(tmp_path / 'closed' / 'run')


# ------------------------------------------------------------ a GPU that disappears


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_device_that_disappears(tmp_path, monkeypatch, capsys):
  """One line, the checkpoint kept; on another device the run ends as if nothing had been."""
  from experiments import cli
  from runtime.xla import executable

  def program(*arguments):
    with flagsaver.flagsaver():
      return cli.main(['run_experiment.py', *arguments])

  flags = [
    '--dataset=digits', '--dataset_option=num_clients=5', '--privacy=client', '--rounds=8',
    '--noise_multiplier=1', '--delta=1e-2', '--cohort_sampling_rate=0.6', '--eval_every=4',
    '--checkpoint_every=3', '--batch_size=16', '--noise_key=rehearsal',
  ]  # fmt: skip
  cpu, lost = ['--device=cpu'], ['--device=auto', f'--output_dir={tmp_path}/lost']
  assert program(*flags, *cpu, f'--output_dir={tmp_path}/whole') == 0
  honest, rounds = executable.Executable._run, []

  def fail(self, parts, cohort):
    rounds.append(self)
    if rounds.count(self) == 6:
      raise tf.errors.InternalError(
        None, None, 'Failed to launch CUDA kernel: CUDA_ERROR_ECC_UNCORRECTABLE\n\tat stream 0'
      )
    return honest(self, parts, cohort)

  monkeypatch.setattr(executable.Executable, '_run', fail)
  capsys.readouterr()
  assert program(*flags, *lost) == 2
  said = capsys.readouterr().err.strip().splitlines()
  assert said[-1].startswith('error: the device failed while it computed: Failed to launch CUDA')
  assert f'--resume --output_dir={tmp_path}/lost' in said[-1] and '--device=cpu' in said[-1]
  assert 'Traceback' not in ''.join(said)
  assert [p.name for p in checkpoints.list_files(tmp_path / 'lost' / 'checkpoints')] == [
    'round_00000003.npz'
  ]
  monkeypatch.setattr(executable.Executable, '_run', honest)
  assert program(*flags, *cpu, lost[1], '--resume') == 0
  last = [
    checkpoints.load(checkpoints.list_files(tmp_path / name / 'checkpoints')[-1]).arrays
    for name in ('lost', 'whole')
  ]
  assert last[0].keys() == last[1].keys()
  for name, leaf in last[0].items():
    np.testing.assert_allclose(leaf, last[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


# -------------------------------------------------------------- files of data


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return datasets.files.cache_folder()


@pytest.mark.parametrize('kept', [0, 10, 0.5, 0.99])
def test_a_damaged_cache_is_made_again(cache, kept):
  arrays = {'x': np.arange(1000.0)}
  datasets.files.cached_arrays('thing', lambda: arrays)
  path = cache / 'thing.npz'
  content = path.read_bytes()
  path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
  again = datasets.files.cached_arrays('thing', lambda: arrays)
  np.testing.assert_array_equal(again['x'], arrays['x'])


# ------------------------------------------------------------------- processes


def _sockets(pids):
  """Inodes of the sockets of processes."""
  inodes = set()
  for pid in pids:
    for entry in os.scandir(f'/proc/{pid}/fd'):
      try:
        target = os.readlink(entry.path)
      except OSError:
        continue
      if target.startswith('socket:['):
        inodes.add(target[8:-1])
  return inodes


def _unix_listening(pids):
  """Paths of Unix sockets on which processes listen."""
  inodes = _sockets(pids)
  with open('/proc/net/unix') as lines:
    columns = [line.split() for line in list(lines)[1:]]
  accepting = 0x10000
  return {c[7] for c in columns if c[6] in inodes and int(c[3], 16) & accepting and len(c) > 7}


def _listening(pids):
  """Internet addresses on which processes listen, whatever the port."""
  inodes, addresses = _sockets(pids), set()
  for table, family in (('tcp', socket.AF_INET), ('tcp6', socket.AF_INET6)):
    with open(f'/proc/net/{table}') as lines:
      for line in list(lines)[1:]:
        columns = line.split()
        if columns[3] == '0A' and columns[9] in inodes:
          raw = bytes.fromhex(columns[1].split(':')[0])
          words = struct.unpack(f'>{len(raw) // 4}I', raw)
          address = struct.pack(f'<{len(words)}I', *words)
          addresses.add(socket.inet_ntop(family, address))
  return addresses


def _children(pid):
  """All descendants of a process."""
  parents = {}
  for name in filter(str.isdigit, os.listdir('/proc')):
    try:
      with open(f'/proc/{name}/stat') as stat:
        parents[int(name)] = int(stat.read().rpartition(')')[2].split()[1])
    except OSError:
      continue
  found, todo = [], [pid]
  while todo:
    parent = todo.pop()
    children = [child for child, its in parents.items() if its == parent]
    found += children
    todo += children
  return found


_NATIVE = """
import sys, time
import numpy as np
import tensorflow_federated as tff
import runtime
machine = runtime.create('native')
@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(x):
  return tff.federated_sum(x)
assert total([1, 2, 3]) == 6
print('ready', flush=True)
time.sleep(120)
"""


@pytest.mark.exhaustive(but=['9'])
@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_the_worker_ends_with_us(number):
  program = subprocess.Popen(
    [sys.executable, '-c', _NATIVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    env={**os.environ, 'PYTHONPATH': os.getcwd()},
  )  # fmt: skip
  try:
    assert program.stdout.readline() == b'ready\n'
    children = _children(program.pid)
    assert not _listening([program.pid, *children])
    worker = next(p for p in children if os.readlink(f'/proc/{p}/exe').endswith('worker_binary'))
    folder = os.readlink(f'/proc/{worker}/cwd')
    (name,) = _unix_listening([worker])  # a socket in a folder that is closed to others
    assert os.path.exists(os.path.join(folder, name))
    assert os.stat(folder).st_mode & 0o777 == 0o700
  finally:
    program.send_signal(number)
    program.wait(20)
  deadline = time.monotonic() + 10
  alive = children
  while alive and time.monotonic() < deadline:
    time.sleep(0.1)
    alive = [pid for pid in children if os.path.exists(f'/proc/{pid}') and _runs(pid)]
  assert not alive
  assert not os.path.exists(folder)


def test_the_compiled_runtime_listens_to_nobody():
  import runtime
  from tests.trust import targets

  with runtime.create('xla') as machine:
    target = targets.target('fedavg', targets.client_level(1.0))
    machine.to_numpy(target.method.initial_server_state(0, noise_key=NoiseKey.fresh()))
    assert not _listening([os.getpid(), *_children(os.getpid())])


def _runs(pid):
  try:
    with open(f'/proc/{pid}/stat') as stat:
      return stat.read().rpartition(')')[2].split()[0] not in 'ZX'
  except OSError:
    return False


# --------------------------------------------------------------------- long runs


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ten_thousand_rounds_leave_nothing_behind(tmp_path, monkeypatch):
  """No growth in memory, files or threads; epsilon to the last round."""
  rounds, seen = 10_000, {}
  generator = np.random.default_rng(0)
  x = generator.normal(size=(6, 4, 2)).astype(np.float32)
  examples = datasets.ClientExamples(x=x, y=x.sum(axis=2), num_examples=np.full(6, 4, np.int32))
  dataset = datasets.FederatedDataset(
    name='small', task=datasets.Task(kind='regression', num_outputs=1, example_shape=(2,)),
    train=examples, test=examples, server_test=examples.pooled(),
    client_ids=tuple('abcdef'), groups={}, checksums={}, citation='none',
  )  # fmt: skip
  config = ExperimentConfig(
    rounds=rounds, eval_every=2000, checkpoint_every=2500, clients_per_round=3, privacy='client',
    noise_multiplier=30.0, delta=1e-2, output_dir=str(tmp_path / 'run'), batch_size=4,
    client_learning_rate=0.01,
  )  # fmt: skip
  create = runner.create_runtime

  def watched(config, **options):
    machine = create(config, **options)
    advance, count = machine.round, [0]

    def round_(*arguments, **keywords):
      count[0] += 1
      if count[0] in (1500, rounds):
        seen[count[0]] = _footprint()
      return advance(*arguments, **keywords)

    machine.round = round_
    return machine

  monkeypatch.setattr(runner, 'create_runtime', watched)
  from experiments.running import build

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    result = runner.run(build.build_process(config, dataset), show_progress=False)
  early, late = seen[1500], seen[rounds]
  assert late['threads'] <= early['threads'] + 2
  assert late['files'] <= early['files'] + 4
  assert late['bytes'] < early['bytes'] + 60 * 2**20
  plan_ = build.build_plan(config, dataset)
  assert result.summary['rounds'] == result.privacy['rounds'] == rounds
  assert result.privacy['epsilon'] == plan_.epsilon(rounds) > plan_.epsilon(rounds - 1)
  assert int(result.server_state['round']) == int(result.server_state['query']['counter']) == rounds


def _footprint():
  with open('/proc/self/statm') as statm:
    pages = int(statm.read().split()[1])
  return {
    'bytes': pages * resource.getpagesize(),
    'files': len(os.listdir('/proc/self/fd')),
    'threads': len(os.listdir('/proc/self/task')),
  }
