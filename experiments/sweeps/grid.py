"""The grid of a sweep: its runs, their names, and which of them share a program.

Importing this module does not import TensorFlow.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import processes
from experiments.config import checks, user_files
from experiments.config.experiment import ExperimentConfig, names_content, settings, why_not
from settings import Group, did_you_mean

# The guarantee's numbers: they reach a program as tensors.
BUDGETS = ('noise_multiplier', 'target_epsilon', 'silo_epsilons', 'delta')
_LONGEST_NAME = 160
_MOST_SEEDS = 1_000_000
# What makes no other run, or the same in other words: a further metric is in every run's table.
_NOT_SWEPT = ('seed', 'runtime', 'device', 'metric')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
  """What a sweep runs: all combinations of its axes' values, with every seed.

  A swept setting belongs to some combinations only where the method or the privacy
  unit is swept as well. It is left out of the others, which then come once: methods
  `local` and `mr_mtl` with two values of `mtl_lambda` are three settings. What belongs to the
  method or the privacy unit of no combination is refused.

  Attributes:
    base: the settings that all runs have, by name.
    axes: the swept settings with their values; `a+b` are two settings which always have
      the same value.
    seeds: the seeds; each combination is run with each.
  """

  base: Mapping[str, Any]
  axes: Mapping[str, tuple[Any, ...]]
  seeds: tuple[int, ...]

  def __post_init__(self):
    _load_methods(self.base, self.axes)
    if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
      raise ValueError(f'--seeds={_words(self.seeds)} must be one or more different numbers.')
    for name, values in self.axes.items():
      for one in name.split('+'):
        if one not in _sweepable():
          end = did_you_mean(one, _sweepable())
          raise ValueError(f'axes: {one} is no setting that can be swept{end}')
      if not isinstance(values, tuple | list) or not values:
        raise ValueError(f'axes: {name} is {values!r}; give a tuple of its values.')
      if len(set(values)) != len(values):
        raise ValueError(f'--sweep={name}={_words(values)} has a value twice.')

  @classmethod
  def parse(cls, base: Mapping[str, Any], sweeps: Sequence[str], seeds: Sequence[str]) -> 'Grid':
    """Reads the flags `--sweep` (name=value,value,...) and `--seeds` (0,1,2 or 0-4).

    They take the place of what `base` says, which may come from a flagfile; of a repeated
    flag (`dataset_option`) they replace the option of the same name.

    Raises:
      ValueError: naming the flag, its value, and what is allowed.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for text in sweeps:
      name, equals, values = text.partition('=')
      if not (name and equals and values):
        raise ValueError(f'--sweep={text} must have the form name=value,value,....')
      for one in name.split('+'):
        if any(one in other.split('+') for other in axes):
          raise ValueError(f'--sweep={text} gives {one} a second time.')
        _check_axis(one, text, values)
      for one in name.split('+'):
        axes[name] = tuple(_value(one, v) for v in values.split(','))
    swept = {one for name in axes for one in name.split('+')}
    seed = base.get('seed', settings()['seed'].default)
    return cls(
      base={
        name: value for name, value in base.items()
        if name != 'seed' and (name not in swept or settings()[name].kind is tuple)
      },
      axes=axes,
      seeds=_seeds(seeds) if seeds else (seed,),
    )  # fmt: skip

  def runs(self) -> dict[str, ExperimentConfig]:
    """Every run's configuration by its name, the seeds of a setting side by side.

    Raises:
      ValueError: a combination that is no experiment, and which one; a swept setting that belongs
        to none of them.
    """
    result: dict[str, ExperimentConfig] = {}
    used: set[str] = set()
    reasons: dict[str, str] = {}
    for chosen in self._combinations():
      reasons = {name: _why_not(name, {**self.base, **chosen}) for name in chosen}
      chosen = {name: value for name, value in chosen.items() if not reasons[name]}
      used.update(chosen)
      config = None
      for seed in self.seeds:
        name = run_name({**chosen, 'seed': seed})
        if name in result:
          continue
        try:
          if config is None:
            config = ExperimentConfig(**_merged(self.base, chosen), seed=seed)
          result[name] = config.with_seed(seed)
        except ValueError as error:
          remedy = self._remedy(str(error), chosen)
          raise ValueError(f'the setting {name} of the sweep: {error}{remedy}') from error
    for names, values in self.axes.items():
      first, *others = names.split('+')
      if used.isdisjoint([first, *others]) and reasons[first].startswith('belongs'):
        raise ValueError(f'--sweep={names}={_words(values)}: {first} {reasons[first]}')
    return result

  def _combinations(self) -> Iterator[dict[str, Any]]:
    """The values of all swept settings, also of those that do not apply, seeds apart."""
    for values in itertools.product(*self.axes.values()):
      yield {
        name: value
        for names, value in zip(self.axes, values, strict=True)
        for name in names.split('+')
      }

  def _remedy(self, error: str, chosen: Mapping[str, Any]) -> str:
    """What to do about fixed settings that a combination would ignore; empty if none is at fault.

    They are refused and not left out: a setting that some runs ignore must be asked for as such.
    """

    def is_idle(name: str, of: Mapping[str, Any]) -> bool:
      return bool(_why_not(name, {**self.base, **of}))

    idle = {
      name: f'--sweep={name}={_word(value)}'
      for name, value in self.base.items()
      if name in _sweepable() and name not in chosen and settings()[name].kind is not tuple
      and is_idle(name, chosen) and not all(is_idle(name, of) for of in self._combinations())
    }  # fmt: skip
    if not any(f'--{name}=' in error for name in idle):
      return ''
    return (
      f' Give {" ".join(idle.values())} instead: what is swept is left out where it is not used.'
    )

  @property
  def file_contents(self) -> dict[str, str]:
    """What stands in the files that its settings name: digests by 'setting=path'."""
    swept = itertools.chain(*(
      itertools.product(names.split('+'), values) for names, values in self.axes.items()
    ))  # fmt: skip
    return {
      f'{name}={value}': user_files.digest(value)
      for name, value in (*self.base.items(), *swept)
      if names_content(name, value)
    }

  def to_json(self) -> dict[str, Any]:
    """The grid as JSON; `from_json` gives it back."""
    return {
      'base': {n: list(v) if isinstance(v, tuple) else v for n, v in self.base.items()},
      'axes': {n: list(v) for n, v in self.axes.items()},
      'seeds': list(self.seeds),
    }

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Grid':
    """Reads what `to_json` gave."""
    _load_methods(value['base'], value['axes'])
    base = {n: settings()[n].check(v) for n, v in value['base'].items()}
    axes = {}
    for names, values in value['axes'].items():
      name = names.partition('+')[0]
      is_option = settings()[name].kind is tuple
      axes[names] = tuple(v if is_option else settings()[name].check(v) for v in values)
    return cls(base=base, axes=axes, seeds=tuple(value['seeds']))


