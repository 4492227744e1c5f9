"""Clipping and noise: TF-Privacy's queries with reproducible noise.

TF-Privacy draws its noise with stateful ops, so that a run cannot be repeated
or resumed. Here the noise comes from `runtime.random_streams`, keyed by a noise
key and a counter which live in the query's global state beside every continuous
parameter (clip, noise multiplier, quantile, learning rate). One compiled
program therefore serves every setting of a sweep.

The states are nested `OrderedDict`s of float32 and int32 scalars, so they can be
part of a TFF server state as they are.
"""

import collections
from collections.abc import Mapping
from typing import Any

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp
from tensorflow_privacy.privacy.dp_query import normalized_query

from privacy import norms
from runtime import random_streams
from runtime.noise_key import SECRETS


class StreamGaussianSumQuery(tfp.GaussianSumQuery):
  """`GaussianSumQuery` with noise from a named stream.

  Formal guarantee: with clip C and noise multiplier z, adding or removing one
  record moves the sum by at most C in L2 norm, and every coordinate gets
  independent noise of standard deviation z C: a Gaussian mechanism with noise
  multiplier z. Each call of `get_noised_result` uses the next counter.

  A record whose norm is not finite counts as zero: it must neither poison the
  sum nor exceed the sensitivity. With an infinite clip records pass unchanged,
  and with a zero noise multiplier the sum does.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'noise_multiplier', 'noise_key', 'counter']
  )

  def __init__(self, l2_norm_clip, noise_multiplier, noise_key, stream: random_streams.Stream):
    """Args are two float32 scalars or Python numbers, and the noise key's words."""
    super().__init__(l2_norm_clip, None)
    self._noise_multiplier = noise_multiplier
    self._noise_key = noise_key
    self._stream = stream

  def initial_global_state(self):
    return self._GlobalState(*self._scalars())

  def _scalars(self):
    return (
      tf.cast(self._l2_norm_clip, tf.float32),
      tf.cast(self._noise_multiplier, tf.float32),
      tf.cast(self._noise_key, tf.int32),
      tf.constant(0, tf.int32),
    )

  def preprocess_record_impl(self, params, record):
    clip = params
    leaves = tf.nest.flatten(record)
    norm = norms.global_norm(leaves)  # NaN or infinite if the record is not finite
    passes = tf.logical_or(norm <= clip, tf.math.is_inf(clip))
    finite = tf.math.is_finite(norm)
    scale = tf.where(passes, 1.0, norms.clip_factors(clip, norm))

    def clipped(x):
      shrunk = tf.where(finite, x * tf.cast(scale, x.dtype), tf.zeros_like(x))
      return tf.where(passes, x, shrunk)

    return tf.nest.map_structure(clipped, record), norm

  def get_noised_result(self, sample_state, global_state):
    stddev = noise_stddev(global_state.noise_multiplier, global_state.l2_norm_clip)
    key = random_streams.key(global_state.noise_key, self._stream, global_state.counter)
    leaves = tf.nest.flatten(sample_state)
    draws = random_streams.normals(key, [x.shape for x in leaves])
    noised = [x + tf.cast(stddev * z, x.dtype) for x, z in zip(leaves, draws, strict=True)]
    new_state = global_state._replace(counter=global_state.counter + 1)
    event = dp_accounting.UnsupportedDpEvent()  # the plan makes the event, from Python floats
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event


class StreamQuantileEstimatorQuery(tfp.QuantileEstimatorQuery):
  """`QuantileEstimatorQuery` whose count has noise from `Stream.QUANTILE_NOISE`."""

  def __init__(
    self,
    initial_estimate,
    target_quantile,
    learning_rate,
    below_estimate_stddev,
    expected_num_records,
    noise_key,
  ):
    """As the base class; all but `expected_num_records` may be tensors."""
    # Not super().__init__: it compares the parameters with Python numbers, and
    # here they may be tensors. The plan has checked their values.
    self._initial_estimate = initial_estimate
    self._target_quantile = target_quantile
    self._learning_rate = learning_rate
    self._geometric_update = True
    # Counts are shifted by 1/2, so that their sensitivity is 1/2 (Andrew et al.).
    self._below_estimate_query = normalized_query.NormalizedQuery(
      StreamGaussianSumQuery(
        0.5,
        2 * below_estimate_stddev,
        noise_key,
        random_streams.Stream.QUANTILE_NOISE,
      ),
      denominator=expected_num_records,
    )


