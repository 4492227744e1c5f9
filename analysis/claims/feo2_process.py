"""FeO2's algorithm on linear regression as the library runs it.

Importing this module does not import TensorFlow.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import processes
import runtime
from analysis.federated_linear_regression import LinearRegression

if TYPE_CHECKING:
  from processes.method import FederatedMethod


def weights(
  rows: LinearRegression, *, ratio: float, lambdas: Sequence[float]
) -> tuple[np.ndarray, list[np.ndarray]]:
  """The weights of the clients' estimates in theta and in the own models.

  In the k-th of N experiments client k estimates ones and all others estimate zeros.

  Args:
    rows: whose F_j^T F_j is the number of rows times I, so that a step of 1 is a client's estimate.
    ratio: r at the server.
    lambdas: a run of all clients with each.

  Returns:
    (of theta [N, d], of the own models [N clients, N, d] for each lambda), with the client whose
    estimate it is before the coordinate.
  """
  ones = rows.features.sum(axis=-1)  # F_j 1, the responses of a client that estimates ones
  responses = np.eye(rows.num_clients)[:, None, :] * ones[:, :, None]
  return run(rows, responses, ratio=ratio, lambdas=lambdas)


def run(
  rows: LinearRegression, responses: np.ndarray, *, ratio: float, lambdas: Sequence[float],
  step: float = 1.0,
) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
  """Theta and the own models of many experiments, each an output of the model.

  There is neither noise nor a clip, and a client takes one step a round.

  Args:
    rows: the clients' features, whose F_j^T F_j is the number of rows times I.
    responses: x_j [N, rows, experiments].
    ratio: r at the server.
    lambdas: a run of all clients with each; their own models' step is `step` / (1 + lambda).
    step: eta of algorithm 1.

  Returns:
    (theta [experiments, d], the own models [N, experiments, d] for each lambda).
  """
  import tff_models
  from privacy.plan import ClientLevelPrivacy, FixedClipping
  from privacy.sampling import EveryClient
  from processes.method import BuildSpec, ExamplesSpec

  clients, count, dimension = rows.features.shape
  shift = 0.1  # the model takes it from its labels
  data = dict(
    x=rows.features.astype(np.float32),
    y=(responses + shift).astype(np.float32),
    num_examples=np.full(clients, count, np.int32),
    client_id=np.arange(clients, dtype=np.int32),
  )
  method = processes.build(
    'feo2',
    BuildSpec(
      model=tff_models.build_model(
        'one_versus_all', example_shape=(dimension,), num_outputs=responses.shape[-1],
        task_kind='multilabel',
      ),
      examples=ExamplesSpec(
        x_shape=data['x'].shape[1:], x_dtype=np.float32, y_shape=data['y'].shape[1:],
        y_dtype=np.float32,
      ),
      plan=ClientLevelPrivacy(
        cohorts=EveryClient(clients), noise_multiplier=0.0, delta=1e-3,
        clipping=FixedClipping(norm=np.inf), num_opted_out=rows.num_non_private,
      ),
      batch_size=count, local_epochs=1,
    ),
  )  # fmt: skip
  with runtime.create('xla', devices='cpu') as machine:
    found = [
      _two_rounds(machine, method, data, rows.is_private, {
        'ratio': ratio, 'client_learning_rate': step,
        'personal_learning_rate': step / (1 + ditto_lambda), 'ditto_lambda_private': ditto_lambda,
        'ditto_lambda_non_private': ditto_lambda,
      })
      for ditto_lambda in lambdas
    ]  # fmt: skip
  return found[0][0], [own for _, own in found]


def _two_rounds(
  machine: runtime.Runtime, method: 'FederatedMethod', data: Mapping[str, np.ndarray],
  is_private: np.ndarray, hyperparameters: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
  """The theta of the first round, and the own models of the second, to which it is broadcast."""
  from runtime.noise_key import NoiseKey

  key = NoiseKey.rehearsal(0)  # of noise with a multiplier of 0
  method = dataclasses.replace(
    method, hyperparameters={**method.hyperparameters, **hyperparameters}
  )
  server = method.initial_server_state(0, noise_key=key)
  start = method.initial_client_states(
    server, len(is_private), {'is_private': is_private}, noise_key=key
  )
  states, placed = machine.place_states(start), machine.place(data, work=data['num_examples'])
  everyone, thetas = np.arange(len(is_private), dtype=np.int32), []
  for _ in range(2):
    server, _ = machine.round(method.process.next, server, states, placed, everyone)
    thetas.append(_by_experiment(machine.to_numpy(server)['model']))
  return thetas[0], _by_experiment(states.to_numpy()['model'])


def _by_experiment(model: Mapping[str, np.ndarray]) -> np.ndarray:
  """A model's one matrix [..., d, experiments] as [..., experiments, d]."""
  (matrix,) = (np.asarray(part, np.float64) for part in model.values())
  return np.swapaxes(matrix, -1, -2)
