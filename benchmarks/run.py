"""The speed of the XLA runtime beside TFF's own: `make benchmark`.

Every case runs in a process of its own, one after the other; rounds are medians
after warm-up, compiling is told apart. The table goes to the screen and, with the
measurements, to `benchmarks/results/`.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

CASES = (
  'w1_native',
  'w1_xla',
  'w1_learning',
  'w2_native',
  'w2_xla',
  'w2_learning',
  'lstm_native',
  'lstm_learning',
  'school_native',
  'school_xla',
  'sweep_60',
  'dp_sgd_step',
  'dp_sgd_step_mlp',
  'cifar10',
  'stackoverflow',
  'flair',
  'uneven_clients',
  'process_1',
  'workers_1',
  'process_2',
  'workers_2',
  'process_4',
  'workers_4',
  'process_1_mlp',
  'workers_1_mlp',
  'workers_2_mlp',
  'workers_4_mlp',
  'growth_10',
  'growth_100',
  'growth_1000',
  'growth_10000',
  'states_on_disk',
  'data_from_disk',
)
PUBLISHED = {
  'cifar10': 'CIFAR-10, cohort 50, CNN',
  'stackoverflow': 'Stack Overflow, cohort 400, transformer',
  'flair': 'FLAIR at 64x64, cohort 10, ResNet-18',
}
PEERS = tuple(f'{name}_pfl' for name in PUBLISHED)  # They install something.
ON_REQUEST = (*PEERS, 'tree_4_mlp')
_KNOWN = (*CASES, *ON_REQUEST)
_CASE_SECONDS = 1800


def measure(case: str) -> dict[str, Any]:
  """Runs one case in a process of its own.

  Raises:
    RuntimeError: the case failed; the message ends with what it said.
  """
  done = subprocess.run(
    [sys.executable, '-m', 'benchmarks.measure', case],
    capture_output=True,
    text=True,
    timeout=_CASE_SECONDS,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f'{case} failed:\n{done.stderr[-2000:]}')
  return json.loads(done.stdout.splitlines()[-1])


def claims(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, bool]]:
  """(what, measured, goal, reached) for every goal whose cases were measured, on one day."""
  rows = []

  def add(cases, what, value, text, goal, reached):
    days = {results[case].get('date') for case in cases if case in results}
    if all(case in results for case in cases) and len(days) == 1:
      number = value(*(results[case] for case in cases))
      rows.append((what, text.format(number), goal, reached(number)))

  def ratio(native, xla):
    return native['seconds_per_round'] / xla['seconds_per_round']

  def seconds(xla):
    return xla['seconds_per_round']

  def first(xla):
    return xla['first_round_done']

  w1, w2, school = ('w1_native', 'w1_xla'), ('w2_native', 'w2_xla'), ('school_native', 'school_xla')
  add(w1, 'W1: times native', ratio, '{:.0f}', '>= 60', lambda v: v >= 60)
  add(w1[1:], 'W1: seconds a round', seconds, '{:.4f}', '<= 0.02', lambda v: v <= 0.02)
  add(w2, 'W2: times native', ratio, '{:.1f}', '>= 2', lambda v: v >= 2)
  add(w2[1:], 'W2: seconds a round', seconds, '{:.3f}', '<= 0.30', lambda v: v <= 0.30)
  for name, goal in (('w1', 25), ('w2', 10), ('lstm', 10)):
    cases = f'{name}_native', f'{name}_learning'
    what = f"{name.upper()}: tff.learning's own process, compiled, times native"
    add(cases, what, ratio, '{:.1f}', f'>= {goal}', lambda v, goal=goal: v >= goal)
  add(school, 'School: times native', ratio, '{:.0f}', '>= 25', lambda v: v >= 25)
  add(
    school[1:],
    'School: seconds for 200 rounds',
    lambda xla: 200 * xla['seconds_per_round'],
    '{:.2f}',
    '< 2',
    lambda v: v < 2,
  )
  add(
    ('school_xla', 'sweep_60'),
    "Sweep of 60: a setting's cost over a single run's",
    lambda one, sweep: sweep['seconds_per_round'] / 60 / one['seconds_per_round'],
    '{:.2f}',
    '<= 1',
    lambda v: v <= 1,
  )
  add(
    ('sweep_60',),
    'Sweep of 60: compilations, and of how many programs',
    # On several devices or cores the server's work and the clients' are programs apart.
    lambda sweep: (sweep['compilations'], sweep['compiled_programs']),
    '{0[0]}, of {0[1]}',
    '1',
    lambda v: v[0] == 1,
  )
  for case, network in {'': 'the 3x3 CNN', '_mlp': 'a dense network'}.items():
    add(
      (f'dp_sgd_step{case}',),
      f"DP-SGD step of {network}: CPU time over JAX's",
      lambda step: step['times_jax'],
      '{:.2f}',
      '<= 1',
      lambda v: v <= 1,
    )
  add(
    ('growth_100', 'growth_10000'),
    'Growth: cost of a client at 10,000 over that at 100',
    lambda few, many: many['seconds_per_round'] / few['seconds_per_round'] / 100,
    '{:.2f}',
    '<= 1',
    lambda v: v <= 1.1,
  )
  add(
    ('growth_10000',),
    '10,000 clients: peak memory, GB',
    lambda many: many['peak_megabytes'] / 1024,
    '{:.1f}',
    '< 8',
    lambda v: v < 8,
  )
  for name, what in PUBLISHED.items():
    _published_claims(add, name, what)
  add(
    ('uneven_clients',),
    'Clients of 1 to 512 examples: time over as many rows in equal clients',
    lambda uneven: (uneven['times_even'], uneven['evaluation_times_even']),
    '{0[0]:.2f}; evaluation {0[1]:.2f}',
    '<= 1.3',
    lambda v: max(v) <= 1.3,
  )
  for workers in (1, 2, 4):
    add(
      (f'process_{workers}', f'workers_{workers}'),
      f'{workers} cohort workers with 1,000 clients each: time over one process on as many cores',
      lambda one, many: many['seconds_per_round'] / one['seconds_per_round'],
      '{:.2f}',
      '<= 1.2 with as many cores',
      lambda v: v <= 1.2,
    )
  on_disk = 'states_on_disk', 'data_from_disk'
  add(
    on_disk[:1],
    "Ditto, 1,000,000 clients' states on disk: a round's time over that with 10,000",
    lambda many: many['times_small'],
    '{:.2f}',
    '<= 1.5',
    lambda v: v <= 1.5,
  )
  add(
    on_disk[:1],
    "Ditto, 1,000,000 clients' states on disk: peak memory, GB",
    lambda many: many['peak_megabytes'] / 1024,
    '{:.1f}',
    '< 2',
    lambda v: v < 2,
  )
  add(
    on_disk[1:],
    '10,000 clients of 100 images from disk: time of a round over that from memory',
    lambda read: read['times_memory'],
    '{:.2f}',
    '<= 1.2',
    lambda v: v <= 1.2,
  )
  add(w1[1:], 'W1: first round done after, s', first, '{:.0f}', '< 25', lambda v: v < 25)
  add(school[1:], 'School: first round done after, s', first, '{:.0f}', '< 25', lambda v: v < 25)
  return rows


def _published_claims(add, name: str, what: str) -> None:
  add(
    (name,),
    f'{what}: seconds a round; GFLOP/s, beside a plain matrix product',
    lambda r: (r['seconds_per_round'], r['gflop_per_second'], r['product_gflop_per_second']),
    '{0[0]:.3g}; {0[1]:.0f} beside {0[2]:.0f}',
    '>= 60 % of it',
    lambda v: v[1] >= 0.6 * v[2],
  )
  add(
    (name,),
    f'{what}: peak memory, GB',
    lambda r: r['peak_megabytes'] / 1024,
    '{:.1f}',
    '< 3',
    lambda v: v < 3,
  )
  add(
    (f'{name}_pfl',),
    f"{what}: seconds a round; time over pfl-research's",
    lambda r: (r['seconds_per_round'], r['times_peer']),
    '{0[0]:.3g}; {0[1]:.2f}',
    '<= 0.5',
    lambda v: v[1] <= 0.5,
  )


def report(results: Mapping[str, Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
  """The tables, in Markdown."""
  lines = [
    '# Benchmarks',
    '',
    f'{machine["processor"]}, {machine["cpus"]} CPUs, devices: {machine["devices"]}. Medians after'
    ' warm-up; a high load average means that other programs were running.',
    '',
    '| what | measured | goal | reached |',
    '| --- | --- | --- | --- |',
  ]
  lines += [f'| {a} | {b} | {c} | {"yes" if d else "no"} |' for a, b, c, d in claims(results)]
  lines += [
    '',
    "Of TFF's own runtime, compiling is its compiler alone; its worker's part is in the rounds.",
    '',
    '| case | date | s a round | fastest | first round, s | compiling, s | programs | peak MB'
    ' | load |',
    '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
  ]
  lines += [
    f'| {case} | {r["date"]} | {r["seconds_per_round"]:.4f} | {r["fastest_round"]:.4f}'
    f' | {r.get("first_round_done", 0.0):.1f} | {r.get("compile_seconds", 0.0):.1f}'
    f' | {r.get("compiled_programs", 0)}'
    f' | {r["peak_megabytes"]:.0f} | {r["load_average"]:.1f} |'
    for case, r in results.items()
  ]
  return '\n'.join(lines) + '\n'


def main(arguments: Sequence[str] | None = None) -> int:
  """Measures, prints and saves; 1 if a case failed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  only = f'cases, from {",".join(_KNOWN)}; default: all but {", ".join(ON_REQUEST)}'
  peers = f'{", ".join(PEERS)} install pfl-research into build/pfl'
  parser.add_argument('--only', default='', help=f'{only}; {peers}')
  parser.add_argument('--devices', default='auto', help='for the XLA runtime')
  parser.add_argument(
    '--output',
    default='benchmarks/results',
    help='folder for the results; with --only those of other cases stay there',
  )
  options = parser.parse_args(arguments)
  chosen = options.only.split(',') if options.only else list(CASES)
  if unknown := sorted(set(chosen) - set(_KNOWN)):
    parser.error(f'--only={",".join(unknown)}: expected some of {", ".join(_KNOWN)}')
  os.environ['BENCHMARK_DEVICES'] = options.devices
  machine = {
    'processor': _processor(),
    'cpus': os.cpu_count(),
    'devices': options.devices,
    'python': platform.python_version(),
  }
  folder = pathlib.Path(options.output)
  try:
    before = _others(folder, machine) if options.only else {}
  except ValueError as error:
    parser.error(f'--output={folder}: {error}')
  results: dict[str, dict[str, Any]] = {}
  failed = False
  for case in chosen:
    print(f'{case} ...', end=' ', flush=True)
    try:
      results[case] = measure(case) | {'date': datetime.date.today().isoformat()}
      print(f'{results[case]["seconds_per_round"]:.4f} s a round', flush=True)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
      print(error, flush=True)
      failed = True
    _save(before | results, machine, folder)
  print('\n' + report(results, machine))
  return int(failed)


def _others(folder: pathlib.Path, machine: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """What a folder has of earlier calls, beside which some cases are measured anew.

  Raises:
    ValueError: it is of another machine, and would stand under this one's name.
  """
  file = folder / 'benchmarks.json'
  if not file.exists():
    return {}
  stored = json.loads(file.read_text())
  if stored['machine'] != machine:
    raise ValueError(f'has results of another machine ({stored["machine"]}); give another folder')
  return stored['results']


def _save(
  results: Mapping[str, Mapping[str, Any]], machine: Mapping[str, Any], folder: pathlib.Path
) -> None:
  """Writes what has been measured; after each case, for a run that is ended early."""
  results = {case: results[case] for case in _KNOWN if case in results}
  folder.mkdir(parents=True, exist_ok=True)
  written = json.dumps({'machine': machine, 'results': results}, indent=2) + '\n'
  (folder / 'benchmarks.json').write_text(written)
  (folder / 'benchmarks.md').write_text(report(results, machine))


def _processor() -> str:
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    return platform.processor()
  return next((x.split(':', 1)[1].strip() for x in lines if x.startswith('model name')), 'unknown')


if __name__ == '__main__':
  sys.exit(main())
