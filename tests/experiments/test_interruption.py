"""Signals that come while the main thread is inside of a compiled program."""

import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.running import interruption

_BUSY = """
import hashlib
from experiments.running import interruption
with interruption.command(), interruption.Interruption() as caught:
  caught.defer()
  print('ready', flush=True)
  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # no Python for many minutes
"""


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_round_that_lasts(number):
  process = subprocess.Popen(
    [sys.executable, '-c', _BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  assert process.stdout is not None and process.stderr is not None
  assert process.stdout.readline() == 'ready\n'
  process.send_signal(number)
  said = process.stderr.readline()
  assert said == 'stopping after this round; a second signal stops at once\n'
  assert process.poll() is None
  process.send_signal(number)
  assert process.wait(60) == 128 + number
  assert process.stderr.read() == 'stopped at once; what was kept last is there\n'


@pytest.mark.parametrize('at_once', [False, True])
def test_a_main_thread_that_hears_its_signals_ends_by_itself(monkeypatch, capfd, at_once):
  monkeypatch.setattr(interruption, '_SAYS_AFTER', 0.05)
  ended: list[int] = []
  monkeypatch.setattr(os, '_exit', ended.append)
  with (
    pytest.raises(interruption.Interrupted),
    interruption.command(),
    interruption.Interruption() as caught,
  ):
    caught.defer()
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught.signal_number == signal.SIGTERM
    if not at_once:
      time.sleep(0.3)
    try:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(5)
    finally:
      time.sleep(0.5)  # what is to be kept takes longer than a second signal waits
  assert ended == [] and capfd.readouterr().err.count('a second signal stops at once') == 1
  # A user's own process is not ended, however often: a notebook's state is the user's.
  with interruption.Interruption() as caught:
    caught.defer()
    caught._handle = lambda number, frame: None  # as while a program runs
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, caught._handle)
    for _ in range(3):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.2)
  assert capfd.readouterr().err.splitlines() == ['stopping after this round'] * 3
  # Nothing is left of it: neither handlers nor a pipe.
  assert signal.set_wakeup_fd(-1) == -1