def _load_methods(base: Mapping[str, Any], axes: Mapping[str, Iterable[Any]]) -> None:
  """Loads the methods of users' own files that a grid names: their settings are known then."""
  swept = (values for names, values in axes.items() if 'method' in names.split('+'))
  for named in (base.get('method_file'), base.get('method'), *itertools.chain(*swept)):
    if user_files.is_method(named):
      user_files.method(named)


def run_name(values: Mapping[str, Any]) -> str:
  """A folder's name that says what a run is: 'mtl_lambda=0.1,seed=3'."""
  text = ','.join(f'{name}={_word(value)}' for name, value in values.items())
  name = re.sub(r'[^A-Za-z0-9_.,=+-]', '_', text)
  if name == text and len(name) <= _LONGEST_NAME:
    return name
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return f'{name[: _LONGEST_NAME - 9]}-{digest}'


def programs(
  runs: Mapping[str, ExperimentConfig], workers: int = 1, together: Iterable[Sequence[str]] = ()
) -> list[list[str]]:
  """The names of the runs in groups which can be one program each.

  Runs share a program if they differ in continuous settings of training, method and
  privacy and in their seeds only. (Whether a continuous setting really is a tensor of
  the method's program is seen when it is built.)

  Args:
    runs: configurations by name.
    workers: groups are split until there are so many, or cannot be split.
    together: names that stay in one group, since they have begun in one.
  """
  begun = {name: tuple(names) for names in together for name in names}
  groups: dict[str, dict[tuple[str, ...], None]] = collections.defaultdict(dict)
  for name, config in runs.items():
    groups[program_key(config)][begun.get(name, (name,))] = None
  result = [list(units) for units in groups.values()]
  while len(result) < workers and (divisible := [units for units in result if len(units) > 1]):
    largest = max(divisible, key=lambda units: sum(map(len, units)))
    result.remove(largest)
    half = (len(largest) + 1) // 2
    result += [largest[:half], largest[half:]]
  return [[*itertools.chain(*units)] for units in result]


