"""A folder of Parquet files: the examples of each client, from disk, and what is refused."""

import copy
import gc
import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import datasets
from datasets import parquet, registry

COLUMNS = dict(client_column='who', target='y')


def frame(rows=400, clients=9, seed=0):
  """Each row knows whose it is, and which one it is."""
  rng = np.random.default_rng(seed)
  who = np.concatenate([np.repeat(np.arange(clients), 2), rng.integers(0, clients, rows)])
  rng.shuffle(who)
  return pd.DataFrame(
    {
      'who': [f'user {k}' for k in who],
      'number': np.arange(len(who), dtype=np.float64),
      'whose': who.astype(np.int16),
      'y': (np.arange(len(who)) % 3).astype(np.int64),
    }
  )


@pytest.fixture(name='small_parts', autouse=True)
def _small_parts(monkeypatch):
  monkeypatch.setattr(parquet, '_ROWS_AT_ONCE', 50)
  monkeypatch.setattr(parquet, '_BYTES_AT_ONCE', 400)


@pytest.fixture(name='folder')
def _folder(tmp_path):
  table = frame()
  (tmp_path / 'data' / 'more').mkdir(parents=True)
  order = np.random.default_rng(1).permutation(len(table))  # so that the index is a column
  table.iloc[order[:150]].to_parquet(tmp_path / 'data' / 'a.parquet')
  table.iloc[order[150:]].to_parquet(tmp_path / 'data' / 'more' / 'b.parquet')
  return tmp_path / 'data'


@pytest.fixture(name='read')
def _read(tmp_path):
  def read(folder, **options):
    options = {**COLUMNS, 'task': 'classification', 'cache': tmp_path / 'cache', **options}
    return datasets.from_parquet(folder, **options)

  return read


def rows_of(examples, client):
  count = examples.num_examples[client]
  return examples.x[client, :count], examples.y[client, :count]


def test_every_row_is_its_clients_and_is_trained_on_or_tested_on(folder, read):
  table, data = frame(), read(folder)
  everyone = np.arange(9)
  train, test = data.train.load(everyone), data.test.load(everyone)
  assert tuple(data.client_ids) == tuple(f'user {k}' for k in range(9))
  assert data.name == 'data' and data.task.num_outputs == 3
  assert train.x.dtype == np.float32
  for k in everyone:
    own = [rows_of(part, k) for part in (train, test)]
    numbers = np.concatenate([x[:, 0] for x, _ in own]).astype(int)
    expected = table[table.who == f'user {k}']
    assert sorted(numbers) == sorted(expected.number)
    for x, y in own:
      assert (x[:, 1] == k).all()
      np.testing.assert_array_equal(y, x[:, 0].astype(int) % 3)
    assert len(own[1][0]) == max(1, round(0.2 * len(expected)))
    np.testing.assert_array_equal(data.train.read(k)[0], own[0][0])


def test_the_seed_decides_the_split_and_nothing_else_is_made_again(folder, read, monkeypatch):
  first = read(folder)
  monkeypatch.setattr(parquet, '_convert', None)
  again, other = read(folder), read(folder, seed=1)
  everyone = np.arange(9)
  np.testing.assert_array_equal(first.test.load(everyone).x, again.test.load(everyone).x)
  mine, others = (
    [set(rows_of(d.test.load(everyone), k)[0][:, 0]) for k in range(9)] for d in (first, other)
  )
  assert sum(a != b for a, b in zip(mine, others, strict=True)) > 4
  half = read(folder, test_fraction=0.5)
  assert half.test.num_examples.sum() > 2 * first.test.num_examples.sum()


def test_who_is_tested_on_is_a_random_sample_of_each_client(folder, read):
  """Over many seeds each row about equally often; rows in the files' order are told from it."""
  counts = np.zeros(len(frame()))
  for seed in range(200):
    test = read(folder, seed=seed).test
    for k in range(9):
      counts[test.read(k)[0][:, 0].astype(int)] += 1
  own = frame().groupby('who').number.apply(lambda n: n.astype(int).to_numpy())
  for rows in own:
    share = counts[rows] / 200
    assert abs(share.mean() - 0.2) < 0.05 and share.max() < 0.4 and share.min() > 0.04
  # Neighbours of the files are not tested on together, as they would be without the shuffle.
  tests = [set(read(folder, seed=seed).test.read(0)[0][:, 0].astype(int)) for seed in range(40)]
  rows = own['user 0']
  together = np.mean([(a in t) and (b in t) for t in tests for a, b in itertools.pairwise(rows)])
  assert together < 0.12


