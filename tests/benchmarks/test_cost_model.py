"""The model of a round's cost finds the costs that made its measurements."""

import itertools

import pytest

from benchmarks import cost_model

TRUE = cost_model.CostModel(slowdown=1.2, round=0.01, host=0.002, byte=3e-9, error=0.0)


def _results(cpus=2):
  results = {}
  for model, compute, size in (('', 0.2, 6e4), ('_mlp', 0.5, 1.5e7)):
    results[f'process_1{model}'] = {'seconds_per_round': compute}
    results[f'process_2{model}'] = {'seconds_per_round': compute}
    for workers in (1, 2, 4):
      seconds = TRUE.seconds(workers, compute * max(1, workers / cpus), size)
      results[f'workers_{workers}{model}'] = {
        'seconds_per_round': seconds,
        'kilobytes_sent': size / 2e3,
        'kilobytes_received': size / 2e3,
      }
  return results


def test_the_costs_are_found_again():
  cases = cost_model.measured(_results(), cpus=2)
  assert len(cases) == 6
  found = cost_model.fit(cases)
  for name in ('slowdown', 'round', 'host', 'byte'):
    assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
  assert found.error < 1e-9
  report = cost_model.report(found, cases)
  assert '| workers_2_mlp | 7.5 | 7.5 | 0.5 | 0.704 | 1.41 | 0.704 |' in report
  here, network = report.split('Gbit/s')  # the same tables, the second slower
  limits = [[line.split(' | ')[-1] for line in t.splitlines() if '| 10 | 13 |' in line]
            for t in (here, network)]  # fmt: skip
  assert limits == [['293 hosts |'], ['233 hosts |']]


def test_what_no_costs_make_is_told_by_the_error():
  results = _results()
  results['workers_2']['seconds_per_round'] *= 3
  assert cost_model.fit(cost_model.measured(results, cpus=2)).error > 0.3


def test_the_drivers_limit():
  each, limit = TRUE.host + TRUE.byte * 1e7, TRUE.limit(10.0, 1e7)
  assert limit == pytest.approx(12.0 / each)
  assert TRUE.driver(round(limit), 1e7) == pytest.approx(12.0, rel=0.01)
  times = [TRUE.seconds(n, 10.0, 1e7, 8) for n in (8, 64, 512, 513)]
  steps = [b - a for a, b in itertools.pairwise(times)]
  assert steps == pytest.approx([8 * each] * 3)  # one more level each
  assert TRUE.seconds(8, 10.0, 1e7, 8) == TRUE.seconds(8, 10.0, 1e7)


def test_too_few_measurements():
  few = cost_model.measured({k: v for k, v in _results().items() if 'mlp' not in k}, cpus=2)
  with pytest.raises(ValueError, match='3 cases over workers cannot give 4 costs'):
    cost_model.fit(few)
