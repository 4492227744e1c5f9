"""How epsilons are printed."""

import math


def rounded_up(epsilon: float) -> str:
  """Four digits, rounded up: a printed epsilon is never below the true one."""
  if epsilon == 0 or not math.isfinite(epsilon):
    return f'{epsilon:g}'
  unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
  # The tolerance keeps numbers of four digits as they are.
  return f'{math.ceil(epsilon / unit - 1e-9) * unit:.4g}'
