import numpy as np
import pytest

from datasets import federated


def _examples(sizes=(2, 3), dim=4, y_dtype=np.int32):
  xs = [np.ones((n, dim), np.float32) for n in sizes]
  ys = [np.ones(n, y_dtype) for n in sizes]
  return federated.ClientExamples.from_lists(xs, ys)


def _dataset(**changes):
  fields = {
    'name': 'tiny',
    'task': federated.Task(kind='classification', num_outputs=2, example_shape=(4,)),
    'train': _examples(),
    'test': _examples((1, 1)),
    'client_ids': ('a', 'b'),
    'citation': 'none',
  }
  return federated.FederatedDataset(**{**fields, **changes})


def test_from_lists_pads_with_zeros():
  examples = _examples((2, 3))
  assert examples.x.shape == (2, 3, 4)
  np.testing.assert_array_equal(examples.num_examples, [2, 3])
  np.testing.assert_array_equal(examples.x[0, 2], np.zeros(4))
  np.testing.assert_array_equal(examples.mask, [[True, True, False], [True, True, True]])
  x, y = examples.pooled()
  assert x.shape == (5, 4) and y.shape == (5,)


def test_from_rows():
  x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6, dtype=np.int32)
  equal = federated.ClientExamples.from_rows(x, y, np.array([[5, 0], [1, 2]]))
  np.testing.assert_array_equal(equal.y, [[5, 0], [1, 2]])
  ragged = federated.ClientExamples.from_rows(x, y, [np.array([5]), np.array([1, 2])])
  np.testing.assert_array_equal(ragged.y, [[5, 0], [1, 2]])
  np.testing.assert_array_equal(ragged.num_examples, [1, 2])


def test_arrays_are_read_only_and_the_callers_are_not():
  x = np.zeros((1, 2, 3), np.float32)
  examples = federated.ClientExamples(
    x=x, y=np.zeros((1, 2), np.int32), num_examples=np.array([2], np.int32)
  )
  with pytest.raises(ValueError):
    examples.x[0, 0, 0] = 1
  x[0, 0, 0] = 1


def test_load_gathers_rows():
  examples = _examples((1, 2, 3)).load(np.array([2, 0]))
  np.testing.assert_array_equal(examples.num_examples, [3, 1])


def test_valid_dataset():
  dataset = _dataset(groups={'odd': np.array([False, True])})
  assert dataset.num_clients == 2
  with pytest.raises(TypeError):
    dataset.groups['even'] = np.array([True, False])


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'client_ids': ('a', 'a')}, 'not unique'),
    ({'client_ids': ('a',)}, 'train has 2 clients'),
    ({'train': _examples((0, 3))}, "client 'a' has no train examples"),
    ({'test': _examples((1, 0))}, "client 'b' has no test examples"),
    ({'train': _examples(dim=5)}, 'an example has shape'),
    ({'train': _examples(y_dtype=np.float32)}, 'labels are float32'),
    ({'groups': {'odd': np.array([True])}}, 'group odd'),
    (
      {'server_test': (np.ones((1, 4), np.float32), np.array([2], np.int32))},
      'label 2 is out of range; allowed: 0..1',
    ),
    (
      {'server_test': (np.full((1, 4), np.nan, np.float32), np.array([1], np.int32))},
      'NaN',
    ),
    (
      {'server_test': (np.ones((1, 4), np.float64), np.array([1], np.int32))},
      'float64',
    ),
  ],
)
def test_refuses_what_is_wrong_by_name(changes, message):
  with pytest.raises(ValueError, match=message):
    _dataset(**changes)


def test_the_servers_test_set_has_nobody_who_is_left_out():
  test = federated.ClientExamples.from_lists(
    [np.zeros((1, 4), np.float32), np.ones((2, 4), np.float32)],
    [np.ones(n, np.int32) for n in (1, 2)],
  )
  of_clients = _dataset(test=test, server_test=test.pooled()).with_at_least(3)
  assert of_clients.client_ids == ('b',)
  np.testing.assert_array_equal(of_clients.server_test[0], np.ones((2, 4)))
  assert len(of_clients.server_test[1]) == 2
  own = (np.full((5, 4), 7, np.float32), np.zeros(5, np.int32))
  assert _dataset(test=test, server_test=own).with_at_least(3).server_test == own


def test_refuses_padding_that_is_not_zero():
  x = np.ones((2, 3, 4), np.float32)
  train = federated.ClientExamples(
    x=x, y=np.zeros((2, 3), np.int32), num_examples=np.array([2, 3], np.int32)
  )
  with pytest.raises(ValueError, match='padding of train'):
    _dataset(train=train)


@pytest.mark.parametrize(
  ('kind', 'outputs', 'good', 'bad', 'loss_scale'),
  [
    ('regression', 1, [0.5], [np.nan], 4.5),
    ('binary', 1, [-1.0, 1.0], [0.0], 1.0),
    ('multilabel', 2, [[0.0, 1.0]], [[0.5, 1.0]], 1.0),
    ('classification', 3, [0, 2], [-1], np.log(3)),
  ],
)
def test_labels_of_each_task(kind, outputs, good, bad, loss_scale):
  task = federated.Task(kind=kind, num_outputs=outputs, example_shape=(1,), label_deviation=3.0)
  assert task.loss_scale == loss_scale
  task.check_labels(np.array(good, task.label_dtype), 'here')
  with pytest.raises(ValueError, match='out of range'):
    task.check_labels(np.array(bad, task.label_dtype), 'here')


