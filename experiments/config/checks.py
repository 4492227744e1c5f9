"""Checks of settings which depend on one another."""

import ctypes
import pathlib
import re
from typing import Any

import datasets.registry
import tff_models.registry
from experiments.config import user_files
from settings import did_you_mean

# Of methods that are federated -> what any method may have.
OF_COHORTS = {'clients_per_round': None, 'cohort_sampling_rate': None, 'cohort_sampling': 'poisson'}
_GPU_DRIVER = 'libcuda.so.1'  # which TensorFlow opens


def check(config: Any) -> None:
  """Raises a `ValueError` for an `ExperimentConfig` whose settings do not go together."""
  _check_method(config)
  _check_privacy(config)
  _check_cohorts(config)
  _check_options(config)
  _check_runtime(config)


def check_gpu(config: Any) -> None:
  """Refuses an `ExperimentConfig` that asks for a GPU on a machine that has no driver of one.

  TensorFlow, once it has been waited for, says so as well. The workers of `cohort_workers` are on
  machines of their own.

  Raises:
    ValueError: naming the flag and its value.
  """
  if 'gpu' not in config.device or config.cohort_workers:
    return
  try:
    ctypes.CDLL(_GPU_DRIVER)
  except OSError as error:
    raise ValueError(
      f'--device={config.device}: this machine has no driver of an NVIDIA GPU ({error}); check '
      'nvidia-smi, or take --device=cpu.'
    ) from error


def _check_method(config: Any) -> None:
  method = config.declaration
  if config.privacy not in method.privacy_units:
    raise ValueError(
      f'--privacy={config.privacy} is not offered by --method={config.method}; '
      f'use one of {", ".join(method.privacy_units)}.'
    )
  method.check(config)


def _check_privacy(config: Any) -> None:
  if config.privacy == 'none':
    return
  budgets = [
    name
    for name in ('noise_multiplier', 'target_epsilon', 'silo_epsilons')
    if getattr(config, name) is not None
  ]
  if len(budgets) > 1:
    raise ValueError(
      f'--{budgets[0]}={getattr(config, budgets[0])} and '
      f'--{budgets[1]}={getattr(config, budgets[1])} exclude each other; give one.'
    )
  if not budgets:
    raise ValueError(
      f'--privacy={config.privacy} needs --noise_multiplier or --target_epsilon'
      + (' or --silo_epsilons.' if config.privacy == 'example' else '.')
    )
  for name, more in (('ledger', ', which need not exist'), ('noise_key_file', '')):
    path = getattr(config, name)
    if path is not None and pathlib.Path(path).exists() and not pathlib.Path(path).is_file():
      what = 'a folder' if pathlib.Path(path).is_dir() else 'no ordinary file'
      raise ValueError(f'--{name}={path} is {what}; give a file{more}.')
  if config.ledger_epsilon is not None and config.ledger is None:
    raise ValueError(f'--ledger_epsilon={config.ledger_epsilon:g} needs --ledger.')
  if config.ledger is not None and config.noise_key == 'rehearsal':
    raise ValueError(
      f'--ledger={config.ledger} records what protects somebody; --noise_key=rehearsal does not.'
    )
  if config.noise_key == 'rehearsal' and config.noise_key_file is not None:
    raise ValueError(
      f'--noise_key=rehearsal and --noise_key_file={config.noise_key_file} exclude each other.'
    )
  if config.hypothetical_deployment:
    _check_hypothetical(config)
  if config.batch_capacity is not None and config.batches != 'truncated_poisson':
    raise ValueError(f'--batch_capacity={config.batch_capacity} needs --batches=truncated_poisson.')
  if config.delta is None and budgets != ['silo_epsilons']:
    raise ValueError(
      f'--privacy={config.privacy} needs --delta, clearly below one over the number of '
      + ('clients' if config.privacy == 'client' else 'examples in a silo')
      + ', such as --delta=1e-5.'
    )


def _check_hypothetical(config: Any) -> None:
  if config.noise_cohort_size is None:
    raise ValueError(
      '--hypothetical_deployment needs --noise_cohort_size, the clients in one of its rounds.'
    )
  if config.ledger is not None:
    raise ValueError(
      f'--ledger={config.ledger} records what the clients of the data have spent; '
      "--hypothetical_deployment's epsilon is not theirs."
    )
  if config.adaptive_clipping:
    raise ValueError(
      '--hypothetical_deployment needs one --clipping_norm; give no --adaptive_clipping.'
    )
  if config.cohort_sampling == 'separated':
    raise ValueError(
      '--cohort_sampling=separated cannot be used with --hypothetical_deployment, whose cohorts '
      'are Poisson samples.'
    )


