"""The private choice of a cluster: its probabilities and its sensitivity."""

import dataclasses
import json

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from scipy import stats

import processes
from experiments.config.experiment import ExperimentConfig
from privacy.calibration import calibrate_example_level
from privacy.selection import PrivateSelection
from processes.clusters import ClusterModels
from processes.method import Tree
from processes.setup import Population
from runtime.noise_key import NoiseKey
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small


def _spec(data, *, epsilon=2.0, rounds=5, model='linear_svm', **options):
  plan = small.example_level(
    data, selection=PrivateSelection(epsilon=epsilon, rounds=rounds), noise_multiplier=1.0
  )
  return small.spec_of(data, plan, model=model, **options)


def _clusters(data, **options):
  return ClusterModels(_spec(data, **options).completed(processes.METHODS['ifca']))


def _server(clusters, *, seed=0, round_number=0, num_clusters=4, features=3, scale=1.0):
  rng = np.random.default_rng(8)
  return Tree(
    clusters=Tree(
      weights=tf.constant(scale * rng.normal(size=(num_clusters, features)), tf.float32),
      bias=tf.constant(scale * rng.normal(size=num_clusters), tf.float32),
    ),
    seed=tf.constant(seed),
    round=tf.constant(round_number),
    hyperparameters=Tree(
      (name, tf.constant(value, tf.float32)) for name, value in clusters.hyperparameters.items()
    ),
  )


def _silo(cluster, seed=0):
  return _with_key(cluster, tf.constant(NoiseKey.rehearsal(seed).words))


def _with_key(cluster, key):
  never = tf.constant(0.0)
  return Tree(cluster=tf.constant(cluster), choices=never, agreeing=never, noise_key=key)


def _row(data, client=0):
  return tf.nest.map_structure(lambda a: tf.constant(a[client]), data)


def _choices(clusters, server, data, count=4000):
  """(Choices, agreements) of `count` runs that differ in the seed, counted."""

  @tf.function
  def run():
    return tf.vectorized_map(
      lambda key: clusters.choose(server, _with_key(-1, key), data),
      tf.range(count),
    )

  agreement = run()
  assert np.all(agreement['choices'].numpy() == 1)
  counts = np.bincount(agreement['cluster'].numpy(), minlength=clusters.num_clusters)
  return counts, agreement['agreeing'].numpy().sum()


@pytest.mark.slow
@pytest.mark.parametrize(
  # The sensitivity of a clipped mean is n - 1 times as large: it needs more epsilon to be seen.
  ('score', 'epsilon'), [('error_rate', 2.0), ('loss', 2.0), ('mean_loss', 16.0)],
)  # fmt: skip
def test_the_choice_is_the_exponential_mechanism(score, epsilon):
  """P(g) ~ exp(-epsilon s_g / (2 sensitivity)); and the test rejects 2/3 of epsilon."""
  data = small.binary_data(sizes=[9, 40, 40, 40])
  clusters = _clusters(
    data, epsilon=epsilon, selection_score=score, hyperparameters={'selection_loss_clip': 0.7}
  )
  clusters.hyperparameters['selection_loss_clip'] = 0.7
  server = _server(clusters, scale=0.3)
  counts, agreeing = _choices(clusters, server, _row(data))

  x, y = data['x'][0, :9], data['y'][0, :9]
  outputs = x @ server['clusters']['weights'].numpy().T + server['clusters']['bias'].numpy()
  losses = np.maximum(0.0, 1.0 - y[:, np.newaxis] * outputs)
  scores, sensitivity = {
    'error_rate': (np.mean((outputs >= 0) != (y > 0)[:, np.newaxis], axis=0), 1 / 8),
    'loss': (np.minimum(losses, 0.7).mean(0), 0.7 / 8),
    'mean_loss': (np.minimum(losses.mean(0), 0.7), 0.7),
  }[score]

  def p_value(claimed):
    logits = -claimed * scores.astype(np.float64) / (2 * sensitivity)
    expected = np.exp(logits - logits.max())
    return stats.chisquare(counts, counts.sum() * expected / expected.sum()).pvalue

  assert p_value(epsilon) > 1e-3
  assert p_value(2 / 3 * epsilon) < 1e-6
  assert 0 < agreeing == counts[np.argmin(scores)] < counts.sum()


