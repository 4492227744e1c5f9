"""What all runs of a sweep or recipe would spend together, if all of them were released."""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Sequence

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.running import build, plans, spending
from privacy import ledger


def together(runs: Sequence[pathlib.Path]) -> list[str]:
  """A sentence for each kind of data, unit and relation that several private runs share.

  Runs which cut the same data into other silos (by another seed) are composed for an example that
  may be in any silo of each; into other clients, they have no common guarantee. Those with the
  noise of a hypothetical deployment protect nobody, and are counted by themselves.

  Args:
    runs: folders of finished runs.
  """
  loaded: dict[tuple, datasets.FederatedDataset] = {}
  claims: dict[tuple[str, ...], list[ledger.Claim]] = {}
  num_hypothetical = 0
  for folder in runs:
    record = json.loads((folder / 'privacy.json').read_text())
    if record['private'] and record.get('condition'):
      num_hypothetical += 1
    elif record['private']:
      config = ExperimentConfig.from_json(
        json.loads((folder / 'config.json').read_text())['config']
      )
      data = (
        config.dataset, config.data_dir, str(config.dataset_options), config.seed,
        config.validation_fraction, config.min_examples,
      )  # fmt: skip
      if data not in loaded:
        loaded[data] = build.load_dataset(config)
      dataset = build.prepared(config, loaded[data])
      plan = plans.build_plan(config, dataset)
      claim = spending.claim_of(config, dataset, plan, record['rounds'], run=str(folder))
      claims.setdefault((*claim.data, claim.unit, claim.relation), []).append(claim)
  same_words = collections.Counter(_in_words(same) for same in claims.values() if len(same) > 1)
  told = [
    sentence if count == 1 else f'For each of {count} sets of data by itself: {sentence}'
    for sentence, count in same_words.items()
  ]
  if num_hypothetical:
    told.append(
      f'With the noise of a hypothetical deployment, for nobody here: {num_hypothetical}.'
    )
  return told


def _in_words(claims: list[ledger.Claim]) -> str:
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
  return (
    f'All that is released, were each noise key a secret of its own: {found}. '
    f'Unit: {claims[0].unit}. Adjacency: {claims[0].relation}.'
  )
