"""Strategies: how the noise of one round goes with that of the others.

Each gives its matrices for the analysis, and its sensitivity: the largest L2 norm by which C x
moves if one client's updates, of norm at most one in each of its rounds, are replaced by nothing.
Its noise as a stream is `privacy.correlated.noise`.
"""

import dataclasses
import functools
import math
from typing import Protocol, runtime_checkable

import numpy as np
from scipy import linalg

from privacy.correlated.participation import MinimumSeparation


@runtime_checkable
class Strategy(Protocol):
  """What a plan needs of a strategy."""

  @property
  def rounds(self) -> int:
    """n, the rounds for which it is made."""
    ...

  @property
  def num_buffers(self) -> int:
    """Model-sized values which the noise remembers from round to round."""
    ...

  @property
  def description(self) -> str:
    """In words, for the privacy statement."""
    ...

  @property
  def fitted(self) -> np.ndarray:
    """What was found by optimisation, float64; empty where nothing was."""
    ...

  def encoder(self) -> np.ndarray:
    """C, float64 [m, n]: independent noise is added to C x."""
    ...

  def decoder(self) -> np.ndarray:
    """D, float64 [n, m], with D C = I: the rounds' noise is D z."""
    ...

  def sensitivity(self, participation: MinimumSeparation) -> float:
    """Of the first `participation.rounds` rounds; never below the true one."""
    ...


def prefix_sum_error(strategy: Strategy, participation: MinimumSeparation) -> float:
  """Root mean square error of the sums over the rounds so far, at noise multiplier one.

  sens(C) ||A D||_F / sqrt(n), A the lower triangle of ones: per coordinate and in units of the
  clip, averaged over the rounds (Choquette-Choo et al. 2023, equation 3). Independent noise
  without amplification has sqrt(k (n + 1) / 2).

  >>> yearly = MinimumSeparation(rounds=63, separation=63)
  >>> round(prefix_sum_error(Independent(rounds=63), yearly), 3)
  5.657
  >>> round(prefix_sum_error(Tree(rounds=63), yearly), 3)
  3.401
  """
  sums = np.cumsum(strategy.decoder(), axis=0)
  return strategy.sensitivity(participation) * math.sqrt(np.square(sums).sum() / len(sums))


