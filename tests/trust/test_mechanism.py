"""The process does what is accounted for: its sampler, its noise, its sensitivity.

Everything is read off what the real processes release, on either runtime.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

import processes
import runtime
import tff_models
from privacy import plan, sampling
from processes.method import BuildSpec, ExamplesSpec, Tree
from runtime.noise_key import NoiseKey

RUNTIMES = ['xla', pytest.param('native', marks=pytest.mark.slow)]


@pytest.fixture(scope='module')
def machine_of():
  """name -> a runtime, which lives as long as this module's tests."""
  machines = {}

  def get(name):
    if name not in machines:
      machines[name] = runtime.create(name)
    return machines[name]

  yield get
  for machine in machines.values():
    machine.close()


class Pipeline:
  """A method on a linear model, its data and states."""

  def __init__(self, name, plan_, *, rows, features, hyperparameters=None, **options):
    self.plan, self.rows, self.features = plan_, rows, features
    self.spec = BuildSpec(
      model=tff_models.build_model(
        'linear_regression', example_shape=(features,), num_outputs=1, task_kind='regression'
      ),
      examples=ExamplesSpec(
        x_shape=(rows, features), x_dtype=np.float32, y_shape=(rows,), y_dtype=np.float32
      ),
      plan=plan_,
      batch_size=getattr(plan_, 'batch_size', rows),
      hyperparameters=hyperparameters or {},
      options=options,
    )
    self.method = processes.build(name, self.spec)

  def start(self, machine, seed=0, **attributes):
    key = NoiseKey.rehearsal(seed)
    server = self.method.initial_server_state(seed, noise_key=key)
    population = self.plan.cohorts.population
    if self.plan.unit == 'example':
      attributes |= self.plan.silo_parameters()
    clients = self.method.initial_client_states(server, population, attributes, noise_key=key)
    return server, machine.place_states(tf.nest.map_structure(np.array, clients) or None)

  def data(self, machine, x, y, num_examples):
    clients = len(x)
    return machine.place(
      Tree(
        x=np.asarray(x, np.float32), y=np.asarray(y, np.float32),
        num_examples=np.broadcast_to(num_examples, clients).astype(np.int32),
        client_id=np.arange(clients, dtype=np.int32),
      )
    )  # fmt: skip

  def run(self, machine, data, cohort, seed=0, **attributes):
    """(server state before, after one round), NumPy."""
    server, clients = self.start(machine, seed, **attributes)
    after, _ = machine.round(
      self.method.process.next, server, clients, data, np.asarray(cohort, np.int32)
    )
    return server, machine.to_numpy(after)


def _flat(params):
  return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(params)]).astype(np.float64)


# ----------------------------------------------------------------- sensitivity

CLIENTS, ROWS, FEATURES, CLIP = 4, 3, 2, 0.7

# float32's largest, values whose squares or products overflow or vanish, denormals.
_NASTY = [0.0, -0.0, 1.0, -1.0, 0.3, 1e-45, -1e-40, 1e-25, 1e-19, 1e4, -1e10, 1e19, -3e19, 3.4e38]
_TABLE = np.array([*_NASTY, *np.linspace(-3, 3, 40)], np.float32)


def _arrays(*shape):
  # Drawn as places in the table: TensorFlow's threads flush denormals, which hypothesis minds.
  places = hnp.arrays(np.int16, shape, elements=st.integers(0, len(_TABLE) - 1))
  return places.map(lambda index: _TABLE[index])


_federations = st.tuples(
  _arrays(CLIENTS, ROWS, FEATURES),
  _arrays(CLIENTS, ROWS),
  hnp.arrays(np.int32, CLIENTS, elements=st.integers(0, ROWS)),
  st.booleans(),  # the last client is a copy of the first
)


# FeO2: the last client has opted out, and the private ones' sum has half the weight.
_IS_PRIVATE = np.array([1, 1, 1, 0], np.float32)
_RATIO = 0.5


