"""A method that trains several times in a round runs the steps that are accounted for."""

import dataclasses

import pytest

import processes
from processes import trees
from processes.aggregation import MeanUpdate, loss_metrics, loss_report
from processes.local_training import LocalTrainer
from processes.method import Tree, assemble
from runtime.random_streams import Stream
from tests.processes import reference as numpy_loops
from tests.processes import small_federation as small

APART = {'batch_stream': Stream.PERSONAL_BATCH, 'noise_stream': Stream.PERSONAL_NOISE}


def _method(data, *, second=None, passes=1, steps=(4, 2, 6)):
  """FedAvg whose clients may train a second time; `second` are that training's streams."""
  declared = processes.METHODS['fedavg']
  plan = small.example_level(data, noise_multiplier=0.5, steps=list(steps))
  spec = small.spec_of(data, plan).completed(dataclasses.replace(declared, passes=passes))
  train, mean_update = LocalTrainer(spec), MeanUpdate(spec)

  def client_update(server, client, data):
    params, statistics = train(server['model'], server, client, data)
    update = trees.subtract(params, server['model'])
    if second is not None:
      params, _ = train(server['model'], server, client, data, **second)
      update = trees.add_scaled(update, trees.subtract(params, server['model']), 0.0)
    return Tree(**mean_update.report(update, server, data), **loss_report(statistics)), client

  def server_update(server, total):
    update, changed, metrics = mean_update.mean(total, server)
    model = trees.add_scaled(server['model'], update, 1.0)
    return Tree(server, model=model, **changed), Tree(**loss_metrics(total), **metrics)

  return assemble(
    spec,
    client_update=client_update,
    server_update=server_update,
    hyperparameters=spec.values('client_learning_rate'),
    models={'global': lambda server, client: server['model']},
  )


def _model_after(method, data, rounds=2):
  run = small.Simulation(small.the_runtime(), method, data)
  run.run(rounds)
  return numpy_loops.parameter_vector(run.server['model'])


@pytest.mark.slow
def test_the_steps_of_the_plan_are_those_of_all_trainings():
  data = small.regression_data(sizes=[8, 5, 2])
  twice = _model_after(_method(data, second=APART, passes=2), data)
  small.assert_trees_equal(twice, _model_after(_method(data, steps=(2, 1, 3)), data))
  other = _model_after(_method(data), data)  # a training with all steps
  assert abs(twice - other).max() > 1e-3


@pytest.mark.parametrize(
  ('second', 'passes', 'said'),
  [
    (APART, 1, 'trains by DP-SGD 2 times, of which passes=1'),
    ({}, 2, 'the same batch_stream'),
    ({'batch_stream': Stream.PERSONAL_BATCH}, 2, 'the same noise_stream'),
    ({'noise_stream': Stream.PERSONAL_NOISE}, 2, 'the same batch_stream'),
    ({**APART, 'indices': (1,)}, 1, 'passes=1'),
  ],
)
def test_what_is_not_accounted_for_is_refused(second, passes, said):
  with pytest.raises(ValueError, match=said):
    _method(small.regression_data(), second=second, passes=passes)
