"""The configuration of one experiment: every flag, its default and its checks.

`ExperimentConfig` is the one table of settings. The command line's flags, their
help, their checks and the rule of which method or privacy unit a flag belongs to
are all read from it. Importing this module does not import TensorFlow.
"""

import ast
import dataclasses
import enum
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import datasets.registry
import processes.registry
import tff_models.registry


class Group(enum.Enum):
  """Headings of the command line's help."""

  EXPERIMENT = 'Experiment'
  DATA = 'Data and model'
  TRAINING = 'Training'
  METHOD = 'Settings of one method'
  COHORT = 'Cohorts'
  PRIVACY = 'Privacy'
  RESULTS = 'Evaluation and results'
  RUNTIME = 'Runtime'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What is known about one field of `ExperimentConfig`, beside its name.

  Attributes:
    kind: int, float, bool, str, or tuple (a flag which may be repeated).
    default: the value where the setting applies and is not given.
    help: what it is, with its unit.
    group: heading in the help.
    minimum, maximum: closed bounds.
    above: open lower bound.
    choices: allowed strings, with one line each.
    infinite: whether a number may be `inf`.
    privacy: privacy units which it belongs to; empty for all.
    requires: name of a boolean setting that must be on.
    identity: whether two runs which differ in it are different runs. A run folder
      is not continued with another identity.
  """

  kind: type
  default: Any
  help: str
  group: Group
  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  choices: tuple[str, ...] = ()
  infinite: bool = False
  privacy: tuple[str, ...] = ()
  requires: str = ''
  identity: bool = True

  @property
  def allowed(self) -> str:
    """The allowed values in words, empty where everything of the kind is."""
    if self.choices:
      return 'one of ' + ', '.join(self.choices)
    words = []
    if self.minimum is not None:
      words.append(f'at least {_number(self.minimum)}')
    if self.above is not None:
      words.append(f'greater than {_number(self.above)}')
    if self.maximum is not None:
      words.append(f'at most {_number(self.maximum)}')
    return ' and '.join(words)

  def methods(self, name: str) -> tuple[str, ...]:
    """The methods to which the setting `name` belongs; empty for all of them."""
    return tuple(m for m, entry in processes.registry.METHODS.items() if name in entry.flags)

  def check(self, name: str, value: Any) -> Any:
    """Returns `value` in the setting's kind, or raises a `ValueError` that names it."""
    if self.kind is tuple:
      return tuple(str(v) for v in ([value] if isinstance(value, str) else value))
    if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
      value = float(value)
    if self.kind is int and isinstance(value, float) and value.is_integer():
      value = int(value)
    if not _is_of_kind(value, self.kind):
      raise ValueError(
        f'--{name}={value!r} must be {_KIND_WORDS[self.kind]}'
        + (f', {self.allowed}.' if self.allowed else '.')
      )
    if self.kind is float and not (math.isfinite(value) or (self.infinite and value > 0)):
      raise ValueError(
        f'--{name}={value} must be a finite number'
        + (f', {self.allowed}.' if self.allowed else '.')
      )
    too_small = (self.minimum is not None and value < self.minimum) or (
      self.above is not None and value <= self.above
    )
    too_large = self.maximum is not None and value > self.maximum
    not_a_choice = self.choices and value not in self.choices
    if too_small or too_large or not_a_choice:
      raise ValueError(f'--{name}={value} must be {self.allowed}.')
    return value


def _is_of_kind(value: Any, kind: type) -> bool:
  return type(value) is kind  # True is no whole number


def _number(value: float) -> str:
  return f'{value:,}' if isinstance(value, int) else f'{value:g}'


_KIND_WORDS = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'text'}


