"""TFF's execution context over the members of a crew: an ordinary program's clients go to them."""

import collections
import dataclasses
import warnings
from collections.abc import Hashable
from typing import Any

import numpy as np
import tensorflow as tf

from runtime import interface, trees
from runtime.xla import context as context_lib
from runtime.xla import executable, explanation, lowered, program, stages

_LENT = 4  # cohorts, or populations, whose values the members keep


class HostsContext(context_lib.XlaContext):
  """Runs TFF computations; the clients' work of a compiled one is done by the members.

  The clients' values are read here, as `XlaContext` does it, and member m of N is sent those of
  the clients from m n / N to (m + 1) n / N of a list of n. Of a population that was placed
  (`place`) each member keeps its own, which are sent once. What is not compiled as a whole, and
  what has nothing at CLIENTS, runs here.
  """

  def __init__(self, machine: Any):
    """Makes the context of a `HostsRuntime`, which is kept until `leave`."""
    super().__init__(devices='cpu')
    self._machine = machine
    self._lent: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    # By program's id: the program, and why it runs here.
    self._here: dict[int, tuple[Any, str]] = {}

  def leave(self) -> None:
    """Sends nothing to the members from now on."""
    self._lent.clear()
    self._machine = None

  def explain(self, computation: Any) -> explanation.Explanation:
    """Says of each part how it is run, as `XlaContext` does, and where."""
    found = super().explain(computation)
    prog = self.program(computation)
    if self._machine is None or not _has_clients(prog):
      return found
    reason = ''
    if not found.is_compiled:
      reason = 'it is not compiled as a whole'
    elif id(prog) in self._here:
      reason = self._here[id(prog)][1]
    where = (
      f'clients go through in this process: {reason}'
      if reason
      else f'clients go through on {self._machine.num_workers} workers'
    )
    return dataclasses.replace(found, where=where)

  def _compiled_whole(self, key: Hashable, prog, parts, count) -> list[Any] | None:
    how, machine = self._lowering(key, prog), self._machine
    if machine is None or how.reasons or id(prog) in self._here or not _has_clients(prog):
      return super()._compiled_whole(key, prog, parts, count)
    types = None
    if how.is_needed:
      found = self._lowered.placed(key, how, parts, count)
      if found is None:
        return None
      types, leaves, rows = found
    else:
      leaves, rows = context_lib.stacked_parts(parts, count)
    own_types = types or [type_ for type_, _ in parts]
    given = [
      self._of_clients(of_part, type_, part, count) if stages.is_client_part(type_) else of_part
      for of_part, type_, part in zip(leaves, own_types, parts, strict=True)
    ]
    is_serial = bool(how.serial_reasons)
    try:
      result = _again_if_lost(
        machine, lambda: machine.call(prog, types, given, rows, is_serial=is_serial)
      )
    except lowered.NOT_TRACED as error:
      reason = executable.reason_of(error)
      if types is not None and not is_serial:
        how.serial_reasons.append(reason)
      else:
        self._here[id(prog)] = (prog, reason)
      return self._compiled_whole(key, prog, parts, count)
    return [[tf.convert_to_tensor(leaf) for leaf in of_part] for of_part in result]

  def _of_clients(self, leaves, type_, part, count: int) -> Any:
    """What stands for clients' values; that of data sets is kept, since they come again."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    if not lowered.is_placed(*part):  # padded; of nobody, a row says what a client's would be
      arrays = [array[: max(1, count)] for array in arrays]
    if not program.has_sequence(trees.member(part[0])):
      return self._machine.lend(arrays, type_)
    key = (len(arrays[0]), *map(id, leaves))
    if key not in self._lent:
      # The leaves are kept, so that their ids are not given to others.
      self._lent[key] = (leaves, self._machine.lend(arrays, type_))
    self._lent.move_to_end(key)
    while len(self._lent) > _LENT:
      self._lent.popitem(last=False)
    return self._lent[key][1]


def _has_clients(prog) -> bool:
  type_ = prog.parameter_type
  return type_ is not None and any(
    stages.is_client_part(part) and trees.leaf_types(part) for part in program.placed_parts(type_)
  )


def _again_if_lost(machine: Any, call: Any) -> Any:
  """Makes a call once more if a member is lost in it, unless clients' states are lost with him."""
  try:
    return call()
  except interface.MemberLostError:
    recovery = machine.recover()
    if not recovery.keeps_states:
      raise
    warnings.warn(f'{recovery.words}; its clients go through again.', RuntimeWarning, stacklevel=2)
    return call()
