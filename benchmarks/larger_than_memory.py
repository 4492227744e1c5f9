"""Clients' states and data that stay on disk, each beside a case that has them in memory."""

import collections
import functools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import processes
import runtime
from benchmarks import workloads
from datasets import stored_clients
from privacy import plan, sampling
from processes.method import BuildSpec, ExamplesSpec
from runtime.noise_key import NoiseKey

_ROWS = 20  # of each client, where only the states matter
_WARM_UP = 3  # rounds of a turn


def states(
  *, small: int = 10_000, large: int = 1_000_000, cohort: int = 1000, rounds: int = 12
) -> dict[str, Any]:
  """Ditto with a softmax layer for each client: two populations of which the cohort is the same.

  Round by round in turn, states of both on disk. Half of a cohort of the large population has
  taken part before, as all of the small one soon have. A checkpoint's snapshot is in every round.

  Returns:
    `seconds_per_round` of the large population, `times_small` that of the small one, and
    `stored_megabytes`, the size of the large one's files.
  """
  shape = (_ROWS, 28, 28, 1)
  method = processes.build(
    'ditto',
    BuildSpec(
      model=workloads.image_model('softmax'),
      examples=ExamplesSpec(x_shape=shape, x_dtype=np.uint8, y_shape=shape[:1], y_dtype=np.int32),
      plan=plan.ClientLevelPrivacy(
        cohorts=sampling.PoissonCohorts(large, cohort / large),
        noise_multiplier=1.0,
        delta=1e-7,
        clipping=plan.FixedClipping(norm=1.0),
      ),
      batch_size=10,
    ),
  )
  rng, key = np.random.default_rng(0), NoiseKey.rehearsal(0)
  data = collections.OrderedDict(
    x=rng.integers(0, 256, (cohort, *shape), np.uint8),
    y=rng.integers(0, 10, (cohort, _ROWS), np.int32),
    num_examples=np.full(cohort, _ROWS, np.int32),
    client_id=np.arange(cohort, dtype=np.int32),
  )
  with (
    runtime.create('xla', devices=os.environ.get('BENCHMARK_DEVICES', 'auto')) as machine,
    tempfile.TemporaryDirectory() as folder,
  ):
    placed, server = machine.place(data), method.initial_server_state(0, noise_key=key)
    runs = []
    for size in (small, large):
      stored = runtime.with_states_on_disk(machine, pathlib.Path(folder) / str(size))
      clients = method.initial_client_states(server, size, noise_key=key)
      runs.append((stored, stored.place_states(clients), size))
    before = np.zeros([0], np.int64)

    def one_round(which: int) -> float:
      nonlocal before
      stored, population, size = runs[which]
      again = before[rng.permutation(len(before))[: cohort // 2]] if size == large else before[:0]
      chosen = np.union1d(again, rng.choice(size, cohort, replace=False))
      chosen = rng.permutation(chosen)[:cohort]
      if size == large:
        before = chosen
      start = time.perf_counter()
      _, metrics = stored.round(
        method.process.next, server, population, placed, chosen, data_rows=np.arange(cohort)
      )
      machine.to_numpy(metrics)
      population.snapshot()
      return time.perf_counter() - start

    seconds: list[list[float]] = [[], []]
    for index in range(rounds + 3):
      for which in range(2):
        taken = one_round(which)
        if index >= 3:
          seconds[which].append(taken)
    files = (pathlib.Path(folder) / str(large)).rglob('*')
    stored_bytes = sum(file.stat().st_size for file in files)
    return _result(seconds[1], machine) | {
      'times_small': statistics.median(seconds[1]) / statistics.median(seconds[0]),
      'stored_megabytes': stored_bytes / 1e6,
    }


def data(*, cohort: int = 10_000, rounds: int = 3, blocks: int = 3) -> dict[str, Any]:
  """DP-FedAvg whose cohort of 100 images a client is read from disk, one ahead, or in memory.

  In turn: some rounds each way. The first three of each turn are not counted: before the first
  nothing is read ahead, and a turn's cohorts get their memory from the kernel, three of them (in
  a round, read ahead, and on the way from one to the other). The file has been written just
  before: it is in the system's cache as far as that has room.

  Returns:
    `seconds_per_round` from disk, and `times_memory`.
  """
  method = workloads.image_fedavg('softmax', cohort)
  tree = workloads.images(cohort)
  with (
    runtime.create('xla', devices=os.environ.get('BENCHMARK_DEVICES', 'auto')) as machine,
    tempfile.TemporaryDirectory() as folder,
  ):
    source = _source(pathlib.Path(folder), tree)
    placed, everyone = machine.place(tree), np.arange(cohort)
    del tree
    state = [method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))]

    def one_round(data: Any) -> None:
      state[0], metrics = machine.round(
        method.process.next, state[0], None, data, everyone, data_rows=everyone
      )
      machine.to_numpy(metrics)

    def from_disk(number: int) -> Iterator[Callable[[], None]]:
      rng = np.random.default_rng(0)
      chosen = [rng.permutation(cohort) for _ in range(number)]
      read = source.prefetch(chosen)
      for clients in chosen:
        yield functools.partial(read_round, read, clients)

    def read_round(read: Iterator[Any], clients: np.ndarray) -> None:
      found = next(read)
      tree = collections.OrderedDict(
        x=found.x, y=found.y, num_examples=found.num_examples, client_id=clients.astype(np.int32)
      )
      one_round(machine.place(tree))

    seconds: list[list[float]] = [[], []]
    for block in range(blocks + 1):
      for which in range(2):
        turn: Iterable[Callable[[], None]] = from_disk(_WARM_UP + rounds)
        if not which:
          turn = [functools.partial(one_round, placed)] * (_WARM_UP + rounds)
        for index, run in enumerate(turn):
          start = time.perf_counter()
          run()
          if block and index >= _WARM_UP:
            seconds[which].append(time.perf_counter() - start)
    return _result(seconds[1], machine) | {
      'times_memory': statistics.median(seconds[1]) / statistics.median(seconds[0])
    }


def _source(folder: pathlib.Path, tree: Any) -> stored_clients.StoredClients:
  """The clients' images in files."""
  count, rows = tree['y'].shape
  files = []
  for name in ('x', 'y'):
    tree[name].tofile(folder / name)
    files.append(stored_clients.RowFile(folder / name, tree[name].shape[2:], tree[name].dtype))
  sizes = np.full(count, rows, np.int64)
  return stored_clients.StoredClients(
    num_examples=sizes.astype(np.int32), max_examples=rows, x=files[0], y=files[1],
    blocks=np.cumsum(sizes) - sizes, sizes=sizes, starts=np.zeros(count, np.int64),
  )  # fmt: skip


def _result(seconds: list[float], machine: Any) -> dict[str, Any]:
  statistics_ = machine.context.statistics
  return {
    'seconds_per_round': statistics.median(seconds),
    'fastest_round': min(seconds),
    'rounds': len(seconds),
    'compilations': statistics_.compilations,
    'compiled_programs': statistics_.programs,
    'compile_seconds': statistics_.seconds,
  }
