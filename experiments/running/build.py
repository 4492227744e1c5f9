"""From a configuration to something that can run: data, plan, model, method."""

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import datasets
import processes
from experiments.config import user_files
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder import noise_correlations, noise_keys
from experiments.running import evaluation, hopeless, loading, parts, references, wording
from experiments.running.loading import TrainParts, for_workers, load_dataset
from experiments.running.plans import budget_groups, build_plan, setup_of
from privacy import (
  accounting,
  calibration,
  plan,
)
from privacy.correlated import noise, query
from privacy.rounding import rounded_up
from processes.method import BuildSpec, FederatedMethod
from runtime.noise_key import NOISE_BUFFERS, NoiseKey
from settings import Group
from tff_models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
  """Everything about a run except where it runs.

  Attributes:
    config: its configuration.
    dataset: the data.
    plan: the privacy plan.
    model: the model.
    method: the method, built for them.
    noise_key: the secret from which noise, cohorts and batches are drawn, of this run alone;
      None without privacy.
    train_parts: how cohort workers load their clients' training data by themselves; None where
      they are sent them, and without workers.
  """

  config: ExperimentConfig
  dataset: datasets.FederatedDataset
  plan: plan.PrivacyPlan
  model: Model
  method: FederatedMethod
  noise_key: NoiseKey | None = None
  train_parts: TrainParts | None = None

  @property
  def root(self) -> int | NoiseKey:
    """What the run's cohorts are drawn from: the noise key where they are secret, else the seed."""
    secret = self.noise_key if self.plan.cohorts.secret else None
    return self.config.seed if secret is None else secret

  @property
  def noise_key_fingerprint(self) -> str | None:
    """What tells the noise key from others, and nothing about it; None without one."""
    return None if self.noise_key is None else self.noise_key.fingerprint

  @property
  def private(self) -> bool:
    """Whether anything is protected."""
    return self.config.privacy != 'none'

  @property
  def main_metric(self) -> str:
    """'accuracy' or 'mse'."""
    return self.model.metric_names[0]

  @property
  def epsilon_metric(self) -> str:
    """What epsilon is called among a run's metrics: never its own where it is a deployment's."""
    return 'deployment_epsilon' if self.config.hypothetical_deployment else 'epsilon'

  @property
  def title(self) -> str:
    """One line for a figure."""
    protected = f', {self.config.privacy}-level privacy' if self.private else ''
    if self.config.hypothetical_deployment:
      protected = ', noise and epsilon of a hypothetical deployment'
    return f'{self.config.declaration.title} on {self.dataset.name}{protected}'

  @property
  def is_loaded_by_cohort(self) -> bool:
    """Whether the data are too many to be held at once."""
    return isinstance(self.dataset.train, datasets.ClientSource)

  def initial_states(self) -> tuple[Any, Any]:
    """The server's state and all clients' states [K, ...] before the first round."""
    server = self.method.initial_server_state(self.config.seed, noise_key=self.noise_key)
    setup = setup_of(self.config, self.dataset, self.noise_key)
    attributes = dict(setup.client_attributes(self.plan))
    clients = self.method.initial_client_states(
      server, self.dataset.num_clients, attributes, noise_key=self.noise_key
    )
    return server, clients

  @property
  def _outside(self) -> tuple[str, ...]:
    sentences = references.outside(self.dataset)
    if getattr(self.plan, 'num_opted_out', 0) and 'opt_out_candidates' in self.dataset.groups:
      sentences += (
        'Who may opt out is a group of the data set: where it follows from the data of clients, '
        'the public list of those who do tells of the others, too.',
      )
    return sentences

  @functools.cached_property
  def contents(self) -> dict[str, str]:
    """Digests of what makes the run what it is and no setting tells, by what it is.

    The numbers that a model of the user's holds, data that a program gives, how noise is
    correlated, and the modules that the user's files import.
    """
    contents = user_files.imported(self.config)
    if self.model.contents:
      contents['model'] = self.model.contents
    if not loading.is_of_settings(self.config, self.dataset):
      contents['examples'] = loading.digest_of(self.dataset)
    if self.fitted_correlation is not None:
      contents['noise correlation'] = noise_correlations.digest(self.fitted_correlation)
    return contents

  @property
  def fitted_correlation(self) -> np.ndarray | None:
    """The numbers of a noise correlation that was found by optimisation; None without one."""
    own = self.plan.correlation if isinstance(self.plan, plan.ClientLevelPrivacy) else None
    return own.fitted if own is not None and own.fitted.size else None

  def with_noise_buffers(self, server: Any) -> Any:
    """The server's state after some rounds, with what correlated noise remembers of them."""
    if isinstance(self.plan, plan.ClientLevelPrivacy) and self.plan.correlation is not None:
      return _with_noise_buffers(server, self.plan.noise_stream)
    return server

  @functools.cache  # noqa: B019 - an experiment lives as long as its process
  def loss(self, rounds: int) -> accounting.PrivacyLoss:
    """The guarantee of so many rounds: one epsilon at one delta, for all who are protected."""
    return self.plan.loss(rounds)

  def epsilon(self, rounds: int) -> float:
    """Epsilon of so many rounds."""
    return self.loss(rounds).epsilon

  @functools.cached_property
  def warning(self) -> str:
    """A sentence where the noise drowns all that could be learnt; empty elsewhere."""
    return hopeless.warning(self.config, self.plan, self.model)

  @functools.cached_property
  def last_round(self) -> int:
    """The rounds of the whole run: all that were asked for, or those that the budget allows.

    Raises:
      ValueError: the budget allows none.
    """
    budget, asked = self.config.epsilon_budget, self.config.rounds
    if budget is None:
      return asked
    allowed = calibration.rounds_within(budget, self.epsilon, asked)
    if not allowed:
      raise ValueError(
        f'--epsilon_budget={budget:g} allows no round: one takes epsilon = '
        f'{rounded_up(self.epsilon(1))}.'
      )
    return allowed

  def privacy_so_far(self, rounds: int) -> dict[str, Any]:
    """The content of privacy.json while a run goes on: quickly found."""
    loss = self.loss(rounds)
    return {
      'private': self.private and math.isfinite(loss.epsilon),
      'unit': self.plan.unit,
      'adjacency': self.plan.adjacency,
      'condition': getattr(self.plan, 'condition', ''),
      'rounds': rounds,
      'epsilon': loss.epsilon,
      'delta': loss.delta,
      'accountant': loss.accountant,
      'finished': False,
      'rounds_of_all': self.last_round,
      'epsilon_of_all': self.epsilon(self.last_round),
      'stopping': wording.STOPPING,
      'replay': wording.REPLAY,
      **wording.further(self.config, self.last_round),
    }

  @functools.cache  # noqa: B019
  def privacy_report(self, rounds: int) -> dict[str, Any]:
    """The content of privacy.json after the last round, with the statement in words."""
    statement = self.plan.statement(
      rounds,
      preprocessing=self.dataset.preprocessing + self._outside * self.private,
      notes=wording.notes(self.config.declaration, self.plan),
    )
    report = statement.to_json()
    for silo in report['silos']:
      silo['silo'] = self.dataset.client_ids[silo['silo']]
    further = wording.further(self.config, self.last_round)
    if self.config.noise_key == noise_keys.REHEARSAL:
      report['guarantee'] = f'Rehearsal, nobody is protected: {report["guarantee"]}'
    return {
      **report,
      'finished': True,
      'released_metrics': sorted(self.method.released_metrics),
      'simulation_only': 'All other metrics are exact values for the eyes of a simulation.',
      'replay': wording.REPLAY,
      **further,
      'statement': '\n'.join([statement.text(), *wording.entries(further)]),
    }


