"""TFF's tutorials and algorithms as the benchmarks have them give TFF's numbers, compiled."""

import inspect
import re

import numpy as np
import pytest
import tensorflow_federated as tff

from benchmarks import algorithms, side_by_side, tutorials

# Samples of a size that is not known; strings, as in what a DP query says of its events.
_NOT_COMPILED = {
  'personalisation': 'all but aggregation: on the host, server: on the host',
  'heavy hitters': 'all but aggregation: on the host, clients: on the host, server: on the host',
  'fed_avg, dp': 'all but server: on the host',
}


@pytest.mark.exhaustive(but=['custom algorithms 1', 'custom aggregators', 'federated select'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    'custom algorithms 1',
    'custom algorithms 2',
    'custom aggregators',
    'federated select',
    'personalisation',
    'heavy hitters',
  ],
)
def test_a_program_is_compiled_and_gives_the_same_numbers(native, name):
  found = side_by_side.compare(tutorials.TUTORIALS[name](), native.context, rounds=2)
  assert found.difference < 1e-5
  assert found.how == _NOT_COMPILED.get(name, 'all')


@pytest.mark.exhaustive(but=['fed_avg, dp'])
@pytest.mark.slow
@pytest.mark.parametrize('name', algorithms.ALGORITHMS)
def test_an_algorithm_is_compiled_and_gives_the_same_numbers(native, name):
  found = side_by_side.compare(algorithms.ALGORITHMS[name](), native.context, rounds=2)
  assert found.difference < 1e-5
  assert found.how == _NOT_COMPILED.get(name, 'all')


def test_every_algorithm_of_tff_is_among_the_programs():
  source = inspect.getsource(algorithms) + inspect.getsource(tutorials)
  names = [name for name in dir(tff.learning.algorithms) if name.startswith('build_')]
  assert names and [name for name in names if not re.search(rf'\b{name}\b', source)] == []


def test_nan_in_one_of_the_two_is_a_difference():
  def difference(a, b):
    return side_by_side._difference(np.float64(a), np.float64(b))

  assert np.isnan(difference([1.0, np.nan], [1.0, 2.0]))
  assert difference([np.inf], [2.0]) == np.inf
  assert difference([np.nan, np.inf, 3.0], [np.nan, np.inf, 3.3]) == pytest.approx(0.1)
