"""Other simulators beside ours: their environments, and taking turns with their programs."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import measure, peers, published, run
from processes import gradients

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


@pytest.mark.parametrize('name', published.WORKLOADS)
def test_the_goal_is_half_of_the_peers_time(name):
  result = {'seconds_per_round': 2.0, 'times_peer': 0.4}
  [(_, measured, _, reached)] = run.claims({f'{name}_pfl': result})
  assert measured == '2; 0.40' and reached
  assert not run.claims({f'{name}_pfl': result | {'times_peer': 0.6}})[0][3]


def test_a_peer_is_told_the_published_sizes():
  told = json.loads(json.dumps(peers.told(published.WORKLOADS['cifar10'])))
  assert told['noise_multiplier'] == 0.05 and told['clipping_norm'] == 0.4
  assert (told['cohort'], told['rows'], told['batch_size']) == (50, 50, 10)
  assert told['hyperparameters'] == {'client_learning_rate': 0.1, 'server_learning_rate': 1.0}
  told = json.loads(json.dumps(peers.told(published.WORKLOADS['stackoverflow'])))
  assert (told['noise_multiplier'], told['clipping_norm']) == (0.08, 1.0)
  sizes = {'depth': 3, 'width': 96, 'heads': 8, 'feed_forward_units': 1536, 'dropout': 0.0}
  assert told['model_options'] == sizes


@pytest.mark.exhaustive(but=['stackoverflow'])
@pytest.mark.slow
@pytest.mark.parametrize('name', published.WORKLOADS)
def test_a_peer_is_told_what_ours_trains_with(name):
  workload = published.WORKLOADS[name]
  told, ours = peers.told(workload), workload.method(4).hyperparameters
  values = {key: told[key] for key in ('noise_multiplier', 'clipping_norm')}
  for key, value in (told['hyperparameters'] | values).items():
    assert ours[key] == pytest.approx(value), key


# What is computed with the weights that are given, and what one step of SGD makes of these.
STEP = """
import json, sys
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
import peer_pfl
model = peer_pfl.network(json.loads(sys.argv[2]))
given = {name: torch.from_numpy(value) for name, value in np.load(sys.argv[3]).items()}
x, y = given.pop('x'), given.pop('y')
model.load_state_dict(given)  # These parameters and no others.
outputs = model.eval()(x).detach().numpy()
for module in model.modules():
  if isinstance(module, torch.nn.Dropout):
    module.p = 0.0
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model.loss(x, y).backward()
optimizer.step()
stepped = {name: value.detach().numpy() for name, value in model.named_parameters()}
np.savez(sys.argv[4], outputs=outputs, **stepped)
"""

# Names of our parameters -> PyTorch's: of the residual network, of the transformer, of all.
RENAMED = (
  (r'(block\d)_', r'\1.'),
  (r'(stem|first|second|shortcut)_weights$', r'\1.conv.weight'),
  (r'(stem|first|second|shortcut)_(scale|offset)$', r'\1.norm_\2'),
  (r'^layer(\d)_', r'encoder.layers.\1.'),
  (r'\.attention_', '.norm1_'),
  (r'\.feed_forward_', '.norm2_'),
  (r'\.qkv_', '.self_attn.in_proj_'),
  (r'\.mix_', '.self_attn.out_proj_'),
  (r'\.expand_', '.linear1_'),
  (r'\.contract_', '.linear2_'),
  (r'^final_', 'encoder.norm_'),
  (r'^embedding$', 'embedding.weight'),
  (r'_(weights|scale)$', '.weight'),
  (r'_(bias|offset)$', '.bias'),
  (r'in_proj\.', 'in_proj_'),
)


def in_pytorch(params):
  """Our parameters with PyTorch's names and axes."""
  return dict(_in_pytorch(name, np.asarray(value)) for name, value in params.items())


def _in_pytorch(name, value):
  theirs = name
  for pattern, other in RENAMED:
    theirs = re.sub(pattern, other, theirs)
  if 'conv' in theirs and value.ndim == 2:  # rows are ordered by row, column and channel
    side = {'stem_weights': 7}.get(name, 1 if 'shortcut' in name else 3)
    value = value.reshape(side, side, -1, value.shape[1]).transpose(3, 2, 0, 1)
  elif name == 'hidden_weights':  # after pictures of 14x14, whose channels stand first there
    value = value.reshape(14, 14, 64, 128).transpose(3, 2, 0, 1).reshape(128, -1)
  elif name.endswith('_weights'):
    value = value.T
  return theirs, value


@pytest.mark.slow
@pytest.mark.parametrize('name', published.WORKLOADS)
def test_the_peers_model_is_the_same_function_and_trains_alike(name, tmp_path):
  if not (peers._ROOT / 'build' / 'pfl' / '.ready').exists():
    pytest.skip(f'pfl is not installed: ./fl python -m benchmarks.run --only={name}_pfl')
  workload = dataclasses.replace(published.WORKLOADS[name], population=1)
  network, data = workload.network(), workload.data([3], 3)
  x, y = data['x'][0], data['y'][0]
  if workload.tokens:
    y[0, 12:] = 0  # A sentence that ends.
  random = np.random.default_rng(0)
  params = network.init(tf.constant([0, 0]))
  for key in params:  # Biases and scales of their own, too.
    params[key] += 0.1 * random.normal(size=params[key].shape) * (params[key].shape.rank == 1)
  theirs = {'x': np.int64(x), 'y': np.int64(y)}
  if not workload.tokens:
    theirs['x'] = np.float32(x.transpose(0, 3, 1, 2) / 255)
  if workload.task_kind == 'multilabel':
    theirs['y'] = y
  np.savez(tmp_path / 'given.npz', **theirs, **in_pytorch(params))
  command = [peers.environment('pfl', peers.PFL), '-c', STEP, pathlib.Path(peers.__file__).parent]
  told = json.dumps(peers.told(workload))
  subprocess.run([*command, told, tmp_path / 'given.npz', tmp_path / 'then.npz'], check=True)
  then = dict(np.load(tmp_path / 'then.npz'))
  outputs = then.pop('outputs')
  np.testing.assert_allclose(outputs, network.predict(params, x), rtol=1e-4, atol=1e-5)
  assert sum(p.size for p in then.values()) == sum(p.shape.num_elements() for p in params.values())
  gradient, _ = gradients.mean_gradient(network, params, x, y, network.weigh(y))
  ours = in_pytorch(gradient)
  before = in_pytorch(params)
  assert then.keys() == ours.keys()
  for key, value in then.items():
    size = np.abs(ours[key]).max()
    np.testing.assert_allclose(before[key] - value, ours[key], atol=1e-3 * size, err_msg=key)
