"""TFF's worker: it always ends, a pipe on the output closes, and it talks to us only."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import tensorflow_federated as tff

import runtime
from runtime import native_worker

PROGRAM = """
import signal
import sys
import tensorflow_federated as tff
import runtime

# What a shell runs in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

@tff.tensorflow.computation
def seven():
  return 7

machine = runtime.create('native')
assert seven() == 7
print('ready', flush=True)
{ending}
"""
ENDINGS = {
  'normal': 'machine.close()',
  'not_closed': '',
  'exception': 'raise ValueError("wrong")',
  'hard_exit': 'import os; os._exit(3)',
  'wait': 'import time; time.sleep(600)',
}


def _workers(parent: int) -> list[int]:
  """The worker processes of a session or parent, by what they inherited."""
  found = []
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      command = (folder / 'cmdline').read_bytes()
      environment = (folder / 'environ').read_bytes()
    except OSError:
      continue
    if b'worker_binary' in command and f'RUNTIME_TEST={parent}\0'.encode() in environment:
      found.append(int(folder.name))
  return found


def _start(ending: str) -> subprocess.Popen:
  environment = {**os.environ, 'RUNTIME_TEST': str(os.getpid())}
  return subprocess.Popen(
    [sys.executable, '-c', PROGRAM.format(ending=ENDINGS[ending])],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    env=environment,
    text=True,
  )


def _assert_no_worker_is_left():
  deadline = time.monotonic() + 20.0
  while _workers(os.getpid()) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not _workers(os.getpid())


@pytest.mark.exhaustive(but=['hard_exit'])
@pytest.mark.slow
@pytest.mark.parametrize('ending', ['normal', 'not_closed', 'exception', 'hard_exit'])
def test_worker_ends_with_the_program_and_the_pipe_closes(ending):
  program = _start(ending)
  output, _ = program.communicate(timeout=120)  # Returns when the pipe is closed.
  assert 'ready' in output
  _assert_no_worker_is_left()


@pytest.mark.exhaustive(but=['9'])
@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_worker_ends_with_a_signal(number):
  program = _start('wait')
  try:
    assert program.stdout is not None
    while 'ready' not in program.stdout.readline():
      assert program.poll() is None
    assert _workers(os.getpid())
    program.send_signal(number)
    program.communicate(timeout=60)
    _assert_no_worker_is_left()
  finally:
    program.kill()


def _binary(folder: pathlib.Path, content: bytes) -> str:
  path = folder / 'worker_binary'
  path.write_bytes(content)
  return str(path)


def test_a_private_copy_differs_in_the_address_only(tmp_path):
  content = b'#!/bin/sh\0port\0[::]:\0x[::]:y\0'
  copy = pathlib.Path(native_worker.private_copy(_binary(tmp_path, content)))
  assert copy.read_bytes() == b'#!/bin/sh\0port\0unix:\0x[::]:y\0'
  assert copy.parent.stat().st_mode & 0o777 == 0o700 and copy.stat().st_mode & 0o777 == 0o500
  copy.unlink()
  copy.parent.rmdir()


@pytest.mark.parametrize(
  ('content', 'long', 'message'),
  [
    (b'no address\0', False, 'exactly once'),
    (b'\0[::]:\0 and \0[::]:\0', False, 'exactly once'),
    (b'\0[::]:\0', True, 'too long for a socket'),
  ],
)
def test_no_private_copy_leaves_nothing(tmp_path, monkeypatch, content, long, message):
  temporary = tmp_path / ('t' * 100 if long else 't')
  temporary.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(temporary))
  with pytest.raises(OSError, match=message):
    native_worker.private_copy(_binary(tmp_path, content))
  assert not list(temporary.iterdir())


@pytest.mark.slow
def test_without_a_private_copy_it_says_where_it_listens(monkeypatch, caplog):
  def refuse(binary):
    raise OSError('programs may not be run in /elsewhere')

  monkeypatch.setattr(native_worker, 'private_copy', refuse)
  worker = native_worker.Worker()
  try:
    assert worker.stub().is_ready
  finally:
    worker.close()
  (line,) = [r.getMessage() for r in caplog.records if r.levelname == 'WARNING']
  assert 'listens on every network interface' in line and 'may not be run in /elsewhere' in line


@pytest.mark.slow
def test_what_tffs_compiler_does_is_counted_and_timed():
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def add(values):
    return tff.federated_sum(values)

  with runtime.NativeContext() as context:
    for _ in range(3):
      assert add([1.0, 2.0]) == 3.0
  assert context.statistics.compilations == context.statistics.programs == 1
  assert context.statistics.seconds > 0.0
