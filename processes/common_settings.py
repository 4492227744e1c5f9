"""Settings that several methods share, each declared once.

Settings of one method stand in its own declaration.
"""

from collections.abc import Mapping

from settings import Group, Setting

# Of every method: fields of the experiment's configuration.
ROUNDS = Setting(
  name='rounds', kind=int, default=100, help='Number of communication rounds.',
  group=Group.EXPERIMENT, minimum=1, maximum=10_000_000,
)  # fmt: skip
LOCAL_EPOCHS = Setting(
  name='local_epochs', kind=int, default=1,
  help='Passes of a client over its examples in a round.', group=Group.TRAINING, minimum=1,
  maximum=1_000_000,
)  # fmt: skip
CLIENT_LEARNING_RATE = Setting(
  name='client_learning_rate', kind=float, default=0.1, help="Learning rate of the clients' SGD.",
  group=Group.TRAINING, above=0.0, symbol='client rate',
)  # fmt: skip


def _schedule(rate: str) -> tuple[Setting, ...]:
  """How a learning rate changes over the rounds (`processes.learning_rates`)."""
  return (
    Setting(
      name=f'{rate}_decay', kind=float, default=1.0, group=Group.TRAINING, above=0.0, maximum=1.0,
      help=f'Factor on --{rate} from each round to the next, or every --{rate}_decay_every rounds.',
    ),
    Setting(
      name=f'{rate}_decay_every', kind=float, default=1.0, group=Group.TRAINING, minimum=1.0,
      help=f'Rounds from one step of --{rate}_decay, below 1, to the next; 1 is exponential decay.',
    ),
    Setting(
      name=f'{rate}_warmup', kind=float, default=0.0, group=Group.TRAINING, minimum=0.0,
      help=f'Rounds in which --{rate} grows to its value in equal steps.',
    ),
    Setting(
      name=f'{rate}_final', kind=float, default=1.0, group=Group.TRAINING, minimum=0.0, maximum=1.0,
      help=f'Share of --{rate} that is left in the last round, along a cosine; 1 is no annealing.',
    ),
  )  # fmt: skip


CLIENT_RATE_SCHEDULE = _schedule('client_learning_rate')
SERVER_RATE_SCHEDULE = _schedule('server_learning_rate')
CLIENT_MOMENTUM = Setting(
  name='client_momentum', kind=float, default=None, group=Group.TRAINING, minimum=0.0, maximum=1.0,
  help="Momentum of the clients' SGD or DP-SGD, started anew in every round. Default: none.",
)  # fmt: skip
SERVER_LEARNING_RATE = Setting(
  name='server_learning_rate', kind=float, default=1.0,
  help="Factor on the mean of the clients' updates.", group=Group.TRAINING, above=0.0,
  symbol='server rate',
)  # fmt: skip
WEIGHTING = Setting(
  name='weighting', kind=str, default='uniform', choices=('uniform', 'examples'),
  help='Weights of the clients in the mean of the updates. By number of examples is only private '
  'where the counts are public.',
)  # fmt: skip
MEAN = (SERVER_LEARNING_RATE, WEIGHTING)  # of a method with a mean of the clients' updates

