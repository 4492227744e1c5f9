"""The forms that data sets are padded to are their computation's, and are forgotten with it."""

import numpy as np
import pytest
import tensorflow_federated as tff

from runtime import interface
from runtime.xla import lowered
from runtime.xla.lowering import support

NUMBERS = tff.SequenceType(tff.TensorType(np.int32, []))
ROWS = tff.SequenceType(tff.TensorType(np.int32, [None]))
KEY = 12345  # as an id, which CPython gives to another computation once its own is freed
PIECE = (KEY, 0, frozenset())


@pytest.fixture
def programs():
  return lowered.LoweredPrograms(
    devices=['CPU:0'], clients_per_block=None, statistics=interface.Statistics()
  )


def length(programs, key, type_, elements):
  """How many elements of a data set there is room for."""
  how = support.Lowering(is_needed=True, reasons=[])
  (type_,), *_ = programs.placed(key, how, [(type_, elements)], 0)
  return type_.member[0][0].shape[0]


@pytest.mark.parametrize('key', [KEY, PIECE])
def test_a_key_that_is_given_anew_has_no_forms_of_before(programs, key):
  assert length(programs, key, NUMBERS, list(range(8))) == 8
  assert length(programs, key, NUMBERS, list(range(5))) == 8
  programs.forget(KEY)
  assert length(programs, key, NUMBERS, list(range(5))) == 5
  programs.forget(KEY)
  assert length(programs, key, ROWS, [np.zeros(3, np.int32)] * 2) == 2


def test_another_computations_forms_stay(programs):
  for key in (KEY + 1, (KEY + 1, 0, frozenset())):
    assert length(programs, key, NUMBERS, list(range(8))) == 8
    programs.forget(KEY)
    assert length(programs, key, NUMBERS, list(range(5))) == 8
