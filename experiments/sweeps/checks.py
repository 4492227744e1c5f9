"""What is refused of a sweep before a word is said. Importing this module imports no TensorFlow."""

import pathlib
from collections.abc import Mapping

from experiments.config import checks, sweep_flags, user_files
from experiments.config.experiment import ExperimentConfig
from experiments.sweeps import workers as sweep_workers
from runtime import memory
from runtime.hosts.cluster import check_form, import_ray
from settings import did_you_mean


def check(
  runs: Mapping[str, ExperimentConfig],
  folder: str | pathlib.Path,
  resume: bool,
  *,
  workers: int,
  cluster: str,
  select_on: str,
) -> None:
  """Refuses what no sweep can be, files that are not there, and workers that do not fit.

  Args:
    runs: by name, those that are wanted.
    folder: the sweep's; empty for a new one.
    resume, workers, cluster, select_on: see `sweep.run`.

  Raises:
    ValueError: naming the flag.
  """
  if workers < 1:
    raise ValueError(f'--workers={workers} must be at least 1.')
  if cluster:
    check_form(cluster)
    import_ray(cluster)
  if select_on not in sweep_flags.SELECT_ON:
    raise ValueError(
      f'--select_on={select_on} must be one of {", ".join(sweep_flags.SELECT_ON)}'
      f'{did_you_mean(select_on, sweep_flags.SELECT_ON)}'
    )
  if resume and not folder:
    raise ValueError('--resume needs --output_dir, the folder of the sweep to continue.')
  first = next(iter(runs.values()))
  if first.cohort_workers:
    raise ValueError(
      f'--cohort_workers={first.cohort_workers} spreads the clients of one run; a sweep is spread '
      'by --workers.'
    )
  if first.noise_key_file is not None:
    raise ValueError(
      f'--noise_key_file={first.noise_key_file} is the key of one run; every run of a sweep has '
      'its own.'
    )
  done = (pathlib.Path(folder) / 'runs' / name / 'summary.json' for name in runs)
  left = [config for config, path in zip(runs.values(), done, strict=True) if not path.exists()]
  for config in left:
    user_files.check_there(config)
    if not cluster:
      checks.check_gpu(config)
  if workers > 1 and not cluster:  # which looks at its own machine itself
    processes = min(workers, len(left))
    memory.check_room(f'--workers={workers}', processes, sweep_workers.LEAST_BYTES)
