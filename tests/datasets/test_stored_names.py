"""Names in a file are those that were written, and are not listed."""

import pickle
import tracemalloc

import pytest

from datasets import stored_names

NAMES = ['', 'Ünal', 'user 3', 'zz', 'x' * 300]


@pytest.fixture(name='names')
def _names(tmp_path):
  stored_names.StoredNames.write(tmp_path / 'names', NAMES)
  return stored_names.StoredNames(tmp_path / 'names')


def test_they_are_a_sequence(names, tmp_path):
  assert list(names) == NAMES and len(names) == 5
  assert [names[k] for k in range(-5, 5)] == NAMES * 2
  for part in (slice(1, 3), slice(None), slice(4, 1), slice(None, None, -2), slice(-2, 9)):
    assert names[part] == tuple(NAMES[part])
  with pytest.raises(IndexError):
    names[5]
  assert 'zz' in names and 'y' not in names
  again = stored_names.StoredNames(tmp_path / 'names')
  assert again == names == pickle.loads(pickle.dumps(names)) and hash(again) == hash(names)
  assert names != tuple(NAMES)


def test_names_that_repeat_are_refused(tmp_path):
  with pytest.raises(ValueError, match='not unique'):
    stored_names.StoredNames.write(tmp_path / 'names', ['a', 'b', 'a'])


def test_a_population_takes_no_memory_for_them(tmp_path):
  count = 200_000
  stored_names.StoredNames.write(tmp_path / 'names', [f'user number {k}' for k in range(count)])
  tracemalloc.start()
  names = stored_names.StoredNames(tmp_path / 'names')
  assert names[count - 1] == f'user number {count - 1}'
  assert sum(1 for _ in names) == count  # part by part
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 12e6 < count * 65  # what the texts of a list would take