class StreamQuantileAdaptiveClipSumQuery(tfp.QuantileAdaptiveClipSumQuery):
  """`QuantileAdaptiveClipSumQuery` with reproducible noise.

  Andrew et al. 2021 (https://arxiv.org/abs/1905.03871), algorithm 1 with the
  geometric update: C <- C exp(-rate (b - quantile)), b the noised fraction of
  records whose norm is at most C: the clip falls when too many are *un*clipped.
  The fraction is of the expected number of records, of which those that are missing count
  as half unclipped; noised, it is kept in [0, 1].

  Formal guarantee: the update's sum with noise multiplier z_delta and the count
  with standard deviation sigma_b together are one Gaussian mechanism with noise
  multiplier z, where z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) (theorem 1).
  """

  _GlobalState = collections.namedtuple('_GlobalState', ['sum_state', 'quantile_estimator_state'])

  def __init__(
    self,
    initial_l2_norm_clip,
    noise_multiplier,
    target_unclipped_quantile,
    learning_rate,
    clipped_count_stddev,
    expected_num_records,
    noise_key,
  ):
    """As the base class, but `noise_multiplier` is the total z, of both queries."""
    self._noise_multiplier = noise_multiplier
    self._clipped_count_stddev = clipped_count_stddev
    self._sum_query = StreamGaussianSumQuery(
      initial_l2_norm_clip, noise_multiplier, noise_key, random_streams.Stream.DP_NOISE
    )
    self._quantile_estimator_query = StreamQuantileEstimatorQuery(
      initial_l2_norm_clip,
      target_unclipped_quantile,
      learning_rate,
      clipped_count_stddev,
      expected_num_records,
      noise_key,
    )

  def initial_global_state(self):
    z_delta = update_noise_multiplier(self._noise_multiplier, self._clipped_count_stddev)
    return self._GlobalState(
      self._sum_query.initial_global_state()._replace(noise_multiplier=z_delta),
      self._quantile_estimator_query.initial_global_state(),
    )

  def get_noised_result(self, sample_state, global_state):
    noised, sum_state, event = self._sum_query.get_noised_result(
      sample_state.sum_state, global_state.sum_state
    )
    clip, quantile_state, _ = self._quantile_estimator_query.get_noised_result(
      sample_state.quantile_estimator_state, global_state.quantile_estimator_state
    )
    new_state = global_state._replace(
      sum_state=sum_state._replace(l2_norm_clip=clip), quantile_estimator_state=quantile_state
    )
    return noised, new_state, event


