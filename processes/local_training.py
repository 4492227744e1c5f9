"""What a client does with its own data: SGD, or DP-SGD.

Long because all ways to draw a batch, clip and add noise are held against one another here.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from privacy import queries
from privacy.batches import BALLS_IN_BINS, POISSON, TRUNCATED, truncated_capacity
from processes import gradients, learning_rates, trees
from runtime import random_streams
from runtime.noise_key import NOISE_KEY
from runtime.random_streams import Stream
from tff_models import model as model_lib

# Largest (rows of a silo) x (parameters) for which a Poisson batch is the whole
# silo with a mask: below it the wasted arithmetic costs less than a gather.
_MASK_WHOLE_SILO_LIMIT = 2**18
_CACHED_GRADIENTS = 2**19  # numbers of the gradients that are worked on at once
_FEWEST_ROWS = 16


def sgd(
  model: model_lib.Model,
  params,
  data,
  *,
  key: tf.Tensor,
  batch_size: int,
  epochs: int,
  learning_rate,
  regularizer_gradient: Callable | None = None,
  momentum=None,
  dropout_key: tf.Tensor | None = None,
):
  """Epochs of minibatch SGD over a client's examples, reshuffled every epoch.

  The last batch of an epoch may be smaller; its gradient is the mean over the
  examples that it has, as with `tf.data`'s `batch(drop_remainder=False)`.

  Args:
    model: the model.
    params: where to start.
    data: OrderedDict with `x` [N, ...], `y` [N, ...] and `num_examples` (int32);
      rows beyond `num_examples` are ignored.
    key: the random key of this client and round.
    batch_size: examples in a batch.
    epochs: passes over the data.
    learning_rate: float32 scalar.
    regularizer_gradient: params -> gradient of a regulariser, added to every step.
    momentum: float32 scalar beta: steps go along v <- beta v + gradient, with v = 0 at first;
      None for none.
    dropout_key: random key for the dropout of a model that has it.

  Returns:
    (params, statistics): `loss_sum` over the examples seen, each at the parameters
    of its step, and `loss_count`, how many those were (or what they weigh, of a model
    whose examples weigh more than one).
  """
  capacity = data['x'].shape[0]
  batch_size = min(batch_size, capacity)
  positions = tf.range(capacity)
  steps = (data['num_examples'] + batch_size - 1) // batch_size

  def one_epoch(epoch, moving, statistics):
    # Padding sorts behind every real row, whatever the random numbers are.
    order_key = random_streams.uniform(random_streams.fold_in(key, epoch), [capacity])
    order = tf.argsort(tf.where(positions < data['num_examples'], order_key, 2.0))

    def one_step(step, moving, statistics):
      params = moving[0]
      position = step * batch_size + tf.range(batch_size)
      rows = tf.gather(order, tf.minimum(position, capacity - 1))
      x, y = tf.gather(data['x'], rows), tf.gather(data['y'], rows)
      weights = tf.where(position < data['num_examples'], model.weigh(y), 0.0)
      draws = dropout_draws(model, dropout_key, (epoch, step), batch_size)
      gradient, loss_sum = gradients.mean_gradient(model, params, x, y, weights, draws)
      if regularizer_gradient is not None:
        gradient = trees.add(gradient, regularizer_gradient(params))
      moving = _descend(moving, gradient, learning_rate, momentum)
      return step + 1, moving, _count(statistics, loss_sum, tf.reduce_sum(weights))

    _, moving, statistics = tf.while_loop(
      lambda step, *_: step < steps, one_step, (tf.constant(0), moving, statistics)
    )
    return epoch + 1, moving, statistics

  loop = (tf.constant(0), _at_rest(params, momentum), _no_statistics())
  if epochs == 1:
    loop = one_epoch(*loop)
  else:
    loop = tf.while_loop(lambda epoch, *_: epoch < epochs, one_epoch, loop)
  return loop[1][0], loop[2]


def dp_sgd(
  model: model_lib.Model,
  params,
  data,
  *,
  batch_key: tf.Tensor,
  noise_key: tf.Tensor,
  steps,
  sampling_rate,
  noise_multiplier,
  clipping_norm,
  batch_divisor,
  expected_batch_size: int,
  learning_rate,
  regularizer_gradient: Callable | None = None,
  regularizer_inside_clip: bool = False,
  batches: str = POISSON,
  batch_capacity: int | None = None,
  momentum=None,
  dropout_key: tf.Tensor | None = None,
):
  """Steps of DP-SGD (Abadi et al. 2016, algorithm 1).

  Each step: every example is in the batch independently with the sampling rate, or batches are
  drawn in another way (`privacy.batches` says what each costs); an example's gradient
  over all parameters is clipped to `clipping_norm`; Gaussian noise of standard deviation
  noise_multiplier * clipping_norm is added to the sum; the sum is divided by the fixed
  `batch_divisor`. An empty batch adds noise all the same.

  Formal guarantee: adding, removing or zeroing one example changes a step's sum by at
  most `clipping_norm` in L2, also if its gradient is not finite (it then counts as
  zero). Only truncated batches are cut short: any other that is larger than the gather's capacity
  is worked off in several chunks.

  Args:
    model: the model.
    params: where to start.
    data: OrderedDict with `x`, `y`, `num_examples`, as for `sgd`.
    batch_key: random key for the batches of this client and round.
    noise_key: random key for the noise of this client and round.
    steps: int32, steps to take.
    sampling_rate: float32, probability of each example in each batch.
    noise_multiplier: float32, noise's standard deviation over the clipping norm.
    clipping_norm: float32, L2 bound of an example's gradient.
    batch_divisor: float32, fixed and public divisor of the noised sum; the size of shuffled
      batches, and the number of examples over the number of bins.
    expected_batch_size: largest expected batch over the clients; sizes the gather.
    learning_rate: float32 scalar.
    regularizer_gradient: params -> gradient of a regulariser that needs no data.
    regularizer_inside_clip: add it to each example's gradient before clipping (as the
      cross-silo paper's experiments do) instead of to the noised mean.
    batches: one of `privacy.batches.BATCHES`.
    batch_capacity: most examples in a truncated Poisson batch, which is the shape of all gathers.
    momentum: as for `sgd`, of the noised gradients: it costs no privacy.
    dropout_key: random key for the dropout of a model that has it. A row has its own numbers
      in every step, whichever others are in the batch: they would otherwise change with
      one example's presence, and the sum by more than that example's gradient.

  Returns:
    (params, statistics) as `sgd`. The statistics are not private.
  """
  capacity = data['x'].shape[0]
  inside = regularizer_gradient if regularizer_inside_clip else None
  chunk = _chunk_size(model, params, data, expected_batch_size, regularizer=inside is not None)
  most = capacity
  if batches == TRUNCATED:
    assert batch_capacity is not None
    most = min(batch_capacity, capacity)
    chunk = chunk if chunk == capacity else most
  in_silo = tf.range(capacity) < data['num_examples']
  noise_stddev = queries.noise_stddev(noise_multiplier, clipping_norm)

  def one_step(in_batch, step, moving, statistics):
    params = moving[0]
    chosen = in_silo & in_batch
    draws = dropout_draws(model, dropout_key, (step,), capacity)

    def gradient_of(x, y, mask, draws):
      return gradients.clipped_gradient_sum(
        model,
        params,
        x,
        y,
        mask,
        clipping_norm=clipping_norm,
        regularizer_gradient=inside,
        draws=draws,
      )

    if chunk == capacity:
      total, loss_sum = gradient_of(data['x'], data['y'], chosen, draws)
    else:
      count = tf.reduce_sum(tf.cast(chosen, tf.int32))
      order = tf.argsort(tf.cast(~chosen, tf.int32), stable=True)

      def one_chunk(start, total, loss_sum):
        position = start + tf.range(chunk)
        rows = tf.gather(order, tf.minimum(position, capacity - 1))
        part, part_loss = gradient_of(
          tf.gather(data['x'], rows),
          tf.gather(data['y'], rows),
          position < count,
          None if draws is None else tf.gather(draws, rows),
        )
        return start + chunk, trees.add(total, part), loss_sum + part_loss

      first = tf.constant(0), trees.zeros_like(params), tf.constant(0.0)
      if chunk == most:  # no batch needs a second one
        _, total, loss_sum = one_chunk(*first)
      else:
        _, total, loss_sum = tf.while_loop(lambda start, *_: start < count, one_chunk, first)

    noise = trees.normal_like(random_streams.fold_in(noise_key, step), params)
    gradient = trees.scale(trees.add_scaled(total, noise, noise_stddev), 1.0 / batch_divisor)
    if regularizer_gradient is not None and not regularizer_inside_clip:
      gradient = trees.add(gradient, regularizer_gradient(params))
    return (
      step + 1,
      _descend(moving, gradient, learning_rate, momentum),
      _count(statistics, loss_sum, tf.reduce_sum(tf.cast(chosen, tf.float32))),
    )

  def steps_from(start, end, batch_of, *loop):
    return tf.while_loop(
      lambda step, *_: step < end,
      lambda step, *loop: one_step(batch_of(step), step, *loop),
      (start, *loop),
    )[1:]

  def poisson_batch(step):
    coins = random_streams.uniform(random_streams.fold_in(batch_key, step), [capacity])
    chosen = coins < sampling_rate
    if most < capacity:  # of the chosen, whose coins are in a random order, the first
      coins = tf.where(in_silo & chosen, coins, 2.0)
      chosen &= _ranks(coins) < most
    return chosen

  start = (_at_rest(params, momentum), _no_statistics())
  if batches in (POISSON, TRUNCATED):
    moving, statistics = steps_from(tf.constant(0), steps, poisson_batch, *start)
    return moving[0], statistics
  size = tf.cast(batch_divisor, tf.int32)
  steps_per_epoch = data['num_examples'] // size
  if batches == BALLS_IN_BINS:  # the divisor is the examples over the number of bins
    steps_per_epoch = tf.cast(
      tf.round(tf.cast(data['num_examples'], tf.float32) / batch_divisor), tf.int32
    )

  def one_epoch(epoch, *loop):
    epoch_key = random_streams.fold_in(batch_key, epoch)
    if batches == BALLS_IN_BINS:
      batch = random_streams.index(epoch_key, [capacity], steps_per_epoch)
    else:  # padding sorts behind every real row, whatever the random numbers are
      coins = random_streams.uniform(epoch_key, [capacity])
      batch = _ranks(tf.where(in_silo, coins, 2.0)) // size
    first = epoch * steps_per_epoch
    batch_of = lambda step: tf.equal(batch, step - first)  # noqa: E731
    return epoch + 1, *steps_from(first, first + steps_per_epoch, batch_of, *loop)

  epochs = steps // steps_per_epoch
  _, moving, statistics = tf.while_loop(
    lambda epoch, *_: epoch < epochs, one_epoch, (tf.constant(0), *start)
  )
  return moving[0], statistics


def _ranks(values):
  """The place of each value in ascending order."""
  return tf.argsort(tf.argsort(values, stable=True))


def _at_rest(params, momentum) -> tuple:
  """What a descent carries from step to step: parameters, and their velocity if there is one."""
  return (params,) if momentum is None else (params, trees.zeros_like(params))


def _descend(moving, gradient, learning_rate, momentum) -> tuple:
  if momentum is None:
    return (trees.add_scaled(moving[0], gradient, -learning_rate),)
  velocity = trees.add_scaled(gradient, moving[1], momentum)
  return trees.add_scaled(moving[0], velocity, -learning_rate), velocity


def dropout_draws(model, key, indices, rows: int):
  """Uniform numbers [rows, model.draws] for a step's dropout; None for a model without."""
  if not model.draws:
    return None
  if key is None:
    raise ValueError(f'The model {model.name} has dropout, and training it needs a key for it.')
  for index in indices:
    key = random_streams.fold_in(key, index)
  return random_streams.uniform(key, [rows, model.draws])


