"""Signals that come while the main thread is inside of a compiled program."""

import os
import signal
import subprocess
import sys
import time

import pytest
from absl.testing import flagsaver

from experiments.audits import command
from experiments.recipes import claims, reproduce
from experiments.reports import report
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


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
  ('tool', 'at', 'arguments', 'words'),
  [
    (report, 'read', ['somewhere'], 'stopped; the same command writes the report'),
    (reproduce, 'reproduce', ['silo_fig7'], 'continue with ./fl reproduce silo_fig7'),
    (claims, 'run', ['--run=theory'], 'continue with ./fl claims --run=theory'),
    (
      command, '_audit_configuration',
      ['--privacy=client', '--noise_multiplier=1', '--delta=1e-3'],
      'stopped; nothing is kept of an audit',
    ),
  ],
)  # fmt: skip
def test_every_command_ends_with_a_line(tool, at, arguments, words, number, monkeypatch, capsys):
  """Also where it is outside of a sweep, which has words of its own."""
  monkeypatch.setattr(tool, at, lambda *_, **__: os.kill(os.getpid(), number))
  before = signal.getsignal(number)
  with flagsaver.flagsaver():
    assert tool.main(['command', *arguments]) == 128 + number
  assert signal.getsignal(number) is before
  captured = capsys.readouterr()
  assert words in captured.err.splitlines()[-1] and 'Traceback' not in captured.err
  assert not captured.out
