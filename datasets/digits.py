"""The 8x8 digits that come with scikit-learn: real images without a download.

Divided by the FeO2 paper's non-IID rule: each client holds one digit, all
clients have the same number of images. A fifth of the images is the server's
test set; the rest is dealt to the clients, each of which keeps a part of its
own images for its test.
"""

import hashlib
import os

import numpy as np

from datasets import federated, partition
from runtime import random_streams

_SERVER_TEST_FRACTION = 0.2
_CITATION = 'Alpaydin, Kaynak (1998), Optical Recognition of Handwritten Digits, UCI; scikit-learn.'


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  test_fraction: float,
) -> federated.FederatedDataset:
  """Clients of one digit each.

  Args:
    seed: decides test set, digits and images of the clients.
    data_dir: not needed; the images are in scikit-learn.
    num_clients: K.
    test_fraction: the share of each client's images kept for its own test.

  Returns:
    The data set; `extras['digit']` is the digit of each client, [K] int32.
  """
  del data_dir
  from sklearn import datasets as sklearn_datasets  # Slow to import.

  partition.check_test_fraction(test_fraction)
  bunch = sklearn_datasets.load_digits()
  x = bunch.images.astype(np.uint8)[..., None]
  y = bunch.target.astype(np.int32)
  generator = random_streams.host_generator(seed, random_streams.Stream.SPLIT)
  order = generator.permutation(len(y))
  num_server_test = round(_SERVER_TEST_FRACTION * len(y))
  server_rows, client_rows = order[:num_server_test], order[num_server_test:]
  labels = y[client_rows]
  assignment = partition.assign_labels(
    np.bincount(labels, minlength=10),
    num_clients=num_clients,
    labels_per_client=1,
    generator=generator,
  )
  dealt = partition.deal_by_label(labels, assignment, examples_per_client=None, generator=generator)
  rows = client_rows[dealt]
  if rows.shape[1] < 2:
    raise ValueError(
      f'num_clients is {num_clients}: with {rows.shape[1]} image each, no client could keep one'
      ' for its test.'
    )
  # Dealt in random order already, so the first rows are a random choice.
  num_test = min(max(1, round(test_fraction * rows.shape[1])), rows.shape[1] - 1)
  test_rows, train_rows = rows[:, :num_test], rows[:, num_test:]
  return federated.FederatedDataset(
    name='digits',
    task=federated.Task(kind='classification', num_outputs=10, example_shape=(8, 8, 1)),
    train=federated.ClientExamples.from_rows(x, y, train_rows),
    test=federated.ClientExamples.from_rows(x, y, test_rows),
    server_test=(x[server_rows], y[server_rows]),
    client_ids=tuple(f'client_{k}' for k in range(num_clients)),
    x_scale=1 / 16,
    extras={'digit': assignment[:, 0].astype(np.int32)},
    preprocessing=('Pixels are divided by 16, a public constant, which costs no privacy.',),
    checksums={'sklearn digits': hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()},
    citation=_CITATION,
  )
