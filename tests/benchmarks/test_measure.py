"""The cases of `make benchmark`, on next to nothing: each still runs."""

import dataclasses
import datetime
import json

import pytest

from benchmarks import measure, published, run, workloads


def test_every_case_is_known_to_both():
  assert {*run.CASES, *run.ON_REQUEST} == set(measure.CASES)


@pytest.mark.parametrize('name', ['cifar10', 'stackoverflow', 'flair'])
def test_a_workload_has_as_many_rounds_beside_a_peer_as_alone(name, monkeypatch):
  for function in ('_published', '_beside_pfl'):
    monkeypatch.setattr(measure, function, lambda *arguments, **options: (arguments, options))
  assert measure.CASES[f'{name}_pfl']() == measure.CASES[name]()


TINY = dataclasses.replace(
  published.WORKLOADS['cifar10'], model='softmax', population=4, cohort=2, rows=5
)
SMALL = {
  'published': lambda: measure._published('cifar10', 1),
  'clients of different sizes': lambda: measure._uneven('cifar10', 1, 8, 3),
  'one process': lambda: measure._fedavg('softmax', 3, 1),
  'silos': lambda: measure._school('xla', 1),
  'states on disk': lambda: measure._larger_than_memory(
    'states', small=30, large=3000, cohort=8, rounds=2
  ),
  'data from disk': lambda: measure._larger_than_memory('data', cohort=5, rounds=1, blocks=1),
  'cohort workers': lambda: measure._fedavg('softmax', 3, 1, workers=2),
}


@pytest.mark.exhaustive(but=['published', 'states on disk'])
@pytest.mark.slow
@pytest.mark.parametrize('case', SMALL)
def test_a_case_runs(case, monkeypatch):
  if case == 'cohort workers':
    pytest.importorskip('ray', reason='needs the extra "cluster" (ray)')
  monkeypatch.setattr(workloads, 'IMAGES_PER_CLIENT', 20)
  monkeypatch.setitem(published.WORKLOADS, 'cifar10', TINY)
  monkeypatch.setenv('BENCHMARK_DEVICES', 'cpu')
  result = SMALL[case]()
  assert result['seconds_per_round'] > 0 and result['compiled_programs'] > 0
  if case == 'published':
    assert result['gflop'] == pytest.approx(3e-9 * 2 * 5 * 2 * 3072 * 10)
    assert result['share_of_product'] > 0
    assert run.claims({'cifar10': result | {'peak_megabytes': 1.0}})[0][0].startswith('CIFAR-10')
  if case == 'clients of different sizes':
    assert (
      result['times_even'] > 0 and result['evaluation_times_even'] > 0 and result['padding'] >= 1
    )
    assert [what for what, *_ in run.claims({'uneven_clients': result})]
  if case == 'states on disk':
    # Five cohorts of eight, half of them anew, each with a softmax layer in 32 bits.
    record = 4e-6 * 785 * 10
    assert 20 * record < result['stored_megabytes'] < 41 * record
  if case == 'cohort workers':
    # Totals of one softmax layer (31 kB) with what counts the clients; cohorts do not matter.
    assert 31 < result['kilobytes_sent'] < 70 and 31 < result['kilobytes_received'] < 70


_DONE = dict(
  seconds_per_round=1.0,
  fastest_round=0.5,
  first_round_done=2.0,
  peak_megabytes=9.0,
  load_average=0.0,
)


def test_cases_measured_anew_stand_beside_the_others(tmp_path, monkeypatch):
  monkeypatch.setattr(run, 'measure', lambda case: dict(_DONE))
  flags = f'--output={tmp_path}'
  assert run.main([flags, '--only=w2_xla']) == run.main([flags, '--only=w1_xla']) == 0
  stored = json.loads((tmp_path / 'benchmarks.json').read_text())
  assert list(stored['results']) == ['w1_xla', 'w2_xla']
  text = (tmp_path / 'benchmarks.md').read_text()
  assert f'| w2_xla | {datetime.date.today()} | 1.0000 |' in text
  # Of another machine they would stand under this one's name.
  monkeypatch.setattr(run, '_processor', lambda: 'another')
  with pytest.raises(SystemExit, match='2'):
    run.main([flags, '--only=w1_xla'])
  assert json.loads((tmp_path / 'benchmarks.json').read_text()) == stored


def test_what_was_measured_on_different_days_is_not_compared():
  days = {case: _DONE | {'date': '2026-01-01'} for case in ('w1_native', 'w1_xla')}
  assert any(what == 'W1: times native' for what, *_ in run.claims(days))
  days['w1_xla'] = _DONE | {'date': '2026-01-02'}
  assert not any(what == 'W1: times native' for what, *_ in run.claims(days))
