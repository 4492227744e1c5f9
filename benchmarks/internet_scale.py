"""What changes from a million clients to a billion: `./fl python -m benchmarks.internet_scale`.

A simulation of cohorts alone, without training: how long a draw takes, how many clients have taken
part after some rounds, how many of a cohort have a state from before, and what the same noise
costs. With rate q after T rounds N (1 - (1 - q)^T) of N clients are expected to have taken part,
and the share 1 - (1 - q)^T of the next cohort.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from privacy import plan, sampling
from runtime.noise_key import NoiseKey

STATE_BYTES = 31_400  # a softmax layer of 784 features and 10 classes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
  """What was found for one population.

  Attributes:
    clients: N.
    draw_seconds: of a cohort, the mean.
    taken_part: clients who have taken part after all rounds.
    expected: the same by the formula.
    known: share of the last cohort that had taken part before.
    epsilon: of all rounds at delta 0.1 / N.
  """

  clients: int
  draw_seconds: float
  taken_part: int
  expected: float
  known: float
  epsilon: float


def simulate(clients: int, cohort: int, rounds: int, noise_multiplier: float) -> Population:
  """Draws the cohorts of a run."""
  cohorts = sampling.PoissonCohorts(clients, cohort / clients)
  key, seconds, known = NoiseKey.rehearsal(0), 0.0, 0.0
  seen = np.zeros([0], np.int32)
  for index in range(rounds):
    start = time.perf_counter()
    drawn = cohorts.sample(key, index)
    seconds += time.perf_counter() - start
    if index == rounds - 1:
      known = float(np.isin(drawn, seen).mean()) if len(drawn) else 0.0
    seen = np.union1d(seen, drawn)
  private = plan.ClientLevelPrivacy(
    cohorts=cohorts,
    noise_multiplier=noise_multiplier,
    delta=0.1 / clients,
    clipping=plan.FixedClipping(norm=1.0),
  )
  return Population(
    clients=clients,
    draw_seconds=seconds / rounds,
    taken_part=len(seen),
    expected=-clients * float(np.expm1(rounds * np.log1p(-cohorts.rate))),
    known=known,
    epsilon=private.epsilon(rounds),
  )


def report(populations: Sequence[Population]) -> str:
  """A table in Markdown."""
  lines = [
    '| clients | a draw, ms | have taken part | expected | of the last cohort before'
    ' | their states, GB | epsilon |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  lines += [
    f'| {p.clients:,} | {1e3 * p.draw_seconds:.3g} | {p.taken_part:,} | {p.expected:,.0f}'
    f' | {p.known:.2%} | {p.taken_part * STATE_BYTES / 1e9:.3g} | {p.epsilon:.3g} |'
    for p in populations
  ]
  return '\n'.join(lines) + '\n'


def main(arguments: Sequence[str] | None = None) -> None:
  """Simulates and prints."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--clients', type=float, nargs='+', default=[1e6, 1e7, 1e8, 1e9])
  parser.add_argument('--cohort', type=int, default=1000)
  parser.add_argument('--rounds', type=int, default=1000)
  parser.add_argument('--noise_multiplier', type=float, default=1.0)
  options = parser.parse_args(arguments)
  found = []
  for clients in options.clients:
    found.append(simulate(int(clients), options.cohort, options.rounds, options.noise_multiplier))
  print(report(found))


if __name__ == '__main__':
  main()
