"""What a round over many hosts costs, fitted to the measurements of the benchmark.

  ./fl python -m benchmarks.run --output=/tmp/scale --only=process_1,workers_1,workers_2,workers_4,\
process_1_mlp,workers_1_mlp,workers_2_mlp,workers_4_mlp
  ./fl python -m benchmarks.cost_model --results=/tmp/scale/benchmarks.json

A round of n hosts, each of which trains c clients and sends totals of B bytes, takes

  t(n) = s c a  +  L  +  n (m + b B)

`a` is a client's computation on one core, measured in one process on one; the fit gives
`s`, by how much workers are slower at it, `L`, what a round takes whatever is in it, `m`, the
driver's work for one more host, and `b`, its work for one more byte of it, all at least 0. Hosts
compute side by side; the driver sends to, hears from and adds up one after the other, so that
from n* = (s c a) / (m + b B) hosts on it is the limit. With a tree of partial sums of fan-out k
every member adds up k totals, and the driver's term grows with the depth only:

  t(n) = s c a  +  L  +  k ceil(log_k n) (m + b B)
"""

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

HOSTS = (10, 100, 1000)
_FAN_OUT = 8
_GIGABITS = 10.0  # a second: of a network beside which the model is read off, too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
  """One case over workers of one machine.

  Attributes:
    case: its name.
    workers: n.
    compute: seconds that its clients take in one process on one core, per worker, times the
      workers that share a core.
    sent: bytes sent to one worker in a round.
    received: bytes heard from one.
    seconds: of a round.
  """

  case: str
  workers: int
  compute: float
  sent: float
  received: float
  seconds: float

  @property
  def bytes(self) -> float:
    """B."""
    return self.sent + self.received


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
  """The fitted costs, in seconds; see the module.

  Attributes:
    slowdown: s.
    round: L.
    host: m.
    byte: b.
    error: the largest relative error of the fit.
  """

  slowdown: float
  round: float
  host: float
  byte: float
  error: float

  def driver(self, hosts: int, size: float, fan_out: int | None = None) -> float:
    """Seconds of adding up `hosts` totals of `size` bytes; with a tree if there is a fan-out."""
    terms = hosts
    if fan_out is not None and hosts > fan_out:
      terms = fan_out * math.ceil(math.log(hosts) / math.log(fan_out) - 1e-9)
    return terms * (self.host + self.byte * size)

  def seconds(self, hosts: int, compute: float, size: float, fan_out: int | None = None) -> float:
    """Of a round in which each host computes for `compute` seconds of one core."""
    return self.slowdown * compute + self.round + self.driver(hosts, size, fan_out)

  def limit(self, compute: float, size: float) -> float:
    """n*, the hosts at which the driver takes as long as the computation."""
    each = self.host + self.byte * size
    return self.slowdown * compute / each if each else math.inf


def fit(cases: Sequence[Measured]) -> CostModel:
  """The costs by least squares of relative errors: none below 0, and no host faster than alone.

  Raises:
    ValueError: fewer cases than costs.
  """
  if len(cases) < 4:
    raise ValueError(f'{len(cases)} cases over workers cannot give 4 costs; measure them all.')
  terms = np.array([[c.compute, 1.0, c.workers, c.workers * c.bytes] for c in cases])
  seconds = np.array([c.seconds for c in cases])
  scale = terms.max(axis=0)
  least = np.array([1.0, 0.0, 0.0, 0.0])
  relative = terms / scale / seconds[:, None]
  found = optimize.lsq_linear(relative, np.ones(len(cases)), (least * scale, np.inf))
  costs = np.maximum(found.x / scale, least)
  error = np.max(np.abs(terms @ costs / seconds - 1.0))
  names = ('slowdown', 'round', 'host', 'byte')
  return CostModel(**dict(zip(names, map(float, costs), strict=True)), error=float(error))


def measured(results: Mapping[str, Mapping[str, Any]], cpus: int) -> list[Measured]:
  """The cases `workers_N...` of a benchmark's results beside `process_1...` of the same model."""
  cases = []
  for name, result in results.items():
    kind, _, rest = name.partition('_')
    number, _, model = rest.partition('_')
    alone = results.get(f'process_1_{model}' if model else 'process_1')
    if kind != 'workers' or alone is None:
      continue
    workers = int(number)
    cases.append(
      Measured(
        case=name,
        workers=workers,
        compute=alone['seconds_per_round'] * max(1.0, workers / cpus),
        sent=1e3 * result['kilobytes_sent'],
        received=1e3 * result['kilobytes_received'],
        seconds=result['seconds_per_round'],
      )
    )
  return cases


def report(model: CostModel, cases: Sequence[Measured]) -> str:
  """What was measured, the fit, and what it says of many hosts, in Markdown."""
  lines = [
    '| case | sent to a worker, MB | heard from one, MB | its clients in one process, s'
    ' | a round, s | times one process | fitted, s |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  lines += [
    f'| {c.case} | {c.sent / 1e6:.3g} | {c.received / 1e6:.3g} | {c.compute:.3g} | {c.seconds:.3g}'
    f' | {c.seconds / c.compute:.2f} | {model.seconds(c.workers, c.compute, c.bytes):.3g} |'
    for c in cases
  ]
  lines += [
    '',
    f'Fitted to {len(cases)} cases, the worst of which is off by {model.error:.0%}: '
    f's = {model.slowdown:.2f}, L = {1e3 * model.round:.3g} ms, m = {1e3 * model.host:.3g} ms, '
    f'b = {1e9 * model.byte:.3g} ns.',
  ]
  slower = dataclasses.replace(model, byte=model.byte + 8e-9 / _GIGABITS)
  for words, of in (
    ('With paths as wide as on one machine:', model),
    (f'With one network of {_GIGABITS:g} Gbit/s at the driver:', slower),
  ):
    lines += ['', words, '', *_many_hosts(of)]
  return '\n'.join(lines) + '\n'


def _many_hosts(model: CostModel) -> list[str]:
  lines = [
    '| a host computes, s | totals, MB | 10 hosts | 100 | 1,000 | 1,000 in a tree of 8 | the driver'
    ' is the limit from |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for compute in (0.2, 10.0, 100.0):
    for size in (6e4, 1.3e7, 4e8):
      times = ' | '.join(f'{model.seconds(n, compute, size):.3g} s' for n in HOSTS)
      tree = model.seconds(HOSTS[-1], compute, size, _FAN_OUT)
      lines.append(
        f'| {compute:g} | {size / 1e6:g} | {times} | {tree:.3g} s'
        f' | {model.limit(compute, size):,.0f} hosts |'
      )
  return lines


def main(arguments: Sequence[str] | None = None) -> None:
  """Fits and prints."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--results', default='benchmarks/results/benchmarks.json')
  options = parser.parse_args(arguments)
  stored = json.loads(pathlib.Path(options.results).read_text())
  cases = measured(stored['results'], stored['machine']['cpus'])
  print(report(fit(cases), cases))


if __name__ == '__main__':
  main()