@functools.cache
def _client_level(name, adaptive=False):
  clipping = (
    plan.AdaptiveClipping(initial_norm=CLIP, quantile_noise_multiplier=2.0)
    if adaptive
    else plan.FixedClipping(norm=CLIP)
  )
  plan_ = plan.ClientLevelPrivacy(
    cohorts=sampling.PoissonCohorts(CLIENTS, 0.5), noise_multiplier=0.0, delta=1e-5,
    clipping=clipping, num_opted_out=1 if name == 'feo2' else 0,
  )  # fmt: skip
  own = {'hyperparameters': {'ratio': _RATIO}} if name == 'feo2' else {}
  return Pipeline(name, plan_, rows=ROWS, features=FEATURES, **own)


def _released_sum(pipeline, machine, data, cohort):
  """(sum of the clipped updates, in units of the clip; sum of the indicators or 0)."""
  feo2 = 'ratio' in pipeline.method.hyperparameters
  attributes = {'is_private': _IS_PRIVATE} if feo2 else {}
  before, after = pipeline.run(machine, data, cohort, **attributes)
  step = _flat(after['model']) - _flat(before['model'])
  if 'query' in after and 'quantile_estimator_state' in after['query']:
    clip = [s['query']['sum_state']['l2_norm_clip'] for s in (before, after)]
    moved = -np.log(clip[1] / clip[0]) / pipeline.plan.clipping.learning_rate
    count = (moved + pipeline.plan.clipping.target_quantile) * pipeline.plan.cohorts.expected_size
  else:
    count = 0.0
  denominator = pipeline.plan.denominator
  if feo2:  # the private clients' sum, and 1 / r of the sum of who opted out, who are public
    opted_out = np.sum(_IS_PRIVATE[list(cohort)] == 0)
    denominator = opted_out / _RATIO + pipeline.plan.denominator
  return step / _server_rate(pipeline) * denominator / CLIP, count


def _server_rate(pipeline):
  values = pipeline.method.hyperparameters
  if 'personalization_alpha' in values:  # PPSGD sends gradients
    return -values['client_learning_rate'] * min(values['personalization_alpha'], 1.0)
  return values['server_learning_rate']


def _check_client_sensitivity(pipeline, machine, federation, check_count=False):
  x, y, num_examples, duplicated = federation
  if duplicated:
    x[-1], y[-1], num_examples[-1] = x[0], y[0], num_examples[0]
  data = pipeline.data(machine, x, y, num_examples)
  sums = {
    cohort: _released_sum(pipeline, machine, data, cohort)
    for cohort in ((3, 1, 2), (0, 1, 2, 3), (0, 1, 3), (0,), ())
  }
  for total, _ in sums.values():
    assert np.all(np.isfinite(total))

  def distance(a, b):
    return np.linalg.norm(sums[a][0] - sums[b][0])

  tolerance = 1e-5
  assert distance((0, 1, 2, 3), (3, 1, 2)) <= 1 + tolerance  # add or remove one
  assert distance((0,), ()) <= 1 + tolerance
  assert distance((3, 1, 2), (0, 1, 3)) <= 2 + tolerance  # replace one
  assert np.all(sums[()][0] == 0)
  if check_count:
    assert abs(sums[(0, 1, 2, 3)][1] - sums[(3, 1, 2)][1]) <= 1 + 1e-4


