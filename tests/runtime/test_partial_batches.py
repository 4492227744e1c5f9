"""Elements whose sizes vary: a smaller last batch, and what is made of a data set's part."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla.lowering import varying
from tests.runtime import learning, partial_ops

CONTEXTS = {'one by one': dict(clients_per_block=1), 'blocks': dict(clients_per_block=2)}


@pytest.fixture(scope='module', name='native')
def fixture_native():
  with runtime.create('native') as native:
    yield native


# Parts of a data set.


def _total(batches):
  """A number that depends on every element and on every batch's size."""

  def add(total, batch):
    places = tf.range(1, 1 + tf.size(batch, tf.int64))
    return total * 3 + tf.reduce_sum(batch * places)

  return batches.reduce(np.int64(0), add)


def _sum_of_products(pairs):
  return pairs.reduce(np.int64(0), lambda total, pair: total * 3 + tf.reduce_sum(pair[0] * pair[1]))


def _sum(numbers):
  return numbers.reduce(np.int64(0), lambda total, number: total * 2 + tf.reduce_sum(number))


def _is_even(number):
  return number % 2 == 0


PARTS = dict(
  skip=lambda s: _total(s.skip(3).batch(4)),
  skip_filter=lambda s: _sum(s.skip(3).filter(_is_even)),
  skip_take=lambda s: _total(s.skip(3).take(6).batch(4)),
  take_skip=lambda s: _total(s.take(9).skip(3).batch(4)),
  zip_skip=lambda s: _sum_of_products(tf.data.Dataset.zip((s, s.skip(1))).batch(4)),
  skip_shuffle=lambda s: (
    s.skip(3)
    .shuffle(9)
    .batch(4)
    .reduce(
      np.int64(0), lambda total, batch: total + tf.reduce_sum(batch) * tf.size(batch, tf.int64) ** 0
    )
  ),
  skip_more=lambda s: _total(s.skip(20).batch(4)),
  skip_all=lambda s: _total(s.skip(-1).batch(4)),
  skip_more_shuffle=lambda s: _sum(s.skip(50).shuffle(4)),
  take_none=lambda s: _total(s.take(0).batch(4)),
  take_none_shuffle=lambda s: _sum(s.take(0).filter(_is_even).shuffle(3)),
  take_all=lambda s: _total(s.take(-1).batch(5)),
  concatenate=lambda s: _total(s.skip(3).concatenate(s.skip(8)).repeat(2).batch(5)),
  shard_skip=lambda s: _total(s.shard(2, 1).skip(2).batch(3)),
  batch_skip=lambda s: _total(s.skip(2).batch(3).skip(1)),
)


@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_parts_of_a_data_set(native, settings):
  data = [tf.data.Dataset.range(n) for n in (12, 2, 7, 0)]
  type_ = tff.SequenceType(np.int64)
  expected, found, explanation = learning.both(
    native, lambda s: {k: part(s) for k, part in PARTS.items()}, type_, data, **settings
  )
  assert explanation.is_compiled, explanation
  assert [dict(f) for f in found] == [dict(e) for e in expected]


# Ops on partial batches.


def _rows(number):
  x = (np.arange(1, 2 * number + 1).reshape(number, 2) / 10).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x, np.arange(number, dtype=np.int32) % 3)).batch(4)


_SOME = (
  'SeluGrad',
  'EluGrad',
  'slice_then_divide',
  'srand_longer',
  'OnesLike',
  'Xlog1py, constant',
  'DivNoNan, constant',
  'MulNoNan, constant',
  'selectv2_s',
  'selectv2_v',
  'slice_last',
  'slice_last2',
  'slice_rev',
  'reverse0',
  'reversed_flat',
  'ones_like_column',
  'vmap',
  'fbn',
)


@pytest.mark.slow
def test_some_ops_with_several_clients_at_once(native):
  ops = {name: partial_ops.OPS[name] for name in _SOME}
  data = [_rows(7), _rows(4), _rows(3)]
  explanation = partial_ops.compare(native, ops, data, clients_per_block=2)
  assert explanation.is_compiled, explanation