def test_a_changed_folder_is_read_again(folder, read):
  before = read(folder)
  frame().iloc[np.arange(200)[::-1]].to_parquet(folder / 'more' / 'b.parquet')
  after = read(folder)
  assert after.train.num_examples.sum() < before.train.num_examples.sum()
  assert before.checksums['a.parquet'] == after.checksums['a.parquet']
  assert before.checksums['more/b.parquet'] != after.checksums['more/b.parquet']


def test_lists_and_bytes(tmp_path, read):
  images = np.random.default_rng(0).integers(0, 256, (12, 6), np.uint8)
  columns = {'who': pa.array([3, 1, 2] * 4), 'y': pa.array(np.linspace(-1, 1, 12))}
  for name, list_type in (('fixed', pa.list_(pa.uint8(), 6)), ('free', pa.list_(pa.uint8()))):
    folder = tmp_path / name
    folder.mkdir()
    column = pa.array(images.tolist(), list_type)
    pq.write_table(pa.table({**columns, 'pixels': column}), folder / 'x.parquet')
    data = read(folder, task='regression', example_shape=(3, 2))
    assert data.train.load(np.array([2])).x.shape == (1, 3, 3, 2)
    assert data.train.x.dtype == np.uint8 and tuple(data.client_ids) == ('1', '2', '3')
    found = np.concatenate([data.train.read(2)[0], data.test.read(2)[0]]).reshape(-1, 6)
    assert sorted(found.tolist()) == sorted(images[::3].tolist())


def test_tasks_are_inferred_and_said(tmp_path, read):
  for name, values, task in (
    ('two', ['no', 'yes'] * 6, 'binary'),
    ('text', ['a', 'b', 'c'] * 4, 'classification'),
    ('whole', [5, 7, 9] * 4, 'classification'),
    ('number', np.linspace(0, 1, 12), 'regression'),
  ):
    (tmp_path / name).mkdir()
    table = pd.DataFrame({'who': [0, 1, 2] * 4, 'x': np.arange(12), 'y': values})
    table.to_parquet(tmp_path / name / 'x.parquet')
    with pytest.warns(UserWarning, match=f'was taken as a {task} target'):
      data = read(tmp_path / name, task=None)
    assert data.task.kind == task and 'inferred' in data.preprocessing[0]


def test_some_of_the_clients(folder, read):
  data = read(folder)
  chosen = np.array([7, 2])
  np.testing.assert_array_equal(data.train.select(chosen).load(np.array([0])).x,
                                data.train.load(np.array([7])).x)  # fmt: skip
  assert not len(data.train.load(np.array([], int)).x)


def test_a_copy_of_the_clients_does_not_close_their_files(folder, read):
  train = read(folder).train
  rows = np.arange(train.num_clients)
  expected = train.load(rows).x.copy()
  for other in (copy.deepcopy(train), pickle.loads(pickle.dumps(train))):
    np.testing.assert_array_equal(other.load(rows).x, expected)
    del other
  gc.collect()
  np.testing.assert_array_equal(train.load(rows).x, expected)


def test_a_file_that_was_cut_is_said(folder, read, tmp_path):
  data = read(folder)
  (found,) = (tmp_path / 'cache').glob('*/x')
  with open(found, 'r+b') as file:
    file.truncate(100)
  with pytest.raises(OSError, match='has been cut short'):
    data.train.load(np.arange(9))


def _with(column, values):
  table = frame()
  table[column] = values
  return table


