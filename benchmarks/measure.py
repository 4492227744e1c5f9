"""One measurement in a process of its own: `./fl python -m benchmarks.measure CASE`.

Prints one line of JSON. A process of its own makes the first round's time and the
peak memory those of the case alone.
"""

import collections
import dataclasses
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_START = time.perf_counter()
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# The start-up is part of what is measured.
import numpy as np  # noqa: E402

import runtime  # noqa: E402
from benchmarks import peers, published, workloads  # noqa: E402
from runtime.noise_key import NoiseKey  # noqa: E402


def _timed(
  one_round: Callable[[int], Any],
  rounds: int,
  warm_up: int,
  between: Callable[[int], Any] = lambda _: None,
) -> dict[str, float]:
  """The rounds' times after the first ones; `between` runs before each, and is not counted."""
  one_round(0)
  first = time.perf_counter() - _START
  for index in range(1, warm_up):
    one_round(index)
  seconds = []
  for index in range(rounds):
    between(index)
    start = time.perf_counter()
    one_round(warm_up + index)
    seconds.append(time.perf_counter() - start)
  return {
    'seconds_per_round': statistics.median(seconds),
    'fastest_round': min(seconds),
    'rounds': rounds,
    'first_round_done': first,
  }


def _fedavg(
  model: str, num_clients: int, rounds: int, workers: int = 0, devices: str = '', fan_in: int = 0
) -> dict[str, Any]:
  """DP-FedAvg in one process, or over worker processes of this machine."""
  method = workloads.image_fedavg(model, num_clients)
  machine: Any
  if workers:
    machine = runtime.create_hosts(workers, device='cpu', fan_in=fan_in)
  else:
    machine = runtime.create('xla', devices=devices or _devices())
  with machine:
    data = machine.place(workloads.images(num_clients))
    state = [method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))]

    def one_round(_):
      state[0], metrics = machine.round(
        method.process.next, state[0], None, data, np.arange(num_clients)
      )
      machine.to_numpy(metrics)

    warm_up = 3
    result = _timed(one_round, rounds, warm_up=warm_up) | _compiling(machine.context)
    if workers:
      calls = rounds + warm_up
      result['kilobytes_sent'] = machine.bytes_sent / calls / 1e3  # to each worker
      result['kilobytes_received'] = machine.bytes_received / calls / workers / 1e3
    return result


def _tff_learning(
  layers, num_clients: int, rounds: int, name: str = 'native', kind: str = 'images'
) -> dict[str, Any]:
  """TFF's own process on `tf.data` clients, on its own runtime or compiled."""
  is_native = name == 'native'
  context = runtime.NativeContext() if is_native else runtime.XlaContext(devices=_devices())
  with context:
    process = workloads.tff_learning(layers, num_clients, kind=kind)
    datasets = workloads.tff_datasets(num_clients, kind)
    state = [process.initialize()]

    def one_round(_):
      state[0] = process.next(state[0], datasets).state

    return _timed(one_round, rounds, warm_up=2) | _compiling(context)


def _school(name: str, rounds: int, settings: int | None = None) -> dict[str, Any]:
  tree = workloads.schools()
  method, silos = workloads.school_mr_mtl(tree['num_examples'])
  options: dict[str, Any] = {'devices': _devices()} if name == 'xla' else {}
  with runtime.create(name, **options) as machine:
    data = machine.place(tree)
    key = NoiseKey.rehearsal(0)
    server = method.initial_server_state(0, noise_key=key)
    clients = method.initial_client_states(server, workloads.SCHOOLS, silos, noise_key=key)
    cohort: Any = np.arange(workloads.SCHOOLS)
    if settings is not None:
      server = _settings(server, settings)
      clients = _map(lambda a: np.tile(a, (settings,) + (1,) * (a.ndim - 1)), clients)
      cohort = [cohort + s * workloads.SCHOOLS for s in range(settings)]
    states = machine.place_states(clients)
    state = [server]

    def one_round(_):
      state[0], metrics = machine.round(
        method.process.next, state[0], states, data, cohort, settings=settings
      )
      machine.to_numpy(metrics)

    return _timed(one_round, rounds, warm_up=2) | _compiling(machine.context)


def _beside_pfl(name: str, rounds: int, warm_up: int = 2) -> dict[str, Any]:
  """A workload of the field, in turns with the same in pfl-research."""
  seconds = []
  with peers.pfl(published.WORKLOADS[name]) as peer:
    peer.round()  # Its warm-up.
    result = _published(name, rounds, warm_up, between=lambda: seconds.append(peer.round()))
  own, others = result['seconds_per_round'], statistics.median(seconds)
  return result | {'peer_seconds_per_round': others, 'times_peer': own / others}


