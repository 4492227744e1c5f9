"""Conditions, and the optionals in which a branch leaves values for its gradient.

The gradient of a condition needs the intermediate values of the branch that was taken.
TensorFlow hands them on as optionals: the first of one branch and the first of another are the
same result of the condition, whatever they hold. XLA has none. So where branches leave optionals
all of them are computed, and the results of one taken: what each would hold is then at hand.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import datasets, interpreter, varying

_Interpreter = interpreter.Interpreter
_Branch = Callable[[], Sequence[Any]]
_MADE = frozenset(['OptionalFromValue', 'OptionalNone'])


def _if(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  predicate = inputs[0]
  if predicate.dtype != tf.bool:
    predicate = tf.not_equal(predicate, tf.zeros([], predicate.dtype))
  known = tf.get_static_value(predicate)
  index = tf.reshape(tf.cast(predicate, tf.int32), []) if known is None else tf.constant(int(known))
  names = [node.attr[branch].func.name for branch in ('else_branch', 'then_branch')]
  return _branch(interp, index, names, inputs)


def _case(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  names = [f.name for f in node.attr['branches'].list.func]
  last = len(names) - 1
  known = tf.get_static_value(inputs[0])
  if known is not None:
    index = tf.constant(int(known) if 0 <= known <= last else last)
  else:
    index = tf.where((inputs[0] >= 0) & (inputs[0] < last), inputs[0], last)
  return _branch(interp, index, names, inputs)


def _branch(
  interp: _Interpreter, index: tf.Tensor, names: Sequence[str], inputs: list[Any]
) -> list[Any]:
  """What one of several functions gives."""
  which, *arguments = inputs

  def of_branch(number):
    """The gradient of a condition takes of each choice what its own branch left."""
    own = (a.optionals[number] if _is_made_by(a, which) else a for a in arguments)
    return interp.call(names[number], list(own))

  known = tf.get_static_value(index)
  if known is not None:
    return of_branch(int(known))
  branches = [functools.partial(of_branch, number) for number in range(len(names))]
  ops = set().union(*map(interp.ops_called, names))
  # XLA may end the process where a size that varies goes into a condition, or comes out of one.
  varies = bool(interp.session.bounds) and any(map(varying.is_varying, arguments))
  if not ops & _MADE and not varies:
    return interp.switch(index, branches)
  return _all_computed(interp, which, index, branches)


def _is_made_by(argument: Any, which: tf.Tensor) -> bool:
  return isinstance(argument, datasets.Choice) and argument.which is which


def _all_computed(
  interp: _Interpreter, which: tf.Tensor, index: tf.Tensor, branches: Sequence[_Branch]
) -> list[Any]:
  """The results of one branch; its optionals are chosen where they are asked for."""
  before = dict(interp.state)
  made = []
  for number, branch in enumerate(branches):
    interp.state = dict(before)
    with interp.session.only_where(tf.equal(index, number)):
      made.append((list(branch()), interp.state))
  interp.state = before
  outputs: list[Any] = [
    datasets.Choice(which=which, index=index, optionals=of_branches)
    if all(isinstance(o, datasets.Optional) for o in of_branches)
    else None
    for of_branches in zip(*(results for results, _ in made), strict=True)
  ]

  def taken(results, state):
    interp.state = dict(state)
    return [r for r, choice in zip(results, outputs, strict=True) if choice is None]

  selects = bool(interp.session.bounds)
  chosen = [functools.partial(taken, *one) for one in made]
  rest = iter(interp.switch(index, chosen, selects=selects))
  return [next(rest) if choice is None else choice for choice in outputs]


def _from_value(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del interp, node
  return [datasets.Optional(has_value=tf.constant(True), value=lambda: inputs)]


def _none(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del interp, node, inputs
  return [datasets.Optional(has_value=tf.constant(False), value=None)]


def _value(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del node
  (optional,) = inputs
  if isinstance(optional, datasets.Optional):
    if optional.value is None:
      raise datasets.NotLowered('the value of an optional that has none')
    return optional.value()
  elements = [None if o.value is None else o.value() for o in optional.optionals]
  full = [e for e in elements if e is not None]
  specs = [[(tensor.dtype, tensor.shape.as_list()) for tensor in e] for e in full]
  if not full or any(s != specs[0] for s in specs):
    raise datasets.NotLowered('an optional of unlike values outside of the gradient of a condition')
  return _chosen(interp, optional, [full[0] if e is None else e for e in elements])


def _chosen(
  interp: _Interpreter, choice: datasets.Choice, elements: Sequence[datasets.Element]
) -> list[Any]:
  branches: list[_Branch] = [functools.partial(list, element) for element in elements]
  return interp.switch(choice.index, branches)


def _has_value(interp: _Interpreter, node: Any, inputs: list[Any]) -> list[Any]:
  del node
  (optional,) = inputs
  if isinstance(optional, datasets.Optional):
    return [optional.has_value]
  return _chosen(interp, optional, [[o.has_value] for o in optional.optionals])


HANDLERS: dict[str, interpreter.Handler] = dict(
  Case=_case,
  If=_if,
  StatelessCase=_case,
  StatelessIf=_if,
)
OPTIONALS: dict[str, interpreter.Handler] = dict(
  OptionalFromValue=_from_value,
  OptionalGetValue=_value,
  OptionalHasValue=_has_value,
  OptionalNone=_none,
)