@pytest.mark.parametrize('score', ['loss', 'mean_loss'])
def test_an_example_moves_all_scores_in_one_direction(score):
  """The plan's ranges are half as wide for it; a loss below 0 must not undo that."""
  data = small.binary_data(sizes=[9, 40, 40, 40])
  spec = _spec(data, selection_score=score).completed(processes.METHODS['ifca'])
  assert spec.plan.selection.monotonic
  signed = dataclasses.replace(spec.model, loss=lambda outputs, y: outputs * y)
  clusters = ClusterModels(dataclasses.replace(spec, model=signed))
  # A clip that leaves most means as they are.
  clusters.hyperparameters['selection_loss_clip'] = 2.0
  server, one, both_ways = _server(clusters), _row(data), 0
  scores = clusters._scores(server, one, 4).numpy()
  for row in range(9):
    without = Tree(one, y=tf.tensor_scatter_nd_update(one['y'], [[row]], [0.0]))  # adds nothing
    moved = clusters._scores(server, without, 4).numpy() - scores
    assert np.all(moved <= 1e-6)
    losses = np.asarray(signed.loss(_outputs(server, one['x'][row]), one['y'][row]))
    both_ways += losses.min() < 0.0 < losses.max()
  assert both_ways > 3  # so that signed losses would have moved scores in both directions


def _outputs(server, x):
  weights, bias = server['clusters']['weights'].numpy(), server['clusters']['bias'].numpy()
  return weights @ np.asarray(x) + bias


_VALUES = st.one_of(
  st.floats(-3.0, 3.0, width=32), st.sampled_from([0.0, 1e-40, 1e20, 3e38, -3e38, np.inf, np.nan])
)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  rows=st.lists(st.tuples(_VALUES, _VALUES, _VALUES), min_size=4, max_size=4),
  other=st.tuples(_VALUES, _VALUES, _VALUES),
  label=st.sampled_from([-1.0, 1.0]),
)
@pytest.mark.parametrize('score', ['error_rate', 'loss', 'mean_loss'])
def test_one_example_moves_every_score_by_at_most_the_sensitivity(score, rows, other, label):
  """Replacing an example by any other, and removing it."""
  data = small.binary_data(rows=4)
  clusters, scores_of = _SCORES[score]
  server = _server(clusters)
  one = _row(data)
  one['x'] = tf.constant(rows, tf.float32)
  replaced = Tree(one)
  replaced['x'] = tf.tensor_scatter_nd_update(one['x'], [[3]], [tf.constant(other, tf.float32)])
  replaced['y'] = tf.tensor_scatter_nd_update(one['y'], [[3]], [label])
  removed = Tree(one, num_examples=tf.constant(3))
  scores = scores_of(server, one)
  sensitivity = clusters._sensitivity(server, one)
  assert np.all(np.isfinite(scores))
  for neighbour in (replaced, removed):
    moved = np.abs(scores_of(server, neighbour) - scores)
    assert np.all(moved <= sensitivity * (1 + 1e-5))


@pytest.mark.parametrize('value', [100.0, -7.0, np.inf, np.nan])
def test_an_accuracy_of_the_users_moves_no_score_by_more_than_the_sensitivity(value):
  """A model of the user's may call anything accuracy; a further metric is no score at all."""
  data = small.binary_data(rows=4)

  def metrics(outputs, y):
    return Tree(accuracy=tf.where(tf.abs(y) > 1.5, value, 0.5 + 0.0 * outputs))

  spec = _spec(data)
  wild = dataclasses.replace(spec.model, metrics=metrics, metric_names=('accuracy',))
  spec = dataclasses.replace(spec, model=wild).completed(processes.METHODS['ifca'])
  clusters, one = ClusterModels(spec), _row(data)
  server = _server(clusters)
  marked = Tree(one, y=tf.tensor_scatter_nd_update(one['y'], [[3]], [2.0]))
  scores = [clusters._scores(server, rows, 4).numpy() for rows in (one, marked)]
  assert np.all(np.isfinite(scores))
  assert np.all(np.abs(scores[1] - scores[0]) <= clusters._sensitivity(server, one) * (1 + 1e-5))


def test_a_further_metric_named_accuracy_is_no_score():
  data = small.regression_data()
  spec = _spec(data, model='linear_regression')
  names = (*spec.model.metric_names, 'accuracy')
  spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, metric_names=names))
  assert ClusterModels(spec.completed(processes.METHODS['ifca']))._score == 'loss'
  asked = dataclasses.replace(spec, options={**spec.options, 'selection_score': 'error_rate'})
  with pytest.raises(ValueError, match='selection_score=error_rate'):
    ClusterModels(asked.completed(processes.METHODS['ifca']))


