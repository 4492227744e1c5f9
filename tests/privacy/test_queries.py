"""Queries: clip, noise, adaptivity, and that they run wherever processes run."""

import collections

import hypothesis
import hypothesis.strategies
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from scipy import stats

from privacy import norms, queries, sampling
from privacy import plan as plan_lib
from runtime import random_streams

COHORTS = sampling.PoissonCohorts(100, 0.5)


def _fixed(z=1.0, norm=1.0):
  return plan_lib.ClientLevelPrivacy(
    cohorts=COHORTS, noise_multiplier=z, delta=1e-5, clipping=plan_lib.FixedClipping(norm=norm)
  )


def _adaptive(z=1.0, cohorts=COHORTS, **clipping):
  return plan_lib.ClientLevelPrivacy(
    cohorts=cohorts,
    noise_multiplier=z,
    delta=1e-5,
    clipping=plan_lib.AdaptiveClipping(**clipping),
  )


def _record(scale=1.0):
  """A nested record whose keys are not in sorted order, of norm 5 * scale."""
  return collections.OrderedDict(
    z=collections.OrderedDict(b=tf.constant([[3.0 * scale]]), a=tf.constant(0.0)),
    c=tf.constant([0.0, 4.0 * scale]),
  )


def _norm(record):
  return float(np.sqrt(sum(np.sum(np.square(x)) for x in tf.nest.flatten(record))))


def _clip(plan, record):
  query = plan.make_query()
  return query.preprocess_record(query.derive_sample_params(query.initial_global_state()), record)


def test_clip_bounds_the_norm_and_keeps_the_direction():
  clipped = _clip(_fixed(norm=1.0), _record())
  assert list(clipped) == ['z', 'c'] and list(clipped['z']) == ['b', 'a']
  assert _norm(clipped) == pytest.approx(1.0, rel=1e-6)
  np.testing.assert_allclose(clipped['c'], [0.0, 0.8], rtol=1e-6)
  unchanged = _clip(_fixed(norm=5.0), _record())
  tf.nest.map_structure(np.testing.assert_array_equal, unchanged, _record())


@pytest.mark.parametrize(
  'value', [np.nan, np.inf, -np.inf, 1e38, 3e38, 1e-45, 1e-38, 0.0, 1.0 + 1e-7]
)
def test_clip_bounds_adversarial_records(value):
  record = collections.OrderedDict(a=tf.constant([value, 0.5]), b=tf.constant(value))
  assert _norm(_clip(_fixed(norm=0.7), record)) <= 0.7 * (1 + 1e-6)
  assert _norm(_clip(_adaptive(initial_norm=0.7), record)['sum_state']) <= 0.7 * (1 + 1e-6)


@pytest.mark.parametrize('compiled', [False, True])
def test_the_norm_has_its_digits_at_every_scale_of_float32(compiled):
  """Compiled too: XLA moves constant factors, and a scale that were one would be lost."""
  leaves = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
  expected = np.linalg.norm(leaves.astype(np.float64))

  @tf.function(jit_compile=compiled)
  def norm_of(a, b):
    return norms.global_norm([a, b])

  @tf.function(jit_compile=compiled)
  def plain(a, b):
    return tf.linalg.global_norm([a, b])

  lost = 0
  for exponent in range(-108, 116):  # of two: an exact change of scale
    scaled = [tf.constant(x * np.float32(2.0**exponent)) for x in leaves]
    close = pytest.approx(expected * 2.0**exponent, rel=1e-5)
    assert float(norm_of(*scaled)) == close, exponent
    lost += float(plain(*scaled)) != close
  assert lost > 50  # the control: at these the plain sum of squares fails


def test_a_huge_scalar_is_not_taken_for_nothing():
  """XLA takes constant factors out of a scalar's square: 2^-180 of it is 0, which would pass."""

  @tf.function(jit_compile=True)
  def norm_of(x):
    return norms.global_norm([x])

  @tf.function(jit_compile=True)
  def with_a_constant_scale(x):
    return tf.sqrt(tf.square(x * 2.0**-90)) * 2.0**90

  for exponent in (-100.0, -60.0, 0.0, 61.9, 100.0):
    assert float(norm_of(tf.constant(2.0**exponent))) == pytest.approx(2.0**exponent, rel=1e-5)
  assert float(with_a_constant_scale(tf.constant(2.0**61.9))) == 0.0  # the broken twin


