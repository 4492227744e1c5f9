"""Ditto: personal models beside a global one, held close to it.

Li et al., "Ditto: fair and robust federated learning through personalization", ICML
2021, algorithm 1 (the FeO2 paper, section 2.2; the cross-silo paper, section 5). The
global model w is trained by any solver and does not depend on the personal ones:

  min_{v_k}  F_k(v_k) + lambda/2 ||v_k - w*||^2        for each client k

Round t, with w the broadcast model:

  each client k of the cohort:  w_k <- SGD from w on its data;  send  w_k - w
                                v_k <- SGD from v_k on  loss(v_k) + lambda/2 ||v_k - w||^2
  server:                       w <- w + eta_s * mean_k (w_k - w)

v_k starts from the model that is broadcast in the client's first round; a client that
has never taken part uses the global model. lambda = 0 is local training, a large lambda
the global model.

Privacy. The global solver is FedAvg or one of its private forms (`processes.fedavg`).
- `--privacy=client`: only w is released. v_k is made of w and the client's own data and
  stays on the client, so the whole is *jointly* private: what all others see protects k.
- `--privacy=example`: both models of a silo are trained by DP-SGD on the same examples,
  with batches and noise of their own. The plan's steps are those of both together
  (`privacy.plan.local_steps_per_round` with `passes=2`); each model takes half of them.
"""

import numpy as np
import tensorflow as tf

from processes import common_settings as common
from processes import setup, trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.ditto import WOULD_OPT_OUT, WOULD_STAY
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.server_optimizers import ServerOptimizer
from runtime.random_streams import Stream


class Setup(setup.Setup):
  """Who would opt out of privacy with FeO2: reported apart, and treated as all others."""

  def groups(self):
    fraction = self.config.would_opt_out_fraction
    if not fraction:
      return {}
    would = setup.opting_out(self.config, self.population, fraction)
    return {WOULD_OPT_OUT: would, WOULD_STAY: ~would}


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds Ditto.

  Server state: the global model and, with client-level privacy, the query's state. Client
  state: the personal model, whether it has been started, and the silo's privacy
  parameters with example-level privacy.
  """
  train = LocalTrainer(spec)
  personalize = PersonalTrainer(spec, batch_stream=Stream.PERSONAL_BATCH)
  mean_update = MeanUpdate(spec)
  optimizer = ServerOptimizer(spec)

  def client_update(server, client, data):
    params, statistics = train(server['model'], server, client, data)
    update = trees.subtract(params, server['model'])
    report = Tree(**mean_update.report(update, server, data), **loss_report(statistics))
    ditto_lambda = server['hyperparameters']['ditto_lambda']
    personal = personalize(server, client, data, ditto_lambda)
    return report, Tree(client, model=personal['model'], started=personal['started'])

  def server_update(server, total):
    update, changed, metrics = mean_update.mean(total, server)
    new_server = Tree(server, **optimizer.step(server, update), **changed)
    return new_server, Tree(**loss_metrics(total), **metrics)

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=lambda server: Tree(**mean_update.init(server), **optimizer.init(server)),
    init_client=personalize.init,
    hyperparameters={
      **spec.values('client_learning_rate', 'personal_learning_rate', 'ditto_lambda'),
      **spec.values_of(common.LOCAL_OPTIMIZATION),
      **optimizer.hyperparameters,
      **mean_update.hyperparameters,
    },
    models={
      'personal': personalize.model,
      'global': lambda server, client: server['model'],
    },
    released_metrics=mean_update.released_metrics,
  )


class PersonalTrainer:
  """Ditto's second half, which any method with a global model can take on.

  Its part of the client state: `model`, and `started` (int32, 1 after the client's first
  round).
  """

  def __init__(self, spec: BuildSpec, *, batch_stream: Stream):
    """With `Stream.BATCH` the personal model sees the batches of the global one."""
    self._train = LocalTrainer(spec)
    self._batch_stream = batch_stream

  def init(self, server) -> Tree:
    """A client's state before its first round."""
    return Tree(model=server['model'], started=np.int32(0))

  def model(self, server, client) -> Tree:
    """The client's personal model; the global one before its first round."""
    return trees.where(client['started'] > 0, client['model'], server['model'])

  def __call__(self, server, client, data, ditto_lambda) -> Tree:
    """The client state after a round's work on the personal model."""

    def towards_global(params):
      return trees.scale(trees.subtract(params, server['model']), ditto_lambda)

    params, _ = self._train(
      self.model(server, client),
      server,
      client,
      data,
      regularizer_gradient=towards_global,
      learning_rate=server['hyperparameters']['personal_learning_rate'],
      batch_stream=self._batch_stream,
      noise_stream=Stream.PERSONAL_NOISE,
    )
    return Tree(client, model=params, started=tf.constant(1))
