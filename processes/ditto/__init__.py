"""Ditto: personal models beside a global one, held close to it."""

from processes import common_settings as common
from processes.declaration import Method
from settings import Setting

DITTO_LAMBDA = Setting(
  name='ditto_lambda', kind=float, default=0.1, minimum=0.0, symbol='lambda',
  help='Strength of the pull of each personal model to the global model.',
)  # fmt: skip

WOULD_OPT_OUT, WOULD_STAY = 'would opt out', 'would stay'  # groups of clients who are treated alike
WOULD_OPT_OUT_FRACTION = Setting(
  name='would_opt_out_fraction', kind=float, default=0.0, minimum=0.0, maximum=1.0,
  help='Report apart those who would opt out with --method=feo2 and this --opt_out_fraction, as '
  'its control. Training is the same for all clients.',
)  # fmt: skip

METHOD = Method(
  name='ditto',
  title='Ditto',
  summary='a global model and personal ones held close to it',
  citation='Li et al., ICML 2021',
  privacy_units=('none', 'client', 'example'),
  has_stateful_reports=False,
  settings=(
    *common.GLOBAL_MODEL, DITTO_LAMBDA, common.PERSONAL_LEARNING_RATE,
    common.REGULARIZER_INSIDE_CLIP, WOULD_OPT_OUT_FRACTION,
  ),
  personal=True,
  stiff_settings=('ditto_lambda',),
  passes=2,
  privacy_notes=(common.STAYS_ON_THE_CLIENT,),
  compared_groups=((WOULD_OPT_OUT, WOULD_STAY),),
  check=common.check_global_model,
)  # fmt: skip
