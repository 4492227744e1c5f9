"""States of int32, of which TensorFlow has no variables on a GPU, are as on a CPU."""

import numpy as np
import pytest

import runtime
from runtime.xla import state_variables
from tests.runtime import example_process as example


@pytest.fixture
def _held_wider(monkeypatch):
  monkeypatch.setattr(state_variables, 'needs_wider', lambda dtype, device: dtype == np.int32)


@pytest.mark.parametrize('devices', ['cpu', 'cpu,cpu'])
def test_rounds_with_states_that_are_held_wider_are_the_same(devices, request):
  with runtime.create('xla') as xla:
    expected = example.run(xla)
  request.getfixturevalue('_held_wider')
  with runtime.create('xla', devices=devices) as xla:
    placed = xla.place_states(example.client_states())
    assert placed.tree['steps'].dtype == np.int64  # the test's own means
    found = example.run(xla)
  example.assert_same(expected, found)
  assert found[1]['steps'].dtype == np.int32


@pytest.mark.usefixtures('_held_wider')
def test_what_is_held_wider_comes_back_as_it_was_placed():
  states = {'count': np.array([-(2**31), 0, 2**31 - 1], np.int32), 'wide': np.array([1, 2, 3])}
  with runtime.create('xla') as xla:
    found = xla.place_states(states).to_numpy()
  for name, own in states.items():
    assert found[name].dtype == own.dtype
    np.testing.assert_array_equal(found[name], own)


@pytest.mark.usefixtures('_held_wider')
def test_states_of_another_dtype_are_refused_by_the_name_of_theirs():
  wrong = {**example.client_states(), 'personal': np.zeros([7, 4], np.int32)}
  with runtime.create('xla') as xla:
    placed, states = xla.place(example.data()), xla.place_states(wrong)
    with pytest.raises(ValueError, match=r'client_states\.personal has the dtype int32; float32'):
      xla.round(example.next_round, example.server_state(), states, placed, [0, 1])


def test_what_is_no_array_yet_is_copied_too():
  with runtime.create('xla') as xla:
    assert xla.to_numpy({'rate': 0.5, 'name': 'a'}) == {'rate': 0.5, 'name': 'a'}


def test_who_needs_it():
  assert state_variables.needs_wider(np.dtype(np.int32), '/device:GPU:0')
  assert not state_variables.needs_wider(np.dtype(np.int32), '/device:CPU:0')
  assert not state_variables.needs_wider(np.dtype(np.float32), '/device:GPU:0')