WRONG = {
  'a column that is not there': (lambda: frame(), {'target': 'why'}, "no column 'why'"),
  'a misspelt column': (lambda: frame(), {'client_column': 'whoo'}, 'did you mean who'),
  'text as a feature': (lambda: _with('t', 'x'), {}, "column 't' is string, not a number"),
  'gaps in a feature': (lambda: _with('number', [np.nan, *range(417)]), {}, 'not finite|missing'),
  'infinity': (lambda: _with('number', [np.inf, *range(417)]), {}, 'not finite'),
  'gaps in the target': (lambda: _with('y', [None, *range(417)]), {}, "'y' has missing values"),
  'gaps in the clients': (lambda: _with('who', [None, *'a' * 417]), {}, "'who' has missing values"),
  'a client with one row': (lambda: _with('who', ['b', *'a' * 417]), {}, '1 clients have fewer'),
  'one class': (lambda: _with('y', 1), {}, 'has 1 values; a classification has 2 to 1000'),
  'names for classes': (
    lambda: _with('y', [f'name{i}' for i in range(418)]), {}, 'in 418 rows, which are no classes'),
  'three values for two': (lambda: frame(), {'task': 'binary'}, 'has 3 values; a binary task'),
  'text to regress on': (lambda: _with('y', 'a'), {'task': 'regression'}, 'no number to regress'),
  'fractional clients': (
    lambda: frame(), {'client_column': 'number', 'features': ['whose']}, 'whole numbers or text'),
  'a wrong shape': (lambda: frame(), {'example_shape': (3,)}, 'an example has 2'),
  'a wrong task': (lambda: frame(), {'task': 'clustering'}, 'allowed: regression'),
  'lists of two lengths': (
    lambda: _with('l', [[1.0], *[[1.0, 2.0]] * 417]), {}, 'have 1 to 2 numbers'),
}  # fmt: skip


@pytest.mark.parametrize('name', WRONG)
def test_what_cannot_be_read_is_one_line(name, tmp_path, read):
  make, options, words = WRONG[name]
  (tmp_path / 'wrong').mkdir()
  make().to_parquet(tmp_path / 'wrong' / 'x.parquet')
  with pytest.raises(ValueError, match=words) as error:
    read(tmp_path / 'wrong', **options)
  assert '\n' not in str(error.value)
  assert not list(tmp_path.glob('cache/.writing*'))


@pytest.mark.parametrize('kind', ['float32', 'float64'])
@pytest.mark.parametrize('task', [None, 'binary', 'classification', 'regression'])
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_target_that_is_not_finite_is_refused(value, task, kind, tmp_path, read):
  """Which is no gap, as other writers than pandas write it."""
  (tmp_path / 'wrong').mkdir()
  for name, targets in (('a', [0.0, 1.0] * 40), ('b', [1.0] * 79 + [value]), ('c', [value] * 80)):
    table = {'who': [0, 1] * 40, 'x': range(80), 'y': np.array(targets, kind)}
    pq.write_table(pa.table(table), tmp_path / 'wrong' / f'{name}.parquet')
  words = r"^column 'y' has values that are not finite, NaN or infinity, in /.*/wrong/b\.parquet; "
  with pytest.raises(ValueError, match=words):
    read(tmp_path / 'wrong', task=task)
  (tmp_path / 'wrong' / 'a.parquet').unlink()  # of one number and NaN, which look like two
  with pytest.raises(ValueError, match=words):
    read(tmp_path / 'wrong', task=task)
  assert not list((tmp_path / 'cache').iterdir())


def test_folders_that_cannot_be_read(tmp_path, folder, read):
  with pytest.raises(FileNotFoundError, match='there is no folder'):
    read(tmp_path / 'nowhere')
  options = {'silo_column': 'a', 'target_column': 'b'}
  with pytest.raises(FileNotFoundError, match=r'^--dataset=parquet:/no/where: there is no folder'):
    registry.load_dataset('parquet:/no/where', seed=0, **options)
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ValueError, match=r'has no files \*.parquet'):
    read(tmp_path / 'empty')
  frame().iloc[::-1].assign(number=1).to_parquet(folder / 'c.parquet')
  with pytest.raises(ValueError, match=r"the files differ: column 'number' is int64 in c\.parquet"):
    read(folder)
  (folder / 'c.parquet').write_text('nothing')
  with pytest.raises(ValueError, match=r'c.parquet is no Parquet file'):
    read(folder)


def test_by_the_command_lines_name(folder, tmp_path):
  name = f'parquet:{folder}'
  assert registry.is_table(name)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    data = datasets.load_dataset(
      name, seed=0, silo_column='who', target_column='y', task='classification',
      features='number', example_shape='1x1', cache=str(tmp_path / 'cache'), test_fraction=0.3,
    )  # fmt: skip
  assert data.train.load(np.array([0])).x.shape[2:] == (1, 1)
  with pytest.raises(ValueError, match=r'--dataset=parquet:.* needs --target_column'):
    datasets.load_dataset(name, seed=0, silo_column='who')
