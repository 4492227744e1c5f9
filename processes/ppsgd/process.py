"""PPSGD: personalised private SGD with additive models.

Bietti et al., "Personalization improves privacy-accuracy tradeoffs in federated
learning", ICML 2022, algorithms 1, 2 and 3. Client i predicts with the parameters
w + theta_i, where w is shared and theta_i never leaves the client; in a network they are
the last layer over a shared representation, whose parameters belong to w (section 6).
Each round, at the sum w + theta_i:

  each client i of the cohort:  draw a minibatch of m_i examples
                                g_i = gradient of its loss:  the mean over the minibatch
                                      (algorithms 1, 3) or the sum over it (algorithm 2)
                                theta_i <- theta_i - s_theta * g_i  (last layer only)
                                send  clip(g_i, C)
  server:                       w <- w - s_w * [ sum_i clip(g_i, C) / (q N) + zeta ],
                                zeta ~ N(0, sigma_zeta^2 I),   sigma_zeta = z C / (q N)

In an additive model both gradients of algorithm 1, line 6, are the same g_i. For the sum
over minibatches both steps are divided by the mean minibatch size M / N as well, which
gives algorithm 2's q M.

Step sizes. The paper has s_theta = eta / (q N) and s_w = alpha eta. With
a = alpha q N (the paper's experiments: alpha Q) and s = max(s_theta, s_w):

  s_w = s min(a, 1),     s_theta = s / max(a, 1)

so that a = 0 is local learning (nothing is shared: no privacy cost), a = infinity global
learning, and every a between them a tensor of the same program. The paper's eta is
s q N / max(a, 1).

Minibatches: each client passes through its examples in an order of its own, reshuffled
after every pass, by m_i at a time; rows that do not fill a minibatch are left out of that
pass. So the first pass is the paper's 'fresh samples'.

Averaged iterates (theorems 4.5, 5.2, B.4): z_bar_T = 1/T sum_{t<T} z_t with
z = (w, theta_1, ..., theta_N); the clients outside the cohort count with the theta they
keep.

Formal guarantee (theorems 4.1, 5.1): the sequence of w is (epsilon, delta)-DP for every
client; with the personal models, which are functions of that sequence and of the client's
own data, the whole is jointly DP in the billboard model, as long as client i does not
reveal theta_i. With a = 0 nothing is sent (`privacy.nothing_shared.NothingShared`).
"""

import numpy as np
import tensorflow as tf

from processes import gradients, setup, trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.local_training import dropout_draws
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.ppsgd import check_epochs
from runtime import random_streams


