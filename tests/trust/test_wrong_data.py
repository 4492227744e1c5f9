"""Wrong data files, arrays and models: one line that names them, and no traceback of a library."""

import numpy as np
import pandas as pd
import pytest

import datasets
import tff_models
from datasets import silos, tables

GOOD = 'silo,x,y\n' + ''.join(f'{"abc"[i % 3]},{i / 10},{i % 2}\n' for i in range(12))
_TEXT = {
  'empty': ('', {}, 'No columns to parse'),
  'blank': ('\n\n\n', {}, 'No columns to parse'),
  'heading_only': ('silo,x,y\n', {}, 'has no rows'),
  'no_text': (bytes(range(256)) * 20, {}, "codec can't decode"),
  'latin': (GOOD.replace('a', 'caf\xe9').encode('latin1'), {}, "codec can't decode"),
  'utf16': (GOOD.encode('utf-16'), {}, "codec can't decode"),
  'ragged': ('silo,x,y\na,1,2\nb,1\nc,1,2,3,4\n', {}, 'Expected 3 fields in line 4, saw 5'),
  'a_name_twice': (GOOD.replace('x,y', 'y,y'), {}, "has the column 'y' more than once"),
  'an_index_of_pandas': (
    pd.DataFrame({'silo': list('abc') * 4, 'x': 0.5, 'y': range(12)}).to_csv(),
    {},
    'Its column 1 has no name. If it is the index of pandas, write the table with index=False',
  ),
  'a_comma_at_the_end': (GOOD.replace('\n', ',\n'), {}, 'Its column 4 has no name'),
  'a_blank_name': (GOOD.replace('x', ' '), {'features': ' '}, 'Its column 2 has no name'),
  'a_name_twice_that_is_na': (GOOD.replace('x,y\n', 'NA,y,NA\n'), {}, "'NA' more than once"),
  'more_values_than_names': (
    GOOD.replace('\n', ',7\n').replace('y,7', 'y'),
    {},
    'rows have 4 values',
  ),
  'open_quote': ('silo,x,y\n"a,1,2\nb,3,4\n', {}, 'EOF inside string'),
  'semicolons': (GOOD.replace(',', ';'), {}, "separated by ';'; save it with commas"),
  'tabs': (GOOD.replace(',', '\t'), {}, "separated by '\\t'; save it with commas"),
  'bars': (GOOD.replace(',', '|'), {}, "separated by '|'; save it with commas"),
  'decimal_commas': (GOOD.replace('0.1', '"0,1"'), {}, "'x' is object, not a number"),
  'words': (GOOD + 'a,low,1\n', {}, "'x' is object, not a number"),
  'gap': (GOOD + 'a,,1\n', {}, "'x' has 1 missing values"),
  'gap_in_the_target': (GOOD + 'a,1,\n', {}, "'y' has 1 missing values"),
  'infinite': (GOOD + 'a,inf,1\n', {}, 'not finite'),
  'too_large': (GOOD + 'a,1e60,1\n', {}, 'not finite'),
  'a_silo_of_one': (GOOD + 'd,1,1\n', {}, 'fewer than two rows'),
  'one_label': ('silo,x,y\n' + 'a,1,0\na,2,0\n' * 3, {}, 'has one value only'),
  'names': (
    'silo,x,y\n' + ''.join(f'a,1,name{i}\na,2,name{i + 50}\n' for i in range(50)),
    {},
    'has 100 different values in 100 rows, which are no classes',
  ),
  'other_silo': (GOOD, {'silo_column': 'school'}, "no column 'school'; it has silo, x, y"),
  'no_target': (GOOD, {'target_column': None}, 'needs --target_column, one of its columns'),
  'no_silo': (GOOD, {'silo_column': None}, 'needs --silo_column, one of its columns'),
  'other_feature': (GOOD, {'features': 'x,z'}, "no column 'z'"),
  'a_space': (GOOD, {'features': ' x'}, 'did you mean x?'),
  'twice': (GOOD, {'features': 'x,x'}, 'more than once in features'),
  'itself': (GOOD, {'features': 'x,y'}, "'y' cannot be a feature too"),
  'the_silo': (GOOD, {'target_column': 'silo'}, 'cannot be the silo and the target'),
  'all_to_test': (GOOD, {'test_fraction': 1.5}, 'test_fraction is 1.5'),
  'wrong_task': (GOOD, {'task': 'ranking'}, "task is 'ranking'"),
}


@pytest.mark.filterwarnings('ignore:.*was taken as a')
@pytest.mark.parametrize('name', _TEXT)
def test_tables(name, tmp_path):
  content, options, message = _TEXT[name]
  path = tmp_path / f'{name}.csv'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  options = {'silo_column': 'silo', 'target_column': 'y', **options}
  _one_line(lambda: tables.load(file=str(path), seed=0, **options), f'--dataset={path}', message)


