"""The secret noise key: nobody finds the noise of a released model again, and no file tells it."""

import base64
import functools
import json
import os
import shutil
import stat

import numpy as np
import pytest
import tensorflow as tf

from experiments import ExperimentConfig, build_process, run
from experiments.folder import checkpoints, noise_correlations, noise_keys
from experiments.running import interruption, loop, runner
from experiments.sweeps import sweep
from experiments.sweeps.grid import Grid
from privacy import correlated
from processes.method import without_noise_key
from runtime import random_streams
from runtime.noise_key import NoiseKey
from tests.experiments import fakes

# ------------------------------------------------------- searching for the seed

SEED, SEEDS, ROUNDS = 700, 1024, 5


def _released(**values):
  """The update of a released model, and what its noise is made of."""
  config = ExperimentConfig(
    method='fedavg', dataset='digits', dataset_option=('num_clients=100',), privacy='client',
    noise_multiplier=1.5, delta=1e-3, clipping_norm=0.3, cohort_sampling_rate=0.3, rounds=ROUNDS,
    eval_every=0, batch_size=16, seed=SEED, **values,
  )  # fmt: skip
  experiment = build_process(config)
  start = _flat(experiment.initial_states()[0]['model'])
  result = run(experiment, show_progress=False)
  scale = 1.5 * 0.3 / experiment.plan.denominator
  return result, (_flat(result.server_state['model']) - start) / scale


def _flat(model):
  return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(model)])


@functools.cache
def _noise_of_seeds(root_of, leaves):
  """What the rounds' noise comes to, of each seed: [SEEDS, parameters]."""

  @tf.function(jit_compile=True)
  def noise_of(roots):
    def one(root):
      total = tf.zeros([sum(leaves)])
      for round_ in tf.range(ROUNDS):
        key = random_streams.key(root, random_streams.Stream.DP_NOISE, round_)
        parts = [
          random_streams.normal(random_streams.fold_in(key, i), [size])
          for i, size in enumerate(leaves)
        ]
        total += tf.concat(parts, 0)
      return total

    return tf.map_fn(one, roots, fn_output_signature=tf.float32)

  return noise_of(tf.constant(np.stack([root_of(seed) for seed in range(SEEDS)]))).numpy()


def _best_seed(update, leaves, root_of):
  """Which seed's noise is most like a released update; its correlation, and what is left."""
  noise = _noise_of_seeds(root_of, tuple(leaves))
  correlations = [np.corrcoef(update, candidate)[0, 1] for candidate in noise]
  best = int(np.argmax(correlations))
  left = np.linalg.norm(update - noise[best]) / np.linalg.norm(update)
  return best, correlations[best], left


def _rehearsal_words(seed):
  return NoiseKey.rehearsal(seed).words


@pytest.mark.slow
def test_a_search_for_the_seed_finds_nothing():
  """An attacker who has the final model, the code and the public seed tries all seeds."""
  result, update = _released()
  leaves = [np.size(leaf) for leaf in tf.nest.flatten(result.server_state['model'])]
  for root_of in (np.int32, _rehearsal_words):  # from the seed itself, or through its key
    _, correlation, left = _best_seed(update, leaves, root_of)
    # The largest of 1,024 correlations with independent noise.
    assert correlation < 5.5 / np.sqrt(len(update))
    assert left > 1.0
  assert result.privacy['noise_key']['kind'] == 'secret'
  assert 'Noise key: Noise, cohorts' in result.privacy['statement']


@pytest.mark.slow
def test_a_search_for_the_seed_removes_the_noise_of_a_rehearsal():
  """The control of the attack, and why the statement of such a run says what it says."""
  result, update = _released(noise_key='rehearsal')
  leaves = [np.size(leaf) for leaf in tf.nest.flatten(result.server_state['model'])]
  best, correlation, left = _best_seed(update, leaves, _rehearsal_words)
  assert best == SEED and correlation > 0.9 and left < 0.5
  assert 'REHEARSAL' in result.privacy['statement'] and 'protects nobody' in result.report
  assert result.privacy['guarantee'].startswith('Rehearsal, nobody is protected')


# ----------------------------------------------------------- where the key lies


@pytest.fixture
def one_key(monkeypatch):
  """The key that the operating system gives, for tests that look for it."""
  key = NoiseKey.fresh()
  monkeypatch.setattr(NoiseKey, 'fresh', classmethod(lambda cls: NoiseKey.from_hex(key.hex())))
  return key


def _files_with(folder, key):
  """The files of a folder in which the key is, or the words that a program has of it."""
  raw, words = bytes.fromhex(key.hex()), key.words
  needles = [
    raw, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(raw)[:40],
    words.tobytes(), words.byteswap().tobytes(), words[:2].tobytes(), words[-2:].tobytes(),
    words.astype(np.int64).tobytes(), words.astype(np.float32).tobytes(),
    *(key.words_of(silo).tobytes() for silo in range(10)),
    *(str(word).encode() for word in words),
  ]  # fmt: skip
  return sorted(
    path.name
    for path in folder.rglob('*')
    if path.is_file() and any(needle in path.read_bytes() for needle in needles)
  )