class Setup(setup.Setup):
  """The clients' minibatches, and whether anything is shared."""

  def plan_share(self, smallest_target, smallest_delta):
    # With alpha = 0 nothing is sent.
    silent = self.config.personalization_alpha == 0.0
    return setup.PlanShare(silent_setting='personalization_alpha' if silent else None)

  def client_attributes(self, plan):
    """m_i, in proportion to the clients' numbers of examples, if that is asked for."""
    fraction = self.config.minibatch_fraction
    if fraction is None:
      return {}
    sizes = np.rint(fraction * self.population.num_examples)
    return {'minibatch_size': np.clip(sizes, 1, self.config.batch_size).astype(np.int32)}


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds PPSGD.

  Server state: w (started as the model is), the query's state and, for averaged iterates,
  their average. Client state: theta_i (started at zero), the number of minibatches drawn,
  the attribute `minibatch_size` (m_i, default: the batch size) and, for averaged
  iterates, the average of theta_i. Averaged iterates are evaluated beside the last one.
  Without privacy q N is the number of participants.
  """
  check_epochs(spec.local_epochs)
  weighting, iterate = spec.options['minibatch_weighting'], spec.options['iterate']
  layers = spec.options['personal_layers']
  mean_update = MeanUpdate(spec)

  def personal_part(params):
    names = spec.model.head if layers == 'last' else params
    return Tree((name, params[name]) for name in names)

  def add_offset(params, offset):
    return Tree(params, **trees.add(personal_part(params), offset))

  def per_minibatch(server):
    if weighting == 'average':
      return 1.0
    return 1.0 / server['hyperparameters']['mean_minibatch_size']

  def client_update(server, client, data):
    hyper = server['hyperparameters']
    alpha, rate = hyper['personalization_alpha'], hyper['client_learning_rate']
    rows, weights = minibatch(server, client, data, spec.batch_size)
    dropout_key = random_streams.key(
      server['seed'], random_streams.Stream.DROPOUT, server['round'], data['client_id']
    )
    gradient, loss_sum = gradients.mean_gradient(
      spec.model,
      add_offset(server['model'], client['offset']),
      tf.gather(data['x'], rows),
      tf.gather(data['y'], rows),
      weights,
      dropout_draws(spec.model, dropout_key, (), rows.shape[0]),
    )
    count = tf.reduce_sum(weights)
    gradient = trees.finite_or_zero(trees.scale(gradient, count if weighting == 'sum' else 1.0))
    step = rate / tf.maximum(alpha, 1.0) * per_minibatch(server)
    offset = trees.add_scaled(client['offset'], personal_part(gradient), -step)
    new_client = Tree(client, offset=offset, minibatches=client['minibatches'] + 1)
    if iterate == 'average':
      new_client['average'] = average_offset(server['round'] + 1, client)
      new_client['averaged_rounds'] = server['round'] + 1
    statistics = Tree(loss_sum=loss_sum, loss_count=count)
    report = mean_update.report(gradient, server, data)
    # Local learning sends nothing, not even the clipping indicator of adaptive clipping.
    report = trees.where(alpha > 0.0, report, trees.zeros_like(report))
    return Tree(**report, **loss_report(statistics)), new_client

  def server_update(server, total):
    hyper = server['hyperparameters']
    gradient, changed, metrics = mean_update.mean(total, server)
    step = hyper['client_learning_rate'] * tf.minimum(hyper['personalization_alpha'], 1.0)
    step = step * per_minibatch(server)
    new_server = Tree(server, model=trees.add_scaled(server['model'], gradient, -step), **changed)
    if iterate == 'average':
      weight = 1.0 / tf.cast(server['round'] + 1, tf.float32)
      difference = trees.subtract(server['model'], server['average'])
      new_server['average'] = trees.add_scaled(server['average'], difference, weight)
    return new_server, Tree(**loss_metrics(total), **metrics)

  def average_offset(rounds, client):
    """Mean of theta_i before each of the first `rounds` rounds."""
    weight = tf.cast(rounds - client['averaged_rounds'], tf.float32) / tf.cast(
      tf.maximum(rounds, 1), tf.float32
    )
    difference = trees.subtract(client['offset'], client['average'])
    return trees.add_scaled(client['average'], difference, weight)

  def init_server(server):
    averages = {'average': server['model']} if iterate == 'average' else {}
    return Tree(**mean_update.init(server), **averages)

  def init_client(server):
    zeros = trees.zeros_like(personal_part(server['model']))
    state = Tree(offset=zeros, minibatches=np.int32(0))
    if iterate == 'average':
      state.update(average=zeros, averaged_rounds=np.int32(0))
    return state

  def global_model(server, client):
    return server['average' if iterate == 'average' else 'model']

  def personal_model(server, client):
    if iterate == 'average':
      return add_offset(server['average'], average_offset(server['round'], client))
    return add_offset(server['model'], client['offset'])

  models = {'personal': personal_model, 'global': global_model}
  if iterate == 'average':
    models['last_iterate'] = lambda server, client: add_offset(server['model'], client['offset'])

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=init_server,
    init_client=init_client,
    hyperparameters={
      **spec.values('client_learning_rate', 'personalization_alpha'),
      **({'mean_minibatch_size': spec.batch_size} if weighting == 'sum' else {}),
      **mean_update.hyperparameters,
    },
    attributes={'minibatch_size': (np.int32, spec.batch_size)},
    models=models,
    released_metrics=mean_update.released_metrics,
    # The clients' reports are gradients.
    server_step=lambda values: (
      values['client_learning_rate'] * min(values['personalization_alpha'], 1.0)
    ),
  )


def minibatch(server, client, data, largest: int):
  """The client's next minibatch: row numbers and weights (1 or 0), both [largest].

  Its place in the client's passes follows from the number of minibatches drawn so far.
  """
  capacity = data['x'].shape[0]
  largest = min(largest, capacity)
  size = tf.minimum(client['attributes']['minibatch_size'], largest)
  in_pass = tf.maximum(data['num_examples'] // tf.maximum(size, 1), 1)
  pass_number, place = client['minibatches'] // in_pass, client['minibatches'] % in_pass
  key = random_streams.key(
    server['seed'], random_streams.Stream.BATCH, data['client_id'], pass_number
  )

  def shuffled():
    # Padding sorts behind every real row, whatever the random numbers are.
    in_client = tf.range(capacity) < data['num_examples']
    return tf.argsort(tf.where(in_client, random_streams.uniform(key, [capacity]), 2.0))

  # A minibatch of all examples is the same in every order.
  order = tf.cond(size < data['num_examples'], shuffled, lambda: tf.range(capacity))
  position = place * size + tf.range(largest)
  chosen = (tf.range(largest) < size) & (position < data['num_examples'])
  rows = tf.gather(order, tf.minimum(position, capacity - 1))
  return rows, tf.cast(chosen, tf.float32)
