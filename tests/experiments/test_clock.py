"""Seconds a round: what counts as a round's time, and what does not."""

import dataclasses

import pytest

from experiments.running import clock


@dataclasses.dataclass
class Machine:
  """What a runtime knows of compiling."""

  compilations: int = 0
  compile_seconds: float = 0.0


@pytest.fixture
def now(monkeypatch):
  """Seconds that pass when the test says so: a list of the time."""
  time = [100.0]
  monkeypatch.setattr(clock.time, 'monotonic', lambda: time[0])
  return time


def test_rounds_are_timed_without_what_compiles(now):
  machine = Machine()
  watch = clock.Clock(machine)
  now[0] += 50.0  # states are placed
  watch.restart()
  machine.compilations, machine.compile_seconds = 1, 7.0
  now[0] += 8.0
  watch.looked(1)
  assert watch.seconds_per_round == pytest.approx(1.0)  # as long as there is no other
  now[0] += 1.0
  watch.looked(2)
  assert watch.seconds_per_round == pytest.approx(0.5)
  assert watch.compile_seconds == 7.0


def test_a_pause_counts_neither_for_the_rounds_before_it_nor_for_those_after(now):
  """A lost worker is replaced between rounds whose metrics are still on the device."""
  machine = Machine()
  watch = clock.Clock(machine)
  now[0] += 1.0  # two rounds, which nobody has looked at
  with watch.pause():
    machine.compilations, machine.compile_seconds = 1, 20.0
    now[0] += 30.0
  now[0] += 1.0  # two more
  watch.looked(4)
  assert watch.seconds_per_round == pytest.approx(0.5)
  assert watch.to_json()['steady'] == [pytest.approx(2.0), 4]


def test_what_was_counted_is_counted_on(now):
  watch = clock.Clock(Machine())
  now[0] += 3.0
  watch.looked(3)
  later = clock.Clock(Machine(compile_seconds=5.0))
  later.restore(watch.to_json())
  now[0] += 4.0
  later.looked(1)
  assert later.seconds_per_round == pytest.approx(7 / 4)
  assert later.compile_seconds == 0.0