def _published(
  name: str, rounds: int, warm_up: int = 2, between: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
  """A workload of the field, in turns with a plain matrix product and what else is given."""
  workload = published.WORKLOADS[name]
  method, multiply = workload.method(), published.plain_product()
  flop = workload.flop(workload.cohort * workload.rows)
  with runtime.create('xla', devices=_devices()) as machine:
    data = workload.data()
    placed = machine.place(data, work=data['num_examples'])
    state = [method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))]
    draw = np.random.default_rng(0)
    speeds = []

    def one_round(_):
      cohort = draw.permutation(workload.population)[: workload.cohort]
      state[0], metrics = machine.round(method.process.next, state[0], None, placed, cohort)
      machine.to_numpy(metrics)

    def product(_):
      between()
      seconds = []
      for _ in range(5):
        start = time.perf_counter()
        operations = multiply()
        seconds.append(time.perf_counter() - start)
      speeds.append(operations / min(seconds) / 1e9)

    result = _timed(one_round, rounds, warm_up=warm_up, between=product) | _compiling(
      machine.context
    )
  product_speed = statistics.median(speeds)
  achieved = flop / result['seconds_per_round'] / 1e9
  return result | {
    'gflop': flop / 1e9,
    'gflop_per_second': achieved,
    'product_gflop_per_second': product_speed,
    'share_of_product': achieved / product_speed,
  }


def _uneven(name: str, rounds: int, most: int, cohort: int) -> dict[str, Any]:
  """Clients of very different sizes, in turns with as many rows in clients of one size."""
  workload = dataclasses.replace(published.WORKLOADS[name], population=cohort, cohort=cohort)
  sizes = published.heavy_tailed(cohort, most)
  each = round(sizes.mean())
  cases = {'uneven': (most, sizes), 'even': (each, np.full(cohort, each))}
  seconds: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
  parts: dict[tuple[str, str], Callable[[], None]] = {}
  with runtime.create('xla', devices=_devices()) as machine:
    for case, (rows, own) in cases.items():
      for what, one in _repeated(machine, workload, workload.data(own, rows)).items():
        parts[what, case] = one
    result = _timed(lambda _: [one() for one in parts.values()], 1, warm_up=1)
    for _ in range(rounds):
      for part, one in parts.items():
        start = time.perf_counter()
        one()
        seconds[part].append(time.perf_counter() - start)
    result |= _compiling(machine.context)

  def times_even(what: str) -> float:
    pairs = zip(seconds[what, 'uneven'], seconds[what, 'even'], strict=True)
    # The same number of rows, up to rounding.
    return statistics.median(a / b for a, b in pairs) * each * cohort / float(sizes.sum())

  return result | {
    'seconds_per_round': statistics.median(seconds['round', 'uneven']),
    'fastest_round': min(seconds['round', 'uneven']),
    'rounds': rounds,
    'times_even': times_even('round'),
    'evaluation_times_even': times_even('evaluation'),
    'padding': most * cohort / float(sizes.sum()),
  }


def _repeated(machine, workload, data) -> dict[str, Callable[[], None]]:
  """A round of everybody, and an evaluation."""
  rows = data['x'].shape[1]
  method = workload.method(rows)
  placed = machine.place(data, work=data['num_examples'])
  state = [method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))]
  evaluation = method.build_evaluation('global', workload.examples(rows))

  def one_round():
    everybody = np.arange(len(data['x']))
    state[0], metrics = machine.round(method.process.next, state[0], None, placed, everybody)
    machine.to_numpy(metrics)

  return {
    'round': one_round,
    'evaluation': lambda: machine.evaluate(evaluation, state[0], None, placed),
  }


def _dp_sgd_step(name: str) -> dict[str, Any]:
  from benchmarks import dp_sgd_step  # Imports JAX, which is no part of the other cases.

  return dp_sgd_step.measure(name)


def _larger_than_memory(name: str, **sizes: int) -> dict[str, Any]:
  from benchmarks import larger_than_memory

  return getattr(larger_than_memory, name)(**sizes)


