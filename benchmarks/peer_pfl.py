"""The field's published workloads in pfl-research: a program for an environment that has `pfl`.

`benchmarks.peers` starts it. It knows nothing of this project: the workload comes as JSON on the
command line. For each line on its standard input it computes one round, and writes how many
seconds that took.
"""

import collections
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


def dropout_cnn(workload: dict[str, Any]) -> Any:
  """The convolution network with dropout."""
  height, width, depth = workload['example_shape']
  flat_size = 64 * ((height - 4) // 2) * ((width - 4) // 2)
  return torch.nn.Sequential(
    collections.OrderedDict(
      conv0=torch.nn.Conv2d(depth, 32, 3),
      relu0=torch.nn.ReLU(),
      conv1=torch.nn.Conv2d(32, 64, 3),
      relu1=torch.nn.ReLU(),
      pool=torch.nn.MaxPool2d(2),
      drop0=torch.nn.Dropout(0.25),
      flat=torch.nn.Flatten(),
      hidden=torch.nn.Linear(flat_size, 128),
      relu2=torch.nn.ReLU(),
      drop1=torch.nn.Dropout(0.5),
      output=torch.nn.Linear(128, workload['num_outputs']),
    )
  )


class Transformer(torch.nn.Module):
  """PyTorch's encoder with a causal mask, normalised first; positions are learned."""

  def __init__(self, workload: dict[str, Any]):
    """Its sizes are the model's options; there is no dropout."""
    super().__init__()
    (steps,), tokens = workload['example_shape'], workload['num_outputs']
    options = workload['model_options']
    width = options['width']
    assert not options['dropout'], "PyTorch's layers drop in other places"
    layer = torch.nn.TransformerEncoderLayer(
      width,
      options['heads'],
      options['feed_forward_units'],
      dropout=0.0,
      batch_first=True,
      norm_first=True,
    )
    self.embedding = torch.nn.Embedding(tokens, width)
    self.positions = torch.nn.Parameter(0.05 * torch.randn(steps, width))
    self.encoder = torch.nn.TransformerEncoder(
      layer, options['depth'], norm=torch.nn.LayerNorm(width), enable_nested_tensor=False
    )
    self.output = torch.nn.Linear(width, tokens)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(steps)
    self.register_buffer('mask', mask, persistent=False)

  def forward(self, x: Any) -> Any:
    """Logits [B, T, V] of tokens x [B, T]."""
    hidden = self.encoder(self.embedding(x) + self.positions, mask=self.mask, is_causal=True)
    return self.output(hidden)


def convolution(inputs: int, outputs: int, size: int, stride: int, groups: int) -> Any:
  """A convolution and its normalisation, for sides that the stride divides.

  A side shrinks by the stride alone; of an odd number of zeros there is one more at the end.
  """
  zeros = max(size - stride, 0)
  layers = collections.OrderedDict()
  if zeros % 2:
    layers['pad'] = torch.nn.ZeroPad2d((0, 1, 0, 1))
  layers['conv'] = torch.nn.Conv2d(inputs, outputs, size, stride, zeros // 2, bias=False)
  layers['norm'] = torch.nn.GroupNorm(groups, outputs)
  return torch.nn.Sequential(layers)


class Block(torch.nn.Module):
  """Two convolutions beside a shortcut."""

  def __init__(self, inputs: int, outputs: int, stride: int, groups: int):
    """The shortcut is a convolution where the shape changes."""
    super().__init__()
    self.first = convolution(inputs, outputs, 3, stride, groups)
    self.second = convolution(outputs, outputs, 3, 1, groups)
    self.shortcut = torch.nn.Identity()
    if stride != 1 or inputs != outputs:
      self.shortcut = convolution(inputs, outputs, 1, stride, groups)

  def forward(self, x: Any) -> Any:
    """Channels stand before height and width."""
    inside = self.second(torch.relu(self.first(x)))
    return torch.relu(inside + self.shortcut(x))


def resnet18(workload: dict[str, Any]) -> Any:
  """ResNet-18 with group normalisation and the stem for large images, of sides in 32s."""
  *sides, depth = workload['example_shape']
  assert all(side >= 64 and side % 32 == 0 for side in sides)
  width, groups = (workload['model_options'][name] for name in ('width', 'groups'))
  layers = collections.OrderedDict(
    stem=convolution(depth, width, 7, 2, groups),
    relu=torch.nn.ReLU(),
    pool=torch.nn.MaxPool2d(3, 2, ceil_mode=True),
  )
  inputs = width
  for stage in range(4):
    outputs = width * 2**stage
    for block in range(2):
      stride = 2 if stage > 0 and block == 0 else 1
      layers[f'stage{stage}_block{block}'] = Block(inputs, outputs, stride, groups)
      inputs = outputs
  layers['mean'] = torch.nn.AdaptiveAvgPool2d(1)
  layers['flat'] = torch.nn.Flatten()
  layers['output'] = torch.nn.Linear(inputs, workload['num_outputs'])
  return torch.nn.Sequential(layers)


NETWORKS = {
  'dropout_cnn': dropout_cnn,
  'next_word_transformer': Transformer,
  'resnet18': resnet18,
}


def next_word_loss(logits: Any, y: Any) -> Any:
  """The mean over all tokens of a batch that are no padding."""
  return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=0)


LOSSES = {
  'classification': torch.nn.functional.cross_entropy,
  'next_word': next_word_loss,
  'multilabel': torch.nn.functional.binary_cross_entropy_with_logits,
}


def network(workload: dict[str, Any]) -> Any:
  """The workload's network, and its loss as pfl wants it."""
  model: Any = NETWORKS[workload['model']](workload)
  loss = LOSSES[workload['task_kind']]
  model.loss = lambda x, y: loss(model.train()(x), y)
  model.metrics = lambda x, y: {}  # Nothing is evaluated.
  return model


def server_optimizer(workload: dict[str, Any], parameters: Any) -> Any:
  """PyTorch's SGD or Adam, as pfl's users have it: this Adam corrects its moments' bias."""
  values = workload['hyperparameters']
  rate = values['server_learning_rate']
  if workload['server_optimizer'] == 'sgd':
    return torch.optim.SGD(parameters, lr=rate)
  assert workload['server_optimizer'] == 'fedadam'
  betas = values['server_momentum'], values['server_second_moment_decay']
  return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=values['server_adaptivity'])


