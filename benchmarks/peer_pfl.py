"""CIFAR-10's published workload in pfl-research: a program for an environment that has `pfl`.

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


def network(example_shape: list[int], num_outputs: int) -> Any:
  """The convolution network with dropout, and its loss as pfl wants it."""
  height, width, depth = example_shape
  flat_size = 64 * ((height - 4) // 2) * ((width - 4) // 2)
  layers = collections.OrderedDict(
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
    output=torch.nn.Linear(128, num_outputs),
  )
  model: Any = torch.nn.Sequential(layers)
  model.loss = lambda x, y: torch.nn.functional.cross_entropy(model.train()(x), y)
  model.metrics = lambda x, y: {}  # Nothing is evaluated.
  return model


def dataset(workload: dict[str, Any]) -> FederatedDataset:
  """Random images of all users, as float32 from the beginning."""
  generator = torch.Generator().manual_seed(0)
  height, width, depth = workload['example_shape']
  shape = (workload['population'], workload['rows'])
  x = torch.rand((*shape, depth, height, width), generator=generator)
  y = torch.randint(workload['num_outputs'], shape, generator=generator)
  users = range(workload['population'])
  return FederatedDataset(
    lambda user: Dataset(raw_data=[x[user], y[user]]), get_user_sampler('random', users)
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
  model = network(workload['example_shape'], workload['num_outputs'])
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
    PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
    NNTrainHyperParams(
      local_num_epochs=workload['local_epochs'],
      local_learning_rate=workload['client_learning_rate'],
      local_batch_size=workload['batch_size'],
    ),
    callbacks=[Turns()],
    send_metrics_to_platform=False,
  )


if __name__ == '__main__':
  main()
