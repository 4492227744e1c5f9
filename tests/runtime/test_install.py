"""The runtime as TFF's default one: what TFF's users call works as on TFF's own."""

import asyncio
import gc
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime import tff_internals
from tests.runtime import learning


@pytest.fixture(name='context')
def _context():
  """Installs the runtime; the default context of before comes back."""
  stack = tff.framework.get_context_stack()
  before = stack._stack[0]
  try:
    yield runtime.install(clients_per_block=2)
  finally:
    stack.set_default_context(before)


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def mean(values):
  return tff.federated_mean(values)


def test_it_is_one_line(context):
  assert tff.framework.get_context_stack().current is context
  assert mean([1.0, 2.0, 6.0]) == 3.0
  assert context.statistics.compilations == 1 and context.explain(mean).is_compiled


def test_searches_for_garbage_pass_over_what_is_loaded():
  gc.unfreeze()
  stack = tff.framework.get_context_stack()
  before = stack._stack[0]
  try:
    runtime.install()
    assert gc.get_freeze_count() > 100_000
  finally:
    stack.set_default_context(before)
    gc.freeze()


def test_options_are_checked():
  with pytest.raises(ValueError, match='clients_per_block=0'):
    runtime.install(clients_per_block=0)


def test_modules_of_tff_that_are_not_public_are_named_in_one_file():
  root = pathlib.Path(runtime.__file__).parent
  internal = re.compile(r'tensorflow_federated\.(python|proto)')
  files = [p for p in root.rglob('*.py') if p.name != 'tff_internals.py']
  assert not [p.name for p in files if internal.search(p.read_text())]
  for name in tff_internals.__all__:  # Each is used, and it is said what for.
    assert name in (tff_internals.__doc__ or '')
    assert any(re.search(rf'\b{name}\.', p.read_text()) for p in files)


def _training():
  return tff.learning.algorithms.build_weighted_fed_avg(
    learning.functional_model(),
    tff.learning.optimizers.build_sgdm(0.1),
    tff.learning.optimizers.build_sgdm(1.0),
  )


def _trained(clients, rounds):
  """The model after some rounds."""
  training = _training()
  state = training.initialize()
  for _ in range(rounds):
    state = training.next(state, clients).state
  return training.get_model_weights(state).trainable


def _assert_same(expected, found):
  for e, f in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
    np.testing.assert_allclose(f, e, rtol=1e-4, atol=1e-5)


class States(tff.program.ProgramStateManager):
  """Keeps states in memory. (TensorFlow 2.15 cannot write TFF's files of nested states.)"""

  def __init__(self):
    self.saved = {}

  async def get_versions(self):
    return sorted(self.saved) or None

  async def load(self, version, structure):
    tf.nest.assert_same_structure(structure, self.saved[version])
    return self.saved[version]

  async def remove_all(self):
    self.saved.clear()

  async def save(self, program_state, version):
    self.saved[version] = await tff.program.materialize_value(program_state)


@pytest.mark.slow
def test_run_training_process_with_managers(context, native, tmp_path):
  clients = learning.data_sets((5, 6, 9))
  with native.context:
    expected = _trained(clients, 3)
  training = _training()
  saved = States()
  released = tff.program.CSVFileReleaseManager(tmp_path / 'metrics.csv', key_fieldname='round')
  with context:
    tff.simulation.run_training_process(
      training,
      lambda round_number: clients,
      total_rounds=2,
      program_state_manager=saved,
      metrics_managers=[released],
    )
    assert sorted(saved.saved) == [0, 1, 2]
    rows = (tmp_path / 'metrics.csv').read_text().splitlines()
    assert len(rows) == 3 and 'client_work/train/accuracy' in rows[0]
    # A later run goes on from what was saved.
    state = tff.simulation.run_training_process(
      training, lambda round_number: clients, total_rounds=3, program_state_manager=saved
    )
    assert sorted(saved.saved) == [0, 1, 2, 3]
    _assert_same(expected, training.get_model_weights(state).trainable)
  assert context.explain(training.next).is_compiled


class Clients(tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator):
  """Gives the same data sets every round. (TensorFlow 2.15 cannot copy TFF's own sources.)"""

  def __init__(self, clients):
    self._clients = clients
    self.federated_type = tff.FederatedType(
      tff.SequenceType(tff.types.tensorflow_to_type(clients[0].element_spec)), tff.CLIENTS
    )

  federated_type = None
  capabilities = ()

  def iterator(self):
    return self

  def __deepcopy__(self, memo):
    return self

  def select(self, k=None):
    del k
    return self._clients

  @classmethod
  def from_bytes(cls, data):
    raise NotImplementedError

  def to_bytes(self):
    raise NotImplementedError


@pytest.mark.slow
def test_train_model_as_a_program(native):
  (client,) = learning.data_sets((9,))
  with native.context:
    expected = _trained([client], 2)
  training = _training()
  saved, models = States(), tff.program.MemoryReleaseManager()
  metrics = tff.program.MemoryReleaseManager()

  async def train():
    await tff.learning.programs.train_model(
      train_process=training,
      train_data_source=Clients([client]),
      train_per_round_clients=1,
      train_total_rounds=2,
      program_state_manager=saved,
      model_output_manager=models,
      train_metrics_manager=metrics,
      evaluation_manager=None,
      evaluation_periodicity=1,
    )

  context = runtime.AsyncXlaContext()
  with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
    asyncio.run(train())
  (state,) = (v for k, v in models.values().items() if k.endswith('_2'))
  _assert_same(expected, state.global_model_weights.trainable)
  assert sorted(metrics.values()) == [1, 2]
  assert context.context.explain(training.next).is_compiled