def _with_noise_buffers(tree: Any, stream: noise.NoiseStream) -> Any:
  if not isinstance(tree, Mapping):
    return tree
  if NOISE_BUFFERS in tree:
    return query.with_noise_buffers(collections.OrderedDict(tree), stream)
  return collections.OrderedDict(
    (name, _with_noise_buffers(part, stream)) for name, part in tree.items()
  )


def build_process(
  config: ExperimentConfig,
  dataset: datasets.FederatedDataset | None = None,
  *,
  model: Any = None,
  metrics: Mapping[str, parts.Metric] | None = None,
  noise_key: NoiseKey | None = None,
) -> Experiment:
  """Builds plan, model and TFF process.

  Args:
    config: what to build.
    dataset: the data, for example `from_dataframe`'s; loaded from the registry if None.
    model: the model in the place of the configuration's; see `parts.Parts`.
    metrics: further metrics by name: (outputs, labels) -> a value for each example.
    noise_key: of a private run; by default that of the run which the configuration goes on with,
      or what it says, most often a fresh one.

  Raises:
    ValueError: something does not fit together.
    TypeError: it is no configuration.
  """
  own = parts.Parts(dataset=dataset, model=model, metrics=metrics or {})
  dataset, train_parts = load_dataset(config, dataset), None
  if own.dataset is None:
    dataset, train_parts = for_workers(config, dataset)
  dataset = prepared(config, dataset)
  built_model = parts.model_of(config, dataset, own)
  privacy_plan = build_plan(config, dataset)
  if noise_key is None:
    noise_key = noise_keys.acquire(config, _begun_in(config))
  somebody = dataset.train.load(np.zeros([1], np.int32))
  hyperparameters, options = method_settings(config)
  options.update(setup_of(config, dataset, noise_key).options(privacy_plan))
  method = processes.build(
    config.method,
    BuildSpec(
      model=built_model,
      examples=evaluation.examples_spec(somebody),
      plan=privacy_plan,
      batch_size=config.batch_size,
      local_epochs=config.local_epochs,
      rounds=config.rounds,
      hyperparameters=hyperparameters,
      options=options,
    ),
  )
  return Experiment(
    config=config, dataset=dataset, plan=privacy_plan, model=built_model, method=method,
    noise_key=noise_key, train_parts=train_parts,
  )  # fmt: skip