@pytest.mark.exhaustive(but=['a half'])
@pytest.mark.slow
@pytest.mark.parametrize('step', [2, 1], ids=['a half', 'all'])
def test_ops_that_are_known(native, monkeypatch, step):
  """Each op of the list is compared, and no other is compiled."""
  seen, check = set(), varying.check

  def checked(node, inputs):
    check(node, inputs)
    if any(map(varying.is_varying, inputs)):
      seen.add(node.op)

  monkeypatch.setattr(varying, 'check', checked)
  names = list(partial_ops.OPS)[::step]
  for start in range(0, len(names), 20):
    some = {name: partial_ops.OPS[name] for name in names[start : start + 20]}
    explanation = partial_ops.compare(native, some, [_rows(7)])
    assert explanation.is_compiled, explanation
  assert step > 1 or sorted(varying.KNOWN - seen) == []


# A value of a batch of n rows of two numbers, and its sizes -> sizes that it is given then.
_RESHAPES = {
  '6, n': (lambda x: tf.transpose(tf.tile(x, [1, 3])), ['-1', '2, 3, -1', '3, -1', 'n, 6', '6*n']),
  '3, n, 4': (
    lambda x: tf.transpose(tf.reshape(tf.tile(x, [1, 6]), [-1, 3, 4]), [1, 0, 2]),
    ['-1, 4', '3, -1', 'n, 12', '-1, 2, 2', '4, -1'],
  ),
  '2, 2, n': (
    lambda x: tf.transpose(tf.reshape(tf.tile(x, [1, 2]), [-1, 2, 2]), [1, 2, 0]),
    ['-1', '4, -1', '2, 2*n', 'n, 4'],
  ),
  '3, 2, n, 2': (
    lambda x: tf.transpose(tf.reshape(tf.tile(x, [1, 6]), [-1, 3, 2, 2]), [1, 2, 0, 3]),
    ['6, -1', '3, -1, 2', '6*n, 2', '2, 3, n, 2'],
  ),
  'n, n, 2': (lambda x: x[:, None] * x[:, :1], ['-1', '-1, 2', 'n, 2*n', 'n*n, 2']),
}


@pytest.mark.slow
@pytest.mark.exhaustive(but=('2, 2, n', 'n, n, 2'))
@pytest.mark.parametrize('sizes', _RESHAPES)
def test_reshapes_and_their_gradients_keep_the_order(native, sizes):
  """XLA took another axis for the one that varies where both were as large: 2, 2, n as n, 4."""
  source, targets = _RESHAPES[sizes]
  ops = {}
  for target in targets:

    def reshaped(x, y, target=target):
      return tf.reshape(source(x), eval(f'[{target}]', {'n': tf.shape(x)[0]}))

    def gradient(x, y, reshaped=reshaped):
      value = reshaped(x, y)
      weights = tf.reshape(tf.cast(tf.range(tf.size(value)), tf.float32), tf.shape(value))
      return tf.gradients(tf.reduce_sum(value**2 * weights), x)[0]

    ops |= {target: reshaped, f'{target}, its gradient': gradient}
  explanation = partial_ops.compare(
    native, ops, [_rows(7), _rows(5), _rows(1)], clients_per_block=2
  )
  assert explanation.is_compiled, explanation


_SORTED = """
import sys

from runtime.xla.lowering import reshapes
from tests.runtime import partial_ops, test_partial_batches

names = ['Add, constant', 'broadcastto', 'spacetobatch', 'srand_longer', 'tile', 'tile_g0']
if sys.argv[1] == 'control':
  reshapes.in_order = lambda value, target: value
  names = ['Add, constant', 'srand_longer']
test_partial_batches.run_compiled({name: partial_ops.OPS[name] for name in names})
"""


def run_compiled(ops):
  """Runs ops on a partial batch."""
  data = [_rows(7)]
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  runtime.XlaContext().invoke(learning.at_clients(partial_ops.in_short(ops), type_), data)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize('what', ['ours', 'control'])
def test_nothing_is_sorted_by_xla_where_an_axis_that_varies_is_joined(what, tmp_path):
  """Its sort keeps the order on a CPU alone: on a GPU numbers were at wrong places."""
  flags = f'--xla_dump_to={tmp_path} --xla_dump_hlo_as_text'
  subprocess.run(
    [sys.executable, '-c', _SORTED, what], env={**os.environ, 'XLA_FLAGS': flags}, check=True,
    capture_output=True, stdin=subprocess.DEVNULL,
  )  # fmt: skip
  programs = [path.read_text() for path in tmp_path.glob('*after_optimizations.txt')]
  assert programs
  assert any(' sort(' in text for text in programs) == (what == 'control')