# The server optimisers, and what each has beside a learning rate, with the defaults.
MOMENTS: Mapping[str, Mapping[str, float]] = {
  'sgd': {},
  'fedavgm': {'server_momentum': 0.9},
  'fedadagrad': {'server_momentum': 0.0, 'server_adaptivity': 1e-3},
  'fedadam': {
    'server_momentum': 0.9, 'server_second_moment_decay': 0.99, 'server_adaptivity': 1e-3,
  },
  'fedyogi': {
    'server_momentum': 0.9, 'server_second_moment_decay': 0.99, 'server_adaptivity': 1e-3,
  },
}  # fmt: skip
SERVER_OPTIMIZER = Setting(
  name='server_optimizer', kind=str, default='sgd', choices=tuple(MOMENTS), group=Group.TRAINING,
  help="What the server makes of the mean of the clients' updates.",
)  # fmt: skip
# Moments have no default of their own: it is the optimiser's.
_MOMENTS = (
  Setting(
    name='server_momentum', kind=float, default=None, group=Group.TRAINING, minimum=0.0,
    maximum=1.0,
    help='Momentum of --server_optimizer; of the adaptive ones below 1. Default: 0.9, of '
    'fedadagrad 0.',
  ),
  Setting(
    name='server_second_moment_decay', kind=float, default=None, group=Group.TRAINING,
    minimum=0.0, maximum=1.0,
    help='How much of the second moment fedadam and fedyogi keep in a round. Default: 0.99.',
  ),
  Setting(
    name='server_adaptivity', kind=float, default=None, group=Group.TRAINING, above=0.0,
    help='tau of the adaptive server optimisers: the larger, the less adaptive. Default: 0.001.',
  ),
)  # fmt: skip
# Of a method that trains a global model; documented in one place for all of them.
SERVER_OPTIMIZATION = (SERVER_OPTIMIZER, *_MOMENTS, *SERVER_RATE_SCHEDULE)
LOCAL_OPTIMIZATION = (*CLIENT_RATE_SCHEDULE, CLIENT_MOMENTUM)
OPTIMIZATION = (*SERVER_OPTIMIZATION, *LOCAL_OPTIMIZATION)
GLOBAL_MODEL = (*MEAN, *OPTIMIZATION)

MTL_LAMBDA = Setting(
  name='mtl_lambda', kind=float, default=1.0, minimum=0.0, symbol='lambda',
  help="Strength of the pull of each client's model to the mean model, or (mocha) of the penalty "
  'by the relationship of the clients.',
)  # fmt: skip
REGULARIZER_INSIDE_CLIP = Setting(
  name='regularizer_inside_clip', kind=bool, default=False, privacy=('example',),
  help='Make the regulariser part of the per-example gradients which are clipped, instead of '
  'adding it after clipping and noise (it needs no data).',
)  # fmt: skip
SILO_LAMBDAS = Setting(
  name='silo_lambdas', kind=str, default=None, is_path=True,
  help="CSV file with the columns silo and mtl_lambda, one row per silo: each silo's own strength, "
  'in units of --mtl_lambda.',
)  # fmt: skip
PERSONAL_LEARNING_RATE = Setting(
  name='personal_learning_rate', kind=float, default=None, above=0.0, symbol='personal rate',
  same_as='client_learning_rate',
  help='Learning rate of the personal models. Default: --client_learning_rate.',
)  # fmt: skip
FINETUNE_FRACTION = Setting(
  name='finetune_fraction', kind=float, default=0.5, minimum=0.0, maximum=1.0,
  help='Fraction of the rounds after which every client goes on alone.',
)  # fmt: skip

SELECTION_LOSS_CLIP = Setting(
  name='selection_loss_clip', kind=float, default=1.0, above=0.0, privacy=('example',),
  help='Upper bound to which losses are clipped in a private choice.',
)  # fmt: skip
SELECTION_EPSILON_SHARE = Setting(
  name='selection_epsilon_share', kind=float, default=0.03, group=Group.PRIVACY, above=0.0,
  maximum=1.0, privacy=('example',),
  help='Epsilon of one private choice of a cluster as a share of the target epsilon.',
)  # fmt: skip
CLUSTERING = (
  Setting(
    name='num_clusters', kind=int, default=4, minimum=1, maximum=1000,
    help='Number of cluster models.',
  ),
  Setting(
    name='selection_score', kind=str, default='auto',
    choices=('auto', 'error_rate', 'loss', 'mean_loss'),
    help='By what a client chooses its cluster: error rate, loss of each example clipped, mean '
    'loss clipped, or what suits the model.',
  ),
  Setting(
    name='selection_fraction', kind=float, default=0.1, minimum=0.0, maximum=1.0,
    help='Fraction of the rounds, from the first on, in which clients choose their cluster; at '
    'least one round. 0: never, with a single cluster only.',
  ),
  Setting(
    name='selection_epsilon', kind=float, default=None, group=Group.PRIVACY, above=0.0,
    privacy=('example',),
    help='Epsilon of one private choice of a cluster. Default: --selection_epsilon_share of the '
    'smallest target epsilon.',
  ),
  SELECTION_EPSILON_SHARE,
  SELECTION_LOSS_CLIP,
  Setting(
    name='cluster_init_stddev', kind=float, default=None, above=0.0,
    help="Standard deviation of the weights of convex cluster models' random starts. Default: 0.1 "
    'over the root of the number of features.',
  ),
)  # fmt: skip