def _setting(kind: type, default: Any, help: str, group: Group, **details) -> Any:
  # The field's own default is None, 'not given': `__post_init__` fills in the
  # default only where the setting applies, and refuses a given value elsewhere.
  setting = Setting(kind=kind, default=default, help=help, group=group, **details)
  return dataclasses.field(default=None, metadata={'setting': setting})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
  """Everything that determines a run. Fields are documented by `settings()`.

  A field which does not apply to the method or the privacy unit is None, and
  giving it is an error.

  Raises:
    ValueError: naming the flag, its value, and what is allowed.
  """

  method: str = _setting(
    str,
    'fedavg',
    'The federated algorithm.',
    Group.EXPERIMENT,
    choices=(*processes.registry.METHODS, *processes.registry.ALIASES),
  )
  rounds: int = _setting(
    int, 100, 'Number of communication rounds.', Group.EXPERIMENT, minimum=1, maximum=10_000_000
  )
  seed: int = _setting(
    int,
    0,
    'The one seed of splits, cohorts, batches, noise and initial models.',
    Group.EXPERIMENT,
    minimum=0,
    maximum=2**31 - 1,
  )

  dataset: str = _setting(
    str, 'digits', 'The federated data set.', Group.DATA, choices=tuple(datasets.registry.DATASETS)
  )
  dataset_option: tuple[str, ...] = _setting(
    tuple, (), 'An option of the data set as name=value. May be repeated.', Group.DATA
  )
  data_dir: str = _setting(
    str,
    '',
    'Folder in which data files are looked for, and to which they are downloaded.',
    Group.DATA,
    identity=False,
  )
  test_fraction: float = _setting(
    float,
    None,
    "Fraction of each client's examples that is kept for testing. Default: the data set's own.",
    Group.DATA,
    minimum=0.0,
    maximum=0.9,
  )
  validation_fraction: float = _setting(
    float,
    0.0,
    "Fraction of each client's training examples that is held out: never trained on, and "
    'evaluated apart, so that a sweep can choose settings by it.',
    Group.DATA,
    minimum=0.0,
    maximum=0.5,
  )
  model: str = _setting(
    str,
    None,
    "The model. Default: the linear model of the data set's task.",
    Group.DATA,
    choices=tuple(tff_models.registry.MODELS),
  )
  model_option: tuple[str, ...] = _setting(
    tuple, (), 'An option of the model as name=value. May be repeated.', Group.DATA
  )

  local_epochs: int = _setting(
    int, 1, 'Passes of a client over its examples in a round.', Group.TRAINING, minimum=1
  )
  batch_size: int = _setting(
    int,
    32,
    "Examples in a client's local step. Under example-level privacy the expected number: "
    'batches are Poisson samples.',
    Group.TRAINING,
    minimum=1,
  )
  client_learning_rate: float = _setting(
    float, 0.1, "Learning rate of the clients' SGD.", Group.TRAINING, above=0.0
  )
  server_learning_rate: float = _setting(
    float, 1.0, "Factor on the mean of the clients' updates.", Group.TRAINING, above=0.0
  )

  mtl_lambda: float = _setting(
    float,
    1.0,
    "Strength of the pull of each client's model to the mean model, or (mocha) of the penalty "
    'by the relationship of the clients.',
    Group.METHOD,
    minimum=0.0,
  )
  regularizer_inside_clip: bool = _setting(
    bool,
    False,
    'Make the regulariser part of the per-example gradients which are clipped, '
    'instead of adding it after clipping and noise (it needs no data).',
    Group.METHOD,
    privacy=('example',),
  )
  weighting: str = _setting(
    str,
    'uniform',
    'Weights of the clients in the mean of the updates. By number of examples is '
    'only private where the counts are public.',
    Group.METHOD,
    choices=('uniform', 'examples'),
  )

  personal_learning_rate: float = _setting(
    float,
    None,
    'Learning rate of the personal models. Default: --client_learning_rate.',
    Group.METHOD,
    above=0.0,
  )
  ditto_lambda: float = _setting(
    float,
    0.1,
    'Strength of the pull of each personal model to the global model.',
    Group.METHOD,
    minimum=0.0,
  )
  opt_out_fraction: float = _setting(
    float,
    0.05,
    'Fraction of all clients who opt out of privacy; drawn once, from the clients who may '
    '(all, or those that the data set names).',
    Group.METHOD,
    minimum=0.0,
    maximum=1.0,
  )
  ratio: float = _setting(
    float,
    1.0,
    'Weight r of a private client relative to one who opted out. 0: private clients are not asked.',
    Group.METHOD,
    minimum=0.0,
    maximum=1.0,
  )
  personalize: bool = _setting(
    bool, True, 'Train personal models (Ditto) beside the global one.', Group.METHOD
  )
  ditto_lambda_private: float = _setting(
    float,
    0.1,
    "Strength of the pull of private clients' personal models to the global model.",
    Group.METHOD,
    minimum=0.0,
    requires='personalize',
  )
  ditto_lambda_non_private: float = _setting(
    float,
    0.1,
    "Strength of the pull of opted-out clients' personal models to the global model.",
    Group.METHOD,
    minimum=0.0,
    requires='personalize',
  )
  personalization_alpha: float = _setting(
    float,
    1.0,
    "Step size of the shared part over that of the personal part (the paper's alpha times the "
    'clients of a round). 0: nothing is shared; inf: nothing is personal.',
    Group.METHOD,
    minimum=0.0,
    infinite=True,
  )
  minibatch_weighting: str = _setting(
    str,
    'average',
    "A client's gradient: the mean over its minibatch, or the sum.",
    Group.METHOD,
    choices=('average', 'sum'),
  )
  iterate: str = _setting(
    str,
    'last',
    'Which iterate is evaluated: the last one, or the average of all.',
    Group.METHOD,
    choices=('last', 'average'),
  )
  personal_layers: str = _setting(
    str,
    'last',
    'What is personal: the last layer, or all parameters.',
    Group.METHOD,
    choices=('last', 'all'),
  )
  finetune_fraction: float = _setting(
    float,
    0.5,
    'Fraction of the rounds after which every client goes on alone.',
    Group.METHOD,
    minimum=0.0,
    maximum=1.0,
  )
  mocha_penalty: str = _setting(
    str,
    'inverse',
    'Penalty by the inverse of the relationship matrix, as in the literature, or by the matrix '
    "itself, as in the cross-silo paper's program.",
    Group.METHOD,
    choices=('inverse', 'relationship'),
  )
  mocha_eigenvalue_floor: float = _setting(
    float,
    0.1,
    'Smallest eigenvalue of the relationship matrix, relative to its mean eigenvalue.',
    Group.METHOD,
    above=0.0,
  )
  num_clusters: int = _setting(
    int, 4, 'Number of cluster models.', Group.METHOD, minimum=1, maximum=1000
  )
  selection_score: str = _setting(
    str,
    'auto',
    'By what a client chooses its cluster: error rate, loss of each example clipped, mean loss '
    'clipped, or what suits the model.',
    Group.METHOD,
    choices=('auto', 'error_rate', 'loss', 'mean_loss'),
  )
  selection_fraction: float = _setting(
    float,
    0.1,
    'Fraction of the rounds, from the first on, in which clients choose their cluster.',
    Group.METHOD,
    minimum=0.0,
    maximum=1.0,
  )
  selection_epsilon: float = _setting(
    float,
    None,
    'Epsilon of one private choice of a cluster. Default: --selection_epsilon_share of the '
    'smallest target epsilon.',
    Group.METHOD,
    above=0.0,
    privacy=('example',),
  )
  selection_epsilon_share: float = _setting(
    float,
    0.03,
    'Epsilon of one private choice of a cluster as a share of the target epsilon.',
    Group.METHOD,
    above=0.0,
    maximum=1.0,
    privacy=('example',),
  )
  selection_loss_clip: float = _setting(
    float,
    1.0,
    'Upper bound to which losses are clipped in a private choice.',
    Group.METHOD,
    above=0.0,
    privacy=('example',),
  )
  cluster_init_stddev: float = _setting(
    float,
    None,
    "Standard deviation of convex cluster models' random starts. Default: one over the root of "
    'the number of features.',
    Group.METHOD,
    above=0.0,
  )
  after_clustering: str = _setting(
    str,
    'mr_mtl',
    'What runs inside each cluster once the choices are frozen.',
    Group.METHOD,
    choices=('mr_mtl', 'local', 'fedavg', 'finetune'),
  )

  clients_per_round: int = _setting(
    int,
    None,
    'Clients in a round (under Poisson sampling the expected number). Default: all.',
    Group.COHORT,
    minimum=1,
  )
  cohort_sampling_rate: float = _setting(
    float,
    None,
    'Probability of each client to be in a round; instead of --clients_per_round.',
    Group.COHORT,
    above=0.0,
    maximum=1.0,
  )
  cohort_sampling: str = _setting(
    str,
    'poisson',
    'How the clients of a round are drawn: each by itself, or exactly --clients_per_round of them.',
    Group.COHORT,
    choices=('poisson', 'fixed'),
  )

  privacy: str = _setting(
    str,
    'none',
    "What is protected: nothing, a client's whole data, or each example of each client (silo).",
    Group.PRIVACY,
    choices=('none', 'client', 'example'),
  )
  noise_multiplier: float = _setting(
    float,
    None,
    'Standard deviation of the noise divided by the clipping norm.',
    Group.PRIVACY,
    minimum=0.0,
    privacy=('client', 'example'),
  )
  target_epsilon: float = _setting(
    float,
    None,
    'Epsilon to be reached after all rounds; finds the noise multiplier. Instead of '
    '--noise_multiplier.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
  )
  silo_epsilons: str = _setting(
    str,
    None,
    'CSV file with the columns silo and epsilon (and optionally delta), one row per '
    'silo; instead of --target_epsilon.',
    Group.PRIVACY,
    privacy=('example',),
  )
  delta: float = _setting(
    float,
    None,
    'Delta of the (epsilon, delta) guarantee: clearly below one over the number of '
    'clients, or of examples in a silo.',
    Group.PRIVACY,
    above=0.0,
    maximum=0.5,
    privacy=('client', 'example'),
  )
  clipping_norm: float = _setting(
    float,
    1.0,
    "L2 norm to which a client's update, or an example's gradient, is clipped. With "
    '--adaptive_clipping its initial value.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client', 'example'),
  )
  adaptive_clipping: bool = _setting(
    bool,
    False,
    'Let the clipping norm follow a private quantile of the update norms.',
    Group.PRIVACY,
    privacy=('client',),
  )
  target_quantile: float = _setting(
    float,
    0.5,
    'Quantile of the update norms that the clipping norm follows.',
    Group.PRIVACY,
    minimum=0.0,
    maximum=1.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )
  clipping_learning_rate: float = _setting(
    float,
    0.2,
    'Learning rate of the clipping norm (geometric updates).',
    Group.PRIVACY,
    above=0.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )
  quantile_noise_multiplier: float = _setting(
    float,
    None,
    'Standard deviation of the noise on the count of unclipped updates. Default: '
    'the clients of a round divided by 20.',
    Group.PRIVACY,
    above=0.0,
    privacy=('client',),
    requires='adaptive_clipping',
  )

  eval_every: int = _setting(
    int,
    10,
    'Rounds between evaluations; 0 evaluates before the first and after the last only.',
    Group.RESULTS,
    minimum=0,
  )
  checkpoint_every: int = _setting(
    int,
    50,
    'Rounds between checkpoints; 0 keeps only that of the end or of an interruption.',
    Group.RESULTS,
    minimum=0,
    identity=False,
  )
  output_dir: str = _setting(
    str,
    '',
    'Folder of the results. Default: a new folder under results/.',
    Group.RESULTS,
    identity=False,
  )
  resume: bool = _setting(
    bool,
    False,
    'Continue the run in --output_dir from its last checkpoint.',
    Group.RESULTS,
    identity=False,
  )

  runtime: str = _setting(
    str,
    'xla',
    "Where the process runs: one compiled XLA program, or TFF's own runtime.",
    Group.RUNTIME,
    choices=('xla', 'native'),
  )
  device: str = _setting(
    str,
    'auto',
    'Device of the XLA runtime: cpu, gpu, several such as gpu:0,gpu:1 or (two cores) cpu,cpu, or '
    'auto: a GPU if there is one, else all cores of the CPU.',
    Group.RUNTIME,
  )
  clients_per_block: int = _setting(
    int,
    None,
    'Clients which the XLA runtime handles at once. Default: chosen for the device.',
    Group.RUNTIME,
    minimum=1,
  )

  def __post_init__(self):
    given = {name for name in settings() if getattr(self, name) is not None}
    for name in given:
      self._set(name, settings()[name].check(name, getattr(self, name)))
    self._expand_alias()
    for name in ('method', 'privacy'):  # what the others' belonging is decided by
      if getattr(self, name) is None:
        self._set(name, settings()[name].default)
    for name, setting in settings().items():
      reason = self._why_not(name, setting)
      if reason and name in given:
        raise ValueError(f'--{name}={_show(getattr(self, name))} {reason}')
      if not reason and getattr(self, name) is None:
        self._set(name, setting.default)
    self._check_method()
    self._check_privacy()
    self._check_cohorts()
    self._check_options()
    self._check_runtime()

  def _set(self, name: str, value: Any):
    object.__setattr__(self, name, value)

  def _expand_alias(self):
    if self.method not in processes.registry.ALIASES:
      return
    alias, (method, values) = self.method, processes.registry.ALIASES[self.method]
    self._set('method', method)
    for name, value in values.items():
      own = getattr(self, name)
      if own is not None and own != value:
        raise ValueError(
          f'--method={alias} stands for --method={method} with --{name}={_show(value)}; '
          f'it cannot be given with --{name}={_show(own)}.'
        )
      self._set(name, value)

  def _why_not(self, name: str, setting: Setting) -> str:
    """Why a setting does not apply here; empty if it does."""
    methods = setting.methods(name)
    if methods and self.method not in methods:
      return f'belongs to --method={" or ".join(methods)}; --method={self.method} does not use it.'
    if setting.privacy and self.privacy not in setting.privacy:
      units = ' or '.join(setting.privacy)
      return f'belongs to --privacy={units}; --privacy={self.privacy} does not use it.'
    if setting.requires and not getattr(self, setting.requires):
      return f'needs --{setting.requires}.'
    return ''

  def _check_method(self):
    units = processes.registry.METHODS[self.method].privacy_units
    if self.privacy not in units:
      raise ValueError(
        f'--privacy={self.privacy} is not offered by --method={self.method}; '
        f'use one of {", ".join(units)}.'
      )

  def _check_privacy(self):
    if self.privacy == 'none':
      return
    if self.privacy == 'client' and self.weighting == 'examples':
      raise ValueError(
        '--weighting=examples cannot be used with --privacy=client, because weights by counts '
        'leak the counts; use --weighting=uniform.'
      )
    budgets = [
      name
      for name in ('noise_multiplier', 'target_epsilon', 'silo_epsilons')
      if getattr(self, name) is not None
    ]
    if len(budgets) > 1:
      raise ValueError(
        f'--{budgets[0]}={getattr(self, budgets[0])} and '
        f'--{budgets[1]}={getattr(self, budgets[1])} exclude each other; give one.'
      )
    if not budgets:
      raise ValueError(
        f'--privacy={self.privacy} needs --noise_multiplier or --target_epsilon'
        + (' or --silo_epsilons.' if self.privacy == 'example' else '.')
      )
    if self.delta is None and budgets != ['silo_epsilons']:
      raise ValueError(
        f'--privacy={self.privacy} needs --delta, clearly below one over the number of '
        + ('clients' if self.privacy == 'client' else 'examples in a silo')
        + ', such as --delta=1e-5.'
      )

  def _check_cohorts(self):
    if self.clients_per_round is not None and self.cohort_sampling_rate is not None:
      raise ValueError(
        f'--clients_per_round={self.clients_per_round} and '
        f'--cohort_sampling_rate={self.cohort_sampling_rate} exclude each other; give one.'
      )
    if self.cohort_sampling == 'fixed' and self.clients_per_round is None:
      raise ValueError('--cohort_sampling=fixed needs --clients_per_round.')

  def _check_options(self):
    entry = datasets.registry.DATASETS[self.dataset]
    if self.test_fraction is not None and 'test_fraction' not in entry.options:
      raise ValueError(
        f'--test_fraction={self.test_fraction} does not apply to --dataset={self.dataset}, '
        'whose test examples are fixed.'
      )
    try:
      entry.resolve(self.dataset_options)
    except ValueError as error:
      raise ValueError(f'--dataset_option: {error}') from error
    if self.model is None:
      if self.model_option:
        raise ValueError(f'--model_option={self.model_option[0]} needs --model.')
      return
    allowed = tff_models.registry.MODELS[self.model].options
    for name in self.model_options:
      if name not in allowed:
        raise ValueError(
          f'--model_option={name} is no option of --model={self.model}; '
          + (f'it has {", ".join(allowed)}.' if allowed else 'it has none.')
        )

  def _check_runtime(self):
    if not re.fullmatch(r'auto|cpu(,cpu)*|gpu(:\d+)?(,gpu:\d+)*', self.device):
      raise ValueError(
        f'--device={self.device} must be auto, cpu, gpu, or several such as gpu:0,gpu:1 or (two '
        'cores) cpu,cpu.'
      )
    if self.runtime == 'native':
      if self.device not in ('auto', 'cpu'):
        raise ValueError(f'--device={self.device} needs --runtime=xla; native runs on the CPU.')
      if self.clients_per_block is not None:
        raise ValueError(f'--clients_per_block={self.clients_per_block} belongs to --runtime=xla.')

  @property
  def dataset_options(self) -> dict[str, Any]:
    """The data set's options by name, --test_fraction among them."""
    options = _parse_options('dataset_option', self.dataset_option)
    if self.test_fraction is not None:
      if 'test_fraction' in options:
        raise ValueError('--test_fraction and --dataset_option=test_fraction exclude each other.')
      options['test_fraction'] = self.test_fraction
    return options

  @property
  def model_options(self) -> dict[str, Any]:
    """The model's options by name, with numbers and truth values parsed."""
    return _parse_options('model_option', self.model_option)

  @classmethod
  def from_flags(cls, flag_values) -> 'ExperimentConfig':
    """The configuration of the flags that were set explicitly, the rest by default."""
    return cls(
      **{
        name: flag_values[name].value
        for name in settings()
        if not flag_values[name].using_default_value
      }
    )

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
    unknown = sorted(set(values) - set(settings()))
    if unknown:
      raise ValueError(f'{unknown[0]} is no setting of an experiment.')
    return cls(**values)

  @property
  def identity(self) -> dict[str, Any]:
    """The settings which make this run what it is: without folders and the like."""
    return {name: v for name, v in self.to_json().items() if settings()[name].identity}

  @property
  def fingerprint(self) -> str:
    """A short hash of `identity`."""
    text = json.dumps(self.identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def differences(self, other: 'ExperimentConfig') -> list[str]:
    """One line per setting of the identity which differs: flag, this, other."""
    mine, others = self.identity, other.identity
    return [
      f'--{name} is {_show(mine.get(name))}, was {_show(others.get(name))}'
      for name in settings()
      if mine.get(name) != others.get(name)
    ]


_SETTINGS = {f.name: f.metadata['setting'] for f in dataclasses.fields(ExperimentConfig)}


def settings() -> Mapping[str, Setting]:
  """Every setting by name, in the order of the help."""
  return _SETTINGS


def _show(value: Any) -> str:
  if value is None:
    return 'not given'
  if isinstance(value, bool):
    return str(value).lower()
  return ','.join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _parse_options(flag: str, texts: tuple[str, ...]) -> dict[str, Any]:
  result = {}
  for text in texts:
    name, equals, value = text.partition('=')
    if not (name and equals and value):
      raise ValueError(f'--{flag}={text} must have the form name=value.')
    if name in result:
      raise ValueError(f'--{flag}={text} gives {name} a second time.')
    result[name] = _parse_value(value)
  return result


def _parse_value(text: str) -> Any:
  if text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
