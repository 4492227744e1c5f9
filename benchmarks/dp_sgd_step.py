"""One DP-SGD step of the 3x3 CNN and of a dense network, beside the same step written in JAX.

A batch of 100 examples of 32x32x3, gradients clipped example by example, their noised
sum: in JAX as its users write it, `jit` of `vmap(grad)` over `lax` convolutions or products.
Both run in one process on one core, in turns, and CPU time is compared: a busy machine slows
both alike.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import tff_models
from processes import gradients, trees
from runtime import random_streams
from runtime.noise_key import NoiseKey

BATCH_SIZE = 100
IMAGE_SHAPE = (32, 32, 3)
CLASSES = 10
CLIPPING_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.1
_FILTER = 3


def model(name: str = 'cnn3x3', image_shape: tuple[int, ...] = IMAGE_SHAPE) -> Any:
  """The cross-silo paper's network (appendix C.1), or `mlp`, of two hidden layers of 256."""
  return tff_models.build_model(
    name, example_shape=image_shape, num_outputs=CLASSES, task_kind='classification'
  )


def examples(batch_size: int = BATCH_SIZE, image_shape: tuple[int, ...] = IMAGE_SHAPE):
  """Random images and labels: only sizes matter for speed."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(batch_size, *image_shape)).astype(np.float32)
  return x, rng.integers(0, CLASSES, batch_size).astype(np.int32)


def step_of_ours(network: Any, noise_multiplier: float = NOISE_MULTIPLIER) -> Callable:
  """(params, x, y, seed) -> params, compiled; with this project's clipping and noise."""

  noise_key = tf.constant(NoiseKey.rehearsal(0).words)

  @tf.function(jit_compile=True)
  def step(params, x, y, seed):
    everyone = tf.ones(x.shape[:1], tf.bool)
    total, _ = gradients.clipped_gradient_sum(
      network, params, x, y, everyone, clipping_norm=CLIPPING_NORM
    )
    key = random_streams.key(noise_key, random_streams.Stream.DP_NOISE, seed)
    noise = trees.normal_like(key, params)
    total = trees.add_scaled(total, noise, noise_multiplier * CLIPPING_NORM)
    return trees.add_scaled(params, total, -LEARNING_RATE / x.shape[0])

  return step


def _cnn_in_jax(params, image):
  hidden = image[None]
  for i in (0, 1):
    bias = params[f'conv{i}_bias']
    filters = params[f'conv{i}_weights'].reshape(_FILTER, _FILTER, -1, bias.shape[0])
    hidden = jax.lax.conv_general_dilated(
      hidden, filters, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )
    window = (1, 2, 2, 1)
    hidden = jax.nn.relu(hidden + bias)
    hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, window, window, 'VALID')
  return hidden.reshape(-1) @ params['dense0_weights'] + params['dense0_bias']


def _mlp_in_jax(params, image):
  hidden = image.reshape(-1)
  for layer in ('hidden0', 'hidden1'):
    hidden = jax.nn.relu(hidden @ params[f'{layer}_weights'] + params[f'{layer}_bias'])
  return hidden @ params['output_weights'] + params['output_bias']


_PREDICT_IN_JAX = {'cnn3x3': _cnn_in_jax, 'mlp': _mlp_in_jax}


def step_of_jax(name: str = 'cnn3x3', noise_multiplier: float = NOISE_MULTIPLIER) -> Callable:
  """The same function of parameters of the same names and shapes, in JAX."""
  predict = _PREDICT_IN_JAX[name]

  def loss(params, image, label):
    return -jax.nn.log_softmax(predict(params, image))[label]

  def clipped_gradient(params, image, label):
    gradient = jax.grad(loss)(params, image, label)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree_util.tree_leaves(gradient)))
    factor = jnp.minimum(1.0, CLIPPING_NORM / norm)
    return jax.tree_util.tree_map(lambda g: g * factor, gradient)

  @jax.jit
  def step(params, x, y, seed):
    clipped = jax.vmap(clipped_gradient, (None, 0, 0))(params, x, y)
    keys = jax.random.split(jax.random.PRNGKey(seed), len(params))
    return {
      name: params[name]
      - LEARNING_RATE
      / len(x)
      * (
        jnp.sum(clipped[name], axis=0)
        + noise_multiplier * CLIPPING_NORM * jax.random.normal(key, params[name].shape)
      )
      for name, key in zip(params, keys, strict=True)
    }

  return step


def measure(name: str = 'cnn3x3', rounds: int = 15) -> dict[str, Any]:
  """CPU seconds of a network's step of each, in turns on one core.

  Returns:
    `seconds_per_round` and `fastest_round` of ours, `jax_seconds_per_round`,
    `times_jax` (the median over the turns of ours over JAX's), and `rounds`.
  """
  # Before the first operation: thread pools are made for the cores that they see.
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  network = model(name)
  x, y = examples()
  params = network.init(random_streams.key(0, random_streams.Stream.INIT))
  steps: dict[str, Callable] = {'ours': step_of_ours(network), 'jax': step_of_jax(name)}
  arguments: dict[str, Any] = {
    'ours': (params, tf.constant(x), tf.constant(y)),
    'jax': ({k: jnp.asarray(v.numpy()) for k, v in params.items()}, jnp.asarray(x), jnp.asarray(y)),
  }
  seconds: dict[str, list[float]] = {'ours': [], 'jax': []}
  for turn in range(-2, rounds):  # two to compile and to warm up
    for side in seconds:
      seed = tf.constant(turn) if side == 'ours' else turn
      start = time.process_time()
      result = steps[side](*arguments[side], seed)
      np.asarray(result[network.head[-1]])  # waits
      if turn >= 0:
        seconds[side].append(time.process_time() - start)
  return {
    'seconds_per_round': statistics.median(seconds['ours']),
    'fastest_round': min(seconds['ours']),
    'jax_seconds_per_round': statistics.median(seconds['jax']),
    'times_jax': statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)),
    'rounds': rounds,
  }
