"""Many clients' data sets, placed on the device once."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla.lowering import sequences


class Population:
  """The clients of a `tff.simulation.datasets.ClientData`; a cohort is an array of rows.

      population = context.place(client_data.preprocess(preprocess))
      rows = rng.choice(len(population), 10, replace=False)
      state = process.next(state, population[rows]).state

  Data sets are read once and padded to the longest, as one array [K, ...] for each component
  of an element. What a data set draws or shuffles while it is read stays as it was drawn.

  Attributes:
    client_ids: the clients' names, in the order of the rows.
    type: the `tff.SequenceType` of a client's data.
    padded_type: the type of a client's arrays, at CLIENTS; see `sequences.padded_type`.
    leaves: the arrays [K, ...].
  """

  def __init__(self, client_data: Any, *, device: str, client_ids: Sequence[str] | None = None):
    """Reads and uploads the data; see `XlaContext.place`."""
    self._client_data = client_data
    self.client_ids = list(client_data.client_ids if client_ids is None else client_ids)
    if not self.client_ids:
      raise ValueError('client_ids=[]: at least one client is expected.')
    spec = client_data.element_type_structure
    self.type = tff.SequenceType(tff.types.tensorflow_to_type(spec))
    if not sequences.is_supported(self.type):
      raise interface.UnsupportedComputationError(
        f'Elements of type {self.type.element} cannot be placed: numbers are expected.'
        ' Preprocess strings to numbers first.'
      )
    if self.dataset(0).cardinality() == tf.data.INFINITE_CARDINALITY:  # one program makes all
      raise ValueError('data sets without an end cannot be placed: give them one with take().')
    read = sequences.reader_of_clients(self.type, client_data)
    arrays = [read(name) for name in self.client_ids]
    form = sequences.form_of(self.type, arrays)
    self.padded_type = tff.FederatedType(sequences.padded_type(self.type, form), tff.CLIENTS)
    needed = trees.num_bytes(self.padded_type) * len(self)
    free = devices_lib.free_memory(device)
    if needed > free:
      raise MemoryError(
        f'{len(self)} clients of up to {form.length} elements are'
        f' {devices_lib.gigabytes(needed)}, and {devices_lib.gigabytes(free)} are free on'
        f' {device}: place fewer (client_ids=), or give each fewer elements.'
      )
    with tf.device(device):
      stacked = sequences.stacked(arrays, form, self.type, len(self))
      self.leaves = [tf.convert_to_tensor(leaf) for leaf in stacked]

  def __len__(self) -> int:
    """K, the number of clients."""
    return len(self.client_ids)

  def __getitem__(self, rows: Any) -> 'Clients':
    """Some of the clients.

    Args:
      rows: integers [n], each from 0 to K - 1 and as often as wanted, or a slice.

    Raises:
      ValueError: rows are no such integers.
    """
    rows = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in 'iu'):
      raise ValueError(f'rows: one axis of integers is expected, not {rows.dtype} {rows.shape}.')
    if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
      raise ValueError(f'rows from {rows.min()} to {rows.max()}: there are {len(self)} clients.')
    return Clients(self, rows.astype(np.int32))

  def dataset(self, row: int) -> tf.data.Dataset:
    """A client's data set as `client_data` has it."""
    return self._client_data.create_tf_dataset_for_client(self.client_ids[row])


class Clients(Sequence):
  """Some clients of a population, for a parameter at CLIENTS: nothing is copied.

  Anything else sees a sequence of `tf.data` data sets.

  Attributes:
    population: all clients.
    rows: int32 [n], which of them.
  """

  def __init__(self, population: Population, rows: np.ndarray):
    self.population = population
    self.rows = rows

  def __len__(self) -> int:
    return len(self.rows)

  @overload
  def __getitem__(self, index: int) -> tf.data.Dataset: ...

  @overload
  def __getitem__(self, index: slice) -> 'Clients': ...

  def __getitem__(self, index: Any) -> Any:
    if isinstance(index, slice):
      return Clients(self.population, self.rows[index])
    return self.population.dataset(int(self.rows[index]))
