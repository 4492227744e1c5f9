"""Cluster models: their starts, the clients' (private) choice, and their updates.

What IFCA and the methods built on it share. A cluster model is a row of a tree whose leaves
have a leading axis [G, ...].
"""

import math

import numpy as np
import tensorflow as tf

from privacy import selection
from processes import setup
from processes.aggregation import agreement_metrics, agreement_report
from processes.common_settings import SELECTION_LOSS_CLIP
from processes.examples import sums_of_examples
from processes.method import BuildSpec, Tree
from runtime import random_streams
from runtime.noise_key import NOISE_KEY
from runtime.random_streams import Stream


class SelectionSetup(setup.Setup):
  """What the choices of clusters cost, where they are private."""

  def plan_share(self, smallest_target, smallest_delta):
    config = self.config
    if config.privacy != 'example':
      return setup.PlanShare()
    epsilon = config.selection_epsilon
    if epsilon is None:
      if smallest_target is None:
        raise ValueError(
          f'--noise_multiplier={config.noise_multiplier} with --method={config.method} needs '
          '--selection_epsilon, the epsilon of one private choice: there is no target to share.'
        )
      epsilon = config.selection_epsilon_share * smallest_target
    rounds = selection_rounds(config.selection_fraction, config.rounds)
    return setup.PlanShare(selection=selection.PrivateSelection(epsilon=epsilon, rounds=rounds))


def selection_rounds(fraction: float, rounds: int) -> int:
  """In how many of the rounds clients choose: in one at least, where the fraction is above 0."""
  return max(1, round(fraction * rounds)) if fraction > 0.0 else 0


