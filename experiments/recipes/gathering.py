"""Runs what verdicts need of a recipe, in two steps if it says so, and keeps it as evidence.

A recipe with `tuning_seeds` runs every setting with the first seeds only; then, with the seeds
that judge, those settings that a claim reads: a verdict is the same as from the whole grid, for a
fraction of the time. What was run so far stands in the evidence when a recipe is stopped, and it is
gone on with from there, on another machine as well.
"""

import contextlib
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

import pandas as pd

from experiments.recipes import evidence, reproduce
from experiments.recipes.evidence import Evidence
from experiments.recipes.recipes import Recipe
from experiments.running import interruption
from experiments.sweeps import table as sweep_table

Tables = Mapping[str, pd.DataFrame]
# The tables of what was run -> (part, setting) that claims read.
Reads = Callable[[Tables], Set[tuple[str, str]]]


def gather(
  recipe: Recipe,
  *,
  output: pathlib.Path,
  used: Collection[tuple[str, str]],
  reads: Reads,
  date: str,
  extra: Sequence[str] = (),
  workers: int = 1,
) -> Evidence:
  """Runs what is left of a recipe, and stores the numbers that claims read.

  Args:
    recipe: which.
    output: folder of its runs.
    used: metrics and groups that claims read.
    reads: which settings are read with the seeds that judge, for a recipe in two steps.
    date: ISO.
    extra: flags beside the recipe's.
    workers: see `sweep.run`.

  Raises:
    Interrupted: a signal came; what is finished is stored.
    ValueError: runs that failed and were not expected to.
  """
  runs = {
    part: {
      name: (sweep_table.setting_of(name), config.seed)
      for name, config in recipe.grid(part).runs().items()
    }
    for part in recipe.parts
  }
  earlier = evidence.begun(recipe)

  def store(tables: Tables, *, complete: bool) -> Evidence:
    commits = evidence.commits_of(recipe, output)
    if earlier is not None:
      tables, commits = joined(earlier.tables, tables), commits | set(earlier.commits)
    return evidence.write(recipe, tables, used, date=date, commits=commits, complete=complete)

  @contextlib.contextmanager
  def kept_if_stopped() -> Iterator[None]:
    try:
      yield
    except interruption.Interrupted:
      tables = reproduce.finished(recipe, output)
      if earlier is not None or any(len(table) for table in tables.values()):
        store(tables, complete=False)
      raise

  known = set() if earlier is None else ran(earlier.tables)
  first = {p: set(recipe.grid(p).seeds[: recipe.tuning_seeds]) for p in recipe.parts}
  wanted: Set[tuple[str, str]] = set()
  while True:
    only = {
      part: [
        name
        for name, (setting, seed) in of_part.items()
        if (part, setting, seed) not in known
        and (not recipe.tuning_seeds or seed in first[part] or (part, setting) in wanted)
      ]
      for part, of_part in runs.items()
    }
    with kept_if_stopped():
      tables = reproduce.run(recipe, output=output, extra=extra, workers=workers, only=only)
    if not recipe.tuning_seeds:
      return store(tables, complete=True)
    more = wanted | reads(store(tables, complete=False).tables)
    if more == wanted:
      return store(tables, complete=True)
    wanted = more


def joined(earlier: Tables, now: Tables) -> dict[str, pd.DataFrame]:
  """The numbers of two sets of runs of one recipe; those of now where both have one."""
  keys = ['setting', 'seed', 'group', 'metric']
  return {
    part: pd.concat([now[part], earlier[part]], ignore_index=True).drop_duplicates(keys)
    for part in now
  }


def ran(tables: Tables) -> set[tuple[str, str, int]]:
  """The runs that tables are of: (part, setting, seed)."""
  return {
    (part, str(setting), int(seed))
    for part, table in tables.items()
    for setting, seed in table[['setting', 'seed']].drop_duplicates().itertuples(index=False)
  }
