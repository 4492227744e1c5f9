"""SCAFFOLD: federated averaging with control variates against client drift."""

from processes import common_settings as common
from processes.declaration import EndPoint, Method


def check(config) -> None:
  """Refuses a learning rate that ends at zero, by which control variates are divided."""
  common.check_optimization(config)
  if config.client_learning_rate_final == 0.0:
    raise ValueError(
      '--client_learning_rate_final=0.0 cannot be used with --method=scaffold, which divides by '
      'the learning rate; use a small share such as 0.01.'
    )


METHOD = Method(
  name='scaffold',
  title='SCAFFOLD',
  summary='federated averaging with control variates against client drift',
  citation='Karimireddy et al., ICML 2020',
  privacy_units=('none', 'client', 'example'),
  # No momentum on the clients: what their steps add up to is the control variate.
  settings=(
    common.SERVER_LEARNING_RATE,
    *common.SERVER_OPTIMIZATION,
    *common.CLIENT_RATE_SCHEDULE,
  ),
  end_point=EndPoint.GLOBAL,
  privacy_notes=(
    'Clients send the change of their control variate beside that of their model: both are clipped '
    'together and noised as one vector, so that one Gaussian mechanism a round covers them. The '
    'control variates themselves stay on the clients.',
    'The largest number of examples of any client is taken to be public: the scale of what clients '
    'send of their control variates follows from it.',
  ),
  check=check,
)
