"""The form of a method: two functions, assembled into a TFF iterative process.

Every method of this project has one communication pattern. The server broadcasts
its state, without its secrets; each client turns it, its own state and its data into a
new client state and a *report*; the reports are summed, and only the sum reaches the server. So a
method's file holds what is its own: what a client does, and what the server makes of
the sum. As all aggregation is a sum, it can be run by secure summation, and its
sensitivity is read off one line.

Long because what a method gives, what is built of it and how are read together.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import runtime.ending  # noqa: F401 (so that TFF's runtime ends quietly)
from privacy.sampling import FixedSizeCohorts
from processes import common_settings as common
from processes import slips
from processes.declaration import Method
from processes.examples import sums_of_examples
from runtime import random_streams
from runtime.noise_key import NOISE_KEY, NUM_WORDS, SECRETS, NoiseKey
from settings import Setting
from tff_models import model as model_lib

Tree = collections.OrderedDict
GLOBAL = 'global'  # the evaluation of the server's model alone
CLUSTER = 'cluster'  # beside an evaluation's sums: which cluster's model it was


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplesSpec:
  """Shapes and dtypes of one client's padded examples.

  Attributes:
    x_shape: (N, ...), N rows with padding.
    x_dtype: stored dtype of x, for example uint8.
    y_shape: (N, ...).
    y_dtype: dtype of y.
  """

  x_shape: tuple[int, ...]
  x_dtype: Any
  y_shape: tuple[int, ...]
  y_dtype: Any

  @property
  def tff_type(self) -> tff.StructType:
    """The type of one client's data: x, y, num_examples, client_id."""
    return tff.to_type(
      Tree(
        x=tff.TensorType(self.x_dtype, self.x_shape),
        y=tff.TensorType(self.y_dtype, self.y_shape),
        num_examples=np.int32,
        client_id=np.int32,
      )
    )