def _compiled_scores():
  data = small.binary_data(rows=4)
  for score in ('error_rate', 'loss', 'mean_loss'):
    clusters = _clusters(data, selection_score=score)
    compiled = tf.function(
      lambda server, data, clusters=clusters: clusters._scores(server, data, 4)
    )
    yield score, (clusters, lambda *arguments, compiled=compiled: compiled(*arguments).numpy())


_SCORES = dict(_compiled_scores())


def test_choices_stop_and_absent_clients_choose_once():
  data = small.binary_data()
  clusters = _clusters(data, rounds=2)
  row = _row(data)

  def distinct(round_number, cluster):
    server = _server(clusters, round_number=round_number, scale=0.01)
    silos = [_silo(cluster, seed) for seed in range(12)]
    return {int(clusters.choose(server, silo, row)['cluster']) for silo in silos}

  assert len(distinct(1, 3)) > 1
  assert distinct(2, 3) == {3}
  assert len(distinct(7, -1)) > 1
  agreement = clusters.choose(_server(clusters, round_number=2), _silo(3), row)
  assert agreement['choices'] == agreement['agreeing'] == 0  # kept, not chosen
  # No selection is paid for: none is made.
  none = _clusters(data, rounds=0)
  server = _server(none, round_number=7)
  assert int(none.choose(server, _silo(-1), row)['cluster']) == 0


def test_choices_of_several_rounds_have_noise_of_their_own():
  """Noise that is the same in every round is one draw, and no composition covers the choices."""
  clusters, row = _clusters(small.binary_data(), rounds=40), _row(small.binary_data())
  choose = tf.function(
    lambda round_number: clusters.choose(Tree(server, round=round_number), _silo(-1), row)[
      'cluster'
    ]
  )
  server = _server(clusters, scale=0.0)  # equal clusters, of which the noise alone chooses
  counts = np.bincount([int(choose(tf.constant(t))) for t in range(40)], minlength=4)
  assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
  ('fraction', 'rounds', 'expected'),
  [
    (0.1, 1, 1), (0.1, 5, 1), (0.1, 6, 1), (1e-6, 200, 1), (0.01, 200, 2), (0.25, 8, 2),
    (0.1, 20, 2), (0.1, 200, 20), (1.0, 200, 200), (0.0, 5, 0),
  ],
)  # fmt: skip
def test_there_is_a_round_of_choices_where_any_are_asked_for(fraction, rounds, expected):
  """And the plan accounts for those that are made."""
  data = small.binary_data()
  config = ExperimentConfig(
    method='ifca', privacy='example', target_epsilon=2.0, delta=1e-3, rounds=rounds,
    selection_fraction=fraction, num_clusters=4 if fraction else 1,
  )  # fmt: skip
  population = Population(client_ids=['a'], num_examples=np.array([40]), groups={})
  share = config.declaration.setup(config, population).plan_share(2.0, 1e-3)
  assert share.selection.rounds == expected
  plan = small.example_level(data, selection=share.selection, noise_multiplier=1.0)
  for privacy in (plan, small.no_privacy(data)):
    spec = small.spec_of(
      data, privacy, model='linear_svm', rounds=rounds,
      hyperparameters={'selection_fraction': fraction},
    )  # fmt: skip
    clusters = ClusterModels(spec.completed(processes.METHODS['ifca']))
    assert clusters.hyperparameters['selection_rounds'] == expected


def test_the_clients_of_a_short_run_are_not_all_in_the_first_cluster():
  data = small.binary_data()
  spec = small.spec_of(data, small.no_privacy(data), model='linear_svm', rounds=5)
  clusters = ClusterModels(spec.completed(processes.METHODS['ifca']))
  server, newcomer = _server(clusters), Tree(cluster=tf.constant(-1))
  chosen = [int(clusters.choose(server, newcomer, _row(data, k))['cluster']) for k in range(4)]
  assert len(set(chosen)) > 1


def test_starts_are_distinct_also_for_linear_models():
  data = small.binary_data()
  clusters = _clusters(data)
  server = _server(clusters)
  server['model'] = Tree(weights=tf.zeros([3]), bias=tf.zeros([]))
  starts = numpy_loops.parameter_vector(clusters.init_server(server)['clusters'])
  assert starts.shape == (4, 4)
  assert len(np.unique(starts.round(6), axis=0)) == 4