def _config(folder, **values):
  defaults = dict(
    method='dp_fedavg', dataset='digits', dataset_option=('num_clients=10',), noise_multiplier=1.0,
    quantile_noise_multiplier=3.0, delta=1e-2, cohort_sampling_rate=0.5, rounds=4, eval_every=2,
    checkpoint_every=1, output_dir=str(folder),
  )  # fmt: skip
  return ExperimentConfig(**{**defaults, **values})


def _stop_after(rounds, monkeypatch):
  """Sends the loop a signal after some rounds, once."""
  original, sent = loop.Loop._collect, []

  def collect(self, **keywords):
    original(self, **keywords)
    if self.rounds_done == rounds and not sent:
      sent.append(rounds)
      self._caught.signal_number = 15

  monkeypatch.setattr(loop.Loop, '_collect', collect)


SILOS = dict(
  method='mr_mtl', privacy='example', quantile_noise_multiplier=None, cohort_sampling_rate=None
)


@pytest.mark.exhaustive(but=['client'])
@pytest.mark.slow
@pytest.mark.parametrize('values', [{}, SILOS], ids=['client', 'example'])
def test_only_its_own_file_holds_the_key_and_only_until_the_end(
  tmp_path, one_key, monkeypatch, capfd, values
):
  folder = tmp_path / 'run'
  _stop_after(2, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    run(_config(folder, **values))
  assert _files_with(folder, one_key) == [noise_keys.NAME]  # also the search's own control
  assert stat.S_IMODE((folder / noise_keys.NAME).stat().st_mode) == 0o600
  assert list((folder / 'checkpoints').iterdir())
  result = run(_config(folder, resume=True, **values))
  assert _files_with(folder, one_key) == []
  assert not (folder / noise_keys.NAME).exists()
  for state in (result.server_state, result.client_states):
    assert not any('noise_key' in name for name, _ in checkpoints._leaves(state, ''))
  assert one_key.hex() not in ''.join(capfd.readouterr()) + result.report
  # Continued with the same noise: as if it had not been stopped.
  again = run(_config('', **values), show_progress=False)
  tf.nest.map_structure(np.testing.assert_array_equal, result.server_state, again.server_state)


@pytest.mark.slow
@pytest.mark.exhaustive(but=['client'])
@pytest.mark.parametrize('values', [{}, SILOS], ids=['client', 'example'])
def test_a_checkpoint_with_the_key_would_be_found(tmp_path, one_key, monkeypatch, values):
  """The twin that keeps the whole states."""
  monkeypatch.setattr(checkpoints, '_is_secret', lambda path: False)
  run(_config(tmp_path / 'run', rounds=1, **values), show_progress=False)
  assert any('round_' in name for name in _files_with(tmp_path / 'run', one_key))


def test_the_state_without_secrets():
  experiment = build_process(_config('', adaptive_clipping=True))
  state, _ = experiment.initial_states()
  names = {name for name, _ in checkpoints._leaves(state, '')}
  secret = {name for name in names if name.endswith('noise_key')}
  assert {'noise_key', 'query/sum_state/noise_key'} <= secret and len(secret) == 3
  kept = checkpoints.flatten(without_noise_key(state))
  assert set(kept) == names - secret == set(checkpoints.flatten(state))
  # A checkpoint is restored with the key that the run has.
  again = checkpoints.restore(state, checkpoints.flatten(state, 'server'), 'server')
  tf.nest.map_structure(np.testing.assert_array_equal, again, state)
  everything = json.dumps({name: leaf.tolist() for name, leaf in kept.items()})
  assert not any(str(word) in everything for word in experiment.noise_key.words)


# -------------------------------------------------------- continued and refused


@pytest.fixture
def fake_runs(monkeypatch):
  """Runs of a few milliseconds."""
  machine = fakes.FakeRuntime()
  monkeypatch.setattr(runner, 'create_runtime', lambda config, **_: machine)
  fakes.without_figures(monkeypatch.setattr)

  def start(folder, **values):
    defaults = dict(
      rounds=6, eval_every=3, checkpoint_every=2, clients_per_round=3, privacy='client',
      noise_multiplier=1.0, delta=1e-2, output_dir=str(folder),
    )  # fmt: skip
    config = ExperimentConfig(**{**defaults, **values})
    machine.cohorts.clear()
    result = runner.run(fakes.make_experiment(config), show_progress=False)
    return result, [tuple(cohort) for cohort in machine.cohorts]

  return start


@pytest.mark.slow
def test_each_run_has_its_own_cohorts_and_a_rehearsal_has_its_seeds(tmp_path, fake_runs):
  secret = [fake_runs(tmp_path / f's{i}')[1] for i in range(2)]
  assert secret[0] != secret[1]
  rehearsed = [fake_runs(tmp_path / f'r{i}', noise_key='rehearsal')[1] for i in range(2)]
  assert rehearsed[0] == rehearsed[1] != secret[0]
  public = [
    fake_runs(tmp_path / f'p{i}', privacy='none', noise_multiplier=None, delta=None)[1]
    for i in range(2)
  ]
  assert public[0] == public[1]
  assert not list(tmp_path.rglob(noise_keys.NAME))


def test_a_run_that_was_stopped_continues_with_its_cohorts(tmp_path, fake_runs, monkeypatch):
  _stop_after(3, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    fake_runs(tmp_path / 'run')
  key = NoiseKey.from_hex((tmp_path / 'run' / noise_keys.NAME).read_text())
  _, cohorts = fake_runs(tmp_path / 'run', resume=True)
  plan = fakes.make_experiment(
    ExperimentConfig(privacy='client', noise_multiplier=1.0, delta=1e-2, clients_per_round=3)
  ).plan
  assert cohorts[-3:] == [tuple(plan.cohorts.sample(key, round_)) for round_ in (3, 4, 5)]


def test_without_its_key_a_run_is_not_continued(tmp_path, fake_runs, monkeypatch):
  """With other noise the rounds after the checkpoint would be released twice."""
  folder = tmp_path / 'run'
  _stop_after(3, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    fake_runs(folder)
  text = (folder / noise_keys.NAME).read_text()
  (folder / noise_keys.NAME).unlink()
  with pytest.raises(ValueError, match='whose noise key is gone') as refused:
    fake_runs(folder, resume=True)
  assert '\n' not in str(refused.value)
  (folder / noise_keys.NAME).write_text('no key')
  os.chmod(folder / noise_keys.NAME, 0o600)
  with pytest.raises(ValueError, match='64 hexadecimal digits'):
    fake_runs(folder, resume=True)
  (folder / noise_keys.NAME).write_text(text)
  assert fake_runs(folder, resume=True)[0].summary['rounds'] == 6


@pytest.mark.slow
def test_a_finished_run_needs_no_key(tmp_path, fake_runs):
  first, _ = fake_runs(tmp_path / 'run')
  again, cohorts = fake_runs(tmp_path / 'run', resume=True)
  assert not cohorts and again.privacy == first.privacy
  assert not (tmp_path / 'run' / noise_keys.NAME).exists()


@pytest.mark.slow
def test_the_users_own_key_repeats_a_run_and_stays(tmp_path, fake_runs):
  path = tmp_path / 'my key'
  path.write_text(NoiseKey.fresh().hex() + '\n')
  os.chmod(path, 0o600)
  runs = [fake_runs(tmp_path / f'run{i}', noise_key_file=str(path)) for i in range(2)]
  assert runs[0][1] == runs[1][1]
  result = runs[0][0]
  assert result.privacy['noise_key'] == {**result.privacy['noise_key'], 'kind': 'file',
                                         'path': str(path)}  # fmt: skip
  said = ' '.join(result.privacy['statement'].split())  # its lines may end within the file's name
  assert str(path) in said and path.exists()
  key = NoiseKey.from_hex(path.read_text())
  assert _files_with(tmp_path / 'run0', key) == []


@pytest.mark.parametrize(
  ('content', 'mode', 'words'),
  [
    (None, 0o600, 'No such file'),
    ('0' * 64, 0o640, 'can be read by others; chmod 600'),
    ('0' * 63, 0o600, '64 hexadecimal digits'),
    ('', 0o600, 'openssl rand -hex 32'),
  ],
)
def test_keys_of_the_users_that_are_refused(tmp_path, fake_runs, content, mode, words):
  path = tmp_path / 'key'
  if content is not None:
    path.write_text(content)
    os.chmod(path, mode)
  with pytest.raises(ValueError, match=words) as refused:
    fake_runs(tmp_path / 'run', noise_key_file=str(path))
  assert str(path) in str(refused.value) and (not content or content not in str(refused.value))


def test_another_key_of_the_users_does_not_continue_a_run(tmp_path, fake_runs, monkeypatch):
  paths = [tmp_path / 'one', tmp_path / 'two']
  for path in paths:
    path.write_text(NoiseKey.fresh().hex())
    os.chmod(path, 0o600)
  _stop_after(3, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    fake_runs(tmp_path / 'run', noise_key_file=str(paths[0]))
  with pytest.raises(ValueError, match='another noise key'):
    fake_runs(tmp_path / 'run', noise_key_file=str(paths[1]), resume=True)
  result, _ = fake_runs(tmp_path / 'run', noise_key_file=str(paths[0]), resume=True)
  assert result.summary['rounds'] == 6


@pytest.mark.parametrize('correlation', ['banded', 'buffered'])
def test_a_run_goes_on_with_the_correlation_with_which_it_was_begun(
  tmp_path, fake_runs, monkeypatch, correlation
):
  values = dict(cohort_sampling='separated', noise_correlation=correlation)
  _stop_after(3, monkeypatch)
  with pytest.raises(interruption.Interrupted):
    fake_runs(tmp_path / 'run', **values)
  kept = tmp_path / 'run' / noise_correlations.NAME
  begun = np.load(kept)
  # As on another machine, whose search ends elsewhere.
  name = {'banded': 'fit_banded', 'buffered': 'fit_buffered_toeplitz'}[correlation]
  fit = getattr(correlated, name)
  fitted = []

  def elsewhere(*arguments):
    own = fit(*arguments)
    numbers = np.where(own.fitted == 1.0, 1.0, 0.5 * own.fitted)
    fitted.append(numbers)
    if correlation == 'banded':
      return correlated.Banded(bands=numbers)
    return correlated.BufferedToeplitz(
      rounds=own.rounds, scales=tuple(numbers[0]), decays=tuple(numbers[1])
    )

  monkeypatch.setattr(correlated, name, elsewhere)
  kept.rename(tmp_path / 'away')
  with pytest.raises(ValueError, match=r'another noise_correlation\.npy'):
    fake_runs(tmp_path / 'run', resume=True, **values)
  assert fitted.pop() is not None and not kept.exists()
  kept.write_bytes((tmp_path / 'away').read_bytes()[:-1])
  with pytest.raises(ValueError, match=r'noise_correlation\.npy is damaged'):
    fake_runs(tmp_path / 'run', resume=True, **values)
  (tmp_path / 'away').rename(kept)
  result, _ = fake_runs(tmp_path / 'run', resume=True, **values)
  assert result.summary['rounds'] == 6 and not fitted
  np.testing.assert_array_equal(np.load(kept), begun)
  # A new run is fitted anew, whatever an earlier one has left.
  fake_runs(tmp_path / 'new', **values)
  assert len(fitted) == 1 and not np.array_equal(np.load(tmp_path / 'new' / kept.name), begun)


@pytest.mark.parametrize('kind', ['secret', 'file'])
def test_rounds_of_which_no_checkpoint_is_left_are_not_run_with_other_noise(
  tmp_path, fake_runs, kind
):
  keys = [{}, {}]
  if kind == 'file':
    for name, own in zip(('one', 'two'), keys, strict=True):
      (tmp_path / name).write_text(NoiseKey.fresh().hex())
      os.chmod(tmp_path / name, 0o600)
      own['noise_key_file'] = str(tmp_path / name)
  _, cohorts = fake_runs(tmp_path / 'run', **keys[0])
  shutil.rmtree(tmp_path / 'run' / 'checkpoints')
  for _ in range(2):
    with pytest.raises(
      ValueError, match='run again with other noise cost privacy twice'
    ) as refused:
      fake_runs(tmp_path / 'run', resume=True, **keys[1])
    assert '\n' not in str(refused.value)
  if kind == 'file':  # with its own key it releases the same again
    assert fake_runs(tmp_path / 'run', resume=True, **keys[0])[1] == cohorts


def test_a_sweep_gives_each_run_a_key_and_takes_none(tmp_path):
  from experiments.sweeps import record, sharing

  base = dict(method='fedavg', dataset='digits', dataset_option=('num_clients=5',),
              privacy='client', noise_multiplier=1.0, delta=1e-2, rounds=2)  # fmt: skip
  grid = Grid.parse(base, ['client_learning_rate=0.1,0.2'], ['0-1'])
  runs = record.configs(grid, tmp_path / 'sweep')
  experiments = sharing.build_all(runs)
  assert len({e.noise_key.hex() for e in experiments.values()}) == 4
  for name, experiment in experiments.items():
    path = tmp_path / 'sweep' / 'runs' / name / noise_keys.NAME
    assert path.read_text().strip() == experiment.noise_key.hex()
  with pytest.raises(ValueError, match='every run of a sweep has its own'):
    sweep.run(Grid.parse({**base, 'noise_key_file': 'k'}, [], []), folder=tmp_path / 'other')


@pytest.mark.slow
def test_a_private_method_is_not_started_without_a_key():
  experiment = build_process(_config(''))
  with pytest.raises(ValueError, match='needs a noise_key: NoiseKey'):
    experiment.method.initial_server_state(0)
  # TFF's own start has one too, another for each build.
  states = [build_process(_config('')).method.process.initialize() for _ in range(2)]
  assert not np.array_equal(states[0]['noise_key'], states[1]['noise_key'])
