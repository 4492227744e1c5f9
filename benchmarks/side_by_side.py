"""Programs on TFF's own runtime and on the compiled one, in turns.

Both run in one process, so that a busy machine slows both. The table says whether they give the
same numbers, how long a round takes, and what is compiled.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow_federated as tff

import runtime
from runtime import memory

ROUNDS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """What is run on both.

  Attributes:
    computation: what is explained.
    start: makes the state before the first round.
    step: state -> (state, what the two runtimes are compared by).
  """

  computation: Any
  start: Callable[[], Any]
  step: Callable[[Any], tuple[Any, Any]]


def of_process(process: Any, clients: Sequence[Any]) -> Program:
  """A `tff.learning` process on the same clients in every round."""

  def step(state):
    output = process.next(state, clients)
    return output.state, (process.get_model_weights(output.state), output.metrics)

  return Program(computation=process.next, start=process.initialize, step=step)


def _leaves(value: Any) -> list[np.ndarray]:
  if attrs.has(type(value)):
    value = [getattr(value, field.name) for field in attrs.fields(type(value))]
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list | tuple):
    return [leaf for element in value for leaf in _leaves(element)]
  return [np.asarray(value, np.float64)]


def _difference(a: np.ndarray, b: np.ndarray) -> float:
  """The largest; NaN or infinite where one has a NaN or infinity and the other has not."""
  with np.errstate(invalid='ignore'):
    each = np.abs(a - b) / np.maximum(1, np.minimum(np.abs(a), np.abs(b)))
  return float(np.max(np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, each), initial=0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """One program on both runtimes.

  Attributes:
    difference: the largest difference of two numbers, over 1 or the number itself.
    native_seconds, seconds: of a round, medians after the first.
    first_ratio: our first round's time over TFF's.
    how: what is compiled.
  """

  difference: float
  native_seconds: float
  seconds: float
  first_ratio: float
  how: str


def compare(program: Program, native: Any, rounds: int = ROUNDS) -> Comparison:
  """Runs a program on both runtimes, in turns.

  Args:
    program: the program.
    native: the context of TFF's own runtime.
    rounds: how many rounds, at least two.
  """
  ours = runtime.XlaContext()
  install = tff.framework.get_context_stack().install  # `with native` would start a worker anew.
  contexts, difference = (native, ours), 0.0
  states: list[Any] = []
  times: tuple[list[float], list[float]] = ([], [])
  for context in contexts:
    with install(context):
      states.append(program.start())
  for _ in range(rounds):
    found = []
    for index, context in enumerate(contexts):
      with install(context):
        start = time.perf_counter()
        states[index], result = program.step(states[index])
        times[index].append(time.perf_counter() - start)
      found.append(_leaves(result))
    for a, b in zip(*found, strict=True):
      difference = float(np.maximum(difference, _difference(a, b)))  # NaN stays
  parts = ours.explain(program.computation)
  slow = sorted({f'{p.place}: {p.how}' for p in parts.parts if p.how != 'compiled'})
  how = 'all' if parts.is_compiled else 'all but ' + ', '.join(slow)
  return Comparison(
    difference=difference,
    native_seconds=statistics.median(times[0][1:]),
    seconds=statistics.median(times[1][1:]),
    first_ratio=times[1][0] / times[0][0],
    how=how,
  )


def print_table(what: str, programs: Mapping[str, Callable[[], Program]]) -> None:
  """Prints a row for each program.

  Args:
    what: the first column's head.
    programs: by name, what makes each.
  """
  print(
    f"| {what} | difference | native, s | compiled, s | times native | first round over native's"
    ' | compiled |'
  )
  print('| --- | --- | --- | --- | --- | --- | --- |', flush=True)
  memory.pass_over_what_is_loaded()  # as `runtime.install` does
  with runtime.create('native') as native:
    for name, make in programs.items():
      c = compare(make(), native.context)
      print(
        f'| {name} | {c.difference:.0e} | {c.native_seconds:.3f} | {c.seconds:.3f}'
        f' | {c.native_seconds / c.seconds:.1f} | {c.first_ratio:.1f} | {c.how} |',
        flush=True,
      )
