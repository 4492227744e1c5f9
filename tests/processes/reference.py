"""The papers' algorithms as NumPy loops over a small federation, without code of the methods."""

import numpy as np
import tensorflow as tf

from runtime import random_streams
from runtime.noise_key import NoiseKey
from runtime.random_streams import Stream


def parameter_vector(params):
  """(bias, weights...) of one linear model, or of a stack of them, float64."""
  weights = np.asarray(params['weights'], np.float64)
  return np.concatenate([np.asarray(params['bias'], np.float64)[..., np.newaxis], weights], -1)


# Each draw is one graph: eager, it would be a hundred small ops.
@tf.function(autograph=False)
def _key(root, stream, indices):
  return random_streams.key(root, stream, *tf.unstack(indices))


@tf.function(autograph=False)
def _uniform(root, stream, indices, size):
  return random_streams.uniform(random_streams.key(root, stream, *tf.unstack(indices)), [size])


@tf.function(autograph=False)
def _normal(key, size):
  return random_streams.normal(key, [size])


def _tensor(values):
  return tf.constant(values, tf.int32)


class Reference:
  """Linear regression in NumPy loops that draw the same random numbers as the process.

  Parameters are vectors (bias, weights...). Written from the papers' algorithms, without any
  code of the methods.
  """

  def __init__(self, data, *, seed=0):
    self.sizes = data['num_examples']
    self.capacity = data['y'].shape[1]
    ones = np.ones((*data['y'].shape, 1))
    self.x = np.concatenate([ones, data['x']], -1).astype(np.float64)
    self.y = data['y'].astype(np.float64)
    self.seed = seed

  def gradients(self, params, client):
    """Gradient of every example of a client, [n, P]."""
    n = self.sizes[client]
    error = self.x[client, :n] @ params - self.y[client, :n]
    return error[:, np.newaxis] * self.x[client, :n]

  def uniform(self, root, stream, *indices):
    """The capacity's coins of a client's step."""
    return _uniform(_tensor(root), int(stream), _tensor(indices), self.capacity).numpy()

  def sgd(self, params, client, round_number, *, batch_size, learning_rate, penalty=None, epochs=1):
    """Epochs of shuffled minibatches, the last one smaller."""
    n = self.sizes[client]
    for epoch in range(epochs):
      order = np.argsort(self.uniform(self.seed, Stream.BATCH, round_number, client, epoch)[:n])
      for start in range(0, n, batch_size):
        rows = order[start : start + batch_size]
        step = self.gradients(params, client)[rows].mean(0)
        params = params - learning_rate * (step + (0.0 if penalty is None else penalty(params)))
    return params

  def dp_sgd(
    self, params, client, round_number, plan, *, learning_rate, penalty=None, inside_clip=False,
    streams=(Stream.BATCH, Stream.DP_NOISE), share_of_steps=1.0, indices=(),
  ):  # fmt: skip
    """Steps of DP-SGD, with batches as the plan has them; `indices` tell trainings apart."""
    batches, noises = streams
    n, silo = self.sizes[client], plan.silo_parameters()
    root = NoiseKey.rehearsal(self.seed).words_of(client)
    where = (round_number, client, *indices)
    for step in range(round(share_of_steps * silo['steps_per_round'][client])):
      if plan.batches == 'poisson':
        coins = self.uniform(root, batches, *where, step)[:n]
        batch = np.flatnonzero(coins < silo['sampling_rate'][client])
      else:
        size = int(silo['batch_size'][client])
        epoch, piece = divmod(step, n // size)
        order = np.argsort(self.uniform(root, batches, *where, epoch)[:n])
        batch = order[piece * size : (piece + 1) * size]
      total = np.zeros_like(params)
      for i in batch:
        gradient = self.gradients(params, client)[i]
        if inside_clip:
          gradient = gradient + penalty(params)
        total += gradient * min(1.0, plan.clipping_norm / np.linalg.norm(gradient))
      leaves = (1, len(params) - 1)
      keys = [_key(_tensor(root), int(noises), _tensor([*where, step, i])) for i in range(2)]
      noise = np.concatenate([_normal(*draw).numpy() for draw in zip(keys, leaves, strict=True)])
      total += silo['noise_multiplier'][client] * plan.clipping_norm * noise
      gradient = total / silo['batch_size'][client]
      if penalty is not None and not inside_clip:
        gradient = gradient + penalty(params)
      params = params - learning_rate * gradient
    return params
