"""Other simulators beside ours: their environments, and taking turns with their programs."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import measure, peers, published, run

PACKAGE = 'surely-no-such-package-of-a-peer'


def test_a_peer_that_cannot_be_installed_is_refused(monkeypatch, tmp_path):
  monkeypatch.setattr(peers, '_ROOT', tmp_path)
  said = subprocess.CalledProcessError(1, 'uv', stderr=f'{PACKAGE} was not found\n')

  def refuse(*unused, **also_unused):
    raise said

  monkeypatch.setattr(subprocess, 'run', refuse)
  with pytest.raises(peers.NotInstalledError, match=f'{PACKAGE} cannot be installed .*not found'):
    peers.environment('nobody', [PACKAGE])
  monkeypatch.setattr(sys, 'argv', ['measure', 'cifar10_pfl'])
  with pytest.raises(SystemExit, match=r'pfl==.* cannot be installed'):
    measure.main()


def test_an_environment_is_made_once(monkeypatch, tmp_path):
  monkeypatch.setattr(peers, '_ROOT', tmp_path)
  commands = []

  def make(command, **unused):
    commands.append(command)
    (tmp_path / 'build' / 'peer' / 'bin').mkdir(parents=True, exist_ok=True)

  monkeypatch.setattr(subprocess, 'run', make)
  python = peers.environment('peer', ['a==1'])
  assert python == peers.environment('peer', ['a==1']) and len(commands) == 2
  peers.environment('peer', ['a==2'])
  assert len(commands) == 4


def test_rounds_are_computed_in_turns(tmp_path):
  program = tmp_path / 'peer.py'
  program.write_text('import sys\nfor line in sys.stdin:\n  print(sys.argv[1], flush=True)\n')
  with peers.Peer(pathlib.Path(sys.executable), str(program), 0.25) as peer:
    assert [peer.round(), peer.round()] == [0.25, 0.25]
  program.write_text('raise SystemExit\n')
  with (
    peers.Peer(pathlib.Path(sys.executable), str(program), 0.25) as peer,
    pytest.raises(RuntimeError, match='ended before'),
  ):
    peer.round()


def test_the_goal_is_half_of_the_peers_time():
  result = {'seconds_per_round': 2.0, 'times_peer': 0.4}
  [(_, measured, _, reached)] = run.claims({'cifar10_pfl': result})
  assert measured == '2; 0.40' and reached
  assert not run.claims({'cifar10_pfl': result | {'times_peer': 0.6}})[0][3]


def test_the_peers_model_is_told_the_published_sizes(monkeypatch):
  told = {}
  monkeypatch.setattr(peers, 'environment', lambda *unused: pathlib.Path('python'))
  monkeypatch.setattr(peers, 'Peer', lambda python, program, workload: told.update(workload))
  peers.pfl(published.WORKLOADS['cifar10'])
  assert told['noise_multiplier'] == 0.05 and told['clipping_norm'] == 0.4
  assert (told['cohort'], told['rows'], told['batch_size']) == (50, 50, 10)


OUTPUTS = """
import sys
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
import peer_pfl
given = np.load(sys.argv[2])
model = peer_pfl.network([32, 32, 3], 10).eval()
model.load_state_dict({n: torch.from_numpy(given[n]) for n in given.files if n != 'x'})
np.save(sys.argv[3], model(torch.from_numpy(given['x'])).detach().numpy())
"""


def test_the_peers_model_is_the_same_function(tmp_path):
  if not (peers._ROOT / 'build' / 'pfl' / '.ready').exists():
    pytest.skip('pfl is not installed: ./fl python -m benchmarks.run --only=cifar10_pfl')
  network = published.WORKLOADS['cifar10'].network()
  params = {name: p.numpy() for name, p in network.init(tf.constant([0, 0])).items()}
  x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
  for name in ('conv0', 'conv1'):
    weights = params[f'{name}_weights']
    filters = weights.reshape(3, 3, -1, weights.shape[1])
    params[f'{name}_weights'] = filters.transpose(3, 2, 0, 1)
  hidden = params['hidden_weights'].reshape(14, 14, 64, 128)
  params['hidden_weights'] = hidden.transpose(3, 2, 0, 1).reshape(128, -1)  # channels first
  params['output_weights'] = params['output_weights'].T
  theirs = {
    name.replace('_weights', '.weight').replace('_bias', '.bias'): p for name, p in params.items()
  }
  np.savez(tmp_path / 'given.npz', x=np.float32(x.transpose(0, 3, 1, 2) / 255), **theirs)
  folder = pathlib.Path(peers.__file__).parent
  command = [peers.environment('pfl', peers.PFL), '-c', OUTPUTS, folder]
  subprocess.run([*command, tmp_path / 'given.npz', tmp_path / 'outputs.npy'], check=True)
  ours = network.predict(network.init(tf.constant([0, 0])), tf.constant(x))
  np.testing.assert_allclose(np.load(tmp_path / 'outputs.npy'), ours, rtol=1e-4, atol=1e-5)
