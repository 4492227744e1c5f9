"""IFCA (HypCluster): cluster models, of which every client trains the one that fits it best."""

from processes import common_settings as common
from processes.declaration import Method

METHOD = Method(
  name='ifca',
  title='IFCA',
  summary='cluster models, of which every client (privately) chooses one; HypCluster',
  citation='Ghosh et al., NeurIPS 2020; Mansour et al., 2020',
  privacy_units=('none', 'example'),
  settings=(*common.MEAN, *common.CLUSTERING),
  personal=True,
  aliases={'hypcluster': {}},
  check=common.check_clustering,
)
