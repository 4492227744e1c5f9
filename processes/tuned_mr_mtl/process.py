"""MR-MTL with a private choice of lambda: every silo keeps a list of models, releases the best.

Liu et al., "On privacy and personalization in cross-silo federated learning", NeurIPS 2022,
appendix F.3, with Papernot and Steinke, "Hyperparameter tuning with Renyi differential
privacy", ICLR 2022. Silo k draws a number h_k of runs from a truncated negative binomial
distribution, by itself and in secret, and for each run s a lambda_{k,s} from a public list,
all equally likely. Round t, with w_bar the server's mean of the *pivot* models:

  each silo k:  pivot:  w_k <- DP-SGD from w_k on loss(w_k) + lambda_bar/2 ||w_k - w_bar||^2
                        send Delta_k = w_k - (w_k at the start of the round)
                runs:   v_{k,s} <- DP-SGD from v_{k,s} on
                                   loss(v_{k,s}) + lambda_{k,s}/2 ||v_{k,s} - w_bar||^2
  server:       w_bar <- w_bar + eta_s * mean_k Delta_k

After the last round (`release`) silo k scores its runs on examples which it held out, and
releases the best:

  argmin_s  sum_i min(loss(v_{k,s}; x_i, y_i), c) + N(0, (z_score c)^2)

Until then no run leaves the silo. The pivot, with its public lambda_bar, does so in every
round: it is MR-MTL, and is accounted for beside the runs.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from privacy import calibration
from privacy.tuning import PrivateTuning
from processes import setup, trees
from processes.aggregation import (
  MeanUpdate,
  agreement_metrics,
  agreement_report,
  loss_metrics,
  loss_report,
)  # fmt: skip
from processes.clusters import bounded
from processes.examples import sums_of_examples
from processes.local_training import LocalTrainer
from processes.method import BuildSpec, FederatedMethod, Tree, assemble
from processes.tuned_mr_mtl import parse_lambdas
from runtime import random_streams
from runtime.noise_key import NOISE_KEY
from runtime.random_streams import Stream

_NOISE_WITHOUT_TARGET = 2.0


class Setup(setup.Setup):
  """The private tuning, and each silo's number of runs."""

  def plan_share(self, smallest_target, smallest_delta):
    tuning = PrivateTuning.of_gamma(
      gamma=self.config.tuning_gamma, shape=self.config.tuning_eta, held_out_score=True
    )
    noise = self.config.tuning_score_noise
    if noise is None and smallest_target is not None:
      noise = calibration.calibrate_score(
        tuning, target_epsilon=smallest_target, delta=smallest_delta,
        accountant=self.config.accountant,
      )  # fmt: skip
    return setup.PlanShare(
      tuning=dataclasses.replace(
        tuning, score_noise_multiplier=_NOISE_WITHOUT_TARGET if noise is None else noise
      )
    )

  def client_attributes(self, plan):
    """h_k of every silo, each drawn by itself: the silo's secret, not released."""
    runs = [plan.tuning.draw(self.noise_key, k) for k in range(self.population.size)]
    return {'tuning_runs': np.array(runs, np.int32)}

  def options(self, plan):
    return {
      'tuning_slots': int(self.client_attributes(plan)['tuning_runs'].max()),
      'loss_scale': self.population.loss_scale,
    }


