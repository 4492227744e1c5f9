"""A small process with what real ones have: loops, per-example gradients, random numbers."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import random_streams

FEATURES, ROWS, CLIENTS = 4, 5, 7

DATA = tff.to_type(
  collections.OrderedDict(
    x=tff.TensorType(np.float32, (ROWS, FEATURES)),
    y=tff.TensorType(np.float32, (ROWS,)),
    steps=np.int32,
    client_id=np.int32,
  )
)
SERVER = tff.to_type(
  collections.OrderedDict(
    model=tff.TensorType(np.float32, (FEATURES,)), round=np.int32, learning_rate=np.float32
  )
)
CLIENT = tff.to_type(
  collections.OrderedDict(personal=tff.TensorType(np.float32, (FEATURES,)), steps=np.int32)
)


@tff.tensorflow.computation(CLIENT, SERVER, DATA)
def train(client, server, data):
  """As many noisy steps of clipped per-example gradients as the client's data say."""
  key = random_streams.key(5, random_streams.Stream.DP_NOISE, server['round'], data['client_id'])

  def step(index, w):
    def gradient(example):
      x, y = example
      g = (tf.reduce_sum(w * x) - y) * x
      return g * tf.minimum(1.0, 1.0 / tf.norm(g))

    mean = tf.reduce_mean(tf.vectorized_map(gradient, (data['x'], data['y'])), axis=0)
    noise = 0.1 * random_streams.normal(random_streams.fold_in(key, index), [FEATURES])
    return index + 1, w - server['learning_rate'] * (mean + noise)

  _, w = tf.while_loop(
    lambda index, _: index < data['steps'], step, (0, client['personal'] + server['model'])
  )
  new_client = collections.OrderedDict(
    personal=w - server['model'], steps=client['steps'] + data['steps']
  )
  return new_client, w - server['model'], 1.0 + tf.cast(data['steps'], tf.float32)


@tff.tensorflow.computation(SERVER, tff.TensorType(np.float32, (FEATURES,)), np.float32)
def improve(server, total, weight):
  """A server step that is defined without clients too."""
  return collections.OrderedDict(
    model=server['model'] + total / tf.maximum(weight, 1.0),
    round=server['round'] + 1,
    learning_rate=server['learning_rate'],
  )


def _part(index):
  @tff.tensorflow.computation(train.type_signature.result)
  def select(result):
    return result[index]

  return select


_STATE, _UPDATE, _WEIGHT = _part(0), _part(1), _part(2)


@tff.federated_computation(
  tff.FederatedType(SERVER, tff.SERVER),
  tff.FederatedType(CLIENT, tff.CLIENTS),
  tff.FederatedType(DATA, tff.CLIENTS),
)
def next_round(server, client, data):
  """One round."""
  result = tff.federated_map(train, (client, tff.federated_broadcast(server), data))
  update, weight = tff.federated_map(_UPDATE, result), tff.federated_map(_WEIGHT, result)
  total, total_weight = tff.federated_sum(update), tff.federated_sum(weight)
  metrics = collections.OrderedDict(
    weight=total_weight, largest=tff.federated_max(update), smallest=tff.federated_min(weight)
  )
  return (
    tff.federated_map(improve, (server, total, total_weight)),
    tff.federated_map(_STATE, result),
    tff.federated_zip(metrics),
  )


@tff.tensorflow.computation(SERVER, CLIENT, DATA)
def _seen(server, client, data):
  return collections.OrderedDict(
    state=client['steps'], data=data['client_id'], server=server['round']
  )


@tff.federated_computation(
  tff.FederatedType(SERVER, tff.SERVER),
  tff.FederatedType(CLIENT, tff.CLIENTS),
  tff.FederatedType(DATA, tff.CLIENTS),
)
def look(server, client, data):
  """An evaluation that says of each client whose state and whose data it has."""
  return tff.federated_map(_seen, (tff.federated_broadcast(server), client, data))


def data(clients=CLIENTS, seed=0):
  """Arrays [K, ...]; clients differ in their number of steps, one takes none."""
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    x=rng.normal(size=(clients, ROWS, FEATURES)).astype(np.float32),
    y=rng.normal(size=(clients, ROWS)).astype(np.float32),
    steps=(np.arange(clients) % 4).astype(np.int32),
    client_id=np.arange(clients, dtype=np.int32),
  )


def client_states(clients=CLIENTS):
  """Initial states [K, ...]."""
  return collections.OrderedDict(
    personal=np.zeros((clients, FEATURES), np.float32), steps=np.zeros(clients, np.int32)
  )


def server_state(learning_rate=0.1):
  """The initial server state."""
  return collections.OrderedDict(
    model=np.ones(FEATURES, np.float32),
    round=np.int32(0),
    learning_rate=np.float32(learning_rate),
  )


def placed_with_work(machine):
  """The data on a machine that knows how many steps each client takes."""
  tree = data()
  return machine.place(tree, work=tree['steps'])


COHORTS = ([0, 1, 2, 3, 4, 5, 6], [1, 4, 6], [2], [], [3, 5, 6, 0])


def run(machine, cohorts=COHORTS, learning_rate=0.1):
  """All rounds: the server's state, the clients' states and all metrics, in NumPy."""
  placed, states = placed_with_work(machine), machine.place_states(client_states())
  server, history = server_state(learning_rate), []
  for cohort in cohorts:
    server, metrics = machine.round(next_round, server, states, placed, np.array(cohort, np.int32))
    history.append(machine.to_numpy(metrics))
  return machine.to_numpy(server), states.to_numpy(), history


def assert_same(a, b, rtol=1e-5):
  """All numbers agree to `rtol`, relative to the largest of their array."""
  for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    scale = np.max(np.abs(x), initial=1e-3, where=np.isfinite(x))
    np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * scale)
