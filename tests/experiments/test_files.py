"""Atomic files, checkpoints, tables, and what is shown on the way."""

import collections
import fcntl
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from experiments.folder import checkpoints, figures, files, metrics
from experiments.folder.metrics import MetricTable
from experiments.running import console, progress

Tree = collections.OrderedDict


def make_tree():
  return Tree(
    model=Tree(w=np.arange(6, dtype=np.float32).reshape(2, 3), b=np.zeros([], np.float64)),
    round=np.int32(3),
    nothing=Tree(),
  )


def make_table():
  table = MetricTable()
  for round_ in (0, 5, 10):
    table.add(round_, 'round', 'epsilon', 0.1 * round_)
    table.add(round_, 'test', 'mse', 1.0 / (round_ + 1))
    table.add(round_, 'test', 'mse_mean', 1.1 / (round_ + 1))
    table.add(round_, 'test', 'mse_std', 0.1)
    table.add(round_, 'test', 'mse', 2.0 / (round_ + 1), group='opted_out')
    table.add(round_, 'test', 'mse_mean', 2.0 / (round_ + 1), group='opted_out')
    table.add(round_, 'test', 'mse_std', 0.2, group='opted_out')
    for group in ('all', 'opted_out'):
      for name, value in (('p10', 0.05), ('median', 0.09), ('p90', 0.3)):
        table.add(round_, 'test', f'mse_{name}', value, group=group)
  table.add_clients(10, 'test', {'mse': (['a', 'b'], np.array([0.1, 0.2]))})
  return table


def save(folder, rounds):
  arrays = checkpoints.flatten(make_tree(), 'server')
  return checkpoints.save(
    folder, checkpoints.Checkpoint(rounds=rounds, arrays=arrays, facts={'num_rows': 7})
  )


def test_a_cohort_workers_full_disk_is_told_in_the_commands_process():
  error = files.WriteError(pathlib.Path('folder/shard'), OSError(28, 'No space left on device'))
  again = pickle.loads(pickle.dumps(error))
  assert type(again) is files.WriteError and str(again) == str(error)


def test_a_checkpoint_gives_the_same_back(tmp_path):
  loaded = checkpoints.load(save(tmp_path / 'c', 3))
  assert loaded.rounds == 3 and loaded.facts == {'num_rows': 7}
  tree = checkpoints.restore(make_tree(), loaded.arrays, 'server')
  assert list(tree) == ['model', 'round', 'nothing'] and type(tree['model']) is Tree
  for name, leaf in checkpoints.flatten(make_tree(), 'server').items():
    restored = checkpoints.flatten(tree, 'server')[name]
    assert restored.dtype == leaf.dtype and np.array_equal(restored, leaf)


def test_a_checkpoint_is_an_ordinary_npz(tmp_path):
  with np.load(save(tmp_path / 'c', 3), allow_pickle=False) as archive:
    assert archive['server/model/w'].shape == (2, 3)


def test_the_last_two_are_kept(tmp_path):
  for rounds in (1, 2, 3, 12):
    save(tmp_path / 'c', rounds)
  names = [p.name for p in checkpoints.list_files(tmp_path / 'c')]
  assert names == ['round_00000003.npz', 'round_00000012.npz']


def test_every_flipped_byte_and_every_cut_is_found(tmp_path):
  path = save(tmp_path / 'c', 3)
  content = path.read_bytes()
  rng = np.random.default_rng(0)
  positions = [*rng.integers(0, len(content), 200), 0, *range(len(content) - 70, len(content))]
  for position in positions:
    changed = bytearray(content)
    changed[position] ^= 1 << int(rng.integers(8))
    path.write_bytes(changed)
    with pytest.raises(checkpoints.CheckpointError, match='damaged'):
      checkpoints.load(path)
    path.write_bytes(content[:position])
    with pytest.raises(checkpoints.CheckpointError, match='damaged'):
      checkpoints.load(path)


