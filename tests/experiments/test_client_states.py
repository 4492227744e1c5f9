"""`--client_states=disk` through the flags: the numbers of memory, stopped and continued or not."""

import numpy as np
import pandas as pd
import pytest

from experiments.config.experiment import ExperimentConfig
from experiments.running import runner
from experiments.running.parts import Callback
from runtime import stored_states

SETTINGS = dict(
  dataset='digits', dataset_option=('num_clients=12',), batch_size=16, clients_per_round=4,
  rounds=6, eval_every=3, checkpoint_every=2, device='cpu', privacy='client',
  noise_multiplier=1.0, delta=1e-2, noise_key='rehearsal',
)  # fmt: skip


class Stop(Callback):
  """Ends a run as a crash would, after a round whose states are written and not kept."""

  def after_round(self, round_, metrics):
    if round_ == 5:
      raise KeyError('crash')


def run(folder, *, callbacks=(), **settings):
  config = ExperimentConfig(**{**SETTINGS, **settings}, output_dir=str(folder))
  return runner.run(config, show_progress=False, callbacks=callbacks, stop_when_diverged=False)


def table(folder):
  return pd.read_parquet(folder / 'metrics.parquet')


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('method', ['ditto', 'feo2'])
def test_on_disk_a_run_is_what_it_is_in_memory(tmp_path, method):
  expected = run(tmp_path / 'memory', method=method)
  disk = dict(method=method, client_states='disk')
  with pytest.raises(KeyError):
    run(tmp_path / 'disk', **disk, callbacks=[Stop()])
  found = run(tmp_path / 'disk', **disk, resume=True)
  pd.testing.assert_frame_equal(
    table(tmp_path / 'memory'), table(tmp_path / 'disk'), check_exact=True
  )
  assert found.privacy == expected.privacy
  states = found.client_states
  assert isinstance(states, stored_states.StoredStates)
  rows = np.array([11, 0, 5])
  _assert_equal(states.to_numpy(rows), _rows(expected.client_states, rows))


@pytest.mark.slow
def test_states_that_are_no_numbers_go_on(tmp_path):
  """As the personal models of a private run do, or a sweep's setting that diverges."""
  diverging = dict(method='ditto', client_learning_rate=1e30)
  with pytest.raises(KeyError):
    run(tmp_path / 'run', **diverging, callbacks=[Stop()])
  found = run(tmp_path / 'run', **diverging, resume=True)
  assert found.summary['rounds'] == 6
  assert not np.isfinite(found.client_states['model']['weights']).all()


@pytest.mark.slow
def test_where_states_are_may_not_change_while_a_run_goes_on(tmp_path):
  with pytest.raises(KeyError):
    run(tmp_path / 'run', method='ditto', client_states='disk', callbacks=[Stop()])
  with pytest.raises(ValueError, match=r'--client_states=memory: .* was begun with .*=disk'):
    run(tmp_path / 'run', method='ditto', resume=True)
  (file,) = (tmp_path / 'run' / 'checkpoints' / 'client_states').iterdir()
  file.unlink()
  with pytest.raises(ValueError, match="lacks clients' states: it has 0 records"):
    run(tmp_path / 'run', method='ditto', client_states='disk', resume=True)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_workers_have_on_disk_one_process_goes_on_with(tmp_path):
  pytest.importorskip('ray', reason='needs the extra "cluster" (ray)')
  expected = run(tmp_path / 'memory', method='ditto')
  disk = dict(method='ditto', client_states='disk')
  with pytest.raises(KeyError):
    run(tmp_path / 'disk', **disk, cohort_workers=2, callbacks=[Stop()])
  files = tmp_path / 'disk' / 'checkpoints' / 'client_states'
  assert len([path for path in files.iterdir() if path.name[0] != '.']) == 2
  found = run(tmp_path / 'disk', **disk, resume=True)
  assert len(list(files.iterdir())) == 3  # the checkpoint before still names the workers'
  rows, others = table(tmp_path / 'memory'), table(tmp_path / 'disk')
  pd.testing.assert_frame_equal(rows, others, rtol=1e-3, atol=1e-5)
  assert found.privacy == expected.privacy
  rows = np.array([11, 0, 5])
  np.testing.assert_allclose(
    found.client_states.to_numpy(rows)['model']['weights'],
    expected.client_states['model']['weights'][rows],
    rtol=1e-4, atol=1e-6,
  )  # fmt: skip


def _rows(tree, rows):
  if hasattr(tree, 'items'):
    return {name: _rows(part, rows) for name, part in tree.items()}
  return tree[rows]


def _assert_equal(a, b):
  assert hasattr(a, 'items') == hasattr(b, 'items')
  if not hasattr(a, 'items'):
    return np.testing.assert_array_equal(a, b)
  assert a.keys() == b.keys()
  for name in a:
    _assert_equal(a[name], b[name])
