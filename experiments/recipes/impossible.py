"""What a recipe says beforehand that cannot be had.

Importing this module does not import TensorFlow.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.config.experiment import ExperimentConfig, settings
from experiments.sweeps import table as sweep_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Impossible:
  """Runs that cannot be had, such as those whose budget is spent before any training.

  Attributes:
    part: the sweep.
    where: their settings by name.
    because: words of the reason; what fails for another reason was not expected.
    sentence: the reason to be read, where a verdict would need such a run.
  """

  part: str
  where: Mapping[str, Any]
  because: str
  sentence: str = ''

  def __post_init__(self):
    unknown = sorted(self.where.keys() - settings().keys())
    if unknown or not self.where:
      raise ValueError(f'runs of part {self.part} cannot be impossible by {unknown or "nothing"}.')
    if not self.because:
      raise ValueError(f'runs of part {self.part} need a reason for which they are impossible.')

  def covers(self, config: ExperimentConfig, reason: str) -> bool:
    """Whether a run that failed is one of these."""
    own = {name: sweep_table.cell(getattr(config, name)) for name in self.where}
    return own == {n: from_json(v) for n, v in self.where.items()} and self.because in reason

  def concerns(self, part: str, where: Mapping[str, Any]) -> bool:
    """Whether all runs of a part with such settings are among these."""
    return part == self.part and self.where.items() <= where.items()


def from_json(value: Any) -> Any:
  """A setting's value from JSON, which has no infinity: it is written 'inf'."""
  return float(value) if value == 'inf' else value
