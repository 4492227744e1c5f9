"""A sweep's folder: what it is to run, in which folders, and what is done.

Importing this module does not import TensorFlow.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.config import continuing, launcher, sweep_flags
from experiments.config.experiment import ExperimentConfig, settings
from experiments.folder import files, noise_keys, results
from experiments.sweeps.grid import Grid
from settings import show


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
  """How a sweep is run, which does not change its numbers; see `sweep.run`."""

  workers: int = 1
  cluster: str = ''
  select_on: str = sweep_flags.VALIDATION

  def to_json(self) -> dict[str, Any]:
    """The attributes by name."""
    return dataclasses.asdict(self)


_DEFAULT = How()
_NONE: Mapping[str, str] = {}


def is_finished(config: ExperimentConfig) -> bool:
  """Whether a run has its results in its folder."""
  return (pathlib.Path(config.output_dir) / 'summary.json').exists()


def configs(grid: Grid, folder: pathlib.Path) -> dict[str, ExperimentConfig]:
  """The configurations of a sweep's runs by name, each with its own folder."""
  return {
    name: dataclasses.replace(config, output_dir=str(folder / 'runs' / name))
    for name, config in grid.runs().items()
  }


def num_settings(grid: Grid) -> int:
  """How many settings a sweep compares on the same data."""
  return len(grid.runs()) // len(grid.seeds)


def read_grid(folder: pathlib.Path) -> Grid:
  """The grid of a sweep's folder.

  Raises:
    ValueError: it holds no sweep.
  """
  try:
    return Grid.from_json(json.loads((folder / 'sweep.json').read_text())['grid'])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{folder} holds no sweep that can be read: {error}') from error


def continued(
  folder: pathlib.Path, given: Mapping[str, Any], sweeps: Sequence[str], seeds: Sequence[str]
) -> Grid:
  """The grid of a sweep that goes on, and of the flags beside `--resume` what may differ.

  Args:
    folder: the sweep's.
    given: the settings that were given, without `output_dir` and `resume`.
    sweeps: values of `--sweep`; none for the folder's own.
    seeds: values of `--seeds`; likewise.

  Raises:
    ValueError: a flag contradicts the folder.
  """
  where, grid = f'--output_dir={folder}', read_grid(folder)
  given = dict(given)
  seed = given.pop('seed', None)
  named = 'seeds' if seeds else 'seed'
  seeds = seeds or ([] if seed is None else [str(seed)])
  asked = Grid.parse({}, sweeps, seeds)
  for flag, texts, now, earlier in (
    ('sweep', sweeps, asked.axes, grid.axes), (named, seeds, asked.seeds, grid.seeds),
  ):  # fmt: skip
    if texts and now != earlier:
      raise ValueError(
        f'--{flag}={",".join(texts)} contradicts {where}, which was begun with {_show(earlier)}; '
        'leave the flag out to continue, or choose another folder.'
      )
  swept = {one for name in grid.axes for one in name.split('+')}
  if sweeps:  # which take the place of such flags, as when the sweep was begun
    given = {n: v for n, v in given.items() if n not in swept}
  for name in given.keys() & swept:
    raise ValueError(
      f'--{name}={show(given[name])} contradicts {where}, which sweeps {name}; leave the flag out '
      'to continue, or choose another folder.'
    )
  # What says what is run names its files as the grid's axes do.
  began_in = json.loads((folder / 'sweep.json').read_text()).get('working_folder', '')
  own = {n: v for n, v in grid.base.items() if not settings()[n].identity}
  base = {**grid.base, **continuing.as_begun(own, began_in)}
  base = continuing.merged(base, given, where, complete=False)
  return dataclasses.replace(grid, base=base)


