import functools

import numpy as np
import pandas as pd
import pytest

import datasets


def _table(num_rows=60):
  generator = np.random.default_rng(0)
  return pd.DataFrame(
    {
      'hospital': np.array(['north', 'south', 'west'])[np.arange(num_rows) % 3],
      'age': generator.integers(20, 90, num_rows),
      'pressure': generator.normal(120, 10, num_rows),
      'smoker': generator.random(num_rows) < 0.5,
      'days': generator.integers(1, 30, num_rows),
      'outcome': np.array(['ill', 'well'])[generator.integers(0, 2, num_rows)],
    }
  )


def _load(df=None, **options):
  fields = {
    'silo_column': 'hospital', 'target': 'days', 'features': ['age', 'pressure', 'smoker'],
    'task': 'regression',
  }  # fmt: skip
  return datasets.from_dataframe(_table() if df is None else df, **{**fields, **options})


def test_regression():
  dataset = _load(target_bounds=(0, 30))
  assert dataset.client_ids == ('north', 'south', 'west')
  assert dataset.task.kind == 'regression' and dataset.task.example_shape == (3,)
  np.testing.assert_array_equal(dataset.train.num_examples, [16, 16, 16])
  np.testing.assert_allclose(dataset.train.x.mean(axis=1), 0, atol=1e-5)
  y = np.concatenate([dataset.train.pooled()[1], dataset.test.pooled()[1]])
  np.testing.assert_allclose(np.sort(y), np.sort(_table()['days'] / 30), rtol=1e-6)
  assert 'outside the guarantee' in dataset.preprocessing[0]
  assert dataset.task.label_deviation == pytest.approx(np.std(np.linspace(0, 1, 10_000)), rel=1e-3)
  assert _load().task.label_deviation == 1


def test_all_other_columns_are_features():
  df = _table().drop(columns='outcome')
  assert _load(df, features=None).task.example_shape == (3,)


def test_binary_and_classification():
  binary = _load(target='outcome', task='binary')
  assert set(np.unique(binary.train.y)) == {-1.0, 1.0}
  np.testing.assert_array_equal(binary.extras['target_values'], ['ill', 'well'])
  classes = _load(target='smoker', task='classification', features=['age'])
  assert classes.task.num_outputs == 2 and classes.train.y.dtype == np.int32


@pytest.mark.parametrize('dtype', [np.float64, np.float32])
def test_a_target_may_lie_on_its_bounds(dtype):
  df = _table().assign(days=np.where(np.arange(60) % 2, 0.1, 0.3).astype(dtype))
  dataset = _load(df, target_bounds=(0.1, 0.3))
  np.testing.assert_array_equal(np.unique(dataset.train.y), [0, 1])


def test_fixed_bounds():
  bounds = {'age': (0, 100), 'pressure': (110, 130), 'smoker': (0, 1)}
  dataset = _load(preprocessing='fixed', bounds=bounds)
  raw = _load(preprocessing='none')
  np.testing.assert_allclose(dataset.train.x[..., 0], raw.train.x[..., 0] / 100, rtol=1e-6)
  assert dataset.train.x.min() == 0 and dataset.train.x.max() == 1
  assert 'no privacy' in dataset.preprocessing[0]


@pytest.mark.parametrize(
  'options', [{}, {'preprocessing': 'fixed', 'bounds': {'time': (1.7e9, 1.7e9 + 59)}}]
)
def test_large_numbers_that_differ_little_are_scaled_before_they_are_float32(options):
  seconds = np.arange(60)
  df = _table().assign(time=1_700_000_000 + seconds, days=1_700_000_000 + seconds)
  bounds = (1.7e9, 1.7e9 + 59)
  dataset = _load(df, features=['time'], target_bounds=bounds, **options)
  assert dataset.train.x.dtype == np.float32
  for x, y in zip(dataset.train.x[..., 0], dataset.train.y, strict=True):
    assert len(np.unique(y)) == 16
    np.testing.assert_allclose(np.corrcoef(x, y)[0, 1], 1, rtol=1e-6)


def test_split_depends_on_the_seed_alone():
  first, again, other = (_load(seed=s) for s in (0, 0, 1))
  np.testing.assert_array_equal(first.test.x, again.test.x)
  assert first.checksums == again.checksums == other.checksums
  assert not np.array_equal(first.test.y, other.test.y)


def test_checksum_follows_the_contents():
  df = _table()
  df.loc[0, 'hospital'] = 'south'
  assert _load(df).checksums != _load().checksums


