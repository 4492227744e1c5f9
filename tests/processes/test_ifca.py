"""IFCA, and what stands on it: limits, golden numbers, algorithm A2."""

import json

import numpy as np
import pytest

from experiments.config.experiment import ExperimentConfig
from privacy.selection import PrivateSelection
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

RATE = {'client_learning_rate': 0.1}


def _run(
  name,
  data,
  rounds,
  *,
  selections=2,
  private=True,
  hyperparameters=None,
  attributes=None,
  **options,
):
  if private:
    plan = small.example_level(
      data,
      noise_multiplier=0.2,
      steps=[2, 1, 3],
      selection=PrivateSelection(epsilon=1.0, rounds=selections),
    )
  else:
    plan = small.no_privacy(data)
  hyperparameters = {**RATE, **(hyperparameters or {})}
  if not private and name.startswith('ifca'):
    hyperparameters['selection_rounds'] = selections
  if 'ifca' not in name:
    options.pop('num_clusters', None)
  spec = small.spec_of(data, plan, **options)
  run = small.start(name, spec, data, hyperparameters=hyperparameters, attributes=attributes)
  run.plan = plan
  run.metrics = run.run(rounds)
  return run


def _clusters(run):
  return numpy_loops.parameter_vector(run.server['clusters'])


@pytest.mark.exhaustive(but=['uniform-True'])
@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_one_cluster_is_fedavg(private, weighting):
  data = small.regression_data(sizes=[8, 5, 2])
  ours = _run('ifca', data, 3, private=private, num_clusters=1, weighting=weighting)
  fedavg = _run('fedavg', data, 3, private=private, weighting=weighting)
  small.assert_trees_equal(_clusters(ours)[0], numpy_loops.parameter_vector(fedavg.server['model']))
  sums = ours.evaluate('personal')
  assert np.all(sums.pop('cluster') == 0)
  small.assert_trees_equal(sums, fedavg.evaluate('global'))


@pytest.mark.slow
@pytest.mark.parametrize(('epsilon', 'finds'), [(4.0, True), (0.01, False)])
def test_private_choices_find_the_kinds_of_clients_if_the_budget_suffices(epsilon, finds):
  """A score of 200 examples moves by 1/199: epsilon 4 chooses well, 0.01 throws coins."""
  data = small.binary_data(clients=8, rows=200)
  rounds = 8
  plan = small.example_level(
    data, noise_multiplier=1.0, steps=[20] * 8,
    selection=PrivateSelection(epsilon=epsilon, rounds=rounds),
  )  # fmt: skip
  spec = small.spec_of(data, plan, model='linear_svm', num_clusters=2, batch_size=20)
  run = small.start('ifca', spec, data, hyperparameters=RATE)
  agreement = run.run(rounds)['selection_agreement']
  assert (agreement > 0.9) == finds
  chosen = run.clients['cluster']
  kinds = np.arange(8) % 2
  right = max(np.mean(chosen == kinds), np.mean(chosen != kinds))
  assert (right == 1.0) == finds
  if finds:
    sums = run.evaluate()
    assert np.sum(sums['accuracy']) > 0.9 * np.sum(sums['num_examples'])


@pytest.mark.slow
def test_it_finds_the_kinds_of_clients():
  data = small.binary_data(clients=6)
  run = _run('ifca', data, 8, private=False, selections=8, model='linear_svm', num_clusters=2)
  chosen = run.clients['cluster']
  np.testing.assert_array_equal(chosen[0::2], chosen[0])
  np.testing.assert_array_equal(chosen[1::2], 1 - chosen[0])
  assert run.metrics['cluster_0_size'] == run.metrics['cluster_1_size'] == 3
  sums = run.evaluate()
  assert np.all(sums['accuracy'] > 0.9 * sums['num_examples'])