def _check_cohorts(config: Any) -> None:
  if not config.declaration.federated:
    for name, default in OF_COHORTS.items():
      value = getattr(config, name)
      if value != default:
        raise ValueError(
          f'--{name}={value} cannot be used with --method={config.method}, which is not federated: '
          'the only client has all data, and is in every round.'
        )
  if config.clients_per_round is not None and config.cohort_sampling_rate is not None:
    raise ValueError(
      f'--clients_per_round={config.clients_per_round} and '
      f'--cohort_sampling_rate={config.cohort_sampling_rate} exclude each other; give one.'
    )
  if config.cohort_sampling in ('fixed', 'separated') and config.clients_per_round is None:
    raise ValueError(f'--cohort_sampling={config.cohort_sampling} needs --clients_per_round.')
  if config.cohort_sampling == 'separated':
    if config.privacy == 'example':
      raise ValueError(
        '--cohort_sampling=separated cannot be used with --privacy=example, where silos draw their '
        'own noise.'
      )
    if config.privacy == 'client' and config.adaptive_clipping:
      raise ValueError(
        '--cohort_sampling=separated cannot be used with --adaptive_clipping: the noise of '
        'different rounds belongs together, and needs one --clipping_norm.'
      )
  elif config.noise_correlation is not None:
    raise ValueError(
      f'--noise_correlation={config.noise_correlation} needs --cohort_sampling=separated.'
    )
  for name, owner in (('noise_bands', 'banded'), ('noise_buffers', 'buffered')):
    value, asked = getattr(config, name), config.noise_correlation
    if asked is None and config.cohort_sampling == 'separated' and config.privacy == 'client':
      asked = 'banded'
    if value is not None and asked != owner:
      raise ValueError(f'--{name}={value} needs --noise_correlation={owner}.')


def _check_options(config: Any) -> None:
  for text in config.metric:
    user_files.check_form('metric', text)
  entry = datasets.registry.find(config.dataset)
  if config.test_fraction is not None and 'test_fraction' not in entry.options:
    raise ValueError(
      f'--test_fraction={config.test_fraction} does not apply to --dataset={config.dataset}, '
      'whose test examples are fixed.'
    )
  for name in ('silo_column', 'target_column'):
    value, is_table = getattr(config, name), datasets.registry.is_table(config.dataset)
    if is_table and value is None:
      raise ValueError(
        f'--dataset={config.dataset} needs --silo_column, the column that names the silo, and '
        '--target_column, the column to predict.'
      )
    if value is not None and not is_table:
      raise ValueError(
        f'--{name}={value} belongs to a table of your own, such as --dataset=my_table.csv; '
        f'--dataset={config.dataset} does not use it.'
      )
  try:
    entry.resolve(config.dataset_options)
  except ValueError as error:
    raise ValueError(f'--dataset_option: {error}') from error
  if config.model is None:
    if config.model_option:
      raise ValueError(f'--model_option={config.model_option[0]} needs --model.')
    return
  if config.model not in tff_models.registry.MODELS:
    user_files.check_form('model', config.model)
    return  # a user's own, whose function knows its options
  allowed = tff_models.registry.MODELS[config.model].options
  for name in config.model_options:
    if name not in allowed:
      raise ValueError(
        f'--model_option={name} is no option of --model={config.model}; '
        + (
          f'it has {", ".join(allowed)}{did_you_mean(name, allowed)}' if allowed else 'it has none.'
        )
      )
  try:
    tff_models.registry.MODELS[config.model].resolve(config.model_options)
  except ValueError as error:
    raise ValueError(f'--model_option: {error}') from error


def _check_runtime(config: Any) -> None:
  if not re.fullmatch(r'auto|cpu(,cpu)*|gpu(:\d+)?(,gpu:\d+)*', config.device):
    raise ValueError(
      f'--device={config.device} must be auto, cpu, gpu, or several such as gpu:0,gpu:1 or (two '
      'cores) cpu,cpu.'
    )
  if config.runtime == 'native':
    if config.device not in ('auto', 'cpu'):
      raise ValueError(f'--device={config.device} needs --runtime=xla; native runs on the CPU.')
    if config.clients_per_block is not None:
      raise ValueError(f'--clients_per_block={config.clients_per_block} belongs to --runtime=xla.')
    if config.cohort_workers:
      raise ValueError(f'--cohort_workers={config.cohort_workers} belongs to --runtime=xla.')
  if config.cohort_fan_in:
    if not config.cohort_workers:
      raise ValueError(f'--cohort_fan_in={config.cohort_fan_in} needs --cohort_workers.')
    if config.cohort_fan_in == 1:
      raise ValueError('--cohort_fan_in=1 adds nothing up: 0, or at least 2 is expected.')
  if config.cohort_workers and re.search('[,:]', config.device):
    raise ValueError(
      f'--device={config.device}: each of --cohort_workers={config.cohort_workers} has one device: '
      'cpu, or gpu, of which Ray gives each its own.'
    )
