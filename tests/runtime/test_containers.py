"""States and values in attrs classes, on both runtimes: alone, in a sweep, and of nobody."""

import collections

import attrs
import numpy as np
import pytest
import tensorflow_federated as tff

import runtime
from tests.runtime import example_process as example


@attrs.define
class State:
  total: object  # declared in another order than the alphabet's
  count: object


_TYPE = tff.types.StructWithPythonType(
  [('total', tff.TensorType(np.float32, (2,))), ('count', tff.TensorType(np.int32))], State
)
_DATA = tff.to_type(collections.OrderedDict(x=tff.TensorType(np.float32, (2,))))


@tff.tensorflow.computation(_TYPE, _TYPE, _DATA)
def _client(server, client, data):
  return State(total=client.total + server.total + data['x'], count=client.count + 1)


@tff.tensorflow.computation(_TYPE, _TYPE)
def _server(server, update):
  return State(total=server.total + update.total, count=server.count + update.count)


_PARAMETERS = (
  tff.FederatedType(_TYPE, tff.SERVER),
  tff.FederatedType(_TYPE, tff.CLIENTS),
  tff.FederatedType(_DATA, tff.CLIENTS),
)


@tff.federated_computation(*_PARAMETERS)
def next_round(server, client, data):
  new = tff.federated_map(_client, (tff.federated_broadcast(server), client, data))
  update = tff.federated_sum(new)
  return tff.federated_map(_server, (server, update)), new, update


@tff.federated_computation(*_PARAMETERS)
def look(server, client, data):
  return tff.federated_map(_client, (tff.federated_broadcast(server), client, data))


@pytest.mark.parametrize('settings', [None, 2])
def test_attrs_classes_and_nobody(native, settings):
  size = () if settings is None else (settings,)
  cohort = [0, 2] if settings is None else [[0, 2], [4]]
  results = []
  with runtime.create('xla') as xla:
    for machine in (native, xla):
      data = machine.place({'x': np.arange(6, dtype=np.float32).reshape(3, 2)})
      count = 3 * (settings or 1)
      # By name, whatever the order.
      states = machine.place_states(
        {'count': np.zeros(count, np.int32), 'total': np.ones((count, 2), np.float32)}
      )
      server = State(total=np.ones((*size, 2), np.float32), count=np.zeros(size, np.int32))
      server, metrics = machine.round(next_round, server, states, data, cohort, settings=settings)
      values = [
        machine.evaluate(look, server, states, data, rows, settings=settings)
        for rows in (None, [1], [])
      ]
      nobody = values[-1]
      assert nobody.total.shape == (*size, 0, 2)
      assert nobody.count.dtype == np.int32
      found = [server, metrics, *values]
      assert {type(part) for part in found} == {State}
      kept = states.to_numpy()
      results.append([attrs.asdict(machine.to_numpy(part)) for part in found] + [dict(kept)])
  for one, other in zip(*results, strict=True):
    example.assert_same(one, other)
