"""The silos' own budgets find their silos, in data of one's own, too."""

import pandas as pd
import pytest

import datasets
from experiments.config import silo_budgets


@pytest.fixture(name='read')
def _read(tmp_path):
  """The epsilons of some silos, where a file has 1, 2, ... for those in its rows."""
  path = tmp_path / 'budgets.csv'

  def read(written, silos, **options):
    rows = [f'{name},{epsilon}' for epsilon, name in enumerate(written, start=1)]
    path.write_text('\n'.join(['silo,epsilon', *rows]))
    return silo_budgets.read_epsilons(path, silos, 1e-3, **options)[0].tolist()

  return read


@pytest.mark.parametrize('kind', ['a CSV file', 'a Parquet file', 'a folder'])
def test_names_with_blanks_around_them(kind, tmp_path, read):
  path = tmp_path / 'data' / ('t.csv' if kind == 'a CSV file' else 't.parquet')
  path.parent.mkdir()
  table = pd.DataFrame({'who': [' North ', 'South'] * 6, 'x': range(12), 'y': range(12)})
  (table.to_csv if path.suffix == '.csv' else table.to_parquet)(path, index=False)
  options = dict(cache=str(tmp_path / 'cache')) if kind == 'a folder' else {}
  dataset = datasets.load_dataset(
    f'parquet:{path.parent}' if kind == 'a folder' else str(path),
    seed=0, silo_column='who', target_column='y', task='regression', **options,
  )  # fmt: skip
  assert list(dataset.client_ids) == [' North ', 'South']
  for north in (' North ', 'North', 'North  '):
    assert read([' South', north], dataset.client_ids) == [2, 1]


def test_silos_of_a_csv_file_that_begin_with_zeros(tmp_path, read):
  path = tmp_path / 't.csv'
  path.write_text('\n'.join(['who,x,y', *['01,1,2', '1,1,2', '001,1,2'] * 3]))
  dataset = datasets.load_dataset(
    str(path), seed=0, silo_column='who', target_column='y', task='regression',
    preprocessing='none',
  )  # fmt: skip
  assert dataset.client_ids == ('001', '01', '1')
  assert read(['1', '01', '001'], dataset.client_ids) == [3, 2, 1]


def test_names_that_only_blanks_tell_apart(read):
  assert read([' a', 'a'], ['a', ' a']) == [2, 1]
  assert read(['a  ', ' a'], ['a', ' a']) == [1, 2]
  with pytest.raises(ValueError, match="silo 'a' is not in the data, whose first is ' a'"):
    read(['a', ' a'], [' a', 'a '])
  with pytest.raises(ValueError, match="line 3: silo ' a' is there a second time"):
    read(['a', ' a'], [' a', 'b'])
  with pytest.raises(ValueError, match="line 2: silo '' is not in the data"):
    read([' ', 'a'], ['a'])


def test_names_with_blanks_of_those_who_are_left_out(read):
  for tiny in (' tiny', 'tiny'):
    assert read([tiny, 'a'], ['a'], left_out=(' tiny',)) == [2]
  with pytest.raises(ValueError, match='has no row for 1 silos'):
    read([' a'], ['a'], left_out=(' a',))


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
  path = tmp_path / 'budgets.csv'
  path.write_text('silo,epsilon\n\na,1\n\nb,0\n')
  with pytest.raises(ValueError, match=r'line 5: epsilon is .0.; it must be greater than 0'):
    silo_budgets.read_epsilons(path, ['a', 'b'], 1e-3)
