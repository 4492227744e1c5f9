"""SCAFFOLD: federated averaging with control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging
for federated learning", ICML 2020, algorithm 1 with option II. With x and c the server's model
and control variate, c_i that of client i, N clients, and S the cohort of the round:

  each client i of S:  y_i <- x;  K_i times  y_i <- y_i - eta (g_i(y_i) - c_i + c)
                       c_i+ <- c_i - c + (x - y_i) / (K_i eta)
                       send  (y_i - x, c_i+ - c_i);  c_i <- c_i+
  server:              x <- x + eta_s * mean_S (y_i - x)
                       c <- c + |S| / N * mean_S (c_i+ - c_i)

All control variates start at zero.

Privacy. Twice as much is sent as in FedAvg, and both halves depend on the client's data.
- `--privacy=client`: the pair (y_i - x, u (c_i+ - c_i)) is one record: it is clipped by its L2
  norm over both halves, so that one client moves the sum of the records by at most the clip S,
  and it gets one draw of Gaussian noise z S on every coordinate. That is one Gaussian mechanism
  with noise multiplier z, as in DP-FedAvg, and the plan is the same. (Each half clipped to S
  by itself would move the sum by sqrt(2) S: the plan's epsilon would be wrong.) The unit
  u = eta * (steps of a client whose rows are all examples) brings both halves to the same scale. It
  follows from the largest client's number of examples, which is public: the statement says so.
  |S| / N is the expected q. c_i is made of x, c and the client's own data and never leaves it. The
  noise of c adds up over the rounds.
- `--privacy=example`: a silo's steps are DP-SGD, to which c - c_i is added after the noise.
  c_i+ is a function of y_i, x, c, the rate and the public number of steps, so that all that is
  sent is post-processing of the steps that the plan accounts for.
"""

import tensorflow as tf

from processes import common_settings as common
from processes import learning_rates, trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.server_optimizers import ServerOptimizer


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds SCAFFOLD.

  Server state: the model x, `control` c; with client-level privacy the query's state; with a
  server optimiser its moments. Client state: `control` c_i, and with example-level privacy the
  silo's privacy parameters.
  """
  train = LocalTrainer(spec)
  mean_update = MeanUpdate(
    spec, lambda server: Tree(model=server['model'], control=server['model'])
  )
  optimizer = ServerOptimizer(spec)
  cohorts = spec.plan.cohorts
  capacity = spec.examples.x_shape[0]

  def rate_of(server):
    return learning_rates.scheduled(server, 'client_learning_rate', spec.rounds)

  def epochs_steps(num_examples):
    batch_size = min(spec.batch_size, capacity)
    return spec.local_epochs * ((num_examples + batch_size - 1) // batch_size)

  def steps_of(client, data):
    if spec.plan.unit == 'example':
      steps = client['attributes']['steps_per_round']
    else:
      steps = epochs_steps(data['num_examples'])
    return tf.cast(tf.maximum(steps, 1), tf.float32)

  def unit(server):
    return rate_of(server) * float(epochs_steps(capacity))

  def client_update(server, client, data):
    correction = trees.subtract(server['control'], client['control'])
    params, statistics = train(
      server['model'], server, client, data, regularizer_gradient=lambda params: correction
    )
    update = trees.subtract(params, server['model'])
    # c_i+ - c_i = -c - (y_i - x) / (K_i eta)
    per_step = 1.0 / (steps_of(client, data) * rate_of(server))
    change = trees.scale(trees.add_scaled(server['control'], update, per_step), -1.0)
    record = Tree(model=update, control=trees.scale(change, unit(server)))
    report = Tree(**mean_update.report(record, server, data), **loss_report(statistics))
    # A client whose training diverged sends nothing of use, and forgets it.
    change = trees.finite_or_zero(change)
    return report, Tree(client, control=trees.add(client['control'], change))

  def server_update(server, total):
    mean, changed, metrics = mean_update.mean(total, server)
    size = cohorts.expected_size if mean_update.private else total['weight']
    share = size / cohorts.population
    new_server = Tree(
      server,
      **optimizer.step(server, mean['model']),
      **changed,
      control=trees.add_scaled(server['control'], mean['control'], share / unit(server)),
    )
    return new_server, Tree(**loss_metrics(total), **metrics)

  def init_server(server):
    return Tree(
      control=trees.zeros_like(server['model']),
      **mean_update.init(server),
      **optimizer.init(server),
    )

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=init_server,
    init_client=lambda server: Tree(control=trees.zeros_like(server['model'])),
    hyperparameters={
      **spec.values('client_learning_rate'),
      **spec.values_of(common.CLIENT_RATE_SCHEDULE),
      **optimizer.hyperparameters,
      **mean_update.hyperparameters,
    },
    models={'global': lambda server, client: server['model']},
    released_metrics=mean_update.released_metrics,
  )