def program_key(config: ExperimentConfig) -> str:
  """What two configurations of one program have in common."""
  identity = {n: v for n, v in config.identity.items() if n != 'seed' and not _continuous(n)}
  return json.dumps(identity, sort_keys=True)


def differing(a: ExperimentConfig, b: ExperimentConfig) -> set[str]:
  """Names of the settings in which two configurations differ."""
  first, second = a.identity, b.identity
  return {name for name in {*first, *second} if first.get(name) != second.get(name)}


def is_hyperparameter(name: str) -> bool:
  """Whether a setting is a continuous value that a method may take as a tensor."""
  return settings()[name].continuous


def _check_axis(name: str, text: str, values: str) -> None:
  if name == 'seed':
    raise ValueError(f'--sweep={text}: give the seeds as --seeds={values}.')
  if name not in _sweepable():
    raise ValueError(
      f'--sweep={text}: {name} is no setting that can be swept{did_you_mean(name, _sweepable())}'
    )


def _sweepable() -> list[str]:
  return [n for n, setting in settings().items() if setting.identity and n not in _NOT_SWEPT]


def _continuous(name: str) -> bool:
  setting = settings()[name]
  privacy = setting.kind is float and setting.group is Group.PRIVACY
  return is_hyperparameter(name) or privacy or name in BUDGETS


def _why_not(name: str, values: Mapping[str, Any]) -> str:
  """Why a setting does not apply to the experiment with these values; empty if it does."""
  defaults = {n: settings()[n].default for n in ('method', 'privacy')}
  method = values.get('method', defaults['method'])
  if user_files.is_method(method):
    method = user_files.method(method).name
  method, implied = processes.ALIASES.get(method, (method, {}))
  reason = why_not(name, {**defaults, **implied, **values, 'method': method})
  if not reason and name in checks.OF_COHORTS and not processes.find(method).federated:
    return f'belongs to methods that are federated; --method={method} does not use it.'
  return reason


def _merged(base: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
  """The base with the chosen values; of a repeated flag the same option is replaced."""
  merged = dict(base)
  for name, value in chosen.items():
    if settings()[name].kind is tuple:
      option = value.partition('=')[0] + '='
      others = tuple(v for v in merged.get(name, ()) if not v.startswith(option))
      value = (*others, value)
    merged[name] = value
  return merged


def _value(name: str, text: str) -> Any:
  """A value of a setting from its text."""
  kind = settings()[name].kind
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    value = kind(text) if kind in (int, float) else text
  except ValueError:
    value = text  # refused below, in words that name the flag
  return value if kind is tuple else settings()[name].check(value)


def _seeds(texts: Iterable[str]) -> tuple[int, ...]:
  seeds: list[int] = []
  for text in texts:
    found = re.fullmatch(r'(\d+)(?:-(\d+))?', text.strip())
    if not found:
      raise ValueError(f'--seeds={text} must be whole numbers from 0, such as 0,1,2 or 0-4.')
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
      raise ValueError(f'--seeds={text}: the first must not be above the last, as in 0-4.')
    settings()['seed'].check(last)
    if last - first >= _MOST_SEEDS:
      raise ValueError(f'--seeds={text} must be at most {_MOST_SEEDS:,} seeds.')
    seeds += range(first, last + 1)
  return tuple(seeds)


def _word(value: Any) -> str:
  if isinstance(value, bool):
    return str(value).lower()
  return f'{value:.12g}' if isinstance(value, float) else str(value)


def _words(values: Iterable[Any]) -> str:
  return ','.join(_word(v) for v in values)