def _settings(server, settings: int):
  """10 values of lambda times 6 learning rates."""
  server = _map(lambda a: np.stack([a] * settings), server)
  values = server['hyperparameters']
  index = np.arange(settings)
  values['mtl_lambda'] = np.geomspace(1e-4, 10, 10, dtype=np.float32)[index % 10]
  values['client_learning_rate'] = np.geomspace(1e-3, 0.3, 6, dtype=np.float32)[index // 10 % 6]
  return server


def _map(function, tree):
  if hasattr(tree, 'items'):
    return type(tree)((k, _map(function, v)) for k, v in tree.items())
  return function(np.asarray(tree))


def _compiling(context) -> dict[str, Any]:
  return {
    'compilations': context.statistics.compilations,
    'compiled_programs': context.statistics.programs,
    'compile_seconds': context.statistics.seconds,
  }


def _devices() -> str:
  return os.environ.get('BENCHMARK_DEVICES', 'auto')


def _cores(most: int) -> str:
  """So many cores of the CPU, or as many as there are: each worker's work is that of one."""
  return ','.join(['cpu'] * min(most, os.cpu_count() or 1))


CASES: dict[str, Callable[[], dict[str, Any]]] = {
  'w1_xla': lambda: _fedavg('softmax', 100, 50),
  'w1_native': lambda: _tff_learning(workloads.softmax_layers, 100, 5),
  'w1_learning': lambda: _tff_learning(workloads.softmax_layers, 100, 20, 'xla'),
  'w2_xla': lambda: _fedavg('cnn3x3', 20, 8),
  'w2_native': lambda: _tff_learning(workloads.cnn_layers, 20, 5),
  'w2_learning': lambda: _tff_learning(workloads.cnn_layers, 20, 5, 'xla'),
  'lstm_native': lambda: _tff_learning(workloads.lstm_layers, 20, 5, kind='texts'),
  'lstm_learning': lambda: _tff_learning(workloads.lstm_layers, 20, 10, 'xla', kind='texts'),
  'school_xla': lambda: _school('xla', 200),
  'school_native': lambda: _school('native', 8),
  'sweep_60': lambda: _school('xla', 20, settings=60),
  'dp_sgd_step': lambda: _dp_sgd_step('cnn3x3'),
  'dp_sgd_step_mlp': lambda: _dp_sgd_step('mlp'),
  'cifar10': lambda: _published('cifar10', 20),
  'cifar10_pfl': lambda: _beside_pfl('cifar10', 20),
  'stackoverflow': lambda: _published('stackoverflow', 2, warm_up=1),
  'stackoverflow_pfl': lambda: _beside_pfl('stackoverflow', 2, warm_up=1),
  'flair': lambda: _published('flair', 3),
  'flair_pfl': lambda: _beside_pfl('flair', 3),
  # Users of 1 to 512 sentences; an eighth of a round's users, for they have more of them.
  'uneven_clients': lambda: _uneven('stackoverflow', 5, 512, 50),
  # Weak scaling: 1,000 clients for each worker; and the same clients in one process.
  'process_1': lambda: _fedavg('softmax', 1000, 10, devices=_cores(1)),
  'workers_1': lambda: _fedavg('softmax', 1000, 10, 1),
  'process_2': lambda: _fedavg('softmax', 2000, 10, devices=_cores(2)),
  'workers_2': lambda: _fedavg('softmax', 2000, 10, 2),
  'process_4': lambda: _fedavg('softmax', 4000, 10, devices=_cores(4)),
  'workers_4': lambda: _fedavg('softmax', 4000, 10, 4),
  # A model of 7.4 MB, for what a byte costs.
  'process_1_mlp': lambda: _fedavg('mlp', 20, 5, devices=_cores(1)),
  'workers_1_mlp': lambda: _fedavg('mlp', 20, 5, 1),
  'workers_2_mlp': lambda: _fedavg('mlp', 40, 5, 2),
  'workers_4_mlp': lambda: _fedavg('mlp', 80, 5, 4),
  'tree_4_mlp': lambda: _fedavg('mlp', 80, 5, 4, fan_in=2),
  'growth_10': lambda: _fedavg('softmax', 10, 20),
  'growth_100': lambda: _fedavg('softmax', 100, 20),
  'growth_1000': lambda: _fedavg('softmax', 1000, 8),
  'growth_10000': lambda: _fedavg('softmax', 10_000, 3),
  'states_on_disk': lambda: _larger_than_memory('states'),
  'data_from_disk': lambda: _larger_than_memory('data'),
}


def main() -> None:
  """Measures the case that the command line names."""
  name = sys.argv[1]
  if not name.endswith('_native'):
    runtime.prepare(_devices())
  try:
    result = CASES[name]()
  except peers.NotInstalledError as error:
    sys.exit(str(error))
  result['peak_megabytes'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  result['load_average'] = os.getloadavg()[0]
  print(json.dumps(result), flush=True)


if __name__ == '__main__':
  main()
