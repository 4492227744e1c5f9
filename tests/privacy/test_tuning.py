"""The truncated negative binomial number of tuning runs."""

import dataclasses

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from privacy import accounting, attack, calibration, tuning, wording
from privacy.events import DisjointDpEvent


@pytest.mark.parametrize('shape', [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_distribution_has_its_mean_and_sums_to_one(shape):
  plan = tuning.PrivateTuning(mean=10.0, shape=shape)
  runs = np.arange(1, 20_000)
  probability = np.exp(plan.log_probability(runs))
  assert probability.sum() == pytest.approx(1.0, rel=1e-6)
  assert (probability * runs).sum() == pytest.approx(10.0, rel=1e-4)


def test_distribution_by_the_papers_formula():
  plan = tuning.PrivateTuning(mean=4.0, shape=0.5)
  gamma, eta = plan.gamma, 0.5
  for runs in (1, 2, 5):
    product = np.prod([(j + eta) / (j + 1) for j in range(runs)])
    by_hand = (1 - gamma) ** runs / (gamma**-eta - 1) * product
    assert np.exp(plan.log_probability(runs)) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize('shape', [-0.5, 0.0, 1.0])
def test_draws_follow_the_distribution(shape):
  plan = tuning.PrivateTuning(mean=4.0, shape=shape)
  draws = np.array([plan.draw(seed, 3) for seed in range(2000)])
  probability = np.exp(plan.log_probability(np.arange(1, 9)))
  observed = [*(np.sum(draws == runs) for runs in range(1, 9)), np.sum(draws > 8)]
  expected = np.array([*probability, 1 - probability.sum()]) * len(draws)
  assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_draws_are_keyed():
  plan = tuning.PrivateTuning(mean=50.0, shape=1.0)
  assert plan.draw(1, 2) == plan.draw(1, 2)
  assert len({plan.draw(1, silo) for silo in range(20)}) > 5


@pytest.mark.parametrize(
  ('mean', 'shape', 'message'), [(0.5, 1.0, 'mean'), (2.0, -1.0, 'shape'), (np.inf, 1.0, 'mean')]
)
def test_refuses(mean, shape, message):
  with pytest.raises(ValueError, match=message):
    tuning.PrivateTuning(mean=mean, shape=shape)


def test_an_example_pays_for_training_or_for_the_score():
  """Rows that scores are computed on are rows that no run was trained on."""
  kwargs = dict(mean=6.0, shape=0.0, score_noise_multiplier=3.0)
  run = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0), 4)
  score = dp_accounting.GaussianDpEvent(3.0)
  both = tuning.PrivateTuning(**kwargs).event(run, shared=True)
  apart = tuning.PrivateTuning(**kwargs, held_out_score=True).event(run, shared=True)
  best = lambda event: dp_accounting.dp_event.RepeatAndSelectDpEvent(event, 6.0, 0.0)  # noqa: E731
  trained_on = dp_accounting.ComposedDpEvent([run, best(run)])
  assert apart == DisjointDpEvent([trained_on, best(score)])
  found = [accounting.loss(event, 1e-3).epsilon for event in (trained_on, best(score), apart, both)]
  assert found[2] == pytest.approx(max(found[:2]), rel=1e-9) and found[2] < found[3]


def test_disjoint_rows_need_less_noise():
  """School's median silo at epsilon 6, scores with noise 2: less than for the composition."""
  noise = [
    calibration.calibrate_example_level(
      target_epsilon=6.0, delta=1e-3, rounds=200, num_examples=[66], batch_size=32,
      steps_per_round=2, clipping_norm=1.0,
      tuning=tuning.PrivateTuning.of_gamma(
        gamma=0.3, shape=0.0, score_noise_multiplier=2.0, held_out_score=held_out
      ),
    ).noise_multiplier[0]
    for held_out in (True, False)
  ]  # fmt: skip
  assert noise == pytest.approx([9.155, 9.749], abs=0.006)


@pytest.mark.parametrize('target', [1.0, 6.0])
def test_scores_may_spend_what_held_out_examples_have(target):
  """With the least noise, which costs those that are trained on nothing."""
  without = tuning.PrivateTuning.of_gamma(gamma=0.3, shape=0.0, held_out_score=True)
  noise = calibration.calibrate_score(without, target_epsilon=target, delta=1e-3)
  epsilons = [
    accounting.loss(
      dataclasses.replace(without, score_noise_multiplier=z).scores_event(), 1e-3
    ).epsilon
    for z in (noise, noise * 0.999)
  ]
  assert epsilons[0] <= target < epsilons[1]
  training = [
    calibration.calibrate_example_level(
      target_epsilon=target, delta=1e-3, rounds=20, num_examples=[66], batch_size=32,
      steps_per_round=2, clipping_norm=1.0,
      tuning=dataclasses.replace(without, score_noise_multiplier=z),
    ).noise_multiplier[0]
    for z in (noise, 50.0)
  ]  # fmt: skip
  assert training[0] == training[1]