# Name -> numbers drawn, their mean and their variance.
_DRAWS = dict(
  uniform=(lambda shape: tf.random.uniform(shape), 1 / 2, 1 / 12),
  normal=(lambda shape: tf.random.normal(shape), 0.0, 1.0),
  truncated=(lambda shape: tf.random.truncated_normal(shape), 0.0, 0.774),
  ints=(lambda shape: tf.random.uniform(shape, 0, 1000, tf.int32), 499.5, 1e6 / 12),
  dropout=(lambda shape: tf.nn.dropout(tf.ones(shape), 0.2), 1.0, 0.25),
)


@pytest.mark.exhaustive(but=['one by one'])
@pytest.mark.slow
@pytest.mark.parametrize('settings', CONTEXTS.values(), ids=CONTEXTS)
def test_random_numbers_of_more_rows_than_a_batch_has(settings):
  """As of a dropout on all words of a batch of texts, its rows and places made one axis."""
  times = 1000

  def moments(x, y):
    numbers = [
      tf.cast(draw([times * tf.shape(x)[0]]), tf.float32) for draw, _, _ in _DRAWS.values()
    ]
    return tf.stack([tf.stack([tf.reduce_sum(n), tf.reduce_sum(n * n)]) for n in numbers])

  data = [_rows(7), _rows(3)]
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  local = tff.tensorflow.computation(
    lambda s: s.reduce(tf.zeros([len(_DRAWS), 2]), lambda t, batch: t + moments(*batch)), type_
  )
  mapped = tff.federated_computation(
    lambda s: tff.federated_map(local, s), tff.FederatedType(type_, tff.CLIENTS)
  )
  context = runtime.XlaContext(**settings)
  with tff.framework.get_context_stack().install(context):
    found = mapped(data)
  assert context.explain(mapped).is_compiled
  for of_client, rows in zip(found, (7, 3), strict=True):
    for (name, (_, mean, variance)), (total, squares) in zip(
      _DRAWS.items(), of_client, strict=True
    ):
      number = times * rows
      error = 5 * np.sqrt(variance / number)
      assert total / number == pytest.approx(mean, abs=error), name
      # About their own mean, of which the squares' mean has the errors twice and more.
      spread = squares / number - (total / number) ** 2
      assert spread == pytest.approx(variance, rel=0.15), name  # 5 standard errors, or more


@pytest.mark.exhaustive
@pytest.mark.slow
def test_seeded_numbers_of_partial_batches_do_not_depend_on_the_block():
  """Nor so on the device, whose memory sets it: full batches are drawn in another way in blocks."""

  def drawn(x, y):
    places = tf.range(1.0, 1.0 + tf.cast(tf.size(x), tf.float32))
    uniform = tf.reshape(tf.random.uniform(tf.shape(x), seed=3), [-1])
    ints = tf.random.uniform(tf.shape(y), 0, 1000, tf.int32, seed=4)
    return tf.stack([tf.reduce_sum(uniform * places), tf.cast(tf.reduce_sum(ints), tf.float32)])

  data = [_rows(7), _rows(4), _rows(9)]
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  local = tff.tensorflow.computation(
    lambda s: s.reduce(tf.zeros([2]), lambda t, batch: 2 * t + drawn(*batch)), type_
  )
  mapped = tff.federated_computation(
    lambda s: tff.federated_map(local, s), tff.FederatedType(type_, tff.CLIENTS)
  )
  found = []
  for settings in CONTEXTS.values():
    context = runtime.XlaContext(**settings)
    with tff.framework.get_context_stack().install(context):
      found.append(np.array(mapped(data)))
    assert context.explain(mapped).is_compiled
  np.testing.assert_allclose(*found, rtol=1e-6)
  assert len(np.unique(found[0])) == 6


