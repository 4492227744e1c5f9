"""Programs like those of TFF's tutorials give TFF's numbers, compiled."""

import numpy as np
import pytest

from benchmarks import tutorials

_NOT_COMPILED = {  # Samples of a size that is not known, and strings.
  'personalisation': 'all but aggregation: on the host, server: on the host',
  'heavy hitters': 'all but aggregation: on the host, clients: on the host, server: on the host',
}


@pytest.mark.exhaustive(
  but=['custom algorithms 1', 'custom aggregators', 'federated select', 'personalisation']
)
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
  found = tutorials.compare(tutorials.TUTORIALS[name](), native.context, rounds=2)
  assert found.difference < 1e-5
  assert found.how == _NOT_COMPILED.get(name, 'all')


def test_nan_in_one_of_the_two_is_a_difference():
  def difference(a, b):
    return tutorials._difference(np.float64(a), np.float64(b))

  assert np.isnan(difference([1.0, np.nan], [1.0, 2.0]))
  assert difference([np.inf], [2.0]) == np.inf
  assert difference([np.nan, np.inf, 3.0], [np.nan, np.inf, 3.3]) == pytest.approx(0.1)