class Trainings:
  """The trainings by DP-SGD of which a round of a silo is made, held to those accounted for."""

  def __init__(self, accounted: int):
    """Args: accounted: how many the plan's steps are for."""
    self.accounted = accounted
    self._streams: list[tuple[int, int]] = []

  def begin(self) -> None:
    """A round of a silo is traced."""
    self._streams = []

  def add(self, batches: int, noise: int) -> None:
    """Another training of this round, with the streams of its batches and its noise.

    Raises:
      ValueError: one of this round has either of them, or there are more than accounted.
    """
    for name, place, stream in (('batch_stream', 0, batches), ('noise_stream', 1, noise)):
      if stream in [streams[place] for streams in self._streams]:
        raise ValueError(
          f'Two trainings by DP-SGD in a round have the same {name}: what is drawn twice is not '
          'accounted for, and noise cancels. Give each a stream of its own.'
        )
    self._streams.append((batches, noise))
    if len(self._streams) > self.accounted:
      raise ValueError(
        f'A round trains by DP-SGD {len(self._streams)} times, of which passes={self.accounted} '
        'accounts for fewer: declare `passes` (`processes.declaration.Method`).'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildSpec:
  """All that a method's `build` is given.

  Attributes:
    model: the model.
    examples: shapes of a client's training data.
    plan: the privacy plan (`privacy.NoPrivacy`, `ClientLevelPrivacy` or
      `ExampleLevelPrivacy`).
    batch_size: examples in a batch; with example-level privacy the expected number.
    local_epochs: passes over a client's data in a round.
    rounds: rounds of the whole run, of which a method's stages are fractions.
    hyperparameters: continuous hyper-parameters by name. A method's `build` finds all that its
      declaration has a default for (`completed`).
    options: discrete choices by name, such as `weighting`; likewise.
    method: the method's name, for errors (`completed`).
    trainings: how often a round trains on a silo's examples by DP-SGD, the method's `passes`
      (`completed`): the plan's steps of a round are those of all of them together.
  """

  model: model_lib.Model
  examples: ExamplesSpec
  plan: Any
  batch_size: int
  local_epochs: int = common.LOCAL_EPOCHS.default
  rounds: int = common.ROUNDS.default
  hyperparameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  method: str = 'a method'
  trainings: 'Trainings' = dataclasses.field(default_factory=lambda: Trainings(1), compare=False)

  def completed(self, method: Method) -> 'BuildSpec':
    """With the defaults of the settings that a method declares, where they are not given.

    Raises:
      ValueError: a value that a setting does not allow, or cohorts for which the method's reports
        have no guarantee.
    """
    cohorts = self.plan.cohorts
    is_amplified = isinstance(cohorts, FixedSizeCohorts) and not cohorts.is_known
    if method.has_stateful_reports and self.plan.unit == 'client' and is_amplified:
      raise ValueError(
        f'{method.name} needs FixedSizeCohorts(..., is_known=True): what its clients send depends '
        'on the rounds in which they took part, and a fixed size amplifies nothing then.'
      )
    hyperparameters, options = dict(self.hyperparameters), dict(self.options)
    for setting in (common.CLIENT_LEARNING_RATE, *method.settings):
      values = hyperparameters if setting.continuous else options
      value = values.get(setting.name, setting.default)
      if value is None and setting.same_as:
        value = hyperparameters[setting.same_as]
      if value is not None:
        values[setting.name] = setting.check(float(value) if setting.kind is float else value)
    return dataclasses.replace(
      self, hyperparameters=hyperparameters, options=options, method=method.name,
      trainings=Trainings(method.passes),
    )  # fmt: skip

  def values(self, *names: str) -> dict[str, float]:
    """The hyper-parameters of these names.

    Raises:
      ValueError: the method declares none of such a name.
    """
    missing = [name for name in names if name not in self.hyperparameters]
    if missing:
      raise ValueError(
        f'{self.method} reads the hyper-parameter {", ".join(missing)}, which it does not declare; '
        f'it has {", ".join(self.hyperparameters) or "none"}.'
      )
    return {name: self.hyperparameters[name] for name in names}

  def values_of(self, settings: Iterable[Setting]) -> dict[str, float]:
    """The hyper-parameters of some settings, of those that have a value."""
    given = self.hyperparameters
    return {s.name: given[s.name] for s in settings if s.name in given}

  def rounds_of(self, name: str) -> float:
    """The number of rounds that the hyper-parameter `name`, a fraction of them, stands for."""
    return float(round(self.hyperparameters[name] * self.rounds))


def without_noise_key(server_state: Mapping[str, Any]) -> Tree:
  """A server state without its secrets: what may be written beside the results."""
  return Tree(
    (name, without_noise_key(part) if isinstance(part, Mapping) else part)
    for name, part in server_state.items()
    if name not in SECRETS
  )


# What each client holds besides its model: name -> (dtype, default or None if required).
Attributes = Mapping[str, tuple[Any, Any]]

# Hyper-parameters that the privacy plan accounts for, where there is one: their values come
# from the plan alone.
ACCOUNTED = frozenset(
  {
    'noise_multiplier',
    'quantile_noise_multiplier',
    'selection_epsilon',
    'selection_rounds',
    'tuning_score_noise',
  }
)

EXAMPLE_LEVEL_ATTRIBUTES: Attributes = {
  'noise_multiplier': (np.float32, None),
  'sampling_rate': (np.float32, None),
  'batch_size': (np.float32, None),
  'steps_per_round': (np.int32, None),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedMethod:
  """A method, ready to run on any TFF runtime.

  Attributes:
    process: the TFF iterative process. `initialize() -> server_state@SERVER` (with a
      noise key that was drawn when the method was built: for one run);
      `next(server_state@SERVER, client_state@CLIENTS, data@CLIENTS) ->
      (server_state@SERVER, client_state@CLIENTS, metrics@SERVER)`.
    evaluations: the models that can be evaluated: 'global', and those that depend on the
      client's state, 'personal' first.
    released_metrics: the metrics of `next` that are differentially private releases.
      All others may be looked at in a simulation only.
    hyperparameters: names and default values of the continuous hyper-parameters.
    accounted: the hyper-parameters whose values the privacy plan has accounted for.
    accounted_attributes: arrays [silos] of the attributes whose values it has accounted for.
    most_opted_out: clients who may have no privacy by the plan; None if the plan has none.
    attributes: names, dtypes and defaults of the scalars that a client state holds.
    compared_groups: see `processes.declaration.Method`.
    private: whether anything is protected.
    silos_draw_noise: whether the clients' states hold the secrets (example level), each its own
      noise key, and the server none; otherwise the server's state holds what there is.
    server_step: of the hyper-parameters' values: by how much the model moves with the mean of what
      the clients report.
  """

  process: tff.templates.IterativeProcess
  evaluations: tuple[str, ...]
  released_metrics: frozenset[str]
  hyperparameters: Mapping[str, float]
  accounted: frozenset[str]
  accounted_attributes: Mapping[str, np.ndarray]
  most_opted_out: int | None
  attributes: Attributes
  private: bool
  silos_draw_noise: bool
  server_step: Callable[[Mapping[str, float]], float]
  _init_server: Callable[[Any, Any, Mapping[str, Any]], Tree]
  _init_client: Callable[[Tree], Tree]
  _models: Mapping[str, Callable[[Tree, Tree], model_lib.Params]]
  _model: model_lib.Model
  _release: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]] | None = None
  _release_metrics: Callable[[Tree], Tree] | None = None
  _cluster_of: Callable[[Tree], Any] | None = None
  compared_groups: tuple[tuple[str, str], ...] = ()
  # Shared by the methods of one process, for which the same programs do.
  _built: dict[tuple[str, ExamplesSpec], tff.Computation] = dataclasses.field(
    default_factory=dict, repr=False, compare=False
  )

  def initial_server_state(
    self,
    seed: int,
    hyperparameters: Mapping[str, float] | None = None,
    *,
    noise_key: NoiseKey | None = None,
  ) -> Tree:
    """The server state before the first round, as a tree of NumPy arrays.

    Every leaf named `noise_key` is a secret: `without_noise_key` gives what may be kept.

    Args:
      seed: the run's seed, which is public; the initial model depends on it.
      hyperparameters: values by name, in place of the defaults.
      noise_key: where anything is protected, what noise, batches and private choices are
        drawn from: `NoiseKey.fresh()`, once for each run. Without privacy there is none. At
        example level it is the silos', and not in this state.

    Raises:
      ValueError: a hyper-parameter that the method does not have, or one whose value
        is not the privacy plan's; a private method without a noise key.
    """
    unknown = sorted(set(hyperparameters or {}) - set(self.hyperparameters))
    if unknown:
      raise ValueError(
        f'The method has no hyper-parameter {", ".join(unknown)}; '
        f'it has {", ".join(self.hyperparameters)}.'
      )
    values = {**self.hyperparameters, **(hyperparameters or {})}
    _check_accounted(values, {name: self.hyperparameters[name] for name in self.accounted})
    if self.private != (noise_key is not None):
      raise ValueError(
        'A private method needs a noise_key: NoiseKey.fresh(), or NoiseKey.rehearsal(seed) for '
        'what is to be repeated and protects nobody.'
        if self.private
        else 'A method without privacy has no noise_key.'
      )
    state = self._init_server(
      tf.constant(seed, tf.int32),
      None if noise_key is None else tf.constant(noise_key.words, tf.int32),
      Tree((name, tf.constant(value, tf.float32)) for name, value in values.items()),
    )
    return tf.nest.map_structure(lambda t: t.numpy(), state)

  def under(self, plan: Any, hyperparameters: Mapping[str, float]) -> 'FederatedMethod':
    """The same process with the values of another plan of its form.

    Args:
      plan: what accounts for the noise of the clients from now on.
      hyperparameters: all of them, by name.
    """
    return dataclasses.replace(self, hyperparameters=hyperparameters, **_accounted_by(plan))

  def sharing(self, other: 'FederatedMethod') -> 'FederatedMethod':
    """The same with the process and the evaluations of another, which differs in values only."""
    return dataclasses.replace(self, process=other.process, _built=other._built)

  def initial_client_states(
    self,
    server_state: Tree,
    num_clients: int,
    attributes: Mapping[str, np.ndarray] | None = None,
    silos: np.ndarray | None = None,
    *,
    noise_key: NoiseKey | None = None,
  ) -> Tree:
    """All clients' states before the first round.

    At example level each silo draws its own noise and batches: its state holds a secret of its own
    (`NoiseKey.words_of`), from which neither the key nor another silo's secret can be found.

    What the privacy plan accounts for comes from the plan alone: each silo's noise multiplier,
    rate, batch size and steps.

    Args:
      server_state: the initial server state (personal models start from its model).
      num_clients: K.
      attributes: arrays [K] by name, for every attribute without a default. Those that the
        plan accounts for need not be given, and must be the plan's if they are.
      silos: int [K], which of the plan's silos each client is; by default client k is silo k.
      noise_key: at example level the run's noise key.

    Returns:
      A tree of NumPy arrays [K, ...]; empty for a method without client state. Leaves
      that are equal for all clients are read-only views of one copy.

    Raises:
      ValueError: an attribute that is missing, unknown, not of length K, or not the plan's; silos
        without a noise key.
    """
    attributes = dict(attributes or {})
    unknown = sorted(set(attributes) - set(self.attributes))
    if unknown:
      raise ValueError(
        f'Clients have no attribute {", ".join(unknown)}; '
        f'they have {", ".join(self.attributes) or "none"}.'
      )
    _check_opted_out(num_clients, attributes, self.most_opted_out)
    attributes |= _accounted_values(num_clients, attributes, self.accounted_attributes, silos)
    state = tf.nest.map_structure(
      lambda t: np.broadcast_to(t, (num_clients, *np.shape(t))), self._init_client(server_state)
    )
    columns = Tree()
    for name, (dtype, default) in self.attributes.items():
      values = attributes.get(name, default)
      if values is None:
        raise ValueError(f'Clients need the attribute {name}, an array of length {num_clients}.')
      values = np.asarray(values, dtype)
      if values.ndim == 0:
        values = np.broadcast_to(values, (num_clients,))
      if values.shape != (num_clients,):
        raise ValueError(f'Attribute {name} has shape {values.shape}, not ({num_clients},).')
      columns[name] = values
    if columns:
      state['attributes'] = columns
    if self.silos_draw_noise:
      if noise_key is None:
        raise ValueError('Silos that add their own noise need a noise_key.')
      state[NOISE_KEY] = np.stack([noise_key.words_of(k) for k in range(num_clients)])
    return state

  def build_evaluation(self, which: str, examples: ExamplesSpec) -> tff.Computation:
    """A computation that evaluates a model on each client's examples, built once.

    Args:
      which: one of `evaluations`.
      examples: shapes of the examples to evaluate on.

    Returns:
      `(server_state@SERVER, client_state@CLIENTS, data@CLIENTS) -> sums@CLIENTS`, an
      OrderedDict of float32 sums over the client's examples: `loss`, each of the
      model's metrics, and `num_examples`. Where examples weigh more than one (sentences, by
      their tokens) the sums are weighted, and `num_examples` is the sum of weights. The
      client state's type is the empty structure for 'global'. Of a method with cluster models
      the personal evaluation has `cluster` too: which one the client has chosen, -1 before it did.
    """
    if which not in self.evaluations:
      raise ValueError(f'No {which} model; the method has {", ".join(self.evaluations)}.')
    if (which, examples) not in self._built:
      self._built[which, examples] = self._evaluation(which, examples)
    return self._built[which, examples]

  def _evaluation(self, which: str, examples: ExamplesSpec) -> tff.Computation:
    server_type, client_type, _ = self.process.next.type_signature.parameter
    client_type = client_type.member if which != GLOBAL else tff.to_type(Tree())
    model, select = self._model, self._models[which]
    cluster_of = self._cluster_of if which != GLOBAL else None

    @tff.tensorflow.computation(
      _for_clients(server_type).type_signature.result, client_type, examples.tff_type
    )
    def evaluate_client(server, client, data):
      sums = _evaluated(model, select(server, client), data)
      if cluster_of is not None:
        sums[CLUSTER] = tf.cast(cluster_of(client), tf.float32)
      return sums

    @tff.federated_computation(
      server_type,
      tff.FederatedType(client_type, tff.CLIENTS),
      tff.FederatedType(examples.tff_type, tff.CLIENTS),
    )
    def evaluate(server_state, client_state, data):
      server_at_clients = _broadcast(server_state)
      return tff.federated_map(evaluate_client, (server_at_clients, client_state, data))

    return evaluate

  @property
  def releases(self) -> bool:
    """Whether clients choose what they release after the last round."""
    return self._release is not None

  def build_release(self, examples: ExamplesSpec) -> tff.Computation:
    """The computation that follows the last round, of a method that `releases`.

    Args:
      examples: shapes of the examples by which the clients choose.

    Returns:
      `(server_state@SERVER, client_state@CLIENTS, data@CLIENTS) -> (server_state@SERVER,
      client_state@CLIENTS, metrics@SERVER)`, a round that changes the clients' states only.
    """
    server_type, client_type, _ = self.process.next.type_signature.parameter
    choose, metrics = self._release, self._release_metrics
    if choose is None or metrics is None:
      raise ValueError('The method releases nothing after its last round.')

    @tff.tensorflow.computation(
      _for_clients(server_type).type_signature.result, client_type.member, examples.tff_type
    )
    def release_of_client(server, client, data):
      return choose(server, client, data)

    @tff.tensorflow.computation(release_of_client.type_signature.result[0])
    def metrics_of(total):
      return metrics(total)

    @tff.federated_computation(
      server_type, client_type, tff.FederatedType(examples.tff_type, tff.CLIENTS)
    )
    def release(server_state, client_state, data):
      server_at_clients = _broadcast(server_state)
      report, chosen = tff.federated_map(release_of_client, (server_at_clients, client_state, data))
      return server_state, chosen, tff.federated_map(metrics_of, tff.federated_sum(report))

    return release