def test_the_score_alone_may_spend_the_budget():
  with pytest.raises(ValueError, match='nothing is left for training'):
    calibration.calibrate_example_level(
      target_epsilon=1.0, delta=1e-3, rounds=20, num_examples=[24], batch_size=32,
      steps_per_round=1, clipping_norm=1.0,
      tuning=tuning.PrivateTuning(
        mean=3.0, shape=0.0, score_noise_multiplier=0.5, held_out_score=True
      ),
    )  # fmt: skip


def test_probability_of_the_better_of_two():
  """By simulation; losses of 0.01 beside noise of two clips of 1 are a coin flip."""
  plan = tuning.PrivateTuning(mean=3.0, shape=0.0, score_noise_multiplier=2.0)
  noise = np.random.default_rng(0).normal(scale=2 * 0.5, size=(2, 100_000))
  found = np.mean(noise[0] < 1.5 + noise[1])
  assert plan.probability_of_the_better(1.5, 0.5) == pytest.approx(found, abs=0.005)
  assert plan.probability_of_the_better(0.05, 1.0) < 0.51
  said = wording.of_tuning(plan)
  assert 'differ by one clip the better is chosen with probability 64 %' in said
  exact = tuning.PrivateTuning(mean=3.0, shape=0.0)
  assert 'probability' not in wording.of_tuning(exact)
  assert exact.probability_of_the_better(0.1, 1.0) == 1.0


def _released(masses, order, gamma, shape):
  """Probabilities of the outcomes of the best of K runs, from the least wanted to the best."""
  rest = 1 - (1 - gamma) * np.append(0.0, np.cumsum(masses[order]))
  generating = np.log(rest) / np.log(gamma) if shape == 0 else (rest**-shape - 1)
  released = np.empty_like(masses)
  released[order] = np.diff(generating / generating[-1])
  return released


@pytest.mark.parametrize(
  ('shape', 'gamma', 'near'), [(-0.5, 0.3, 0.7), (0.0, 0.5, 0.7), (1.0, 0.1, 0.2)]
)
def test_no_choice_passes_the_loss_distribution(shape, gamma, near):
  """Any order of the outputs of a Gaussian run, and the best one comes near."""
  z, epsilons = 1.5, np.array([0.3, 1.0, 2.0])
  edges = np.linspace(-9, 10, 1201) / z
  with_it, without = (np.diff(stats.norm.cdf(edges, mean)) for mean in (1 / z, 0.0))
  event = tuning.PrivateTuning.of_gamma(gamma=gamma, shape=shape).event(
    dp_accounting.GaussianDpEvent(z)
  )
  claimed = attack.privacy_curve(event)(epsilons)
  generator, middle = np.random.default_rng(0), (edges[1:] + edges[:-1]) / 2
  orders = [np.lexsort((middle, middle < cut)) for cut in np.linspace(-1, 1.5, 11)]
  orders += [generator.permutation(len(middle)) for _ in range(5)]
  orders += [np.argsort(np.sin(generator.uniform(0.2, 4) * middle)) for _ in range(10)]
  shown = []
  for order in orders:
    one, other = (_released(masses, order, gamma, shape) for masses in (with_it, without))
    for p, q in ((one, other), (other, one)):
      shown.append([np.maximum(p - np.exp(e) * q, 0).sum() for e in epsilons])
  assert np.all(np.max(shown, axis=0) <= claimed)
  assert np.all(np.max(shown, axis=0) > near * claimed)
  run = attack.privacy_curve(dp_accounting.GaussianDpEvent(z))(epsilons)
  assert np.any(np.max(shown, axis=0) > run)  # a choice that is taken for a single run


def test_a_choice_by_both_accountants():
  """Loss distributions ask for less."""
  of = tuning.PrivateTuning.of_gamma
  for shape, gamma in ((-0.5, 0.3), (0.0, 0.01), (3.0, 0.1)):
    run = dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(8.0)), 300
    )
    event = of(gamma=gamma, shape=shape).event(run, shared=True)
    by_pld = accounting.loss(event, 1e-3)
    assert by_pld.accountant == 'PLD'
    assert accounting.loss(run, 1e-3).epsilon < by_pld.epsilon
    assert by_pld.epsilon < 0.9 * accounting.loss(event, 1e-3, accountant='renyi').epsilon
  # A single run costs what it costs, and no more than a choice that is nearly always of one.
  single = tuning.PrivateTuning(mean=1.0, shape=0.0).event(run)
  for times in (1, 3):
    several = [dp_accounting.SelfComposedDpEvent(event, times) for event in (single, run)]
    assert len({accounting.loss(event, 1e-3).epsilon for event in several}) == 1
  best = of(gamma=0.3, shape=0.0).event(run)
  each = (dp_accounting.SelfComposedDpEvent(best, 2), dp_accounting.ComposedDpEvent([best, best]))
  assert len({accounting.loss(event, 1e-3).epsilon for event in each}) == 1
  nearly = of(gamma=1 - 1e-4, shape=0.0).event(run)
  assert accounting.loss(nearly, 1e-3).epsilon == pytest.approx(
    accounting.loss(run, 1e-3).epsilon, rel=5e-3
  )
