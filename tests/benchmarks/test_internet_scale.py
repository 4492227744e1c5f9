"""The simulation of large populations agrees with its formula."""

import pytest

from benchmarks import internet_scale


@pytest.mark.slow
def test_who_has_taken_part():
  found = internet_scale.simulate(20_000, cohort=200, rounds=60, noise_multiplier=1.0)
  assert found.taken_part == pytest.approx(found.expected, rel=0.03)
  assert found.expected == pytest.approx(20_000 * (1 - 0.99**60))
  assert found.known == pytest.approx(1 - 0.99**59, abs=0.15)
  larger = internet_scale.simulate(200_000, cohort=200, rounds=60, noise_multiplier=1.0)
  assert larger.taken_part > found.taken_part and larger.known < found.known
  assert larger.epsilon < found.epsilon
  assert '| 20,000 |' in internet_scale.report([found, larger])
