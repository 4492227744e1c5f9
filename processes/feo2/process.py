"""FeO2: federated learning with opt-out differential privacy.

Aldaghri, Mahdavifar and Beirami, "FeO2: federated learning with opt-out differential
privacy", algorithm 1. Clients are private unless they opt out. Round t, with C_p and
C_np the private and the opted-out clients of the cohort, S the clipping norm:

  each client j:  w_j <- epochs of SGD from w;   Delta_j = w_j - w
                  v_j <- the same batches, on  loss(v_j) + lambda_j/2 ||v_j - w||^2   (Ditto)
                  send  clip(Delta_j, S)  and  b_j = 1{||Delta_j|| <= S}
  server:  Delta_p  = [ sum_{C_p} clip(Delta_j, S) + N(0, z^2 S^2 I) ] / N_p
           Delta_np =   sum_{C_np} clip(Delta_j, S) / N_np
           w <- w + (N_np Delta_np + r N_p Delta_p) / (N_np + r N_p)
           S <- S exp(-eta_b (mean_j b_j + noise - kappa))

lambda_j is lambda_p or lambda_np. Ditto is an add-on (`personalize`); v_j starts from the
model broadcast in the client's first round, and a client that has never taken part uses
the global model. With r = 0 the server does not talk to private clients at all.

Where the noise needs it, this differs from the letter of the paper:
- N_p is the paper's number of private clients in the round. Here it is the *expected*
  number q |private clients|, in the mean and in the weights: the noise and the divisors
  do not tell whether a private client took part. N_np is the exact count (an opted-out
  client has no guarantee). Beside cohorts of a fixed size that count would tell the number
  of the private ones, so cohorts are Poisson samples or everybody.
- The mean of the b_j is over the expected q N clients as well, private and not; its noise
  has the standard deviation sigma_b / (q N), which belongs to z as Andrew et al. (2021,
  theorem 1) split it. (The paper writes the variance z_b^2 / N.) With r = 0 only the
  opted-out clients report, and the mean is over their share of q N. The noised mean is kept
  in [0, 1], as TF-Privacy has it: whatever the noise, a round changes S by a factor from
  exp(-eta_b (1 - kappa)) to exp(eta_b kappa). What is computed from a release costs no
  privacy.

How much r damps the noise depends on N_np: in a round without opted-out clients the weights
cancel r, and the update has DP-FedAvg's full noise. With few opted-out clients a round that
is often: with 42 of 836 and 3 % a round in 28 % of all rounds. The option
`opt_out_denominator`, 'counted' in the paper, may be 'expected': then w moves by

  [ sum_{C_np} clip(Delta_j, S) + r (sum_{C_p} clip(Delta_j, S) + N(0, z^2 S^2 I)) ]
    / (q (N_np + r N_p))

N_np and N_p of all clients now, as DP-FedAvg divides: the noise's deviation
is r z S / (q (N_np + r N_p)) in every round, and a round's step is as long as many clients
took part. The guarantee is the same: both divisors are public.

Formal guarantee: the sequence of global models and clipping norms protects each *private*
client, (epsilon, delta) as `privacy.plan.ClientLevelPrivacy` with `num_opted_out` accounts
for it, under zero-out: that client contributes nothing, and the number of clients is public, as
N_p follows from it. Opted-out clients have no guarantee. Personal models stay on their clients
(joint privacy).

End points: r = 1 without opt-outs is DP-FedAvg; everybody opted out and an infinite clip
is FedAvg.
"""

import functools

import numpy as np
import tensorflow as tf

from privacy.plan import AdaptiveClipping
from privacy.sampling import FixedSizeCohorts
from processes import common_settings as common
from processes import setup, trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.ditto.process import PersonalTrainer
from processes.feo2 import NO_FIXED_COHORTS, OPTED_OUT, PRIVATE
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.server_optimizers import ServerOptimizer
from runtime.random_streams import Stream


