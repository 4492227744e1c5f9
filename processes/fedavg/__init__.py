"""Federated averaging; with client-level privacy DP-FedAvg."""

from processes import common_settings as common
from processes.declaration import EndPoint, Method

METHOD = Method(
  name='fedavg',
  title='FedAvg',
  summary='federated averaging; with --privacy=client DP-FedAvg',
  citation='McMahan et al., AISTATS 2017; Andrew et al., NeurIPS 2021',
  privacy_units=('none', 'client', 'example'),
  has_stateful_reports=False,
  settings=common.GLOBAL_MODEL,
  end_point=EndPoint.GLOBAL,
  aliases={'dp_fedavg': {'privacy': 'client', 'adaptive_clipping': True}},
  check=common.check_global_model,
)
