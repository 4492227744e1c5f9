"""PPSGD's synthetic regression: shared and personal coordinates (section 6).

User i has the parameters

  theta*_i[:d-5] = theta_0[:d-5],
  theta*_i[d-5:] = theta_0[d-5:] + delta_i,
  theta_0 ~ N(0, 10^2 I), delta_i ~ N(0, s^2 I),

and examples x ~ N(0, diag(1/k)), y = theta*_i . x + noise. The paper has N =
1,000 users, d = 100 and s = 0.01; its program runs with d = 20 and s = 0.1
unless told otherwise. The deviation of label noise, which the paper does not
give, is the program's, 0.01.

The paper's learning is online: every user has 10 fresh examples in each round. A
fixed number of examples per user is passed through again and again instead.

The excess risk of w + theta_i is |w + theta_i - theta*_i|^2_Sigma, the squared error
that is left without label noise. It is the mean squared error on d + 1 points of each
user, exactly, for every linear model with or without an intercept b: the points x_r
have mean zero and mean x_r x_r^T = Sigma, so that mean (Delta . x_r + b)^2 is
Delta^T Sigma Delta + b^2, as under N(0, Sigma). See `quadrature`.
"""

import hashlib
import math
import os

import numpy as np

from datasets import federated
from runtime import random_streams

_CITATION = (
  'Bietti, Wei, Dudik, Langford, Wu (2022), Personalization improves privacy-accuracy'
  ' tradeoffs in federated learning, section 6.'
)
_THETA_0_DEVIATION = 10.0
_ROUNDS = 0  # tells the draws of a round from those of a user


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  dimension: int,
  local_coordinates: int,
  local_deviation: float,
  label_noise: float,
  examples_per_client: int | None,
  examples_per_round: int,
  test_examples: int,
) -> federated.FederatedDataset:
  """Linear regression in which users differ in their last coordinates.

  Args:
    seed: draws parameters and examples.
    data_dir: not needed.
    num_clients: N.
    dimension: d.
    local_coordinates: how many of the last coordinates are personal.
    local_deviation: s, the deviation of the personal part.
    label_noise: the deviation of the labels' noise.
    examples_per_client: training examples of each user; None for fresh ones in every
      round.
    examples_per_round: how many fresh ones.
    test_examples: test examples of each user.

  Returns:
    The data set; `extras['theta_star']` is [N, d] float64, the true parameters,
    and `extras['feature_variances']` [d], for `excess_risk`.
  """
  del data_dir
  for name, value in (
    ('num_clients', num_clients),
    ('dimension', dimension),
    ('examples_per_client', 1 if examples_per_client is None else examples_per_client),
    ('examples_per_round', examples_per_round),
    ('test_examples', test_examples),
  ):
    if value < 1:
      raise ValueError(f'{name} is {value}; it must be at least 1.')
  if not 0 <= local_coordinates <= dimension:
    raise ValueError(f'local_coordinates is {local_coordinates}; allowed: 0..{dimension}.')
  if local_deviation < 0 or label_noise < 0:
    raise ValueError(
      f'local_deviation is {local_deviation} and label_noise {label_noise}; neither may be'
      ' negative.'
    )
  generator = random_streams.host_generator(seed, random_streams.Stream.DATA)
  theta = np.tile(_THETA_0_DEVIATION * generator.standard_normal(dimension), (num_clients, 1))
  theta[:, dimension - local_coordinates :] += local_deviation * generator.standard_normal(
    (num_clients, local_coordinates)
  )
  variances = 1.0 / np.arange(1, dimension + 1)
  deviations = np.sqrt(variances).astype(np.float32)

  def draw(theta_star: np.ndarray, size: int, *indices: int) -> tuple[np.ndarray, np.ndarray]:
    """x [..., size, d] and y [..., size] for parameters [..., d]."""
    own = random_streams.host_generator(seed, random_streams.Stream.DATA, *indices)
    x = own.standard_normal((*theta_star.shape[:-1], size, dimension), np.float32) * deviations
    noise = own.standard_normal(x.shape[:-1], np.float32)
    y = np.matmul(x, theta_star.astype(np.float32)[..., None])[..., 0] + label_noise * noise
    return x, y.astype(np.float32)

  def fresh(round_: int) -> federated.ClientExamples:
    x, y = draw(theta, examples_per_round, round_, _ROUNDS)
    return _examples(x, y)

  size = (examples_per_client or 0) + test_examples
  x = np.empty((num_clients, size, dimension), np.float32)
  y = np.empty((num_clients, size), np.float32)
  for k in range(num_clients):
    x[k], y[k] = draw(theta[k], size, k)
  train: federated.ClientExamples | federated.ClientStream
  if examples_per_client is None:
    train = federated.ClientStream(
      num_examples=np.full(num_clients, examples_per_round, np.int32), draw=fresh
    )
  else:
    train = _examples(x[:, test_examples:], y[:, test_examples:])
  points = quadrature(variances)
  test = _examples(x[:, :test_examples], y[:, :test_examples])
  return federated.FederatedDataset(
    name='ppsgd_synthetic',
    task=federated.Task(
      kind='regression',
      num_outputs=1,
      example_shape=(dimension,),
      label_deviation=math.hypot(_THETA_0_DEVIATION * math.sqrt(variances.sum()), label_noise),
    ),
    train=train,
    test=test,
    excess_risk=_examples(
      np.broadcast_to(points, (num_clients, *points.shape)).astype(np.float32), theta @ points.T
    ),
    client_ids=tuple(f'user_{k}' for k in range(num_clients)),
    extras={'theta_star': theta, 'feature_variances': variances},
    preprocessing=('The data are synthetic.',),
    # The draws of a client's training examples go with those of its test.
    checksums={'ppsgd_synthetic': hashlib.sha256(theta.tobytes() + y.tobytes()).hexdigest()},
    citation=_CITATION,
  )


def quadrature(variances: np.ndarray) -> np.ndarray:
  """d + 1 points [d + 1, d] with mean zero and second moment diag(variances) [d].

  They are the root of d + 1 times the columns of Helmert's matrix, which are orthonormal
  and orthogonal to the constant vector, scaled to the variances.
  """
  size = len(variances) + 1
  k = np.arange(1, size)
  row = np.arange(size)[:, None]
  columns = np.where(row < k, 1.0, np.where(row == k, -k, 0.0))
  columns /= np.sqrt(k * (k + 1.0))
  return math.sqrt(size) * columns * np.sqrt(variances)


def _examples(x: np.ndarray, y: np.ndarray) -> federated.ClientExamples:
  """Clients with equally many examples: x [K, n, d], y [K, n]."""
  return federated.ClientExamples(
    x=x, y=y.astype(np.float32), num_examples=np.full(len(y), y.shape[1], np.int32)
  )


def excess_risk(
  parameters: np.ndarray,
  theta_star: np.ndarray,
  feature_variances: np.ndarray,
  *,
  per_coordinate: bool = False,
) -> float:
  """The excess risk in closed form: mean over users of |w + theta_i - theta*_i|^2_Sigma.

  Args:
    parameters: [N, d], w + theta_i of each user, or [d] for one model for all.
    theta_star: [N, d] true parameters.
    feature_variances: [d], the diagonal of Sigma.
    per_coordinate: divides by d too, as the authors' program does.
  """
  errors = (np.asarray(parameters, np.float64) - theta_star) ** 2 * feature_variances
  return float(errors.mean() if per_coordinate else errors.sum(axis=1).mean())
