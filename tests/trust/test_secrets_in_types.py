"""Who has which secret, read off the types of every method's TFF programs.

Clients are sent no key: with client-level privacy the server adds the noise, and whoever knows its
key can subtract it. With example-level privacy each silo adds its own noise and trusts nobody: the
server has no key, and a silo has one that tells no other's.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy import plan, sampling, selection, tuning
from privacy.correlated import strategies
from privacy.correlated.cohorts import SeparatedCohorts
from processes import aggregation, method, registry
from runtime.noise_key import SECRETS, NoiseKey
from runtime.trees import fields
from runtime.xla import program
from tests.processes import small_federation as small

ROUNDS = 4
TUNING = tuning.PrivateTuning(mean=2.0, shape=0.0, score_noise_multiplier=1.0)
CASES = [(m.name, unit) for m in registry.METHODS.values() for unit in m.privacy_units]


def _names(type_):
  """The names of all fields inside a type."""
  if isinstance(type_, tff.FederatedType):
    return _names(type_.member)
  if not isinstance(type_, tff.StructType):
    return set()
  return {n for name, part in fields(type_) for n in ({name} if name else set()) | _names(part)}


def _sent_to_clients(computation):
  """The types of everything that is broadcast."""
  calls = [n for n in program.build(computation).nodes if n.intrinsic == 'federated_broadcast']
  assert calls
  return [call.block.argument.type_signature for call in calls]


def _plan(name, unit, data, **client):
  if unit == 'none':
    return plan.NoPrivacy(cohorts=sampling.EveryClient(len(data['x'])))
  if unit == 'client':
    return plan.ClientLevelPrivacy(
      **{'cohorts': sampling.EveryClient(len(data['x'])), 'noise_multiplier': 1.0, 'delta': 1e-3,
         'clipping': plan.AdaptiveClipping(quantile_noise_multiplier=3.0), **client},
    )  # fmt: skip
  return plan.ExampleLevelPrivacy(
    num_examples=data['num_examples'], batch_size=4,
    steps_per_round=2 * registry.METHODS[name].passes, noise_multiplier=1.0, delta=1e-3,
    clipping_norm=1.0,
    selection=selection.PrivateSelection(epsilon=1.0, rounds=2) if 'ifca' in name else None,
    tuning=TUNING if name == 'tuned_mr_mtl' else None,
  )  # fmt: skip


def _programs(name, unit, **client):
  data = small.regression_data(clients=3, rows=8, features=2)
  if name == 'pooled':
    data = small.pooled(data)
  if name in ('ppsgd', 'feo2') and unit == 'client':
    client.setdefault('clipping', plan.FixedClipping(norm=1.0))
  built = small.build(name, _plan(name, unit, data, **client), data, rounds=ROUNDS)
  examples = small.examples_spec(data)
  computations = [
    built.process.next,
    *(built.build_evaluation(w, examples) for w in built.evaluations),
  ]
  if built.releases:
    computations.append(built.build_release(examples))
  return built, computations


def _check(built, computations, unit):
  server, clients, _ = built.process.next.type_signature.parameter
  for computation in computations:
    for type_ in _sent_to_clients(computation):
      assert not _names(type_) & SECRETS, f'{_names(type_) & SECRETS} is sent to the clients'
  assert bool(_names(server) & SECRETS) == (unit == 'client')
  assert bool(_names(clients) & SECRETS) == (unit == 'example')


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'unit'), CASES)
def test_nobody_is_sent_a_secret(name, unit):
  built, computations = _programs(name, unit)
  _check(built, computations, unit)


def test_correlated_noise_keeps_its_buffers_at_the_server():
  cohorts = SeparatedCohorts(3, 2)
  built, computations = _programs(
    'fedavg', 'client', cohorts=cohorts, clipping=plan.FixedClipping(norm=1.0),
    correlation=strategies.Tree(rounds=ROUNDS),
  )  # fmt: skip
  _check(built, computations, 'client')
  assert 'noise_buffers' in _names(built.process.next.type_signature.parameter[0])


def test_a_method_that_broadcasts_all_of_its_state_is_caught(monkeypatch):
  monkeypatch.setattr(method, 'without_noise_key', method.Tree)
  built, computations = _programs('fedavg', 'client')
  with pytest.raises(AssertionError, match=r'noise_key.* is sent to the clients'):
    _check(built, computations, 'client')


def test_a_client_that_would_draw_the_server_noise_cannot_be_built(monkeypatch):
  """What a client has of the query's state clips, and draws nothing."""

  def noised(self, update, server, data):
    query = self._query(server)
    return method.Tree(update=query.get_noised_result(update, server['query'])[0])

  monkeypatch.setattr(aggregation.MeanUpdate, 'report', noised)
  with pytest.raises((TypeError, ValueError)):
    _programs('fedavg', 'client', clipping=plan.FixedClipping(norm=1.0))


def test_a_silo_knows_its_own_key_alone():
  built, _ = _programs('fedavg', 'example')
  key = NoiseKey.rehearsal(5)
  server = built.initial_server_state(5, noise_key=key)
  keys = built.initial_client_states(server, 3, noise_key=key)['noise_key']
  assert keys.shape == (3, 8) and keys.dtype == np.int32
  words = np.concatenate([keys.ravel(), key.words])
  assert len(np.unique(words)) == len(words)  # no word of the run's key, or of another silo's
  np.testing.assert_array_equal(keys[1], key.words_of(1))
  assert not np.array_equal(keys, [NoiseKey.rehearsal(6).words_of(k) for k in range(3)])
  assert 'noise_key' not in server and not any(
    np.array_equal(leaf, key.words) for leaf in tf.nest.flatten(server)
  )