@pytest.mark.parametrize('clip', [1e-10, 1e-7, 1e-6, 1e-3, 0.5])
def test_a_factor_without_all_its_digits_is_none(clip):
  """Of 3e38 and a clip of 1e-6 the quotient is three of float32's smallest steps, and rounded."""
  large = np.linspace(1e38, 3.4e38, 50)
  lengths = np.float32([0.0, 1e-40, 0.9 * clip, 2.0, 1e19, *large])
  factors = norms.clip_factors(tf.constant(clip, tf.float32), tf.constant(lengths)).numpy()
  assert np.all(np.float64(factors) * np.float64(lengths) <= clip * (1 + 1e-6))
  assert np.all((factors == 0) | (factors >= 2.0**-126)) and np.all(factors[:3] == 1.0)
  if clip in (1e-7, 1e-6):  # the broken twin
    bare = np.float32(clip) / np.float32(large)
    assert np.any(np.float64(bare) * large > clip * (1 + 1e-2))


def _with_one_large_entry(count):
  """Its square is 1, and the other ones are less than half a unit in that one's last place."""
  record = np.full(count, np.sqrt(0.49 * 2.0**-24), np.float32)
  record[0] = 1.0
  return record


@pytest.mark.parametrize('scale', [1.0, 2.0**-90, 2.0**90])
def test_millions_of_small_numbers_beside_a_large_one_count(scale):
  """A client may choose them so: a running sum in float32 has only the large one."""
  record = _with_one_large_entry(2_000_000) * np.float32(scale)
  true = np.linalg.norm(record.astype(np.float64))
  compiled = tf.function(lambda x: norms.global_norm([x]), jit_compile=True)
  assert float(compiled(record)) == pytest.approx(true, rel=1e-6)
  running = float(np.cumsum(np.square(record / np.float32(scale)), dtype=np.float32)[-1]) ** 0.5
  assert running < (1 - 2e-4) * true / scale  # the broken twin
  clipped = _clip(_fixed(norm=0.5 * scale), [tf.constant(record)])
  moved = np.linalg.norm(np.asarray(clipped[0], np.float64))
  assert moved == pytest.approx(0.5 * scale, rel=1e-6)


@pytest.mark.parametrize('compiled', [False, True])
def test_noise_is_never_nothing(compiled):
  """z C below float32's smallest number would be 0, where records of norm C pass."""
  deviation = tf.function(queries.noise_stddev, jit_compile=compiled)
  for z, clip in ((0.5, 2e-38), (1e-3, 1e-38), (1e-30, 1e-30)):
    assert float(deviation(tf.constant(z), tf.constant(clip))) == 2.0**-100
  assert float(deviation(tf.constant(0.5), tf.constant(3.0))) == 1.5
  for clip in (2e-38, 1.0, np.inf):
    assert float(deviation(tf.constant(0.0), tf.constant(clip, tf.float32))) == 0.0
  assert float(deviation(tf.constant(0.5), tf.constant(np.inf, tf.float32))) == np.inf


_FLOATS = hypothesis.strategies.floats(width=32)  # NaN, infinities and denormals included


@pytest.mark.slow
@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
  record=hypothesis.strategies.lists(_FLOATS, min_size=3, max_size=3),
  others=hypothesis.strategies.lists(
    hypothesis.strategies.lists(_FLOATS, min_size=3, max_size=3), max_size=3
  ),
)
def test_one_client_moves_the_sum_by_at_most_the_clip(record, others):
  clip = 0.7

  def total(records):
    clipped = [_clip(_fixed(norm=clip), {'u': tf.constant(r, tf.float32)})['u'] for r in records]
    return np.sum([np.zeros(3), *clipped], axis=0)

  moved = np.linalg.norm(total([*others, record]) - total(others))
  assert moved <= clip * (1 + 1e-5)