# Of values within rounding of each other these may give far ones: they only come first in a chain,
# where both runtimes have the same bits.
_JUMPS = [
  'Ceil',
  'Floor',
  'Rint',
  'Round',
  'Sign',
  'FloorDiv',
  'FloorMod',
  'Mod',
  'TruncateMod',
  'IsNan',
  'IsInf',
  'IsFinite',
  'argsort',
  'bucketize',
  'bitcast',
  'maxpool_g',
  'maxpool_g3',
  'maxpool3d',
  'topk',
  'intopk',
  'searchsorted',
  'searchsorted2',
  'Pow',
  'quantised',
]


def _pairs_of(results):
  """The results of an op that are rows of two numbers again."""
  flat = [r for r in tf.nest.flatten(results) if r.dtype == tf.float32 and r.shape.rank]
  return [r for r in flat if (r.shape[-1] or 1) % 2 == 0]


def _chain(names):
  """Ops on one another's results, tamed between them; None if one has no result to go on with."""

  def run(x, y):
    for name in names:
      found = _pairs_of(partial_ops.OPS[name](x, y))
      if not found:
        return None
      x = tf.reshape(found[0], [-1, 2])
      x = tf.where(tf.math.is_finite(x), x / (1.0 + tf.abs(x)), 0.25) + 0.5
      y = tf.range(tf.shape(x)[0]) % 3
    return x

  return run


def _chains(number, seed):
  """Chains of three ops drawn at random, which TensorFlow can run on the batches of 7 rows."""
  rng, every, found = np.random.default_rng(seed), list(partial_ops.OPS), {}
  later = [name for name in every if name.split(',')[0] not in _JUMPS]
  specs = (tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32))
  while len(found) < number:
    names = (rng.choice(every), *rng.choice(later, 2))
    chain = tf.function(_chain(names), input_signature=specs)
    try:
      results = [chain(*batch) for batch in _rows(7)]
    except (ValueError, tf.errors.InvalidArgumentError):  # a piece of what has become too short
      continue
    if None not in results:
      found[' > '.join(names)] = _chain(names)
  return found


@pytest.mark.slow
@pytest.mark.parametrize(
  ('seed', 'number'),
  [(0, 12), *(pytest.param(s, 25, marks=pytest.mark.exhaustive) for s in range(1, 13))],
)
def test_chains_of_ops_that_are_known(native, seed, number):
  """What an op leaves of a partial batch is what the next one takes it to be."""
  explanation = partial_ops.compare(native, _chains(number, seed), [_rows(7)])
  assert explanation.is_compiled, explanation


@pytest.mark.slow
def test_a_condition_beside_other_sizes_that_vary(native):
  """As a condition of XLA's, whose values have such sizes, it ended the process."""
  together = [
    ('Minimum', 'conv2d_s', 'case'),
    ('Cosh', 'mask', 'Xlogy'),
    ('cumsum0', 'mirrorpad', 'Ndtri'),
  ]
  functions = {' > '.join(names): _chain(names) for names in together}
  explanation = partial_ops.compare(native, functions, [_rows(7)])
  assert explanation.is_compiled, explanation


def _in_branches(x, y):
  del y

  def three_turns(h):
    return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, h * 0.9 + 0.1), (0, h))[1]

  branches = [lambda: three_turns(x), lambda: x + 2.0, lambda: three_turns(x - 1.0)]
  return tf.switch_case(tf.shape(x)[0] % 3, branches)


def _without_an_end(x, y):
  """In the branch that is not taken."""
  del y
  large = lambda: tf.while_loop(lambda h: tf.reduce_sum(h) < 1e6, lambda h: h, [x])[0]  # noqa: E731
  inner = lambda: tf.cond(x[0, 0] < -1e6, lambda: x, large)  # noqa: E731
  return tf.cond(tf.reduce_sum(x) < 1e6, lambda: x * 2.0, inner)


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_loops_in_branches_of_a_condition(native, monkeypatch, block):
  """As a condition of XLA's one ended the process; a loop has no turns where it is not asked."""
  monkeypatch.setitem(partial_ops.OPS, 'loops', _in_branches)
  together = [
    ('Minimum', 'conv2d_s', 'loops'),
    ('Cosh', 'mask', 'Xlogy'),
    ('cumsum0', 'mirrorpad', 'Ndtri'),
  ]
  functions = {' > '.join(names): _chain(names) for names in together}
  functions['without an end'] = _without_an_end
  data = [_rows(7), _rows(5)]
  explanation = partial_ops.compare(native, functions, data, clients_per_block=block)
  assert explanation.is_compiled, explanation