class Setup(setup.Setup):
  """Who opts out: drawn once, the same clients in every use of a seed."""

  @functools.cached_property
  def opted_out(self) -> np.ndarray:
    """bool [K]; public.

    Raises:
      ValueError: nobody is left to be protected.
    """
    chosen = setup.opting_out(self.config, self.population, self.config.opt_out_fraction)
    if chosen.all():
      raise ValueError(
        f'--opt_out_fraction={self.config.opt_out_fraction:g}: all {len(chosen)} clients would opt '
        'out, and nobody be protected; --method=fedavg --privacy=none is that.'
      )
    return chosen

  def groups(self):
    return {PRIVATE: ~self.opted_out, OPTED_OUT: self.opted_out}

  def plan_share(self, smallest_target, smallest_delta):
    # With r = 0 the server does not talk to private clients.
    return setup.PlanShare(
      num_opted_out=int(self.opted_out.sum()),
      silent_setting='ratio' if self.config.ratio == 0.0 else None,
    )

  def client_attributes(self, plan):
    return {'is_private': ~self.opted_out}


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds FeO2.

  Server state: the model and the query's state. Client state: the attribute `is_private`
  (1 by default, 0 for the `num_opted_out` clients of the plan who opted out) and, with the
  option `personalize` (default), Ditto's personal model.
  """
  if isinstance(spec.plan.cohorts, FixedSizeCohorts):
    raise ValueError(NO_FIXED_COHORTS)
  train = LocalTrainer(spec)
  two_step_mean = TwoStepMean(spec)
  optimizer = ServerOptimizer(spec)
  personal = spec.options['personalize']
  personal_names = ('personal_learning_rate', 'ditto_lambda_private', 'ditto_lambda_non_private')
  personalize = PersonalTrainer(spec, batch_stream=Stream.BATCH)

  def client_update(server, client, data):
    hyper = server['hyperparameters']
    private = client['attributes']['is_private'] > 0.0
    params, statistics = train(server['model'], server, client, data)
    update = trees.subtract(params, server['model'])
    report = Tree(two_step_mean.report(update, private, server, data), **loss_report(statistics))
    new_client = client
    if personal:
      ditto_lambda = tf.where(
        private, hyper['ditto_lambda_private'], hyper['ditto_lambda_non_private']
      )
      new_client = personalize(server, client, data, ditto_lambda)
    # With r = 0 the server does not talk to private clients.
    reached = ~private | (hyper['ratio'] > 0.0)
    return trees.where(reached, report, trees.zeros_like(report)), trees.where(
      reached, new_client, client
    )

  def server_update(server, total):
    update, changed, metrics = two_step_mean.mean(total, server)
    new_server = Tree(server, **optimizer.step(server, update), **changed)
    return new_server, Tree(**loss_metrics(total), **metrics)

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_server=lambda server: Tree(**two_step_mean.init(server), **optimizer.init(server)),
    init_client=personalize.init if personal else None,
    hyperparameters={
      **spec.values(
        'client_learning_rate',
        'ratio',
        *(personal_names if personal else ()),
      ),
      **spec.values_of(common.LOCAL_OPTIMIZATION),
      **optimizer.hyperparameters,
      **two_step_mean.hyperparameters,
    },
    attributes={'is_private': (np.float32, 1.0)},
    models={
      **({'personal': personalize.model} if personal else {}),
      'global': lambda server, client: server['model'],
    },
    released_metrics=two_step_mean.released_metrics,
  )


class TwoStepMean:
  """FeO2's aggregation: the private sum is noised, the opted-out one is not.

  Both are parts of the one sum of reports. The private part and the clipping indicators
  of all clients make up the record of DP-FedAvg's query, with the same noise.
  """

  def __init__(self, spec: BuildSpec):
    plan = spec.plan
    self._mean_update = MeanUpdate(spec)
    self._adaptive = isinstance(plan.clipping, AdaptiveClipping)
    self._denominator = plan.denominator
    self._opted_out_fraction = plan.num_opted_out / plan.cohorts.population
    expected = spec.options['opt_out_denominator'] == 'expected'
    # None: those who take part are counted.
    self._expected_opted_out = (
      self._opted_out_fraction * plan.cohorts.expected_size if expected else None
    )
    self.init = self._mean_update.init
    self.released_metrics = self._mean_update.released_metrics
    self.hyperparameters = {
      **self._mean_update.hyperparameters,
      'expected_private_clients': plan.denominator,
    }

  def report(self, update, private, server, data) -> Tree:
    """What a client sends: its clipped update in the part where it belongs."""
    record = self._mean_update.report(update, server, data)['update']
    clipped = record['sum_state'] if self._adaptive else record
    nothing = trees.zeros_like(clipped)
    private_part = trees.where(private, clipped, nothing)
    return Tree(
      update=Tree(record, sum_state=private_part) if self._adaptive else private_part,
      opted_out_update=trees.where(private, nothing, clipped),
      opted_out=tf.where(private, 0.0, 1.0),
    )

  def mean(self, total, server):
    """From the sum of the reports: (mean update, changed server entries, metrics)."""
    hyper = server['hyperparameters']
    record = total['update']
    if self._adaptive:
      # With r = 0 only opted-out clients report whether they were clipped.
      share = tf.where(hyper['ratio'] > 0.0, 1.0, max(self._opted_out_fraction, 1e-30))
      indicators = trees.scale(record['quantile_estimator_state'], 1.0 / share)
      record = Tree(record, quantile_estimator_state=indicators)
    noised, changed, metrics = self._mean_update.mean(Tree(update=record), server)
    # Where there are no private clients there is no need of their noise either.
    expected_private = hyper['expected_private_clients']
    ratio = tf.where(expected_private > 0.0, hyper['ratio'], 0.0)
    opted_out = total['opted_out'] if self._expected_opted_out is None else self._expected_opted_out
    weight = opted_out + ratio * expected_private
    update = trees.add_scaled(total['opted_out_update'], noised, ratio * self._denominator)
    # Nobody took part: no update.
    factor = tf.where(weight > 0.0, 1.0 / tf.maximum(weight, 1e-30), 0.0)
    return trees.scale(update, factor), changed, metrics
