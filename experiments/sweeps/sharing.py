"""What the runs of a sweep share: data sets, TFF processes, and programs."""

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import datasets
from experiments.config.experiment import ExperimentConfig
from experiments.folder import checkpoints, noise_keys
from experiments.running import build, evaluation, loading
from experiments.running.build import Experiment
from experiments.running.parts import Parts
from experiments.sweeps import grid as sweep_grid
from runtime.noise_key import NoiseKey

# (name of a run, why it cannot be had)
Refuse = Callable[[str, ValueError], None]

_NO_PARTS = Parts()
# Clients' states of runs at once, whose process takes some six times as much (old and new ones,
# the cohort's, a checkpoint's): a share of the machine's memory, and no more than so many bytes.
_STATE_SHARE, _MOST_STATE_BYTES = 1 / 12, 2**31


def _raise(name: str, error: ValueError) -> None:
  raise error


def build_all(
  configs: Mapping[str, ExperimentConfig], parts: Parts = _NO_PARTS, refuse: Refuse = _raise
) -> dict[str, Experiment]:
  """Builds experiments, sharing data sets and, as far as can be, TFF processes.

  Args:
    configs: by name.
    parts: what takes the place of what the configurations name.
    refuse: told of each that cannot be had, such as for a budget that cannot be met; the others
      are built. By default the first one's error is raised.

  Raises:
    ValueError: of `refuse`.
  """
  loaded: dict[str, Any] = {}
  built: list[Experiment] = []
  result = {}
  for name, config in configs.items():
    key = json.dumps(
      [config.dataset, config.dataset_options, config.data_dir, config.seed,
       config.min_examples, config.validation_fraction]
    )  # fmt: skip
    try:
      if key not in loaded:
        loaded[key] = _loaded(config, parts)
      if isinstance(loaded[key], ValueError):
        raise loaded[key]
      own = pathlib.Path(config.output_dir) if config.output_dir else None
      noise_key = noise_keys.acquire(config, own)
      result[name] = _variant_of(built, config, loaded[key], noise_key, parts)
    except ValueError as error:
      refuse(name, error)
  return result


def _loaded(config: ExperimentConfig, parts: Parts) -> Any:
  """The data, or the error: what cannot be loaded is not tried again for each run."""
  try:
    return loading.load_dataset(config, parts.dataset)
  except ValueError as error:
    return error


def _variant_of(
  built: list[Experiment],
  config: ExperimentConfig,
  dataset,
  noise_key: NoiseKey | None,
  parts: Parts,
) -> Experiment:
  """An experiment which shares what it can with one of `built`; a new one is added to it."""
  for other in built:
    if _is_variant(other, config):
      own = build.prepared(config, dataset)
      plan = build.build_plan(config, own)
      # With another seed the largest client may be larger.
      if _constants(plan) != _constants(other.plan) or _spec(own) != _spec(other.dataset):
        continue
      values = dict(other.method.hyperparameters)
      values.update({n: v for n, v in _query_values(plan).items() if n in values})
      given, _ = build.method_settings(config)
      values.update({n: v for n, v in given.items() if n in values})
      method = other.method.under(plan, values)
      return dataclasses.replace(
        other, config=config, dataset=own, plan=plan, method=method, noise_key=noise_key
      )
  experiment = build.build_process(
    config, dataset, noise_key=noise_key, model=parts.model, metrics=parts.metrics
  )
  for other in built:
    if _is_same_program(other, experiment):
      method = experiment.method.sharing(other.method)
      experiment = dataclasses.replace(experiment, method=method)
      break
  built.append(experiment)
  return experiment


def _is_variant(other: Experiment, config: ExperimentConfig) -> bool:
  """Whether `config` needs only other values in the states of an experiment."""
  if other.method.releases:
    return False  # its shapes depend on the noise key
  given, _ = build.method_settings(config)
  free = {'seed', *(given.keys() & other.method.hyperparameters.keys())}
  if getattr(other.plan, 'selection', None) is None:
    # A budget goes into the clients' attributes or, at client level, is the query's.
    free |= {*sweep_grid.BUDGETS}
    free |= _query_values(other.plan).keys()
  return sweep_grid.differing(other.config, config) <= free


def _is_same_program(a: Experiment, b: Experiment) -> bool:
  """Whether the processes of two experiments differ in values of their states only."""
  free = {'seed', *sweep_grid.BUDGETS, *a.method.hyperparameters}
  return (
    sweep_grid.differing(a.config, b.config) <= free
    and _constants(a.plan) == _constants(b.plan)
    and a.method.process.next.type_signature == b.method.process.next.type_signature
  )


def _spec(dataset: datasets.FederatedDataset):
  """Shapes and dtypes of a client's training examples, constants of the program."""
  return evaluation.examples_spec(dataset.train.load(np.zeros([1], np.int32)))


def _query_values(plan) -> Mapping[str, float]:
  """What a plan of client-level privacy gives its query as tensors."""
  return plan.hyperparameters if plan.unit == 'client' else {}


def _constants(plan) -> tuple:
  """What the program has of a plan: the divisor of the updates' sum, and correlated noise."""
  correlation, noise = getattr(plan, 'correlation', None), None
  if correlation is not None:
    noise = correlation.fitted.tobytes(), plan.cohorts.participation(correlation.rounds)
  return getattr(plan, 'denominator', None), noise


def batches(experiments: Mapping[str, Experiment], *, workers: int = 1) -> list[list[str]]:
  """The names of the experiments in groups that run at once: equal in process and shapes.

  Args:
    experiments: by name.
    workers: processes that share the machine's memory. What is not the machine's (other programs)
      is not looked at, so that a sweep that goes on has the groups that it had.
  """
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  at_once = min(_MOST_STATE_BYTES, int(_STATE_SHARE * memory / workers))
  groups = collections.defaultdict(list)
  for name, experiment in experiments.items():
    groups[_shape_key(experiment)].append(name)
  result = []
  for names in groups.values():
    _, states = experiments[names[0]].initial_states()
    size = sum(leaf.nbytes for leaf in checkpoints.flatten(states).values())
    parts = -(-len(names) * size // at_once) or 1
    result += [list(part) for part in np.array_split(names, min(parts, len(names)))]
  return result


def _shape_key(experiment: Experiment) -> tuple:
  data = experiment.dataset
  somebody = np.zeros([1], np.int32)
  splits = [s for s in (data.train, data.test, data.validation) if s is not None]
  shapes = [
    f'{split.num_clients} {evaluation.examples_spec(split.load(somebody))}' for split in splits
  ]
  server_test = None if data.server_test is None else data.server_test[0].shape
  return (id(experiment.method.process), data.num_clients, *shapes, server_test)