@pytest.mark.parametrize(
  'fields',
  [
    {'kind': 'ranking', 'num_outputs': 1, 'example_shape': (1,)},
    {'kind': 'binary', 'num_outputs': 2, 'example_shape': (1,)},
    {'kind': 'classification', 'num_outputs': 1, 'example_shape': (1,)},
    {'kind': 'regression', 'num_outputs': 1, 'example_shape': (0,)},
  ],
)
def test_impossible_tasks(fields):
  with pytest.raises(ValueError):
    federated.Task(**fields)


@pytest.mark.parametrize(
  'fields',
  [
    {'x': np.ones((2, 3), np.float32)},
    {'x': np.ones((2, 3, 4))},
    {'y': np.ones((2, 3))},
    {'y': np.ones((2, 2), np.int32)},
    {'num_examples': np.array([1, 4], np.int32)},
    {'num_examples': np.array([1, 2])},
  ],
)
def test_examples_of_wrong_form(fields):
  good = {
    'x': np.ones((2, 3, 4), np.float32),
    'y': np.ones((2, 3), np.int32),
    'num_examples': np.array([1, 2], np.int32),
  }
  with pytest.raises(ValueError):
    federated.ClientExamples(**{**good, **fields})


def _source(sizes):
  def read(k):
    return np.full((sizes[k], 4), k + 1, np.float32), np.ones(sizes[k], np.int32)

  return federated.ClientSource(
    num_examples=np.array(sizes, np.int32), max_examples=max(sizes), read=read
  )


def test_source_loads_cohorts_of_one_shape():
  source = _source([3, 1, 2])
  cohort = source.load(np.array([1, 2]))
  assert cohort.x.shape == (2, 3, 4)
  np.testing.assert_array_equal(cohort.num_examples, [1, 2])
  assert cohort.x[1, 0, 0] == 3
  assert source.load(np.array([], np.int32)).x.shape == (0, 3, 4)


def test_source_must_keep_its_word():
  source = federated.ClientSource(
    num_examples=np.array([2], np.int32),
    max_examples=2,
    read=lambda k: (np.ones((1, 4), np.float32), np.ones(1, np.int32)),
  )
  with pytest.raises(ValueError, match='came with 1 examples; 2 were announced'):
    source.load(np.array([0]))


def test_source_prefetches_in_order():
  source = _source([3, 1, 2])
  cohorts = [np.array([k % 3]) for k in range(7)]
  loaded = list(source.prefetch(cohorts))
  assert [int(c.x[0, 0, 0]) - 1 for c in loaded] == [k % 3 for k in range(7)]


def test_dataset_takes_sources():
  dataset = _dataset(train=_source([3, 1]), test=_source([1, 1]))
  assert dataset.num_clients == 2


def test_who_stays_keeps_what_is_theirs():
  def split(counts):
    xs = [np.full((n, 4), k + 1, np.float32) for k, n in enumerate(counts)]
    return federated.ClientExamples.from_lists(xs, [np.ones(n, np.int32) for n in counts])

  def draw(round_):
    del round_
    return split([3, 1, 2])

  stream = federated.ClientStream(num_examples=np.array([3, 1, 2], np.int32), draw=draw)
  for train in (split([3, 1, 2]), _source([3, 1, 2]), stream):
    dataset = _dataset(
      train=train,
      test=split([1, 1, 1]),
      validation=split([0, 1, 2]),
      excess_risk=split([2, 2, 2]),
      client_ids=('a', 'b', 'c'),
      groups={'first': np.array([True, True, False]), 'last': np.array([False, False, True])},
      clusters=('first', 'last'),
    ).with_at_least(2)
    assert dataset.client_ids == ('a', 'c') and dataset.left_out == ('b',)
    for part, counts in (('train', [3, 2]), ('test', [1, 1]), ('validation', [0, 2]),
                         ('excess_risk', [2, 2])):  # fmt: skip
      own = getattr(dataset, part).load(np.arange(2))
      np.testing.assert_array_equal(own.num_examples, counts)
      np.testing.assert_array_equal(own.x[:, :, 0], own.mask * np.array([[1], [3]]))
    np.testing.assert_array_equal(dataset.true_clusters, [0, 1])
    if isinstance(dataset.train, federated.ClientStream):
      np.testing.assert_array_equal(dataset.train.draw(5).x[:, 0, 0], [1, 3])


def test_stream_is_drawn_ahead_in_order():
  def draw(round_):
    x = np.full((2, 3, 4), round_, np.float32)
    return federated.ClientExamples(
      x=x, y=np.ones((2, 3), np.int32), num_examples=np.full(2, 3, np.int32)
    )

  stream = federated.ClientStream(num_examples=np.full(2, 3, np.int32), draw=draw)
  assert stream.load(np.array([1])).x.shape == (1, 3, 4)
  assert [int(e.x[0, 0, 0]) for e in stream.prefetch(range(5, 12))] == list(range(5, 12))
  assert _dataset(train=stream, test=_source([1, 1])).num_clients == 2
