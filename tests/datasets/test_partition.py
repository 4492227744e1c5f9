import numpy as np
import pytest
from sklearn import model_selection

from datasets import partition


def _generator(seed=0):
  return np.random.default_rng(seed)


@pytest.mark.parametrize('num_rows', [2, 22, 251])
@pytest.mark.parametrize('fraction', [0.2, 0.25, 0.5])
def test_split_is_scikit_learns(num_rows, fraction):
  train, test = partition.train_test_rows(num_rows, test_fraction=fraction, seed=100)
  expected_train, expected_test = model_selection.train_test_split(
    np.arange(num_rows), test_size=fraction, random_state=100
  )
  np.testing.assert_array_equal(train, expected_train)
  np.testing.assert_array_equal(test, expected_test)


def test_split_refuses():
  with pytest.raises(ValueError, match='1 rows cannot be split'):
    partition.train_test_rows(1, test_fraction=0.2, seed=0)
  with pytest.raises(ValueError, match='test_fraction is 1'):
    partition.train_test_rows(10, test_fraction=1.0, seed=0)


def test_split_keeps_a_row_on_each_side():
  train, test = partition.train_test_rows(2, test_fraction=0.99, seed=0)
  assert len(train) == len(test) == 1


def test_random_split():
  rows = np.array([4, 9, 2, 7, 1])
  train, test = partition.random_split(rows, test_fraction=0.4, generator=_generator())
  assert len(test) == 2
  np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.sort(rows))
  train, test = partition.random_split(rows[:2], test_fraction=0.01, generator=_generator())
  assert len(train) == len(test) == 1
  with pytest.raises(ValueError, match='1 rows cannot be split'):
    partition.random_split(rows[:1], test_fraction=0.4, generator=_generator())


def test_a_clients_split_does_not_depend_on_the_others():
  rows = [np.arange(10), np.arange(10, 30)]
  train, test = partition.random_splits(np.array([3, 8]), rows, test_fraction=0.2, seed=0)
  alone = partition.random_splits(np.array([8]), rows[1:], test_fraction=0.2, seed=0)
  np.testing.assert_array_equal(train[1], alone[0][0])
  np.testing.assert_array_equal(test[1], alone[1][0])
  assert [len(t) for t in test] == [2, 4]


def test_keep_density():
  rows = np.arange(100, 200)
  kept = partition.keep_density(rows, density=0.25, generator=_generator())
  assert len(kept) == 25 and set(kept) <= set(rows)
  assert partition.keep_density(rows, density=1.0, generator=_generator()) is rows
  assert len(partition.keep_density(rows[:2], density=0.01, generator=_generator())) == 1
  with pytest.raises(ValueError, match='density is 0'):
    partition.keep_density(rows, density=0, generator=_generator())


def test_deal_equally():
  rows = partition.deal_equally(103, 10, _generator())
  assert rows.shape == (10, 10)
  assert len(np.unique(rows)) == 100
  with pytest.raises(ValueError, match='num_clients is 200'):
    partition.deal_equally(103, 200, _generator())


@pytest.mark.parametrize('labels_per_client', [1, 2, 5, 10])
def test_labels_are_distinct_and_in_proportion(labels_per_client):
  counts = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
  assignment = partition.assign_labels(
    counts, num_clients=200, labels_per_client=labels_per_client, generator=_generator()
  )
  assert assignment.shape == (200, labels_per_client)
  assert all(len(set(labels)) == labels_per_client for labels in assignment)
  holders = np.bincount(assignment.ravel(), minlength=10)
  if labels_per_client < 10:
    assert np.all(np.abs(holders - counts / counts.sum() * 200 * labels_per_client) < 1)


def test_more_holders_than_clients_go_elsewhere():
  assignment = partition.assign_labels(
    np.array([1000, 1, 1, 1]), num_clients=6, labels_per_client=2, generator=_generator()
  )
  assert all(len(set(labels)) == 2 for labels in assignment)
  assert np.bincount(assignment.ravel()).sum() == 12


@pytest.mark.parametrize('labels_per_client', [1, 3])
def test_dealing_by_label(labels_per_client):
  labels = np.repeat(np.arange(10), np.arange(50, 60))
  assignment = partition.assign_labels(
    np.bincount(labels),
    num_clients=20,
    labels_per_client=labels_per_client,
    generator=_generator(),
  )
  rows = partition.deal_by_label(
    labels, assignment, examples_per_client=None, generator=_generator()
  )
  assert len(np.unique(rows)) == rows.size
  for client_rows, client_labels in zip(rows, assignment, strict=True):
    found, counts = np.unique(labels[client_rows], return_counts=True)
    np.testing.assert_array_equal(found, np.sort(client_labels))
    assert len(set(counts)) == 1


def test_dealing_too_many():
  labels = np.repeat([0, 1], 10)
  assignment = np.array([[0], [1], [0]])
  assert partition.deal_by_label(
    labels, assignment, examples_per_client=4, generator=_generator()
  ).shape == (3, 4)
  with pytest.raises(ValueError, match=r'examples_per_client is 6; it must be .* at most 5'):
    partition.deal_by_label(labels, assignment, examples_per_client=6, generator=_generator())


def test_dealing_by_share():
  labels = np.repeat([0, 1, 2], [100, 50, 30])
  assignment = np.array([[0, 1], [1, 0], [2, 0]])
  shares = np.array([[1.0, 3.0], [2.0, 1.0], [1.0, 2.0]])
  rows = partition.deal_by_share(labels, assignment, shares, generator=_generator())
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(180))
  counts = [np.bincount(labels[r], minlength=3).tolist() for r in rows]
  # Label 0 is shared 1 : 1 : 2, label 1 is shared 3 : 2.
  assert counts == [[25, 30, 0], [25, 20, 0], [50, 0, 30]]


def test_drawing_of_a_label():
  labels = np.repeat([0, 1], 10)
  client_labels = np.array([1, 0, 1])
  rows = partition.draw_of_label(labels, client_labels, size=4, generator=_generator())
  assert rows.shape == (3, 4)
  np.testing.assert_array_equal(labels[rows], np.repeat(client_labels[:, None], 4, axis=1))
  assert all(len(set(r)) == 4 for r in rows)
  with pytest.raises(ValueError, match='test_examples is 11'):
    partition.draw_of_label(labels, client_labels, size=11, generator=_generator())


def test_rows_by_client():
  ids, rows = partition.rows_by_client(np.array([7, 3, 7, 7, 3]))
  np.testing.assert_array_equal(ids, [3, 7])
  np.testing.assert_array_equal(rows[0], [1, 4])
  np.testing.assert_array_equal(rows[1], [0, 2, 3])


def test_labels_of_no_clients_are_refused():
  with pytest.raises(ValueError, match='num_clients is 0; it must be at least 1'):
    partition.assign_labels(
      np.ones(3), num_clients=0, labels_per_client=1, generator=np.random.default_rng(0)
    )
