"""Tiny pipelines to attack: real methods, real plans, a linear model."""

import numpy as np

import processes
import tff_models
from experiments.audits.target import Target
from privacy import plan, sampling, selection
from processes.method import BuildSpec, ExamplesSpec

FEATURES = 3


def target(
  name,
  plan_,
  *,
  rows=1,
  features=FEATURES,
  batch_size=None,
  attributes=None,
  hyperparameters=None,
  **options,
):
  """A target for `experiments.audits`, on linear regression."""
  spec = BuildSpec(
    model=tff_models.build_model(
      'linear_regression', example_shape=(features,), num_outputs=1, task_kind='regression'
    ),
    examples=ExamplesSpec(
      x_shape=(rows, features), x_dtype=np.float32, y_shape=(rows,), y_dtype=np.float32
    ),
    plan=plan_,
    batch_size=batch_size or rows,
    hyperparameters=hyperparameters or {},
    options=options,
  )
  return Target(
    method=processes.build(name, spec),
    plan=plan_,
    examples=spec.examples,
    attributes=attributes or {},
  )


def client_level(z, *, rate=0.5, delta=1e-3, population=8, cls=plan.ClientLevelPrivacy, **more):
  """A client-level plan with Poisson cohorts."""
  more.setdefault('cohorts', sampling.PoissonCohorts(population, rate))
  more.setdefault('clipping', plan.FixedClipping(norm=0.5))
  return cls(noise_multiplier=z, delta=delta, **more)


def silo_level(z, *, rows=4, batch_size=2, steps=1, delta=1e-3, selecting=None, cls=None, **more):
  """An example-level plan of one silo."""
  return (cls or plan.ExampleLevelPrivacy)(
    num_examples=[rows], batch_size=batch_size, steps_per_round=steps, noise_multiplier=z,
    delta=delta, clipping_norm=1.0,
    selection=selecting and selection.PrivateSelection(epsilon=selecting[0], rounds=selecting[1]),
    **more,
  )  # fmt: skip
