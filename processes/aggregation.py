"""How the clients' updates become one: the plain mean, or the private one."""

import numpy as np
import tensorflow as tf

from processes import common_settings, trees
from processes.method import Tree
from runtime.noise_key import NOISE_KEY, NUM_WORDS

_NO_KEY = np.zeros(NUM_WORDS, np.int32)


class MeanUpdate:
  """The mean of the clients' updates under a privacy plan.

  - client-level privacy: the plan's TF-Privacy query clips each update and noises the
    sum, which is divided by the *expected* number of clients q N: a number that does
    not depend on who took part;
  - otherwise: the mean with equal weights or weighted by the number of examples. At
    example level the updates are noised already, and the numbers of examples are
    public under the plan's adjacency.

  The part at the client (`report`) gives a tree to be summed over the clients; the part
  at the server (`mean`) takes that sum.
  """

  def __init__(self, spec, record=None):
    """The spec; and a function of the server's state that gives what has a record's shapes.

    A client's record is like the model, where that function is not given.
    """
    self._plan = spec.plan
    self._record = record or (lambda server: server['model'])
    self.private = spec.plan.unit == 'client'
    self._weighting = spec.options.get('weighting', common_settings.WEIGHTING.default)
    if self.private and self._weighting == 'examples':
      raise ValueError(
        f'--weighting={self._weighting} cannot be used with --privacy=client: weights by '
        'counts would leak the counts; use --weighting=uniform.'
      )
    self.hyperparameters = dict(spec.plan.hyperparameters) if self.private else {}
    # A fixed clip is public, an adaptive one is released under the plan's budget.
    self.released_metrics = frozenset({'clipping_norm'} if self.private else ())

  def _query(self, server, noise_key):
    return self._plan.make_query(server['hyperparameters'], noise_key, self._record(server))

  def init(self, server) -> Tree:
    """Further entries of the server state: the query's global state."""
    if not self.private:
      return Tree()
    return Tree(query=self._query(server, server[NOISE_KEY]).initial_global_state())

  def report(self, update, server, data) -> Tree:
    """What a client sends, to be summed."""
    if self.private:
      # Clipping draws nothing, and clients are sent no key.
      query = self._query(server, _NO_KEY)
      params = query.derive_sample_params(server['query'])
      return Tree(update=query.preprocess_record(params, trees.finite_or_zero(update)))
    weight = tf.constant(1.0)
    if self._weighting == 'examples':
      weight = tf.cast(data['num_examples'], tf.float32)
    return Tree(update=trees.scale(update, weight), weight=weight)

  def mean(self, total, server):
    """From the sum of the reports: (mean update, changed server entries, metrics)."""
    if not self.private:
      weight = total['weight']
      # Nobody took part: no update.
      factor = tf.where(weight > 0.0, 1.0 / tf.maximum(weight, 1e-30), 0.0)
      return trees.scale(total['update'], factor), Tree(), Tree()
    query = self._query(server, server[NOISE_KEY])
    noised, state, _ = query.get_noised_result(total['update'], server['query'])
    metrics = Tree(clipping_norm=query.derive_metrics(server['query'])['clip'])
    return trees.scale(noised, 1.0 / self._plan.denominator), Tree(query=state), metrics


def loss_metrics(total) -> Tree:
  """Mean training loss and number of participants: for a simulation's eyes only."""
  return Tree(
    train_loss=total['loss_sum'] / tf.maximum(total['loss_count'], 1.0),
    participants=total['participants'],
  )


def loss_report(statistics) -> Tree:
  """What a client adds to its report for `loss_metrics`."""
  return Tree(**statistics, participants=tf.constant(1.0))


def agreement_report(choosing, choice, noiseless) -> Tree:
  """What a client adds to its report about a private choice, for `agreement_metrics`.

  Args:
    choosing: bool scalar, whether it had to choose.
    choice: its private choice, int scalar.
    noiseless: what it would have chosen without noise.
  """
  agreeing = choosing & tf.equal(choice, noiseless)
  return Tree(choices=tf.cast(choosing, tf.float32), agreeing=tf.cast(agreeing, tf.float32))


def agreement_metrics(total) -> Tree:
  """The share of private choices that noise did not change: for a simulation's eyes only."""
  return Tree(selection_agreement=total['agreeing'] / tf.maximum(total['choices'], 1.0))