class ClusterModels:
  """G models at the server, of which each client chooses one.

  Options of the spec:
    num_clusters: G.
    selection_score: what the choice minimises on the client's training examples:
      - 'error_rate', 1 - accuracy, of sensitivity 1/(n - 1) (cross-silo paper, equation 15);
      - 'loss', the mean of each example's loss clipped to [0, selection_loss_clip], of
        sensitivity selection_loss_clip / (n - 1) by the same argument;
      - 'mean_loss', the mean loss (of a negative one 0) clipped to [0, selection_loss_clip], of
        sensitivity selection_loss_clip: far more noise, as in the paper's own program;
      - 'auto' (default): with privacy the error rate where the model has an accuracy, else
        the loss; without privacy the loss, as in the IFCA paper.
    weighting: 'uniform' or 'examples', the clients' weights in a cluster's mean.

  Without privacy there is no noise, and losses are not clipped.

  Hyper-parameters (`hyperparameters` holds the defaults): `selection_rounds`, the number of
  rounds from the first on in which clients choose, by default the fraction
  `selection_fraction` of the run's rounds, at least one, and with privacy what the plan says;
  `cluster_init_stddev`, see `init_server`; `selection_epsilon` of one choice (from the plan)
  and `selection_loss_clip`, with privacy only.

  A client's state has `cluster`, its choice, or -1 before the first one; with privacy
  `choices`, how often it chose, and `agreeing`, how often noise did not change the choice.
  """

  def __init__(self, spec: BuildSpec):
    self._spec = spec
    self._private = spec.plan.unit == 'example'
    self._counts = ('choices', 'agreeing') if self._private else ()
    self.num_clusters = spec.options['num_clusters']
    self._weighting = spec.options['weighting']
    self._score = self._chosen_score()
    self._check_starts()
    features = math.prod(spec.examples.x_shape[1:])
    fraction = spec.hyperparameters['selection_fraction']
    self.hyperparameters = {
      'selection_rounds': float(selection_rounds(fraction, spec.rounds)),
      'cluster_init_stddev': 0.1 / math.sqrt(features),
    }
    if self._private:
      self.hyperparameters.update(self._private_hyperparameters())

  def _chosen_score(self) -> str:
    score = self._spec.options['selection_score']
    # The model's own metrics come first; a further one of the user's may have any values.
    has_accuracy = self._spec.model.metric_names[0] == 'accuracy'
    if score == 'auto':
      score = 'error_rate' if self._private and has_accuracy else 'loss'
      clip = self._spec.hyperparameters[SELECTION_LOSS_CLIP.name]
      if score == 'error_rate' and clip != SELECTION_LOSS_CLIP.default:
        raise ValueError(
          f'--selection_loss_clip={clip} needs --selection_score=loss or mean_loss: auto is '
          f'error_rate with --model={self._spec.model.name}, and clips no losses.'
        )
      return score
    if score == 'error_rate' and not has_accuracy:
      raise ValueError(
        f'--selection_score=error_rate needs a model with an accuracy, and '
        f'--model={self._spec.model.name} has none; use loss.'
      )
    return score

  def _check_starts(self):
    stddev = self._spec.hyperparameters.get('cluster_init_stddev')
    if stddev is not None and not self._spec.model.convex:
      raise ValueError(
        f'--cluster_init_stddev={stddev} needs a convex model; the starts of '
        f'--model={self._spec.model.name} are random by themselves.'
      )

  def _private_hyperparameters(self):
    plan = self._spec.plan
    if plan.selection is None:
      raise ValueError(
        'Private clustering needs a privacy plan with a private selection: give the epsilon of '
        'a selection and the number of rounds with one.'
      )
    return {
      'selection_epsilon': float(plan.selection.epsilon),
      'selection_rounds': float(plan.selection.rounds),
      **self._spec.values('selection_loss_clip'),
    }

  def init_server(self, server) -> Tree:
    """The entry `clusters` of the server state: distinct random starts.

    Linear models all start at zero, and equal cluster models could never be told apart. So
    their weights get normal noise of standard deviation `cluster_init_stddev`, by default
    0.1 / sqrt(features): predictions on standardised features then start with a deviation of
    about 0.1. To first order the order of the clusters' losses depends on the directions of
    the starts and not on their size, so small starts tell clients apart as well as large ones,
    and need not be unlearnt. (The authors' program starts at 1 / sqrt(features); on School the
    draw of that start then decides the result.) A single cluster gets no noise: it is FedAvg
    exactly.
    """
    starts = []
    for g in range(self.num_clusters):
      key = random_streams.key(server['seed'], Stream.INIT, g)
      start = server['model'] if g == 0 else self._spec.model.init(key)
      if self._spec.model.convex and self.num_clusters > 1:
        noise = random_streams.normal(random_streams.fold_in(key, 0), start['weights'].shape)
        stddev = server['hyperparameters']['cluster_init_stddev']
        start = Tree(start, weights=start['weights'] + stddev * noise)
      starts.append(start)
    return Tree(clusters=tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *starts))

  def init_client(self) -> Tree:
    """The entries of a client's state: `cluster`, and with privacy the counts of its choices."""
    counts = Tree((name, np.float32(0.0)) for name in self._counts)
    return Tree(cluster=np.int32(-1), **counts)

  @staticmethod
  def of_client(client):
    """Which cluster is a client's, int32; -1 before its first choice."""
    return client['cluster']

  def model_of(self, server, cluster):
    """The model of one cluster (of the first, before a choice is made)."""
    index = tf.maximum(cluster, 0)
    return tf.nest.map_structure(lambda t: tf.gather(t, index), server['clusters'])

  def choose(self, server, client, data):
    """The client's entries in this round; its `cluster`, int32, is a new choice or the last one.

    Formal guarantee: every new choice is an exponential mechanism of `selection_epsilon` on
    the client's training examples, and there are at most `selection_rounds` of them. A
    client who was absent in all of those rounds chooses once when it first takes part.
    """
    rounds = server['hyperparameters']['selection_rounds']
    in_time = tf.cast(server['round'], tf.float32) < rounds
    choosing = in_time | ((client['cluster'] < 0) & (rounds > 0.0))
    scores = self._scores(server, data, tf.where(choosing, self.num_clusters, 0))
    choice, counts = tf.argmin(scores, output_type=tf.int32), Tree()
    if self._private:
      noiseless = choice
      choice = selection.report_noisy_min(
        random_streams.key(client[NOISE_KEY], Stream.SELECTION, server['round'], data['client_id']),
        scores,
        self._sensitivity(server, data),
        server['hyperparameters']['selection_epsilon'],
      )
      new = agreement_report(choosing, choice, noiseless)
      counts = Tree((name, client[name] + new[name]) for name in self._counts)
    # Where no choice is ever made all clients are in the first cluster.
    return Tree(cluster=tf.where(choosing, choice, tf.maximum(client['cluster'], 0)), **counts)

  def _scores(self, server, data, count):
    """Scores [G] of the first `count` clusters; the work of the others is saved."""
    model = self._spec.model
    num_examples = tf.cast(tf.maximum(data['num_examples'], 1), tf.float32)
    clip = server['hyperparameters']['selection_loss_clip'] if self._private else math.inf

    def mean(g, value):
      def of_rows(x, y, is_example):
        values = value(model.predict(self.model_of(server, g), x), y)
        return {'sum': tf.reduce_sum(tf.where(is_example, values, 0.0))}

      return sums_of_examples(data, ['sum'], of_rows)['sum'] / num_examples

    def score_of(g):
      if self._score == 'error_rate':
        return 1.0 - mean(g, lambda outputs, y: _share(model.metrics(outputs, y)['accuracy']))
      if self._score == 'mean_loss':
        # No loss below 0, as that of a density: what one example adds must move all scores in
        # one direction, on which the plan's range rests (`PrivateSelection.monotonic`).
        least = 0.0 if self._private else -math.inf
        return bounded(mean(g, lambda out, y: tf.maximum(model.loss(out, y), least)), clip)
      return mean(g, lambda outputs, y: bounded(model.loss(outputs, y), clip))

    def one_cluster(g, scores):
      return g + 1, tf.where(tf.equal(tf.range(self.num_clusters), g), score_of(g), scores)

    start = (tf.constant(0), tf.zeros([self.num_clusters]))
    return tf.while_loop(lambda g, _: g < count, one_cluster, start)[1]

  def _sensitivity(self, server, data):
    clip = server['hyperparameters']['selection_loss_clip']
    if self._score == 'mean_loss':
      return clip
    others = tf.cast(tf.maximum(data['num_examples'] - 1, 1), tf.float32)
    return (1.0 if self._score == 'error_rate' else clip) / others

  def report(self, update, chosen_by, data) -> Tree:
    """What a client sends, to be summed: its update, in the row of its cluster.

    Args:
      update: of the cluster's model.
      chosen_by: the client's entries, from `choose`; its counts are for a simulation's eyes.
      data: the client's examples.
    """
    weight = tf.constant(1.0)
    if self._weighting == 'examples':
      weight = tf.cast(data['num_examples'], tf.float32)
    # Not `==`: in TFF's graphs that compares Python objects.
    chosen = tf.equal(tf.range(self.num_clusters), chosen_by['cluster'])

    def in_its_row(leaf):
      mask = tf.reshape(chosen, [-1] + [1] * leaf.shape.rank)
      return tf.where(mask, weight * leaf[tf.newaxis], 0.0)

    return Tree(
      update=tf.nest.map_structure(in_its_row, update),
      weight=tf.where(chosen, weight, 0.0),
      members=tf.cast(chosen, tf.float32),
      **{name: chosen_by[name] for name in self._counts},
    )

  def updated(self, server, total):
    """From the sum of the reports: the new cluster models (equations 16 and 17)."""
    weight = total['weight']
    # Nobody chose the cluster: it stays as it is.
    factor = tf.where(weight > 0.0, 1.0 / tf.maximum(weight, 1e-30), 0.0)
    factor *= server['hyperparameters']['server_learning_rate']

    def add_mean(clusters, update):
      return clusters + tf.reshape(factor, [-1] + [1] * (update.shape.rank - 1)) * update

    return tf.nest.map_structure(add_mean, server['clusters'], total['update'])

  def metrics(self, total) -> Tree:
    """For a simulation's eyes only: participants in each cluster, agreement of their choices."""
    sizes = Tree((f'cluster_{g}_size', total['members'][g]) for g in range(self.num_clusters))
    return Tree(sizes, **agreement_metrics(total)) if self._private else sizes


def bounded(losses, clip):
  """Losses in [0, clip], of a score with that sensitivity; one that is not finite is the worst."""
  return tf.where(tf.math.is_finite(losses), tf.clip_by_value(losses, 0.0, clip), clip)


def _share(accuracies):
  """Accuracies in [0, 1], on which the sensitivity rests, also of a model of the user's."""
  return tf.where(tf.math.is_finite(accuracies), tf.clip_by_value(accuracies, 0.0, 1.0), 0.0)
