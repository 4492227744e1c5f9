"""Small federations for the tests of the methods, and a way to run a method on them."""

import dataclasses
import functools
import math
import os

import numpy as np
import tensorflow as tf

import datasets
import processes
import runtime
from privacy.plan import ClientLevelPrivacy, ExampleLevelPrivacy, FixedClipping, NoPrivacy
from privacy.sampling import EveryClient
from processes.method import BuildSpec, ExamplesSpec, Tree
from runtime.noise_key import NoiseKey
from tff_models import build_model

CLIENTS, ROWS, FEATURES = 6, 8, 3
_SPEC = {field.name for field in dataclasses.fields(BuildSpec)}


# ------------------------------------------------------------ data


def regression_data(clients=3, rows=ROWS, features=FEATURES, seed=0, sizes=None, coefficients=None):
  """Clients of linear regression, each with its own coefficients; padded with zeros."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(clients, rows, features)).astype(np.float32)
  if coefficients is None:
    coefficients = 1.0 + rng.normal(size=(clients, features))
  y = np.einsum('knf,kf->kn', x, coefficients) + 0.1 * rng.normal(size=(clients, rows))
  return _federated(x, y.astype(np.float32), sizes)


def examples(seed=0, clients=CLIENTS, features=FEATURES):
  """Regression data of a few clients; the number of rows differs from client to client."""
  rng = np.random.default_rng(seed)
  coefficients = 1.0 + rng.normal(size=(clients, features))
  sizes = ROWS - np.arange(clients) % 3
  return regression_data(
    clients, features=features, seed=rng, sizes=sizes, coefficients=coefficients
  )


def binary_data(clients=4, rows=40, features=FEATURES, seed=0, sizes=None):
  """Clients of two kinds: even ones have the opposite labels of odd ones."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(clients, rows, features)).astype(np.float32)
  sign = np.where(np.arange(clients) % 2, 1.0, -1.0)[:, np.newaxis]
  y = np.where(sign * x[:, :, 0] >= 0.0, 1.0, -1.0)
  return _federated(x, y.astype(np.float32), sizes)


def pooled(data):
  """All clients' examples as those of one client."""
  of_clients = datasets.ClientExamples(x=data['x'], y=data['y'], num_examples=data['num_examples'])
  x, y = of_clients.pooled()
  return Tree(
    x=x[np.newaxis],
    y=y[np.newaxis],
    num_examples=np.array([len(x)], np.int32),
    client_id=np.zeros([1], np.int32),
  )


def _federated(x, y, sizes):
  clients, rows = y.shape
  sizes = np.full([clients], rows) if sizes is None else np.asarray(sizes)
  real = np.arange(rows) < sizes[:, np.newaxis]
  return Tree(
    x=x * real[..., np.newaxis].astype(np.float32),
    y=y * real.astype(np.float32),
    num_examples=sizes.astype(np.int32),
    client_id=np.arange(clients, dtype=np.int32),
  )


def examples_spec(data):
  """The shapes of `data`."""
  return ExamplesSpec(
    x_shape=data['x'].shape[1:],
    x_dtype=data['x'].dtype,
    y_shape=data['y'].shape[1:],
    y_dtype=data['y'].dtype,
  )


# ------------------------------------------------------------ plans and methods


def no_privacy(data):
  """A plan without privacy in which every client takes part."""
  return NoPrivacy(cohorts=EveryClient(len(data['num_examples'])))


def client_level(data, *, noise_multiplier=0.0, norm=math.inf):
  """A client-level plan with the given noise and clip, in which every client takes part."""
  return ClientLevelPrivacy(
    cohorts=EveryClient(len(data['num_examples'])),
    noise_multiplier=noise_multiplier,
    delta=1e-5,
    clipping=FixedClipping(norm=norm),
  )


def example_level(data, *, noise_multiplier=0.0, batch_size=4, steps=2, **plan):
  """An example-level plan with the given noise."""
  values = {'delta': 1e-3, 'clipping_norm': 1.0, **plan}
  return ExampleLevelPrivacy(
    num_examples=data['num_examples'],
    batch_size=batch_size,
    steps_per_round=steps,
    noise_multiplier=noise_multiplier,
    **values,
  )


def spec_of(data, plan, *, model='linear_regression', model_options=None, batch_size=4, **values):
  """A build spec for the data; keyword arguments that are no field of it are options."""
  options = {name: values.pop(name) for name in set(values) - _SPEC}
  return BuildSpec(
    model=build_model(
      model,
      example_shape=data['x'].shape[2:],
      num_outputs=1,
      task_kind='binary' if model == 'linear_svm' else 'regression',
      **(model_options or {}),
    ),
    examples=examples_spec(data),
    plan=plan,
    batch_size=batch_size,
    options=options,
    **values,
  )


