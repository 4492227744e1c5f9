"""Tables of a recipe's runs as the real ones are, with any values."""

import re

import pandas as pd

from experiments.sweeps import table as sweep_table


def of_part(recipe, part, metrics, rng):
  """A part's runs as the real table has them, with any values."""
  runs = recipe.grid(part).runs()
  shown = sweep_table.columns(list(runs.values()))
  rows = [
    {
      'setting': re.sub(r',?seed=\d+$', '', name),
      **{setting: sweep_table.cell(getattr(config, setting)) for setting in shown},
    }
    for name, config in runs.items()
  ]
  frame = pd.DataFrame(rows)
  return pd.concat(
    frame.assign(group=group, metric=metric, value=rng.uniform(0.4, 0.6, size=len(frame)))
    for metric, group in metrics
  )
