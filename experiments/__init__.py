"""Experiments: from flags, or a few calls, to a folder of results.

from experiments import ExperimentConfig, build_process, load_dataset, report, run

config = ExperimentConfig(method='mr_mtl', dataset='exam', privacy='example',
                          target_epsilon=4.0, delta=1e-3, rounds=50, output_dir='results/mine')
dataset = load_dataset(config)
result = run(build_process(config, dataset))   # or at once: run(config)
print(result.report)
result.metrics.to_frame()
page = report.write(['results/mine'])
"""

import importlib
from typing import TYPE_CHECKING, Any

from experiments.config.experiment import ExperimentConfig

if TYPE_CHECKING:
  from experiments.reports import report
  from experiments.running.build import Experiment, build_plan, build_process
  from experiments.running.loading import load_dataset
  from experiments.running.parts import Callback
  from experiments.running.runner import RunResult, run

__all__ = [
  'Callback', 'Experiment', 'ExperimentConfig', 'RunResult', 'build_plan', 'build_process',
  'load_dataset', 'report', 'run',
]  # fmt: skip


def __getattr__(name: str) -> Any:
  # TensorFlow is imported with the first of these, so that flags answer at once.
  if name in ('Experiment', 'build_plan', 'build_process', 'load_dataset'):
    from experiments.running import build, loading

    return getattr(loading if name == 'load_dataset' else build, name)
  if name == 'Callback':
    return importlib.import_module('experiments.running.parts').Callback
  if name in ('RunResult', 'run'):
    from experiments.running import runner

    return getattr(runner, name)
  if name == 'report':
    return importlib.import_module('experiments.reports.report')
  raise AttributeError(name)
