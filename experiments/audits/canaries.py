"""The attacker's data: canaries among examples that contribute nothing."""

import collections
from typing import Any

import numpy as np

from experiments.audits.target import Target
from privacy.events import Adjacency
from processes.common_settings import SELECTION_LOSS_CLIP
from runtime.noise_key import NoiseKey

Tree = collections.OrderedDict

# Data rows of the attacked client.
WITH, WITHOUT, OPPOSITE = 0, 1, 2


def worst_case(target: Target) -> Tree:
  """Three data sets of the attacked client: with the canary, without it, with its opposite.

  At example level the canary is the first example, the others are zero and contribute
  (next to) nothing. At client level all examples are the canary's.
  """
  data = _nothing(target, 3)
  which = np.s_[:1] if target.plan.unit == 'example' else np.s_[:]
  example, label, opposite = _canary(target, 0)
  data['x'][[WITH, OPPOSITE], which] = example
  data['y'][WITH, which], data['y'][OPPOSITE, which] = label, opposite
  if target.plan.unit == 'client':
    data['num_examples'][WITHOUT] = 0
  return data


def many(target: Target, included: np.ndarray) -> Tree:
  """Data sets with each of the canaries alone [M], with none, and with those included."""
  spec, plan, count = target.examples, target.plan, len(included)
  by_client = plan.unit == 'client'
  if by_client and Adjacency.ZERO_OUT not in plan.cohorts.adjacencies:
    raise ValueError('--audit_canaries needs cohorts that clients are added to or removed from.')
  most = {
    'clients': plan.cohorts.population if by_client else count,
    'examples of the silo': count if by_client else int(plan.num_examples[target.client]),
    'features, once for each class': int(np.prod(spec.x_shape[1:])) * target.num_classes,
  }
  for what, number in most.items():
    if count > number:
      raise ValueError(f'--audit_canaries={count} must be at most {number}, the number of {what}.')
  data = _nothing(target, count + 2)
  for i in range(count):
    example, label, _ = _canary(target, i)
    rows, place = ([i], np.s_[:]) if by_client else ([i, count + 1][: 1 + included[i]], i)
    for row in rows:
      data['x'][row, place], data['y'][row, place] = example, label
  if by_client:
    data['num_examples'][count] = 0
    data['client_id'][:count] = np.arange(count)
  return data


def of_a_choice(target: Target) -> tuple[Tree, float]:
  """Data sets with and without the canary, and the smallest change of a score that it makes."""
  plan, method = target.plan, target.method
  server = method.initial_server_state(0, noise_key=NoiseKey.rehearsal(0))
  if plan.unit != 'example' or plan.selection is None or 'clusters' not in server:
    raise ValueError(
      '--audit_choice needs a method whose clients choose a cluster, and --privacy=example.'
    )
  spec, clusters = target.examples, server['clusters']
  regression = np.issubdtype(np.dtype(spec.y_dtype), np.floating) and not target.is_svm
  if not regression or set(clusters) != {'weights', 'bias'}:
    raise ValueError('--audit_choice attacks linear regressions with --selection_score=loss only.')
  weights = np.asarray(clusters['weights']).reshape(len(clusters['weights']), -1)
  differences = np.abs(weights[1:] - weights[0]).min(axis=0)
  best = int(np.argmax(differences))
  data = _nothing(target, 2)
  data['x'].reshape(2, spec.x_shape[0], -1)[WITH, 0, best] = 1e4
  data['y'][WITH, 0] = 1e4 * weights[0, best] + np.ravel(clusters['bias'])[0]
  clip = float(method.hyperparameters[SELECTION_LOSS_CLIP.name])
  loss = min((1e4 * float(differences[best])) ** 2 / 2, clip)
  count = int(plan.num_examples[target.client])
  return data, (loss / count) / (clip / max(count - 1, 1))


def _nothing(target: Target, rows: int) -> Tree:
  """Data sets of the attacked client whose examples are all zero."""
  spec = target.examples
  count = spec.x_shape[0]
  if target.plan.unit == 'example':
    count = target.plan.num_examples[target.client]
  y = np.zeros([rows, *spec.y_shape], spec.y_dtype)
  if target.is_svm:
    y[:] = 1
  return Tree(
    x=np.zeros([rows, *spec.x_shape], spec.x_dtype), y=y,
    num_examples=np.full(rows, count, np.int32),
    client_id=np.full(rows, target.client, np.int32),
  )  # fmt: skip


def _canary(target: Target, number: int) -> tuple[np.ndarray, Any, Any]:
  """(x, y, y of its opposite) of an example that moves one weight as far as the clip allows."""
  spec = target.examples
  example = np.zeros(spec.x_shape[1:], spec.x_dtype)
  # A large residual on a feature that outweighs the bias, which all canaries share, and is
  # small enough for a client's local steps to be stable.
  value: float = 100.0 if target.plan.unit == 'example' else 3.0
  if np.issubdtype(np.dtype(spec.x_dtype), np.integer):
    value = np.iinfo(spec.x_dtype).max
  example.reshape(-1)[number % example.size] = value
  if np.issubdtype(np.dtype(spec.y_dtype), np.floating):
    label = 1.0 if target.is_svm else 1e6
    return example, label, -label
  label = number // example.size
  return example, label, 1 - min(label, 1)
