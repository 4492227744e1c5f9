"""Kills the real command line at random moments, and compares what it comes to.

    python -m tests.trust.kills NAME KILLS FOLDER

The commands run in processes forked from this one, which has loaded TensorFlow and must not
have used it: its threads do not come along.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np
import pandas as pd

from experiments import cli
from experiments.folder import checkpoints
from experiments.sweeps import program as sweep_program
from runtime import interface
from runtime.hosts import runtime as hosts_runtime
from runtime.noise_key import NoiseKey
from runtime.xla import runtime as xla_runtime
from tests.experiments.timings import TIMINGS

_SMALL = (
  '--dataset=digits', '--dataset_option=num_clients=5', '--device=cpu', '--rounds=60',
  '--eval_every=10', '--checkpoint_every=1', '--delta=1e-2',
)  # fmt: skip
_ON_DISK = (
  *_SMALL, '--method=ditto', '--privacy=client', '--noise_multiplier=0.3',
  '--cohort_sampling_rate=0.6', '--client_states=disk',
)  # fmt: skip
COMMANDS = {
  # Rounds after the last checkpoint are lost, and their states with them.
  'cohort_workers': (*_ON_DISK, '--checkpoint_every=5', '--cohort_workers=2'),
  'ditto_on_disk': _ON_DISK,
  'dp_fedavg': (
    *_SMALL, '--method=dp_fedavg', '--noise_multiplier=0.3', '--cohort_sampling_rate=0.6',
    '--adaptive_clipping', '--quantile_noise_multiplier=3',
  ),
  'mr_mtl': (*_SMALL, '--method=mr_mtl', '--privacy=example', '--target_epsilon=8'),
  'sweep': (
    *_SMALL, '--method=mr_mtl', '--privacy=example', '--sweep=target_epsilon=4,8', '--seeds=0,1',
  ),
  'sweep_with_workers': (
    *_SMALL, '--method=mr_mtl', '--privacy=example', '--sweep=batch_size=16,32',
    '--target_epsilon=8', '--workers=2', '--noise_key=rehearsal',
  ),
}  # fmt: skip


def _start(log: pathlib.Path, *arguments: str) -> int:
  """Starts a command line in a forked process; returns its pid."""
  pid = os.fork()
  if pid:
    return pid
  code = 1
  try:
    os.setpgid(0, 0)
    for target in (1, 2):
      os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), target)
    code = cli.main(['run_experiment.py', *arguments])
  finally:
    os._exit(code)


def _finish(log: pathlib.Path, *arguments: str) -> None:
  status = os.waitpid(_start(log, *arguments), 0)[1]
  assert status == 0, log.read_text()[-2000:]


def _descendants(pid: int) -> list[int]:
  children = []
  with contextlib.suppress(OSError):
    for task in os.listdir(f'/proc/{pid}/task'):
      children += map(int, pathlib.Path(f'/proc/{pid}/task/{task}/children').read_text().split())
  return children + [pid_ for child in children for pid_ in _descendants(child)]


def _kill(pid: int, victims: list[int]) -> bool:
  """Kills processes, one of which is ours; whether that one was still at work."""
  for victim in victims:
    with contextlib.suppress(ProcessLookupError):
      os.kill(victim, signal.SIGKILL)
  return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def _wait_for_the_end(pids: list[int]) -> None:
  """Of workers whose parent was killed: they keep what they did, and go."""
  deadline = time.monotonic() + 120
  while any(os.path.exists(f'/proc/{pid}') for pid in pids):
    assert time.monotonic() < deadline
    time.sleep(0.05)


def _newest(folder: pathlib.Path) -> int:
  """When the last checkpoint or results were written, in nanoseconds."""
  times = [0]
  for pattern in ('*.npz', '*.parquet', 'summary.json'):
    for path in folder.rglob(pattern):
      with contextlib.suppress(FileNotFoundError):  # removed while we looked
        times.append(path.stat().st_mtime_ns)
  return max(times)


def _kill_at_random(rng: random.Random, folder: pathlib.Path, log: pathlib.Path, arguments) -> bool:
  """Starts or resumes the command and kills it; whether it was at work then."""
  before = _newest(folder)
  pid = _start(log, *arguments, f'--output_dir={folder}', '--resume')
  if rng.random() < 0.2:  # at the start: making the folder, reading the checkpoint, compiling
    time.sleep(rng.uniform(0.0, 5.0))
  else:  # while rounds are run and written, or results
    deadline = time.monotonic() + rng.uniform(5.0, 40.0)
    while _newest(folder) == before and time.monotonic() < deadline:
      if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        break
      time.sleep(0.002)
    time.sleep(rng.expovariate(1 / 0.3))
  children = _descendants(pid)
  # The command alone, or all at once, as when the power fails.
  killed = _kill(pid, [pid] if rng.random() < 0.5 else [pid, *children])
  _wait_for_the_end(children)
  return killed


def _check_spent(folder: pathlib.Path) -> None:
  """What the metrics tell has been counted, at whatever moment the run was killed."""
  for path in folder.rglob('metrics.parquet'):
    privacy = json.loads((path.parent / 'privacy.json').read_text())
    assert privacy['rounds'] >= pd.read_parquet(path)['round'].max()


def _record_releases(machine: type[interface.Runtime], path: pathlib.Path) -> None:
  """Appends a digest of the server state after each round of every process to a file."""
  original = machine.round

  def round_(self, next_, server, *arguments, settings=None, **keywords):
    server, metrics = original(self, next_, server, *arguments, settings=settings, **keywords)
    state = checkpoints.flatten(self.to_numpy(server))
    digest = hashlib.sha256(b''.join(leaf.tobytes() for leaf in state.values())).hexdigest()
    with open(path, 'a') as file:
      # A sweep runs seeds whose data have other shapes one after the other.
      seeds = ','.join(map(str, np.ravel(state['seed'])))
      file.write(f'{seeds} {np.ravel(state["round"])[0]} {digest}\n')
    return server, metrics

  machine.round = round_  # type: ignore[method-assign]


def _check_replays(path: pathlib.Path) -> int:
  """Rounds that were lost are replayed bit for bit; how many were."""
  digests, replays = collections.defaultdict(set), 0
  for line in path.read_text().splitlines():
    seeds, round_, digest = line.split()
    replays += digest in digests[seeds, round_]
    digests[seeds, round_].add(digest)
  assert all(len(values) == 1 for values in digests.values())
  return replays


def _results(folder: pathlib.Path):
  """Everything that must not depend on interruptions, of a run or of a sweep's runs."""
  found = {}
  for summary_file in sorted(folder.rglob('summary.json')):
    run = summary_file.parent
    summary = json.loads(summary_file.read_text())
    summary = {name: value for name, value in summary.items() if name not in TIMINGS}
    # How many runs shared a program depends on how many were left.
    summary.pop('runs_at_once', None)
    states = checkpoints.list_files(run / 'checkpoints')
    found[str(run.relative_to(folder))] = (
      summary,
      json.loads((run / 'privacy.json').read_text()),
      pd.read_parquet(run / 'metrics.parquet'),
      _in_place(checkpoints.load(states[-1]), run) if states else {},
    )
  return found


