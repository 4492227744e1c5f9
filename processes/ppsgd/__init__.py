"""PPSGD: additive models w + theta_i, of which theta_i stays on the client."""

import math

from processes import common_settings as common
from processes.declaration import Method
from settings import Setting

PERSONALIZATION_ALPHA = Setting(
  name='personalization_alpha', kind=float, default=1.0, minimum=0.0, infinite=True,
  ends=(0.0, math.inf),
  help="Step size of the shared part over that of the personal part (the paper's alpha times the "
  'clients of a round). 0: nothing is shared; inf: nothing is personal.',
)  # fmt: skip
MINIBATCH_WEIGHTING = Setting(
  name='minibatch_weighting', kind=str, default='average', choices=('average', 'sum'),
  help="A client's gradient: the mean over its minibatch, or the sum.",
)  # fmt: skip
MINIBATCH_FRACTION = Setting(
  name='minibatch_fraction', kind=float, default=None, above=0.0, maximum=1.0,
  help="A client's minibatch as a share of its examples, rounded, from 1 to --batch_size of them. "
  'Default: --batch_size examples for every client.',
)  # fmt: skip
MEAN_MINIBATCH_SIZE = Setting(
  name='mean_minibatch_size', kind=float, default=None, above=0.0,
  help='Mean size of the minibatches over all clients, by which the steps are divided with '
  '--minibatch_weighting=sum: a public number. Default: --batch_size.',
)  # fmt: skip
ITERATE = Setting(
  name='iterate', kind=str, default='last', choices=('last', 'average'),
  help='Which iterate is evaluated: the last one, or the average of all.',
)  # fmt: skip
PERSONAL_LAYERS = Setting(
  name='personal_layers', kind=str, default='last', choices=('last', 'all'),
  help='What is personal: the last layer, or all parameters.',
)  # fmt: skip


def check(config) -> None:
  """Refuses several passes in a round, and a divisor that nothing is divided by."""
  check_epochs(config.local_epochs)
  if config.mean_minibatch_size is not None and config.minibatch_weighting != 'sum':
    raise ValueError(
      f'--mean_minibatch_size={config.mean_minibatch_size} needs --minibatch_weighting=sum; the '
      'mean over a minibatch is divided by its own size.'
    )


def check_epochs(epochs: int) -> None:
  """Refuses several passes in a round."""
  if epochs != 1:
    raise ValueError(
      f'--local_epochs={epochs} cannot be used with --method=ppsgd, which takes one step in a '
      'round; use 1.'
    )


METHOD = Method(
  name='ppsgd',
  title='PPSGD',
  summary='additive models w + theta_i: w is shared, theta_i stays on the client',
  citation='Bietti et al., ICML 2022',
  privacy_units=('none', 'client'),
  settings=(
    PERSONALIZATION_ALPHA, MINIBATCH_WEIGHTING, MINIBATCH_FRACTION, MEAN_MINIBATCH_SIZE, ITERATE,
    PERSONAL_LAYERS,
  ),
  personal=True,
  privacy_notes=(common.STAYS_ON_THE_CLIENT,),
  check=check,
)  # fmt: skip
