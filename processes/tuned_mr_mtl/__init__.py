"""MR-MTL with a private choice of lambda."""

import math

from processes import common_settings as common
from processes.declaration import Method
from settings import Group, Setting

TUNING_LAMBDAS = Setting(
  name='tuning_lambdas', kind=str, default='0.1,1,10',
  help="The values among which each silo's runs draw theirs of --mtl_lambda, with commas.",
)  # fmt: skip
TUNING_SCORE_CLIP = Setting(
  name='tuning_score_clip', kind=float, default=None, above=0.0,
  help='Upper bound to which the losses of held-out examples are clipped in the score of a run. '
  "Default: the scale of the data set's losses, as public knowledge has it.",
)  # fmt: skip
TUNING_ETA = Setting(
  name='tuning_eta', kind=float, default=0.0, group=Group.PRIVACY, above=-1.0, maximum=100.0,
  help="Shape of the truncated negative binomial number of each silo's runs: 1 geometric, 0 "
  'logarithmic.',
)  # fmt: skip
TUNING_GAMMA = Setting(
  name='tuning_gamma', kind=float, default=0.2, group=Group.PRIVACY, minimum=0.001, maximum=0.999,
  help="The other parameter of the number of each silo's runs: a smaller one gives more runs.",
)  # fmt: skip
TUNING_SCORE_NOISE = Setting(
  name='tuning_score_noise', kind=float, default=None, group=Group.PRIVACY, above=0.0,
  help="Standard deviation of the noise on the score of a silo's run, divided by "
  '--tuning_score_clip. Default: what lets held-out examples spend --target_epsilon; without one, '
  '2.',
)  # fmt: skip


def check(config) -> None:
  """Refuses runs without data to score by, and lambdas that are none."""
  if not config.validation_fraction:
    raise ValueError(
      '--method=tuned_mr_mtl needs --validation_fraction, the share of examples which a silo holds '
      'out to score its runs, such as --validation_fraction=0.2.'
    )
  parse_lambdas(config.tuning_lambdas)


def parse_lambdas(text: str) -> tuple[float, ...]:
  """The candidates of `--tuning_lambdas`.

  Raises:
    ValueError: they are no numbers from 0, or none.
  """
  try:
    lambdas = tuple(float(word) for word in text.split(','))
  except ValueError:
    lambdas = ()
  if not lambdas or not all(0 <= value < math.inf for value in lambdas):
    raise ValueError(f'--tuning_lambdas={text} must be numbers from 0, such as 0.1,1,10.')
  return lambdas


METHOD = Method(
  name='tuned_mr_mtl',
  title='MR-MTL, lambda chosen privately',
  summary='MR-MTL in which every silo chooses its lambda privately',
  citation=f'{common.CROSS_SILO}; Papernot and Steinke, ICLR 2022',
  privacy_units=('example',),
  settings=(
    *common.MEAN, common.MTL_LAMBDA, common.REGULARIZER_INSIDE_CLIP, TUNING_LAMBDAS, TUNING_ETA,
    TUNING_GAMMA, TUNING_SCORE_CLIP, TUNING_SCORE_NOISE,
  ),
  personal=True,
  keyed_setup=True,
  stiff_settings=('mtl_lambda',),
  check=check,
)  # fmt: skip
