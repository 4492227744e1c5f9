"""What the command line says while it is at work: on a terminal, in a file, into a closed pipe."""

import os
import pty
import select
import subprocess
import sys

import numpy as np
import pytest
from absl.testing import flagsaver

from experiments import cli
from experiments.config import flags as experiment_flags
from experiments.config import in_words
from experiments.config.experiment import ExperimentConfig
from experiments.running import hopeless, plans, progress
from experiments.sweeps import sweep
from experiments.sweeps.grid import Grid
from experiments.sweeps.progress import SweepProgress
from tests.experiments import fakes

ROOT = cli.QUICKSTART.parent.parent
PRIVATE = dict(method='mr_mtl', dataset='exam', privacy='example', target_epsilon=2.0, delta=1e-3)


# ------------------------------------------------------------ the first line


def first_line(monkeypatch, capsys, *arguments):
  """What is said before anything is run."""

  class Began(Exception):
    pass

  def stop(config):
    raise Began

  with flagsaver.flagsaver(), monkeypatch.context() as patch:
    patch.setattr(cli.results, 'RunFolder', fakes_folder)
    patch.setattr(cli, 'Doing', stop)
    cli.main(['run_experiment.py', *arguments])
  return capsys.readouterr().err.splitlines()[0]


def fakes_folder(config):
  class Folder:
    path, resuming = 'DIR', False

    def close(self):
      pass

  return Folder()


