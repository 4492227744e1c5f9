"""The evidence that a lent GPU gives: pieces that go on where they stopped, on the CPU."""

import json

import pytest
import tensorflow as tf

from benchmarks import gpu_evidence
from benchmarks.gpu_evidence import Piece
from runtime import self_check

WRITES = 'import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + "x")'
# Counts its calls; the second one finishes.
LONG = """
import pathlib, sys, time
p = pathlib.Path(sys.argv[1])
p.write_text(p.read_text() + 'x')
if len(p.read_text()) < 2:
  time.sleep(60)
print('finished')
"""


def _piece(code, marker, **changes):
  marker.write_text('')
  return Piece(
    **{
      'name': 'p',
      'what': 'a piece',
      'command': lambda folder: ['-c', code, str(marker)],
      **changes,
    }
  )


def test_what_was_done_stays_done(tmp_path):
  marker = tmp_path / 'calls'
  piece = _piece(WRITES + '; print(7)', marker)
  for _ in range(2):
    record = gpu_evidence.run_piece(piece, tmp_path / 'p')
    assert record['state'] == gpu_evidence.DONE and record['text'] == '7'
  assert marker.read_text() == 'x'


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_piece_over_the_limit_is_continued_by_the_next_call(tmp_path):
  marker = tmp_path / 'calls'
  piece = _piece(LONG, marker, continued=True)
  record = gpu_evidence.run_piece(piece, tmp_path / 'p', limit=2.0)
  assert record['state'] == gpu_evidence.GOES_ON and record['seconds'] >= 2.0
  record = gpu_evidence.run_piece(piece, tmp_path / 'p', limit=30.0)
  assert record['state'] == gpu_evidence.DONE and record['text'] == 'finished'
  assert record['seconds'] >= 2.0  # of both calls


def test_failures_and_missing_gpus_are_said(tmp_path):
  failing = _piece('import sys; sys.exit("no luck")', tmp_path / 'calls')
  record = gpu_evidence.run_piece(failing, tmp_path / 'p')
  assert record['state'] == gpu_evidence.FAILED and 'no luck' in record['text']
  late = _piece(LONG, tmp_path / 'calls')
  record = gpu_evidence.run_piece(late, tmp_path / 'late', limit=1.0)
  assert record['state'] == gpu_evidence.FAILED and 'over 1 s' in record['text']
  record = gpu_evidence.run_piece(failing, tmp_path / 'none', gpus=0)
  assert record['state'] == gpu_evidence.NOT_HERE
  text = gpu_evidence.page({'p': json.loads((tmp_path / 'p' / 'record.json').read_text())},
                           [failing], 'cpu', tiny=True)  # fmt: skip
  assert '**failed**' in text and 'no evidence' in text


@pytest.mark.slow
def test_a_gpu_that_tensorflow_does_not_see_is_a_failure(tmp_path, monkeypatch):
  """As on a machine whose driver lists GPUs: the two devices are not silently two cores."""
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
  (piece,) = (piece for piece in gpu_evidence.pieces('gpu') if piece.name == 'two_gpus')
  record = gpu_evidence.run_piece(piece, tmp_path / 'two', gpus=1)
  assert record['state'] == gpu_evidence.FAILED
  assert 'TensorFlow sees no GPU' in record['text'] and 'cpu,cpu' not in record['text']


@pytest.mark.parametrize(
  ('device', 'seen', 'checked'),
  [('cpu', 0, 'cpu,cpu'), ('gpu', 2, 'gpu:0,gpu:1'), ('gpu', 1, 'gpu:0,gpu:1'), ('gpu', 0, None)],
)
def test_two_devices_are_those_that_are_asked_for(monkeypatch, device, seen, checked):
  asked, halved = [], []
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [kind] * seen)
  monkeypatch.setattr(
    tf.config, 'set_logical_device_configuration', lambda gpu, parts: halved.extend(parts)
  )
  monkeypatch.setattr(self_check, 'check', lambda names, native: asked.append(names) or True)
  if checked is None:
    with pytest.raises(ValueError, match='TensorFlow sees no GPU'):
      gpu_evidence.two_devices(device)
  else:
    assert gpu_evidence.two_devices(device) == checked
  assert asked == [checked] * (checked is not None)
  assert len(halved) == 2 * (seen == 1)


def test_every_piece_has_a_command_below_ten_minutes(tmp_path):
  for device in ('cpu', 'gpu'):
    for piece in gpu_evidence.pieces(device):
      command = piece.command(tmp_path)
      assert command[0] in ('-m', 'run_experiment.py')
      assert any(device in part for part in command), piece.name
  assert gpu_evidence.LIMIT_SECONDS + gpu_evidence._GRACE_SECONDS < 600
  with pytest.raises(SystemExit):
    gpu_evidence.main(['--pieces=none-such'])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_rehearsal_on_the_cpu(tmp_path, capsys):
  """The pieces of this file's own, and those that train, on the CPU at tiny sizes."""
  status = gpu_evidence.main(
    [
      '--device=cpu', '--tiny', f'--output={tmp_path}',
      '--pieces=check,parity,tests,sweep,two_gpus,convolution',
    ]
  )  # fmt: skip
  out = capsys.readouterr().out
  assert status == 0, out
  page = (tmp_path / 'gpu_evidence.md').read_text()
  assert page.count('| done |') == 6 and 'largest difference' in page and '4 runs' in page
