"""The command line: from arguments to a run, and every error to one line."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags, logging

from experiments.config import checks, continuing, in_words, launcher, sweep_flags, user_files
from experiments.config import flags as experiment_flags
from experiments.config.experiment import ExperimentConfig
from experiments.folder import results
from experiments.running import interruption, printing, startup
from experiments.running.progress import Doing

EXIT_ERROR = 2
QUICKSTART = pathlib.Path(__file__).resolve().parent.parent / 'recipes' / 'quickstart.flags'
_HELP = {'--help', '-help', '-h', '--helpshort', '-helpshort'}
_FULL_HELP = {'--helpfull', '-helpfull'}


def main(argv: list[str]) -> int:
  """Runs one experiment, or a sweep of them, from flags.

  Args:
    argv: the program's name and its arguments.

  Returns:
    The exit code: 0, 2 for an error, 130 or 143 after a signal.
  """
  with interruption.command():
    return _main(argv)


def _main(argv: Sequence[str]) -> int:
  arguments = set(argv[1:])
  if not arguments:
    argv = [argv[0], f'--flagfile={QUICKSTART}']
  try:
    with startup.quiet():  # A user's file may import TensorFlow.
      experiment_flags.define_own(argv)
    if arguments & (_HELP | _FULL_HELP):
      printing.out(experiment_flags.help_text(full=bool(arguments & _FULL_HELP)))
      return 0
    flags.FLAGS.set_default('verbosity', logging.INFO)
    experiment_flags.parse(argv)
    given = experiment_flags.given(argv)
    notes = [*given.notes, *_notes(arguments, given.values)]
    if sweep_flags.is_wanted(flags.FLAGS) or _sweep_goes_on(given.values):
      report, folder = _sweep(given.values, notes)
    else:
      config = _configuration(given.values)
      sweep_flags.check_single(flags.FLAGS, config)
      user_files.check_there(config)
      checks.check_gpu(config)
      report, folder = _run(config, notes)
  except (flags.Error, ValueError, OSError, MemoryError) as error:
    if _debugging():
      raise
    where = user_files.place_of(error)  # of what a user's own file raises
    print(f'error: {_one_line(error)}{where if where not in str(error) else ""}', file=sys.stderr)
    return EXIT_ERROR
  except (Exception, SystemExit) as error:  # a fault of ours: still one line, unless asked for more
    if _debugging() or (isinstance(error, SystemExit) and not user_files.place_of(error)):
      raise
    kind = type(error).__name__
    where = user_files.place_of(error) or ' (--verbosity=1 shows where)'
    print(f'error: {kind}: {_one_line(error)}{where}', file=sys.stderr)
    return EXIT_ERROR
  except interruption.Interrupted as interrupted:
    print(interrupted, file=sys.stderr)
    return interrupted.exit_code
  printing.out(f'\n{report}\n\nResults: {folder}')
  return 0


def _sweep_goes_on(given: Mapping[str, Any]) -> bool:
  folder = pathlib.Path(given.get('output_dir') or '.')
  return bool(given.get('resume')) and (folder / 'sweep.json').exists()


def _configuration(given: Mapping[str, Any]) -> ExperimentConfig:
  """What the flags ask for: a new run, or with `--resume` the one in the folder."""
  if not given.get('resume'):
    return ExperimentConfig(**given)
  if not given.get('output_dir'):
    raise ValueError('--resume needs --output_dir, the folder of the run or sweep to continue.')
  where = f'--output_dir={given["output_dir"]}'
  recorded = results.recorded_settings(given['output_dir'])
  if recorded is not None:
    return ExperimentConfig.from_json(continuing.merged(recorded, given, where, complete=True))
  if not continuing.names_a_run(given):
    raise ValueError(f'{where} holds no run and no sweep to continue.')
  return ExperimentConfig(**given)  # one that was killed before it wrote anything


def _notes(arguments: set[str], given: Mapping[str, Any]) -> list[str]:
  """What to add to the first line: where the settings come from if nothing was said of that."""
  if not arguments:
    return [f'This is the quickstart; {launcher.command()} --help lists the flags.']
  from_file = any(argument.lstrip('-').startswith('flagfile') for argument in arguments)
  if from_file or 'method' in given or given.get('resume'):
    return []
  return [f'These are the defaults; {launcher.command()} quickstart is a private first run.']


def _say_first(words: str, notes: Iterable[str]) -> None:
  print(' '.join([f'{words}.', *notes]), file=sys.stderr, flush=True)


def _sweep(given: Mapping[str, Any], notes: Sequence[str]) -> tuple[str, str]:
  """Runs a sweep and returns the report and the folder."""
  from experiments.sweeps import sweep  # pandas, which a flag error need not wait for

  plan = sweep.from_flags(given, flags.FLAGS)
  plan.check()  # before a word is said
  _say_first(plan.in_words, notes)
  result = plan.run()
  return result.report, str(result.folder)


def _run(config: ExperimentConfig, notes: Sequence[str]) -> tuple[str, str]:
  """Runs and returns the report and the folder."""
  if not config.output_dir:
    own = results.new_folder(config)
    try:
      return _run(dataclasses.replace(config, output_dir=own), notes)
    finally:
      with contextlib.suppress(OSError):  # results are in it
        os.rmdir(own)
  with interruption.Interruption():
    folder = results.RunFolder(config)
    try:
      what = 'Continuing ' * folder.resuming + in_words.describe(config)
      _say_first(f'{what}, in {folder.path}', notes)
      with Doing('Starting TensorFlow'), startup.loading():
        from experiments.running import runner
      cluster = flags.FLAGS.cluster
      return runner.run(config, folder=folder, cluster=cluster).report, str(folder.path)
    finally:
      folder.close()


def _debugging() -> bool:
  return flags.FLAGS.is_parsed() and flags.FLAGS.verbosity >= logging.DEBUG


def _one_line(error: BaseException) -> str:
  return ' '.join(str(error).split()) or type(error).__name__
