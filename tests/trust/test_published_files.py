"""What docs/sharp_edges.md lets a user publish is the same whatever one record says."""

import dataclasses
import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.folder import results
from experiments.running import build, loading, plans

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'sharp_edges.md'


def _withheld() -> list[str]:
  """The fields of config.json that are not published."""
  found = re.search(r'`config\.json` without its (.*), `privacy\.json` \|', PAGE.read_text())
  assert found is not None
  return re.findall(r'`(\w+)`', found.group(1))


def _published(tmp_path, label, withheld):
  """config.json and privacy.json of a private run on a table of which one cell is given."""
  table, folder = tmp_path / 't.csv', tmp_path / 'run'
  rows = [f'{k % 4},{k},{label if k == 7 else 2 * k}' for k in range(40)]
  table.write_text('\n'.join(['who,x,y', *rows]))
  config = ExperimentConfig(
    method='fedavg', dataset=str(table), silo_column='who', target_column='y', privacy='client',
    dataset_option=('task=regression',), rounds=3, delta=1e-2, noise_multiplier=2.0,
    clients_per_round=2, noise_key='rehearsal', output_dir=str(folder),
  )  # fmt: skip
  dataset = loading.load_dataset(config)
  opened = results.RunFolder(config)
  opened.record_environment(dataset.checksums, {'runtime': 'none'}, contents={'helper': '1'})
  privacy = plans.build_plan(config, dataset).statement(
    3, preprocessing=dataset.preprocessing, notes=()
  )
  record = json.loads((folder / 'config.json').read_text())
  opened.close()
  shutil.rmtree(folder, ignore_errors=True)
  return {n: v for n, v in record.items() if n not in withheld}, privacy.to_json()


def test_nothing_that_may_be_published_tells_one_cell_of_a_table(tmp_path):
  withheld = _withheld()
  assert _published(tmp_path, 14, withheld) == _published(tmp_path, 15, withheld)


@pytest.mark.parametrize('kept', ['data_checksums', 'file_contents', 'fingerprint'])
def test_each_digest_of_a_table_tells_it(tmp_path, kept):
  withheld = [name for name in _withheld() if name != kept]
  assert _published(tmp_path, 14, withheld) != _published(tmp_path, 15, withheld)


def test_who_may_opt_out_is_outside():
  config = ExperimentConfig(
    method='feo2', dataset='digits', privacy='client', rounds=3, delta=1e-2, noise_multiplier=2.0,
    clients_per_round=5, opt_out_fraction=0.1, noise_key='rehearsal',
  )  # fmt: skip
  data = loading.load_dataset(config)
  said = [_outside_of(config, data, groups) for groups in ({}, {'opt_out_candidates': None})]
  assert 'the public list of those who do tells of the others' not in said[0]
  assert 'the public list of those who do tells of the others' in said[1]


def _outside_of(config, data, groups):
  groups = {name: np.arange(data.num_clients) % 2 == 0 for name in groups}
  made = build.build_process(config, dataclasses.replace(data, groups=groups))
  return ' '.join(made.privacy_report(1)['outside'])
