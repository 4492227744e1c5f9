"""The cross-silo recipes whose data not everybody has, on small files in their format."""

import dataclasses
import io
import pickle
import tarfile

import numpy as np
import pytest

from datasets import cifar10, files
from experiments.recipes import recipes
from experiments.running import runner
from privacy import accounting

RECIPES = (
  'silo_fig3a_vehicle',
  'silo_figa7_vehicle',
  'silo_figa2_vehicle',
  'silo_fig3c_gleam',
  'silo_fig3d_cifar10',
  'silo_figa6_adni',
)


@pytest.fixture(autouse=True)
def no_pld(monkeypatch):
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)  # takes seconds


@pytest.fixture
def data_dir(tmp_path, write_mat, monkeypatch):
  """All their files: three silos each."""
  rng = np.random.default_rng(0)
  for name, features in (('vehicle.mat', 100), ('gleam.mat', 180)):
    sizes = (40, 60, 80)
    write_mat(
      name,
      [rng.normal(size=(n, features)) for n in sizes],
      [np.where(rng.random(n) < 0.5, -1, 1) for n in sizes],
    )
  np.savez(
    tmp_path / 'adni.npz',
    x=rng.integers(0, 256, (90, 32, 32)).astype(np.uint8),
    y=rng.uniform(0.8, 2.0, 90),
    silo=np.array(['GE', 'Philips', 'Siemens'])[np.arange(90) % 3],
  )
  with tarfile.open(tmp_path / 'cifar-10-python.tar.gz', 'w:gz') as archive:
    for part in ('data_batch_1', 'test_batch'):
      batch = {
        b'data': rng.integers(0, 256, (120, 3072)).astype(np.uint8),
        b'labels': [k % 10 for k in range(120)],
      }
      content = pickle.dumps(batch, protocol=3)
      member = tarfile.TarInfo(f'cifar-10-batches-py/{part}')
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  monkeypatch.setattr(cifar10, 'FILE', files.DataFile(name='cifar-10-python.tar.gz'))
  return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize('name', RECIPES)
def test_every_setting_is_an_experiment(name, data_dir):
  recipe = recipes.read(name)
  assert not recipes.missing_data(recipe, str(data_dir))
  for part in recipe.parts:
    assert len(recipe.grid(part).runs()) > 1


@pytest.mark.exhaustive(but=['silo_fig3a_vehicle-ifca'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'part'),
  [
    ('silo_fig3a_vehicle', 'ifca'),
    ('silo_fig3c_gleam', 'mocha'),
    ('silo_fig3d_cifar10', 'mr_mtl'),
    ('silo_figa6_adni', 'ditto'),
  ],
)
def test_recipe_runs(name, part, data_dir):
  """One of its settings for two rounds; of CIFAR-10 few silos, so that each has images."""
  config = next(iter(recipes.read(name).grid(part).runs().values()))
  config = dataclasses.replace(
    config,
    data_dir=str(data_dir),
    dataset_option=('num_clients=4',) if 'cifar10' in name else (),
    rounds=2,
    target_epsilon=8.0,  # so few examples want a larger budget than the recipe's
  )
  result = runner.run(config, show_progress=False)
  metric = 'test_mse' if 'adni' in name else 'test_accuracy'
  assert np.isfinite(result.summary['metrics'][metric])
  assert 7 < result.privacy['epsilon'] <= 8
