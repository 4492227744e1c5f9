import importlib
import inspect
import subprocess
import sys

import pytest

import datasets
from datasets import registry


def test_registry_imports_nothing_heavy():
  code = (
    'import sys, datasets.registry;'
    'heavy = {"tensorflow", "tensorflow_federated", "sklearn", "scipy", "pandas"};'
    'print(sorted(heavy & set(sys.modules)))'
  )
  result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert result.stdout.strip() == '[]'


@pytest.mark.parametrize('name', registry.DATASETS)
def test_entry_matches_its_loader(name):
  entry = registry.DATASETS[name]
  loader = getattr(importlib.import_module(entry.module), entry.function)
  assert set(inspect.signature(loader).parameters) == {'seed', 'data_dir', *entry.options}
  assert entry.name == name
  assert '\n' not in entry.summary + entry.source
  # Defaults obey their own rules.
  assert entry.resolve({}) == {key: option.default for key, option in entry.options.items()}


def test_options_as_text_are_converted():
  entry = registry.find('noniid_mnist')
  resolved = entry.resolve({'num_clients': '50', 'examples_per_client': 'none'})
  assert resolved == {'num_clients': 50, 'examples_per_client': None, 'test_examples': 50}


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('mnst', {}, 'dataset is .mnst.; allowed: digits'),
    ('digits', {'clients': 3}, "no option 'clients'; its options: num_clients, test_fraction"),
    ('digits', {'num_clients': 'many'}, "num_clients is 'many'; it must be a whole number"),
    ('digits', {'num_clients': 2.5}, 'num_clients is 2.5'),
    ('school', {'preprocessing': 'pca'}, 'one of silo, fixed, none'),
  ],
)
def test_wrong_names_and_values(name, options, message):
  with pytest.raises(ValueError, match=message):
    datasets.load_dataset(name, seed=0, **options)
