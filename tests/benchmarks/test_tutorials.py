"""Programs like those of TFF's tutorials give TFF's numbers, compiled."""

import pytest

from benchmarks import tutorials


@pytest.mark.parametrize('name', ['custom algorithms 1', 'custom aggregators'])
def test_a_program_is_compiled_and_gives_the_same_numbers(native, name):
  found = tutorials.compare(tutorials.TUTORIALS[name](), native.context, rounds=2)
  assert found.difference < 1e-5
  assert found.how == 'all'
