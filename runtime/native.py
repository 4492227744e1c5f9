"""TFF's own C++ runtime, the reference.

TFF's runtime cannot run an empty cohort ('Attempting to deserialize federated
value with no data'); such a round is computed by the plain interpreter of
`runtime.xla.eager`, which gives what the intrinsics' definitions say.
"""

import collections
from typing import Any

import numpy as np
import tensorflow_federated as tff

from runtime import interface, native_worker, trees
from runtime.tff_internals import native_compiler, tensorflow_computation, test_compiler


class NativeContext(tff.framework.SyncContext):
  """A TFF execution context on TFF's C++ runtime; its worker is started when first needed.

  Secure aggregations are replaced by the sums that they equal.
  """

  def __init__(self):
    self._worker = native_worker.Worker()
    self._context: Any = None
    self.statistics = interface.Statistics()  # of TFF's compiler, before the first round runs
    self._installed: list[Any] = []

  def _start(self):
    worker = self._worker

    def make_executor(cardinalities):
      cardinalities.setdefault(tff.CLIENTS, 0)
      executor = tff.framework.RemoteExecutor(worker.stub())
      executor.set_cardinalities(cardinalities)
      return executor

    self._context = tff.framework.SyncExecutionContext(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(make_executor),
      compiler_fn=self._compile,
      transform_args=tensorflow_computation.transform_args,
      transform_result=tensorflow_computation.transform_result,
    )

  def _compile(self, comp: Any) -> Any:
    with self.statistics.watch():
      self.statistics.programs += 1
      return native_compiler.desugar_and_transform_to_native(
        test_compiler.replace_secure_intrinsics_with_bodies(comp)
      )

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation; called by TFF."""
    if self._context is None:
      self._start()
    return self._context.invoke(comp, arg)

  def close(self) -> None:
    """Ends the worker; a later call starts another."""
    self._context = None
    self._worker.close()

  def __enter__(self) -> 'NativeContext':
    installed = tff.framework.get_context_stack().install(self)
    installed.__enter__()
    self._installed.append(installed)
    return self

  def __exit__(self, *exception: Any) -> None:
    self._installed.pop().__exit__(*exception)
    self.close()


def _copied(tree):
  if isinstance(tree, collections.abc.Mapping):
    return collections.OrderedDict((k, _copied(v)) for k, v in tree.items())
  return np.array(tree)


def _write(type_: tff.Type, states: interface.ClientStates, row: int, state: Any) -> None:
  """Replaces one client's state, which is of the type."""
  targets = trees.flatten(type_, states.tree, 'client_states')
  for target, value in zip(targets, trees.flatten(type_, state), strict=True):
    target[row] = value


def _as_type(type_: tff.Type, tree: Any, what: str) -> Any:
  """A structure as its type has it: TFF counts a mapping's values, which here go by name."""
  return trees.container(type_, iter(trees.flatten(type_, tree, what)))


class NativeRuntime(interface.Runtime):
  """Runs rounds on TFF's C++ runtime, each client's values sent every time."""

  name = 'native'

  def __init__(self):
    self.context = NativeContext()
    self._plain = None

  def place(self, tree: Any, *, allow_nan: bool = False, work: Any = None) -> interface.ClientData:
    tree, arrays = trees.stacked_leaves(tree, what='data', allow_nan=allow_nan)
    if not arrays:
      raise ValueError('data has no arrays.')
    count = len(arrays[0])
    work = interface.checked_work(work, count)
    return interface.ClientData(tree=tree, num_clients=count, num_rows=count, work=work)

  def place_states(self, tree: Any, *, allow_nan: bool = False) -> interface.ClientStates:
    tree = {} if tree is None else tree
    tree, arrays = trees.stacked_leaves(tree, what='client_states', allow_nan=allow_nan)
    count = len(arrays[0]) if arrays else None
    return interface.ClientStates(tree=_copied(tree), num_clients=count, fetch=_copied)

  def round(
    self,
    next_computation: Any,
    server_state: Any,
    client_states: interface.ClientStates | None,
    data: interface.ClientData,
    cohort: Any,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> tuple[Any, Any]:
    states = client_states or self.place_states(None)
    rows = interface.cohort_rows(cohort, data_rows, data.num_clients, states.num_clients, settings)
    if settings is None:
      return self._round(next_computation, trees.to_numpy(server_state), states, data, *rows[0])
    server_state = trees.to_numpy(server_state)
    outputs = [
      self._round(next_computation, trees.at_row(server_state, s), states, data, *rows[s])
      for s in range(settings)
    ]
    server, _, metrics = next_computation.type_signature.result
    return tuple(
      trees.stacked(type_, parts)
      for type_, parts in zip((server, metrics), zip(*outputs, strict=True), strict=True)
    )

  def _round(self, computation, server_state, states, data, state_rows, data_rows):
    state, new_states, metrics = self._call(
      computation, server_state, states, data, state_rows, data_rows
    )
    _, type_, _ = computation.type_signature.result
    for row, new in zip(state_rows, new_states, strict=True):
      _write(type_, states, row, new)
    return state, metrics

  def _call(self, computation, server_state, states, data, state_rows, data_rows):
    server, clients, examples = computation.type_signature.parameter
    server_state = _as_type(server, server_state, 'server_state')
    of_clients = _as_type(clients, states.tree, 'client_states')
    of_data = _as_type(examples, data.tree, 'data')
    client_states = [trees.at_row(of_clients, row) for row in state_rows]
    client_data = [trees.at_row(of_data, row) for row in data_rows]
    context = self.context
    if not client_data:
      # pylint: disable-next=g-import-not-at-top
      from runtime.xla import context as xla_context

      context = self._plain = self._plain or xla_context.XlaContext(compiled=False)
    with tff.framework.get_context_stack().install(context):
      return computation(server_state, client_states, client_data)

  def evaluate(
    self,
    computation: Any,
    server_state: Any,
    client_states: interface.ClientStates | None,
    data: interface.ClientData,
    rows: Any = None,
    *,
    data_rows: Any = None,
    settings: int | None = None,
  ) -> Any:
    states = client_states or self.place_states(None)
    server_state = trees.to_numpy(server_state)
    every = interface.evaluation_rows(
      rows, data_rows, data.num_clients, states.num_clients, settings
    )
    type_, results = computation.type_signature.result, []
    for s, (of_states, of_data) in enumerate(every):
      state = server_state if settings is None else trees.at_row(server_state, s)
      values = self._call(computation, state, states, data, of_states, of_data)
      results.append(trees.stacked(type_, values))
    return results[0] if settings is None else trees.stacked(type_, results)

  def to_numpy(self, tree: Any) -> Any:
    return trees.to_numpy(tree)

  @property
  def description(self) -> str:
    return "TFF's C++ runtime on the CPU"

  def close(self) -> None:
    self.context.close()
