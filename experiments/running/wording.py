"""Sentences of privacy.json beside the plan's statement: the key, the filter, stopping, replays."""

from collections.abc import Mapping
from typing import Any

from experiments.config.experiment import ExperimentConfig
from experiments.folder import noise_keys
from privacy import nothing_shared, sampling, statement
from privacy.plan import PrivacyPlan
from processes import common_settings
from processes.declaration import Method

REPLAY = (
  'Rounds that an interruption lost are run again with the same cohorts, batches and noise, and '
  'release the same values again: they are counted once. On another device or with another number '
  'of workers sums are rounded otherwise; like all floating-point arithmetic here, that is outside '
  'of the guarantee.'
)
STOPPING = (
  'Spent so far (an odometer). It is a guarantee only if these rounds were the plan from the '
  'beginning. Who ends a run because of what it showed has the guarantee of all its rounds: when '
  'one stops would itself tell something. A filter (--epsilon_budget) ends a run by itself, at a '
  'round that follows from public settings.'
)
_HEADINGS = {'filter': 'Filter', 'noise_key': 'Noise key', 'ledger': 'Ledger'}


def notes(method: Method, plan: PrivacyPlan) -> tuple[str, ...]:
  """What a method adds to the statement of a client-level plan, as far as its cohorts allow.

  Joint privacy rests on clients who take part independently: where the others tell who took part
  it is not that of the plan.
  """
  if plan.unit != 'client':
    return ()
  told, cohorts = {}, getattr(plan, 'deployed', plan.cohorts)
  is_silent = isinstance(plan, nothing_shared.NothingShared) or cohorts.rate == 1
  is_amplified = isinstance(cohorts, sampling.FixedSizeCohorts) and not cohorts.is_known
  if is_amplified and not is_silent:
    told[common_settings.STAYS_ON_THE_CLIENT] = common_settings.STAYS_ON_THE_CLIENT_ALONE
  return tuple(told.get(note, note) for note in method.privacy_notes)


def further(config: ExperimentConfig, last_round: int) -> dict[str, Mapping[str, Any]]:
  """Further records of privacy.json, each with its sentence as `text`.

  Args:
    config: of the run.
    last_round: its rounds, as the filter has it.
  """
  records: dict[str, Mapping[str, Any]] = {}
  if config.epsilon_budget is not None:
    text = (
      f'The run ends before the round that would take epsilon past {config.epsilon_budget:g}, here '
      f'after {last_round} of the {config.rounds} that were asked for: a number that follows from '
      'public settings.'
    )
    records['filter'] = {'epsilon_budget': config.epsilon_budget, 'text': text}
  if config.privacy != 'none':
    records['noise_key'] = noise_keys.describe(config)
  return records


def entries(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The sentences of records with their headings, as the statement has them."""
  return [statement.entry(_HEADINGS[name], record['text']) for name, record in records.items()]
