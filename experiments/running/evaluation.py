"""How good the models are: pooled over test rows, and across clients, by group.

Evaluation looks at exact values of every client: it is for the eyes of a
simulation, and no release with privacy.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

import datasets
import processes.method
from experiments.folder.metrics import EVERYONE, ROUND, MetricTable
from experiments.running import trees
from runtime import random_streams

# Of the clients' values, beside their mean, which one client can bend.
QUANTILES = {'p10': 0.1, 'median': 0.5, 'p90': 0.9}
_SAMPLE = 2  # tells the draw of who is evaluated from other draws of the stream
_PSEUDO_CLIENT_ROWS = 200  # test rows of the server that are evaluated as one client


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationTask:
  """One model on one split.

  Attributes:
    split: 'test', 'validation' or 'server_test'.
    which: one of the method's `evaluations`.
    prefix: of the metrics' names.
    metrics: names of the metrics to be recorded, by the model's names; None for all, as the
      model names them.
    examples: the split's examples.
    client_ids: the clients' names; empty for the server's test set.
    groups: bool [K] masks of clients by name; empty for the server's test set.
    compared: pairs of groups of which the difference of the means is recorded.
    clusters: int [K], the clients' true clusters, where they are to be compared with those that
      the clients have chosen.
  """

  split: str
  which: str
  prefix: str
  examples: datasets.ClientExamples
  client_ids: tuple[str, ...] = ()
  groups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  compared: tuple[tuple[str, str], ...] = ()
  clusters: np.ndarray | None = None
  metrics: Mapping[str, str] | None = None

  @property
  def of_clients(self) -> bool:
    """Whether the model depends on the client's state."""
    return self.which != processes.method.GLOBAL

  def record(
    self, table: MetricTable, round_: int, sums: Mapping[str, Any], *, each_client: bool
  ) -> None:
    """Adds the metrics after `round_` rounds to the table.

    Args:
      table: where to.
      round_: rounds done.
      sums: each client's sums [K] by metric, `num_examples` among them.
      each_client: whether to add every client's own value as well.
    """
    sums = {name: np.asarray(value, np.float64) for name, value in sums.items()}
    counts = sums.pop('num_examples')
    chosen = sums.pop(processes.method.CLUSTER, None)
    if chosen is not None and self.clusters is not None:
      table.add(round_, ROUND, 'cluster_accuracy', cluster_accuracy(chosen, self.clusters))
    has_rows = counts > 0
    if self.metrics is not None:
      sums = {own: sums[name] for name, own in self.metrics.items()}
    for name, total in sums.items():
      name = self.prefix + name
      means = {}
      if not self.groups:
        table.add(round_, self.split, name, total.sum() / counts.sum())
      for group, members in self.groups.items():
        members = members & has_rows
        if not members.any():
          continue
        own = total[members] / counts[members]
        table.add(round_, self.split, name, total[members].sum() / counts[members].sum(), group)
        means[group] = own.mean()
        table.add(round_, self.split, f'{name}_mean', means[group], group)
        table.add(round_, self.split, f'{name}_std', own.std(), group)
        table.add(round_, self.split, f'{name}_variance', own.var(), group)
        for words, value in zip(QUANTILES, np.quantile(own, [*QUANTILES.values()]), strict=True):
          table.add(round_, self.split, f'{name}_{words}', value, group)
      for first, second in self.compared:
        if means.keys() >= {first, second}:
          words = f'{first}_minus_{second}'.replace(' ', '_')
          table.add(round_, self.split, f'{name}_{words}', means[first] - means[second])
      if each_client and self.client_ids:
        ids = [c for c, known in zip(self.client_ids, has_rows, strict=True) if known]
        table.add_clients(round_, self.split, {name: (ids, total[has_rows] / counts[has_rows])})


def cluster_accuracy(chosen: np.ndarray, true: np.ndarray) -> float:
  """The share of clients whose cluster is right, in 0..1.

  Clusters have no names in common: each chosen one stands for at most one true cluster, and each
  true one for at most one of the chosen, in the way that makes most clients right (the assignment
  problem; "clustering accuracy" in the literature).

  Args:
    chosen: [n], numbers of clusters; negative of clients who have chosen none, and are not right.
    true: int [n], numbers from 0 on.
  """
  of_client = np.asarray(chosen, int)
  has_chosen = of_client >= 0
  together = np.zeros((int(true.max()) + 1, int(of_client.max(initial=0)) + 1))
  np.add.at(together, (true[has_chosen], of_client[has_chosen]), 1)
  right = optimize.linear_sum_assignment(together, maximize=True)
  return float(together[right].sum() / len(true))


def sample_of(num_clients: int, size: int | None) -> np.ndarray:
  """int [n]: the clients who are evaluated, in their order: all, or a random sample of a size."""
  if size is None or size >= num_clients:
    return np.arange(num_clients)
  generator = random_streams.host_generator(0, random_streams.Stream.SPLIT, _SAMPLE)
  return np.sort(generator.choice(num_clients, size=size, replace=False))


