"""PPSGD's synthetic regression: shared and personal coordinates (section 6).

User i has the parameters

  theta*_i[:d-5] = theta_0[:d-5],
  theta*_i[d-5:] = theta_0[d-5:] + delta_i,
  theta_0 ~ N(0, 10^2 I), delta_i ~ N(0, s^2 I),

and examples x ~ N(0, diag(1/k)), y = theta*_i . x + noise. The paper has N =
1,000 users, d = 100 and s = 0.01; its program runs with d = 20 and s = 0.1
unless told otherwise. Label noise has deviation 0.01 in both.

The paper makes one pass: a user with n examples takes part in n / 10 rounds of
minibatches of 10.
"""

import os

import numpy as np

from datasets import federated
from runtime import random_streams

_CITATION = (
  'Bietti, Wei, Dudik, Langford, Wu (2022), Personalization improves privacy-accuracy'
  ' tradeoffs in federated learning, section 6.'
)
_THETA_0_DEVIATION = 10.0


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  dimension: int,
  local_coordinates: int,
  local_deviation: float,
  label_noise: float,
  examples_per_client: int,
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
    examples_per_client: training examples of each user.
    test_examples: test examples of each user.

  Returns:
    The data set; `extras['theta_star']` is [N, d] float64, the true parameters,
    and `extras['feature_variances']` [d], for `excess_risk`.
  """
  del data_dir
  for name, value in (
    ('num_clients', num_clients),
    ('dimension', dimension),
    ('examples_per_client', examples_per_client),
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
  size = examples_per_client + test_examples
  x = np.empty((num_clients, size, dimension), np.float32)
  y = np.empty((num_clients, size), np.float32)
  deviations = np.sqrt(variances).astype(np.float32)
  for k in range(num_clients):
    own = random_streams.host_generator(seed, random_streams.Stream.DATA, k)
    x[k] = own.standard_normal((size, dimension), np.float32)
    x[k] *= deviations
    y[k] = x[k] @ theta[k] + label_noise * own.standard_normal(size)
  train, test = (
    federated.ClientExamples(
      x=x[:, rows], y=y[:, rows], num_examples=np.full(num_clients, y[:, rows].shape[1], np.int32)
    )
    for rows in (slice(test_examples, None), slice(test_examples))
  )
  return federated.FederatedDataset(
    name='ppsgd_synthetic',
    task=federated.Task(kind='regression', num_outputs=1, example_shape=(dimension,)),
    train=train,
    test=test,
    client_ids=tuple(f'user_{k}' for k in range(num_clients)),
    extras={'theta_star': theta, 'feature_variances': variances},
    preprocessing=('The data are synthetic.',),
    citation=_CITATION,
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