def _evaluated(model: model_lib.Model, params: model_lib.Params, data: Tree) -> Tree:
  """The sums over a client's examples that `FederatedMethod.build_evaluation` gives."""

  def of_rows(x, y, is_example):
    outputs = model.predict(params, x)
    weights = tf.where(is_example, model.weigh(y), 0.0)
    values = {'loss': model.loss(outputs, y), **model.metrics(outputs, y)}
    found = {n: tf.where(weights > 0.0, weights * v, 0.0) for n, v in values.items()}
    found['num_examples'] = weights
    return {name: tf.reduce_sum(of_each) for name, of_each in found.items()}

  names = dict.fromkeys(['loss', *model.metric_names, 'num_examples'])
  return Tree(sums_of_examples(data, [*names], of_rows))


def _for_clients(server_type: tff.FederatedType) -> tff.Computation:
  """What clients get of a server's state: all but its secrets."""

  @tff.tensorflow.computation(server_type.member)
  def for_clients(server):
    return without_noise_key(server)

  return for_clients


def _broadcast(server_state: Any) -> Any:
  """Inside a federated computation: the server's state at the clients, without its secrets."""
  public = tff.federated_map(_for_clients(server_state.type_signature), server_state)
  return tff.federated_broadcast(public)


def _check_opted_out(num_clients: int, given: Mapping[str, Any], most: int | None) -> None:
  """Refuses more clients without privacy than the plan says."""
  if most is None or 'is_private' not in given:
    return
  away = np.asarray(given['is_private'], np.float32) <= 0
  opted_out = int(np.sum(np.broadcast_to(away, (num_clients,))))
  if opted_out > most:
    raise ValueError(
      f'{opted_out} clients have no privacy (is_private 0), but the privacy plan says that '
      f'{most} opted out.'
    )


