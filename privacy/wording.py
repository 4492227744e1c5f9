"""Sentences that the privacy statements of several plans share."""

import numpy as np

from privacy import tuning as tuning_lib

_OUTSIDE = (
  'Metrics marked as simulation-only (training losses, update norms, cohort sizes, per-client test '
  'results) are not private releases.',
  'The noise is floating-point Gaussian noise for simulation, not hardened against attacks on '
  'floating-point arithmetic.',
)


def delta_warning(delta, size) -> tuple[str, ...]:
  """A sentence for each guarantee whose delta exceeds one over the number of its units."""
  count = int(np.sum(np.asarray(delta) > 1 / np.asarray(size, np.float64)))
  if not count:
    return ()
  what = 'delta is' if np.ndim(delta) == 0 else f'delta of {count} silos is'
  return (
    f'{what} larger than 1 / n: publishing one record at random would satisfy such a delta, so the '
    'guarantee is weak.',
  )


def of_tuning(tuning: tuning_lib.PrivateTuning | None) -> str:
  """What the mechanism's sentence says of private tuning; empty without it."""
  if tuning is None:
    return ''
  return (
    f' The best of a random number of runs is released (truncated negative binomial, shape '
    f'{tuning.shape:.6g}, {tuning.mean:.6g} runs expected); epsilon includes all of them.'
  )


def outside(tuning: tuning_lib.PrivateTuning | None) -> tuple[str, ...]:
  """What no plan covers."""
  if tuning is not None:
    return _OUTSIDE
  return ('Hyper-parameters chosen by looking at results are not accounted for.', *_OUTSIDE)


def value_range(values: np.ndarray) -> str:
  """'1.5', or '1.5 to 2'."""
  low, high = values.min(), values.max()
  return f'{low:.6g}' if low == high else f'{low:.6g} to {high:.6g}'
