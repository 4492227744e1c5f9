"""Cross-silo claims on the sizes and features of real silos, and through the library's processes.

A check is given what loads the data: seed and options -> data set. Importing this module does not
import TensorFlow.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import processes
import runtime
from analysis.claims import silo
from analysis.claims.pairs import Aside, Pair

_CLIP = 1e4  # no gradient is clipped, so that updates are linear in the noise
_BATCH = 32
_RATE = 0.01

Data = Any  # a `datasets.FederatedDataset`: this room knows no data sets
Load = Callable[..., Data]


def overhead(load: Load) -> list[Pair | Aside]:
  """Noise multipliers of the methods at one budget, for every size of the silos."""
  data = load(seed=0)
  sizes = np.asarray(data.train.load(np.arange(data.num_clients)).num_examples)
  return silo.overhead_of(np.unique(sizes))


def averaging_noise(load: Load, *, repetitions: int = 1000) -> list[Pair]:
  """Equation 2: variances of a round's models over keys of the noise, by the library's DP-SGD.

  One side is FedAvg's model after a round, the other the sum over silos of squared weight times the
  variance of the silo's own model after a round of local training: 1/K of one silo's, where all
  silos are equal. Gradients are those of least squares, linear in the model.

  Args:
    load: the data.
    repetitions: keys of the noise.
  """
  data = load(seed=0)
  examples = data.train.load(np.arange(data.num_clients))
  sizes = np.asarray(examples.num_examples, np.float64)
  own = _models('local', data, examples, repetitions)
  variances = own.var(axis=0, ddof=1).mean(axis=-1)
  pairs = []
  for weighting, weights in (('uniform', np.ones_like(sizes)), ('examples', sizes)):
    shared = _models('fedavg', data, examples, repetitions, weighting=weighting)
    averaged = float(shared.var(axis=0, ddof=1).mean())
    expected = float(np.sum((weights / weights.sum()) ** 2 * variances))
    pairs.append(Pair(what=f'weighting {weighting}', left=averaged / expected, right=1.0))
  return pairs


def _models(
  name: str, data: Data, examples: Any, repetitions: int,
  **options: str,
) -> np.ndarray:  # fmt: skip
  """The models after one round, with so many keys: the server's [R, P], or the silos' [R, K, P]."""
  import tff_models
  from privacy.example_level import ExampleLevelPrivacy, local_steps_per_round
  from processes.method import BuildSpec, ExamplesSpec
  from runtime.noise_key import NoiseKey

  x, y, sizes = examples.x, examples.y, np.asarray(examples.num_examples)
  everyone = np.arange(len(sizes), dtype=np.int32)
  method = processes.build(
    name,
    BuildSpec(
      model=tff_models.build_model(
        'linear_regression', example_shape=x.shape[2:], num_outputs=1, task_kind='regression'
      ),
      examples=ExamplesSpec(
        x_shape=x.shape[1:], x_dtype=x.dtype, y_shape=y.shape[1:], y_dtype=y.dtype
      ),
      plan=ExampleLevelPrivacy(
        num_examples=sizes, batch_size=_BATCH, noise_multiplier=1.0, delta=1e-3,
        steps_per_round=local_steps_per_round(sizes, _BATCH, passes=1), clipping_norm=_CLIP,
      ),
      batch_size=_BATCH, hyperparameters={'client_learning_rate': _RATE}, options=options,
    ),
  )  # fmt: skip
  found = []
  with runtime.create('xla', devices='cpu') as machine:
    placed = machine.place(
      dict(x=x, y=y, num_examples=sizes.astype(np.int32), client_id=everyone), work=sizes
    )
    for repetition in range(repetitions):
      key = NoiseKey.rehearsal(repetition)
      server = method.initial_server_state(0, noise_key=key)
      states = machine.place_states(method.initial_client_states(server, len(sizes), noise_key=key))
      server, _ = machine.round(method.process.next, server, states, placed, everyone)
      models = states.to_numpy() if name == 'local' else machine.to_numpy(server)
      parts = [np.asarray(part, np.float64) for part in models['model'].values()]
      lead = parts[0].shape[:-1]
      found.append(np.concatenate([part.reshape(*lead, -1) for part in parts], axis=-1))
  return np.stack(found)
