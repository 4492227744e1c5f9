"""IFCA (HypCluster): G cluster models, of which every client trains the one that fits it best.

Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020,
algorithm 1 with model averaging; Mansour et al., "Three approaches for personalization with
applications to federated learning", 2020, section 3. In round t, with w_1..w_G at the server:

  each client k:  g_k <- argmin_g score(w_g on its data)
                  Delta_k = (epochs of SGD, or DP-SGD, from w_{g_k}) - w_{g_k}
  server:         w_g <- w_g + eta_s * mean over {k : g_k = g} of Delta_k

With example-level privacy the choice is a query of the silo's data, and private by the
exponential mechanism: report-noisy-min with Gumbel noise (cross-silo paper, appendix A and
C.3). It is not amplified by sampling and costs each time; after the first `selection_rounds`
rounds the clients therefore keep their last choice. The privacy plan holds the selections'
epsilon and number, and gives DP-SGD what they leave of the budget.
"""

from processes import trees
from processes.aggregation import loss_metrics, loss_report
from processes.clusters import ClusterModels, SelectionSetup
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble

Setup = SelectionSetup


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds IFCA; see `ClusterModels` for options and hyper-parameters.

  Server state: `clusters`, a model's leaves with a leading axis [G, ...]. Client state:
  `cluster`, the last choice, and with example-level privacy counts of the choices and the silo's
  privacy parameters.
  A client's personal model is that of its cluster.
  """
  train = LocalTrainer(spec)
  clusters = ClusterModels(spec)

  def client_update(server, client, data):
    chosen = clusters.choose(server, client, data)
    start = clusters.model_of(server, chosen['cluster'])
    params, statistics = train(start, server, client, data)
    report = clusters.report(trees.subtract(params, start), chosen, data)
    return Tree(**report, **loss_report(statistics)), Tree(client, **chosen)

  def server_update(server, total):
    new_server = Tree(server, clusters=clusters.updated(server, total))
    return new_server, Tree(**loss_metrics(total), **clusters.metrics(total))

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=clusters.init_server,
    init_client=lambda server: clusters.init_client(),
    hyperparameters={
      **spec.values('client_learning_rate', 'server_learning_rate'),
      **clusters.hyperparameters,
    },
    models={'personal': lambda server, client: clusters.model_of(server, client['cluster'])},
    cluster_of=clusters.of_client,
  )