class TreeQuery(tfp.SumAggregationDPQuery):
  """A query whose states are nested `OrderedDict`s instead of named tuples.

  Everything that leaves this query (global state, sample parameters, the
  preprocessed record) is made of `OrderedDict`s with the named tuples' fields
  as keys. Use in a TFF process, with `plan.make_query`:

      query = plan.make_query()                      # a TreeQuery
      # server state: query.initial_global_state()
      # server:  params = query.derive_sample_params(state)      -> broadcast
      # clients: record = query.preprocess_record(params, update)
      # sum:     total = tff.federated_sum(record)
      # server:  noised, state, _ = query.get_noised_result(total, state)
      # server:  mean = noised / plan.denominator
  """

  def __init__(self, query: tfp.SumAggregationDPQuery):
    self._query = query
    # Structures only: a query may be made in one graph and used in another.
    state = query.initial_global_state()
    self._state_structure = _structure(state)
    self._params_structure = _structure(query.derive_sample_params(state))

  def initial_global_state(self):
    return _to_tree(self._query.initial_global_state())

  def derive_sample_params(self, global_state):
    return _to_tree(self._query.derive_sample_params(self._state(global_state)))

  def initial_sample_state(self, template=None):
    return _to_tree(self._query.initial_sample_state(template))

  def preprocess_record(self, params, record):
    params = _from_tree(self._params_structure, params)
    return _to_tree(self._query.preprocess_record(params, record))

  def get_noised_result(self, sample_state, global_state):
    """Returns (noised sum, new global state, an event that no accountant accepts)."""
    if isinstance(self._query, StreamQuantileAdaptiveClipSumQuery):
      sample_state = self._query._SampleState(**sample_state)
    noised, new_state, event = self._query.get_noised_result(
      sample_state, self._state(global_state)
    )
    return noised, _to_tree(new_state), event

  def derive_metrics(self, global_state):
    """OrderedDict(clip): the clip of the next round. A differentially private release."""
    state = self._state(global_state)
    sum_state = getattr(state, 'sum_state', state)
    return collections.OrderedDict(clip=sum_state.l2_norm_clip)

  def _state(self, tree):
    return _from_tree(self._state_structure, tree)


def fixed_clip_query(values: Mapping[str, Any], noise_key: Any) -> TreeQuery:
  """The sum of records clipped to a constant norm, with Gaussian noise.

  Args:
    values: `clipping_norm` and `noise_multiplier`, Python numbers or float32 scalars.
    noise_key: the words of the run's noise key, int32 [8].
  """
  return TreeQuery(
    StreamGaussianSumQuery(
      values['clipping_norm'],
      values['noise_multiplier'],
      noise_key,
      random_streams.Stream.DP_NOISE,
    )
  )


def noise_stddev(noise_multiplier, clipping_norm) -> tf.Tensor:
  """z C as float32, zero for z = 0 also when the clip is infinite.

  It is never below 2^-100 where there is noise: a product below float32's smallest number would be
  none, beside records as small that pass.
  """
  noise_multiplier = tf.cast(noise_multiplier, tf.float32)
  # tf.equal, not ==: inside a TFF computation `==` compares the tensors' identities.
  clip = tf.where(tf.equal(noise_multiplier, 0.0), 0.0, tf.cast(clipping_norm, tf.float32))
  least = tf.where(tf.equal(noise_multiplier, 0.0), 0.0, 2.0**-100)
  return tf.maximum(noise_multiplier * clip, least)


def update_noise_multiplier(noise_multiplier, clipped_count_stddev) -> tf.Tensor:
  """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) as a float32 tensor; 0 for z = 0.

  NaN where the count alone has less noise than z allows (2 sigma_b <= z): never
  a smaller noise than asked for. Plans refuse that with a message.
  """
  z = tf.cast(noise_multiplier, tf.float32)
  # z / sqrt(1 - (z / (2 sigma_b))^2) is the same, and defined at z = 0.
  ratio = z / (2.0 * tf.cast(clipped_count_stddev, tf.float32))
  return tf.where(tf.equal(z, 0.0), 0.0, z / tf.sqrt(1.0 - tf.square(ratio)))


def _is_named_tuple(value: Any) -> bool:
  return isinstance(value, tuple) and hasattr(value, '_fields')


def _to_tree(value):
  if _is_named_tuple(value):
    return collections.OrderedDict(
      (name, _to_tree(part)) for name, part in zip(value._fields, value, strict=True)
    )
  return value


def _structure(value):
  """The types of nested named tuples, without their leaves."""
  if _is_named_tuple(value):
    return type(value), [_structure(part) for part in value]
  return None


def _from_tree(structure, tree):
  if structure is None:
    return tree
  kind, parts = structure
  named = zip(kind._fields, parts, strict=True)
  # What clients get of a state has no secrets in it: None, from which nothing can be drawn.
  own = {**dict.fromkeys(SECRETS), **tree}
  return kind(**{name: _from_tree(part, own[name]) for name, part in named})