def _accounted_by(plan: Any) -> dict[str, Any]:
  """What a plan says of the clients, as the fields of `FederatedMethod`."""
  return {
    'accounted_attributes': plan.silo_parameters() if plan.unit == 'example' else {},
    'most_opted_out': getattr(plan, 'num_opted_out', None),
  }


def _accounted_values(
  num_clients: int,
  given: Mapping[str, Any],
  accounted: Mapping[str, np.ndarray],
  silos: np.ndarray | None,
) -> dict[str, np.ndarray]:
  """The plan's values of the clients' attributes; refuses others."""
  values = {}
  for name, of_silos in accounted.items():
    if silos is None and num_clients != len(of_silos):
      raise ValueError(
        f'The privacy plan is for {len(of_silos)} silos, got {num_clients} clients: say by '
        'silos= which silo each of them is.'
      )
    planned = of_silos if silos is None else of_silos[np.asarray(silos)]
    own = np.broadcast_to(np.asarray(given.get(name, planned), planned.dtype), planned.shape)
    wrong = np.flatnonzero(own != planned)
    if wrong.size:
      raise ValueError(
        f'Attribute {name} of client {wrong[0]} is {own[wrong[0]]}, not the {planned[wrong[0]]} '
        'that the privacy plan accounts for.'
      )
    values[name] = planned
  return values


