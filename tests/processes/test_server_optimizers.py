"""Server optimisers, schedules and client momentum: the papers' equations in NumPy loops."""

import numpy as np
import pytest
import tensorflow as tf

import processes
import runtime
from experiments import ExperimentConfig
from experiments.sweeps.grid import Grid, programs
from privacy import plan, sampling
from processes import common_settings as common
from processes import learning_rates
from processes.method import Tree
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = 0.1
ADAPTIVE = ('fedadagrad', 'fedadam', 'fedyogi')


def _reddi(name, updates, x, *, rates, beta_1, beta_2, tau):
  """Algorithm 2 of Reddi et al. 2021; `updates(x, t)` is the mean of the clients' updates."""
  m, v = np.zeros_like(x), np.full_like(x, tau**2)
  for t, rate in enumerate(rates):
    delta = updates(x, t)
    if name == 'fedavgm':
      m = beta_1 * m + delta
      x = x + rate * m
      continue
    m = beta_1 * m + (1 - beta_1) * delta
    if name == 'fedadagrad':
      v = v + delta**2
    elif name == 'fedyogi':
      v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
    else:
      v = beta_2 * v + (1 - beta_2) * delta**2
    x = x + rate * m / (np.sqrt(v) + tau)
  return x


@pytest.mark.slow
@pytest.mark.parametrize('name', ['fedavgm', *ADAPTIVE])
def test_golden_numbers(name):
  data = small.regression_data(sizes=[8, 5, 2])
  values = {
    'server_momentum': 0.6, 'server_learning_rate': 0.3, 'server_learning_rate_decay': 0.5
  }  # fmt: skip
  if name in ADAPTIVE:
    values['server_adaptivity'] = 0.05
  if name in ('fedadam', 'fedyogi'):
    values['server_second_moment_decay'] = 0.8
  spec = small.spec_of(data, small.no_privacy(data), server_optimizer=name)
  run = small.start('fedavg', spec, data, hyperparameters=values)
  run.run(4)
  reference = numpy_loops.Reference(data)

  def updates(x, t):
    own = [reference.sgd(x, k, t, batch_size=4, learning_rate=RATE) - x for k in range(3)]
    return np.mean(own, 0)

  rates = 0.3 * 0.5 ** np.arange(4)
  expected = _reddi(name, updates, np.zeros(4), rates=rates, beta_1=0.6, beta_2=0.8, tau=0.05)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), expected, rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_defaults_are_the_optimisers_own():
  data = small.regression_data()
  for name, moments in common.MOMENTS.items():
    spec = small.spec_of(data, small.no_privacy(data), server_optimizer=name)
    method = small.start('fedavg', spec, data).method
    found = {k: v for k, v in method.hyperparameters.items() if k.startswith('server_')}
    for schedule in common.SERVER_RATE_SCHEDULE:
      assert found.pop(schedule.name) == schedule.default
    assert found == {'server_learning_rate': 1.0, **moments}


@pytest.mark.slow
def test_without_momentum_fedavgm_is_fedavg():
  data = small.regression_data()
  models = []
  for options, values in (({}, {}), ({'server_optimizer': 'fedavgm'}, {'server_momentum': 0.0})):
    spec = small.spec_of(data, small.no_privacy(data), **options)
    run = small.start('fedavg', spec, data, hyperparameters=values)
    run.run(2)
    models.append(run.server['model'])
  small.assert_trees_equal(*models)


