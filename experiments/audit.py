"""Attacks a configuration: `python -m experiments.audit --flagfile=recipes/NAME.flags`.

The accountant gives an upper bound on epsilon; an attack gives a lower one. Here the
attacker is as strong as the guarantee allows: it chooses the data (a *canary*, which moves
its client's update, or its example's gradient, to the full clip, among others that
contribute nothing), sees everything that is released after every round, and knows all but
the canary's presence, the noise, and who was sampled. Process, sampler, plan and runtime
are those of the configuration; only the data are the attacker's.

Thousands of runs are one compiled program, a sweep over seeds. Half of them are without the
canary. If the lower bound exceeds the claim, then sampler, mechanism and accountant do not
belong together, and the exit code is 1.
"""

import collections
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import flags as experiment_flags  # noqa: F401 - defines the flags

Tree = collections.OrderedDict

flags.DEFINE_integer(
  'audit_runs', 4000, 'Runs of the attacked pipeline, half of them with the canary.',
  lower_bound=16, module_name='Audit',
)  # fmt: skip
flags.DEFINE_float(
  'audit_confidence', 0.95, 'Confidence of the lower bound.', 0.5, 0.999999, module_name='Audit'
)
flags.DEFINE_integer(
  'audit_client', 0, 'Which client (silo) is attacked, by its number.',
  lower_bound=0, module_name='Audit',
)  # fmt: skip

# Data rows of the attacked client.
_WITH, _WITHOUT, _OPPOSITE = 0, 1, 2
# References are computed with other random numbers than the runs: an attacker does not know
# the mechanism's coins.
_REFERENCE_SEEDS = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """What is attacked.

  Attributes:
    method: a built method (`processes.build`).
    plan: its privacy plan.
    examples: shapes of a client's data (`processes.method.ExamplesSpec`).
    client: number of the attacked client (silo) in the plan's population.
    attributes: what the attacked client's state holds besides the silo's privacy
      parameters, name -> number.
  """

  method: Any
  plan: Any
  examples: Any
  client: int = 0
  attributes: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """What an audit found.

  Attributes:
    claimed: epsilon of the accountant after the rounds that were attacked.
    bound: the attack's lower bound (`privacy.audit.EpsilonLowerBound`).
    rounds: rounds of every run.
    strength: how much of the clip the canary used, mean over the rounds; an attack with a
      weak canary proves less.
  """

  claimed: float
  bound: Any
  rounds: int
  strength: float

  @property
  def broken(self) -> bool:
    """Whether the claim is refuted."""
    return self.bound.epsilon > self.claimed

  def text(self) -> str:
    """The report in words."""
    lines = [
      f'Claimed:     epsilon <= {self.claimed:.4g} at delta = {self.bound.delta:g} after '
      f'{self.rounds} rounds (the accountant)',
      f'Shown:       epsilon >= {self.bound.epsilon:.4g} with confidence '
      f'{self.bound.confidence:g} ({self.bound.method})',
      f'Canary:      used {self.strength:.0%} of the clip',
      'Verdict:     the claim is REFUTED: sampler, mechanism and accountant do not agree'
      if self.broken
      else 'Verdict:     the claim stands',
    ]
    return '\n'.join(lines)


def audit(
  target: Target, *, rounds: int, runs: int = 4000, seed: int = 0, confidence: float = 0.95
) -> Report:
  """Attacks a method with a plan on the compiled runtime.

  Args:
    target: what is attacked.
    rounds: rounds of every run.
    runs: number of runs, half of them with the canary.
    seed: of the first run.
    confidence: of the bound.

  Raises:
    ValueError: the plan gives no privacy to audit.
  """
  from privacy import audit as statistics

  own_delta = np.atleast_1d(target.plan.delta)  # of every silo, or one for all
  delta = float(own_delta[target.client if len(own_delta) > 1 else 0])
  scores, with_canary, strength = attack(target, rounds=rounds, runs=runs, seed=seed)
  return Report(
    claimed=_claimed(target, rounds),
    bound=statistics.many_runs(
      scores[~with_canary], scores[with_canary], delta=delta, confidence=confidence
    ),
    rounds=rounds,
    strength=strength,
  )