def dataset(workload: dict[str, Any]) -> FederatedDataset:
  """Random examples of all users: sentences, or images that are float32 from the beginning."""
  generator = torch.Generator().manual_seed(0)
  clients = workload['population'], workload['rows']
  labels = (*clients, *workload['label_shape'])
  most = workload['num_outputs']
  if workload['task_kind'] == 'next_word':  # no padding: all places of all sentences are words
    x = torch.randint(1, most, (*clients, *workload['example_shape']), generator=generator)
    y = torch.randint(1, most, labels, generator=generator)
  else:
    height, width, depth = workload['example_shape']
    x = torch.rand((*clients, depth, height, width), generator=generator)
    if workload['task_kind'] == 'multilabel':
      y = torch.randint(2, labels, generator=generator).float()
    else:
      y = torch.randint(most, labels, generator=generator)
  return FederatedDataset(
    lambda user: Dataset(raw_data=[x[user], y[user]]),
    get_user_sampler('random', range(workload['population'])),
  )


class Turns(TrainingProcessCallback):
  """Says how long a round took, and waits for the next one's turn."""

  def on_train_begin(self, *, model: Any) -> Metrics:
    """Waits for the first turn."""
    del model
    self._wait()
    return Metrics()

  def after_central_iteration(
    self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
  ) -> tuple[bool, Metrics]:
    """Ends the training with the input."""
    del aggregate_metrics, model, central_iteration
    print(time.perf_counter() - self._start, flush=True)
    return not self._wait(), Metrics()

  def _wait(self) -> bool:
    line = sys.stdin.readline()
    self._start = time.perf_counter()
    return bool(line)


def main() -> None:
  """Trains for as long as there are turns."""
  workload = json.loads(sys.argv[1])
  np.random.seed(0)  # pfl draws cohorts from NumPy's generator.
  model = network(workload)
  optimizer = server_optimizer(workload, model.parameters())
  mechanism = GaussianMechanism(workload['clipping_norm'], workload['noise_multiplier'])
  data = dataset(workload)
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=sys.maxsize,
      evaluation_frequency=sys.maxsize,
      train_cohort_size=workload['cohort'],
      val_cohort_size=None,
    ),
    SimulatedBackend(data, data, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]),
    PyTorchModel(model, torch.optim.SGD, optimizer),
    NNTrainHyperParams(
      local_num_epochs=workload['local_epochs'],
      local_learning_rate=workload['hyperparameters']['client_learning_rate'],
      local_batch_size=workload['batch_size'],
    ),
    callbacks=[Turns()],
    send_metrics_to_platform=False,
  )


if __name__ == '__main__':
  main()
