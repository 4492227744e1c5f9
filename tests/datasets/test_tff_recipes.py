"""The cross-device recipes on TFF's data, run on small files in TFF's own format."""

import dataclasses
import io
import json
import tarfile

import numpy as np
import pytest

from datasets import files, stackoverflow_tags
from experiments.recipes import recipes
from experiments.running import runner
from privacy import accounting

WORDS, TAGS = 5000, 80


@pytest.fixture(autouse=True)
def no_pld(monkeypatch):
  monkeypatch.setattr(accounting, 'pld_epsilon', lambda *arguments: None)  # takes seconds


@pytest.fixture
def emnist_dir(tmp_path, write_tff_sqlite):
  rng = np.random.default_rng(0)

  def writers(size):
    return {
      f'f{k}': {
        'label': rng.integers(0, 10, size).astype(np.int32),
        'pixels': (rng.integers(0, 256, (size, 28, 28)) / 255).astype(np.float32),
      }
      for k in range(3)
    }

  sizes = {'digits_only_train': 12, 'digits_only_test': 2, 'all_train': 12, 'all_test': 2}
  write_tff_sqlite('emnist_all.sqlite', {split: writers(n) for split, n in sizes.items()})
  return tmp_path


@pytest.fixture
def stackoverflow_dir(tmp_path, write_tff_sqlite, monkeypatch):
  rng = np.random.default_rng(0)

  def users(size):
    return {
      f'u{k}': {
        'tokens': [' '.join(f'w{i}' for i in rng.integers(0, 6000, 20)) for _ in range(size)],
        'title': ['w1'] * size,
        'tags': [f't{rng.integers(0, TAGS)}|other' for _ in range(size)],
      }
      for k in range(3)
    }

  write_tff_sqlite('stackoverflow.sqlite', {'train': users(12), 'test': users(2)})
  contents = {
    'word_count': '\n'.join(f'w{i} {WORDS - i}' for i in range(WORDS)),
    'tag_count': json.dumps({f't{i}': TAGS - i for i in range(TAGS)}),
  }
  for part, content in contents.items():
    name = f'stackoverflow.{part}'
    with tarfile.open(tmp_path / f'{name}.tar.bz2', 'w:bz2') as archive:
      member = tarfile.TarInfo(f'./{name}')
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content.encode()))
  for name in ('WORDS_FILE', 'TAGS_FILE'):
    file = files.DataFile(name=getattr(stackoverflow_tags, name).name)
    monkeypatch.setattr(stackoverflow_tags, name, file)
  return tmp_path


@pytest.mark.exhaustive(but=['ppsgd_fig1c_emnist-emnist_dir-shape1'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'data', 'shape'),
  [
    ('ppsgd_fig1b_stackoverflow', 'stackoverflow_dir', (3, WORDS, TAGS)),
    ('ppsgd_fig1c_emnist', 'emnist_dir', (3, 784, 10)),
    ('ppsgd_fig1d_emnist_cnn', 'emnist_dir', (3, 32, 10)),
  ],
)
def test_recipe_runs(name, data, shape, request):
  recipe = recipes.read(name)
  data_dir = request.getfixturevalue(data)
  assert not recipes.missing_data(recipe, str(data_dir))
  (config, *_) = (
    config for config in recipe.grid('shared').runs().values()
    if config.personalization_alpha == 1.0 and config.noise_multiplier == 1.0
  )  # fmt: skip
  config = dataclasses.replace(
    config, data_dir=str(data_dir), dataset_option=('num_clients=3',), rounds=2, eval_every=1,
    clients_per_round=2, clipping_norm=1e-3,
  )  # fmt: skip
  result = runner.run(config, show_progress=False)
  (offset,) = result.client_states['offset'].values()
  assert offset.shape == shape and np.any(offset)
  assert 0 <= result.summary['metrics']['test_accuracy'] <= 1
  assert 0 < result.privacy['epsilon'] < np.inf and 'zero-out' in result.privacy['adjacency']


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('name', ['feo2_table6', 'feo2_table7'])
def test_recipe_of_feo2_runs(name, emnist_dir):
  recipe = recipes.read(name)
  assert not recipes.missing_data(recipe, str(emnist_dir))
  (config, *_) = (c for c in recipe.grid('feo2').runs().values() if c.ratio == 1.0)
  config = dataclasses.replace(
    config, data_dir=str(emnist_dir), dataset_option=('num_clients=3',), rounds=2, eval_every=1,
    opt_out_fraction=0.4, cohort_sampling_rate=1.0, target_epsilon=8.0, delta=1e-2,
    quantile_noise_multiplier=9.0,
  )  # fmt: skip
  result = runner.run(config, show_progress=False)
  assert 0 <= result.summary['metrics']['server_test_accuracy'] <= 1
  assert 7 < result.privacy['epsilon'] <= 8