@pytest.mark.slow
def test_the_optimiser_sees_the_noised_mean_only(native):
  """Post-processing: Adam's first step of a mean of pure noise, from the noise of plain FedAvg."""
  data = small.examples()
  privacy = plan.ClientLevelPrivacy(
    cohorts=sampling.PoissonCohorts(small.CLIENTS, 0.5),
    noise_multiplier=1.0,
    delta=1e-3,
    clipping=plan.FixedClipping(norm=0.5),
  )
  weights = {}
  for name in ('sgd', 'fedadam'):
    method = small.build('fedavg', privacy, data, server_optimizer=name)
    run = small.Simulation(native, method, data)
    run.round([1, 2])
    weights[name] = run.weights
  noised = weights['sgd']
  expected = 0.1 * noised / (np.sqrt(0.99 * 1e-6 + 0.01 * noised**2) + 1e-3)
  np.testing.assert_allclose(weights['fedadam'], expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('method', ['ditto', 'finetune', 'fedprox', 'scaffold', 'feo2'])
def test_every_method_with_a_global_model_has_them(native, method):
  data = small.examples()
  privacy = plan.NoPrivacy(cohorts=sampling.EveryClient(small.CLIENTS))
  attributes = {}
  if method == 'feo2':
    privacy = plan.ClientLevelPrivacy(
      cohorts=sampling.PoissonCohorts(small.CLIENTS, 0.5),
      noise_multiplier=0.5,
      delta=1e-3,
      clipping=plan.FixedClipping(norm=0.5),
      num_opted_out=2,
    )
    attributes['is_private'] = np.array([1, 1, 1, 0, 0, 1], np.float32)
  settings = dict(batch_size=4, rounds=2, server_optimizer='fedyogi')
  built = small.build(method, privacy, data, **settings)
  run = small.Simulation(native, built, data, attributes=attributes)
  models = [run.weights]
  for _ in range(2):  # finetune trains the global model in the first of two rounds
    run.round(range(small.CLIENTS))
    models.append(run.weights)
  server = run.server
  first, second = server['optimizer']['first'], server['optimizer']['second']
  assert np.abs(small.flat(first)).min() > 0 and small.flat(second).min() > 0
  if method == 'finetune':
    np.testing.assert_array_equal(models[1], models[2])
  # Adaptive steps are of the learning rate's order, whatever the size of the update.
  assert 0.001 < np.abs(models[1] - models[0]).max() < 20.0


def _factor(t, *, rounds, decay=1.0, every=1.0, warmup=0.0, final=1.0):
  factor = decay ** (t // every) * min(1.0, (t + 1) / max(warmup, 1.0))
  return factor * (final + (1 - final) * (1 + np.cos(np.pi * t / (rounds - 1))) / 2)


SCHEDULES = {
  'constant': {},
  'step': {'decay': 0.5, 'every': 3.0},
  'exponential': {'decay': 0.9},
  'cosine': {'final': 0.1},
  'warm-up': {'warmup': 4.0},
  'all': {'decay': 0.8, 'every': 2.0, 'final': 0.0, 'warmup': 3.0},
}


@pytest.mark.parametrize('kind', SCHEDULES)
def test_schedules(kind):
  numbers, rounds, name = SCHEDULES[kind], 10, 'server_learning_rate'
  values = {'decay': 1.0, 'every': 1.0, 'warmup': 0.0, 'final': 1.0, **numbers}
  values[f'{name}_decay'] = values.pop('decay')
  hyper = Tree({name: 0.4}, **{
    f'{name}_decay_every' if n == 'every' else n if n.startswith(name) else f'{name}_{n}': v
    for n, v in values.items()
  })  # fmt: skip
  hyper = tf.nest.map_structure(lambda v: tf.constant(v, tf.float32), hyper)
  found = [
    learning_rates.scheduled(Tree(round=tf.constant(t), hyperparameters=hyper), name, rounds)
    for t in range(rounds)
  ]
  expected = [0.4 * _factor(t, rounds=rounds, **numbers) for t in range(rounds)]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
  if kind == 'constant':
    np.testing.assert_array_equal(found, np.float32(0.4))


@pytest.mark.slow
def test_a_sweep_over_kinds_of_schedules_is_one_program():
  data = small.regression_data()
  method = small.build(
    'fedavg', small.no_privacy(data), data, batch_size=4, model_options={'bias': True}, rounds=3
  )
  reference = numpy_loops.Reference(data)
  with runtime.create('xla') as machine:
    for numbers in ({}, {'final': 0.0}, {'warmup': 3.0}, {'decay': 0.5, 'every': 2.0}):
      values = {
        f'client_learning_rate_{"decay_every" if n == "every" else n}': v
        for n, v in numbers.items()
      }
      run = small.Simulation(machine, method, data, hyperparameters=values)
      expected = np.zeros(4)
      for t in range(3):
        run.round(range(3))
        rate = RATE * _factor(t, rounds=3, **numbers)
        new = [reference.sgd(expected, k, t, batch_size=4, learning_rate=rate) for k in range(3)]
        expected = np.mean(new, 0)
      model = run.server['model']
      np.testing.assert_allclose(
        numpy_loops.parameter_vector(model), expected, rtol=1e-4, atol=1e-5
      )
    assert machine.compilations == 1


def test_a_grid_of_schedules_and_moments_is_one_program():
  rates = ('client_learning_rate', 'server_learning_rate')
  kinds = {
    'decay': (1.0, 0.5),
    'decay_every': (1.0, 3.0),
    'warmup': (0.0, 5.0),
    'final': (1.0, 0.1),
  }
  axes = {f'{rate}_{kind}': values for rate in rates for kind, values in kinds.items()}
  axes |= {'server_momentum': (0.5, 0.9), 'server_adaptivity': (1e-3, 1e-2)}
  base = {'dataset': 'digits', 'server_optimizer': 'fedadam', 'client_momentum': 0.5}
  for name, values in axes.items():
    steps = {name.removesuffix('_every'): 0.5} if name.endswith('_every') else {}
    runs = Grid(base={**base, **steps}, axes={name: values}, seeds=(0, 1)).runs()
    assert len(runs) == 4 and len(programs(runs, 1)) == 1
  # Another optimiser has another state.
  runs = Grid(base={'dataset': 'digits'}, axes={'server_optimizer': ('sgd', 'fedadam')}, seeds=(0,))
  assert len(programs(runs.runs(), 1)) == 2


@pytest.mark.parametrize('name', processes.METHODS)
def test_who_trains_a_global_model_has_them_all(name):
  method = processes.find(name)
  averages = method.setting('server_learning_rate') is not None
  own = [s for s in common.SERVER_OPTIMIZATION if method.setting(s.name) is not None]
  assert len(own) in (0, len(common.SERVER_OPTIMIZATION))
  # The others average what stays a model of a client, or of a cluster of them.
  assert bool(own) == (averages and not method.setting('mtl_lambda') and name != 'ifca')


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_client_momentum(private):
  """v <- beta v + gradient over the steps of one round; DP-SGD's gradients are noised ones."""
  data = small.regression_data()
  privacy = small.no_privacy(data)
  if private:
    privacy = small.example_level(data, noise_multiplier=0.5, steps=3)
  beta = 0.7
  spec = small.spec_of(data, privacy, hyperparameters={'client_momentum': beta})
  run = small.start('fedavg', spec, data)
  run.run(2)
  reference, expected = numpy_loops.Reference(data), np.zeros(4)
  for t in range(2):
    new = []
    for k in range(3):
      velocity, last = np.zeros(4), [None]

      def heavy(y, velocity=velocity, last=last):
        # A step's gradient is what moved the parameters, less the momentum that was in it.
        if last[0] is not None:
          velocity[:] = (last[0] - y) / RATE
        last[0] = y
        return beta * velocity

      train = reference.dp_sgd if private else reference.sgd
      more = {} if private else {'batch_size': 4}
      arguments = (expected, k, t, *((privacy,) if private else ()))
      new.append(train(*arguments, learning_rate=RATE, penalty=heavy, **more))
    expected = np.mean(new, 0)
  np.testing.assert_allclose(
    numpy_loops.parameter_vector(run.server['model']), expected, rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'server_momentum': 0.9}, '--server_momentum=0.9 does not apply to --server_optimizer=sgd'),
    (
      {'server_optimizer': 'fedadagrad', 'server_second_moment_decay': 0.9},
      'it belongs to fedadam, fedyogi',
    ),
    ({'server_optimizer': 'adam'}, 'must be one of sgd, fedavgm'),
    ({'method': 'mr_mtl', 'server_optimizer': 'fedadam'}, 'server_optimizer'),
    *(
      (
        {'server_optimizer': name, 'server_momentum': 1.0},
        f'--server_momentum=1.0 must be below 1 with --server_optimizer={name}',
      )
      for name in ('fedadagrad', 'fedadam', 'fedyogi')
    ),
    *(
      (
        {**given, f'{rate}_decay_every': 5.0},
        f'--{rate}_decay_every=5.0 needs a --{rate}_decay below 1; 1.0 is no decay',
      )
      for rate in ('client_learning_rate', 'server_learning_rate')
      for given in ({}, {f'{rate}_decay': 1.0}, {'method': 'scaffold'}, {'method': 'finetune'})
    ),
  ],
)
def test_wrong_use_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    ExperimentConfig(**settings)


@pytest.mark.parametrize(
  'settings',
  [
    {'server_optimizer': 'fedavgm', 'server_momentum': 1.0},  # it adds up whole updates
    {'server_optimizer': 'fedadam', 'server_momentum': 0.999},
    {'client_learning_rate_decay': 0.5, 'client_learning_rate_decay_every': 5.0},
    {'server_learning_rate_decay': 0.5, 'server_learning_rate_decay_every': 1.0},
  ],
)
def test_right_use_is_taken(settings):
  config = ExperimentConfig(**settings)
  assert ExperimentConfig.from_json(config.to_json()) == config