def test_whichever_columns_are_used_the_people_are_the_same():
  """A ledger knows data by their checksums: runs on one table share one."""

  def of_table(df=None, **options):
    return _load(df, **options).checksums['dataframe, the whole table']

  every = of_table()
  assert of_table(features=['age']) == every
  assert of_table(target='age', features=['pressure'], task='regression') == every
  mixed = _table().assign(
    ward=['a', None, *range(len(_table()) - 2)], day=pd.Timestamp('2026-01-02')
  )
  other = mixed.assign(day=pd.Timestamp('2026-01-03'))
  chosen = [of_table(df, features=['age']) for df in (mixed, other, mixed[mixed.columns[::-1]])]
  assert chosen[0] == chosen[2] != chosen[1] != every


def _with(column, value):
  df = _table().astype({'age': float})
  df.loc[3, column] = value
  return df


@pytest.mark.parametrize(
  ('df', 'options', 'message'),
  [
    (None, {'silo_column': 'clinic'}, "no column 'clinic'; it has hospital, age"),
    (None, {'target': 'death'}, "no column 'death'"),
    (None, {'features': ['weight']}, "no column 'weight'"),
    (None, {'features': ['age', 'days']}, "'days' cannot be a feature too"),
    (None, {'features': []}, 'no columns beside'),
    (None, {'features': ['outcome']}, 'not a number; encode it first'),
    (None, {'task': 'ranking'}, "task is 'ranking'"),
    (None, {'preprocessing': 'pca'}, "preprocessing is 'pca'"),
    (None, {'task': 'binary'}, 'a binary task has 2'),
    (None, {'target_bounds': (0, 10)}, 'beyond target_bounds'),
    (None, {'target_bounds': (10, 0)}, 'the first must be below'),
    (None, {'target': 'outcome', 'task': 'binary', 'target_bounds': (0, 1)}, 'is for regression'),
    (None, {'preprocessing': 'fixed'}, "bounds lacks 'age', 'pressure', 'smoker'"),
    (
      None,
      {'preprocessing': 'fixed', 'features': ['age'], 'bounds': {'age': (1, 1)}},
      "bounds of 'age'",
    ),
    (None, {'test_fraction': 0}, 'test_fraction is 0'),
    (_with('age', np.nan), {}, "'age' has 1 missing values"),
    (_with('age', np.inf), {}, "'age' has values that are not finite"),
    (
      _with('days', np.inf),
      dict(target='days', task='classification'),
      "'days' has values that are",
    ),
    (_with('days', np.inf), dict(target='days'), "'days' has values that are not finite"),
    (_with('hospital', 'east'), {}, 'fewer than two rows, .*: east; drop or merge'),
  ],
)
def test_clear_errors(df, options, message):
  with pytest.raises(ValueError, match=message):
    _load(df, **options)


@pytest.mark.parametrize(
  ('target', 'expected'),
  [
    ('outcome', 'binary'),
    ('smoker', 'binary'),
    ('grade', 'classification'),
    ('town', 'classification'),
    ('days', 'regression'),
    ('pressure', 'regression'),
    ('whole', 'regression'),
  ],
)
def test_the_task_is_inferred_and_said(target, expected):
  df = _table()
  df['grade'] = np.arange(60) % 5
  df['town'] = np.array(['A', 'B', 'C'])[np.arange(60) % 3]
  df['whole'] = np.arange(60)
  with pytest.warns(UserWarning, match=f"'{target}' was taken as a {expected} target"):
    dataset = _load(df, target=target, task=None, features=['age'])
  assert dataset.task.kind == expected
  assert any(f'the task is {expected} was inferred' in note for note in dataset.preprocessing)


def test_a_data_set_is_one_line():
  said = repr(_load(target='outcome', task='binary'))
  assert '\n' not in said and len(said) < 200
  for part in (
    '3 clients',
    '16 to 16 training rows (48)',
    '3 features',
    'binary',
    'labels -1 to 1',
  ):
    assert part in said


def test_small_clients_are_left_out():
  df = pd.concat([_table(), _table().assign(hospital='tiny')[:4]])
  dataset = _load(df)
  assert dataset.num_clients == 4
  larger = dataset.with_at_least(5)
  assert larger.client_ids == ('north', 'south', 'west')
  assert larger.train.num_examples.min() >= 5 and larger.test.num_clients == 3
  assert '1 of 4 clients are left out' in larger.preprocessing[-1]
  assert larger.left_out == ('tiny',) and larger.min_examples == 5
  assert larger.with_at_least(5) is larger
  assert larger.with_at_least(4) is larger  # examples held out since leave nobody out
  everybody = dataset.with_at_least(2)
  # That all are large enough is said, too: it follows from their data.
  assert '0 of 4 clients are left out' in everybody.preprocessing[-1] and not everybody.left_out
  with pytest.raises(ValueError, match='--min_examples=99 leaves nobody'):
    dataset.with_at_least(99)
  with pytest.raises(ValueError, match='--min_examples=0 must be'):
    dataset.with_at_least(0)


