"""The configuration of one experiment: every setting, its default and its checks.

The settings of all experiments are the fields of `ExperimentConfig`; those of a method come from
its declaration. The command line's flags, their help, their checks and the rule of which method or
privacy unit a flag belongs to are all read from them. Importing this module does not import
TensorFlow.

Long because it is the table of all settings but the methods'.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import datasets.registry
import processes
import processes.registry
import tff_models.registry
from experiments.config import checks as config_checks
from experiments.config import user_files
from processes import common_settings
from processes.declaration import Method
from settings import Group, Setting, did_you_mean, parse_options, show

_WITH_SMALL_CLIENTS = [e for e in datasets.registry.DATASETS.values() if e.min_examples > 1]
# Options of a data set that have a flag of their own.
DATASET_FLAGS = ('test_fraction', 'silo_column', 'target_column')


def setting_field(kind: type, default: Any, help: str, group: Group, **details: Any) -> Any:
  """A field which is a setting of all experiments; see `Setting`."""
  # The field's own default is None, 'not given': the constructor fills in the default only
  # where the setting applies, and refuses a given value elsewhere.
  own = dict(kind=kind, default=default, help=help, group=group, **details)
  return dataclasses.field(default=None, metadata={'details': own})


def shared_field(setting: Setting) -> Any:
  """A field whose setting methods read as well."""
  return dataclasses.field(default=None, metadata={'setting': setting})


@dataclasses.dataclass(frozen=True, kw_only=True, init=False)
class ExperimentConfig:
  """Everything that determines a run. Its settings are documented by `settings()`.

  A setting is given by name, and read as an attribute, the method's own as well:
  `ExperimentConfig(method='mr_mtl', mtl_lambda=0.5).mtl_lambda`. One which does not apply to the
  method or the privacy unit is None, and giving it is an error.

  Long because every setting is a field.

  Raises:
    ValueError: naming the flag, its value, and what is allowed.
    TypeError: a name which is no setting.
  """

  method: str = setting_field(
    str,
    processes.registry.DEFAULT,
    'The federated algorithm.',
    Group.EXPERIMENT,
    files='my_method.py',
  )
  method_file: str = setting_field(
    str,
    None,
    'File of a method of your own; --method=my_method.py stands for it.',
    Group.EXPERIMENT,
    files='my_method.py',
  )
  rounds: int = shared_field(common_settings.ROUNDS)
  seed: int = setting_field(
    int,
    0,
    'The public seed of splits, initial models, who opts out and the order of local batches; '
    'without privacy also of cohorts.',
    Group.EXPERIMENT,
    minimum=0,
    maximum=2**31 - 1,
  )

  dataset: str = setting_field(
    str,
    'digits',
    'The federated data set.',
    Group.DATA,
    choices=tuple(datasets.registry.DATASETS),
    files='my_table.csv',
  )
  dataset_option: tuple[str, ...] = setting_field(
    tuple, (), 'An option of the data set as name=value. May be repeated.', Group.DATA
  )
  silo_column: str = setting_field(
    str, None, 'The column that names the silo, of a table of your own.', Group.DATA
  )
  target_column: str = setting_field(
    str, None, 'The column to predict, of a table of your own.', Group.DATA
  )
  data_dir: str = setting_field(
    str,
    '',
    'Folder in which data files are looked for, and to which they are downloaded.',
    Group.DATA,
    identity=False,
  )
  test_fraction: float = setting_field(
    float,
    None,
    "Fraction of each client's examples that is kept for testing. Default: the data set's own.",
    Group.DATA,
    above=0.0,
    maximum=0.9,
  )
  min_examples: int = setting_field(
    int,
    None,
    'Clients with fewer training examples are left out: they neither train nor count in the '
    'results. Only the numbers of examples decide: public with --privacy=example, and outside of '
    "the guarantee with --privacy=client. Default: the data set's own "
    f'({", ".join(f"{e.name} {e.min_examples}" for e in _WITH_SMALL_CLIENTS)}, others 1).',
    Group.DATA,
    minimum=1,
  )
  validation_fraction: float = setting_field(
    float,
    0.0,
    "Fraction of each client's training examples that is held out: never trained on, and "
    'evaluated apart, so that a sweep can choose settings by it.',
    Group.DATA,
    minimum=0.0,
    maximum=0.5,
  )
  model: str = setting_field(
    str,
    None,
    "The model. Default: the linear model of the data set's task.",
    Group.DATA,
    choices=tuple(tff_models.registry.MODELS),
    files='my_model.py:build',
  )
  model_option: tuple[str, ...] = setting_field(
    tuple, (), 'An option of the model as name=value. May be repeated.', Group.DATA
  )
  metric: tuple[str, ...] = setting_field(
    tuple,
    (),
    'A further metric as my_metrics.py:function, of outputs and labels, a value for each example. '
    'May be repeated.',
    Group.DATA,
  )

  local_epochs: int = shared_field(common_settings.LOCAL_EPOCHS)
  batch_size: int = setting_field(
    int,
    32,
    "Examples in a client's local step. Under example-level privacy the expected number: "
    'batches are Poisson samples.',
    Group.TRAINING,
    minimum=1,
  )
  client_learning_rate: float = shared_field(common_settings.CLIENT_LEARNING_RATE)

  clients_per_round: int = setting_field(
    int,
    None,
    'Clients in a round (under Poisson sampling the expected number). Default: all.',
    Group.COHORT,
    minimum=1,
  )
  cohort_sampling_rate: float = setting_field(
    float,
    None,
    'Probability of each client to be in a round; instead of --clients_per_round.',
    Group.COHORT,
    above=0.0,
    maximum=1.0,
    symbol='cohort rate',
  )
  cohort_sampling: str = setting_field(
    str,
    'poisson',
    'How the clients of a round are drawn: each by itself; exactly --clients_per_round of them; or '
    'in public groups of about so many that take turns, so that each client rests between its '
    'rounds (separated), for noise that is correlated over the rounds.',
    Group.COHORT,
    choices=('poisson', 'fixed', 'separated'),
  )

  privacy: str = setting_field(
    str,
    'none',
    "What is protected: nothing, a client's whole data, or each example of each client (silo).",
    Group.PRIVACY,
    choices=('none', 'client', 'example'),
  )
  noise_multiplier: float = setting_field(
    float,
    None,
    'Standard deviation of the noise divided by the clipping norm.',
    Group.PRIVACY,
    minimum=0.0,
    privacy=('client', 'example'),
    symbol='noise',
  )
  noise_key: str = setting_field(
    str,
    'secret',
    'From what noise, cohorts, batches and private choices are drawn: 256 secret bits of the '
    'operating system, or (a rehearsal, which protects nobody) the public seed.',
    Group.PRIVACY,
    choices=('secret', 'rehearsal'),
    privacy=('client', 'example'),
  )
  noise_key_file: str = setting_field(
    str,
    None,
    'File with a noise key of your own, 64 hexadecimal digits that nobody else can read, for a run '
    'that is to be repeated or continued elsewhere. Default: a new key, deleted after the run.',
    Group.PRIVACY,
    is_path=True,
    privacy=('client', 'example'),
    identity=False,
  )
  target_epsilon: float = setting_field(
    float,
    None,
    'Epsilon to be reached after all rounds; finds the noise multiplier. Instead of '
    '--noise_multiplier.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
    symbol='epsilon',
  )
  batches: str = setting_field(
    str,
    'poisson',
    'How a silo draws the batches of DP-SGD: each example by itself (poisson), the same with a '
    'bound on the size (truncated_poisson), epochs in which each example falls into one batch by '
    'itself (balls_in_bins), or epochs in a random order, cut into batches (shuffled), which are '
    'accounted without amplification.',
    Group.PRIVACY,
    choices=('poisson', 'truncated_poisson', 'balls_in_bins', 'shuffled'),
    privacy=('example',),
  )
  batch_capacity: int | None = setting_field(
    int,
    None,
    'With --batches=truncated_poisson, most examples in a batch. Default: eight deviations above '
    '--batch_size.',
    Group.PRIVACY,
    above=0,
    privacy=('example',),
  )
  noise_correlation: str = setting_field(
    str,
    None,
    'With --cohort_sampling=separated, how the noise of the rounds goes together: by a banded '
    'matrix (BandMF, the default), a buffered Toeplitz matrix (BLT), a binary tree (DP-FTRL), or '
    'not.',
    Group.PRIVACY,
    choices=('banded', 'buffered', 'tree', 'independent'),
    privacy=('client',),
  )
  noise_bands: int = setting_field(
    int,
    None,
    'Bands of --noise_correlation=banded. Default: the rounds from one of a client to its next.',
    Group.PRIVACY,
    minimum=1,
    privacy=('client',),
  )
  noise_buffers: int = setting_field(
    int,
    None,
    'Buffers of --noise_correlation=buffered. Default: 3.',
    Group.PRIVACY,
    minimum=1,
    maximum=8,
    privacy=('client',),
  )
  hypothetical_deployment: bool = setting_field(
    bool,
    False,
    'Simulate the noise of a larger deployment: every epsilon is then that of the deployment, '
    'which nobody has run, and protects none of the clients who are here.',
    Group.PRIVACY,
    privacy=('client',),
  )
  noise_cohort_size: int = setting_field(
    int,
    None,
    'Clients in a round of --hypothetical_deployment, whose noise the simulated rounds get.',
    Group.PRIVACY,
    minimum=1,
    privacy=('client',),
    requires='hypothetical_deployment',
  )
  noise_population: int = setting_field(
    int,
    None,
    'Clients of --hypothetical_deployment in all. Default: those of the data set.',
    Group.PRIVACY,
    minimum=1,
    privacy=('client',),
    requires='hypothetical_deployment',
  )
  epsilon_budget: float = setting_field(
    float,
    None,
    'A filter: the run ends before the round that would take epsilon past this budget, if --rounds '
    'have not passed by then.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
  )
  ledger: str = setting_field(
    str,
    None,
    'File in which all runs on the same data are recorded, and which composes their epsilons. One '
    'is begun if there is none.',
    Group.PRIVACY,
    privacy=('client', 'example'),
    identity=False,
  )
  ledger_epsilon: float = setting_field(
    float,
    None,
    'Budget of the data: the run is refused if with the others of --ledger it would pass it, for '
    'those whom it protects or for those whom one of the others does.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
    identity=False,
  )
  silo_epsilons: str = setting_field(
    str,
    None,
    'CSV file with the columns silo and epsilon (and optionally delta), one row per '
    'silo; instead of --target_epsilon. With 2 to 6 different epsilons the silos of each are '
    'reported apart.',
    Group.PRIVACY,
    is_path=True,
    privacy=('example',),
  )
  delta: float = setting_field(
    float,
    None,
    'Delta of the (epsilon, delta) guarantee: clearly below one over the number of '
    'clients, or of examples in a silo.',
    Group.PRIVACY,
    above=0.0,
    maximum=0.5,
    privacy=('client', 'example'),
  )
  accountant: str = setting_field(
    str,
    'pld',
    'By which epsilon is computed and met: privacy loss distributions (pld), which need less noise '
    'for the same guarantee, or Renyi divergences (renyi), for results that were made with them.',
    Group.PRIVACY,
    choices=('pld', 'renyi'),
    privacy=('client', 'example'),
  )
  clipping_norm: float = setting_field(
    float,
    1.0,
    "L2 norm to which a client's update, or an example's gradient, is clipped. With "
    '--adaptive_clipping its initial value.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
  )
  adaptive_clipping: bool = setting_field(
    bool,
    False,
    'Let the clipping norm follow a private quantile of the update norms.',
    Group.PRIVACY,
    privacy=('client',),
  )
  target_quantile: float = setting_field(
    float,
    0.5,
    'Quantile of the update norms that the clipping norm follows.',
    Group.PRIVACY,
    minimum=0.0,
    maximum=1.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )
  clipping_learning_rate: float = setting_field(
    float,
    0.2,
    'Learning rate of the clipping norm (geometric updates).',
    Group.PRIVACY,
    above=0.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )
  quantile_noise_multiplier: float = setting_field(
    float,
    None,
    'Standard deviation of the noise on the count of unclipped updates. Default: '
    'the clients of a round divided by 20.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )

  eval_clients: int = setting_field(
    int,
    None,
    'Clients who are evaluated, for populations so large that all of them take too long: a random '
    'sample, the same in every run. Default: all.',
    Group.RESULTS,
    minimum=1,
  )
  eval_every: int = setting_field(
    int,
    10,
    'Rounds between evaluations; 0 evaluates before the first and after the last only.',
    Group.RESULTS,
    minimum=0,
  )
  checkpoint_every: int = setting_field(
    int,
    50,
    'Rounds between checkpoints; 0 keeps only that of the end or of an interruption.',
    Group.RESULTS,
    minimum=0,
    identity=False,
  )
  output_dir: str = setting_field(
    str,
    '',
    'Folder of the results. Default: a new folder under results/.',
    Group.RESULTS,
    identity=False,
  )
  resume: bool = setting_field(
    bool,
    False,
    'Continue the run in --output_dir from its last checkpoint.',
    Group.RESULTS,
    identity=False,
  )

  runtime: str = setting_field(
    str,
    'xla',
    "Where the process runs: one compiled XLA program, or TFF's own runtime.",
    Group.RUNTIME,
    choices=('xla', 'native'),
  )
  device: str = setting_field(
    str,
    'auto',
    'Device of the XLA runtime: cpu, gpu, several such as gpu:0,gpu:1 or (two cores) cpu,cpu, or '
    'auto: a GPU if there is one, else all cores of the CPU, or as many as TF_NUM_INTRAOP_THREADS.',
    Group.RUNTIME,
  )
  clients_per_block: int = setting_field(
    int,
    None,
    'Clients which the XLA runtime handles at once. Default: chosen for the device.',
    Group.RUNTIME,
    minimum=1,
  )
  cohort_workers: int = setting_field(
    int,
    None,
    'Worker processes over which the clients of one run are spread, with their data and states: on '
    'this machine, or on the machines of --cluster. 0: none, all in one process.',
    Group.RUNTIME,
    minimum=0,
    maximum=1024,
    identity=False,
  )
  cohort_fan_in: int = setting_field(
    int,
    None,
    'How many totals one of --cohort_workers adds up before they go on, as a tree; 0: the '
    "command's own process adds up all. It pays with hundreds of workers or large models.",
    Group.RUNTIME,
    minimum=0,
    maximum=1024,
    identity=False,
  )

  client_states: str = setting_field(
    str,
    'memory',
    "Where the clients' states are: in memory (the device's), or on disk in the folder of the run, "
    'for more clients than memory holds; of these only those of a cohort are in memory.',
    Group.RUNTIME,
    choices=('memory', 'disk'),
    identity=False,
  )

  # The settings of the method, by name: those that its declaration has.
  method_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

  def __init__(self, *, method_settings: Mapping[str, Any] | None = None, **given: Any):
    """Takes settings by name; `dataclasses.replace` gives the method's as `method_settings`."""
    given = {**(method_settings or {}), **given}
    given = with_own_method({n: value for n, value in given.items() if value is not None})
    for name in given:
      if name not in settings():
        raise TypeError(f'{name} is no setting of an experiment{did_you_mean(name, settings())}')
    values = {name: settings()[name].check(value) for name, value in given.items()}
    _expand_alias(values)
    for name in ('method', 'privacy'):  # what the others' belonging is decided by
      values.setdefault(name, settings()[name].default)
    for name in settings():
      reason = why_not(name, values)
      if reason and name in values:
        raise ValueError(f'--{name}={show(values[name])} {reason}')
      if not reason and name not in values:
        values[name] = default_of(name, values['method'])
    for name in _BASE:
      object.__setattr__(self, name, values.get(name))
    own = {name: values[name] for name in settings() if name in values and name not in _BASE}
    object.__setattr__(self, 'method_settings', own)
    config_checks.check(self)

  def with_seed(self, seed: int) -> 'ExperimentConfig':
    """The same with another seed, on which nothing else depends: it is not checked again."""
    other = object.__new__(type(self))
    vars(other).update(vars(self), seed=settings()['seed'].check(seed))
    return other

  def __getattr__(self, name: str) -> Any:
    # Only what is no field comes here. What does not apply to the method is None.
    if name in settings():
      return self.method_settings.get(name)
    raise AttributeError(f'an experiment has no setting {name}{did_you_mean(name, settings())}')

  @property
  def declaration(self) -> Method:
    """What is known of the method."""
    return processes.find(self.method)

  @property
  def dataset_options(self) -> dict[str, Any]:
    """The data set's options by name, those with a flag of their own among them."""
    is_table = datasets.registry.is_table(self.dataset)
    known = datasets.registry.find(self.dataset).options if is_table else {}
    texts = [name for name, option in known.items() if option.kind is str]
    options = parse_options('dataset_option', self.dataset_option, as_written=texts)
    for name in DATASET_FLAGS:
      value = getattr(self, name)
      if value is not None:
        if name in options:
          raise ValueError(f'--{name} and --dataset_option={name} exclude each other.')
        options[name] = value
    return options

  @property
  def model_options(self) -> dict[str, Any]:
    """The model's options by name, with numbers and truth values parsed."""
    return parse_options('model_option', self.model_option)

  @classmethod
  def from_flags(cls, flag_values) -> 'ExperimentConfig':
    """The configuration of the flags that were set explicitly, the rest by default."""
    return cls(**given_flags(flag_values))

  def to_json(self) -> dict[str, Any]:
    """The settings which apply, as a JSON object; `from_json` gives the same back."""
    result = {}
    for name in settings():
      value = getattr(self, name)
      if value is not None:
        result[name] = list(value) if isinstance(value, tuple) else value
    return result

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> 'ExperimentConfig':
    """Reads what `to_json` gave.

    Raises:
      ValueError: a name which is no setting, or a wrong value.
    """
    values = with_own_method(values)
    unknown = sorted(set(values) - set(settings()))
    if unknown:
      raise ValueError(
        f'{unknown[0]} is no setting of an experiment{did_you_mean(unknown[0], settings())}'
      )
    return cls(**values)

  @property
  def paths(self) -> dict[str, str]:
    """The files that are to be read, by the settings that name them."""
    own = {name: getattr(self, name) for name, one in settings().items() if one.is_path}
    return {name: path for name, path in own.items() if path is not None}

  @property
  def file_contents(self) -> dict[str, str]:
    """What stands in the files that make this run what it is: digests by setting."""
    return {n: user_files.digest(v) for n, v in self.to_json().items() if names_content(n, v)}

  @property
  def identity(self) -> dict[str, Any]:
    """The settings which make this run what it is: without folders and the like.

    A file counts by what it says. Budgets or strengths that were changed in it are another run,
    whose noise must not be this one's.
    """
    values = {n: v for n, v in self.to_json().items() if settings()[n].identity}
    return {**values, **self.file_contents}

  @property
  def fingerprint(self) -> str:
    """A short hash of `identity`."""
    text = json.dumps(self.identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def differences(self, other: 'ExperimentConfig') -> list[str]:
    """One line per setting of the identity which differs: flag, this, other."""
    mine, others = self.identity, other.identity
    return [
      f'--{name} is {show(mine.get(name))}, was {show(others.get(name))}'
      for name in settings()
      if mine.get(name) != others.get(name)
    ]


_BASE = {
  f.name: f.metadata.get('setting') or Setting(name=f.name, **f.metadata['details'])
  for f in dataclasses.fields(ExperimentConfig)
  if f.metadata
}


def given_flags(flag_values) -> dict[str, Any]:
  """The settings whose flags were set explicitly, by name."""
  return {
    name: flag_values[name].value
    for name in settings()
    if not flag_values[name].using_default_value
  }


def settings() -> Mapping[str, Setting]:
  """Every setting by name, those of all methods among them, in the order of the help."""
  return _table(tuple(processes.METHODS))


@functools.cache
def _table(methods: tuple[str, ...]) -> Mapping[str, Setting]:
  del methods  # a registered method makes another table
  table = {**processes.registry.settings(), **_BASE}
  table['method'] = _BASE['method'].but(choices=(*processes.METHODS, *processes.ALIASES))
  return {name: table[name] for name in (*_BASE, *table)}


def names_content(name: str, value: Any) -> bool:
  """Whether a setting's value is the path of a file whose content is part of a run's identity."""
  setting = settings()[name]
  return setting.identity and value is not None and (setting.is_path or setting.is_file(value))


def owners(name: str) -> tuple[str, ...]:
  """The methods to which the setting `name` belongs; empty for all of them."""
  return () if name in _BASE else processes.registry.owners(name)


def default_of(name: str, method: str) -> Any:
  """The value of a setting that is not given, with a method to which it applies."""
  own = processes.find(method).setting(name)
  return (own or settings()[name]).default


def why_not(name: str, values: Mapping[str, Any]) -> str:
  """Why a setting does not apply to an experiment with these values; empty if it does.

  Args:
    name: of the setting.
    values: the given settings, method and privacy among them (no alias).
  """
  setting, method, privacy = settings()[name], values['method'], values['privacy']
  if name not in _BASE and processes.find(method).setting(name) is None:
    return f'belongs to --method={" or ".join(owners(name))}; --method={method} does not use it.'
  if setting.privacy and privacy not in setting.privacy:
    units = ' or '.join(setting.privacy)
    return f'belongs to --privacy={units}; --privacy={privacy} does not use it.'
  required = setting.requires
  if required and not values.get(required, settings()[required].default):
    return f'needs --{required}.'
  return ''


def with_own_method(values: Mapping[str, Any]) -> dict[str, Any]:
  """The values with the name of the method that a user's file has; its settings are known then."""
  values = dict(values)
  named, file = values.get('method'), values.get('method_file')
  if user_files.is_method(named):
    file = values['method_file'] = named
    del values['method']
  if file is not None:
    method = user_files.method(file)
    values['method_file'] = str(pathlib.Path(file).resolve())
    if values.setdefault('method', method.name) != method.name:  # replaced by another one
      del values['method_file']
  return values


def _expand_alias(values: dict[str, Any]) -> None:
  alias = values.get('method')
  if alias not in processes.ALIASES:
    return
  values['method'], implied = processes.ALIASES[alias]
  for name, value in implied.items():
    if values.setdefault(name, value) != value:
      raise ValueError(
        f'--method={alias} stands for --method={values["method"]} with --{name}={show(value)}; '
        f'it cannot be given with --{name}={show(values[name])}.'
      )