def _check_accounted(values: Mapping[str, float], accounted: Mapping[str, float]) -> None:
  for name, value in accounted.items():
    given = values.get(name, value)
    if float(given) != float(value):
      raise ValueError(f'--{name}={given} is not the {value} that the privacy plan accounts for.')


def assemble(
  spec: BuildSpec,
  *,
  client_update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]],
  server_update: Callable[[Tree, Tree], tuple[Tree, Tree]],
  hyperparameters: Mapping[str, float],
  models: Mapping[str, Callable[[Tree, Tree], model_lib.Params]],
  init_server: Callable[[Tree], Mapping[str, Any]] | None = None,
  init_client: Callable[[Tree], Mapping[str, Any]] | None = None,
  attributes: Attributes | None = None,
  released_metrics: frozenset[str] = frozenset(),
  release: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]] | None = None,
  release_metrics: Callable[[Tree], Tree] | None = None,
  server_step: Callable[[Mapping[str, float]], float] | None = None,
  cluster_of: Callable[[Tree], Any] | None = None,
) -> FederatedMethod:
  """Makes a method of what its clients and its server do.

  Args:
    spec: as given to the method's `build`.
    client_update: (server state without its secrets, client state, data) -> (report, client
      state). At example level the client state holds the silo's own `noise_key`.
    server_update: (server state, sum of the reports) -> (server state, metrics). The
      round counter is advanced here, not by the method.
    hyperparameters: the continuous hyper-parameters that the method reads from the server's
      state: `spec.values(...)` of its settings, and what follows from them or from the plan.
      Values in `spec.hyperparameters` take their place. The plan's clip of examples is added.
    models: by the names of `FederatedMethod.evaluations`: (server state, client state) ->
      parameters. For 'global' the client state is empty.
    init_server: base server state (model, round, seed, hyperparameters, and the noise key where
      the server adds the noise) -> further entries of the server state.
    init_client: server state -> a client's initial state.
    attributes: further scalars that each client's state holds, besides the silo's
      privacy parameters at example level.
    released_metrics: names of metrics that are DP releases.
    release: what a client does after the last round, for methods in which it then chooses
      what it releases: (server state, client state, held-out data) -> (report, client state).
    release_metrics: sum of these reports -> metrics.
    server_step: see `FederatedMethod`; by default `server_learning_rate`.
    cluster_of: of methods with cluster models: client state -> which of them is the client's.

  Raises:
    ValueError: no models; a hyper-parameter that is not the plan's; states that change their
      kind; metrics that are no scalars; a key that `client_update` or `server_update` reads and
      that is not there, or no pair that one of them returns.
  """
  if not models:
    raise ValueError(f'{spec.method} gives no `models`, so that nothing could be evaluated.')
  if spec.plan.unit == 'example':  # what is clipped is what the plan says
    hyperparameters = {**hyperparameters, 'clipping_norm': spec.plan.clipping_norm}
  fixed = getattr(spec.plan, 'fixed_hyperparameters', {})
  for name in sorted(set(fixed) - set(hyperparameters)):
    raise ValueError(
      f'The privacy plan rests on --{name}={fixed[name]}, which this method does not have.'
    )
  hyperparameters = {**hyperparameters, **fixed}
  accounted = frozenset(fixed)
  if spec.plan.unit != 'none':
    accounted |= frozenset(hyperparameters) & ACCOUNTED
  _check_accounted(spec.hyperparameters, {name: hyperparameters[name] for name in accounted})
  hyperparameters = {
    name: float(spec.hyperparameters.get(name, default))
    for name, default in hyperparameters.items()
  }
  attributes = dict(attributes or {})
  if spec.plan.unit == 'example':
    attributes = {**EXAMPLE_LEVEL_ATTRIBUTES, **attributes}

  silos_draw_noise = spec.plan.unit == 'example'

  def full_init_server(seed, noise_key, values):
    state = Tree(
      model=spec.model.init(random_streams.key(seed, random_streams.Stream.INIT)),
      round=tf.constant(0, tf.int32),
      seed=seed,
      hyperparameters=values,
    )
    if spec.plan.unit == 'client':
      state[NOISE_KEY] = noise_key
    if init_server is not None:
      state.update(init_server(state))
    return state

  def full_init_client(server):
    return Tree() if init_client is None else Tree(init_client(server))

  @tff.tensorflow.computation
  def default_server_state():
    values = Tree((name, tf.constant(v, tf.float32)) for name, v in hyperparameters.items())
    noise_key = tf.constant(NoiseKey.fresh().words) if spec.plan.unit == 'client' else None
    return full_init_server(tf.constant(0, tf.int32), noise_key, values)

  server_type = default_server_state.type_signature.result
  server_at_server = tff.FederatedType(server_type, tff.SERVER)

  @tff.tensorflow.computation(server_type)
  def default_client_state(server):
    state = full_init_client(server)
    if attributes:
      state['attributes'] = Tree(
        (name, tf.zeros([], dtype)) for name, (dtype, _) in attributes.items()
      )
    if silos_draw_noise:
      state[NOISE_KEY] = tf.zeros([NUM_WORDS], tf.int32)
    return state

  client_type = default_client_state.type_signature.result
  data_type = spec.examples.tff_type

  @tff.tensorflow.computation(
    _for_clients(server_at_server).type_signature.result, client_type, data_type
  )
  def at_client(server, client, data):
    with slips.reads(f'client_update of {spec.method}', server=server, client=client, data=data):
      spec.trainings.begin()
      found = client_update(server, client, data)
    return slips.pair(found, f'client_update of {spec.method}', '(report, client state)')

  report_type, new_client_type = at_client.type_signature.result
  slips.check_kept('client', spec.method, client_type, new_client_type)

  @tff.tensorflow.computation(server_type, report_type)
  def at_server(server, total):
    with slips.reads(f'server_update of {spec.method}', server=server, reports=total):
      found = server_update(server, total)
    who = f'server_update of {spec.method}'
    new_server, metrics = slips.pair(found, who, '(server state, metrics)')
    new_server['round'] = server['round'] + 1
    return new_server, metrics

  new_server_type, metrics_type = at_server.type_signature.result
  slips.check_kept('server', spec.method, server_type, new_server_type)
  slips.check_scalars(spec.method, metrics_type)

  @tff.federated_computation
  def initialize():
    return tff.federated_value(default_server_state(), tff.SERVER)

  @tff.federated_computation(
    server_at_server,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_round(server_state, client_state, data):
    server_at_clients = _broadcast(server_state)
    report, client_state = tff.federated_map(at_client, (server_at_clients, client_state, data))
    total = tff.federated_sum(report)
    server_state, metrics = tff.federated_map(at_server, (server_state, total))
    return server_state, client_state, metrics

  return FederatedMethod(
    process=tff.templates.IterativeProcess(initialize, next_round),
    evaluations=tuple(models),
    released_metrics=released_metrics,
    hyperparameters=hyperparameters,
    accounted=accounted,
    **_accounted_by(spec.plan),
    attributes=attributes,
    private=spec.plan.unit != 'none',
    silos_draw_noise=silos_draw_noise,
    server_step=server_step or (lambda values: values[common.SERVER_LEARNING_RATE.name]),
    _init_server=full_init_server,
    _init_client=full_init_client,
    _models=models,
    _model=spec.model,
    _release=release,
    _release_metrics=release_metrics,
    _cluster_of=cluster_of,
  )
