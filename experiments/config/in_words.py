"""An experiment in a line: what is trained on what, and who is protected."""

from experiments.config.experiment import ExperimentConfig
from privacy.rounding import rounded_up


def describe(config: ExperimentConfig) -> str:
  """Method, data, privacy and rounds: what a user has to know before anything is run."""
  title = config.declaration.title
  method = title if title == config.method else f'{title} ({config.method})'
  model = f' with {config.model}' if config.model else ''
  rounds = '1 round' if config.rounds == 1 else f'{config.rounds} rounds'
  return f'{method} on {config.dataset}{model}, {rounds}, {_privacy(config)}'


def _privacy(config: ExperimentConfig) -> str:
  if config.privacy == 'none':
    return 'WITHOUT privacy'
  whom = 'each client' if config.privacy == 'client' else 'each example of a client'
  if config.hypothetical_deployment:
    whom = 'nobody here (each client of a hypothetical deployment)'
  if config.noise_key == 'rehearsal':
    whom = f'nobody (a rehearsal; else {whom})'
  if config.silo_epsilons is not None:
    return f'protecting {whom} with the budgets of {config.silo_epsilons}'
  if config.target_epsilon is not None:
    budget = f'epsilon {rounded_up(config.target_epsilon)}'
  else:
    budget = f'noise multiplier {config.noise_multiplier:g}'
  return f'protecting {whom} with {budget} at delta {config.delta:g}'
