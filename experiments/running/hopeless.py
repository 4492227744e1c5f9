"""A warning before a run whose budget lets it learn nothing."""

import functools
import math

import tensorflow as tf

from experiments.config.experiment import ExperimentConfig
from privacy import drowning
from privacy.plan import ClientLevelPrivacy, ExampleLevelPrivacy, PrivacyPlan
from processes.declaration import EndPoint
from settings import show
from tff_models.model import Model


def warning(config: ExperimentConfig, plan: PrivacyPlan, model: Model) -> str:
  """A sentence where the noise drowns the longest possible signal; empty elsewhere.

  See `privacy.drowning`. Where clients opted out of privacy theirs is not noised: nothing is said.
  """
  dimension = num_parameters(model)
  if isinstance(plan, ExampleLevelPrivacy):
    together = config.declaration.end_point is not EndPoint.LOCAL
    found = drowning.of_examples(plan, config.rounds, dimension, together=together)
    release = "a silo's mean gradient (the middle silo's)"
  elif isinstance(plan, ClientLevelPrivacy) and not plan.num_opted_out:
    found = drowning.of_clients(plan, config.rounds, dimension)
    release = "a round's mean update"
  else:
    return ''
  if not found.hopeless:
    return ''
  budget = next(
    f'--{name}={show(getattr(config, name))}'
    for name in ('target_epsilon', 'silo_epsilons', 'noise_multiplier')
    if getattr(config, name) is not None
  )
  return (
    f'Warning: with {budget} nothing can be learnt. The noise in {release} has an expected L2 norm '
    f'of {found.release * config.clipping_norm:.3g}, where clipping lets through at most '
    f'{config.clipping_norm:g}; summed over all {config.rounds} rounds it is still '
    f'{found.run:.3g} times as long as the longest signal. A weaker guarantee, more clients or '
    'examples, or a smaller model would change that.'
  )


@functools.lru_cache(maxsize=8)
def num_parameters(model: Model) -> int:
  """How many numbers a model has. Traced once for all runs of a sweep, which share it."""
  traced = tf.function(model.init).get_concrete_function(tf.TensorSpec([2], tf.int32))
  leaves = tf.nest.flatten(traced.structured_outputs)
  return sum(math.prod(leaf.shape.as_list()) for leaf in leaves)
