"""Lower bounds on epsilon by attack.

The accountant gives an upper bound on epsilon; an attack gives a lower one. Here the
attacker is as strong as the guarantee allows: it chooses the data (a *canary*, which moves
its client's update, or its example's gradient, to the full clip, among others that
contribute nothing), sees everything that is released after every round, and knows all but
the canary's presence, the noise, and who was sampled. Process, sampler, plan and runtime
are those of the configuration; only the data are the attacker's.
"""

from typing import Any

import numpy as np

import runtime
from experiments.audits import canaries as canaries_lib
from experiments.audits.attackers import Attacker, RunWithCanaries, participation
from experiments.audits.target import Mechanism, Report, Target
from privacy import audit as statistics
from privacy.events import Adjacency

_COINS = 0x636F696E


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
  scores, with_canary, strength = attack(target, rounds=rounds, runs=runs, seed=seed)
  worlds = scores[~with_canary], scores[with_canary]
  common: dict[str, Any] = dict(delta=target.delta, confidence=confidence)
  family = Mechanism(target).family(rounds)
  return Report(
    claimed=target.claimed(rounds),
    bound=statistics.many_runs_of_family(*worlds, family=family, **common),
    rounds=rounds,
    strength=strength,
  )


def audit_one_run(
  target: Target,
  *,
  rounds: int,
  canaries: int,
  guesses: int | None = None,
  seed: int = 0,
  confidence: float = 0.95,
) -> Report:
  """Attacks a single run with many canaries, which are there or not by fair coins.

  Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
  algorithm 1, against the plan's trade-off functions (Mahloujifar, Melis and Chaudhuri 2024). The
  canaries are clients or, at example level,
  examples of the attacked silo. Each pulls at a weight of its own: one feature, for one class.

  Args:
    target: what is attacked; its model is linear in the features, or begins so.
    rounds: rounds of the run.
    canaries: their number.
    guesses: on how many of them the attacker guesses; by default a third of them.
    seed: of the run and of the coins.
    confidence: of the bound.

  Raises:
    ValueError: more canaries than there are clients (examples) or weights for, or a plan
      that protects against replacing one client.
  """
  mechanism = Mechanism(target)
  included = np.random.default_rng([seed, _COINS]).random(canaries) < 0.5
  observed, strengths = np.zeros([canaries, rounds]), []
  with runtime.create('xla') as machine:
    run = RunWithCanaries(target, machine, included, seed, rounds)
    for round_ in range(rounds):
      observed[:, round_], effect = run.round(round_)
      strengths.append(effect / mechanism.full_effect)
  if mechanism.is_correlated:
    scores = statistics.matched_filter(observed, run.present, mechanism.covariance(rounds))
  else:
    y = observed * mechanism.steps
    scores = statistics.log_likelihood_ratio(y, **mechanism.likelihood).sum(axis=1)
  common: dict[str, Any] = dict(delta=target.delta, confidence=confidence, guesses=guesses)
  family = mechanism.family(rounds)
  return Report(
    claimed=target.claimed(rounds),
    bound=statistics.one_run_of_family(scores, included, family=family, **common),
    rounds=rounds,
    strength=float(np.mean(strengths)),
  )


def audit_choice(
  target: Target, *, runs: int = 4000, seed: int = 0, confidence: float = 0.95
) -> Report:
  """Attacks the private choice of one of several models (IFCA's clusters), in the first round.

  The canary is an example that the first model predicts exactly and the others not at all.
  The choice is seen by where the update is added. Its claim is that of the selection alone, at
  delta = 0 and under zero-out: the width of the interval in which its losses lie.

  Args as for `audit`.

  Raises:
    ValueError: there is no private choice, or not by the losses of a regression.
  """
  examples, strength = canaries_lib.of_a_choice(target)
  with_canary = np.arange(runs) % 2 == 1
  with runtime.create('xla') as machine:
    attacker = Attacker(target, machine, runs, examples)
    server, states = attacker.start(seed + np.arange(runs))
    attacker.run(
      server, states, np.where(with_canary, canaries_lib.WITH, canaries_lib.WITHOUT), [True] * runs
    )
    chosen = states.to_numpy()['cluster'] == 0
  return Report(
    claimed=target.plan.selection.event(1).event.range(Adjacency.ZERO_OUT),
    bound=statistics.many_runs(
      chosen[~with_canary], chosen[with_canary], delta=0.0, confidence=confidence
    ),
    rounds=1,
    strength=strength,
    measure="the score's sensitivity",
  )


def attack(
  target: Target, *, rounds: int, runs: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, float]:
  """Scores of many runs: the larger, the more it looks as if the canary was there.

  Args as for `audit`.

  Returns:
    (scores [runs], whether the canary was there [runs], strength).
  """
  mechanism = Mechanism(target)
  # Alternating, so that both halves of either kind are alike.
  with_canary = np.arange(runs) % 2 == 1
  seeds = seed + np.arange(runs)
  present = participation(target, seeds, rounds)
  observed, strengths = np.zeros([runs, rounds]), []
  with runtime.create('xla') as machine:
    attacker = Attacker(target, machine, runs)
    server, states = attacker.start(seeds)
    for t in range(rounds):
      server, observed[:, t], effect = attacker.round(server, states, present[:, t], with_canary)
      strengths.append(effect / mechanism.full_effect)
  strength = float(np.mean(strengths))
  if mechanism.is_correlated:
    return statistics.learned_filter(observed, present, with_canary), with_canary, strength
  # In units of one canary: n + N(0, steps z^2).
  y = observed * mechanism.steps
  scores = statistics.log_likelihood_ratio(y, **mechanism.likelihood)
  if mechanism.replaces:  # the other world has the opposite canary instead
    scores = scores - statistics.log_likelihood_ratio(-y, **mechanism.likelihood)
  return scores.sum(axis=1), with_canary, strength