STAYS_ON_THE_CLIENT = (
  'Personal models never leave their clients. The guarantee is for what is sent to all (the '
  'billboard); with the personal models it is joint differential privacy: everything that all '
  'the others see, their own personal models included, protects a client, as long as that client '
  'does not reveal its own personal model.'
)
STAYS_ON_THE_CLIENT_ALONE = (
  'Personal models never leave their clients. The guarantee is for what is sent to all alone. It '
  'is not joint: in cohorts of a fixed size those who take part tell who does not, so that all '
  'other clients together, or their personal models, tell in which rounds a client took part, and '
  'against them sampling amplifies nothing. Poisson cohorts have the joint guarantee.'
)
CROSS_SILO = 'Liu et al., NeurIPS 2022'


def is_given(config, setting: Setting) -> bool:
  """Whether a setting has a value that somebody must have given: another than its default."""
  return getattr(config, setting.name) not in (None, setting.default)


def check_clustering(config) -> None:
  """Refuses clients who never choose a cluster, and settings of the choice that nothing reads."""
  if config.selection_fraction == 0.0 and config.num_clusters > 1:
    raise ValueError(
      f'--selection_fraction={config.selection_fraction} needs --num_clusters=1, not '
      f'{config.num_clusters}: no client would ever choose, and all be in the first cluster; use '
      'a fraction greater than 0.'
    )
  if config.selection_epsilon is not None and is_given(config, SELECTION_EPSILON_SHARE):
    raise ValueError(
      f'--selection_epsilon={config.selection_epsilon} and '
      f'--selection_epsilon_share={config.selection_epsilon_share} exclude each other; give one.'
    )
  if config.selection_score == 'error_rate' and is_given(config, SELECTION_LOSS_CLIP):
    raise ValueError(
      f'--selection_loss_clip={config.selection_loss_clip} needs --selection_score=loss or '
      'mean_loss; error_rate clips no losses.'
    )
  if config.cluster_init_stddev is not None and config.num_clusters == 1:
    raise ValueError(
      f'--cluster_init_stddev={config.cluster_init_stddev} needs at least 2 of --num_clusters; '
      'a single cluster model starts without noise.'
    )


def check_optimization(config) -> None:
  """Refuses moments that the server's optimiser does not have or cannot move with, and steps of
  a decay that is none."""
  for setting in _MOMENTS:
    value = getattr(config, setting.name)
    owners = [name for name, moments in MOMENTS.items() if setting.name in moments]
    if value is not None and config.server_optimizer not in owners:
      raise ValueError(
        f'--{setting.name}={value} does not apply to --server_optimizer='
        f'{config.server_optimizer}; it belongs to {", ".join(owners)}.'
      )
  if config.server_momentum == 1.0 and 'server_adaptivity' in MOMENTS[config.server_optimizer]:
    # m <- beta_1 m + (1 - beta_1) Delta, from 0: fedavgm has no such factor.
    raise ValueError(
      f'--server_momentum={config.server_momentum} must be below 1 with --server_optimizer='
      f'{config.server_optimizer}, whose first moment would stay 0, and the model where it began.'
    )
  for rate in (CLIENT_LEARNING_RATE.name, SERVER_LEARNING_RATE.name):
    decay, every = (getattr(config, f'{rate}_{part}') for part in ('decay', 'decay_every'))
    if decay == 1.0 and every != 1.0:
      raise ValueError(
        f'--{rate}_decay_every={every} needs a --{rate}_decay below 1; {decay} is no decay.'
      )


def check_global_model(config) -> None:
  """`check_weighting` and `check_optimization`."""
  check_weighting(config)
  check_optimization(config)


def check_weighting(config) -> None:
  """Refuses weights by counts where clients are protected."""
  if config.privacy == 'client' and config.weighting == 'examples':
    raise ValueError(
      '--weighting=examples cannot be used with --privacy=client, because weights by counts '
      'leak the counts; use --weighting=uniform.'
    )
