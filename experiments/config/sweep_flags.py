"""The flags of a sweep, beside those of a run. Defined on absl's `FLAGS` when imported."""

import textwrap
from typing import Any

from absl import flags

from runtime.hosts import cluster

VALIDATION, TEST, NOTHING = SELECT_ON = ('validation', 'test', 'nothing')
_HELP = {
  'sweep': (
    'A setting and its values, as name=value,value,... (a+b=value,... for two that are always '
    'equal); all combinations are run. May be repeated.'
  ),
  'seeds': 'Seeds with each of which every setting is run: 0,1,2 or 0-4.',
  'workers': 'Processes on this machine over which the runs of a sweep are spread.',
  'cluster': (
    'Ray cluster over whose machines the runs of a sweep are spread, one program to each of '
    '--workers, or the clients of one run, over --cohort_workers: ray://host:port, host:port from '
    'one of its machines, or local for one that lives as long as the command. Needs the extra '
    'cluster, and folders that all machines see.'
  ),
  'select_on': (
    'Data on which the best setting of each method and budget is chosen: validation (see '
    '--validation_fraction), test (the values are then optimistic, and labelled so), or nothing.'
  ),
}
MODULE = 'Sweeps'


def define(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines --sweep, --seeds, --workers, --cluster and --select_on."""
  common = dict(flag_values=flag_values, module_name=MODULE)
  flags.DEFINE_multi_string('sweep', [], _HELP['sweep'], **common)
  flags.DEFINE_list('seeds', [], _HELP['seeds'], **common)
  flags.DEFINE_integer('workers', 1, _HELP['workers'], **common)
  flags.DEFINE_string('cluster', '', _HELP['cluster'], **common)
  flags.DEFINE_string('select_on', VALIDATION, _HELP['select_on'], **common)


def is_wanted(flag_values: flags.FlagValues) -> bool:
  """Whether the flags ask for a sweep.

  Raises:
    ValueError: --seeds without any.
  """
  if flag_values['seeds'].present and not flag_values['seeds'].value:
    raise ValueError('--seeds= must be one or more different numbers.')
  return bool(flag_values['sweep'].value or flag_values['seeds'].value)


def check_single(flag_values: flags.FlagValues, config: Any) -> None:
  """Refuses what a single run would not use, and workers where nothing starts them.

  Raises:
    ValueError: naming the flags.
  """
  for name in ('workers', 'select_on'):
    flag = flag_values[name]
    if flag.value != flag.default:
      raise ValueError(
        f'--{name}={flag.value} belongs to a sweep (--sweep, --seeds); this is a single run.'
      )
  address = flag_values['cluster'].value
  if address and not config.cohort_workers:
    raise ValueError(
      f'--cluster={address} spreads the runs of a sweep (--sweep, --seeds), or the clients of one '
      'run with --cohort_workers.'
    )
  if address:
    cluster.check_form(address)
  if config.cohort_workers:
    cluster.import_ray(address, config.cohort_workers)


def help_lines() -> list[str]:
  """The flags' help, as `run_experiment.py --help` prints it."""
  lines = [f'{MODULE}:']
  for name, text in _HELP.items():
    lines.append(f'  --{name}')
    lines += textwrap.wrap(text, width=88, initial_indent=' ' * 6, subsequent_indent=' ' * 6)
  return lines


define()
