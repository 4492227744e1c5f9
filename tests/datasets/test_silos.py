import numpy as np
import pytest
from scipy import io

from datasets import silos


def _build(sizes=(20, 40), **changes):
  generator = np.random.default_rng(0)
  fields = {
    'name': 'tables',
    'task_kind': 'regression',
    'xs': [generator.normal(3, 2, (n, 4)).astype(np.float32) for n in sizes],
    'ys': [generator.random(n).astype(np.float32) for n in sizes],
    'client_ids': [f's{k}' for k in range(len(sizes))],
    'seed': 0,
    'test_fraction': 0.25,
    'preprocessing': 'none',
    'checksums': {},
    'citation': '',
  }
  return silos.build(**{**fields, **changes})


def test_density_leaves_out_training_rows_only():
  whole, half = _build(), _build(density=0.5)
  np.testing.assert_array_equal(half.test.x, whole.test.x)
  np.testing.assert_array_equal(half.train.num_examples, [7, 15])
  for k, n in enumerate(half.train.num_examples):
    rows = {row.tobytes() for row in whole.train.x[k]}
    assert all(row.tobytes() in rows for row in half.train.x[k, :n])


def test_standardises_after_thinning_out():
  dataset = _build(density=0.5, preprocessing='silo')
  x = dataset.train.x[1, :15]
  np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(x.std(axis=0), 1, rtol=1e-5)


def test_a_silo_too_small_is_named():
  with pytest.raises(ValueError, match="silo 's1': 1 rows cannot be split"):
    _build(sizes=(5, 1))


def test_fixed_needs_bounds():
  with pytest.raises(ValueError, match='no public bounds'):
    _build(preprocessing='fixed')
  dataset = _build(preprocessing='fixed', fixed=lambda x: x / 10)
  np.testing.assert_allclose(dataset.train.x, _build().train.x / 10, rtol=1e-6)


@pytest.mark.parametrize('column', [False, True])
def test_mat_cells(write_mat, column):
  xs = [np.ones((3, 2)), np.zeros((4, 2))]
  path = write_mat('f.mat', xs, [np.ones(3), -np.ones(4)], column=column)
  read_x, read_y = silos.read_mat_cells(path, num_features=2)
  for expected, found in zip(xs, read_x, strict=True):
    np.testing.assert_array_equal(expected, found)
  np.testing.assert_array_equal(read_y[1], -np.ones(4))
  with pytest.raises(ValueError, match=r'silo 0 has features of shape \(3, 2\)'):
    silos.read_mat_cells(path, num_features=5)


def test_other_mat_files(tmp_path, write_mat):
  path = write_mat('f.mat', [np.ones((3, 2))], [np.ones(3), np.ones(3)])
  with pytest.raises(ValueError, match='1 cells in X and 2 in Y'):
    silos.read_mat_cells(path, num_features=2)
  io.savemat(tmp_path / 'g.mat', {'A': np.ones(3)})
  (tmp_path / 'h.mat').write_bytes(b'text' * 50)
  for name in ('g.mat', 'h.mat'):
    with pytest.raises(ValueError, match=f'not a {name}'):
      silos.read_mat_cells(tmp_path / name, num_features=2)
