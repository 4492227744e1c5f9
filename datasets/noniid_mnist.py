"""Non-IID MNIST and its skewed version, the synthetic federations of the FeO2 paper.

2,000 clients of equal size, each with images of one digit only (section 5). The
paper leaves open how many images a client has and what its own test set is.
Here the 60,000 training images are dealt without repetition, the same number to
each client (29 of 2,000: digits are not equally frequent), and a client's test
set is 50 images of its digit from MNIST's test part, drawn for each client.

The paper's variances across clients are in hundredths (6.5 at an accuracy of 7.1 %
where clients have all or nothing right, 0.071 * 0.929 = 0.066). Its 0.13 at 93.75 %
is a deviation of 3.6 points, so its clients' test sets had dozens of images too: 5
images, an equal share of the test part, would alone give 1.2. More
`test_examples` bring the variances nearer to the paper's; means do not depend on it.

In the skewed version the clients that may opt out of privacy are those with the
digit 7: the group `opt_out_candidates`.
"""

import functools
import os

import numpy as np

from datasets import federated, mnist, partition
from runtime import random_streams

SKEWED_DIGIT = 7
_CITATION = (
  'MNIST, ' + mnist.CITATION + ' Partition of the FeO2 paper, section 5: one digit per client.'
)


def _load(
  name: str,
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  examples_per_client: int | None,
  test_examples: int,
) -> federated.FederatedDataset:
  """Clients of one digit each.

  Args:
    name: the registry's name; the skewed one has the group `opt_out_candidates`.
    seed: decides who has which digit and which images.
    data_dir: folder with `mnist.npz`, or None.
    num_clients: K, 2,000 in the paper.
    examples_per_client: training images of each client; None for the most that
      leaves no image to two clients.
    test_examples: test images of each client.

  Returns:
    The data set; `extras['digit']` is the digit of each client, [K] int32.
  """
  data = mnist.read(data_dir)
  generator = random_streams.host_generator(seed, random_streams.Stream.SPLIT)
  assignment = partition.assign_labels(
    np.bincount(data.train_y, minlength=10),
    num_clients=num_clients,
    labels_per_client=1,
    generator=generator,
  )
  train_rows = partition.deal_by_label(
    data.train_y, assignment, examples_per_client=examples_per_client, generator=generator
  )
  digit = assignment[:, 0].astype(np.int32)
  test_rows = partition.draw_of_label(data.test_y, digit, size=test_examples, generator=generator)
  groups = {}
  if name == 'skewed_noniid_mnist':
    groups['opt_out_candidates'] = digit == SKEWED_DIGIT
  return federated.FederatedDataset(
    name=name,
    task=mnist.TASK,
    train=federated.ClientExamples.from_rows(data.train_x, data.train_y, train_rows),
    test=federated.ClientExamples.from_rows(data.test_x, data.test_y, test_rows),
    server_test=data.server_test,
    client_ids=tuple(f'client_{k}' for k in range(num_clients)),
    groups=groups,
    x_scale=mnist.PIXEL_SCALE,
    extras={'digit': digit},
    preprocessing=(mnist.PIXELS,),
    checksums=data.checksums,
    citation=_CITATION,
  )


load = functools.partial(_load, 'noniid_mnist')
load_skewed = functools.partial(_load, 'skewed_noniid_mnist')
