"""Folders that go with their process."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from runtime import temporary

_PROGRAM = """
import pathlib, signal, sys, time
from runtime import temporary
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where a shell left the tests
folder = temporary.Folder('of-a-test-')
(pathlib.Path(folder.name) / 'file').write_text('content')
print(folder.name, flush=True)
if sys.argv[1] == 'stays':
  time.sleep(60)
"""


def _gone(path, seconds=10):
  until = time.monotonic() + seconds
  while path.exists() and time.monotonic() < until:
    time.sleep(0.02)
  return not path.exists()


def _keepers(name):
  """Processes that have the folder's name in their command, this one aside."""
  found = []
  for command in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError):  # it has just ended
      if int(command.parent.name) != os.getpid() and name.encode() in command.read_bytes():
        found.append(command.parent.name)
  return found


def _start(argument):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, argument], stdout=subprocess.PIPE, text=True
  )


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_folder_goes_with_a_process_that_is_killed(number):
  with _start('stays') as program:
    folder = pathlib.Path(program.stdout.readline().strip())
    assert (folder / 'file').exists() and _keepers(folder.name)
    program.send_signal(number)
  assert _gone(folder)


def test_a_folder_goes_with_a_process_that_ends():
  with _start('ends') as program:
    folder = pathlib.Path(program.stdout.readline().strip())
  assert _gone(folder)


@pytest.mark.parametrize('way', ['cleanup', 'del'])
def test_a_folder_goes_when_it_is_done_with_and_leaves_no_process(way):
  folder = temporary.Folder('of-a-test-')
  path = pathlib.Path(folder.name)
  assert path.stat().st_mode & 0o777 == 0o700
  if way == 'cleanup':
    folder.cleanup()
  else:
    del folder
  assert not path.exists()
  until = time.monotonic() + 10
  while _keepers(path.name) and time.monotonic() < until:
    time.sleep(0.02)
  assert not _keepers(path.name)


def test_a_folder_whose_keeper_was_killed_goes_all_the_same():
  folder = temporary.Folder('of-a-test-')
  for pid in _keepers(folder.name):
    os.kill(int(pid), signal.SIGKILL)
  until = time.monotonic() + 10
  while _keepers(folder.name) and time.monotonic() < until:
    time.sleep(0.02)
  folder.cleanup()
  folder.cleanup()  # does nothing
  assert not os.path.exists(folder.name)