def _claimed(target: Target, rounds: int) -> float:
  if target.plan.unit == 'example':
    return float(target.plan.epsilons(rounds)[target.client])
  return float(target.plan.epsilon(rounds))


def attack(
  target: Target, *, rounds: int, runs: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, float]:
  """Scores of many runs: the larger, the more it looks as if the canary was there.

  Args as for `audit`.

  Returns:
    (scores [runs], whether the canary was there [runs], strength).
  """
  import runtime
  from privacy import audit as statistics

  mechanism = _Mechanism(target)
  # Alternating, so that both halves of either kind are alike.
  with_canary = np.arange(runs) % 2 == 1
  scores, strengths = np.zeros(runs), []
  with runtime.create('xla') as machine:
    attacker = _Attacker(target, machine, runs)
    server, states = attacker.start(seed + np.arange(runs))
    for round_ in range(rounds):
      server, observed, effect = attacker.round(server, states, seed, round_, with_canary)
      strengths.append(effect / mechanism.full_effect)
      # In units of one canary: n + N(0, steps z^2).
      y = observed * mechanism.steps
      score = statistics.log_likelihood_ratio(y, **mechanism.likelihood)
      if mechanism.replaces:  # the other world has the opposite canary instead
        score = score - statistics.log_likelihood_ratio(-y, **mechanism.likelihood)
      scores += score
  return scores, with_canary, float(np.mean(strengths))


class _Mechanism:
  """The numbers of the plan that a likelihood ratio needs."""

  def __init__(self, target: Target):
    plan = target.plan
    self.steps, self.replaces = 1, False
    if plan.unit == 'client':
      rate, noise = float(plan.cohorts.rate), float(plan.update_noise_multiplier)
      self.replaces = plan.cohorts.relation.name == 'REPLACE_ONE'
      clip, divisor = float(plan.clipping.initial_norm), float(plan.denominator)
      rates = target.method.hyperparameters['server_learning_rate']
      self.full_effect = clip / divisor * rates
    elif plan.unit == 'example':
      k = target.client
      if plan.batches != 'poisson':
        raise ValueError(f'--batches={plan.batches} cannot be audited here; poisson can.')
      rate, noise = float(plan.sampling_rates[k]), float(plan.noise_multiplier[k])
      self.steps = int(plan.steps_per_round[k])
      rates = target.method.hyperparameters['client_learning_rate']
      self.full_effect = self.steps * rates * plan.clipping_norm / float(plan.batch_sizes[k])
    else:
      raise ValueError('--privacy=none claims nothing: there is nothing to audit.')
    if not noise > 0:
      raise ValueError('A noise multiplier of 0 claims nothing: there is nothing to audit.')
    self.likelihood: dict[str, Any] = dict(rate=rate, noise_multiplier=noise, steps=self.steps)


