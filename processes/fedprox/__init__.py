"""FedProx: federated averaging with a pull to the broadcast model."""

from processes import common_settings as common
from processes.declaration import EndPoint, Method
from settings import Setting

FEDPROX_MU = Setting(
  name='fedprox_mu', kind=float, default=0.1, minimum=0.0, symbol='mu',
  help="Strength of the pull of a client's model to the broadcast one.",
)  # fmt: skip

METHOD = Method(
  name='fedprox',
  title='FedProx',
  summary='federated averaging with a pull to the broadcast model',
  citation='Li et al., MLSys 2020',
  privacy_units=('none', 'client', 'example'),
  has_stateful_reports=False,
  settings=(*common.GLOBAL_MODEL, FEDPROX_MU, common.REGULARIZER_INSIDE_CLIP),
  end_point=EndPoint.GLOBAL,
  stiff_settings=('fedprox_mu',),
  check=common.check_global_model,
)
