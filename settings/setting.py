"""One setting of an experiment: what it is, what is allowed, where it applies."""

import dataclasses
import enum
import math
import numbers
import os
from typing import Any

from settings.wording import did_you_mean

LARGEST = 3.4e38  # of a float32


class Group(enum.Enum):
  """Headings of the command line's help."""

  EXPERIMENT = 'Experiment'
  DATA = 'Data and model'
  TRAINING = 'Training'
  METHOD = 'Settings of one method'
  COHORT = 'Cohorts'
  PRIVACY = 'Privacy'
  RESULTS = 'Evaluation and results'
  RUNTIME = 'Runtime'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A setting, declared once: its flag, help, checks and default are read from here.

  Attributes:
    name: of the flag, and of the attribute of a configuration.
    kind: int, float, bool, str, or tuple (a flag which may be repeated).
    default: the value where the setting applies and is not given.
    help: what it is, with its unit.
    group: heading in the help. A method's `float` in TRAINING or METHOD is a continuous
      hyper-parameter, a tensor of its process.
    minimum, maximum: closed bounds.
    above: open lower bound.
    choices: allowed strings.
    files: an example of the user's own files that are allowed beside the choices; none if empty.
    is_path: whether its value is the path of a file to read.
    infinite: whether a number may be `inf`.
    privacy: privacy units which it belongs to; empty for all.
    requires: name of a boolean setting that must be on.
    same_as: name of the setting whose value it has where it is not given.
    symbol: what a figure calls it; by default its name.
    ends: values of a continuous setting at which nothing is shared, and nothing is personal;
      reports then draw what lies between.
    identity: whether two runs which differ in it are different runs. A run folder
      is not continued with another identity.
  """

  name: str
  kind: type
  default: Any
  help: str
  group: Group = Group.METHOD
  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  choices: tuple[str, ...] = ()
  files: str = ''
  is_path: bool = False
  infinite: bool = False
  privacy: tuple[str, ...] = ()
  requires: str = ''
  same_as: str = ''
  symbol: str = ''
  ends: tuple[float, float] | None = None
  identity: bool = True

  def __post_init__(self):
    if self.kind not in _KIND_WORDS and self.kind is not tuple:
      raise ValueError(f'setting {self.name}: its kind is {self.kind}, which no flag has.')
    if not self.name.isidentifier() or self.name != self.name.lower():
      raise ValueError(f'setting {self.name!r}: a name must be lower case, like mtl_lambda.')
    if self.default is not None:
      self.check(self.default)

  def but(self, **changes: Any) -> 'Setting':
    """The same setting with another default, or other help, for one method."""
    return dataclasses.replace(self, **changes)

  @property
  def continuous(self) -> bool:
    """Whether it is a number that a method may take as a tensor."""
    return self.kind is float and self.group in (Group.TRAINING, Group.METHOD)

  @property
  def allowed(self) -> str:
    """The allowed values in words, empty where everything of the kind is."""
    if self.choices:
      own = f', or a file of your own, {self.files}' if self.files else ''
      return 'one of ' + ', '.join(self.choices) + own
    words = []
    if self.minimum is not None:
      words.append(f'at least {_number(self.minimum)}')
    if self.above is not None:
      words.append(f'greater than {_number(self.above)}')
    if self.maximum is not None:
      words.append(f'at most {_number(self.maximum)}')
    return ' and '.join(words)

  def check(self, value: Any) -> Any:
    """Returns `value` in the setting's kind, or raises a `ValueError` that names it."""
    name = self.name
    if self.kind is tuple:
      return tuple(_at_home(str(v)) for v in ([value] if isinstance(value, str) else value))
    value = _at_home(value)
    if self.infinite and value == 'inf':  # as JSON files have it
      value = math.inf
    if not isinstance(value, bool):  # also those of NumPy
      if isinstance(value, numbers.Integral):
        value = int(value)
      elif isinstance(value, numbers.Real):
        value = float(value)
      if self.kind is float and isinstance(value, int):
        value = float(value)
    if self.kind is int and isinstance(value, float) and value.is_integer():
      value = int(value)
    if not _is_of_kind(value, self.kind):
      raise ValueError(f'--{name}={value!r} must be {_KIND_WORDS[self.kind]}{self._bounds_too}.')
    if self.kind is float and not (math.isfinite(value) or (self.infinite and value > 0)):
      raise ValueError(f'--{name}={value} must be a finite number{self._bounds_too}.')
    too_small = (self.minimum is not None and value < self.minimum) or (
      self.above is not None and value <= self.above
    )
    if self.kind is float and LARGEST < abs(value) < math.inf:
      raise ValueError(f'--{name}={value} must be at most {LARGEST:g}, as float32 holds it.')
    too_large = self.maximum is not None and value > self.maximum
    if too_small or too_large:
      raise ValueError(f'--{name}={value} must be {self.allowed}.')
    if self.choices and value not in self.choices and not self.is_file(value):
      raise ValueError(
        f'--{name}={value} must be {self.allowed}{did_you_mean(value, self.choices)}'
      )
    return value

  @property
  def _bounds_too(self) -> str:
    return f', {self.allowed}' if self.allowed else ''

  def is_file(self, value: Any) -> bool:
    """Whether a value names a file of a user's own, where there may be one."""
    return bool(self.files) and isinstance(value, str) and ('.' in value or ':' in value)


def _is_of_kind(value: Any, kind: type) -> bool:
  return type(value) is kind  # True is no whole number


def _at_home(value: Any) -> Any:
  """A path that begins with ~, which a shell leaves as it is in --flag=~/path."""
  is_path = isinstance(value, str) and value.startswith('~')
  return os.path.expanduser(value) if is_path else value


def _number(value: float) -> str:
  return f'{value:,}' if isinstance(value, int) else f'{value:g}'


_KIND_WORDS = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'text'}