def _in_place(checkpoint: checkpoints.Checkpoint, run: pathlib.Path):
  """A checkpoint's arrays; of clients' states on disk what they are, and not where."""
  arrays, records = checkpoint.arrays, checkpoints.client_records(checkpoint)
  found = {name: a for name, a in arrays.items() if not name.startswith('client_records/')}
  if len(found) < len(arrays):
    for name, part in records.items():
      size = int(part['record_bytes'])
      content = (checkpoints.client_states(run / 'checkpoints') / name).read_bytes()
      for client, slot in zip(part['clients'], part['slots'], strict=True):
        record = content[(slot - 1) * size : slot * size]
        found[f'client {client}'] = np.frombuffer(record, np.uint8)
  return found


def _assert_same(folder: pathlib.Path, reference: pathlib.Path) -> None:
  mine, expected = _results(folder), _results(reference)
  assert mine.keys() == expected.keys() and mine
  for name, (summary, privacy, table, states) in mine.items():
    expected_summary, expected_privacy, expected_table, expected_states = expected[name]
    assert summary == expected_summary and privacy == expected_privacy
    assert privacy['rounds'] == 60
    pd.testing.assert_frame_equal(table, expected_table, check_exact=True)
    assert states.keys() == expected_states.keys()
    for leaf, value in states.items():
      np.testing.assert_array_equal(value, expected_states[leaf], err_msg=leaf)
  if (reference / 'table.csv').exists():
    assert (folder / 'table.csv').read_text() == (reference / 'table.csv').read_text()
  assert not list(folder.rglob('.writing-*')) and not list(folder.rglob('.noise_key'))


def main(name: str, kills: int, folder: pathlib.Path) -> None:
  """Kills the command `name` until it was killed often enough; raises if a result differs."""
  sweep_program._SECONDS_BETWEEN_CHECKPOINTS = 0.0
  # Secret keys which are the same in the run that is never killed.
  NoiseKey.fresh = classmethod(lambda cls: cls(bytes(32)))  # type: ignore[method-assign]
  for machine in (xla_runtime.XlaRuntime, hosts_runtime.HostsRuntime):
    _record_releases(machine, folder / 'releases')
  arguments, rng, log = COMMANDS[name], random.Random(name), folder / 'log'
  _finish(log, *arguments, f'--output_dir={folder}/reference')
  done = ended = 0
  while done < kills:
    run = folder / f'run{ended}'
    if _kill_at_random(rng, run, log, arguments):
      done += 1
      _check_spent(run)
    else:  # it came to its end before: another one
      _assert_same(run, folder / 'reference')
      ended += 1
  run = folder / f'run{ended}'
  _finish(log, *arguments, f'--output_dir={run}', '--resume')
  _assert_same(run, folder / 'reference')
  replays = 0
  if '--workers=2' not in arguments:  # whose rounds are run by programs of their own
    replays = _check_replays(folder / 'releases')
  print(f'{name}: {done} kills, {ended + 1} whole runs compared, {replays} rounds replayed')


if __name__ == '__main__':
  # Ray's folders outlive who is killed; the folder of a test has too long a name for its sockets.
  with tempfile.TemporaryDirectory(prefix='k-', ignore_cleanup_errors=True) as temporary:
    tempfile.tempdir = temporary
    main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]))
  sys.stdout.flush()
  os._exit(0)  # TensorFlow's threads may end a process that forked with an abort.