def test_the_good_table_is_good(tmp_path):
  (tmp_path / 'good.csv').write_text(GOOD)
  load = dict(file=str(tmp_path / 'good.csv'), silo_column='silo', target_column='y')
  assert tables.load(**load, task='binary', seed=0).num_clients == 3


def test_what_is_no_file(tmp_path):
  (tmp_path / 'folder.csv').mkdir()
  columns = dict(silo_column='silo', target_column='y', seed=0)
  for name in ('folder.csv', 'nowhere.csv'):
    with pytest.raises(FileNotFoundError, match='there is no file'):
      tables.load(file=str(tmp_path / name), **columns)
  (tmp_path / 'broken.parquet').write_bytes(b'PAR1 and so on')
  path = tmp_path / 'broken.parquet'
  _one_line(lambda: tables.load(file=str(path), **columns), 'cannot be read')


ONES = np.ones((3, 2))
_ARRAYS = {
  'without_x': (dict(y=np.ones(3), client=np.ones(3)), 'does not have the arrays x, y and client'),
  'without_owner': (dict(x=ONES, y=np.ones(3)), 'does not have the arrays x, y and client'),
  'too_few_labels': (dict(x=ONES, y=np.ones(2), client=np.ones(3)), 'each of the 3 rows of x'),
  'too_few_owners': (dict(x=ONES, y=np.ones(3), client=np.ones(2)), 'each of the 3 rows of x'),
  'wide_labels': (dict(x=ONES, y=ONES, client=np.ones(3)), 'each of the 3 rows of x'),
  'objects': (dict(x=np.array([{}, 1], object), y=np.ones(2), client=np.ones(2)), 'allow_pickle'),
  'a_number': (dict(x=np.float32(3), y=np.ones(3), client=np.ones(3)), 'x is a single number'),
}


@pytest.mark.parametrize('name', _ARRAYS)
def test_npz_files(name, tmp_path):
  arrays, message = _ARRAYS[name]
  path = tmp_path / 'data.npz'
  np.savez(path, **arrays)
  _one_line(lambda: silos.read_npz(path, owner='client'), str(path), message)


@pytest.mark.parametrize('content', [b'', b'PK nothing', b'x,y,client'], ids=str)
def test_files_that_are_no_npz(content, tmp_path):
  path = tmp_path / 'data.npz'
  path.write_bytes(content)
  _one_line(lambda: silos.read_npz(path, owner='client'), 'does not have the arrays')


def _cells(*parts):
  every = np.empty(len(parts), object)
  for place, part in enumerate(parts):
    every[place] = part
  return every


_CELLS = {
  'without_y': (dict(X=_cells(ONES)), 'with the cells X and Y'),
  'counts': (dict(X=_cells(ONES, ONES), Y=_cells(ONES[:, :1])), '2 cells in X and 1 in Y'),
  'width': (dict(X=_cells(np.ones((3, 5))), Y=_cells(ONES[:, :1])), 'features of shape (3, 5)'),
  'text': (dict(X=_cells('abc'), Y=_cells('def')), 'with the cells X and Y'),
  'plain': (dict(X=ONES, Y=np.ones((3, 1))), '6 cells in X and 3 in Y'),
}


@pytest.mark.parametrize('name', _CELLS)
def test_mat_files(name, tmp_path):
  from scipy import io

  cells, message = _CELLS[name]
  io.savemat(tmp_path / 'data.mat', cells)
  _one_line(lambda: silos.read_mat_cells(tmp_path / 'data.mat', num_features=2), message)


def test_a_file_that_is_no_mat(tmp_path):
  path = tmp_path / 'data.mat'
  for content in (b'', b'MATLAB', bytes(200)):
    path.write_bytes(content)
    _one_line(lambda: silos.read_mat_cells(path, num_features=2), 'with the cells X and Y')


X, Y, N = np.ones((2, 3, 4), np.float32), np.ones((2, 3), np.float32), np.full(2, 3, np.int32)


def _dataset(**values):
  task = datasets.Task(kind='regression', num_outputs=1, example_shape=(4,))
  examples = datasets.ClientExamples(x=X, y=Y, num_examples=N)
  return datasets.FederatedDataset(**{
    'name': 'own', 'task': task, 'train': examples, 'test': examples, 'client_ids': ('a', 'b'),
    'citation': 'made up', **values,
  })  # fmt: skip


def _examples(x=X, y=Y, num_examples=N):
  return datasets.ClientExamples(x=x, y=y, num_examples=num_examples)