def test_a_silo_of_a_file_may_be_called_na(tmp_path):
  path = tmp_path / 't.csv'
  rows = [f'{"NA" if k % 3 else "None"},{k},{2 * k}' for k in range(30)]
  path.write_text('\n'.join(['country,x,y', *rows]))
  load = functools.partial(
    datasets.load_dataset, str(path), seed=0, silo_column='country', target_column='y',
    task='regression',
  )  # fmt: skip
  assert list(load().client_ids) == ['NA', 'None']
  path.write_text('\n'.join(['country,x,y', ',1,2', *rows]))
  with pytest.raises(ValueError, match="'country' has 1 missing values"):
    load()


@pytest.fixture(name='csv')
def _csv(tmp_path):
  """Reads a CSV file of 12 rows, whose silos are called so, in turn."""
  path = tmp_path / 't.csv'

  def load(names, *, silo_column='who', **columns):
    table = pd.DataFrame({'who': list(names) * (12 // len(names)), 'x': range(12), 'y': range(12)})
    table.assign(**columns).to_csv(path, index=False)
    return datasets.load_dataset(
      str(path), seed=0, silo_column=silo_column, target_column='y', task='regression',
      features='x',
    )  # fmt: skip

  return load


@pytest.mark.parametrize(
  ('written', 'ids'),
  [
    (['1', '01', '001'], ['001', '01', '1']),
    (['01', '02'], ['01', '02']),
    (['1', '2.50'], ['1', '2.50']),
    (['1', '1.0'], ['1', '1.0']),
    (['1', ' 2', '3 '], ['1', '2', '3']),
    (['true', 'FALSE'], ['FALSE', 'true']),
    (['1e3', '2'], ['1e3', '2']),
    ([str(2**70), '2'], [str(2**70), '2']),
    (['10', '9', '1'], ['1', '10', '9']),
    (['01', 'a'], ['01', 'a']),
    ([' a ', 'b'], [' a ', 'b']),
  ],
)
def test_silos_of_a_csv_file_are_called_what_stands_there(csv, written, ids):
  dataset = csv(written)
  assert list(dataset.client_ids) == ids
  assert dataset.train.num_examples.sum() + dataset.test.num_examples.sum() == 12


def test_silos_of_a_large_csv_file_are_not_numbers_in_some_of_its_parts(tmp_path):
  """pandas reads it in parts, and 7 is a number in those that have nothing else."""
  rows = 2**17
  silos = ['07'] * rows + ['7'] * rows + ['a', '7'] * 9
  (tmp_path / 't.csv').write_text('\n'.join(['who,x,y', *(f'{silo},1,2' for silo in silos)]))
  with pytest.warns(pd.errors.DtypeWarning):
    dataset = datasets.load_dataset(
      str(tmp_path / 't.csv'), seed=0, silo_column='who', target_column='y', task='regression',
      preprocessing='none',
    )  # fmt: skip
  assert dataset.client_ids == ('07', '7', 'a')
  counts = dataset.train.num_examples + dataset.test.num_examples
  assert counts.tolist() == [rows, rows + 9, 9]


def test_silos_as_written_leave_the_data_the_same(csv, tmp_path):
  """What ledgers and folders of earlier runs know data by; there, silos were pandas' numbers."""

  def as_before():
    return datasets.from_dataframe(
      pd.read_csv(tmp_path / 't.csv'), silo_column='who', target='y', task='regression',
      features=['x'], name='t',
    )  # fmt: skip

  for names in (['1', '2', '3'], ['1.0', '2.5'], ['True', 'False'], ['a', ' b '], ['1', 'b']):
    found, before = csv(names), as_before()
    assert found.client_ids == before.client_ids
    assert found.checksums == before.checksums and found.partition == before.partition
  found, before = csv(['01', '1']), as_before()
  same = [name for name, value in found.checksums.items() if before.checksums[name] == value]
  assert same == ['t, the whole table'] and found.partition != before.partition
  assert (before.client_ids, found.client_ids) == (('1',), ('01', '1'))


def test_whichever_column_is_the_silos_the_people_are_the_same(csv):
  wards = ['a', 'b'] * 6
  codes, letters = (csv(['01', '1'], ward=wards, silo_column=c) for c in ('who', 'ward'))
  assert (codes.client_ids, letters.client_ids) == (('01', '1'), ('a', 'b'))
  assert set(codes.checksums.values()) & set(letters.checksums.values())


def test_silos_that_are_written_alike_are_refused():
  df = pd.DataFrame({'silo': [1, 1, '1', '1', 2, 2], 'x': range(6), 'y': range(6)})
  with pytest.raises(ValueError, match="two silos that are both written '1'"):
    datasets.from_dataframe(df, silo_column='silo', target='y', task='regression')