@pytest.mark.exhaustive(but=['uniform'])
@pytest.mark.slow
@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_the_rounds_of_ifca_in_numpy(weighting):
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(
    'ifca', data, 0, num_clusters=2, weighting=weighting, selections=3,
    hyperparameters={'server_learning_rate': 0.7},
  )  # fmt: skip
  reference, expected = numpy_loops.Reference(data), _clusters(run)
  for t in range(3):
    run.run(1)
    chosen = run.clients['cluster']
    new = expected.copy()
    for g in range(2):
      members = np.flatnonzero(chosen == g)
      if len(members):
        updates = [
          reference.dp_sgd(expected[g], k, t, run.plan, learning_rate=0.1) - expected[g]
          for k in members
        ]
        weights = data['num_examples'][members] if weighting == 'examples' else None
        new[g] = expected[g] + 0.7 * np.average(updates, axis=0, weights=weights)
    expected = new
    np.testing.assert_allclose(_clusters(run), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_choices_are_frozen_after_the_selection_rounds():
  data = small.regression_data()
  run = _run('ifca', data, 2, selections=2)
  frozen = run.clients['cluster'].copy()
  for _ in range(4):
    run.run(1)
    np.testing.assert_array_equal(run.clients['cluster'], frozen)


# ------------------------------------------------------- preconditioning


@pytest.mark.slow
@pytest.mark.parametrize('private', [False, True])
def test_while_it_clusters_the_preconditioned_method_is_ifca(private):
  data = small.regression_data(sizes=[8, 5, 2])
  ours = _run('ifca_mr_mtl', data, 3, selections=3, private=private)
  ifca = _run('ifca', data, 3, selections=3, private=private)
  small.assert_trees_equal(_clusters(ours), _clusters(ifca))
  small.assert_trees_equal(ours.evaluate(), ifca.evaluate())


@pytest.mark.slow
def test_preconditioned_fedavg_is_ifca_with_frozen_choices():
  data = small.regression_data(sizes=[8, 5, 2])
  ours = _run('ifca_mr_mtl', data, 4, after_clustering='fedavg')
  ifca = _run('ifca', data, 4)
  small.assert_trees_equal(_clusters(ours), _clusters(ifca))
  small.assert_trees_equal(ours.evaluate(), ifca.evaluate())


@pytest.mark.slow
def test_lambda_zero_is_preconditioned_local_training():
  data = small.regression_data(sizes=[8, 5, 2])
  ours = _run('ifca_mr_mtl', data, 4, hyperparameters={'mtl_lambda': 0.0})
  local = _run('ifca_mr_mtl', data, 4, after_clustering='local')
  small.assert_trees_equal(ours.clients['model'], local.clients['model'])


@pytest.mark.slow
def test_without_clustering_one_cluster_is_mr_mtl():
  data = small.regression_data(sizes=[8, 5, 2])
  ours = _run('ifca_mr_mtl', data, 3, selections=0, num_clusters=1)
  mr_mtl = _run('mr_mtl', data, 3)
  small.assert_trees_equal(ours.clients['model'], mr_mtl.clients['model'], rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive(but=['True'])
@pytest.mark.slow
@pytest.mark.parametrize('inside_clip', [False, True])
def test_algorithm_a2_in_numpy(inside_clip):
  data = small.regression_data(sizes=[8, 5, 2])
  strength, clustering, factors, rate = 0.8, 2, np.array([1.0, 0.5, 2.0]), 0.7
  run = _run(
    'ifca_mr_mtl',
    data,
    0,
    selections=clustering,
    num_clusters=2,
    hyperparameters={'mtl_lambda': strength, 'server_learning_rate': rate},
    attributes={'mtl_lambda_factor': factors},
    regularizer_inside_clip=inside_clip,
  )
  reference = numpy_loops.Reference(data)
  centres, personal = _clusters(run), np.zeros([3, 4])
  for t in range(5):
    run.run(1)
    chosen, new = run.clients['cluster'], personal.copy()
    for k, g in enumerate(chosen):
      start = centres[g] if t < clustering else personal[k]
      pull = None
      if t >= clustering:
        pull = lambda w, g=g, k=k, c=centres: strength * factors[k] * (w - c[g])  # noqa: E731
      new[k] = reference.dp_sgd(
        start, k, t, run.plan, learning_rate=0.1, penalty=pull,
        inside_clip=inside_clip and pull is not None,
      )  # fmt: skip
    centres = centres + rate * np.stack(
      [(new - c)[chosen == g].mean(0) if np.any(chosen == g) else 0 * c
       for g, c in enumerate(centres)]
    )  # fmt: skip
    personal = new
  found = numpy_loops.parameter_vector(run.clients['model'])
  np.testing.assert_allclose(found, personal, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(_clusters(run), centres, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_preconditioned_finetuning_starts_at_the_clusters_model():
  data = small.regression_data(sizes=[8, 5, 2])
  run = _run(
    'ifca_mr_mtl',
    data,
    3,
    after_clustering='finetune',
    hyperparameters={'finetune_start_round': 3.0},
  )
  centres, chosen = _clusters(run), run.clients['cluster'].copy()
  run.run(2)
  reference = numpy_loops.Reference(data)
  found = numpy_loops.parameter_vector(run.clients['model'])
  for k in range(3):
    expected = centres[chosen[k]]
    for t in (3, 4):
      expected = reference.dp_sgd(expected, k, t, run.plan, learning_rate=0.1)
    np.testing.assert_allclose(found[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive(but=['finetune'])
@pytest.mark.slow
@pytest.mark.parametrize('after', ['local', 'finetune'])
def test_who_was_absent_does_not_start_from_what_others_trained_alone(after):
  data = small.regression_data(sizes=[8, 5, 2])
  hyperparameters = {'finetune_start_round': 1.0} if after == 'finetune' else {}
  run = _run(
    'ifca_mr_mtl',
    data,
    0,
    selections=1,
    private=False,
    num_clusters=1,
    after_clustering=after,
    hyperparameters=hyperparameters,
  )
  run.run(1, cohort=[0, 1])
  shared = _clusters(run)[0]
  run.run(2, cohort=[0, 1])
  reference = numpy_loops.Reference(data)
  errors = reference.x[2, :2] @ shared - reference.y[2, :2]
  assert run.evaluate()['mse'][2] == pytest.approx(np.sum(errors**2), rel=1e-5)
  run.run(1, cohort=[2])
  expected = reference.sgd(shared, 2, 3, batch_size=4, learning_rate=0.1)
  found = numpy_loops.parameter_vector(run.clients['model'])[2]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_unknown_second_stage_is_refused():
  data = small.regression_data()
  with pytest.raises(ValueError, match='after_clustering=ditto'):
    _run('ifca_mr_mtl', data, 0, after_clustering='ditto')


PRIVATE = {'privacy': 'example', 'target_epsilon': 2.0, 'delta': 1e-3}
OF_STAGES = [
  ('mr_mtl', {'mtl_lambda': 5.0}, '--mtl_lambda=5.0'),
  ('mr_mtl', {'silo_lambdas': 'own.csv'}, '--silo_lambdas=own.csv'),
  ('mr_mtl', {**PRIVATE, 'regularizer_inside_clip': True}, '--regularizer_inside_clip=true'),
  ('finetune', {'finetune_fraction': 0.3}, '--finetune_fraction=0.3'),
]


@pytest.mark.parametrize(
  ('stage', 'settings', 'flag'), OF_STAGES, ids=[flag for *_, flag in OF_STAGES]
)
def test_a_setting_of_another_stage_is_refused(stage, settings, flag):
  ExperimentConfig(method='ifca_mr_mtl', after_clustering=stage, **settings)
  for other in {'mr_mtl', 'local', 'fedavg', 'finetune'} - {stage}:
    with pytest.raises(ValueError, match=f'{flag} needs --after_clustering={stage}; {other} does'):
      ExperimentConfig(method='ifca_mr_mtl', after_clustering=other, **settings)


@pytest.mark.parametrize('stage', ['mr_mtl', 'local', 'fedavg', 'finetune'])
def test_the_defaults_that_a_folder_records_are_of_every_stage(stage):
  config = ExperimentConfig(method='ifca_mr_mtl', after_clustering=stage, **PRIVATE)
  recorded = config.to_json()
  assert recorded['mtl_lambda'] == 1.0 and recorded['finetune_fraction'] == 0.5
  assert ExperimentConfig.from_json(json.loads(json.dumps(recorded))) == config
