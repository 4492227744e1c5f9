"""Methods learn at their defaults, on the data sets that need no download, and on School."""

import math
import os
import pathlib

import pytest

import processes
import runtime
from experiments import ExperimentConfig, build_process
from experiments.running.population import Population

METHODS = list(processes.METHODS)
ROUNDS = 12
PRIVACY = {
  'none': {},
  'client': {'noise_multiplier': 0.1, 'delta': 1e-3},
  'example': {'noise_multiplier': 0.5, 'delta': 1e-3},
}
# As a round is compiled for a method and a data set, School's has the one that nearly failed it:
# the penalty's curvature grows with the number of clients, and there are 139.
SCHOOL = [('mocha', 'school')]


@pytest.fixture(name='machine', scope='module')
def _machine():
  with runtime.create('xla', devices='cpu') as created:
    yield created


def losses(machine, **settings) -> list[float]:
  """The training loss of every round."""
  experiment = build_process(ExperimentConfig(rounds=ROUNDS, **settings))
  population = Population([experiment], machine)
  population.begin(*population.initial_states(), 0)
  return [float(population.round()['train_loss']) for _ in range(ROUNDS)]


def learns(found: list[float]) -> bool:
  """Whether it became better, and never broke down."""
  return all(map(math.isfinite, found)) and found[-1] < found[0]


@pytest.mark.exhaustive(but=['fedavg-exam', 'mr_mtl-exam', 'ifca-exam', 'ditto-exam', 'ppsgd-exam'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'dataset'),
  [*((name, dataset) for name in METHODS for dataset in ('digits', 'exam')), *SCHOOL],
)
def test_it_learns_at_its_defaults(machine, name, dataset):
  method = processes.find(name)
  (unit, *_) = method.privacy_units
  given = dict(PRIVACY[unit], privacy=unit)
  if method.setting('selection_epsilon') and unit == 'example':
    given['selection_epsilon'] = 1.0
  if method.keyed_setup:
    given['validation_fraction'] = 0.2
  if dataset == 'school' and not _has_school():
    pytest.skip('school.mat is not in PFL_DATA_DIR')
  assert learns(losses(machine, method=name, dataset=dataset, **given))


@pytest.mark.slow
def test_what_diverges_is_seen(machine):
  """Mocha with the others' default for the strength of the pull."""
  assert not learns(losses(machine, method='mocha', dataset='exam', mtl_lambda=1.0))


def _has_school() -> bool:
  folder = os.environ.get('PFL_DATA_DIR')
  return folder is not None and (pathlib.Path(folder) / 'school.mat').exists()