def take(path: pathlib.Path, grid: Grid, resume: bool, how: How = _DEFAULT) -> bool:
  """Takes a fresh folder, or one of this very sweep; whether it is fresh.

  Raises:
    ValueError: the folder holds something else, or this sweep and `resume` is false.
  """
  if not (path / 'sweep.json').exists():
    others = sorted(p.name for p in path.iterdir() if not p.name.startswith('.'))
    if others and others != ['logs']:
      raise ValueError(
        f'--output_dir={path} holds {others[0]} and no sweep; choose an empty or a new folder.'
      )
    write(path, grid, [], how)
    return True
  earlier, now = read_grid(path).to_json(), grid.to_json()
  for record in (earlier, now):  # The same data may have been moved, as those of a run may.
    record['base'] = {n: v for n, v in record['base'].items() if not continuing.may_differ(n)}
  for part in ('base', 'axes', 'seeds'):
    if earlier[part] != now[part]:
      before, asked = _differing(earlier[part], now[part])
      what = {'base': 'its base has', 'axes': 'its axes are', 'seeds': 'its seeds are'}[part]
      raise ValueError(
        f'--output_dir={path} holds another sweep: {what} {_show(before)}, not {_show(asked)}. '
        'Choose another folder.'
      )
  contents = json.loads((path / 'sweep.json').read_text()).get('file_contents', {})
  results.check_contents(f'--output_dir={path}', contents, grid.file_contents)
  if not resume:
    raise ValueError(
      f'--output_dir={path} holds this sweep already; continue it with {launcher.resume(path)} or '
      'choose another folder.'
    )
  write(path, grid, [], how)  # Workers read in it where the data are now.
  return False


def leave(path: pathlib.Path, runs: Mapping[str, ExperimentConfig], *, fresh: bool) -> bool:
  """Removes what is left of runs that had no round; whether the whole sweep had none.

  Args:
    path: the sweep's folder, locked.
    runs: all of its runs by name.
    fresh: whether the sweep was begun now: then it is removed as well if none of its runs had a
      round, but for what its workers had to say.
  """
  begun = False
  for config in runs.values():
    folder = pathlib.Path(config.output_dir)
    if (folder / 'config.json').exists():
      begun = True
    elif folder.exists():
      noise_keys.forget(folder)
      _remove_if_empty(folder)
  if fresh and not begun:
    for name in ('sweep.json', 'table.parquet', 'table.csv'):
      (path / name).unlink(missing_ok=True)
    for log in (path / 'logs').glob('*.log'):
      if not log.stat().st_size:
        log.unlink()
    for name in ('runs', 'checkpoints', 'logs'):
      _remove_if_empty(path / name)
  return not begun


def _remove_if_empty(folder: pathlib.Path) -> None:
  with contextlib.suppress(OSError):
    folder.rmdir()


def _differing(earlier: Any, now: Any) -> tuple[Any, Any]:
  """Of two mappings what is not the same in both; anything else as it is."""
  if not isinstance(earlier, Mapping):
    return earlier, now
  same = {n for n in earlier.keys() & now.keys() if earlier[n] == now[n]}
  first, second = ({n: v for n, v in of.items() if n not in same} for of in (earlier, now))
  return first, second


def _show(value: Any) -> str:
  if isinstance(value, Mapping):
    return ', '.join(f'{name}={show(v)}' for name, v in value.items()) or 'none'
  return show(value)


def write(
  path: pathlib.Path,
  grid: Grid,
  selection: list[dict[str, Any]],
  how: How = _DEFAULT,
  failures: Mapping[str, str] = _NONE,
) -> None:
  """Writes sweep.json: the grid, how it is run, the best settings, and what failed, with why."""
  files.write_json(
    path / 'sweep.json',
    {
      'grid': grid.to_json(),
      'file_contents': grid.file_contents,
      'working_folder': os.getcwd(),
      'how': how.to_json(),
      'selection': selection,
      'failures': dict(failures),
    },
  )


def read_failures(folder: pathlib.Path) -> dict[str, str]:
  """The runs of a folder's sweep that failed when it was last run, each with the reason."""
  return json.loads((folder / 'sweep.json').read_text()).get('failures', {})


def in_words(failures: Mapping[str, str]) -> list[str]:
  """What failed, and why: a sentence for each reason."""
  by_reason: dict[str, list[str]] = {}
  for name, reason in failures.items():
    by_reason.setdefault(' '.join(reason.split()), []).append(name)
  return [f'{_together(names)}: {reason}' for reason, names in by_reason.items()]


def _together(names: Sequence[str]) -> str:
  """Some runs in few words: how many, and the settings that all of them have."""
  first, *others = [name.split(',') for name in names]
  if not others:
    return names[0]
  common = [setting for setting in first if all(setting in other for other in others)]
  return f'{len(names)} runs' + (f' with {",".join(common)}' if common else f', such as {names[0]}')


def read_how(folder: pathlib.Path) -> 'How':
  """How the sweep of a folder was last run; the defaults where it does not say."""
  return How(**json.loads((folder / 'sweep.json').read_text()).get('how', {}))
