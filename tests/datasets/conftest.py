"""Small data files in the formats of the originals, and the real ones if present."""

import os
import pathlib

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