_quick = settings(
  max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
_few = settings(
  max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.slow
@given(_federations)
@_quick
def test_a_client_moves_the_sum_by_at_most_the_clip(machine_of, federation):
  _check_client_sensitivity(
    _client_level('fedavg', adaptive=True), machine_of('xla'), federation, True
  )


@pytest.mark.exhaustive(but=['feo2-False'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'adaptive'),
  [('fedavg', False), ('ditto', False), ('ppsgd', False), ('ppsgd', True), ('feo2', False)],
)
@given(federation=_federations)
@_few
def test_a_client_in_other_methods(machine_of, name, adaptive, federation):
  _check_client_sensitivity(_client_level(name, adaptive), machine_of('xla'), federation, adaptive)


@pytest.mark.slow
@given(_federations)
@_quick
def test_a_private_client_of_feo2(machine_of, federation):
  """Its update moves the private sum by at most the clip, its indicator the count by at most 1."""
  _check_client_sensitivity(
    _client_level('feo2', adaptive=True), machine_of('xla'), federation, True
  )


@given(_federations)
@_few
def test_an_opted_out_client_of_feo2_is_clipped_too(machine_of, federation):
  """It has no guarantee; but others' updates are not drowned in its."""
  x, y, num_examples, _ = federation
  pipeline, machine = _client_level('feo2', adaptive=True), machine_of('xla')
  data = pipeline.data(machine, x, y, num_examples)
  (with_, count_with), (without, count_without) = (
    _released_sum(pipeline, machine, data, cohort) for cohort in ((0, 1, 3), (0, 1))
  )
  assert np.linalg.norm(with_ - without) <= 1 / _RATIO + 1e-5
  assert abs(count_with - count_without) <= 1 + 1e-4


@pytest.mark.exhaustive(but=['fedavg'])
@pytest.mark.slow
@pytest.mark.parametrize('name', ['fedavg', 'feo2', 'ppsgd'])
@given(federation=_federations)
@_few
def test_a_client_on_tffs_own_runtime(machine_of, name, federation):
  _check_client_sensitivity(
    _client_level(name, adaptive=True), machine_of('native'), federation, True
  )


@functools.cache
def _silo(name='fedavg'):
  plan_ = plan.ExampleLevelPrivacy(
    num_examples=[5], batch_size=5, steps_per_round=1, noise_multiplier=0.0, delta=1e-3,
    clipping_norm=CLIP,
  )  # fmt: skip
  return Pipeline(name, plan_, rows=6, features=FEATURES)


def _gradient_sum(machine, x, y, num_examples):
  """The sum of the clipped gradients of one step, in units of the clip."""
  pipeline = _silo()
  before, after = pipeline.run(machine, pipeline.data(machine, x, y, num_examples), [0])
  step = _flat(after['model']) - _flat(before['model'])
  return -step / pipeline.method.hyperparameters['client_learning_rate'] * 5 / CLIP


def _check_example_sensitivity(machine, x, y, other):
  with_ = _gradient_sum(machine, x[None], y[None], 6)
  without = _gradient_sum(machine, x[None], y[None], 5)
  replaced_x, replaced_y = x.copy(), y.copy()
  replaced_x[-1], replaced_y[-1] = other[:-1], other[-1]
  replaced = _gradient_sum(machine, replaced_x[None], replaced_y[None], 6)
  assert np.all(np.isfinite(with_)) and np.all(np.isfinite(without))
  assert np.linalg.norm(with_ - without) <= 1 + 1e-5
  assert np.linalg.norm(with_ - replaced) <= 2 + 1e-5


@pytest.mark.slow
@given(_arrays(6, FEATURES), _arrays(6), _arrays(FEATURES + 1))
@_quick
def test_an_example_moves_the_gradient_sum_by_at_most_the_clip(machine_of, x, y, other):
  _check_example_sensitivity(machine_of('xla'), x, y, other)


@pytest.mark.slow
@given(_arrays(6, FEATURES), _arrays(6), _arrays(FEATURES + 1))
@_few
def test_an_example_on_tffs_own_runtime(machine_of, x, y, other):
  _check_example_sensitivity(machine_of('native'), x, y, other)


@pytest.mark.exhaustive(but=['nan-xla', 'inf-xla', '-inf-xla', 'nan-native'])
@pytest.mark.parametrize('name', RUNTIMES)
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_data_that_are_not_finite_are_refused(machine_of, name, bad):
  x = np.ones([2, ROWS, FEATURES])
  x[1, 2, 0] = bad
  with pytest.raises(ValueError, match='NaN'):
    _client_level('fedavg', adaptive=True).data(machine_of(name), x, np.ones([2, ROWS]), ROWS)


@pytest.mark.parametrize('clip', [1e-30, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize(
  'size', [0.0, 1e-44, 1e-30, 1e-20, 1e-10, 1.0, 1e15, 1e25, 3e38, np.inf, np.nan]
)
def test_the_clip_holds_at_every_scale(clip, size):
  """By itself, also with a clip that adaptive clipping let fall to almost nothing."""
  query = plan.ClientLevelPrivacy(
    cohorts=sampling.EveryClient(3), noise_multiplier=0.0, delta=1e-5,
    clipping=plan.FixedClipping(norm=clip),
  ).make_query()  # fmt: skip
  record = Tree(a=tf.constant([size, -size, size], tf.float32), b=tf.constant(size, tf.float32))
  params = query.derive_sample_params(query.initial_global_state())
  clipped = _flat(query.preprocess_record(params, record))
  assert np.all(np.isfinite(clipped))
  assert np.linalg.norm(clipped) <= float(np.float32(clip)) * (1 + 1e-5)


# ----------------------------------------------------------------------- noise

WIDE, NOISE = 400, 1.7


def _silent(machine, pipeline, clients):
  return pipeline.data(machine, np.zeros([clients, 2, WIDE]), np.zeros([clients, 2]), 2)


def _is_normal(values, scale=1.0):
  return stats.kstest(values / scale, 'norm').pvalue


def _check_noise(values):
  """values: [draws, coordinates], to be independent standard normals."""
  assert _is_normal(values.ravel()) > 1e-3
  assert _is_normal(values.ravel(), 2 / 3) < 1e-6  # the test rejects another scale
  assert _is_normal(values.ravel(), 1.1) < 1e-3
  correlations = np.corrcoef(values)[np.triu_indices(len(values), 1)]
  assert np.abs(correlations).max() < 5 / np.sqrt(values.shape[1])
  neighbours = np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]
  assert abs(neighbours) < 5 / np.sqrt(values.size)


@pytest.mark.slow
@pytest.mark.exhaustive(but=['xla'])
@pytest.mark.parametrize('name', RUNTIMES)
def test_client_level_noise(machine_of, name):
  """Independent across rounds, seeds and coordinates; an empty round is noised like any."""
  machine = machine_of(name)
  plan_ = plan.ClientLevelPrivacy(
    cohorts=sampling.PoissonCohorts(3, 0.5), noise_multiplier=NOISE, delta=1e-5,
    clipping=plan.FixedClipping(norm=CLIP),
  )  # fmt: skip
  pipeline = Pipeline('fedavg', plan_, rows=2, features=WIDE)
  data, draws = _silent(machine, pipeline, 3), []
  for seed in (1, 2):
    server, clients = pipeline.start(machine, seed)
    last = _flat(server['model'])
    for cohort in ([0, 2], [], [0, 1, 2], [1], [], [0, 2]):
      before = last
      server, _ = machine.round(
        pipeline.method.process.next, server, clients, data, np.array(cohort, np.int32)
      )
      last = _flat(machine.to_numpy(server)['model'])
      draws.append(last - before)
  # Training moves only the bias, which is left out: the zero data have no other gradient.
  values = np.array(draws)[:, 1:] * plan_.denominator / (NOISE * CLIP)
  _check_noise(np.delete(values, [0], axis=1))


@pytest.mark.slow
@pytest.mark.exhaustive(but=['xla'])
@pytest.mark.parametrize('name', RUNTIMES)
def test_example_level_noise(machine_of, name):
  """Independent across silos, rounds and coordinates, each silo with its own scale."""
  machine, silos = machine_of(name), 4
  scales = np.array([0.5, 1.0, 2.0, 3.0])
  plan_ = plan.ExampleLevelPrivacy(
    num_examples=[2] * silos, batch_size=2, steps_per_round=1, noise_multiplier=scales,
    delta=1e-3, clipping_norm=CLIP,
  )  # fmt: skip
  pipeline = Pipeline('local', plan_, rows=2, features=WIDE)
  data = _silent(machine, pipeline, silos)
  server, clients = pipeline.start(machine, 5)
  models, draws = clients.to_numpy()['model']['weights'], []
  for _ in range(8):
    server, _ = machine.round(
      pipeline.method.process.next, server, clients, data, np.arange(silos, dtype=np.int32)
    )
    new = clients.to_numpy()['model']['weights']
    draws.append((new - models) / scales[:, None])
    models = new
  rate = pipeline.method.hyperparameters['client_learning_rate']
  _check_noise(np.concatenate(draws).astype(np.float64) * 2 / (rate * CLIP))


# ---------------------------------------------------------------- batch sampler


def _poisson_p_values(membership, rate):
  """p-values of: rate, batch sizes' variance, examples' counts' variance, lag-1 dependence."""
  rounds, population = membership.shape
  variance = rate * (1 - rate)

  def chi2(counts, expected, spread):
    tail = stats.chi2.cdf(np.sum((counts - expected) ** 2) / spread, counts.size)
    return 2 * min(tail, 1 - tail)

  repeats = np.sum(membership[1:] & membership[:-1])
  expected = (rounds - 1) * population * rate**2
  return {
    'rate': stats.binomtest(int(membership.sum()), membership.size, rate).pvalue,
    'sizes': chi2(membership.sum(axis=1), population * rate, population * variance),
    'counts': chi2(membership.sum(axis=0), rounds * rate, rounds * variance),
    'lag': 2 * stats.norm.sf(abs(repeats - expected) / np.sqrt(expected * (1 - rate**2))),
  }


@pytest.mark.slow
def test_batches_of_the_process_are_poisson_samples(machine_of):
  """Example i is the i-th unit vector: its weight moves if and only if it was drawn."""
  machine, n, batch, silos, rounds = machine_of('xla'), 20, 5, 3, 250
  plan_ = plan.ExampleLevelPrivacy(
    num_examples=[n] * silos, batch_size=batch, steps_per_round=1, noise_multiplier=0.0,
    delta=1e-3, clipping_norm=CLIP,
  )  # fmt: skip
  pipeline = Pipeline('local', plan_, rows=n, features=n)
  x = np.broadcast_to(np.eye(n), [silos, n, n])
  data = pipeline.data(machine, x, np.full([silos, n], 1e6), n)
  server, clients = pipeline.start(machine, 11)
  models, drawn = clients.to_numpy()['model']['weights'], []
  for _ in range(rounds):
    server, _ = machine.round(
      pipeline.method.process.next, server, clients, data, np.arange(silos, dtype=np.int32)
    )
    new = clients.to_numpy()['model']['weights']
    drawn.append(new != models)
    models = new
  drawn = np.array(drawn)  # [rounds, silos, n]
  for name, p_value in _poisson_p_values(drawn.reshape(rounds, -1), batch / n).items():
    assert p_value > 1e-3, name
  by_example = np.corrcoef(drawn.reshape(rounds, -1).T.astype(float))
  assert np.abs(by_example[np.triu_indices(silos * n, 1)]).max() < 5.5 / np.sqrt(rounds)

  order = np.random.default_rng(0)
  shuffled = np.zeros([rounds, n], bool)
  for r in range(rounds):
    if r % (n // batch) == 0:
      permutation = order.permutation(n)
    shuffled[r, permutation[r % (n // batch) * batch :][:batch]] = True
  p_values = _poisson_p_values(shuffled, batch / n)
  assert max(p_values['sizes'], p_values['counts'], p_values['lag']) < 1e-6
