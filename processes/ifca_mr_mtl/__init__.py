"""IFCA preconditioning: clustering first, then personalised training inside the clusters."""

from processes import common_settings as common
from processes.declaration import Method
from settings import Setting, show

AFTER_CLUSTERING = Setting(
  name='after_clustering', kind=str, default='mr_mtl',
  choices=('mr_mtl', 'local', 'fedavg', 'finetune'),
  help='What runs inside each cluster once the choices are frozen.',
)  # fmt: skip
# What one stage alone reads.
_OF_STAGE = {
  'mr_mtl': (common.MTL_LAMBDA, common.SILO_LAMBDAS, common.REGULARIZER_INSIDE_CLIP),
  'finetune': (common.FINETUNE_FRACTION,),
}


def check(config) -> None:
  """`check_clustering`; refuses settings of another stage than that after the clustering."""
  common.check_clustering(config)
  for stage, settings in _OF_STAGE.items():
    for setting in settings if config.after_clustering != stage else ():
      if common.is_given(config, setting):
        raise ValueError(
          f'--{setting.name}={show(getattr(config, setting.name))} needs '
          f'--after_clustering={stage}; {config.after_clustering} does not use it.'
        )


METHOD = Method(
  name='ifca_mr_mtl',
  title='IFCA, then MR-MTL',
  summary='clustering first, then MR-MTL (or another method) inside each cluster',
  citation=common.CROSS_SILO,
  privacy_units=('none', 'example'),
  settings=(
    *common.MEAN, *common.CLUSTERING, AFTER_CLUSTERING, common.FINETUNE_FRACTION,
    common.MTL_LAMBDA, common.SILO_LAMBDAS, common.REGULARIZER_INSIDE_CLIP,
  ),
  personal=True,
  stiff_settings=('mtl_lambda',),
  aliases={
    'ifca_local': {'after_clustering': 'local'},
    'ifca_fedavg': {'after_clustering': 'fedavg'},
    'ifca_finetune': {'after_clustering': 'finetune'},
  },
  check=check,
)  # fmt: skip