@pytest.mark.parametrize(
  'change,message',
  [
    (lambda t: t.update(more=np.zeros(2)), 'another method or model'),
    (lambda t: t.pop('round'), 'another method or model'),
    (lambda t: t['model'].update(w=np.zeros((3, 2), np.float32)), 'server/model/w has shape'),
    (lambda t: t.update(round=np.int64(3)), 'server/round has shape'),
  ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, change, message):
  arrays = checkpoints.load(save(tmp_path / 'c', 3)).arrays
  template = make_tree()
  change(template)
  with pytest.raises(checkpoints.CheckpointError, match=message):
    checkpoints.restore(template, arrays, 'server')


@pytest.mark.parametrize('name', ['attributes', 'hyperparameters'])
def test_a_checkpoint_of_another_noise_is_refused(tmp_path, name):
  """Such as one made before the file of the silos' budgets was changed."""
  tree = Tree({name: Tree(noise_multiplier=np.array([4.0, 5.0], np.float32))})
  arrays = checkpoints.flatten(tree, 'clients')
  checkpoints.restore(tree, arrays, 'clients')
  tree[name]['noise_multiplier'] = np.array([4.0, 9.0], np.float32)
  with pytest.raises(checkpoints.CheckpointError, match=r'made with other settings: .*noise'):
    checkpoints.restore(tree, arrays, 'clients')


def test_a_failed_write_leaves_the_old_file(tmp_path):
  path = tmp_path / 'file'
  files.write_atomically(path, b'old')
  with pytest.raises(RuntimeError), files.writing_atomically(path) as temporary:
    temporary.write_bytes(b'half')
    raise RuntimeError
  assert path.read_bytes() == b'old' and os.listdir(tmp_path) == ['file']


def test_a_lock_is_free_after_release(tmp_path):
  lock = files.FolderLock(tmp_path)
  with pytest.raises(ValueError, match=f'pid {os.getpid()}'):
    files.FolderLock(tmp_path)
  lock.release()
  files.FolderLock(tmp_path).release()


def test_who_looks_whether_a_folder_is_held_keeps_nobody_from_it(tmp_path):
  assert not files.is_held(tmp_path) and not any(tmp_path.iterdir())
  lock = files.FolderLock(tmp_path)
  assert files.is_held(tmp_path)
  lock.release()
  with open(tmp_path / '.lock') as looking:
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not files.is_held(tmp_path)  # another one that looks
    threading.Timer(0.2, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
    files.FolderLock(tmp_path).release()
  with pytest.raises(FileNotFoundError):
    files.is_held(tmp_path / 'gone')


_COUNTING = """
import contextlib, pathlib, sys, time
from experiments.folder import files
path, lock = pathlib.Path(sys.argv[1]), sys.argv[2] == 'locked'
path.with_name(sys.argv[3]).touch()
while len(list(path.parent.glob('ready_*'))) < 2:
  time.sleep(0.001)
for _ in range(30):
  with files.locked(path) if lock else contextlib.nullcontext():
    number = int(path.read_text())
    time.sleep(0.002)
    files.write_atomically(path, str(number + 1).encode())
"""


@pytest.mark.parametrize('how', ['locked', 'free'])
def test_two_processes_change_a_file_in_turn(tmp_path, how):
  """Each adds one to a number, thirty times; without the lock they lose some."""
  path = tmp_path / 'number'
  path.write_text('0')
  counting = [
    subprocess.Popen(
      [sys.executable, '-c', _COUNTING, str(path), how, f'ready_{i}'],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    for i in range(2)
  ]  # fmt: skip
  assert [process.wait(timeout=120) for process in counting] == [0, 0]
  number = int(path.read_text())
  assert number == 60 if how == 'locked' else number < 60
  assert sorted(p.name for p in tmp_path.iterdir()) == ['number', 'ready_0', 'ready_1']


def test_a_lock_that_cannot_be_had_is_one_line(tmp_path):
  with (
    pytest.raises(files.WriteError, match=r'cannot write .*no/such'),
    files.locked(tmp_path / 'no' / 'such'),
  ):
    pass


def test_the_table_survives_parquet(tmp_path):
  table = make_table()
  table.write(tmp_path / 'metrics.parquet')
  assert MetricTable.read(tmp_path / 'metrics.parquet').rows == table.rows
  frame = table.to_frame()
  assert len(frame) == len(table.rows) and frame['round'].dtype == np.int64
  MetricTable().write(tmp_path / 'empty.parquet')
  assert MetricTable.read(tmp_path / 'empty.parquet').rows == []


def test_a_damaged_table_is_one_line(tmp_path):
  (tmp_path / 'metrics.parquet').write_bytes(b'PAR1 and so on')
  with pytest.raises(ValueError, match='cannot be read as a table of metrics'):
    MetricTable.read(tmp_path / 'metrics.parquet')


@pytest.mark.parametrize('wrong', [{'round': 'a'}, {'value': 'a'}, {'metric': 1}])
def test_a_table_of_another_kind_is_one_line(tmp_path, wrong):
  path = tmp_path / 'metrics.parquet'
  make_table().write(path)
  metrics.check(path)
  pd.read_parquet(path, partitioning=None).assign(**wrong).to_parquet(path, index=False)
  with pytest.raises(ValueError, match=f'metrics.parquet cannot be read .*{next(iter(wrong))}'):
    metrics.check(path)


@pytest.mark.parametrize('place', ['taken', 'taken/below'])
def test_a_folder_that_cannot_be_is_refused_before_it_is_needed(tmp_path, place):
  (tmp_path / 'taken').touch()
  with pytest.raises(files.WriteError, match=f'cannot write .*{place}: .*taken is a file'):
    files.check_folder(tmp_path / place)
  files.check_folder(tmp_path / 'a' / 'b')
  assert [path.name for path in tmp_path.iterdir()] == ['taken']


@pytest.mark.slow
def test_figures_are_drawn_and_repeatable(tmp_path):
  for name in ('a', 'b'):
    figures.draw_run(make_table(), tmp_path / name, title='t', metric='mse', delta=1e-3)
  drawings = [(tmp_path / name / 'learning_curve.svg').read_text() for name in ('a', 'b')]
  assert drawings[0] == drawings[1]
  for words in ('mean squared error', 'communication rounds', 'epsilon (delta 0.001)', 'opted out'):
    assert words in drawings[0]


def test_the_final_report_has_a_row_per_group():
  summary = {
    'rounds': 10,
    'seconds_per_round': 0.012,
    'compile_seconds': 4.2,
    'compilations': 3,
    'compiled_programs': 9,
    'clients': 63,
    'left_out': ('b', 'c'),
    'min_examples': 10,
    'metrics': {'test_mse': 0.09091},
    'references': {'constant': 1.0, 'linear': 0.05, 'local_linear': 0.09091},
    'references_missing': 'Some are missing.',
    'privacy': {'private': True},
  }
  text = console.final_report(
    table=make_table(), metric='mse', statement='Guarantee: some.', summary=summary
  )
  assert 'After 10 rounds (12 ms a round, 4.2 s of compiling 3 computations to 9 programs)' in text
  assert re.search(r'test, all clients +0\.09091 +0\.09 +0\.05 to 0\.3 +0\.1 +0\.1', text)
  assert re.search(r'test, opted out +0\.1818 +0\.09 +0\.05 to 0\.3 +0\.1818 +0\.2', text)
  assert '2 of 65 clients are left out, who have fewer than 10 training examples: b, c.' in text
  said = ' '.join(text.split())
  assert 'better than a constant prediction (1); as good as each client' in said
  assert 'worse than one linear model of all examples without privacy (0.05)' in said
  assert 'for your eyes only' in said
  assert 'Some are missing.' in said
  assert text.endswith('Guarantee: some.')


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize('columns', [80, 120])
def test_a_terminal_gets_one_live_line(columns, monkeypatch):
  monkeypatch.setenv('COLUMNS', str(columns))
  stream = Terminal()
  shown = progress.create(100, 0, stream)
  shown.update(0, {'test mse': 1.5}, 0.0)
  shown.update(40, {'loss': 0.123456, 'epsilon': 2.0}, 0.05)
  shown.close()
  last = stream.getvalue().split('\r')[-1]
  assert '40/100' in last and 'loss 0.1235' in last and 'epsilon 2' in last
  assert '50 ms/round' in last and '60 left in 3 s' in last
  assert ('|' in last) == (columns == 120)
  assert stream.getvalue().count('\n') == 1


def test_what_is_left_has_its_evaluations(monkeypatch):
  """Rounds of a second each, and an evaluation of nine after each."""
  clock = iter(range(0, 1000, 10))
  monkeypatch.setattr(progress.time, 'monotonic', lambda: next(clock))
  stream = Terminal()
  shown = progress.create(100, 0, stream)
  for done in (1, 2, 3):
    shown.update(done, {}, 1.0)
  shown.close()
  last = stream.getvalue().split('\r')[-1]
  assert '1 s/round' in last and '97 left in 16 min 10 s' in last


def test_a_file_gets_log_lines(capsys):
  shown = progress.create(100, 0, io.StringIO())
  for rounds in range(101):
    shown.update(rounds, {'loss': 0.5}, 0.01)
  shown.close()
  lines = capsys.readouterr().err.splitlines()
  assert [line.split('  ')[1].split(':')[0] for line in lines] == [
    'round 0 of 100',
    'round 100 of 100',
  ]


@pytest.mark.parametrize(
  'seconds,words',
  [
    (0.0123, '12.3 ms'),
    (3.456, '3.5 s'),
    (42.2, '42 s'),
    (320, '5 min 20 s'),
    (7500, '2 h 5 min'),
    (360, '6 min'),
    (10800, '3 h'),
  ],
)
def test_durations_are_readable(seconds, words):
  assert progress.show_seconds(seconds) == words


def test_a_checkpoint_needs_no_second_copy_in_memory(tmp_path):
  arrays = {'clients': np.ones([2**22], np.float32)}
  checkpoint = checkpoints.Checkpoint(rounds=1, arrays=arrays, facts={})
  tracemalloc.start()
  try:
    path = checkpoints.save(tmp_path, checkpoint)
    assert tracemalloc.get_traced_memory()[1] < 1.1 * arrays['clients'].nbytes
    tracemalloc.reset_peak()
    loaded = checkpoints.load(path)
    assert tracemalloc.get_traced_memory()[1] < 1.1 * arrays['clients'].nbytes
  finally:
    tracemalloc.stop()
  np.testing.assert_array_equal(loaded.arrays['clients'], arrays['clients'])
