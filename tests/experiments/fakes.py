"""A runtime, a method and a data set of a few lines, to test the round loop by itself."""

import collections
import time

import numpy as np

import datasets
import runtime
from experiments.folder import checkpoints, figures
from experiments.running import build, plans, trees
from privacy import plan

Tree = collections.OrderedDict
NUM_CLIENTS = 6


def without_figures(set_attribute):
  """Runs draw nothing from here on: figures take a second each."""
  for name in ('draw_run', 'draw_clients'):
    set_attribute(figures, name, lambda *arguments, **keywords: [])


class FakeStates:
  visit = None

  def __init__(self, tree):
    self.tree = Tree((name, np.array(leaf)) for name, leaf in (tree or {}).items())

  def to_numpy(self):
    return Tree((name, leaf.copy()) for name, leaf in self.tree.items())

  def kept(self):
    return self.to_numpy()

  def snapshot(self):
    return {'clients': self.to_numpy()}


class FakeRuntime:
  """Runs `next` as a plain function of NumPy arrays, for the whole cohort at once."""

  description = 'a fake'
  compilations = 1
  compiled_programs = 1
  compile_seconds = 0.0

  def __init__(self, seconds_per_round=0.0):
    self.seconds_per_round = seconds_per_round
    self.cohorts = []

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    pass

  def place(self, tree, *, work):
    return tree

  def place_states(self, tree, *, allow_nan=False):
    return FakeStates(tree)

  def to_numpy(self, tree):
    return tree

  def round(self, next_, server, states, data, cohort, *, data_rows=None, settings=None):
    time.sleep(self.seconds_per_round)
    if settings is None:
      return self._round(next_, server, states, data, cohort, data_rows)
    assert len(cohort) == len(data_rows) == settings
    size = len(states.tree['model']) // settings
    outputs = []
    for s in range(settings):
      own = slice(s * size, (s + 1) * size)
      part = FakeStates(_at(states.tree, own))
      rows = cohort[s] - s * size
      outputs.append(self._round(next_, _at(server, s), part, data, rows, data_rows[s]))
      for name, leaf in part.tree.items():
        states.tree[name][own] = leaf
    return tuple(trees.stacked(parts) for parts in zip(*outputs, strict=True))

  def _round(self, next_, server, states, data, cohort, data_rows):
    self.cohorts.append(np.array(cohort))
    rows = cohort if data_rows is None else data_rows
    server, states.tree, metrics = next_(
      server, states.tree, {k: v[rows] for k, v in data.items()}, cohort
    )
    return server, metrics

  def evaluate(
    self, computation, server, states, data, rows=None, *, data_rows=None, settings=None
  ):
    states = {} if states is None else states.tree
    if settings is None:
      return computation(server, states, data)
    every = [
      computation(_at(server, s), _at(states, rows + s * len(rows)), _at(data, data_rows[s]))
      for s in range(settings)
    ]
    return trees.stacked(every)


class LosingRuntime(FakeRuntime):
  """Loses a worker in some of its calls, before they have done anything."""

  def __init__(self, losses, *, keeps_states):
    super().__init__()
    # By call ('round', 'evaluate', 'place', 'snapshot', 'recover'): which times, from 1.
    self._losses = dict(losses)
    self._keeps_states = keeps_states
    self._calls = collections.Counter()

  def lose(self, call):
    self._calls[call] += 1
    if self._calls[call] in self._losses.get(call, ()):
      raise runtime.MemberLostError('cohort worker 1 has ended')

  def round(self, *arguments, **keywords):
    self.lose('round')
    return super().round(*arguments, **keywords)

  def evaluate(self, *arguments, **keywords):
    self.lose('evaluate')
    return super().evaluate(*arguments, **keywords)

  def place_states(self, tree, **options):
    self.lose('place')
    states = super().place_states(tree, **options)
    snapshot = states.snapshot
    states.snapshot = lambda: self.lose('snapshot') or snapshot()
    return states

  def recover(self):
    self.lose('recover')
    # After a loss while states are placed there are none that it could not keep.
    keeps_states = self._keeps_states or self._calls['place'] > 1
    return runtime.Recovery(words='another has its place', keeps_states=keeps_states)


