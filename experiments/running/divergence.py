"""A run that has diverged: one line, with what to try."""

from experiments.config.experiment import ExperimentConfig
from settings import show


class Diverged(ValueError):
  """A loss is not a finite number: what follows would be worth nothing."""

  def __init__(self, config: ExperimentConfig, round_: int, which: str, loss: float):
    """Says in which round it was seen, and what to try.

    Args:
      config: of the run.
      round_: the round after which the loss was not finite; 0 before any training.
      which: 'training' or 'test'.
      loss: what it was.
    """
    if round_ == 0:
      super().__init__(
        f'the {which} loss is {loss:g} before the first round: the initial weights'
        + (f' of --model={config.model}' if config.model else '')
        + ', or the data, are no finite numbers.'
      )
      return
    names = ('client_learning_rate', *config.declaration.stiff_settings)
    tries = [f'--{n} (now {show(v)})' for n in names if (v := getattr(config, n)) is not None]
    super().__init__(
      f'the run has diverged: after round {round_} of {config.rounds} the {which} loss is '
      f'{loss:g}; try a smaller {" or ".join(tries)}.'
    )
