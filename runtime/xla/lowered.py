"""Runs programs with data sets, variables or random ops, compiled.

The clients' data sets become padded arrays (`lowering.sequences`), and the program one
whose parameter has these in their place, for each form that is needed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtime import interface, trees
from runtime.xla import devices as devices_lib
from runtime.xla import executable, population, program, stages
from runtime.xla.lowering import datasets, sequences, support

# What tracing raises when an op is used in a way that is not foreseen.
NOT_TRACED = (
  datasets.NotLowered,
  interface.UnsupportedComputationError,
  NotImplementedError,
  TypeError,
  ValueError,
)


def belongs_to(key: Any, computation: Any) -> bool:
  """Whether a key stands for a computation, or for a piece of it."""
  return key == computation or (isinstance(key, tuple) and key[0] == computation)


class LoweredPrograms:
  """Keeps what was compiled, and the data sets that were read."""

  def __init__(
    self,
    *,
    devices: Sequence[str],
    clients_per_block: int | None,
    statistics: interface.Statistics,
  ):
    self._devices = devices
    self._clients_per_block = clients_per_block
    self._statistics = statistics
    self._store = sequences.Store()
    self._executables: dict[Any, executable.Executable] = {}

  def forget(self, key: Any) -> None:
    """Drops what was compiled for a computation, and the forms: its key may become another's."""
    self._executables = {k: v for k, v in self._executables.items() if not belongs_to(k[0], key)}
    self._store.forget(lambda form_key: belongs_to(form_key[0][0], key))

  def invoke(
    self,
    key: Any,
    prog: program.Program,
    how: support.Lowering,
    parts: Sequence[tuple[Any, Any]],
    count: int,
  ) -> list[Any] | None:
    """Runs a program.

    Args:
      key: stands for the computation.
      prog: its program.
      how: what is known of it; reasons that are found now are added.
      parts: (type, value) of the parameter's parts; CLIENTS values are lists.
      count: the number of clients.

    Returns:
      The result's parts, or None if the program cannot be compiled.
    """
    placed = self.placed(key, how, parts, count)
    if placed is None:
      return None
    types, leaves, rows = placed
    cohort = executable.Cohort(rows=rows, settings=None, count=count, limit=None)
    while True:
      block = 1 if how.serial_reasons else self._clients_per_block
      run = self._executable(key, prog, types, block)
      try:
        return run(leaves, cohort)
      except NOT_TRACED as error:
        reason = executable.reason_of(error)
        if run.block > 1:
          how.serial_reasons.append(reason)
        else:
          how.reasons.append(reason)
          self.forget(key)
          return None

  def placed(
    self, key: Any, how: support.Lowering, parts: Sequence[tuple[Any, Any]], count: int
  ) -> tuple[list[Any], list[list[Any]], list[np.ndarray]] | None:
    """The parameter's parts with arrays in the place of data sets.

    Args:
      key: see `invoke`.
      how: see `invoke`.
      parts: see `invoke`.
      count: see `invoke`.

    Returns:
      (types, leaves) of the parts, and for each part at CLIENTS the clients' rows in its leaves
      [P, ...]. None if the program cannot be compiled.
    """
    types, leaves, rows = [], [], []
    for index, (type_, value) in enumerate(parts):
      try:
        new_type, of_part = self._placed((key, index), type_, value)
      except datasets.NotLowered as error:
        how.reasons.append(str(error))
        return None
      types.append(new_type)
      leaves.append(of_part)
      if stages.is_client_part(type_):
        rows.append(value.rows if is_placed(type_, value) else np.arange(count))
    return types, leaves, rows

  def _executable(self, key, prog, types, block) -> executable.Executable:
    full_key = (key, tuple(types), block)
    if full_key not in self._executables:
      self._executables[full_key] = executable.Executable(
        with_parts(prog, types),
        devices=self._devices,
        clients_per_block=block,
        statistics=self._statistics,
        is_lowered=True,
      )
    return self._executables[full_key]

  def _placed(self, key: Any, type_: Any, value: Any) -> tuple[Any, list[Any]]:
    """A part with its sequences replaced by padded arrays: (type, leaves)."""
    if is_placed(type_, value):
      return value.population.padded_type, value.population.leaves
    is_clients = stages.is_client_part(type_)
    member = trees.member(type_)
    values = list(value) if is_clients else [value]
    what = [f'client {i}' if is_clients else 'argument' for i in range(len(values))]
    flat = [trees.flatten(member, v, w) for v, w in zip(values, what, strict=True)]
    size = devices_lib.padded_size(len(values)) if is_clients else 1
    types, leaves = [], []
    names = trees.leaf_names(member)
    for index, (leaf_type, name) in enumerate(zip(trees.leaf_types(member), names, strict=True)):
      column = [client[index] for client in flat]
      where = [f'{w}: {name}' for w in what]
      if isinstance(leaf_type, tff.SequenceType):
        cohort = [self._store.arrays(leaf_type, v, w) for v, w in zip(column, where, strict=True)]
        form = self._store.form((key, index), leaf_type, cohort)
        types.append(sequences.padded_type(leaf_type, form))
        leaves += self._store.stack(cohort, form, leaf_type, size, self._devices[0])
      else:
        types.append(leaf_type)
        leaves.append(_stacked(leaf_type, column, where, size))
    if not is_clients:
      leaves = [leaf[0] for leaf in leaves]
    if isinstance(type_, tff.FederatedType):
      placed = tff.FederatedType(_replaced(member, iter(types)), type_.placement, type_.all_equal)
      return placed, leaves
    if isinstance(member, tff.SequenceType):
      # The parts of an unplaced struct are its leaves; this one stays a single part.
      server = tff.FederatedType(types[0], tff.SERVER)
      return server, leaves
    return types[0], leaves


def with_parts(prog: program.Program, types: Sequence[Any]) -> program.Program:
  """A program whose parameter's parts have these types instead."""
  if prog.parameter_type is None:
    return prog
  return dataclasses.replace(prog, parameter_type=_replaced(prog.parameter_type, iter(types)))


def is_placed(type_: Any, value: Any) -> bool:
  """Whether a parameter's part is some clients of a population, and of its type."""
  if not isinstance(value, population.Clients):
    return False
  return trees.member(type_).is_assignable_from(value.population.type)


def _stacked(type_: Any, column: Sequence[Any], what: Sequence[str], size: int) -> tf.Tensor:
  result = np.zeros((size, *trees.static_shape(type_).as_list()), type_.dtype)
  for client, (leaf, name) in enumerate(zip(column, what, strict=True)):
    result[client] = trees.to_array(leaf, type_, name)
  return tf.convert_to_tensor(result)


def _replaced(type_: Any, leaves: Any) -> Any:
  """A type's form with other leaves (or placed parts), in order."""
  if isinstance(type_, tff.StructType):
    return tff.StructType(
      [(name, _replaced(element, leaves)) for name, element in trees.fields(type_)]
    )
  return next(leaves)