_TASK = dict(num_outputs=1, example_shape=(4,))
_MADE = [
  (lambda: _examples(x=X.astype(np.float64)), 'x is float64; it must be uint8, float32'),
  (lambda: _examples(x=X[0]), 'must be [clients, examples, features, ...]'),
  (lambda: _examples(y=Y.astype(np.float64)), 'y is float64'),
  (lambda: _examples(y=Y[:, :2]), 'its first two axes must be (2, 3)'),
  (lambda: _examples(num_examples=N.astype(np.int64)), 'num_examples is int64'),
  (lambda: _examples(num_examples=N + 5), 'reaches 8..8; 0..3 fit'),
  (lambda: _examples(num_examples=N - 9), 'reaches -6..-6'),
  (lambda: datasets.ClientExamples.from_lists([X[0]], [Y[0, :2]]), '3 rows of features and 2'),
  (lambda: datasets.ClientExamples.from_lists([], []), '0 clients have features'),
  (lambda: _dataset(client_ids=('a', 'a')), 'client_ids are not unique'),
  (lambda: _dataset(client_ids=('a',)), 'train has 2 clients'),
  (lambda: _dataset(client_ids=()), 'has no clients'),
  (lambda: _dataset(train=_examples(x=X * np.nan)), 'NaN or infinity'),
  (lambda: _dataset(test=_examples(x=0 * X, y=0 * Y, num_examples=0 * N)), 'no test examples'),
  (lambda: _dataset(train=_examples(num_examples=N - 1)), 'padding of train is not zero'),
  (lambda: _dataset(groups={'g': np.ones(3, bool)}), 'bool vector of 2 clients'),
  (lambda: _dataset(groups={'g': np.ones(2, int)}), 'bool vector of 2 clients'),
  (lambda: _dataset(server_test=(X[0], Y[0, :2])), '3 rows of features and 2 labels'),
  (lambda: _dataset(task=datasets.Task(kind='binary', **_TASK), train=_examples(y=3 * Y)),
   'label 3.0 is out of range; allowed: -1 or +1'),
  (lambda: datasets.Task(kind='ranking', **_TASK), "kind is 'ranking'; allowed"),
  (lambda: datasets.Task(kind='classification', **_TASK), 'a classification needs 2 classes'),
  (lambda: datasets.Task(kind='multilabel', num_outputs=0, example_shape=(4,)), 'at least 1'),
  (lambda: datasets.Task(kind='regression', num_outputs=2, example_shape=(4,)), 'task has 1'),
  (lambda: datasets.Task(kind='regression', num_outputs=1, example_shape=()), 'must be positive'),
]  # fmt: skip


@pytest.mark.parametrize(('make', 'message'), _MADE, ids=[message for _, message in _MADE])
def test_arrays(make, message):
  _one_line(make, message)


PICTURE_MODELS = ('cnn3x3', 'cnn5x5', 'femnist_cnn', 'ppsgd_cnn', 'dropout_cnn', 'resnet18')
_MODELS = [
  *(
    (name, (10,), 'classification', 4, {}, f'--model={name} is for pictures')
    for name in PICTURE_MODELS
  ),
  ('cnn3x3', (10,), 'regression', 1, {}, 'are rows of 10 numbers'),
  ('resnet18', (2, 8, 8, 3), 'classification', 4, {}, 'are no pictures, of shape (2, 8, 8, 3)'),
  ('cnn3x3', (8, 8), 'classification', 10, {}, 'needs larger images'),
  ('ppsgd_cnn', (8, 8, 1), 'classification', 10, {}, 'needs larger images'),
  ('softmax', (10,), 'regression', 1, {}, 'does not serve a regression task; use one of'),
  ('linear_svm', (10,), 'classification', 4, {}, 'does not serve a classification task'),
  ('mlp', (5,), 'next_word', 20, {}, 'use one of next_word_lstm'),
  ('next_word_lstm', (10,), 'binary', 1, {}, 'does not serve a binary task'),
  ('linear', (10,), 'regression', 1, {}, '--model=linear is unknown'),
  ('linear_regression', (10,), 'regression', 1, {'hidden_units': 3}, 'has no option hidden_units'),
  ('linear_regression', (10,), 'regression', 1, {'bias': 'yes'}, 'bias=yes must be true or false'),
]  # fmt: skip


@pytest.mark.parametrize(
  ('name', 'shape', 'kind', 'outputs', 'options', 'message'), _MODELS, ids=[m[-1] for m in _MODELS]
)
def test_models(name, shape, kind, outputs, options, message):
  def build():
    return tff_models.build_model(
      name, example_shape=shape, task_kind=kind, num_outputs=outputs, **options
    )

  _one_line(build, message)


def test_there_are_enough_of_them():
  assert len(_TEXT) + len(_ARRAYS) + len(_CELLS) + len(_MADE) + len(_MODELS) >= 60


def _one_line(use, *messages):
  with pytest.raises(ValueError) as caught:
    use()
  said = str(caught.value)
  assert '\n' not in said and len(said) < 400
  for message in messages:
    assert message in said