@pytest.mark.slow
def test_reflections_beside_other_sizes_that_vary(native):
  """XLA's own, of rows that vary, gave the concatenation other numbers, or ended the process."""
  together = [('concatv2',), ('Cosh', 'mask'), ('cumsum0', 'mirrorpad')]
  functions = {' > '.join(names): _chain(names) for names in together}
  explanation = partial_ops.compare(native, functions, [_rows(7)])
  assert explanation.is_compiled, explanation


@pytest.mark.slow
def test_a_list_of_a_branch_is_named(native):
  def filled(x):
    return tf.TensorArray(tf.float32, 1, element_shape=[2]).write(0, tf.reduce_sum(x, 0))

  def lists(x, y):
    del y
    return tf.cond(tf.shape(x)[0] > 3, lambda: filled(x), lambda: filled(2.0 * x)).stack()

  explanation = partial_ops.compare(native, dict(lists=lists), [_rows(7)])
  assert 'a tensor list of a condition' in str(explanation)


@pytest.mark.slow
@pytest.mark.parametrize('name', partial_ops.REFUSED)
def test_ops_that_are_refused(native, name):
  explanation = partial_ops.compare(native, {name: partial_ops.REFUSED[name]}, [_rows(7)])
  assert 'drop_remainder' in str(explanation)


def _dense():
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [tf.keras.layers.InputLayer((2,)), tf.keras.layers.Dense(3, kernel_initializer='zeros')]
    ),
    input_spec=_rows(1).element_spec,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def _in_a_loop(step):
  """The result of three turns, and the gradient through them, which reads what turns have kept."""

  def function(x, y):
    with tf.GradientTape() as tape:
      tape.watch(x)
      turn = lambda i, h: (i + 1, tf.tanh(step(h * h)) * 0.3 + x)  # noqa: E731
      _, h = tf.while_loop(lambda i, _: i < 3, turn, (0, x), maximum_iterations=3)
      loss = tf.reduce_sum(h * h * [[1.0, 2.0]])
    return [h, tape.gradient(loss, x)]

  return function


@pytest.mark.slow
def test_ops_along_a_batch_in_a_loop(native):
  """What a loop keeps for its gradient has lost its size: an op that needs it is refused."""
  taken = dict(
    sums=_in_a_loop(lambda h: tf.cumsum(h, 0, reverse=True)),
    moved=_in_a_loop(lambda h: tf.roll(h, 1, 0)),
    rows=_in_a_loop(lambda h: tf.linalg.diag_part(tf.linalg.diag(h))),
  )
  products = dict(products=_in_a_loop(lambda h: tf.math.cumprod(h, 0)))
  data = [_rows(7), _rows(5)]
  assert partial_ops.compare(native, taken, data).is_compiled
  assert 'Cumprod on a batch whose size varies' in str(partial_ops.compare(native, products, data))


@pytest.mark.slow
def test_an_op_of_which_xla_wants_a_constant_is_named(native):
  rest = {'rest': lambda x, y: tf.fill([7 % tf.shape(x)[0]], 1.0)}
  explanation = partial_ops.compare(native, rest, [_rows(7)])
  assert 'the op Fill of sizes that depend on data' in str(explanation)


def test_a_keras_model_on_partial_batches_stays_compiled(native):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _dense, tff.learning.optimizers.build_sgdm(0.1)
  )
  data = [_rows(7), _rows(3)]
  metrics = []
  context = runtime.XlaContext()
  for used in (native.context, context):
    with tff.framework.get_context_stack().install(used):
      output = process.next(process.initialize(), data)
      metrics.append(output.metrics['client_work']['train'])
  assert context.explain(process.next).is_compiled, context.explain(process.next)
  for name, value in metrics[0].items():
    np.testing.assert_allclose(metrics[1][name], value, 1e-5)
