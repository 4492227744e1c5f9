"""Examples held out of training, by which settings can be chosen without the test data."""

import dataclasses

import numpy as np

import datasets
from runtime import random_streams

_HOLD_OUT = 1  # tells these draws of the stream from the data sets' own splits


def hold_out(
  dataset: datasets.FederatedDataset, fraction: float, *, seed: int
) -> datasets.FederatedDataset:
  """Moves a fraction of each client's training examples to its validation examples.

  Args:
    dataset: the data; its training examples are split again.
    fraction: of a client's examples, rounded; each keeps one to train on at least.
    seed: which examples; the same for every method.

  Returns:
    The data set with a smaller `train`, with `validation`, and a sentence about it for
    the privacy statement.

  Raises:
    ValueError: the training examples are fresh in every round, or no client has so many that one
      would be held out.
  """
  train = dataset.train
  if isinstance(train, datasets.ClientStream):
    raise ValueError(
      f'--validation_fraction={fraction:g} cannot be used with --dataset={dataset.name}, whose '
      'training examples are fresh in every round; use 0.'
    )
  rows = [_split(int(n), fraction, seed, k) for k, n in enumerate(train.num_examples)]
  if not any(len(held) for _, held in rows):
    most = int(train.num_examples.max())
    least = f', or more than {0.5 / most:.2g}' if most > 1 else ''
    raise ValueError(
      f'--validation_fraction={fraction:g} of the training examples of any client are none: the '
      f'largest of --dataset={dataset.name} has {most}; use 0{least}.'
    )
  sentence = (
    f"{fraction:.4g} of each client's training examples are held out: they are never trained on, "
    'and settings chosen by looking at results on them are outside the guarantee.'
  )
  return dataclasses.replace(
    dataset,
    train=_part(train, [kept for kept, _ in rows]),
    validation=_part(train, [held for _, held in rows]),
    preprocessing=(*dataset.preprocessing, sentence),
  )


def _split(
  num_examples: int, fraction: float, seed: int, client: int
) -> tuple[np.ndarray, np.ndarray]:
  """The rows that stay, and the rows that are held out, each in their order."""
  stream = random_streams.Stream.SPLIT
  order = random_streams.host_generator(seed, stream, _HOLD_OUT, client).permutation(num_examples)
  held = min(round(fraction * num_examples), num_examples - 1)
  return np.sort(order[held:]), np.sort(order[:held])


def _part(examples, rows: list[np.ndarray]):
  counts = np.array([len(own) for own in rows], np.int32)
  if isinstance(examples, datasets.ClientSource):

    def read(client: int) -> tuple[np.ndarray, np.ndarray]:
      x, y = examples.read(client)
      return x[rows[client]], y[rows[client]]

    return datasets.ClientSource(
      num_examples=counts, max_examples=max(int(counts.max()), 1), read=read
    )
  return datasets.ClientExamples.from_lists(
    [examples.x[k][own] for k, own in enumerate(rows)],
    [examples.y[k][own] for k, own in enumerate(rows)],
  )