class _Attacker:
  """Runs all pairs of worlds side by side: one setting of a sweep each."""

  def __init__(self, target: Target, machine: Any, runs: int):
    self._target, self._machine, self._runs = target, machine, runs
    self._next = target.method.process.next
    self._data = machine.place(_worst_case_data(target))

  def start(self, seeds: np.ndarray):
    """(server states [S, ...], client states [S, ...]) before the first round."""
    method, plan = self._target.method, self._target.plan
    server = method.initial_server_state(0)
    attributes = {
      name: np.asarray([value], np.float32) for name, value in self._target.attributes.items()
    }
    if plan.unit == 'example':
      attributes |= {
        name: values[[self._target.client]] for name, values in plan.silo_parameters().items()
      }
    client = method.initial_client_states(server, 1, attributes)
    stack = lambda leaf: np.repeat(np.asarray(leaf)[None], self._runs, axis=0)  # noqa: E731
    server = _with(_map(stack, server), 'seed', seeds.astype(np.int32))
    states = _map(lambda leaf: np.repeat(leaf, self._runs, axis=0), client)
    return server, self._machine.place_states(states or None)

  def round(self, server, states, seed: int, round_: int, with_canary: np.ndarray):
    """One round of every run.

    Returns:
      (server states, the canary's share in what was released [S], mean size of a canary).
    """
    before = self._machine.to_numpy(server), states.to_numpy()
    everyone = [True] * self._runs
    nothing, _ = self._reference(before, np.full(self._runs, _WITHOUT))
    canary, _ = self._reference(before, np.full(self._runs, _WITH))
    cohorts = self._target.plan.cohorts
    if self._target.plan.unit == 'client':
      sampled = [self._target.client in cohorts.sample(seed + s, round_) for s in range(self._runs)]
      if cohorts.relation.name == 'REPLACE_ONE':
        rows, present = np.where(with_canary, _WITH, _OPPOSITE), sampled
      else:  # without the canary, its client does not exist
        rows = np.full(self._runs, _WITH)
        present = list(np.asarray(sampled) & with_canary)
    else:
      rows, present = np.where(with_canary, _WITH, _WITHOUT), everyone
    server = self._run(server, states, rows, present)
    released = self._released(self._machine.to_numpy(server), states.to_numpy())
    effect = canary - nothing
    size = np.maximum(np.sum(effect**2, axis=1), 1e-30)
    observed = np.sum((released - nothing) * effect, axis=1) / size
    return server, observed, float(np.mean(np.sqrt(size)))

  def _reference(self, before, rows):
    """What would be released without noise and with the canary in every sample."""
    server, clients = before
    server = _with(server, 'seed', server['seed'] + _REFERENCE_SEEDS)
    if self._target.plan.unit == 'client':
      server = _with(server, 'noise_multiplier', np.float32(0))
    else:
      clients = _with(clients, 'noise_multiplier', np.float32(0))
      clients = _with(clients, 'sampling_rate', np.float32(1))
    states = self._machine.place_states(clients or None)
    server = self._run(server, states, rows, [True] * self._runs)
    after = self._machine.to_numpy(server)
    return self._released(after, states.to_numpy()), after

  def _run(self, server, states, rows: np.ndarray, present: Sequence[bool]):
    cohort = [np.array([s] if here else [], np.int32) for s, here in enumerate(present)]
    data_rows = [rows[[s]] if here else rows[:0] for s, here in enumerate(present)]
    server, _ = self._machine.round(
      self._next, server, states, self._data, cohort, data_rows=data_rows, settings=self._runs
    )
    return server

  def _released(self, server, clients) -> np.ndarray:
    """What the attacker looks at, [S, P]."""
    if 'clusters' in server:
      # Whichever cluster the silo chose: the others stay as they are.
      leaves = [np.sum(leaf, axis=1) for leaf in _leaves(server['clusters'])]
    elif self._target.plan.unit == 'example' and 'model' in clients:
      leaves = _leaves(clients['model'])  # a silo's personal model is protected as well
    else:
      leaves = _leaves(server['model'])
    flat = [np.reshape(leaf, [self._runs, -1]).astype(np.float64) for leaf in leaves]
    return np.concatenate(flat, axis=1)