def _chunk_size(model, params, data, expected_batch_size: int, *, regularizer: bool) -> int:
  """Rows per gradient evaluation.

  Of a small model the whole silo, or four deviations above the mean, which rarely need a second
  one. Of a large one few, whose gradients stay in the cache; then little of the last chunk is
  padding, too.
  """
  capacity = data['x'].shape[0]
  if capacity * trees.num_elements(params) <= _MASK_WHOLE_SILO_LIMIT:
    return capacity
  most = math.ceil(expected_batch_size + 4.0 * math.sqrt(expected_batch_size))
  numbers = gradients.numbers_per_example(
    model, params, data['x'], data['y'], regularizer=regularizer
  )
  return min(capacity, most, max(_FEWEST_ROWS, _CACHED_GRADIENTS // numbers))


def _no_statistics():
  return model_lib.Params(loss_sum=tf.constant(0.0), loss_count=tf.constant(0.0))


def _count(statistics, loss_sum, count):
  return model_lib.Params(
    loss_sum=statistics['loss_sum'] + loss_sum, loss_count=statistics['loss_count'] + count
  )


class LocalTrainer:
  """A client's local work under a privacy plan: DP-SGD at example level, else SGD.

  Methods call it without knowing which of the two runs, so that a method is
  written once for both.
  """

  def __init__(self, spec):
    self._spec = spec
    self._private = spec.plan.unit == 'example'
    # Runs of a private tuning, which `indices` tell apart, are accounted for by their number.
    self._tunes = self._private and spec.plan.tuning is not None

  def __call__(
    self,
    params,
    server,
    client,
    data,
    *,
    regularizer_gradient: Callable | None = None,
    learning_rate=None,
    batch_stream: Stream = Stream.BATCH,
    noise_stream: Stream = Stream.DP_NOISE,
    indices: tuple[Any, ...] = (),
  ):
    """Trains from `params`; returns (params, statistics).

    Args:
      params: where to start.
      server: what was broadcast (round, seed, hyper-parameters).
      client: the client state; holds the silo's privacy parameters and its noise key at example
        level.
      data: the client's data.
      regularizer_gradient: see `sgd` and `dp_sgd`.
      learning_rate: float32 scalar; if None the hyper-parameter `client_learning_rate` with its
        schedule, where a method has one (`processes.learning_rates`).
      batch_stream: stream of the batches, another one for a second model's passes.
      noise_stream: stream of the noise, likewise.
      indices: int32 scalars which tell trainings of one round and stream apart.
    """
    spec = self._spec
    hyper = server['hyperparameters']
    if learning_rate is None:
      learning_rate = learning_rates.scheduled(server, 'client_learning_rate', spec.rounds)
    where = (server['round'], data['client_id'], *indices)
    # Trainings that have batches of their own have dropout of their own.
    dropout_key = random_streams.fold_in(
      random_streams.key(server['seed'], Stream.DROPOUT, *where), int(batch_stream)
    )
    if not self._private:
      return sgd(
        spec.model,
        params,
        data,
        # Public: nothing rests on the secrecy of which batches these are.
        key=random_streams.key(server['seed'], batch_stream, *where),
        batch_size=spec.batch_size,
        epochs=spec.local_epochs,
        learning_rate=learning_rate,
        regularizer_gradient=regularizer_gradient,
        momentum=hyper.get('client_momentum'),
        dropout_key=dropout_key,
      )
    if not (self._tunes and indices):
      self._spec.trainings.add(batch_stream, noise_stream)
    silo = client['attributes']
    return dp_sgd(
      spec.model,
      params,
      data,
      batch_key=random_streams.key(client[NOISE_KEY], batch_stream, *where),
      noise_key=random_streams.key(client[NOISE_KEY], noise_stream, *where),
      steps=silo['steps_per_round'] // self._spec.trainings.accounted,
      sampling_rate=silo['sampling_rate'],
      noise_multiplier=silo['noise_multiplier'],
      clipping_norm=hyper['clipping_norm'],
      batch_divisor=silo['batch_size'],
      expected_batch_size=spec.batch_size,
      learning_rate=learning_rate,
      regularizer_gradient=regularizer_gradient,
      regularizer_inside_clip=spec.options.get('regularizer_inside_clip', False),
      batches=spec.plan.batches,
      batch_capacity=truncated_capacity(spec.plan.batch_size, spec.plan.batch_capacity),
      momentum=hyper.get('client_momentum'),
      dropout_key=dropout_key,
    )
