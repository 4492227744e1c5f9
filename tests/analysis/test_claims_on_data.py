"""Checks of claims on data sets, on small ones: they hold, and broken twins do not."""

import functools

import numpy as np
import pytest

import datasets
from analysis.claims import ppsgd_on_data, silo, silo_on_data
from analysis.claims.pairs import Aside
from experiments.recipes import rules

_RISKS, _MODELS = ppsgd_on_data.risks, silo_on_data._models


def _load(seed, **options):
  """Six users of five coordinates, all of them personal."""
  return datasets.load_dataset(
    'ppsgd_synthetic', seed=seed, num_clients=6, dimension=5, local_deviation=1.0, **options
  )


def _holds(found, relation, margin=0.0):
  pairs = [pair for pair in found if not isinstance(pair, Aside)]
  assert pairs
  return all(
    rules.holds(
      pair.relation or relation,
      rules.difference(pair.left, pair.right, exact=True),
      margin,
      pair.right,
    )
    for pair in pairs
  )


@pytest.fixture(autouse=True)
def one_seed(monkeypatch):
  monkeypatch.setattr(ppsgd_on_data, '_SEEDS', 1)


_bound = functools.partial(
  ppsgd_on_data.bound_of_averaged_iterates, _load, rounds=(10, 300), noises=(0.2,)
)
_sampling = functools.partial(
  ppsgd_on_data.sampling_shrinks_bias, _load, samples=(4, 8), rates=(0.2,)
)
_averaging = functools.partial(
  silo_on_data.averaging_noise, lambda seed: _load(seed, examples_per_client=40), repetitions=150
)


@pytest.mark.slow
def test_the_bound_holds_and_is_below_the_start():
  found = _bound()
  assert _holds(found, '<=')
  assert found[-1].text.startswith('Run through the process. 2 bounds lie below the risk')


@pytest.mark.slow
def test_a_step_that_is_too_small_breaks_the_bound(monkeypatch):
  monkeypatch.setattr(
    ppsgd_on_data, 'risks', lambda data, *, step, **kw: _RISKS(data, step=step / 50, **kw)
  )
  assert not _holds(_bound(), '<=')


_cost = functools.partial(
  ppsgd_on_data.privacy_cost_free_of_n, _load, rounds=(100, 1600), epsilon=0.5
)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_noise_costs_the_same_for_every_n_and_more_where_it_grows_beyond_its_root(monkeypatch):
  found = _cost()
  assert _holds(found, 'about', 0.15)
  assert [pair.what for pair in found[:-1]] == ['seed 0, slope of the cost', 'slope of the bound']

  def grows(data, *, noise=0.0, rounds, **values):
    return _RISKS(data, noise=noise * (max(rounds) / 100) ** 0.5, rounds=rounds, **values)

  monkeypatch.setattr(ppsgd_on_data, 'risks', grows)
  assert not _holds(_cost()[:1], 'about', 0.15)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sampling_helps_and_rounds_of_everybody_do_not(monkeypatch):
  assert _holds(_sampling(), '<')

  def everybody(data, *, rate=1.0, rounds, **values):
    return _RISKS(data, rounds=[max(1, round(n * rate)) for n in rounds], **values)

  monkeypatch.setattr(ppsgd_on_data, 'risks', everybody)
  assert not _holds(_sampling(), '<')


@pytest.mark.exhaustive
@pytest.mark.slow
def test_averaging_divides_the_noise_and_one_silos_model_has_it_whole(monkeypatch):
  local = []

  def kept(name, *values, **options):
    models = _MODELS(name, *values, **options)
    if name == 'local':
      local.append(models)
    return models

  def of_one(name, *values, **options):
    return local[0] if name == 'local' else local[0][:, 0]

  monkeypatch.setattr(silo_on_data, '_models', kept)
  assert _holds(_averaging(), 'about', 0.25)  # 150 keys: 5 % of the ratio
  monkeypatch.setattr(silo_on_data, '_models', of_one)
  assert not _holds(_averaging(), 'about', 0.25)


def test_overhead_is_of_the_sizes_that_are_given(monkeypatch):
  given = []
  monkeypatch.setattr(silo, 'overhead_of', lambda sizes: given.append(sizes) or ['pairs'])
  assert silo_on_data.overhead(lambda seed: _load(seed, examples_per_client=40)) == ['pairs']
  np.testing.assert_array_equal(given, [[40]])
