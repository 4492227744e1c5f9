"""How examples are divided: between clients, and into training and test rows.

Everything here deals in row numbers, so one rule serves every data set.
"""

from collections.abc import Sequence

import numpy as np

from runtime import random_streams


def train_test_rows(
  num_rows: int, *, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Splits one client's rows as scikit-learn's `train_test_split(random_state=seed)`.

  The cross-silo paper's program splits each silo this way; the same generator
  makes its splits ours, row by row.

  Returns:
    The training and the test rows; ceil(test_fraction * num_rows) are test rows.
  """
  from sklearn import model_selection  # Slow to import, and few data sets need it.

  check_test_fraction(test_fraction)
  if num_rows < 2:
    raise ValueError(f'{num_rows} rows cannot be split into training and test rows; 2 are needed.')
  # Both sides keep one row, however small the client.
  num_test = min(max(int(np.ceil(test_fraction * num_rows)), 1), num_rows - 1)
  train, test = model_selection.train_test_split(
    np.arange(num_rows), test_size=num_test, random_state=seed % 2**32
  )
  return train, test


def random_split(
  rows: np.ndarray, *, test_fraction: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """One client's rows, split at random into training and test rows, one of each at least."""
  check_test_fraction(test_fraction)
  if len(rows) < 2:
    raise ValueError(f'{len(rows)} rows cannot be split into training and test rows; 2 are needed.')
  num_test = min(max(1, round(test_fraction * len(rows))), len(rows) - 1)
  order = generator.permutation(rows)
  return np.sort(order[num_test:]), np.sort(order[:num_test])


def random_splits(
  ids: np.ndarray, rows_of: Sequence[np.ndarray], *, test_fraction: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """`random_split` of each client, by random numbers of its own.

  A client's split depends on the seed and its id alone, not on who else is there.

  Returns:
    The training rows of each client, and the test rows of each.
  """
  pairs = [
    random_split(
      rows,
      test_fraction=test_fraction,
      generator=random_streams.host_generator(seed, random_streams.Stream.SPLIT, id_),
    )
    for id_, rows in zip(ids, rows_of, strict=True)
  ]
  return [train for train, _ in pairs], [test for _, test in pairs]


def check_test_fraction(test_fraction: float) -> None:
  """Refuses a share of rows that is none.

  Raises:
    ValueError: it is not between 0 and 1.
  """
  if not 0 < test_fraction < 1:
    raise ValueError(f'test_fraction is {test_fraction}; it must lie between 0 and 1.')


def keep_density(
  train: np.ndarray, *, density: float, generator: np.random.Generator
) -> np.ndarray:
  """A random part of a client's training rows, one at least; density 1 keeps all."""
  if not 0 < density <= 1:
    raise ValueError(f'density is {density}; it must be above 0 and at most 1.')
  if density == 1:
    return train
  kept = max(1, int(density * len(train)))
  return train[np.sort(generator.permutation(len(train))[:kept])]


def deal_equally(num_rows: int, num_clients: int, generator: np.random.Generator) -> np.ndarray:
  """Rows dealt at random, the same number to each client: [num_clients, n]."""
  if not 1 <= num_clients <= num_rows:
    raise ValueError(f'num_clients is {num_clients}; 1..{num_rows} fit the {num_rows} examples.')
  size = num_rows // num_clients
  return generator.permutation(num_rows)[: size * num_clients].reshape(num_clients, size)


def assign_labels(
  label_counts: np.ndarray,
  *,
  num_clients: int,
  labels_per_client: int,
  generator: np.random.Generator,
) -> np.ndarray:
  """Which labels each client holds: [num_clients, labels_per_client], distinct.

  A label goes to clients in proportion to its examples, so that every client can
  have the same number and almost no example is left over. Labels are dealt in turns: of 10
  equally frequent ones, 5 for each, the clients are pairs that have all 10 between them.
  """
  num_labels = len(label_counts)
  if num_clients < 1:
    raise ValueError(f'num_clients is {num_clients}; it must be at least 1.')
  if not 1 <= labels_per_client <= num_labels:
    raise ValueError(f'labels_per_client is {labels_per_client}; allowed: 1..{num_labels}.')
  quota = _apportion(np.asarray(label_counts), num_clients * labels_per_client)
  quota = np.minimum(quota, num_clients)  # A client holds a label once.
  while (missing := num_clients * labels_per_client - quota.sum()) > 0:
    room = np.flatnonzero(quota < num_clients)
    quota[room[:missing]] += 1
  assignment = np.empty((num_clients, labels_per_client), np.int64)
  for k in range(num_clients):
    # The labels with most left go first, which always ends with distinct labels.
    order = np.lexsort((generator.random(num_labels), -quota))
    assignment[k] = order[:labels_per_client]
    quota[assignment[k]] -= 1
  return assignment[generator.permutation(num_clients)]


def deal_by_label(
  labels: np.ndarray,
  assignment: np.ndarray,
  *,
  examples_per_client: int | None,
  generator: np.random.Generator,
) -> np.ndarray:
  """Rows dealt so that a client has its labels only, equally many of each.

  Args:
    labels: [M] label of every row.
    assignment: [num_clients, L] labels of each client.
    examples_per_client: the size of each client, a multiple of L; None for the
      largest at which no row is dealt twice.
    generator: what shuffles the rows of a label.

  Returns:
    [num_clients, n] row numbers; no row twice.
  """
  num_clients, labels_per_client = assignment.shape
  num_labels = max(int(labels.max()), int(assignment.max())) + 1
  holders = np.bincount(assignment.ravel(), minlength=num_labels)
  rows_of = np.bincount(labels, minlength=num_labels)
  used = holders > 0
  most = int(np.min(rows_of[used] // holders[used]))
  if examples_per_client is None:
    share = most
  else:
    share = examples_per_client // labels_per_client
    if share * labels_per_client != examples_per_client or not 1 <= share <= most:
      raise ValueError(
        f'examples_per_client is {examples_per_client}; it must be a multiple of'
        f' {labels_per_client} and at most {most * labels_per_client} for {num_clients} clients.'
      )
  if share < 1:
    raise ValueError(f'num_clients is {num_clients}: too many, a client would have no example.')
  rows = np.empty((num_clients, labels_per_client, share), np.int64)
  for label in np.flatnonzero(used):
    pool = generator.permutation(np.flatnonzero(labels == label))
    rows[assignment == label] = pool[: holders[label] * share].reshape(-1, share)
  return rows.reshape(num_clients, -1)


def deal_by_share(
  labels: np.ndarray,
  assignment: np.ndarray,
  shares: np.ndarray,
  *,
  generator: np.random.Generator,
) -> list[np.ndarray]:
  """All rows of each label, divided between its clients in proportion to their shares.

  Args:
    labels: [M] label of every row.
    assignment: [num_clients, L] labels of each client, distinct in a client.
    shares: [num_clients, L] positive weights, compared between clients of a label.
    generator: what shuffles the rows of a label.

  Returns:
    The row numbers of each client; no row twice.
  """
  rows: list[list[np.ndarray]] = [[] for _ in assignment]
  for label in np.unique(assignment):
    clients, places = np.nonzero(assignment == label)
    pool = generator.permutation(np.flatnonzero(labels == label))
    sizes = _apportion(shares[clients, places], len(pool))
    for client, part in zip(clients, np.split(pool, np.cumsum(sizes)[:-1]), strict=True):
      rows[client].append(part)
  return [np.concatenate(parts) for parts in rows]


def draw_of_label(
  labels: np.ndarray,
  client_labels: np.ndarray,
  *,
  size: int,
  generator: np.random.Generator,
) -> np.ndarray:
  """For each client `size` distinct rows of its one label: [num_clients, size].

  Clients draw independently, so two of them may have the same row.
  """
  rows = np.empty((len(client_labels), size), np.int64)
  for label in np.unique(client_labels):
    pool = np.flatnonzero(labels == label)
    if not 1 <= size <= len(pool):
      raise ValueError(f'test_examples is {size}; label {label} has 1..{len(pool)} test examples.')
    clients = np.flatnonzero(client_labels == label)
    order = np.argsort(generator.random((len(clients), len(pool))), axis=1)[:, :size]
    rows[clients] = pool[order]
  return rows


def rows_by_client(clients: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
  """The distinct clients in a column, and the rows of each in their order."""
  ids, inverse = np.unique(clients, return_inverse=True)
  order = np.argsort(inverse, kind='stable')
  return ids, np.split(order, np.cumsum(np.bincount(inverse))[:-1])


def _apportion(weights: Sequence[int] | np.ndarray, total: int) -> np.ndarray:
  """Whole numbers which sum to `total` in proportion to weights (largest remainder)."""
  share = np.asarray(weights, np.float64) * total / np.sum(weights)
  result = np.floor(share).astype(np.int64)
  rest = np.argsort(result - share, kind='stable')[: total - result.sum()]
  result[rest] += 1
  return result
