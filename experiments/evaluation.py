"""How good the models are: pooled over test rows, and across clients, by group.

Evaluation looks at exact values of every client: it is for the eyes of a
simulation, and no release with privacy.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

import datasets
import processes.method
from experiments.metrics import EVERYONE, MetricTable

_PSEUDO_CLIENT_ROWS = 200  # test rows of the server that are evaluated as one client


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
  """One model on one split."""

  split: str
  which: str  # 'global' or 'personal'
  prefix: str  # of the metrics' names
  computation: Any
  data: Any  # placed on the device
  client_ids: tuple[str, ...]
  groups: Mapping[str, np.ndarray]


class Evaluator:
  """Evaluates all models of a method on the clients' and the server's test sets."""

  def __init__(self, *, method, dataset, runtime):
    """Uploads the test sets.

    Args:
      method: the `FederatedMethod`.
      dataset: the `FederatedDataset`.
      runtime: where to evaluate.
    """
    self._runtime = runtime
    self._tasks = []
    main = 'personal' if 'personal' in method.evaluations else 'global'
    test = dataset.test.load(np.arange(dataset.num_clients))
    test_data = runtime.place(client_data(test))
    groups = {EVERYONE: np.ones(dataset.num_clients, bool), **dataset.groups}
    for which in sorted(method.evaluations, key=lambda w: w != main):
      self._tasks.append(
        _Task(
          split='test', which=which, prefix='' if which == main else f'{which}_',
          computation=method.build_evaluation(which, examples_spec(test)), data=test_data,
          client_ids=dataset.client_ids, groups=groups,
        )
      )  # fmt: skip
    if dataset.server_test is not None and 'global' in method.evaluations:
      server_test = cut_into_clients(*dataset.server_test)
      self._tasks.append(
        _Task(
          split='server_test', which='global', prefix='',
          computation=method.build_evaluation('global', examples_spec(server_test)),
          data=runtime.place(client_data(server_test)), client_ids=(), groups={},
        )
      )  # fmt: skip

  def evaluate(
    self, table: MetricTable, round_: int, server_state, client_states, *, each_client: bool
  ) -> None:
    """Adds the metrics after `round_` rounds to the table.

    Args:
      table: where to.
      round_: rounds done.
      server_state: the server's state.
      client_states: all clients' states, as placed on the runtime.
      each_client: whether to add every client's own value as well.
    """
    for task in self._tasks:
      states = client_states if task.which == 'personal' else None
      sums = self._runtime.evaluate(task.computation, server_state, states, task.data)
      sums = {name: np.asarray(value, np.float64) for name, value in sums.items()}
      counts = sums.pop('num_examples')
      has_rows = counts > 0
      for name, total in sums.items():
        name = task.prefix + name
        if not task.groups:
          table.add(round_, task.split, name, total.sum() / counts.sum())
        for group, members in task.groups.items():
          members = members & has_rows
          if not members.any():
            continue
          own = total[members] / counts[members]
          table.add(round_, task.split, name, total[members].sum() / counts[members].sum(), group)
          table.add(round_, task.split, f'{name}_mean', own.mean(), group)
          table.add(round_, task.split, f'{name}_std', own.std(), group)
        if each_client and task.client_ids:
          ids = [c for c, known in zip(task.client_ids, has_rows, strict=True) if known]
          table.add_clients(round_, task.split, {name: (ids, total[has_rows] / counts[has_rows])})


def client_data(examples, client_ids: np.ndarray | None = None) -> collections.OrderedDict:
  """The arrays of some clients in the form that processes take.

  Args:
    examples: `ClientExamples`.
    client_ids: int32 [K], the clients' rows in the population; 0..K-1 if None.
  """
  if client_ids is None:
    client_ids = np.arange(examples.num_clients)
  return collections.OrderedDict(
    x=examples.x,
    y=examples.y,
    num_examples=examples.num_examples,
    client_id=np.asarray(client_ids, np.int32),
  )


def examples_spec(examples) -> processes.method.ExamplesSpec:
  """Shapes and dtypes of one client's examples."""
  return processes.method.ExamplesSpec(
    x_shape=examples.x.shape[1:],
    x_dtype=examples.x.dtype,
    y_shape=examples.y.shape[1:],
    y_dtype=examples.y.dtype,
  )


def cut_into_clients(x: np.ndarray, y: np.ndarray):
  """A central test set, x [M, ...] and y [M, ...], cut into clients of equal size."""
  cuts = range(_PSEUDO_CLIENT_ROWS, len(x), _PSEUDO_CLIENT_ROWS)
  xs, ys = np.split(x, cuts), np.split(y, cuts)
  return datasets.ClientExamples.from_lists(xs, ys)
