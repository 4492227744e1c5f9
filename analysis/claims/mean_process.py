"""Mean estimation as the library runs it: private local means in one round, MR-MTL in the next.

Importing this module does not import TensorFlow.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import processes
import runtime
from analysis.mean_estimation import MeanEstimation

if TYPE_CHECKING:
  from privacy.plan import PrivacyPlan

_CLIP = 1e4  # No gradient is clipped.


def errors(problem: MeanEstimation, lambdas: np.ndarray, *, repetitions: int = 2000) -> np.ndarray:
  """MR-MTL's squared error with each lambda, on the same data and noise.

  Every silo releases its mean by a step of DP-SGD with all its examples (local training), and
  then takes one round of MR-MTL towards the mean of the releases.

  Args:
    problem: silos, examples and variances.
    lambdas: of MR-MTL, [L].
    repetitions: of the problem, each an output of the model.

  Returns:
    float64 [L], means over silos and repetitions.
  """
  from privacy.plan import ExampleLevelPrivacy, NoPrivacy
  from privacy.sampling import EveryClient

  silos, count = problem.num_silos, problem.num_examples
  rng = np.random.default_rng(1)
  centres = rng.normal(scale=math.sqrt(problem.centre_variance), size=(silos, repetitions))
  noise = rng.normal(scale=math.sqrt(problem.sampling_variance), size=(silos, count, repetitions))
  private = ExampleLevelPrivacy(
    num_examples=np.full(silos, count), batch_size=count, steps_per_round=1, delta=1e-3,
    noise_multiplier=math.sqrt(problem.privacy_variance) / _CLIP, clipping_norm=_CLIP,
  )  # fmt: skip
  zero = np.zeros(repetitions)
  rates: dict[str, float] = dict(client_learning_rate=1.0, clipping_norm=_CLIP)
  (released,) = _one_round('local', centres[:, None] + noise, private, zero, [rates])
  of_lambda = [
    # Such a step solves a silo's objective for the mean.
    dict(client_learning_rate=1 / (1 + mtl_lambda), mtl_lambda=mtl_lambda)
    for mtl_lambda in lambdas
  ]
  public = NoPrivacy(cohorts=EveryClient(silos))
  mean = released.mean(axis=0)
  own = _one_round('mr_mtl', released[:, None], public, mean, of_lambda)
  return np.array([np.mean((models - centres) ** 2) for models in own])


def _one_round(
  name: str, examples: np.ndarray, plan: 'PrivacyPlan', start: np.ndarray,
  hyperparameters: Sequence[Mapping[str, float]],
) -> list[np.ndarray]:  # fmt: skip
  """The silos' own models [K, N] after a round with each hyperparameters.

  Args:
    name: the method.
    examples: [K, n, N], whose mean a silo estimates.
    plan: of privacy.
    start: the server's model, [N].
    hyperparameters: of the method, by name, for each run.
  """
  import tff_models
  from privacy.plan import ExampleLevelPrivacy
  from processes.method import BuildSpec, ExamplesSpec
  from runtime.noise_key import NoiseKey

  silos, count, outputs = examples.shape
  shift = 0.1  # The model takes it from its labels.
  data = dict(
    x=np.ones([silos, count, 1], np.float32),
    y=(examples + shift).astype(np.float32),
    num_examples=np.full(silos, count, np.int32),
    client_id=np.arange(silos, dtype=np.int32),
  )
  spec = BuildSpec(
    model=tff_models.build_model(
      'one_versus_all', example_shape=(1,), num_outputs=outputs, task_kind='multilabel'
    ),
    examples=ExamplesSpec(
      x_shape=(count, 1), x_dtype=np.float32, y_shape=(count, outputs), y_dtype=np.float32
    ),
    plan=plan, batch_size=count, hyperparameters=hyperparameters[0],
  )  # fmt: skip
  built = processes.build(name, spec)
  key = NoiseKey.rehearsal(3) if built.private else None
  attributes = plan.silo_parameters() if isinstance(plan, ExampleLevelPrivacy) else {}
  found = []
  with runtime.create('xla', devices='cpu') as machine:
    placed = machine.place(data, work=data['num_examples'])
    for values in hyperparameters:
      method = dataclasses.replace(built, hyperparameters={**built.hyperparameters, **values})
      server: Any = method.initial_server_state(0, noise_key=key)
      server['model']['weights'] = start[None].astype(np.float32)
      states = machine.place_states(
        method.initial_client_states(server, silos, attributes, noise_key=key)
      )
      machine.round(method.process.next, server, states, placed, np.arange(silos, dtype=np.int32))
      found.append(np.asarray(states.to_numpy()['model']['weights'], np.float64)[:, 0])
  return found