def build(name, plan, data, *, model='linear_regression', model_options=None, **spec):
  """A method for these data: full batches and no intercept, if nothing else is said."""
  if model_options is None and model == 'linear_regression':
    model_options = {'bias': False}
  spec = {'batch_size': data['x'].shape[1], **spec}
  return processes.build(
    name, spec_of(data, plan, model=model, model_options=model_options, **spec)
  )


def initial_server_state(method, seed=0):
  """A server state whose noise key, if it has one, belongs to the seed."""
  key = NoiseKey.rehearsal(seed) if method.private else None
  return method.initial_server_state(seed, noise_key=key)


# ------------------------------------------------------------ runs


@functools.cache
def the_runtime():
  """One runtime for many tests; TEST_RUNTIME=xla runs them on the other one."""
  return runtime.create(os.environ.get('TEST_RUNTIME', 'native'))


class Simulation:
  """A run of a method on a runtime, round by round.

  Hyper-parameters may be any, also those of the noise: the tests look at mechanisms alone.
  """

  def __init__(self, machine, method, data, *, seed=0, hyperparameters=None, attributes=None):
    values = {**method.hyperparameters, **(hyperparameters or {})}
    state = initial_server_state(dataclasses.replace(method, hyperparameters=values), seed)
    key = NoiseKey.rehearsal(seed) if method.private else None
    clients = method.initial_client_states(state, len(data['x']), attributes, noise_key=key)
    self.method, self.machine, self.data = method, machine, data
    self._server, self._everyone = state, range(len(data['x']))
    self._clients = machine.place_states(clients)
    self._data = machine.place(data, work=data['num_examples'])
    self._examples = examples_spec(data)

  def round(self, cohort):
    """One round; returns the metrics as floats."""
    metrics = self._advance(self.method.process.next, cohort)
    return {name: float(value) for name, value in metrics.items()}

  def run(self, rounds, cohort=None):
    """Rounds with everybody, or with a cohort; returns the metrics of the last one."""
    metrics = None
    for _ in range(rounds):
      metrics = self.round(self._everyone if cohort is None else cohort)
    return metrics

  def release(self):
    """What clients choose after the last round; returns the metrics as floats."""
    metrics = self._advance(self.method.build_release(self._examples), self._everyone)
    return {name: float(value) for name, value in metrics.items()}

  def _advance(self, computation, cohort):
    self._server, metrics = self.machine.round(
      computation, self._server, self._clients, self._data, np.array(cohort, np.int32)
    )
    return metrics

  @property
  def server(self):
    """The server's state."""
    return self.machine.to_numpy(self._server)

  @property
  def weights(self):
    """The server's model as one vector."""
    return flat(self.server['model'])

  @property
  def clients(self):
    """All clients' states, leaves [K, ...]."""
    return self._clients.to_numpy()

  @clients.setter
  def clients(self, states):
    self._clients = self.machine.place_states(states)

  def evaluate(self, which='personal'):
    """Sums over each client's examples."""
    computation = self.method.build_evaluation(which, self._examples)
    states = None if which == 'global' else self._clients
    return self.machine.evaluate(computation, self._server, states, self._data)


def start(name, spec, data, *, machine=None, **values):
  """A simulation of the method on the runtime for many tests, or on one for many rounds."""
  return Simulation(machine or the_runtime(), processes.build(name, spec), data, **values)


# ------------------------------------------------------------ what came of it


def flat(model):
  """All parameters of a model one after the other, or [K, parameters] of K models."""
  parts = [np.asarray(p) for p in model.values()]
  batch = parts[0].shape[:-1] if parts[0].ndim > 1 else ()
  return np.concatenate([p.reshape(*batch, -1) for p in parts], axis=-1)


def mean_gradient(data, client, weights, rows=slice(None)):
  """Gradient of the mean of (x w - y)^2 / 2 over a client's rows."""
  rows = np.arange(data['num_examples'][client])[rows]
  x, y = data['x'][client][rows].astype(float), data['y'][client][rows].astype(float)
  return x.T @ (x @ weights - y) / len(rows)


def assert_trees_equal(a, b, **tolerance):
  """Equal structures with equal leaves; within a tolerance if one is given.

  XLA orders sums as it likes, so that there equal means equal up to rounding.
  """
  if not tolerance and the_runtime().name == 'xla':
    tolerance = dict(rtol=1e-5, atol=1e-6)
  if tolerance:
    tf.nest.map_structure(lambda s, t: np.testing.assert_allclose(s, t, **tolerance), a, b)
  else:
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)