def _check_rounds(strategy: Strategy, participation: MinimumSeparation) -> None:
  if participation.rounds > strategy.rounds:
    raise ValueError(
      f'the strategy is made for {strategy.rounds} rounds, not for {participation.rounds}.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent:
  """C = I: every round has noise of its own, and pays for each participation."""

  rounds: int

  fitted = np.zeros(0)
  num_buffers = 0
  description = 'independent noise in every round'

  def encoder(self) -> np.ndarray:
    return np.eye(self.rounds)

  def decoder(self) -> np.ndarray:
    return np.eye(self.rounds)

  def sensitivity(self, participation: MinimumSeparation) -> float:
    """sqrt(k), exact."""
    _check_rounds(self, participation)
    return math.sqrt(participation.most_participations)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree:
  """The binary tree (Kairouz et al., ICML 2021, section 4 and appendix B).

  The rows of C are the tree's nodes: sums over the rounds below them. A sum over the first t rounds
  is put together from the nodes of t's binary digits. Each node's own value and the sum of its
  children estimate the same, and are averaged by their variances (Honaker 2015, from below, which
  is all that a stream can know): a node of level l has variance 1 / (2 - 2^-l) instead of 1.
  """

  rounds: int

  fitted = np.zeros(0)
  description = 'noise by binary tree aggregation, estimated from below (DP-FTRL)'

  @property
  def levels(self) -> int:
    """Levels of which a node can be complete after `rounds` rounds."""
    return self.rounds.bit_length()

  @property
  def num_buffers(self) -> int:
    return self.levels

  @functools.cached_property
  def _nodes(self) -> dict[tuple[int, int], int]:
    """Index of each complete node, by level and number."""
    nodes = [(level, i) for level in range(self.levels) for i in range(self.rounds >> level)]
    return {node: index for index, node in enumerate(nodes)}

  def encoder(self) -> np.ndarray:
    matrix = np.zeros([len(self._nodes), self.rounds])
    for (level, number), index in self._nodes.items():
      matrix[index, number << level : (number + 1) << level] = 1.0
    return matrix

  def decoder(self) -> np.ndarray:
    estimates = np.zeros([len(self._nodes), len(self._nodes)])
    for (level, number), index in self._nodes.items():
      own = own_weight(level)
      estimates[index, index] = own
      if level:
        children = (self._nodes[level - 1, 2 * number + side] for side in (0, 1))
        estimates[index] += (1 - own) * sum(estimates[child] for child in children)
    sums = np.zeros([self.rounds + 1, len(self._nodes)])
    for t in range(1, self.rounds + 1):
      for level in range(self.levels):
        if t >> level & 1:
          sums[t] += estimates[self._nodes[level, (t >> level) - 1]]
    return np.diff(sums, axis=0)

  def sensitivity(self, participation: MinimumSeparation) -> float:
    """From above: the level's largest sum of squared counts, added over the levels.

    Nodes that are not complete yet are left out. Exact where one pattern is the worst of all
    levels, such as for one participation.
    """
    _check_rounds(self, participation)
    n, b, k = participation.rounds, participation.separation, participation.most_participations
    total = 0
    for level in range(n.bit_length()):
      size, left = 1 << level, k
      most = -(-size // b)  # participations that fit into one node
      for _ in range(n >> level):
        taken = min(most, left)
        total += taken * taken
        left -= taken
    return math.sqrt(total)


def own_weight(level: int) -> float:
  """Weight of a node's own noise in its estimate from below: 1 / (2 - 2^-level)."""
  return 1.0 / (2.0 - 2.0**-level)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Banded:
  """A banded lower-triangular matrix (BandMF, Choquette-Choo et al., NeurIPS 2023).

  Attributes:
    bands: float64 [n, w]; C[t, t - j] = bands[t, j]. The first column is positive; entries before
      the first round are zero.
  """

  bands: np.ndarray

  def __post_init__(self):
    bands = np.array(self.bands, np.float64)
    if bands.ndim != 2 or not 1 <= bands.shape[1] <= len(bands):
      raise ValueError(f'bands must be [rounds, width], width 1 to rounds, got {bands.shape}.')
    t, j = np.indices(bands.shape)
    if not (np.all(np.isfinite(bands)) and np.all(bands[:, 0] > 0) and np.all(bands[j > t] == 0)):
      raise ValueError(
        'bands must be finite, positive on the diagonal, zero before the first round.'
      )
    bands.setflags(write=False)
    object.__setattr__(self, 'bands', bands)

  @property
  def rounds(self) -> int:
    return len(self.bands)

  @property
  def fitted(self) -> np.ndarray:
    return self.bands

  @property
  def width(self) -> int:
    """w, the number of bands with the diagonal."""
    return self.bands.shape[1]

  @property
  def num_buffers(self) -> int:
    return self.width - 1

  @property
  def description(self) -> str:
    return f'noise correlated by a banded matrix with {self.width} bands (BandMF)'

  def encoder(self) -> np.ndarray:
    matrix = np.zeros([self.rounds, self.rounds])
    for j in range(self.width):
      rows = np.arange(j, self.rounds)
      matrix[rows, rows - j] = self.bands[rows, j]
    return matrix

  def decoder(self) -> np.ndarray:
    return linalg.solve_triangular(self.encoder(), np.eye(self.rounds), lower=True)

  def sensitivity(self, participation: MinimumSeparation) -> float:
    """Exact: with at most b bands the columns of one client's rounds are orthogonal.

    Raises:
      ValueError: more bands than the separation.
    """
    _check_rounds(self, participation)
    if self.width > participation.separation:
      raise ValueError(
        f'{self.width} bands need a separation of as many rounds, got {participation.separation}.'
      )
    columns = np.square(self.encoder()[: participation.rounds, : participation.rounds]).sum(axis=0)
    return math.sqrt(participation.largest_sum(columns))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferedToeplitz:
  """A buffered linear Toeplitz matrix (BLT, McMahan, Xu and Zhang 2024).

  C is lower triangular with c_0 = 1 and c_t = sum_j scale_j decay_j^(t-1) below the diagonal: a few
  numbers, and as many buffers, for any number of rounds.

  Attributes:
    rounds: n.
    scales: omega, not negative, with a sum of at most 1.
    decays: theta, in [0, 1).
  """

  rounds: int
  scales: tuple[float, ...]
  decays: tuple[float, ...]

  def __post_init__(self):
    if not self.scales or len(self.scales) != len(self.decays):
      raise ValueError('a buffered Toeplitz matrix needs as many scales as decays, at least one.')
    if min(self.scales) < 0 or sum(self.scales) > 1:
      raise ValueError(f'scales must be 0 or more with a sum of at most 1, got {self.scales}.')
    if not all(0 <= decay < 1 for decay in self.decays):
      raise ValueError(f'decays must be in [0, 1), got {self.decays}.')

  @property
  def fitted(self) -> np.ndarray:
    """The scales and the decays, float64 [2, num_buffers]."""
    return np.array([self.scales, self.decays])

  @property
  def num_buffers(self) -> int:
    return len(self.scales)

  @property
  def description(self) -> str:
    return f'noise correlated by a buffered Toeplitz matrix with {len(self.scales)} buffers (BLT)'

  def coefficients(self) -> np.ndarray:
    """c_0, ..., c_{n-1}, float64 [n]."""
    powers = np.power(np.array(self.decays)[:, None], np.arange(self.rounds - 1)[None, :])
    return np.concatenate([[1.0], np.array(self.scales) @ powers])

  def inverse_coefficients(self) -> np.ndarray:
    """The coefficients of C^-1, float64 [n], as the stream computes them."""
    scales, decays = np.array(self.scales), np.array(self.decays)
    buffers, result = np.zeros(len(scales)), np.empty(self.rounds)
    for t in range(self.rounds):
      result[t] = (t == 0) - scales @ buffers
      buffers = decays * buffers + result[t]
    return result

  def encoder(self) -> np.ndarray:
    return linalg.toeplitz(self.coefficients(), np.zeros(self.rounds))

  def decoder(self) -> np.ndarray:
    return linalg.toeplitz(self.inverse_coefficients(), np.zeros(self.rounds))

  def sensitivity(self, participation: MinimumSeparation) -> float:
    """Exact: the norm of the sum of columns 0, b, 2b, ...

    For coefficients that fall and are not negative no pattern is worse (Kalinin and Lampert,
    NeurIPS 2024, theorem 2).
    """
    _check_rounds(self, participation)
    return toeplitz_sensitivity(self.coefficients(), participation)


def toeplitz_sensitivity(coefficients: np.ndarray, participation: MinimumSeparation) -> float:
  """Of a lower-triangular Toeplitz matrix whose coefficients fall and are not negative."""
  n, b = participation.rounds, participation.separation
  total = np.zeros(n)
  for start in range(0, n, b):
    total[start:] += coefficients[: n - start]
  return float(np.linalg.norm(total))