def _worst_case_data(target: Target) -> Tree:
  """Three data sets of the attacked client: with the canary, without it, with its opposite.

  At example level the canary is the first example, the others are zero and contribute
  (next to) nothing. At client level all examples are the canary's.
  """
  spec, example_level = target.examples, target.plan.unit == 'example'
  x = np.zeros([3, *spec.x_shape], spec.x_dtype)
  y = np.zeros([3, *spec.y_shape], spec.y_dtype)
  count = np.full(3, spec.x_shape[0], np.int32)
  if example_level:
    count[:] = target.plan.num_examples[target.client]
  which = np.s_[:1] if example_level else np.s_[:]
  # A large residual, on a feature that is small enough for the local steps to be stable.
  x[[_WITH, _OPPOSITE], which] = _first_feature(spec, 100.0 if example_level else 1.0)
  if np.issubdtype(np.dtype(spec.y_dtype), np.floating):
    binary = target.method._model.name == 'linear_svm'
    y[:] = 1.0 if binary else 0.0
    y[_WITH, which] = 1.0 if binary else 1e6
    y[_OPPOSITE, which] = -y[_WITH, which]
  else:
    y[_OPPOSITE, which] = 1
  if not example_level:
    count[_WITHOUT] = 0
  return Tree(x=x, y=y, num_examples=count, client_id=np.full(3, target.client, np.int32))


def _first_feature(spec, value: float) -> np.ndarray:
  example = np.zeros(spec.x_shape[1:], spec.x_dtype)
  integer = np.issubdtype(np.dtype(spec.x_dtype), np.integer)
  example.reshape(-1)[0] = np.iinfo(spec.x_dtype).max if integer else value
  return example


def _map(function, tree):
  if isinstance(tree, Mapping):
    return Tree((name, _map(function, part)) for name, part in tree.items())
  return function(tree)


def _leaves(tree) -> list[np.ndarray]:
  if isinstance(tree, Mapping):
    return [leaf for part in tree.values() for leaf in _leaves(part)]
  return [np.asarray(tree)]


def _with(tree, name: str, value):
  """The tree with every leaf of that name replaced by the value, in the leaf's shape."""
  return Tree(
    (
      key,
      _with(part, name, value)
      if isinstance(part, Mapping)
      else np.broadcast_to(np.asarray(value), np.shape(part)).astype(np.asarray(part).dtype)
      if key == name
      else part,
    )
    for key, part in tree.items()
  )


def main(argv: list[str]) -> int:
  """Audits the configuration of the flags.

  Returns:
    0 if the claim stands, 1 if it is refuted, 2 after an error.
  """
  try:
    values = flags.FLAGS
    rest = values(argv)[1:]
    if rest:
      raise ValueError(f'{rest[0]!r} is no flag; flags have the form --name=value.')
    from experiments.config import ExperimentConfig

    config = ExperimentConfig.from_flags(values)
    if config.privacy == 'none':
      raise ValueError('--privacy=none claims nothing: there is nothing to audit.')
    report = _audit_configuration(config, values)
  except (flags.Error, ValueError, OSError, MemoryError) as error:
    print('error: ' + ' '.join(str(error).split()), file=sys.stderr)
    return 2
  print(report.text())
  return 1 if report.broken else 0


def _audit_configuration(config, values) -> Report:
  from experiments import startup

  with startup.quiet():
    from experiments import build, evaluation
  experiment = build.build_process(config)
  client = values.audit_client
  if client >= experiment.dataset.num_clients:
    raise ValueError(
      f'--audit_client={client} must be below the {experiment.dataset.num_clients} clients of '
      f'--dataset={config.dataset}.'
    )
  _, clients = experiment.initial_states()
  own = clients.get('attributes', {})
  silo: dict[str, Any] = getattr(experiment.plan, 'silo_parameters', dict)()
  somebody = experiment.dataset.train.load(np.zeros([1], np.int32))
  target = Target(
    method=experiment.method,
    plan=experiment.plan,
    examples=evaluation.examples_spec(somebody),
    client=client,
    attributes={name: float(own[name][client]) for name in own if name not in silo},
  )
  with startup.quiet():
    return audit(
      target,
      rounds=config.rounds,
      runs=values.audit_runs,
      seed=config.seed,
      confidence=values.audit_confidence,
    )


if __name__ == '__main__':
  sys.exit(main(sys.argv))
