"""What a run spends, in the ledger of its data (`--ledger`)."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import socket
from typing import Any

import numpy as np

import datasets
import datasets.registry
from experiments.config.experiment import ExperimentConfig
from experiments.folder import files, provenance, results
from experiments.running import loading, plans, wording
from experiments.running.build import Experiment
from privacy import ledger
from privacy.events import Adjacency
from privacy.plan import ClientLevelPrivacy, ExampleLevelPrivacy, PrivacyPlan


class Spending:
  """One run's lines in the ledger; without `--ledger` nothing happens."""

  def __init__(self, experiment: Experiment, folder: results.RunFolder | None):
    config = experiment.config
    self._experiment = experiment
    self._run_folder = folder
    self._folder = '' if folder is None else str(folder.path.resolve())
    self._reserved = False
    self._book = None
    if config.ledger is not None:
      self._book = ledger.Ledger(pathlib.Path(config.ledger), is_running=_is_running)

  def reserve(self) -> None:
    """Before the first round, and before a run goes on.

    Raises:
      BudgetError: the run would pass `--ledger_epsilon`.
    """
    if self._book is not None:
      claim = self._claim(self._experiment.last_round)
      self._book.reserve(claim, epsilon=self._experiment.config.ledger_epsilon)
      self._reserved = True

  def withdraw(self) -> None:
    """Where no round was run after all."""
    if self._book is not None and self._reserved:
      self._book.withdraw(self._claim(self._experiment.last_round))

  def record(self, rounds: int, *, ended: bool = False) -> None:
    """Before anything is written of rounds that were run; `ended` if no other follows."""
    if self._book is not None:
      self._book.record(self._claim(rounds), ended=ended)

  def together(self, rounds: int) -> ledger.Composition | None:
    """What all runs on the data spend together, this one in so many rounds; None without a ledger.

    It may take long, with many silos and runs.
    """
    return None if self._book is None else self._book.composition(self._claim(rounds))

  def _claim(self, rounds: int) -> ledger.Claim:
    experiment = self._experiment
    assert experiment.noise_key is not None  # the configuration has been checked
    run = experiment.noise_key.fingerprint
    if self._run_folder is not None:  # a finished run's key is deleted
      run = self._run_folder.noise_key_fingerprint or run
    return claim_of(
      experiment.config, experiment.dataset, experiment.plan, rounds,
      run=run, folder=self._folder, settings=self._settings,
    )  # fmt: skip

  @functools.cached_property
  def _settings(self) -> str:
    """What tells runs apart: two with the same noise must be the same in all of it."""
    folder = self._run_folder
    if folder is None:
      contents = results.digest(self._experiment.contents)
      return f'{self._experiment.config.fingerprint}+{contents}+{provenance.digest()}'
    # With which the run was begun, maybe by an earlier version.
    return f'{folder.fingerprint}+{folder.begun_contents}+{folder.begun_with}'


def claim_of(
  config: ExperimentConfig,
  dataset: datasets.FederatedDataset,
  plan: PrivacyPlan,
  rounds: int,
  *,
  run: str,
  folder: str = '',
  settings: str = '',
) -> ledger.Claim:
  """What so many rounds of a private run spend; see `ledger.Claim`."""
  replaced, unprotected = None, ''
  if isinstance(plan, ExampleLevelPrivacy):
    events = dict(zip(dataset.client_ids, plan.event(rounds), strict=True))
    delta = plan.common_delta
  else:
    assert isinstance(plan, ClientLevelPrivacy)
    events = {'': plan.event(rounds)}
    if Adjacency.REPLACE_ONE in plan.adjacencies:
      replaced = plan.event(rounds, Adjacency.REPLACE_ONE)
    if plan.num_opted_out:
      unprotected = _opted_out(config, dataset)
    delta = float(plan.delta)
  return ledger.Claim(
    run=run,
    data=data_of(dataset),
    partition=loading.cut_of(dataset),
    unit=plan.unit,
    relation=plan.adjacencies[0].value,
    delta=delta,
    events=events,
    rounds=rounds,
    folder=folder,
    host=socket.gethostname(),
    settings=settings,
    replaced=replaced,
    unprotected=unprotected,
  )


def data_of(dataset: datasets.FederatedDataset) -> tuple[str, ...]:
  """What tells data from others: checksums of what was read; its name where there are none."""
  return tuple(sorted(dataset.checksums.values())) or (dataset.name,)


def _opted_out(config: ExperimentConfig, dataset: datasets.FederatedDataset) -> str:
  """Tells those who opted out of privacy from others."""
  groups = plans.setup_of(config, dataset).groups()
  members = {name: np.flatnonzero(of).tolist() for name, of in groups.items()}
  own = members or config.fingerprint  # of a method that does not tell
  text = json.dumps([loading.cut_of(dataset), own], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def with_ledger(privacy: dict[str, Any], together: ledger.Composition | None) -> dict[str, Any]:
  """A privacy report which also says what all runs on the data have spent together."""
  if together is None:
    return privacy
  text = f'All runs on these data, by the ledger: {together}.'
  records = {'ledger': {**dataclasses.asdict(together), 'text': text}}
  statement = '\n'.join([privacy['statement'], *wording.entries(records)])
  return {**privacy, **records, 'statement': statement}


def _is_running(claim: ledger.Claim) -> bool:
  """Whether a process holds a run's folder, or may: it is not seen from here."""
  if not claim.folder:
    return True
  try:
    return files.is_held(pathlib.Path(claim.folder))
  except FileNotFoundError:  # gone, if it was here
    return claim.host != socket.gethostname()
  except OSError:
    return True