def _begun_in(config: ExperimentConfig) -> pathlib.Path | None:
  """The folder with the noise key of the run that goes on, if there is one."""
  folder = pathlib.Path(config.output_dir)
  is_there = all((folder / name).exists() for name in ('config.json', noise_keys.NAME))
  return folder if config.resume and config.output_dir and is_there else None


def prepared(
  config: ExperimentConfig, dataset: datasets.FederatedDataset
) -> datasets.FederatedDataset:
  """The data as the method needs them: pooled, or with the groups that it reports."""
  if not config.declaration.federated:
    return pool(dataset)
  groups = {**budget_groups(config, dataset), **setup_of(config, dataset).groups()}
  groups = {name: members for name, members in groups.items() if members.any()}
  return dataclasses.replace(dataset, groups={**dataset.groups, **groups}) if groups else dataset


def pool(dataset: datasets.FederatedDataset) -> datasets.FederatedDataset:
  """All clients as one, for methods that are not federated.

  Raises:
    ValueError: the data are too many to be held at once.
  """
  if not isinstance(dataset.train, datasets.ClientExamples):
    raise ValueError(
      f'--dataset={dataset.name} is loaded round by round and cannot be pooled; '
      'use a federated method.'
    )
  return dataclasses.replace(
    dataset,
    train=_one_client(dataset.train),
    test=_one_client(dataset.test.load(np.arange(dataset.num_clients))),
    excess_risk=None if dataset.excess_risk is None else _one_client(dataset.excess_risk),
    client_ids=('all clients',),
    groups={},
    clusters=(),
  )


def _one_client(examples: datasets.ClientExamples) -> datasets.ClientExamples:
  x, y = examples.pooled()
  return datasets.ClientExamples.from_lists([x], [y])


def method_settings(config: ExperimentConfig) -> tuple[dict[str, float], dict[str, Any]]:
  """What a method is given: continuous values by name, and choices by name."""
  hyperparameters, options = {}, {}
  for name, setting in settings().items():
    value = getattr(config, name)
    if value is None and setting.same_as and config.declaration.setting(name):
      value = getattr(config, setting.same_as)
    if value is None:
      continue
    if setting.continuous:
      hyperparameters[name] = value
    elif setting.group is Group.METHOD:
      options[name] = value
  if config.privacy == 'example':
    hyperparameters['clipping_norm'] = config.clipping_norm
  return hyperparameters, options
