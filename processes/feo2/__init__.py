"""FeO2: federated learning with opt-out differential privacy."""

from processes import common_settings as common
from processes.declaration import Method
from processes.ditto import DITTO_LAMBDA
from settings import Setting

PRIVATE, OPTED_OUT = 'private', 'opted out'  # its groups of clients

OPT_OUT_FRACTION = Setting(
  name='opt_out_fraction', kind=float, default=0.05, minimum=0.0, maximum=1.0,
  help='Fraction of all clients who opt out of privacy; drawn once, from the clients who may '
  '(all, or those that the data set names).',
)  # fmt: skip
RATIO = Setting(
  name='ratio', kind=float, default=1.0, minimum=0.0, maximum=1.0,
  help='Weight r of a private client relative to one who opted out. 0: private clients are not '
  'asked.',
)  # fmt: skip
OPT_OUT_DENOMINATOR = Setting(
  name='opt_out_denominator', kind=str, default='counted', choices=('counted', 'expected'),
  help='Divide by the opted-out clients who take part in the round, as in the paper, or by their '
  'expected number, so that the ratio damps the noise in every round.',
)  # fmt: skip
PERSONALIZE = Setting(
  name='personalize', kind=bool, default=True,
  help='Train personal models (Ditto) beside the global one.',
)  # fmt: skip
DITTO_LAMBDA_PRIVATE = DITTO_LAMBDA.but(
  name='ditto_lambda_private', requires='personalize', symbol='lambda of private',
  help="Strength of the pull of private clients' personal models to the global model.",
)  # fmt: skip
DITTO_LAMBDA_NON_PRIVATE = DITTO_LAMBDA.but(
  name='ditto_lambda_non_private', requires='personalize', symbol='lambda of opted-out',
  help="Strength of the pull of opted-out clients' personal models to the global model.",
)  # fmt: skip


NO_FIXED_COHORTS = (
  '--cohort_sampling=fixed cannot be used with --method=feo2: the exact number of '
  'opted-out clients in a round would tell the number of private ones; use poisson.'
)


def check(config) -> None:
  """`check_optimization`; refuses cohorts of a fixed size, and a rate of models that are not."""
  common.check_optimization(config)
  # Not `requires`: the declaration is Ditto's too, which always has personal models.
  if config.personal_learning_rate is not None and not config.personalize:
    raise ValueError(
      f'--personal_learning_rate={config.personal_learning_rate} needs --personalize.'
    )
  if config.cohort_sampling == 'fixed':
    raise ValueError(NO_FIXED_COHORTS)


METHOD = Method(
  name='feo2',
  title='FeO2',
  summary='DP-FedAvg in which clients may opt out of privacy, with Ditto',
  citation='Aldaghri, Mahdavifar and Beirami, 2021',
  privacy_units=('client',),
  has_stateful_reports=False,
  settings=(
    *common.OPTIMIZATION, common.SERVER_LEARNING_RATE, OPT_OUT_FRACTION, RATIO,
    OPT_OUT_DENOMINATOR, PERSONALIZE, common.PERSONAL_LEARNING_RATE, DITTO_LAMBDA_PRIVATE,
    DITTO_LAMBDA_NON_PRIVATE,
  ),
  personal=True,
  stiff_settings=('ditto_lambda_private', 'ditto_lambda_non_private'),
  privacy_notes=(
    common.STAYS_ON_THE_CLIENT,
    'Who opted out is public, and so is how many of them take part in a round.',
  ),
  compared_groups=((OPTED_OUT, PRIVATE),),
  check=check,
)  # fmt: skip
