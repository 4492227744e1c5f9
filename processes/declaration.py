"""The declaration of a method: all that is known of it before it is built.

It imports no TensorFlow, so that `--help` and a wrong flag answer at once. The algorithm itself,
and what it takes from the data, are in another module, which is imported when the method is built.
"""

import dataclasses
import enum
import functools
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any

from settings import Setting


class EndPoint(enum.Enum):
  """The two ends of personalisation, between which the other methods lie."""

  LOCAL = 'every client has a model of its own'
  GLOBAL = 'one model for all'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A method as it is declared, once, in its own package or file.

  Attributes:
    name: value of `--method`.
    title: what figures and tables call it; by default its name.
    summary: one line.
    citation: the paper.
    privacy_units: values of `--privacy` that it has.
    settings: its own settings, with their defaults; refused with methods that lack them. One that
      several methods share has one declaration (`processes.common_settings`), of which a method
      may take another default: `MTL_LAMBDA.but(default=0.001)`.
    personal: whether clients keep a model (client state).
    federated: whether clients keep their data; if not, they are pooled first.
    has_stateful_reports: whether what a client sends may depend on the rounds in which it took part
      before, as by a state of its own. Cohorts of a fixed size are then accounted for as if all
      knew who takes part. Only False says that it does not.
    passes: how often a round trains on a client's data: twice for a method with a global
      and a personal model. Example-level privacy accounts for each.
    privacy_notes: sentences which the privacy statement of a client-level run adds.
    compared_groups: pairs of its groups of clients; of each the difference of the means over
      clients is reported, first minus second.
    end_point: which end of personalisation it is, if one; reports draw it as a reference.
    keyed_setup: whether its `Setup` draws from the noise key, without which it cannot be built
      again.
    stiff_settings: settings which, like the learning rate, make training diverge when they are too
      large.
    aliases: names that stand for the method with some settings given.
    check: raises a `ValueError` for a configuration (any object with the settings as
      attributes) that the method cannot take. Called for this method only.
    module: where `build(spec)` is, and, if it takes anything from the data, its `Setup`
      (`processes.setup`). By default `processes.NAME.process`.
  """

  name: str
  title: str = ''
  summary: str
  citation: str
  privacy_units: tuple[str, ...]
  settings: tuple[Setting, ...] = ()
  personal: bool = False
  federated: bool = True
  has_stateful_reports: bool = True
  passes: int = 1
  privacy_notes: tuple[str, ...] = ()
  compared_groups: tuple[tuple[str, str], ...] = ()
  end_point: EndPoint | None = None
  keyed_setup: bool = False
  stiff_settings: tuple[str, ...] = ()
  aliases: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict, hash=False)
  check: Callable[[Any], None] = lambda config: None
  module: str = ''

  def __post_init__(self):
    if not self.name.isidentifier():
      raise ValueError(f'method {self.name!r}: a name must be an identifier, such as mr_mtl.')
    unknown = set(self.privacy_units) - {'none', 'client', 'example'}
    if unknown or not self.privacy_units:
      raise ValueError(
        f'method {self.name}: privacy_units are {self.privacy_units}; they must be one or more of '
        'none, client, example.'
      )
    names = [setting.name for setting in self.settings]
    if len(set(names)) < len(names):
      raise ValueError(f'method {self.name} declares a setting twice: {", ".join(names)}.')
    if not self.title:
      object.__setattr__(self, 'title', self.name)
    if not self.module:
      object.__setattr__(self, 'module', f'processes.{self.name}.process')

  @functools.cached_property
  def _by_name(self) -> Mapping[str, Setting]:
    return {setting.name: setting for setting in self.settings}

  def setting(self, name: str) -> Setting | None:
    """Its own declaration of a setting, if it has one."""
    return self._by_name.get(name)

  @property
  def implementation(self) -> types.ModuleType:
    """The module with `build`; imports TensorFlow."""
    return importlib.import_module(self.module)

  def setup(self, config: Any, population: Any, noise_key: Any = None) -> Any:
    """Its `processes.setup.Setup` for a configuration and a `Population`; imports TensorFlow."""
    own = getattr(self.implementation, 'Setup', None)
    if own is None:
      own = importlib.import_module('processes.setup').Setup
    return own(config, population, noise_key)
