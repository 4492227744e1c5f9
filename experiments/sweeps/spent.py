"""What all runs of a sweep or recipe would spend together, if all of them were released."""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.running import build, plans, spending
from privacy import ledger


def together(runs: Sequence[pathlib.Path], *, data_dir: str | None = None) -> list[str]:
  """A sentence for each kind of data, unit and relation that several private runs share.

  Runs which cut the same data into other silos (by another seed) are composed for an example that
  may be in any silo of each; into other clients, they have no common guarantee. Those with the
  noise of a hypothetical deployment protect nobody. What else was released of the same data, by
  runs without privacy or that protect something else, is not composed, and counted beside.

  Args:
    runs: folders of finished runs.
    data_dir: where the data are now; None for where each run had them.
  """
  loaded: dict[tuple, datasets.FederatedDataset] = {}
  claims: dict[_Kind, list[ledger.Claim]] = {}
  without_privacy: list[ExperimentConfig] = []
  num_hypothetical = 0

  def load(config: ExperimentConfig) -> datasets.FederatedDataset:
    data = (
      config.dataset, config.data_dir, str(config.dataset_options), config.seed,
      config.validation_fraction, config.min_examples,
    )  # fmt: skip
    if data not in loaded:
      loaded[data] = build.load_dataset(config)
    return loaded[data]

  for folder in runs:
    record = json.loads((folder / 'privacy.json').read_text())
    recorded = json.loads((folder / 'config.json').read_text())['config']
    moved = {} if data_dir is None else {'data_dir': data_dir}
    config = ExperimentConfig.from_json({**recorded, **moved})
    if record['private'] and record.get('condition'):
      num_hypothetical += 1
    elif record['private']:
      dataset = build.prepared(config, load(config))
      plan = plans.build_plan(config, dataset)
      claim = spending.claim_of(config, dataset, plan, record['rounds'], run=str(folder))
      claims.setdefault(_Kind(claim.data, claim.unit, claim.relation), []).append(claim)
    else:
      without_privacy.append(config)
  unprotected = [{*spending.data_of(load(c))} for c in without_privacy] if claims else []
  sentences = []
  for kind, same in claims.items():
    beside = ['without privacy' for data in unprotected if data & {*kind.data}]
    for other, theirs in claims.items():
      if other != kind and {*other.data} & {*kind.data}:
        beside += [f'that protect {other.unit}s ({other.relation})'] * len(theirs)
    if len(same) > 1 or beside:
      sentences.append(_in_words(same, collections.Counter(beside)))
  told = [
    sentence if count == 1 else f'For each of {count} sets of data by itself: {sentence}'
    for sentence, count in collections.Counter(sentences).items()
  ]
  if num_hypothetical:
    told.append(
      f'With the noise of a hypothetical deployment, for nobody here: {num_hypothetical}.'
    )
  return told


class _Kind(NamedTuple):
  """Runs that are composed."""

  data: tuple[str, ...]
  unit: str
  relation: str


def _in_words(claims: list[ledger.Claim], beside: Mapping[str, int]) -> str:
  """What some runs spend together, and how many were released `beside` them, by what they are."""
  cut_alike = len({(claim.partition, *claim.events) for claim in claims}) == 1
  if claims[0].unit == 'example' and not cut_alike:
    claims = ledger.of_any_silo(claims)
  elif not cut_alike:
    return (
      f'{len(claims)} runs that cut the same data into different clients: released together they '
      'have no common guarantee.'
    )
  found = ledger.compose(claims)
  # The runs are set up before any of them has results.
  fixed = found.epsilon_of_fixed
  if fixed is not None and fixed < found.epsilon:
    found = dataclasses.replace(found, epsilon=fixed, accountant='PLD', epsilon_of_fixed=None)
  said = f'What is released by {_in_numbers(len(claims))}' if beside else 'All that is released'
  sentence = (
    f'{said}, were each noise key a secret of its own: {found}. '
    f'Unit: {claims[0].unit}. Adjacency: {claims[0].relation}.'
  )
  if beside:
    counts = ' and '.join(f'{_in_numbers(count)} {what}' for what, count in beside.items())
    sentence += f' That does not count {counts}, on the same data: released too, they cost more.'
  return sentence


def _in_numbers(count: int) -> str:
  """'1 run' or '3 runs'."""
  return f'{count} run' + ('s' if count != 1 else '')
