"""What one execution of a program gives to the graphs that are lowered in it.

Random ops of a TFF program which have no seed of their own give other numbers at every
execution, for every client, and at every turn of a loop. Compiled, they are made of one
key, which the operating system's generator gives anew for every execution, into which
the place of the draw is folded: stage and call, the client's position, and a counter that
loops carry along.
"""

import contextlib
import contextvars
import dataclasses
import secrets
import time
import zlib
from collections.abc import Hashable, Iterator

import numpy as np
import tensorflow as tf

from runtime import random_streams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fresh:
  """What is new at every execution.

  Attributes:
    key: int32 [2], from the operating system's generator.
    number: int32, how many executions there were before: draws with a seed go on from it.
    time: float64, seconds since 1970, in the middle of a microsecond: so rounding takes none of
      those counted from it for another, when a program cuts them to whole ones.
  """

  key: tf.Tensor
  number: tf.Tensor
  time: tf.Tensor

  @classmethod
  def draw(cls, number: int) -> 'Fresh':
    """What the next execution is given."""
    key = np.frombuffer(secrets.token_bytes(8), np.int32)
    return cls(
      key=tf.constant(key),
      number=tf.constant(number % 2**31, tf.int32),
      time=tf.constant((time.time_ns() // 1000 + 0.5) * 1e-6, tf.float64),
    )

  def tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The arguments of a compiled function."""
    return self.key, self.number, self.time


DRAWS = 'draws'  # The state that counts random draws.
_STAGES = 2**20  # The microseconds, about a second, in which each stage begins somewhere.
_ROOM = 64  # Draws of each client, for which the clients of a piece have microseconds of their own.


class Session:
  """What the graphs that work for one client, or for the server, have in common.

  Attributes:
    state: tensors that ops change: variables' values, iterators' positions, draws.
    assume_full: whether elements are taken to have their largest, static shape.
    bounds: the largest sizes of the axes whose sizes are dynamic; none while elements are full.
    cut: what may have a size of its own that is 1 beside others of a batch, by id (`broadcasts`).
    depth: inside how many loops the interpretation is.
    orders: the data sets that are shuffled or drawn anew, by id, and inside how many loops each has
      its order from; None where something has gone through it.
    is_asked: whether what is computed is used, where that is not sure; see `only_where`.
  """

  def __init__(self) -> None:
    self.state: dict[Hashable, tf.Tensor] = {DRAWS: tf.constant(0)}
    self.assume_full = False
    self.bounds: set[int] = set()
    self.cut: dict[int, tf.Tensor] = {}
    self.depth = 0
    self.orders: dict[int, tuple[object, int | None]] = {}
    self.is_asked: tf.Tensor | None = None

  @contextlib.contextmanager
  def only_where(self, is_asked: tf.Tensor) -> Iterator[None]:
    """While a branch is computed whether it is taken or not: if it is not, loops have no turns.

    One that is not to be taken may never end.
    """
    before = self.is_asked
    self.is_asked = is_asked if before is None else before & is_asked
    try:
      yield
    finally:
      self.is_asked = before

  def next_draw(self) -> tf.Tensor:
    """The number of a random draw, another one at every turn of a loop."""
    number = self.state[DRAWS]
    self.state[DRAWS] = number + 1
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
  """Where in an execution a graph is lowered.

  Attributes:
    fresh: what is new at this execution.
    places: int32 scalars that say where the graph is: piece, stage, call, client.
    lanes: how many clients are worked on at once.
    clients: how many clients there are at most; each has a microsecond of its own.
    ahead: float64, how many microseconds later than the execution it is here.
    session: what its graphs share.
  """

  fresh: Fresh
  places: tuple[int | tf.Tensor, ...] = ()
  lanes: int = 1
  clients: int = 1
  ahead: float | tf.Tensor = 0.0
  session: Session = dataclasses.field(default_factory=Session)

  def key(self) -> tf.Tensor:
    """A key of this place."""
    return self._at_place(self.fresh.key)

  def seeded_key(self, seed: int, seed2: int) -> tf.Tensor:
    """A key of this place and of an op's seeds: the same in every run of a program."""
    words = np.array([seed & 0xFFFFFFFF, seed2 & 0xFFFFFFFF], np.uint32).view(np.int32)
    return self._at_place(random_streams.fold_in(tf.constant(words), self.fresh.number))

  def now(self, draw: tf.Tensor) -> tf.Tensor:
    """The time in seconds: another microsecond at each stage, client and draw.

    Programs make seeds of it (`tf.timestamp() * 1e6`), which are to be different ones.

    Args:
      draw: int32, the number of the draw here.
    """
    later = self.ahead + tf.cast(draw, tf.float64) * self.clients
    return self.fresh.time + 1e-6 * later

  def _at_place(self, key: tf.Tensor) -> tf.Tensor:
    for place in self.places:
      key = random_streams.fold_in(key, place)
    return key


_current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar('scope', default=None)


def current() -> Scope | None:
  """The scope that is being traced, None outside of one."""
  return _current.get()


@contextlib.contextmanager
def entered(scope: Scope | None) -> Iterator[None]:
  """Traces in a scope."""
  token = _current.set(scope)
  try:
    yield
  finally:
    _current.reset(token)


def of_piece(fresh: Fresh, piece: tf.Tensor, clients: int) -> Scope:
  """The scope of one of several pieces of an execution, which have at most so many clients each."""
  ahead = tf.cast(piece, tf.float64) * float(clients * _ROOM)
  return Scope(fresh=fresh, places=(piece,), clients=clients, ahead=ahead)


@contextlib.contextmanager
def inside(*places: int | str | tf.Tensor, lanes: int = 1) -> Iterator[None]:
  """Traces at a place of the current scope; nothing happens outside of one."""
  scope = current()
  if scope is not None:
    numbers = [zlib.crc32(p.encode()) & 0x7FFFFFFF if isinstance(p, str) else p for p in places]
    stage = repr([n for n in numbers if not tf.is_tensor(n)]).encode()
    ahead = scope.ahead + float(zlib.crc32(stage) % _STAGES)
    for number in numbers:
      if tf.is_tensor(number):
        ahead += tf.cast(number, tf.float64)
    scope = Scope(
      fresh=scope.fresh,
      places=(*scope.places, *numbers),
      lanes=lanes,
      clients=scope.clients,
      ahead=ahead,
    )
  with entered(scope):
    yield