def evaluation_tasks(method, dataset, clients: np.ndarray) -> list[EvaluationTask]:
  """Everything of a method that can be evaluated on a data set, its main model first.

  Args:
    method: the `FederatedMethod`.
    dataset: the `FederatedDataset`.
    clients: int [n], who are evaluated.
  """
  main = 'personal' if 'personal' in method.evaluations else 'global'
  test = dataset.test.load(clients)
  groups = {name: mask[clients] for name, mask in dataset.groups.items()}
  groups = {EVERYONE: np.ones(len(clients), bool), **groups}
  true_clusters = None if dataset.true_clusters is None else dataset.true_clusters[clients]
  tasks = [
    EvaluationTask(
      split='test', which=which, prefix='' if which == main else f'{which}_', examples=test,
      client_ids=tuple(dataset.client_ids[k] for k in clients), groups=groups,
      compared=method.compared_groups,
      clusters=true_clusters if which == main else None,
    )
    for which in sorted(method.evaluations, key=lambda w: w != main)
  ]  # fmt: skip
  if dataset.excess_risk is not None:
    tasks += [
      dataclasses.replace(
        task,
        examples=dataset.excess_risk.load(clients),
        metrics={'mse': 'excess_risk'},
        client_ids=(),
        clusters=None,
      )
      for task in tasks
      if task.of_clients or task.which == main
    ]
  if dataset.validation is not None:
    # For choosing settings: all clients together will do.
    examples = dataset.validation.load(clients)
    everyone = {EVERYONE: np.ones(examples.num_clients, bool)}
    tasks += [
      dataclasses.replace(
        task, split='validation', examples=examples, client_ids=(), groups=everyone, clusters=None
      )
      for task in tasks
      if task.examples is test
    ]
  if dataset.server_test is not None and 'global' in method.evaluations:
    examples = cut_into_clients(*dataset.server_test)
    tasks.append(EvaluationTask(split='server_test', which='global', prefix='', examples=examples))
  return tasks


class Evaluator:
  """Evaluates all models of a method on the clients' and the server's test sets.

  Of one run, or of S runs whose clients stand side by side.
  """

  def __init__(
    self,
    *,
    method,
    datasets: Sequence[Any],
    runtime,
    settings: int | None = None,
    clients: int | None = None,
  ):
    """Uploads the test sets, each one once.

    Args:
      method: the `FederatedMethod`.
      datasets: each run's `FederatedDataset`.
      runtime: where to evaluate.
      settings: S for the runs of a sweep's program; None for a run alone.
      clients: how many clients are evaluated, a sample; None for all.
    """
    self._runtime = runtime
    self._clients = sample_of(datasets[0].num_clients, clients)
    self._settings = settings
    tasks: dict[Any, list[EvaluationTask]] = {}
    own = []
    for dataset in datasets:  # runs with the same data share their tasks
      groups = tuple((name, mask.tobytes()) for name, mask in dataset.groups.items())
      key = (id(dataset.train), groups)
      if key not in tasks:
        tasks[key] = evaluation_tasks(method, dataset, self._clients)
      own.append(tasks[key])
    self._tasks = list(zip(*own, strict=True))  # the same task of all runs
    self._computations = [
      method.build_evaluation(task.which, examples_spec(task.examples)) for task, *_ in self._tasks
    ]
    known: dict[tuple[int, ...], Any] = {}
    self._data, self._rows = [], []
    for members in self._tasks:
      parts, rows = _without_repetition([task.examples for task in members])
      same = tuple(map(id, parts))
      if same not in known:  # models of one split share its data
        tree = trees.side_by_side([client_data(part) for part in parts])
        known[same] = placed(runtime, tree)
      self._data.append(known[same])
      self._rows.append(rows)

  def evaluate(self, server_state, client_states) -> list[list[Mapping[str, Any]]]:
    """What `record` takes: of every task, each run's sums.

    Args:
      server_state: the server's state.
      client_states: all clients' states, as placed on the runtime.
    """
    found = []
    for members, computation, data, rows in zip(
      self._tasks, self._computations, self._data, self._rows, strict=True
    ):
      states = client_states if members[0].of_clients else None
      who = rows[0] if states is None else self._clients
      if self._settings is None:
        sums = [
          self._runtime.evaluate(computation, server_state, states, data, who, data_rows=rows[0])
        ]
      else:
        of_all = self._runtime.evaluate(
          computation, server_state, states, data, who, data_rows=rows, settings=self._settings
        )
        sums = [{name: v[s] for name, v in of_all.items()} for s in range(self._settings)]
      found.append(sums)
    return found

  def record(
    self,
    tables: Sequence[MetricTable],
    round_: int,
    found: Sequence[Sequence[Mapping[str, Any]]],
    *,
    each_client: bool,
  ) -> None:
    """Adds each run's metrics after `round_` rounds to its table.

    Args:
      tables: where to.
      round_: rounds done.
      found: from `evaluate`.
      each_client: whether to add every client's own value as well.
    """
    for members, sums in zip(self._tasks, found, strict=True):
      for task, table, own in zip(members, tables, sums, strict=True):
        task.record(table, round_, own, each_client=each_client)


def _without_repetition(sets: Sequence[datasets.ClientExamples]):
  """The sets that differ, and of each given one its clients' rows among them."""
  kept: list[datasets.ClientExamples] = []
  rows = []
  for own in sets:
    same = (i for i, other in enumerate(kept) if other is own or _equal(other, own))
    position = next(same, len(kept))
    if position == len(kept):
      kept.append(own)
    rows.append(position * own.num_clients + np.arange(own.num_clients))
  return kept, rows


def _equal(a: datasets.ClientExamples, b: datasets.ClientExamples) -> bool:
  return all(
    np.array_equal(getattr(a, name), getattr(b, name)) for name in ('num_examples', 'y', 'x')
  )


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


def placed(machine, tree: Mapping[str, Any]) -> Any:
  """Clients' data on a runtime, which is told whose are how many."""
  return machine.place(tree, work=tree['num_examples'])


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
