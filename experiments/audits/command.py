"""Attacks a configuration: `./fl audit --flagfile=recipes/NAME.flags`.

Thousands of runs are one compiled program, a sweep over seeds. Half of them are without the
canary. If the lower bound exceeds the claim, then sampler, mechanism and accountant do not
belong together, and the exit code is 1.

With `--audit_canaries=M` there is one run, with M canaries of which a coin decides for each
whether it is there (Steinke et al. 2023): cheaper, and looser. `--audit_choice` attacks
a private choice: IFCA's of a cluster by itself, or what private tuning releases.
"""

# Importing this module does not import TensorFlow.
import sys
import textwrap
from typing import Any

import numpy as np
from absl import flags, logging

from experiments.audits.target import Report, Target
from experiments.config import flags as experiment_flags
from experiments.config import in_words, launcher, user_files
from experiments.config.experiment import ExperimentConfig
from experiments.running import interruption, printing, startup
from experiments.running.progress import Doing
from settings import show

flags.DEFINE_integer(
  'audit_runs', 4000, 'Runs of the attacked pipeline, half of them with the canary.',
  lower_bound=16, module_name='Audit',
)  # fmt: skip
flags.DEFINE_float(
  'audit_confidence', 0.95, 'Confidence of the lower bound.', 0.5, 0.999999, module_name='Audit'
)
flags.DEFINE_integer(
  'audit_client', 0, 'Which client (silo) is attacked, by its number.',
  lower_bound=0, module_name='Audit',
)  # fmt: skip
flags.DEFINE_integer(
  'audit_canaries', 0,
  'Attack a single run with so many canaries, instead of --audit_runs with one (0).',
  lower_bound=0, module_name='Audit',
)  # fmt: skip
flags.DEFINE_integer(
  'audit_guesses', None,
  'With --audit_canaries: on how many canaries the attacker guesses. Default: a third of them.',
  lower_bound=2, module_name='Audit',
)  # fmt: skip
flags.DEFINE_boolean(
  'audit_choice', False,
  'Attack a private choice: the first one of a cluster, or the best run that tuned_mr_mtl releases '
  'beside its pivot.',
  module_name='Audit',
)  # fmt: skip


def main(argv: list[str]) -> int:
  """Audits the configuration of the flags.

  Returns:
    0 if the claim stands, 1 if it is refuted, 2 after an error, 130 or 143 after a signal.
  """
  if not argv[1:] or {'-h', '--help'} & {*argv}:
    printing.out(_help())
    return 0 if argv[1:] else 2
  try:
    values = flags.FLAGS
    with startup.quiet():  # A user's file may import TensorFlow.
      experiment_flags.define_own(argv, values)
    experiment_flags.parse(argv, values)
    config = ExperimentConfig.from_flags(values)
    if config.privacy == 'none':
      raise ValueError('--privacy=none claims nothing: there is nothing to audit.')
    if values.audit_choice and values.audit_canaries:
      raise ValueError(
        f'--audit_choice and --audit_canaries={values.audit_canaries} exclude each other; give one.'
      )
    user_files.check_there(config)
    print(f'An audit of {in_words.describe(config)}.', file=sys.stderr, flush=True)
    with interruption.command(), interruption.Interruption():
      report = _audit_configuration(config, values)
  except (flags.Error, ValueError, OSError, MemoryError) as error:
    print('error: ' + ' '.join(str(error).split()), file=sys.stderr)
    return 2
  except Exception as error:  # a fault of ours, or a user's file's: 1 would refute the claim
    if logging.level_debug():
      raise
    where = user_files.place_of(error) or ' (--verbosity=1 shows where)'
    print(f'error: {type(error).__name__}: {" ".join(str(error).split())}{where}', file=sys.stderr)
    return 2
  except interruption.Interrupted as stopped:
    print('stopped; nothing is kept of an audit', file=sys.stderr)
    return stopped.exit_code
  print(report.text())
  return 1 if report.broken else 0


def _help() -> str:
  lines = [f'{__doc__}\nAny flag of an experiment ({launcher.command()} --help lists them), and:']
  for flag in flags.FLAGS.flags_by_module_dict()['Audit']:
    lines.append(f'  --{flag.name}' + (f' [{show(flag.default)}]' if flag.default else ''))
    lines += textwrap.wrap(
      flag.help or '', width=88, initial_indent=' ' * 6, subsequent_indent=' ' * 6
    )
  return '\n'.join(lines)


def _audit_configuration(config: ExperimentConfig, values: flags.FlagValues) -> Report:
  with Doing('Starting TensorFlow'), startup.loading():
    from experiments.audits import audit, tuned
    from experiments.running import build, evaluation
  with Doing(f'Loading {config.dataset}, building {config.method}'), startup.quiet():
    experiment = build.build_process(config)
  client = values.audit_client
  if client >= experiment.dataset.num_clients:
    raise ValueError(
      f'--audit_client={client} must be below the {experiment.dataset.num_clients} clients of '
      f'--dataset={config.dataset}.'
    )
  _, clients = experiment.initial_states()
  own = clients.get('attributes', {})
  silo: dict[str, Any] = getattr(experiment.plan, 'silo_parameters', dict)()
  task = experiment.dataset.task
  somebody = experiment.dataset.train.load(np.zeros([1], np.int32))
  target = Target(
    method=experiment.method,
    plan=experiment.plan,
    examples=evaluation.examples_spec(somebody),
    client=client,
    attributes={name: float(own[name][client]) for name in own if name not in silo},
    num_classes=task.num_outputs if task.kind == 'classification' else 1,
  )
  with Doing('Attacking'), startup.quiet():
    common: dict[str, Any] = dict(seed=config.seed, confidence=values.audit_confidence)
    if values.audit_choice and getattr(experiment.plan, 'tuning', None) is not None:
      return tuned.audit_tuning(target, rounds=config.rounds, runs=values.audit_runs, **common)
    if values.audit_choice:
      return audit.audit_choice(target, runs=values.audit_runs, **common)
    if values.audit_canaries:
      return audit.audit_one_run(
        target,
        rounds=config.rounds,
        canaries=values.audit_canaries,
        guesses=values.audit_guesses,
        **common,
      )
    return audit.audit(target, rounds=config.rounds, runs=values.audit_runs, **common)