def _at(tree, rows):
  return Tree((name, np.asarray(leaf)[rows]) for name, leaf in tree.items())


class FakeMethod:
  """Means of the clients' data, with a random step keyed by seed and round."""

  evaluations = ('global', 'personal')
  released_metrics = frozenset()
  attributes = frozenset()
  compared_groups = ()
  releases = False
  compared_groups = ()

  class process:
    @staticmethod
    def next(server, clients, data, cohort):
      noise = np.random.default_rng([int(server['seed']), int(server['round'])]).normal()
      model = clients['model'].copy()
      model[cohort] += 0.1 * (data['x'].mean(axis=(1, 2)) - model[cohort]) + 0.01 * noise
      loss = float(np.mean(model**2))
      new = Tree(
        model=np.float64(model.mean()), round=np.int32(server['round'] + 1), seed=server['seed']
      )  # fmt: skip
      return new, Tree(model=model), Tree(train_loss=loss, participants=float(len(cohort)))

  def initial_server_state(self, seed, *, noise_key=None):
    return Tree(model=np.float64(0.0), round=np.int32(0), seed=np.int32(seed))

  def initial_client_states(self, server, num_clients, attributes, *, noise_key=None):
    return Tree(model=np.zeros(num_clients))

  def build_evaluation(self, which, spec):
    def evaluate(server, clients, data):
      num_rows = data['num_examples'].astype(np.float64)
      center = clients['model'] if which == 'personal' else np.full(len(num_rows), server['model'])
      error = np.square(data['y'] - center[:, None])
      mask = np.arange(data['y'].shape[1]) < data['num_examples'][:, None]
      sums = (error * mask).sum(axis=1)
      return Tree(loss=sums / 2, mse=sums, num_examples=num_rows)

    return evaluate


class FakeModel:
  metric_names = ('mse',)
  contents = ''

  @staticmethod
  def init(seed):
    del seed
    return np.zeros([1], np.float32)


def make_dataset(seed=0):
  rng = np.random.default_rng(seed)
  examples = datasets.ClientExamples(
    x=rng.normal(size=(NUM_CLIENTS, 4, 2)).astype(np.float32),
    y=rng.normal(size=(NUM_CLIENTS, 4)).astype(np.float32),
    num_examples=np.full(NUM_CLIENTS, 4, np.int32),
  )
  return datasets.FederatedDataset(
    name='fake',
    task=datasets.Task(kind='regression', num_outputs=1, example_shape=(2,)),
    train=examples,
    test=examples,
    server_test=examples.pooled(),
    client_ids=tuple(f'c{k}' for k in range(NUM_CLIENTS)),
    groups={'even': np.arange(NUM_CLIENTS) % 2 == 0},
    checksums={'fake': '00'},
    citation='none',
  )


def make_experiment(config, dataset=None):
  """An experiment of the fakes whose configuration is real."""
  dataset = dataset or make_dataset()
  cohorts = plans.cohorts_of(config, dataset.num_clients)
  if config.privacy == 'client':
    privacy = plan.ClientLevelPrivacy(
      cohorts=cohorts,
      noise_multiplier=config.noise_multiplier,
      delta=config.delta,
      clipping=plan.FixedClipping(norm=1.0),
      correlation=plans.correlation_of(config, cohorts),
    )
  else:
    privacy = plan.NoPrivacy(cohorts=cohorts)
  return build.Experiment(
    config=config, dataset=dataset, plan=privacy, model=FakeModel(), method=FakeMethod()
  )


def checkpoint_files(folder):
  return checkpoints.list_files(folder / 'checkpoints')
