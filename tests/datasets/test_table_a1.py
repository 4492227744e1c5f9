"""Table A1 of the cross-silo paper: silos, inputs, and the training examples of a silo."""

import numpy as np
import pytest

import datasets

# Table A1: data set -> silos, input, least and largest number of training examples.
TABLE_A1 = {
  'vehicle': (23, (100,), 872, 1933),
  'school': (139, (28,), 15, 175),
  'gleam': (38, (180,), 699, 776),
  'rotated_masked_mnist': (40, (28, 28, 1), 1500, 1500),
}


def _split(folder, write_mat, name, sizes, fraction):
  """Training examples of silos of these sizes."""
  generator = np.random.default_rng(0)
  num_features = TABLE_A1[name][1][0]
  labels = (lambda n: generator.integers(1, 71, n)) if name == 'school' else _signs
  write_mat(
    f'{name}.mat',
    [generator.integers(0, 2, (n, num_features)).astype(np.uint8) for n in sizes],
    [labels(n) for n in sizes],
  )
  dataset = datasets.load_dataset(
    name, seed=0, data_dir=folder, preprocessing='none', test_fraction=fraction
  )
  return dataset.train.num_examples.tolist()


def _signs(n):
  return np.where(np.arange(n) % 2, 1, -1)


@pytest.fixture(autouse=True)
def any_file(monkeypatch):
  from datasets import files, school

  monkeypatch.setattr(school, 'FILE', files.DataFile(name='school.mat'))


def test_schools_printed_sizes_are_those_of_70_percent_and_not_of_80(tmp_path, write_mat):
  """Section C.1: 22 to 251 pupils; an 80 %/20 % split "with 15 <= n_k <= 175"."""
  printed = list(TABLE_A1['school'][2:])
  assert _split(tmp_path, write_mat, 'school', (22, 251), 0.3) == printed
  assert _split(tmp_path, write_mat, 'school', (22, 251), 0.2) == [17, 200]


def test_gleams_printed_sizes_are_those_of_all_rows(tmp_path, write_mat):
  """Section C.1 has them for all of a wearer's rows; three quarters of these are trained on."""
  sizes = TABLE_A1['gleam'][2:]
  assert _split(tmp_path, write_mat, 'gleam', sizes, 0.25) == [524, 582]


def test_vehicles_printed_sizes_are_three_quarters(tmp_path, write_mat):
  """Silos of 1,163 and 2,578 rows give them, to the row; of one row less, they do not."""
  printed = list(TABLE_A1['vehicle'][2:])
  assert _split(tmp_path, write_mat, 'vehicle', (1163, 2578), 0.25) == printed
  assert _split(tmp_path, write_mat, 'vehicle', (1162, 2577), 0.25) != printed


def test_the_real_schools(need_file):
  dataset = datasets.load_dataset('school', seed=100, data_dir=need_file('school.mat'))
  every = dataset.train.num_examples + dataset.test.num_examples
  silos, shape, _, _ = TABLE_A1['school']
  assert (dataset.num_clients, dataset.task.example_shape) == (silos, shape)
  assert (every.sum(), every.min(), every.max()) == (15_362, 22, 251)


def test_the_real_rotated_digits(need_file):
  dataset = datasets.load_dataset('rotated_masked_mnist', seed=0, data_dir=need_file('mnist.npz'))
  sizes = dataset.train.num_examples
  found = (dataset.num_clients, dataset.task.example_shape, int(sizes.min()), int(sizes.max()))
  assert found == TABLE_A1['rotated_masked_mnist']
