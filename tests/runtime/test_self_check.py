"""What somebody with a GPU runs first."""

import sys

import pytest

from runtime import self_check


@pytest.mark.slow
def test_two_cores_one_and_tffs_own_agree(capsys):
  assert self_check.check('cpu,cpu')
  output = capsys.readouterr().out
  assert 'using: cpu,cpu' in output
  for row in ('xla on cpu,cpu', 'xla on cpu ', "TFF's own runtime"):
    assert row in output
  assert output.endswith('All agree.\n')


def test_numbers_that_differ_are_said(monkeypatch, capsys):
  monkeypatch.setattr(self_check, 'TOLERANCE', -1.0)
  assert not self_check.check('cpu', native=False)
  assert 'The numbers DIFFER' in capsys.readouterr().out


def test_a_device_that_is_not_there_is_one_line(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['self_check', '--device=cpu:9', '--skip_native'])
  assert self_check.main() == 2
  assert capsys.readouterr().err.startswith("device='cpu:9': TensorFlow sees 1 CPU device(s).")