@pytest.mark.parametrize(
  ('arguments', 'begins', 'ends'),
  [
    ([], 'MR-MTL (mr_mtl) on exam, 50 rounds, protecting each example',
     'This is the quickstart; ./fl --help lists the flags.'),
    (['--rounds=2'], 'FedAvg (fedavg) on digits, 2 rounds, WITHOUT privacy, in DIR.',
     'These are the defaults; ./fl quickstart is a private first run.'),
    ([f'--flagfile={cli.QUICKSTART}', '--rounds=2'], 'MR-MTL (mr_mtl) on exam, 2 rounds, '
     'protecting each example of a client with epsilon 2 at delta 0.001, in DIR.', 'in DIR.'),
    ([f'--flagfile={cli.QUICKSTART}', '--mtl_lambda=3', '--noise_key=rehearsal'],
     'MR-MTL (mr_mtl) on exam, 50 rounds, protecting nobody (a rehearsal;', 'in DIR.'),
    (['--method=scaffold', '--rounds=1', '--model=softmax'],
     'SCAFFOLD (scaffold) on digits with softmax, 1 round, WITHOUT privacy', 'in DIR.'),
    ([f'--flagfile={cli.QUICKSTART}', '--privacy=none'], 'MR-MTL (mr_mtl) on exam, 50 rounds, '
     'WITHOUT privacy, in DIR.', '--target_epsilon=2.0, --delta=0.001, --accountant=renyi.'),
  ],
)  # fmt: skip
def test_the_first_line_says_what_is_trained(
  tmp_path, monkeypatch, capsys, arguments, begins, ends
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(cli.launcher, 'command', lambda: './fl')
  line = first_line(monkeypatch, capsys, *arguments)
  assert line.startswith(begins) and line.endswith(ends), line


def given(*arguments):
  with flagsaver.flagsaver():
    experiment_flags.flags.FLAGS(['x', *arguments])
    return experiment_flags.given(['x', *arguments])


def test_flags_beside_a_flagfile_change_what_they_name_and_no_more():
  file = f'--flagfile={cli.QUICKSTART}'
  plain = given(file)
  assert plain.notes == [] and plain.values['target_epsilon'] == 2.0
  changed = given(file, '--rounds=7')
  assert changed.values == {**plain.values, 'rounds': 7} and changed.notes == []
  other = given(file, '--noise_multiplier=1')
  assert 'target_epsilon' not in other.values and '--target_epsilon=2.0' in other.notes[0]
  assert ExperimentConfig(**other.values).noise_multiplier == 1.0
  public = ExperimentConfig(**given(file, '--privacy=none').values)
  assert public.privacy == 'none' and public.method == 'mr_mtl' and public.rounds == 50
  # What stands on the line itself is never left out: it is refused.
  assert 'delta' in given(file, '--privacy=none', '--delta=0.1').values
  # So it is beside a sweep over it; what the flagfile says gives way to the sweep.
  assert given(file, '--sweep=target_epsilon=1,2').values == plain.values
  for line in (['--mtl_lambda=3', '--sweep=mtl_lambda=1,2'], ['--seeds', '0-1', '--seed', '3']):
    with pytest.raises(ValueError, match='exclude each other; give one'):
      given(file, *line)
  options = given('--dataset_option=a=1', '--sweep=dataset_option=b=1,b=2')  # another option
  assert options.values == {'dataset_option': ['a=1']}


def test_every_privacy_has_its_words(tmp_path):
  words = [
    in_words.describe(ExperimentConfig(privacy='client', noise_multiplier=1.5, delta=1e-5)),
    in_words.describe(ExperimentConfig(**{**PRIVATE, 'target_epsilon': None,
                                          'silo_epsilons': 'mine.csv'})),
  ]  # fmt: skip
  assert words[0].endswith('protecting each client with noise multiplier 1.5 at delta 1e-05')
  assert words[1].endswith('protecting each example of a client with the budgets of mine.csv')


@pytest.mark.parametrize(
  ('sweeps', 'seeds', 'words'),
  [
    ([], ['0', '1'], 'A sweep of 2 runs, 2 seeds; the first is MR-MTL'),
    (['mtl_lambda=1'], [], 'A sweep of 1 run, mtl_lambda=1.0 x seed=0; the first is'),
    (['mtl_lambda=1,2', 'rounds=3,4', 'method=mr_mtl'], ['0-2'],
     'A sweep of 12 runs, mtl_lambda=1.0,2.0 x rounds=3,4 x method=mr_mtl x 3 seeds; the first'),
  ],
)  # fmt: skip
def test_the_line_of_a_sweep(sweeps, seeds, words):
  grid = Grid.parse(PRIVATE, sweeps, seeds)
  plan = sweep.Plan(grid=grid, folder='', resume=False, how=sweep.record.How())
  assert plan.in_words.startswith(words)
  assert ', ,' not in plan.in_words and ',;' not in plan.in_words


# --------------------------------------------------------------- while at work


class Terminal:
  """A pseudo-terminal as standard error."""

  def __init__(self, monkeypatch):
    self._mine, theirs = pty.openpty()
    self.stream = os.fdopen(theirs, 'w')
    monkeypatch.setattr(sys, 'stderr', self.stream)

  def read(self):
    self.stream.flush()
    said = b''
    while select.select([self._mine], [], [], 0.3)[0]:
      said += os.read(self._mine, 65536)
    return said.decode()


def test_a_terminal_is_told_what_is_done(monkeypatch):
  terminal = Terminal(monkeypatch)
  with progress.Doing('Loading exam') as doing:
    doing.end()
  said = terminal.read()
  assert said.startswith('\rLoading exam ... ') and said.endswith('\n')
  with progress.Doing('Loading exam', shown=False):
    pass
  assert terminal.read() == ''


def test_a_file_is_told_once(capsys):
  with progress.Doing('Compiling'):
    pass
  assert capsys.readouterr().err == 'Compiling ...\n'


@pytest.mark.parametrize('count', [1, 3])
def test_a_sweeps_line_has_no_stray_comma(monkeypatch, count):
  config = ExperimentConfig(**PRIVATE, rounds=5)
  terminal = Terminal(monkeypatch)
  shown = SweepProgress({f'r{i}': config for i in range(count)}, total=count, groups=1)
  shown.begins(0, [f'r{i}' for i in range(count)])
  shown.reports(0, 0, 2, 5, count)
  shown.close()
  said = terminal.read()
  assert '| ,' not in said and '|,' not in said and f'| runs 0/{count}, programs 0/1' in said
  assert 'loading, compiling' in said  # until the first rounds are done


def test_a_sweep_counts_the_runs_that_ended_within_a_program(monkeypatch):
  """Batches of 2 runs in a program of 6: 10 of 28 rounds in an hour, so 18 take 1.8 hours."""
  from experiments.sweeps import progress as sweep_progress

  now = 0.0
  monkeypatch.setattr(sweep_progress.time, 'monotonic', lambda: now)
  names = [f'r{i}' for i in range(6)]
  config = ExperimentConfig(**PRIVATE, rounds=5)
  shown = SweepProgress(dict.fromkeys(names, config), total=7, groups=1, shown=False)
  shown.begins(0, names)
  shown.reports(0, 0, 1, 5, 2)
  assert shown.line().startswith('runs 1/7, programs 0/1, round 1/5 of 2 runs at once')
  now = 3600.0
  shown.reports(0, 2, 1, 5, 2)
  assert shown.line() == ('runs 3/7, programs 0/1, round 1/5 of 2 runs at once, 1 h 48 min left')
  shown.ends(0, names)
  assert shown.line() == 'runs 7/7, programs 1/1'


def test_a_sweep_warns_once(capsys):
  shown = SweepProgress({}, total=0, groups=0)
  for _ in range(3):
    shown.warn('Too little.')
  assert capsys.readouterr().err == 'Too little.\n'


# ------------------------------------------------------------- closed pipes


@pytest.mark.slow
@pytest.mark.parametrize(
  'module',
  [['experiments.recipes', '--list'], ['experiments.recipes.claims'], ['run_experiment', '--help']],
)
def test_a_reader_may_have_seen_enough(module):
  """As `| head -1` does: no traceback, no message, and no failure for make to report."""
  process = subprocess.Popen(
    [sys.executable, '-m', *module], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
  )
  process.stdout.close()  # before anything is written
  assert process.stderr.read() == b'' and process.wait(120) == 0


# ------------------------------------------------------------ hopeless budgets


def warning(config):
  data = fakes.make_dataset()
  model = fakes_model(4)
  return hopeless.warning(config, plans.build_plan(config, data), model)


def fakes_model(dimension):
  import tensorflow as tf

  class Model:
    @staticmethod
    def init(seed):
      del seed
      return {'w': tf.zeros([dimension - 1]), 'b': tf.zeros([])}

  return Model


@pytest.mark.parametrize(
  'settings',
  [
    dict(method='fedavg', privacy='client', rounds=4),
    dict(method='mr_mtl', privacy='example', rounds=4, dataset='exam'),
    dict(method='local', privacy='example', rounds=4, dataset='exam'),
  ],
)
def test_a_hopeless_budget_is_said_before_training(settings):
  common = {**settings, 'delta': 1e-2}
  few = warning(ExperimentConfig(**common, target_epsilon=1e-6))
  assert few.startswith('Warning: with --target_epsilon=1e-06 nothing can be learnt.')
  assert 'expected L2 norm of' in few and 'clipping lets through at most 1;' in few
  assert warning(ExperimentConfig(**common, noise_multiplier=0.5)) == ''
  assert np.isfinite(float(few.partition('L2 norm of ')[2].partition(',')[0]))


def test_without_privacy_nothing_is_said():
  assert warning(ExperimentConfig(rounds=3)) == ''
