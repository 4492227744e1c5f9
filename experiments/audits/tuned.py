"""The attack on private tuning: on a silo that releases the best of a random number of runs.

Every silo of one federation is a run of its own. Silos have their own data and noise keys, and the
server's model stands still, so that none hears of another. The canary moves every candidate in
one direction, and the attacker's held-out examples like the candidate most that went farthest:
then the choice amplifies what is seen of the canary.
"""

import collections
import math

import numpy as np

import runtime
from experiments.audits.canaries import WITH, WITHOUT
from experiments.audits.target import Mechanism, Report, Target
from privacy import audit as statistics
from processes.method import ExamplesSpec
from runtime.noise_key import NoiseKey

Tree = collections.OrderedDict

_HELD_OUT = 400  # as many as drown the noise of the score
_DEVIATIONS = 6.0  # of a candidate's noise that the score's losses tell apart


def audit_tuning(
  target: Target, *, rounds: int, runs: int, seed: int = 0, confidence: float = 0.95
) -> Report:
  """Attacks the pivot and the released model of a silo that tunes privately, together.

  Args:
    target: what is attacked, a linear regression; where a silo draws more runs than the program
      has room for, so many are made.
    rounds: rounds of the run.
    runs: number of silos, half of them with the canary.
    seed: of the noise.
    confidence: of the bound.

  Raises:
    ValueError: the model is another one.
  """
  plan, method, mechanism = target.plan, target.method, Mechanism(target)
  keys, silos = NoiseKey.rehearsal(seed), np.arange(runs, dtype=np.int32)
  alone = {**method.hyperparameters, 'server_learning_rate': 0.0}
  server = method.initial_server_state(0, alone, noise_key=keys)
  if set(server['model']) != {'weights', 'bias'} or target.is_svm or target.num_classes != 1:
    raise ValueError('--audit_choice attacks linear regressions only.')
  states = method.initial_client_states(
    server, runs, {'tuning_runs': np.array([plan.tuning.draw(keys, int(k)) for k in silos])},
    np.full(runs, target.client), noise_key=keys,
  )  # fmt: skip
  room = states['runs']['bias'].shape[1]
  states['attributes']['tuning_runs'] = np.minimum(states['attributes']['tuning_runs'], room)
  effect = mechanism.full_effect * rounds
  noise = mechanism.likelihood['noise_multiplier'] / math.sqrt(mechanism.steps * rounds)
  training, held_out, direction = _data(target, effect / 2, effect * (0.5 + _DEVIATIONS * noise))
  with_canary = silos % 2 == 1
  with runtime.create('xla') as machine:
    held, shown = machine.place_states(states), machine.place(training)
    for _ in range(rounds):
      server, _ = machine.round(
        method.process.next, server, held, shown, silos,
        data_rows=np.where(with_canary, WITH, WITHOUT),
      )  # fmt: skip
    release = method.build_release(_spec(held_out))
    machine.round(
      release, server, held, machine.place(held_out), silos, data_rows=np.zeros_like(silos)
    )
    after = held.to_numpy()
  released = Tree((name, leaf[silos, after['released']]) for name, leaf in after['runs'].items())
  shares = np.stack([_flat(model) @ direction / effect for model in (after['model'], released)], 1)
  scores = statistics.learned_filter(shares, np.ones_like(shares), with_canary)
  moved = shares[with_canary, 0].mean() - shares[~with_canary, 0].mean()
  return Report(
    claimed=target.claimed(rounds),
    bound=statistics.many_runs_of_family(
      scores[~with_canary],
      scores[with_canary],
      family=mechanism.family(rounds),
      delta=target.delta,
      confidence=confidence,
    ),
    rounds=rounds,
    strength=float(moved) / mechanism.likelihood['rate'],
  )


def _data(target: Target, middle: float, reach: float) -> tuple[Tree, Tree, np.ndarray]:
  """(the training data of both worlds, held-out data, the canary's direction in parameters).

  The loss of a held-out example falls from the clip to zero where a candidate goes from
  `middle - reach` to `middle + reach` along the direction.
  """
  spec = target.examples
  clip = float(target.method.hyperparameters['tuning_score_clip'])
  slope = max(math.sqrt(2 * clip) / (2 * reach), 1.0)  # the intercept's part is 1
  example = np.zeros(spec.x_shape[1:], np.float32)
  example.reshape(-1)[0] = math.sqrt(slope**2 - 1)
  direction = np.append(example.reshape(-1), 1.0) / slope
  count = int(target.plan.num_examples[target.client])
  training = Tree(
    x=np.zeros([2, *spec.x_shape], np.float32), y=np.zeros([2, *spec.y_shape], np.float32),
    num_examples=np.full(2, count, np.int32), client_id=np.zeros(2, np.int32),
  )  # fmt: skip
  training['x'][WITH, 0], training['y'][WITH, 0] = example, 1e6
  held_out = Tree(
    x=np.broadcast_to(example, [1, _HELD_OUT, *example.shape]).copy(),
    y=np.full([1, _HELD_OUT], slope * (middle + reach), np.float32),
    num_examples=np.full(1, _HELD_OUT, np.int32), client_id=np.zeros(1, np.int32),
  )  # fmt: skip
  return training, held_out, direction


def _spec(data: Tree) -> ExamplesSpec:
  return ExamplesSpec(
    x_shape=data['x'].shape[1:], x_dtype=data['x'].dtype,
    y_shape=data['y'].shape[1:], y_dtype=data['y'].dtype,
  )  # fmt: skip


def _flat(model: Tree) -> np.ndarray:
  """[runs, parameters], the intercept last."""
  parts = [np.asarray(model[name]) for name in ('weights', 'bias')]
  return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