def test_selections_take_their_share_of_the_budget():
  data = small.binary_data()
  common = dict(
    target_epsilon=2.0,
    delta=1e-3,
    rounds=20,
    num_examples=data['num_examples'],
    batch_size=8,
    steps_per_round=5,
    clipping_norm=1.0,
  )
  plain = calibrate_example_level(**common)
  few, all_rounds = (
    calibrate_example_level(selection=PrivateSelection(epsilon=0.15, rounds=r), **common)
    for r in (2, 20)
  )
  assert plain.noise_multiplier[0] < few.noise_multiplier[0] < all_rounds.noise_multiplier[0]
  for plan in (plain, few, all_rounds):
    assert 1.98 < plan.epsilon(20) <= 2.0


def test_what_does_not_fit_is_refused():
  data = small.binary_data()
  regression = small.regression_data()
  with pytest.raises(ValueError, match='private selection'):
    processes.build('ifca', small.spec_of(data, small.example_level(data), model='linear_svm'))
  with pytest.raises(ValueError, match='selection_rounds=7'):
    processes.build('ifca', _spec(data, rounds=5, hyperparameters={'selection_rounds': 7}))
  with pytest.raises(ValueError, match='selection_score=error_rate'):
    _clusters(regression, model='linear_regression', selection_score='error_rate')
  with pytest.raises(ValueError, match='selection_score=best'):
    _clusters(data, selection_score='best')
  with pytest.raises(ValueError, match='num_clusters=0'):
    _clusters(data, num_clusters=0)


PRIVATE = {'privacy': 'example', 'target_epsilon': 2.0, 'delta': 1e-3}
LOSS_CLIP = {'selection_loss_clip': 5.0}


@pytest.mark.parametrize('method', ['ifca', 'ifca_mr_mtl'])
@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'selection_fraction': 0.0}, '--selection_fraction=0.0 needs --num_clusters=1, not 4'),
    (
      {**PRIVATE, 'selection_epsilon': 1.0, 'selection_epsilon_share': 0.5},
      '--selection_epsilon=1.0 and --selection_epsilon_share=0.5 exclude each other',
    ),
    (
      {**PRIVATE, **LOSS_CLIP, 'selection_score': 'error_rate'},
      '--selection_loss_clip=5.0 needs --selection_score=loss or mean_loss; error_rate',
    ),
    (
      {'num_clusters': 1, 'cluster_init_stddev': 0.5},
      '--cluster_init_stddev=0.5 needs at least 2 of --num_clusters',
    ),
  ],
)
def test_a_setting_that_nothing_reads_is_refused(method, settings, message):
  with pytest.raises(ValueError, match=message):
    ExperimentConfig(method=method, **settings)


@pytest.mark.parametrize(
  'settings',
  [
    {'selection_fraction': 0.0, 'num_clusters': 1},
    {'cluster_init_stddev': 0.5},
    {**PRIVATE, 'selection_epsilon': 1.0},
    {**PRIVATE, 'selection_epsilon_share': 0.5},
    {**PRIVATE, **LOSS_CLIP, 'selection_score': 'mean_loss'},
    {**PRIVATE, 'selection_score': 'error_rate'},
  ],
  ids=str,
)
def test_a_setting_that_is_read_is_taken(settings):
  """Also as a folder records it, with the defaults of all others."""
  config = ExperimentConfig(method='ifca', **settings)
  assert ExperimentConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_what_a_model_leaves_unread_is_refused_when_it_is_known():
  data, regression = small.binary_data(), small.regression_data()
  with pytest.raises(ValueError, match=r'--selection_loss_clip=5.0 .* --model=linear_svm'):
    _clusters(data, hyperparameters=LOSS_CLIP)
  _clusters(data, hyperparameters=LOSS_CLIP, selection_score='loss')
  read = _clusters(regression, model='linear_regression', hyperparameters=LOSS_CLIP)
  assert read.hyperparameters['selection_loss_clip'] == 5.0
  given = {'cluster_init_stddev': 0.5}
  with pytest.raises(ValueError, match=r'--cluster_init_stddev=0.5 needs a convex model; .*=mlp'):
    _clusters(regression, model='mlp', hyperparameters=given)
  _clusters(data, hyperparameters=given)
