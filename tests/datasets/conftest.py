"""Small data files in the formats of the originals, and the real ones if present."""

import contextlib
import os
import pathlib
import sqlite3

import numpy as np
import pytest

from datasets import files, mnist


@pytest.fixture(autouse=True)
def no_files_from_elsewhere(request, monkeypatch, tmp_path):
  """No test reads the user's own data or the network unless it asks for real data."""
  if 'real_data_dir' not in request.fixturenames:
    monkeypatch.delenv('PFL_DATA_DIR', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def real_data_dir(monkeypatch, tmp_path) -> pathlib.Path:
  """The folder PFL_DATA_DIR, or a skip."""
  folder = os.environ.get('PFL_DATA_DIR')
  if not folder:
    pytest.skip('PFL_DATA_DIR is not set: no real data here')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return pathlib.Path(folder)


@pytest.fixture
def need_file(real_data_dir):
  """Skips unless the real data folder has a file."""

  def check(name: str) -> pathlib.Path:
    if not (real_data_dir / name).exists():
      pytest.skip(f'{name} is not in PFL_DATA_DIR')
    return real_data_dir

  return check


@pytest.fixture
def mnist_dir(tmp_path, monkeypatch) -> pathlib.Path:
  """A folder with a small mnist.npz; an image's pixels say which image it is."""
  generator = np.random.default_rng(0)
  labels = {'train': np.arange(600) % 10, 'test': np.arange(200) % 10}
  arrays = {}
  for part, y in labels.items():
    x = np.zeros((len(y), 28, 28), np.uint8)
    number = np.arange(len(y)) + (0 if part == 'train' else 1000)
    x[:, 0, 0], x[:, 0, 1] = number // 256, number % 256
    x[:, 5:] = generator.integers(0, 256, (len(y), 23, 28))
    arrays[f'x_{part}'], arrays[f'y_{part}'] = x, y.astype(np.uint8)
  np.savez(tmp_path / 'mnist.npz', **arrays)
  monkeypatch.setattr(mnist, 'FILE', files.DataFile(name='mnist.npz'))
  return tmp_path


def image_numbers(x: np.ndarray) -> np.ndarray:
  """The number that `mnist_dir` wrote into each image."""
  return x[..., 0, 0, 0].astype(int) * 256 + x[..., 0, 1, 0]


@pytest.fixture
def numbers_of_images():
  return image_numbers


@pytest.fixture
def write_tff_sqlite(tmp_path):
  """Writes a file as TensorFlow Federated's data sets have it.

  Its own writer puts a client into one split only, so each split is written to a
  file of its own and the tables are put together.
  """

  def write(name: str, splits: dict) -> pathlib.Path:
    import tensorflow as tf
    import tensorflow_federated as tff

    for split, clients in splits.items():
      tff.simulation.datasets.save_to_sql_client_data(
        client_ids=list(clients),
        dataset_fn=lambda id_, clients=clients: tf.data.Dataset.from_tensor_slices(clients[id_]),
        database_filepath=str(tmp_path / f'{split}.part'),
        split_names_by_client_id=dict.fromkeys(clients, split),
      )
    first, *others = splits
    path = (tmp_path / f'{first}.part').rename(tmp_path / name)
    with contextlib.closing(sqlite3.connect(path)) as connection:
      for split in others:
        connection.execute('ATTACH DATABASE ? AS part', (str(tmp_path / f'{split}.part'),))
        for table in ('examples', 'client_metadata'):
          connection.execute(f'INSERT INTO {table} SELECT * FROM part.{table}')
        connection.commit()
        connection.execute('DETACH DATABASE part')
    return path

  return write


@pytest.fixture
def write_mat(tmp_path):
  """Writes the cells X and Y of silos as MATLAB has them, in a row or a column."""

  def write(name: str, xs: list, ys: list, *, column: bool = False) -> pathlib.Path:
    from scipy import io

    cells = {}
    for key, silos in (('X', xs), ('Y', [y[:, None] for y in ys])):
      cells[key] = np.empty((len(silos), 1) if column else (1, len(silos)), object)
      for k, silo in enumerate(silos):
        cells[key].flat[k] = silo
    io.savemat(tmp_path / name, cells)
    return tmp_path / name

  return write