def build(spec: BuildSpec) -> FederatedMethod:
  """Builds MR-MTL with private tuning.

  Options of the spec: `tuning_lambdas`, the list of lambdas as text with commas;
  `tuning_slots`, the largest number of runs of any silo (a shape, so that it must be known);
  `loss_scale`, the clip of the losses where `tuning_score_clip` is not given.

  Server state: the mean model w_bar of the pivots. Client state: the pivot `model`; `runs`,
  the models v_{k,s} with a leading axis [slots, ...]; `released`, the index of the released
  one, -1 before the release; the attribute `tuning_runs`, h_k; the silo's privacy parameters.
  """
  tuning = getattr(spec.plan, 'tuning', None)
  if tuning is None:
    raise ValueError(
      '--method=tuned_mr_mtl needs an example-level privacy plan with a private tuning: give '
      '--tuning_eta and --tuning_gamma.'
    )
  lambdas = parse_lambdas(spec.options['tuning_lambdas'])
  slots = int(spec.options.get('tuning_slots', 1))
  train = LocalTrainer(spec)
  mean_update = MeanUpdate(spec)

  def lambda_of(client, data, run):
    key = random_streams.key(client[NOISE_KEY], Stream.TUNING, data['client_id'], run)
    return tf.gather(tf.constant(lambdas, tf.float32), random_streams.index(key, [], len(lambdas)))

  def train_runs(server, client, data):
    def one_run(run, models):
      mtl_lambda = lambda_of(client, data, run)
      params, _ = train(
        _at(models, run),
        server,
        client,
        data,
        regularizer_gradient=lambda params: trees.scale(
          trees.subtract(params, server['model']), mtl_lambda
        ),
        batch_stream=Stream.PERSONAL_BATCH,
        noise_stream=Stream.PERSONAL_NOISE,
        indices=(run,),
      )
      return run + 1, _put(models, run, params)

    count = client['attributes']['tuning_runs']
    start = (tf.constant(0), client['runs'])
    return tf.while_loop(lambda run, _: run < count, one_run, start)[1]

  def client_update(server, client, data):
    params, statistics = train(
      client['model'],
      server,
      client,
      data,
      regularizer_gradient=lambda params: trees.scale(
        trees.subtract(params, server['model']), server['hyperparameters']['mtl_lambda']
      ),
    )
    update = trees.subtract(params, client['model'])
    report = Tree(**mean_update.report(update, server, data), **loss_report(statistics))
    return report, Tree(client, model=params, runs=train_runs(server, client, data))

  def server_update(server, total):
    update, changed, metrics = mean_update.mean(total, server)
    rate = server['hyperparameters']['server_learning_rate']
    new_server = Tree(server, model=trees.add_scaled(server['model'], update, rate), **changed)
    return new_server, Tree(**loss_metrics(total), **metrics)

  def release(server, client, data):
    """(Whether noise changed its choice, the client's state with it), by held-out examples.

    Formal guarantee: one example more or less moves a score's sum by at most the clip, to
    which noise of `score_noise_multiplier` clips is added.
    """
    clip = server['hyperparameters']['tuning_score_clip']
    deviation = server['hyperparameters']['tuning_score_noise'] * clip

    def score_of(run, scores):
      def of_rows(x, y, is_example):
        losses = bounded(spec.model.loss(spec.model.predict(_at(client['runs'], run), x), y), clip)
        return {'sum': tf.reduce_sum(tf.where(is_example, losses, 0.0))}

      score = sums_of_examples(data, ['sum'], of_rows)['sum']
      return run + 1, tf.where(tf.equal(tf.range(slots), run), score, scores)

    count = client['attributes']['tuning_runs']
    start = (tf.constant(0), tf.zeros([slots]))
    scores = tf.while_loop(lambda run, _: run < count, score_of, start)[1]
    key = random_streams.key(client[NOISE_KEY], Stream.SELECTION, data['client_id'])
    noised = scores + deviation * random_streams.normal(key, [slots])

    def best(of_runs):
      made = tf.range(slots) < count
      return tf.argmin(tf.where(made, of_runs, math.inf), output_type=tf.int32)

    report = agreement_report(count > 1, best(noised), best(scores))
    return report, Tree(client, released=best(noised))

  def personal_model(server, client):
    best = _at(client['runs'], tf.maximum(client['released'], 0))
    return trees.where(client['released'] < 0, client['model'], best)

  def init_client(server):
    runs = tf.nest.map_structure(lambda t: tf.broadcast_to(t, [slots, *t.shape]), server['model'])
    return Tree(model=server['model'], runs=runs, released=np.int32(-1))

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    init_client=init_client,
    release=release,
    release_metrics=agreement_metrics,
    hyperparameters={
      **spec.values('client_learning_rate', 'server_learning_rate', 'mtl_lambda'),
      'tuning_score_clip': spec.hyperparameters.get(
        'tuning_score_clip', spec.options.get('loss_scale', 1.0)
      ),
      'tuning_score_noise': float(tuning.score_noise_multiplier or 0.0),
    },
    attributes={'tuning_runs': (np.int32, 1)},
    models={'personal': personal_model, 'global': lambda server, client: server['model']},
  )


def _at(models, run):
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, run), models)


def _put(models, run, params):
  def put(leaf, value):
    chosen = tf.equal(tf.range(leaf.shape[0]), run)
    return tf.where(tf.reshape(chosen, [-1] + [1] * value.shape.rank), value[tf.newaxis], leaf)

  return tf.nest.map_structure(put, models, params)
