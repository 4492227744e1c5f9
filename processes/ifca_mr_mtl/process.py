"""IFCA preconditioning: a few rounds of private clustering, then personalised training.

Cross-silo paper, appendix D.2, algorithm A2. Rounds t < T_cluster (`selection_rounds`) are
IFCA's. Then each silo keeps its last cluster g(k), and MR-MTL runs inside each cluster:

  each silo k:  w_k <- steps of SGD or DP-SGD from its own w_k on
                       loss(w_k) + lambda/2 ||w_k - w_bar_{g(k)}||^2
                send Delta_k = w_k - w_bar_{g(k)}                            (line 19)
  server:       w_bar_g <- w_bar_g + eta_s * mean over {k : g(k) = g} of Delta_k     (17)

w_k is what the silo trained last, in IFCA's rounds too. The option `after_clustering` gives
other methods the same start:

  mr_mtl    algorithm A2
  local     each silo alone from its w_k (lambda = 0)
  fedavg    FedAvg inside each cluster: IFCA with the choice frozen
  finetune  FedAvg inside each cluster until `finetune_start_round` (by default the fraction
            `finetune_fraction` of all rounds), then each silo alone from its cluster's
            last model
"""

import numpy as np
import tensorflow as tf

from processes import trees
from processes.aggregation import loss_metrics, loss_report
from processes.clusters import ClusterModels, SelectionSetup
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.mr_mtl.process import LambdaSetup


class Setup(SelectionSetup, LambdaSetup):
  """The private choices of the clusters, and the silos' own lambdas."""


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds IFCA-preconditioned MR-MTL, local training, FedAvg or finetuning.

  See `ClusterModels` for the options and hyper-parameters of the clustering.

  Server state: `clusters`, a model's leaves with a leading axis [G, ...]; where silos go on alone,
  `last_shared`, what the clusters were until then. Client state: `cluster`, the last choice; the
  personal `model`; `started`, 1 once the client has a model of its own to continue from; the
  attribute `mtl_lambda_factor` as in MR-MTL; with example-level privacy the silo's privacy
  parameters.
  """
  after = spec.options['after_clustering']
  finetuning = {}
  if after == 'finetune':
    finetuning['finetune_start_round'] = spec.rounds_of('finetune_fraction')
  alone = after in ('local', 'finetune')
  train = LocalTrainer(spec)
  clusters = ClusterModels(spec)

  def as_shared(server):
    # Who takes part late does not begin at what others have trained alone.
    return Tree(server, clusters=server['last_shared']) if alone else server

  def shared(server, round_number):
    """Whether clients train their cluster's model in a round, not their own."""
    round_number = tf.cast(round_number, tf.float32)
    clustering = round_number < server['hyperparameters']['selection_rounds']
    if after == 'fedavg':
      return tf.constant(True)
    if after == 'finetune':
      return clustering | (round_number < server['hyperparameters']['finetune_start_round'])
    return clustering

  def client_update(server, client, data):
    chosen = clusters.choose(as_shared(server), client, data)
    centre = clusters.model_of(server, chosen['cluster'])
    sharing = shared(server, server['round'])
    first = clusters.model_of(as_shared(server), chosen['cluster'])
    start = trees.where(sharing | (client['started'] < 1), first, client['model'])
    pull = tf.constant(0.0)
    if after == 'mr_mtl':
      mtl_lambda = server['hyperparameters']['mtl_lambda']
      pull = mtl_lambda * client['attributes']['mtl_lambda_factor']
      pull = tf.where(sharing, 0.0, pull)

    def towards_centre(params):
      return trees.scale(trees.subtract(params, centre), pull)

    params, statistics = train(
      start,
      server,
      client,
      data,
      regularizer_gradient=towards_centre if after == 'mr_mtl' else None,
    )
    report = clusters.report(trees.subtract(params, centre), chosen, data)
    # Finetuning begins at the cluster's model, the others at what the silo trained last.
    started = 1 - tf.cast(sharing, tf.int32) if after == 'finetune' else tf.constant(1, tf.int32)
    new_client = Tree(client, **chosen, model=params, started=started)
    return Tree(**report, **loss_report(statistics)), new_client

  def server_update(server, total):
    updated = clusters.updated(server, total)
    new_server = Tree(server, clusters=updated)
    if alone:
      sharing = shared(server, server['round'])
      new_server['last_shared'] = trees.where(sharing, updated, server['last_shared'])
    return new_server, Tree(**loss_metrics(total), **clusters.metrics(total))

  def personal_model(server, client):
    # After a round of clustering the silo's released model is its cluster's.
    centre = clusters.model_of(as_shared(server), client['cluster'])
    shares = shared(server, server['round'] - 1) | (client['started'] < 1)
    return trees.where(shares, centre, client['model'])

  def init_server(server):
    start = clusters.init_server(server)
    return Tree(start, last_shared=start['clusters']) if alone else start

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=init_server,
    init_client=lambda server: Tree(
      **clusters.init_client(), model=server['model'], started=np.int32(0)
    ),
    hyperparameters={
      **spec.values('client_learning_rate', 'server_learning_rate'),
      **(spec.values('mtl_lambda') if after == 'mr_mtl' else {}),
      **finetuning,
      **clusters.hyperparameters,
    },
    attributes={'mtl_lambda_factor': (np.float32, 1.0)} if after == 'mr_mtl' else None,
    models={'personal': personal_model},
    cluster_of=clusters.of_client,
  )