@pytest.mark.parametrize('scale', [1.0, 1e30, 1e-30])
def test_no_noise_and_an_infinite_clip_change_nothing(scale):
  for plan in (_fixed(z=0.0, norm=np.inf), plan_lib.NoPrivacy(cohorts=COHORTS)):
    query = plan.make_query()
    state = query.initial_global_state()
    record = query.preprocess_record(query.derive_sample_params(state), _record(scale))
    result, _, _ = query.get_noised_result(record, state)
    tf.nest.map_structure(np.testing.assert_array_equal, result, _record(scale))


def _noise(plan, seed, num_values=20_000, rounds=1):
  query = plan.make_query(noise_key=seed)
  state = query.initial_global_state()
  zeros = collections.OrderedDict(a=tf.zeros([num_values // 2]), b=tf.zeros([num_values // 2]))
  draws = []
  for _ in range(rounds):
    total = zeros
    if isinstance(plan.clipping, plan_lib.AdaptiveClipping):
      total = collections.OrderedDict(sum_state=zeros, quantile_estimator_state=tf.constant(0.0))
    noised, state, _ = query.get_noised_result(total, state)
    draws.append(np.concatenate([noised['a'], noised['b']]))
  return np.stack(draws), state


@pytest.mark.parametrize(('z', 'norm'), [(1.3, 0.5), (0.2, 40.0)])
def test_noise_has_the_claimed_scale_and_two_thirds_of_it_is_rejected(z, norm):
  noise = _noise(_fixed(z=z, norm=norm), seed=1)[0][0]
  assert stats.kstest(noise / (z * norm), 'norm').pvalue > 1e-3
  assert stats.kstest(noise / (z * norm) * 2 / 3, 'norm').pvalue < 1e-6


def test_adaptive_update_noise_has_the_scale_z_delta():
  plan = _adaptive(z=1.0, initial_norm=0.5, quantile_noise_multiplier=0.8)
  z_delta = (1 - 1.6**-2) ** -0.5
  assert plan.update_noise_multiplier == pytest.approx(z_delta)
  noise = _noise(plan, seed=2)[0][0]
  assert stats.kstest(noise / (z_delta * 0.5), 'norm').pvalue > 1e-3
  assert stats.kstest(noise / 0.5, 'norm').pvalue < 1e-6  # z itself would be too small


@pytest.mark.slow
def test_quantile_noise_has_the_claimed_scale():
  """The clip's logarithm moves by rate * (sigma_b / (q N) * normal) around its mean."""
  sigma = 4.0
  plan = _adaptive(
    cohorts=sampling.PoissonCohorts(1000, 0.05),
    learning_rate=1.0,
    initial_norm=1.0,
    quantile_noise_multiplier=sigma,
  )
  query = plan.make_query()
  half = collections.OrderedDict(
    sum_state=collections.OrderedDict(a=tf.constant(0.0)), quantile_estimator_state=tf.constant(0.0)
  )

  @tf.function
  def clip_of_seed(seed):
    state = plan.make_query(noise_key=seed).initial_global_state()
    return query.get_noised_result(half, state)[1]['sum_state']['l2_norm_clip']

  clips = tf.map_fn(clip_of_seed, tf.range(1000), fn_output_signature=tf.float32).numpy()
  standard = -np.log(clips) * 50.0 / sigma
  assert stats.kstest(standard, 'norm').pvalue > 1e-3
  assert stats.kstest(standard * 2 / 3, 'norm').pvalue < 1e-6


def test_noise_is_independent_across_rounds_leaves_and_seeds():
  first, state = _noise(_fixed(), seed=1, rounds=3)
  again, _ = _noise(_fixed(), seed=1, rounds=3)
  other, _ = _noise(_fixed(), seed=2, rounds=1)
  np.testing.assert_array_equal(first, again)
  assert int(state['counter']) == 3
  half = first.shape[1] // 2
  rows = np.stack([*first[:, :half], *first[:, half:], other[0, :half]])
  correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
  assert np.abs(correlation).max() < 5 / np.sqrt(half)


def _run_adaptive(plan, norms, rounds, seed=0):
  """Clips over rounds in which all of `norms` take part."""
  query = plan.make_query(noise_key=seed)
  updates = tf.constant(norms, tf.float32)[:, None]

  @tf.function
  def one_round(state):
    params = query.derive_sample_params(state)
    records = tf.vectorized_map(lambda u: query.preprocess_record(params, {'u': u}), updates)
    total = tf.nest.map_structure(lambda x: tf.reduce_sum(x, axis=0), records)
    return query.get_noised_result(total, state)[1]

  state, clips = query.initial_global_state(), []
  for _ in range(rounds):
    state = one_round(state)
    clips.append(float(query.derive_metrics(state)['clip']))
  return np.array(clips)


@pytest.mark.slow
@pytest.mark.parametrize('initial', [0.1, 20.0])
@pytest.mark.parametrize('quantile', [0.2, 0.5, 0.8])
def test_adaptive_clip_approaches_the_quantile_from_both_sides(initial, quantile):
  norms = np.random.default_rng(0).lognormal(size=50)
  plan = _adaptive(cohorts=sampling.EveryClient(50), initial_norm=initial, target_quantile=quantile)
  clips = _run_adaptive(plan, norms, 110)
  if initial < np.quantile(norms, quantile):  # rises to the quantile, at first every round
    assert np.all(np.diff(clips[:8]) > 0)
  else:
    assert np.all(np.diff(clips[:8]) < 0)
  late = np.exp(np.mean(np.log(clips[-40:])))
  assert np.quantile(norms, quantile - 0.1) < late < np.quantile(norms, quantile + 0.1)


def test_adaptive_query_is_tf_privacys_without_noise():
  """Same clips and sums as the query of TF-Privacy, which has no seed."""
  plan = _adaptive(z=0.0, initial_norm=0.3, target_quantile=0.6, learning_rate=0.3)
  ours = plan.make_query({'quantile_noise_multiplier': 0.0})
  theirs = tfp.QuantileAdaptiveClipSumQuery(0.3, 0.0, 0.6, 0.3, 0.0, plan.denominator)
  state, their_state = ours.initial_global_state(), theirs.initial_global_state()
  for _ in range(3):
    total = their_total = None
    for norm in (0.1, 0.4, 2.0):
      record = {'u': tf.constant([0.6 * norm, 0.8 * norm])}
      part = ours.preprocess_record(ours.derive_sample_params(state), record)
      their_part = theirs.preprocess_record(theirs.derive_sample_params(their_state), record)
      total = part if total is None else tf.nest.map_structure(tf.add, total, part)
      their_total = (
        their_part
        if their_total is None
        else theirs.accumulate_preprocessed_record(their_total, their_part)
      )
    result, state, _ = ours.get_noised_result(total, state)
    their_result, their_state, _ = theirs.get_noised_result(their_total, their_state)
    np.testing.assert_allclose(result['u'], their_result['u'], rtol=1e-6)
    np.testing.assert_allclose(
      state['sum_state']['l2_norm_clip'], their_state.sum_state.l2_norm_clip, rtol=1e-6
    )


def test_golden_round():
  """Noise is part of a run's identity: it must not change."""
  query = _adaptive(initial_norm=1.0).make_query(noise_key=7)
  state = query.initial_global_state()
  record = query.preprocess_record(query.derive_sample_params(state), _record())
  result, state, _ = query.get_noised_result(record, state)
  np.testing.assert_allclose(result['c'], [0.46563637, 0.58111894], rtol=1e-5)
  np.testing.assert_allclose(state['sum_state']['l2_norm_clip'], 0.99871755, rtol=1e-5)


def test_hyperparameters_are_state():
  """One computation serves every setting: all numbers come from the state."""
  plan = _adaptive(initial_norm=1.0)
  query = plan.make_query()
  setting = {
    'clipping_norm': 0.25,
    'noise_multiplier': tf.constant(0.5),
    'target_quantile': 0.9,
    'clipping_learning_rate': 0.7,
    'quantile_noise_multiplier': 3.0,
  }
  state = plan.make_query(setting, tf.constant(11)).initial_global_state()
  own = plan.make_query(setting, 11)
  for each in tf.nest.flatten(state):
    assert each.dtype in (tf.float32, tf.int32) and each.shape == []
  params = query.derive_sample_params(state)
  record = query.preprocess_record(params, _record())
  tf.nest.map_structure(
    np.testing.assert_array_equal, record, own.preprocess_record(params, _record())
  )
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    query.get_noised_result(record, state)[:2],
    own.get_noised_result(record, state)[:2],
  )
  assert _norm(record['sum_state']) == pytest.approx(0.25, rel=1e-6)
  z_delta = 0.5 / np.sqrt(1 - (0.5 / 6.0) ** 2)
  np.testing.assert_allclose(state['sum_state']['noise_multiplier'], z_delta, rtol=1e-6)


@pytest.mark.slow
def test_same_under_xla_and_over_stacked_settings():
  plan = _adaptive(initial_norm=0.5)
  query = plan.make_query()

  def one_round(state):
    record = query.preprocess_record(query.derive_sample_params(state), _record())
    return query.get_noised_result(record, state)[:2]

  states = [
    plan.make_query({'clipping_norm': 0.1 * s + 0.1}, s).initial_global_state() for s in range(3)
  ]
  eager = [one_round(state) for state in states]
  stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *states)

  @tf.function(jit_compile=True)
  def sweep(stacked_states):
    return tf.vectorized_map(one_round, stacked_states)

  compiled = sweep(stacked)
  for s in range(3):
    tf.nest.map_structure(
      lambda a, b, s=s: np.testing.assert_allclose(a[s], b, rtol=2e-5, atol=1e-6),
      compiled,
      eager[s],
    )


@pytest.mark.parametrize('plan', [_fixed(), _adaptive(initial_norm=0.5)], ids=['fixed', 'adaptive'])
def test_types_in_tff(plan):
  """The four steps of a round as TFF computations; the state keeps its type."""
  import tensorflow_federated as tff

  query = plan.make_query()
  update_type = tff.types.to_type(
    collections.OrderedDict(w=tff.TensorType(np.float32, [3, 2]), b=np.float32)
  )
  initialize = tff.tensorflow.computation(query.initial_global_state)
  state_type = initialize.type_signature.result
  derive = tff.tensorflow.computation(query.derive_sample_params, state_type)
  clip = tff.tensorflow.computation(
    query.preprocess_record, [derive.type_signature.result, update_type]
  )
  noise = tff.tensorflow.computation(
    lambda total, state: query.get_noised_result(total, state)[:2],
    [clip.type_signature.result, state_type],
  )
  noise.type_signature.result[0].check_equivalent_to(update_type)
  noise.type_signature.result[1].check_equivalent_to(state_type)
  clip_sum = tff.FederatedType(clip.type_signature.result, tff.CLIENTS)

  @tff.federated_computation(clip_sum)
  def total(records):
    return tff.federated_sum(records)

  assert total.type_signature.result.member == clip.type_signature.result


def test_the_states_are_ordered_dicts():
  state = _adaptive().make_query().initial_global_state()

  def check(tree):
    assert not isinstance(tree, tuple)
    if isinstance(tree, dict):
      assert isinstance(tree, collections.OrderedDict)
      for part in tree.values():
        check(part)

  check(state)
  check(_adaptive().make_query().derive_sample_params(state))
  assert isinstance(_adaptive().make_query(), tfp.DPQuery)


def test_z_split_in_tensors():
  np.testing.assert_allclose(
    queries.update_noise_multiplier(1.5, 2.0), (1.5**-2 - 4.0**-2) ** -0.5, rtol=1e-6
  )
  assert float(queries.update_noise_multiplier(0.0, 2.0)) == 0.0
  assert not float(queries.update_noise_multiplier(5.0, 2.0)) < np.inf  # never too little noise


def test_streams_of_update_and_quantile_differ():
  assert random_streams.Stream.DP_NOISE != random_streams.Stream.QUANTILE_NOISE
