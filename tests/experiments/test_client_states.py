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
  return runner.run(config, show_progress=False, callbacks=callbacks)


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
def test_where_states_are_may_not_change_while_a_run_goes_on(tmp_path):
  with pytest.raises(KeyError):
    run(tmp_path / 'run', method='ditto', client_states='disk', callbacks=[Stop()])
  with pytest.raises(ValueError, match=r'--client_states=memory: .* was begun with .*=disk'):
    run(tmp_path / 'run', method='ditto', resume=True)
  (tmp_path / 'run' / 'checkpoints' / 'client_states').unlink()
  with pytest.raises(ValueError, match="client_states lacks clients' states"):
    run(tmp_path / 'run', method='ditto', client_states='disk', resume=True)


def test_workers_have_their_states_in_memory():
  with pytest.raises(ValueError, match='disk cannot be used with --cohort_workers=2'):
    ExperimentConfig(method='ditto', client_states='disk', cohort_workers=2)


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
